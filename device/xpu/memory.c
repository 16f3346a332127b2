/* Device memory, pinned memory, and copies in the order of the queue. */
#include "device/xpu/xpu.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* Being out of memory is no reason to stop: the caller may free some, or ask for less. */
static sn_status out_of_memory(sn_xpu *x, ze_result_t result, const char *kind, size_t bytes, sn_err *err) {
    if (result == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY || result == ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY ||
        result == ZE_RESULT_ERROR_UNSUPPORTED_SIZE)
        return sn_fail(err, SN_STOP, "%s has no room for %zu bytes of %s memory: %s; give it less to hold", x->name,
                       bytes, kind, sn_xpu_result(result));
    return sn_xpu_check(x, result, "allocating memory", err);
}

static sn_status allocate(sn_xpu *x, size_t bytes, void **device, sn_err *err) {
    ze_device_mem_alloc_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
    *device = NULL;
    sn_status status = sn_xpu_alive(x, err);
    if (status) return status;
    if (bytes == 0) bytes = 1;
    if (bytes > x->allocation_max)
        return sn_fail(err, SN_STOP, "%s gives at most %zu bytes at once, not %zu", x->name, x->allocation_max, bytes);
    ze_result_t result = zeMemAllocDevice(x->context, &desc, bytes, ALIGNMENT, x->device, device);
    if (!result) return SN_OK;
    *device = NULL;
    return out_of_memory(x, result, "device", bytes, err);
}

sn_status sn_xpu_alloc(sn_device *d, size_t bytes, void **device, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    static const uint8_t zero = 0;
    *device = NULL;
    sn_status status = sn_holdings_reserve(&x->held, err);
    if (!status) status = allocate(x, bytes, device, err);
    if (status) return status;
    sn_holdings_add(&x->held, *device, bytes);
    if (bytes == 0) return SN_OK;
    status = sn_xpu_order(x, err);
    if (!status)
        status = sn_xpu_check(x, zeCommandListAppendMemoryFill(x->queue, *device, &zero, 1, bytes, NULL, 0, NULL),
                              "clearing memory", err);
    if (status) {
        sn_xpu_free(d, *device, bytes);
        *device = NULL;
    }
    return status;
}

/* Queued work may use it still. */
void sn_xpu_free(sn_device *d, void *device, size_t bytes) {
    (void)bytes;
    sn_xpu *x = sn_xpu_of(d);
    sn_xpu_orphan *orphan;
    if (!device) return;
    sn_holdings_remove(&x->held, device);
    if (!x->stopped) (void)sn_xpu_finish(d, NULL);
    if (x->stopped) sn_xpu_settle(x);
    if (!x->hanging) {
        zeMemFree(x->context, device);
        return;
    }
    if (sn_calloc(&orphan, 1, sizeof *orphan, NULL)) return; /* lost: nothing can be done with it */
    *orphan = (sn_xpu_orphan){x->orphans, device};
    x->orphans = orphan;
}

bool sn_xpu_owns(const sn_device *d, const void *device, size_t bytes) {
    return sn_holdings_has(&sn_xpu_of(d)->held, device, bytes);
}

void sn_xpu_release_orphans(sn_xpu *x) {
    while (x->orphans) {
        sn_xpu_orphan *orphan = x->orphans;
        x->orphans = orphan->next;
        if (!x->hanging) zeMemFree(x->context, orphan->memory);
        free(orphan);
    }
}

sn_status sn_xpu_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    ze_host_mem_alloc_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
    *host = NULL;
    sn_status status = sn_xpu_alive(x, err);
    if (status) return status;
    ze_result_t result = zeMemAllocHost(x->context, &desc, bytes ? bytes : 1, ALIGNMENT, host);
    if (!result) return SN_OK;
    *host = NULL;
    return out_of_memory(x, result, "pinned host", bytes, err);
}

void sn_xpu_host_free(sn_device *d, void *host, size_t bytes) { sn_xpu_free(d, host, bytes); }

sn_status sn_xpu_reserve(sn_xpu *x, sn_xpu_room *room, size_t bytes, sn_err *err) {
    void *grown;
    if (bytes <= room->bytes) return sn_xpu_alive(x, err);
    sn_status status = allocate(x, sn_round_up(bytes, 4096), &grown, err);
    if (status) return status;
    sn_xpu_free(&x->base, room->device, room->bytes);
    *room = (sn_xpu_room){grown, sn_round_up(bytes, 4096)};
    return SN_OK;
}

/* Through the staging memory, whose parts are used one after the other; when all of it may be in use, the queue is
 * waited for. */
sn_status sn_xpu_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    sn_status status = sn_xpu_alive(x, err);
    if (status || bytes == 0) return status;
    status = sn_xpu_order(x, err);
    for (size_t at = 0; at < bytes && !status;) {
        if (x->staged == SN_XPU_STAGING) status = sn_xpu_wait(x, err);
        if (status) break;
        size_t n = sn_min_size(sn_min_size(bytes - at, SN_XPU_PIECE), SN_XPU_STAGING - x->staged);
        uint8_t *piece = x->staging + x->staged;
        memcpy(piece, (const uint8_t *)host + at, n);
        x->busy = true;
        status =
            sn_xpu_check(x, zeCommandListAppendMemoryCopy(x->queue, (uint8_t *)device + at, piece, n, NULL, 0, NULL),
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
