/* Finding, opening, preparing, closing and listing XPUs; the table of operations.
 *
 * The devices of all Level Zero drivers, GPUs only, are numbered in the order of the drivers. Opening checks that the
 * device can run the largest kernel (attention_tile), creates a context, the queue and its events (queue.c), the
 * kernels of block.cl (modules.c) and the staging buffer. The kernels of linear.cl, kv.cl and grad.cl are loaded when
 * they are needed. A device that hangs when it is closed may still write to its memory: its memory and handles are then
 * kept until the process ends. */
#include "device/xpu/xpu_private.h"

#include "base/log.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVERS_MAX = 8, TIMEOUT_MS = 60000 };

static ze_result_t init_result;
static void init_once(void) { init_result = zeInit(ZE_INIT_FLAG_GPU_ONLY); }

typedef struct found_device {
    ze_driver_handle_t driver;
    ze_device_handle_t device;
} found_device;

#define NO_XPU "no Intel XPU answers here: "

/* Finds all GPUs of all drivers, in the order of the drivers. */
static sn_status find_devices(found_device out[SN_DEVICES_MAX], uint32_t *n, sn_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    ze_driver_handle_t drivers[DRIVERS_MAX];
    uint32_t n_drivers = DRIVERS_MAX;
    *n = 0;
    pthread_once(&once, init_once);
    if (init_result)
        return sn_fail(err, SN_REFUSED,
                       NO_XPU "Level Zero finds no driver (result 0x%x); install Intel's compute runtime, "
                              "or use another device",
                       (unsigned)init_result);
    ze_result_t result = zeDriverGet(&n_drivers, drivers);
    if (result)
        return sn_fail(err, SN_REFUSED, NO_XPU "Level Zero lists no drivers (result 0x%x); use another device",
                       (unsigned)result);
    for (uint32_t i = 0; i < n_drivers; i++) {
        ze_device_handle_t devices[SN_DEVICES_MAX];
        uint32_t n_devices = SN_DEVICES_MAX;
        if (zeDeviceGet(drivers[i], &n_devices, devices)) continue;
        for (uint32_t k = 0; k < n_devices && *n < SN_DEVICES_MAX; k++) {
            ze_device_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
            if (!zeDeviceGetProperties(devices[k], &properties) && properties.type == ZE_DEVICE_TYPE_GPU)
                out[(*n)++] = (found_device){drivers[i], devices[k]};
        }
    }
    if (*n == 0) return sn_fail(err, SN_REFUSED, NO_XPU "its driver is there, but lists no GPU; use another device");
    return SN_OK;
}

static size_t device_memory_bytes(ze_device_handle_t device) {
    ze_device_memory_properties_t banks[16];
    uint32_t n = sizeof banks / sizeof *banks;
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        banks[i] = (ze_device_memory_properties_t){.stype = ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES};
    if (zeDeviceGetMemoryProperties(device, &n, banks)) return 0;
    for (uint32_t i = 0; i < n; i++) bytes += banks[i].totalSize;
    return bytes;
}

static atomic_uint opened; /* a bit for each ordinal that this process has opened */

/* What is kept back: for the driver, which takes its part with the first opening, and, where nothing tells what is
 * free, for a desktop and other programs. */
static size_t memory_reserve(size_t memory, bool told, uint32_t ordinal) {
    enum { RESERVE_BYTES = 512 << 20, SHARE = 16 };
    if (!told) return RESERVE_BYTES + memory / SHARE;
    return atomic_load(&opened) >> ordinal & 1 ? 0 : RESERVE_BYTES;
}

sn_status sn_xpu_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) {
    found_device devices[SN_DEVICES_MAX];
    uint32_t n_found;
    sn_status status = find_devices(devices, &n_found, err);
    for (uint32_t i = 0; i < n_found && *n < SN_DEVICES_MAX && !status; i++) {
        ze_device_properties_t p = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
        ze_api_version_t version = 0;
        (void)zeDeviceGetProperties(devices[i].device, &p);
        (void)zeDriverGetApiVersion(devices[i].driver, &version);
        sn_device_info *info = &out[(*n)++];
        *info = (sn_device_info){.id = {SN_DEVICE_XPU, (int)i}, .memory = device_memory_bytes(devices[i].device)};
        const bool told =
            sn_xpu_free_memory(devices[i].device, &info->memory_free) && info->memory_free <= info->memory;
        if (!told) info->memory_free = info->memory;
        info->memory_reserve = memory_reserve(info->memory, told, i);
        snprintf(info->name, sizeof info->name, "%.63s", p.name);
        snprintf(info->features, sizeof info->features, "Level Zero %u.%u, %u units", (unsigned)version >> 16,
                 (unsigned)version & 0xffff, p.numSlices * p.numSubslicesPerSlice * p.numEUsPerSubslice);
    }
    return status;
}

/* -- opening */

static sn_status find_device(sn_xpu *x, sn_err *err) {
    found_device devices[SN_DEVICES_MAX];
    uint32_t n;
    sn_status status = find_devices(devices, &n, err);
    if (status) return sn_err_context(err, "%s cannot be used", x->name);
    if ((uint32_t)x->base.id.ordinal >= n)
        return sn_fail(err, SN_REFUSED, "there is no %s: the last one is xpu:%u", x->name, n - 1);
    x->driver = devices[x->base.id.ordinal].driver;
    x->device = devices[x->base.id.ordinal].device;
    return SN_OK;
}

static bool has_extension(ze_driver_handle_t driver, const char *name) {
    ze_driver_extension_properties_t all[256];
    uint32_t n = sizeof all / sizeof *all;
    if (zeDriverGetExtensionProperties(driver, &n, all)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!strncmp(all[i].name, name, sizeof all[i].name)) return true;
    return false;
}

/* Of an extension that Intel's driver has and the loader's headers do not: its document MODULE_DP_SUPPORT. */
#define MATRIX_UNITS_EXTENSION "ZE_intel_experimental_device_module_dp_properties"
enum { MATRIX_UNITS_STYPE = 0x00030013, HAS_MATRIX_UNITS = 2 };
typedef struct matrix_units {
    ze_structure_type_t stype;
    void *pNext;
    uint32_t flags;
} matrix_units;

/* The lanes of a subgroup that shares a matrix unit: as many as the smallest subgroup has. 0: the device has none. */
static int matrix_lanes(const sn_xpu *x, const ze_device_compute_properties_t *compute) {
    uint32_t least = UINT32_MAX, stype = MATRIX_UNITS_STYPE;
    matrix_units units = {.pNext = NULL};
    memcpy(&units.stype, &stype, sizeof stype);
    ze_device_module_properties_t module = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES, .pNext = &units};
    if (!has_extension(x->driver, MATRIX_UNITS_EXTENSION) || zeDeviceGetModuleProperties(x->device, &module)) return 0;
    for (uint32_t i = 0; i < compute->numSubGroupSizes && i < ZE_SUBGROUPSIZE_COUNT; i++)
        if (compute->subGroupSizes[i] < least) least = compute->subGroupSizes[i];
    return units.flags & HAS_MATRIX_UNITS && (least == 8 || least == 16) ? (int)least : 0;
}

static sn_status query_device(sn_xpu *x, sn_err *err) {
    ze_device_properties_t p = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
    ze_device_compute_properties_t compute = {.stype = ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES};
    ze_device_module_properties_t module = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES};
    sn_status status = sn_xpu_check(x, zeDeviceGetProperties(x->device, &p), "being opened", err);
    if (!status) status = sn_xpu_check(x, zeDeviceGetComputeProperties(x->device, &compute), "being opened", err);
    if (!status) status = sn_xpu_check(x, zeDeviceGetModuleProperties(x->device, &module), "being opened", err);
    if (status) return status;
    /* what attention_tile needs */
    enum { GROUP = 128, LOCAL = 3 * SN_XPU_TILE_ROWS * SN_XPU_HEAD_DIM_MAX * 4 + 2048 };
    if (compute.maxTotalGroupSize < GROUP || compute.maxSharedLocalMemory < LOCAL)
        return sn_fail(err, SN_REFUSED,
                       "%s is too small for the kernels: groups of %u and %u bytes of local memory, not %d "
                       "and %d",
                       x->name, compute.maxTotalGroupSize, compute.maxSharedLocalMemory, GROUP, LOCAL);
    x->dp4a = module.flags & ZE_DEVICE_MODULE_FLAG_DP4A;
    x->xmx_lanes = x->dp4a ? matrix_lanes(x, &compute) : 0;
    x->base.allocation_max = p.maxMemAllocSize;
    /* the driver allocates more at once than the device's limit, if it is asked to */
    x->relaxed = has_extension(x->driver, ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME);
    x->memory = device_memory_bytes(x->device);
    snprintf(x->description, sizeof x->description, "%s: %.128s, %.1f GiB", x->name, p.name,
             (double)x->memory / (1024.0 * 1024 * 1024));
    return SN_OK;
}

static sn_status open_device(sn_xpu *x, sn_err *err) {
    ze_context_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
    sn_status status = find_device(x, err);
    if (!status) status = query_device(x, err);
    if (!status) status = sn_xpu_check(x, zeContextCreate(x->driver, &desc, &x->context), "being opened", err);
    if (!status) status = sn_xpu_queue_open(x, err);
    if (!status) status = sn_xpu_load_block(x, err);
    if (!status) status = sn_xpu_host_alloc(&x->base, SN_XPU_STAGING, (void **)&x->staging, err);
    return status;
}

/* A device that hangs may still write to its memory and read its lists: what it does not release in time stays
 * allocated until the process ends. */
static void xpu_close(sn_device *d) {
    sn_xpu *x = sn_xpu_of(d);
    if (!x->base.lost) (void)sn_xpu_finish(d, NULL);
    if (x->base.lost) sn_xpu_wait_stopped(x);
    if (x->hung && x->idle) {
        uint64_t limit_ns = (uint64_t)(d->timeout_ms > 0 ? d->timeout_ms : 0) * 1000000;
        bool answers = zeEventHostSynchronize(x->idle, limit_ns) != ZE_RESULT_NOT_READY;
        for (int i = 0; i < SN_XPU_COPIES && answers; i++)
            answers = !x->copy[i].used || zeEventHostSynchronize(x->copy[i].done, limit_ns) != ZE_RESULT_NOT_READY;
        x->hung = !answers;
    }
    sn_xpu_free(d, x->ids.device, x->ids.bytes);
    sn_xpu_free(d, x->batch_table.device, x->batch_table.bytes);
    sn_xpu_free(d, x->kv_staging.device, x->kv_staging.bytes);
    sn_xpu_free(d, x->partial.device, x->partial.bytes);
    sn_xpu_free(d, x->index_scores.device, x->index_scores.bytes);
    sn_xpu_free(d, x->rows8.device, x->rows8.bytes);
    sn_xpu_free(d, x->groups.device, x->groups.bytes);
    sn_xpu_free(d, x->grad_stats.device, x->grad_stats.bytes);
    sn_xpu_host_free(d, x->staging, 0);
    sn_xpu_release_orphans(x);
    if (x->hung) {
        sn_log(SN_LOG_WARN, "memory of hung device not freed", "device=%s", x->name);
    } else {
        sn_xpu_unload(x);
        sn_xpu_queue_close(x);
        if (x->context) zeContextDestroy(x->context);
    }
    sn_allocations_fini(&x->allocations);
    free(x);
}

/* A buffer of the device itself, and the bytes that certain limits need. */
typedef struct buffer_need {
    sn_xpu_buffer *buffer;
    size_t bytes;
} buffer_need;

enum { BUFFERS = 8 };

/* The bytes of all buffers for these limits. */
static sn_status buffer_needs(sn_xpu *x, const sn_device_limits *l, buffer_need out[BUFFERS], sn_err *err) {
    if (l->rows < 0 || l->width < 0 || l->context < 0 || l->sequences < 0 || l->grad_tokens < 0 ||
        l->experts_used < 0 || l->expert_width < 0)
        return sn_fail(err, SN_REFUSED, "limits of %d rows, %d elements, %d positions are not possible", l->rows,
                       l->width, l->context);
    const buffer_need all[BUFFERS] = {
        {&x->ids, sn_xpu_buffer_bytes((size_t)l->rows * sizeof(int32_t))},
        {&x->batch_table, sn_xpu_buffer_bytes(sn_xpu_table_bytes(l))},
        {&x->kv_staging, sn_xpu_buffer_bytes(sn_xpu_kv_staging_bytes(l))},
        {&x->partial, sn_xpu_buffer_bytes(sn_xpu_partial_bytes(l))},
        {&x->index_scores, sn_xpu_buffer_bytes(sn_xpu_index_scores_bytes(l))},
        {&x->rows8, sn_xpu_buffer_bytes(sn_xpu_rows8_bytes(x, l))},
        {&x->groups, sn_xpu_buffer_bytes(sn_xpu_groups_bytes(l))},
        {&x->grad_stats, sn_xpu_buffer_bytes(3 * sizeof(float) * (size_t)l->grad_tokens * (size_t)l->heads)}};
    memcpy(out, all, sizeof all);
    return SN_OK;
}

static size_t xpu_prepare_bytes(const sn_device *d, const sn_device_limits *limits) {
    sn_xpu *x = (sn_xpu *)(uintptr_t)d; /* only read */
    const sn_device_limits all = sn_device_limits_join(&x->limits, limits);
    buffer_need needs[BUFFERS];
    size_t sum = 0;
    if (buffer_needs(x, &all, needs, NULL)) return SIZE_MAX;
    for (int i = 0; i < BUFFERS; i++)
        if (needs[i].bytes > needs[i].buffer->bytes && !sn_add(sum, needs[i].bytes, &sum)) return SIZE_MAX;
    return sum;
}

static sn_status xpu_prepare(sn_device *d, const sn_device_limits *limits, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    const sn_device_limits all = sn_device_limits_join(&x->limits, limits);
    buffer_need needs[BUFFERS];
    sn_status status = buffer_needs(x, &all, needs, err);
    for (int i = 0; i < BUFFERS && !status; i++)
        status = sn_xpu_buffer_reserve(x, needs[i].buffer, needs[i].bytes, err);
    if (!status) x->limits = all;
    return status;
}

static const sn_device_ops xpu_ops = {
    .alloc = sn_xpu_alloc,
    .free = sn_xpu_free,
    .owns = sn_xpu_owns,
    .upload = sn_xpu_upload,
    .download = sn_xpu_download,
    .finish = sn_xpu_finish,
    .prepare = xpu_prepare,
    .prepare_bytes = xpu_prepare_bytes,
    .host_alloc = sn_xpu_host_alloc,
    .host_free = sn_xpu_host_free,
    .copy_begin = sn_xpu_copy_begin,
    .copy_join = sn_xpu_copy_join,
    .copy_wait = sn_xpu_copy_wait,
    .weight_size = sn_xpu_weight_size,
    .weight_pack = sn_xpu_weight_pack,
    .batch_begin = sn_xpu_batch_begin,
    .batch_end = sn_xpu_batch_end,
    .linear = sn_xpu_linear,
    .rms_norm = sn_xpu_rms_norm,
    .group_norm = sn_xpu_group_norm,
    .layer_norm = sn_xpu_layer_norm,
    .rope = sn_xpu_rope,
    .kv_store = sn_xpu_kv_store,
    .kv_read = sn_xpu_kv_read,
    .kv_write = sn_xpu_kv_write,
    .attention = sn_xpu_attention,
    .short_conv = sn_xpu_short_conv,
    .choose_keys = sn_xpu_choose_keys,
    .delta_rule = sn_xpu_delta_rule,
    .activate = sn_xpu_activate,
    .add = sn_xpu_add,
    .scale = sn_xpu_scale,
    .clamp = sn_xpu_clamp,
    .dot_rows = sn_xpu_dot_rows,
    .head_linear = sn_xpu_head_linear,
    .get_rows = sn_xpu_get_rows,
    .norm_linear = sn_xpu_norm_linear,
    .rope_store = sn_xpu_rope_store,
    .attention_linear = sn_xpu_attention_linear,
    .activate_linear = sn_xpu_activate_linear,
    .activate_moe_linear = sn_xpu_activate_moe_linear,
    .linear_input_grad = sn_xpu_linear_input_grad,
    .linear_weight_grad = sn_xpu_linear_weight_grad,
    .rms_norm_grad = sn_xpu_rms_norm_grad,
    .layer_norm_grad = sn_xpu_layer_norm_grad,
    .activate_grad = sn_xpu_activate_grad,
    .attention_grad = sn_xpu_attention_grad,
    .moe_gate = sn_xpu_moe_gate,
    .moe_linear = sn_xpu_moe_linear,
    .moe_combine = sn_xpu_moe_combine,
    .moe_linear_grad = sn_xpu_moe_linear_grad,
    .moe_combine_grad = sn_xpu_moe_combine_grad,
    .moe_gate_grad = sn_xpu_moe_gate_grad,
    .kv_page_bytes = sn_xpu_kv_page_bytes,
    .close = xpu_close,
};

sn_status sn_xpu_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) {
    sn_xpu *x = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&x, 1, sizeof *x, err);
    if (status) return status;
    x->base = (sn_device){.ops = &xpu_ops,
                          .id = id,
                          .kv_dtypes = 1 << SN_KV_F16 | 1 << SN_KV_Q8,
                          .timeout_ms = TIMEOUT_MS,
                          .memory_max = sn_device_memory_max(options)};
    if (options && options->timeout_ms > 0) x->base.timeout_ms = options->timeout_ms;
    sn_device_id_name(id, x->name);
    status = open_device(x, err);
    if (status) {
        xpu_close(&x->base);
        return status;
    }
    atomic_fetch_or(&opened, 1u << id.ordinal); /* it is one of SN_DEVICES_MAX */
    *out = &x->base;
    return SN_OK;
}

const char *sn_xpu_describe(const sn_device *device) { return sn_xpu_of(device)->description; }
