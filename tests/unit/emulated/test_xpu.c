/* The XPU backend's own behaviour: finding devices, error messages, two devices at the same time; and that the test
 * driver is as strict as driver.h says, so that the conformance suite with it is meaningful. */
#ifdef SN_ZE_TEST_DRIVER
#include "base/program_environment.h"
#include "tests/support/ze_driver/use.h"

#include "device/xpu/xpu_private.h" /* private: memory and lists of a device that hangs */
#include "kvcache/kvcache.h"
#include "kvcache/states.h" /* private: slots and where they lie */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

static sn_device *open_xpu(int ordinal) {
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_XPU, ordinal}, NULL, &d, &err));
    return d;
}

static size_t list_xpus(sn_device_info out[SN_DEVICES_MAX]) {
    size_t n, xpus = 0;
    OK(sn_devices_list(out, &n, &err));
    for (size_t i = 0; i < n; i++)
        if (out[i].id.kind == SN_DEVICE_XPU) out[xpus++] = out[i];
    return xpus;
}

Test(xpu, lists_each_device_with_its_memory) {
    sn_device_info infos[SN_DEVICES_MAX];
    setenv("ZE_TEST_DEVICES", "3", 1);
    setenv("ZE_TEST_MEMORY", "1000000000", 1);
    cr_assert_eq(list_xpus(infos), 3);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(infos[i].id.ordinal, i);
        cr_assert_eq(infos[i].memory, 1000000000);
        cr_assert_str_eq(infos[i].name, "emulated on the CPU");
        cr_assert(strstr(infos[i].features, "Level Zero 1.3"), "%s", infos[i].features);
    }
}

/* Without Sysman more is kept back, for what other programs may have. */
Test(xpu, tells_what_is_free_where_sysman_does) {
    enum { TAKEN = 3000000 };
    sn_device_info infos[SN_DEVICES_MAX];
    void *memory;
    sn_device *d = open_xpu(0);
    OK(d->ops->alloc(d, TAKEN, &memory, &err));
    cr_assert_eq(list_xpus(infos), 1);
    cr_expect_eq(infos[0].memory_free, infos[0].memory);
    const size_t blind = infos[0].memory_reserve;
    setenv("ZES_ENABLE_SYSMAN", "1", 1);
    cr_assert_eq(list_xpus(infos), 1);
    cr_expect_eq(infos[0].memory_free, infos[0].memory, "the environment is read where the program does not let it");
    sn_environment_use(getenv);
    cr_assert_eq(list_xpus(infos), 1);
    cr_expect(infos[0].memory_free <= infos[0].memory - TAKEN && infos[0].memory_free > infos[0].memory - 2 * TAKEN,
              "%zu of %zu", infos[0].memory_free, infos[0].memory);
    cr_expect_gt(blind, infos[0].memory_reserve);
    cr_expect_eq(infos[0].memory_reserve, 0, "the driver of an open device has taken its part");
    d->ops->free(d, memory, TAKEN);
    sn_device_close(&d);
}

/* A KV pool of more than the device allocates at once is cut into pieces; every page holds what is written to it. */
Test(xpu, cuts_a_pool_into_what_it_allocates_at_once) {
    enum { PAGES = 7, WIDTH = 32, TOKENS = PAGES * SN_KV_PAGE_TOKENS };
    static float k[TOKENS * WIDTH], v[TOKENS * WIDTH], back_k[TOKENS * WIDTH], back_v[TOKENS * WIDTH];
    sn_device *d = open_xpu(0);
    sn_kv_pool *pool;
    sn_kv_cache *kv;
    const sn_kv_shape shape = {1, 1, WIDTH, SN_KV_PAGE_TOKENS, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    const size_t page = d->ops->kv_page_bytes(d, &shape), before = ze_test_memory_used();
    OK(d->ops->prepare(d, &(sn_device_limits){.rows = 64, .width = WIDTH, .context = TOKENS}, &err));
    const size_t prepared = ze_test_memory_used();
    d->allocation_max = 2 * page + page / 2;
    OK(sn_kv_pool_new(&(sn_kv_part){d, shape}, 1, PAGES * page, &pool, &err));
    cr_expect_eq(sn_kv_pool_tokens(pool), TOKENS);
    OK(sn_kv_cache_new(pool, &kv, &err));
    for (int i = 0; i < TOKENS * WIDTH; i++) k[i] = (float)i, v[i] = -(float)i;
    OK(sn_kv_cache_reserve(kv, TOKENS, &err));
    OK(sn_kv_cache_import(kv, 0, 0, TOKENS, k, v, &err));
    sn_kv_cache_append(kv, TOKENS);
    OK(sn_kv_cache_export(kv, 0, 0, 0, TOKENS, back_k, back_v, &err));
    cr_expect(!memcmp(k, back_k, sizeof k) && !memcmp(v, back_v, sizeof v));
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    cr_expect_eq(ze_test_memory_used(), prepared);
    cr_expect_geq(prepared, before);
    sn_device_close(&d);
}

Test(xpu, cuts_states_into_what_it_allocates_at_once) {
    enum { FLOATS = 48, SLOTS = 7 };
    float written[FLOATS], back[FLOATS];
    sn_device *d = open_xpu(0);
    sn_kv_states states;
    const size_t before = ze_test_memory_used();
    d->allocation_max = 2 * sizeof written + sizeof written / 2;
    OK(sn_kv_states_init(&states, d, FLOATS, SLOTS, 1, &err));
    for (uint32_t i = 0; i < SLOTS; i++) {
        for (int k = 0; k < FLOATS; k++) written[k] = (float)(i + 1);
        OK(d->ops->upload(d, sn_kv_states_at(&states, i), written, sizeof written, &err));
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        OK(d->ops->download(d, back, sn_kv_states_at(&states, i), sizeof back, &err));
        for (int k = 0; k < FLOATS; k++) cr_assert_eq(back[k], (float)(i + 1));
    }
    sn_kv_states_fini(&states);
    cr_expect_eq(ze_test_memory_used(), before);
    sn_device_close(&d);
}

Test(xpu, reports_a_missing_driver) {
    sn_device_info infos[SN_DEVICES_MAX];
    sn_device *d;
    setenv("ZE_ENABLE_ALT_DRIVERS", "/nowhere/driver.so", 1); /* replaces the installed drivers */
    cr_assert_eq(list_xpus(infos), 0);
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_XPU, 0}, NULL, &d, &err), SN_REFUSED);
    cr_assert_null(d);
    cr_assert(strstr(err.text, "xpu:0") && strstr(err.text, "no Intel XPU answers here: "), "%s", err.text);
}

Test(xpu, reports_a_driver_without_devices) {
    sn_device *d;
    setenv("ZE_TEST_DEVICES", "0", 1);
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_XPU, 0}, NULL, &d, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "no Intel XPU answers here: "), "%s", err.text);
}

Test(xpu, names_the_last_device_for_an_ordinal_out_of_range) {
    sn_device *d;
    setenv("ZE_TEST_DEVICES", "2", 1);
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_XPU, 2}, NULL, &d, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "xpu:2") && strstr(err.text, "xpu:1"), "%s", err.text);
}

Test(xpu, describes_itself) {
    sn_device *d = open_xpu(0);
    cr_assert_str_eq(sn_device_describe(d), "xpu:0: emulated on the CPU, 4.0 GiB");
    cr_assert_eq(d->timeout_ms, 60000);
    cr_assert_not(d->host_visible);
    sn_device_close(&d);
    cr_assert_eq(ze_test_memory_used(), 0);
}

Test(xpu, two_devices_work_concurrently) {
    enum { N = 1000 };
    static float one[N], out[N];
    setenv("ZE_TEST_DEVICES", "2", 1);
    sn_device *d[] = {open_xpu(0), open_xpu(1)};
    void *y[2], *x[2];
    for (int k = 0; k < N; k++) one[k] = 1;
    for (int i = 0; i < 2; i++) {
        OK(d[i]->ops->alloc(d[i], sizeof one, &x[i], &err));
        OK(d[i]->ops->alloc(d[i], sizeof one, &y[i], &err));
        OK(d[i]->ops->upload(d[i], x[i], one, sizeof one, &err));
    }
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < 2; i++)
            for (int times = 0; times <= i; times++) OK(d[i]->ops->add(d[i], N, y[i], x[i], &err));
    for (int i = 0; i < 2; i++) {
        OK(d[i]->ops->download(d[i], out, y[i], sizeof out, &err));
        for (int k = 0; k < N; k++) cr_assert_eq(out[k], 10 * (float)(i + 1));
        d[i]->ops->free(d[i], x[i], sizeof one);
        d[i]->ops->free(d[i], y[i], sizeof one);
        sn_device_close(&d[i]);
    }
    cr_assert_eq(ze_test_memory_used(), 0);
}

Test(xpu, survives_an_allocation_beyond_its_memory) {
    setenv("ZE_TEST_MEMORY", "100000000", 1);
    sn_device *d = open_xpu(0);
    void *at[4] = {0};
    sn_status status = SN_OK;
    for (int i = 0; i < 4 && !status; i++) status = d->ops->alloc(d, 40000000, &at[i], &err);
    cr_assert_eq(status, SN_STOP);
    cr_assert(strstr(err.text, "xpu:0") && strstr(err.text, "40000000 bytes"), "%s", err.text);
    void *more;
    cr_assert_eq(d->ops->alloc(d, 60000000, &more, &err), SN_STOP); /* more than the device allocates at once */
    cr_assert(strstr(err.text, "at most 50000000") && strstr(err.text, "--device-map"), "%s", err.text);
    d->ops->free(d, at[0], 40000000);
    OK(d->ops->alloc(d, 40000000, &at[0], &err));
    for (int i = 0; i < 4; i++) d->ops->free(d, at[i], 40000000);
    sn_device_close(&d);
    cr_assert_eq(ze_test_memory_used(), 0);
}

/* Where the driver offers it; and kernels take such memory. */
Test(xpu, allocates_more_at_once_than_the_limit) {
    enum { BYTES = 60000000 };
    const float one[] = {1, 2};
    float got[2];
    void *large;
    setenv("ZE_TEST_MEMORY", "100000000", 1);
    setenv("ZE_TEST_RELAXED", "1", 1);
    sn_device *d = open_xpu(0);
    cr_assert_eq(d->allocation_max, 50000000);
    OK(d->ops->alloc(d, BYTES, &large, &err));
    float *last = (float *)large + BYTES / sizeof(float) - 2;
    OK(d->ops->upload(d, last, one, sizeof one, &err));
    OK(d->ops->add(d, 2, last, last, &err));
    OK(d->ops->download(d, got, last, sizeof got, &err));
    cr_expect(got[0] == 2 && got[1] == 4);
    d->ops->free(d, large, BYTES);
    sn_device_close(&d);
}

Test(xpu, refuses_heads_that_are_too_wide) {
    sn_device *d = open_xpu(0);
    sn_kv_shape shape = {1, 1, 512, 16, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    sn_batch pass = {&shape, 0, 0, NULL, 0};
    bool recorded;
    cr_assert_eq(d->ops->batch_begin(d, &pass, &recorded, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "512"), "%s", err.text);
    OK(d->ops->finish(d, &err)); /* a refusal does not stop the device */
    sn_device_close(&d);
}

/* The context, both lists, the event pool, 97 events, the module and its kernels: whichever cannot be created, all
 * others are destroyed. */
Test(xpu, frees_everything_when_opening_fails_anywhere) {
    int failed = 0;
    for (int nth = 1; nth <= 120; nth++) {
        if (nth > 12 && nth < 98) continue; /* all events are alike */
        sn_device *d;
        ze_test_fail_create(nth);
        if (sn_device_open((sn_device_id){SN_DEVICE_XPU, 0}, NULL, &d, &err)) {
            failed++;
            cr_assert(strstr(err.text, "xpu:0"), "%s", err.text);
        }
        sn_device_close(&d);
        ze_test_faults.heal();
        cr_assert_eq(ze_test_objects(), 0, "creation %d fails: %d objects are left", nth, ze_test_objects());
        cr_assert_eq(ze_test_memory_used(), 0, "creation %d fails: %zu bytes are left", nth, ze_test_memory_used());
    }
    cr_assert_geq(failed, 12 + 11); /* those up to the middle of the events, and the kernels */
}

/* The kernels of a weight type are compiled with the first such weight: a failure stops the device, and everything
 * is freed when it is closed. */
Test(xpu, stops_when_the_driver_cannot_compile_a_weights_kernels) {
    sn_device *d = open_xpu(0);
    float weight[8] = {1}, image[64];
    ze_test_fail_create(3);
    cr_assert_eq(d->ops->weight_pack(d, SN_F32, 1, 8, weight, image, &err), SN_STOP);
    cr_assert(strstr(err.text, "xpu:0"), "%s", err.text);
    sn_device_close(&d);
    cr_assert_eq(ze_test_objects(), 0);
}

/* A missing guard: host memory where device memory is expected. */
Test(xpu, host_memory_as_an_operand_stops_the_device) {
    sn_device *d = open_xpu(0);
    float plain[16] = {0};
    void *device;
    OK(d->ops->alloc(d, sizeof plain, &device, &err));
    cr_assert_eq(d->ops->add(d, 16, device, plain, &err), SN_STOP);
    cr_assert(strstr(err.text, "xpu:0"), "%s", err.text);
    d->ops->free(d, device, sizeof plain);
    sn_device_close(&d);
    cr_assert_eq(ze_test_memory_used(), 0);
}

/* -- the driver's strictness: each of these crashes, as on a card or worse */

#if defined(__has_feature)
#define HAS_ASAN __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif

#if !HAS_ASAN /* ASan would report the intended access */
Test(ze_driver, host_access_to_device_memory_crashes, .signal = SIGSEGV) {
    sn_device *d = open_xpu(0);
    void *device;
    OK(d->ops->alloc(d, 64, &device, &err));
    OK(d->ops->finish(d, &err));
    *(volatile float *)device = 1;
}

Test(ze_driver, a_kernel_beyond_the_end_crashes, .signal = SIGSEGV) {
    sn_device *d = open_xpu(0);
    void *a, *b;
    OK(d->ops->alloc(d, 64 * sizeof(float), &a, &err));
    OK(d->ops->alloc(d, 64 * sizeof(float), &b, &err));
    OK(d->ops->add(d, 80, a, b, &err));
    (void)d->ops->finish(d, &err);
}

Test(ze_driver, host_access_beyond_pinned_memory_crashes, .signal = SIGSEGV) {
    sn_device *d = open_xpu(0);
    void *pinned;
    OK(d->ops->host_alloc(d, 64, &pinned, &err));
    ((volatile char *)pinned)[64] = 1;
}
#endif

/* -- a command that never ends: a copy from memory that faults, whose handler does not return */

static void stay(int signal) {
    (void)signal;
    for (;;) pause();
}

/* In a process of its own, whose words go to the pipe. */
static void wait_for_a_copy_that_hangs(int what, int out) {
    void *pinned, *memory, *other;
    sn_fence fence;
    const struct sigaction action = {.sa_handler = stay};
    if (dup2(out, STDERR_FILENO) < 0 || setenv("ZE_TEST_WAIT_S", "1", 1)) return;
    sn_device *d = open_xpu(0), *second = open_xpu(0);
    OK(d->ops->host_alloc(d, 1 << 14, &pinned, &err));
    OK(d->ops->alloc(d, 1 << 14, &memory, &err));
    OK(second->ops->alloc(second, 64, &other, &err));
    if (sigaction(SIGSEGV, &action, NULL) || mprotect((void *)(((uintptr_t)pinned + 4095) & ~(uintptr_t)4095), 4096, 0))
        return;
    d->timeout_ms = 50;
    OK(d->ops->copy_begin(d, memory, pinned, 1 << 14, &fence, &err));
    cr_assert_eq(d->ops->copy_wait(d, fence, &err), SN_STOP);
    const sn_xpu *hung = (const sn_xpu *)d; /* which frees nothing of itself until it has stopped */
    if (what == 2) (void)zeCommandListDestroy(hung->copies);
    ze_test_faults.lose(1);
    cr_assert(second->ops->add(second, 16, other, other, &err) || second->ops->finish(second, &err));
    if (what == 0) ze_test_faults.heal();
    if (what == 1) (void)zeMemFree(hung->context, pinned);
}

Test(ze_driver, a_command_that_never_ends_is_waited_for_with_a_limit, .timeout = 120) {
    static const char *const says[] = {"a command on a device that was lost and is healed has not ended within 1 s",
                                       "a command on memory that is freed has not ended within 1 s",
                                       "a command of a list that is freed has not ended within 1 s"};
    for (int what = 0; what < 3; what++) {
        int ends[2], status;
        char text[4096] = {0};
        size_t n = 0;
        cr_assert_eq(pipe(ends), 0);
        pid_t child = fork();
        if (!child) {
            wait_for_a_copy_that_hangs(what, ends[1]);
            _exit(0);
        }
        close(ends[1]);
        for (ssize_t got; n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
            n += (size_t)got;
        close(ends[0]);
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, says[what]), "%d: status %d, %s",
                  what, status, text);
    }
}

Test(ze_driver, copies_beyond_an_allocation_are_refused) {
    sn_device *d = open_xpu(0);
    void *device;
    char bytes[65] = {0};
    OK(d->ops->alloc(d, 64, &device, &err));
    cr_assert_eq(d->ops->upload(d, device, bytes, 65, &err), SN_STOP);
    d->ops->free(d, device, 64);
    sn_device_close(&d);
}
#else
#include <criterion/criterion.h>
#include <stdio.h>

Test(xpu, backend) {
    printf("skipped: the XPU backend needs libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
}
#endif
