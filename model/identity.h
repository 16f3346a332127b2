/* What a model's hashes are made of. Private to model/. */
#ifndef SN_MODEL_IDENTITY_H
#define SN_MODEL_IDENTITY_H

#include "model/model.h"

/* The id that sn_model_id returns. Tensors that are not in the files are hashed as absent, so a part of a model has
 * another id than the complete model. */
sn_status sn_model_compute_id(const sn_model *model, sn_hash *out, sn_err *err) SN_MUST_USE;

/* Adds what the hash of a block is of, in order: hyperparameters, and of each matrix its description and then what
 * `add` adds of it. */
typedef sn_status (*sn_add_matrix)(void *ctx, sn_hasher *hasher, const sn_model_tensor *tensor, sn_err *err);
sn_status sn_model_add_block(const sn_model *model, int block, sn_hasher *hasher, sn_add_matrix add, void *ctx,
                             sn_err *err) SN_MUST_USE;

#endif
