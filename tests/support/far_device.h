/* A device of any kind whose memory faults when the host touches it, as that of a real card: the pages are
 * accessible only during upload and download. It has memory and copies, no mathematics. It counts its allocations,
 * and a test can make its calls fail. */
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
    int n_held, n_wrong; /* n_wrong: frees of unknown memory, or with another size */
    size_t bytes_held;
    int n_calls, fail_at; /* n_calls: of alloc, upload and download; the call numbered fail_at (from 1 on) fails */
    int n_alloc, n_upload, n_download;
} far_device;

void far_device_init(far_device *d, sn_device_kind kind, int ordinal);

#endif
