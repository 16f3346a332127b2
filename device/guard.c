#include "device/guard.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy {
    const sn_tensor *tensor;
    int64_t strides[SN_GUARD_RANK_MAX]; /* as given, or those of a contiguous tensor */
    size_t n;                           /* elements */
    size_t extent;                      /* elements from the first to the last one, that one included */
} copy;

/* "(3, 576)" */
static const char *shape_text(int rank, const int64_t *shape, char *out, size_t room) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < rank && at < room; i++) {
        int n = shape[i] < 0 ? snprintf(out + at, room - at, "%s*", i ? ", " : "(")
                             : snprintf(out + at, room - at, "%s%lld", i ? ", " : "(", (long long)shape[i]);
        at += (size_t)n;
    }
    if (at < room) snprintf(out + at, room - at, rank ? ")" : "()");
    return out;
}

static sn_status check_shape(const sn_tensor *t, int rank, const int64_t *wanted, sn_err *err) {
    char has[96], want[96];
    if (t->rank < 0 || t->rank > SN_GUARD_RANK_MAX || rank < 0 || rank > SN_GUARD_RANK_MAX)
        return sn_fail(err, SN_REFUSED, "%s: %d dimensions, but there may be %d at most", t->name, t->rank,
                       SN_GUARD_RANK_MAX);
    bool fits = t->rank == rank;
    for (int i = 0; fits && i < rank; i++) fits = t->shape[i] >= 0 && (wanted[i] < 0 || t->shape[i] == wanted[i]);
    if (!fits)
        return sn_fail(err, SN_REFUSED, "%s: the shape is %s and has to be %s", t->name,
                       shape_text(t->rank, t->shape, has, sizeof has), shape_text(rank, wanted, want, sizeof want));
    return SN_OK;
}

static sn_status measure(const sn_tensor *t, copy *c, sn_err *err) {
    bool contiguous = true, fits = true, empty = false;
    *c = (copy){.tensor = t, .n = 1, .extent = 1};
    for (int i = 0; i < t->rank; i++) {
        contiguous &= t->strides[i] == 0;
        empty |= t->shape[i] == 0;
        if (t->strides[i] < 0)
            return sn_fail(err, SN_REFUSED, "%s: a stride of %lld cannot be read", t->name, (long long)t->strides[i]);
    }
    if (empty) {
        c->n = c->extent = 0;
        return SN_OK;
    }
    for (int i = t->rank - 1; i >= 0; i--) {
        size_t reach;
        c->strides[i] = contiguous ? (int64_t)c->n : t->strides[i];
        fits = fits && sn_mul(c->n, (size_t)t->shape[i], &c->n) && c->n <= INT64_MAX;
        fits = fits && sn_mul((size_t)c->strides[i], (size_t)t->shape[i] - 1, &reach) &&
               sn_add(c->extent, reach, &c->extent);
    }
    size_t bytes;
    if (!fits || !sn_mul(c->n, sizeof(float), &bytes) || !sn_mul(c->extent, sizeof(float), &bytes))
        return sn_fail(err, SN_REFUSED, "%s: its size overflows", t->name);
    return SN_OK;
}

/* n elements, `stride` apart, as float32 in a row. */
static void convert(sn_dtype dtype, const uint8_t *data, size_t n, int64_t stride, float *out) {
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

/* All elements, in order, from host memory. */
static void convert_all(const copy *c, const uint8_t *data, float *out) {
    const sn_tensor *t = c->tensor;
    size_t size = sn_dtype_bytes(t->dtype);
    int last = t->rank - 1;
    size_t row = t->rank ? (size_t)t->shape[last] : 1;
    int64_t at[SN_GUARD_RANK_MAX] = {0}, offset = 0;
    for (size_t done = 0; done < c->n; done += row) {
        convert(t->dtype, data + (size_t)offset * size, row, t->rank ? c->strides[last] : 1, out + done);
        for (int i = last - 1; i >= 0; i--) { /* the next row: count up like an odometer */
            offset += c->strides[i];
            if (++at[i] < t->shape[i]) break;
            offset -= at[i] * c->strides[i];
            at[i] = 0;
        }
    }
}

static sn_device_id home_of(const sn_device *device) { return device ? device->id : (sn_device_id){SN_DEVICE_CPU, 0}; }

/* Host memory, the CPU's own, or fetched from another device into *staging. */
static sn_status fetch(const copy *c, void **staging, const uint8_t **data, sn_err *err) {
    const sn_tensor *t = c->tensor;
    *data = t->data;
    if (home_of(t->device).kind == SN_DEVICE_CPU) return SN_OK;
    size_t bytes = c->extent * sn_dtype_bytes(t->dtype);
    sn_status status = sn_calloc(staging, c->extent, sn_dtype_bytes(t->dtype), err);
    if (!status) status = t->device->ops->download(t->device, *staging, t->data, bytes, err);
    *data = *staging;
    return status;
}

static sn_status bring(const copy *c, sn_device *to, float *out, sn_err *err) {
    void *staging = NULL, *converted = NULL;
    const uint8_t *data;
    bool direct = home_of(to).kind == SN_DEVICE_CPU;
    sn_status status = fetch(c, &staging, &data, err);
    if (!status && !direct) status = sn_calloc(&converted, c->n, sizeof *out, err);
    if (status) goto out;
    convert_all(c, data, direct ? out : converted);
    if (!direct) status = to->ops->upload(to, out, converted, c->n * sizeof *out, err);
out:
    free(staging);
    free(converted);
    if (status) {
        char from_name[32], to_name[32];
        return sn_err_context(err, "%s could not be brought from %s to %s", c->tensor->name,
                              sn_device_id_name(home_of(c->tensor->device), from_name),
                              sn_device_id_name(home_of(to), to_name));
    }
    return SN_OK;
}

sn_status sn_guard(const sn_tensor *tensor, sn_device *to, int rank, const int64_t *wanted, float *out, uint64_t *moved,
                   sn_err *err) {
    copy c;
    if (tensor->dtype != SN_F32 && tensor->dtype != SN_F16 && tensor->dtype != SN_BF16)
        return sn_fail(err, SN_REFUSED, "%s: the type is %s and has to be F32, F16 or BF16", tensor->name,
                       sn_dtype_name(tensor->dtype));
    sn_status status = check_shape(tensor, rank, wanted, err);
    if (!status) status = measure(tensor, &c, err);
    if (status || c.n == 0) return status;
    if (!tensor->data)
        return sn_fail(err, SN_REFUSED, "%s: has %zu elements by its shape, but no data came with it", tensor->name,
                       c.n);
    status = bring(&c, to, out, err);
    if (status) return status;
    sn_device_id from = home_of(tensor->device), there = home_of(to);
    if (moved && (from.kind != there.kind || from.ordinal != there.ordinal))
        *moved += c.n * sn_dtype_bytes(tensor->dtype);
    return SN_OK;
}
