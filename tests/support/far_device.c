#include "tests/support/far_device.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static void require(bool fine, const char *what) {
    if (fine) return;
    fprintf(stderr, "far device: no %s\n", what);
    abort();
}

static size_t pages_of(size_t bytes) { return sn_round_up(bytes ? bytes : 1, PAGE); }

static sn_status count_call(far_device *d, sn_err *err) {
    if (++d->n_calls == d->fail_at) return sn_fail(err, SN_STOP, "the device is lost");
    return SN_OK;
}

static sn_status far_alloc(sn_device *base, size_t bytes, void **device, sn_err *err) {
    far_device *d = (far_device *)base;
    *device = NULL;
    sn_status status = count_call(d, err);
    if (status) return status;
    require(d->n_held < FAR_ALLOCATIONS, "a free entry for an allocation");
    void *memory = mmap(NULL, pages_of(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "mmap");
    d->held[d->n_held].memory = memory;
    d->held[d->n_held++].bytes = bytes;
    d->bytes_held += bytes;
    d->n_alloc++;
    *device = memory;
    return SN_OK;
}

static void far_free(sn_device *base, void *device, size_t bytes) {
    far_device *d = (far_device *)base;
    int i = 0;
    if (!device) return;
    while (i < d->n_held && d->held[i].memory != device) i++;
    if (i == d->n_held || d->held[i].bytes != bytes) {
        d->n_wrong++;
        return;
    }
    munmap(device, pages_of(bytes));
    d->bytes_held -= bytes;
    d->held[i] = d->held[--d->n_held];
}

/* Copies with the pages made accessible; the range has to lie in one allocation. */
static void copy_within(far_device *d, const void *device, void *host, size_t bytes, bool to_device) {
    const uint8_t *at = device;
    if (!bytes) return;
    for (int i = 0; i < d->n_held; i++) {
        uint8_t *begin = d->held[i].memory;
        if (at < begin || at >= begin + d->held[i].bytes) continue;
        require(bytes <= d->held[i].bytes - (size_t)(at - begin), "a copy within its allocation");
        require(!mprotect(begin, pages_of(d->held[i].bytes), PROT_READ | PROT_WRITE), "mprotect");
        if (to_device)
            memcpy(begin + (at - begin), host, bytes);
        else
            memcpy(host, at, bytes);
        require(!mprotect(begin, pages_of(d->held[i].bytes), PROT_NONE), "mprotect");
        return;
    }
    require(false, "a copy from or to memory of this device");
}

static bool far_owns(const sn_device *base, const void *device, size_t bytes) {
    const far_device *d = (const far_device *)base;
    const uint8_t *at = device;
    for (int i = 0; i < d->n_held; i++) {
        const uint8_t *begin = d->held[i].memory;
        if (at >= begin && at - begin <= (ptrdiff_t)d->held[i].bytes)
            return bytes <= d->held[i].bytes - (size_t)(at - begin);
    }
    return false;
}

static sn_status far_upload(sn_device *base, void *device, const void *host, size_t bytes, sn_err *err) {
    far_device *d = (far_device *)base;
    sn_status status = count_call(d, err);
    if (status) return status;
    copy_within(d, device, (void *)host, bytes, true);
    d->n_upload++;
    return SN_OK;
}

static sn_status far_download(sn_device *base, void *host, const void *device, size_t bytes, sn_err *err) {
    far_device *d = (far_device *)base;
    sn_status status = count_call(d, err);
    if (status) return status;
    copy_within(d, device, host, bytes, false);
    d->n_download++;
    return SN_OK;
}

static const sn_device_ops far_ops = {
    .alloc = far_alloc, .free = far_free, .owns = far_owns, .upload = far_upload, .download = far_download};

void far_device_init(far_device *d, sn_device_kind kind, int ordinal) {
    *d = (far_device){.base = {.ops = &far_ops, .id = {kind, ordinal}, .timeout_ms = 1000}};
}
