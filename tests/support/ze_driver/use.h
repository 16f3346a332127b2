/* Include in a test program: before anything else runs, the loader is told to load the test driver, and no other. */
#ifndef SN_TESTS_ZE_DRIVER_USE_H
#define SN_TESTS_ZE_DRIVER_USE_H

#include "tests/support/conformance.h"
#include "tests/support/ze_driver/faults.h"

#include <stdlib.h>

__attribute__((constructor)) static void use_ze_test_driver(void) {
    setenv("ZE_ENABLE_ALT_DRIVERS", SN_ZE_TEST_DRIVER, 1);
    setenv("POCL_CACHE_DIR", SN_ZE_TEST_CACHE, 0);
}

static const conformance_faults ze_test_faults = {ze_test_fail_allocation, ze_test_stall, ze_test_lose, ze_test_heal};

#endif
