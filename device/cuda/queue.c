/* Errors and waits of the CUDA backend, and the limit of how far the host may run ahead of the device. */
#include "base/clock.h"
#include "device/cuda/cuda_private.h"

#include <sched.h>
#include <stdio.h>

/* A wait polls without pause for SPIN_US, because a decode step is short; then it sleeps SLEEP_US between two queries.
 */
enum { SPIN_US = 2000, SLEEP_US = 50, IDLE_US = 20000 };

static sn_status fail_stopped(const sn_cuda *cuda, sn_err *err) {
    return sn_fail(err, SN_STOP, "%s", cuda->stop_reason);
}

static sn_status stop_timed_out(sn_cuda *cuda, sn_err *err) {
    snprintf(cuda->stop_reason, sizeof cuda->stop_reason, "%s did not answer within %d ms: it is given up",
             cuda->description, cuda->base.timeout_ms);
    cuda->base.lost = cuda->stop_reason;
    return fail_stopped(cuda, err);
}

/* The error codes of CUDA for what cannot be captured: 900 to 908. */
static bool is_capture_error(cudaError_t error) {
    return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
}

sn_status sn_cuda_fail_capture(sn_cuda *cuda, const char *what, const char *why, sn_err *err) {
    cudaGetLastError();
    if (cuda->graph) cuda->graph->uncapturable = true;
    return sn_fail(err, SN_RETRY, "%s: a batch with %s in it cannot be captured (%s): it was not run, try again",
                   cuda->description, what, why);
}

sn_status sn_cuda_check(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) {
    if (error == cudaSuccess) return SN_OK;
    if (is_capture_error(error) && cuda->state == SN_CUDA_CAPTURING)
        return sn_cuda_fail_capture(cuda, what, cudaGetErrorString(error), err);
    if (!cuda->base.lost)
        snprintf(cuda->stop_reason, sizeof cuda->stop_reason, "%s is lost: %s failed: %s", cuda->description, what,
                 cudaGetErrorString(error));
    cuda->base.lost = cuda->stop_reason;
    return fail_stopped(cuda, err);
}

/* The current CUDA device of this thread, as far as this backend has set it. */
static _Thread_local int thread_device = -1;

sn_status sn_cuda_enter(sn_cuda *cuda, sn_err *err) {
    if (cuda->base.lost) return fail_stopped(cuda, err);
    if (thread_device == cuda->base.id.ordinal) return SN_OK;
    thread_device = -1;
    sn_status status = sn_cuda_check(cuda, cudaSetDevice(cuda->base.id.ordinal), "choosing it", err);
    if (!status) thread_device = cuda->base.id.ordinal;
    return status;
}

sn_status sn_cuda_op_done(sn_cuda *cuda, sn_status status) {
    if (status) cuda->batch_failed = true;
    return status;
}

sn_status sn_cuda_enter_uncaptured(sn_cuda *cuda, const char *what, sn_err *err) {
    /* the caller has abandoned the batch */
    if (cuda->state != SN_CUDA_NO_BATCH && cuda->batch_failed) sn_cuda_batch_abort(cuda);
    if (!cuda->base.lost && cuda->state != SN_CUDA_NO_BATCH && cuda->capturable)
        return sn_fail(err, SN_REFUSED,
                       "%s: %s was called within a batch that can be captured: call it before or after",
                       cuda->description, what);
    return sn_cuda_enter(cuda, err);
}

/* Queries the device once. Returns true when there is nothing more to wait for; *error then tells the result. */
static bool is_done(cudaEvent_t event, cudaStream_t stream, cudaError_t *error) {
    *error = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
    if (*error != cudaErrorNotReady) return true;
    cudaGetLastError(); /* CUDA would return even this as the last error of the next launch */
    return false;
}

static sn_status wait_until_done(sn_cuda *cuda, cudaEvent_t event, cudaStream_t stream, sn_err *err) {
    cudaError_t error;
    if (cuda->base.lost) return fail_stopped(cuda, err);
    for (int64_t begin = sn_now_us(), waited; !is_done(event, stream, &error);) {
        waited = sn_now_us() - begin;
        if (waited > (int64_t)cuda->base.timeout_ms * 1000) return stop_timed_out(cuda, err);
        if (waited < SPIN_US)
            sched_yield();
        else
            sn_sleep_us(SLEEP_US);
    }
    return sn_cuda_check(cuda, error, "work that was queued", err);
}

sn_status sn_cuda_wait_event(sn_cuda *cuda, cudaEvent_t event, sn_err *err) {
    return wait_until_done(cuda, event, NULL, err);
}

sn_status sn_cuda_wait_stream(sn_cuda *cuda, cudaStream_t stream, sn_err *err) {
    return wait_until_done(cuda, NULL, stream, err);
}

bool sn_cuda_idle(sn_cuda *cuda) {
    cudaError_t error;
    int n_queries = 0; /* at least a few queries, however busy the machine is */
    for (int64_t begin = sn_now_us(); n_queries < 4 || sn_now_us() - begin < IDLE_US; n_queries++, sched_yield())
        if (is_done(NULL, cuda->work, &error) && is_done(NULL, cuda->copies, &error)) return true;
    return false;
}

/* CUDA's queue of launches is bounded. A launch into a full queue blocks, without limit if the device hangs: so the
 * queue must never be full. Every SN_CUDA_LAUNCHES_PER_EVENT kernels an event is recorded; before an event is reused,
 * this waits for it. */
static sn_status launch_throttle(sn_cuda *cuda, sn_err *err) {
    cuda->launches_since_event = 0;
    int i = cuda->next_launch_event;
    cuda->next_launch_event = (i + 1) % SN_CUDA_LAUNCH_EVENTS;
    sn_status status = cuda->launch_event_used[i] ? sn_cuda_wait_event(cuda, cuda->launch_events[i], err) : SN_OK;
    if (status) return status;
    cuda->launch_event_used[i] = true;
    return sn_cuda_check(cuda, cudaEventRecord(cuda->launch_events[i], cuda->work), "marking the queue", err);
}

sn_status sn_cuda_check_launch(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) {
    sn_status status = sn_cuda_check(cuda, error, what, err);
    if (status || cuda->state == SN_CUDA_CAPTURING || ++cuda->launches_since_event < SN_CUDA_LAUNCHES_PER_EVENT)
        return status;
    return launch_throttle(cuda, err);
}
