/* Memory of the device and pinned memory of the host, and copies between them.
 *
 * Uploads and downloads go through a few pieces of pinned memory ("stages") in turn, so that they never wait inside
 * CUDA (a copy from plain memory does) and the caller's memory is free at once. */
#include "base/mem.h"
#include "base/text.h"
#include "device/cuda/inside.h"

#include <string.h>

static sn_status no_memory(const sn_cuda *cuda, size_t bytes, const char *kind, cudaError_t error, sn_err *err) {
    char wanted[32], free_text[32];
    size_t free_bytes = 0, total = 0;
    cudaGetLastError(); /* being out of memory is no fault that stays */
    if (error != cudaErrorMemoryAllocation)
        return sn_fail(err, SN_STOP, "%s gave no memory: %s", cuda->description, cudaGetErrorString(error));
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) free_bytes = 0;
    return sn_fail(err, SN_STOP,
                   "%s has no %s of %s left (%s of its own are free): give it fewer blocks or less for pasts",
                   cuda->description, sn_format_size(bytes, wanted), kind, sn_format_size(free_bytes, free_text));
}

static sn_status new_memory(sn_cuda *cuda, size_t bytes, void **device, sn_err *err) {
    *device = NULL;
    cudaError_t error = cudaMalloc(device, bytes ? bytes : 1);
    if (error != cudaSuccess) {
        *device = NULL;
        return no_memory(cuda, bytes, "memory", error, err);
    }
    return sn_cuda_check(cuda, cudaMemsetAsync(*device, 0, bytes ? bytes : 1, cuda->work), "clearing memory", err);
}

sn_status sn_cuda_alloc(sn_device *d, size_t bytes, void **device, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *device = NULL;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "alloc", err);
    if (!status) status = sn_holdings_reserve(&cuda->held, err);
    if (!status) status = new_memory(cuda, bytes, device, err);
    if (!status) sn_holdings_add(&cuda->held, *device, bytes);
    if (status && *device) sn_cuda_free(d, *device, bytes);
    if (status) *device = NULL;
    return status;
}

/* Giving memory back makes CUDA wait for the device, without limit. So this waits first, with one; and a device that
 * hangs keeps what it has. */
static bool may_give_back(sn_cuda *cuda) {
    sn_err ignored;
    if (cuda->state == SN_CUDA_RECORDING) sn_cuda_abandon(cuda);
    if (!sn_cuda_enter(cuda, &ignored) && !sn_cuda_wait_stream(cuda, cuda->work, &ignored) &&
        !sn_cuda_wait_stream(cuda, cuda->copies, &ignored))
        return true;
    return sn_cuda_idle(cuda);
}

void sn_cuda_free(sn_device *d, void *device, size_t bytes) {
    sn_cuda *cuda = (sn_cuda *)d;
    (void)bytes;
    if (!device) return;
    sn_holdings_remove(&cuda->held, device);
    if (may_give_back(cuda)) cudaFree(device);
}

bool sn_cuda_owns(const sn_device *d, const void *device, size_t bytes) {
    return sn_holdings_has(&((sn_cuda *)d)->held, device, bytes);
}

sn_status sn_cuda_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *host = NULL;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "host_alloc", err);
    if (status) return status;
    cudaError_t error = cudaHostAlloc(host, bytes ? bytes : 1, cudaHostAllocDefault);
    if (error == cudaSuccess) return SN_OK;
    *host = NULL;
    return no_memory(cuda, bytes, "pinned host memory", error, err);
}

void sn_cuda_host_free(sn_device *d, void *host, size_t bytes) {
    (void)bytes;
    if (host && may_give_back((sn_cuda *)d)) cudaFreeHost(host);
}

sn_status sn_cuda_make_room(sn_cuda *cuda, sn_cuda_room *room, size_t bytes, sn_err *err) {
    if (bytes <= room->bytes) return SN_OK;
    if (cuda->state == SN_CUDA_RECORDING)
        return sn_fail(err, SN_REFUSED,
                       "%s: a pass that is being recorded needs more room than the same pass before it",
                       cuda->description);
    if (room->at) sn_cuda_forget_records(cuda); /* they hold the old address */
    sn_cuda_free(&cuda->base, room->at, room->bytes);
    *room = (sn_cuda_room){NULL, 0};
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = new_memory(cuda, bytes, &room->at, err);
    if (!status) room->bytes = bytes;
    return status;
}

/* -- copies */

/* The next stage, when what it was used for before is done. */
static sn_status take_stage(sn_cuda *cuda, struct sn_cuda_stage **out, sn_err *err) {
    struct sn_cuda_stage *stage = &cuda->stages[cuda->next_stage];
    cuda->next_stage = (cuda->next_stage + 1) % SN_CUDA_STAGES;
    *out = stage;
    if (!stage->busy) return SN_OK;
    stage->busy = false;
    return sn_cuda_wait_event(cuda, stage->done, err);
}

static sn_status send_stage(sn_cuda *cuda, struct sn_cuda_stage *stage, void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, sn_err *err) {
    sn_status status = sn_cuda_queued(cuda, cudaMemcpyAsync(to, from, bytes, kind, cuda->work), "a copy", err);
    if (status) return status;
    stage->busy = true;
    return sn_cuda_check(cuda, cudaEventRecord(stage->done, cuda->work), "marking a copy", err);
}

sn_status sn_cuda_put(sn_cuda *cuda, void *device, const void *host, size_t bytes, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t at = 0; at < bytes && !status;) {
        struct sn_cuda_stage *stage;
        size_t n = sn_min_size(bytes - at, SN_CUDA_STAGE_BYTES);
        if ((status = take_stage(cuda, &stage, err))) break;
        memcpy(stage->host, (const char *)host + at, n);
        status = send_stage(cuda, stage, (char *)device + at, stage->host, n, cudaMemcpyHostToDevice, err);
        at += n;
    }
    return status;
}

sn_status sn_cuda_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "upload", err);
    return status ? status : sn_cuda_put(cuda, device, host, bytes, err);
}

/* Keeps all stages busy: piece i + SN_CUDA_STAGES is asked for when piece i has been taken out. */
sn_status sn_cuda_download(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    struct sn_cuda_stage *stages[SN_CUDA_STAGES];
    sn_status status = sn_cuda_enter_unrecorded(cuda, "download", err);
    size_t pieces = (bytes + SN_CUDA_STAGE_BYTES - 1) / SN_CUDA_STAGE_BYTES, asked = 0;
    if (!status && !bytes) return sn_cuda_finish(d, err); /* "waits for all work queued before it" */
    for (size_t i = 0; i < pieces && !status; i++) {
        for (; asked < pieces && asked < i + SN_CUDA_STAGES && !status; asked++) {
            struct sn_cuda_stage **stage = &stages[asked % SN_CUDA_STAGES];
            size_t at = asked * SN_CUDA_STAGE_BYTES, n = sn_min_size(bytes - at, SN_CUDA_STAGE_BYTES);
            if ((status = take_stage(cuda, stage, err))) break;
            status =
                send_stage(cuda, *stage, (*stage)->host, (const char *)device + at, n, cudaMemcpyDeviceToHost, err);
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
    sn_status status = sn_cuda_enter_unrecorded(cuda, "finish", err);
    if (!status) status = sn_cuda_wait_stream(cuda, cuda->work, err);
    return status ? status : sn_cuda_wait_stream(cuda, cuda->copies, err);
}

/* -- copies beside the queue */

sn_status sn_cuda_copy_begin(sn_device *d, void *device, const void *host, size_t bytes, sn_ticket *ticket,
                             sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *ticket = 0;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "copy_begin", err);
    if (!status) status = sn_cuda_check(cuda, cudaEventRecord(cuda->queued, cuda->work), "marking the queue", err);
    if (!status)
        status = sn_cuda_check(cuda, cudaStreamWaitEvent(cuda->copies, cuda->queued, 0), "ordering a copy", err);
    if (!status && bytes)
        status = sn_cuda_check(cuda, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda->copies),
                               "a copy beside the queue", err);
    cudaEvent_t event = cuda->tickets[(cuda->last_ticket + 1) % SN_CUDA_TICKETS];
    if (!status) status = sn_cuda_check(cuda, cudaEventRecord(event, cuda->copies), "marking a copy", err);
    if (!status) *ticket = ++cuda->last_ticket;
    return status;
}

/* An event that a later copy has taken over says more than it must, never less: copies follow each other. */
static sn_status find_ticket(sn_cuda *cuda, const char *what, sn_ticket ticket, cudaEvent_t *event, sn_err *err) {
    sn_status status = sn_cuda_enter_unrecorded(cuda, what, err);
    if (status) return status;
    if (!ticket || ticket > cuda->last_ticket)
        return sn_fail(err, SN_REFUSED, "%s: copy %llu was never begun", cuda->description, (unsigned long long)ticket);
    *event = cuda->tickets[ticket % SN_CUDA_TICKETS];
    return SN_OK;
}

sn_status sn_cuda_copy_join(sn_device *d, sn_ticket ticket, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    cudaEvent_t event = NULL;
    sn_status status = find_ticket(cuda, "copy_join", ticket, &event, err);
    if (status) return status;
    return sn_cuda_check(cuda, cudaStreamWaitEvent(cuda->work, event, 0), "ordering work behind a copy", err);
}

sn_status sn_cuda_copy_wait(sn_device *d, sn_ticket ticket, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    cudaEvent_t event = NULL;
    sn_status status = find_ticket(cuda, "copy_wait", ticket, &event, err);
    return status ? status : sn_cuda_wait_event(cuda, event, err);
}
