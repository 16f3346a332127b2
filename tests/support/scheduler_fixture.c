#include "tests/support/scheduler_fixture.h"

#include "tests/support/require.h"
#include "tests/support/tiny_model.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>

void scheduler_fixture_begin_with_rows(scheduler_fixture *b, int pages, int batch_rows) {
    virtual_clock_begin_still();
    *b = (scheduler_fixture){.now = 1000000};
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

void scheduler_fixture_begin(scheduler_fixture *b, int pages) { scheduler_fixture_begin_with_rows(b, pages, 0); }

void scheduler_fixture_end(scheduler_fixture *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < SCHEDULER_SESSIONS; i++) sn_kv_cache_free(&b->kv[i]);
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    free(b->rows);
}

static sn_job *new_step(scheduler_fixture *b, int s, int position, int n, int first, int end) {
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
    return job;
}

sn_job *add_step_over(scheduler_fixture *b, int s, int position, int n, int first, int end) {
    sn_job *job = new_step(b, s, position, n, first, end);
    sn_scheduler_add(b->scheduler, job);
    return job;
}

void add_clients_step(scheduler_fixture *b, uint64_t client, int s, int position, int n) {
    sn_job *job = new_step(b, s, position, n, 0, 4);
    job->client = client;
    sn_scheduler_add(b->scheduler, job);
}

sn_job *add_step(scheduler_fixture *b, int s, int position, int n) { return add_step_over(b, s, position, n, 0, 4); }

sn_job *add_step_with_priority(scheduler_fixture *b, int s, int n, int priority) {
    sn_job *job = new_step(b, s, 0, n, 0, 4);
    job->priority = priority;
    job->deadline_us = b->now + 60000000;
    sn_scheduler_add(b->scheduler, job);
    return job;
}

void add_close(scheduler_fixture *b, int s) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_CLOSE, .session = &b->kv[s], .kv = &b->kv[s]};
    sn_scheduler_add(b->scheduler, job);
}

int run_batch(scheduler_fixture *b, sn_status status, unsigned *sessions) {
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
