/* Private to the model: its id, computed once at open. */
#ifndef SN_MODEL_IDENTITY_H
#define SN_MODEL_IDENTITY_H

#include "model/model.h"

/* See sn_model_id. Tensors that are not in the files count as absent: a part of a model has another id than the whole.
 */
sn_status sn_model_make_id(const sn_model *model, sn_hash *out, sn_err *err) SN_MUST_USE;

#endif
