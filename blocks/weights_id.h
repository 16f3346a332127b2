/* Which weights something was trained for, so that it is not taken for others of the same shapes. */
#ifndef SN_BLOCKS_WEIGHTS_ID_H
#define SN_BLOCKS_WEIGHTS_ID_H

#include "model/model.h"

/* SHA-256 of the model's last norm as float32: what training a model changes, what every file type keeps exactly, and what
 * is read in no time. So a model has the same in any quantisation, as GGUF and as a folder; weights that were changed and left
 * this norm as it was are not told apart. SN_REFUSED where the files lack it. */
sn_status sn_weights_id(const sn_model *model, sn_hash *out, sn_err *err) SN_MUST_USE;

#endif
