/* The directory (net/directory.h): entries, and two sorted arrays of their indices. `by_id` holds all entries, for
 * look-ups and for gossip, which goes by tag; `listed` holds those that are not OFFLINE by (first block, id), which is
 * the order in which routes are planned. Both arrays repeat what they are sorted by, so that a look-up reads one small
 * array and then one entry.
 *
 * An update first reads which node the announcement is of and compares its sequence number with the known entry's,
 * because most announcements that arrive by gossip are known already, and decoding and verification are what costs.
 * Only a newer one is opened and replaces the one in the entry.
 *
 * A full directory evicts, of the entries that are not proven: expired ones first, then those that peers brought which
 * dialled this program, then the others; in each class those of the network with most entries, of these those of the
 * connection with most, then those of the announced address prefix with most, and then the one that expires first. All
 * are counted in hash buckets.
 * The new entry is one of the candidates, so a peer that floods only replaces its own. */
#include "net/directory.h"

#include "net/address.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *sn_node_state_name(sn_node_state state) {
    static const char *const names[] = {"joining", "online", "draining", "offline"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "?";
}

typedef struct entry {
    sn_known_node known;
    uint8_t id[SN_KEY_SIZE];
    const sn_opened *opened; /* NULL: the entry is free */
    /* The latest expiry in any announcement of this node. The entry is kept until then, even if its newest announcement
     * expires sooner: otherwise an attacker could replay an older announcement with a later expiry, and a node that has
     * left would be listed again. */
    uint64_t keep_until_unix_ms;
    uint64_t proven_until_unix_ms;
    sn_announcement_source source;
    uint16_t network_bucket, source_bucket, prefix_bucket;
    bool listed;
    uint32_t next_free; /* of a free entry */
} entry;

typedef struct listed_place {
    uint64_t first_block, tag;
    uint32_t entry;
} listed_place;

enum { COUNT_BUCKETS = 4096 };

struct sn_directory {
    entry *entries;       /* (capacity) */
    uint64_t *tags;       /* (capacity); the first n: of the entries in by_id */
    uint32_t *by_id;      /* (capacity) */
    listed_place *listed; /* (capacity) */
    size_t n, n_listed, capacity, max;
    bool accepts_names;
    uint32_t first_free;                                                                    /* entry; capacity: none */
    uint64_t seed;                                                                          /* of the buckets: */
    uint16_t of_network[COUNT_BUCKETS], of_source[COUNT_BUCKETS], of_prefix[COUNT_BUCKETS]; /* entries */
};
static_assert(SN_DIRECTORY_MAX < UINT16_MAX, "a bucket counts all entries of a directory");

/* -- sorted arrays -- */

/* The index of the first tag that is not less. Ids are random: a tag is near to where even gaps would place it. From
 * there the steps double, so that no choice of ids makes it slow. */
static size_t tags_lower_bound(const uint64_t *tags, size_t n, uint64_t tag) {
    size_t low = 0, high = n, at = (size_t)(((tag >> 32) * n) >> 32), step = 4;
    if (at < n && tags[at] < tag) {
        for (low = at + 1; (at += step) < n && tags[at] < tag; step *= 2) low = at + 1;
        high = at < n ? at : n;
    } else {
        for (high = at; at > 0 && tags[at = at > step ? at - step : 0] >= tag; step *= 2) high = at;
        low = at < high ? at + 1 : at;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (tags[middle] < tag)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The index in by_id of the node's entry, or the index at which it would be inserted. */
static size_t by_id_lower_bound(const sn_directory *d, const uint8_t *id) {
    uint64_t tag = sn_node_tag(id);
    size_t low = tags_lower_bound(d->tags, d->n, tag);
    while (low < d->n && d->tags[low] == tag && memcmp(d->entries[d->by_id[low]].id, id, SN_KEY_SIZE) < 0) low++;
    return low;
}

static bool listed_is_before(const sn_directory *d, const listed_place *p, const listed_place *q) {
    if (p->first_block != q->first_block) return p->first_block < q->first_block;
    if (p->tag != q->tag) return p->tag < q->tag;
    return memcmp(d->entries[p->entry].id, d->entries[q->entry].id, SN_KEY_SIZE) < 0;
}

static listed_place listed_place_of(const sn_directory *d, const entry *e) {
    return (listed_place){e->opened->a.first_block, e->known.tag, (uint32_t)(e - d->entries)};
}

/* As by_id_lower_bound. */
static size_t listed_lower_bound(const sn_directory *d, const listed_place *p) {
    size_t low = 0, high = d->n_listed;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (listed_is_before(d, &d->listed[middle], p))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void listed_insert(sn_directory *d, entry *e) {
    listed_place p = listed_place_of(d, e);
    size_t at = listed_lower_bound(d, &p);
    memmove(d->listed + at + 1, d->listed + at, (d->n_listed++ - at) * sizeof *d->listed);
    d->listed[at] = p;
    e->listed = true;
}

/* Before the entry's announcement changes. */
static void listed_remove(sn_directory *d, entry *e) {
    if (!e->listed) return;
    listed_place p = listed_place_of(d, e);
    size_t at = listed_lower_bound(d, &p);
    memmove(d->listed + at, d->listed + at + 1, (--d->n_listed - at) * sizeof *d->listed);
    e->listed = false;
}

/* -- entries -- */

static void entry_count(sn_directory *d, const entry *e, int n) {
    d->of_network[e->network_bucket] = (uint16_t)(d->of_network[e->network_bucket] + n);
    d->of_source[e->source_bucket] = (uint16_t)(d->of_source[e->source_bucket] + n);
    d->of_prefix[e->prefix_bucket] = (uint16_t)(d->of_prefix[e->prefix_bucket] + n);
}

/* Before the entry is taken out of by_id. */
static void entry_free(sn_directory *d, entry *e) {
    listed_remove(d, e);
    entry_count(d, e, -1);
    sn_opened_release(e->opened);
    *e = (entry){.next_free = d->first_free};
    d->first_free = (uint32_t)(e - d->entries);
}

sn_status sn_directory_new(sn_directory **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->max = SN_DIRECTORY_MAX;
    sn_random(&(*out)->seed, sizeof(*out)->seed);
    return SN_OK;
}

void sn_directory_accept_names(sn_directory *d) { d->accepts_names = true; }
void sn_directory_limit(sn_directory *d, size_t max) { d->max = max < SN_DIRECTORY_MAX ? max : SN_DIRECTORY_MAX; }

void sn_directory_free(sn_directory **directory) {
    sn_directory *d = *directory;
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) sn_opened_release(d->entries[d->by_id[i]].opened);
    free(d->entries);
    free(d->tags);
    free(d->by_id);
    free(d->listed);
    free(d);
    *directory = NULL;
}

static entry *directory_find_entry(const sn_directory *d, const uint8_t *id) {
    size_t at = by_id_lower_bound(d, id);
    entry *e = at < d->n ? &d->entries[d->by_id[at]] : NULL;
    return e && !memcmp(e->id, id, SN_KEY_SIZE) ? e : NULL;
}

/* SN_OK: newer than the known one. SN_RETRY: the same bytes again, nothing to do. */
static sn_status entry_check_sequence(const entry *e, uint64_t sequence, const void *data, size_t len, sn_err *err) {
    if (sequence > e->known.sequence) return SN_OK;
    if (sequence < e->known.sequence) return sn_fail(err, SN_REFUSED, "a newer announcement of this node is known");
    const sn_blob *sealed = &e->opened->sealed;
    if (sealed->data == data || (sealed->len == len && !memcmp(sealed->data, data, len))) return SN_RETRY;
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
    e->network_bucket = bucket_of(d, e->source.network, sizeof e->source.network);
    e->source_bucket = bucket_of(d, &e->source.peer, sizeof e->source.peer);
    e->prefix_bucket = bucket_of(d, e->opened->a.address, prefix_len(e->opened->a.address));
}

/* Of a newcomer and of entries: who is evicted first has the greater class, count of the source's network, of the
 * source, of the announced address, and the lesser expiry. */
typedef struct rank {
    int class; /* 0: fetched from a peer that was dialled, 1: brought by a peer that dialled, 2: expired */
    uint32_t of_network, of_source, of_prefix;
    uint64_t keep_until_unix_ms;
} rank;

static rank entry_rank(const sn_directory *d, const entry *e, const entry *newcomer, uint64_t now) {
    int class = e->known.expires_unix_ms <= now ? 2 : e->source.dialled ? 0 : 1;
    return (rank){class, d->of_network[e->network_bucket] + 1u * (e->network_bucket == newcomer->network_bucket),
                  d->of_source[e->source_bucket] + 1u * (e->source_bucket == newcomer->source_bucket),
                  d->of_prefix[e->prefix_bucket] + 1u * (e->prefix_bucket == newcomer->prefix_bucket),
                  e->keep_until_unix_ms};
}

static bool rank_goes_before(const rank *a, const rank *b) {
    if (a->class != b->class) return a->class > b->class;
    if (a->of_network != b->of_network) return a->of_network > b->of_network;
    if (a->of_source != b->of_source) return a->of_source > b->of_source;
    if (a->of_prefix != b->of_prefix) return a->of_prefix > b->of_prefix;
    return a->keep_until_unix_ms < b->keep_until_unix_ms;
}

/* Makes room in a full directory; SN_REFUSED if the new entry would be the first to go. */
static sn_status directory_evict(sn_directory *d, const entry *newcomer, uint64_t now, sn_err *err) {
    if (d->n < d->max) return SN_OK;
    size_t first = d->n;
    rank first_rank = entry_rank(d, newcomer, newcomer, now);
    for (size_t i = 0; i < d->n; i++) {
        const entry *e = &d->entries[d->by_id[i]];
        if (e->proven_until_unix_ms > now) continue;
        rank r = entry_rank(d, e, newcomer, now);
        if (!rank_goes_before(&r, &first_rank)) continue;
        first = i;
        first_rank = r;
    }
    if (first == d->n)
        return sn_fail(err, SN_REFUSED, "the directory is full: its %zu nodes have a better claim", d->n);
    entry_free(d, &d->entries[d->by_id[first]]);
    --d->n;
    memmove(d->tags + first, d->tags + first + 1, (d->n - first) * sizeof *d->tags);
    memmove(d->by_id + first, d->by_id + first + 1, (d->n - first) * sizeof *d->by_id);
    return SN_OK;
}

static void *grow(void *array, size_t n, size_t size) {
    void **at = array, *grown = realloc(*at, n * size);
    if (grown) *at = grown;
    return grown;
}

static sn_status directory_grow(sn_directory *d, sn_err *err) {
    if (d->n < d->capacity) return SN_OK;
    size_t capacity = d->capacity ? 2 * d->capacity : 16;
    bool grown = grow(&d->entries, capacity, sizeof *d->entries) && grow(&d->tags, capacity, sizeof *d->tags) &&
                 grow(&d->by_id, capacity, sizeof *d->by_id) && grow(&d->listed, capacity, sizeof *d->listed);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory: no space for another node");
    for (size_t i = d->capacity; i < capacity; i++) d->entries[i] = (entry){.next_free = (uint32_t)(i + 1)};
    d->first_free = (uint32_t)d->capacity; /* all were in use */
    d->capacity = capacity;
    return SN_OK;
}

static sn_directory_change announcement_diff(const sn_announcement *before, const sn_announcement *now) {
    bool read = before->first_block == before->end_block || /* its weights, where it joins for want of experts */
                !memcmp(before->block_hash[0], now->block_hash[0], SN_KEY_SIZE);
    bool same = read && before->state == now->state && before->first_block == now->first_block &&
                before->end_block == now->end_block && !memcmp(before->model, now->model, SN_KEY_SIZE) &&
                !memcmp(before->curve_key, now->curve_key, SN_KEY_SIZE) && !strcmp(before->address, now->address);
    return same ? SN_CHANGE_STATS : SN_CHANGE_NODE;
}

/* What a newer announcement takes over from the one before. Of two sources in the same class the entry counts for the
 * one that brought less: a flood cannot draw others into its own share. */
static void entry_inherit(const sn_directory *d, entry *e, const entry *known) {
    if (known->keep_until_unix_ms > e->keep_until_unix_ms) e->keep_until_unix_ms = known->keep_until_unix_ms;
    e->proven_until_unix_ms = known->proven_until_unix_ms;
    uint32_t of_network = d->of_network[known->network_bucket], other = d->of_network[e->network_bucket];
    bool better = known->source.dialled != e->source.dialled ? known->source.dialled
                  : of_network != other                      ? of_network < other
                                        : d->of_source[known->source_bucket] <= d->of_source[e->source_bucket];
    if (!better) return;
    e->source = known->source;
    e->network_bucket = known->network_bucket;
    e->source_bucket = known->source_bucket;
}

/* Of a node that has no entry yet; makes room. */
static sn_status directory_insert(sn_directory *d, const entry *e, uint64_t now, sn_err *err) {
    sn_status status = directory_evict(d, e, now, err);
    if (!status) status = directory_grow(d, err);
    if (status) return status;
    uint32_t free_entry = d->first_free;
    entry *added = &d->entries[free_entry];
    d->first_free = added->next_free;
    *added = *e;
    size_t at = by_id_lower_bound(d, e->id);
    memmove(d->tags + at + 1, d->tags + at, (d->n - at) * sizeof *d->tags);
    memmove(d->by_id + at + 1, d->by_id + at, (d->n - at) * sizeof *d->by_id);
    d->n++;
    d->tags[at] = e->known.tag;
    d->by_id[at] = free_entry;
    entry_count(d, added, 1);
    if (e->opened->a.state != SN_NODE_OFFLINE) listed_insert(d, added);
    return SN_OK;
}

/* Replaces the announcement in an entry. */
static void directory_replace(sn_directory *d, entry *known, entry *e) {
    const sn_announcement *a = &e->opened->a;
    entry_inherit(d, e, known);
    e->listed = known->listed && a->state != SN_NODE_OFFLINE && a->first_block == known->opened->a.first_block;
    if (!e->listed) listed_remove(d, known);
    entry_count(d, known, -1);
    entry_count(d, e, 1);
    sn_opened_release(known->opened);
    *known = *e;
    if (!e->listed && a->state != SN_NODE_OFFLINE) listed_insert(d, known);
}

/* known: the node's entry; NULL: it has none. Takes the announcement unless it fails. */
static sn_status directory_put(sn_directory *d, entry *known, const sn_opened *opened, uint64_t now,
                               const sn_announcement_source *source, sn_directory_change *change, sn_err *err) {
    const sn_announcement *a = &opened->a;
    uint64_t expires = a->expires_unix_ms, latest = now + SN_ANNOUNCE_LIFE_MS;
    entry e = {.known = {sn_node_tag(a->node), a->sequence, expires < latest ? expires : latest},
               .opened = opened,
               .keep_until_unix_ms = expires};
    memcpy(e.id, a->node, SN_KEY_SIZE);
    entry_set_source(d, &e, source);
    if (!known) {
        sn_status status = directory_insert(d, &e, now, err);
        if (!status) *change = SN_CHANGE_NODE;
        return status;
    }
    *change = announcement_diff(&known->opened->a, a);
    directory_replace(d, known, &e);
    return SN_OK;
}

bool sn_directory_is_news(const sn_directory *d, const void *data, size_t len) {
    uint8_t node[SN_KEY_SIZE];
    uint64_t sequence = 0;
    if (sn_announcement_peek(data, len, node, &sequence, NULL)) return false;
    const entry *known = directory_find_entry(d, node);
    return !known || sequence > known->known.sequence;
}

sn_status sn_directory_update(sn_directory *d, const void *data, size_t len, int64_t now_unix_ms,
                              const sn_announcement_source *source, sn_directory_change *change, uint64_t *tag,
                              sn_err *err) {
    uint8_t node[SN_KEY_SIZE];
    uint64_t sequence = 0;
    const sn_opened *opened = NULL;
    *change = SN_CHANGE_NONE;
    sn_status status = sn_announcement_peek(data, len, node, &sequence, err);
    if (status) return status;
    *tag = sn_node_tag(node);
    entry *known = directory_find_entry(d, node);
    status = known ? entry_check_sequence(known, sequence, data, len, err) : SN_OK;
    if (status) return status == SN_RETRY ? SN_OK : status;
    if ((status = sn_opened_new(data, len, now_unix_ms, &opened, err))) return status;
    if (!d->accepts_names) status = sn_address_check_numeric(opened->a.address, err);
    if (status)
        *change = SN_CHANGE_NAMED;
    else
        status = directory_put(d, known, opened, now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0, source, change, err);
    if (status) sn_opened_release(opened);
    return status;
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

static bool entry_is_proven(const entry *e, int64_t now_unix_ms) {
    return e->proven_until_unix_ms > (now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0);
}

bool sn_directory_is_proven(const sn_directory *d, const uint8_t id[SN_KEY_SIZE], int64_t now_unix_ms) {
    const entry *e = directory_find_entry(d, id);
    return e && entry_is_proven(e, now_unix_ms);
}

/* The entry is kept: it is by its sequence number that the same announcement is not taken again from others. */
void sn_directory_retire(sn_directory *d, const char *address, const uint8_t curve_key[SN_KEY_SIZE]) {
    for (size_t i = 0; i < d->n; i++) {
        entry *e = &d->entries[d->by_id[i]];
        const sn_announcement *a = &e->opened->a;
        if (memcmp(a->curve_key, curve_key, SN_KEY_SIZE) || strcmp(a->address, address)) continue;
        listed_remove(d, e);
        e->known.expires_unix_ms = 0;
    }
}

void sn_directory_expire(sn_directory *d, int64_t now_unix_ms) {
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    size_t n = 0, n_listed = 0;
    for (size_t i = 0; i < d->n_listed; i++) {
        entry *e = &d->entries[d->listed[i].entry];
        e->listed = e->known.expires_unix_ms > now;
        if (e->listed) d->listed[n_listed++] = d->listed[i];
    }
    d->n_listed = n_listed;
    for (size_t i = 0; i < d->n; i++) {
        entry *e = &d->entries[d->by_id[i]];
        if (e->keep_until_unix_ms > now) {
            d->tags[n] = d->tags[i];
            d->by_id[n++] = d->by_id[i];
        } else {
            entry_free(d, e);
        }
    }
    d->n = n;
}

static const entry *entry_at(const sn_directory *d, size_t i) { return &d->entries[d->listed[i].entry]; }
static const entry *known_at(const sn_directory *d, size_t i) { return &d->entries[d->by_id[i]]; }

size_t sn_directory_count(const sn_directory *d) { return d->n_listed; }
const sn_announcement *sn_directory_at(const sn_directory *d, size_t i) { return &entry_at(d, i)->opened->a; }
const sn_blob *sn_directory_sealed_at(const sn_directory *d, size_t i) { return &entry_at(d, i)->opened->sealed; }
uint64_t sn_directory_expiry_at(const sn_directory *d, size_t i) { return entry_at(d, i)->known.expires_unix_ms; }
bool sn_directory_is_proven_at(const sn_directory *d, size_t i, int64_t now_unix_ms) {
    return entry_is_proven(entry_at(d, i), now_unix_ms);
}

size_t sn_directory_known_count(const sn_directory *d) { return d->n; }
const sn_known_node *sn_directory_known(const sn_directory *d, size_t i) { return &known_at(d, i)->known; }
bool sn_directory_known_is_proven(const sn_directory *d, size_t i, int64_t now_unix_ms) {
    return entry_is_proven(known_at(d, i), now_unix_ms);
}
const sn_announcement *sn_directory_known_at(const sn_directory *d, size_t i) { return &known_at(d, i)->opened->a; }
const sn_blob *sn_directory_known_sealed_at(const sn_directory *d, size_t i) { return &known_at(d, i)->opened->sealed; }

const sn_announcement_source *sn_directory_known_source_at(const sn_directory *d, size_t i) {
    return &known_at(d, i)->source;
}

size_t sn_directory_seek(const sn_directory *d, uint64_t tag) { return tags_lower_bound(d->tags, d->n, tag); }

const sn_announcement *sn_directory_find(const sn_directory *d, const uint8_t id[SN_KEY_SIZE]) {
    const entry *e = directory_find_entry(d, id);
    return e ? &e->opened->a : NULL;
}

const sn_blob *sn_directory_find_sealed(const sn_directory *d, const uint8_t id[SN_KEY_SIZE]) {
    const entry *e = directory_find_entry(d, id);
    return e ? &e->opened->sealed : NULL;
}

uint64_t sn_directory_find_expiry(const sn_directory *d, const uint8_t id[SN_KEY_SIZE]) {
    const entry *e = directory_find_entry(d, id);
    return e ? e->known.expires_unix_ms : 0;
}
