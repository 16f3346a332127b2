#include "gateway/engine/embedding.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

static void pool(const float *hidden, size_t n, size_t width, float *out) {
    double length = 0;
    for (size_t i = 0; i < width; i++) {
        double sum = 0;
        for (size_t k = 0; k < n; k++) sum += (double)hidden[k * width + i];
        out[i] = (float)(sum / (double)n);
        length += (double)out[i] * (double)out[i];
    }
    length = sqrt(length);
    for (size_t i = 0; i < width && length > 0; i++) out[i] = (float)((double)out[i] / length);
}

swarm_code sn_embed(const swarm_model *model, swarm_session *session, const int32_t *ids, size_t n, float *out,
                    swarm_error **error) {
    const size_t width = (size_t)swarm_model_width(model);
    float *hidden;
    sn_err err;
    if (sn_calloc(&hidden, n * width, sizeof *hidden, &err)) return SWARM_STOP;
    swarm_code code = swarm_model_embed(model, ids, n, hidden, error);
    if (!code) code = swarm_session_forward(session, 0, n, hidden, hidden, error);
    if (!code) code = swarm_model_norm(model, hidden, n, hidden, error);
    if (!code) pool(hidden, n, width, out);
    free(hidden);
    return code;
}
