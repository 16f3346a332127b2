/* Joining looks at headers only: which layout the codes have follows from type and shape (layout_of), the number of
 * columns that share a scale from the shape of the scales (read_scales), and the type of the blocks from both
 * (choose_type). Unpacking goes row by row: the codes of a row, a byte each (read_row), then block by block its scale
 * and codes in the form of the type (write_block). */
#include "model/packed.h"
#include "model/tensor_view.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 32, F4_GROUP = 16, F4_BLOCK = 256 };

/* ---- joining ---- */

static bool is_type(const sn_safetensors_tensor *f, const char *type) { return !strcmp(f->type, type); }

static bool has_shape(const sn_safetensors_tensor *f, size_t rows, size_t cols) {
    return f->n_dims == 2 && f->dims[0] == rows && f->dims[1] == cols;
}

/* The layout of the codes of a matrix (rows, cols); false: none is of this type and shape. */
static bool layout_of(const sn_safetensors_tensor *codes, size_t rows, size_t cols, sn_packed_layout *out) {
    static const struct {
        const char *type;
        size_t in_one; /* codes of an element */
        sn_packed_layout layout;
    } layouts[] = {{"I32", 8, SN_PACKED_ROWS4},
                   {"I32", 4, SN_PACKED_ROWS8},
                   {"U8", 2, SN_PACKED_ROWS4},
                   {"I8", 1, SN_PACKED_INTEGERS},
                   {"F8_E4M3", 1, SN_PACKED_ROWS8}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        if (!is_type(codes, layouts[i].type) || !has_shape(codes, rows, cols / layouts[i].in_one)) continue;
        *out = layouts[i].layout;
        return cols % 8 == 0;
    }
    return false;
}

/* The same for the layouts in which words lie by columns. */
static bool columns_layout_of(const sn_safetensors_tensor *codes, size_t rows, size_t cols, sn_packed_layout *out) {
    if (!is_type(codes, "I32") || cols % 8 || rows % 8) return false;
    if (has_shape(codes, cols / 8, rows))
        *out = SN_PACKED_COLUMNS4;
    else if (has_shape(codes, cols / 4, rows))
        *out = SN_PACKED_COLUMNS8;
    else if (has_shape(codes, cols, rows / 8))
        *out = SN_PACKED_AWQ;
    else
        return false;
    return true;
}

static bool by_columns(sn_packed_layout layout) { return layout >= SN_PACKED_COLUMNS4; }
static size_t bits_of(sn_packed_layout layout) {
    return layout == SN_PACKED_ROWS4 || layout == SN_PACKED_COLUMNS4 || layout == SN_PACKED_AWQ ? 4 : 8;
}

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
    size_t groups = p->cols / p->group, in_word = 32 / bits_of(p->layout), words = (p->rows + in_word - 1) / in_word;
    bool fits = p->layout == SN_PACKED_INTEGERS ? is_type(z, "I8") && has_shape(z, p->rows, 1) && groups == 1
                : by_columns(p->layout)         ? is_type(z, "I32") && has_shape(z, groups, words)
                                                : is_type(z, "I32") && has_shape(z, words, groups);
    if (!fits || p->single)
        return sn_fail(err, SN_REFUSED, "tensor '%s' (%zu, %zu) of type %s does not fit the codes and scales beside it",
                       z->name, z->dims[0], z->dims[1], z->type);
    return SN_OK;
}

/* The type whose blocks hold the numbers of codes of 4 or 8 bits with a zero; SN_DTYPE_COUNT: there is none. */
static sn_dtype integer_type(const sn_packed *p, bool zeros) {
    size_t group = p->group, unit = group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : 32;
    if (group % GROUP) return SN_DTYPE_COUNT;
    if (bits_of(p->layout) == 8 && unit < 128 && p->scale_type == SN_F16 && !zeros) return SN_Q8_0;
    if (bits_of(p->layout) == 8) return unit == 128 ? SN_I8_128 : SN_DTYPE_COUNT;
    if (unit == 32 && !zeros && p->scale_type == SN_F16) return SN_Q4_0;
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
    if (is_type(codes, "F8_E4M3")) return whole && p->cols % 128 == 0 && !zeros ? SN_F8_E4M3 : SN_DTYPE_COUNT;
    return integer_type(p, zeros && !symmetric);
}

static sn_status check_further(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], const sn_packed *p,
                               sn_err *err) {
    const sn_safetensors_tensor *single = files[SN_PACKED_SINGLE], *groups = files[SN_PACKED_GROUPS],
                                *bias = files[SN_PACKED_BIAS];
    if (single && (!is_type(single, "F32") || single->elements != 1))
        return sn_fail(err, SN_REFUSED, "tensor '%s' is not one number in F32", single->name);
    if (groups && (!is_type(groups, "I32") || groups->n_dims != 1 || groups->dims[0] != p->cols))
        return sn_fail(err, SN_REFUSED, "tensor '%s' has %zu numbers of type %s; there must be %zu in I32",
                       groups->name, groups->elements, groups->type, p->cols);
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
    if (naming == SN_PACKED_NF4) {
        *dtype = SN_NF4;
        return sn_packed_join_nf4(files, out, err);
    }
    if (!rows || !cols || !(columns ? columns_layout_of : layout_of)(codes, rows, cols, &out->layout))
        return sn_fail(err, SN_REFUSED,
                       "tensor '%s' (%zu, %zu) of type %s does not have the codes of %zu rows of %zu columns in 4 or 8 "
                       "bits",
                       codes->name, codes->dims[0], codes->dims[1], codes->type, rows, cols);
    out->zeros_less_one = columns && out->layout != SN_PACKED_AWQ && hparams->zeros_less_one;
    out->zero = bits_of(out->layout) == 8 ? 128 : 8;
    for (int i = 0; i < SN_PACKED_PARTS; i++)
        if (files[i]) out->parts[i] = files[i]->data, out->bytes[i] = files[i]->bytes;
    if (files[SN_PACKED_BIAS]) out->bias_type = float_type(files[SN_PACKED_BIAS]->type);
    sn_status status = read_parts(files, out, err);
    if (status) return status;
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
    case SN_PACKED_COLUMNS4:
        for (size_t k = 0; k < cols; k += 8) {
            uint32_t word = word_at(data, k / 8 * rows + row);
            for (size_t i = 0; i < 8; i++) codes[k + i] = word >> 4 * i & 15;
        }
        return;
    case SN_PACKED_COLUMNS8:
        for (size_t k = 0; k < cols; k += 4) {
            uint32_t word = word_at(data, k / 4 * rows + row);
            for (size_t i = 0; i < 4; i++) codes[k + i] = word >> 8 * i & 255;
        }
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
    size_t bits = bits_of(p->layout), in_word = 32 / bits, groups = p->cols / p->group;
    if (!zeros) return p->zero;
    if (p->layout == SN_PACKED_INTEGERS) return ((const uint8_t *)zeros)[row] ^ 0x80;
    size_t at = by_columns(p->layout) ? group * (p->rows / in_word) + row / in_word : row / in_word * groups + group;
    unsigned shift = p->layout == SN_PACKED_AWQ ? awq_shift(row) : (unsigned)(bits * (row % in_word));
    return (word_at(zeros, at) >> shift & ((1u << bits) - 1)) + p->zeros_less_one;
}

/* A group's word of SN_SCALE_W. */
static sn_status write_word(const sn_packed *p, size_t row, float scale, unsigned zero, uint8_t *to, sn_err *err) {
    uint32_t word;
    memcpy(&word, &scale, sizeof word);
    if (word & 0xff)
        return sn_fail(err, SN_REFUSED,
                       "row %zu has a scale in F32 of more than 16 significant bits, which is not supported", row);
    if (zero > 255 || (bits_of(p->layout) == 4 && zero > 16))
        return sn_fail(err, SN_REFUSED, "row %zu has %u for the code of 0, on which programs do not agree", row, zero);
    word |= zero;
    memcpy(to, &word, sizeof word);
    return SN_OK;
}

/* The number of codes from `codes` on as a block of the type has them. */
static void write_codes(sn_dtype dtype, const uint8_t *codes, uint8_t *to) {
    size_t n = sn_dtype_block(dtype);
    if (dtype == SN_F8_E4M3 || dtype == SN_I8_128) {
        memcpy(to, codes, n);
    } else if (dtype == SN_Q8_0) {
        for (size_t i = 0; i < n; i++) to[i] = codes[i] ^ 0x80;
    } else if (dtype == SN_Q4_0 || dtype == SN_MXFP4) {
        for (size_t i = 0; i < n / 2; i++) to[i] = (uint8_t)(codes[i] | codes[i + n / 2] << 4);
    } else {
        for (size_t i = 0; i < n / 2; i++) to[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    }
}

/* The scales of 16 columns each, and half of the tensor's: numbers of the type are twice those of E2M1. */
static sn_status write_f4(const sn_packed *p, size_t row, size_t first, uint8_t *to, sn_err *err) {
    float single = float_at(SN_F32, p->parts[SN_PACKED_SINGLE], 0);
    const uint8_t *scales = (const uint8_t *)p->parts[SN_PACKED_SCALES] + (row * p->cols + first) / F4_GROUP;
    if (p->single_divides) single = 1 / single;
    bool wrong = !(single >= 0x1p-100f && single <= 0x1p100f);
    for (int i = 0; i < F4_BLOCK / F4_GROUP; i++) wrong |= (scales[i] & 0x7f) == 0x7f;
    single /= 2;
    memcpy(to, &single, sizeof single);
    memcpy(to + sizeof single, scales, F4_BLOCK / F4_GROUP);
    return wrong ? sn_fail(err, SN_REFUSED,
                           "row %zu has scales that are no numbers: the file is damaged, fetch it again", row)
                 : SN_OK;
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
    unsigned zero = dtype == SN_F8_E4M3 ? p->zero : zero_at(p, row, group);
    if (!(fabsf(scale) <= 0x1p100f))
        return sn_fail(err, SN_REFUSED,
                       "row %zu has a scale that is no number up to 2^100: the file is damaged, fetch "
                       "it again ('swarm models remove' drops one of the cache)",
                       row);
    if (dtype == SN_I4_32 || dtype == SN_I4_64 || dtype == SN_I4_128 || dtype == SN_I8_128)
        return write_word(p, row, scale, zero, to, err);
    if (zero != p->zero)
        return sn_fail(err, SN_REFUSED, "row %zu has %u for the code of 0, where 'sym' says that it is %u", row, zero,
                       p->zero);
    if (dtype == SN_F8_E4M3)
        memcpy(to, &scale, sizeof scale);
    else
        memcpy(to, scales + 2 * at, 2);
    return SN_OK;
}

static sn_status unpack_row(const sn_packed *p, sn_dtype dtype, size_t row, uint8_t *codes, uint8_t *to, sn_err *err) {
    size_t block = sn_dtype_block(dtype), bytes = sn_dtype_bytes(dtype), code_bytes;
    code_bytes = dtype == SN_F8_E4M3 || dtype == SN_I8_128 || dtype == SN_Q8_0 ? block : block / 2;
    sn_status status = SN_OK;
    read_row(p, row, codes);
    for (size_t k = 0; k < p->cols && !status; k += block, to += bytes) {
        status = write_scale(p, dtype, row, k, to, err);
        write_codes(dtype, codes + k, to + bytes - code_bytes);
    }
    for (size_t k = 0; dtype == SN_F8_E4M3 && k < p->cols && !status; k++)
        if ((codes[k] & 0x7f) == 0x7f)
            status = sn_fail(err, SN_REFUSED,
                             "row %zu of the FP8 weights holds NaN: the file is damaged, fetch it again", row);
    return status;
}

/* What holds for the whole matrix: the columns are in the order of their groups, and a bias is 0. */
static sn_status check_whole(const sn_packed *p, sn_err *err) {
    const void *groups = p->parts[SN_PACKED_GROUPS], *bias = p->parts[SN_PACKED_BIAS];
    for (size_t k = 0; groups && k < p->cols; k++) {
        uint32_t group = word_at(groups, k);
        if (group >= p->cols / p->group)
            return sn_fail(err, SN_REFUSED,
                           "column %zu belongs to group %u of %zu: the file is damaged, fetch it again", k, group,
                           p->cols / p->group);
        if (group != k / p->group)
            return sn_fail(
                err, SN_REFUSED,
                "its columns are in the order of their activations (desc_act), for which the inputs of every "
                "matrix would have to be permuted: use a version without act-order");
    }
    for (size_t r = 0; bias && r < p->rows; r++)
        if (float_at(p->bias_type, bias, r) != 0)
            return sn_fail(err, SN_REFUSED, "it has a bias that is not 0, and models of this family have none");
    return SN_OK;
}

sn_status sn_packed_unpack(const sn_model_tensor *t, void *to, sn_err *err) {
    const sn_packed *p = t->packed;
    size_t row_bytes = t->bytes / t->rows;
    uint8_t *codes = NULL;
    if (t->dtype == SN_NF4) return sn_packed_unpack_nf4(t, to, err);
    sn_status status = check_whole(p, err);
    if (!status) status = sn_calloc(&codes, p->cols, sizeof *codes, err);
    for (size_t r = 0; r < t->rows && !status; r++) {
        size_t row = t->first_row + sn_tensor_view_line(t, r);
        status = unpack_row(p, t->dtype, row, codes, (uint8_t *)to + r * row_bytes, err);
    }
    free(codes);
    return status;
}
