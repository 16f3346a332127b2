/* Weights outside of device layouts: norms and biases as float32, and the identity of a model's weights. Functions
 * without state; any thread may call them on an open model. */
#ifndef SN_BLOCKS_WEIGHTS_H
#define SN_BLOCKS_WEIGHTS_H

#include "model/model.h"

/* Writes the norm or bias of `role` to out (tensor->cols), host, as float32, through the device guard. The factors of a
 * norm get the 1 that some files leave out (hparams->norm_plus_one). `name` names the tensor in errors. */
sn_status sn_vector_read(const sn_hparams *hparams, sn_role role, const sn_model_tensor *tensor, const char *name,
                         float *out, sn_err *err) SN_MUST_USE;

/* Names the weights that an adapter was trained for, so that it is not used with other weights of the same shapes:
 * SHA-256 of the model's last norm as float32. Training a model changes this norm, every file type stores it exactly,
 * and it is read in no time. So a model has the same id in any quantisation, as GGUF and as a folder. Weights that were
 * changed without this norm are not told apart. SN_REFUSED where the files lack the norm. */
sn_status sn_weights_id(const sn_model *model, sn_hash *out, sn_err *err) SN_MUST_USE;

#endif
