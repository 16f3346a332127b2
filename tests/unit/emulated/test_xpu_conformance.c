/* The conformance suite of all backends with the XPU backend, the real Level Zero loader and the test driver. The
 * loader's validation layer stands between backend and driver: it refuses NULL pointers, unknown flags and wrong
 * structure types, and the case fails. Matrix units are asked for by an extension that the layer does not know: their
 * cases run with and without it. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "tests/support/conformance.h"

#include <criterion/criterion.h>
#ifdef SN_ZE_TEST_DRIVER
#include <level_zero/ze_api.h>
#endif
#include <stdio.h>
#include <stdlib.h>

static void validate(void) { /* before the loader begins */
    setenv("ZE_ENABLE_VALIDATION_LAYER", "1", 1);
    setenv("ZE_ENABLE_PARAMETER_VALIDATION", "1", 1);
}

static void run_case(conformance_case which, bool dp4a) {
#ifdef SN_ZE_TEST_DRIVER
    static conformance c = {.id = {SN_DEVICE_XPU, 0}, .faults = &ze_test_faults, .head_dim_max = 256};
    if (!dp4a) setenv("ZE_TEST_NO_DP4A", "1", 1);
    c.eight_bit_rows = dp4a;
    c.memory_used = ze_test_memory_used;
    cr_assert(conformance_run(&c, which), "%s", c.failure);
    cr_assert_not(c.skipped);
#else
    (void)which, (void)dp4a;
    printf("skipped: the XPU backend needs libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
#endif
}

#define X(name)                                                                                                        \
    Test(xpu_conformance, name) {                                                                                      \
        validate();                                                                                                    \
        run_case(CONFORMANCE_##name, true);                                                                            \
    }
CONFORMANCE_CASES(X)
#undef X

#ifdef SN_ZE_TEST_DRIVER
Test(xpu_conformance, the_layer_is_present) {
    validate();
    cr_assert_eq(zeInit(0), ZE_RESULT_SUCCESS);
    cr_assert_eq(zeDriverGet(NULL, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER); /* the driver itself would crash */
}
#endif

Test(xpu_conformance, matrix_units_behind_the_layer) {
    validate();
    setenv("ZE_TEST_XMX", "16", 1);
    run_case(CONFORMANCE_linear_of_several_matrices_and_biases, true);
}

/* Quantised weights where the device has no instruction for four products of bytes. */
#define PLAIN_CASES(X)                                                                                                 \
    X(linear_of_every_type)                                                                                            \
    X(linear_of_several_matrices_and_biases) X(linear_that_is_to_be_exact) X(linear_keeps_nan_and_infinity_in_their_row)
#define X(name)                                                                                                        \
    Test(xpu_without_dp4a, name) { run_case(CONFORMANCE_##name, false); }
PLAIN_CASES(X)
#undef X

/* Products of many rows by matrix units, of both kinds. */
#define X(name)                                                                                                        \
    Test(xpu_with_xmx8, name) {                                                                                        \
        setenv("ZE_TEST_XMX", "8", 1);                                                                                 \
        run_case(CONFORMANCE_##name, true);                                                                            \
    }                                                                                                                  \
    Test(xpu_with_xmx16, name) {                                                                                       \
        setenv("ZE_TEST_XMX", "16", 1);                                                                                \
        run_case(CONFORMANCE_##name, true);                                                                            \
    }
PLAIN_CASES(X)
#undef X
