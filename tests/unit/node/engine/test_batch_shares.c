/* What the steps of one client may add to a batch in which another client decodes, beyond test_scheduler.c: prompts
 * beside many decode steps, and rows that recurrent states need again. */
#include "node/engine/kv_transfer.h"
#include "node/engine/scheduler.h"

#include "tests/support/recurrent_sessions.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SESSIONS = 8, SECOND = 1000000 };

typedef struct fixture {
    recurrent_sessions s;
    sn_scheduler *scheduler;
    sn_kv_cache *kv[SESSIONS];
    sn_job *job[SESSIONS]; /* in the scheduler */
    int64_t now;
} fixture;

static void begin(fixture *b) {
    static const recurrent_options on_cpu = {.model = SN_FIXTURES "/golden/qwen3_5", .device = {SN_DEVICE_CPU, 0}};
    virtual_clock_begin_still();
    *b = (fixture){.s = recurrent_begin(on_cpu, 16u << 20), .now = SECOND};
    REQUIRE(sn_scheduler_new(b->s.span, b->s.pool, &b->scheduler, &err));
}

static void end(fixture *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < SESSIONS; i++) sn_kv_cache_free(&b->kv[i]);
    recurrent_end(&b->s);
}

static void add_step(fixture *b, int session, uint64_t client, int position, int n) {
    sn_job *job = b->job[session] = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP,
                    .session = &b->kv[session],
                    .kv = &b->kv[session],
                    .client = client,
                    .end = RECURRENT_BLOCKS,
                    .position = position,
                    .n_tokens = n,
                    .arrived_us = b->now,
                    .deadline_us = b->now + SECOND,
                    .step.input = {.name = "rows",
                                   .data = b->s.inputs + position * RECURRENT_WIDTH,
                                   .dtype = SN_F32,
                                   .rank = 2,
                                   .shape = {n, RECURRENT_WIDTH}}};
    REQUIRE(sn_shared_buffer_new((size_t)n * RECURRENT_WIDTH * sizeof(float), &job->output, &err));
    sn_scheduler_add(b->scheduler, job);
}

static void run_round(fixture *b) {
    for (sn_job *job = sn_scheduler_run(b->scheduler, b->now += 1000), *next; job; job = next) {
        next = job->next;
        cr_assert_eq(job->status, SN_OK, "%s", job->err.text);
        recurrent_check_rows(&b->s, sn_shared_buffer_data(job->output), job->position, job->n_tokens);
        b->job[(sn_kv_cache **)job->session - b->kv] = NULL;
        sn_job_free(&job);
    }
}

static void complete_step(fixture *b, int session, uint64_t client, int position, int n) {
    add_step(b, session, client, position, n);
    while (b->job[session]) run_round(b);
}

/* 10 ms are 16 rows. Without a limit for each client the decode steps of client 1 would let its prompt add 48. */
Test(batch_shares, a_client_buys_its_prompts_no_time_by_decode_steps) {
    fixture b;
    begin(&b);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000);
    for (int i = 0; i < 12; i++) {
        for (int session = 0; session < 6; session++)
            if (!b.job[session]) add_step(&b, session, 1, b.kv[session] ? sn_kv_cache_length(b.kv[session]) : 0, 8);
        add_step(&b, 7, 2, i, 1);
        run_round(&b);
        cr_assert_null(b.job[7], "the other client decodes in every batch");
    }
    add_step(&b, 6, 1, 0, 150);
    add_step(&b, 7, 2, 12, 1);
    run_round(&b);
    cr_expect_eq(sn_kv_cache_length(b.kv[6]), 16, "%d rows", sn_kv_cache_length(b.kv[6]));
    for (int session = 0; session < SESSIONS; session++)
        while (b.job[session]) run_round(&b);
    end(&b);
}

/* A KV replica is read after every step. Without the session among those that decode the prompt would have 150 rows. */
Test(batch_shares, a_session_that_is_copied_is_expected_to_go_on_decoding) {
    fixture b;
    begin(&b);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000);
    complete_step(&b, 7, 2, 0, 1);
    sn_job *read = calloc(1, sizeof *read);
    *read = (sn_job){.kind = SN_JOB_KV_READ,
                     .session = &b.kv[7],
                     .kv = &b.kv[7],
                     .client = 2,
                     .end = RECURRENT_BLOCKS,
                     .n_tokens = 1};
    size_t row = sn_kv_transfer_row_floats(sn_span_hparams(b.s.span), 0, RECURRENT_BLOCKS);
    REQUIRE(sn_shared_buffer_new(row * sizeof(float), &read->output, &err));
    sn_scheduler_add(b.scheduler, read);
    add_step(&b, 6, 1, 0, 150);
    sn_job *done = sn_scheduler_run(b.scheduler, b.now += 1000);
    cr_assert(done == read && !done->next && !done->status, "the prompt was computed at once");
    sn_job_free(&done);
    cr_expect_eq(sn_kv_cache_length(b.kv[6]), 16, "%d rows", sn_kv_cache_length(b.kv[6]));
    while (b.job[6]) run_round(&b);
    end(&b);
}

/* Session 0 decodes, session 1 of another client is rewound to a position whose state needs 63 rows again: in how many
 * rounds are they computed? */
static int rounds_to_catch_up(fixture *b, uint64_t client) {
    int at = 1, rounds = 0;
    complete_step(b, 1, 1, 0, 64);
    complete_step(b, 1, 1, 64, 86);
    complete_step(b, 1, 1, 150, 1);
    complete_step(b, 0, client, 0, 1);
    add_step(b, 1, 1, 127, 1);
    for (; b->job[1]; at++, rounds++) {
        add_step(b, 0, client, at, 1);
        run_round(b);
        cr_assert_null(b->job[0], "the other session decodes in every batch");
    }
    return rounds;
}

Test(batch_shares, rows_that_a_state_needs_again_delay_another_client_as_a_prompt_does) {
    fixture b;
    begin(&b);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000);
    cr_expect_eq(rounds_to_catch_up(&b, 2), 5, "63 rows, 16 in a round");
    end(&b);
}

Test(batch_shares, rows_that_a_state_needs_again_are_those_of_a_page_where_a_pass_takes_long) {
    fixture b;
    begin(&b);
    sn_scheduler_set_throughput(b.scheduler, 50000, 1000);
    cr_expect_eq(rounds_to_catch_up(&b, 2), 3, "63 rows, 32 in a round");
    end(&b);
}

Test(batch_shares, rows_that_a_state_needs_again_are_an_even_part_of_a_page) {
    fixture b;
    begin(&b);
    sn_scheduler_set_throughput(b.scheduler, 50000, 2000000);
    cr_expect_eq(rounds_to_catch_up(&b, 2), 5, "63 rows, 16 in a round: 25 would need two passes");
    end(&b);
}

Test(batch_shares, rows_that_a_state_needs_again_wait_for_no_session_of_the_same_client) {
    fixture b;
    begin(&b);
    sn_scheduler_set_throughput(b.scheduler, 50000, 600000);
    cr_expect_eq(rounds_to_catch_up(&b, 1), 2);
    end(&b);
}

Test(batch_shares, clients_take_turns_with_rows_that_states_need_again) {
    fixture b;
    begin(&b);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000);
    for (int session = 0; session < 5; session++) {
        const uint64_t client = session < 4 ? 1 : 2;
        complete_step(&b, session, client, 0, 64);
        complete_step(&b, session, client, 64, 86);
        complete_step(&b, session, client, 150, 1);
    }
    for (int session = 0; session < 5; session++) add_step(&b, session, session < 4 ? 1 : 2, 127, 1);
    int rounds = 0;
    for (; b.job[4]; rounds++) run_round(&b);
    cr_expect_leq(rounds, 9, "63 rows, 16 in every second round, took %d", rounds);
    for (int session = 0; session < 4; session++)
        while (b.job[session]) run_round(&b);
    end(&b);
}
