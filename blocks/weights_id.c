#include "blocks/weights_id.h"

#include "base/mem.h"
#include "blocks/vector.h"

#include <stdlib.h>

sn_status sn_weights_id(const sn_model *model, sn_hash *out, sn_err *err) {
    sn_model_tensor t;
    float *norm = NULL;
    sn_status status = sn_model_find(model, SN_ROLE_OUTPUT_NORM, 0, &t, err);
    if (!status && !t.data) status = sn_fail(err, SN_REFUSED, "the model has no last norm");
    if (!status) status = sn_calloc(&norm, t.cols, sizeof *norm, err);
    if (!status) status = sn_vector_read(sn_model_hparams(model), SN_ROLE_OUTPUT_NORM, &t, "output norm", norm, err);
    if (!status) *out = sn_hash_of(norm, t.cols * sizeof *norm);
    free(norm);
    return status;
}
