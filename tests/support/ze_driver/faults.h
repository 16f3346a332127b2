/* What a test may ask of the test driver (use.h finds these functions). driver.h explains the driver. */
#ifndef SN_TESTS_ZE_DRIVER_FAULTS_H
#define SN_TESTS_ZE_DRIVER_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZE_TEST_EXPORT __attribute__((visibility("default")))

ZE_TEST_EXPORT size_t ze_test_memory_used(void);  /* bytes of live device and host allocations */
ZE_TEST_EXPORT void ze_test_memory(size_t bytes); /* from now on the devices together have so many */
/* the most bytes of device memory that were allocated at once, since the call before that said `reset` */
ZE_TEST_EXPORT size_t ze_test_peak(bool reset);
ZE_TEST_EXPORT void ze_test_fail_allocation(int nth); /* the nth allocation from now fails: out of device memory */
/* the creation of the nth list, event, module, kernel, ... from now fails */
ZE_TEST_EXPORT void ze_test_fail_create(int nth);
ZE_TEST_EXPORT int ze_test_objects(void);  /* number of these objects alive */
ZE_TEST_EXPORT void ze_test_stall(int ms); /* the next kernel or copy takes this long, or until heal is called */
ZE_TEST_EXPORT void ze_test_lose(int nth); /* from its nth kernel or copy on the device is lost */
ZE_TEST_EXPORT void ze_test_heal(void);
ZE_TEST_EXPORT uint64_t ze_test_launches(void); /* of kernels, so far */

#endif
