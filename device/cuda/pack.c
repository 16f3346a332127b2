/* Packing of weights: from the layout of the model file to that of layout.h. */
#include "base/float4.h"
#include "base/mem.h"
#include "device/cuda/cuda_private.h"
#include "device/quant.h"

#include <limits.h>
#include <string.h>

static bool layout_of(sn_dtype dtype, sn_cuda_layout *out) {
    static const int8_t layouts[SN_DTYPE_COUNT] = {
        /* the layout + 1; 0: none */
        [SN_F32] = SN_CUDA_F32 + 1,    [SN_F16] = SN_CUDA_F16 + 1,        [SN_BF16] = SN_CUDA_BF16 + 1,
        [SN_F8_E4M3] = SN_CUDA_F8 + 1, [SN_F8_E5M2] = SN_CUDA_F8 + 1,     [SN_NF4] = SN_CUDA_FLOAT4 + 1,
        [SN_FP4] = SN_CUDA_FLOAT4 + 1, [SN_NF4_256] = SN_CUDA_FLOAT4 + 1, [SN_FP4_256] = SN_CUDA_FLOAT4 + 1,
#define X(type, ...) [SN_##type] = SN_CUDA_##type + 1,
        SN_ALL_QUANT_TYPES(X)
#undef X
    };
    if ((unsigned)dtype >= SN_DTYPE_COUNT || !layouts[dtype]) return false;
    *out = (sn_cuda_layout)(layouts[dtype] - 1);
    return true;
}

/* The caller has checked that nothing overflows. */
static sn_cuda_planes planes_of(sn_dtype dtype, size_t rows, size_t cols) {
    enum { ALIGNMENT = 16 };
    const sn_quant_form *form = sn_quant_form_of(dtype);
    size_t stride = sn_cuda_pad(cols, 8), groups = rows * (cols / SN_QUANT_GROUP);
    if (sn_is_f8(dtype)) {
        size_t scales = rows * cols;
        return (sn_cuda_planes){cols, 0, scales, 0, scales + scales / SN_CUDA_F8_BLOCK * sizeof(float)};
    }
    if (sn_float4_values(dtype)) {
        size_t scales = rows * cols / 2, supers = scales + rows * (cols / SN_FLOAT4_PART) * sizeof(float);
        return (sn_cuda_planes){cols, 0, scales, supers, supers + sizeof sn_nf4_values};
    }
    if (!form) return (sn_cuda_planes){stride, 0, 0, 0, rows * stride * sn_dtype_bytes(dtype)};
    sn_cuda_planes p = {.stride = cols};
    bool bytes = form->low_bits == 8;
    p.plane1 = sn_cuda_pad(groups * (bytes ? 16 : 4 * (size_t)form->low_bits), ALIGNMENT);
    p.scales = sn_cuda_pad(p.plane1 + groups * (bytes ? 16 : 4 * (size_t)form->high_bits), ALIGNMENT);
    p.supers = sn_cuda_pad(p.scales + groups * (size_t)form->scale_bytes, ALIGNMENT);
    p.bytes = p.supers + groups / (size_t)form->groups * (size_t)form->super_bytes;
    return p;
}

sn_status sn_cuda_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes,
                              sn_err *err) {
    (void)d;
    sn_cuda_layout layout = SN_CUDA_F32;
    size_t row_bytes, widest;
    *bytes = 0;
    if (!layout_of(dtype, &layout))
        return sn_fail(
            err, SN_REFUSED,
            "a matrix of type %s cannot be multiplied with on a GPU: give its block to a CPU (--device cpu), or use a "
            "model with another type",
            sn_dtype_name(dtype));
    sn_status status = sn_dtype_row_bytes(dtype, cols, &row_bytes, err);
    if (status) return status;
    /* No layout takes more than four bytes per element, 64 bytes in addition, and the padding of a row. */
    if (rows > INT_MAX - 8 || cols > INT_MAX - 8 || !sn_mul(rows, (cols + 8) * 4, &widest) || widest > SIZE_MAX / 2)
        return sn_fail(err, SN_REFUSED, "a matrix of %zu rows of %zu is too large", rows, cols);
    *bytes = planes_of(dtype, rows, cols).bytes;
    return SN_OK;
}

sn_cuda_matrix sn_cuda_matrix_of(const sn_weight *weight) {
    sn_cuda_layout layout = SN_CUDA_F32;
    layout_of(weight->dtype, &layout);
    sn_cuda_planes p = planes_of(weight->dtype, weight->rows, weight->cols);
    const char *at = weight->device;
    return (sn_cuda_matrix){.layout = layout,
                            .rows = (int)weight->rows,
                            .cols = (int)weight->cols,
                            .stride = (int)p.stride,
                            .f8_shift = weight->dtype == SN_F8_E5M2 ? 8 : 7,
                            .plane = {at, at + p.plane1},
                            .scales = at + p.scales,
                            .supers = at + p.supers};
}

static void pack_float(size_t size, size_t rows, size_t cols, size_t stride, const uint8_t *host, uint8_t *image) {
    for (size_t r = 0; r < rows; r++, host += cols * size, image += stride * size) {
        memcpy(image, host, cols * size);
        memset(image + cols * size, 0, (stride - cols) * size);
    }
}

static void pack_f8(sn_dtype dtype, size_t blocks, const uint8_t *host, uint8_t *elements, float *scales) {
    for (; blocks; blocks--, elements += SN_CUDA_F8_BLOCK, host += sizeof(float) + SN_CUDA_F8_BLOCK) {
        float scale;
        memcpy(&scale, host, sizeof scale);
        *scales++ = sn_f8_factor(dtype) * scale;
        memcpy(elements, host + sizeof scale, SN_CUDA_F8_BLOCK);
    }
}

/* Scales that are codes become float32. */
static void pack_float4(sn_dtype dtype, const sn_cuda_planes *p, size_t blocks, const uint8_t *host, uint8_t *image) {
    float *scales = (float *)(image + p->scales);
    memcpy(image + p->supers, sn_float4_values(dtype), sizeof sn_nf4_values);
    for (; blocks; blocks--, host += sn_dtype_bytes(dtype))
        for (size_t part = 0; part < sn_dtype_block(dtype) / SN_FLOAT4_PART; part++, image += SN_FLOAT4_PART / 2) {
            *scales++ = sn_float4_scale(dtype, host, part);
            memcpy(image, sn_float4_codes(dtype, host, part), SN_FLOAT4_PART / 2);
        }
}

/* Bit 4 n + e is the sign of weight 8 e + n, so that the signs of an entry are bits of the codes of its weights. */
static void transpose_signs(uint8_t *at) {
    uint8_t signs[4];
    memcpy(signs, at, sizeof signs);
    memset(at, 0, sizeof signs);
    for (int w = 0; w < SN_QUANT_GROUP; w++) {
        int to = 4 * (w % 8) + w / 8;
        at[to / 8] = (uint8_t)(at[to / 8] | (signs[w / 8] >> w % 8 & 1) << to % 8);
    }
}

/* Writes the codes of group number g to the planes, which are zero. */
static void pack_group(const sn_quant_form *form, const sn_cuda_planes *p, const uint8_t *codes, size_t g,
                       uint8_t *image) {
    uint8_t *low = image + 4 * (size_t)form->low_bits * g, *high = image + p->plane1 + 4 * (size_t)form->high_bits * g;
    if (form->low_bits == 8) {
        memcpy(image + 16 * g, codes, 16);
        memcpy(image + p->plane1 + 16 * g, codes + 16, 16);
        return;
    }
    if (form->entry) {
        memcpy(low, codes, 4 * (size_t)form->low_bits);
        if (form->sign_bits) transpose_signs(low + 4 * (form->low_bits - 1));
        return;
    }
    for (int w = 0; w < SN_QUANT_GROUP; w++) {
        int h = w / 16, i = w % 16 / 4, k = w % 4, code = codes[w], part = code >> form->low_bits;
        if (form->low_bits == 4)
            low[4 * i + k] = (uint8_t)(low[4 * i + k] | (code & 15) << 4 * h);
        else if (form->low_bits == 1)
            low[k] = (uint8_t)(low[k] | (code & 1) << (4 * h + i));
        else
            low[4 * h + k] = (uint8_t)(low[4 * h + k] | (code & 3) << 2 * i);
        if (form->high_bits == 1) high[k] = (uint8_t)(high[k] | part << (4 * h + i));
        if (form->high_bits == 2) high[4 * h + k] = (uint8_t)(high[4 * h + k] | part << 2 * i);
    }
}

static void pack_quantised(sn_dtype dtype, const sn_cuda_planes *p, size_t n_blocks, const uint8_t *host,
                           uint8_t *image) {
    const sn_quant_form *form = sn_quant_form_of(dtype);
    sn_quant_parts parts;
    size_t per_block = sn_dtype_block(dtype) / SN_QUANT_GROUP, scale_bytes = (size_t)form->scale_bytes,
           super_bytes = (size_t)form->super_bytes;
    for (size_t b = 0; b < n_blocks; b++, host += sn_dtype_bytes(dtype)) {
        sn_quant_split(dtype, host, &parts);
        for (size_t i = 0; i < per_block; i++) {
            size_t g = b * per_block + i;
            pack_group(form, p, parts.codes + SN_QUANT_GROUP * i, g, image);
            memcpy(image + p->scales + g * scale_bytes, parts.scales[i], scale_bytes);
        }
        memcpy(image + p->supers + b * super_bytes, parts.super, super_bytes);
    }
}

sn_status sn_cuda_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                              sn_err *err) {
    size_t bytes;
    sn_status status = sn_cuda_weight_size(d, dtype, rows, cols, &bytes, err);
    if (status || !bytes) return status;
    sn_cuda_planes p = planes_of(dtype, rows, cols);
    if (sn_is_f8(dtype)) {
        pack_f8(dtype, rows * (cols / SN_CUDA_F8_BLOCK), host, image, (float *)((uint8_t *)image + p.scales));
    } else if (sn_float4_values(dtype)) {
        pack_float4(dtype, &p, rows * (cols / sn_dtype_block(dtype)), host, image);
    } else if (!sn_dtype_quantised(dtype)) {
        pack_float(sn_dtype_bytes(dtype), rows, cols, p.stride, host, image);
    } else {
        memset(image, 0, bytes);
        pack_quantised(dtype, &p, rows * (cols / sn_dtype_block(dtype)), host, image);
    }
    return SN_OK;
}
