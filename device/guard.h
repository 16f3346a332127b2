/* The guard: the only way by which a tensor from outside (network, file, another device) enters a span.
 *
 * sn_tensor describes a tensor of any wire type, on any device, with any strides. sn_guard copies it to the span's
 * device as contiguous float32 of the expected shape, or refuses it with a sentence that names the tensor, its place
 * and shape, the expected place and shape, and what to do. A tensor goes
 * through the guard before its rows are joined with the KV cache; empty tensors do, too. */
#ifndef SN_DEVICE_GUARD_H
#define SN_DEVICE_GUARD_H

#include "device/device.h"

enum { SN_TENSOR_DIMS_MAX = 4 };

typedef struct sn_tensor {
    const char *name;  /* for sentences: "hidden states" */
    sn_device *device; /* where data lies; NULL: host memory */
    const void *data;  /* may be NULL when the tensor is empty */
    sn_dtype dtype;    /* F32, F16 or BF16 */
    int rank;
    int64_t shape[SN_TENSOR_DIMS_MAX];
    int64_t strides[SN_TENSOR_DIMS_MAX]; /* in elements; all zero means contiguous */
} sn_tensor;

/* Copies `tensor` to `out` on device `to` (NULL: host memory). `out` has room for the elements of the wanted shape. A
 * wanted dimension of -1 accepts any size. *moved (NULL allowed) grows by the tensor's bytes if they crossed the border
 * of a device; nothing crosses between host memory and the CPU device. SN_REFUSED for another type, shape or impossible
 * strides; else the status of the device that failed. */
sn_status sn_guard(const sn_tensor *tensor, sn_device *to, int rank, const int64_t *wanted, float *out, uint64_t *moved,
                   sn_err *err) SN_MUST_USE;

/* As sn_guard, for contiguous rows (the first dimension) of float32 in host memory, as a client has sent them: numbers
 * with which CPUs are slow (sn_wire_clear_tiny) become 0, for all devices, so that all compute the same. */
sn_status sn_guard_rows(const sn_tensor *tensor, sn_device *to, int rank, const int64_t *wanted, float *out,
                        uint64_t *moved, sn_err *err) SN_MUST_USE;

/* Watches for hidden copies: bytes that cross devices in a step beyond the step's plan (hidden states in, and from
 * device to device). Zeroed at the start; used by one thread. */
typedef struct sn_guard_monitor {
    uint64_t steps, bytes;                       /* totals */
    uint64_t unexpected_steps, unexpected_bytes; /* beyond the plan */
    int64_t warned_us;
} sn_guard_monitor;

enum { SN_GUARD_WARNING_INTERVAL_US = 60000000 }; /* shortest time between two warnings */

/* Called after each step with the current time. Logs a warning at the first hidden copy, then at most one per minute;
 * returns true when it logged. */
bool sn_guard_monitor_step(sn_guard_monitor *monitor, uint64_t moved, uint64_t expected, int64_t now_us);

#endif
