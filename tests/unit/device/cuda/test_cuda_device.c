/* The CUDA backend beyond the conformance suite, on the stand-in: the order of two streams, waits, faults at every
 * step, the list of devices. test_cuda_records.c has recorded batches. */
#include "base/clock.h"
#include "tests/unit/device/cuda/cuda_fixture.h"

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
    sn_kv_shape small = {1, 1, 4, 16, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
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
