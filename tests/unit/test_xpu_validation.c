/* The conformance suite of all backends again, with the loader's validation layer between backend and driver: the
 * layer refuses NULL pointers, unknown flags and wrong structure types, and the case fails. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"

#include <criterion/criterion.h>
#include <level_zero/ze_api.h>

__attribute__((constructor)) static void use_validation(void) {
    setenv("ZE_ENABLE_VALIDATION_LAYER", "1", 1);
    setenv("ZE_ENABLE_PARAMETER_VALIDATION", "1", 1);
}

Test(xpu_validation, the_layer_is_present) {
    cr_assert_eq(zeInit(0), ZE_RESULT_SUCCESS);
    cr_assert_eq(zeDriverGet(NULL, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER); /* the driver itself would crash */
}

static void run_case(conformance_case which) {
    static conformance c = {
        .id = {SN_DEVICE_XPU, 0}, .faults = &ze_test_faults, .eight_bit_rows = true, .head_dim_max = 256};
    c.memory_used = ze_test_memory_used;
    cr_assert(conformance_run(&c, which), "%s", c.failure);
}

#define X(name)                                                                                                        \
    Test(xpu_validation, name) { run_case(CONFORMANCE_##name); }
CONFORMANCE_CASES(X)

/* Which are asked for by an extension that the layer does not know. */
Test(xpu_validation, matrix_units) {
    setenv("ZE_TEST_XMX", "16", 1);
    run_case(CONFORMANCE_linear_of_several_matrices_and_biases);
}
#else
#include <criterion/criterion.h>
#include <stdio.h>

Test(xpu_validation, backend) {
    printf("skipped: the XPU backend needs libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
}
#endif
