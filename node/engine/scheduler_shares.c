/* What rows cost, and how long those of one client may delay another one (client_shares.h). */
#include "node/engine/scheduler_private.h"

enum { POSITIONS_FAR = 256 }; /* at rows that attend to more, positions are most of what is learned */

/* What rows of one client may delay another one by in a pass. */
int64_t sn_scheduler_delay_us_max(const sn_scheduler *s) {
    return s->decode_us > SN_PREFILL_DELAY_US ? (int64_t)s->decode_us : SN_PREFILL_DELAY_US;
}

void sn_scheduler_client_comes(sn_scheduler *s, const sn_job *job) {
    (void)sn_client_shares_of(&s->shares, job->client, job->arrived_us);
    if (job->arrived_us < s->ended_us)
        sn_client_shares_came_late(&s->shares, job->client,
                                   s->ended_us - (job->arrived_us > s->begun_us ? job->arrived_us : s->begun_us));
}

/* A pass of one row. The mean of such passes counts what else the machine did meanwhile, too. */
int64_t sn_scheduler_base_us(const sn_scheduler *s) {
    return s->one_row_us > 0 && s->one_row_us < (double)s->decode_us ? (int64_t)s->one_row_us : (int64_t)s->decode_us;
}

static double row_us(const sn_scheduler *s) {
    return s->row_ns ? (double)s->row_ns / 1000 : (double)SN_PREFILL_DELAY_US / SN_PREFILL_ROWS_CONCURRENT;
}

/* Expected time that n further rows of the job add to a pass. */
static double rows_us(const sn_scheduler *s, const sn_job *job, int n) {
    return n * (row_us(s) + s->position_ns * (sn_job_next_position(job) + n / 2) / 1000);
}

/* The same of those decode rows, or of those rows of prompts, that the client has in the batch: it may have so much of
 * both, so that its decode steps do not stop its own prompts. */
double sn_scheduler_client_us(const sn_scheduler *s, uint64_t client, bool decodes) {
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
    bool others = sn_decoding_sessions_of_others(&s->decoding, client);
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
bool sn_scheduler_exceeds_share(const sn_scheduler *s, const sn_job *job) {
    const int64_t most = client_us_max(s, job->client, sn_scheduler_delay_us_max(s));
    const double used = sn_scheduler_client_us(s, job->client, true), us = rows_us(s, job, job->n_tokens - job->n_done);
    return used > 0 ? used + us > (double)most : most <= 0 && us > 2 * row_us(s);
}

/* Rows of the prompt that its client may add to the batch: a multiple of 8, because the kernels compute 8 rows at once,
 * and so many where it may add anything. */
int sn_scheduler_prompt_rows_max(const sn_scheduler *s, const sn_job *job) {
    const int64_t most = client_us_max(s, job->client, SN_PREFILL_DELAY_US);
    if (most == INT64_MAX) return SN_SPAN_ROWS_MAX;
    const double used = sn_scheduler_client_us(s, job->client, false), left = (double)most - used;
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

int64_t sn_scheduler_delayed_client_wait(sn_scheduler *s, int64_t now_us) {
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
void sn_scheduler_learn_costs(sn_scheduler *s) {
    double positions = 0, us = (double)s->pass_us;
    if (s->span_rows == 1)
        s->one_row_us += (us - s->one_row_us) / (s->one_row_us == 0 ? 1 : us < s->one_row_us ? 4 : 64);
    for (int i = 0; i < s->n_chosen; i++)
        positions += (double)s->parts[i].n_rows * (sn_job_next_position(s->chosen[i]) + s->parts[i].n_rows / 2);
    if (!s->span_rows || !s->decode_us || !s->row_ns || positions <= 0) return;
    const double expected_ns =
        (double)s->decode_us * 1000 + (double)s->row_ns * (s->n_rows - 1) + s->position_ns * positions;
    const double mean = positions / s->n_rows / POSITIONS_FAR, weight = mean * mean / (1 + mean * mean) / 8;
    s->position_ns += weight * (us * 1000 - expected_ns) / positions;
    if (s->position_ns < 0) s->position_ns = 0;
}

/* Notes which clients wait while the device computes. */
void sn_scheduler_clients_wait(sn_scheduler *s, int64_t now_us) {
    sn_client_shares_advance(&s->shares, now_us);
    for (const sn_job *job = s->jobs; job; job = job->next)
        if (sn_job_may_run(job)) sn_client_shares_of(&s->shares, job->client, now_us)->waits = true;
}

/* The device computed from then until now, for those whose costs are noted. */
void sn_scheduler_clients_account(sn_scheduler *s, int64_t begun_us, int64_t alone_us) {
    s->begun_us = begun_us;
    s->ended_us = s->shares.now_us;
    sn_client_shares_passed(&s->shares, s->ended_us - begun_us, alone_us, row_us(s));
}

/* Before the rows count as done. */
void sn_scheduler_clients_account_pass(sn_scheduler *s, int64_t begun_us, int64_t now_us) {
    sn_scheduler_clients_wait(s, now_us);
    for (int i = 0; i < s->n_chosen; i++)
        sn_client_shares_of(&s->shares, s->chosen[i]->client, now_us)->cost +=
            rows_us(s, s->chosen[i], s->parts[i].n_rows);
    sn_scheduler_clients_account(s, begun_us, sn_scheduler_base_us(s));
    sn_decoding_sessions_computed(&s->decoding, s->batch_number, now_us);
}
