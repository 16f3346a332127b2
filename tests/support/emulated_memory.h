/* Memory of both emulated accelerators, for tests that nothing of it is left. */
#ifndef SN_TESTS_EMULATED_MEMORY_H
#define SN_TESTS_EMULATED_MEMORY_H

#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif
#include "tests/support/cuda_stand_in/stand_in.h"

/* Bytes of device memory and pinned host memory that are in use. */
static inline size_t emulated_memory_used(void) {
    size_t used = cuda_stand_in_used() + cuda_stand_in_pinned();
#ifdef SN_ZE_TEST_DRIVER
    used += ze_test_memory_used();
#endif
    return used;
}

#endif
