/* How many rows of prompts a batch has, alone and beside sessions that decode. */
#include "tests/support/require.h"
#include "tests/support/scheduler_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

Test(scheduler_prefill, decodes_first_and_prefills_in_small_chunks) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
    sn_job *prompt = add_step(&b, 0, 0, 500); /* arrived first */
    add_step(&b, 1, 0, 300);
    for (int i = 0; i < 3; i++) { /* a session decodes in every batch */
        add_step(&b, 2, i, 1);
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
        cr_expect_eq(finished, 1u << 2, "the decode step was not in batch %d", i);
        cr_expect_eq(prompt->n_done, (i + 1) * SN_PREFILL_ROWS_CONCURRENT);
    }
    cr_expect_null(b.kv[1] && sn_kv_cache_length(b.kv[1]) ? b.kv[1] : NULL);
    b.now += 2000000;
    cr_expect_eq(run_batch(&b, SN_OK, &finished),
                 1); /* no session decodes: the batch is for prefill, the older prompt first */
    cr_expect_eq(finished, 1u);
    cr_expect_eq(sn_kv_cache_length(b.kv[0]), 500);
    cr_expect_eq(sn_kv_cache_length(b.kv[1]), SN_SPAN_ROWS - (500 - 3 * SN_PREFILL_ROWS_CONCURRENT));
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
    cr_expect_eq(finished, 2u);
    cr_expect_eq(sn_scheduler_forward_passes(b.scheduler), 5);
    scheduler_fixture_end(&b);
}

/* The number of prefill rows in the next batch, with n decode steps of other sessions, if a row adds row_ns to a
 * batch. */
static int prefill_rows_during(scheduler_fixture *b, uint64_t row_ns, int decoding) {
    unsigned finished;
    sn_scheduler_set_throughput(b->scheduler, 0, row_ns);
    add_step(b, 0, 0, sn_span_rows_max(b->span));
    for (int s = 1; s <= decoding; s++) add_step(b, s, 0, 1);
    cr_expect_geq(run_batch(b, SN_OK, &finished), decoding);
    int rows = sn_kv_cache_length(b->kv[0]);
    while (!sn_scheduler_idle(b->scheduler)) run_batch(b, SN_OK, &finished);
    return rows;
}

Test(scheduler_prefill, prefill_delays_decoding_by_a_bounded_time) {
    scheduler_fixture b;
    scheduler_fixture_begin(&b, 64);
    cr_expect_eq(prefill_rows_during(&b, 600000, 3), 16);             /* 10 ms of 0.6 ms each */
    cr_expect_eq(prefill_rows_during(&b, 30000, 3), 328);             /* of 0.03 ms each */
    cr_expect_eq(prefill_rows_during(&b, 1000, 3), SN_SPAN_ROWS - 3); /* of almost 0: as many as fit into a batch */
    cr_expect_eq(prefill_rows_during(&b, 50000000, 3), 8);  /* never so few that the prompt makes no progress */
    cr_expect_eq(prefill_rows_during(&b, 5000000, 20), 16); /* the number of decode rows, rounded down to 8s */
    scheduler_fixture_end(&b);
}

/* As on a GPU. */
Test(scheduler_prefill, a_pass_has_as_many_rows_as_the_device_gains_by_within_a_bounded_time) {
    scheduler_fixture b;
    scheduler_fixture_begin_with_rows(&b, 256, 2048);
    cr_expect_eq(sn_span_rows_max(b.span), 2048);
    cr_expect_eq(prefill_rows_during(&b, 0, 0), SN_SPAN_ROWS, "the time of a row is not known");
    cr_expect_eq(prefill_rows_during(&b, 40000, 0), 2048, "82 ms");
    cr_expect_eq(prefill_rows_during(&b, 60000, 0), 1024, "2048 rows take 123 ms");
    cr_expect_eq(prefill_rows_during(&b, 150000, 0), SN_SPAN_ROWS, "1024 rows take 154 ms");
    cr_expect_eq(prefill_rows_during(&b, 10000000, 0), SN_SPAN_ROWS, "never fewer");
    cr_expect_eq(prefill_rows_during(&b, 6000, 3), 1664, "10 ms while others decode");
    cr_expect_eq(prefill_rows_during(&b, 600000, 3), 16);
    scheduler_fixture_end(&b);
}

Test(scheduler_prefill, a_long_pass_gives_the_bits_of_short_ones) {
    float *output[2];
    for (int k = 0; k < 2; k++) {
        scheduler_fixture b;
        scheduler_fixture_begin_with_rows(&b, 64, 2048);
        sn_scheduler_set_throughput(b.scheduler, 0, k ? 1000 : 0);
        sn_job *job = add_step(&b, 0, 0, 1900), *done = NULL;
        while (!done) done = sn_scheduler_run(b.scheduler, ++b.now);
        cr_assert(done == job && !job->status);
        cr_expect_eq(sn_scheduler_forward_passes(b.scheduler), k ? 1 : 4);
        output[k] = malloc(1900 * EMBD * sizeof(float));
        memcpy(output[k], sn_shared_buffer_data(job->output), 1900 * EMBD * sizeof(float));
        sn_job_free(&done);
        scheduler_fixture_end(&b);
    }
    cr_expect(!memcmp(output[0], output[1], 1900 * EMBD * sizeof(float)));
    free(output[0]), free(output[1]);
}

Test(scheduler_prefill, chunked_prefill_gives_the_same_bits) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
    sn_job *chunked = add_step(&b, 0, 0, 200), *whole = add_step(&b, 3, 0, 200);
    sn_shared_buffer *first = sn_shared_buffer_ref(chunked->output), *second = sn_shared_buffer_ref(whole->output);
    for (int i = 0; i < 2; i++) {
        add_step(&b, 1, i, 1);
        run_batch(&b, SN_OK, &finished);
    }
    while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
    cr_expect(!memcmp(sn_shared_buffer_data(first), sn_shared_buffer_data(second), 200 * EMBD * sizeof(float)));
    sn_shared_buffer_unref(first);
    sn_shared_buffer_unref(second);
    scheduler_fixture_end(&b);
}

Test(scheduler_prefill, prompts_may_delay_decoding_in_the_ratio_of_their_number) {
    static const int rows[][3] = {{3, 1, 48}, {3, 2, 16}, {7, 2, 48}, {2, 3, 16}, {9, 1, 64}}; /* 10 ms are 16.7 rows */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scheduler_fixture b;
        unsigned finished;
        int n = 0;
        scheduler_fixture_begin(&b, 128);
        sn_scheduler_set_throughput(b.scheduler, 0, 600000);
        for (int s = 0; s < rows[i][0]; s++) add_step(&b, s, 0, 80);
        for (int s = 10; s < 10 + rows[i][1]; s++) add_step(&b, s, 0, 1);
        run_batch(&b, SN_OK, &finished);
        for (int s = 0; s < rows[i][0]; s++) n += b.kv[s] ? sn_kv_cache_length(b.kv[s]) : 0;
        cr_expect_eq(n, rows[i][2], "%d rows of %d prompts beside %d", n, rows[i][0], rows[i][1]);
        while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
        scheduler_fixture_end(&b);
    }
}

Test(scheduler_prefill, keeps_prefill_short_for_a_while_after_decoding) {
    scheduler_fixture b;
    scheduler_fixture_begin(&b, 64);
    cr_expect_eq(prefill_rows_during(&b, 600000, 0), SN_SPAN_ROWS, "no session has decoded yet");
    cr_expect_eq(prefill_rows_during(&b, 600000, 3), 16);
    b.now += 500000; /* the decoding sessions have their tokens and are about to send the next steps */
    cr_expect_eq(prefill_rows_during(&b, 600000, 0), 16);
    b.now += 1000000;
    cr_expect_eq(prefill_rows_during(&b, 600000, 0), SN_SPAN_ROWS, "they stopped decoding");
    unsigned finished;
    add_step(&b, 0, 0, 1);
    run_batch(&b, SN_OK, &finished);
    cr_expect_eq(prefill_rows_during(&b, 600000, 0), SN_SPAN_ROWS, "the session that decoded is in prefill now");
    add_step(&b, 1, 0, 1);
    run_batch(&b, SN_OK, &finished);
    add_close(&b, 1);
    run_batch(&b, SN_OK, &finished);
    cr_expect_eq(prefill_rows_during(&b, 600000, 0), SN_SPAN_ROWS, "it was closed");
    scheduler_fixture_end(&b);
}

Test(scheduler_prefill, keeps_prefill_short_for_a_while_after_requests_of_other_nodes) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
    sn_job *prompt = add_step(&b, 0, 0, 500);
    sn_scheduler_note_others(b.scheduler, b.now);
    run_batch(&b, SN_OK, &finished);
    cr_expect_eq(prompt->n_done, SN_PREFILL_ROWS_CONCURRENT);
    b.now += 2000000;
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 1, "the rest comes at once");
    scheduler_fixture_end(&b);
}
