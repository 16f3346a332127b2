#include "net/codec.h"

#include <stdlib.h>
#include <string.h>

/* Two sorted arrays of pointers: all entries by id, to find them; the listed ones by (first block, id), to give them
 * out. */
typedef struct entry {
    sn_announcement *a; /* only as long as its hashes */
    sn_blob sealed;
    /* The latest expiry that this node ever gave. An entry is kept until then, though its announcement may end sooner:
     * otherwise an older announcement with a later expiry could be played back and bring a node back that has left. */
    uint64_t keep_until_unix_ms;
} entry;

struct sn_directory {
    entry **by_id, **listed; /* room for `room` each */
    size_t n, n_listed, room, max;
    sn_announcement parsed; /* the newest one to be looked at */
};

typedef int (*order)(const entry *x, const entry *y);

static int by_id(const entry *x, const entry *y) { return memcmp(x->a->node, y->a->node, SN_KEY_SIZE); }

static int by_place(const entry *x, const entry *y) {
    if (x->a->first_block != y->a->first_block) return x->a->first_block < y->a->first_block ? -1 : 1;
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
    free((*e)->a);
    free(*e);
    *e = NULL;
}

static void drop(sn_directory *d, entry *e) {
    take_out(d->listed, &d->n_listed, e, by_place);
    take_out(d->by_id, &d->n, e, by_id);
    free_entry(&e);
}

sn_status sn_directory_new(sn_directory **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (!status) (*out)->max = SN_DIRECTORY_MAX;
    return status;
}

void sn_directory_limit(sn_directory *d, size_t max) { d->max = max < SN_DIRECTORY_MAX ? max : SN_DIRECTORY_MAX; }

void sn_directory_free(sn_directory **directory) {
    sn_directory *d = *directory;
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) free_entry(&d->by_id[i]);
    free(d->by_id);
    free(d->listed);
    free(d);
    *directory = NULL;
}

/* Where the node's entry stands, or would. */
static size_t find_id(const sn_directory *d, const uint8_t *id) {
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

static entry *find(const sn_directory *d, const uint8_t *id) {
    size_t at = find_id(d, id);
    return at < d->n && !memcmp(d->by_id[at]->a->node, id, SN_KEY_SIZE) ? d->by_id[at] : NULL;
}

/* SN_OK: newer than what is known. SN_RETRY: the same again, nothing to do. */
static sn_status compare_known(const entry *known, const sn_announcement *a, const void *data, size_t len, sn_err *err) {
    if (a->sequence > known->a->sequence) return SN_OK;
    if (a->sequence < known->a->sequence)
        return sn_fail(err, SN_REFUSED, "a newer announcement of this node is known");
    if (known->sealed.len == len && !memcmp(known->sealed.data, data, len)) return SN_RETRY;
    return sn_fail(err, SN_REFUSED, "this node says two different things under one sequence number");
}

/* When the directory is full, the entry that ends first makes room; if that is the new one, it stays outside. */
static sn_status make_room(sn_directory *d, const entry *newcomer, sn_err *err) {
    if (d->n < d->max) return SN_OK;
    entry *first = d->n ? d->by_id[0] : NULL;
    for (size_t i = 1; i < d->n; i++)
        if (d->by_id[i]->keep_until_unix_ms < first->keep_until_unix_ms) first = d->by_id[i];
    if (!first || newcomer->keep_until_unix_ms <= first->keep_until_unix_ms)
        return sn_fail(err, SN_REFUSED, "the directory is full with %zu nodes that live longer", d->n);
    drop(d, first);
    return SN_OK;
}

static sn_status grow(sn_directory *d, sn_err *err) {
    if (d->n < d->room) return SN_OK;
    size_t room = d->room ? 2 * d->room : 16;
    entry **by_id = realloc(d->by_id, room * sizeof(entry *));
    if (by_id) d->by_id = by_id;
    entry **listed = by_id ? realloc(d->listed, room * sizeof(entry *)) : NULL;
    if (!listed) return sn_fail(err, SN_STOP, "out of memory: no room for another node");
    d->listed = listed;
    d->room = room;
    return SN_OK;
}

static sn_status new_entry(const sn_announcement *a, const void *data, size_t len, entry **out, sn_err *err) {
    entry *e;
    sn_status status = sn_calloc(&e, 1, sizeof *e, err);
    if (status) return status;
    status = sn_calloc(&e->a, sn_announcement_size(a), 1, err);
    if (!status) status = sn_calloc(&e->sealed.data, len, 1, err);
    if (status) {
        free_entry(&e);
        return status;
    }
    sn_announcement_copy(e->a, a);
    memcpy(e->sealed.data, data, len);
    e->sealed.len = len;
    e->keep_until_unix_ms = a->expires_unix_ms;
    *out = e;
    return SN_OK;
}

static sn_news what_is_new(const sn_announcement *before, const sn_announcement *now) {
    bool same = before->state == now->state && before->first_block == now->first_block &&
                before->end_block == now->end_block && !memcmp(before->model, now->model, SN_KEY_SIZE) &&
                !memcmp(before->curve_key, now->curve_key, SN_KEY_SIZE) && !strcmp(before->address, now->address);
    return same ? SN_NEWS_FIGURES : SN_NEWS_CHANGE;
}

/* Puts a verified announcement in the place of what is known of its node. */
static sn_status put(sn_directory *d, const void *data, size_t len, sn_news *news, sn_err *err) {
    entry *e = NULL, *known = find(d, d->parsed.node);
    sn_status status = new_entry(&d->parsed, data, len, &e, err);
    if (status) return status;
    if (!known) status = make_room(d, e, err);
    if (!status) status = grow(d, err);
    if (status) {
        free_entry(&e);
        return status;
    }
    *news = known ? what_is_new(known->a, e->a) : SN_NEWS_CHANGE;
    if (known) {
        if (known->keep_until_unix_ms > e->keep_until_unix_ms) e->keep_until_unix_ms = known->keep_until_unix_ms;
        drop(d, known);
    }
    insert(d->by_id, &d->n, e, by_id);
    if (e->a->state != SN_NODE_OFFLINE) insert(d->listed, &d->n_listed, e, by_place);
    return SN_OK;
}

sn_status sn_directory_learn(sn_directory *d, const void *data, size_t len, int64_t now_unix_ms, sn_news *news,
                             uint64_t *tag, sn_err *err) {
    *news = SN_NEWS_NONE;
    if (len <= SN_SIGNATURE_SIZE || len > SN_ANNOUNCEMENT_SIZE_MAX)
        return sn_fail(err, SN_REFUSED, "an announcement of %zu bytes is none", len);
    sn_status status = sn_announcement_parse(data, len - SN_SIGNATURE_SIZE, &d->parsed, err);
    if (status) return status;
    *tag = sn_node_tag(d->parsed.node);
    const entry *known = find(d, d->parsed.node);
    status = known ? compare_known(known, &d->parsed, data, len, err) : SN_OK;
    if (status) return status == SN_RETRY ? SN_OK : status;
    status = sn_announcement_open(data, len, now_unix_ms, &d->parsed, err);
    return status ? status : put(d, data, len, news, err);
}

sn_status sn_directory_take(sn_directory *d, const void *data, size_t len, int64_t now_unix_ms, sn_err *err) {
    sn_news news;
    uint64_t tag;
    return sn_directory_learn(d, data, len, now_unix_ms, &news, &tag, err);
}

void sn_directory_expire(sn_directory *d, int64_t now_unix_ms) {
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    size_t n = 0, n_listed = 0;
    for (size_t i = 0; i < d->n_listed; i++) /* first: these point to what the second loop frees */
        if (d->listed[i]->a->expires_unix_ms > now) d->listed[n_listed++] = d->listed[i];
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
const sn_announcement *sn_directory_at(const sn_directory *d, size_t i) { return d->listed[i]->a; }
const sn_blob *sn_directory_sealed_at(const sn_directory *d, size_t i) { return &d->listed[i]->sealed; }

size_t sn_directory_words(const sn_directory *d) { return d->n; }
const sn_announcement *sn_directory_word(const sn_directory *d, size_t i) { return d->by_id[i]->a; }
const sn_blob *sn_directory_word_sealed(const sn_directory *d, size_t i) { return &d->by_id[i]->sealed; }

size_t sn_directory_seek(const sn_directory *d, uint64_t tag) {
    uint8_t id[SN_KEY_SIZE] = {0};
    for (int i = 0; i < 8; i++) id[i] = (uint8_t)(tag >> (56 - 8 * i));
    return find_id(d, id);
}

const sn_announcement *sn_directory_find(const sn_directory *d, const uint8_t id[SN_KEY_SIZE]) {
    const entry *e = find(d, id);
    return e ? e->a : NULL;
}
