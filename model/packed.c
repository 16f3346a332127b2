/* Joining looks at headers only: which layout the codes have follows from type and shape (layout_of), the number of
 * columns that share a scale from the shape of the scales (read_scales), and the type of the blocks from both
 * (choose_type). Unpacking goes row by row: the codes of a row, a byte each (read_row), then block by block its scale
 * and codes in the form of the type (write_block). */
#include "model/packed.h"
#include "model/tensor_view.h"

#include "base/float4.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 32, F4_GROUP = 16, F4_BLOCK = 256, NVFP4_BLOCK = 64, NVFP4_BYTES = 36 };

/* ---- joining ---- */

static bool is_type(const sn_safetensors_tensor *f, const char *type) { return !strcmp(f->type, type); }

static bool has_shape(const sn_safetensors_tensor *f, size_t rows, size_t cols) {
    return f->n_dims == 2 && f->dims[0] == rows && f->dims[1] == cols;
}

/* The layout of the codes of a matrix (rows, cols), and the bits of one; false: none is of this type and shape. */
static bool find_layout(const sn_safetensors_tensor *codes, sn_packed *p) {
    static const struct {
        const char *type;
        size_t in_one; /* codes of an element */
        sn_packed_layout layout;
    } layouts[] = {{"I32", 8, SN_PACKED_ROWS4},   {"I32", 4, SN_PACKED_ROWS8},     {"U8", 2, SN_PACKED_ROWS4},
                   {"I8", 1, SN_PACKED_INTEGERS}, {"F8_E4M3", 1, SN_PACKED_ROWS8}, {"F8_E5M2", 1, SN_PACKED_ROWS8}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        if (!is_type(codes, layouts[i].type) || !has_shape(codes, p->rows, p->cols / layouts[i].in_one)) continue;
        p->layout = layouts[i].layout;
        p->bits = p->layout == SN_PACKED_ROWS4 ? 4 : 8;
        return p->cols % 8 == 0;
    }
    return false;
}

/* The same for the layouts in which words lie by columns. */
static bool find_columns_layout(const sn_safetensors_tensor *codes, sn_packed *p) {
    static const unsigned widths[] = {2, 3, 4, 8};
    if (!is_type(codes, "I32") || p->cols % 8 || p->rows % 8) return false;
    p->layout = SN_PACKED_COLUMNS;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        p->bits = widths[i];
        bool whole = p->cols * p->bits % 32 == 0 && p->rows * p->bits % 32 == 0;
        if (whole && has_shape(codes, p->cols * p->bits / 32, p->rows)) return true;
    }
    p->layout = SN_PACKED_AWQ;
    p->bits = 4;
    return has_shape(codes, p->cols, p->rows / 8);
}

static bool by_columns(sn_packed_layout layout) { return layout >= SN_PACKED_COLUMNS; }

static sn_dtype float_type(const char *type) {
    return !strcmp(type, "F32")    ? SN_F32
           : !strcmp(type, "F16")  ? SN_F16
           : !strcmp(type, "BF16") ? SN_BF16
                                   : SN_DTYPE_COUNT;
}

/* Scales: one for each group of columns of a row, for each row, or a single one. */
static sn_status read_scales(const char *name, const sn_safetensors_tensor *s, sn_packed *p, sn_err *err) {
    size_t n = s->elements;
    size_t groups = s->n_dims == 2 ? s->dims[by_columns(p->layout) ? 0 : 1] : 1,
           rows = s->n_dims == 2 ? s->dims[by_columns(p->layout) ? 1 : 0] : n;
    p->single = n == 1;
    p->scale_type = float_type(s->type);
    bool fits = s->n_dims <= 2 && n && (p->single || (rows == p->rows && p->cols % groups == 0));
    if (!fits)
        return sn_fail(err, SN_REFUSED,
                       "tensor '%s' (%zu, %zu) has no scale for each group of columns of the %zu rows of %zu in '%s'",
                       s->name, s->dims[0], s->dims[1], p->rows, p->cols, name);
    p->group = p->single ? p->cols : p->cols / groups;
    return SN_OK;
}

static sn_status check_zeros(const sn_safetensors_tensor *z, const sn_packed *p, sn_err *err) {
    size_t groups = p->cols / p->group, words = (p->rows * p->bits + 31) / 32;
    bool fits = p->layout == SN_PACKED_INTEGERS ? is_type(z, "I8") && has_shape(z, p->rows, 1) && groups == 1
                : by_columns(p->layout)         ? is_type(z, "I32") && has_shape(z, groups, words)
                                                : is_type(z, "I32") && has_shape(z, words, groups);
    if (!fits || p->single)
        return sn_fail(err, SN_REFUSED, "tensor '%s' (%zu, %zu) of type %s does not fit the codes and scales beside it",
                       z->name, z->dims[0], z->dims[1], z->type);
    return SN_OK;
}

/* The type whose blocks hold the numbers of integer codes with a zero; SN_DTYPE_COUNT: there is none. */
static sn_dtype integer_type(const sn_packed *p, bool zeros) {
    size_t group = p->group, unit = group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : 32;
    bool half = p->scale_type == SN_F16;
    if (group % GROUP) return SN_DTYPE_COUNT;
    if (p->bits < 4) return unit < 128 ? SN_DTYPE_COUNT : p->bits == 2 ? SN_I2_128 : SN_I3_128;
    if (p->bits == 8 && unit < 128) return half && !zeros ? SN_Q8_0 : SN_DTYPE_COUNT;
    if (p->bits == 8) return p->scale_type == SN_F32 && !zeros ? SN_I8_128F : SN_I8_128;
    if (unit == 32 && !zeros && half) return SN_Q4_0;
    if (unit == 32 && !zeros && p->scale_type == SN_BF16) return SN_I4_B32;
    return unit == 128 ? SN_I4_128 : unit == 64 ? SN_I4_64 : SN_I4_32;
}

static sn_dtype type_of(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], const sn_packed *p, bool symmetric) {
    const sn_safetensors_tensor *codes = files[SN_PACKED_CODES], *scales = files[SN_PACKED_SCALES];
    bool zeros = files[SN_PACKED_ZEROS], single = files[SN_PACKED_SINGLE], whole = p->group == p->cols;
    if (is_type(codes, "U8")) {
        bool exponents = is_type(scales, "U8") || is_type(scales, "F8_E8M0");
        if (zeros || p->single) return SN_DTYPE_COUNT;
        if (exponents && p->group == GROUP && !single) return SN_MXFP4;
        bool fits = is_type(scales, "F8_E4M3") && p->group == F4_GROUP && p->cols % F4_BLOCK == 0 && single;
        return fits ? SN_NVFP4_256 : SN_DTYPE_COUNT;
    }
    if (p->scale_type == SN_DTYPE_COUNT || single) return SN_DTYPE_COUNT;
    sn_dtype f8 = is_type(codes, "F8_E4M3") ? SN_F8_E4M3 : is_type(codes, "F8_E5M2") ? SN_F8_E5M2 : SN_DTYPE_COUNT;
    if (f8 != SN_DTYPE_COUNT) return whole && p->cols % 128 == 0 && !zeros ? f8 : SN_DTYPE_COUNT;
    return integer_type(p, zeros && !symmetric);
}

static sn_status check_further(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], const sn_packed *p,
                               sn_err *err) {
    const sn_safetensors_tensor *single = files[SN_PACKED_SINGLE], *groups = files[SN_PACKED_GROUPS],
                                *bias = files[SN_PACKED_BIAS], *state = files[SN_PACKED_STATE];
    if (single && (!is_type(single, "F32") || single->elements != 1))
        return sn_fail(err, SN_REFUSED, "tensor '%s' is not one number in F32", single->name);
    if (groups && (!is_type(groups, "I32") || groups->n_dims != 1 || groups->dims[0] != p->cols))
        return sn_fail(err, SN_REFUSED, "tensor '%s' has %zu numbers of type %s; there must be %zu in I32",
                       groups->name, groups->elements, groups->type, p->cols);
    if (p->largest && state && (!is_type(state, "U8") || state->elements != 1))
        return sn_fail(err, SN_REFUSED, "tensor '%s' is not one byte", state->name);
    if (bias && (float_type(bias->type) == SN_DTYPE_COUNT || bias->n_dims != 1 || bias->dims[0] != p->rows))
        return sn_fail(err, SN_REFUSED, "tensor '%s' has %zu numbers of type %s; there must be %zu floats", bias->name,
                       bias->elements, bias->type, p->rows);
    return SN_OK;
}

static sn_status read_parts(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], sn_packed *p, sn_err *err) {
    const sn_safetensors_tensor *codes = files[SN_PACKED_CODES], *zeros = files[SN_PACKED_ZEROS];
    if (by_columns(p->layout) && !zeros)
        return sn_fail(err, SN_REFUSED, "tensor '%s' has no zeros beside it (qzeros)", codes->name);
    sn_status status = read_scales(codes->name, files[SN_PACKED_SCALES], p, err);
    if (!status && zeros) status = check_zeros(zeros, p, err);
    return status ? status : check_further(files, p, err);
}

sn_status sn_packed_join(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], sn_packed_naming naming,
                         size_t rows, size_t cols, const sn_hparams *hparams, sn_packed *out, sn_dtype *dtype,
                         sn_err *err) {
    const sn_safetensors_tensor *codes = files[SN_PACKED_CODES];
    const bool columns = naming == SN_PACKED_BY_COLUMNS;
    size_t row_bytes, all;
    *out = (sn_packed){.rows = rows, .cols = cols, .single_divides = naming == SN_PACKED_COMPRESSED};
    if (naming == SN_PACKED_FLOAT4) return sn_packed_join_float4(files, out, dtype, err);
    out->largest = naming == SN_PACKED_INT8;
    if (!rows || !cols || !(columns ? find_columns_layout : find_layout)(codes, out))
        return sn_fail(err, SN_REFUSED,
                       "tensor '%s' (%zu, %zu) of type %s does not have the codes of %zu rows of %zu columns in %s "
                       "bits",
                       codes->name, codes->dims[0], codes->dims[1], codes->type, rows, cols,
                       columns ? "2, 3, 4 or 8" : "4 or 8");
    out->zeros_less_one = columns && out->layout != SN_PACKED_AWQ && hparams->zeros_less_one;
    out->zero = 1u << (out->bits - 1);
    for (int i = 0; i < SN_PACKED_PARTS; i++)
        if (files[i]) out->parts[i] = files[i]->data, out->bytes[i] = files[i]->bytes;
    if (files[SN_PACKED_BIAS]) out->bias_type = float_type(files[SN_PACKED_BIAS]->type);
    sn_status status = read_parts(files, out, err);
    if (status) return status;
    out->ordered = hparams->act_order && files[SN_PACKED_GROUPS] && out->group < out->cols;
    *dtype = type_of(files, out, columns && hparams->zeros_in_middle);
    if (*dtype == SN_DTYPE_COUNT)
        return sn_fail(
            err, SN_REFUSED,
            "tensor '%s' (%zu rows of %zu) has codes of type %s with scales of type %s for each %zu columns%s, "
            "which is not supported: use a version with groups of 128 columns, or a GGUF file",
            codes->name, rows, cols, codes->type, files[SN_PACKED_SCALES]->type, out->group,
            files[SN_PACKED_ZEROS] ? " and zeros" : "");
    status = sn_dtype_row_bytes(*dtype, cols, &row_bytes, err);
    if (!status && !sn_mul(row_bytes, rows, &all))
        status = sn_fail(err, SN_REFUSED, "tensor '%s' is too large", codes->name);
    return status;
}

sn_status sn_packed_join_gguf(const sn_model_tensor *blocks, const sn_model_tensor *scales, sn_packed *out,
                              sn_dtype *dtype, sn_err *err) {
    size_t n = scales->rows * scales->cols, all;
    *dtype = SN_NVFP4_256;
    if (scales->dtype != SN_F32 || !n || !blocks->rows || blocks->rows % n)
        return sn_fail(err, SN_REFUSED, "its scale is of type %s and for %zu of %zu rows; it must be F32",
                       sn_dtype_name(scales->dtype), n, blocks->rows);
    if (blocks->cols % F4_BLOCK || !sn_mul(blocks->rows, blocks->cols, &all))
        return sn_fail(
            err, SN_REFUSED,
            "NVFP4 with a scale beside it is supported in rows of a multiple of %d, not of %zu: use the folder "
            "that the file was made of, or another type",
            F4_BLOCK, blocks->cols);
    *out = (sn_packed){
        .layout = SN_PACKED_NVFP4, .bits = 4, .rows = blocks->rows, .cols = blocks->cols, .group = F4_GROUP};
    out->parts[SN_PACKED_CODES] = blocks->data, out->bytes[SN_PACKED_CODES] = blocks->bytes;
    out->parts[SN_PACKED_SINGLE] = scales->data, out->bytes[SN_PACKED_SINGLE] = scales->bytes;
    return SN_OK;
}

size_t sn_packed_bytes(const sn_packed *p, sn_dtype dtype) {
    return p->rows * (p->cols / sn_dtype_block(dtype)) * sn_dtype_bytes(dtype);
}

size_t sn_packed_file_bytes(const sn_packed *p) { return p->bytes[SN_PACKED_CODES]; }

const void *sn_packed_part_of(const sn_packed *p, int part, size_t *bytes) {
    *bytes = p->bytes[part];
    return p->parts[part];
}

/* ---- unpacking ---- */

static uint32_t word_at(const void *words, size_t i) {
    uint32_t word;
    memcpy(&word, (const uint8_t *)words + i * sizeof word, sizeof word);
    return word;
}

static float float_at(sn_dtype type, const void *values, size_t i) {
    float wide;
    uint16_t half;
    if (type == SN_F32) {
        memcpy(&wide, (const uint8_t *)values + i * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&half, (const uint8_t *)values + i * sizeof half, sizeof half);
    return type == SN_F16 ? sn_f16_to_f32(half) : sn_bf16_to_f32(half);
}

/* Where row n of eight that share a word has its code. */
static unsigned awq_shift(size_t n) {
    static const uint8_t places[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return 4u * places[n % 8];
}

/* Code i of those that lie bit after bit in words, of which the first is number `first` and the next ones are `step`
 * apart. A code of three bits may lie in two words. */
static uint8_t code_at(const void *words, size_t step, size_t first, unsigned bits, size_t i) {
    size_t at = i * bits / 32 * step + first;
    unsigned shift = (unsigned)(i * bits % 32);
    uint64_t both = word_at(words, at);
    if (shift + bits > 32) both |= (uint64_t)word_at(words, at + step) << 32;
    return (uint8_t)(both >> shift & ((1u << bits) - 1));
}

/* The codes of a row, unsigned. */
static void read_row(const sn_packed *p, size_t row, uint8_t *codes) {
    const uint8_t *data = p->parts[SN_PACKED_CODES];
    const size_t cols = p->cols, rows = p->rows;
    switch (p->layout) {
    case SN_PACKED_ROWS4:
        data += row * (cols / 2);
        for (size_t k = 0; k < cols; k++) codes[k] = data[k / 2] >> k % 2 * 4 & 15;
        return;
    case SN_PACKED_ROWS8:
        memcpy(codes, data + row * cols, cols);
        return;
    case SN_PACKED_INTEGERS:
        for (size_t k = 0; k < cols; k++) codes[k] = data[row * cols + k] ^ 0x80;
        return;
    case SN_PACKED_NVFP4:
        data += row * (cols / NVFP4_BLOCK * NVFP4_BYTES);
        for (size_t k = 0; k < cols; k++) {
            const uint8_t *block = data + k / NVFP4_BLOCK * NVFP4_BYTES;
            codes[k] = block[4 + k % NVFP4_BLOCK / 16 * 8 + k % 8] >> k % 16 / 8 * 4 & 15;
        }
        return;
    case SN_PACKED_COLUMNS:
        for (size_t k = 0; k < cols; k++) codes[k] = code_at(data, rows, row, p->bits, k);
        return;
    case SN_PACKED_AWQ:
        for (size_t k = 0; k < cols; k++) codes[k] = word_at(data, k * (rows / 8) + row / 8) >> awq_shift(row) & 15;
        return;
    }
}

static size_t scale_index(const sn_packed *p, size_t row, size_t group) {
    return p->single ? 0 : by_columns(p->layout) ? group * p->rows + row : row * (p->cols / p->group) + group;
}

/* The code that stands for 0 in a group. */
static unsigned zero_at(const sn_packed *p, size_t row, size_t group) {
    const void *zeros = p->parts[SN_PACKED_ZEROS];
    if (!zeros) return p->zero;
    if (p->layout == SN_PACKED_INTEGERS) return ((const uint8_t *)zeros)[row] ^ 0x80;
    if (p->layout == SN_PACKED_AWQ) return word_at(zeros, group * (p->rows / 8) + row / 8) >> awq_shift(row) & 15;
    if (p->layout == SN_PACKED_COLUMNS) /* the groups' words one after the other */
        return code_at(zeros, 1, group * (p->rows * p->bits / 32), p->bits, row) + p->zeros_less_one;
    return code_at(zeros, p->cols / p->group, group, p->bits, row);
}

/* A group's word of SN_SCALE_W. */
static sn_status write_word(const sn_packed *p, size_t row, float scale, unsigned zero, uint8_t *to, sn_err *err) {
    uint32_t word;
    memcpy(&word, &scale, sizeof word);
    bool shorter = sn_f16_to_f32(sn_f32_to_f16(scale)) == scale || sn_bf16_to_f32(sn_f32_to_bf16(scale)) == scale;
    if (p->bits == 8 ? word & 0xff : !shorter)
        return sn_fail(err, SN_REFUSED,
                       "row %zu has a scale in F32 that is neither a half nor a bfloat16, which is not supported", row);
    if (zero > 255 || zero > 1u << p->bits)
        return sn_fail(err, SN_REFUSED, "row %zu has %u for the code of 0, on which programs do not agree", row, zero);
    word |= zero;
    memcpy(to, &word, sizeof word);
    return SN_OK;
}

/* The number of codes from `codes` on as a block of the type has them. */
static void write_codes(sn_dtype dtype, const uint8_t *codes, uint8_t *to) {
    size_t n = sn_dtype_block(dtype);
    if (sn_is_f8(dtype) || dtype == SN_I8_128 || dtype == SN_I8_128F) {
        memcpy(to, codes, n);
    } else if (dtype == SN_I2_128 || dtype == SN_I3_128) {
        memset(to, 0, n / 4 + n / 8 * (dtype == SN_I3_128));
        for (size_t i = 0; i < n; i++) to[i / 4] |= (uint8_t)((codes[i] & 3) << i % 4 * 2);
        for (size_t i = 0; i < n && dtype == SN_I3_128; i++) to[n / 4 + i / 8] |= (uint8_t)(codes[i] >> 2 << i % 8);
    } else if (dtype == SN_Q8_0) {
        for (size_t i = 0; i < n; i++) to[i] = codes[i] ^ 0x80;
    } else if (dtype == SN_Q4_0 || dtype == SN_MXFP4) {
        for (size_t i = 0; i < n / 2; i++) to[i] = (uint8_t)(codes[i] | codes[i + n / 2] << 4);
    } else {
        for (size_t i = 0; i < n / 2; i++) to[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    }
}

/* The scale of 16 columns, E4M3. In GGUF's blocks it has no sign, and its NaN is 0. */
static uint8_t f4_scale(const sn_packed *p, size_t row, size_t column) {
    size_t at = row * p->cols + column;
    if (p->layout != SN_PACKED_NVFP4) return ((const uint8_t *)p->parts[SN_PACKED_SCALES])[at / F4_GROUP];
    const uint8_t *block = (const uint8_t *)p->parts[SN_PACKED_CODES] + at / NVFP4_BLOCK * NVFP4_BYTES;
    uint8_t scale = block[at % NVFP4_BLOCK / F4_GROUP];
    return scale == 0x7f ? 0 : scale & 0x7f;
}

/* The scales of 16 columns each, and half of the tensor's: numbers of the type are twice those of E2M1. */
static sn_status write_f4(const sn_packed *p, size_t row, size_t first, uint8_t *to, sn_err *err) {
    size_t n_singles = p->bytes[SN_PACKED_SINGLE] / sizeof(float);
    float single = float_at(SN_F32, p->parts[SN_PACKED_SINGLE], row / (p->rows / n_singles));
    uint8_t *scales = to + sizeof single;
    if (p->single_divides) single = 1 / single;
    bool wrong = !(single >= 0x1p-100f && single <= 0x1p100f);
    for (size_t i = 0; i < F4_BLOCK / F4_GROUP; i++) {
        scales[i] = f4_scale(p, row, first + i * F4_GROUP);
        wrong |= (scales[i] & 0x7f) == 0x7f;
    }
    single /= 2;
    memcpy(to, &single, sizeof single);
    return wrong ? sn_fail(err, SN_REFUSED,
                           "row %zu has scales that are no numbers: the file is damaged, fetch it again", row)
                 : SN_OK;
}

static bool has_words(sn_dtype dtype) {
    return dtype == SN_I4_32 || dtype == SN_I4_64 || dtype == SN_I4_128 || dtype == SN_I8_128 || dtype == SN_I2_128 ||
           dtype == SN_I3_128;
}

/* What stands before the codes of a block whose first column is `first`. */
static sn_status write_scale(const sn_packed *p, sn_dtype dtype, size_t row, size_t first, uint8_t *to, sn_err *err) {
    size_t group = first / p->group, at = scale_index(p, row, group);
    const uint8_t *scales = p->parts[SN_PACKED_SCALES];
    if (dtype == SN_NVFP4_256) return write_f4(p, row, first, to, err);
    if (dtype == SN_MXFP4) {
        *to = scales[at];
        return *to == 255 ? sn_fail(err, SN_REFUSED, "row %zu has a scale that is no number: fetch the file again", row)
                          : SN_OK;
    }
    float scale = float_at(p->scale_type, scales, at);
    if (p->largest) scale /= 127;
    unsigned zero = sn_is_f8(dtype) ? p->zero : zero_at(p, row, group);
    if (!(fabsf(scale) <= 0x1p100f))
        return sn_fail(err, SN_REFUSED,
                       "row %zu has a scale that is no number up to 2^100: the file is damaged, fetch "
                       "it again ('swarm models remove' drops one of the cache)",
                       row);
    if (has_words(dtype)) return write_word(p, row, scale, zero, to, err);
    if (zero != p->zero)
        return sn_fail(err, SN_REFUSED, "row %zu has %u for the code of 0, where 'sym' says that it is %u", row, zero,
                       p->zero);
    if (sn_is_f8(dtype) || dtype == SN_I8_128F)
        memcpy(to, &scale, sizeof scale);
    else
        memcpy(to, scales + 2 * at, 2);
    return SN_OK;
}

/* The memory of an unpacking. */
typedef struct row_codes {
    uint8_t *codes, *ordered; /* (cols) */
    int32_t *order;           /* sn_packed_order; NULL: the columns stay where they are */
} row_codes;

static sn_status row_codes_init(const sn_packed *p, row_codes *out, sn_err *err) {
    *out = (row_codes){NULL, NULL, NULL};
    sn_status status = sn_calloc(&out->codes, p->cols, 2 * sizeof *out->codes, err);
    if (status || !p->ordered) return status;
    out->ordered = out->codes + p->cols;
    status = sn_calloc(&out->order, p->cols, sizeof *out->order, err);
    return status ? status : sn_packed_order(p, out->order, err);
}

static void row_codes_fini(row_codes *r) {
    free(r->codes);
    free(r->order);
}

static sn_status unpack_row(const sn_packed *p, sn_dtype dtype, size_t row, const row_codes *memory, uint8_t *to,
                            sn_err *err) {
    const uint8_t *codes = memory->order ? memory->ordered : memory->codes;
    size_t block = sn_dtype_block(dtype), bytes = sn_dtype_bytes(dtype), code_bytes = block * p->bits / 8;
    sn_status status = SN_OK;
    read_row(p, row, memory->codes);
    for (size_t k = 0; memory->order && k < p->cols; k++) memory->ordered[k] = memory->codes[memory->order[k]];
    for (size_t k = 0; k < p->cols && !status; k += block, to += bytes) {
        status = write_scale(p, dtype, row, k, to, err);
        write_codes(dtype, codes + k, to + bytes - code_bytes);
    }
    for (size_t k = 0; sn_is_f8(dtype) && k < p->cols && !status; k++)
        if (!sn_f8_is_number(dtype, codes[k]))
            status = sn_fail(err, SN_REFUSED,
                             "row %zu of the FP8 weights holds NaN: the file is damaged, fetch it again", row);
    return status;
}

sn_status sn_packed_order(const sn_packed *p, int32_t *order, sn_err *err) {
    const size_t n_groups = p->cols / p->group;
    uint32_t *used = NULL;
    sn_status status = sn_calloc(&used, n_groups, sizeof *used, err);
    for (size_t k = 0; k < p->cols && !status; k++) {
        uint32_t group = word_at(p->parts[SN_PACKED_GROUPS], k);
        if (group >= n_groups || used[group] == p->group)
            status =
                sn_fail(err, SN_REFUSED,
                        "column %zu belongs to group %u of %zu, which is full: the file is damaged, fetch it again", k,
                        group, n_groups);
        else
            order[group * p->group + used[group]++] = (int32_t)k;
    }
    free(used);
    return status;
}

/* What holds for the whole matrix: the columns are in the order of their groups, or said not to be, a bias is 0, and
 * bytes of LLM.int8 lie row by row. */
static sn_status check_whole(const sn_packed *p, sn_err *err) {
    const uint8_t *format = p->largest ? p->parts[SN_PACKED_STATE] : NULL;
    const void *groups = p->parts[SN_PACKED_GROUPS], *bias = p->parts[SN_PACKED_BIAS];
    for (size_t k = 0; groups && k < p->cols; k++) {
        uint32_t group = word_at(groups, k);
        if (group >= p->cols / p->group)
            return sn_fail(err, SN_REFUSED,
                           "column %zu belongs to group %u of %zu: the file is damaged, fetch it again", k, group,
                           p->cols / p->group);
        if (group != k / p->group && !p->ordered)
            return sn_fail(err, SN_REFUSED,
                           "its columns are in the order of their activations, and 'quantization_config' does not say "
                           "so (desc_act)");
    }
    if (format && *format)
        return sn_fail(err, SN_REFUSED, "its weight_format is %u: only rows one after the other (0) are supported",
                       *format);
    for (size_t r = 0; bias && r < p->rows; r++)
        if (float_at(p->bias_type, bias, r) != 0)
            return sn_fail(err, SN_REFUSED, "it has a bias that is not 0, and models of this family have none");
    return SN_OK;
}

sn_status sn_packed_unpack(const sn_model_tensor *t, void *to, sn_err *err) {
    const sn_packed *p = t->packed;
    size_t row_bytes = t->bytes / t->rows;
    row_codes memory = {0};
    if (sn_float4_values(t->dtype)) return sn_packed_unpack_float4(t, to, err);
    sn_status status = check_whole(p, err);
    if (!status) status = row_codes_init(p, &memory, err);
    for (size_t r = 0; r < t->rows && !status; r++) {
        size_t row = t->first_row + sn_tensor_view_line(t, r);
        status = unpack_row(p, t->dtype, row, &memory, (uint8_t *)to + r * row_bytes, err);
    }
    row_codes_fini(&memory);
    return status;
}
