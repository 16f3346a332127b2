/* KV caches: the keys and values of sessions, in pages on the devices of a span.
 *
 * Two types. sn_kv_pool holds all pages of one span and is sized once, in bytes. sn_kv_cache is the KV cache of one
 * session: it takes pages from the pool as it grows and returns them when it is rewound or freed, so that no memory is
 * reserved for a session's longest case. A page holds SN_KV_PAGE_TOKENS positions of all blocks of the span. Position p
 * always lies in page p / SN_KV_PAGE_TOKENS of its cache, so the arithmetic of attention does not depend on how the
 * session grew. Where the span lies on several devices, each device holds its blocks' part of every page.
 *
 * Two optional services work on a pool: prefix_cache.h lets caches that begin alike share pages (a shared page is
 * copied before it is written), swap.h moves the pages of idle sessions to host memory or a file.
 *
 * Pool and caches belong to the devices' thread: no other thread uses them while it runs. The owner of the
 * pool frees all caches first, then the pool, then closes the devices. Status codes: SN_RETRY (the pool is full now, or
 * pages are swapped out), SN_REFUSED (a length, position or block that can never be right), SN_REBUILD (the contents
 * are lost, sn_kv_cache_invalidate), SN_STOP (memory or a device failed). */
#ifndef SN_KVCACHE_KVCACHE_H
#define SN_KVCACHE_KVCACHE_H

#include "device/device.h"

enum { SN_KV_PAGE_TOKENS = 32 };

typedef struct sn_kv_pool sn_kv_pool;
typedef struct sn_kv_cache sn_kv_cache;

/* Consecutive blocks of the span whose KV pages lie on one device. Functions below name a part by its index. */
typedef struct sn_kv_part {
    sn_device *device; /* borrowed */
    sn_kv_shape shape; /* dtype: the same for all parts of a pool; page_tokens: SN_KV_PAGE_TOKENS */
} sn_kv_part;
enum { SN_KV_PARTS_MAX = 64 };

/* ---- the pool ---- */

/* A pool of `budget` bytes for the blocks of all parts. SN_REFUSED when not even one page fits or a device cannot store
 * the dtype. */
sn_status sn_kv_pool_new(const sn_kv_part *parts, int n_parts, size_t budget, sn_kv_pool **out,
                         sn_err *err) SN_MUST_USE;
/* What a span with recurrent blocks keeps besides keys and values. */
typedef struct sn_kv_recurrence {
    sn_delta_shape delta; /* n_blocks: the recurrent blocks of the part, whose n_blocks are those with attention */
    int row_width;        /* floats of a row of hidden states that enters the span */
} sn_kv_recurrence;
/* Floats of a state of all n_blocks recurrent blocks. */
size_t sn_kv_state_floats(const sn_delta_shape *delta);
/* A pool for a span with recurrent blocks, all on one device that computes them. A quarter of the
 * budget, or two states if that is more, holds states. SN_REFUSED when two states and a page do not fit. */
sn_status sn_kv_pool_new_recurrent(const sn_kv_part *part, const sn_kv_recurrence *recurrence, size_t budget,
                                   sn_kv_pool **out, sn_err *err) SN_MUST_USE;
/* A budget with which such a pool holds so many sessions of so many positions each, with snapshots. */
size_t sn_kv_pool_recurrent_budget(const sn_kv_part *part, const sn_kv_recurrence *recurrence, size_t sessions,
                                   size_t positions);
void sn_kv_pool_free(sn_kv_pool **pool); /* accepts NULL; all caches of the pool must be freed before */

const sn_kv_shape *sn_kv_pool_shape(const sn_kv_pool *pool, int part);
size_t sn_kv_pool_bytes(const sn_kv_pool *pool);      /* of all pages: the budget, rounded down to whole pages */
size_t sn_kv_pool_bytes_used(const sn_kv_pool *pool); /* of the pages that caches use, a shared page counted once */
size_t sn_kv_pool_tokens(const sn_kv_pool *pool);     /* positions of all pages together */

/* ---- one session's cache ---- */

/* Empty, without pages. SN_RETRY: the pool's recurrent states are those of other caches. */
sn_status sn_kv_cache_new(sn_kv_pool *pool, sn_kv_cache **out, sn_err *err) SN_MUST_USE;
void sn_kv_cache_free(sn_kv_cache **kv); /* accepts NULL; returns the pages to the pool */

const sn_kv_shape *sn_kv_cache_shape(const sn_kv_cache *kv, int part);
int sn_kv_cache_length(const sn_kv_cache *kv); /* positions stored */
/* Returns all pages and states to the pool and marks the contents as lost: from then on reserve and sn_swap_in answer
 * SN_REBUILD. */
void sn_kv_cache_invalidate(sn_kv_cache *kv);

/* Iterates over the pool's caches in the order in which they were made: NULL gives the first one, and the last one
 * gives NULL. */
sn_kv_cache *sn_kv_cache_next(const sn_kv_pool *pool, const sn_kv_cache *kv);
/* Notes of the scheduler about a cache; kvcache/ sets sequence_number and does not read the others. */
typedef struct sn_kv_cache_usage {
    uint64_t sequence_number; /* grows from cache to cache; read-only */
    uint64_t client;          /* whose session it is */
    bool busy;                /* a step of the session runs or waits, or a read waits for pages */
    int64_t last_used_us;     /* when the session was busy last */
    bool is_long;             /* sn_is_long of the session: a forward pass reads it */
} sn_kv_cache_usage;
sn_kv_cache_usage *sn_kv_cache_usage_of(sn_kv_cache *kv);
/* Pages that the cache would have to take so that it lies in the pool completely and has capacity for n more positions;
 * and how many more of them are needed than the pool has available now. */
size_t sn_kv_cache_pages_needed(const sn_kv_cache *kv, int n);
size_t sn_kv_cache_pages_missing(const sn_kv_cache *kv, int n);
/* What the cache has of the pool, in parts of a page: of a page that n caches use, 1/n. */
enum { SN_KV_PAGE_PARTS = 5040 };
size_t sn_kv_cache_page_parts(const sn_kv_cache *kv);

/* ---- writing: a forward pass reserves, writes through sn_kv_cache_sequence, then appends ---- */

/* Takes the pages for n more positions, and copies the last page if other caches or the prefix cache hold it; all or
 * nothing. SN_RETRY when the pool has too few pages available now, SN_REFUSED when the pool could never hold so many
 * positions. */
sn_status sn_kv_cache_reserve(sn_kv_cache *kv, int n, sn_err *err) SN_MUST_USE;
/* What the device of `part` needs to write n_rows at the present end (reserved before) and to read all positions up to
 * them. first_row: of these rows within the batch. Valid until the cache is changed. */
sn_sequence sn_kv_cache_sequence(sn_kv_cache *kv, int part, int first_row, int n_rows);
/* The n positions after the end have been written (kv_store of the device): the length grows by n. */
void sn_kv_cache_append(sn_kv_cache *kv, int n);
/* Sets the length to a smaller or equal one and returns the pages that only later positions used. */
void sn_kv_cache_rewind(sn_kv_cache *kv, int length);

/* ---- recurrent states ----
 *
 * A cache has two states: at its end, and where the last forward pass began, so that a step whose drafts were rejected
 * is undone. Its pages hold the rows that entered the span, and some of them a snapshot, the state at the page's
 * end: the newest SN_KV_SNAPSHOT_TOKENS positions apart, as many as the pool has room for. After a rewind to a position
 * without a state the forward pass goes back to the newest state before it and computes the rows from there again. */

enum { SN_KV_SNAPSHOT_TOKENS = 64 }; /* a multiple of SN_KV_PAGE_TOKENS */

bool sn_kv_cache_is_recurrent(const sn_kv_cache *kv);
size_t sn_kv_pool_sessions_max(const sn_kv_pool *pool); /* caches that have states at once */
bool sn_kv_cache_has_states(const sn_kv_cache *kv);     /* false, too: they were given up (sn_kv_cache_invalidate) */
sn_device *sn_kv_cache_states_device(const sn_kv_cache *kv); /* on which its states lie; NULL: it has none */
/* Where the newest state up to the cache's end is: the end itself, unless it was rewound; of other caches always. */
int sn_kv_cache_state_position(const sn_kv_cache *kv);
/* Sets the length to sn_kv_cache_state_position and keeps all pages: the forward pass computes rows from there on
 * again, and appends them. Returns the old length, to which step_forward sets it again, whether or not the state is
 * there. */
int sn_kv_cache_step_back(sn_kv_cache *kv);
void sn_kv_cache_step_forward(sn_kv_cache *kv, int length);
/* Before a forward pass: where the cache's end is that of a snapshot, copies it (on the device) to one of the two
 * states, since a snapshot may be given up at any time. */
sn_status sn_kv_cache_restore_state(sn_kv_cache *kv, sn_err *err) SN_MUST_USE;
/* The row that entered at this position (device, row_width floats), and how many follow it in its page, its own
 * included: to be written before the forward pass, and read after a step back. */
float *sn_kv_cache_rows(const sn_kv_cache *kv, int position, int *n);
/* Copies n rows to the positions after the end (reserved before), from the device (keep) or the host (write); and out
 * of the cache to the host. */
sn_status sn_kv_cache_rows_keep(const sn_kv_cache *kv, int n, const float *rows, sn_err *err) SN_MUST_USE;
sn_status sn_kv_cache_rows_write(const sn_kv_cache *kv, int n, const float *rows, sn_err *err) SN_MUST_USE;
sn_status sn_kv_cache_rows_read(const sn_kv_cache *kv, int position, int n, float *rows, sn_err *err) SN_MUST_USE;

/* ---- copies of the contents, for migration between nodes ---- */

/* Copies positions [position, position + n) of a part's block to k and v: host, shapes as in kv_store. Index keys are
 * those of the blocks from n_blocks on (sn_kv_shape). */
sn_status sn_kv_cache_export(sn_kv_cache *kv, int part, int block, int position, int n, float *k, float *v,
                             sn_err *err) SN_MUST_USE;

/* Writes k and v (shapes as of export) to the n positions after the end, reserved before. They count once
 * sn_kv_cache_append is called. */
sn_status sn_kv_cache_import(sn_kv_cache *kv, int part, int block, int n, const float *k, const float *v,
                             sn_err *err) SN_MUST_USE;

/* The snapshot at a position (device), of all recurrent blocks of the pool; NULL: there is none. Valid until the pool
 * changes. */
const float *sn_kv_cache_snapshot(const sn_kv_cache *kv, int position);
int sn_kv_cache_newest_snapshot(const sn_kv_cache *kv); /* its position; 0: the cache has none */
/* The memory (device) for a snapshot of another node, of which the cache has so many floats; 0 begins anew, and gives
 * up the older of the two states. NULL: the cache does not reach to this position, or has other floats of it. */
float *sn_kv_cache_incoming_state(sn_kv_cache *kv, int position, size_t done);
/* n more floats were written there; whole: from now on it is the state, and the snapshot, at its position. *held: how
 * many floats came. */
sn_status sn_kv_cache_state_came(sn_kv_cache *kv, size_t n, bool whole, size_t *held, sn_err *err) SN_MUST_USE;

#endif
