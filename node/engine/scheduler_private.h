/* The scheduler's state, for the files that it is made of: scheduler.c forms and runs batches, scheduler_shares.c knows
 * what rows cost and what clients may delay each other by. Belongs to the device thread. */
#ifndef SN_NODE_ENGINE_SCHEDULER_PRIVATE_H
#define SN_NODE_ENGINE_SCHEDULER_PRIVATE_H

#include "node/engine/client_shares.h"
#include "node/engine/decoding_sessions.h"
#include "node/engine/kv_admission.h"
#include "node/engine/scheduler.h"
#include "node/engine/training.h"

enum {
    SN_BATCH_KINDS = 8,   /* kinds of batches whose last use is remembered */
    SN_ROWS_MULTIPLE = 8, /* rows of prompts beside decode rows come in multiples of this */
};

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

int64_t sn_scheduler_base_us(const sn_scheduler *s);      /* time of a pass of one row */
int64_t sn_scheduler_delay_us_max(const sn_scheduler *s); /* what rows of one client may add to a pass */
/* Expected time of the decode rows, or else of the rows of prompts, that the client has in the batch. */
double sn_scheduler_client_us(const sn_scheduler *s, uint64_t client, bool decodes);
bool sn_scheduler_exceeds_share(const sn_scheduler *s, const sn_job *job); /* the decode step waits for a later batch */
int sn_scheduler_prompt_rows_max(const sn_scheduler *s, const sn_job *job); /* that the prompt may add to the batch */
/* Until when no pass begins, so that a client that was delayed for long finds the device free; 0: now. */
int64_t sn_scheduler_delayed_client_wait(sn_scheduler *s, int64_t now_us);

void sn_scheduler_client_comes(sn_scheduler *s, const sn_job *job); /* with a step */
/* After the pass of the batch, before its rows count as done: what it took is learned, and divided among clients. */
void sn_scheduler_learn_costs(sn_scheduler *s);
void sn_scheduler_clients_account_pass(sn_scheduler *s, int64_t begun_us, int64_t now_us);
/* After other work: notes the clients that wait; then, when the costs of others are noted, divides the time since then.
 */
void sn_scheduler_clients_wait(sn_scheduler *s, int64_t now_us);
void sn_scheduler_clients_account(sn_scheduler *s, int64_t begun_us, int64_t alone_us);

#endif
