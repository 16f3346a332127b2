/* How weights are packed into panels of 16 interleaved rows, and read back row by row; pack.h describes the layouts.
 *
 * Packing is one item of the pool per panel. A float panel is transposed element by element (pack_float, pack_f8). A
 * quantised panel takes one block of 16 rows at a time apart (sn_quant_split), interleaves the codes into planes
 * (pack_codes) and lays the scales of the lanes side by side (pack_scales).
 *
 * Reading back (sn_cpu_weight_dequantize_row, for get_rows) computes d * q + m in float32, with the same roundings as
 * the kernels' unpack. */
#include "base/mem.h"
#include "device/cpu/cpu_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct pack_job {
    sn_cpu_weight weight;
    uint8_t *image;
    sn_dtype dtype;
    size_t row_bytes;
    const uint8_t *host;
} pack_job;

/* Vectors of codes as words of eight bytes. */
typedef uint64_t code_words[8][SN_VECTOR / 8];

/* Puts `bits` bits of each code, from bit `shift` on, into their plane. */
static inline void pack_plane(const code_words codes, int bits, int shift, uint8_t *out) {
    const size_t vectors = (size_t)bits; /* of 64 bytes; each holds 8 / bits vectors of codes */
    const uint64_t mask = 0x0101010101010101 * ((1u << bits) - 1);
    uint64_t plane[4][SN_VECTOR / 8] = {{0}};
    for (size_t v = 0; v < 8; v++) {
        size_t to = bits == 4 ? v % 4 : v * vectors / 8;
        int at = bits == 4 ? (int)(v / 4 * 4) : bits * (int)(v % (8 / vectors));
        for (size_t i = 0; i < SN_VECTOR / 8; i++) plane[to][i] |= (codes[v][i] >> shift & mask) << at;
    }
    memcpy(out, plane, SN_VECTOR * vectors);
}

static void pack_codes(const sn_quant_form *form, const sn_quant_parts *rows, size_t group, uint8_t *out) {
    union {
        code_words words;
        uint32_t four[8][SN_LANES]; /* the codes of vector and lane */
    } codes;
    for (size_t r = 0; r < SN_LANES; r++) {
        uint32_t own[8];
        memcpy(own, rows[r].codes + SN_QUANT_GROUP * group, sizeof own);
        for (size_t v = 0; v < 8; v++) codes.four[v][r] = own[v];
    }
    if (form->low_bits == 8) {
        for (size_t v = 0; v < 8; v++)
            for (size_t r = 0; r < SN_LANES; r++) codes.four[v][r] ^= 0x80808080; /* q + 128 */
        memcpy(out, codes.four, sizeof codes.four);
        return;
    }
    if (form->entry) {
        memcpy(out, codes.four, (size_t)(SN_VECTOR * form->low_bits));
        return;
    }
    if (form->low_bits == 4)
        pack_plane(codes.words, 4, 0, out);
    else
        pack_plane(codes.words, form->low_bits, 0, out);
    if (form->high_bits) pack_plane(codes.words, form->high_bits, form->low_bits, out + SN_VECTOR * form->low_bits);
}

/* Lays the scales of a group (or the parts of a head), of `unit` bytes each, side by side: all first ones, then all
 * second ones. */
static void pack_scales(const uint8_t *first, size_t bytes, size_t unit, uint8_t *out) {
    for (size_t r = 0; r < SN_LANES; r++, first += sizeof(sn_quant_parts))
        for (size_t part = 0; part < bytes / unit; part++)
            for (size_t i = 0; i < unit; i++) out[unit * (SN_LANES * part + r) + i] = first[unit * part + i];
}

/* See sn_cpu_short_words. */
static void pack_short_words(const sn_quant_parts *rows, uint8_t *out) {
    for (size_t r = 0; r < SN_LANES; r++) {
        uint32_t word;
        memcpy(&word, rows[r].super, sizeof word);
        float scale = sn_quant_word_scale(word);
        uint16_t half = sn_f32_to_f16(scale);
        const bool bfloat = sn_f16_to_f32(half) != scale;
        if (bfloat) half = (uint16_t)(word >> 16);
        memcpy(out + 2 * r, &half, sizeof half);
        out[2 * SN_LANES + r] = (uint8_t)((word & 0x7f) | (bfloat ? SN_CPU_BFLOAT : 0));
    }
}

static void pack_head(const sn_quant_form *form, const sn_quant_parts *rows, uint8_t *out) {
    const size_t bytes = (size_t)form->super_bytes, halves = form->entry ? sizeof(uint16_t) : bytes;
    pack_scales(rows[0].super, halves, sn_quant_is_plain(form) ? 4 : 2, out);
    out += SN_LANES * halves;
    for (size_t at = halves; at < bytes; at += 4, out += SN_VECTOR)
        for (size_t r = 0; r < SN_LANES; r++) memcpy(out + 4 * r, rows[r].super + at, 4);
}

static void pack_quantised(const pack_job *job, size_t first_row, uint8_t *out) {
    const sn_cpu_weight *w = &job->weight;
    const sn_quant_form *form = &sn_quant_forms[job->dtype];
    const size_t unit = form->scale == SN_SCALE_D || form->scale == SN_SCALE_DM || form->scale == SN_SCALE_BF ? 2 : 1;
    const size_t in_block = sn_dtype_block(job->dtype), bytes = sn_dtype_bytes(job->dtype);
    const size_t n = sn_min_size(SN_LANES, w->rows - first_row);
    sn_quant_parts rows[SN_LANES];
    memset(rows, 0, sizeof rows); /* lanes beyond the last row */
    for (size_t b = 0; b < w->cols / in_block; b++) {
        const uint8_t *block = job->host + first_row * job->row_bytes + b * bytes;
        for (size_t r = 0; r < n; r++) sn_quant_split(job->dtype, block + r * job->row_bytes, &rows[r]);
        if (sn_cpu_short_words(job->dtype))
            pack_short_words(rows, out);
        else
            pack_head(form, rows, out);
        out += sn_cpu_head_bytes(job->dtype);
        for (size_t g = 0; g < in_block / SN_QUANT_GROUP; g++) {
            pack_codes(form, rows, g, out);
            pack_scales(rows[0].scales[g], (size_t)form->scale_bytes, unit, out + sn_cpu_code_bytes(job->dtype));
            out += sn_cpu_group_bytes(job->dtype);
        }
    }
}

static void pack_float(const pack_job *job, size_t panel) {
    const sn_cpu_weight *w = &job->weight;
    size_t size = sn_dtype_bytes(job->dtype), cols = w->cols, offset, step;
    sn_cpu_float_panel(w, panel, &offset, &step);
    for (size_t lane = 0, r = panel * SN_LANES; lane < SN_LANES; lane++, r++) {
        uint8_t *out = job->image + offset + lane * size;
        const uint8_t *row = job->host + r * job->row_bytes;
        if (r >= w->rows) /* beyond the last row */
            for (size_t k = 0; k < cols; k++) memset(out + k * step, 0, size);
        else if (size == 4)
            for (size_t k = 0; k < cols; k++) memcpy(out + k * step, row + k * 4, 4);
        else
            for (size_t k = 0; k < cols; k++) memcpy(out + k * step, row + k * 2, 2);
    }
}

static void pack_f8(const pack_job *job, size_t panel) {
    const sn_cpu_weight *w = &job->weight;
    uint8_t *out = job->image + panel * w->panel_bytes;
    memset(out, 0, w->panel_bytes); /* lanes beyond the last row */
    for (size_t b = 0; b < w->n_blocks; b++, out += SN_F8_SCALES + SN_F8_K * SN_LANES)
        for (size_t lane = 0, r = panel * SN_LANES; lane < SN_LANES && r < w->rows; lane++, r++) {
            const uint8_t *from = job->host + r * job->row_bytes + b * sn_dtype_bytes(job->dtype);
            float scale;
            memcpy(&scale, from, sizeof scale);
            scale *= sn_f8_factor(job->dtype);
            memcpy(out + lane * sizeof scale, &scale, sizeof scale);
            for (size_t k = 0; k < SN_F8_K; k++) out[SN_F8_SCALES + k * SN_LANES + lane] = from[sizeof scale + k];
        }
}

/* One block of one lane; `offsets` are those of the panel. */
static void pack_float4_block(sn_dtype t, const uint8_t *from, size_t lane, uint8_t *offsets, uint8_t *out) {
    const size_t head = sn_cpu_float4_head(t);
    memcpy(out + lane * sizeof(float), from, sizeof(float));
    if (sn_float4_twice(t)) {
        memcpy(offsets + lane * sizeof(float), from + sizeof(float), sizeof(float));
        for (size_t part = 0; part < SN_FLOAT4_PARTS; part++)
            out[SN_F8_SCALES + SN_LANES * part + lane] = from[2 * sizeof(float) + part];
    }
    for (size_t i = 0; i < sn_cpu_block(t) / 2; i++) out[head + i * SN_LANES + lane] = sn_float4_codes(t, from, 0)[i];
}

static void pack_float4(const pack_job *job, size_t panel) {
    const sn_cpu_weight *w = &job->weight;
    uint8_t *offsets = job->image + panel * w->panel_bytes, *out = offsets + sn_cpu_offset_bytes(job->dtype);
    memset(offsets, 0, w->panel_bytes); /* lanes beyond the last row */
    for (size_t b = 0; b < w->n_blocks; b++, out += sn_cpu_block_bytes(job->dtype))
        for (size_t lane = 0, r = panel * SN_LANES; lane < SN_LANES && r < w->rows; lane++, r++)
            pack_float4_block(job->dtype, job->host + r * job->row_bytes + b * sn_dtype_bytes(job->dtype), lane,
                              offsets, out);
}

static void pack_panel(void *ctx, size_t panel, int worker) {
    (void)worker;
    const pack_job *job = ctx;
    if (sn_cpu_quantised(job->dtype))
        pack_quantised(job, panel * SN_LANES, job->image + panel * job->weight.panel_bytes);
    else if (sn_is_f8(job->dtype))
        pack_f8(job, panel);
    else if (sn_cpu_float4(job->dtype))
        pack_float4(job, panel);
    else
        pack_float(job, panel);
}

sn_cpu_weight sn_cpu_weight_view(const sn_weight *weight) {
    sn_cpu_weight w = {.dtype = weight->dtype, .rows = weight->rows, .cols = weight->cols, .data = weight->device};
    w.n_blocks = w.cols / sn_cpu_block(w.dtype);
    w.panel_bytes = sn_cpu_offset_bytes(w.dtype) + w.n_blocks * sn_cpu_block_bytes(w.dtype);
    w.n_panels = (w.rows + SN_LANES - 1) / SN_LANES;
    return w;
}

static bool can_multiply(sn_dtype t) {
    return (unsigned)t < SN_DTYPE_COUNT &&
           (sn_cpu_quantised(t) || t == SN_F32 || t == SN_F16 || t == SN_BF16 || sn_is_f8(t) || sn_cpu_float4(t));
}

sn_status sn_cpu_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err) {
    (void)d;
    if (!can_multiply(dtype))
        return sn_fail(err, SN_REFUSED, "a matrix of type %s cannot be multiplied with: use a model with another type",
                       sn_dtype_name(dtype));
    size_t row_bytes, padded, panel_bytes;
    sn_status status = sn_dtype_row_bytes(dtype, cols, &row_bytes, err);
    if (status) return status;
    if (!sn_mul(cols / sn_cpu_block(dtype), sn_cpu_block_bytes(dtype), &panel_bytes) ||
        !sn_add(panel_bytes, sn_cpu_offset_bytes(dtype), &panel_bytes) || !sn_add(rows, SN_LANES - 1, &padded) ||
        !sn_mul(padded / SN_LANES, panel_bytes, bytes) || padded / SN_LANES > UINT32_MAX)
        return sn_fail(err, SN_REFUSED, "a matrix of %zu rows of %zu is too large", rows, cols);
    return SN_OK;
}

sn_status sn_cpu_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err) {
    size_t bytes;
    pack_job job = {.image = image, .dtype = dtype, .host = host};
    sn_status status = sn_cpu_weight_size(d, dtype, rows, cols, &bytes, err);
    if (!status) status = sn_dtype_row_bytes(dtype, cols, &job.row_bytes, err);
    if (status) return status;
    job.weight = sn_cpu_weight_view(&(sn_weight){dtype, rows, cols, bytes, image, NULL});
    sn_pool_run(((sn_cpu *)d)->pool, job.weight.n_panels, pack_panel, &job);
    return SN_OK;
}

static float read_float(sn_dtype dtype, const uint8_t *at, size_t i) {
    float f;
    uint16_t h;
    if (dtype == SN_F32) {
        memcpy(&f, at + i * 4, 4);
        return f;
    }
    memcpy(&h, at + i * 2, 2);
    return dtype == SN_F16 ? sn_f16_to_f32(h) : sn_bf16_to_f32(h);
}

/* Scale and offset of half h of a group; `scales` points to the group's scales, `head` to the head of its block. */
static void read_scales(sn_dtype dtype, const uint8_t *head, const uint8_t *scales, size_t lane, size_t h, float *d,
                        float *m) {
    const int8_t *bytes = (const int8_t *)scales + lane;
    uint32_t word;
    const bool halves = sn_cpu_head_bytes(dtype) && !sn_quant_is_plain(&sn_quant_forms[dtype]);
    float head_d = halves ? read_float(SN_F16, head, lane) : 0, head_m = 0;
    if (halves && sn_cpu_offsets(dtype)) head_m = read_float(SN_F16, head, SN_LANES + lane);
    *d = *m = 0;
    switch (sn_quant_forms[dtype].scale) {
    case SN_SCALE_DM:
        *m = read_float(SN_F16, scales, SN_LANES + lane);
        /* fallthrough */
    case SN_SCALE_D:
        *d = read_float(SN_F16, scales, lane);
        return;
    case SN_SCALE_K:
        *m = head_m * (float)bytes[SN_LANES];
        /* fallthrough */
    case SN_SCALE_B:
        *d = head_d * (float)bytes[0];
        return;
    case SN_SCALE_S:
        *d = head_d * (float)bytes[SN_LANES * h];
        return;
    case SN_SCALE_N:
        *d = head_d * (float)(bytes[SN_LANES * h] & 15);
        *m = head_m * (float)((uint8_t)bytes[SN_LANES * h] >> 4);
        return;
    case SN_SCALE_E:
        *d = sn_half_power_of_two(scales[lane]);
        return;
    case SN_SCALE_BF:
        *d = read_float(SN_BF16, scales, lane);
        return;
    case SN_SCALE_W:
        if (sn_cpu_short_words(dtype)) {
            const uint8_t zero = head[2 * SN_LANES + lane];
            *d = read_float(zero & SN_CPU_BFLOAT ? SN_BF16 : SN_F16, head, lane);
            *m = *d * (float)(0 - (zero & ~SN_CPU_BFLOAT));
            return;
        }
        memcpy(&word, head + lane * sizeof word, sizeof word);
        *d = sn_quant_word_scale(word);
        *m = *d * (float)(128 - (int)(word & 0xff));
        return;
    case SN_SCALE_F:
        *d = read_float(SN_F32, head, lane);
        return;
    case SN_SCALE_V:
        *d = sn_f16_to_f32(sn_f8_to_f16_256th((uint8_t)bytes[SN_LANES * h])) * (256 * read_float(SN_F32, head, lane));
        return;
    case SN_SCALE_U:
        *d = sn_f16_to_f32(sn_f8_to_f16_256th(scales[SN_LANES * h + lane])) * 128;
        return;
    default: /* SN_SCALE_H; those of codebook types are not read here */
        *d = head_d;
    }
}

static unsigned plane_bits(const uint8_t *plane, int bits, size_t v, size_t i) {
    size_t from = bits == 4 ? v % 4 : v * (size_t)bits / 8, at = bits == 4 ? v / 4 : v % (8 / (size_t)bits);
    return (unsigned)plane[SN_VECTOR * from + i] >> bits * (int)at & ((1u << bits) - 1);
}

/* As unpack_group, of codebook types and TQ1_0: the group at q, number g of the block. */
static void unpack_entries(sn_dtype t, const uint8_t *block, const uint8_t *q, size_t g, size_t lane, float *out) {
    const sn_quant_form *form = &sn_quant_forms[t];
    sn_quant_parts parts;
    sn_quant_group group;
    for (size_t w = 0; w < (size_t)form->low_bits; w++)
        memcpy(parts.codes + SN_QUANT_GROUP * g + 4 * w, q + SN_VECTOR * w + 4 * lane, 4);
    for (size_t i = 0; i < (size_t)form->scale_bytes; i++)
        parts.scales[g][i] = q[sn_cpu_code_bytes(t) + SN_LANES * i + lane];
    memcpy(parts.super, block + 2 * lane, 2);
    for (size_t i = 2; i < (size_t)form->super_bytes; i += 4)
        memcpy(parts.super + i, block + SN_LANES * i + 4 * lane, 4);
    sn_quant_join(t, &parts, g, &group);
    for (size_t k = 0; k < SN_QUANT_GROUP; k++) out[k] = group.d[k / 16] * (float)group.q[k] + group.m[k / 16];
}

/* The 32 numbers of one lane of group `g` of the panel at `at`. */
static void unpack_group(const sn_cpu_weight *w, const uint8_t *at, size_t g, size_t lane, float *out) {
    const sn_quant_form *form = &sn_quant_forms[w->dtype];
    const size_t in_block = sn_cpu_groups(w->dtype);
    const uint8_t *block = at + g / in_block * sn_cpu_block_bytes(w->dtype);
    const uint8_t *q = block + sn_cpu_head_bytes(w->dtype) + g % in_block * sn_cpu_group_bytes(w->dtype);
    float d[2], m[2];
    if (form->entry) {
        unpack_entries(w->dtype, block, q, g % in_block, lane, out);
        return;
    }
    for (size_t h = 0; h < 2; h++) read_scales(w->dtype, block, q + sn_cpu_code_bytes(w->dtype), lane, h, d + h, m + h);
    for (size_t k = 0; k < SN_QUANT_GROUP; k++) {
        size_t v = k / 4, i = 4 * lane + k % 4;
        unsigned code = plane_bits(q, form->low_bits, v, i);
        if (form->high_bits)
            code |= plane_bits(q + SN_VECTOR * form->low_bits, form->high_bits, v, i) << form->low_bits;
        int number = form->table ? sn_cpu_tables[form->table][code] : (int)code;
        out[k] = d[k / 16] * (float)(number - sn_cpu_zero(w->dtype)) + m[k / 16];
    }
}

/* A row of NF4 or FP4, lane `lane` of the panel at `panel`. */
static void unpack_float4(const sn_cpu_weight *w, const uint8_t *panel, size_t lane, float *out) {
    const sn_dtype t = w->dtype;
    for (size_t k = 0; k < w->cols; k++) {
        const uint8_t *block = panel + sn_cpu_offset_bytes(t) + k / sn_cpu_block(t) * sn_cpu_block_bytes(t);
        const size_t part = k % sn_cpu_block(t) / SN_FLOAT4_PART;
        float scale = read_float(SN_F32, block, lane);
        if (sn_float4_twice(t)) {
            scale = sn_float4_scales[block[SN_F8_SCALES + SN_LANES * part + lane]] * scale;
            scale += read_float(SN_F32, panel, lane);
        }
        uint8_t both = block[sn_cpu_float4_head(t) + k % sn_cpu_block(t) / 2 * SN_LANES + lane];
        out[k] = sn_float4_values(t)[both >> k % 2 * 4 & 15] * scale;
    }
}

void sn_cpu_weight_dequantize_row(const sn_cpu_weight *w, size_t row, float *out) {
    assert(row < w->rows);
    const uint8_t *at = w->data + row / SN_LANES * w->panel_bytes;
    size_t lane = row % SN_LANES, offset, step;
    if (sn_is_f8(w->dtype)) {
        for (size_t k = 0; k < w->cols; k++) {
            const uint8_t *block = at + k / SN_F8_K * (SN_F8_SCALES + SN_F8_K * SN_LANES);
            uint8_t x = block[SN_F8_SCALES + k % SN_F8_K * SN_LANES + lane];
            out[k] = sn_f16_to_f32(sn_f8_half(w->dtype, x)) * read_float(SN_F32, block, lane);
        }
        return;
    }
    if (sn_cpu_float4(w->dtype)) {
        unpack_float4(w, at, lane, out);
        return;
    }
    if (!sn_cpu_quantised(w->dtype)) {
        sn_cpu_float_panel(w, row / SN_LANES, &offset, &step);
        for (size_t k = 0; k < w->cols; k++) out[k] = read_float(w->dtype, w->data + offset + k * step, lane);
        return;
    }
    for (size_t g = 0; g < w->cols / SN_QUANT_GROUP; g++, out += SN_QUANT_GROUP) unpack_group(w, at, g, lane, out);
}
