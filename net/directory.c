/* The directory (net/directory.h): two sorted arrays of pointers to the same entries. `by_id` holds all entries, for
 * look-ups and for gossip, which goes by tag; `listed` holds those that are not OFFLINE by (first block, id), which is
 * the order in which routes are planned.
 *
 * An update first decodes the announcement without verifying it and compares its sequence number with the known
 * entry's, because most announcements that arrive by gossip are known already and verification is what costs. Only a
 * newer one is verified and replaces the entry.
 *
 * A full directory evicts, of the entries that are not proven: expired ones first, then those that peers brought which
 * dialled this program, then the others; in each class those of the source with most entries, in it those of the
 * address prefix with most, and of these the one that expires first. Sources and prefixes are counted in hash buckets.
 * The new entry is one of the candidates, so a peer that floods only replaces its own. */
#include "net/directory.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    sn_announcement *a; /* allocated up to the last hash of its span */
    sn_blob sealed;
    /* The latest expiry in any announcement of this node. The entry is kept until then, even if its newest announcement
     * expires sooner: otherwise an attacker could replay an older announcement with a later expiry, and a node that has
     * left would be listed again. */
    uint64_t keep_until_unix_ms;
    uint64_t proven_until_unix_ms;
    sn_announcement_source source;
    uint16_t source_bucket, prefix_bucket;
} entry;

enum { COUNT_BUCKETS = 4096 };

struct sn_directory {
    entry **by_id, **listed; /* (capacity) each */
    size_t n, n_listed, capacity, max;
    uint32_t of_source[COUNT_BUCKETS], of_prefix[COUNT_BUCKETS]; /* entries */
    uint64_t seed;                                               /* of the buckets */
    sn_announcement parsed;                                      /* scratch: the announcement of the current update */
};

typedef int (*entry_order)(const entry *x, const entry *y);

static int by_id(const entry *x, const entry *y) { return memcmp(x->a->node, y->a->node, SN_KEY_SIZE); }

static int by_first_block(const entry *x, const entry *y) {
    if (x->a->first_block != y->a->first_block) return x->a->first_block < y->a->first_block ? -1 : 1;
    return by_id(x, y);
}

/* -- sorted arrays -- */

/* The index of x, or the index at which x would be inserted. */
static size_t entries_lower_bound(entry *const *array, size_t n, const entry *x, entry_order compare) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(array[middle], x) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void entries_insert(entry **array, size_t *n, entry *x, entry_order compare) {
    size_t at = entries_lower_bound(array, *n, x, compare);
    memmove(array + at + 1, array + at, (*n - at) * sizeof *array);
    array[at] = x;
    ++*n;
}

/* Does nothing if x is not in the array. */
static void entries_remove(entry **array, size_t *n, const entry *x, entry_order compare) {
    size_t at = entries_lower_bound(array, *n, x, compare);
    if (at == *n || array[at] != x) return;
    --*n;
    memmove(array + at, array + at + 1, (*n - at) * sizeof *array);
}

/* -- entries -- */

static void entry_free(entry **e) {
    if (!*e) return;
    free((*e)->sealed.data);
    free((*e)->a);
    free(*e);
    *e = NULL;
}

static void directory_drop(sn_directory *d, entry *e) {
    entries_remove(d->listed, &d->n_listed, e, by_first_block);
    entries_remove(d->by_id, &d->n, e, by_id);
    d->of_source[e->source_bucket]--;
    d->of_prefix[e->prefix_bucket]--;
    entry_free(&e);
}

sn_status sn_directory_new(sn_directory **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->max = SN_DIRECTORY_MAX;
    sn_random(&(*out)->seed, sizeof(*out)->seed);
    return SN_OK;
}

void sn_directory_limit(sn_directory *d, size_t max) { d->max = max < SN_DIRECTORY_MAX ? max : SN_DIRECTORY_MAX; }

void sn_directory_free(sn_directory **directory) {
    sn_directory *d = *directory;
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) entry_free(&d->by_id[i]);
    free(d->by_id);
    free(d->listed);
    free(d);
    *directory = NULL;
}

/* The index of the node's entry, or the index at which it would be inserted. */
static size_t directory_lower_bound(const sn_directory *d, const uint8_t *id) {
    size_t low = 0, high = d->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (memcmp(d->by_id[middle]->a->node, id, SN_KEY_SIZE) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static entry *directory_find_entry(const sn_directory *d, const uint8_t *id) {
    size_t at = directory_lower_bound(d, id);
    return at < d->n && !memcmp(d->by_id[at]->a->node, id, SN_KEY_SIZE) ? d->by_id[at] : NULL;
}

/* SN_OK: newer than the known one. SN_RETRY: the same bytes again, nothing to do. */
static sn_status entry_check_sequence(const entry *known, const sn_announcement *a, const void *data, size_t len,
                                      sn_err *err) {
    if (a->sequence > known->a->sequence) return SN_OK;
    if (a->sequence < known->a->sequence) return sn_fail(err, SN_REFUSED, "a newer announcement of this node is known");
    if (known->sealed.len == len && !memcmp(known->sealed.data, data, len)) return SN_RETRY;
    return sn_fail(err, SN_REFUSED, "this node signed two different announcements with one sequence number");
}

/* -- eviction -- */

static uint16_t bucket_of(const sn_directory *d, const void *bytes, size_t len) {
    uint64_t h = d->seed; /* FNV-1a from a secret seed */
    for (size_t i = 0; i < len; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return (uint16_t)((h >> 32) % COUNT_BUCKETS);
}

/* Bytes of an address up to the second dot of an IPv4 address or the second colon of an IPv6 address, else the host. */
static size_t prefix_len(const char *address) {
    const char *host_end = strrchr(address, ':'), *at = address;
    for (int parts = 0; at < host_end; at++)
        if ((*at == '.' || *at == ':') && ++parts == 2) break;
    return (size_t)(at - address);
}

/* Fills in where an entry is counted. */
static void entry_set_source(const sn_directory *d, entry *e, const sn_announcement_source *source) {
    e->source = source ? *source : (sn_announcement_source){.dialled = true};
    e->source_bucket = bucket_of(d, &e->source.peer, sizeof e->source.peer);
    e->prefix_bucket = bucket_of(d, e->a->address, prefix_len(e->a->address));
}

/* Of a newcomer and of entries: who is evicted first has the greater class, count of the source, count of the prefix,
 * and the lesser expiry. */
typedef struct rank {
    int class; /* 0: fetched from a peer that was dialled, 1: brought by a peer that dialled, 2: expired */
    uint32_t of_source, of_prefix;
    uint64_t keep_until_unix_ms;
} rank;

static rank entry_rank(const sn_directory *d, const entry *e, const entry *newcomer, uint64_t now) {
    int class = e->a->expires_unix_ms <= now ? 2 : e->source.dialled ? 0 : 1;
    return (rank){class, d->of_source[e->source_bucket] + (e->source_bucket == newcomer->source_bucket),
                  d->of_prefix[e->prefix_bucket] + (e->prefix_bucket == newcomer->prefix_bucket),
                  e->keep_until_unix_ms};
}

static bool rank_goes_before(const rank *a, const rank *b) {
    if (a->class != b->class) return a->class > b->class;
    if (a->of_source != b->of_source) return a->of_source > b->of_source;
    if (a->of_prefix != b->of_prefix) return a->of_prefix > b->of_prefix;
    return a->keep_until_unix_ms < b->keep_until_unix_ms;
}

/* Makes room in a full directory; SN_REFUSED if the new entry would be the first to go. */
static sn_status directory_evict(sn_directory *d, const entry *newcomer, uint64_t now, sn_err *err) {
    if (d->n < d->max) return SN_OK;
    entry *first = NULL;
    rank first_rank = entry_rank(d, newcomer, newcomer, now);
    for (size_t i = 0; i < d->n; i++) {
        if (d->by_id[i]->proven_until_unix_ms > now) continue;
        rank r = entry_rank(d, d->by_id[i], newcomer, now);
        if (!rank_goes_before(&r, &first_rank)) continue;
        first = d->by_id[i];
        first_rank = r;
    }
    if (!first) return sn_fail(err, SN_REFUSED, "the directory is full: its %zu nodes have a better claim", d->n);
    directory_drop(d, first);
    return SN_OK;
}

static sn_status directory_grow(sn_directory *d, sn_err *err) {
    if (d->n < d->capacity) return SN_OK;
    size_t capacity = d->capacity ? 2 * d->capacity : 16;
    entry **by_id = realloc(d->by_id, capacity * sizeof(entry *));
    if (by_id) d->by_id = by_id;
    entry **listed = by_id ? realloc(d->listed, capacity * sizeof(entry *)) : NULL;
    if (!listed) return sn_fail(err, SN_STOP, "out of memory: no space for another node");
    d->listed = listed;
    d->capacity = capacity;
    return SN_OK;
}

static sn_status entry_new(const sn_announcement *a, const void *data, size_t len, entry **out, sn_err *err) {
    entry *e;
    sn_status status = sn_calloc(&e, 1, sizeof *e, err);
    if (status) return status;
    status = sn_calloc(&e->a, sn_announcement_size(a), 1, err);
    if (!status) status = sn_calloc(&e->sealed.data, len, 1, err);
    if (status) {
        entry_free(&e);
        return status;
    }
    sn_announcement_copy(e->a, a);
    memcpy(e->sealed.data, data, len);
    e->sealed.len = len;
    e->keep_until_unix_ms = a->expires_unix_ms;
    *out = e;
    return SN_OK;
}

static sn_directory_change announcement_diff(const sn_announcement *before, const sn_announcement *now) {
    bool same = before->state == now->state && before->first_block == now->first_block &&
                before->end_block == now->end_block && !memcmp(before->model, now->model, SN_KEY_SIZE) &&
                !memcmp(before->curve_key, now->curve_key, SN_KEY_SIZE) && !strcmp(before->address, now->address);
    return same ? SN_CHANGE_STATS : SN_CHANGE_NODE;
}

/* What a newer announcement takes over from the one before. Of two sources in the same class the entry counts for the
 * one that brought less: a flood cannot draw others into its own share. */
static void entry_inherit(const sn_directory *d, entry *e, const entry *known) {
    if (known->keep_until_unix_ms > e->keep_until_unix_ms) e->keep_until_unix_ms = known->keep_until_unix_ms;
    e->proven_until_unix_ms = known->proven_until_unix_ms;
    bool better = known->source.dialled != e->source.dialled
                      ? known->source.dialled
                      : d->of_source[known->source_bucket] <= d->of_source[e->source_bucket];
    if (!better) return;
    e->source = known->source;
    e->source_bucket = known->source_bucket;
}

/* Replaces the entry of the node by the verified announcement in d->parsed. */
static sn_status directory_put(sn_directory *d, const void *data, size_t len, uint64_t now,
                               const sn_announcement_source *source, sn_directory_change *change, sn_err *err) {
    entry *e = NULL, *known = directory_find_entry(d, d->parsed.node);
    sn_status status = entry_new(&d->parsed, data, len, &e, err);
    if (status) return status;
    if (e->a->expires_unix_ms > now + SN_ANNOUNCE_LIFE_MS) e->a->expires_unix_ms = now + SN_ANNOUNCE_LIFE_MS;
    entry_set_source(d, e, source);
    if (!known) status = directory_evict(d, e, now, err);
    if (!status) status = directory_grow(d, err);
    if (status) {
        entry_free(&e);
        return status;
    }
    *change = known ? announcement_diff(known->a, e->a) : SN_CHANGE_NODE;
    if (known) {
        entry_inherit(d, e, known);
        directory_drop(d, known);
    }
    d->of_source[e->source_bucket]++;
    d->of_prefix[e->prefix_bucket]++;
    entries_insert(d->by_id, &d->n, e, by_id);
    if (e->a->state != SN_NODE_OFFLINE) entries_insert(d->listed, &d->n_listed, e, by_first_block);
    return SN_OK;
}

sn_status sn_directory_update(sn_directory *d, const void *data, size_t len, int64_t now_unix_ms,
                              const sn_announcement_source *source, sn_directory_change *change, uint64_t *tag,
                              sn_err *err) {
    *change = SN_CHANGE_NONE;
    if (len <= SN_SIGNATURE_SIZE || len > SN_ANNOUNCEMENT_SIZE_MAX)
        return sn_fail(err, SN_REFUSED, "%zu bytes are no announcement", len);
    sn_status status = sn_announcement_parse(data, len - SN_SIGNATURE_SIZE, &d->parsed, err);
    if (status) return status;
    *tag = sn_node_tag(d->parsed.node);
    const entry *known = directory_find_entry(d, d->parsed.node);
    status = known ? entry_check_sequence(known, &d->parsed, data, len, err) : SN_OK;
    if (status) return status == SN_RETRY ? SN_OK : status;
    status = sn_announcement_open(data, len, now_unix_ms, &d->parsed, err);
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    return status ? status : directory_put(d, data, len, now, source, change, err);
}

sn_status sn_directory_add(sn_directory *d, const void *data, size_t len, int64_t now_unix_ms, sn_err *err) {
    sn_directory_change change;
    uint64_t tag;
    return sn_directory_update(d, data, len, now_unix_ms, NULL, &change, &tag, err);
}

void sn_directory_prove(sn_directory *d, const uint8_t id[SN_KEY_SIZE], int64_t until_unix_ms) {
    entry *e = directory_find_entry(d, id);
    uint64_t until = until_unix_ms > 0 ? (uint64_t)until_unix_ms : 0;
    if (e && e->proven_until_unix_ms < until) e->proven_until_unix_ms = until;
}

bool sn_directory_is_proven(const sn_directory *d, const uint8_t id[SN_KEY_SIZE], int64_t now_unix_ms) {
    const entry *e = directory_find_entry(d, id);
    return e && e->proven_until_unix_ms > (now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0);
}

void sn_directory_expire(sn_directory *d, int64_t now_unix_ms) {
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    size_t n = 0, n_listed = 0;
    for (size_t i = 0; i < d->n_listed; i++) /* first: `listed` points to entries that the second loop frees */
        if (d->listed[i]->a->expires_unix_ms > now) d->listed[n_listed++] = d->listed[i];
    for (size_t i = 0; i < d->n; i++) {
        if (d->by_id[i]->keep_until_unix_ms > now)
            d->by_id[n++] = d->by_id[i];
        else {
            d->of_source[d->by_id[i]->source_bucket]--;
            d->of_prefix[d->by_id[i]->prefix_bucket]--;
            entry_free(&d->by_id[i]);
        }
    }
    d->n = n;
    d->n_listed = n_listed;
}

size_t sn_directory_count(const sn_directory *d) { return d->n_listed; }
const sn_announcement *sn_directory_at(const sn_directory *d, size_t i) { return d->listed[i]->a; }
const sn_blob *sn_directory_sealed_at(const sn_directory *d, size_t i) { return &d->listed[i]->sealed; }

size_t sn_directory_known_count(const sn_directory *d) { return d->n; }
const sn_announcement *sn_directory_known_at(const sn_directory *d, size_t i) { return d->by_id[i]->a; }
const sn_blob *sn_directory_known_sealed_at(const sn_directory *d, size_t i) { return &d->by_id[i]->sealed; }

size_t sn_directory_seek(const sn_directory *d, uint64_t tag) {
    uint8_t id[SN_KEY_SIZE] = {0};
    for (int i = 0; i < 8; i++) id[i] = (uint8_t)(tag >> (56 - 8 * i));
    return directory_lower_bound(d, id);
}

const sn_announcement *sn_directory_find(const sn_directory *d, const uint8_t id[SN_KEY_SIZE]) {
    const entry *e = directory_find_entry(d, id);
    return e ? e->a : NULL;
}

const sn_blob *sn_directory_find_sealed(const sn_directory *d, const uint8_t id[SN_KEY_SIZE]) {
    const entry *e = directory_find_entry(d, id);
    return e ? &e->sealed : NULL;
}
