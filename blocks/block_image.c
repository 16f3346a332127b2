/* The image of a block: measured (sn_block_layout_of), written (sn_block_pack), and used in place (sn_block_at). */
#include "blocks/block.h"

#include "base/file.h"
#include "base/mem.h"
#include "blocks/weights.h"
#include "device/quant.h"
#include "model/source.h"

#include <stdlib.h>
#include <string.h>

/* All matrices of a role must have the type of the first one, because they lie at equal distances (`stride`). */
static sn_status check_same_dtype(const sn_model *model, sn_role role, int number, const sn_model_tensor *first,
                                  int n_matrices, sn_err *err) {
    for (int i = 1; i < n_matrices; i++) {
        sn_model_tensor t;
        sn_status status = sn_model_find_expert(model, role, number, i, &t, err);
        if (status) return status;
        if (!t.turned && t.dtype != first->dtype)
            return sn_fail(err, SN_REFUSED, "block %d, %s: the experts are of different types, %s and %s", number,
                           sn_role_name(role), sn_dtype_name(first->dtype), sn_dtype_name(t.dtype));
    }
    return SN_OK;
}

static const sn_role piece_roles[SN_EXPERT_PIECES] = {SN_ROLE_EXPERTS_GATE,    SN_ROLE_EXPERTS_UP,
                                                      SN_ROLE_EXPERTS_DOWN,    SN_ROLE_EXPERTS_GATE_BIAS,
                                                      SN_ROLE_EXPERTS_UP_BIAS, SN_ROLE_EXPERTS_DOWN_BIAS};

static bool is_expert_piece(sn_role role) {
    int i = 0;
    while (i < SN_EXPERT_PIECES && piece_roles[i] != role) i++;
    return i < SN_EXPERT_PIECES;
}

/* The number of pieces that a role has in the image. */
static int layout_n_pieces(const sn_block_layout *layout) {
    return layout->n_slots > 0 ? layout->n_slots : sn_n_held(layout->held);
}

/* The part of a role with a piece for each of n_experts, made smaller to n. */
static void part_limit(sn_weight_layout *part, int n_experts, int n) {
    if (!part->vector) part->n_matrices = n;
    if (part->vector) part->cols = part->cols / (size_t)n_experts * (size_t)n;
    if (part->vector) part->bytes = part->cols * sizeof(float);
}

/* About what several readers take at once: a disk is as fast with larger reads, but one that is needed at once would
 * wait longer for those before it. */
enum { READ_BYTES = 1 << 20 };

static void layout_set_pieces(sn_block_layout *out) {
    for (int i = 0; i < SN_EXPERT_PIECES; i++) {
        const sn_weight_layout *part = &out->parts[piece_roles[i]];
        if (part->rows) out->pieces[i] = part->vector ? part->bytes / (size_t)layout_n_pieces(out) : part->stride;
        out->expert_bytes += out->pieces[i];
    }
    size_t n_reads = out->expert_bytes / READ_BYTES + 1;
    out->read_bytes = sn_round_up(out->expert_bytes / n_reads + (out->expert_bytes % n_reads > 0), SN_FILE_PAGE);
    if (out->n_slots > 0) out->expert_bytes = out->read_bytes * n_reads;
}

void *sn_expert_piece_at(const sn_block_layout *layout, void *image, int piece, int slot) {
    return (char *)image + layout->parts[piece_roles[piece]].offset + (size_t)slot * layout->pieces[piece];
}

/* Columns in the order of their activations. */
static sn_status check_ordered(const sn_device *device, sn_role role, const sn_model_tensor *t, sn_err *err) {
    if (!sn_model_is_ordered(t)) return SN_OK;
    if (device->id.kind != SN_DEVICE_CPU)
        return sn_fail(err, SN_REFUSED,
                       "columns in the order of their activations (desc_act) are computed on CPUs only: use '--device "
                       "cpu', or a version without act-order");
    if (t->turned || sn_role_is_of_head(role) || sn_role_is_of_expert(role))
        return sn_fail(err, SN_REFUSED,
                       "columns in the order of their activations (desc_act) are not supported here: use a version "
                       "without act-order");
    return SN_OK;
}

/* The one weight that is a number of the program's, not of the device. */
static sn_status layout_set_scale(const sn_model *model, int number, sn_block_layout *out, sn_err *err) {
    sn_model_tensor t;
    sn_status status = sn_model_find(model, SN_ROLE_BLOCK_SCALE, number, &t, err);
    out->scales = !status && t.data;
    if (out->scales)
        status = sn_vector_read(sn_model_hparams(model), SN_ROLE_BLOCK_SCALE, &t, "scale", &out->scale, err);
    return status ? sn_err_context(err, "block %d", number) : SN_OK;
}

static sn_status layout_add_role(const sn_model *model, const sn_device *device, int number, sn_role role,
                                 sn_block_layout *out, sn_err *err) {
    sn_weight_layout *part = &out->parts[role];
    sn_model_tensor t;
    size_t all;
    if (role == SN_ROLE_BLOCK_SCALE) return layout_set_scale(model, number, out, err);
    if (out->n_slots == (is_expert_piece(role) ? SN_WITHOUT_EXPERTS : SN_ONLY_EXPERTS)) return SN_OK;
    sn_status status = sn_model_find(model, role, number, &t, err);
    if (!status) status = check_ordered(device, role, &t, err);
    if (status || !t.data) return status ? sn_err_context(err, "block %d, %s", number, sn_role_name(role)) : SN_OK;
    if (t.turned) t.dtype = SN_F32; /* it is decoded and transposed */
    bool vector = sn_role_is_vector(role);
    size_t unit = out->n_slots > 0 && is_expert_piece(role) && !vector ? SN_FILE_PAGE : 64;
    out->bytes = sn_round_up(out->bytes, unit);
    *part = (sn_weight_layout){.dtype = t.dtype,
                               .rows = t.turned ? t.cols : t.rows,
                               .cols = t.turned ? t.rows : t.cols,
                               .offset = out->bytes,
                               .bytes = t.cols * sizeof(float),
                               .n_matrices = sn_role_n_matrices(sn_model_hparams(model), role),
                               .vector = vector,
                               .ordered = sn_model_is_ordered(&t)};
    if (!part->vector) status = device->ops->weight_size(device, t.dtype, part->rows, part->cols, &part->bytes, err);
    if (status) return sn_err_context(err, "block %d, %s", number, sn_role_name(role));
    if (is_expert_piece(role)) part_limit(part, sn_model_hparams(model)->n_experts, layout_n_pieces(out));
    part->stride = sn_round_up(part->bytes, unit);
    if (part->ordered) part->stride += sn_round_up(part->cols * sizeof(int32_t), unit);
    if (!sn_mul(part->stride, (size_t)part->n_matrices, &all) || !sn_add(out->bytes, all, &out->bytes))
        return sn_fail(err, SN_REFUSED, "block %d is too large", number);
    return check_same_dtype(model, role, number, &t, sn_role_n_matrices(sn_model_hparams(model), role), err);
}

sn_status sn_block_layout_of(const sn_model *model, const sn_device *device, int number, int n_slots,
                             sn_expert_range experts, sn_block_layout *out, sn_err *err) {
    sn_status status = SN_OK;
    bool mixture = sn_has_experts(sn_model_hparams(model), number);
    *out = (sn_block_layout){.n_slots = mixture ? n_slots : 0};
    if (mixture) out->held = experts.end ? experts : (sn_expert_range){0, sn_model_hparams(model)->n_experts};
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT && !status; role++)
        status = layout_add_role(model, device, number, (sn_role)role, out, err);
    if (!status && mixture) layout_set_pieces(out);
    out->bytes = sn_round_up(out->bytes, SN_FILE_PAGE); /* the next block begins at a page, too */
    return status;
}

/* The transpose of a quantised matrix, as float32. */
static sn_status pack_turned(sn_device *device, const sn_model_tensor *t, void *out, sn_err *err) {
    const void *rows;
    void *copy = NULL;
    float *both = NULL; /* the transpose, then a row */
    sn_status status = sn_calloc(&both, (t->rows + 1) * t->cols, sizeof *both, err);
    if (!status) status = sn_model_contiguous(t, &rows, &copy, err);
    for (size_t r = 0; r < t->rows && !status; r++) {
        float *row = both + t->rows * t->cols;
        sn_dequantize_row(t->dtype, (const char *)rows + r * (t->bytes / t->rows), t->cols, row);
        for (size_t c = 0; c < t->cols; c++) both[c * t->rows + r] = row[c];
    }
    if (!status) status = device->ops->weight_pack(device, SN_F32, t->cols, t->rows, both, out, err);
    free(both);
    free(copy);
    return status;
}

static sn_status pack_matrix(sn_device *device, const sn_model_tensor *t, void *out, sn_err *err) {
    const void *rows;
    void *copy;
    if (t->turned) return pack_turned(device, t, out, err);
    sn_status status = sn_model_contiguous(t, &rows, &copy, err);
    if (!status) status = device->ops->weight_pack(device, t->dtype, t->rows, t->cols, rows, out, err);
    free(copy);
    return status;
}

static int32_t *order_at(const sn_weight_layout *part, void *matrix) {
    return part->ordered ? (int32_t *)((char *)matrix + sn_round_up(part->bytes, 64)) : NULL;
}

static sn_status pack_order(const sn_model *model, int number, sn_role role, const sn_weight_layout *part, void *matrix,
                            sn_err *err) {
    sn_model_tensor t;
    if (!part->ordered) return SN_OK;
    sn_status status = sn_model_find(model, role, number, &t, err);
    return status ? status : sn_model_order(&t, order_at(part, matrix), err);
}

static sn_status pack_weight(const sn_model *model, sn_device *device, int number, sn_role role, int expert, void *out,
                             sn_err *err) {
    sn_model_tensor t;
    const char *name = sn_role_name(role);
    sn_status status = sn_model_find_expert(model, role, number, expert, &t, err);
    if (status) return status;
    if (sn_role_is_vector(role))
        status = sn_vector_read(sn_model_hparams(model), role, &t, name, out, err);
    else
        status = pack_matrix(device, &t, out, err);
    sn_model_release_pages(model, &t);
    return status ? sn_err_context(err, "block %d, %s", number, name) : SN_OK;
}

/* The held experts' part of a bias, of which the model has all experts' one after the other. */
static sn_status pack_held_biases(const sn_model *model, sn_device *device, int number, sn_role role,
                                  const sn_block_layout *layout, void *out, sn_err *err) {
    const sn_weight_layout *part = &layout->parts[role];
    size_t piece = part->bytes / (size_t)sn_n_held(layout->held);
    char *all = NULL;
    sn_status status = sn_calloc(&all, (size_t)sn_model_hparams(model)->n_experts, piece, err);
    if (!status) status = pack_weight(model, device, number, role, 0, all, err);
    if (!status) memcpy(out, all + (size_t)layout->held.first * piece, part->bytes);
    free(all);
    return status;
}

sn_status sn_block_pack(const sn_model *model, sn_device *device, int number, const sn_block_layout *layout,
                        void *image, sn_err *err) {
    sn_status needed = sn_model_need_block(model, number, err);
    if (needed) return needed;
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        const sn_weight_layout *part = &layout->parts[role];
        bool of_experts = is_expert_piece((sn_role)role);
        if (layout->n_slots > 0 && of_experts) continue;
        for (int i = 0; part->rows && i < part->n_matrices; i++) {
            char *out = (char *)image + part->offset + (size_t)i * part->stride;
            int expert = of_experts ? layout->held.first + i : i;
            SN_TRY(of_experts && part->vector ? pack_held_biases(model, device, number, (sn_role)role, layout, out, err)
                                              : pack_weight(model, device, number, (sn_role)role, expert, out, err));
            SN_TRY(pack_order(model, number, (sn_role)role, part, out, err));
        }
    }
    return SN_OK;
}

/* Copies the expert's part of each bias, of which `biases` has all experts' one after the other. */
static void copy_biases(const sn_block_layout *layout, int expert, const char *const biases[SN_EXPERT_PIECES],
                        char *image) {
    for (int i = 0; i < SN_EXPERT_PIECES; image += layout->pieces[i++])
        if (biases[i]) memcpy(image, biases[i] + (size_t)expert * layout->pieces[i], layout->pieces[i]);
}

static sn_status pack_expert(const sn_model *model, sn_device *device, int number, int expert,
                             const sn_block_layout *layout, char *image, sn_err *err) {
    for (int i = 0; i < SN_EXPERT_PIECES; image += layout->pieces[i++]) {
        if (!layout->pieces[i] || layout->parts[piece_roles[i]].vector) continue;
        sn_status status = pack_weight(model, device, number, piece_roles[i], expert, image, err);
        if (status) return status;
    }
    return SN_OK;
}

sn_status sn_experts_pack(const sn_model *model, sn_device *device, int number, const sn_block_layout *layout,
                          sn_expert_taker take, void *ctx, sn_err *err) {
    char *biases[SN_EXPERT_PIECES] = {NULL};
    void *image = NULL;
    size_t n = (size_t)sn_model_hparams(model)->n_experts;
    sn_status status = sn_model_need_block(model, number, err);
    if (!status) status = sn_pages_alloc(&image, layout->expert_bytes, err);
    for (int i = 0; i < SN_EXPERT_PIECES && !status; i++) {
        if (!layout->pieces[i] || !layout->parts[piece_roles[i]].vector) continue;
        status = sn_calloc(&biases[i], n, layout->pieces[i], err);
        if (!status) status = pack_weight(model, device, number, piece_roles[i], 0, biases[i], err);
    }
    for (int e = layout->held.first; e < layout->held.end && !status; e++) {
        copy_biases(layout, e, (const char *const *)biases, image);
        status = pack_expert(model, device, number, e, layout, image, err);
        if (!status) status = take(ctx, e - layout->held.first, image, err);
    }
    for (int i = 0; i < SN_EXPERT_PIECES; i++) free(biases[i]);
    sn_pages_free(&image, layout->expert_bytes);
    return status;
}

sn_block sn_block_at(const sn_block_layout *layout, const void *image) {
    sn_block block = {.held = layout->held, .scales = layout->scales, .scale = layout->scale};
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        const sn_weight_layout *part = &layout->parts[role];
        const void *at = (const char *)image + part->offset;
        if (!part->rows) continue;
        if (part->vector)
            block.vector[role] = at, block.width[role] = (int)part->cols;
        else
            block.matrix[role] = (sn_weight){part->dtype, part->rows, part->cols,
                                             part->bytes, at,         order_at(part, (void *)(uintptr_t)at)};
        if (sn_role_is_of_head((sn_role)role))
            block.heads[role == SN_ROLE_ATTN_V_UP] = (sn_experts){block.matrix[role], part->stride, part->n_matrices};
        if (sn_role_is_of_expert((sn_role)role))
            block.experts[role - SN_ROLE_EXPERTS_GATE] =
                (sn_experts){block.matrix[role], part->stride, part->n_matrices};
    }
    return block;
}
