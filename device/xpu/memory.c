/* Memory of the device, pinned memory, and copies in the order of the queue. */
#include "device/xpu/xpu_private.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* Being out of memory does not stop the device: the caller may free memory, or ask for less. */
static sn_status fail_out_of_memory(sn_xpu *x, ze_result_t result, const char *kind, size_t bytes, sn_err *err) {
    if (result == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY || result == ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY ||
        result == ZE_RESULT_ERROR_UNSUPPORTED_SIZE)
        return sn_fail(err, SN_STOP,
                       "%s has no %zu bytes of %s memory left: %s; give it fewer blocks or less memory for KV caches",
                       x->name, bytes, kind, sn_xpu_result_text(result));
    return sn_xpu_check(x, result, "allocating memory", err);
}

static sn_status device_malloc(sn_xpu *x, size_t bytes, void **device, sn_err *err) {
    ze_relaxed_allocation_limits_exp_desc_t relaxed = {.stype = ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC,
                                                       .flags = ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE};
    ze_device_mem_alloc_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
    *device = NULL;
    sn_status status = sn_xpu_check_alive(x, err);
    if (status) return status;
    if (bytes > x->base.allocation_max) {
        if (!x->relaxed)
            return sn_fail(
                err, SN_STOP,
                "%s allocates at most %zu bytes at once, not %zu: update its driver, give the block to another "
                "device (--device-map), or let experts rest elsewhere (--offload)",
                x->name, x->base.allocation_max, bytes);
        desc.pNext = &relaxed;
    }
    status = sn_device_take_memory(&x->base, bytes, err);
    if (status) return status;
    ze_result_t result = zeMemAllocDevice(x->context, &desc, bytes ? bytes : 1, ALIGNMENT, x->device, device);
    if (!result) return SN_OK;
    sn_device_give_memory(&x->base, bytes);
    *device = NULL;
    return fail_out_of_memory(x, result, "device", bytes, err);
}

sn_status sn_xpu_alloc(sn_device *d, size_t bytes, void **device, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    static const uint8_t zero = 0;
    *device = NULL;
    sn_status status = sn_allocations_reserve(&x->allocations, err);
    if (!status) status = device_malloc(x, bytes, device, err);
    if (status) return status;
    sn_allocations_add(&x->allocations, *device, bytes);
    if (bytes == 0) return SN_OK;
    status = sn_xpu_barrier(x, err);
    if (!status)
        status = sn_xpu_check(x, zeCommandListAppendMemoryFill(x->queue, *device, &zero, 1, bytes, NULL, 0, NULL),
                              "clearing memory", err);
    if (status) {
        sn_xpu_free(d, *device, bytes);
        *device = NULL;
    }
    return status;
}

/* Waits first, because queued work may still use the memory. False: the device hangs, and the memory is kept. */
static bool memory_free(sn_xpu *x, void *memory) {
    sn_xpu_orphan *orphan;
    if (!x->base.lost) (void)sn_xpu_finish(&x->base, NULL);
    if (x->base.lost) sn_xpu_wait_stopped(x);
    if (!x->hung) {
        zeMemFree(x->context, memory);
        return true;
    }
    if (sn_calloc(&orphan, 1, sizeof *orphan, NULL)) return false; /* the memory leaks: nothing else can be done */
    *orphan = (sn_xpu_orphan){x->orphans, memory};
    x->orphans = orphan;
    return false;
}

void sn_xpu_free(sn_device *d, void *device, size_t bytes) {
    sn_xpu *x = sn_xpu_of(d);
    if (!device) return;
    sn_allocations_remove(&x->allocations, device);
    if (memory_free(x, device)) sn_device_give_memory(d, bytes);
}

bool sn_xpu_owns(const sn_device *d, const void *device, size_t bytes) {
    return sn_allocations_contain(&sn_xpu_of(d)->allocations, device, bytes);
}

void sn_xpu_release_orphans(sn_xpu *x) {
    while (x->orphans) {
        sn_xpu_orphan *orphan = x->orphans;
        x->orphans = orphan->next;
        if (!x->hung) zeMemFree(x->context, orphan->memory);
        free(orphan);
    }
}

sn_status sn_xpu_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    ze_host_mem_alloc_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
    *host = NULL;
    sn_status status = sn_xpu_check_alive(x, err);
    if (status) return status;
    ze_result_t result = zeMemAllocHost(x->context, &desc, bytes ? bytes : 1, ALIGNMENT, host);
    if (!result) return SN_OK;
    *host = NULL;
    return fail_out_of_memory(x, result, "pinned host", bytes, err);
}

void sn_xpu_host_free(sn_device *d, void *host, size_t bytes) {
    (void)bytes;
    if (host) memory_free(sn_xpu_of(d), host);
}

size_t sn_xpu_buffer_bytes(size_t bytes) { return sn_round_up(bytes, 4096); }

sn_status sn_xpu_buffer_reserve(sn_xpu *x, sn_xpu_buffer *buffer, size_t bytes, sn_err *err) {
    void *grown;
    if (bytes <= buffer->bytes) return sn_xpu_check_alive(x, err);
    sn_status status = device_malloc(x, sn_xpu_buffer_bytes(bytes), &grown, err);
    if (status) return status;
    sn_xpu_free(&x->base, buffer->device, buffer->bytes);
    *buffer = (sn_xpu_buffer){grown, sn_xpu_buffer_bytes(bytes)};
    return SN_OK;
}

/* Copies through the staging buffer, whose parts are used one after the other; waits for the queue when all of it may
 * be in use. */
sn_status sn_xpu_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    sn_status status = sn_xpu_check_alive(x, err);
    if (status || bytes == 0) return status;
    status = sn_xpu_barrier(x, err);
    for (size_t at = 0; at < bytes && !status;) {
        if (x->staged == SN_XPU_STAGING) status = sn_xpu_wait(x, err);
        if (status) break;
        size_t n = sn_min_size(sn_min_size(bytes - at, SN_XPU_STAGING_CHUNK), SN_XPU_STAGING - x->staged);
        uint8_t *chunk = x->staging + x->staged;
        memcpy(chunk, (const uint8_t *)host + at, n);
        x->busy = true;
        status =
            sn_xpu_check(x, zeCommandListAppendMemoryCopy(x->queue, (uint8_t *)device + at, chunk, n, NULL, 0, NULL),
                         "copying to it", err);
        x->staged = sn_min_size(sn_round_up(x->staged + n, ALIGNMENT), SN_XPU_STAGING);
        at += n;
    }
    return status;
}

sn_status sn_xpu_download(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    sn_status status = sn_xpu_wait(x, err);
    for (size_t at = 0; at < bytes && !status;) {
        size_t n = sn_min_size(bytes - at, SN_XPU_STAGING);
        x->busy = true;
        status = sn_xpu_check(
            x, zeCommandListAppendMemoryCopy(x->queue, x->staging, (const uint8_t *)device + at, n, NULL, 0, NULL),
            "copying from it", err);
        if (!status) status = sn_xpu_wait(x, err);
        if (!status) memcpy((uint8_t *)host + at, x->staging, n);
        at += n;
    }
    return status;
}
