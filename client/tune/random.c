#include "client/tune/random.h"

#include "base/math.h"

#include <math.h>

uint64_t sn_random_next(sn_random_state *r) {
    uint64_t z = r->at += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double sn_random_uniform(sn_random_state *r) { return (double)(sn_random_next(r) >> 11) * 0x1p-53; }

double sn_random_normal(sn_random_state *r) {
    double sine, cosine, u = 1 - sn_random_uniform(r);
    sn_sincos(6.283185307179586 * sn_random_uniform(r), &sine, &cosine);
    return sqrt(-2 * sn_ln(u)) * cosine;
}

void sn_random_shuffle(sn_random_state *r, size_t *at, size_t n) {
    for (size_t i = n; i > 1; i--) {
        size_t k = (size_t)(sn_random_uniform(r) * (double)i), kept = at[i - 1];
        at[i - 1] = at[k];
        at[k] = kept;
    }
}
