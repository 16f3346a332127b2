/* Tests over the test driver: before anything else runs, the loader is told to load it and no other (use.c). The
 * program is not linked with the driver, because the names of the driver's tables would replace the loader's own. */
#ifndef SN_TESTS_ZE_DRIVER_USE_H
#define SN_TESTS_ZE_DRIVER_USE_H

#include "tests/support/conformance.h"

#include <stdlib.h>

/* The functions of faults.h, found in the driver at run time. */
extern size_t (*ze_test_memory_used)(void);
extern size_t (*ze_test_peak)(bool reset);
extern void (*ze_test_memory)(size_t bytes);
extern void (*ze_test_fail_create)(int nth);
extern int (*ze_test_objects)(void);
extern uint64_t (*ze_test_launches)(void);
extern conformance_faults ze_test_faults;

#endif
