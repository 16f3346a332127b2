/* The prefix cache: sessions whose tokens begin alike share the KV pages of that beginning.
 *
 * A page is found by the timeline hash (net/timeline.h) at its end. The hash commits to the weights and to every row of
 * the session up to there. The node computes it from the rows that it received, so no client can claim
 * a page that it did not lead to. Where the hash is equal, keys, values and outputs are equal (on CPUs bit by bit). A
 * session whose next rows lead to a known hash attaches the page instead of computing it. The outputs of the page's
 * rows are kept with the page, because the session's reply needs them. Only whole pages are shared. No cache writes to
 * a page that others hold: sn_kv_cache_reserve copies the page first (kvcache.h).
 *
 * Pages that no session uses stay until the pool needs them; outputs stay within a budget of host memory. The least
 * recently used page is evicted first, and of one session's pages the last one first.
 *
 * Used by the devices' thread, as the pool. Apart from enable, no function fails; on a pool without a prefix cache
 * nothing is found and nothing is stored. */
#ifndef SN_KVCACHE_PREFIX_CACHE_H
#define SN_KVCACHE_PREFIX_CACHE_H

#include "base/hash.h"
#include "kvcache/kvcache.h"

/* From now on caches of the pool share pages. `budget`: bytes of host memory for outputs of `width` floats per
 * position; a budget below one page's outputs enables nothing. The pool owns the prefix cache. */
sn_status sn_prefix_cache_enable(sn_kv_pool *pool, int width, size_t budget, sn_err *err) SN_MUST_USE;

/* Only sessions of equal scope share pages: the client's key, or zeros for a scope of all clients. */
typedef struct sn_prefix_cache_scope {
    uint8_t bytes[SN_HASH_SIZE];
} sn_prefix_cache_scope;

/* Attaches as many known pages as possible after the cache's end, at most n: ends[i] is the timeline hash at the end of
 * the i-th page from there. Copies their outputs to output (pages * SN_KV_PAGE_TOKENS, width). Returns the number of
 * pages; 0 when the end lies within a page. */
int sn_prefix_cache_attach(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_hash *ends, int n,
                           float *output);
bool sn_prefix_cache_contains(const sn_kv_pool *pool, const sn_prefix_cache_scope *scope, const sn_hash *end);

/* Stores the last n rows of the cache, just appended, with their outputs (n, width). ends[0] is the hash at the end of
 * the page that holds the first of these rows, ends[1] that of the next page, and so on; only those of pages that are
 * full now are read. */
void sn_prefix_cache_insert(sn_kv_cache *kv, const sn_prefix_cache_scope *scope, const sn_hash *ends, int n,
                            const float *output);

/* Statistics. */
bool sn_prefix_cache_enabled(const sn_kv_pool *pool);
size_t sn_prefix_cache_pages_shared(const sn_kv_pool *pool);    /* pages used by two sessions or more */
size_t sn_prefix_cache_pages_evictable(const sn_kv_pool *pool); /* pages used by no session */
uint64_t sn_prefix_cache_hit_tokens(const sn_kv_pool *pool);    /* positions attached since the start */

#endif
