/* Random numbers from a seed: the same seed, the same numbers, everywhere. For choices that only have to differ, never for
 * secrets (sn_random in hash.h). SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). */
#ifndef SN_BASE_RANDOM_H
#define SN_BASE_RANDOM_H

#include <stdint.h>

static inline uint64_t sn_seeded_next(uint64_t *seed) {
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In [0, n); 0 for n == 0. n far below 2^64, so that the remainder favours nobody to speak of. */
static inline uint64_t sn_seeded_below(uint64_t *seed, uint64_t n) { return n ? sn_seeded_next(seed) % n : 0; }

#endif
