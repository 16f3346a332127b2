/* How the scheduler forms batches.
 *
 * Two lists hold the jobs: `jobs` (steps, KV transfers, closing), in order of priority, then of arrival, and
 * `training_jobs`, in turn. sn_scheduler_run does, in this order:
 *   1. jobs_prepare copies one part of KV pages, attaches known prefixes, closes sessions, ends cancelled jobs, and
 *      admits steps: a step starts when its KV cache is rewound, swapped in and has pages reserved for all rows
 * (kv_admission.h). Rows in the prefix cache are attached.
 *   2. batch_choose_lead takes, among the started steps of the client whose kinds had no batch for longest, the oldest
 *      of the kind (blocks, adapter) that has not run for longest. Only steps of its kind join the batch.
 *   3. Decode steps are added, then prefill steps, client by client, up to prefill_rows_max; of each client no more
 * than others may be delayed by (client_shares.h).
 *   4. sn_kv_admission_reclaim frees pages for a waiting step; a step that loses its pages thereby ends.
 *   5. batch_run runs one forward pass; completed pages go into the prefix cache. A step whose recurrent states must be
 *      brought to its position does not join: batch_catch_up computes a piece of that, for clients in turn.
 *   6. Training jobs that are cancelled end, and a piece of the next client's is run, if it is due (training_may_run).
 * A job is finished when finished_us is set; jobs_collect_finished takes it out of its list. */
#include "node/engine/scheduler.h"

#include "base/clock.h"
#include "base/mem.h"
#include "node/engine/expert_rounds.h"
#include "node/engine/kv_transfer.h"
#include "node/engine/scheduler_private.h"

#include <stdlib.h>
#include <string.h>

enum { KV_READ_WAIT_US = 10000000, OVERTAKEN_US_MAX = 5000000, OTHERS_US = 1000000 };
enum {
    TRAINING_EVERY_US = 1000000, /* a piece is run this often although steps are expected: it never starves */
    PIECES_ALONE = 4,            /* training alone takes so many pieces at once */
    STEPS_SHARE = 2,             /* while sessions are busy, steps get this many times the time of training */
};

/* -- decoding sessions --------------------------------------------------------------------------------------------- */

static void session_drop(sn_decoding_sessions *sessions, int i) {
    memmove(&sessions->list[i], &sessions->list[i + 1], (size_t)(sessions->n - i - 1) * sizeof sessions->list[0]);
    sessions->n--;
}

/* The session ended, or does other work now. */
static void decoding_remove(sn_decoding_sessions *sessions, const void *session) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].session == session) {
            session_drop(sessions, i);
            return;
        }
}

/* Its next step is here, since arrived_us. */
static void decoding_arrived(sn_decoding_sessions *sessions, const void *session, int64_t arrived_us) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].session == session) {
            sessions->list[i].arrived = true;
            if (sessions->list[i].ended_us) sessions->list[i].gap_us = arrived_us - sessions->list[i].ended_us;
        }
}

/* The batch was computed. */
static void decoding_computed(sn_decoding_sessions *sessions, uint64_t batch, int64_t now_us) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].batch == batch) sessions->list[i].ended_us = now_us;
}

/* Whether a session is missing whose newest step was in the same batch as that of a session that is here. */
static bool decoding_pending(const sn_decoding_sessions *sessions) {
    for (int i = 0; i < sessions->n; i++)
        for (int k = 0; sessions->list[i].arrived && k < sessions->n; k++)
            if (!sessions->list[k].arrived && sessions->list[k].batch == sessions->list[i].batch) return true;
    return false;
}

/* The session's decode step is in this batch. A full list drops its oldest entry. */
static void decoding_record(sn_decoding_sessions *sessions, const void *session, uint64_t client, int rows,
                            uint64_t batch, int64_t now_us) {
    int64_t gap_us = -1;
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].session == session) gap_us = sessions->list[i].gap_us;
    decoding_remove(sessions, session);
    if (sessions->n == SN_DECODING_SESSIONS_MAX) session_drop(sessions, 0);
    sessions->list[sessions->n++] = (sn_decoding_session){
        .session = session, .client = client, .rows = rows, .batch = batch, .last_us = now_us, .gap_us = gap_us};
}

/* Decode rows of all of them. */
static int decoding_rows(sn_decoding_sessions *sessions, int64_t now_us) {
    int rows = 0;
    while (sessions->n && now_us - sessions->list[0].last_us > SN_DECODING_WINDOW_US) session_drop(sessions, 0);
    for (int i = 0; i < sessions->n; i++) rows += sessions->list[i].rows;
    return rows;
}

/* Whether a session of another client decodes. */
static bool decoding_of_others(const sn_decoding_sessions *sessions, uint64_t client) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].client != client) return true;
    return false;
}

/* -- what rows cost, and what clients delay each other by ---------------------------------------------------------- */

enum { POSITIONS_FAR = 256 }; /* at rows that attend to more, positions are most of what is learned */

/* What rows of one client may delay another one by in a pass. */
static int64_t delay_us_max(const sn_scheduler *s) {
    return s->decode_us > SN_PREFILL_DELAY_US ? (int64_t)s->decode_us : SN_PREFILL_DELAY_US;
}

/* The client comes with a step. */
static void client_comes(sn_scheduler *s, const sn_job *job) {
    (void)sn_client_shares_of(&s->shares, job->client, job->arrived_us);
    if (job->arrived_us < s->ended_us)
        sn_client_shares_came_late(&s->shares, job->client,
                                   s->ended_us - (job->arrived_us > s->begun_us ? job->arrived_us : s->begun_us));
}

/* A pass of one row. The mean of such passes counts what else the machine did meanwhile, too. */
static int64_t base_us(const sn_scheduler *s) {
    return s->one_row_us > 0 && s->one_row_us < (double)s->decode_us ? (int64_t)s->one_row_us : (int64_t)s->decode_us;
}

static double row_us(const sn_scheduler *s) {
    return s->row_ns ? (double)s->row_ns / 1000 : (double)SN_PREFILL_DELAY_US / SN_PREFILL_ROWS_CONCURRENT;
}

/* Expected time that n further rows of the job add to a pass. */
static double rows_us(const sn_scheduler *s, const sn_job *job, int n) {
    const int middle = sn_job_next_position(job) + n / 2;
    return n * (row_us(s) + s->position_ns * middle / 1000);
}

/* The same of those decode rows, or of those rows of prompts, that the client has in the batch: it may have so much of
 * both, so that its decode steps do not stop its own prompts. */
static double client_us(const sn_scheduler *s, uint64_t client, bool decodes) {
    double us = 0;
    for (int i = 0; i < s->n_chosen; i++)
        if (s->chosen[i]->client == client && sn_job_counts_as_decode(s->chosen[i]) == decodes)
            us += rows_us(s, s->chosen[i], s->parts[i].n_rows);
    return us;
}

/* How much longer the client's next step may wait for a pass in which it is not, if it is not here. */
static int64_t allowance_us(const sn_scheduler *s, uint64_t client) {
    const int64_t us = sn_client_shares_allowance(&s->shares, client);
    for (const sn_job *job = s->jobs; job; job = job->next)
        if (sn_job_may_run(job) && job->client == client) return us;
    return us - (int64_t)s->decode_us;
}

/* Time that the client may add to a pass, at most `most`: where it had more of the device than another one, no more
 * than that one may still be delayed by. */
static int64_t client_us_max(const sn_scheduler *s, uint64_t client, int64_t most) {
    const int64_t now_us = s->shares.now_us;
    bool others = decoding_of_others(&s->decoding, client);
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++) {
        const sn_client_share *other = &s->shares.list[i];
        if (!sn_client_shares_is_active(other, now_us) || !sn_client_shares_protects(&s->shares, other->client, client))
            continue;
        const int64_t us = allowance_us(s, other->client);
        others = true;
        if (us < most) most = us;
    }
    return others ? most : INT64_MAX;
}

/* Whether the decode step waits for the next batch. Where its client may add anything, it may add one step; and always
 * one that costs little, so that many clients of one session each fill batches together however long they wait. */
static bool exceeds_share(const sn_scheduler *s, const sn_job *job) {
    const int64_t most = client_us_max(s, job->client, delay_us_max(s));
    const double used = client_us(s, job->client, true), us = rows_us(s, job, job->n_tokens - job->n_done);
    return used > 0 ? used + us > (double)most : most <= 0 && us > 2 * row_us(s);
}

/* Rows of the prompt that its client may add to the batch: a multiple of 8, because the kernels compute 8 rows at once,
 * and so many where it may add anything. */
static int prompt_rows_max(const sn_scheduler *s, const sn_job *job) {
    const int64_t most = client_us_max(s, job->client, SN_PREFILL_DELAY_US);
    if (most == INT64_MAX) return SN_SPAN_ROWS_MAX;
    const double used = client_us(s, job->client, false), left = (double)most - used;
    int rows = left > 0 ? (int)(left / rows_us(s, job, SN_ROWS_MULTIPLE) * SN_ROWS_MULTIPLE) : 0;
    if (rows < SN_ROWS_MULTIPLE && most > 0 && used == 0) rows = SN_ROWS_MULTIPLE;
    return rows < SN_SPAN_ROWS_MAX ? rows / SN_ROWS_MULTIPLE * SN_ROWS_MULTIPLE : SN_SPAN_ROWS_MAX;
}

/* Whether all steps that wait are of clients that the session's is protected against; none is its own. */
static bool steps_may_wait_for(const sn_scheduler *s, const sn_decoding_session *session) {
    bool any = false;
    for (const sn_job *job = s->jobs; job; job = job->next) {
        if (job->kind != SN_JOB_STEP) continue;
        any = true;
        if (!sn_client_shares_protects(&s->shares, session->client, job->client)) return false;
    }
    return any;
}

/* Until when steps of others wait for the next step of the session: a pass that begins now would delay it by more than
 * its client is to be delayed. It is expected as long after its last one as the last time, or half a pass later. */
static int64_t session_wait(const sn_scheduler *s, const sn_decoding_session *session, int64_t now_us) {
    if (session->arrived || !session->ended_us || session->gap_us < 0) return 0;
    const int64_t expected_us = session->ended_us + session->gap_us, until_us = expected_us + (int64_t)s->decode_us / 2;
    const int64_t delay_us = (int64_t)s->decode_us - (expected_us > now_us ? expected_us - now_us : 0);
    const int64_t allowance = sn_client_shares_allowance(&s->shares, session->client);
    if (now_us >= until_us || delay_us <= (allowance > 0 ? allowance : 0)) return 0;
    return steps_may_wait_for(s, session) ? until_us : 0;
}

/* Until when no pass begins, so that a client that was delayed for long finds the device free; 0: now. */
static int64_t delayed_client_wait(sn_scheduler *s, int64_t now_us) {
    int64_t until_us = 0;
    sn_client_shares_advance(&s->shares, now_us);
    for (int i = 0; i < s->decoding.n; i++) {
        const int64_t us = session_wait(s, &s->decoding.list[i], now_us);
        if (us > until_us) until_us = us;
    }
    return until_us;
}

/* Learns what a pass of one row takes, and what positions cost from what passes take beyond what their rows explain,
 * the more the farther back these attend. */
static void learn_costs(sn_scheduler *s) {
    double positions = 0, us = (double)s->pass_us;
    if (s->span_rows == 1)
        s->one_row_us += (us - s->one_row_us) / (s->one_row_us == 0 ? 1 : us < s->one_row_us ? 4 : 64);
    for (int i = 0; i < s->n_chosen; i++) {
        const int middle = sn_job_next_position(s->chosen[i]) + s->parts[i].n_rows / 2;
        positions += (double)s->parts[i].n_rows * middle;
    }
    if (!s->span_rows || !s->decode_us || !s->row_ns || positions <= 0) return;
    const double expected_ns =
        (double)s->decode_us * 1000 + (double)s->row_ns * (s->n_rows - 1) + s->position_ns * positions;
    const double mean = positions / s->n_rows / POSITIONS_FAR, weight = mean * mean / (1 + mean * mean) / 8;
    s->position_ns += weight * (us * 1000 - expected_ns) / positions;
    if (s->position_ns < 0) s->position_ns = 0;
}

/* Notes which clients wait while the device computes. */
static void clients_wait(sn_scheduler *s, int64_t now_us) {
    sn_client_shares_advance(&s->shares, now_us);
    for (const sn_job *job = s->jobs; job; job = job->next)
        if (sn_job_may_run(job)) sn_client_shares_of(&s->shares, job->client, now_us)->waits = true;
}

/* The device computed from then until now, for those whose costs are noted. */
static void clients_account(sn_scheduler *s, int64_t begun_us, int64_t alone_us) {
    s->begun_us = begun_us;
    s->ended_us = s->shares.now_us;
    sn_client_shares_passed(&s->shares, s->ended_us - begun_us, alone_us, row_us(s));
}

/* Before the rows count as done. */
static void clients_account_pass(sn_scheduler *s, int64_t begun_us, int64_t now_us) {
    clients_wait(s, now_us);
    for (int i = 0; i < s->n_chosen; i++)
        sn_client_shares_of(&s->shares, s->chosen[i]->client, now_us)->cost +=
            rows_us(s, s->chosen[i], s->parts[i].n_rows);
    clients_account(s, begun_us, base_us(s));
    decoding_computed(&s->decoding, s->batch_number, now_us);
}

/* -- jobs ---------------------------------------------------------------------------------------------------------- */

void sn_job_free(sn_job **job) {
    sn_job *j = *job;
    if (!j) return;
    if (j->kind == SN_JOB_STEP) {
        sn_shared_buffer_unref(j->step.input_buffer);
        free(j->step.pages);
    }
    if (j->kind == SN_JOB_ATTACH) {
        free(j->attach.points);
        free(j->attach.timeline);
    }
    if (j->kind == SN_JOB_TRAIN) sn_training_task_free(&j->training);
    if (j->kind == SN_JOB_EXPERTS) sn_experts_task_free(&j->experts);
    sn_shared_buffer_unref(j->output);
    free(j);
    *job = NULL;
}

sn_status sn_scheduler_new(sn_span *span, sn_kv_pool *pool, sn_scheduler **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->span = span;
    (*out)->pool = pool;
    (*out)->shares.limit_us = SN_PREFILL_DELAY_US;
    sn_kv_admission_init(&(*out)->admission, pool);
    status = sn_trainer_new(span, &(*out)->trainer, err);
    if (status) sn_scheduler_free(out);
    return status;
}

void sn_scheduler_free(sn_scheduler **scheduler) {
    if (!*scheduler) return;
    sn_trainer_free(&(*scheduler)->trainer);
    sn_job *lists[] = {(*scheduler)->jobs, (*scheduler)->training_jobs};
    for (int i = 0; i < 2; i++)
        for (sn_job *job = lists[i], *next; job; job = next) {
            next = job->next;
            sn_job_free(&job);
        }
    free(*scheduler);
    *scheduler = NULL;
}

/* Whether a new job is inserted before another one: by priority, but a job that was started, or arrived
 * OVERTAKEN_US_MAX earlier, is not overtaken, so that no job waits for ever. */
static bool job_goes_before(const sn_job *job, const sn_job *other) {
    return job->priority > other->priority && !other->started_us &&
           job->arrived_us - other->arrived_us < OVERTAKEN_US_MAX;
}

static bool job_is_decode_step(const sn_job *job) {
    return job->kind == SN_JOB_STEP && job->n_tokens <= SN_DECODE_ROWS_MAX;
}

void sn_scheduler_add(sn_scheduler *scheduler, sn_job *job) {
    sn_job **at = job->kind == SN_JOB_TRAIN ? &scheduler->training_jobs : &scheduler->jobs;
    if (job->kind == SN_JOB_STEP) client_comes(scheduler, job);
    if (job_is_decode_step(job))
        decoding_arrived(&scheduler->decoding, job->session, job->arrived_us);
    else if (job->kind != SN_JOB_KV_READ) /* which comes between two steps, of a session that is copied */
        decoding_remove(&scheduler->decoding, job->session);
    while (*at && !job_goes_before(job, *at)) at = &(*at)->next;
    job->next = *at;
    *at = job;
}

void sn_scheduler_set_throughput(sn_scheduler *scheduler, uint64_t decode_us, uint64_t row_ns) {
    scheduler->batch_wait_us = decode_us / 2 < SN_BATCH_WAIT_US_MAX ? (int64_t)decode_us / 2 : SN_BATCH_WAIT_US_MAX;
    scheduler->decode_us = decode_us;
    scheduler->row_ns = row_ns;
    scheduler->shares.limit_us = delay_us_max(scheduler);
}

int64_t sn_scheduler_batch_wait(sn_scheduler *s, int64_t now_us) {
    const int64_t delayed_us = delayed_client_wait(s, now_us);
    if (delayed_us) return delayed_us;
    int rows = 0;
    int64_t came_us = INT64_MAX;
    for (const sn_job *job = s->jobs; job; job = job->next) {
        if (!job_is_decode_step(job) || job->started_us) return 0;
        rows += job->n_tokens;
        if (job->arrived_us < came_us) came_us = job->arrived_us;
    }
    if (!rows || rows >= SN_BATCH_WAIT_ROWS || !decoding_pending(&s->decoding)) return 0;
    int64_t until_us = came_us + s->batch_wait_us;
    return now_us < until_us ? until_us : 0;
}

bool sn_scheduler_idle(const sn_scheduler *scheduler) { return !scheduler->jobs && !scheduler->training_jobs; }
bool sn_scheduler_waiting(const sn_scheduler *scheduler) {
    return !sn_scheduler_idle(scheduler) && scheduler->waiting && !sn_scheduler_swapping(scheduler);
}
/* Also after pages were swapped in this round: a job may have waited for just these. */
bool sn_scheduler_swapping(const sn_scheduler *scheduler) {
    const sn_kv_admission *admission = &scheduler->admission;
    return admission->swap_pending || (scheduler->jobs && admission->swap_pages_left < admission->swap_pages_max);
}
uint64_t sn_scheduler_forward_passes(const sn_scheduler *scheduler) { return scheduler->forward_passes; }
int sn_scheduler_rows(const sn_scheduler *scheduler) { return scheduler->span_rows; }
int64_t sn_scheduler_pass_us(const sn_scheduler *scheduler) { return scheduler->pass_us; }
const sn_guard_monitor *sn_scheduler_watch(const sn_scheduler *scheduler) { return &scheduler->watch; }

/* Moves finished jobs from the list to the front of *done. */
static void jobs_collect_finished(sn_job **from, sn_job **done) {
    sn_job **at = from;
    while (*at) {
        sn_job *job = *at;
        if (!job->finished_us) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        job->next = *done;
        *done = job;
    }
}

/* A failed step leaves no rows in the KV cache: it ends where the step began. */
static void job_undo(sn_job *job) {
    if (*job->kv && sn_kv_cache_length(*job->kv) >= job->position) sn_kv_cache_rewind(*job->kv, job->position);
}

static void job_end(sn_job *job, sn_status status, int64_t now_us) {
    job->status = status;
    job->finished_us = now_us;
    if (status && job->kv && job->kind != SN_JOB_KV_READ) job_undo(job);
}

/* -- rows from the prefix cache ------------------------------------------------------------------------------------ */

static float *job_output_row(const sn_scheduler *s, const sn_job *job, int row) {
    return (float *)sn_shared_buffer_data(job->output) + (size_t)row * (size_t)sn_span_hparams(s->span)->n_embd;
}

/* Number of the page that holds `position`, counted from the page of the job's first row: an index of step.pages. */
static int job_page_index(const sn_job *job, int position) {
    return position / SN_KV_PAGE_TOKENS - job->position / SN_KV_PAGE_TOKENS;
}
/* How many of step.pages may be shared. */
static int job_full_pages(const sn_job *job) { return job->step.cacheable ? job->step.n_pages : 0; }

/* Attaches the cached pages that follow the job's last row. */
static void job_attach_prefix(sn_scheduler *s, sn_job *job) {
    int next = job_page_index(job, sn_job_next_position(job));
    if (sn_job_next_position(job) % SN_KV_PAGE_TOKENS || next >= job_full_pages(job)) return;
    int pages = sn_prefix_cache_attach(*job->kv, &job->step.prefix_scope, job->step.pages + next,
                                       job_full_pages(job) - next, job_output_row(s, job, job->n_done));
    job->n_done += pages * SN_KV_PAGE_TOKENS;
}

/* Whether a job in the batch computes the page that this job needs next: then this one waits for it. */
static bool job_page_is_in_batch(const sn_scheduler *s, const sn_job *job) {
    int next = job_page_index(job, sn_job_next_position(job));
    if (sn_job_next_position(job) % SN_KV_PAGE_TOKENS || next >= job_full_pages(job) ||
        !sn_prefix_cache_enabled(s->pool))
        return false;
    for (int i = 0; i < s->n_chosen; i++) {
        const sn_job *other = s->chosen[i];
        int same = job_page_index(other, sn_job_next_position(job));
        if (sn_job_next_position(other) <= sn_job_next_position(job) && same < job_full_pages(other) &&
            !memcmp(&other->step.prefix_scope, &job->step.prefix_scope, sizeof job->step.prefix_scope) &&
            !memcmp(sn_page_end(&other->step.pages[same]), sn_page_end(&job->step.pages[next]), sizeof(sn_hash)))
            return true;
    }
    return false;
}

/* Rows to compute, at most `rows`: those before the next cached page, which will be attached. */
static int job_rows_to_cached_page(const sn_scheduler *s, const sn_job *job, int rows) {
    for (int page = job_page_index(job, sn_job_next_position(job)) + 1; page < job_full_pages(job); page++) {
        int begin = (job->position / SN_KV_PAGE_TOKENS + page) * SN_KV_PAGE_TOKENS;
        if (begin >= sn_job_next_position(job) + rows) break;
        if (sn_prefix_cache_contains(s->pool, &job->step.prefix_scope, sn_page_end(&job->step.pages[page])))
            return begin - sn_job_next_position(job);
    }
    return rows;
}

/* -- known prefixes ------------------------------------------------------------------------------------------------ */

static void job_attach_known(sn_scheduler *s, sn_job *job, int64_t now_us) {
    sn_attach_job *a = &job->attach;
    sn_status status = *job->kv ? SN_OK : sn_kv_cache_new(s->pool, job->kv, &job->err);
    job->started_us = now_us;
    if (!status)
        job->n_done =
            sn_prefix_cache_attach_known(*job->kv, &a->prefix_scope, &a->begin, a->points, a->n_points, &a->timeline);
    if (job->n_done) sn_kv_cache_usage_of(*job->kv)->client = job->client;
    if (job->n_done) sn_kv_cache_usage_of(*job->kv)->last_used_us = now_us;
    job->status = status;
    job->finished_us = now_us;
}

/* -- forming a batch ----------------------------------------------------------------------------------------------- */

static sn_status job_reserve_kv(sn_scheduler *s, sn_job *job, bool queued) {
    sn_status status = sn_kv_admission_prepare(&s->admission, job);
    if (status || job->kind == SN_JOB_KV_READ) return status;
    if (job->kind == SN_JOB_STEP) job_attach_prefix(s, job);
    return sn_kv_admission_reserve(&s->admission, job, queued);
}

/* Before its first batch a step needs its KV cache rewound and KV pages reserved for all of its tokens; a KV read needs
 * its pages swapped in. True: the job may run. False: it waits (*queued tells the jobs after it), or it is finished. */
static bool job_admit(sn_scheduler *s, sn_job *job, int64_t now_us, bool *queued) {
    if (job->started_us) return true;
    if (!job->deadline_us) { /* a KV read comes without one */
        job->arrived_us = now_us;
        job->deadline_us = now_us + KV_READ_WAIT_US;
    }
    sn_status status = job_reserve_kv(s, job, *queued);
    if (status == SN_RETRY && now_us < job->deadline_us) {
        job->kv_waited = true;
        if (!sn_kv_admission_hoards(&s->admission, job)) *queued = true;
        return false;
    }
    if (!status) job->started_us = now_us;
    if (status || (job->kind == SN_JOB_STEP && job->n_done == job->n_tokens)) {
        job_end(job, status, now_us);
        return false;
    }
    return true;
}

static bool job_is_of_kind(const sn_job *job, const sn_batch_kind *k) {
    return job->first == k->first && job->end == k->end && job->step.adapter == k->adapter;
}
static sn_batch_kind job_batch_kind(const sn_job *job) {
    return (sn_batch_kind){job->first, job->end, job->step.adapter};
}

/* How many batches ago one of the job's kind was run; SN_BATCH_KINDS: longer ago, or never. */
static int job_kind_last_turn(const sn_scheduler *s, const sn_job *job) {
    int i = 0;
    while (i < SN_BATCH_KINDS && !job_is_of_kind(job, &s->recent_kinds[i])) i++;
    return i;
}

static uint64_t client_last_batch(const sn_scheduler *s, uint64_t client) {
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++)
        if (s->shares.list[i].active_us && s->shares.list[i].client == client) return s->shares.list[i].batch;
    return 0;
}

/* Of the client whose kinds had no batch for longest, so that one with many kinds does not delay another one by all of
 * them: the oldest job of the kind that has not run for longest, so that no kind waits for ever. */
static sn_job *batch_choose_lead(const sn_scheduler *s) {
    sn_job *best = NULL;
    uint64_t since = UINT64_MAX;
    int longest = -1;
    for (sn_job *job = s->jobs; job; job = job->next) {
        if (!sn_job_may_run(job)) continue;
        uint64_t batch = client_last_batch(s, job->client);
        int turn = job_kind_last_turn(s, job);
        if (batch > since || (batch == since && turn <= longest)) continue;
        since = batch;
        longest = turn;
        best = job;
    }
    return best;
}

/* The batch has the lead's kind: a turn of all clients with steps for it, also of those that get no rows. */
static void clients_note_batch(sn_scheduler *s) {
    const sn_batch_kind kind = job_batch_kind(s->lead);
    for (const sn_job *job = s->jobs; job; job = job->next)
        if (sn_job_may_run(job) && job_is_of_kind(job, &kind))
            sn_client_shares_of(&s->shares, job->client, s->shares.now_us)->batch = s->batch_number;
}

/* Adds up to `rows` of the job's remaining rows to the batch, if it has the batch's kind. */
static void batch_add_job(sn_scheduler *s, sn_job *job, int rows) {
    int left = job->n_tokens - job->n_done;
    int capacity = s->n_chosen < SN_SPAN_ROWS ? sn_span_rows_max(s->span) - s->n_rows : 0;
    if (rows > left) rows = left;
    if (rows > capacity) rows = capacity;
    const sn_batch_kind wanted = job_batch_kind(s->lead);
    if (rows <= 0 || !job_is_of_kind(job, &wanted) || job_page_is_in_batch(s, job)) return;
    if (sn_kv_cache_state_position(*job->kv) < sn_kv_cache_length(*job->kv)) {
        const uint64_t after = s->catch_up_turn + 1; /* clients take turns, as with their prompts */
        if (!s->behind || job->client - after < s->behind->client - after) s->behind = job;
        return;
    }
    rows = job_rows_to_cached_page(s, job, rows);
    s->chosen[s->n_chosen] = job;
    sn_kv_cache_usage_of(*job->kv)->is_long = job->step.is_long;
    s->parts[s->n_chosen++] =
        (sn_span_sequence){*job->kv, &job->step.input, job->n_done, rows, job_output_row(s, job, job->n_done)};
    s->n_rows += rows;
}

/* One KV read or write. */
static void job_copy_kv(sn_scheduler *s, sn_job *job, int64_t now_us) {
    s->kv_copied = true;
    job->started_us = now_us;
    sn_status status =
        job->kind == SN_JOB_KV_READ ? sn_kv_transfer_read(s->span, job) : sn_kv_transfer_write(s->span, job);
    job_end(job, status, sn_now_us());
}

static bool job_copies_kv(const sn_job *job) { return job->kind == SN_JOB_KV_READ || job->kind == SN_JOB_KV_WRITE; }

/* The client that comes after the one that copied KV pages last; clients take turns as with their prompts. */
static uint64_t copy_next_turn(const sn_scheduler *s) {
    uint64_t after = UINT64_MAX;
    for (const sn_job *job = s->jobs; job; job = job->next)
        if (job_copies_kv(job) && job->client - s->copy_turn - 1 < after) after = job->client - s->copy_turn - 1;
    return s->copy_turn + 1 + after;
}

/* Whether sessions without pages wait behind the job. */
static bool job_holds_up(const sn_scheduler *s, const sn_job *job) {
    return job->kv_waited && !job->started_us && !job->finished_us && !sn_kv_admission_hoards(&s->admission, job);
}

/* Copies one part, of the first client in turn for which that is possible now: others may wait for pages. */
static void jobs_copy_kv(sn_scheduler *s, int64_t now_us) {
    const uint64_t first = copy_next_turn(s);
    do {
        bool queued = false;
        s->copy_turn = copy_next_turn(s);
        for (sn_job *job = s->jobs; job && !s->kv_copied; job = job->next) {
            bool tries = job_copies_kv(job) && !job->finished_us && !atomic_load(&job->cancelled);
            bool turn = tries && job->client == s->copy_turn;
            if (!turn)
                queued = queued || job_holds_up(s, job);
            else if (job_admit(s, job, now_us, &queued))
                job_copy_kv(s, job, now_us);
        }
    } while (!s->kv_copied && copy_next_turn(s) != first);
}

static void jobs_prepare(sn_scheduler *s, int64_t now_us) {
    bool queued = false;
    jobs_copy_kv(s, now_us); /* before steps, which may rewind what is read */
    for (sn_job *job = s->jobs; job; job = job->next) {
        if (job->finished_us) continue;
        if (job->kind == SN_JOB_CLOSE) {
            sn_kv_cache_free(job->kv);
            job_end(job, SN_OK, now_us);
        } else if (atomic_load(&job->cancelled)) {
            job_end(job, sn_fail(&job->err, SN_REFUSED, "the session was closed"), now_us);
        } else if (job->kind == SN_JOB_ATTACH) {
            job_attach_known(s, job, now_us);
        } else if (job_copies_kv(job)) {
            queued = queued || job_holds_up(s, job);
        } else {
            (void)job_admit(s, job, now_us, &queued);
        }
    }
}

static void batch_add_decode_job(sn_scheduler *s, sn_job *job, int64_t now_us) {
    if (job_is_decode_step(job))
        decoding_record(&s->decoding, job->session, job->client, job->n_tokens, s->batch_number, now_us);
    batch_add_job(s, job, SN_DECODE_ROWS_MAX);
}

/* Adds the decode steps of the batch's kind. True: there are decode steps, of this or another kind. */
static bool batch_add_decode_jobs(sn_scheduler *s, int64_t now_us) {
    bool any = false;
    for (sn_job *job = s->jobs; job && s->lead; job = job->next) {
        if (!sn_job_may_run(job) || !sn_job_counts_as_decode(job)) continue;
        any = true;
        if (!exceeds_share(s, job)) batch_add_decode_job(s, job, now_us);
    }
    return any;
}

/* Where no client may add anything: steps of the lead's client, as many as take the time of a pass of one row. */
static void batch_add_lead(sn_scheduler *s, int64_t now_us) {
    for (sn_job *job = s->jobs; job; job = job->next) {
        if (job->client != s->lead->client || !sn_job_may_run(job)) continue;
        if (client_us(s, job->client, true) + client_us(s, job->client, false) > (double)base_us(s)) return;
        batch_add_decode_job(s, job, now_us);
    }
}

static bool job_is_prompt(const sn_job *job) { return sn_job_may_run(job) && !sn_job_counts_as_decode(job); }

/* Prompts of which rows are to be computed: each is a session's. */
static int prompts_waiting(const sn_scheduler *s) {
    int n = 0;
    for (const sn_job *job = s->jobs; job; job = job->next) n += job_is_prompt(job);
    return n;
}

/* While no session decodes: as many rows as the span takes, but beyond SN_SPAN_ROWS only as many as take
 * SN_PREFILL_ALONE_US, because a session that begins to decode waits for the pass. */
static int prefill_rows_alone(const sn_scheduler *s) {
    int rows = sn_span_rows_max(s->span);
    while (rows > SN_SPAN_ROWS && (!s->row_ns || (uint64_t)rows * s->row_ns > (uint64_t)SN_PREFILL_ALONE_US * 1000))
        rows /= 2;
    return rows;
}

/* Limit of the prefill rows in a batch. While sessions decode, it keeps the pass short, also for those whose next step
 * will arrive during the pass; where more prompts wait than rows decode, they may delay those in that ratio. There may
 * be as many as decode. What one client may add is less (prompt_rows_max). */
static int prefill_rows_max(sn_scheduler *s, bool decoding, int prompts, int64_t now_us) {
    int decode_rows = decoding_rows(&s->decoding, now_us);
    if (!decoding && !decode_rows && now_us >= s->others_us) return prefill_rows_alone(s);
    if (!s->row_ns) return SN_PREFILL_ROWS_CONCURRENT;
    int delays = prompts / (decode_rows ? decode_rows : 1);
    if (delays < 1) delays = 1;
    if (delays > SN_PREFILL_DELAYS_MAX) delays = SN_PREFILL_DELAYS_MAX;
    uint64_t rows = (uint64_t)delays * SN_PREFILL_DELAY_US * 1000 / s->row_ns;
    if (rows < (uint64_t)decode_rows) rows = (uint64_t)decode_rows;
    if (rows > (uint64_t)sn_span_rows_max(s->span)) rows = (uint64_t)sn_span_rows_max(s->span);
    return rows < SN_ROWS_MULTIPLE ? SN_ROWS_MULTIPLE : (int)rows / SN_ROWS_MULTIPLE * SN_ROWS_MULTIPLE;
}

void sn_scheduler_note_others(sn_scheduler *scheduler, int64_t now_us) { scheduler->others_us = now_us + OTHERS_US; }

/* The oldest prefill step, not yet considered for this batch, of the next client. Clients take turns in the order of
 * their numbers, so that a client with many prompts does not delay another one by all of them. */
static sn_job *prefill_next_job(const sn_scheduler *s) {
    sn_job *best = NULL;
    for (sn_job *job = s->jobs; job; job = job->next) {
        if (!sn_job_may_run(job) || sn_job_counts_as_decode(job) || job->last_batch == s->batch_number) continue;
        if (!best || job->client - s->prefill_turn - 1 < best->client - s->prefill_turn - 1)
            best = job; /* distances are modulo 2^64 */
    }
    return best;
}

static void batch_form(sn_scheduler *s, int64_t now_us) {
    s->batch_number++;
    s->n_chosen = s->n_rows = 0;
    s->behind = NULL;
    s->kv_copied = false;
    s->span_rows = 0;
    jobs_prepare(s, now_us);
    s->lead = batch_choose_lead(s);
    if (s->lead) clients_note_batch(s);
    bool decoding = batch_add_decode_jobs(s, now_us);
    int budget = prefill_rows_max(s, decoding, prompts_waiting(s), now_us);
    for (sn_job *job; budget > 0 && (job = prefill_next_job(s));) {
        int before = s->n_rows;
        job->last_batch = s->batch_number;
        job_attach_prefix(s, job);
        if (job->n_done == job->n_tokens) job_end(job, SN_OK, now_us);
        const int most = prompt_rows_max(s, job);
        batch_add_job(s, job, budget < most ? budget : most);
        if (s->n_rows > before) s->prefill_turn = job->client;
        budget -= s->n_rows - before;
    }
    if (s->lead && !s->n_rows) batch_add_lead(s, now_us);
}

static void batch_run(sn_scheduler *s) {
    sn_err err;
    int first = s->chosen[0]->first, end = s->chosen[0]->end;
    uint64_t moved = 0, planned = sn_span_transfer_bytes(s->span, first, end, s->n_chosen, s->parts);
    sn_adapter **adapter = s->chosen[0]->step.adapter;
    int64_t begun = sn_now_us();
    sn_status status =
        sn_span_forward_adapter(s->span, first, end, adapter ? *adapter : NULL, s->n_chosen, s->parts, &moved, &err);
    int64_t now = sn_now_us();
    s->pass_us = now > begun ? now - begun : 1;
    s->training_owes_us -= s->pass_us;
    sn_guard_monitor_step(&s->watch, moved, planned, now);
    s->forward_passes++;
    memmove(s->recent_kinds + 1, s->recent_kinds, (SN_BATCH_KINDS - 1) * sizeof *s->recent_kinds);
    s->recent_kinds[0] = job_batch_kind(s->chosen[0]);
    if (!status && first == sn_span_first(s->span) && end == sn_span_end(s->span)) s->span_rows = s->n_rows;
    learn_costs(s);
    clients_account_pass(s, begun, now);
    for (int i = 0; i < s->n_chosen; i++) {
        sn_job *job = s->chosen[i];
        if (!status && job->step.cacheable)
            sn_prefix_cache_insert(*job->kv, &job->step.prefix_scope,
                                   job->step.n_pages ? &job->step.pages[job_page_index(job, sn_job_next_position(job))]
                                                     : NULL,
                                   s->parts[i].n_rows, s->parts[i].output);
        job->n_done += s->parts[i].n_rows;
        if (status) job->err = err;
        if (status || job->n_done == job->n_tokens) job_end(job, status, now);
    }
}

/* Rows of such a piece: while others wait, they add as much time as prefill rows may, or as a pass of one row takes, in
 * as many passes of a page each as take so long, and at least in one; whole pages, or an even part of one. */
static int catch_up_rows_max(const sn_scheduler *s, int64_t now_us) {
    int rows = s->n_chosen ? SN_PREFILL_ROWS_CONCURRENT : SN_SPAN_ROWS;
    if (now_us >= s->others_us && !decoding_of_others(&s->decoding, s->behind->client)) return rows;
    const uint64_t passes = s->decode_us ? SN_PREFILL_DELAY_US / s->decode_us : (uint64_t)rows;
    uint64_t most = (passes ? passes : 1) * SN_KV_PAGE_TOKENS;
    const uint64_t us = s->decode_us > SN_PREFILL_DELAY_US ? s->decode_us : SN_PREFILL_DELAY_US;
    if (s->row_ns && most > us * 1000 / s->row_ns) most = us * 1000 / s->row_ns;
    if (most < SN_DECODE_ROWS_MAX) most = SN_DECODE_ROWS_MAX;
    if (most > SN_KV_PAGE_TOKENS) most -= most % SN_KV_PAGE_TOKENS;
    while (SN_KV_PAGE_TOKENS % most && most < SN_KV_PAGE_TOKENS) most--;
    return most < (uint64_t)rows ? (int)most : rows;
}

/* Computes a piece of the rows that a session with recurrent states needs again. */
static void batch_catch_up(sn_scheduler *s, int64_t now_us) {
    sn_job *job = s->behind;
    sn_adapter **adapter = job->step.adapter;
    int rows = catch_up_rows_max(s, now_us);
    const int64_t begun_us = sn_now_us();
    s->catch_up_turn = job->client;
    sn_status status =
        sn_span_catch_up(s->span, job->first, job->end, adapter ? *adapter : NULL, *job->kv, rows, &job->err);
    clients_wait(s, sn_now_us());
    sn_client_shares_of(&s->shares, job->client, s->shares.now_us)->cost = 1;
    clients_account(s, begun_us, 0);
    if (status) job_end(job, status, sn_now_us());
}

/* -- training ------------------------------------------------------------------------------------------------------ */

static bool steps_are_expected(sn_scheduler *s, int64_t now_us) {
    return s->n_chosen || now_us < s->others_us || decoding_rows(&s->decoding, now_us);
}

/* Training waits behind steps: while they run or are expected, it gets one part of the device's time, and they
 * STEPS_SHARE parts. */
static bool training_may_run(sn_scheduler *s, int64_t now_us) {
    if (!s->training_jobs) return false;
    return !steps_are_expected(s, now_us) || s->training_owes_us <= 0 || now_us - s->trained_us > TRAINING_EVERY_US;
}

/* What a piece may cost: it delays a decode step by no more than prefill rows do. The first step of a session that
 * comes while no session decodes waits a little longer, for fewer copies of offloaded blocks. */
static size_t training_cost_max(sn_scheduler *s, int64_t now_us) {
    size_t rows = (size_t)prefill_rows_max(s, true, 1, now_us) * (steps_are_expected(s, now_us) ? 1 : PIECES_ALONE);
    double ns = (double)rows * (double)s->row_ns;
    if (ns > 0 && s->training_unit_ns > 0) return (size_t)(ns / s->training_unit_ns);
    return rows * (size_t)(sn_span_end(s->span) - sn_span_first(s->span)) * SN_TRAIN_ROW_COST;
}

static uint64_t training_client(const sn_job *job) { return sn_training_turn(job->training); }

/* The oldest job of the client whose turn comes first after `turn`; NULL: none. */
static sn_job *training_next_job(const sn_scheduler *s, uint64_t turn) {
    sn_job *best = NULL;
    for (sn_job *job = s->training_jobs; job; job = job->next)
        if (!best || training_client(job) - turn - 1 < training_client(best) - turn - 1) best = job;
    return best;
}

/* Runs a piece of the next client's oldest job, or of another client's if that one waits for memory. False: all wait.
 */
static bool training_run_piece(sn_scheduler *s, int64_t now_us) {
    sn_training_budget budget = {.cost = training_cost_max(s, now_us)};
    sn_training_result result = SN_TRAINING_WAITS;
    int64_t begun = sn_now_us();
    uint64_t turn = s->training_turn;
    sn_job *const first = training_next_job(s, turn), *job = first;
    do {
        turn = training_client(job);
        result = sn_trainer_work(s->trainer, job, &budget);
        job = training_next_job(s, turn);
    } while (result == SN_TRAINING_WAITS && job != first);
    if (result == SN_TRAINING_WAITS) return false;
    int64_t took = sn_now_us() - begun;
    double unit_ns = budget.spent ? (double)took * 1000 / (double)budget.spent : 0;
    if (unit_ns > 0) s->training_unit_ns += (unit_ns - s->training_unit_ns) / (s->training_unit_ns > 0 ? 4 : 1);
    s->training_turn = turn;
    s->trained_us = now_us;
    s->training_owes_us = STEPS_SHARE * (took > 0 ? took : 1);
    return true;
}

/* Ends the jobs of clients that are gone, and all when the node leaves its blocks. */
static void training_drop_cancelled(sn_scheduler *s, int64_t now_us) {
    for (sn_job *job = s->training_jobs; job; job = job->next) {
        if (!atomic_load(&job->cancelled)) continue;
        sn_trainer_drop(s->trainer, job);
        job_end(job, sn_fail(&job->err, SN_RETRY, "the connection has ended, or this node leaves: use another one"),
                now_us);
    }
}

sn_job *sn_scheduler_run(sn_scheduler *s, int64_t now_us) {
    sn_job *done = NULL;
    sn_kv_admission_begin(&s->admission, s->jobs, now_us);
    batch_form(s, now_us);
    sn_job *lost = sn_kv_admission_reclaim(&s->admission, s->jobs);
    if (lost) job_end(lost, lost->err.status, now_us);
    if (s->n_chosen) batch_run(s);
    if (s->behind && !s->behind->finished_us) batch_catch_up(s, now_us);
    training_drop_cancelled(s, now_us);
    jobs_collect_finished(&s->training_jobs, &done);
    bool trained = training_may_run(s, now_us) && training_run_piece(s, now_us);
    s->waiting = !s->n_chosen && !s->behind && !s->kv_copied && !trained;
    jobs_collect_finished(&s->jobs, &done);
    jobs_collect_finished(&s->training_jobs, &done);
    return done;
}
