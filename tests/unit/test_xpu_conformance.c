/* The conformance suite of all backends with the XPU backend, the real Level Zero loader and the test driver. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "tests/support/conformance.h"

#include <criterion/criterion.h>
#include <stdio.h>

static void run_case(conformance_case which) {
#ifdef SN_ZE_TEST_DRIVER
    static conformance c = {.id = {SN_DEVICE_XPU, 0}, .faults = &ze_test_faults};
    c.memory_used = ze_test_memory_used;
    cr_assert(conformance_run(&c, which), "%s", c.failure);
    cr_assert_not(c.skipped);
#else
    (void)which;
    printf("skipped: the XPU backend needs libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
#endif
}

#define X(name)                                                                                                        \
    Test(xpu_conformance, name) { run_case(CONFORMANCE_##name); }
CONFORMANCE_CASES(X)
