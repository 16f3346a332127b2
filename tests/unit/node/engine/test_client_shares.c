/* What an honest client keeps of its speed beside greedy ones: whole loops of the device thread, in virtual time. A
 * pass takes what the test says for its rows and for the positions that they attend to; a client's next step comes when
 * it has its answer. */
#include "base/clock.h"
#include "node/engine/scheduler_private.h" /* private: what clients have used */
#include "tests/support/scheduler_fixture.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>

enum { HONEST_CLIENT = 1000, HONEST_STEPS = 150, POSITIONS_MAX = 448 };

/* What a pass takes, in µs. */
static struct {
    double base, row, position;
    double busy; /* so many times longer than the scheduler has seen before */
} cost;
static uint64_t passes, rows_of_passes;

sn_status __real_sn_span_forward_adapter(sn_span *span, int first, int end, const sn_adapter *adapter, int n_sequences,
                                         const sn_span_sequence *sequences, uint64_t *bytes_moved, sn_err *err);
sn_status __wrap_sn_span_forward_adapter(sn_span *span, int first, int end, const sn_adapter *adapter, int n_sequences,
                                         const sn_span_sequence *sequences, uint64_t *bytes_moved, sn_err *err);
sn_status __wrap_sn_span_forward_adapter(sn_span *span, int first, int end, const sn_adapter *adapter, int n_sequences,
                                         const sn_span_sequence *sequences, uint64_t *bytes_moved, sn_err *err) {
    double us = cost.base - cost.row; /* 0 in the tests of other sources */
    for (int i = 0; i < n_sequences; i++) {
        us += sequences[i].n_rows * (cost.row + cost.position * sn_kv_cache_length(sequences[i].kv));
        rows_of_passes += (uint64_t)sequences[i].n_rows;
    }
    passes++;
    if (us > 0) virtual_clock_advance((int64_t)(us * (cost.busy > 0 ? cost.busy : 1)));
    return __real_sn_span_forward_adapter(span, first, end, adapter, n_sequences, sequences, bytes_moved, err);
}

/* Sessions of as many clients; a step of `rows` follows another one `gap_us` after its end, at positions from `from`
 * on, again and again. */
typedef struct load {
    int sessions, clients, rows, from;
    int64_t gap_us;
} load;

typedef struct session {
    const load *load;
    uint64_t client;
    int position;
    int64_t comes_us; /* its next step; INT64_MAX: it is in the scheduler */
    int64_t steps;
} session;

static void session_step(scheduler_fixture *b, int s, session *a) {
    if (a->position + a->load->rows > (a->client == HONEST_CLIENT ? POSITIONS_MAX / 8 : POSITIONS_MAX))
        a->position = a->load->from;
    b->now = a->comes_us;
    add_clients_step(b, a->client, s, a->position, a->load->rows);
    a->position += a->load->rows;
    a->comes_us = INT64_MAX;
}

/* One round of the device thread; the time of the next step that comes if it has nothing to do. */
static void round_run(scheduler_fixture *b, session *sessions, int n) {
    unsigned finished = 0;
    int64_t next_us = INT64_MAX, now_us = sn_now_us();
    for (int s = 0; s < n; s++) {
        if (sessions[s].comes_us <= now_us) session_step(b, s, &sessions[s]);
        if (sessions[s].comes_us < next_us) next_us = sessions[s].comes_us;
    }
    const int64_t wait_us = sn_scheduler_idle(b->scheduler) ? INT64_MAX : sn_scheduler_batch_wait(b->scheduler, now_us);
    if (wait_us) {
        virtual_clock_advance((next_us < wait_us ? next_us : wait_us) - now_us);
        return;
    }
    b->now = now_us - 1;
    run_batch(b, SN_OK, &finished);
    for (int s = 0; s < n; s++) {
        if (!(finished & 1u << s)) continue;
        sessions[s].steps++;
        sessions[s].comes_us = sn_now_us() + sessions[s].load->gap_us;
    }
}

static int add_sessions(session *sessions, int n, const load *l, uint64_t client) {
    for (int i = 0; i < l->sessions; i++)
        sessions[n + i] = (session){l, client + (uint64_t)(i % l->clients), l->from, sn_now_us(), 0};
    return n + l->sessions;
}

typedef struct outcome {
    double step_us;       /* of the honest client's steps, from one to the next */
    double greedy_rows_s; /* rows of the others a second */
    double rows;          /* in a pass */
} outcome;

/* The honest client's sessions beside others, until they have had so many steps; the first third does not count. */
static outcome run(load honest, load greedy) {
    scheduler_fixture b;
    session sessions[SCHEDULER_SESSIONS];
    int64_t begun_us = 0, greedy_steps = 0;
    scheduler_fixture_begin(&b, 512);
    sn_scheduler_set_throughput(b.scheduler, (uint64_t)cost.base, (uint64_t)(cost.row * 1000));
    for (int s = 0; s < SCHEDULER_SESSIONS && greedy.from; s++) { /* what is in their caches costs nothing */
        add_step(&b, s, 0, greedy.from);
        while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &(unsigned){0});
    }
    virtual_clock_advance(2 * SN_CLIENT_ACTIVE_US);
    int n = add_sessions(sessions, 0, &honest, HONEST_CLIENT);
    n = add_sessions(sessions, n, &greedy, 1);
    while (sessions[0].steps < HONEST_STEPS) {
        if (!begun_us && sessions[0].steps == HONEST_STEPS / 3) {
            begun_us = sn_now_us();
            passes = rows_of_passes = 0;
            for (int s = honest.sessions; s < n; s++) greedy_steps -= sessions[s].steps;
        }
        round_run(&b, sessions, n);
    }
    for (int s = honest.sessions; s < n; s++) greedy_steps += sessions[s].steps;
    const double us = (double)(sn_now_us() - begun_us);
    while (!sn_scheduler_idle(b.scheduler)) {
        b.now = sn_now_us();
        run_batch(&b, SN_OK, &(unsigned){0});
    }
    scheduler_fixture_end(&b);
    return (outcome){us / (HONEST_STEPS - HONEST_STEPS / 3), (double)(greedy_steps * greedy.rows) * 1e6 / us,
                     (double)rows_of_passes / (double)passes};
}

static const load no_others = {0, 1, 1, 0, 0}, decoder = {1, 1, 1, 0, 1300};

/* The part of its speed that a client that decodes keeps. */
static double share(load honest, load greedy) {
    const double alone = run(honest, no_others).step_us, beside = run(honest, greedy).step_us;
    cr_log_info("%.0f us a step alone, %.0f beside others", alone, beside);
    return alone / beside;
}

static void set_up(void) {
    virtual_clock_begin_still();
    cost.base = 2600, cost.row = 400, cost.position = 0;
}

TestSuite(client_shares, .init = set_up, .timeout = 120);

#define EXPECT_SHARE(greedy, least)                                                                                    \
    do {                                                                                                               \
        const double kept = share(decoder, greedy);                                                                    \
        cr_expect_geq(kept, least, "it keeps %.0f %%", 100 * kept);                                                    \
    } while (0)

Test(client_shares, sessions_of_one_client_leave_another_two_thirds) {
    EXPECT_SHARE(((load){16, 1, 1, 0, 0}), 2.0 / 3);
    EXPECT_SHARE(((load){16, 1, 8, 0, 200}), 2.0 / 3);
    EXPECT_SHARE(((load){1, 1, 1, 0, 0}), 2.0 / 3);
    EXPECT_SHARE(((load){4, 1, 1, 0, 2900}), 2.0 / 3);
}

Test(client_shares, prompts_of_one_client_leave_another_two_thirds) {
    EXPECT_SHARE(((load){4, 1, 256, 0, 0}), 2.0 / 3);
    EXPECT_SHARE(((load){16, 1, 64, 0, 500}), 2.0 / 3);
}

Test(client_shares, a_large_model_or_a_client_far_away_keeps_two_thirds) {
    cost.base = 40000, cost.row = 3000;
    EXPECT_SHARE(((load){16, 1, 1, 0, 0}), 2.0 / 3);
    EXPECT_SHARE(((load){4, 1, 256, 0, 0}), 2.0 / 3);
    cost.base = 2600, cost.row = 400;
    const load far = {1, 1, 1, 0, 30000};
    const double kept = share(far, (load){4, 1, 256, 0, 0});
    cr_expect_geq(kept, 2.0 / 3, "it keeps %.0f %%", 100 * kept);
}

Test(client_shares, rows_that_attend_to_many_positions_are_charged_what_they_take) {
    cost.position = 10;
    EXPECT_SHARE(((load){16, 1, 1, 400, 0}), 2.0 / 3);
    EXPECT_SHARE(((load){1, 1, 1, 400, 0}), 2.0 / 3);
}

Test(client_shares, eight_clients_leave_another_a_ninth) {
    EXPECT_SHARE(((load){16, 8, 256, 0, 0}), 1.0 / 9);
    EXPECT_SHARE(((load){16, 8, 1, 0, 0}), 1.0 / 9);
    EXPECT_SHARE(((load){16, 8, 8, 0, 0}), 1.0 / 9);
}

/* The device is not idle for the sake of one whose step is far. */
Test(client_shares, others_have_the_time_that_a_client_leaves) {
    const load far = {1, 1, 1, 0, 50000}, prompts = {4, 1, 256, 0, 0};
    const double rows_s = run(far, prompts).greedy_rows_s, most = 1e6 / cost.row;
    cr_expect_geq(rows_s, 0.6 * most, "%.0f rows a second of %.0f", rows_s, most);
}

/* Many clients of one session each are computed in one pass. */
Test(client_shares, equal_clients_share_passes) {
    const double rows = run(decoder, (load){15, 15, 1, 0, 1300}).rows;
    cr_expect_geq(rows, 15.5, "%.1f rows in a pass", rows);
    cost.busy = 10;
    const double busy = run(decoder, (load){15, 15, 1, 0, 1300}).rows;
    cr_expect_geq(busy, 12, "%.1f rows in a pass on a busy machine", busy);
    cost.busy = 1;
    const double two = run(decoder, (load){1, 1, 1, 0, 1300}).rows;
    cr_expect_geq(two, 1.9, "%.1f rows in a pass", two);
}

/* A step of one row delays the client that waits by less than a pass of its own would delay its client. */
Test(client_shares, a_step_that_costs_little_joins_however_long_another_client_waited) {
    scheduler_fixture b;
    unsigned finished = 0;
    scheduler_fixture_begin(&b, 64);
    sn_scheduler_set_throughput(b.scheduler, (uint64_t)cost.base, (uint64_t)(cost.row * 1000));
    for (int s = 0; s < 4; s++) add_clients_step(&b, (uint64_t)s + 1, s, 0, s < 3 ? 1 : 8);
    for (int i = 0; i < SN_CLIENT_SHARES_MAX; i++) {
        sn_client_share *share = &b.scheduler->shares.list[i];
        share->allowance_us = share->client == 1 ? -1000000 : 0;
        share->used_us = share->client == 1 ? 0 : SN_SHARE_WINDOW_US / 2;
    }
    run_batch(&b, SN_OK, &finished);
    cr_expect_eq(finished, 7, "the steps of sessions %x", finished);
    while (!sn_scheduler_idle(b.scheduler)) {
        b.now = sn_now_us();
        run_batch(&b, SN_OK, &finished);
    }
    scheduler_fixture_end(&b);
}
