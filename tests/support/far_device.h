/* A device of any name whose memory faults when the host touches it, as on a real card: its pages are open only inside
 * of its own upload and download. It has memory and copies, no mathematics. Counts what it holds; calls can be made to
 * fail. */
#ifndef SN_TESTS_FAR_DEVICE_H
#define SN_TESTS_FAR_DEVICE_H

#include "device/device.h"

enum { FAR_ALLOCATIONS = 64 };

typedef struct far_device {
    sn_device base;
    struct {
        void *memory;
        size_t bytes;
    } held[FAR_ALLOCATIONS];
    int n_held, n_wrong; /* n_wrong: frees of what is not held, or with other bytes */
    size_t bytes_held;
    int n_calls, fail_at; /* of alloc, upload, download; the one numbered fail_at (from 1 on) fails */
    int n_alloc, n_upload, n_download;
} far_device;

void far_device_init(far_device *d, sn_device_kind kind, int ordinal);

#endif
