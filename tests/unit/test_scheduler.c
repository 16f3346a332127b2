#include "node/engine/scheduler.h"

#include "model/safetensors.h"
#include "node/engine/kv_transfer.h"
#include "tests/support/far_device.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

enum { JOBS = 24, EMBD = 64, PAGE = SN_KV_PAGE_TOKENS };

typedef struct fixture {
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_kv_cache *kv[JOBS];
    float *rows; /* (SN_SPAN_ROWS_MAX, EMBD) */
    size_t page;
    int64_t now;
} fixture;

/* batch_rows: of the device (sn_device_options). */
static void fixture_begin_with_rows(fixture *b, int pages, int batch_rows) {
    *b = (fixture){.now = 1000000};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1, .batch_rows = batch_rows};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_ctx = batch_rows});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    REQUIRE(sn_span_load(model, b->device, 0, 4, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    tiny_model_remove(&path);
    REQUIRE(sn_span_kv_pool(b->span, 16 << 20, &b->pool, &err));
    b->page = sn_kv_pool_bytes(b->pool) / sn_kv_pool_tokens(b->pool) * PAGE;
    sn_kv_pool_free(&b->pool);
    REQUIRE(sn_span_kv_pool(b->span, (size_t)pages * b->page, &b->pool, &err));
    REQUIRE(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    b->rows = calloc(SN_SPAN_ROWS_MAX * EMBD, sizeof(float));
    for (int i = 0; i < SN_SPAN_ROWS_MAX * EMBD; i++) b->rows[i] = (float)(i % 97) / 97.0f - 0.5f;
}

static void fixture_begin(fixture *b, int pages) { fixture_begin_with_rows(b, pages, 0); }

static void fixture_end(fixture *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < JOBS; i++) sn_kv_cache_free(&b->kv[i]);
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    free(b->rows);
}

/* Adds a step of n tokens for session s over blocks [first, end) to the scheduler. It waits up to 10 s for KV pages. */
static sn_job *add_step_over(fixture *b, int s, int position, int n, int first, int end) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP,
                    .session = &b->kv[s],
                    .kv = &b->kv[s],
                    .first = first,
                    .end = end,
                    .position = position,
                    .n_tokens = n,
                    .arrived_us = b->now,
                    .deadline_us = b->now + 10000000,
                    .step.input = {.name = "rows", .data = b->rows, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    REQUIRE(sn_shared_buffer_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    sn_scheduler_add(b->scheduler, job);
    return job;
}

static sn_job *add_step(fixture *b, int s, int position, int n) { return add_step_over(b, s, position, n, 0, 4); }

static void add_close(fixture *b, int s) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_CLOSE, .session = &b->kv[s], .kv = &b->kv[s]};
    sn_scheduler_add(b->scheduler, job);
}

/* Runs one batch. All finished jobs must have `status`; frees them and returns their number. *sessions has a bit for
 * each of their sessions. */
static int run_batch(fixture *b, sn_status status, unsigned *sessions) {
    int n = 0;
    *sessions = 0;
    for (sn_job *job = sn_scheduler_run(b->scheduler, ++b->now), *next; job; job = next, n++) {
        next = job->next;
        *sessions |= 1u << ((sn_kv_cache **)job->session - b->kv);
        cr_expect_eq(job->status, status, "%s", job->err.text);
        sn_job_free(&job);
    }
    return n;
}

Test(scheduler, batches_many_sessions) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
    for (int s = 0; s < 20; s++) add_step(&b, s, 0, 1 + s % 8);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 20);
    cr_expect_eq(sn_scheduler_forward_passes(b.scheduler), 1);
    cr_expect(sn_scheduler_idle(b.scheduler));
    for (int s = 0; s < 20; s++) cr_expect_eq(sn_kv_cache_length(b.kv[s]), 1 + s % 8);
    fixture_end(&b);
}

Test(scheduler, decodes_first_and_prefills_in_small_chunks) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
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
    fixture_end(&b);
}

/* The number of prefill rows in the next batch, with n decode steps of other sessions, if a row adds row_ns to a
 * batch. */
static int prefill_rows_during(fixture *b, uint64_t row_ns, int decoding) {
    unsigned finished;
    sn_scheduler_set_throughput(b->scheduler, 0, row_ns);
    add_step(b, 0, 0, sn_span_rows_max(b->span));
    for (int s = 1; s <= decoding; s++) add_step(b, s, 0, 1);
    cr_expect_geq(run_batch(b, SN_OK, &finished), decoding);
    int rows = sn_kv_cache_length(b->kv[0]);
    while (!sn_scheduler_idle(b->scheduler)) run_batch(b, SN_OK, &finished);
    return rows;
}

Test(scheduler, prefill_delays_decoding_by_a_bounded_time) {
    fixture b;
    fixture_begin(&b, 64);
    cr_expect_eq(prefill_rows_during(&b, 600000, 3), 16);             /* 10 ms of 0.6 ms each */
    cr_expect_eq(prefill_rows_during(&b, 30000, 3), 328);             /* of 0.03 ms each */
    cr_expect_eq(prefill_rows_during(&b, 1000, 3), SN_SPAN_ROWS - 3); /* of almost 0: as many as fit into a batch */
    cr_expect_eq(prefill_rows_during(&b, 50000000, 3), 8);  /* never so few that the prompt makes no progress */
    cr_expect_eq(prefill_rows_during(&b, 5000000, 20), 16); /* the number of decode rows, rounded down to 8s */
    fixture_end(&b);
}

/* As on a GPU. */
Test(scheduler, a_pass_has_as_many_rows_as_the_device_gains_by_within_a_bounded_time) {
    fixture b;
    fixture_begin_with_rows(&b, 256, 2048);
    cr_expect_eq(sn_span_rows_max(b.span), 2048);
    cr_expect_eq(prefill_rows_during(&b, 0, 0), SN_SPAN_ROWS, "the time of a row is not known");
    cr_expect_eq(prefill_rows_during(&b, 40000, 0), 2048, "82 ms");
    cr_expect_eq(prefill_rows_during(&b, 60000, 0), 1024, "2048 rows take 123 ms");
    cr_expect_eq(prefill_rows_during(&b, 150000, 0), SN_SPAN_ROWS, "1024 rows take 154 ms");
    cr_expect_eq(prefill_rows_during(&b, 10000000, 0), SN_SPAN_ROWS, "never fewer");
    cr_expect_eq(prefill_rows_during(&b, 6000, 3), 1664, "10 ms while others decode");
    cr_expect_eq(prefill_rows_during(&b, 600000, 3), 16);
    fixture_end(&b);
}

Test(scheduler, a_long_pass_gives_the_bits_of_short_ones) {
    float *output[2];
    for (int k = 0; k < 2; k++) {
        fixture b;
        fixture_begin_with_rows(&b, 64, 2048);
        sn_scheduler_set_throughput(b.scheduler, 0, k ? 1000 : 0);
        sn_job *job = add_step(&b, 0, 0, 1900), *done = NULL;
        while (!done) done = sn_scheduler_run(b.scheduler, ++b.now);
        cr_assert(done == job && !job->status);
        cr_expect_eq(sn_scheduler_forward_passes(b.scheduler), k ? 1 : 4);
        output[k] = malloc(1900 * EMBD * sizeof(float));
        memcpy(output[k], sn_shared_buffer_data(job->output), 1900 * EMBD * sizeof(float));
        sn_job_free(&done);
        fixture_end(&b);
    }
    cr_expect(!memcmp(output[0], output[1], 1900 * EMBD * sizeof(float)));
    free(output[0]), free(output[1]);
}

Test(scheduler, prompts_may_delay_decoding_in_the_ratio_of_their_number) {
    static const int rows[][3] = {{3, 1, 48}, {3, 2, 16}, {7, 2, 48}, {2, 3, 16}, {9, 1, 64}}; /* 10 ms are 16.7 rows */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture b;
        unsigned finished;
        int n = 0;
        fixture_begin(&b, 128);
        sn_scheduler_set_throughput(b.scheduler, 0, 600000);
        for (int s = 0; s < rows[i][0]; s++) add_step(&b, s, 0, 80);
        for (int s = 10; s < 10 + rows[i][1]; s++) add_step(&b, s, 0, 1);
        run_batch(&b, SN_OK, &finished);
        for (int s = 0; s < rows[i][0]; s++) n += b.kv[s] ? sn_kv_cache_length(b.kv[s]) : 0;
        cr_expect_eq(n, rows[i][2], "%d rows of %d prompts beside %d", n, rows[i][0], rows[i][1]);
        while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
        fixture_end(&b);
    }
}

Test(scheduler, keeps_prefill_short_for_a_while_after_decoding) {
    fixture b;
    fixture_begin(&b, 64);
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
    fixture_end(&b);
}

Test(scheduler, keeps_prefill_short_for_a_while_after_requests_of_other_nodes) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
    sn_job *prompt = add_step(&b, 0, 0, 500);
    sn_scheduler_note_others(b.scheduler, b.now);
    run_batch(&b, SN_OK, &finished);
    cr_expect_eq(prompt->n_done, SN_PREFILL_ROWS_CONCURRENT);
    b.now += 2000000;
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 1, "the rest comes at once");
    fixture_end(&b);
}

Test(scheduler, batch_wait_holds_for_sessions_of_the_last_batch) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
    sn_scheduler_set_throughput(b.scheduler, 1000, 0);
    for (int s = 0; s < 3; s++) { /* sessions that were not in one batch do not wait for each other */
        add_step(&b, s, 0, 1);
        cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), 0);
    }
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 3);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), 0, "no job is waiting");

    int64_t arrival_us = b.now += 100;
    add_step(&b, 0, 1, 1);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, arrival_us), arrival_us + 500);
    b.now += 300;
    add_step(&b, 1, 1, 1);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), arrival_us + 500, "the wait begins with the first step");
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, arrival_us + 500), 0, "the wait is bounded");
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 2);

    add_step(&b, 2, 1, 1); /* was too late, runs alone, and is not waited for again */
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), 0);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
    add_step(&b, 0, 2, 1);
    add_step(&b, 1, 2, 1);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), 0, "both sessions of the last batch are present");
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 2);
    fixture_end(&b);
}

Test(scheduler, batch_wait_ends_with_enough_rows_or_a_prompt) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
    sn_scheduler_set_throughput(b.scheduler, 100000, 0);
    for (int s = 0; s < 6; s++) add_step(&b, s, 0, 1);
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 0, 1, SN_BATCH_WAIT_ROWS - 1);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), b.now + SN_BATCH_WAIT_US_MAX,
                 "the wait depends on the batch time");
    add_step(&b, 1, 1, 1);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), 0, "four rows are enough for a batch");
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 2, 1, 1);
    cr_expect_gt(sn_scheduler_batch_wait(b.scheduler, b.now), b.now);
    add_step(&b, 7, 0, 100);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), 0, "a prompt is waiting");
    while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
    add_step(&b, 3, 1, 1);
    cr_expect_gt(sn_scheduler_batch_wait(b.scheduler, b.now), b.now);
    for (int s = 4; s < 6; s++) add_close(&b, s);
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 3, 2, 1);
    cr_expect_eq(sn_scheduler_batch_wait(b.scheduler, b.now), 0, "the other sessions of the last batch are closed");
    run_batch(&b, SN_OK, &finished);
    fixture_end(&b);
}

Test(scheduler, a_client_with_many_prompts_does_not_starve_others) {
    fixture b;
    unsigned finished, early = 0;
    fixture_begin(&b, 256);
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
    fixture_end(&b);
}

Test(scheduler, chunked_prefill_gives_the_same_bits) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
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
    fixture_end(&b);
}

Test(scheduler, sessions_over_different_blocks_alternate) {
    fixture b;
    unsigned finished, counted = 0;
    fixture_begin(&b, 64);
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
    fixture_end(&b);
}

Test(scheduler, a_prompt_is_not_starved_by_decoding_over_other_blocks) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
    add_step_over(&b, 1, 0, 1, 2, 4);
    add_step_over(&b, 0, 0, 400, 0, 2);
    int batches = 0, at = 1, chunked = (400 + SN_PREFILL_ROWS_CONCURRENT - 1) / SN_PREFILL_ROWS_CONCURRENT;
    for (finished = 0; batches < 40 && !(finished & 1u); batches++) {
        run_batch(&b, SN_OK, &finished);
        if (finished & 2u) add_step_over(&b, 1, at++, 1, 2, 4);
    }
    cr_expect_eq(batches, 2 * chunked, "the prompt took %d batches: every other one, in small chunks", batches);
    cr_expect_eq(at, chunked + 1, "the other session decoded %d tokens meanwhile", at - 1);
    fixture_end(&b);
}

/* Runs batches; a session whose step ends sends its next one of n rows at once. *steps: of each session. */
static void run_batches(fixture *b, int batches, const int range[][2], int sessions, const int *rows, int *steps) {
    unsigned finished = (1u << sessions) - 1;
    int at[JOBS] = {0};
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

Test(scheduler, a_client_with_many_kinds_of_batches_delays_another_by_one) {
    static const int range[][2] = {{0, 4}, {0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {1, 4}, {2, 3}};
    static const int rows[] = {1, 1, 1, 1, 1, 1, 1, 1};
    fixture b;
    int steps[8];
    fixture_begin(&b, 64);
    run_batches(&b, 28, range, 8, rows, steps);
    cr_expect_eq(steps[0], 14, "it had %d of 28 batches", steps[0]);
    for (int s = 1; s < 8; s++) cr_expect_eq(steps[s], 2, "session %d had %d steps", s, steps[s]);
    fixture_end(&b);
}

/* A session that decodes with an adapter beside many clients with prompts. */
Test(scheduler, many_clients_of_one_kind_delay_another_kind_by_one_batch) {
    fixture b;
    unsigned finished;
    int at = 0, decoded = 0;
    fixture_begin(&b, 256);
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
    fixture_end(&b);
}

Test(scheduler, decode_steps_of_one_client_delay_another_by_a_bounded_time) {
    static const int range[][2] = {{0, 4}, {0, 4}, {0, 4}, {0, 4}, {0, 4}, {0, 4}, {0, 4}};
    static const int rows[] = {1, 8, 8, 8, 8, 8, 8};
    fixture b;
    int steps[7], n = 0;
    fixture_begin(&b, 64);
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
    fixture_end(&b);
}

Test(scheduler, prompts_of_one_client_delay_another_as_one_does) {
    fixture b;
    unsigned finished;
    int n = 0;
    fixture_begin(&b, 128);
    sn_scheduler_set_throughput(b.scheduler, 0, 600000);
    for (int s = 0; s < 9; s++) add_step(&b, s, 0, 80)->client = 1;
    add_step(&b, 10, 0, 1)->client = 2;
    run_batch(&b, SN_OK, &finished);
    for (int s = 0; s < 9; s++) n += b.kv[s] ? sn_kv_cache_length(b.kv[s]) : 0;
    cr_expect_eq(n, 16, "%d rows", n);
    while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
    fixture_end(&b);
}

/* Adds a job that reads the session's first n rows. */
static void add_read(fixture *b, int s, int n, uint64_t client) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){
        .kind = SN_JOB_KV_READ, .session = &b->kv[s], .kv = &b->kv[s], .client = client, .end = 4, .n_tokens = n};
    size_t row = sn_kv_transfer_row_floats(sn_span_hparams(b->span), 0, 4);
    REQUIRE(sn_shared_buffer_new((size_t)n * row * sizeof(float), &job->output, &err));
    sn_scheduler_add(b->scheduler, job);
}

Test(scheduler, clients_take_turns_with_copies_of_kv_pages) {
    fixture b;
    unsigned finished, early = 0;
    fixture_begin(&b, 64);
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
    fixture_end(&b);
}

Test(scheduler, a_read_comes_before_a_step_that_rewinds_what_it_reads) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 4);
    add_step(&b, 0, 0, 40);
    run_batch(&b, SN_OK, &finished);
    add_read(&b, 0, 40, 0);
    add_step(&b, 0, 36, 2);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 2);
    cr_expect_eq(sn_kv_cache_length(b.kv[0]), 38);
    fixture_end(&b);
}

Test(scheduler, copies_that_wait_for_pages_delay_no_others) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 4);
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
    fixture_end(&b);
}

static sn_adapter *adapter_of(fixture *b, float scale) {
    sn_adapter *t = NULL;
    sn_buf image;
    float values[4 * EMBD];
    for (int i = 0; i < 4 * EMBD; i++) values[i] = scale * (float)(i % 89 - 44) / 44;
    const sn_safetensors_entry entries[] = {{"prompt.1", SN_F32, 2, {3, EMBD}, values},
                                            {"lora_a.2.q", SN_F32, 2, {2, EMBD}, values},
                                            {"lora_b.2.q", SN_F32, 2, {EMBD, 2}, values + EMBD}};
    sn_buf_init(&image, 1 << 20);
    REQUIRE(sn_safetensors_serialize(entries, 3, &image, &err));
    REQUIRE(sn_adapter_load(b->span, image.data, image.len, &t, &err));
    sn_buf_fini(&image);
    return t;
}

/* Computes n rows alone and at once: the expected output of a session with the adapter. */
static float *compute_with_adapter(fixture *b, const sn_adapter *adapter, int n) {
    sn_kv_cache *kv = NULL;
    float *out = calloc((size_t)n * EMBD, sizeof *out);
    sn_tensor input = {.name = "rows", .data = b->rows, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}};
    REQUIRE(sn_kv_cache_new(b->pool, &kv, &err));
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    sn_span_sequence part = {kv, &input, 0, n, out};
    REQUIRE(sn_span_forward_adapter(b->span, 0, 4, adapter, 1, &part, NULL, &err));
    sn_kv_cache_free(&kv);
    return out;
}

Test(scheduler, sessions_of_one_adapter_share_batches_with_the_same_bits) {
    fixture b;
    unsigned finished;
    enum { ROWS = 40 };
    fixture_begin(&b, 64);
    sn_adapter *adapters[3] = {NULL, adapter_of(&b, 0.5f), adapter_of(&b, 0.25f)};
    float *want[3];
    for (int k = 0; k < 3; k++) want[k] = compute_with_adapter(&b, adapters[k], ROWS);
    cr_assert(memcmp(want[0], want[1], ROWS * EMBD * sizeof(float)));
    cr_assert(memcmp(want[2], want[1], ROWS * EMBD * sizeof(float)));
    sn_shared_buffer *outputs[6];
    for (int s = 0; s < 6; s++) { /* two sessions of each kind */
        sn_job *job = add_step(&b, s, 0, ROWS);
        job->step.adapter = s % 3 ? &adapters[s % 3] : NULL;
        outputs[s] = sn_shared_buffer_ref(job->output);
    }
    unsigned done = 0;
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 2, "sessions %x were in batch %d", finished, i);
        done |= finished;
    }
    cr_expect_eq(done, 63u);
    cr_expect_eq(sn_scheduler_forward_passes(b.scheduler), 3);
    for (int s = 0; s < 6; s++) {
        cr_expect(!memcmp(sn_shared_buffer_data(outputs[s]), want[s % 3], ROWS * EMBD * sizeof(float)), "session %d",
                  s);
        sn_shared_buffer_unref(outputs[s]);
    }
    for (int k = 0; k < 3; k++) free(want[k]);
    sn_adapter_free(&adapters[1]);
    sn_adapter_free(&adapters[2]);
    fixture_end(&b);
}

Test(scheduler, no_adapter_starves) {
    fixture b;
    unsigned finished;
    int at[5] = {0}, n_steps[5] = {0};
    fixture_begin(&b, 64);
    sn_adapter *adapters[5];
    for (int s = 0; s < 5; s++) adapters[s] = adapter_of(&b, (float)s);
    for (int s = 0; s < 5; s++) add_step(&b, s, at[s]++, 1)->step.adapter = &adapters[s];
    for (int i = 0; i < 20; i++) {
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
        for (int s = 4; s >= 0; s--) /* the later session sends its step earlier */
            if (finished & 1u << s) {
                n_steps[s]++;
                add_step(&b, s, at[s]++, 1)->step.adapter = &adapters[s];
            }
    }
    for (int s = 0; s < 5; s++) cr_expect_eq(n_steps[s], 4, "session %d had %d steps", s, n_steps[s]);
    while (!sn_scheduler_idle(b.scheduler)) run_batch(&b, SN_OK, &finished);
    for (int s = 0; s < 5; s++) sn_adapter_free(&adapters[s]);
    fixture_end(&b);
}

Test(scheduler, cancelled_jobs_return_undone_and_closing_frees) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 64);
    add_step(&b, 0, 0, 40);
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 1, 0, 1);
    sn_job *job = add_step(&b, 0, 40, 200);
    run_batch(&b, SN_OK, &finished); /* the first chunk was computed */
    cr_expect_eq(job->n_done, SN_PREFILL_ROWS_CONCURRENT);
    atomic_store(&job->cancelled, true);
    cr_expect_eq(run_batch(&b, SN_REFUSED, &finished), 1);
    cr_expect_eq(finished, 1u);
    cr_expect_eq(sn_kv_cache_length(b.kv[0]), 40);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 3 * b.page, "the pages of the cancelled job were not freed");
    add_close(&b, 0);
    add_close(&b, 1);
    add_close(&b, 2); /* has no KV pages yet */
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 3);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 0);
    cr_expect_null(b.kv[0]);
    fixture_end(&b);
}

Test(scheduler, a_step_waits_for_kv_pages_until_its_deadline) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 4);
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
    fixture_end(&b);
}

Test(scheduler, new_sessions_get_kv_pages_in_arrival_order) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 4);
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
    fixture_end(&b);
}

Test(scheduler, a_rewind_frees_kv_pages_before_it_takes_some) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 4);
    add_step(&b, 0, 0, 4 * PAGE);
    run_batch(&b, SN_OK, &finished);
    add_step(&b, 0, PAGE, 3 * PAGE);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
    cr_expect_eq(sn_kv_cache_length(b.kv[0]), 4 * PAGE);
    fixture_end(&b);
}

Test(scheduler, counts_and_warns_of_unplanned_copies) {
    fixture b;
    unsigned finished;
    far_device far;
    void *rows;
    fixture_begin(&b, 64);
    far_device_init(&far, SN_DEVICE_CUDA, 0);
    REQUIRE(far.base.ops->alloc(&far.base, 4 * EMBD * sizeof(float), &rows, &err));
    const sn_guard_monitor *watch = sn_scheduler_watch(b.scheduler);
    add_step(&b, 0, 0, 40);
    run_batch(&b, SN_OK, &finished);
    cr_expect_eq(watch->steps, 1);
    cr_expect_eq(watch->bytes, 0, "host memory belongs to the CPU device: no copy");
    cr_expect_eq(watch->warned_us, 0);
    int64_t warned = 0;
    for (uint64_t i = 1; i <= 3; i++) {
        sn_job *job = add_step(&b, 0, 36 + 4 * (int)i, 4);
        job->step.input.device = &far.base;
        job->step.input.data = rows;
        run_batch(&b, SN_OK, &finished);
        cr_expect_eq(watch->bytes, i * 4 * EMBD * sizeof(float));
        cr_expect_eq(watch->unexpected_bytes, watch->bytes);
        cr_expect_eq(watch->unexpected_steps, i);
        if (i == 1) warned = watch->warned_us;
        cr_expect(warned && watch->warned_us == warned, "warned more than once a minute");
    }
    far.base.ops->free(&far.base, rows, 4 * EMBD * sizeof(float));
    fixture_end(&b);
}

Test(scheduler, frees_pending_jobs) {
    fixture b;
    fixture_begin(&b, 4);
    add_step(&b, 0, 0, 100);
    add_close(&b, 1);
    cr_expect_not(sn_scheduler_idle(b.scheduler));
    fixture_end(&b);
}

/* -- priorities */

static sn_job *add_step_with_priority(fixture *b, int s, int n, int priority) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP,
                    .session = &b->kv[s],
                    .kv = &b->kv[s],
                    .end = 4,
                    .n_tokens = n,
                    .priority = priority,
                    .arrived_us = b->now,
                    .deadline_us = b->now + 60000000,
                    .step.input = {.name = "rows", .data = b->rows, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    REQUIRE(sn_shared_buffer_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    sn_scheduler_add(b->scheduler, job);
    return job;
}

Test(scheduler, serves_prompts_by_priority_then_arrival) {
    fixture b;
    unsigned finished;
    fixture_begin(&b, 200);
    const int priority[] = {0, -5, 0, 10, 10, -5}, order[] = {3, 4, 0, 2, 1, 5};
    for (int s = 0; s < 6; s++) add_step_with_priority(&b, s, SN_SPAN_ROWS, priority[s]);
    for (int i = 0; i < 6; i++) {
        cr_expect_eq(run_batch(&b, SN_OK, &finished), 1);
        cr_expect_eq(finished, 1u << order[i], "in batch %d", i);
    }
    fixture_end(&b);
}

Test(scheduler, no_session_waiting_for_kv_pages_is_overtaken_forever) {
    for (int seconds = 1; seconds < 8; seconds += 6) {
        fixture b;
        unsigned finished;
        fixture_begin(&b, SN_SPAN_ROWS / PAGE);
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
        fixture_end(&b);
    }
}
