/* Norms and biases, from the file to what the mathematics multiplies and adds. */
#ifndef SN_BLOCKS_VECTOR_H
#define SN_BLOCKS_VECTOR_H

#include "model/model.h"

/* out (tensor->cols), host: the tensor of `role` as float32, by the guard; a norm's factors with their 1, where the file
 * has them without. */
sn_status sn_vector_read(const sn_hparams *hparams, sn_role role, const sn_model_tensor *tensor, const char *name,
                         float *out, sn_err *err) SN_MUST_USE;

#endif
