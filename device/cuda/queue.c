/* Errors, waits, and how far the host may run ahead. */
#include "base/clock.h"
#include "device/cuda/inside.h"

#include <sched.h>
#include <stdio.h>

/* A wait asks again at once for so long, for a step of decoding is short; then it sleeps between two questions. */
enum { EAGER_US = 2000, SLEEP_US = 50, IDLE_US = 20000 };

static sn_status stopped(const sn_cuda *cuda, sn_err *err) { return sn_fail(err, SN_STOP, "%s", cuda->sentence); }

static sn_status stop_silent(sn_cuda *cuda, sn_err *err) {
    snprintf(cuda->sentence, sizeof cuda->sentence,
             "%s did not answer within %d ms: it is left alone from now on, restart the program to use it again",
             cuda->description, cuda->base.timeout_ms);
    cuda->stopped = true;
    return stopped(cuda, err);
}

/* CUDA numbers what may not be recorded from here on. */
static bool is_about_recording(cudaError_t error) {
    return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureIsolation;
}

sn_status sn_cuda_check(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) {
    if (error == cudaSuccess) return SN_OK;
    if (is_about_recording(error) && cuda->state == SN_CUDA_RECORDING) {
        cudaGetLastError();
        if (cuda->record) cuda->record->refused = true;
        return sn_fail(err, SN_RETRY, "%s: a pass with %s in it cannot be recorded (%s): it was not run, try again",
                       cuda->description, what, cudaGetErrorString(error));
    }
    if (!cuda->stopped)
        snprintf(cuda->sentence, sizeof cuda->sentence, "%s is lost: %s failed: %s", cuda->description, what,
                 cudaGetErrorString(error));
    cuda->stopped = true;
    return stopped(cuda, err);
}

/* Which device this thread's calls of CUDA go to, as far as this backend has set it. */
static _Thread_local int thread_device = -1;

sn_status sn_cuda_enter(sn_cuda *cuda, sn_err *err) {
    if (cuda->stopped) return stopped(cuda, err);
    if (thread_device == cuda->base.id.ordinal) return SN_OK;
    thread_device = -1;
    sn_status status = sn_cuda_check(cuda, cudaSetDevice(cuda->base.id.ordinal), "choosing it", err);
    if (!status) thread_device = cuda->base.id.ordinal;
    return status;
}

void sn_cuda_left_device(void) { thread_device = -1; }

sn_status sn_cuda_done(sn_cuda *cuda, sn_status status) {
    if (status) cuda->spoilt = true;
    return status;
}

sn_status sn_cuda_enter_unrecorded(sn_cuda *cuda, const char *what, sn_err *err) {
    if (cuda->state != SN_CUDA_NO_PASS && cuda->spoilt) sn_cuda_abandon(cuda); /* its caller has left it */
    if (!cuda->stopped && cuda->state != SN_CUDA_NO_PASS && cuda->named)
        return sn_fail(err, SN_REFUSED, "%s: %s came within a pass that can be recorded: it belongs before or after",
                       cuda->description, what);
    return sn_cuda_enter(cuda, err);
}

/* One question to the device; true when there is nothing more to wait for, *error then says how it went. */
static bool is_done(cudaEvent_t event, cudaStream_t stream, cudaError_t *error) {
    *error = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
    if (*error != cudaErrorNotReady) return true;
    cudaGetLastError(); /* CUDA keeps even this as the last error, and the next launch would be blamed for it */
    return false;
}

static sn_status wait_for(sn_cuda *cuda, cudaEvent_t event, cudaStream_t stream, sn_err *err) {
    cudaError_t error;
    if (cuda->stopped) return stopped(cuda, err);
    for (int64_t begin = sn_now_us(), waited; !is_done(event, stream, &error);) {
        waited = sn_now_us() - begin;
        if (waited > (int64_t)cuda->base.timeout_ms * 1000) return stop_silent(cuda, err);
        if (waited < EAGER_US)
            sched_yield();
        else
            sn_sleep_us(SLEEP_US);
    }
    return sn_cuda_check(cuda, error, "work that was queued", err);
}

sn_status sn_cuda_wait_event(sn_cuda *cuda, cudaEvent_t event, sn_err *err) { return wait_for(cuda, event, NULL, err); }

sn_status sn_cuda_wait_stream(sn_cuda *cuda, cudaStream_t stream, sn_err *err) {
    return wait_for(cuda, NULL, stream, err);
}

bool sn_cuda_idle(sn_cuda *cuda) {
    cudaError_t error;
    int asked = 0; /* a few times at least, however busy the machine is */
    for (int64_t begin = sn_now_us(); asked < 4 || sn_now_us() - begin < IDLE_US; asked++, sched_yield())
        if (is_done(NULL, cuda->work, &error) && is_done(NULL, cuda->copies, &error)) return true;
    return false;
}

/* CUDA's own queue of launches is bounded and blocks when full, without limit if the device hangs: so it never gets
 * full. Every FENCE_EVERY kernels an event; before it is used again, it must have come by. */
static sn_status fence(sn_cuda *cuda, sn_err *err) {
    cuda->since_fence = 0;
    int i = cuda->next_fence;
    cuda->next_fence = (i + 1) % SN_CUDA_FENCES;
    sn_status status = cuda->fenced[i] ? sn_cuda_wait_event(cuda, cuda->fences[i], err) : SN_OK;
    if (status) return status;
    cuda->fenced[i] = true;
    return sn_cuda_check(cuda, cudaEventRecord(cuda->fences[i], cuda->work), "marking the queue", err);
}

sn_status sn_cuda_queued(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) {
    sn_status status = sn_cuda_check(cuda, error, what, err);
    if (status || cuda->state == SN_CUDA_RECORDING || ++cuda->since_fence < SN_CUDA_FENCE_EVERY) return status;
    return fence(cuda, err);
}
