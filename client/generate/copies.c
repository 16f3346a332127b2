/* For each of a few lengths k, a table of hashes leads to the newest place behind such a k-gram, and from place to
 * place to older ones. A lookup asks the longest k first, verifies the newest places, and lengthens each match
 * backwards. What is verified is bounded; so that the longest place is found in spite of that where a passage is being
 * copied, the place that was found for the token before is always tried. */
#include "client/generate/copies.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LEVELS = 5, PLACES = 32, FIRST_CAPACITY = 1024 };
static const size_t lengths[LEVELS] = {32, 16, 8, 5, SN_COPY_MIN};

typedef struct level {
    uint32_t *newest; /* (2 * capacity): by hash, the end of the newest k-gram; 0: none */
    uint32_t *older;  /* (capacity): of the k-gram that ends behind token i, the end of the one before it */
} level;

struct sn_copies {
    int32_t *ids; /* (capacity) */
    size_t n, capacity;
    level levels[LEVELS];
    size_t followed, found; /* where the newest match was found, and the length of the text then */
};

sn_status sn_copies_new(sn_copies **out, sn_err *err) { return sn_calloc(out, 1, sizeof **out, err); }

static void free_arrays(sn_copies *c) {
    free(c->ids);
    for (int i = 0; i < LEVELS; i++) free(c->levels[i].newest), free(c->levels[i].older);
}

void sn_copies_free(sn_copies **copies) {
    if (!*copies) return;
    free_arrays(*copies);
    free(*copies);
    *copies = NULL;
}

/* Where the table has the k-gram that ends behind token i. */
static uint32_t *newest_of(const sn_copies *c, int l, size_t i) {
    const size_t k = lengths[l];
    uint64_t hash = k;
    for (size_t j = i + 1 - k; j <= i; j++)
        hash = (hash ^ (uint32_t)c->ids[j]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
    return &c->levels[l].newest[hash & (2 * c->capacity - 1)];
}

static void push(sn_copies *c, int32_t id) {
    const size_t i = c->n++;
    c->ids[i] = id;
    for (int l = 0; l < LEVELS; l++) {
        if (i + 1 < lengths[l]) continue;
        uint32_t *newest = newest_of(c, l, i);
        c->levels[l].older[i] = *newest;
        *newest = (uint32_t)(i + 1);
    }
}

void sn_copies_forget(sn_copies *c, size_t n) {
    for (; c->n > n; c->n--)
        for (int l = 0; l < LEVELS; l++)
            if (c->n >= lengths[l]) *newest_of(c, l, c->n - 1) = c->levels[l].older[c->n - 1];
}

/* Room for n tokens: the index is made again in larger arrays. */
static sn_status grow(sn_copies *c, size_t n, sn_err *err) {
    sn_copies larger = {
        .capacity = c->capacity ? c->capacity : FIRST_CAPACITY, .followed = c->followed, .found = c->found};
    if (n <= c->capacity) return SN_OK;
    while (larger.capacity < n) larger.capacity *= 2;
    sn_status status = sn_calloc(&larger.ids, larger.capacity, sizeof *larger.ids, err);
    for (int l = 0; l < LEVELS && !status; l++) {
        status = sn_calloc(&larger.levels[l].newest, 2 * larger.capacity, sizeof(uint32_t), err);
        if (!status) status = sn_calloc(&larger.levels[l].older, larger.capacity, sizeof(uint32_t), err);
    }
    for (size_t i = 0; i < c->n && !status; i++) push(&larger, c->ids[i]);
    free_arrays(status ? &larger : c);
    if (!status) *c = larger;
    return status;
}

/* How many tokens before `end` are those at the end of the text. */
static size_t match_at(const sn_copies *c, size_t end) {
    size_t same = 0;
    while (same < end && same < SN_COPY_MAX && c->ids[end - 1 - same] == c->ids[c->n - 1 - same]) same++;
    return same;
}

static void try_place(const sn_copies *c, size_t end, size_t *matched, size_t *at) {
    const size_t same = match_at(c, end);
    if (same < SN_COPY_MIN || same < *matched || (same == *matched && end < *at)) return;
    *matched = same;
    *at = end;
}

sn_status sn_copies_find(sn_copies *c, const int32_t *ids, size_t n, size_t *matched, size_t *at, sn_err *err) {
    *matched = *at = 0;
    sn_copies_forget(c, n);
    sn_status status = grow(c, n, err);
    if (status) return status;
    while (c->n < n) push(c, ids[c->n]);
    const size_t next = c->followed + (n - sn_min_size(n, c->found));
    if (c->followed && next < n) try_place(c, next, matched, at);
    for (int l = 0; l < LEVELS; l++) {
        size_t end = n >= lengths[l] ? c->levels[l].older[n - 1] : 0;
        for (int tries = 0; end && tries < PLACES; tries++, end = c->levels[l].older[end - 1])
            try_place(c, end, matched, at);
        if (*matched >= lengths[l]) break;
    }
    c->followed = *at;
    c->found = n;
    return SN_OK;
}
