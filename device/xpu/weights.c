/* The layout of weights on an XPU, as the kernels of linear.cl read it, and the packing of weights into it.
 *
 * The blocks of the model file have 18, 34 or 210 bytes: the items of a group would read unaligned bytes at scattered
 * places. Therefore a matrix is split into planes, each row after row, which are read contiguously:
 *
 * - elements: floats as they are; else 8-bit integers, or two nibbles per byte, the even element in the low nibble
 * - scales, for each 32 elements: form D: a half d; H: halves d and m; K: a signed scale byte and an offset byte; E: an
 *   exponent byte; S: as K, for each 16 elements
 * - supers, in the forms K and S, for each 256 elements: halves d and dmin. The scale is d * scale, the offset is
 *   -(dmin * offset)
 *
 * Element = scale * integer + offset: the same numbers as those of device/quant.c. Types of 4 and 8 bits take as much
 * memory as in the file; types of 2, 3, 5 and 6 bits take 8 bits. */
#include "device/xpu/xpu_private.h"

#include "base/mem.h"
#include "device/quant.h"

#include <string.h>

enum { ALIGNMENT = 64, GROUP = SN_QUANT_GROUP, SUPER = 256 };

static const struct form {
    int bits;
    int group_bytes; /* bytes of the scales of 32 elements */
    bool supers;
} forms[] = {
    [SN_XPU_FORM_f32] = {32, 0, false}, [SN_XPU_FORM_f16] = {16, 0, false}, [SN_XPU_FORM_bf16] = {16, 0, false},
    [SN_XPU_FORM_q4z] = {4, 2, false},  [SN_XPU_FORM_q4h] = {4, 4, false},  [SN_XPU_FORM_q4k] = {4, 2, true},
    [SN_XPU_FORM_iq4d] = {4, 2, false}, [SN_XPU_FORM_iq4k] = {4, 2, true},  [SN_XPU_FORM_mxfp4] = {4, 1, false},
    [SN_XPU_FORM_q8d] = {8, 2, false},  [SN_XPU_FORM_q8h] = {8, 4, false},  [SN_XPU_FORM_q8k] = {8, 2, true},
    [SN_XPU_FORM_q8s] = {8, 4, true},
};

static bool form_of(sn_dtype dtype, sn_xpu_form *out) {
    static const int8_t table[SN_DTYPE_COUNT] = {
        /* the form + 1; 0: none */
        [SN_F32] = SN_XPU_FORM_f32 + 1,     [SN_F16] = SN_XPU_FORM_f16 + 1,     [SN_BF16] = SN_XPU_FORM_bf16 + 1,
        [SN_Q4_0] = SN_XPU_FORM_q4z + 1,    [SN_Q4_1] = SN_XPU_FORM_q4h + 1,    [SN_Q4_K] = SN_XPU_FORM_q4k + 1,
        [SN_IQ4_NL] = SN_XPU_FORM_iq4d + 1, [SN_IQ4_XS] = SN_XPU_FORM_iq4k + 1, [SN_MXFP4] = SN_XPU_FORM_mxfp4 + 1,
        [SN_Q5_0] = SN_XPU_FORM_q8d + 1,    [SN_Q8_0] = SN_XPU_FORM_q8d + 1,    [SN_Q5_1] = SN_XPU_FORM_q8h + 1,
        [SN_Q5_K] = SN_XPU_FORM_q8k + 1,    [SN_Q2_K] = SN_XPU_FORM_q8s + 1,    [SN_Q3_K] = SN_XPU_FORM_q8s + 1,
        [SN_Q6_K] = SN_XPU_FORM_q8s + 1,
    };
    if ((unsigned)dtype >= SN_DTYPE_COUNT || !table[dtype]) return false;
    *out = (sn_xpu_form)(table[dtype] - 1);
    return true;
}

sn_status sn_xpu_layout_of(sn_dtype dtype, size_t rows, size_t cols, sn_xpu_layout *out, sn_err *err) {
    size_t row_bytes, all;
    if (!form_of(dtype, &out->form))
        return sn_fail(err, SN_REFUSED,
                       "a matrix of %s cannot be used on an xpu: give its block to a CPU (--device cpu)",
                       sn_dtype_name(dtype));
    sn_status status = sn_dtype_row_bytes(dtype, cols, &row_bytes, err);
    if (status) return status;
    /* No plane has more than 4 bytes per element; the kernels count rows and columns in 32 bits. */
    if (rows > INT32_MAX || cols > INT32_MAX - 8 || !sn_mul(rows, cols + 8, &all) || all > SIZE_MAX / 16)
        return sn_fail(err, SN_REFUSED, "a matrix of %zu x %zu elements is too large for an xpu", rows, cols);
    const struct form *f = &forms[out->form];
    out->steps = (cols + 7) / 8;
    out->scales = sn_round_up(rows * out->steps * (size_t)f->bits, ALIGNMENT);
    out->supers = sn_round_up(out->scales + rows * (cols / GROUP) * (size_t)f->group_bytes, ALIGNMENT);
    out->bytes = sn_round_up(out->supers + (f->supers ? rows * (cols / SUPER) * 4 : 0), ALIGNMENT);
    return SN_OK;
}

sn_status sn_xpu_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err) {
    (void)d;
    sn_xpu_layout layout = {.bytes = 0};
    sn_status status = sn_xpu_layout_of(dtype, rows, cols, &layout, err);
    if (!status) *bytes = layout.bytes;
    return status;
}

/* -- one block of the file */

static uint8_t nibble_of(const uint8_t *packed, int i) { return i < 16 ? packed[i] & 15 : packed[i - 16] >> 4; }

/* The 16 bytes with the nibbles of group g, in the order of sn_quant_decode: low nibbles first. For types whose nibbles
 * are not the integers themselves. */
static const uint8_t *table_nibbles(sn_dtype dtype, const uint8_t *block, int g) {
    return dtype == SN_IQ4_XS ? block + 8 + 16 * g : dtype == SN_MXFP4 ? block + 1 : block + 2;
}

static void put_elements(sn_dtype dtype, int bits, const uint8_t *block, int g, const sn_quant_group *group,
                         uint8_t *out) {
    if (bits == 8) {
        memcpy(out, group->q, GROUP);
        return;
    }
    bool direct = dtype == SN_Q4_0 || dtype == SN_Q4_1 || dtype == SN_Q4_K; /* decoded as 0..15 */
    const uint8_t *packed = table_nibbles(dtype, block, g);
    for (int i = 0; i < GROUP; i += 2) {
        uint8_t low = direct ? (uint8_t)group->q[i] : nibble_of(packed, i);
        uint8_t high = direct ? (uint8_t)group->q[i + 1] : nibble_of(packed, i + 1);
        out[i / 2] = (uint8_t)(low | high << 4);
    }
}

/* The scale byte and the offset byte of the forms K and S, for half h of group g. Source: GGUF's quantisation formats.
 */
static void put_k_scale(sn_dtype dtype, const uint8_t *b, int g, int h, uint8_t out[2]) {
    int s = 2 * g + h;
    out[1] = 0;
    switch (dtype) {
    case SN_Q4_K:
    case SN_Q5_K:
        b += 4;
        out[0] = (uint8_t)(g < 4 ? b[g] & 63 : (b[g + 4] & 15) | b[g - 4] >> 6 << 4);
        out[1] = (uint8_t)(g < 4 ? b[g + 4] & 63 : b[g + 4] >> 4 | b[g] >> 6 << 4);
        break;
    case SN_IQ4_XS:
        out[0] = (uint8_t)(((b[4 + g / 2] >> 4 * (g % 2) & 15) | ((b[2] | b[3] << 8) >> 2 * g & 3) << 4) - 32);
        break;
    case SN_Q2_K:
        out[0] = b[s] & 15;
        out[1] = b[s] >> 4;
        break;
    case SN_Q3_K:
        b += 96;
        out[0] = (uint8_t)(((s < 8 ? b[s] & 15 : b[s - 8] >> 4) | (b[8 + s % 4] >> 2 * (s / 4) & 3) << 4) - 32);
        break;
    default:
        out[0] = b[192 + s];
        break; /* Q6_K */
    }
}

static void put_scales(sn_dtype dtype, sn_xpu_form form, const uint8_t *block, int g, uint8_t *out) {
    switch (form) {
    case SN_XPU_FORM_q4z:
    case SN_XPU_FORM_iq4d:
    case SN_XPU_FORM_q8d:
        memcpy(out, block, 2);
        break;
    case SN_XPU_FORM_q4h:
    case SN_XPU_FORM_q8h:
        memcpy(out, block, 4);
        break;
    case SN_XPU_FORM_mxfp4:
        out[0] = block[0];
        break;
    case SN_XPU_FORM_q8s:
        put_k_scale(dtype, block, g, 1, out + 2); /* fallthrough */
    default:
        put_k_scale(dtype, block, g, 0, out);
        break;
    }
}

/* The halves d and dmin of a superblock. */
static void put_super(sn_dtype dtype, const uint8_t *block, uint8_t out[4]) {
    int d = dtype == SN_Q2_K ? 80 : dtype == SN_Q3_K ? 108 : dtype == SN_Q6_K ? 208 : 0;
    bool offset = dtype == SN_Q2_K || dtype == SN_Q4_K || dtype == SN_Q5_K;
    memcpy(out, block + d, 2);
    if (offset)
        memcpy(out + 2, block + d + 2, 2);
    else
        memset(out + 2, 0, 2);
}

/* -- the whole matrix */

static void pack_quantised(sn_dtype dtype, size_t rows, size_t cols, const uint8_t *block, const sn_xpu_layout *layout,
                           uint8_t *image) {
    const struct form *f = &forms[layout->form];
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    size_t elements = sn_dtype_block(dtype), bytes = sn_dtype_bytes(dtype), n = rows * (cols / elements);
    uint8_t *element = image, *scale = image + layout->scales, *super = image + layout->supers;
    for (size_t i = 0; i < n; i++, block += bytes) {
        sn_quant_decode(dtype, block, groups);
        for (int g = 0; g < (int)(elements / GROUP); g++) {
            put_elements(dtype, f->bits, block, g, &groups[g], element);
            put_scales(dtype, layout->form, block, g, scale);
            element += GROUP * f->bits / 8;
            scale += f->group_bytes;
        }
        if (f->supers) put_super(dtype, block, super + 4 * i);
    }
}

sn_status sn_xpu_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err) {
    sn_xpu_layout layout;
    sn_status status = sn_xpu_layout_of(dtype, rows, cols, &layout, err);
    if (!status) status = sn_xpu_load_linear(sn_xpu_of(d), layout.form, err); /* now, not at the first token */
    if (status) return status;
    memset(image, 0, layout.bytes);
    if (sn_dtype_quantised(dtype)) {
        pack_quantised(dtype, rows, cols, host, &layout, image);
        return SN_OK;
    }
    size_t size = (size_t)forms[layout.form].bits / 8;
    for (size_t r = 0; r < rows && cols; r++)
        memcpy((uint8_t *)image + r * layout.steps * 8 * size, (const uint8_t *)host + r * cols * size, cols * size);
    return SN_OK;
}
