/* The past keys and values of sessions, in pages on a device.
 *
 * A pool is sized once, in bytes, for one span; sessions take pages from it as they grow and give them back when they
 * rewind or end, so nothing is set aside for a session's longest case. A page holds SN_KV_PAGE_TOKENS positions of all
 * blocks of the span; which position lies in which page is absolute, so the arithmetic of attention does not depend on how
 * a session grew. Where the span lies on several devices, each holds its blocks' part of every page. Pasts that begin alike
 * may share pages (prefix.h); one that is to be written to is copied first. One that rests may be set aside (idle.h). Pool and caches belong to the devices' thread. */
#ifndef SN_KVCACHE_KVCACHE_H
#define SN_KVCACHE_KVCACHE_H

#include "device/device.h"

enum { SN_KV_PAGE_TOKENS = 32 };

typedef struct sn_kv_pool sn_kv_pool;
typedef struct sn_kv sn_kv; /* the past of one session */
typedef struct sn_prefix sn_prefix;
typedef struct sn_idle sn_idle;

/* Consecutive blocks that keep their past on one device. */
typedef struct sn_kv_part {
    sn_device *device;
    int n_blocks;
    sn_kv_dtype dtype; /* the same for all parts of a pool */
} sn_kv_part;
enum { SN_KV_PARTS_MAX = 64 };

/* `budget` bytes in all for the parts' blocks; SN_REFUSED when not even one page fits, or a device keeps no such type. The devices must outlive it. */
sn_status sn_kv_pool_new(const sn_kv_part *parts, int n_parts, int n_kv_heads, int head_dim, size_t budget,
                         sn_kv_pool **out, sn_err *err) SN_MUST_USE;
void sn_kv_pool_free(sn_kv_pool **pool); /* NULL-safe; all its caches must be freed before */

const sn_kv_shape *sn_kv_pool_shape(const sn_kv_pool *pool, int part);
size_t sn_kv_pool_bytes(const sn_kv_pool *pool);      /* the budget, in whole pages */
size_t sn_kv_pool_bytes_used(const sn_kv_pool *pool); /* in pages that sessions hold, a shared one counted once */
size_t sn_kv_pool_tokens(const sn_kv_pool *pool);     /* positions that fit in all */

sn_status sn_kv_new(sn_kv_pool *pool, sn_kv **out, sn_err *err) SN_MUST_USE;
void sn_kv_free(sn_kv **kv); /* NULL-safe; gives its pages back */

const sn_kv_shape *sn_kv_shape_of(const sn_kv *kv, int part);
int sn_kv_length(const sn_kv *kv); /* positions stored */
/* Gives its pages back; from now on it is of no use, and sn_idle_bring_back says so. */
void sn_kv_lose(sn_kv *kv);

/* All pasts of the pool, the one that began first first: sn_kv_next(pool, NULL) is that one; NULL behind the last. */
sn_kv *sn_kv_next(const sn_kv_pool *pool, const sn_kv *kv);
/* What whoever schedules the pasts notes of them. */
typedef struct sn_kv_note {
    uint64_t number; /* grows from past to past; not to be changed */
    bool busy;       /* has a step, or waits for one */
    int64_t used_us; /* when it was busy last */
} sn_kv_note;
sn_kv_note *sn_kv_note_of(sn_kv *kv);
/* Pages that it would have to take for all of it to be in the pool, with n more positions; and how many of these are
 * missing now. */
size_t sn_kv_wanted(const sn_kv *kv, int n);
size_t sn_kv_missing(const sn_kv *kv, int n);

/* Makes room for n more positions, and the page at the end the past's own if others share it; all or nothing. SN_RETRY when the pool has no page free now (others may give some
 * back), SN_REFUSED when the pool could never hold so many. */
sn_status sn_kv_reserve(sn_kv *kv, int n, sn_err *err) SN_MUST_USE;
/* The view that a part's device writes and reads: n_rows from the present end, reserved before. */
sn_sequence sn_kv_sequence(const sn_kv *kv, int part, int first_row, int n_rows);
/* The n positions behind the end have been written (kv_store): they now belong to the past. */
void sn_kv_append(sn_kv *kv, int n);
/* Forgets every position from `length` on, and gives back the pages that only they used. */
void sn_kv_rewind(sn_kv *kv, int length);

/* Keys and values of positions [position, position + n) of a part's block, host, (n, n_kv_heads, head_dim) each. */
sn_status sn_kv_export(sn_kv *kv, int part, int block, int position, int n, float *k, float *v, sn_err *err) SN_MUST_USE;

/* Writes keys and values to the n positions behind the end, reserved before; they count once sn_kv_append is called. */
sn_status sn_kv_import(sn_kv *kv, int part, int block, int n, const float *k, const float *v, sn_err *err) SN_MUST_USE;

#endif
