#include "gateway/queue/embedding.h"

#include "base/mem.h"
#include "gateway/queue/audited.h"

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

typedef struct input {
    const swarm_model *model;
    const int32_t *ids; /* (n) */
    size_t n;
    float *hidden; /* (n, width) */
} input;

static swarm_code forward(void *ctx, swarm_session *session, swarm_error **error) {
    input *in = ctx;
    swarm_code code = swarm_model_embed(in->model, in->ids, in->n, in->hidden, error);
    return code ? code : swarm_session_forward(session, 0, in->n, in->hidden, in->hidden, error);
}

swarm_code sn_embed(const swarm_model *model, swarm_session *session, const int32_t *ids, size_t n, float *out,
                    swarm_error **error) {
    const size_t width = (size_t)swarm_model_width(model);
    input in = {.model = model, .ids = ids, .n = n};
    sn_err err;
    if (sn_calloc(&in.hidden, n * width, sizeof *in.hidden, &err)) return SWARM_STOP;
    swarm_code code = sn_compute_audited(forward, &in, session, error);
    if (!code) code = swarm_model_norm(model, in.hidden, n, in.hidden, error);
    if (!code) pool(in.hidden, n, width, out);
    free(in.hidden);
    return code;
}
