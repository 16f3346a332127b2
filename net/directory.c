#include "net/directory.h"

#include <stdlib.h>
#include <string.h>

/* Two sorted arrays of pointers: all entries by id, to find them; the listed ones by (first block, id), to give them
 * out. */
typedef struct entry {
    sn_announcement a;
    sn_blob sealed;
    /* The latest expiry that this node ever gave. An entry is kept until then, though its announcement may end sooner:
     * otherwise an older announcement with a later expiry could be played back and bring a node back that has left. */
    uint64_t keep_until_unix_ms;
} entry;

struct sn_directory {
    entry **by_id, **listed;
    size_t n, n_listed;
};

typedef int (*order)(const entry *x, const entry *y);

static int by_id(const entry *x, const entry *y) { return memcmp(x->a.node, y->a.node, SN_KEY_SIZE); }

static int by_place(const entry *x, const entry *y) {
    if (x->a.first_block != y->a.first_block) return x->a.first_block < y->a.first_block ? -1 : 1;
    return by_id(x, y);
}

/* -- sorted arrays -- */

/* Where x stands, or would. */
static size_t find_place(entry *const *array, size_t n, const entry *x, order compare) {
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

static void insert(entry **array, size_t *n, entry *x, order compare) {
    size_t at = find_place(array, *n, x, compare);
    memmove(array + at + 1, array + at, (*n - at) * sizeof *array);
    array[at] = x;
    ++*n;
}

/* Does nothing if x is not there. */
static void take_out(entry **array, size_t *n, const entry *x, order compare) {
    size_t at = find_place(array, *n, x, compare);
    if (at == *n || array[at] != x) return;
    --*n;
    memmove(array + at, array + at + 1, (*n - at) * sizeof *array);
}

/* -- entries -- */

static void free_entry(entry **e) {
    if (!*e) return;
    free((*e)->sealed.data);
    free(*e);
    *e = NULL;
}

static void drop(sn_directory *d, entry *e) {
    take_out(d->listed, &d->n_listed, e, by_place);
    take_out(d->by_id, &d->n, e, by_id);
    free_entry(&e);
}

sn_status sn_directory_new(sn_directory **out, sn_err *err) {
    sn_directory *d;
    *out = NULL;
    sn_status status = sn_calloc(&d, 1, sizeof *d, err);
    if (status) return status;
    status = sn_calloc(&d->by_id, SN_DIRECTORY_MAX, sizeof *d->by_id, err);
    if (!status) status = sn_calloc(&d->listed, SN_DIRECTORY_MAX, sizeof *d->listed, err);
    if (status) sn_directory_free(&d);
    *out = d;
    return status;
}

void sn_directory_free(sn_directory **directory) {
    sn_directory *d = *directory;
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) free_entry(&d->by_id[i]);
    free(d->by_id);
    free(d->listed);
    free(d);
    *directory = NULL;
}

static entry *find(const sn_directory *d, const entry *like) {
    size_t at = find_place(d->by_id, d->n, like, by_id);
    return at < d->n && !by_id(d->by_id[at], like) ? d->by_id[at] : NULL;
}

/* SN_OK: newer than what is known. SN_RETRY: the same again, nothing to do. */
static sn_status compare_known(const entry *known, const entry *e, sn_err *err) {
    if (e->a.sequence > known->a.sequence) return SN_OK;
    if (e->a.sequence < known->a.sequence)
        return sn_fail(err, SN_REFUSED, "a newer announcement of this node is known");
    if (e->sealed.len == known->sealed.len && !memcmp(e->sealed.data, known->sealed.data, e->sealed.len))
        return SN_RETRY;
    return sn_fail(err, SN_REFUSED, "this node says two different things under one sequence number");
}

/* When the directory is full, the entry that ends first makes room; if that is the new one, it stays outside. */
static sn_status make_room(sn_directory *d, const entry *newcomer, sn_err *err) {
    if (d->n < SN_DIRECTORY_MAX) return SN_OK;
    entry *first = d->by_id[0];
    for (size_t i = 1; i < d->n; i++)
        if (d->by_id[i]->keep_until_unix_ms < first->keep_until_unix_ms) first = d->by_id[i];
    if (newcomer->keep_until_unix_ms <= first->keep_until_unix_ms)
        return sn_fail(err, SN_REFUSED, "the directory is full with %d nodes that live longer", SN_DIRECTORY_MAX);
    drop(d, first);
    return SN_OK;
}

static sn_status new_entry(const void *data, size_t len, int64_t now_unix_ms, entry **out, sn_err *err) {
    entry *e;
    sn_status status = sn_calloc(&e, 1, sizeof *e, err);
    if (status) return status;
    status = sn_announcement_open(data, len, now_unix_ms, &e->a, err);
    if (!status) status = sn_calloc(&e->sealed.data, len, 1, err);
    if (status) {
        free_entry(&e);
        return status;
    }
    memcpy(e->sealed.data, data, len);
    e->sealed.len = len;
    e->keep_until_unix_ms = e->a.expires_unix_ms;
    *out = e;
    return SN_OK;
}

sn_status sn_directory_take(sn_directory *d, const void *data, size_t len, int64_t now_unix_ms, sn_err *err) {
    entry *e = NULL;
    sn_status status = new_entry(data, len, now_unix_ms, &e, err);
    if (status) return status;
    entry *known = find(d, e);
    status = known ? compare_known(known, e, err) : make_room(d, e, err);
    if (status) {
        free_entry(&e);
        return status == SN_RETRY ? SN_OK : status;
    }
    if (known) {
        if (known->keep_until_unix_ms > e->keep_until_unix_ms) e->keep_until_unix_ms = known->keep_until_unix_ms;
        drop(d, known);
    }
    insert(d->by_id, &d->n, e, by_id);
    if (e->a.state != SN_NODE_OFFLINE) insert(d->listed, &d->n_listed, e, by_place);
    return SN_OK;
}

void sn_directory_expire(sn_directory *d, int64_t now_unix_ms) {
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    size_t n = 0, n_listed = 0;
    for (size_t i = 0; i < d->n_listed; i++) /* first: these point to what the second loop frees */
        if (d->listed[i]->a.expires_unix_ms > now) d->listed[n_listed++] = d->listed[i];
    for (size_t i = 0; i < d->n; i++) {
        if (d->by_id[i]->keep_until_unix_ms > now)
            d->by_id[n++] = d->by_id[i];
        else
            free_entry(&d->by_id[i]);
    }
    d->n = n;
    d->n_listed = n_listed;
}

size_t sn_directory_count(const sn_directory *d) { return d->n_listed; }
const sn_announcement *sn_directory_at(const sn_directory *d, size_t i) { return &d->listed[i]->a; }
const sn_blob *sn_directory_sealed_at(const sn_directory *d, size_t i) { return &d->listed[i]->sealed; }
