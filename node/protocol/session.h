/* Sessions: one timeline of tokens at this node each, owned by one client.
 *
 * sn_session is the protocol's side of a session; its KV cache belongs to the device thread. A session is used by the
 * network thread only. It is fed by STEPs of its client or of one other node (the predecessor in a chain that pushes),
 * one after the other; sn_sessions is the table of all sessions of a node.
 *
 * The timeline hash (net/timeline.h) of each position commits to the weights and to all inputs before it. A step names
 * the hash that it continues, so a client and a node that disagree about the KV cache notice it. */
#ifndef SN_NODE_PROTOCOL_SESSION_H
#define SN_NODE_PROTOCOL_SESSION_H

#include "net/transport/transport.h"
#include "node/engine/job.h"

enum { SN_REPLY_KEPT_US = 60000000 };

/* The newest step that was done. Its reply is kept for SN_REPLY_KEPT_US, so that a repeated request can be answered
 * without computing. */
typedef struct sn_last_reply {
    uint64_t step;            /* its number; RESUME sets it, too, and has no output. 0: none yet */
    sn_shared_buffer *output; /* float32 (n_tokens, n_embd); NULL: none is kept */
    sn_trace trace;           /* this node's entry */
    int position, n_tokens;
    int64_t done_us;
    bool computed; /* by a step, not set by RESUME */
} sn_last_reply;

/* What a receipt says of the input of that step (receipt.c). */
typedef struct sn_receipt_input {
    sn_hash timeline_before, tensor; /* timeline hash that the step continued, hash of its tensor as it arrived */
    sn_dtype dtype;                  /* of that tensor */
    bool recorded;                   /* tensor is known: the step asked for a receipt */
} sn_receipt_input;

/* Another node, as a live announcement that its key has signed names it. */
typedef struct sn_outgoing_target {
    char address[SN_ADDRESS_MAX + 1]; /* empty: none */
    uint8_t curve_key[SN_KEY_SIZE];
} sn_outgoing_target;

/* Where the last reply was pushed to: the session at the next node of the route. */
typedef struct sn_push_target {
    uint8_t session[SN_SESSION_ID_SIZE]; /* zero: nothing was pushed */
    uint8_t key[SN_KEY_SIZE];            /* CURVE key of that node: only it may refuse the push */
} sn_push_target;

/* Work that was accepted and not answered. */
typedef struct sn_pending_work {
    sn_job *job;         /* in the engine: a STEP, KV_WRITE or CLOSE. One at a time; NULL: none */
    sn_msg *request_msg; /* the STEP, KV_PUT or STATE_PUT of the job: its tensor is the job's input */
    sn_peer requester;   /* sender of a KV_PUT or STATE_PUT */
    struct {
        sn_msg *msg;
        int64_t arrived_us;
    } queue[SN_PREFILL_DEPTH_MAX]; /* STEPs that follow the job's, in order; the span's rows_max tokens in all */
    size_t n_queued;
} sn_pending_work;

/* KV pages that enter and leave the session without being computed here. */
typedef struct sn_session_migration {
    uint8_t source[SN_KEY_SIZE];      /* CURVE key of the node that may put KV pages here; zero: none */
    bool imported;                    /* some KV pages were put here, not computed */
    bool resumed;                     /* the owner continues here: nothing may be put here any more */
    size_t reads;                     /* KV_READ jobs in the engine */
    size_t gets;                      /* those of them that answer a KV_GET */
    struct sn_kv_migration *outgoing; /* nodes that the KV pages are being copied to (kv_migration.c) */
} sn_session_migration;

typedef struct sn_session {
    uint8_t id[SN_SESSION_ID_SIZE];
    uint8_t owner[SN_KEY_SIZE];             /* CURVE key of the client that opened it */
    uint8_t predecessor[SN_KEY_SIZE];       /* CURVE key of the node that may push steps into it; zero: none */
    sn_outgoing_target next;                /* the node that its steps may be pushed to, fixed by OPEN or RESUME */
    sn_peer owner_peer;                     /* where the owner receives replies: the connection that it used last */
    int64_t owner_gone_us;                  /* when that connection ended; 0: it stands */
    char request_id[SN_REQUEST_ID_MAX + 1]; /* the client's name for its work, sanitized for log lines */
    int64_t opened_us, used_us;             /* when it was opened, and when the owner's last request was accepted */
    bool had_job;                           /* a job was submitted for it: it may have a KV cache */
    bool closing;

    int first, end;                         /* blocks */
    struct sn_adapter_entry *adapter_entry; /* applied to these blocks; the session is one of its users; NULL: none */
    int max_tokens, length;                 /* limit, and tokens that were done */
    sn_hash *timeline;                      /* timeline[i], i <= length: hash after the first i tokens */
    int timeline_capacity;
    sn_kv_cache *kv; /* the device thread's: not to be touched here while the engine lives */

    sn_pending_work pending;
    sn_last_reply last_reply;
    sn_receipt_input receipt;
    sn_push_target pushed;
    sn_session_migration migration;
} sn_session;

typedef struct sn_sessions sn_sessions; /* the table of a node's sessions, of a fixed size */

sn_status sn_sessions_new(size_t max, sn_sessions **out, sn_err *err) SN_MUST_USE;
/* Accepts NULL. After the engine and before the KV pool: frees the KV caches that are left. */
void sn_sessions_free(sn_sessions **sessions);

/* A new session, zeroed but for its id and the first hash of its timeline. SN_RETRY: the table is full. */
sn_status sn_sessions_add(sn_sessions *sessions, const uint8_t id[SN_SESSION_ID_SIZE], const sn_hash *begin,
                          sn_session **out, sn_err *err) SN_MUST_USE;
void sn_sessions_remove(sn_sessions *sessions, sn_session *session);
sn_session *sn_sessions_find(sn_sessions *sessions, const uint8_t id[SN_SESSION_ID_SIZE]); /* or NULL */
size_t sn_sessions_count(const sn_sessions *sessions);
sn_session *sn_sessions_at(sn_sessions *sessions, size_t i); /* i < count, in any order; NULL beyond */

/* Extends session->timeline from `position` (<= length) on by the n rows (n, n_embd) of a step's input, without
 * changing length. Each hash covers the hash before it and one row, so it does not depend on how rows were split into
 * steps. */
sn_status sn_session_hash_rows(sn_session *session, int position, int n, size_t n_embd, const float *rows,
                               sn_hasher *hasher, sn_err *err) SN_MUST_USE;
/* The session now has `length` tokens with these hashes [0, length], which it takes. */
void sn_session_take_timeline(sn_session *session, sn_hash **timeline, int length);
/* Extends session->timeline from `position` (<= length) on by the n hashes that came with KV pages, without changing
 * length. `origin` is the first hash of the sender's timeline; when it differs from this session's first hash (the
 * model is cut into other spans there), the hashes are grafted (sn_timeline_graft). */
sn_status sn_session_import_timeline(sn_session *session, int position, const sn_token_timeline *token_timelines,
                                     size_t n, const uint8_t origin[SN_KEY_SIZE], sn_err *err) SN_MUST_USE;

#endif
