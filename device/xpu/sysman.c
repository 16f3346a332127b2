/* How much memory of a device is free, by Sysman, the part of Level Zero that knows it. Loaders with zesInit have
 * devices of Sysman's own, found by UUID; with older ones Sysman takes the devices of the core. */
#include "base/program_environment.h"
#include "device/xpu/xpu_private.h"

#include <dlfcn.h>
#include <level_zero/zes_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVERS_MAX = 8, DEVICES_MAX = 32, BANKS_MAX = 16 };

/* Of loaders that have zesInit; NULL: this one has not, or it failed. */
static struct {
    ze_result_t (*init)(uint32_t flags);
    ze_result_t (*drivers)(uint32_t *n, zes_driver_handle_t *out);
    ze_result_t (*devices)(zes_driver_handle_t driver, uint32_t *n, zes_device_handle_t *out);
} own;

static void *find(void *loader, const char *name, void *function) {
    void *found = dlsym(loader, name);
    memcpy(function, &found, sizeof found); /* C has no conversion of it to a pointer to a function */
    return found;
}

static void init_once(void) {
    void *loader = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!loader) return;
    bool whole = find(loader, "zesInit", &own.init) && find(loader, "zesDriverGet", &own.drivers) &&
                 find(loader, "zesDeviceGet", &own.devices);
    if (!whole || own.init(0)) own.init = NULL;
    dlclose(loader);
}

/* Sysman's handle of a device; NULL: there is none. */
static zes_device_handle_t sysman_device(ze_device_handle_t device) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    zes_driver_handle_t drivers[DRIVERS_MAX];
    uint32_t n_drivers = DRIVERS_MAX;
    ze_device_properties_t p = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
    pthread_once(&once, init_once);
    const char *of_core = sn_environment("ZES_ENABLE_SYSMAN"); /* without it older drivers have nothing to ask */
    if (!own.init) return of_core && !strcmp(of_core, "1") ? (zes_device_handle_t)device : NULL;
    if (zeDeviceGetProperties(device, &p) || own.drivers(&n_drivers, drivers)) return NULL;
    for (uint32_t i = 0; i < n_drivers; i++) {
        zes_device_handle_t all[DEVICES_MAX];
        uint32_t n = DEVICES_MAX;
        if (own.devices(drivers[i], &n, all)) continue;
        for (uint32_t k = 0; k < n; k++) {
            zes_device_properties_t q = {.stype = ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES};
            if (!zesDeviceGetProperties(all[k], &q) && !memcmp(&q.core.uuid, &p.uuid, sizeof p.uuid)) return all[k];
        }
    }
    return NULL;
}

bool sn_xpu_free_memory(ze_device_handle_t device, size_t *bytes) {
    zes_device_handle_t sysman = sysman_device(device);
    zes_mem_handle_t banks[BANKS_MAX];
    uint32_t n = BANKS_MAX;
    *bytes = 0;
    if (!sysman || zesDeviceEnumMemoryModules(sysman, &n, banks) || !n) return false;
    for (uint32_t i = 0; i < n; i++) {
        zes_mem_state_t state = {.stype = ZES_STRUCTURE_TYPE_MEM_STATE};
        if (zesMemoryGetState(banks[i], &state)) return false;
        *bytes += state.free;
    }
    return true;
}
