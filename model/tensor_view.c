/* A view says which units of a tensor in the file are a role's (sn_tensor_view_of, .._of_expert, .._of_head);
 * sn_tensor_view_narrow makes the role's tensor from it. Then the tensor is read: run by run, or made contiguous, for
 * which transposed and split forms are rearranged. */
#include "model/tensor_view.h"

#include "base/mem.h"
#include "model/packed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t sn_tensor_view_units(const sn_model_tensor *t) { return t->vector ? t->cols : t->rows; }

enum {
    BLOCK = 32,
    HALF = BLOCK / 2,
    PACKED = 1 + HALF, /* MXFP4: elements of a block; bytes without and with exponent */
    F8_BLOCK = 128,    /* F8: rows, and columns, that share a scale */
};

/* Bytes of a unit in the file. */
static size_t unit_in_file(const sn_model_tensor *t) {
    return t->packed            ? sn_packed_file_bytes(t->packed) / sn_tensor_view_units(t)
           : !t->scales         ? t->bytes / sn_tensor_view_units(t)
           : sn_is_f8(t->dtype) ? t->cols
                                : t->cols / 2;
}

size_t sn_tensor_view_file_bytes(const sn_model_tensor *t) { return sn_tensor_view_units(t) * unit_in_file(t); }

/* Of part `part`: units of the parts before it, in a group; *before: of the role, in all groups. */
static size_t part_offset(const sn_model_tensor *t, int part, size_t *before) {
    size_t offset = 0, groups = sn_tensor_view_units(t) / t->group_rows;
    for (int i = 0; i < part; i++) offset += t->part_rows[i];
    *before = offset * groups;
    return offset;
}

size_t sn_tensor_view_line(const sn_model_tensor *t, size_t r) {
    size_t before = 0, next, offset = 0, rows = t->group_rows;
    for (int i = 0; i < t->n_parts; i++) {
        size_t at = part_offset(t, i, &next);
        if (next > r) break;
        before = next, offset = at, rows = t->part_rows[i];
    }
    return (r - before) / rows * t->group_stride + offset + (r - before) % rows;
}

/* Q (place 0), K (1) or V (2) of a fused tensor. */
static sn_tensor_view view_of_qkv(sn_qkv_layout layout, const sn_hparams *h, int place) {
    size_t groups = layout == SN_QKV_FUSED_PER_HEAD ? (size_t)h->n_kv_heads : 1;
    size_t kv = (size_t)h->n_kv_heads * (size_t)h->head_dim / groups;
    size_t q = (size_t)h->n_heads * (size_t)h->head_dim / groups, all = q + 2 * kv;
    const size_t first[] = {0, q, q + kv};
    return (sn_tensor_view){
        .whole = all * groups, .first = first[place], .group_rows = place ? kv : q, .group_stride = all};
}

/* Q, or the gate, of a tensor that holds both, head by head. */
static sn_tensor_view view_of_gated_q(const sn_hparams *h, size_t own, bool gate) {
    size_t head = (size_t)h->head_dim;
    return (sn_tensor_view){.whole = 2 * own, .first = gate ? head : 0, .group_rows = head, .group_stride = 2 * head};
}

/* Parts of the tensor of a recurrent block's four inputs, by key head: queries, keys, values, the values' gate; or of
 * the pairs of a value head's two numbers. */
static sn_tensor_view view_of_delta(const sn_hparams *h, sn_role role) {
    size_t heads = (size_t)h->delta_key_heads, key = (size_t)h->delta_key_dim,
           each = (size_t)h->delta_value_heads / heads;
    size_t value = each * (size_t)h->delta_value_dim, qkv = 2 * key + value, all = qkv + value;
    if (role == SN_ROLE_DELTA_QKV)
        return (sn_tensor_view){
            .whole = heads * all, .group_rows = qkv, .group_stride = all, .n_parts = 3, .part_rows = {key, key, value}};
    if (role == SN_ROLE_DELTA_GATE)
        return (sn_tensor_view){.whole = heads * all, .first = qkv, .group_rows = value, .group_stride = all};
    return (sn_tensor_view){.whole = heads * 2 * each,
                            .first = role == SN_ROLE_DELTA_TIME ? each : 0,
                            .group_rows = each,
                            .group_stride = 2 * each};
}

/* Parts of the one tensor that the input of a recurrent block is multiplied with: of the state space the gate, what
 * enters the convolution, the steps; of the convolution alone what is written, the gate, what enters it. */
static sn_tensor_view view_of_delta_input(const sn_hparams *h, sn_role role, size_t own) {
    const size_t width = sn_delta_width(h), values = sn_delta_values(h), times = sn_delta_times(h);
    size_t whole = values + width + times, first = role == SN_ROLE_DELTA_QKV    ? values
                                                   : role == SN_ROLE_DELTA_TIME ? values + width
                                                                                : 0;
    if (h->recurrence == SN_SHORT_CONV)
        whole = 3 * width, first = role == SN_ROLE_DELTA_QKV ? 2 * width : role == SN_ROLE_DELTA_GATE ? width : 0;
    return (sn_tensor_view){.whole = whole, .first = first, .group_rows = own, .group_stride = whole};
}

sn_tensor_view sn_tensor_view_of(const sn_tensor_naming *naming, const sn_hparams *hparams, sn_role role, size_t own) {
    bool qkv = naming->qkv != SN_QKV_SEPARATE;
    if (hparams->latent && (role == SN_ROLE_ATTN_K || role == SN_ROLE_ATTN_V)) { /* one matrix: V, then K */
        size_t latent = sn_kv_value_width(hparams, 0), all = latent + sn_kv_key_width(hparams, 0);
        return (sn_tensor_view){
            .whole = all, .first = role == SN_ROLE_ATTN_K ? latent : 0, .group_rows = own, .group_stride = all};
    }
    switch (role) {
    case SN_ROLE_DELTA_QKV:
    case SN_ROLE_DELTA_GATE:
        if (naming->delta_joined) return view_of_delta_input(hparams, role, own);
        if (naming->delta_fused) return view_of_delta(hparams, role);
        break;
    case SN_ROLE_DELTA_TIME:
    case SN_ROLE_DELTA_WRITE:
        if (naming->delta_joined) return view_of_delta_input(hparams, role, own);
        if (naming->delta_paired) return view_of_delta(hparams, role);
        break;
    case SN_ROLE_ATTN_GATE:
        return view_of_gated_q(hparams, own, true);
    case SN_ROLE_ATTN_Q:
    case SN_ROLE_ATTN_Q_BIAS:
        if (naming->q_gated) return view_of_gated_q(hparams, own, false);
        if (qkv) return view_of_qkv(naming->qkv, hparams, 0);
        break;
    case SN_ROLE_ATTN_K:
    case SN_ROLE_ATTN_K_BIAS:
        if (qkv) return view_of_qkv(naming->qkv, hparams, 1);
        break;
    case SN_ROLE_ATTN_V:
    case SN_ROLE_ATTN_V_BIAS:
        if (qkv) return view_of_qkv(naming->qkv, hparams, 2);
        break;
    case SN_ROLE_FFN_GATE:
    case SN_ROLE_FFN_UP:
    case SN_ROLE_SHARED_GATE:
    case SN_ROLE_SHARED_UP:
        if (role >= SN_ROLE_SHARED_GATE ? naming->shared_fused : naming->gate_up_fused)
            return (sn_tensor_view){.whole = 2 * own,
                                    .first = role == SN_ROLE_FFN_UP || role == SN_ROLE_SHARED_UP ? own : 0,
                                    .group_rows = own,
                                    .group_stride = 2 * own};
        break;
    case SN_ROLE_EXPERTS_GATE_BIAS:
    case SN_ROLE_EXPERTS_UP_BIAS:
        if (naming->experts_transposed)
            return (sn_tensor_view){
                .whole = 2 * own, .first = role == SN_ROLE_EXPERTS_UP_BIAS, .group_rows = 1, .group_stride = 2};
        break;
    default:
        break;
    }
    return (sn_tensor_view){.whole = own, .group_rows = own, .group_stride = own};
}

sn_tensor_view sn_tensor_view_of_expert(const sn_tensor_naming *naming, sn_role role, bool packed, size_t rows,
                                        size_t cols, size_t expert, size_t n_experts) {
    bool halves = naming->gate_up_halves;
    size_t parts = role == SN_ROLE_EXPERTS_DOWN ? 1 : 2, step = halves ? 1 : parts, line = parts * rows;
    if (naming->experts_transposed && packed)
        return (sn_tensor_view){.whole = n_experts * line,
                                .first = expert * line + (role == SN_ROLE_EXPERTS_UP),
                                .group_rows = step == 1 ? rows : 1,
                                .group_stride = step == 1 ? rows : step};
    if (naming->experts_transposed)
        return (sn_tensor_view){.whole = n_experts * cols,
                                .first = expert * cols * line + (role == SN_ROLE_EXPERTS_UP) * (halves ? rows : 1),
                                .row_step = step,
                                .col_step = line,
                                .cols = cols};
    if (naming->gate_up_fused)
        return (sn_tensor_view){.whole = n_experts * line,
                                .first = expert * line + (role == SN_ROLE_EXPERTS_UP ? rows : 0),
                                .group_rows = rows,
                                .group_stride = n_experts * line};
    return (sn_tensor_view){
        .whole = n_experts * rows, .first = expert * rows, .group_rows = rows, .group_stride = n_experts * rows};
}

sn_tensor_view sn_tensor_view_of_head(const sn_hparams *h, sn_role role, bool joined, bool plain_float, size_t head,
                                      size_t *own) {
    size_t heads = (size_t)h->n_heads, nope = (size_t)h->nope_dim, value = (size_t)h->value_dim,
           latent = (size_t)h->latent, both = nope + value, rows = role == SN_ROLE_ATTN_K_UP ? latent : value;
    *own = rows;
    if (!joined)
        return (sn_tensor_view){.whole = heads * rows, .first = head * rows, .group_rows = rows, .group_stride = rows};
    sn_tensor_view view = {.whole = heads * both};
    if (role == SN_ROLE_ATTN_V_UP)
        view.first = head * both + nope, view.group_rows = view.group_stride = value;
    else if (plain_float)
        view.first = head * both * latent, view.row_step = 1, view.col_step = latent, view.cols = nope;
    else
        view.first = head * both, view.group_rows = view.group_stride = *own = nope, view.turned = true;
    return view;
}

/* From the transposed tensor in the file to the role's (own, view->cols). */
static void narrow_transposed(const sn_tensor_view *view, sn_role role, size_t own, sn_model_tensor *t) {
    size_t element = t->bytes / t->rows / t->cols, cols = view->cols;
    t->data = (const char *)t->data + view->first * element;
    t->rows = own;
    t->cols = cols;
    t->bytes = own * cols * element;
    t->group_rows = t->group_stride = own;
    t->row_step = view->row_step;
    t->col_step = view->col_step;
    t->tie |= (uint64_t)(role + 1) << 48;
}

void sn_tensor_view_narrow(const sn_tensor_view *view, sn_role role, size_t own, sn_model_tensor *t) {
    if (view->col_step) narrow_transposed(view, role, own, t);
    if (view->col_step || view->whole == own) return;
    size_t unit = t->bytes / sn_tensor_view_units(t);
    if (!t->packed) t->data = (const char *)t->data + view->first * unit_in_file(t);
    if (t->scales || t->packed) t->first_row += view->first;
    *(t->vector ? &t->cols : &t->rows) = own;
    t->bytes = own * unit;
    t->group_rows = view->group_rows;
    t->group_stride = view->group_stride;
    t->n_parts = view->n_parts;
    memcpy(t->part_rows, view->part_rows, sizeof t->part_rows);
    t->turned = view->turned;
    t->tie |= (uint64_t)(role + 1) << 48; /* a parameter of its own within the tensor */
}

size_t sn_model_n_runs(const sn_model_tensor *t) {
    if (!t->data || t->packed || t->col_step) return !t->data ? 0 : t->packed ? 1 : t->cols;
    return sn_tensor_view_units(t) / t->group_rows * (size_t)(t->n_parts ? t->n_parts : 1);
}

/* The units of run i in the file, from *line on. */
static size_t run_units(const sn_model_tensor *t, size_t i, size_t *line) {
    size_t groups = sn_tensor_view_units(t) / t->group_rows, before = 0;
    int part = (int)(i / groups);
    *line = i % groups * t->group_stride + part_offset(t, part, &before);
    return t->n_parts ? t->part_rows[part] : t->group_rows;
}

const void *sn_model_run(const sn_model_tensor *t, size_t i, size_t *bytes) {
    if (t->packed) return sn_packed_part_of(t->packed, SN_PACKED_CODES, bytes);
    if (t->col_step) {
        size_t element = t->bytes / t->rows / t->cols;
        *bytes = ((t->rows - 1) * t->row_step + 1) * element;
        return (const char *)t->data + i * t->col_step * element;
    }
    size_t unit = unit_in_file(t), line;
    *bytes = run_units(t, i, &line) * unit;
    return (const char *)t->data + line * unit;
}

/* How many rows share a row of scales, and its bytes. */
static size_t scales_of(const sn_model_tensor *t, size_t *bytes) {
    bool f8 = sn_is_f8(t->dtype);
    size_t n = t->scales_single ? 1 : t->cols / F8_BLOCK;
    *bytes = f8 ? n * (t->scales_short ? 2 : 4) : t->cols / BLOCK;
    return t->scales_single ? SIZE_MAX : f8 ? F8_BLOCK : 1;
}

const void *sn_model_run_scales(const sn_model_tensor *t, size_t i, size_t *bytes) {
    size_t row_bytes, rows = scales_of(t, &row_bytes), line, n = run_units(t, i, &line), first = t->first_row + line;
    *bytes = ((first + n - 1) / rows - first / rows + 1) * row_bytes;
    return (const char *)t->scales + first / rows * row_bytes;
}

const void *sn_model_packed_part(const sn_model_tensor *t, int i, size_t *bytes) {
    *bytes = 0;
    for (int part = SN_PACKED_CODES + 1; t->packed && part < SN_PACKED_PARTS; part++) {
        const void *at = sn_packed_part_of(t->packed, part, bytes);
        if (at && i-- == 0) return at;
    }
    return NULL;
}

bool sn_model_is_ordered(const sn_model_tensor *t) { return t->packed && t->packed->ordered; }

sn_status sn_model_order(const sn_model_tensor *t, int32_t *order, sn_err *err) {
    return sn_packed_order(t->packed, order, err);
}

bool sn_model_is_rearranged(const sn_model_tensor *t) { return t->col_step || t->scales || t->packed; }

/* Copies a few columns at a time, so that the destination stays in the cache. */
static void transpose_matrix(const sn_model_tensor *t, size_t element, char *to) {
    enum { COLUMNS = 32 };
    for (size_t first = 0; first < t->cols; first += COLUMNS) {
        size_t end = t->cols - first < COLUMNS ? t->cols : first + COLUMNS;
        for (size_t r = 0; r < t->rows; r++)
            for (size_t c = first; c < end; c++) {
                const char *from = (const char *)t->data + (r * t->row_step + c * t->col_step) * element;
                char *at = to + (r * t->cols + c) * element;
                if (element == 2)
                    memcpy(at, from, 2);
                else
                    memcpy(at, from, 4);
            }
    }
}

/* Joins elements and exponents to SN_MXFP4: a block is its exponent, then elements 0..15 in the low halves of 16 bytes
 * and 16..31 in the high halves. */
static void pack_mxfp4(const sn_model_tensor *t, uint8_t *to) {
    size_t per_row = t->cols / BLOCK;
    for (size_t r = 0; r < t->rows; r++) {
        size_t line = sn_tensor_view_line(t, r);
        const uint8_t *from = (const uint8_t *)t->data + line * (t->cols / 2);
        const uint8_t *scales = (const uint8_t *)t->scales + (t->first_row + line) * per_row;
        for (size_t b = 0; b < per_row; b++, from += HALF, to += PACKED) {
            to[0] = scales[b];
            for (int i = 0; i < HALF; i++) {
                int shift = i % 2 * 4;
                to[1 + i] = (uint8_t)((from[i / 2] >> shift & 15) | (from[HALF / 2 + i / 2] >> shift & 15) << 4);
            }
        }
    }
}

static float f8_scale(const sn_model_tensor *t, size_t i) {
    float wide;
    uint16_t half;
    memcpy(&half, (const char *)t->scales + i * sizeof half, sizeof half);
    if (t->scales_short) return sn_bf16_to_f32(half);
    memcpy(&wide, (const char *)t->scales + i * sizeof wide, sizeof wide);
    return wide;
}

/* Joins elements and scales to a type of F8: a block is its scale, then its elements. */
static sn_status pack_f8(const sn_model_tensor *t, uint8_t *to, sn_err *err) {
    size_t per_row = t->cols / F8_BLOCK;
    for (size_t r = 0; r < t->rows; r++) {
        size_t line = sn_tensor_view_line(t, r);
        const uint8_t *from = (const uint8_t *)t->data + line * t->cols;
        for (size_t b = 0; b < per_row; b++, from += F8_BLOCK) {
            float scale = f8_scale(t, t->scales_single ? 0 : (t->first_row + line) / F8_BLOCK * per_row + b);
            bool wrong = !(fabsf(scale) <= 0x1p100f);
            memcpy(to, &scale, sizeof scale);
            memcpy(to += sizeof scale, from, F8_BLOCK);
            for (size_t i = 0; i < F8_BLOCK; i++) wrong |= !sn_f8_is_number(t->dtype, *to++);
            if (wrong)
                return sn_fail(err, SN_REFUSED,
                               "row %zu of the FP8 weights holds NaN, or a scale that is no number up to 2^100: the "
                               "file is damaged, fetch it again ('swarm models remove' drops one of the cache)",
                               t->first_row + line);
        }
    }
    return SN_OK;
}

sn_status sn_model_contiguous(const sn_model_tensor *t, const void **rows, void **copy, sn_err *err) {
    size_t n = sn_model_n_runs(t), bytes, at = 0;
    sn_status status = SN_OK;
    *copy = NULL;
    *rows = t->data;
    const bool rearranged = sn_model_is_rearranged(t);
    if (n <= 1 && !rearranged) return SN_OK;
    char *made = malloc(t->bytes);
    if (!made) return sn_fail(err, SN_STOP, "out of memory for a matrix of %zu bytes", t->bytes);
    if (t->packed)
        status = sn_packed_unpack(t, made, err);
    else if (t->scales && sn_is_f8(t->dtype))
        status = pack_f8(t, (uint8_t *)made, err);
    else if (t->scales)
        pack_mxfp4(t, (uint8_t *)made);
    else if (t->col_step)
        transpose_matrix(t, t->bytes / t->rows / t->cols, made);
    for (size_t i = 0; !rearranged && i < n; i++, at += bytes) {
        const void *run = sn_model_run(t, i, &bytes);
        memcpy(made + at, run, bytes);
    }
    if (status) {
        free(made);
        return status;
    }
    *rows = *copy = made;
    return SN_OK;
}
