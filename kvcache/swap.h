/* Swap: moves the KV pages of idle sessions out of the pool to host memory or to a file, and back.
 *
 * A swapped page is a copy of the device's own bytes, so a cache that is swapped in equals the one that was swapped out
 * bit by bit. Pages come back through the device guard (device/guard.h). In a file they are encrypted (AES-256-GCM,
 * with a key that lies in this process's memory only), and what was changed there does not come back. A cache moves
 * page by page, at most as many per call as the caller says, so that steps of other sessions run in between. While any
 * page is swapped out the cache takes no step (sn_kv_cache_reserve answers SN_RETRY).
 *
 * Used by the devices' thread, as the pool. */
#ifndef SN_KVCACHE_SWAP_H
#define SN_KVCACHE_SWAP_H

#include "kvcache/kvcache.h"

/* From now on caches of the pool may be swapped out, `budget` bytes in all. after_us: the idle time after which the
 * scheduler swaps a session out (0: idleness alone is no reason). dir: the folder of the swap file, which has no name
 * there and vanishes with the process; NULL: host memory. SN_REFUSED when the folder cannot be written to, or not one
 * page fits the budget. The pool owns the swap. */
sn_status sn_swap_enable(sn_kv_pool *pool, const char *dir, size_t budget, int64_t after_us, sn_err *err) SN_MUST_USE;
bool sn_swap_enabled(const sn_kv_pool *pool);
int64_t sn_swap_after_us(const sn_kv_pool *pool);
size_t sn_swap_bytes(const sn_kv_pool *pool); /* swapped out now */

/* What a pool holds. */
typedef struct sn_kv_room {
    size_t bytes_max;      /* of its pages */
    size_t tokens_max;     /* of a timeline: a session that takes a step lies in the pool completely */
    size_t swap_bytes_max; /* of idle sessions besides; 0: they stay in the pool */
} sn_kv_room;
sn_kv_room sn_kv_room_of(const sn_kv_pool *pool);

/* Swaps out up to *pages pages and lowers *pages by as many. Pages that other caches use, too, stay in the pool: moving
 * them frees nothing. SN_RETRY when the budget is spent or the disk is full; a page that could not be moved stays in
 * the pool. */
sn_status sn_swap_out(sn_kv_cache *kv, size_t *pages, sn_err *err) SN_MUST_USE;
size_t sn_swap_movable_pages(const sn_kv_cache *kv); /* pages that sn_swap_out would move, given the space */

/* Swaps in up to *pages pages and lowers *pages by as many. SN_OK: no page is swapped out any more. SN_RETRY: some
 * still are, because *pages or the pool's pages ran out. SN_REBUILD, for this and all later calls: the contents came
 * back damaged, and the cache is invalid. */
sn_status sn_swap_in(sn_kv_cache *kv, size_t *pages, sn_err *err) SN_MUST_USE;
size_t sn_swap_swapped_pages(const sn_kv_cache *kv); /* pages that are swapped out */

#endif
