/* How weights are packed into panels of 16 interleaved rows, and read back row by row; pack.h describes the layouts.
 *
 * Packing is one item of the pool per panel. A float panel is transposed element by element (pack_float, pack_f8). A
 * quantised panel decodes one block of 16 rows at a time (sn_quant_decode) into groups of 32 integers, interleaves
 * their bytes (pack_quants) and writes the scales after them in the form of the layout (pack_half_scales,
 * pack_wide_scales, pack_table_scales; pack_super for the head of a superblock).
 *
 * Reading back (sn_cpu_weight_dequantize_row, for get_rows) computes d * q + m in float32, with the same roundings as
 * the kernels' unpack. */
#include "base/mem.h"
#include "device/cpu/cpu_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    size_t k, bytes;
} blocks[] = {
#define X(name, k, bytes) {k, bytes},
    SN_LAYOUTS(X)
#undef X
};

static bool layout_of(sn_dtype dtype, sn_layout *out) {
    switch (dtype) {
    case SN_F32:
        *out = SN_LAYOUT_F32;
        return true;
    case SN_F16:
        *out = SN_LAYOUT_F16;
        return true;
    case SN_BF16:
        *out = SN_LAYOUT_BF16;
        return true;
    case SN_F8_E4M3:
        *out = SN_LAYOUT_F8;
        return true;
    case SN_Q4_0:
        *out = SN_LAYOUT_Q4_SIGNED;
        return true;
    case SN_Q4_1:
        *out = SN_LAYOUT_Q4_HALF;
        return true;
    case SN_Q4_K:
        *out = SN_LAYOUT_Q4_SUPER;
        return true;
    case SN_MXFP4:
        *out = SN_LAYOUT_Q4_TABLE;
        return true;
    case SN_Q8_0:
    case SN_Q5_0:
    case SN_IQ4_NL:
        *out = SN_LAYOUT_Q8_HALF;
        return true;
    case SN_Q5_1:
    case SN_IQ4_XS:
        *out = SN_LAYOUT_Q8_WIDE;
        return true;
    case SN_Q5_K:
        *out = SN_LAYOUT_Q8_SUPER;
        return true;
    case SN_Q2_K:
    case SN_Q3_K:
        *out = SN_LAYOUT_Q8_FINE;
        return true;
    case SN_Q6_K:
        *out = SN_LAYOUT_Q8_FINE_SUPER;
        return true;
    default:
        return false;
    }
}

static bool has_half_scales(sn_layout layout) {
    return layout == SN_LAYOUT_Q4_HALF || layout == SN_LAYOUT_Q4_SIGNED || layout == SN_LAYOUT_Q8_HALF;
}
static size_t quant_bytes(sn_layout layout) { return sn_layout_nibbles(layout) ? SN_Q4_BYTES : SN_Q8_BYTES; }

/* The 32 integers of 16 rows as [k / 4][row][k % 4]: what a dot product of four bytes per lane reads. */
static void interleave(const sn_quant_group *const rows[SN_LANES], uint32_t words[8][SN_LANES]) {
    for (int r = 0; r < SN_LANES; r++) {
        uint32_t own[8];
        memcpy(own, rows[r]->q, sizeof own);
        for (int c = 0; c < 8; c++) words[c][r] = own[c];
    }
}

/* sn_f32_to_f16 for values that were half in the file; normal numbers inline. */
static inline uint16_t f16_exact(float value) {
    union {
        float f;
        uint32_t u;
    } x = {value};
    uint32_t exponent = x.u >> 23 & 255;
    if (exponent < 113 || exponent > 142 || x.u & 0x1fff) return sn_f32_to_f16(value);
    return (uint16_t)((x.u >> 16 & 0x8000) | ((x.u & 0x7fffffff) - (112u << 23)) >> 13);
}

static void pack_half_scales(const sn_quant_group *const rows[SN_LANES], bool offsets, uint8_t *at) {
    uint16_t scales[2 * SN_LANES];
    for (int r = 0; r < SN_LANES; r++) {
        scales[r] = f16_exact(rows[r]->d[0]);
        if (offsets) scales[SN_LANES + r] = f16_exact(rows[r]->m[0]);
    }
    memcpy(at, scales, offsets ? sizeof scales : sizeof scales / 2);
}

static void pack_wide_scales(const sn_quant_group *const rows[SN_LANES], int halves, uint8_t *at) {
    float scales[4 * SN_LANES];
    for (int h = 0; h < halves; h++)
        for (int r = 0; r < SN_LANES; r++) {
            scales[SN_LANES * h + r] = rows[r]->d[h];
            scales[SN_LANES * (halves + h) + r] = rows[r]->m[h];
        }
    memcpy(at, scales, (size_t)halves * 2 * SN_LANES * sizeof *scales);
}

static void pack_table_scales(const sn_quant_group *const rows[SN_LANES], uint8_t *at) {
    uint16_t scales[SN_LANES];
    for (int r = 0; r < SN_LANES; r++) scales[r] = sn_f32_to_bf16(rows[r]->d[0]); /* powers of two: exact */
    memcpy(at, scales, sizeof scales);
}

/* Replaces the numbers of the table by their indices. */
static void table_indices(uint32_t words[8][SN_LANES]) {
    static const uint8_t indices[] = {[0] = 15, [4] = 14, [6] = 13, [8] = 12, [9] = 11, [10] = 10, [11] = 9, [12] = 0,
                                      [13] = 1, [14] = 2, [15] = 3, [16] = 4, [18] = 5, [20] = 6,  [24] = 7};
    uint8_t bytes[8 * SN_LANES * 4];
    memcpy(bytes, words, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = indices[(int8_t)bytes[i] + 12];
    memcpy(words, bytes, sizeof bytes);
}

static void pack_quants(sn_layout layout, const sn_quant_group *const rows[SN_LANES], uint8_t *out) {
    uint32_t words[8][SN_LANES];
    interleave(rows, words);
    if (layout == SN_LAYOUT_Q4_TABLE) table_indices(words);
    if (sn_layout_nibbles(layout)) {
        for (int c = 0; c < 4; c++)
            for (int r = 0; r < SN_LANES; r++) words[c][r] |= words[c + 4][r] << 4;
        memcpy(out, words, SN_Q4_BYTES);
    } else {
        for (int c = 0; c < 8; c++)
            for (int r = 0; r < SN_LANES; r++) words[c][r] ^= 0x80808080; /* q + 128 as a byte */
        memcpy(out, words, SN_Q8_BYTES);
    }
}

/* The scales of the groups of a SUPER block. pack_super writes the head and fills them; lanes from n on are zero. */
typedef int8_t super_scales[SN_SUPER_GROUPS][2][SN_LANES];

static void pack_super(sn_layout layout, sn_dtype dtype, const uint8_t *block, size_t stride, size_t n, uint8_t *out,
                       super_scales scales) {
    uint16_t head[2][SN_LANES] = {{0}};
    memset(scales, 0, sizeof(super_scales));
    for (size_t r = 0; r < n; r++) {
        sn_quant_superblock super;
        sn_quant_superblock_scales(dtype, block + r * stride, &super);
        head[0][r] = super.d;
        head[1][r] = super.m;
        for (int g = 0; g < SN_SUPER_GROUPS; g++) {
            scales[g][0][r] = super.scale[2 * g];
            scales[g][1][r] = sn_layout_fine(layout) ? super.scale[2 * g + 1] : super.offset[2 * g];
        }
    }
    memcpy(out, head, SN_SUPER_HEAD);
}

typedef struct pack_job {
    sn_cpu_weight weight;
    uint8_t *image;
    sn_dtype dtype;
    size_t row_bytes;
    const uint8_t *host;
} pack_job;

static void pack_scales(sn_layout layout, const sn_quant_group *const rows[SN_LANES], uint8_t *out) {
    if (has_half_scales(layout))
        pack_half_scales(rows, sn_layout_offsets(layout), out);
    else if (layout == SN_LAYOUT_Q4_TABLE)
        pack_table_scales(rows, out);
    else
        pack_wide_scales(rows, sn_layout_fine(layout) ? 2 : 1, out);
}

static void pack_quantised(const pack_job *job, size_t first_row, uint8_t *out) {
    static const sn_quant_group zero = {{0}, {0}, {0}};
    const sn_cpu_weight *w = &job->weight;
    sn_quant_group groups[SN_LANES][SN_QUANT_GROUPS_MAX];
    size_t in_block = sn_dtype_block(job->dtype), bytes = sn_dtype_bytes(job->dtype);
    size_t n = sn_min_size(SN_LANES, w->rows - first_row), quants = quant_bytes(w->layout);
    bool super = sn_layout_super(w->layout);
    for (size_t b = 0; b < w->cols / in_block; b++) {
        const sn_quant_group *rows[SN_LANES];
        super_scales scales;
        const uint8_t *block = job->host + first_row * job->row_bytes + b * bytes;
        for (size_t r = 0; r < n; r++) sn_quant_decode(job->dtype, block + r * job->row_bytes, groups[r]);
        if (super) {
            pack_super(w->layout, job->dtype, block, job->row_bytes, n, out, scales);
            out += SN_SUPER_HEAD;
        }
        for (size_t g = 0; g < in_block / SN_QUANT_GROUP; g++) {
            for (size_t r = 0; r < SN_LANES; r++) rows[r] = r < n ? &groups[r][g] : &zero;
            pack_quants(w->layout, rows, out);
            if (super)
                memcpy(out + quants, scales[g], SN_SUPER_SCALES);
            else
                pack_scales(w->layout, rows, out + quants);
            out += super ? quants + SN_SUPER_SCALES : blocks[w->layout].bytes;
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
            const uint8_t *from = job->host + r * job->row_bytes + b * sn_dtype_bytes(SN_F8_E4M3);
            float scale;
            memcpy(&scale, from, sizeof scale);
            scale *= 256;
            memcpy(out + lane * sizeof scale, &scale, sizeof scale);
            for (size_t k = 0; k < SN_F8_K; k++) out[SN_F8_SCALES + k * SN_LANES + lane] = from[sizeof scale + k];
        }
}

static void pack_panel(void *ctx, size_t panel, int worker) {
    (void)worker;
    const pack_job *job = ctx;
    if (sn_layout_quantised(job->weight.layout))
        pack_quantised(job, panel * SN_LANES, job->image + panel * job->weight.panel_bytes);
    else if (job->weight.layout == SN_LAYOUT_F8)
        pack_f8(job, panel);
    else
        pack_float(job, panel);
}

sn_cpu_weight sn_cpu_weight_view(const sn_weight *weight) {
    sn_cpu_weight w = {.rows = weight->rows, .cols = weight->cols, .data = weight->device};
    layout_of(weight->dtype, &w.layout); /* succeeds: the weight was packed */
    w.n_blocks = w.cols / blocks[w.layout].k;
    w.panel_bytes = w.n_blocks * blocks[w.layout].bytes;
    w.n_panels = (w.rows + SN_LANES - 1) / SN_LANES;
    return w;
}

sn_status sn_cpu_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err) {
    (void)d;
    sn_layout layout;
    if (!layout_of(dtype, &layout))
        return sn_fail(err, SN_REFUSED, "a matrix of type %s cannot be multiplied with: use a model with another type",
                       sn_dtype_name(dtype));
    size_t row_bytes, padded, panel_bytes;
    sn_status status = sn_dtype_row_bytes(dtype, cols, &row_bytes, err);
    if (status) return status;
    if (!sn_mul(cols / blocks[layout].k, blocks[layout].bytes, &panel_bytes) || !sn_add(rows, SN_LANES - 1, &padded) ||
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
    job.weight = sn_cpu_weight_view(&(sn_weight){dtype, rows, cols, bytes, image});
    sn_pool_run(((sn_cpu *)d)->pool, job.weight.n_panels, pack_panel, &job);
    return SN_OK;
}

static float read_float(sn_layout layout, const uint8_t *at, size_t i) {
    float f;
    uint16_t h;
    if (layout == SN_LAYOUT_F32) {
        memcpy(&f, at + i * 4, 4);
        return f;
    }
    memcpy(&h, at + i * 2, 2);
    return layout == SN_LAYOUT_F16 ? sn_f16_to_f32(h) : sn_bf16_to_f32(h);
}

/* Scale and offset of half h of a group; `scales` points to the group's scales, `head` to the head of its block. */
static void read_scales(sn_layout layout, const uint8_t *head, const uint8_t *scales, size_t lane, size_t h, float *d,
                        float *m) {
    size_t half = sn_layout_fine(layout) ? h : 0, halves = sn_layout_fine(layout) ? 2 : 1;
    *m = 0;
    if (sn_layout_super(layout)) {
        const int8_t *own = (const int8_t *)scales;
        *d = read_float(SN_LAYOUT_F16, head, lane) * (float)own[SN_LANES * half + lane];
        if (sn_layout_offsets(layout))
            *m = read_float(SN_LAYOUT_F16, head, SN_LANES + lane) * (float)own[SN_LANES + lane];
    } else if (has_half_scales(layout)) {
        *d = read_float(SN_LAYOUT_F16, scales, lane);
        if (layout == SN_LAYOUT_Q4_SIGNED) *m = -8 * *d;
        if (sn_layout_offsets(layout)) *m = read_float(SN_LAYOUT_F16, scales, SN_LANES + lane);
    } else if (layout == SN_LAYOUT_Q4_TABLE) {
        *d = read_float(SN_LAYOUT_BF16, scales, lane);
    } else {
        *d = read_float(SN_LAYOUT_F32, scales, SN_LANES * half + lane);
        *m = read_float(SN_LAYOUT_F32, scales, SN_LANES * (halves + half) + lane);
    }
}

/* The 32 numbers of one lane of group `g` of the panel at `at`. */
static void unpack_group(const sn_cpu_weight *w, const uint8_t *at, size_t g, size_t lane, float *out) {
    size_t in_block = blocks[w->layout].k / SN_QUANT_GROUP, quants = quant_bytes(w->layout);
    const uint8_t *block = at + g / in_block * blocks[w->layout].bytes, *q = block;
    bool q4 = sn_layout_nibbles(w->layout);
    if (sn_layout_super(w->layout)) q += SN_SUPER_HEAD + g % in_block * (quants + SN_SUPER_SCALES);
    const uint8_t *scales = q + quants;
    for (size_t h = 0; h < 2; h++) {
        float d, m;
        read_scales(w->layout, block, scales, lane, h, &d, &m);
        const uint8_t *from = q + (q4 ? 0 : 256 * h) + lane * 4;
        for (size_t i = 0; i < 16; i++) {
            int byte = from[i / 4 * 64 + i % 4], number = q4 ? byte >> 4 * h & 15 : byte - 128;
            out[16 * h + i] = d * (float)(w->layout == SN_LAYOUT_Q4_TABLE ? sn_q4_table[number] : number) + m;
        }
    }
}

void sn_cpu_weight_dequantize_row(const sn_cpu_weight *w, size_t row, float *out) {
    assert(row < w->rows);
    const uint8_t *at = w->data + row / SN_LANES * w->panel_bytes;
    size_t lane = row % SN_LANES, offset, step;
    if (w->layout == SN_LAYOUT_F8) {
        for (size_t k = 0; k < w->cols; k++) {
            const uint8_t *block = at + k / SN_F8_K * (SN_F8_SCALES + SN_F8_K * SN_LANES);
            uint8_t x = block[SN_F8_SCALES + k % SN_F8_K * SN_LANES + lane];
            out[k] = sn_f16_to_f32(sn_f8_to_f16_256th(x)) * read_float(SN_LAYOUT_F32, block, lane);
        }
        return;
    }
    if (!sn_layout_quantised(w->layout)) {
        sn_cpu_float_panel(w, row / SN_LANES, &offset, &step);
        for (size_t k = 0; k < w->cols; k++) out[k] = read_float(w->layout, w->data + offset + k * step, lane);
        return;
    }
    for (size_t g = 0; g < w->cols / SN_QUANT_GROUP; g++, out += SN_QUANT_GROUP) unpack_group(w, at, g, lane, out);
}
