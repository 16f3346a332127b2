/* What requests take of the server while they are in work: memory, of which each owner (sn_access_owner) has a half at
 * most, and processors, of which as many prepare requests (templates, tokens, grammars) as there are. Owners get them
 * in turn, as they get sessions (queue.h): one with many requests delays another's by one.
 *
 * Central type: sn_load. Any thread may call these functions. */
#ifndef SN_GATEWAY_HTTP_LOAD_H
#define SN_GATEWAY_HTTP_LOAD_H

#include "base/mem.h"

#include <pthread.h>

enum {
    SN_LOAD_BYTES_MAX = 512 << 20,
    SN_LOAD_SHARE_MAX = SN_LOAD_BYTES_MAX / 2,
    SN_LOAD_SMALL = 1 << 20, /* so much of each request is not counted: large ones keep no small one out */
    SN_LOAD_OWNERS_MAX = SN_LOAD_BYTES_MAX / SN_LOAD_SMALL + 1 /* no more have some at once, with one that asks */
};

typedef struct sn_load_waiter sn_load_waiter;

typedef struct sn_load {
    pthread_mutex_t lock;
    size_t bytes, preparing, preparing_max, waiting;
    sn_load_waiter *first; /* the (waiting) that want a processor, by turns */
    uint64_t turn;         /* the latest one that was served */
    int64_t slice_us;      /* for which a preparation of many parts keeps its processor though others wait */
    struct {
        uint64_t owner;
        size_t bytes;
    } owners[SN_LOAD_OWNERS_MAX]; /* (n_owners) those that have some */
    size_t n_owners;
} sn_load;

void sn_load_init(sn_load *load);
void sn_load_fini(sn_load *load);

/* What one part of a request (its body, its answer) takes; zeroed: nothing. */
typedef struct sn_taken {
    uint64_t owner;
    size_t counted;
} sn_taken;
/* The part takes `bytes` now, more or less than before. False: the owner or all have too much, and it takes what it
 * did. */
bool sn_load_take(sn_load *load, sn_taken *taken, size_t bytes) SN_MUST_USE;
void sn_load_give_back(sn_load *load, sn_taken *taken);
size_t sn_load_get_bytes(sn_load *load); /* of all, as counted */

/* Waits for a processor. False: there was none in time, or has_left(ctx), which is asked five times a second, says that
 * none is wanted any more. */
bool sn_load_begin(sn_load *load, uint64_t owner, int64_t wait_ms, bool (*has_left)(const void *ctx),
                   const void *ctx) SN_MUST_USE;
void sn_load_end(sn_load *load);
/* Whether a preparation that has its processor since then gives it away in between: a request of another owner waits,
 * and it had the processor for a while. Else many small parts would each wait for all others' whole requests. */
bool sn_load_is_wanted(sn_load *load, uint64_t owner, int64_t since_us);

#endif
