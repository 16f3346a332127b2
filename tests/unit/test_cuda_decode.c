/* What decoding on CUDA costs, counted on the stand-in: launches of kernels. */
#include "device/backends.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

enum { ROWS = 40, COLS = 256, OUTPUTS = 33 };

static sn_device *open_device(void) {
    const sn_device_limits limits = {.rows = ROWS, .width = COLS, .context = 64, .heads = 2, .head_dim = 16};
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err));
    OK(d->ops->prepare(d, &limits, &err));
    return d;
}

static void *new_bytes(sn_device *d, size_t bytes) {
    void *at;
    OK(d->ops->alloc(d, bytes, &at, &err));
    return at;
}

static sn_weight new_weight(sn_device *d, sn_dtype dtype, size_t rows, size_t cols) {
    sn_weight weight = {dtype, rows, cols, 0, NULL};
    float *values = malloc(rows * cols * sizeof *values);
    void *file = test_random_weight(dtype, rows, cols, 3, values), *image;
    OK(d->ops->weight_size(d, dtype, rows, cols, &weight.bytes, &err));
    image = malloc(weight.bytes);
    OK(d->ops->weight_pack(d, dtype, rows, cols, file, image, &err));
    weight.device = new_bytes(d, weight.bytes);
    OK(d->ops->upload(d, (void *)weight.device, image, weight.bytes, &err));
    free(image);
    free(values);
    test_weight_free(file);
    return weight;
}

/* -- how many rows read the weights as they are */

typedef struct product {
    sn_device *d;
    sn_weight weight;
    float *x, *y;
    float got[ROWS * OUTPUTS];
} product;

static product product_new(sn_device *d, sn_dtype dtype) {
    product p = {.d = d, .weight = new_weight(d, dtype, OUTPUTS, COLS)};
    float *x = test_random_floats((size_t)ROWS * COLS, 5);
    p.x = new_bytes(d, ROWS * COLS * sizeof *x);
    p.y = new_bytes(d, ROWS * OUTPUTS * sizeof *x);
    OK(d->ops->upload(d, p.x, x, ROWS * COLS * sizeof *x, &err));
    free(x);
    return p;
}

static void product_free(product *p) {
    p->d->ops->free(p->d, (void *)p->weight.device, p->weight.bytes);
    p->d->ops->free(p->d, p->x, ROWS * COLS * sizeof(float));
    p->d->ops->free(p->d, p->y, ROWS * OUTPUTS * sizeof(float));
}

/* Multiplies n rows; returns the number of launches, or -1 if cuBLAS took part. */
static int product_run(product *p, int n) {
    sn_linear linear = {.weight = &p->weight, .y = p->y};
    uint64_t before = cuda_stand_in_kernels();
    cuda_stand_in_fail_product(1);
    sn_status status = p->d->ops->linear(p->d, n, p->x, 1, &linear, &err);
    cuda_stand_in_heal();
    if (status) cr_assert(strstr(err.text, "cuBLAS"), "%s", err.text);
    if (status) return -1;
    int launches = (int)(cuda_stand_in_kernels() - before);
    OK(p->d->ops->download(p->d, p->got, p->y, (size_t)n * OUTPUTS * sizeof *p->got, &err));
    return launches;
}

static void expect_border(sn_dtype dtype, int border, int conversions) {
    sn_device *d = open_device();
    product p = product_new(d, dtype);
    float eight[8 * OUTPUTS];
    cr_assert_eq(product_run(&p, 8), 1 + conversions);
    memcpy(eight, p.got, sizeof eight);
    cr_assert_eq(product_run(&p, border), 1 + conversions, "%s", sn_dtype_name(dtype));
    cr_assert_eq(memcmp(eight, p.got, sizeof eight), 0, "%s: the first 8 rows have other bits", sn_dtype_name(dtype));
    cr_assert_eq(product_run(&p, border + 1), -1, "%s: %d rows are not left to cuBLAS", sn_dtype_name(dtype),
                 border + 1);
    product_free(&p);
    sn_device_close(&d);
}

Test(cuda_decode, up_to_32_rows_of_quantised_weights_take_two_launches) {
    expect_border(SN_Q4_K, 32, 1);
    expect_border(SN_Q8_0, 32, 1);
}

Test(cuda_decode, up_to_16_rows_of_f16_and_8_of_bf16_take_one_launch) {
    expect_border(SN_F16, 16, 0);
    expect_border(SN_BF16, 8, 0);
}
