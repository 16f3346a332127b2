/* Weights outside of device layouts: norms and biases as float32. A function without state; any thread may call it on
 * an open model. */
#ifndef SN_BLOCKS_WEIGHTS_H
#define SN_BLOCKS_WEIGHTS_H

#include "model/model.h"

/* Writes the norm or bias of `role` to out (tensor->cols), host, as float32, through the device guard. The factors of a
 * norm get the 1 that some files leave out (hparams->norm_plus_one). `name` names the tensor in errors. */
sn_status sn_vector_read(const sn_hparams *hparams, sn_role role, const sn_model_tensor *tensor, const char *name,
                         float *out, sn_err *err) SN_MUST_USE;

#endif
