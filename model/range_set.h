/* A set of byte ranges of a file: what is there, what is missing, what is wanted. Kept sorted, joined where ranges
 * touch. The caller owns the set; one thread at a time. */
#ifndef SN_MODEL_RANGE_SET_H
#define SN_MODEL_RANGE_SET_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_range {
    uint64_t from, to; /* bytes [from, to), from < to */
} sn_range;

typedef struct sn_range_set {
    sn_range *ranges;
    size_t n, capacity;
} sn_range_set; /* zeroed: empty */

void sn_range_set_fini(sn_range_set *set);
/* Adds [from, to), joined with what it touches. Nothing if it is empty. SN_STOP: out of memory. */
sn_status sn_range_set_add(sn_range_set *set, uint64_t from, uint64_t to, sn_err *err) SN_MUST_USE;
bool sn_range_set_covers(const sn_range_set *set, uint64_t from, uint64_t to);
uint64_t sn_range_set_bytes(const sn_range_set *set);
/* Adds to `out` what of `wanted` is not in `present`. Two missing parts with at most `gap` bytes between them become
 * one, since a request costs more than these bytes. */
sn_status sn_range_set_missing(const sn_range_set *wanted, const sn_range_set *present, uint64_t gap, sn_range_set *out,
                               sn_err *err) SN_MUST_USE;

#endif
