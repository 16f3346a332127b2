/* The suite of all backends once more, with the loader's validation layer between backend and driver: a call with a
 * NULL pointer, an unknown flag or a wrong structure type fails there, and the case with it. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"

#include <criterion/criterion.h>
#include <level_zero/ze_api.h>

__attribute__((constructor)) static void use_validation(void) {
    setenv("ZE_ENABLE_VALIDATION_LAYER", "1", 1);
    setenv("ZE_ENABLE_PARAMETER_VALIDATION", "1", 1);
}

Test(xpu_validation, the_layer_is_there) {
    cr_assert_eq(zeInit(0), ZE_RESULT_SUCCESS);
    cr_assert_eq(zeDriverGet(NULL, NULL), ZE_RESULT_ERROR_INVALID_NULL_POINTER); /* the driver itself would crash */
}

static void run(conformance_case which) {
    static conformance c = {.id = {SN_DEVICE_XPU, 0}, .faults = &ze_test_faults};
    c.memory_used = ze_test_memory_used;
    cr_assert(conformance_run(&c, which), "%s", c.failure);
}

#define X(name)                                                                                                        \
    Test(xpu_validation, name) { run(CONFORMANCE_##name); }
CONFORMANCE_CASES(X)
#else
#include <criterion/criterion.h>
#include <stdio.h>

Test(xpu_validation, backend) {
    printf("skipped: the XPU backend needs libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
}
#endif
