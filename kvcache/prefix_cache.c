/* An entry is the outputs of one page. While the page is being filled, its entry is `open`: it belongs to one KV cache
 * (kv->open_entry) and no lookup finds it. When the page is full, the entry is published: it is found by scope and
 * timeline hash in a hash table with chains, it stands in a list in the order of use, and the page is marked as cached
 * in the pool. An entry that is neither open nor published is in the list of unused entries. There are as many entries
 * as the budget of host memory allows, at most one for each page.
 *
 * insert appends rows to the open entry and publishes it at the end of the page. attach finds published entries, adds
 * their pages to the KV cache and copies their outputs out. The pool evicts pages through the sn_kv_page_evictor that
 * this file registers, and kvcache.c reports rewinds, copies and swap-outs through its sn_kv_prefix_hooks. */
#include "kvcache/prefix_cache.h"

#include "base/mem.h"
#include "kvcache/kvcache_private.h"

#include <stdlib.h>
#include <string.h>

#define NO_ENTRY SN_KV_NONE

typedef struct entry {
    sn_hash end; /* of a published entry, as scope, newer and older */
    sn_prefix_cache_scope scope;
    uint32_t page;
    uint32_t next;         /* published: the next entry of the bucket; unused: the next unused entry */
    uint32_t newer, older; /* in the order of use */
    int filled;            /* rows of outputs */
} entry;

typedef struct sn_prefix_cache {
    sn_kv_pages *pages; /* of the pool */
    size_t width, page_floats, n_entries, n_buckets;
    entry *entries;
    float *outputs; /* (n_entries, SN_KV_PAGE_TOKENS, width); takes memory only once it is written */
    size_t output_bytes;
    uint32_t *page_entries; /* for each page of the pool its published entry, or NO_ENTRY */
    uint32_t *buckets;      /* [n_buckets], a power of two: the first entry of each chain */
    uint32_t first_unused, newest, oldest;
    uint64_t hit_tokens;
} sn_prefix_cache;

static float *entry_rows(const sn_prefix_cache *p, uint32_t e) { return p->outputs + e * p->page_floats; }

/* ---- the hash table and the order of use ---- */

static uint32_t *entry_bucket(const sn_prefix_cache *p, const sn_prefix_cache_scope *scope, const sn_hash *end) {
    uint64_t a, b;
    memcpy(&a, scope->bytes, sizeof a);
    memcpy(&b, end->bytes, sizeof b);
    return &p->buckets[(a ^ b) & (p->n_buckets - 1)];
}

static uint32_t entry_find(const sn_prefix_cache *p, const sn_prefix_cache_scope *scope, const sn_hash *end) {
    uint32_t e = *entry_bucket(p, scope, end);
    while (e != NO_ENTRY &&
           (memcmp(&p->entries[e].end, end, sizeof *end) || memcmp(&p->entries[e].scope, scope, sizeof *scope)))
        e = p->entries[e].next;
    return e;
}

static void lru_unlink(sn_prefix_cache *p, uint32_t e) {
    const entry *it = &p->entries[e];
    *(it->newer == NO_ENTRY ? &p->newest : &p->entries[it->newer].older) = it->older;
    *(it->older == NO_ENTRY ? &p->oldest : &p->entries[it->older].newer) = it->newer;
}

static void lru_link_newest(sn_prefix_cache *p, uint32_t e) {
    p->entries[e].newer = NO_ENTRY;
    p->entries[e].older = p->newest;
    *(p->newest == NO_ENTRY ? &p->oldest : &p->entries[p->newest].newer) = e;
    p->newest = e;
}

static void entry_release(sn_prefix_cache *p, uint32_t e) {
    p->entries[e].next = p->first_unused;
    p->first_unused = e;
}

/* The evictor's `uncache`: the page's published entry becomes unused. */
static void prefix_cache_uncache(void *ctx, uint32_t page) {
    sn_prefix_cache *p = ctx;
    uint32_t e = p->page_entries[page], *at = entry_bucket(p, &p->entries[e].scope, &p->entries[e].end);
    while (*at != e) at = &p->entries[*at].next;
    *at = p->entries[e].next;
    lru_unlink(p, e);
    entry_release(p, e);
    p->page_entries[page] = NO_ENTRY;
    sn_kv_pages_uncache(p->pages, page);
}

/* The evictor's `evict`: the least recently used page that no KV cache uses. */
static void prefix_cache_evict(void *ctx) {
    sn_prefix_cache *p = ctx;
    uint32_t e = p->oldest;
    while (e != NO_ENTRY && p->pages->ref_counts[p->entries[e].page]) e = p->entries[e].newer;
    if (e != NO_ENTRY) prefix_cache_uncache(p, p->entries[e].page);
}

/* Makes the KV cache's pages up to `end` the most recently used ones, the first page last: a page is of no use without
 * those before it. */
static void lru_touch(sn_prefix_cache *p, const sn_kv_cache *kv, int end) {
    for (int i = end / SN_KV_PAGE_TOKENS; i-- > 0;) {
        uint32_t e = p->page_entries[kv->page_numbers[i]]; /* no page is swapped out: the cache was just changed */
        if (e == NO_ENTRY) continue;
        lru_unlink(p, e);
        lru_link_newest(p, e);
    }
}

/* ---- the open entry ---- */

static void open_entry_drop(sn_kv_cache *kv) {
    if (kv->open_entry == NO_ENTRY) return;
    entry_release(kv->pool->prefix_cache, kv->open_entry);
    kv->open_entry = NO_ENTRY;
}

/* Opens an entry for the page; if all entries are published, the least recently used one makes place. Where even that
 * fails the KV cache has no open entry, and the page is not shared. */
static void open_entry_begin(sn_kv_cache *kv, uint32_t page) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    open_entry_drop(kv);
    if (p->first_unused == NO_ENTRY && p->oldest != NO_ENTRY) prefix_cache_uncache(p, p->entries[p->oldest].page);
    if (p->first_unused == NO_ENTRY) return;
    kv->open_entry = p->first_unused;
    p->first_unused = p->entries[kv->open_entry].next;
    p->entries[kv->open_entry].page = page;
    p->entries[kv->open_entry].filled = 0;
}

/* Of sn_kv_prefix_hooks, as on_copy below. */
static void prefix_cache_on_rewind(sn_kv_cache *kv) {
    if (kv->open_entry == NO_ENTRY) return;
    entry *open = &kv->pool->prefix_cache->entries[kv->open_entry];
    int within = kv->length % SN_KV_PAGE_TOKENS;
    if (!within || kv->page_numbers[kv->length / SN_KV_PAGE_TOKENS] != open->page)
        open_entry_drop(kv);
    else if (open->filled > within)
        open->filled = within;
}

/* The outputs of the rows that the copied page holds are copied, too, so that the copy can be shared once it is full.
 */
static void prefix_cache_on_copy(sn_kv_cache *kv, uint32_t from) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    uint32_t source = p->page_entries[from], page = kv->page_numbers[kv->length / SN_KV_PAGE_TOKENS];
    int within = kv->length % SN_KV_PAGE_TOKENS;
    if (source == NO_ENTRY) return; /* two caches share the page, but its outputs were evicted */
    open_entry_begin(kv, page);
    if (kv->open_entry == NO_ENTRY || p->page_entries[from] == NO_ENTRY) { /* the source made place for its copy */
        open_entry_drop(kv);
        return;
    }
    memcpy(entry_rows(p, kv->open_entry), entry_rows(p, source), (size_t)within * p->width * sizeof(float));
    p->entries[kv->open_entry].filled = within;
}

/* Appends the outputs of n rows from position `at` on, which lie in one page. */
static void open_entry_append(sn_kv_cache *kv, int at, int n, const float *output) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    int within = at % SN_KV_PAGE_TOKENS;
    uint32_t page = kv->page_numbers[at / SN_KV_PAGE_TOKENS];
    if (!within) open_entry_begin(kv, page);
    if (kv->open_entry == NO_ENTRY) return;
    entry *open = &p->entries[kv->open_entry];
    if (open->page != page || open->filled != within) { /* the page's first rows came without outputs (import) */
        open_entry_drop(kv);
        return;
    }
    size_t row = p->width;
    memcpy(entry_rows(p, kv->open_entry) + (size_t)within * row, output, (size_t)n * row * sizeof *output);
    open->filled += n;
}

/* The last page is full: publishes its entry. */
static void open_entry_publish(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_hash *end) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    uint32_t e = kv->open_entry;
    if (e == NO_ENTRY) return;
    if (entry_find(p, scope, end) != NO_ENTRY) { /* another session published the same page */
        open_entry_drop(kv);
        return;
    }
    kv->open_entry = NO_ENTRY;
    uint32_t *at = entry_bucket(p, scope, end);
    p->entries[e].end = *end;
    p->entries[e].scope = *scope;
    p->entries[e].next = *at;
    *at = e;
    p->page_entries[p->entries[e].page] = e;
    sn_kv_pages_cache(p->pages, p->entries[e].page);
    lru_link_newest(p, e);
}

/* ---- the pool's prefix cache ---- */

static void prefix_cache_free(sn_kv_pool *pool) {
    sn_prefix_cache *p = pool->prefix_cache;
    void *outputs = p->outputs;
    sn_pages_free(&outputs, p->output_bytes);
    free(p->entries);
    free(p->page_entries);
    free(p->buckets);
    free(p);
    pool->prefix_cache = NULL;
}

static const sn_kv_prefix_hooks prefix_hooks = {.on_rewind = prefix_cache_on_rewind,
                                                .on_copy = prefix_cache_on_copy,
                                                .on_swap_out = open_entry_drop,
                                                .free = prefix_cache_free};

sn_status sn_prefix_cache_enable(sn_kv_pool *pool, int width, size_t budget, sn_err *err) {
    size_t page_floats = (size_t)width * SN_KV_PAGE_TOKENS;
    size_t n = sn_min_size(budget / (page_floats * sizeof(float)), pool->pages.n_pages);
    sn_prefix_cache *p = NULL;
    if (!n) return SN_OK;
    sn_status status = sn_calloc(&p, 1, sizeof *p, err);
    if (status) return status;
    pool->prefix_cache = p;
    *p = (sn_prefix_cache){
        .pages = &pool->pages, .width = (size_t)width, .page_floats = page_floats, .n_entries = n, .n_buckets = 1};
    while (p->n_buckets < n) p->n_buckets *= 2;
    p->output_bytes = n * page_floats * sizeof(float);
    void *outputs = NULL;
    status = sn_pages_alloc(&outputs, p->output_bytes, err);
    p->outputs = outputs;
    if (!status) status = sn_calloc(&p->entries, n, sizeof *p->entries, err);
    if (!status) status = sn_calloc(&p->page_entries, pool->pages.n_pages, sizeof *p->page_entries, err);
    if (!status) status = sn_calloc(&p->buckets, p->n_buckets, sizeof *p->buckets, err);
    if (status) {
        prefix_cache_free(pool);
        return status;
    }
    memset(p->page_entries, 0xff, pool->pages.n_pages * sizeof *p->page_entries); /* NO_ENTRY */
    memset(p->buckets, 0xff, p->n_buckets * sizeof *p->buckets);
    p->first_unused = p->newest = p->oldest = NO_ENTRY;
    for (size_t i = n; i-- > 0; p->first_unused = (uint32_t)i) p->entries[i].next = p->first_unused;
    pool->prefix_hooks = &prefix_hooks;
    pool->pages.evictor = (sn_kv_page_evictor){p, prefix_cache_evict, prefix_cache_uncache};
    return SN_OK;
}

/* ---- insert and attach ---- */

void sn_prefix_cache_insert(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_hash *ends, int n,
                            const float *output) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    if (!p) return;
    for (int at = kv->length - n, rows; at < kv->length; at += rows, ends++) {
        int left = SN_KV_PAGE_TOKENS - at % SN_KV_PAGE_TOKENS;
        rows = kv->length - at < left ? kv->length - at : left;
        open_entry_append(kv, at, rows, output);
        output += (size_t)rows * p->width;
        if (rows < left) continue;
        open_entry_publish(kv, scope, ends);
        lru_touch(p, kv, at + rows); /* before the next page evicts the oldest one */
    }
}

/* Whether a cache can go on behind the entry's page without computing its rows: recurrent blocks need the state there.
 */
static bool entry_ends_in_state(const sn_prefix_cache *p, uint32_t e) {
    return !p->pages->states.device || sn_kv_states_of_page(&p->pages->states, p->entries[e].page) != SN_KV_NO_STATE;
}

bool sn_prefix_cache_contains(const sn_kv_pool *pool, const sn_prefix_cache_scope *scope, const sn_hash *end) {
    const sn_prefix_cache *p = pool->prefix_cache;
    uint32_t e = p ? entry_find(p, scope, end) : NO_ENTRY;
    return e != NO_ENTRY && entry_ends_in_state(p, e);
}

/* How many of the n pages are known one after the other, up to the last one that a cache can go on behind. */
static int known_pages(const sn_prefix_cache *p, const sn_prefix_cache_scope *scope, const sn_hash *ends, int n) {
    int usable = 0;
    for (int i = 0; i < n; i++) {
        uint32_t e = entry_find(p, scope, &ends[i]);
        if (e == NO_ENTRY) break;
        if (entry_ends_in_state(p, e)) usable = i + 1;
    }
    return usable;
}

int sn_prefix_cache_attach(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_hash *ends, int n,
                           float *output) {
    sn_prefix_cache *p = kv->pool->prefix_cache;
    int done = 0;
    if (!p || kv->length % SN_KV_PAGE_TOKENS) return 0;
    n = known_pages(p, scope, ends, n);
    for (; done < n; done++, output += p->page_floats) {
        size_t i = (size_t)kv->length / SN_KV_PAGE_TOKENS;
        uint32_t e = entry_find(p, scope, &ends[done]), before = SN_KV_NONE;
        sn_err err;
        if (i >= kv->capacity && sn_kv_cache_grow(kv, sn_min_size(2 * i + 8, p->pages->n_pages), &err)) break;
        if (i < kv->n_pages)
            before = kv->page_numbers[i]; /* reserved, and not needed any more */
        else
            kv->n_pages++;
        sn_kv_cache_set_page(kv, i, p->entries[e].page);
        if (before != SN_KV_NONE) sn_kv_pages_release(p->pages, before);
        memcpy(output, entry_rows(p, e), p->page_floats * sizeof *output);
        kv->length += SN_KV_PAGE_TOKENS;
    }
    if (done) {
        open_entry_drop(kv);
        lru_touch(p, kv, kv->length);
    }
    p->hit_tokens += (uint64_t)done * SN_KV_PAGE_TOKENS;
    return done;
}

bool sn_prefix_cache_enabled(const sn_kv_pool *pool) { return pool->prefix_cache != NULL; }
size_t sn_prefix_cache_pages_shared(const sn_kv_pool *pool) { return pool->pages.n_shared; }
size_t sn_prefix_cache_pages_evictable(const sn_kv_pool *pool) { return pool->pages.n_evictable; }
uint64_t sn_prefix_cache_hit_tokens(const sn_kv_pool *pool) {
    return pool->prefix_cache ? pool->prefix_cache->hit_tokens : 0;
}
