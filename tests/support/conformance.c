#include "tests/support/conformance.h"

#include "device/quant.h"
#include "tests/support/cpu_devices.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(conformance *c);
} cases[] = {
#define X(name) {#name, conformance_##name},
    CONFORMANCE_CASES(X)
#undef X
};

const char *conformance_name(conformance_case which) { return cases[which].name; }

void conformance_fail(conformance *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->failure, sizeof c->failure, format, args);
    va_end(args);
    longjmp(c->on_failure, 1);
}

/* The limits given to prepare: no case exceeds them. */
static const sn_device_limits limits = {.rows = 80,
                                        .width = 1024,
                                        .context = 512,
                                        .heads = 16,
                                        .head_dim = 256,
                                        .experts = 128,
                                        .experts_used = 8,
                                        .chosen = 64,
                                        .grad_tokens = 80};

static void open_device(conformance *c) {
    CONFORMANCE_OK(c, sn_device_open(c->id, &c->options, &c->device, &c->err));
    c->prepare_bytes = c->device->ops->prepare_bytes(c->device, &limits);
    CONFORMANCE_OK(c, c->device->ops->prepare(c->device, &limits, &c->err));
    CONFORMANCE_CHECK(c, c->device->memory_used <= c->prepare_bytes, "prepare took %zu bytes and said %zu",
                      c->device->memory_used, c->prepare_bytes);
}

/* Operations take no memory: what the device still has is what prepare took, and captured batches. */
static void check_memory(conformance *c) {
    const sn_device *d = c->device;
    if (d->lost) return;
    CONFORMANCE_CHECK(c, d->memory_used <= c->prepare_bytes + (d->graphs_captured ? d->memory_extra : 0),
                      "the operations left %zu bytes in use where %zu were to be prepared", d->memory_used,
                      c->prepare_bytes);
}

static bool run_guarded(conformance *c, void (*step)(conformance *c)) {
    if (setjmp(c->on_failure)) return false;
    step(c);
    return true;
}

bool conformance_run(conformance *c, conformance_case which) {
    size_t before = c->memory_used ? c->memory_used() : 0;
    c->failure[0] = '\0';
    c->skipped = false;
    c->n_buffers = 0;
    c->device = NULL;
    bool passed = run_guarded(c, open_device) && run_guarded(c, cases[which].run);
    if (c->faults) c->faults->heal();
    if (c->device) conformance_release(c, 0);
    if (passed && c->device) passed = run_guarded(c, check_memory);
    sn_device_close(&c->device);
    if (passed && c->memory_used && c->memory_used() != before) {
        snprintf(c->failure, sizeof c->failure, "%zu bytes of device memory were in use before, %zu are after", before,
                 c->memory_used());
        passed = false;
    }
    return passed;
}

void conformance_prepare(conformance *c, const sn_device_limits *more) {
    sn_device *d = c->device;
    size_t own = d->memory_used; /* beside that of the case */
    for (int i = 0; i < c->n_buffers; i++) own -= c->buffers[i].kind == BUFFER_DEVICE ? c->buffers[i].bytes : 0;
    c->prepare_bytes = own + d->ops->prepare_bytes(d, more);
    CONFORMANCE_OK(c, d->ops->prepare(d, more, &c->err));
}

/* -- memory */

static void *track_buffer(conformance *c, void *at, size_t bytes, int kind) {
    size_t capacity = sizeof c->buffers / sizeof *c->buffers;
    CONFORMANCE_CHECK(c, (size_t)c->n_buffers < capacity, "the case uses more than %zu buffers", capacity);
    c->buffers[c->n_buffers].at = at;
    c->buffers[c->n_buffers].bytes = bytes;
    c->buffers[c->n_buffers++].kind = kind;
    return at;
}

void *conformance_bytes(conformance *c, size_t bytes) {
    void *at;
    CONFORMANCE_OK(c, c->device->ops->alloc(c->device, bytes, &at, &c->err));
    return track_buffer(c, at, bytes, BUFFER_DEVICE);
}

void *conformance_pinned(conformance *c, size_t bytes) {
    void *at;
    CONFORMANCE_OK(c, c->device->ops->host_alloc(c->device, bytes, &at, &c->err));
    return track_buffer(c, at, bytes, BUFFER_PINNED);
}

void *conformance_heap(conformance *c, size_t bytes) {
    void *at = NULL;
    if (posix_memalign(&at, 64, bytes ? bytes : 1)) abort();
    memset(at, 0, bytes);
    return track_buffer(c, at, bytes, BUFFER_HEAP);
}

void conformance_release(conformance *c, int n_buffers) {
    while (c->n_buffers > n_buffers) {
        struct conformance_buffer *b = &c->buffers[--c->n_buffers];
        switch (b->kind) {
        case BUFFER_DEVICE:
            c->device->ops->free(c->device, b->at, b->bytes);
            break;
        case BUFFER_PINNED:
            c->device->ops->host_free(c->device, b->at, b->bytes);
            break;
        case BUFFER_HEAP:
            free(b->at);
            break;
        }
    }
}

float *conformance_upload(conformance *c, const float *host, size_t n) {
    float *device = conformance_bytes(c, n * sizeof *device);
    CONFORMANCE_OK(c, c->device->ops->upload(c->device, device, host, n * sizeof *device, &c->err));
    return device;
}

float *conformance_download(conformance *c, const float *device, size_t n) {
    float *host = conformance_heap(c, n * sizeof *host);
    CONFORMANCE_OK(c, c->device->ops->download(c->device, host, device, n * sizeof *host, &c->err));
    return host;
}

float *conformance_random(conformance *c, size_t n, uint64_t seed) {
    float *x = conformance_heap(c, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = test_random(&seed);
    return x;
}

/* -- weights */

/* Decodes one row to double precision; rows of a plain type are given as `plain`. */
static void decode_row(sn_dtype dtype, const uint8_t *row, const float *plain, size_t cols, double *values,
                       double *sizes) {
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    size_t block = sn_dtype_block(dtype);
    for (size_t i = 0; i < cols; i++) {
        if (!sn_dtype_quantised(dtype)) {
            values[i] = (double)plain[i];
            sizes[i] = fabs(values[i]);
            continue;
        }
        if (i % block == 0) sn_quant_decode(dtype, row + i / block * sn_dtype_bytes(dtype), groups);
        const sn_quant_group *g = &groups[i % block / 32];
        double product = (double)g->d[i / 16 % 2] * g->q[i % 32], offset = (double)g->m[i / 16 % 2];
        values[i] = product + offset;
        sizes[i] = fabs(product) + fabs(offset);
    }
}

conformance_weight conformance_random_weight(conformance *c, sn_dtype dtype, size_t rows, size_t cols, uint64_t seed) {
    sn_device *d = c->device;
    conformance_weight w = {.weight = {.dtype = dtype, .rows = rows, .cols = cols}};
    size_t row_bytes;
    CONFORMANCE_OK(c, sn_dtype_row_bytes(dtype, cols, &row_bytes, &c->err));
    w.values = conformance_heap(c, rows * cols * sizeof *w.values);
    w.sizes = conformance_heap(c, rows * cols * sizeof *w.sizes);
    float *plain = conformance_heap(c, rows * cols * sizeof *plain);
    uint8_t *file = test_random_weight(dtype, rows, cols, seed, plain);
    for (size_t r = 0; r < rows; r++)
        decode_row(dtype, file + r * row_bytes, plain + r * cols, cols, w.values + r * cols, w.sizes + r * cols);
    sn_status status = d->ops->weight_size(d, dtype, rows, cols, &w.weight.bytes, &c->err);
    if (!status) {
        void *image = conformance_heap(c, w.weight.bytes), *device = conformance_bytes(c, w.weight.bytes);
        status = d->ops->weight_pack(d, dtype, rows, cols, file, image, &c->err);
        if (!status) status = d->ops->upload(d, device, image, w.weight.bytes, &c->err);
        w.weight.device = device;
    }
    test_weight_free(file);
    CONFORMANCE_OK(c, status);
    return w;
}

bool conformance_close(double got, double want, double tolerance) {
    if (isnan(want)) return isnan(got);
    if (isinf(want)) return got == want;
    return fabs(got - want) <= tolerance;
}
