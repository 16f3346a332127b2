/* Where pages rest of sessions that have no step for a while: host memory or a file. They are the device's own bytes, so a
 * past that comes back is the one that went, bit by bit; they come back through the guard, and out of a file only when
 * their hash is what it was. A past moves page by page, as many as the caller says, so that others need not wait for
 * all of it; while any of it is away it takes no step. Belongs to the devices' thread. */
#ifndef SN_KVCACHE_IDLE_H
#define SN_KVCACHE_IDLE_H

#include "kvcache/kvcache.h"

/* From now on the pool's pasts may be set aside, `budget` bytes in all; those without a step for after_us should be (0: none
 * just for that). dir: the folder of the file, which has no name
 * there and goes with the process; NULL: host memory. SN_REFUSED when nothing can be written there, or not one page fits.
 * The pool owns it. */
sn_status sn_idle_open(sn_kv_pool *pool, const char *dir, size_t budget, int64_t after_us, sn_err *err) SN_MUST_USE;
bool sn_idle_there(const sn_kv_pool *pool);
int64_t sn_idle_after_us(const sn_kv_pool *pool);
size_t sn_idle_bytes(const sn_kv_pool *pool); /* that rest there now */

/* Sets up to *pages aside, and lowers it by as many. Pages that other pasts use stay where they are: that would make no
 * room. SN_RETRY when the budget is spent or the disk is full: what could not be moved stays in place. */
sn_status sn_idle_set_aside(sn_kv *kv, size_t *pages, sn_err *err) SN_MUST_USE;
size_t sn_idle_movable(const sn_kv *kv); /* pages that could be set aside */

/* Brings up to *pages back, and lowers it by as many. SN_OK: all are there. SN_RETRY: some are still away, for *pages or
 * the pool's room ran out. SN_REBUILD, now and for ever: what came back is not what went, and the past is lost. */
sn_status sn_idle_bring_back(sn_kv *kv, size_t *pages, sn_err *err) SN_MUST_USE;
size_t sn_idle_away(const sn_kv *kv); /* pages */

#endif
