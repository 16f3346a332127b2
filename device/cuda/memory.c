/* Memory of the device, pinned memory of the host, and copies between them.
 *
 * Uploads and downloads go through a few pinned buffers ("stages") in rotation. CUDA waits inside a copy from or to
 * pageable memory; it does not with pinned memory. An upload copies into a stage and returns, so the caller's memory is
 * free at once. A stage is reused when its event has passed.
 *
 * Concurrent copies (copy_begin) run on a stream of their own: it waits for an event of the work stream, and copy_join
 * makes the work stream wait for the event of the copy.
 *
 * Freeing memory makes CUDA wait for the device. wait_before_free waits first, with the device's timeout; the memory of
 * a device that hangs is not freed. */
#include "base/mem.h"
#include "base/parse.h"
#include "device/cuda/cuda_private.h"

#include <string.h>

static sn_status fail_out_of_memory(const sn_cuda *cuda, size_t bytes, const char *kind, cudaError_t error,
                                    sn_err *err) {
    char wanted[32], free_text[32];
    size_t free_bytes = 0, total = 0;
    cudaGetLastError(); /* being out of memory is not a lasting error */
    if (error != cudaErrorMemoryAllocation)
        return sn_fail(err, SN_STOP, "%s gave no memory: %s", cuda->description, cudaGetErrorString(error));
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) free_bytes = 0;
    return sn_fail(
        err, SN_STOP,
        "%s has no %s of %s left (%s of device memory are free): give it fewer blocks or less memory for KV caches",
        cuda->description, sn_format_size(bytes, wanted), kind, sn_format_size(free_bytes, free_text));
}

/* Captured batches make room for what is needed. */
static sn_status take_memory(sn_cuda *cuda, size_t bytes, sn_err *err) {
    if (bytes > sn_device_memory_left(&cuda->base)) sn_cuda_graphs_clear(cuda);
    return sn_device_take_memory(&cuda->base, bytes, err);
}

static sn_status device_malloc(sn_cuda *cuda, size_t bytes, void **device, sn_err *err) {
    *device = NULL;
    sn_status status = take_memory(cuda, bytes, err);
    if (status) return status;
    cudaError_t error = cudaMalloc(device, bytes ? bytes : 1);
    if (error != cudaSuccess) {
        *device = NULL;
        sn_device_give_memory(&cuda->base, bytes);
        return fail_out_of_memory(cuda, bytes, "memory", error, err);
    }
    return sn_cuda_check(cuda, cudaMemsetAsync(*device, 0, bytes ? bytes : 1, cuda->work), "clearing memory", err);
}

sn_status sn_cuda_alloc(sn_device *d, size_t bytes, void **device, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *device = NULL;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "alloc", err);
    if (!status) status = sn_allocations_reserve(&cuda->allocations, err);
    if (!status) status = device_malloc(cuda, bytes, device, err);
    if (!status) sn_allocations_add(&cuda->allocations, *device, bytes);
    if (status && *device) sn_cuda_free(d, *device, bytes);
    if (status) *device = NULL;
    return status;
}

/* CUDA waits without limit when memory is freed. This function waits first, with the timeout; false: the device hangs
 * and the memory stays allocated. */
static bool wait_before_free(sn_cuda *cuda) {
    sn_err ignored;
    if (cuda->state == SN_CUDA_CAPTURING) sn_cuda_batch_abort(cuda);
    if (!sn_cuda_enter(cuda, &ignored) && !sn_cuda_wait_stream(cuda, cuda->work, &ignored) &&
        !sn_cuda_wait_stream(cuda, cuda->copies, &ignored))
        return true;
    return sn_cuda_idle(cuda);
}

void sn_cuda_free(sn_device *d, void *device, size_t bytes) {
    sn_cuda *cuda = (sn_cuda *)d;
    if (!device) return;
    sn_allocations_remove(&cuda->allocations, device);
    if (!wait_before_free(cuda)) return;
    cudaFree(device);
    sn_device_give_memory(d, bytes);
}

bool sn_cuda_owns(const sn_device *d, const void *device, size_t bytes) {
    return sn_allocations_contain(&((sn_cuda *)d)->allocations, device, bytes);
}

sn_status sn_cuda_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *host = NULL;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "host_alloc", err);
    if (status) return status;
    cudaError_t error = cudaHostAlloc(host, bytes ? bytes : 1, cudaHostAllocDefault);
    if (error == cudaSuccess) return SN_OK;
    *host = NULL;
    return fail_out_of_memory(cuda, bytes, "pinned host memory", error, err);
}

void sn_cuda_host_free(sn_device *d, void *host, size_t bytes) {
    (void)bytes;
    if (host && wait_before_free((sn_cuda *)d)) cudaFreeHost(host);
}

sn_status sn_cuda_buffer_reserve(sn_cuda *cuda, sn_cuda_buffer *buffer, size_t bytes, sn_err *err) {
    if (bytes <= buffer->bytes) return SN_OK;
    if (cuda->state == SN_CUDA_CAPTURING)
        return sn_fail(err, SN_REFUSED,
                       "%s: a batch that is being captured needs more memory than the same batch before it",
                       cuda->description);
    void *grown = NULL;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = device_malloc(cuda, bytes, &grown, err);
    if (status) {
        sn_cuda_free(&cuda->base, grown, bytes);
        return status;
    }
    if (buffer->at) sn_cuda_graphs_clear(cuda); /* graphs contain the old address */
    sn_cuda_free(&cuda->base, buffer->at, buffer->bytes);
    *buffer = (sn_cuda_buffer){grown, bytes};
    return SN_OK;
}

sn_status sn_cuda_buffer_require(sn_cuda *cuda, const sn_cuda_buffer *buffer, size_t bytes, sn_err *err) {
    if (bytes <= buffer->bytes) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%s was prepared for smaller calls: this one needs %zu bytes where there are %zu",
                   cuda->description, bytes, buffer->bytes);
}

/* -- copies */

/* The next stage, after its last copy has finished. */
static sn_status stage_acquire(sn_cuda *cuda, struct sn_cuda_stage **out, sn_err *err) {
    struct sn_cuda_stage *stage = &cuda->stages[cuda->next_stage];
    cuda->next_stage = (cuda->next_stage + 1) % SN_CUDA_STAGES;
    *out = stage;
    if (!stage->busy) return SN_OK;
    stage->busy = false;
    return sn_cuda_wait_event(cuda, stage->done, err);
}

static sn_status stage_copy(sn_cuda *cuda, struct sn_cuda_stage *stage, void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, sn_err *err) {
    sn_status status = sn_cuda_check_launch(cuda, cudaMemcpyAsync(to, from, bytes, kind, cuda->work), "a copy", err);
    if (status) return status;
    stage->busy = true;
    return sn_cuda_check(cuda, cudaEventRecord(stage->done, cuda->work), "marking a copy", err);
}

sn_status sn_cuda_upload_staged(sn_cuda *cuda, void *device, const void *host, size_t bytes, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t at = 0; at < bytes && !status;) {
        struct sn_cuda_stage *stage;
        size_t n = sn_min_size(bytes - at, SN_CUDA_STAGE_BYTES);
        if ((status = stage_acquire(cuda, &stage, err))) break;
        memcpy(stage->host, (const char *)host + at, n);
        status = stage_copy(cuda, stage, (char *)device + at, stage->host, n, cudaMemcpyHostToDevice, err);
        at += n;
    }
    return status;
}

sn_status sn_cuda_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "upload", err);
    return status ? status : sn_cuda_upload_staged(cuda, device, host, bytes, err);
}

/* Keeps all stages busy: chunk i + SN_CUDA_STAGES is requested when chunk i has been copied out. */
sn_status sn_cuda_download(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    struct sn_cuda_stage *stages[SN_CUDA_STAGES];
    sn_status status = sn_cuda_enter_uncaptured(cuda, "download", err);
    size_t n_chunks = (bytes + SN_CUDA_STAGE_BYTES - 1) / SN_CUDA_STAGE_BYTES, requested = 0;
    /* "download waits for all work queued before it" (device.h) */
    if (!status && !bytes) return sn_cuda_finish(d, err);
    for (size_t i = 0; i < n_chunks && !status; i++) {
        for (; requested < n_chunks && requested < i + SN_CUDA_STAGES && !status; requested++) {
            struct sn_cuda_stage **stage = &stages[requested % SN_CUDA_STAGES];
            size_t at = requested * SN_CUDA_STAGE_BYTES, n = sn_min_size(bytes - at, SN_CUDA_STAGE_BYTES);
            if ((status = stage_acquire(cuda, stage, err))) break;
            status =
                stage_copy(cuda, *stage, (*stage)->host, (const char *)device + at, n, cudaMemcpyDeviceToHost, err);
        }
        struct sn_cuda_stage *stage = stages[i % SN_CUDA_STAGES];
        size_t at = i * SN_CUDA_STAGE_BYTES;
        if (!status) status = sn_cuda_wait_event(cuda, stage->done, err);
        if (!status) memcpy((char *)host + at, stage->host, sn_min_size(bytes - at, SN_CUDA_STAGE_BYTES));
    }
    return status;
}

sn_status sn_cuda_finish(sn_device *d, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "finish", err);
    if (!status) status = sn_cuda_wait_stream(cuda, cuda->work, err);
    return status ? status : sn_cuda_wait_stream(cuda, cuda->copies, err);
}

/* -- concurrent copies */

sn_status sn_cuda_copy_begin(sn_device *d, void *device, const void *host, size_t bytes, sn_fence *fence, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *fence = 0;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "copy_begin", err);
    if (!status) status = sn_cuda_check(cuda, cudaEventRecord(cuda->queue_event, cuda->work), "marking the queue", err);
    if (!status)
        status = sn_cuda_check(cuda, cudaStreamWaitEvent(cuda->copies, cuda->queue_event, 0), "ordering a copy", err);
    if (!status && bytes)
        status = sn_cuda_check(cuda, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda->copies),
                               "a concurrent copy", err);
    cudaEvent_t event = cuda->copy_events[(cuda->last_fence + 1) % SN_CUDA_COPY_EVENTS];
    if (!status) status = sn_cuda_check(cuda, cudaEventRecord(event, cuda->copies), "marking a copy", err);
    if (!status) *fence = ++cuda->last_fence;
    return status;
}

/* When a later copy has reused the event, waiting for it waits longer than needed, never shorter: copies run in order.
 */
static sn_status find_copy_event(sn_cuda *cuda, const char *what, sn_fence fence, cudaEvent_t *event, sn_err *err) {
    sn_status status = sn_cuda_enter_uncaptured(cuda, what, err);
    if (status) return status;
    if (!fence || fence > cuda->last_fence)
        return sn_fail(err, SN_REFUSED, "%s: copy %llu does not exist", cuda->description, (unsigned long long)fence);
    *event = cuda->copy_events[fence % SN_CUDA_COPY_EVENTS];
    return SN_OK;
}

sn_status sn_cuda_copy_join(sn_device *d, sn_fence fence, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    cudaEvent_t event = NULL;
    sn_status status = find_copy_event(cuda, "copy_join", fence, &event, err);
    if (status) return status;
    return sn_cuda_check(cuda, cudaStreamWaitEvent(cuda->work, event, 0), "ordering work after a copy", err);
}

sn_status sn_cuda_copy_wait(sn_device *d, sn_fence fence, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    cudaEvent_t event = NULL;
    sn_status status = find_copy_event(cuda, "copy_wait", fence, &event, err);
    return status ? status : sn_cuda_wait_event(cuda, event, err);
}
