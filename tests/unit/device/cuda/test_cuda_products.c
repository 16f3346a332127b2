/* Which way products of many rows go on CUDA, counted on the stand-in: launches of kernels, and whether cuBLAS takes
 * part. */
#include "base/log.h"
#include "base/program_environment.h"
#include "device/device.h"
#include "tests/support/weight_whole.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 520, COLS = 256, OUTPUTS = 65, MATRICES = 3 };

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

typedef struct product {
    sn_device *d;
    sn_weight weights[MATRICES];
    float *x, *y[MATRICES];
} product;

static float *new_floats(sn_device *d, size_t n) {
    void *at;
    OK(d->ops->alloc(d, n * sizeof(float), &at, &err));
    return at;
}

static product product_new(sn_dtype dtype) {
    const sn_device_limits limits = {.rows = ROWS, .width = COLS};
    product p;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &p.d, &err));
    OK(p.d->ops->prepare(p.d, &limits, &err));
    for (int i = 0; i < MATRICES; i++) {
        float *values = malloc(OUTPUTS * COLS * sizeof *values);
        void *file = test_random_weight(dtype, OUTPUTS, COLS, 3, values);
        OK(weight_load(p.d, dtype, OUTPUTS, COLS, file, &p.weights[i], &err));
        p.y[i] = new_floats(p.d, ROWS * OUTPUTS);
        test_weight_free(file);
        free(values);
    }
    p.x = new_floats(p.d, ROWS * COLS);
    return p;
}

static void product_free(product *p) {
    for (int i = 0; i < MATRICES; i++) {
        sn_weight_unload(p->d, &p->weights[i]);
        p->d->ops->free(p->d, p->y[i], 0);
    }
    p->d->ops->free(p->d, p->x, 0);
    sn_device_close(&p->d);
}

/* Launches of a product of n rows with three matrices; -1: cuBLAS takes part. */
static int count_launches(sn_dtype dtype, int n) {
    product p = product_new(dtype);
    sn_linear linears[MATRICES];
    for (int i = 0; i < MATRICES; i++) linears[i] = (sn_linear){.weight = &p.weights[i], .y = p.y[i]};
    uint64_t before = cuda_stand_in_kernels();
    cuda_stand_in_fail_product(1);
    sn_status status = p.d->ops->linear(p.d, n, p.x, MATRICES, linears, &err);
    cuda_stand_in_heal();
    if (status) cr_assert(strstr(err.text, "cuBLAS"), "%s", err.text);
    int launches = (int)(cuda_stand_in_kernels() - before);
    OK(p.d->ops->finish(p.d, &err));
    product_free(&p);
    return status ? -1 : launches;
}

Test(cuda_products, several_matrices_take_two_launches) {
    cuda_stand_in_multiprocessors(1);
    cr_expect_eq(count_launches(SN_Q4_K, 40), 2);
    cr_expect_eq(count_launches(SN_F16, 130), 2);
}

Test(cuda_products, what_does_not_fill_the_card_is_left_to_cublas) {
    cuda_stand_in_multiprocessors(3); /* three matrices of two tiles each */
    cr_expect_eq(count_launches(SN_Q4_K, 64), 2);
    cuda_stand_in_multiprocessors(4);
    cr_expect_eq(count_launches(SN_Q4_K, 64), -1);
}

Test(cuda_products, more_than_512_rows_are_left_to_cublas_on_hopper) {
    cuda_stand_in_multiprocessors(1);
    cr_expect_eq(count_launches(SN_Q8_0, 512), 2);
    cr_expect_eq(count_launches(SN_Q8_0, 513), -1);
    cuda_stand_in_capability(89);
    cr_expect_eq(count_launches(SN_Q8_0, 513), 2);
}

Test(cuda_products, weights_that_need_no_conversion_are_left_to_cublas) {
    cuda_stand_in_multiprocessors(1);
    cr_expect_eq(count_launches(SN_BF16, 64), -1);
    cr_expect_eq(count_launches(SN_F32, 64), -1);
}

static const char *way;
static char *environment(const char *name) {
    static char value[32];
    snprintf(value, sizeof value, "%s", way);
    return strcmp(name, "SWARM_CUDA_PRODUCTS") ? NULL : value;
}

Test(cuda_products, the_environment_decides_in_place_of_the_rule) {
    sn_device *d;
    sn_environment_use(environment);
    cuda_stand_in_multiprocessors(1);
    way = "cublas";
    cr_expect_eq(count_launches(SN_Q4_K, 64), -1);
    way = "kernel-64";
    cr_expect_eq(count_launches(SN_BF16, 64), 2);
    way = "fast";
    cr_expect_eq(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "set it to kernel-64, kernel-128, cublas or cublaslt"), "%s", err.text);
}

/* -- cuBLASLt */

static int shift; /* of the output, in elements */

/* The output of n rows through the first matrix, twice the same. */
static float *multiply(product *p, int n) {
    float *out = malloc((size_t)n * OUTPUTS * sizeof *out), *x = test_random_floats((size_t)n * COLS, 5);
    const sn_linear linear = {.weight = &p->weights[0], .y = p->y[0] + shift};
    OK(p->d->ops->upload(p->d, p->x, x, (size_t)n * COLS * sizeof *x, &err));
    for (int i = 0; i < 2; i++) OK(p->d->ops->linear(p->d, n, p->x, 1, &linear, &err));
    OK(p->d->ops->download(p->d, out, p->y[0] + shift, (size_t)n * OUTPUTS * sizeof *out, &err));
    free(x);
    return out;
}

/* How many lines with this text the log has kept since it was last asked; `line` is the last one from there on. */
static int count_lines(const char *text, char line[160]) {
    sn_buf lines;
    int n = 0;
    sn_buf_init(&lines, 1 << 20);
    sn_log_take(&lines);
    OK(sn_buf_append(&lines, "", 1, &err));
    for (const char *at = (char *)lines.data; (at = strstr(at, text)); at += strlen(text), n++)
        snprintf(line, 160, "%.*s", (int)strcspn(at, "\n"), at);
    sn_buf_fini(&lines);
    return n;
}

static void expect_products(const char *which, sn_dtype dtype, int n, int asked, int multiplied) {
    float *out[2];
    sn_environment_use(environment);
    for (int k = 0; k < 2; k++) {
        int before = cuda_stand_in_lt_asked(), before_multiplied = cuda_stand_in_lt_multiplied();
        way = k ? which : "cublas";
        product p = product_new(dtype);
        out[k] = multiply(&p, n);
        product_free(&p);
        cr_expect_eq(cuda_stand_in_lt_asked() - before, k ? asked : 0);
        cr_expect_eq(cuda_stand_in_lt_multiplied() - before_multiplied, k ? multiplied : 0);
    }
    cr_expect(!memcmp(out[0], out[1], (size_t)n * OUTPUTS * sizeof(float)), "other products than cuBLAS's");
    free(out[0]), free(out[1]);
    cr_expect_eq(cuda_stand_in_objects(), 0);
}

Test(cuda_products, cublaslt_is_asked_once_for_a_shape) {
    expect_products("cublaslt", SN_BF16, 40, 1, 2);
    expect_products("cublaslt", SN_Q4_K, 40, 1, 2);
    expect_products("cublaslt", SN_F32, 40, 0, 0); /* in float32 by cuBLAS */
}

/* Algorithms read and store several elements at once. */
Test(cuda_products, cublaslt_is_told_how_addresses_are_aligned) {
    shift = 1;
    expect_products("cublaslt", SN_BF16, 40, 1, 2);
}

Test(cuda_products, cublas_multiplies_where_cublaslt_does_not) {
    cuda_stand_in_lt(true, false);
    expect_products("cublaslt", SN_BF16, 40, 0, 0);
    cuda_stand_in_lt(false, true);
    expect_products("cublaslt", SN_BF16, 40, 1, 0); /* that there is no algorithm is kept, too */
    cuda_stand_in_lt(false, false);
}

/* More shapes than are kept: those that were not used for longest are asked for again. */
Test(cuda_products, cublaslt_forgets_the_oldest_shape) {
    enum { KEPT = 256 };
    sn_environment_use(environment);
    way = "cublaslt";
    product p = product_new(SN_BF16);
    for (int n = 9; n < 9 + KEPT; n++) free(multiply(&p, n));
    cr_expect_eq(cuda_stand_in_lt_asked(), KEPT);
    free(multiply(&p, 9));
    cr_expect_eq(cuda_stand_in_lt_asked(), KEPT, "it was kept");
    free(multiply(&p, 9 + KEPT));
    free(multiply(&p, 9));
    cr_expect_eq(cuda_stand_in_lt_asked(), KEPT + 1, "the newest one was forgotten");
    free(multiply(&p, 10));
    cr_expect_eq(cuda_stand_in_lt_asked(), KEPT + 2, "10 rows were the oldest");
    product_free(&p);
}

/* Clients choose the numbers of rows. */
Test(cuda_products, the_log_is_told_of_as_many_shapes_as_are_kept) {
    enum { KEPT = 256 };
    char line[160];
    sn_environment_use(environment);
    sn_log_setup(SN_LOG_INFO, false);
    sn_log_keep(true);
    way = "cublaslt";
    product p = product_new(SN_BF16);
    for (int n = 9; n < 9 + KEPT + 20; n++) free(multiply(&p, n));
    cr_expect_eq(count_lines(" cublaslt device=", line), KEPT);
    cr_expect(strstr(line, "rows=264 "), "the last one is '%s'", line);
    product_free(&p);
}

Test(cuda_products, the_log_says_cublas_where_it_multiplies_in_float32) {
    static const struct {
        sn_dtype dtype;
        const char *by;
    } cases[] = {{SN_BF16, " by=cublaslt "}, {SN_F32, " by=cublas "}};
    char line[160];
    sn_environment_use(environment);
    sn_log_setup(SN_LOG_INFO, false);
    sn_log_keep(true);
    way = "cublaslt";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        product p = product_new(cases[i].dtype);
        free(multiply(&p, 40));
        cr_expect_eq(count_lines("matrix products", line), 1);
        cr_expect(strstr(line, cases[i].by), "'%s' has no%s", line, cases[i].by);
        product_free(&p);
    }
}
