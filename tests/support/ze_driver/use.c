#include "tests/support/ze_driver/use.h"

#include <dlfcn.h>
#include <stdio.h>

size_t (*ze_test_memory_used)(void);
size_t (*ze_test_peak)(bool reset);
void (*ze_test_memory)(size_t bytes);
void (*ze_test_fail_create)(int nth);
int (*ze_test_objects)(void);
uint64_t (*ze_test_launches)(void);
conformance_faults ze_test_faults;

static void find_in_driver(void *driver, const char *name, void *function) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "%s has no %s\n", SN_ZE_TEST_DRIVER, name);
        abort();
    }
    *(void **)function = found;
}

__attribute__((constructor)) static void use_ze_test_driver(void) {
    void *driver = dlopen(SN_ZE_TEST_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    find_in_driver(driver, "ze_test_memory_used", &ze_test_memory_used);
    find_in_driver(driver, "ze_test_peak", &ze_test_peak);
    find_in_driver(driver, "ze_test_memory", &ze_test_memory);
    find_in_driver(driver, "ze_test_fail_create", &ze_test_fail_create);
    find_in_driver(driver, "ze_test_objects", &ze_test_objects);
    find_in_driver(driver, "ze_test_launches", &ze_test_launches);
    find_in_driver(driver, "ze_test_fail_allocation", &ze_test_faults.fail_allocation);
    find_in_driver(driver, "ze_test_stall", &ze_test_faults.stall);
    find_in_driver(driver, "ze_test_lose", &ze_test_faults.lose);
    find_in_driver(driver, "ze_test_heal", &ze_test_faults.heal);
    setenv("ZE_ENABLE_ALT_DRIVERS", SN_ZE_TEST_DRIVER, 1);
    setenv("POCL_CACHE_DIR", SN_ZE_TEST_CACHE, 0);
    /* other OpenCL drivers may be loaded with RTLD_DEEPBIND, which the sanitizers refuse */
    setenv("OCL_ICD_VENDORS", "pocl.icd", 0);
}

/* LeakSanitizer calls this: PoCL and the compiler in it keep their allocations. They are C++; the project's code is
 * not. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libLLVM\nleak:libpocl\nleak:libstdc++\n"; }
