/* Which numbers tensor cores multiply in attention of prompts on CUDA, counted on the stand-in. */
#include "device/device.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { ROWS = 64, DIM = 64 };

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

static float *new_floats(sn_device *d, size_t n) {
    void *at;
    float *x = test_random_floats(n, 5);
    OK(d->ops->alloc(d, n * sizeof *x, &at, &err));
    OK(d->ops->upload(d, at, x, n * sizeof *x, &err));
    free(x);
    return at;
}

typedef struct counts {
    int of[CUDA_NUMBERS];
} counts;

/* Products for 64 rows of one head with 64 elements, the first ones of their session. */
static counts count_products(sn_kv_dtype dtype) {
    const sn_device_limits limits = {.rows = ROWS, .width = DIM, .context = ROWS, .heads = 1, .head_dim = DIM};
    const sn_kv_shape shape = {1, 1, DIM, ROWS, dtype, 0, 0, {0}, {0}, 0, 0, false};
    const sn_attention attention = {.n_heads = 1, .scale = 0.125f};
    sn_device *d;
    bool replayed;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err));
    OK(d->ops->prepare(d, &limits, &err));
    size_t bytes = d->ops->kv_page_bytes(d, &shape), n = (size_t)ROWS * DIM;
    void *page = new_floats(d, bytes / sizeof(float));
    float *x = new_floats(d, n), *out = new_floats(d, n);
    const sn_sequence sequence = {&page, 0, 0, ROWS, {0}};
    counts c;
    for (cuda_number t = 0; t < CUDA_NUMBERS; t++) c.of[t] = -(int)cuda_stand_in_products(t);
    OK(d->ops->batch_begin(d, &(sn_batch){&shape, ROWS, 1, &sequence, 0}, &replayed, &err));
    OK(d->ops->kv_store(d, 0, x, x, &err));
    OK(d->ops->attention(d, &attention, x, out, &err));
    OK(d->ops->batch_end(d, &err));
    OK(d->ops->finish(d, &err));
    for (cuda_number t = 0; t < CUDA_NUMBERS; t++) c.of[t] += (int)cuda_stand_in_products(t);
    d->ops->free(d, page, bytes);
    d->ops->free(d, x, n * sizeof *x);
    d->ops->free(d, out, n * sizeof *out);
    sn_device_close(&d);
    return c;
}

/* Four warps of 16 rows take steps of 32 keys, the first two one and the others two: of a step, 4 x 8 products of 8
 * keys, 8 elements and 16 rows are scores, and as many are sums; of f16 half as many. */
Test(cuda_attention, keys_and_values_in_16_bits_are_multiplied_as_f16) {
    enum { STEPS = 2 + 2 * 2, PRODUCTS = STEPS * 32 };
    counts f32 = count_products(SN_KV_F32), f16 = count_products(SN_KV_F16), q8 = count_products(SN_KV_Q8);
    cr_expect_eq(f32.of[CUDA_TF32], 2 * 3 * PRODUCTS, "%d", f32.of[CUDA_TF32]);
    cr_expect_eq(f32.of[CUDA_F16], 0);
    cr_expect_eq(f16.of[CUDA_TF32], 0);
    cr_expect_eq(f16.of[CUDA_F16], 2 * 2 * PRODUCTS / 2, "%d", f16.of[CUDA_F16]);
    cr_expect_eq(q8.of[CUDA_TF32], 2 * PRODUCTS, "%d", q8.of[CUDA_TF32]);
    cr_expect_eq(q8.of[CUDA_F16], 2 * PRODUCTS / 2, "%d", q8.of[CUDA_F16]);
}
