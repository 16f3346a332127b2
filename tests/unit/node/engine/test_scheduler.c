/* Batches: of which sessions, with which adapters, how long one waits for others, and jobs that end otherwise. */
#include "model/safetensors.h"
#include "tests/support/far_device.h"
#include "tests/support/require.h"
#include "tests/support/scheduler_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

Test(scheduler, batches_many_sessions) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
    for (int s = 0; s < 20; s++) add_step(&b, s, 0, 1 + s % 8);
    cr_expect_eq(run_batch(&b, SN_OK, &finished), 20);
    cr_expect_eq(sn_scheduler_forward_passes(b.scheduler), 1);
    cr_expect(sn_scheduler_idle(b.scheduler));
    for (int s = 0; s < 20; s++) cr_expect_eq(sn_kv_cache_length(b.kv[s]), 1 + s % 8);
    scheduler_fixture_end(&b);
}

Test(scheduler, batch_wait_holds_for_sessions_of_the_last_batch) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
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
    scheduler_fixture_end(&b);
}

Test(scheduler, batch_wait_ends_with_enough_rows_or_a_prompt) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
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
    scheduler_fixture_end(&b);
}

/* -- adapters */

static sn_adapter *adapter_of(scheduler_fixture *b, float scale) {
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
static float *compute_with_adapter(scheduler_fixture *b, const sn_adapter *adapter, int n) {
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
    scheduler_fixture b;
    unsigned finished;
    enum { ROWS = 40 };
    scheduler_fixture_begin(&b, 64);
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
    scheduler_fixture_end(&b);
}

Test(scheduler, no_adapter_starves) {
    scheduler_fixture b;
    unsigned finished;
    int at[5] = {0}, n_steps[5] = {0};
    scheduler_fixture_begin(&b, 64);
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
    scheduler_fixture_end(&b);
}

/* -- jobs that end otherwise, and copies */

Test(scheduler, cancelled_jobs_return_undone_and_closing_frees) {
    scheduler_fixture b;
    unsigned finished;
    scheduler_fixture_begin(&b, 64);
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
    scheduler_fixture_end(&b);
}

Test(scheduler, frees_pending_jobs) {
    scheduler_fixture b;
    scheduler_fixture_begin(&b, 4);
    add_step(&b, 0, 0, 100);
    add_close(&b, 1);
    cr_expect_not(sn_scheduler_idle(b.scheduler));
    scheduler_fixture_end(&b);
}

Test(scheduler, counts_and_warns_of_unplanned_copies) {
    scheduler_fixture b;
    unsigned finished;
    far_device far;
    void *rows;
    scheduler_fixture_begin(&b, 64);
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
    scheduler_fixture_end(&b);
}
