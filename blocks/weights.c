#include "blocks/weights.h"

#include "base/math.h"
#include "device/guard.h"

#include <math.h>
#include <stdlib.h>

sn_status sn_vector_read(const sn_hparams *hparams, sn_role role, const sn_model_tensor *t, const char *name,
                         float *out, sn_err *err) {
    sn_tensor outside = {.name = name, .dtype = t->dtype, .rank = 1, .shape = {(int64_t)t->cols}};
    void *copy;
    sn_status status = sn_model_contiguous(t, &outside.data, &copy, err);
    if (!status) status = sn_guard(&outside, NULL, 1, outside.shape, out, NULL, err);
    free(copy);
    for (size_t i = 0; i < t->cols && !status && hparams->norm_plus_one && sn_role_is_norm(role); i++) out[i] += 1.0f;
    const float router = 1 / sqrtf((float)hparams->n_embd);
    for (size_t i = 0; i < t->cols && !status && role == SN_ROLE_ROUTER_NORM; i++) out[i] *= router;
    for (size_t i = 0; i < t->cols && !status && hparams->delta_log_rates && role == SN_ROLE_DELTA_RATES; i++)
        out[i] = -(float)sn_exp((double)out[i]);
    for (size_t i = 0; i < t->cols && !status && hparams->delta_rates_negated && role == SN_ROLE_DELTA_RATES; i++)
        out[i] = -out[i];
    return status;
}
