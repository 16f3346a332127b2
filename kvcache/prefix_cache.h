/* The prefix cache: sessions whose tokens begin alike share the KV pages of that beginning.
 *
 * A page is found by the timeline hash (net/timeline.h) at its end. The hash commits to the weights and to every row of
 * the session up to there. The node computes it from the rows that it received, so no client can claim
 * a page that it did not lead to. Where the hash is equal, keys, values and outputs are equal (on CPUs bit by bit). A
 * session whose next rows lead to a known hash attaches the page instead of computing it, where the outputs of the
 * page's rows are kept with it, because the session's reply needs them. A client that knows such a hash can also take
 * all pages up to there by it (sn_prefix_cache_attach_known), without rows and without outputs. Only whole pages are
 * shared. No cache writes to a page that others hold: sn_kv_cache_reserve copies the page first (kvcache.h).
 *
 * Pages that no session uses stay until the pool needs them; outputs stay within a budget of host memory, of the pages
 * that were used last. The least recently used page is evicted first, and of one session's pages the last one first.
 *
 * Used by the devices' thread, as the pool. Apart from enable, no function fails; on a pool without a prefix cache
 * nothing is found and nothing is stored. */
#ifndef SN_KVCACHE_PREFIX_CACHE_H
#define SN_KVCACHE_PREFIX_CACHE_H

#include "base/hash.h"
#include "kvcache/kvcache.h"

/* From now on caches of the pool share pages. `budget`: bytes of host memory for outputs of `width` floats per
 * position; a budget below one page's outputs enables nothing. Beside it, 544 bytes of each page in use name the page.
 * The pool owns the prefix cache. */
sn_status sn_prefix_cache_enable(sn_kv_pool *pool, int width, size_t budget, sn_err *err) SN_MUST_USE;

/* Only sessions of equal scope share pages: the client's key, or zeros for a scope of all clients. */
typedef struct sn_prefix_cache_scope {
    uint8_t bytes[SN_HASH_SIZE];
} sn_prefix_cache_scope;

/* The timeline hashes of a page: before its first position, and after each of its positions. Pages follow each other
 * where the last hash of one is the first of the next. */
typedef struct sn_page_timeline {
    sn_hash before, after[SN_KV_PAGE_TOKENS];
} sn_page_timeline;
static inline const sn_hash *sn_page_end(const sn_page_timeline *page) { return &page->after[SN_KV_PAGE_TOKENS - 1]; }

/* Attaches as many known pages as possible after the cache's end, at most the n given ones. Copies their outputs to
 * output (pages * SN_KV_PAGE_TOKENS, width). Returns the number of pages; 0 when the end lies within a page. */
int sn_prefix_cache_attach(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_page_timeline *pages, int n,
                           float *output);
bool sn_prefix_cache_contains(const sn_kv_pool *pool, const sn_prefix_cache_scope *scope, const sn_hash *end);

/* A position of a timeline, a multiple of SN_KV_PAGE_TOKENS and above 0, and the hash there. */
typedef struct sn_prefix_cache_point {
    int position;
    sn_hash timeline;
} sn_prefix_cache_point;
/* Makes the pages up to the first of the n points that is known, with all pages before it back to the timeline's
 * beginning, those of the cache, in place of all that it held. Points go from later to earlier positions. Returns the
 * position, and in *timeline, which the caller frees, the hashes at positions 0 to this one; or 0 and NULL: none is
 * known, and the cache is as before, or memory is out. */
int sn_prefix_cache_attach_known(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_hash *begin,
                                 const sn_prefix_cache_point *points, size_t n, sn_hash **timeline);

/* Stores the last n rows of the cache, just appended, with their outputs (n, width). pages[0] holds the first of these
 * rows, pages[1] follows, and so on; only pages that are full now are read, so it may be NULL where none is. */
void sn_prefix_cache_insert(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_page_timeline *pages, int n,
                            const float *output);

/* Statistics. */
bool sn_prefix_cache_enabled(const sn_kv_pool *pool);
size_t sn_prefix_cache_pages_shared(const sn_kv_pool *pool);    /* pages used by two sessions or more */
size_t sn_prefix_cache_pages_evictable(const sn_kv_pool *pool); /* pages used by no session */
uint64_t sn_prefix_cache_hit_tokens(const sn_kv_pool *pool);    /* positions attached since the start */

#endif
