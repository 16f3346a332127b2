/* The queue of work, concurrent copies, and every wait of the XPU backend.
 *
 * Both command lists are immediate: a command starts when it is appended. `queue` runs the work; sn_xpu_barrier orders
 * it. `copies` runs the copies of copy_begin, at most SN_XPU_COPIES at a time. Each copy has three events: `before` is
 * signalled by the queue when all earlier work is done and starts the copy; `done` is signalled by the copy; `joined`
 * is signalled by the queue when it has passed the barrier of copy_join, and tells that the events may be reset.
 *
 * Waits go through wait_event, which has the device's timeout (after a stop: sn_xpu_wait_stopped, with the same
 * timeout). When it expires, the device counts as hung: it stops, and its memory is no longer freed (memory.c). */
#include "device/xpu/xpu_private.h"

#include <stdio.h>
#include <string.h>

const char *sn_xpu_result_text(ze_result_t result) {
    switch (result) {
    case ZE_RESULT_ERROR_DEVICE_LOST:
        return "the device is lost";
    case ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY:
        return "out of host memory";
    case ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY:
        return "out of device memory";
    case ZE_RESULT_ERROR_MODULE_BUILD_FAILURE:
        return "the driver cannot compile the kernels";
    case ZE_RESULT_ERROR_UNSUPPORTED_SIZE:
        return "more than this device allocates at once";
    case ZE_RESULT_ERROR_UNINITIALIZED:
        return "the driver is not ready";
    case ZE_RESULT_ERROR_UNSUPPORTED_FEATURE:
        return "the driver lacks a function";
    default:
        return "the driver refused";
    }
}

sn_status sn_xpu_check_alive(const sn_xpu *x, sn_err *err) {
    return x->base.lost ? sn_fail(err, SN_STOP, "%s", x->stop_reason) : SN_OK;
}

static sn_status mark_stopped(sn_xpu *x, sn_err *err) {
    x->base.lost = x->stop_reason;
    return sn_xpu_check_alive(x, err);
}

sn_status sn_xpu_check(sn_xpu *x, ze_result_t result, const char *what, sn_err *err) {
    if (x->base.lost) return sn_xpu_check_alive(x, err);
    if (result == ZE_RESULT_SUCCESS) return SN_OK;
    snprintf(x->stop_reason, sizeof x->stop_reason,
             "%s failed while %s: %s (Level Zero result 0x%x): close it, and open it again", x->name, what,
             sn_xpu_result_text(result), (unsigned)result);
    return mark_stopped(x, err);
}

/* -- opening */

/* Finds the group of command queues for work, and one that only copies where the device has one. */
static sn_status find_queue_groups(sn_xpu *x, uint32_t *work, uint32_t *copies, sn_err *err) {
    ze_command_queue_group_properties_t groups[16];
    uint32_t n = sizeof groups / sizeof *groups;
    for (uint32_t i = 0; i < n; i++)
        groups[i] = (ze_command_queue_group_properties_t){.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES};
    sn_status status =
        sn_xpu_check(x, zeDeviceGetCommandQueueGroupProperties(x->device, &n, groups), "being opened", err);
    if (status) return status;
    *work = *copies = n;
    for (uint32_t i = n; i-- > 0;) {
        if (groups[i].flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE)
            *work = i;
        else if (groups[i].flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY)
            *copies = i;
    }
    if (*work == n)
        return sn_xpu_check(x, ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, "looking for a queue that computes", err);
    if (*copies == n) *copies = *work;
    return SN_OK;
}

static sn_status open_list(sn_xpu *x, uint32_t group, ze_command_list_handle_t *out, sn_err *err) {
    ze_command_queue_desc_t desc = {
        .stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC, .ordinal = group, .mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS};
    return sn_xpu_check(x, zeCommandListCreateImmediate(x->context, x->device, &desc, out), "being opened", err);
}

static sn_status open_event(sn_xpu *x, uint32_t index, ze_event_handle_t *out, sn_err *err) {
    ze_event_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_EVENT_DESC,
                            .index = index,
                            .signal = ZE_EVENT_SCOPE_FLAG_HOST,
                            .wait = ZE_EVENT_SCOPE_FLAG_DEVICE};
    return sn_xpu_check(x, zeEventCreate(x->pool, &desc, out), "being opened", err);
}

sn_status sn_xpu_queue_open(sn_xpu *x, sn_err *err) {
    uint32_t work, copies;
    sn_status status = find_queue_groups(x, &work, &copies, err);
    if (!status) status = open_list(x, work, &x->queue, err);
    if (!status) status = open_list(x, copies, &x->copies, err);
    ze_event_pool_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
                                 .flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE,
                                 .count = 1 + 3 * SN_XPU_COPIES};
    if (!status)
        status = sn_xpu_check(x, zeEventPoolCreate(x->context, &desc, 1, &x->device, &x->pool), "being opened", err);
    if (!status) status = open_event(x, 0, &x->idle, err);
    for (uint32_t i = 0; i < SN_XPU_COPIES && !status; i++) {
        status = open_event(x, 1 + 3 * i, &x->copy[i].before, err);
        if (!status) status = open_event(x, 2 + 3 * i, &x->copy[i].done, err);
        if (!status) status = open_event(x, 3 + 3 * i, &x->copy[i].joined, err);
    }
    return status;
}

void sn_xpu_queue_close(sn_xpu *x) {
    if (x->queue) zeCommandListDestroy(x->queue);
    if (x->copies) zeCommandListDestroy(x->copies);
    for (int i = 0; i < SN_XPU_COPIES; i++) {
        if (x->copy[i].before) zeEventDestroy(x->copy[i].before);
        if (x->copy[i].done) zeEventDestroy(x->copy[i].done);
        if (x->copy[i].joined) zeEventDestroy(x->copy[i].joined);
    }
    if (x->idle) zeEventDestroy(x->idle);
    if (x->pool) zeEventPoolDestroy(x->pool);
}

/* -- order and waits */

sn_status sn_xpu_barrier(sn_xpu *x, sn_err *err) {
    sn_status status = sn_xpu_check_alive(x, err);
    if (status) return status;
    x->busy = true;
    return sn_xpu_check(x, zeCommandListAppendBarrier(x->queue, NULL, 0, NULL), "ordering work", err);
}

static sn_status wait_event(sn_xpu *x, ze_event_handle_t event, const char *what, sn_err *err) {
    sn_status status = sn_xpu_check_alive(x, err);
    if (status) return status;
    uint64_t limit_ns = (uint64_t)(x->base.timeout_ms > 0 ? x->base.timeout_ms : 0) * 1000000;
    ze_result_t result = zeEventHostSynchronize(event, limit_ns);
    if (result != ZE_RESULT_NOT_READY) return sn_xpu_check(x, result, what, err);
    x->hung = true;
    snprintf(x->stop_reason, sizeof x->stop_reason,
             "%s did not answer within %d ms while %s: it hangs or is overloaded; close it, and "
             "do not use it until the cause is known",
             x->name, x->base.timeout_ms, what);
    return mark_stopped(x, err);
}

sn_status sn_xpu_wait(sn_xpu *x, sn_err *err) {
    sn_status status = sn_xpu_check_alive(x, err);
    if (status || !x->busy) return status;
    status = sn_xpu_check(x, zeCommandListAppendBarrier(x->queue, x->idle, 0, NULL), "finishing its work", err);
    if (!status) status = wait_event(x, x->idle, "finishing its work", err);
    if (!status) status = sn_xpu_check(x, zeEventHostReset(x->idle), "finishing its work", err);
    if (status) return status;
    x->busy = false;
    x->staged = 0;
    return SN_OK;
}

/* After a stop, before memory is freed: queued work may still run when the device itself has not failed. */
void sn_xpu_wait_stopped(sn_xpu *x) {
    uint64_t limit_ns = (uint64_t)(x->base.timeout_ms > 0 ? x->base.timeout_ms : 0) * 1000000;
    if (!x->queue || !x->idle || x->hung || !x->busy) return;
    x->busy = false;
    ze_result_t result = zeCommandListAppendBarrier(x->queue, x->idle, 0, NULL);
    if (!result) result = zeEventHostSynchronize(x->idle, limit_ns);
    for (int i = 0; i < SN_XPU_COPIES && !result; i++)
        if (x->copy[i].used) result = zeEventHostSynchronize(x->copy[i].done, limit_ns);
    x->hung = result == ZE_RESULT_NOT_READY;
}

/* Waits for the work, and for the copies that were not joined. */
sn_status sn_xpu_finish(sn_device *d, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    sn_status status = sn_xpu_wait(x, err);
    for (int i = 0; i < SN_XPU_COPIES && !status; i++)
        if (x->copy[i].used && !x->copy[i].is_joined) status = wait_event(x, x->copy[i].done, "copying to it", err);
    return status;
}

/* -- launches */

sn_status sn_xpu_launch(sn_xpu *x, ze_kernel_handle_t kernel, size_t groups_x, size_t groups_y, int n_args,
                        const sn_xpu_arg *args, sn_err *err) {
    sn_status status = SN_OK;
    if (groups_x == 0 || groups_y == 0) return SN_OK;
    if (groups_x > UINT32_MAX || groups_y > UINT32_MAX)
        return sn_fail(err, SN_REFUSED, "%zu x %zu groups of work are too many at once", groups_x, groups_y);
    for (int i = 0; i < n_args && !status; i++)
        status = sn_xpu_check(x, zeKernelSetArgumentValue(kernel, (uint32_t)i, args[i].bytes, args[i].data),
                              "preparing a kernel", err);
    if (status) return status;
    ze_group_count_t groups = {(uint32_t)groups_x, (uint32_t)groups_y, 1};
    return sn_xpu_check(x, zeCommandListAppendLaunchKernel(x->queue, kernel, &groups, NULL, 0, NULL),
                        "starting a kernel", err);
}

/* -- concurrent copies */

/* Frees the slot of the next copy: waits until its last copy, and the join of it, are over. */
static sn_status copy_slot_acquire(sn_xpu *x, sn_xpu_copy *copy, sn_err *err) {
    if (!copy->used) return sn_xpu_check_alive(x, err);
    sn_status status = wait_event(x, copy->is_joined ? copy->joined : copy->done, "copying to it", err);
    ze_event_handle_t events[] = {copy->before, copy->done, copy->joined};
    for (int i = 0; i < 3 && !status; i++) status = sn_xpu_check(x, zeEventHostReset(events[i]), "copying to it", err);
    if (!status) copy->used = copy->is_joined = false;
    return status;
}

sn_status sn_xpu_copy_begin(sn_device *d, void *device, const void *host, size_t bytes, sn_fence *fence, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    sn_xpu_copy *copy = &x->copy[x->next_fence % SN_XPU_COPIES];
    sn_status status = copy_slot_acquire(x, copy, err);
    if (status) return status;
    *fence = copy->fence = x->next_fence++;
    if (bytes == 0) return SN_OK;
    x->busy = true;
    status = sn_xpu_check(x, zeCommandListAppendBarrier(x->queue, copy->before, 0, NULL), "copying to it", err);
    if (!status)
        status =
            sn_xpu_check(x, zeCommandListAppendMemoryCopy(x->copies, device, host, bytes, copy->done, 1, &copy->before),
                         "copying to it", err);
    copy->used = true;
    return status;
}

/* The slot of the copy; NULL when the copy is over and another one has the slot, or when there was nothing to copy. */
static sn_xpu_copy *copy_slot_find(sn_xpu *x, sn_fence fence) {
    sn_xpu_copy *copy = &x->copy[fence % SN_XPU_COPIES];
    return copy->used && copy->fence == fence ? copy : NULL;
}

sn_status sn_xpu_copy_join(sn_device *d, sn_fence fence, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    sn_status status = sn_xpu_check_alive(x, err);
    sn_xpu_copy *copy = copy_slot_find(x, fence);
    if (status || !copy || copy->is_joined) return status;
    copy->is_joined = x->busy = true;
    return sn_xpu_check(x, zeCommandListAppendBarrier(x->queue, copy->joined, 1, &copy->done), "waiting for a copy",
                        err);
}

sn_status sn_xpu_copy_wait(sn_device *d, sn_fence fence, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    sn_status status = sn_xpu_check_alive(x, err);
    sn_xpu_copy *copy = copy_slot_find(x, fence);
    return status || !copy ? status : wait_event(x, copy->done, "copying to it", err);
}
