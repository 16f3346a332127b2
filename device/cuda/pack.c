/* Packing of weights: from the layout of the model file to that of layout.h. */
#include "base/mem.h"
#include "device/cuda/cuda_private.h"
#include "device/quant.h"

#include <limits.h>
#include <string.h>

static bool layout_of(sn_dtype dtype, sn_cuda_layout *out) {
    switch (dtype) {
    case SN_F32:
        *out = SN_CUDA_F32;
        return true;
    case SN_F16:
        *out = SN_CUDA_F16;
        return true;
    case SN_BF16:
        *out = SN_CUDA_BF16;
        return true;
    case SN_Q4_0:
    case SN_Q4_1:
        *out = SN_CUDA_Q4_HALF;
        return true;
    case SN_Q4_K:
        *out = SN_CUDA_Q4_SUPER;
        return true;
    case SN_Q8_0:
    case SN_Q5_0:
    case SN_Q5_1:
    case SN_IQ4_NL:
        *out = SN_CUDA_Q8_HALF;
        return true;
    case SN_Q2_K:
    case SN_Q3_K:
    case SN_Q5_K:
    case SN_Q6_K:
    case SN_IQ4_XS:
    case SN_MXFP4:
        *out = SN_CUDA_Q8_FINE;
        return true;
    default:
        return false;
    }
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
    *bytes = sn_cuda_planes_of(layout, rows, cols).bytes;
    return SN_OK;
}

sn_cuda_matrix sn_cuda_matrix_of(const sn_weight *weight) {
    sn_cuda_layout layout = SN_CUDA_F32;
    layout_of(weight->dtype, &layout);
    sn_cuda_planes p = sn_cuda_planes_of(layout, weight->rows, weight->cols);
    const char *at = weight->device;
    return (sn_cuda_matrix){layout,        (int)weight->rows, (int)weight->cols, (int)p.stride, {at, at + p.plane1},
                            at + p.scales, at + p.supers};
}

static void pack_float(size_t size, size_t rows, size_t cols, size_t stride, const uint8_t *host, uint8_t *image) {
    for (size_t r = 0; r < rows; r++, host += cols * size, image += stride * size) {
        memcpy(image, host, cols * size);
        memset(image + cols * size, 0, (stride - cols) * size);
    }
}

/* Exact: the values were halves in the file, or are products of a half with a power of two. */
static void put_f16_pair(uint8_t *at, float first, float second) {
    uint16_t halves[2] = {sn_f32_to_f16(first), sn_f32_to_f16(second)};
    memcpy(at, halves, sizeof halves);
}

/* Packs group number g of the matrix. */
static void pack_group(sn_cuda_layout layout, const sn_cuda_planes *p, const sn_quant_group *group, size_t g,
                       uint8_t *image) {
    if (layout == SN_CUDA_Q4_HALF || layout == SN_CUDA_Q4_SUPER) {
        for (int i = 0; i < 16; i++) image[g * 16 + i] = (uint8_t)(group->q[i] | group->q[i + 16] << 4);
    } else {
        memcpy(image + g * 16, group->q, 16);
        memcpy(image + p->plane1 + g * 16, group->q + 16, 16);
    }
    if (layout == SN_CUDA_Q4_HALF || layout == SN_CUDA_Q8_HALF)
        put_f16_pair(image + p->scales + g * 4, group->d[0], group->m[0]);
    if (layout == SN_CUDA_Q8_FINE) {
        const float four[4] = {group->d[0], group->d[1], group->m[0], group->m[1]};
        memcpy(image + p->scales + g * 16, four, sizeof four);
    }
}

/* Copies the scales of a Q4_K block unchanged: eight pairs of six bits, and the two halves that they multiply. */
static void pack_supers(const sn_cuda_planes *p, const uint8_t *block, size_t first_group, uint8_t *image) {
    const uint8_t *s = block + 4;
    for (size_t g = 0; g < 8; g++) {
        uint8_t *at = image + p->scales + (first_group + g) * 2;
        at[0] = (uint8_t)(g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4);
        at[1] = (uint8_t)(g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4);
    }
    memcpy(image + p->supers + first_group / 8 * 4, block, 4);
}

static void pack_quantised(sn_dtype dtype, sn_cuda_layout layout, const sn_cuda_planes *p, size_t rows, size_t cols,
                           const uint8_t *host, uint8_t *image) {
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    size_t per_block = sn_dtype_block(dtype) / SN_QUANT_GROUP, n = rows * (cols / SN_QUANT_GROUP);
    for (size_t g = 0; g < n; g += per_block, host += sn_dtype_bytes(dtype)) {
        sn_quant_decode(dtype, host, groups);
        for (size_t i = 0; i < per_block; i++) pack_group(layout, p, &groups[i], g + i, image);
        if (layout == SN_CUDA_Q4_SUPER) pack_supers(p, host, g, image);
    }
}

sn_status sn_cuda_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                              sn_err *err) {
    size_t bytes;
    sn_cuda_layout layout = SN_CUDA_F32;
    sn_status status = sn_cuda_weight_size(d, dtype, rows, cols, &bytes, err);
    if (status || !bytes) return status;
    layout_of(dtype, &layout);
    sn_cuda_planes p = sn_cuda_planes_of(layout, rows, cols);
    if (!sn_dtype_quantised(dtype)) {
        pack_float(sn_dtype_bytes(dtype), rows, cols, p.stride, host, image);
        return SN_OK;
    }
    /* a gap between planes */
    if (layout == SN_CUDA_Q4_SUPER) memset((uint8_t *)image + p.scales, 0, bytes - p.scales);
    pack_quantised(dtype, layout, &p, rows, cols, host, image);
    return SN_OK;
}
