/* Which way the experts of a batch go on CUDA, counted on the stand-in: launches of kernels, and bytes that they load;
 * and that an expert's bits do not depend on which other experts are there. */
#include "base/program_environment.h"
#include "device/device.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 70, COLS = 1024, OUTPUTS = 64, EXPERTS = 6, K = 2, K_MAX = 8 };
enum { ALL = 200 }; /* more experts than pairs: all beyond EXPERTS are never chosen, and not there */

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

static void *new_bytes(sn_device *d, size_t bytes) {
    void *at;
    OK(d->ops->alloc(d, bytes, &at, &err));
    return at;
}

typedef struct mixture {
    sn_device *d;
    sn_experts experts;
    float *x, *y;
    int32_t *ids;
} mixture;

static mixture mixture_new(sn_dtype dtype) {
    const sn_device_limits limits = {.rows = ROWS, .width = COLS, .experts = ALL, .experts_used = K_MAX};
    mixture m = {.experts = {.first = {.dtype = dtype, .rows = OUTPUTS, .cols = COLS}, .n = EXPERTS}};
    sn_weight *one = &m.experts.first;
    float *values = malloc((size_t)OUTPUTS * COLS * sizeof *values), *x = test_random_floats((size_t)ROWS * COLS, 5);
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &m.d, &err));
    OK(m.d->ops->prepare(m.d, &limits, &err));
    OK(m.d->ops->weight_size(m.d, dtype, OUTPUTS, COLS, &one->bytes, &err));
    m.experts.stride = (one->bytes + 63) / 64 * 64;
    char *all = new_bytes(m.d, EXPERTS * m.experts.stride), *image = malloc(one->bytes);
    for (size_t e = 0; e < EXPERTS; e++) {
        void *file = test_random_weight(dtype, OUTPUTS, COLS, 3 + e, values);
        OK(m.d->ops->weight_pack(m.d, dtype, OUTPUTS, COLS, file, image, &err));
        OK(m.d->ops->upload(m.d, all + e * m.experts.stride, image, one->bytes, &err));
        test_weight_free(file);
    }
    one->device = all;
    m.x = new_bytes(m.d, (size_t)ROWS * COLS * sizeof *x);
    m.y = new_bytes(m.d, (size_t)ROWS * K_MAX * OUTPUTS * sizeof *m.y);
    m.ids = new_bytes(m.d, (size_t)ROWS * K_MAX * sizeof *m.ids);
    OK(m.d->ops->upload(m.d, m.x, x, (size_t)ROWS * COLS * sizeof *x, &err));
    free(image);
    free(values);
    free(x);
    return m;
}

static void mixture_free(mixture *m) {
    m->d->ops->free(m->d, (void *)(uintptr_t)m->experts.first.device, EXPERTS * m->experts.stride);
    m->d->ops->free(m->d, m->x, (size_t)ROWS * COLS * sizeof *m->x);
    m->d->ops->free(m->d, m->y, (size_t)ROWS * K_MAX * OUTPUTS * sizeof *m->y);
    m->d->ops->free(m->d, m->ids, (size_t)ROWS * K_MAX * sizeof *m->ids);
    sn_device_close(&m->d);
}

/* n rows through experts [first, first + n_experts), with these ids (n, k) counted from `first` on. */
static void run(mixture *m, int n, int k, const int32_t *ids, int first, int n_experts) {
    sn_experts some = m->experts;
    some.n = n_experts;
    some.first.device = (const char *)some.first.device + (size_t)first * some.stride;
    const sn_moe_selection selection = {n, n_experts, k, m->ids, NULL};
    const sn_moe_linear linear = {&some, NULL, m->y};
    OK(m->d->ops->upload(m->d, m->ids, ids, (size_t)(n * k) * sizeof *ids, &err));
    OK(m->d->ops->finish(m->d, &err));
    OK(m->d->ops->moe_linear(m->d, &selection, false, m->x, 1, &linear, &err));
    OK(m->d->ops->finish(m->d, &err));
}

/* Launches for n rows that choose one expert k times, and the bytes that they load. */
static int count_launches(sn_dtype dtype, int n, int k, uint64_t *bytes) {
    static const int32_t ids[ROWS * K] = {0};
    mixture m = mixture_new(dtype);
    OK(m.d->ops->finish(m.d, &err));
    uint64_t launches = cuda_stand_in_kernels(), loaded = cuda_stand_in_loaded();
    run(&m, n, k, ids, 0, 1);
    launches = cuda_stand_in_kernels() - launches;
    *bytes = cuda_stand_in_loaded() - loaded;
    mixture_free(&m);
    return (int)launches;
}

static char *no_kernels(const char *name) {
    static char way[] = "cublas";
    return strcmp(name, "SWARM_CUDA_PRODUCTS") ? NULL : way;
}

/* In chunks of eight pairs the weights would be read eight times. */
Test(cuda_experts, an_expert_of_64_rows_is_read_once) {
    const uint64_t weights = (uint64_t)OUTPUTS * COLS * 9 / 8, x = (uint64_t)64 * COLS * sizeof(float);
    uint64_t bytes;
    cr_expect_eq(count_launches(SN_Q8_0, 64, 1, &bytes), 3);
    cr_expect_lt(bytes, 2 * weights + x, "%llu bytes were loaded", (unsigned long long)bytes);
    cr_expect_eq(count_launches(SN_Q8_0, 65, 1, &bytes), 3);
    cr_expect_gt(bytes, 2 * weights + x, "65 rows are two tiles: %llu bytes", (unsigned long long)bytes);
}

Test(cuda_experts, few_rows_and_float32_take_no_tensor_cores) {
    uint64_t bytes;
    cr_expect_eq(count_launches(SN_Q8_0, 15, 1, &bytes), 2);
    cr_expect_eq(count_launches(SN_Q8_0, 16, 1, &bytes), 3);
    cr_expect_eq(count_launches(SN_F32, 64, 1, &bytes), 2);
    sn_environment_use(no_kernels);
    cr_expect_eq(count_launches(SN_Q8_0, 64, 1, &bytes), 2);
}

/* 16 pairs or more in all, but not of an expert: a row chooses each once. */
Test(cuda_experts, up_to_15_rows_launch_nothing_for_tensor_cores) {
    uint64_t bytes;
    cr_expect_eq(count_launches(SN_Q8_0, 8, K, &bytes), 2);
    cr_expect_eq(count_launches(SN_Q8_0, 15, K, &bytes), 2);
    cr_expect_eq(count_launches(SN_Q8_0, 16, K, &bytes), 3);
}

/* Neighbours of a warp choose the same expert or none; a warp takes two steps, and some warps have no pairs. */
Test(cuda_experts, each_pair_has_a_place_of_its_own_among_560) {
    enum { PAIRS = ROWS * K_MAX };
    static float y[PAIRS * OUTPUTS], alone[ROWS * OUTPUTS];
    static int32_t ids[PAIRS];
    mixture m = mixture_new(SN_Q8_0);
    for (int i = 0; i < PAIRS; i++) ids[i] = i % 11 == 3 ? -1 : i * i / 7 % EXPERTS;
    OK(m.d->ops->upload(m.d, m.y, y, sizeof y, &err)); /* zeros */
    run(&m, ROWS, K_MAX, ids, 0, ALL);
    OK(m.d->ops->download(m.d, y, m.y, sizeof y, &err));
    for (int e = 0; e < EXPERTS; e++) {
        int32_t same[ROWS];
        for (int r = 0; r < ROWS; r++) same[r] = e;
        run(&m, ROWS, 1, same, 0, EXPERTS);
        OK(m.d->ops->download(m.d, alone, m.y, sizeof alone, &err));
        for (int i = 0; i < PAIRS; i++)
            if (ids[i] == e)
                cr_assert_arr_eq(y + (size_t)i * OUTPUTS, alone + (size_t)(i / K_MAX) * OUTPUTS, OUTPUTS * sizeof *y,
                                 "pair %d of expert %d has other values", i, e);
    }
    for (int i = 0; i < PAIRS * OUTPUTS; i++)
        if (ids[i / OUTPUTS] < 0) cr_assert_eq(y[i], 0.0f, "pair %d has no expert", i / OUTPUTS);
    mixture_free(&m);
}

/* By the number of pairs, not by that times the number of experts. */
Test(cuda_experts, grouping_reads_each_id_twice) {
    static int32_t ids[ROWS * K_MAX];
    mixture m = mixture_new(SN_F32);
    for (int i = 0; i < ROWS * K_MAX; i++) ids[i] = i % EXPERTS;
    m.experts.first.rows = 0; /* nothing is multiplied */
    OK(m.d->ops->finish(m.d, &err));
    uint64_t loaded = cuda_stand_in_loaded();
    run(&m, ROWS, K_MAX, ids, 0, ALL);
    cr_expect_eq(cuda_stand_in_loaded() - loaded, 2 * sizeof ids);
    mixture_free(&m);
}

/* The way of an expert, and so its bits, do not depend on what the device was prepared for. */
Test(cuda_experts, more_pairs_than_were_prepared_for_are_refused) {
    static const int32_t ids[ROWS * K_MAX] = {0};
    const sn_device_limits few = {.rows = ROWS / 2, .width = COLS, .experts = EXPERTS, .experts_used = 1};
    mixture m = mixture_new(SN_Q8_0);
    sn_device *all = m.d;
    const sn_moe_selection selection = {ROWS, EXPERTS, K_MAX, m.ids, NULL};
    const sn_moe_linear linear = {&m.experts, NULL, m.y};
    OK(m.d->ops->upload(m.d, m.ids, ids, sizeof ids, &err));
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &m.d, &err));
    OK(m.d->ops->prepare(m.d, &few, &err));
    cr_expect_eq(m.d->ops->moe_linear(m.d, &selection, false, m.x, 1, &linear, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "was prepared for smaller calls"), "%s", err.text);
    sn_device_close(&m.d);
    m.d = all;
    mixture_free(&m);
}

/* There are fewer pairs than experts in all, and more than experts of a part: an expert's way is not decided by it. */
Test(cuda_experts, an_expert_gives_the_same_bits_whichever_others_are_there) {
    static const sn_dtype types[] = {SN_Q4_K, SN_MXFP4, SN_BF16};
    static float whole[ROWS * K * OUTPUTS], parts[ROWS * K * OUTPUTS];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        mixture m = mixture_new(types[t]);
        int32_t ids[ROWS * K], some[ROWS * K];
        for (int r = 0; r < ROWS; r++) {
            ids[K * r] = r < 50 ? 1 : 3;
            ids[K * r + 1] = r < 16 ? 4 : r < 31 ? 2 : r % 2 * 5;
        }
        OK(m.d->ops->upload(m.d, m.y, parts, sizeof parts, &err));
        run(&m, ROWS, K, ids, 0, ALL);
        OK(m.d->ops->download(m.d, whole, m.y, sizeof whole, &err));
        memset(parts, 0, sizeof parts);
        OK(m.d->ops->upload(m.d, m.y, parts, sizeof parts, &err));
        for (int first = 0, n = 1; first < EXPERTS; first += n, n++) {
            for (int i = 0; i < ROWS * K; i++) some[i] = ids[i] >= first && ids[i] < first + n ? ids[i] - first : -1;
            run(&m, ROWS, K, some, first, n);
        }
        OK(m.d->ops->download(m.d, parts, m.y, sizeof parts, &err));
        cr_expect_arr_eq(whole, parts, sizeof whole, "type %zu: other bits", t);
        mixture_free(&m);
    }
}

/* Rooms of tables that a batch does not need hold what another batch left there. */
Test(cuda_experts, a_batch_has_no_pairs_of_the_one_before) {
    static float y[ROWS * K * OUTPUTS];
    mixture m = mixture_new(SN_Q8_0);
    int32_t ids[ROWS * K];
    for (int i = 0; i < ROWS * K; i++) ids[i] = i % EXPERTS;
    run(&m, ROWS, K, ids, 0, EXPERTS);
    for (int i = 0; i < ROWS * K; i++) ids[i] = i < 40 && i % K == 0 ? 0 : -1;
    OK(m.d->ops->upload(m.d, m.y, y, sizeof y, &err)); /* zeros */
    run(&m, ROWS, K, ids, 0, EXPERTS);
    OK(m.d->ops->download(m.d, y, m.y, sizeof y, &err));
    for (int i = 0; i < ROWS * K * OUTPUTS; i++)
        cr_assert_eq(y[i] != 0, ids[i / OUTPUTS] == 0, "pair %d, output %d is %g", i / OUTPUTS, i % OUTPUTS,
                     (double)y[i]);
    mixture_free(&m);
}

/* As many pairs and numbers as a batch of 2,048 rows has with 16 experts each. */
Test(cuda_experts, a_long_batch_through_many_experts_is_combined) {
    enum { N = 512, USED = 64, WIDTH = 2048 };
    const size_t bytes = (size_t)N * USED * WIDTH * sizeof(float), last = (size_t)N * USED * WIDTH - 1;
    const float four = 4;
    float y[2];
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err));
    float *x = new_bytes(d, bytes), *sums = new_bytes(d, bytes / USED); /* zeros */
    OK(d->ops->upload(d, x + last, &four, sizeof four, &err));
    OK(d->ops->upload(d, x + last - WIDTH, &four, sizeof four, &err));
    OK(d->ops->moe_combine(d, &(sn_moe_selection){N, USED, USED, NULL, NULL}, WIDTH, x, sums, &err));
    OK(d->ops->download(d, y, sums + (size_t)N * WIDTH - 2, sizeof y, &err));
    cr_expect(y[0] == 0 && y[1] == 8, "%g %g", (double)y[0], (double)y[1]);
    d->ops->free(d, x, bytes);
    d->ops->free(d, sums, bytes / USED);
    sn_device_close(&d);
}
