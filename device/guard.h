/* The guard: the only door by which a tensor from outside (network, file, another device) comes to a span.
 *
 * What goes in may be of any wire type, on any device, with any strides; what comes out lies on the block's device, as
 * float32, contiguous, of the shape that the block expects - or is refused with a sentence that names the tensor, where
 * and what it was, where and what it had to be, and what to do. It is called before past and present are joined, for
 * empty tensors too. */
#ifndef SN_DEVICE_GUARD_H
#define SN_DEVICE_GUARD_H

#include "device/device.h"

enum { SN_GUARD_RANK_MAX = 4 };

typedef struct sn_tensor {
    const char *name;              /* for sentences: "hidden states" */
    sn_device *device;             /* where data lies; NULL: host memory */
    const void *data;              /* may be NULL when the tensor is empty */
    sn_dtype dtype;                /* F32, F16 or BF16 */
    int rank;
    int64_t shape[SN_GUARD_RANK_MAX];
    int64_t strides[SN_GUARD_RANK_MAX]; /* in elements; all zero: contiguous */
} sn_tensor;

/* Copies `tensor` to `out` on `to` (NULL: host memory), which has room for the elements of the wanted shape. A wanted
 * dimension of -1 takes any size. *moved (NULL allowed) grows by the tensor's bytes if they crossed the border of a
 * device: between host memory and the CPU's nothing moves. */
sn_status sn_guard(const sn_tensor *tensor, sn_device *to, int rank, const int64_t *wanted, float *out, uint64_t *moved,
                   sn_err *err) SN_MUST_USE;

/* Watches for hidden copies: what moved in a step beyond what its plan says (hidden states in, and from device to
 * device). Zero at the start. One thread. */
typedef struct sn_guard_watch {
    uint64_t steps, bytes;               /* all that was told */
    uint64_t hidden_steps, hidden_bytes; /* of these beyond the plan */
    int64_t warned_us;
} sn_guard_watch;

enum { SN_GUARD_WARNING_US = 60000000 }; /* between two warnings */

/* After each step, with the time. Warns in the log at the first hidden copy, then at most once a minute; true if so. */
bool sn_guard_watch_step(sn_guard_watch *watch, uint64_t moved, uint64_t expected, int64_t now_us);

#endif
