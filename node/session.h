/* A session: one timeline of tokens at this node, owned by one client. Protocol state only; the past keys and values
 * belong to the device's thread. Used by the network thread. */
#ifndef SN_NODE_SESSION_H
#define SN_NODE_SESSION_H

#include "net/transport.h"
#include "node/job.h"

typedef struct sn_session {
    uint8_t id[SN_SESSION_ID_SIZE];
    uint8_t owner[SN_KEY_SIZE];       /* CURVE key of the client that opened it */
    uint8_t predecessor[SN_KEY_SIZE]; /* CURVE key of the node that may push into it; zero: none */
    uint8_t source[SN_KEY_SIZE];      /* CURVE key of the node that may put a past here until the owner goes on; zero: none */
    bool resumed;                     /* the owner goes on here */
    bool imported;                    /* some of its past was put here, not computed */
    sn_peer owner_peer;               /* where the owner listens for answers: the connection it used last */
    int first, end;                   /* blocks */
    struct sn_tuned *tuned;           /* what is added to their weights, of which it is a user (core_train.c); NULL: nothing */
    int max_tokens, length;
    sn_hash *timeline; /* [i], i <= length: commits to the weights and the first i inputs (net/timeline.h) */
    int timeline_room;
    uint64_t last_step; /* the newest step that was done; its answer is kept below, for a repeated question */
    sn_shared *last_output;
    sn_trace last_trace;
    int last_position, last_tokens;
    sn_hash last_before, last_input; /* timeline that it built on, and hash of its tensor: for receipts */
    sn_dtype last_input_dtype;
    bool last_noted; /* last_input is known: a receipt was asked for */
    uint8_t next[SN_SESSION_ID_SIZE]; /* the session at the node that the last answer was pushed to; zero: none */
    uint8_t next_key[SN_KEY_SIZE];    /* that node's CURVE key: only it may refuse the push */
    sn_job *job;       /* a step, a part of a past that comes in, or the closing; NULL: none. One at a time */
    sn_msg *asked;     /* the STEP or KV_PUT that the job answers: its tensor is the job's input */
    struct {
        sn_msg *msg;
        int64_t arrived_us;
    } ahead[SN_STEPS_AHEAD_MAX]; /* STEPs behind that one, in order; they hold SN_SPAN_ROWS_MAX tokens at most */
    size_t n_ahead;
    sn_peer asker;     /* whom a KV_PUT came from */
    size_t reads;      /* jobs in the engine that read the past, beside that one */
    struct sn_move *moves; /* where the past is being copied to (core_move.c) */
    int64_t used_us;   /* last sign of the owner */
    bool closing;
    char flow[SN_FLOW_MAX + 1]; /* what its client calls the work; a plain word, for log lines */
    sn_kv *kv; /* the device's thread's: not to be touched here while the engine lives */
} sn_session;

typedef struct sn_sessions sn_sessions; /* the table of a node's sessions, of a fixed size */

sn_status sn_sessions_new(size_t max, sn_sessions **out, sn_err *err) SN_MUST_USE;
/* NULL-safe. The engine must be gone and the pool still there: frees what is left of the sessions' past. */
void sn_sessions_free(sn_sessions **sessions);

/* `begin`: its timeline's first hash. SN_RETRY when the table is full, naming the limit. */
sn_status sn_sessions_add(sn_sessions *sessions, const uint8_t id[SN_SESSION_ID_SIZE], const sn_hash *begin,
                          sn_session **out, sn_err *err) SN_MUST_USE;
void sn_sessions_remove(sn_sessions *sessions, sn_session *session);
sn_session *sn_sessions_find(sn_sessions *sessions, const uint8_t id[SN_SESSION_ID_SIZE]); /* or NULL */
size_t sn_sessions_count(const sn_sessions *sessions);
sn_session *sn_sessions_at(sn_sessions *sessions, size_t i); /* i < count, any order; NULL beyond */

/* Extends session->timeline by n rows (n, n_embd), which begin at `position` (<= length), without changing length. Each hash
 * covers the one before and one row, so it does not depend on how rows came in steps. */
sn_status sn_session_hash_rows(sn_session *session, int position, int n, size_t n_embd, const float *rows,
                               sn_hasher *hasher, sn_err *err) SN_MUST_USE;
/* The hashes behind n positions from `position` (<= length) on, as the sender of a past names them, without changing length.
 * `origin`: where its timeline begins; if not where this one does, it is grafted (net/timeline.h). */
sn_status sn_session_take_marks(sn_session *session, int position, const sn_mark *marks, size_t n,
                                const uint8_t origin[SN_KEY_SIZE], sn_err *err) SN_MUST_USE;

#endif
