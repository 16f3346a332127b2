/* The scheduler's state, for scheduler.c and a test that looks at what clients have used. Belongs to the device thread.
 */
#ifndef SN_NODE_ENGINE_SCHEDULER_PRIVATE_H
#define SN_NODE_ENGINE_SCHEDULER_PRIVATE_H

#include "node/engine/client_shares.h"
#include "node/engine/kv_admission.h"
#include "node/engine/scheduler.h"
#include "node/engine/training.h"

enum {
    SN_BATCH_KINDS = 8,   /* kinds of batches whose last use is remembered */
    SN_ROWS_MULTIPLE = 8, /* rows of prompts beside decode rows come in multiples of this */
};

/* The decoding sessions: those whose decode steps ran within the last second, and whose next step is therefore
 * expected. They bound prefill rows and the batch wait. */
enum {
    SN_DECODING_SESSIONS_MAX = 64,
    SN_DECODING_WINDOW_US = 1000000
}; /* a session that decoded within this time is expected to continue */

typedef struct sn_decoding_session {
    const void *session; /* only compared */
    uint64_t client;
    int rows;
    bool arrived;     /* its next step is here */
    uint64_t batch;   /* number of the batch that its newest step was in */
    int64_t last_us;  /* when that batch was formed, */
    int64_t ended_us; /* and when it was computed; 0: it is being computed */
    int64_t gap_us;   /* from the end of a step to the arrival of the next one, the last time; negative: not known */
} sn_decoding_session;

typedef struct sn_decoding_sessions {
    sn_decoding_session list[SN_DECODING_SESSIONS_MAX]; /* the one that decoded longest ago first */
    int n;
} sn_decoding_sessions;

/* What the rows of a batch have in common: their blocks and their adapter. */
typedef struct sn_batch_kind {
    int first, end;
    sn_adapter **adapter;
} sn_batch_kind;

struct sn_scheduler {
    sn_span *span;
    sn_kv_pool *pool;
    sn_kv_admission admission;
    sn_job *jobs;          /* in order of priority, then of arrival */
    sn_job *training_jobs; /* in order of arrival */
    sn_trainer *trainer;
    uint64_t training_turn;   /* the client whose piece was run last */
    int64_t trained_us;       /* when the last piece was run */
    int64_t training_owes_us; /* time that steps get before the next piece */
    double training_unit_ns;  /* measured time of a piece by its estimated cost; 0: not known */
    uint64_t forward_passes;
    int64_t others_us;          /* until then others wait, too (sn_scheduler_note_others) */
    int span_rows;              /* rows of the newest batch, if it went over the whole span */
    int64_t pass_us;            /* that its pass took */
    int64_t begun_us, ended_us; /* the device computed last */
    sn_guard_monitor watch;
    bool waiting;   /* nothing could run in the newest round */
    bool kv_copied; /* KV pages were copied in this round: one part per round, to bound the delay */
    sn_batch_kind recent_kinds[SN_BATCH_KINDS]; /* of the newest batches, the newest first */
    sn_client_shares shares;
    sn_job *behind; /* a job whose cache must catch up before it joins a batch; NULL: none in this round */
    sn_job *lead;   /* the job whose kind the batch has */
    sn_job *chosen[SN_SPAN_ROWS];
    sn_span_sequence parts[SN_SPAN_ROWS];
    uint64_t row_ns;       /* time that a row adds to a pass; 0: not known */
    double one_row_us;     /* time of a pass of one row, rather of a fast one; 0: not known */
    double position_ns;    /* and each position that it attends to, as passes over many positions showed */
    uint64_t decode_us;    /* time of a pass of one row; 0: not known */
    int64_t batch_wait_us; /* limit of the batch wait */
    sn_decoding_sessions decoding;
    uint64_t batch_number;  /* of the batch being formed */
    uint64_t prefill_turn;  /* the client whose prefill rows were added last */
    uint64_t catch_up_turn; /* the client whose states were brought to their position last */
    uint64_t copy_turn;     /* the client whose KV pages may be copied in this round */
    int n_chosen, n_rows;
};

static inline int sn_job_next_position(const sn_job *job) { return job->position + job->n_done; }
static inline bool sn_job_may_run(const sn_job *job) {
    return job->kind == SN_JOB_STEP && job->started_us && !job->finished_us;
}
/* Decode steps, and the end of a prompt. */
static inline bool sn_job_counts_as_decode(const sn_job *job) {
    return job->n_tokens - job->n_done <= SN_DECODE_ROWS_MAX;
}

#endif
