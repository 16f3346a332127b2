/* Beginnings that sessions share: pages of positions that were computed here, by the hash of the timeline at their end.
 *
 * The timeline hash (net/timeline.h) commits to the weights and to every row that went in, and the node makes it itself of
 * the rows it was sent: nobody can claim to have a past. So where it is equal, keys, values and outputs are (on CPUs bit by
 * bit), and a session whose next rows lead to a known hash takes the page over instead of computing it. Its rows' outputs
 * are kept beside the page, because the answer needs them. Only whole pages are shared. A past never writes to a page that
 * others see: sn_kv_reserve copies it first (kvcache.h).
 *
 * Pages that no session uses stay as long as nobody needs their room; outputs stay within a budget of host memory. What was
 * longest of no use goes first, a timeline's end before its beginning. Belongs to the devices' thread. */
#ifndef SN_KVCACHE_PREFIX_H
#define SN_KVCACHE_PREFIX_H

#include "base/hash.h"
#include "kvcache/kvcache.h"

/* From now on the pool's pasts may share pages. `budget` bytes of host memory for outputs of `width` floats a position; less
 * than one page's: nothing is shared. The pool owns it. */
sn_status sn_prefix_share(sn_kv_pool *pool, int width, size_t budget, sn_err *err) SN_MUST_USE;

/* Whose pages may be taken: sessions of equal scope (the client's key; all zero: everybody) share. */
typedef struct sn_prefix_scope {
    uint8_t bytes[SN_HASH_SIZE];
} sn_prefix_scope;

/* Takes over as many whole pages as are known behind the past's end, at most n: ends[i] is the hash of the timeline at the
 * end of the i-th page from there. output (pages * SN_KV_PAGE_TOKENS, width) gets their rows. Returns the pages; none
 * where the end lies within a page. */
int sn_prefix_adopt(sn_kv *kv, const sn_prefix_scope *scope, const sn_hash *ends, int n, float *output);
bool sn_prefix_knows(const sn_kv_pool *pool, const sn_prefix_scope *scope, const sn_hash *end);

/* Notes n rows that were just appended, with their outputs (n, width). ends[0]: of the page that holds the first of them;
 * only those of pages that are full now are read. */
void sn_prefix_record(sn_kv *kv, const sn_prefix_scope *scope, const sn_hash *ends, int n, const float *output);

/* Figures. */
bool sn_prefix_sharing(const sn_kv_pool *pool);        /* at all */
size_t sn_prefix_pages_shared(const sn_kv_pool *pool); /* used by two sessions or more */
size_t sn_prefix_pages_kept(const sn_kv_pool *pool);   /* used by none */
uint64_t sn_prefix_tokens(const sn_kv_pool *pool);     /* taken over since the start */

#endif
