/* The layout of weights on an XPU, as the kernels of linear.cl read it, and the packing of weights into it.
 *
 * The blocks of the model file have 18, 34 or 210 bytes: the items of a group would read unaligned bytes at scattered
 * places. Therefore a matrix is split into planes, each row after row, which are read contiguously:
 *
 * - elements: floats as they are; of quantised types the low bits of the codes, in words that put_bits describes
 * - highs: the high bits of the codes, alike
 * - scales, of each 32 elements, and supers, of each block of groups, as device/quant.h describes them
 *
 * Of F8, NF4 and FP4: elements of 8 and 4 bits, scales of each 128 and 64, which are float32; and of NF4 and FP4, as
 * supers, the numbers of the codes. In codebook types and TQ1_0 elements are the words of device/quant.h. */
#include "device/xpu/xpu_private.h"

#include "base/float4.h"
#include "base/mem.h"
#include "device/quant.h"

#include <string.h>

enum { ALIGNMENT = 64, GROUP = SN_QUANT_GROUP, F8_BLOCK = 128 };

static bool form_of(sn_dtype dtype, sn_xpu_form *out) {
    static const int8_t forms[SN_DTYPE_COUNT] = {/* the form + 1; 0: none */
                                                 [SN_F32] = SN_XPU_FORM_F32 + 1,
                                                 [SN_F16] = SN_XPU_FORM_F16 + 1,
                                                 [SN_BF16] = SN_XPU_FORM_BF16 + 1,
                                                 [SN_F8_E4M3] = SN_XPU_FORM_F8_E4M3 + 1,
                                                 [SN_F8_E5M2] = SN_XPU_FORM_F8_E5M2 + 1,
                                                 [SN_NF4] = SN_XPU_FORM_FLOAT4 + 1,
                                                 [SN_FP4] = SN_XPU_FORM_FLOAT4 + 1,
                                                 [SN_NF4_256] = SN_XPU_FORM_FLOAT4 + 1,
                                                 [SN_FP4_256] = SN_XPU_FORM_FLOAT4 + 1,
#define X(type, ...) [SN_##type] = SN_XPU_FORM_##type + 1,
                                                 SN_ALL_QUANT_TYPES(X)
#undef X
    };
    if ((unsigned)dtype >= SN_DTYPE_COUNT || !forms[dtype]) return false;
    *out = (sn_xpu_form)(forms[dtype] - 1);
    return true;
}

/* Bytes of the planes of a matrix: elements, highs, scales and supers. The caller has checked that nothing overflows.
 */
static void plane_bytes(sn_dtype dtype, size_t rows, size_t cols, size_t out[4]) {
    const sn_quant_form *f = sn_quant_form_of(dtype);
    const size_t steps = rows * ((cols + 7) / 8), groups = rows * (cols / GROUP);
    memset(out, 0, 4 * sizeof *out);
    if (f) {
        out[0] = steps * (size_t)f->low_bits;
        out[1] = steps * (size_t)f->high_bits;
        out[2] = groups * (size_t)f->scale_bytes;
        out[3] = groups / (size_t)f->groups * (size_t)f->super_bytes;
    } else if (sn_is_f8(dtype)) {
        out[0] = steps * 8;
        out[2] = rows * (cols / F8_BLOCK) * sizeof(float);
    } else if (sn_float4_values(dtype)) {
        out[0] = steps * 4;
        out[2] = rows * (cols / SN_FLOAT4_PART) * sizeof(float);
        out[3] = sizeof sn_nf4_values;
    } else {
        out[0] = steps * 8 * sn_dtype_bytes(dtype);
    }
}

sn_status sn_xpu_layout_of(sn_dtype dtype, size_t rows, size_t cols, sn_xpu_layout *out, sn_err *err) {
    size_t row_bytes, all, planes[4];
    if (!form_of(dtype, &out->form))
        return sn_fail(err, SN_REFUSED,
                       "a matrix of %s cannot be used on an xpu: give its block to a CPU (--device cpu)",
                       sn_dtype_name(dtype));
    sn_status status = sn_dtype_row_bytes(dtype, cols, &row_bytes, err);
    if (status) return status;
    /* No plane has more than 4 bytes per element; the kernels count rows and columns in 32 bits. */
    if (rows > INT32_MAX || cols > INT32_MAX - 8 || !sn_mul(rows, cols + 8, &all) || all > SIZE_MAX / 16)
        return sn_fail(err, SN_REFUSED, "a matrix of %zu x %zu elements is too large for an xpu", rows, cols);
    plane_bytes(dtype, rows, cols, planes);
    out->steps = (cols + 7) / 8;
    out->highs = sn_round_up(planes[0], ALIGNMENT);
    out->scales = sn_round_up(out->highs + planes[1], ALIGNMENT);
    out->supers = sn_round_up(out->scales + planes[2], ALIGNMENT);
    out->bytes = sn_round_up(out->supers + planes[3], ALIGNMENT);
    return SN_OK;
}

sn_status sn_xpu_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err) {
    (void)d;
    sn_xpu_layout layout = {.bytes = 0};
    sn_status status = sn_xpu_layout_of(dtype, rows, cols, &layout, err);
    if (!status) *bytes = layout.bytes;
    return status;
}

/* Writes `bits` of each of 32 codes, from bit `shift` on. Each word of 32 bits takes 32 / bits codes: code e lies in
 * byte e % 4, so that one shift and one mask give four codes, a byte each, as instructions for four products want them.
 */
static void put_bits(const uint8_t *codes, int shift, int bits, uint8_t *out) {
    memset(out, 0, (size_t)(GROUP * bits / 8));
    for (int i = 0; i < GROUP && bits; i++) {
        int e = i % (32 / bits), at = i / (32 / bits) * 4 + e % 4;
        out[at] = (uint8_t)(out[at] | (codes[i] >> shift & ((1 << bits) - 1)) << e / 4 * bits);
    }
}

static void pack_quantised(sn_dtype dtype, size_t n_blocks, const uint8_t *block, const sn_xpu_layout *layout,
                           uint8_t *image) {
    const sn_quant_form *f = sn_quant_form_of(dtype);
    sn_quant_parts parts;
    size_t n = sn_dtype_block(dtype) / GROUP, scale_bytes = (size_t)f->scale_bytes;
    uint8_t *low = image, *high = image + layout->highs, *scale = image + layout->scales,
            *super = image + layout->supers;
    for (size_t b = 0; b < n_blocks; b++, block += sn_dtype_bytes(dtype)) {
        sn_quant_split(dtype, block, &parts);
        for (size_t g = 0; g < n; g++) {
            if (f->entry)
                memcpy(low, parts.codes + GROUP * g, 4 * (size_t)f->low_bits);
            else
                put_bits(parts.codes + GROUP * g, 0, f->low_bits, low);
            put_bits(parts.codes + GROUP * g, f->low_bits, f->high_bits, high);
            memcpy(scale, parts.scales[g], scale_bytes);
            low += GROUP * f->low_bits / 8;
            high += GROUP * f->high_bits / 8;
            scale += scale_bytes;
        }
        memcpy(super, parts.super, (size_t)f->super_bytes);
        super += f->super_bytes;
    }
}

static void pack_f8(size_t n_blocks, const uint8_t *block, const sn_xpu_layout *layout, uint8_t *image) {
    uint8_t *scale = image + layout->scales;
    for (; n_blocks; n_blocks--, image += F8_BLOCK, scale += sizeof(float), block += sizeof(float) + F8_BLOCK) {
        memcpy(scale, block, sizeof(float));
        memcpy(image, block + sizeof(float), F8_BLOCK);
    }
}

/* Scales that are codes become float32. */
static void pack_float4(sn_dtype dtype, size_t n_blocks, const uint8_t *block, const sn_xpu_layout *layout,
                        uint8_t *image) {
    float *scale = (float *)(image + layout->scales);
    memcpy(image + layout->supers, sn_float4_values(dtype), sizeof sn_nf4_values);
    for (; n_blocks; n_blocks--, block += sn_dtype_bytes(dtype))
        for (size_t part = 0; part < sn_dtype_block(dtype) / SN_FLOAT4_PART; part++, image += SN_FLOAT4_PART / 2) {
            *scale++ = sn_float4_scale(dtype, block, part);
            memcpy(image, sn_float4_codes(dtype, block, part), SN_FLOAT4_PART / 2);
        }
}

sn_status sn_xpu_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err) {
    sn_xpu_layout layout;
    sn_status status = sn_xpu_layout_of(dtype, rows, cols, &layout, err);
    if (!status) status = sn_xpu_load_linear(sn_xpu_of(d), layout.form, err); /* now, not at the first token */
    if (!status) status = sn_xpu_load_dot(sn_xpu_of(d), layout.form, err);
    if (status) return status;
    memset(image, 0, layout.bytes);
    size_t size = sn_dtype_bytes(dtype), n_blocks = rows * (cols / sn_dtype_block(dtype));
    if (sn_dtype_quantised(dtype))
        pack_quantised(dtype, n_blocks, host, &layout, image);
    else if (sn_is_f8(dtype))
        pack_f8(n_blocks, host, &layout, image);
    else if (sn_float4_values(dtype))
        pack_float4(dtype, n_blocks, host, &layout, image);
    else
        for (size_t r = 0; r < rows && cols; r++)
            memcpy((uint8_t *)image + r * layout.steps * 8 * size, (const uint8_t *)host + r * cols * size,
                   cols * size);
    return SN_OK;
}
