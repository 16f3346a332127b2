/* Whose steps come first: clients, kinds of batches and priorities. */
#include "tests/support/require.h"
#include "tests/support/scheduler_fixture.h"

#include <criterion/criterion.h>

Test(scheduler_fairness, a_client_with_many_prompts_does_not_starve_others) {
    scheduler_fixture b;
    unsigned finished, early = 0;
    scheduler_fixture_begin(&b, 256);
    for (int s = 0; s < 5; s++) add_step(&b, s, 0, SN_SPAN_ROWS)->client = 1; /* each fills a batch */
    add_step(&b, 5, 0, SN_SPAN_ROWS)->client = 2;                             /* arrived last */
    add_step(&b, 6, 0, SN_SPAN_ROWS)->client = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
        early |= finished;
    }
    cr_expect_eq(early, 1u << 0 | 1u << 5 | 1u << 6, "sessions %x were first", early);
    for (int s = 1; s < 5; s++) { /* the client's own prompts in their order */
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
        cr_expect_eq(finished, 1u << s);
    }
    cr_expect(sn_scheduler_idle(b.scheduler));
    scheduler_fixture_end(&b);
}

Test(scheduler_fairness, sessions_over_different_blocks_alternate) {
    scheduler_fixture b;
    unsigned finished, counted = 0;
    scheduler_fixture_begin(&b, 64);
    int at[4] = {0};
    for (int s = 0; s < 4; s++) add_step_over(&b, s, at[s]++, 1, s, s + 1);
    for (int i = 0; i < 8; i++) { /* a finished session sends its next step at once */
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
        counted |= finished;
        for (int s = 0; s < 4; s++)
            if (finished & 1u << s) add_step_over(&b, s, at[s]++, 1, s, s + 1);
    }
    cr_expect_eq(counted, 15u);
    for (int s = 0; s < 4; s++) cr_expect_eq(at[s], 3, "session %d had %d steps", s, at[s] - 1);
    scheduler_fixture_end(&b);
}

Test(scheduler_fairness, a_prompt_is_not_starved_by_decoding_over_other_blocks) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
    add_step_over(&b, 1, 0, 1, 2, 4);
    add_step_over(&b, 0, 0, 400, 0, 2);
    int batches = 0, at = 1, chunked = (400 + SN_PREFILL_ROWS_CONCURRENT - 1) / SN_PREFILL_ROWS_CONCURRENT;
    for (finished = 0; batches < 40 && !(finished & 1u); batches++) {
        run_batch(&b, SN_OK, &finished);
        if (finished & 2u) add_step_over(&b, 1, at++, 1, 2, 4);
    }
    cr_expect_eq(batches, 2 * chunked, "the prompt took %d batches: every other one, in small chunks", batches);
    cr_expect_eq(at, chunked + 1, "the other session decoded %d tokens meanwhile", at - 1);
    scheduler_fixture_end(&b);
}

/* Runs batches; a session whose step ends sends its next one of n rows at once. *steps: of each session. */
static void run_batches(scheduler_fixture *b, int batches, const int range[][2], int sessions, const int *rows,
                        int *steps) {
    unsigned finished = (1u << sessions) - 1;
    int at[SCHEDULER_SESSIONS] = {0};
    for (int s = 0; s < sessions; s++) steps[s] = -1;
    for (int i = 0; i <= batches; i++) {
        for (int s = 0; s < sessions; s++) {
            if (!(finished & 1u << s)) continue;
            steps[s]++;
            add_step_over(b, s, at[s], rows[s], range[s][0], range[s][1])->client = s ? 1 : UINT64_MAX;
            at[s] += rows[s];
        }
        if (i < batches) run_batch(b, SN_OK, &finished);
    }
    while (!sn_scheduler_idle(b->scheduler)) run_batch(b, SN_OK, &finished);
}

Test(scheduler_fairness, a_client_with_many_kinds_of_batches_delays_another_by_one) {
    static const int range[][2] = {{0, 4}, {0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {1, 4}, {2, 3}};
    static const int rows[] = {1, 1, 1, 1, 1, 1, 1, 1};
    scheduler_fixture b;
    int steps[8];
    scheduler_fixture_begin(&b, 64);
    run_batches(&b, 28, range, 8, rows, steps);
    cr_expect_eq(steps[0], 14, "it had %d of 28 batches", steps[0]);
    for (int s = 1; s < 8; s++) cr_expect_eq(steps[s], 2, "session %d had %d steps", s, steps[s]);
    scheduler_fixture_end(&b);
}

/* A session that decodes with an adapter beside many clients with prompts. */
Test(scheduler_fairness, many_clients_of_one_kind_delay_another_kind_by_one_batch) {
    scheduler_fixture b;
    unsigned finished;
    int at = 0, decoded = 0;
    scheduler_fixture_begin(&b, 256);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000); /* 10 ms are 16.7 rows */
    for (int s = 1; s < 10; s++) add_step(&b, s, 0, 200)->client = (uint64_t)s;
    add_step_over(&b, 0, at++, 1, 0, 2)->client = 100;
    for (int i = 0; i < 20; i++) {
        run_batch(&b, SN_OK, &finished);
        if (!(finished & 1u)) continue;
        add_step_over(&b, 0, at++, 1, 0, 2)->client = 100;
        decoded++;
    }
    cr_expect_eq(decoded, 10, "it had %d of 20 batches", decoded);
    while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
    scheduler_fixture_end(&b);
}

Test(scheduler_fairness, decode_steps_of_one_client_delay_another_by_a_bounded_time) {
    static const int range[][2] = {{0, 4}, {0, 4}, {0, 4}, {0, 4}, {0, 4}, {0, 4}, {0, 4}};
    static const int rows[] = {1, 8, 8, 8, 8, 8, 8};
    scheduler_fixture b;
    int steps[7], n = 0;
    scheduler_fixture_begin(&b, 64);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000); /* 10 ms are 16.7 rows */
    run_batches(&b, 12, range, 7, rows, steps);
    cr_expect_eq(steps[0], 12, "it had %d of 12 batches", steps[0]);
    for (int s = 1; s < 7; s++) cr_expect_eq(steps[s], 4, "session %d had %d steps of 12 x 16 / 6 / 8", s, steps[s]);
    sn_scheduler_set_throughput(b.scheduler, 20000, 600000); /* a pass of one row takes as long as 33 */
    for (int s = 0; s < 7; s++) add_close(&b, s);
    run_batch(&b, SN_OK, &(unsigned){0});
    run_batches(&b, 12, range, 7, rows, steps);
    for (int s = 1; s < 7; s++) n += steps[s];
    cr_expect_eq(n, 48, "the others had %d steps of 12 x 32 / 8", n);
    scheduler_fixture_end(&b);
}

Test(scheduler_fairness, prompts_of_one_client_delay_another_as_one_does) {
    scheduler_fixture b;
    unsigned finished;
    int n = 0;
    scheduler_fixture_begin(&b, 128);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000);
    for (int s = 0; s < 9; s++) add_step(&b, s, 0, 80)->client = 1;
    add_step(&b, 10, 0, 1)->client = 2;
    run_batch(&b, SN_OK, &finished);
    for (int s = 0; s < 9; s++) n += b.kv[s] ? sn_kv_cache_length(b.kv[s]) : 0;
    cr_expect_eq(n, 16, "%d rows", n);
    while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
    scheduler_fixture_end(&b);
}

Test(scheduler_fairness, serves_prompts_by_priority_then_arrival) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 200);
    const int priority[] = {0, -5, 0, 10, 10, -5}, order[] = {3, 4, 0, 2, 1, 5};
    for (int s = 0; s < 6; s++) add_step_with_priority(&b, s, SN_SPAN_ROWS, priority[s]);
    for (int i = 0; i < 6; i++) {
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
        cr_expect_eq(finished, 1u << order[i], "in batch %d", i);
    }
    scheduler_fixture_end(&b);
}
