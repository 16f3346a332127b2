/* A job: one piece of work that the network thread hands to the device thread, and gets back finished.
 *
 * sn_job has a header that all kinds share and a union with one member per kind (`kind` names it). It has one owner at
 * a time: the network thread creates and fills it, the engine's queues pass it on, the scheduler owns it until it is
 * finished, and the network thread frees it. Only the owner touches it; the exceptions are `cancelled`, which the
 * network thread sets meanwhile, and kv_read.migration, which the device thread does not look at. */
#ifndef SN_NODE_ENGINE_JOB_H
#define SN_NODE_ENGINE_JOB_H

#include "blocks/adapter.h"
#include "kvcache/prefix_cache.h"
#include "node/engine/shared_buffer.h"

#include <stdatomic.h>

typedef enum sn_job_kind {
    SN_JOB_STEP,     /* run tokens through the session's blocks */
    SN_JOB_ATTACH,   /* make known pages of the prefix cache the session's; n_done: positions, 0: as it was before */
    SN_JOB_CLOSE,    /* free the session's KV cache; needs nothing but the header */
    SN_JOB_KV_READ,  /* copy n_tokens of the KV cache from `position` on, or a piece of a snapshot, to `output`
                        (kv_transfer.h has the layout) */
    SN_JOB_KV_WRITE, /* rewind to `position`, then append n_tokens of such a tensor or add the piece, if it has the
                        expected hash */
    SN_JOB_EXPERTS,  /* compute experts of block `first` for another node; belongs to no session (expert_rounds.h) */
    SN_JOB_TRAIN,    /* load or unload an adapter, or a batch of training; belongs to no session (training.h) */
} sn_job_kind;

typedef struct sn_step_job {
    sn_adapter **adapter;           /* applied to the blocks; only the device thread looks there; NULL: none */
    sn_tensor input;                /* float32 (n_tokens, n_embd), in the memory of the request, or in input_buffer */
    sn_shared_buffer *input_buffer; /* the input decoded from another wire dtype; NULL: it came as float32 */
    bool is_long;                   /* sn_is_long of the session */
    bool cacheable; /* the timeline was computed here from the first row on: the prefix cache may keep its pages */
    sn_prefix_cache_scope prefix_scope; /* sessions that may share these pages */
    sn_page_timeline *pages;            /* owned, [n_pages]: those that the step completes, in order */
    int n_pages;
} sn_step_job;

typedef struct sn_attach_job {
    sn_prefix_cache_scope prefix_scope;
    sn_prefix_cache_point *points; /* owned, (n_points), from later to earlier positions */
    size_t n_points;
    sn_hash begin;     /* the session's timeline hash at position 0 */
    sn_hash *timeline; /* result, owned: the hashes at positions 0 to n_done; NULL: none */
} sn_attach_job;

/* A piece of the snapshot at a position: floats [offset, offset + n) of those of the job's blocks. */
typedef struct sn_state_piece {
    int position;
    size_t offset, n; /* n = 0: the job moves no piece */
    size_t held;      /* result of KV_WRITE: floats that are here now, of this snapshot; 0: begin again */
} sn_state_piece;

typedef struct sn_kv_read_job {
    /* Asked for and result. Where the position has no snapshot (any more), a piece of the newest one is read, from 0
     * on, if it lies behind newer_than; position 0 in the result: there is none. */
    sn_state_piece piece;
    int newer_than;
    sn_hash hash;            /* result: of the bytes in `output` */
    void *migration;         /* the KV migration that the read is for; NULL: it is for */
    uint64_t requester;      /* this peer (0: none any more), */
    uint64_t correlation_id; /* which asked for it by this number */
} sn_kv_read_job;

typedef struct sn_kv_write_job {
    sn_tensor input; /* float32, in the memory of the request */
    sn_hash hash;    /* that its bytes are expected to have */
    sn_state_piece piece;
} sn_kv_write_job;

typedef struct sn_job {
    sn_job_kind kind;
    void *session;          /* the network thread's; the device thread only returns it. NULL: of EXPERTS, TRAIN */
    sn_kv_cache **kv;       /* the session's KV cache: made, used and freed by the device thread alone */
    uint64_t client;        /* identifies the session's owner: clients share batches and KV pages. Not of CLOSE */
    int first, end;         /* blocks */
    int position, n_tokens; /* STEP, KV_READ, KV_WRITE: the positions [position, position + n_tokens) */
    int priority;           /* of the client: higher ones are served first (node/protocol/quota.h) */
    int64_t arrived_us, deadline_us; /* deadline: of the wait for KV pages */
    atomic_bool cancelled;           /* set by the network thread: the job is returned soon, without its work done */
    union {
        sn_step_job step;
        sn_attach_job attach;
        sn_kv_read_job kv_read;
        sn_kv_write_job kv_write;
        struct sn_training_task *training; /* owned */
        struct sn_experts_task *experts;   /* owned */
    };

    /* Results. */
    sn_shared_buffer *output; /* float32: STEP (n_tokens, n_embd); EXPERTS (pairs, n_embd); KV_READ and TRAIN as their
                               * headers say; or NULL */
    int n_done;               /* rows that were computed; of TRAIN: sequences */
    bool kv_waited;           /* KV pages were not available at once */
    int64_t started_us, finished_us;
    sn_status status;
    sn_err err;

    /* The scheduler's. */
    struct sn_job *next; /* in its list */
    uint64_t last_batch; /* the batch for which it considered the job last */
} sn_job;

void sn_job_free(sn_job **job); /* accepts NULL; releases its buffers */

#endif
