/* Recorded batches of the CUDA backend, on the stand-in: which are recorded and replayed, and which are not. */
#include "tests/unit/device/cuda/cuda_fixture.h"

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

/* In the first round the batch runs directly, in the second one it is recorded. */
Test(cuda_records, a_batch_that_failed_and_was_abandoned_keeps_no_cache_from_being_copied) {
    sn_device *d = open_device();
    model m = model_new(d);
    sn_sequence sequence = {m.pages, 0, 0, 1, {0}};
    sn_batch pass = {&shape, 1, 1, &sequence, 5};
    float k[WIDTH] = {1}, v[WIDTH] = {2}, got_k[WIDTH], got_v[WIDTH];
    bool recorded;
    for (int i = 0; i < 2; i++) {
        OK(d->ops->batch_begin(d, &pass, &recorded, &err));
        REFUSED(d->ops->kv_write(d, &shape, 0, m.pages, 0, 1, k, v, &err), "within a batch");
        REFUSED(d->ops->attention(d, &(sn_attention){.n_heads = HEADS + 1, .scale = 1}, m.h, m.out, &err), "heads");
        OK(d->ops->kv_write(d, &shape, 0, m.pages, 0, 1, k, v, &err));
        OK(d->ops->kv_read(d, &shape, 0, m.pages, 0, 1, got_k, got_v, &err));
        cr_assert_eq(memcmp(got_k, k, sizeof k) || memcmp(got_v, v, sizeof v), 0);
    }
    cr_assert_eq(d->graphs_captured, 0);
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
    sn_kv_shape wide = {1, 1, 1024, 16, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    REFUSED(d->ops->batch_begin(d, &(sn_batch){&wide, 0, 0, NULL, 0}, &recorded, &err), "1024");
    model_free(&m);
    close_device(&d);
}
