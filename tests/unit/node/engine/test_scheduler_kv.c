/* KV pages: which sessions get those that are free, which ones wait, and copies of them. */
#include "node/engine/kv_transfer.h"
#include "tests/support/require.h"
#include "tests/support/scheduler_fixture.h"

#include <criterion/criterion.h>

Test(scheduler_kv, a_step_waits_for_kv_pages_until_its_deadline) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 4);
    add_step(&b, 0, 0, 3 * PAGE);
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 1, 0, 2 * PAGE);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 0);
    cr_expect(sn_scheduler_waiting(b.scheduler));
    add_step(&b, 0, 3 * PAGE, 1); /* a session with KV pages continues */
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
    cr_expect_eq(finished, 1u);
    b.now += 10000000;
    cr_expect_eq(run_batch(&b, SN_RETRY, &finished), 1);
    cr_expect_eq(finished, 2u);
    add_step(&b, 1, 0, 2 * PAGE);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 0);
    add_close(&b, 0);
    run_batch(&b, SN_OK, &finished); /* closes a session; its pages may be used at once or in the next batch */
    while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
    cr_expect_eq(sn_kv_cache_length(b.kv[1]), 2 * PAGE);
    add_step(&b, 2, 0, 4 * PAGE + 1);
    cr_expect_eq(run_batch(&b, SN_REFUSED, &finished), 1);
    scheduler_fixture_end(&b);
}

Test(scheduler_kv, new_sessions_get_kv_pages_in_arrival_order) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 4);
    add_step(&b, 0, 0, 2 * PAGE);
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 1, 0, 3 * PAGE); /* large, and first */
    add_step(&b, 2, 0, PAGE);     /* would fit together with session 0 */
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 0);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 2 * b.page);
    add_close(&b, 0);
    while (!sn_scheduler_idle(b.scheduler) && b.now < 1000100) run_batch(&b, SN_OK, &finished);
    cr_expect_eq(sn_kv_cache_length(b.kv[1]), 3 * PAGE);
    cr_expect_eq(sn_kv_cache_length(b.kv[2]), PAGE);
    scheduler_fixture_end(&b);
}

Test(scheduler_kv, no_session_waiting_for_kv_pages_is_overtaken_forever) {
    for (int seconds = 1; seconds < 8; seconds += 6) {
        scheduler_fixture b;
        unsigned finished;
        scheduler_fixture_begin(&b, SN_SPAN_ROWS / PAGE);
        add_step_with_priority(&b, 9, SN_SPAN_ROWS, 0);
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1); /* holds the whole KV cache */
        add_step_with_priority(&b, 0, SN_SPAN_ROWS, 0);
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 0);
        b.now += seconds * 1000000;
        add_step_with_priority(&b, 1, SN_SPAN_ROWS, 100);
        for (unsigned all = 0, first = 0; all != 3 && !sn_scheduler_idle(b.scheduler);) {
            if (run_batch(&b, SN_OK, &finished) == 0 || finished & 1u << 9) {
                if (!all && b.kv[9]) add_close(&b, 9);
                continue;
            }
            if (!first) cr_expect_eq(first = finished, seconds < 5 ? 2u : 1u, "after %d s", seconds);
            for (int s = 0; s < 2; s++)
                if (finished & 1u << s) add_close(&b, s);
            all |= finished & 3u;
        }
        while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
        scheduler_fixture_end(&b);
    }
}

Test(scheduler_kv, a_rewind_frees_kv_pages_before_it_takes_some) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 4);
    add_step(&b, 0, 0, 4 * PAGE);
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 0, PAGE, 3 * PAGE);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
    cr_expect_eq(sn_kv_cache_length(b.kv[0]), 4 * PAGE);
    scheduler_fixture_end(&b);
}

/* -- copies */

/* Adds a job that reads the session's first n rows. */
static void add_read(scheduler_fixture *b, int s, int n, uint64_t client) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){
        .kind = SN_JOB_KV_READ, .session = &b->kv[s], .kv = &b->kv[s], .client = client, .end = 4, .n_tokens = n};
    size_t row = sn_kv_transfer_row_floats(sn_span_hparams(b->span), 0, 4);
    REQUIRE(sn_shared_buffer_new((size_t)n * row * sizeof(float), &job->output, &err));
    sn_scheduler_add(b->scheduler, job);
}

Test(scheduler_kv, clients_take_turns_with_copies_of_kv_pages) {
    scheduler_fixture b;
    unsigned finished, early = 0;
    scheduler_fixture_begin(&b, 64);
    for (int s = 0; s < 3; s++) add_step(&b, s, 0, 40);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 3);
    for (int i = 0; i < 6; i++) add_read(&b, 0, 40, 1);
    add_read(&b, 1, 40, 2);
    add_read(&b, 2, 40, UINT64_MAX);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1, "one part in each round");
        early |= finished;
    }
    cr_expect_eq(early, 7u);
    for (int i = 0; i < 5; i++) cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
    cr_expect(sn_scheduler_idle(b.scheduler));
    scheduler_fixture_end(&b);
}

Test(scheduler_kv, a_read_comes_before_a_step_that_rewinds_what_it_reads) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 4);
    add_step(&b, 0, 0, 40);
    run_batch(&b, SN_OK, &finished);
    add_read(&b, 0, 40, 0);
    add_step(&b, 0, 36, 2);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 2);
    cr_expect_eq(sn_kv_cache_length(b.kv[0]), 38);
    scheduler_fixture_end(&b);
}

Test(scheduler_kv, copies_that_wait_for_pages_delay_no_others) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 4);
    for (int s = 0; s < 2; s++) add_step(&b, s, 0, 2 * PAGE)->client = 2;
    run_batch(&b, SN_OK, &finished);
    cr_assert_eq(sn_kv_pool_bytes_used(b.pool), sn_kv_pool_bytes(b.pool));
    for (int s = 2; s < 4; s++) {
        sn_job *job = add_step(&b, s, 0, 1);
        job->kind = SN_JOB_KV_WRITE;
        job->client = (uint64_t)s + 1;
    }
    for (int i = 0; i < 6; i++) add_read(&b, i % 2, PAGE, 1 + (uint64_t)i % 2);
    for (int i = 0; i < 6; i++) cr_expect_eq(run_batch(&b, SN_OK, &finished), 1, "one part in each round");
    b.now += 10000000;
    cr_expect_eq(run_batch(&b, SN_RETRY, &finished), 2, "those that wait end at their deadline");
    cr_expect(sn_scheduler_idle(b.scheduler));
    scheduler_fixture_end(&b);
}
