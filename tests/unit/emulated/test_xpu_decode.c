/* What decoding on an XPU costs, counted by the test driver: launches of kernels. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"

#include "tests/support/cpu_devices.h"
#include "tests/support/decode_launches.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <level_zero/ze_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sn_device_id xpu = {SN_DEVICE_XPU, 0};

/* Launches of a block of a model whose matrices have this type, behind so many rows. */
static int block_launches(sn_dtype dtype, int n_past) {
    int two = decode_launches(xpu, dtype, 2, n_past, ze_test_launches),
        three = decode_launches(xpu, dtype, 3, n_past, ze_test_launches);
    cr_expect_eq(two, 2 * (three - two) + 1); /* the last add has no norm behind it */
    return three - two;
}

/* Add, norm and 8 bits; q, k, v; rope and store; attention and 8 bits; o; add, norm and 8 bits; up and gate; activation
 * and 8 bits; down. Of a long context attention is two launches, the second of which joins its parts. */
Test(xpu_decode, a_block_takes_9_launches) {
    cr_expect_eq(block_launches(SN_Q4_1, 0), 9);
    cr_expect_eq(block_launches(SN_Q4_1, 200), 10);
}

Test(xpu_decode, a_block_of_float_matrices_takes_9_launches) { cr_expect_eq(block_launches(SN_F16, 0), 9); }

/* One row behind a few; behind many, whose parts are joined. 9: attention by tiles. 17: both. */
Test(xpu_decode, what_belongs_together_takes_7_launches) {
    cr_expect_eq(together_launches(xpu, SN_KV_F16, 3, 1, ze_test_launches), 7);
    cr_expect_eq(together_launches(xpu, SN_KV_F32, 150, 1, ze_test_launches), 8);
    cr_expect_eq(together_launches(xpu, SN_KV_Q8, 150, 9, ze_test_launches), 7);
    cr_expect_eq(together_launches(xpu, SN_KV_F32, 20, 17, ze_test_launches), 8);
    cr_expect_eq(together_launches(xpu, SN_KV_F16, 150, 17, ze_test_launches), 9);
}

/* -- products of bytes */

enum { WIDTH = 128 };

typedef struct bench {
    sn_device *d;
    float *at[2];
    sn_weight weight;
} bench;

static float *new_floats(sn_device *d, size_t n, uint64_t seed) {
    float *values = test_random_floats(n, seed);
    void *at;
    REQUIRE(d->ops->alloc(d, n * sizeof *values, &at, &err));
    REQUIRE(d->ops->upload(d, at, values, n * sizeof *values, &err));
    free(values);
    return at;
}

static void load_weight(bench *b) {
    float values[WIDTH * WIDTH];
    void *file = test_random_weight(SN_Q4_1, WIDTH, WIDTH, 3, values), *at;
    b->weight = (sn_weight){SN_Q4_1, WIDTH, WIDTH, 0, NULL, NULL};
    REQUIRE(b->d->ops->weight_size(b->d, SN_Q4_1, WIDTH, WIDTH, &b->weight.bytes, &err));
    void *image = malloc(b->weight.bytes);
    REQUIRE(b->d->ops->weight_pack(b->d, SN_Q4_1, WIDTH, WIDTH, file, image, &err));
    REQUIRE(b->d->ops->alloc(b->d, b->weight.bytes, &at, &err));
    REQUIRE(b->d->ops->upload(b->d, at, image, b->weight.bytes, &err));
    b->weight.device = at;
    free(image);
    test_weight_free(file);
}

/* Of one quantised matrix with n rows: 8 bits of these, and the product. */
static int product_launches_on(sn_device *d, int n, bool high_precision) {
    const size_t bytes = (size_t)n * WIDTH * sizeof(float);
    bench b = {.d = d};
    b.at[0] = new_floats(b.d, (size_t)n * WIDTH, 1);
    b.at[1] = new_floats(b.d, (size_t)n * WIDTH, 2);
    load_weight(&b);
    unsigned long before = ze_test_launches();
    REQUIRE(b.d->ops->linear(b.d, n, b.at[0], 1, &(sn_linear){&b.weight, NULL, b.at[1], high_precision}, &err));
    int launches = (int)(ze_test_launches() - before);
    for (int i = 0; i < 2; i++) b.d->ops->free(b.d, b.at[i], bytes);
    b.d->ops->free(b.d, (void *)b.weight.device, b.weight.bytes);
    return launches;
}

static int product_launches_of(int n, bool high_precision) {
    sn_device *d;
    REQUIRE(sn_device_open(xpu, NULL, &d, &err));
    int launches = product_launches_on(d, n, high_precision);
    sn_device_close(&d);
    return launches;
}

static int product_launches(void) { return product_launches_of(1, false); }

Test(xpu_decode, a_product_takes_2_launches) { cr_expect_eq(product_launches(), 2); }

Test(xpu_decode, a_product_takes_1_launch_without_products_of_bytes) {
    setenv("ZE_TEST_NO_DP4A", "1", 1);
    cr_expect_eq(product_launches(), 1);
    cr_expect_eq(block_launches(SN_Q4_1, 0), 9);
}

static void set_result(const char *variable, ze_result_t result) {
    char text[16];
    snprintf(text, sizeof text, "0x%x", (unsigned)result);
    setenv(variable, text, 1);
}

/* An older driver than the instruction, or one that fails otherwise: the device computes as one without it, and is not
 * lost. */
Test(xpu_decode, a_product_takes_1_launch_where_the_driver_refuses_products_of_bytes) {
    static const ze_result_t refusals[] = {ZE_RESULT_ERROR_MODULE_BUILD_FAILURE, ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
                                           ZE_RESULT_ERROR_INVALID_NATIVE_BINARY, ZE_RESULT_ERROR_MODULE_LINK_FAILURE,
                                           ZE_RESULT_ERROR_UNKNOWN};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        set_result("ZE_TEST_REFUSE_DOTS", refusals[i]);
        cr_expect_eq(product_launches(), 1, "result 0x%x", (unsigned)refusals[i]);
    }
    cr_expect_eq(block_launches(SN_Q4_1, 0), 9);
}

/* The module is compiled, and one of its kernels is not created: those before it are given back. */
Test(xpu_decode, a_product_takes_1_launch_where_the_driver_refuses_a_kernel_of_products_of_bytes) {
    set_result("ZE_TEST_REFUSE_DOT_KERNELS", ZE_RESULT_ERROR_INVALID_KERNEL_NAME);
    cr_expect_eq(product_launches(), 1);
    cr_expect_eq(ze_test_objects(), 0);
}

/* Many rows are in 8 bits only for matrix units; what selects experts is not. */
Test(xpu_decode, a_product_of_many_rows_takes_2_launches_with_matrix_units) {
    static const char *const lanes[] = {"8", "16"};
    cr_expect_eq(product_launches_of(33, false), 1);
    for (int i = 0; i < 2; i++) {
        setenv("ZE_TEST_XMX", lanes[i], 1);
        cr_expect_eq(product_launches_of(33, false), 2, "%s lanes", lanes[i]);
        cr_expect_eq(product_launches_of(33, true), 1, "%s lanes", lanes[i]);
    }
    setenv("ZE_TEST_XMX", "32", 1); /* no kernel is for these */
    cr_expect_eq(product_launches_of(33, false), 1);
}

Test(xpu_decode, a_product_of_many_rows_takes_1_launch_where_the_driver_refuses_matrix_units) {
    setenv("ZE_TEST_XMX", "8", 1);
    set_result("ZE_TEST_REFUSE_XMX", ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
    cr_expect_eq(product_launches_of(33, false), 1);
    cr_expect_eq(product_launches(), 2);
    cr_expect_eq(ze_test_objects(), 0);
}

/* Memory that lacks for a moment fails what needs it then; neither kernels nor the device are given up. */
Test(xpu_decode, products_of_bytes_are_compiled_once_there_is_memory) {
    static const ze_result_t lacks[] = {ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY};
    static const struct {
        const char *variable;
        int rows;
    } cases[] = {{"ZE_TEST_REFUSE_DOTS", 1}, {"ZE_TEST_REFUSE_DOT_KERNELS", 8}, {"ZE_TEST_REFUSE_XMX", 33}};
    const sn_weight w = {.dtype = SN_Q4_1, .rows = 1, .cols = 32};
    setenv("ZE_TEST_XMX", "8", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t r = 0; r < 2; r++) {
            sn_err why = {0};
            sn_device *d;
            REQUIRE(sn_device_open(xpu, NULL, &d, &err));
            set_result(cases[i].variable, lacks[r]);
            const sn_linear linear = {&w, NULL, NULL, false};
            cr_expect_eq(d->ops->linear(d, cases[i].rows, NULL, 1, &linear, &why), SN_STOP, "%s", cases[i].variable);
            cr_expect(strstr(why.text, "cannot compile kernels now: out of"), "%s", why.text);
            cr_expect(!d->lost, "%s", cases[i].variable);
            unsetenv(cases[i].variable);
            cr_expect_eq(product_launches_on(d, cases[i].rows, false), 2, "%s", cases[i].variable);
            sn_device_close(&d);
            cr_expect_eq(ze_test_objects(), 0, "%s", cases[i].variable);
        }
}

/* A device that is lost while they are compiled is lost. */
Test(xpu_decode, a_device_that_is_lost_while_it_compiles_products_of_bytes_stops) {
    set_result("ZE_TEST_REFUSE_DOTS", ZE_RESULT_ERROR_DEVICE_LOST);
    sn_device *d;
    REQUIRE(sn_device_open(xpu, NULL, &d, &err));
    sn_err err = {0};
    const sn_weight w = {.dtype = SN_Q4_1, .rows = 1, .cols = 32};
    cr_expect_eq(d->ops->linear(d, 1, NULL, 1, &(sn_linear){&w, NULL, NULL, false}, &err), SN_STOP);
    cr_expect(d->lost);
    sn_device_close(&d);
}
#else
#include <criterion/criterion.h>
#include <stdio.h>

Test(xpu_decode, backend) {
    printf("skipped: the XPU backend needs libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
}
#endif
