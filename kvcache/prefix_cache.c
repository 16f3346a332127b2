/* An entry names one page. While the page is being filled, its entry is `open`: it belongs to one KV cache
 * (kv->open_entry) and no lookup finds it. When the page is full, the entry is published: it is found by scope and
 * timeline hash in a hash table with chains, it stands in a list in the order of use, and the page is marked as cached
 * in the pool. An entry that is neither open nor published is unused. There are as many entries as pages.
 *
 * The outputs of a page's rows take a slot. There are as many slots as the budget of host memory allows; the slot that
 * was used longest ago is taken for the next page, whose entry then is found without outputs.
 *
 * insert appends rows to the open entry and publishes it at the end of the page. attach finds published entries with
 * outputs, adds their pages to the KV cache and copies their outputs out; attach_known needs no outputs. The pool
 * evicts pages through the sn_kv_page_evictor that this file registers, and kvcache.c reports rewinds, copies and
 * swap-outs through its sn_kv_prefix_hooks. */
#include "kvcache/prefix_cache.h"

#include "base/mem.h"
#include "kvcache/kvcache_private.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define NONE SN_KV_NONE /* no entry, no slot */

/* Numbers in the order of use. */
typedef struct order {
    uint32_t newest, oldest;
    struct neighbours {
        uint32_t newer, older;
    } *of; /* of each number */
} order;

typedef struct entry {
    sn_prefix_cache_scope scope; /* of a published entry */
    uint32_t page;
    uint32_t next; /* published: the next entry of the bucket; unused: the next unused entry */
    uint32_t slot; /* of its outputs; or NONE */
    int filled;    /* rows of the page so far */
} entry;

typedef struct sn_prefix_cache {
    sn_kv_pages *pages; /* of the pool */
    size_t width, page_floats, n_slots, n_buckets;
    entry *entries;              /* [n_pages] */
    sn_page_timeline *timelines; /* of published entries; as outputs, takes memory only once it is written */
    float *outputs;              /* (n_slots, SN_KV_PAGE_TOKENS, width) */
    uint32_t *slot_entries;      /* [n_slots]: the entry of each; or NONE: it is unused */
    uint32_t *page_entries;      /* for each page of the pool its published entry, or NONE */
    uint32_t *buckets;           /* [n_buckets], a power of two: the first entry of each chain */
    uint32_t first_unused;
    order used, slots_used; /* published entries; all slots */
    uint64_t hit_tokens;
} sn_prefix_cache;

/* ---- the orders of use ---- */

static void order_unlink(order *o, uint32_t i) {
    const struct neighbours it = o->of[i];
    *(it.newer == NONE ? &o->newest : &o->of[it.newer].older) = it.older;
    *(it.older == NONE ? &o->oldest : &o->of[it.older].newer) = it.newer;
}

static void order_link_newest(order *o, uint32_t i) {
    o->of[i] = (struct neighbours){NONE, o->newest};
    *(o->newest == NONE ? &o->oldest : &o->of[o->newest].newer) = i;
    o->newest = i;
}

static void order_link_oldest(order *o, uint32_t i) {
    o->of[i] = (struct neighbours){o->oldest, NONE};
    *(o->oldest == NONE ? &o->newest : &o->of[o->oldest].older) = i;
    o->oldest = i;
}

/* ---- outputs ---- */

static float *slot_rows(const sn_prefix_cache *p, uint32_t slot) { return p->outputs + slot * p->page_floats; }

/* The entry has no outputs any more. */
static void entry_drop_outputs(sn_prefix_cache *p, uint32_t e) {
    uint32_t slot = p->entries[e].slot;
    if (slot == NONE) return;
    p->entries[e].slot = p->slot_entries[slot] = NONE;
    order_unlink(&p->slots_used, slot);
    order_link_oldest(&p->slots_used, slot);
}

static void slot_touch(sn_prefix_cache *p, uint32_t slot) {
    order_unlink(&p->slots_used, slot);
    order_link_newest(&p->slots_used, slot);
}

static void entry_take_slot(sn_prefix_cache *p, uint32_t e, uint32_t slot) {
    if (p->slot_entries[slot] != NONE) p->entries[p->slot_entries[slot]].slot = NONE;
    p->slot_entries[slot] = e;
    p->entries[e].slot = slot;
    slot_touch(p, slot);
}

/* ---- the hash table ---- */

static uint32_t *entry_bucket(const sn_prefix_cache *p, const sn_prefix_cache_scope *scope, const sn_hash *end) {
    uint64_t a, b;
    memcpy(&a, scope->bytes, sizeof a);
    memcpy(&b, end->bytes, sizeof b);
    return &p->buckets[(a ^ b) & (p->n_buckets - 1)];
}

static uint32_t entry_find(const sn_prefix_cache *p, const sn_prefix_cache_scope *scope, const sn_hash *end) {
    uint32_t e = *entry_bucket(p, scope, end);
    while (e != NONE && (memcmp(sn_page_end(&p->timelines[e]), end, sizeof *end) ||
                         memcmp(&p->entries[e].scope, scope, sizeof *scope)))
        e = p->entries[e].next;
    return e;
}

static void entry_release(sn_prefix_cache *p, uint32_t e) {
    entry_drop_outputs(p, e);
    p->entries[e].next = p->first_unused;
    p->first_unused = e;
}

/* The evictor's `uncache`: the page's published entry becomes unused. */
static void prefix_cache_uncache(void *ctx, uint32_t page) {
    sn_prefix_cache *p = ctx;
    uint32_t e = p->page_entries[page];
    uint32_t *at = entry_bucket(p, &p->entries[e].scope, sn_page_end(&p->timelines[e]));
    while (*at != e) at = &p->entries[*at].next;
    *at = p->entries[e].next;
    order_unlink(&p->used, e);
    entry_release(p, e);
    p->page_entries[page] = NONE;
    sn_kv_pages_uncache(p->pages, page);
}

/* The evictor's `evict`: the least recently used page that no KV cache uses. */
static void prefix_cache_evict(void *ctx) {
    sn_prefix_cache *p = ctx;
    uint32_t e = p->used.oldest;
    while (e != NONE && p->pages->ref_counts[p->entries[e].page]) e = p->used.of[e].newer;
    if (e != NONE) prefix_cache_uncache(p, p->entries[e].page);
}

/* Makes the KV cache's pages up to `end` the most recently used ones, the first page last: a page is of no use without
 * those before it. */
static void pages_touch(sn_prefix_cache *p, const sn_kv_cache *kv, int end, bool outputs) {
    for (int i = end / SN_KV_PAGE_TOKENS; i-- > 0;) {
        uint32_t e = p->page_entries[kv->page_numbers[i]]; /* no page is swapped out: the cache was just changed */
        if (e == NONE) continue;
        order_unlink(&p->used, e);
        order_link_newest(&p->used, e);
        if (outputs && p->entries[e].slot != NONE) slot_touch(p, p->entries[e].slot);
    }
}

/* ---- the open entry ---- */

static void open_entry_drop(sn_kv_cache *kv) {
    if (kv->open_entry == NONE) return;
    entry_release(kv->pool->prefix_cache, kv->open_entry);
    kv->open_entry = NONE;
}

/* Opens an entry for the page; its outputs take the slot that was used longest ago. */
static void open_entry_begin(sn_kv_cache *kv, uint32_t page) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    open_entry_drop(kv);
    if (p->first_unused == NONE) return; /* cannot happen: each has another page */
    kv->open_entry = p->first_unused;
    p->first_unused = p->entries[kv->open_entry].next;
    p->entries[kv->open_entry].page = page;
    p->entries[kv->open_entry].filled = 0;
    entry_take_slot(p, kv->open_entry, p->slots_used.oldest);
}

/* Of sn_kv_prefix_hooks, as on_copy below. */
static void prefix_cache_on_rewind(sn_kv_cache *kv) {
    if (kv->open_entry == NONE) return;
    entry *open = &kv->pool->prefix_cache->entries[kv->open_entry];
    int within = kv->length % SN_KV_PAGE_TOKENS;
    if (!within || kv->page_numbers[kv->length / SN_KV_PAGE_TOKENS] != open->page)
        open_entry_drop(kv);
    else if (open->filled > within)
        open->filled = within;
}

/* The outputs of the rows that the copied page holds are copied, too, so that the copy can be shared with them once it
 * is full. */
static void prefix_cache_on_copy(sn_kv_cache *kv, uint32_t from) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    uint32_t source = p->page_entries[from], page = kv->page_numbers[kv->length / SN_KV_PAGE_TOKENS];
    int within = kv->length % SN_KV_PAGE_TOKENS;
    if (source == NONE) return; /* two caches share the page, and it was evicted */
    open_entry_begin(kv, page);
    if (kv->open_entry == NONE) return;
    const uint32_t there = p->entries[source].slot, here = p->entries[kv->open_entry].slot;
    p->entries[kv->open_entry].filled = within;
    if (there == NONE) /* the source made place for its copy, or had no outputs */
        entry_drop_outputs(p, kv->open_entry);
    else
        memcpy(slot_rows(p, here), slot_rows(p, there), (size_t)within * p->width * sizeof(float));
}

/* Appends the outputs of n rows from position `at` on, which lie in one page. */
static void open_entry_append(sn_kv_cache *kv, int at, int n, const float *output) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    int within = at % SN_KV_PAGE_TOKENS;
    uint32_t page = kv->page_numbers[at / SN_KV_PAGE_TOKENS];
    if (!within) open_entry_begin(kv, page);
    if (kv->open_entry == NONE) return;
    entry *open = &p->entries[kv->open_entry];
    if (open->page != page || open->filled != within) { /* the page's first rows came without outputs (import) */
        open_entry_drop(kv);
        return;
    }
    if (open->slot != NONE)
        memcpy(slot_rows(p, open->slot) + (size_t)within * p->width, output, (size_t)n * p->width * sizeof *output);
    open->filled += n;
}

/* The last page is full: publishes its entry. */
static void open_entry_publish(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_page_timeline *timeline) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    uint32_t e = kv->open_entry;
    if (e == NONE) return;
    uint32_t same = entry_find(p, scope, sn_page_end(timeline));
    if (same != NONE) { /* another session published the same page */
        if (p->entries[same].slot == NONE && p->entries[e].slot != NONE) entry_take_slot(p, same, p->entries[e].slot);
        open_entry_drop(kv);
        return;
    }
    kv->open_entry = NONE;
    uint32_t *at = entry_bucket(p, scope, sn_page_end(timeline));
    p->timelines[e] = *timeline;
    p->entries[e].scope = *scope;
    p->entries[e].next = *at;
    *at = e;
    p->page_entries[p->entries[e].page] = e;
    sn_kv_pages_cache(p->pages, p->entries[e].page);
    order_link_newest(&p->used, e);
}

/* ---- the pool's prefix cache ---- */

static void prefix_cache_free(sn_kv_pool *pool) {
    sn_prefix_cache *p = pool->prefix_cache;
    void *outputs = p->outputs, *timelines = p->timelines;
    sn_pages_free(&outputs, p->n_slots * p->page_floats * sizeof(float));
    sn_pages_free(&timelines, pool->pages.n_pages * sizeof *p->timelines);
    free(p->entries);
    free(p->slot_entries);
    free(p->page_entries);
    free(p->buckets);
    free(p->used.of);
    free(p->slots_used.of);
    free(p);
    pool->prefix_cache = NULL;
}

static const sn_kv_prefix_hooks prefix_hooks = {.on_rewind = prefix_cache_on_rewind,
                                                .on_copy = prefix_cache_on_copy,
                                                .on_swap_out = open_entry_drop,
                                                .free = prefix_cache_free};

static sn_status prefix_cache_alloc(sn_prefix_cache *p, sn_err *err) {
    const size_t n = p->pages->n_pages;
    void *outputs = NULL, *timelines = NULL;
    sn_status status = sn_pages_alloc(&outputs, p->n_slots * p->page_floats * sizeof(float), err);
    p->outputs = outputs;
    if (!status) status = sn_pages_alloc(&timelines, n * sizeof *p->timelines, err);
    p->timelines = timelines;
    if (!status) status = sn_calloc(&p->entries, n, sizeof *p->entries, err);
    if (!status) status = sn_calloc(&p->used.of, n, sizeof *p->used.of, err);
    if (!status) status = sn_calloc(&p->slots_used.of, p->n_slots, sizeof *p->slots_used.of, err);
    if (!status) status = sn_calloc(&p->slot_entries, p->n_slots, sizeof *p->slot_entries, err);
    if (!status) status = sn_calloc(&p->page_entries, n, sizeof *p->page_entries, err);
    return status ? status : sn_calloc(&p->buckets, p->n_buckets, sizeof *p->buckets, err);
}

sn_status sn_prefix_cache_enable(sn_kv_pool *pool, int width, size_t budget, sn_err *err) {
    const size_t page_floats = (size_t)width * SN_KV_PAGE_TOKENS, n = pool->pages.n_pages;
    const size_t n_slots = sn_min_size(budget / (page_floats * sizeof(float)), n);
    sn_prefix_cache *p = NULL;
    if (!n_slots) return SN_OK;
    sn_status status = sn_calloc(&p, 1, sizeof *p, err);
    if (status) return status;
    pool->prefix_cache = p;
    *p = (sn_prefix_cache){.pages = &pool->pages,
                           .width = (size_t)width,
                           .page_floats = page_floats,
                           .n_slots = n_slots,
                           .n_buckets = 1,
                           .first_unused = NONE,
                           .used = {NONE, NONE, NULL},
                           .slots_used = {NONE, NONE, NULL}};
    while (p->n_buckets < n) p->n_buckets *= 2;
    if ((status = prefix_cache_alloc(p, err))) {
        prefix_cache_free(pool);
        return status;
    }
    memset(p->slot_entries, 0xff, n_slots * sizeof *p->slot_entries); /* NONE, as below */
    memset(p->page_entries, 0xff, n * sizeof *p->page_entries);
    memset(p->buckets, 0xff, p->n_buckets * sizeof *p->buckets);
    for (size_t i = 0; i < n_slots; i++) order_link_newest(&p->slots_used, (uint32_t)i);
    for (size_t i = n; i-- > 0; p->first_unused = (uint32_t)i)
        p->entries[i] = (entry){.next = p->first_unused, .slot = NONE};
    pool->prefix_hooks = &prefix_hooks;
    pool->pages.evictor = (sn_kv_page_evictor){p, prefix_cache_evict, prefix_cache_uncache};
    return SN_OK;
}

/* ---- insert and attach ---- */

void sn_prefix_cache_insert(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_page_timeline *pages, int n,
                            const float *output) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    if (!p) return;
    for (int at = kv->length - n, rows, page = 0; at < kv->length; at += rows, page++) {
        int left = SN_KV_PAGE_TOKENS - at % SN_KV_PAGE_TOKENS;
        rows = kv->length - at < left ? kv->length - at : left;
        open_entry_append(kv, at, rows, output);
        output += (size_t)rows * p->width;
        if (rows < left) continue;
        open_entry_publish(kv, scope, &pages[page]);
        pages_touch(p, kv, at + rows, true); /* before the next page evicts the oldest one */
    }
}

/* Whether a cache can go on behind the entry's page without computing its rows: recurrent blocks need the state there.
 */
static bool entry_ends_in_state(const sn_prefix_cache *p, uint32_t e) {
    return !p->pages->states.device || sn_kv_states_of_page(&p->pages->states, p->entries[e].page) != SN_KV_NO_STATE;
}

bool sn_prefix_cache_contains(const sn_kv_pool *pool, const sn_prefix_cache_scope *scope, const sn_hash *end) {
    const sn_prefix_cache *p = pool->prefix_cache;
    uint32_t e = p ? entry_find(p, scope, end) : NONE;
    return e != NONE && p->entries[e].slot != NONE && entry_ends_in_state(p, e);
}

/* The next page of the cache is that of the entry. False: memory is out. */
static bool attach_page(sn_kv_cache *kv, uint32_t e) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    const size_t i = (size_t)kv->length / SN_KV_PAGE_TOKENS;
    uint32_t before = NONE;
    sn_err err;
    if (i >= kv->capacity && sn_kv_cache_grow(kv, sn_min_size(2 * i + 8, p->pages->n_pages), &err)) return false;
    if (i < kv->n_pages)
        before = kv->page_numbers[i]; /* reserved, and not needed any more */
    else
        kv->n_pages++;
    sn_kv_cache_set_page(kv, i, p->entries[e].page);
    if (before != NONE) sn_kv_pages_release(p->pages, before);
    kv->length += SN_KV_PAGE_TOKENS;
    return true;
}

/* How many of the n pages are known with outputs one after the other, up to the last one that a cache can go on behind.
 */
static int known_pages(const sn_prefix_cache *p, const sn_prefix_cache_scope *scope, const sn_page_timeline *pages,
                       int n) {
    int usable = 0;
    for (int i = 0; i < n; i++) {
        uint32_t e = entry_find(p, scope, sn_page_end(&pages[i]));
        if (e == NONE || p->entries[e].slot == NONE) break;
        if (entry_ends_in_state(p, e)) usable = i + 1;
    }
    return usable;
}

/* After so many pages were attached. */
static void count_attached(sn_prefix_cache *p, sn_kv_cache *kv, int n, bool outputs) {
    if (!n) return;
    open_entry_drop(kv);
    pages_touch(p, kv, kv->length, outputs);
    p->hit_tokens += (uint64_t)n * SN_KV_PAGE_TOKENS;
}

int sn_prefix_cache_attach(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_page_timeline *pages, int n,
                           float *output) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    int done = 0;
    if (!p || kv->length % SN_KV_PAGE_TOKENS) return 0;
    n = known_pages(p, scope, pages, n);
    for (; done < n; done++, output += p->page_floats) {
        uint32_t e = entry_find(p, scope, sn_page_end(&pages[done]));
        if (!attach_page(kv, e)) break;
        memcpy(output, slot_rows(p, p->entries[e].slot), p->page_floats * sizeof *output);
    }
    count_attached(p, kv, done, true);
    return done;
}

/* Lists the entries of the pages before the point, the last one first, at chain[]. Returns the position from which on
 * all of them are known: 0 if they reach back to the beginning. */
static int chain_find(const sn_prefix_cache *p, const sn_prefix_cache_scope *scope, const sn_hash *begin,
                      const sn_prefix_cache_point *point, uint32_t *chain) {
    const sn_hash *end = &point->timeline;
    int at = point->position;
    for (; at > 0; at -= SN_KV_PAGE_TOKENS, end = &p->timelines[*chain++].before)
        if ((*chain = entry_find(p, scope, end)) == NONE) return at;
    return memcmp(end, begin, sizeof *end) ? point->position : 0;
}

/* The cache gets these pages, the last one first in chain[], in place of all that it holds. False: memory is out. */
static bool attach_chain(sn_kv_cache *kv, const uint32_t *chain, int n, sn_hash *timeline) {
    const sn_prefix_cache *p = kv->pool->prefix_cache;
    sn_kv_cache_rewind(kv, 0);
    timeline[0] = p->timelines[chain[n - 1]].before;
    for (; n; timeline += SN_KV_PAGE_TOKENS) {
        const uint32_t e = chain[--n];
        memcpy(timeline + 1, p->timelines[e].after, sizeof p->timelines[e].after);
        if (!attach_page(kv, e)) return false;
    }
    return true;
}

int sn_prefix_cache_attach_known(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_hash *begin,
                                 const sn_prefix_cache_point *points, size_t n, sn_hash **timeline) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    int unknown = INT_MAX, found = 0; /* of the pages that end at this position or behind it, some are not there */
    uint32_t *chain = NULL;
    sn_err err;
    *timeline = NULL;
    if (!p || !n || kv->invalid) return 0;
    if (sn_calloc(&chain, (size_t)points[0].position / SN_KV_PAGE_TOKENS, sizeof *chain, &err)) return 0;
    for (size_t i = 0; i < n && !found; i++) {
        if (points[i].position >= unknown) continue;
        uint32_t last = entry_find(p, scope, &points[i].timeline);
        if (last == NONE || !entry_ends_in_state(p, last)) continue;
        unknown = chain_find(p, scope, begin, &points[i], chain);
        if (!unknown) found = points[i].position;
    }
    if (found && sn_calloc(timeline, (size_t)found + 1, sizeof **timeline, &err)) found = 0;
    if (found && !attach_chain(kv, chain, found / SN_KV_PAGE_TOKENS, *timeline)) {
        sn_kv_cache_rewind(kv, 0);
        free(*timeline);
        *timeline = NULL;
        found = 0;
    }
    count_attached(p, kv, found / SN_KV_PAGE_TOKENS, false);
    free(chain);
    return found;
}

bool sn_prefix_cache_enabled(const sn_kv_pool *pool) { return pool->prefix_cache != NULL; }
size_t sn_prefix_cache_pages_shared(const sn_kv_pool *pool) { return pool->pages.n_shared; }
size_t sn_prefix_cache_pages_evictable(const sn_kv_pool *pool) { return pool->pages.n_evictable; }
uint64_t sn_prefix_cache_hit_tokens(const sn_kv_pool *pool) {
    return pool->prefix_cache ? pool->prefix_cache->hit_tokens : 0;
}
