#include "client/tune/optimizer.h"

#include "base/math.h"

#include <math.h>
#include <string.h>

static const double BETA1 = 0.9, BETA2 = 0.999, EPSILON = 1e-8;
static const char *const names[SN_SCHEDULE_COUNT] = {"constant", "cosine", "linear"};

const char *sn_schedule_name(sn_schedule schedule) { return names[schedule]; }

sn_status sn_schedule_parse(const char *name, sn_schedule *out, sn_err *err) {
    for (int i = 0; i < SN_SCHEDULE_COUNT; i++)
        if (!strcmp(name, names[i])) {
            *out = (sn_schedule)i;
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED, "--schedule %.40s is unknown: use constant, cosine or linear", name);
}

double sn_learning_rate(const sn_optimizer_options *o, int64_t step) {
    double sine, cosine,
        left = (double)(o->steps - step) / (double)(o->steps - o->warmup > 0 ? o->steps - o->warmup : 1);
    if (step < o->warmup) return o->lr * (double)(step + 1) / (double)(o->warmup + 1);
    if (o->schedule == SN_SCHEDULE_CONSTANT) return o->lr;
    if (left < 0) left = 0;
    if (left > 1) left = 1;
    if (o->schedule == SN_SCHEDULE_LINEAR) return o->lr * left;
    sn_sincos(3.141592653589793 * (1 - left), &sine, &cosine);
    return o->lr * (1 + cosine) / 2;
}

double sn_clip(float *gradients, size_t n, double clip) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)gradients[i] * (double)gradients[i];
    double norm = sqrt(squares);
    if (clip > 0 && norm > clip)
        for (size_t i = 0; i < n; i++) gradients[i] *= (float)(clip / norm);
    return norm;
}

void sn_adamw(const sn_optimizer_options *o, int64_t step, size_t n, float *values, const float *gradients,
              float *first, float *second) {
    double lr = sn_learning_rate(o, step), t = (double)(step + 1);
    float keep = (float)(1 - lr * o->weight_decay), rate = (float)(lr / (1 - sn_pow(BETA1, t)));
    float correction = (float)sqrt(1 - sn_pow(BETA2, t)), epsilon = (float)EPSILON;
    float b1 = (float)BETA1, b2 = (float)BETA2, a1 = (float)(1 - BETA1), a2 = (float)(1 - BETA2);
    for (size_t i = 0; i < n; i++) {
        float g = gradients[i];
        first[i] = b1 * first[i] + a1 * g;
        second[i] = b2 * second[i] + a2 * g * g;
        values[i] = values[i] * keep - rate * first[i] / (sqrtf(second[i]) / correction + epsilon);
    }
}
