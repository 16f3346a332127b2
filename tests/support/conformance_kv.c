/* KV caches in 32, 16 and 8 bits: what is stored, how much memory it takes, and that it can be moved.
 *
 * How it works: rows with awkward numbers are written and read back, and compared bit by bit with a rounding of their
 * own, by the definition of sn_kv_dtype. What was read is written again: the pages must not change. */
#include "tests/support/conformance.h"

#include <float.h>
#include <math.h>
#include <string.h>

static void round_group(float *x, int n) {
    float most = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    float d = most < 1e-30f ? 0 : sn_bf16_to_f32(sn_f32_to_bf16(fminf(most, FLT_MAX) / 127));
    for (int i = 0; i < n; i++) {
        float q = d > 0 && !isnan(x[i]) ? rintf(fmaxf(fminf(x[i] / d, 127), -127)) : 0;
        x[i] = q * d;
    }
}

void conformance_round_kv(sn_kv_dtype dtype, int n, float *x) {
    for (int i = 0; i < n && dtype == SN_KV_F16; i++)
        x[i] = sn_f16_to_f32(sn_f32_to_f16(x[i] > 65504 ? 65504 : x[i] < -65504 ? -65504 : x[i]));
    for (int i = 0; i < n && dtype == SN_KV_Q8; i += 32) round_group(x + i, n - i < 32 ? n - i : 32);
}

enum { POSITIONS = 20, HEADS = 3 };

/* Numbers of all sizes; some rows hold nothing but tiny ones, some infinity or NaN. */
static float *awkward_numbers(conformance *c, size_t n, uint64_t seed) {
    static const float scales[] = {1, 1e-31f, 300, 1e5f, 0, 1e-6f, 1e20f};
    float *x = conformance_random(c, n, seed);
    for (size_t i = 0; i < n; i++) x[i] *= scales[i / 40 % 7];
    x[n / 3] = INFINITY, x[n / 2] = NAN, x[n - 1] = -INFINITY;
    return x;
}

/* Rounds a key and a value of one head as they are stored: in latent attention as one row, the value first. */
static void round_head(const sn_kv_shape *shape, float *k, float *v) {
    float row[SN_LATENT_DIM_MAX];
    int keys = sn_kv_key_dim(shape), values = sn_kv_value_dim(shape);
    if (!shape->latent) {
        conformance_round_kv(shape->dtype, keys, k);
        conformance_round_kv(shape->dtype, values, v);
        return;
    }
    memcpy(row, v, (size_t)values * sizeof *row);
    memcpy(row + values, k, (size_t)keys * sizeof *row);
    conformance_round_kv(shape->dtype, keys + values, row);
    memcpy(v, row, (size_t)values * sizeof *row);
    memcpy(k, row + values, (size_t)keys * sizeof *row);
}

static void expect_same(conformance *c, const sn_kv_shape *shape, const char *what, const float *got, const float *want,
                        size_t n) {
    for (size_t i = 0; i < n; i++)
        CONFORMANCE_CHECK(c, got[i] == want[i] || (isnan(got[i]) && isnan(want[i])),
                          "%s of %d elements as %s: element %zu is %a, not %a", what, shape->head_dim,
                          sn_kv_dtype_name(shape->dtype), i, (double)got[i], (double)want[i]);
}

/* Block 1 of a cache of this shape. */
static void try_kv(conformance *c, const sn_kv_shape *all) {
    sn_device *d = c->device;
    const sn_kv_shape own = sn_kv_block_shape(all, 1), *shape = &own;
    int mark = c->n_buffers, keys = sn_kv_key_dim(shape), values = sn_kv_value_dim(shape);
    size_t n_k = (size_t)(POSITIONS * HEADS * keys), n_v = (size_t)(POSITIONS * HEADS * values),
           bytes = d->ops->kv_page_bytes(d, all);
    float *k = awkward_numbers(c, n_k, 1), *v = awkward_numbers(c, n_v, 2);
    float *got_k = conformance_heap(c, n_k * sizeof *k), *got_v = conformance_heap(c, n_v * sizeof *v);
    uint8_t *before = conformance_heap(c, bytes), *after = conformance_heap(c, bytes);
    void *pages[] = {conformance_bytes(c, bytes), conformance_bytes(c, bytes)};
    CONFORMANCE_OK(c, d->ops->kv_write(d, all, 1, pages, 0, POSITIONS, k, v, &c->err));
    CONFORMANCE_OK(c, d->ops->kv_read(d, all, 1, pages, 0, POSITIONS, got_k, got_v, &c->err));
    for (int i = 0; i < POSITIONS * HEADS; i++) round_head(shape, k + i * keys, v + i * values);
    expect_same(c, shape, "keys", got_k, k, n_k);
    expect_same(c, shape, "values", got_v, v, n_v);
    CONFORMANCE_OK(c, d->ops->download(d, before, pages[0], bytes, &c->err));
    CONFORMANCE_OK(c, d->ops->kv_write(d, all, 1, pages, 0, POSITIONS, got_k, got_v, &c->err));
    CONFORMANCE_OK(c, d->ops->download(d, after, pages[0], bytes, &c->err));
    CONFORMANCE_CHECK(c, !memcmp(before, after, bytes), "%s: what was read is stored in other bytes",
                      sn_kv_dtype_name(shape->dtype));
    conformance_release(c, mark);
}

void conformance_kv_of_every_type_is_rounded_once(conformance *c) {
    static const int dims[] = {24, 36, 64, 128, 250};
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
        sn_kv_dtype dtype = (sn_kv_dtype)t;
        CONFORMANCE_CHECK(c, !t || c->device->kv_dtypes >> t & 1, "the device cannot store %s",
                          sn_kv_dtype_name(dtype));
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            try_kv(c, &(sn_kv_shape){2, HEADS, dims[i], 16, dtype, 0, 0, {0}, {0}, 0, 0, false});
        try_kv(c, &(sn_kv_shape){2, HEADS, 41 + 9, 16, dtype, 41, 0, {0}, {0}, 0, 0, false});
        /* narrower values; the blocks beside have other heads, or this one has */
        try_kv(c, &(sn_kv_shape){3, HEADS, 48, 16, dtype, 0, 20, {2, 64, 40}, {5}, 0, 0, false});
        try_kv(c, &(sn_kv_shape){3, 2, 64, 16, dtype, 0, 40, {HEADS, 48, 20}, {2}, 0, 0, false});
    }
}

void conformance_kv_pages_take_what_their_type_needs(conformance *c) {
    for (int latent = 0; latent <= 512; latent += 512) {
        size_t bytes[SN_KV_DTYPE_COUNT];
        for (int t = 0; t < SN_KV_DTYPE_COUNT; t++)
            bytes[t] = c->device->ops->kv_page_bytes(
                c->device,
                &(sn_kv_shape){3, 2, latent ? 576 : 128, 32, (sn_kv_dtype)t, latent, 0, {0}, {0}, 0, 0, false});
        CONFORMANCE_CHECK(c, 2 * bytes[SN_KV_F16] == bytes[SN_KV_F32], "a page of f16 takes %zu bytes, of f32 %zu",
                          bytes[SN_KV_F16], bytes[SN_KV_F32]);
        CONFORMANCE_CHECK(c, 64 * bytes[SN_KV_Q8] <= 17 * bytes[SN_KV_F32], "a page of q8 takes %zu bytes, of f32 %zu",
                          bytes[SN_KV_Q8], bytes[SN_KV_F32]);
    }
}
