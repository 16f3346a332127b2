/* Computes a model's id, once when it is opened. Private to model/. */
#ifndef SN_MODEL_IDENTITY_H
#define SN_MODEL_IDENTITY_H

#include "model/model.h"

/* The id that sn_model_id returns. Tensors that are not in the files are hashed as absent, so a part of a model has
 * another id than the complete model. */
sn_status sn_model_compute_id(const sn_model *model, sn_hash *out, sn_err *err) SN_MUST_USE;

#endif
