#include "base/random.h"

#include "base/math.h"

#include <math.h>

double sn_rng_normal(uint64_t *state) {
    double sine, cosine, u = 1 - sn_rng_uniform(state);
    sn_sincos(6.283185307179586 * sn_rng_uniform(state), &sine, &cosine);
    return sqrt(-2 * sn_ln(u)) * cosine;
}

void sn_rng_shuffle(uint64_t *state, size_t *indices, size_t n) {
    for (size_t i = n; i > 1; i--) {
        size_t k = (size_t)(sn_rng_uniform(state) * (double)i), kept = indices[i - 1];
        indices[i - 1] = indices[k];
        indices[k] = kept;
    }
}
