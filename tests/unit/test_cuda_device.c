/* The CUDA backend beyond the conformance suite, on the stand-in: recorded batches, the order of two streams, waits,
 * faults at every step. */
#include "base/clock.h"
#include "device/backends.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)
#define REFUSED(call, error_part)                                                                                      \
    do {                                                                                                               \
        cr_assert_eq(call, SN_REFUSED);                                                                                \
        cr_assert(strstr(err.text, error_part), "\"%s\" does not say \"%s\"", err.text, error_part);                   \
    } while (0)

static const sn_device_limits limits = {.rows = 64, .width = 64, .context = 256, .heads = 2, .head_dim = 16};

static sn_device *open_device(void) {
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err));
    OK(d->ops->prepare(d, &limits, &err));
    return d;
}

static void close_device(sn_device **d) {
    sn_device_close(d);
    cr_assert_eq(cuda_stand_in_used(), 0, "%zu bytes of device memory were left", cuda_stand_in_used());
    cr_assert_eq(cuda_stand_in_pinned(), 0, "%zu bytes of pinned memory were left", cuda_stand_in_pinned());
    cr_assert_eq(cuda_stand_in_objects(), 0, "%d objects were left", cuda_stand_in_objects());
}

/* -- a model of one matrix and one attention, run as a span does */

enum { WIDTH = 32, HEADS = 2, DIM = 16, ROWS_MAX = 24, PAGES = 8 };
static const sn_kv_shape shape = {1, HEADS, DIM, 16, SN_KV_F32, 0};

typedef struct model {
    sn_device *d;
    sn_weight weight;
    void *pages[PAGES];
    float *x, *h, *out;
} model;

static void *new_bytes(sn_device *d, size_t bytes) {
    void *at;
    OK(d->ops->alloc(d, bytes, &at, &err));
    return at;
}

static model model_new(sn_device *d) {
    model m = {.d = d, .weight = {SN_F32, WIDTH, WIDTH, 0, NULL}};
    float values[WIDTH * WIDTH], *file = test_random_weight(SN_F32, WIDTH, WIDTH, 3, values);
    void *image;
    OK(d->ops->weight_size(d, SN_F32, WIDTH, WIDTH, &m.weight.bytes, &err));
    image = malloc(m.weight.bytes);
    OK(d->ops->weight_pack(d, SN_F32, WIDTH, WIDTH, file, image, &err));
    m.weight.device = new_bytes(d, m.weight.bytes);
    OK(d->ops->upload(d, (void *)m.weight.device, image, m.weight.bytes, &err));
    free(image);
    test_weight_free(file);
    for (int i = 0; i < PAGES; i++) m.pages[i] = new_bytes(d, d->ops->kv_page_bytes(d, &shape));
    m.x = new_bytes(d, ROWS_MAX * WIDTH * sizeof(float));
    m.h = new_bytes(d, ROWS_MAX * WIDTH * sizeof(float));
    m.out = new_bytes(d, ROWS_MAX * WIDTH * sizeof(float));
    return m;
}

static void model_free(model *m) {
    void *all[] = {(void *)m->weight.device, m->x, m->h, m->out};
    for (int i = 0; i < 4; i++) m->d->ops->free(m->d, all[i], 0);
    for (int i = 0; i < PAGES; i++) m->d->ops->free(m->d, m->pages[i], 0);
}

static sn_status issue_ops(model *m, int n) {
    const sn_device_ops *ops = m->d->ops;
    sn_linear linear = {.weight = &m->weight, .y = m->h};
    sn_status status = ops->linear(m->d, n, m->x, 1, &linear, &err);
    if (!status) status = ops->kv_store(m->d, 0, m->h, m->x, &err);
    if (!status) status = ops->attention(m->d, &(sn_attention){.n_heads = HEADS, .scale = 0.25f}, m->h, m->out, &err);
    return status ? status : ops->add(m->d, (size_t)n * WIDTH, m->out, m->x, &err);
}

/* One batch of n rows from `position` on; true if it was replayed from a recorded batch. */
static bool run_step(model *m, uint64_t graph, int position, int n, uint64_t seed, float *out) {
    float *x = test_random_floats((size_t)n * WIDTH, seed);
    sn_sequence sequence = {m->pages, position, 0, n, {0}};
    sn_batch pass = {&shape, n, 1, &sequence, graph};
    bool recorded;
    OK(m->d->ops->upload(m->d, m->x, x, (size_t)n * WIDTH * sizeof *x, &err));
    OK(m->d->ops->batch_begin(m->d, &pass, &recorded, &err));
    if (!recorded) OK(issue_ops(m, n));
    OK(m->d->ops->batch_end(m->d, &err));
    OK(m->d->ops->download(m->d, out, m->out, (size_t)n * WIDTH * sizeof *x, &err));
    free(x);
    return recorded;
}

/* -- recorded batches */

Test(cuda_records, a_recorded_step_matches_a_direct_one_at_any_position) {
    sn_device *d = open_device();
    model plain = model_new(d), recorded = model_new(d);
    float want[ROWS_MAX * WIDTH], got[ROWS_MAX * WIDTH];
    for (int position = 0; position < 100; position++) {
        cr_assert_not(run_step(&plain, 0, position, 1, 100 + (uint64_t)position, want));
        cr_assert_eq(run_step(&recorded, 7, position, 1, 100 + (uint64_t)position, got), position >= 2, "step %d",
                     position);
        cr_assert_eq(memcmp(want, got, WIDTH * sizeof *got), 0, "bits differ in step %d", position);
    }
    cr_assert_eq(d->graphs_captured, 1);
    cr_assert_eq(cuda_stand_in_captures(), 1);
    cr_assert_eq(cuda_stand_in_graph_launches(), 99);
    model_free(&plain);
    model_free(&recorded);
    close_device(&d);
}

Test(cuda_records, each_shape_is_recorded_once) {
    sn_device *d = open_device();
    model m = model_new(d);
    float out[ROWS_MAX * WIDTH];
    for (int round = 0; round < 5; round++)
        for (int n = 1; n <= ROWS_MAX; n += 11)
            for (uint64_t graph = 1; graph <= 2; graph++) run_step(&m, graph, 16 * round, n, 1, out);
    cr_assert_eq(d->graphs_captured, 6, "2 names of 3 shapes were recorded %llu times",
                 (unsigned long long)d->graphs_captured);
    for (int round = 0; round < 5; round++) run_step(&m, 0, 0, 1, 1, out);
    cr_assert_eq(d->graphs_captured, 6, "a batch without a name was recorded");
    model_free(&m);
    close_device(&d);
}

Test(cuda_records, evicts_the_oldest_record) {
    sn_device *d = open_device();
    model m = model_new(d);
    float out[WIDTH], want[WIDTH];
    run_step(&m, 0, 0, 1, 9, want);
    for (int round = 0; round < 2; round++)
        for (uint64_t graph = 1; graph <= 300; graph++)
            for (int i = 0; i < 3; i++) {
                cr_assert_eq(run_step(&m, graph, 0, 1, 9, out), i == 2);
                cr_assert_eq(memcmp(out, want, sizeof want), 0);
            }
    cr_assert_eq(d->graphs_captured, 600);
    cr_assert_lt(cuda_stand_in_objects(), 300);
    model_free(&m);
    close_device(&d);
}

Test(cuda_records, larger_limits_discard_records_and_keep_results) {
    sn_device *d = open_device();
    model m = model_new(d);
    float out[WIDTH], want[WIDTH];
    for (int i = 0; i < 4; i++) run_step(&m, 1, 0, 1, 9, want);
    OK(d->ops->prepare(d, &(sn_device_limits){.rows = 500, .width = 4096, .context = 10000}, &err));
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(run_step(&m, 1, 0, 1, 9, out), i >= 2);
        cr_assert_eq(memcmp(out, want, sizeof want), 0);
    }
    cr_assert_eq(d->graphs_captured, 2);
    model_free(&m);
    close_device(&d);
}

Test(cuda_records, only_math_ops_may_be_in_a_recorded_batch) {
    sn_device *d = open_device();
    model m = model_new(d);
    sn_sequence sequence = {m.pages, 0, 0, 1, {0}};
    sn_batch pass = {&shape, 1, 1, &sequence, 5};
    void *at;
    float x[WIDTH] = {0}, out[WIDTH];
    bool recorded;
    for (int i = 0; i < 2; i++) { /* directly, and while it is recorded */
        OK(d->ops->batch_begin(d, &pass, &recorded, &err));
        REFUSED(d->ops->upload(d, m.x, x, sizeof x, &err), "upload");
        REFUSED(d->ops->download(d, x, m.x, sizeof x, &err), "download");
        REFUSED(d->ops->alloc(d, 64, &at, &err), "alloc");
        REFUSED(d->ops->host_alloc(d, 64, &at, &err), "host_alloc");
        REFUSED(d->ops->finish(d, &err), "finish");
        REFUSED(d->ops->copy_join(d, 1, &err), "copy_join");
        REFUSED(d->ops->kv_read(d, &shape, 0, m.pages, 0, 1, x, x, &err), "within a batch");
        OK(issue_ops(&m, 1));
        OK(d->ops->batch_end(d, &err));
    }
    cr_assert_eq(d->graphs_captured, 1);
    cr_assert(run_step(&m, 5, 1, 1, 1, out));
    REFUSED(d->ops->batch_end(d, &err), "batch_begin");
    REFUSED(d->ops->kv_store(d, 0, m.x, m.x, &err), "outside");
    model_free(&m);
    close_device(&d);
}

/* An incomplete batch must not be recorded; the next one is complete. */
Test(cuda_records, a_failed_batch_is_not_recorded) {
    sn_device *d = open_device();
    model m = model_new(d);
    sn_sequence sequence = {m.pages, 0, 0, 1, {0}};
    sn_batch pass = {&shape, 1, 1, &sequence, 5};
    float out[WIDTH], want[WIDTH];
    bool recorded;
    run_step(&m, 0, 0, 1, 4, want);
    run_step(&m, 5, 0, 1, 4, out);
    OK(d->ops->batch_begin(d, &pass, &recorded, &err));
    cr_assert_eq(d->ops->attention(d, &(sn_attention){.block = 99, .n_heads = HEADS, .scale = 1}, m.h, m.out, &err),
                 SN_REFUSED);
    cr_assert_eq(d->ops->batch_end(d, &err), SN_RETRY);
    OK(d->ops->batch_begin(d, &pass, &recorded, &err)); /* a batch that its caller abandons after a failure, */
    cr_assert_eq(d->ops->attention(d, &(sn_attention){.n_heads = HEADS + 1, .scale = 1}, m.h, m.out, &err), SN_REFUSED);
    OK(d->ops->upload(d, m.x, want, sizeof want, &err));
    OK(d->ops->batch_begin(d, &pass, &recorded, &err)); /* and a batch without a failure */
    OK(issue_ops(&m, 1));
    OK(d->ops->batch_begin(d, &(sn_batch){&shape, 1, 1, &sequence, 0}, &recorded, &err));
    OK(d->ops->batch_end(d, &err));
    cr_assert_eq(d->graphs_captured, 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(run_step(&m, 5, 0, 1, 4, out), i > 0);
        cr_assert_eq(memcmp(out, want, sizeof want), 0);
    }
    cr_assert_eq(d->graphs_captured, 1);
    OK(d->ops->batch_begin(d, &(sn_batch){&shape, 2, 1, (sn_sequence[]){{.pages = m.pages, .n_rows = 2}}, 5}, &recorded,
                           &err));
    OK(d->ops->batch_end(d, &err));
    OK(d->ops->batch_begin(d, &(sn_batch){&shape, 2, 1, (sn_sequence[]){{.pages = m.pages, .n_rows = 2}}, 5}, &recorded,
                           &err));
    d->ops->free(d, m.out, 0); /* freeing memory ends a recording that was left open */
    m.out = NULL;
    OK(d->ops->finish(d, &err));
    model_free(&m);
    close_device(&d);
}

Test(cuda_records, a_failed_recording_falls_back_to_direct_execution) {
    sn_device *d = open_device();
    model m = model_new(d);
    sn_sequence sequence = {m.pages, 0, 0, 1, {0}};
    sn_batch pass = {&shape, 1, 1, &sequence, 5};
    float out[WIDTH];
    bool recorded;
    run_step(&m, 5, 0, 1, 4, out);
    OK(d->ops->batch_begin(d, &pass, &recorded, &err));
    OK(issue_ops(&m, 1));
    cuda_stand_in_fail_creation(1);
    cr_assert_eq(d->ops->batch_end(d, &err), SN_RETRY);
    cr_assert(strstr(err.text, "captured"));
    for (int i = 0; i < 3; i++) cr_assert_not(run_step(&m, 5, 0, 1, 4, out));
    cr_assert_eq(d->graphs_captured, 0);
    model_free(&m);
    close_device(&d);
}

/* A capture of n rows fails once: this batch is to be tried again, and runs uncaptured from then on, with its bits. */
static void expect_no_further_capture(int n, void (*fail)(int nth), int nth) {
    sn_device *d = open_device();
    model m = model_new(d);
    sn_sequence sequence = {m.pages, 0, 0, n, {0}};
    sn_batch pass = {&shape, n, 1, &sequence, 5};
    float out[ROWS_MAX * WIDTH], want[ROWS_MAX * WIDTH];
    bool recorded;
    run_step(&m, 5, 0, n, 4, want);
    fail(nth);
    OK(d->ops->batch_begin(d, &pass, &recorded, &err));
    cr_assert_eq(issue_ops(&m, n), SN_RETRY, "%s", err.text);
    cr_assert(strstr(err.text, "cannot be captured"), "%s", err.text);
    cr_assert_eq(d->ops->batch_end(d, &err), SN_RETRY);
    for (int i = 0; i < 3; i++) {
        cr_assert_not(run_step(&m, 5, 0, n, 4, out));
        cr_assert_eq(memcmp(out, want, (size_t)n * WIDTH * sizeof *out), 0);
    }
    cr_assert_eq(d->graphs_captured, 0);
    model_free(&m);
    close_device(&d);
}

Test(cuda_records, an_unrecordable_batch_is_executed_directly) {
    for (int error = 900; error <= 908; error++) {
        cuda_stand_in_capture_error(error);
        expect_no_further_capture(1, cuda_stand_in_spoil_capture, 2);
    }
}

/* cuBLAS tells its failure by its own status only. */
Test(cuda_records, a_batch_that_cublas_cannot_record_is_executed_directly) {
    expect_no_further_capture(ROWS_MAX, cuda_stand_in_fail_product, 1);
}

Test(cuda_records, cublas_that_fails_outside_of_a_capture_loses_no_device) {
    sn_device *d = open_device();
    model m = model_new(d);
    float out[ROWS_MAX * WIDTH];
    sn_linear linear = {.weight = &m.weight, .y = m.h};
    cuda_stand_in_fail_product(1);
    cr_assert_eq(d->ops->linear(d, ROWS_MAX, m.x, 1, &linear, &err), SN_STOP);
    cr_assert(strstr(err.text, "cuBLAS failed"), "%s", err.text);
    cr_assert_null(d->lost);
    for (int i = 0; i < 3; i++) cr_assert_eq(run_step(&m, 5, 0, ROWS_MAX, 4, out), i == 2);
    model_free(&m);
    close_device(&d);
}

/* What is larger than prepare was told is refused, and takes no memory. */
Test(cuda_records, no_operation_allocates) {
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err));
    OK(d->ops->prepare(d, &(sn_device_limits){.rows = 1, .width = 64, .context = 64}, &err));
    model m = model_new(d);
    int32_t ids[64] = {0};
    bool recorded;
    uint64_t before = cuda_stand_in_mallocs();
    sn_sequence sequence = {m.pages, 100, 0, 1, {0}};
    sn_batch pass = {&shape, 1, 1, &sequence, 0};
    REFUSED(d->ops->batch_begin(d, &pass, &recorded, &err), "was prepared for smaller batches");
    sequence.position = 0;
    OK(d->ops->batch_begin(d, &pass, &recorded, &err));
    REFUSED(issue_ops(&m, 1), "was prepared for smaller calls"); /* attention: no heads were named */
    OK(d->ops->batch_end(d, &err));
    REFUSED(d->ops->get_rows(d, &m.weight, 64, ids, m.out, &err), "was prepared for smaller calls");
    cr_assert_eq(cuda_stand_in_mallocs(), before);
    model_free(&m);
    close_device(&d);
}

Test(cuda_records, inconsistent_batches_are_refused) {
    sn_device *d = open_device();
    model m = model_new(d);
    const struct {
        struct {
            int position, first_row, n_rows;
        } at[2];
        int n_rows;
    } bad[] = {
        {{{0, 0, 1}, {0, 0, 1}}, 2},         {{{0, 0, 1}, {0, 1, 1}}, 3},  {{{-1, 0, 1}, {0, 1, 1}}, 2},
        {{{0, -1, 1}, {0, 1, 1}}, 2},        {{{0, 0, 1}, {0, 1, -1}}, 0}, {{{0, 0, 1}, {0, 5, 1}}, 2},
        {{{INT32_MAX, 0, 1}, {0, 1, 1}}, 2},
    };
    bool recorded;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sn_sequence two[2] = {0};
        for (int k = 0; k < 2; k++)
            two[k] = (sn_sequence){.pages = m.pages,
                                   .position = bad[i].at[k].position,
                                   .first_row = bad[i].at[k].first_row,
                                   .n_rows = bad[i].at[k].n_rows};
        sn_batch pass = {&shape, bad[i].n_rows, 2, two, 0};
        cr_assert_eq(d->ops->batch_begin(d, &pass, &recorded, &err), SN_REFUSED, "pass %zu", i);
    }
    sn_kv_shape wide = {1, 1, 1024, 16, SN_KV_F32, 0};
    REFUSED(d->ops->batch_begin(d, &(sn_batch){&wide, 0, 0, NULL, 0}, &recorded, &err), "1024");
    model_free(&m);
    close_device(&d);
}

/* -- copies and waits */

Test(cuda_copies, more_copies_than_events_keep_their_order) {
    enum { N = 300 };
    for (int early = 0; early < 2; early++) {
        cuda_stand_in_copies_first(early);
        sn_device *d = open_device();
        float *pinned, *a = new_bytes(d, N * 64), *sum = new_bytes(d, 64), host[16];
        sn_fence tickets[N];
        OK(d->ops->host_alloc(d, N * 64, (void **)&pinned, &err));
        for (int i = 0; i < N * 16; i++) pinned[i] = (float)(i / 16);
        for (int i = 0; i < N; i++) OK(d->ops->copy_begin(d, a + i * 16, pinned + i * 16, 64, &tickets[i], &err));
        for (int i = 0; i < N; i++) {
            OK(d->ops->copy_join(d, tickets[N - 1 - i], &err));
            OK(d->ops->add(d, 16, sum, a + (N - 1 - i) * 16, &err));
        }
        OK(d->ops->download(d, host, sum, 64, &err));
        cr_assert_eq(host[0], N * (N - 1) / 2.0f);
        REFUSED(d->ops->copy_join(d, tickets[N - 1] + 1, &err), "does not exist");
        REFUSED(d->ops->copy_join(d, 0, &err), "does not exist");
        d->ops->host_free(d, pinned, N * 64);
        d->ops->free(d, a, 0);
        d->ops->free(d, sum, 0);
        close_device(&d);
    }
}

/* CUDA's queue blocks without limit when it is full: the backend must notice a device that hangs before that. */
Test(cuda_waits, the_host_does_not_run_far_ahead_of_a_device_that_hangs) {
    sn_device *d = open_device();
    float *x = new_bytes(d, 64);
    sn_status status = SN_OK;
    int n = 0;
    OK(d->ops->finish(d, &err));
    d->timeout_ms = 50;
    cuda_stand_in_stall(60000);
    int64_t begin = sn_now_us();
    for (; n < 2000 && !status; n++) status = d->ops->add(d, 16, x, x, &err);
    cr_assert_eq(status, SN_STOP);
    cr_assert_leq(n, 1000, "%d operations were queued", n);
    cr_assert_lt(sn_now_us() - begin, 30000000);
    cr_assert(strstr(err.text, "cuda:0") && strstr(err.text, "50 ms"), "%s", err.text);
    begin = sn_now_us();
    d->timeout_ms = 60000;
    d->ops->free(d, x, 64); /* does not wait for the device either; it keeps the memory */
    sn_device_close(&d);
    cr_assert_lt(sn_now_us() - begin, 30000000, "leaving a device that hangs took %lld us",
                 (long long)(sn_now_us() - begin));
}

Test(cuda_waits, a_hanging_and_a_lost_record_are_errors) {
    for (int lose = 0; lose < 2; lose++) {
        cuda_stand_in_reset();
        sn_device *d = open_device();
        model m = model_new(d);
        float out[WIDTH];
        bool recorded;
        for (int i = 0; i < 3; i++) run_step(&m, 1, i, 1, 1, out);
        d->timeout_ms = 50;
        if (lose)
            cuda_stand_in_lose(3);
        else
            cuda_stand_in_stall(60000);
        sn_sequence sequence = {m.pages, 3, 0, 1, {0}};
        sn_batch pass = {&shape, 1, 1, &sequence, 1};
        OK(d->ops->batch_begin(d, &pass, &recorded, &err));
        cr_assert(recorded);
        OK(d->ops->batch_end(d, &err));
        cr_assert_eq(d->ops->finish(d, &err), SN_STOP);
        cr_assert(strstr(err.text, lose ? "lost" : "did not answer"), "%s", err.text);
        cr_assert_eq(d->ops->batch_begin(d, &pass, &recorded, &err), SN_STOP);
        cuda_stand_in_heal();
        model_free(&m);
        close_device(&d);
    }
}

/* -- faults at every step */

/* Loads a model, runs some steps and frees everything, with the nth creation or allocation failing. */
static sn_status round_of_work(int nth, bool creation) {
    sn_device *d = NULL;
    float *x = NULL, *pinned = NULL;
    (creation ? cuda_stand_in_fail_creation : cuda_stand_in_fail_allocation)(nth);
    sn_status status = sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err);
    if (!status) status = d->ops->prepare(d, &limits, &err);
    if (!status) status = d->ops->alloc(d, 4096, (void **)&x, &err);
    if (!status) status = d->ops->host_alloc(d, 4096, (void **)&pinned, &err);
    sn_kv_shape small = {1, 1, 4, 16, SN_KV_F32, 0};
    float n_past[8] = {0};
    if (!status) status = d->ops->kv_write(d, &small, 0, (void *[]){x}, 0, 1, n_past, n_past, &err);
    for (int i = 0; i < 3 && !status; i++) {
        sn_sequence sequence = {(void *[]){x}, 0, 0, 1, {0}};
        bool recorded;
        status = d->ops->batch_begin(d, &(sn_batch){&small, 1, 1, &sequence, 3}, &recorded, &err);
        if (!status && !recorded) status = d->ops->kv_store(d, 0, x, x, &err);
        if (!status && !recorded) status = d->ops->attention(d, &(sn_attention){.n_heads = 1, .scale = 1}, x, x, &err);
        if (!status) status = d->ops->batch_end(d, &err);
    }
    if (d) {
        d->ops->free(d, x, 4096);
        d->ops->host_free(d, pinned, 4096);
    }
    sn_device_close(&d);
    cuda_stand_in_heal();
    return status;
}

Test(cuda_faults, memory_and_objects_return_whatever_fails, .timeout = 120) {
    for (int creation = 0; creation < 2; creation++) {
        int nth = 1;
        for (;; nth++) {
            sn_status status = round_of_work(nth, creation);
            cr_assert_eq(cuda_stand_in_used() + cuda_stand_in_pinned(), 0, "%s %d: memory was left",
                         creation ? "creation" : "allocation", nth);
            cr_assert_eq(cuda_stand_in_objects(), 0, "%s %d: %d objects were left",
                         creation ? "creation" : "allocation", nth, cuda_stand_in_objects());
            if (!status) break;
            cr_assert(status == SN_STOP || status == SN_RETRY, "%s %d: %s", creation ? "creation" : "allocation", nth,
                      err.text);
            cr_assert(strstr(err.text, "cuda:0"), "%s", err.text);
        }
        cr_assert_geq(nth, creation ? 80 : 14, "only %d steps could fail", nth);
    }
}

Test(cuda_faults, memory_returns_after_a_thousand_loads_with_failures) {
    sn_device *d = open_device();
    OK(d->ops->finish(d, &err));
    size_t before = cuda_stand_in_used();
    for (int i = 0; i < 1000; i++) {
        void *parts[4] = {0};
        bool fails = i % 3 == 0;
        if (fails) cuda_stand_in_fail_allocation(1 + i % 4);
        sn_status status = SN_OK;
        for (int p = 0; p < 4 && !status; p++) status = d->ops->alloc(d, 1000 * (size_t)(p + 1), &parts[p], &err);
        cr_assert_eq(status, fails ? SN_STOP : SN_OK);
        for (int p = 0; p < 4; p++) d->ops->free(d, parts[p], 0);
    }
    cr_assert_eq(cuda_stand_in_used(), before);
    close_device(&d);
}

Test(cuda_faults, too_little_memory_reports_how_much_there_is) {
    cuda_stand_in_memory(100 << 20);
    sn_device *d = open_device();
    void *at;
    cr_assert_eq(d->ops->alloc(d, (size_t)1 << 30, &at, &err), SN_STOP);
    cr_assert(strstr(err.text, "1.0 GiB") && strstr(err.text, "MiB"), "%s", err.text);
    OK(d->ops->alloc(d, 1 << 20, &at, &err));
    d->ops->free(d, at, 1 << 20);
    close_device(&d);
}

/* -- the list of devices */

Test(cuda_list, lists_devices_with_name_and_memory) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0;
    OK(sn_cuda_list(infos, &n, &err));
    cr_assert_eq(n, 2);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(infos[i].id.kind, SN_DEVICE_CUDA);
        cr_assert_eq(infos[i].id.ordinal, i);
        cr_assert_eq(infos[i].memory_free, infos[i].memory);
        cr_assert_eq(infos[i].memory_free - infos[i].memory_reserve, (size_t)1 << 30);
        cr_assert(strstr(infos[i].features, "sm_90"), "%s", infos[i].features);
    }
    n = SN_DEVICES_MAX - 1; /* capacity for one */
    OK(sn_cuda_list(infos, &n, &err));
    cr_assert_eq(n, SN_DEVICES_MAX);
}

/* A context takes hundreds of MB of a device: one that is only listed has none. */
Test(cuda_list, listing_makes_no_context) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0;
    OK(sn_cuda_list(infos, &n, &err));
    cr_assert_eq(cuda_stand_in_contexts(), 0);
    sn_device *d = open_device();
    cr_assert_eq(cuda_stand_in_contexts(), 1);
    close_device(&d);
}

static int batch_rows_with(size_t memory, size_t memory_max) {
    sn_device *d;
    cuda_stand_in_memory(memory);
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, &(sn_device_options){.memory_max = memory_max}, &d, &err));
    int rows = d->batch_rows;
    close_device(&d);
    return rows;
}

Test(cuda_list, a_card_with_much_memory_takes_long_batches) {
    const size_t gib = (size_t)1 << 30;
    cr_expect_eq(batch_rows_with(80 * gib, 0), 2048);
    cr_expect_eq(batch_rows_with(12 * gib, 0), 1024);
    cr_expect_eq(batch_rows_with(8 * gib, 0), 0);
    cr_expect_eq(batch_rows_with(80 * gib, 12 * gib), 1024, "it may not use the rest");
}

/* What the driver takes by itself is kept free once: of a device that is open it has taken it. */
Test(cuda_list, an_open_device_needs_no_further_reserve) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0;
    sn_device *d = open_device();
    size_t used = cuda_stand_in_used();
    OK(sn_cuda_list(infos, &n, &err));
    cr_assert_eq(infos[0].memory_reserve, 0);
    cr_assert_eq(infos[0].memory_free, ((size_t)1 << 30) - used);
    cr_assert_gt(infos[1].memory_reserve, 0);
    close_device(&d);
}

Test(cuda_list, one_unusable_device_does_not_hide_others) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0;
    cuda_stand_in_break(0, false);
    OK(sn_cuda_list(infos, &n, &err));
    cr_assert_eq(n, 1);
    cr_assert_eq(infos[0].id.ordinal, 1);
    cuda_stand_in_devices(1);
    n = 0;
    REFUSED(sn_cuda_list(infos, &n, &err), "none of the 1 CUDA devices");
    cr_assert_eq(n, 0);
    cuda_stand_in_break(-1, false);
    cuda_stand_in_capability(75);
    REFUSED(sn_cuda_list(infos, &n, &err), "none of the 1 CUDA devices");
}

Test(cuda_list, a_driver_that_is_too_old_is_named_with_what_is_needed) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0;
    cuda_stand_in_driver(12040);
    REFUSED(sn_cuda_list(infos, &n, &err), "one for CUDA 12.4, and this program needs one for CUDA 13 or newer");
    cuda_stand_in_driver(0);
    REFUSED(sn_cuda_list(infos, &n, &err), "there is no NVIDIA driver");
}

Test(cuda_list, reports_a_missing_driver) {
    sn_device_info infos[SN_DEVICES_MAX];
    sn_device *d;
    size_t n = 1;
    cuda_stand_in_devices(0);
    REFUSED(sn_cuda_list(infos, &n, &err), "no CUDA device answers here");
    cr_assert_eq(n, 1);
    REFUSED(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err), "no CUDA device answers here");
    cr_assert_null(d);
}

Test(cuda_list, devices_that_are_absent_or_too_old_are_refused) {
    sn_device *d;
    REFUSED(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 2}, NULL, &d, &err), "cuda:1");
    cuda_stand_in_capability(75);
    REFUSED(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err), "sm_75");
    cr_assert_eq(cuda_stand_in_objects(), 0);
}

/* One thread, two devices: each call affects its own. */
Test(cuda_list, two_devices_work_concurrently) {
    sn_device *d[2];
    float *x[2], host[2][16];
    for (int i = 0; i < 2; i++) {
        OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, i}, NULL, &d[i], &err));
        x[i] = new_bytes(d[i], 64);
    }
    for (int k = 0; k < 16; k++) host[0][k] = host[1][k] = 1;
    for (int i = 0; i < 2; i++) OK(d[i]->ops->upload(d[i], x[i], host[i], 64, &err));
    for (int round = 0; round < 4; round++)
        for (int i = 0; i <= round % 2; i++) OK(d[i]->ops->add(d[i], 16, x[i], x[i], &err));
    for (int i = 0; i < 2; i++) OK(d[i]->ops->download(d[i], host[i], x[i], 64, &err));
    cr_assert_eq(host[0][5], 16);
    cr_assert_eq(host[1][5], 4);
    for (int i = 0; i < 2; i++) {
        d[i]->ops->free(d[i], x[i], 64);
        sn_device_close(&d[i]);
    }
    cr_assert_eq(cuda_stand_in_used(), 0);
}
