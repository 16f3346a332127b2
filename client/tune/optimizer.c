#include "client/tune/optimizer.h"

#include "base/math.h"

#include <math.h>
#include <string.h>

static const double BETA1 = 0.9, BETA2 = 0.999, EPSILON = 1e-8;
const sn_word sn_schedule_words[] = {
    {"constant", SN_SCHEDULE_CONSTANT}, {"cosine", SN_SCHEDULE_COSINE}, {"linear", SN_SCHEDULE_LINEAR}, {NULL, 0}};

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

double sn_clip_grad_norm(float *gradients, size_t n, double clip) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)gradients[i] * (double)gradients[i];
    double norm = sqrt(squares);
    if (clip > 0 && norm > clip)
        for (size_t i = 0; i < n; i++) gradients[i] *= (float)(clip / norm);
    return norm;
}

void sn_adamw_step(const sn_optimizer_options *o, int64_t step, size_t n, float *values, const float *gradients,
                   float *exp_avg, float *exp_avg_sq) {
    double lr = sn_learning_rate(o, step), t = (double)(step + 1);
    float decay = (float)(1 - lr * o->weight_decay), rate = (float)(lr / (1 - sn_pow(BETA1, t)));
    float correction = (float)sqrt(1 - sn_pow(BETA2, t)), epsilon = (float)EPSILON;
    float b1 = (float)BETA1, b2 = (float)BETA2, a1 = (float)(1 - BETA1), a2 = (float)(1 - BETA2);
    for (size_t i = 0; i < n; i++) {
        float g = gradients[i];
        exp_avg[i] = b1 * exp_avg[i] + a1 * g;
        exp_avg_sq[i] = b2 * exp_avg_sq[i] + a2 * g * g;
        values[i] = values[i] * decay - rate * exp_avg[i] / (sqrtf(exp_avg_sq[i]) / correction + epsilon);
    }
}
