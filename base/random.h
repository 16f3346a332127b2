/* Random numbers from a seed: the same seed gives the same numbers on every machine. For choices and initial values,
 * never for secrets (sn_random in base/hash.h draws those). The generator is SplitMix64 (Steele, Lea, Flood: Fast
 * Splittable Pseudorandom Number Generators, 2014): its state is one number, so a checkpoint can hold it. */
#ifndef SN_BASE_RANDOM_H
#define SN_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t sn_rng_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In [0, n); 0 for n == 0. n must be far below 2^64: the bias of the remainder is then negligible. */
static inline uint64_t sn_rng_below(uint64_t *state, uint64_t n) { return n ? sn_rng_next(state) % n : 0; }

/* In [0, 1), 53 random bits. */
static inline double sn_rng_uniform(uint64_t *state) { return (double)(sn_rng_next(state) >> 11) * 0x1p-53; }

double sn_rng_normal(uint64_t *state); /* mean 0, standard deviation 1 (Box and Muller 1958) */

/* Permutes n indices, each order equally likely (Fisher and Yates). */
void sn_rng_shuffle(uint64_t *state, size_t *indices, size_t n);

#endif
