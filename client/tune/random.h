/* Random numbers that a seed decides, the same on every machine: SplitMix64 (Steele et al. 2014). The state is one
 * number, so a checkpoint holds it. */
#ifndef SN_CLIENT_TUNE_RANDOM_H
#define SN_CLIENT_TUNE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct sn_random_state {
    uint64_t at;
} sn_random_state;

uint64_t sn_random_next(sn_random_state *r);
double sn_random_uniform(sn_random_state *r);                     /* [0, 1) */
double sn_random_normal(sn_random_state *r);                      /* mean 0, deviation 1; Box and Muller 1958 */
void sn_random_shuffle(sn_random_state *r, size_t *at, size_t n); /* Fisher and Yates */

#endif
