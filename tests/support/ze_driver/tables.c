/* The functions and properties that the loader asks a driver for.
 *
 * How it works: the loader calls the exported functions zeGet...ProcAddrTable, each of which fills one table. Most
 * entries are functions of memory.c, modules.c and lists.c. Creation and destruction go through wrappers that count
 * live objects and can be made to fail (faults.h). Properties are those that the backend reads: name, memory,
 * alignment, and two queue groups as on a card. */
#include "tests/support/ze_driver/driver.h"

#include <level_zero/zes_api.h>
#include <level_zero/zes_ddi.h>
#include <level_zero/zet_api.h>
#include <level_zero/zet_ddi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

driver ze_test = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct _ze_driver_handle_t {
    int unused;
};
struct _ze_device_handle_t {
    int unused;
};
static struct _ze_driver_handle_t the_driver;
static struct _ze_device_handle_t the_devices[DEVICES_MAX];
static int the_context;

/* -- the driver */

static size_t number_from(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static cl_device_id find_cpu(void) {
    cl_platform_id platforms[8];
    cl_uint n = 0;
    cl_device_id device;
    if (clGetPlatformIDs(8, platforms, &n)) return NULL;
    for (cl_uint i = 0; i < n && i < 8; i++)
        if (!clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_CPU, 1, &device, NULL)) return device;
    return NULL;
}

static ze_result_t driver_init(ze_init_flags_t flags) {
    (void)flags;
    cl_int failed;
    pthread_condattr_t attributes;
    if (ze_test.context) return ZE_RESULT_SUCCESS;
    ze_test.n_devices = (uint32_t)number_from("ZE_TEST_DEVICES", 1);
    ze_test.memory = number_from("ZE_TEST_MEMORY", (size_t)4 << 30);
    ze_test.allocation_max = ze_test.memory / 2;
    if (ze_test.n_devices > DEVICES_MAX || !(ze_test.device = find_cpu())) return ZE_RESULT_ERROR_UNINITIALIZED;
    ze_test.context = clCreateContext(NULL, 1, &ze_test.device, NULL, NULL, &failed);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ze_test.changed, &attributes);
    return failed ? ZE_RESULT_ERROR_UNINITIALIZED : ZE_RESULT_SUCCESS;
}

static ze_result_t driver_get(uint32_t *n, ze_driver_handle_t *out) {
    if (out && *n) *out = &the_driver;
    *n = 1;
    return ZE_RESULT_SUCCESS;
}

static ze_result_t driver_version(ze_driver_handle_t d, ze_api_version_t *out) {
    (void)d;
    *out = ZE_API_VERSION_1_3;
    return ZE_RESULT_SUCCESS;
}

static ze_result_t driver_properties(ze_driver_handle_t d, ze_driver_properties_t *out) {
    (void)d;
    memset(&out->uuid, 1, sizeof out->uuid);
    out->driverVersion = 1;
    return ZE_RESULT_SUCCESS;
}

#define MATRIX_UNITS_EXTENSION "ZE_intel_experimental_device_module_dp_properties"

static ze_result_t driver_extensions(ze_driver_handle_t d, uint32_t *n, ze_driver_extension_properties_t *out) {
    (void)d;
    static const struct {
        const char *variable, *name;
    } all[] = {{"ZE_TEST_RELAXED", ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME}, {"ZE_TEST_XMX", MATRIX_UNITS_EXTENSION}};
    uint32_t capacity = out ? *n : 0;
    *n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!getenv(all[i].variable)) continue;
        if (*n < capacity) {
            out[*n].version = ZE_MAKE_VERSION(1, 0);
            snprintf(out[*n].name, sizeof out[*n].name, "%s", all[i].name);
        }
        ++*n;
    }
    return ZE_RESULT_SUCCESS;
}

/* Lanes of the smallest subgroup, on devices with matrix units. */
static uint32_t matrix_lanes(void) {
    const char *lanes = getenv("ZE_TEST_XMX");
    return lanes ? (uint32_t)strtoul(lanes, NULL, 10) : 0;
}

/* -- its devices */

static ze_result_t device_get(ze_driver_handle_t d, uint32_t *n, ze_device_handle_t *out) {
    (void)d;
    uint32_t capacity = out ? *n : 0;
    if (!out || *n > ze_test.n_devices) *n = ze_test.n_devices;
    for (uint32_t i = 0; i < capacity && i < ze_test.n_devices; i++) out[i] = &the_devices[i];
    return ZE_RESULT_SUCCESS;
}

static ze_result_t device_properties(ze_device_handle_t d, ze_device_properties_t *out) {
    out->type = ZE_DEVICE_TYPE_GPU;
    out->vendorId = 0x8086;
    out->deviceId = (uint32_t)(d - the_devices);
    out->flags = 0;
    out->maxMemAllocSize = ze_test.allocation_max;
    out->numSlices = out->numSubslicesPerSlice = out->numEUsPerSubslice = out->numThreadsPerEU = 1;
    out->physicalEUSimdWidth = 16;
    snprintf(out->name, sizeof out->name, "emulated on the CPU");
    return ZE_RESULT_SUCCESS;
}

static ze_result_t device_compute(ze_device_handle_t d, ze_device_compute_properties_t *out) {
    (void)d;
    out->maxTotalGroupSize = out->maxGroupSizeX = out->maxGroupSizeY = out->maxGroupSizeZ = 1024;
    out->maxGroupCountX = out->maxGroupCountY = out->maxGroupCountZ = UINT32_MAX;
    out->maxSharedLocalMemory = 65536;
    out->numSubGroupSizes = matrix_lanes() ? 2 : 0;
    out->subGroupSizes[0] = 32;
    out->subGroupSizes[1] = matrix_lanes();
    return ZE_RESULT_SUCCESS;
}

static ze_result_t device_module(ze_device_handle_t d, ze_device_module_properties_t *out) {
    (void)d;
    out->spirvVersionSupported = ZE_MAKE_VERSION(1, 2);
    out->flags = getenv("ZE_TEST_NO_DP4A") ? 0 : ZE_DEVICE_MODULE_FLAG_DP4A;
    struct {
        ze_structure_type_t stype;
        void *next;
        uint32_t flags;
    } *units = out->pNext; /* of MATRIX_UNITS_EXTENSION: 1: four products of bytes, 2: matrix units */
    if (units && (unsigned)units->stype == 0x00030013) units->flags = 1 | (matrix_lanes() ? 2 : 0);
    return ZE_RESULT_SUCCESS;
}

/* As on a card: one group for everything, and one for copies only. */
static ze_result_t device_queues(ze_device_handle_t d, uint32_t *n, ze_command_queue_group_properties_t *out) {
    (void)d;
    uint32_t capacity = out ? *n : 0;
    *n = 2;
    for (uint32_t i = 0; i < capacity && i < 2; i++) {
        out[i].flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
        if (i == 0) out[i].flags |= ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
        out[i].maxMemoryFillPatternSize = 1;
        out[i].numQueues = 1;
    }
    return ZE_RESULT_SUCCESS;
}

static ze_result_t device_memory(ze_device_handle_t d, uint32_t *n, ze_device_memory_properties_t *out) {
    (void)d;
    if (out && *n) out->totalSize = ze_test.memory;
    *n = 1;
    return ZE_RESULT_SUCCESS;
}

/* -- Sysman: its devices are those of the core */

static ze_result_t sysman_memories(zes_device_handle_t d, uint32_t *n, zes_mem_handle_t *out) {
    if (out && *n) out[0] = (zes_mem_handle_t)d;
    *n = 1;
    return ZE_RESULT_SUCCESS;
}

static ze_result_t sysman_memory_state(zes_mem_handle_t memory, zes_mem_state_t *out) {
    (void)memory;
    out->health = ZES_MEM_HEALTH_OK;
    out->size = ze_test.memory;
    out->free = ze_test.memory - ze_test.device_used;
    return ZE_RESULT_SUCCESS;
}

static ze_result_t context_create(ze_driver_handle_t d, const ze_context_desc_t *desc, ze_context_handle_t *out) {
    (void)d, (void)desc;
    *out = (ze_context_handle_t)&the_context;
    return ZE_RESULT_SUCCESS;
}

static ze_result_t context_destroy(ze_context_handle_t context) {
    (void)context;
    return ZE_RESULT_SUCCESS;
}

/* -- every create function can be made to fail, and every object is counted */

#define COUNTED(create, destroy, handle, parameters, arguments)                                                        \
    static ze_result_t counted_##create parameters {                                                                   \
        if (!object_made()) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;                                                 \
        ze_result_t result = create arguments;                                                                         \
        if (result) object_gone();                                                                                     \
        return result;                                                                                                 \
    }                                                                                                                  \
    static ze_result_t counted_##destroy(handle object) {                                                              \
        object_gone();                                                                                                 \
        return destroy(object);                                                                                        \
    }

COUNTED(context_create, context_destroy, ze_context_handle_t,
        (ze_driver_handle_t d, const ze_context_desc_t *desc, ze_context_handle_t *out), (d, desc, out))
COUNTED(list_create, list_destroy, ze_command_list_handle_t,
        (ze_context_handle_t c, ze_device_handle_t d, const ze_command_queue_desc_t *desc,
         ze_command_list_handle_t *out),
        (c, d, desc, out))
COUNTED(pool_create, pool_destroy, ze_event_pool_handle_t,
        (ze_context_handle_t c, const ze_event_pool_desc_t *desc, uint32_t n, ze_device_handle_t *d,
         ze_event_pool_handle_t *out),
        (c, desc, n, d, out))
COUNTED(event_create, event_destroy, ze_event_handle_t,
        (ze_event_pool_handle_t p, const ze_event_desc_t *desc, ze_event_handle_t *out), (p, desc, out))
COUNTED(module_create, module_destroy, ze_module_handle_t,
        (ze_context_handle_t c, ze_device_handle_t d, const ze_module_desc_t *desc, ze_module_handle_t *out,
         ze_module_build_log_handle_t *log),
        (c, d, desc, out, log))
COUNTED(kernel_create, kernel_destroy, ze_kernel_handle_t,
        (ze_module_handle_t m, const ze_kernel_desc_t *desc, ze_kernel_handle_t *out), (m, desc, out))

/* -- tables. The loader requires all of these functions; a zeroed table means that nothing of it is supported. */

#define TABLE(function, type, ...)                                                                                     \
    ZE_TEST_EXPORT ze_result_t function(ze_api_version_t version, type *table) {                                       \
        (void)version;                                                                                                 \
        if (!table) return ZE_RESULT_ERROR_INVALID_NULL_POINTER;                                                       \
        *table = (type){__VA_ARGS__};                                                                                  \
        return ZE_RESULT_SUCCESS;                                                                                      \
    }

TABLE(zeGetGlobalProcAddrTable, ze_global_dditable_t, .pfnInit = driver_init)
TABLE(zeGetDriverProcAddrTable, ze_driver_dditable_t, .pfnGet = driver_get, .pfnGetApiVersion = driver_version,
      .pfnGetProperties = driver_properties, .pfnGetExtensionProperties = driver_extensions)
TABLE(zeGetDeviceProcAddrTable, ze_device_dditable_t, .pfnGet = device_get, .pfnGetProperties = device_properties,
      .pfnGetComputeProperties = device_compute, .pfnGetCommandQueueGroupProperties = device_queues,
      .pfnGetModuleProperties = device_module, .pfnGetMemoryProperties = device_memory)
TABLE(zeGetContextProcAddrTable, ze_context_dditable_t, .pfnCreate = counted_context_create,
      .pfnDestroy = counted_context_destroy)
TABLE(zeGetCommandListProcAddrTable, ze_command_list_dditable_t, .pfnCreateImmediate = counted_list_create,
      .pfnDestroy = counted_list_destroy, .pfnAppendBarrier = list_barrier, .pfnAppendMemoryCopy = list_copy,
      .pfnAppendMemoryFill = list_fill, .pfnAppendLaunchKernel = list_launch)
TABLE(zeGetEventPoolProcAddrTable, ze_event_pool_dditable_t, .pfnCreate = counted_pool_create,
      .pfnDestroy = counted_pool_destroy)
TABLE(zeGetEventProcAddrTable, ze_event_dditable_t, .pfnCreate = counted_event_create,
      .pfnDestroy = counted_event_destroy, .pfnHostSynchronize = event_wait, .pfnQueryStatus = event_query,
      .pfnHostReset = event_reset)
TABLE(zeGetModuleProcAddrTable, ze_module_dditable_t, .pfnCreate = counted_module_create,
      .pfnDestroy = counted_module_destroy)
TABLE(zeGetModuleBuildLogProcAddrTable, ze_module_build_log_dditable_t, .pfnDestroy = log_destroy,
      .pfnGetString = log_text)
TABLE(zeGetKernelProcAddrTable, ze_kernel_dditable_t, .pfnCreate = counted_kernel_create,
      .pfnDestroy = counted_kernel_destroy, .pfnSetGroupSize = kernel_group_size,
      .pfnSetArgumentValue = kernel_argument, .pfnSetIndirectAccess = kernel_indirect)
TABLE(zeGetMemProcAddrTable, ze_mem_dditable_t, .pfnAllocDevice = memory_device, .pfnAllocHost = memory_host,
      .pfnFree = memory_free, .pfnGetAllocProperties = memory_properties)
TABLE(zeGetCommandQueueProcAddrTable, ze_command_queue_dditable_t, .pfnCreate = NULL)
TABLE(zeGetFenceProcAddrTable, ze_fence_dditable_t, .pfnCreate = NULL)

TABLE(zesGetDeviceProcAddrTable, zes_device_dditable_t, .pfnEnumMemoryModules = sysman_memories)
TABLE(zesGetMemoryProcAddrTable, zes_memory_dditable_t, .pfnGetState = sysman_memory_state)

#define EMPTY(function, type) TABLE(function, type, 0)
EMPTY(zeGetDeviceExpProcAddrTable, ze_device_exp_dditable_t)
EMPTY(zeGetImageProcAddrTable, ze_image_dditable_t)
EMPTY(zeGetImageExpProcAddrTable, ze_image_exp_dditable_t)
EMPTY(zeGetEventExpProcAddrTable, ze_event_exp_dditable_t)
EMPTY(zeGetKernelExpProcAddrTable, ze_kernel_exp_dditable_t)
EMPTY(zeGetSamplerProcAddrTable, ze_sampler_dditable_t)
EMPTY(zeGetPhysicalMemProcAddrTable, ze_physical_mem_dditable_t)
EMPTY(zeGetVirtualMemProcAddrTable, ze_virtual_mem_dditable_t)
EMPTY(zeGetFabricVertexExpProcAddrTable, ze_fabric_vertex_exp_dditable_t)
EMPTY(zeGetFabricEdgeExpProcAddrTable, ze_fabric_edge_exp_dditable_t)
EMPTY(zesGetDriverProcAddrTable, zes_driver_dditable_t)
EMPTY(zesGetSchedulerProcAddrTable, zes_scheduler_dditable_t)
EMPTY(zesGetPerformanceFactorProcAddrTable, zes_performance_factor_dditable_t)
EMPTY(zesGetPowerProcAddrTable, zes_power_dditable_t)
EMPTY(zesGetFrequencyProcAddrTable, zes_frequency_dditable_t)
EMPTY(zesGetEngineProcAddrTable, zes_engine_dditable_t)
EMPTY(zesGetStandbyProcAddrTable, zes_standby_dditable_t)
EMPTY(zesGetFirmwareProcAddrTable, zes_firmware_dditable_t)
EMPTY(zesGetFabricPortProcAddrTable, zes_fabric_port_dditable_t)
EMPTY(zesGetTemperatureProcAddrTable, zes_temperature_dditable_t)
EMPTY(zesGetPsuProcAddrTable, zes_psu_dditable_t)
EMPTY(zesGetFanProcAddrTable, zes_fan_dditable_t)
EMPTY(zesGetLedProcAddrTable, zes_led_dditable_t)
EMPTY(zesGetRasProcAddrTable, zes_ras_dditable_t)
EMPTY(zesGetDiagnosticsProcAddrTable, zes_diagnostics_dditable_t)
EMPTY(zetGetDeviceProcAddrTable, zet_device_dditable_t)
EMPTY(zetGetContextProcAddrTable, zet_context_dditable_t)
EMPTY(zetGetCommandListProcAddrTable, zet_command_list_dditable_t)
EMPTY(zetGetModuleProcAddrTable, zet_module_dditable_t)
EMPTY(zetGetKernelProcAddrTable, zet_kernel_dditable_t)
EMPTY(zetGetMetricGroupProcAddrTable, zet_metric_group_dditable_t)
EMPTY(zetGetMetricGroupExpProcAddrTable, zet_metric_group_exp_dditable_t)
EMPTY(zetGetMetricProcAddrTable, zet_metric_dditable_t)
EMPTY(zetGetMetricStreamerProcAddrTable, zet_metric_streamer_dditable_t)
EMPTY(zetGetMetricQueryPoolProcAddrTable, zet_metric_query_pool_dditable_t)
EMPTY(zetGetMetricQueryProcAddrTable, zet_metric_query_dditable_t)
EMPTY(zetGetTracerExpProcAddrTable, zet_tracer_exp_dditable_t)
EMPTY(zetGetDebugProcAddrTable, zet_debug_dditable_t)
