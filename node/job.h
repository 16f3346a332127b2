/* A job: one piece of work that the network thread hands to the device's thread, and gets back done. It has one owner at a
 * time; whoever holds it may touch it. */
#ifndef SN_NODE_JOB_H
#define SN_NODE_JOB_H

#include "blocks/tuning.h"
#include "kvcache/prefix.h"
#include "node/shared.h"

#include <stdatomic.h>

/* Pages of the past that a step may end within or at. */
enum { SN_JOB_PAGES_MAX = SN_SPAN_ROWS_MAX / SN_KV_PAGE_TOKENS + 1 };

typedef enum sn_job_kind {
    SN_JOB_STEP,  /* run tokens through the session's blocks */
    SN_JOB_CLOSE, /* free the session's past */
    SN_JOB_READ,  /* copy n_tokens of the past from `position` on to output, as a KV_PUT's tensor, and hash it */
    SN_JOB_WRITE, /* rewind to position, then append n_tokens of past from such a tensor, if it has the hash */
    SN_JOB_TRAIN, /* of no session: node/training.h says what */
} sn_job_kind;

typedef struct sn_job {
    sn_job_kind kind;
    void *session;  /* the network thread's; the device's thread only hands it back */
    sn_kv **kv;     /* the session's past: the device's thread makes, uses and frees it, nobody else looks */
    int first, end; /* blocks */
    uint64_t client; /* whose it is: clients have turns */

    /* of a step, or of a past that moves */
    int position, n_tokens;  /* rewind to position, then append n_tokens */
    sn_hash hash;            /* of a past's tensor */
    void *purpose;           /* what a read is for: the network thread's; or, if NULL, */
    uint64_t asker, request; /* the peer that asked for it; 0: nobody any more */
    sn_tuning **tuning;      /* what is added to the weights: the device's thread's, it alone looks there; NULL: nothing */
    sn_tensor input;         /* float32 (n_tokens, n_embd), in the memory of the message that asked, or in */
    sn_shared *rows;         /* here, when they came as another type; else NULL */
    sn_shared *output;       /* float32 (n_tokens, n_embd) */
    bool shares;             /* its timeline was made here, row by row: its pages may be shared */
    sn_prefix_scope scope;   /* who may share them */
    sn_hash ends[SN_JOB_PAGES_MAX]; /* timeline at the end of the page of the first row, of the next one, ...: full ones */
    int priority; /* of its client: higher ones come first (node/quota.h) */
    int64_t arrived_us, deadline_us; /* deadline: for the wait for room in the cache */
    atomic_bool cancelled;   /* set by the network thread: give it back undone, soon */

    /* results */
    bool waited; /* it found no room at first */
    int n_done;  /* rows that have been through */
    int64_t started_us, finished_us;
    sn_status status;
    sn_err err;

    struct sn_training *training; /* of SN_JOB_TRAIN, owned */

    struct sn_job *next; /* in the scheduler's list */
    uint64_t round;      /* of the pass in which the scheduler looked at it last */
} sn_job;

void sn_job_free(sn_job **job); /* NULL-safe; lets go of its rows and output */

#endif
