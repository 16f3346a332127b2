/* How a tensor is copied: the shape is compared with the wanted one, the extent in elements is measured from the shape
 * and the strides (with checks of overflow), then the data take the shortest of four ways:
 *
 * - host to host: conversion to float32, row by row;
 * - host to device: the same into a temporary buffer, then an upload; float32 that is contiguous is uploaded directly;
 * - device to host: a download of the whole extent into a temporary buffer, then the conversion; float32 that is
 *   contiguous is downloaded directly;
 * - device to device: both temporary buffers; float32 that is contiguous needs only the first. */
#include "device/guard.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tensor_copy {
    const sn_tensor *tensor;
    int64_t strides[SN_TENSOR_DIMS_MAX]; /* as in the tensor, or those of a contiguous tensor */
    size_t n;                            /* elements */
    size_t extent;                       /* elements from the first to the last one, both included */
    bool contiguous;
    char name[160]; /* for sentences: the tensor's name, where it is and where it must be */
} tensor_copy;

/* Host memory and the CPU device's memory are the same. */
static bool is_host(const sn_device *device) { return !device || device->id.kind == SN_DEVICE_CPU; }

/* "on cuda:0" */
static const char *place_name(const sn_device *device, char out[48]) {
    char name[32];
    if (!device) return "in host memory";
    snprintf(out, 48, "on %s", sn_device_id_name(device->id, name));
    return out;
}

static void copy_describe(tensor_copy *c, const sn_device *to) {
    char from_name[48], to_name[48];
    snprintf(c->name, sizeof c->name, "%.48s, %s and needed %s", c->tensor->name,
             place_name(c->tensor->device, from_name), place_name(to, to_name));
}

/* "(3, 576)" */
static const char *shape_text(int rank, const int64_t *shape, char *out, size_t capacity) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < rank && at < capacity; i++) {
        int n = shape[i] < 0 ? snprintf(out + at, capacity - at, "%s*", i ? ", " : "(")
                             : snprintf(out + at, capacity - at, "%s%lld", i ? ", " : "(", (long long)shape[i]);
        at += (size_t)n;
    }
    if (at < capacity) snprintf(out + at, capacity - at, rank ? ")" : "()");
    return out;
}

static sn_status copy_check_shape(const tensor_copy *c, int rank, const int64_t *wanted, sn_err *err) {
    char has[96], want[96];
    const sn_tensor *t = c->tensor;
    if (t->rank < 0 || t->rank > SN_TENSOR_DIMS_MAX || rank < 0 || rank > SN_TENSOR_DIMS_MAX)
        return sn_fail(err, SN_REFUSED, "%s: it has %d dimensions, but at most %d are allowed: send it with fewer",
                       c->name, t->rank, SN_TENSOR_DIMS_MAX);
    bool fits = t->rank == rank;
    for (int i = 0; fits && i < rank; i++) fits = t->shape[i] >= 0 && (wanted[i] < 0 || t->shape[i] == wanted[i]);
    if (!fits)
        return sn_fail(err, SN_REFUSED, "%s: the shape is %s and has to be %s: send it in that shape", c->name,
                       shape_text(t->rank, t->shape, has, sizeof has), shape_text(rank, wanted, want, sizeof want));
    return SN_OK;
}

static sn_status copy_measure(tensor_copy *c, sn_err *err) {
    const sn_tensor *t = c->tensor;
    bool plain = true, fits = true, empty = false;
    size_t bytes;
    for (int i = 0; i < t->rank; i++) {
        plain &= t->strides[i] == 0;
        empty |= t->shape[i] == 0;
        if (t->strides[i] < 0)
            return sn_fail(err, SN_REFUSED, "%s: a stride of %lld cannot be read: make it contiguous", c->name,
                           (long long)t->strides[i]);
    }
    c->n = c->extent = 1;
    c->contiguous = true;
    if (empty) {
        c->n = c->extent = 0;
        return SN_OK;
    }
    for (int i = t->rank - 1; i >= 0; i--) {
        size_t reach;
        c->strides[i] = plain ? (int64_t)c->n : t->strides[i];
        c->contiguous &= c->strides[i] == (int64_t)c->n || t->shape[i] == 1;
        fits = fits && sn_mul(c->n, (size_t)t->shape[i], &c->n) && c->n <= INT64_MAX;
        fits = fits && sn_mul((size_t)c->strides[i], (size_t)t->shape[i] - 1, &reach) &&
               sn_add(c->extent, reach, &c->extent);
    }
    if (!fits || !sn_mul(c->n, sizeof(float), &bytes) || !sn_mul(c->extent, sizeof(float), &bytes))
        return sn_fail(err, SN_REFUSED, "%s: its size overflows: send a smaller one", c->name);
    return SN_OK;
}

/* Converts n elements, `stride` elements apart, to contiguous float32. */
static void convert_row(sn_dtype dtype, const uint8_t *data, size_t n, int64_t stride, float *out) {
    size_t size = sn_dtype_bytes(dtype), step = (size_t)stride * size;
    if (dtype == SN_F32 && stride == 1) {
        memcpy(out, data, n * size);
        return;
    }
    for (size_t i = 0; i < n; i++, data += step) {
        uint16_t half;
        if (dtype == SN_F32) {
            memcpy(out + i, data, sizeof *out);
            continue;
        }
        memcpy(&half, data, sizeof half);
        out[i] = dtype == SN_F16 ? sn_f16_to_f32(half) : sn_bf16_to_f32(half);
    }
}

/* Converts all elements, in order, from host memory. */
static void copy_convert(const tensor_copy *c, const uint8_t *data, float *out) {
    const sn_tensor *t = c->tensor;
    size_t size = sn_dtype_bytes(t->dtype);
    int last = t->rank - 1;
    size_t row = t->rank ? (size_t)t->shape[last] : 1;
    int64_t at[SN_TENSOR_DIMS_MAX] = {0}, offset = 0;
    for (size_t done = 0; done < c->n; done += row) {
        convert_row(t->dtype, data + (size_t)offset * size, row, t->rank ? c->strides[last] : 1, out + done);
        for (int i = last - 1; i >= 0; i--) { /* moves to the next row: counts up like an odometer */
            offset += c->strides[i];
            if (++at[i] < t->shape[i]) break;
            offset -= at[i] * c->strides[i];
            at[i] = 0;
        }
    }
}

/* Downloads the tensor's extent into *staging, from a device whose memory is not host memory. */
static sn_status copy_download(const tensor_copy *c, void **staging, sn_err *err) {
    const sn_tensor *t = c->tensor;
    size_t size = sn_dtype_bytes(t->dtype);
    sn_status status = sn_calloc(staging, c->extent, size, err);
    return status ? status : t->device->ops->download(t->device, *staging, t->data, c->extent * size, err);
}

/* Contiguous float32 needs no temporary buffer, unless both ends are devices. */
static sn_status copy_run(const tensor_copy *c, sn_device *to, float *out, sn_err *err) {
    const sn_tensor *t = c->tensor;
    void *staging = NULL, *converted = NULL;
    const void *data = t->data;
    size_t bytes = c->n * sizeof *out;
    bool as_it_is = t->dtype == SN_F32 && c->contiguous;
    if (as_it_is && is_host(to) && !is_host(t->device))
        return t->device->ops->download(t->device, out, data, bytes, err);
    sn_status status = SN_OK;
    if (!is_host(t->device)) {
        status = copy_download(c, &staging, err);
        data = staging;
    }
    if (!status && !as_it_is && !is_host(to)) status = sn_calloc(&converted, c->n, sizeof *out, err);
    if (status) goto out;
    if (converted || is_host(to)) copy_convert(c, data, converted ? converted : out);
    if (!is_host(to)) status = to->ops->upload(to, out, converted ? converted : data, bytes, err);
out:
    free(staging);
    free(converted);
    return status;
}

sn_status sn_guard(const sn_tensor *tensor, sn_device *to, int rank, const int64_t *wanted, float *out, uint64_t *moved,
                   sn_err *err) {
    tensor_copy c = {.tensor = tensor};
    sn_err reason;
    copy_describe(&c, to);
    if (tensor->dtype != SN_F32 && tensor->dtype != SN_F16 && tensor->dtype != SN_BF16)
        return sn_fail(err, SN_REFUSED, "%s: the type is %s and has to be F32, F16 or BF16: convert it first", c.name,
                       sn_dtype_name(tensor->dtype));
    sn_status status = copy_check_shape(&c, rank, wanted, err);
    if (!status) status = copy_measure(&c, err);
    if (status || c.n == 0) return status;
    if (!tensor->data)
        return sn_fail(err, SN_REFUSED, "%s: its shape has %zu elements, but no data: send its bytes", c.name, c.n);
    status = copy_run(&c, to, out, &reason);
    if (status)
        return sn_fail(err, status, "%s: it could not be copied there: %.300s: continue with another device or node",
                       c.name, reason.text);
    if (moved && (!is_host(tensor->device) || !is_host(to))) *moved += c.n * sn_dtype_bytes(tensor->dtype);
    return SN_OK;
}

/* The tensor's rows, if it is contiguous float32 in host memory; else NULL. */
static const float *plain_rows(const sn_tensor *tensor) {
    bool contiguous = true;
    for (int i = 0; i < tensor->rank; i++) contiguous = contiguous && !tensor->strides[i];
    return contiguous && tensor->dtype == SN_F32 && is_host(tensor->device) ? tensor->data : NULL;
}

sn_status sn_guard_rows(const sn_tensor *tensor, sn_device *to, int rank, const int64_t *wanted, float *out,
                        uint64_t *moved, sn_err *err) {
    sn_status status = sn_guard(tensor, to, rank, wanted, out, moved, err); /* checks the shape, too */
    size_t n_rows = (size_t)tensor->shape[0], width = 1;
    for (int i = 1; i < rank && !status; i++) width *= (size_t)tensor->shape[i];
    if (status || n_rows * width == 0) return status;
    if (is_host(to)) {
        sn_wire_clear_tiny(out, n_rows, width);
        return SN_OK;
    }
    if (!plain_rows(tensor) || !sn_wire_has_tiny(plain_rows(tensor), n_rows, width)) return SN_OK;
    sn_tensor cleared = *tensor;
    float *rows = NULL;
    status = sn_calloc(&rows, n_rows * width, sizeof *rows, err);
    if (status) return status;
    memcpy(rows, tensor->data, n_rows * width * sizeof *rows);
    sn_wire_clear_tiny(rows, n_rows, width);
    cleared.data = rows;
    status = sn_guard(&cleared, to, rank, wanted, out, NULL, err);
    free(rows);
    return status;
}

bool sn_guard_monitor_step(sn_guard_monitor *monitor, uint64_t moved, uint64_t expected, int64_t now_us) {
    monitor->steps++;
    monitor->bytes += moved;
    if (moved <= expected) return false;
    bool first = monitor->unexpected_steps++ == 0;
    monitor->unexpected_bytes += moved - expected;
    if (!first && now_us - monitor->warned_us < SN_GUARD_WARNING_INTERVAL_US) return false;
    monitor->warned_us = now_us;
    sn_log(SN_LOG_WARN, "unplanned copies between devices",
           "step_bytes=%llu expected=%llu steps=%llu bytes=%llu text=the tensors of a step cross devices "
           "beyond its plan: steps are slower than they could be",
           (unsigned long long)moved, (unsigned long long)expected, (unsigned long long)monitor->unexpected_steps,
           (unsigned long long)monitor->unexpected_bytes);
    return true;
}
