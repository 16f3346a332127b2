#include "model/range_set.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void sn_range_set_fini(sn_range_set *set) {
    free(set->ranges);
    *set = (sn_range_set){0};
}

/* The first range that ends at `at` or behind it. */
static size_t first_reaching(const sn_range_set *set, uint64_t at) {
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->ranges[middle].to < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static sn_status range_set_reserve(sn_range_set *set, sn_err *err) {
    return sn_grow(&set->ranges, &set->capacity, set->n + 1, sizeof *set->ranges, err);
}

sn_status sn_range_set_add(sn_range_set *set, uint64_t from, uint64_t to, sn_err *err) {
    if (from >= to) return SN_OK;
    sn_status status = range_set_reserve(set, err);
    if (status) return status;
    size_t at = first_reaching(set, from), end = at;
    for (; end < set->n && set->ranges[end].from <= to; end++) {
        if (set->ranges[end].from < from) from = set->ranges[end].from;
        if (set->ranges[end].to > to) to = set->ranges[end].to;
    }
    memmove(set->ranges + at + 1, set->ranges + end, (set->n - end) * sizeof *set->ranges);
    set->n = set->n + 1 - (end - at);
    set->ranges[at] = (sn_range){from, to};
    return SN_OK;
}

bool sn_range_set_covers(const sn_range_set *set, uint64_t from, uint64_t to) {
    if (from >= to) return true;
    size_t at = first_reaching(set, to);
    return at < set->n && set->ranges[at].from <= from;
}

uint64_t sn_range_set_bytes(const sn_range_set *set) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < set->n; i++) bytes += set->ranges[i].to - set->ranges[i].from;
    return bytes;
}

static sn_status add_missing(sn_range_set *out, uint64_t from, uint64_t to, uint64_t gap, sn_err *err) {
    if (from >= to) return SN_OK;
    sn_range *last = out->n ? &out->ranges[out->n - 1] : NULL;
    if (!last || from < last->to || from - last->to > gap) return sn_range_set_add(out, from, to, err);
    last->to = to;
    return SN_OK;
}

sn_status sn_range_set_missing(const sn_range_set *wanted, const sn_range_set *present, uint64_t gap, sn_range_set *out,
                               sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; !status && i < wanted->n; i++) {
        uint64_t from = wanted->ranges[i].from, to = wanted->ranges[i].to;
        for (size_t k = first_reaching(present, from); !status && k < present->n && present->ranges[k].from < to; k++) {
            status = add_missing(out, from, present->ranges[k].from < from ? from : present->ranges[k].from, gap, err);
            if (present->ranges[k].to > from) from = present->ranges[k].to;
        }
        if (!status) status = add_missing(out, from, to, gap, err);
    }
    return status;
}
