/* The mathematics of a block. A family differs by what its descriptor says it has (biases, q/k norms, a window, the
 * style of its rope), not by code of its own. */
#include "blocks/block.h"

#include "base/mem.h"
#include "blocks/experts.h"
#include "blocks/vector.h"

#include <stdlib.h>

static const char *role_name(sn_role role) {
    static const char *const names[] = {
#define X(name) #name,
        SN_ROLES(X)
#undef X
    };
    return names[role];
}

/* The role's matrices must be alike: one is found `stride` behind the other. */
static sn_status check_alike(const sn_model *model, sn_role role, int number, const sn_model_tensor *first, int pieces,
                             sn_err *err) {
    for (int i = 1; i < pieces; i++) {
        sn_model_tensor t;
        sn_status status = sn_model_find_piece(model, role, number, i, &t, err);
        if (status) return status;
        if (t.dtype != first->dtype)
            return sn_fail(err, SN_REFUSED, "block %d, %s: the experts are of different types, %s and %s", number,
                           role_name(role), sn_dtype_name(first->dtype), sn_dtype_name(t.dtype));
    }
    return SN_OK;
}

sn_status sn_block_layout_of(const sn_model *model, const sn_device *device, int number, sn_block_layout *out,
                             sn_err *err) {
    *out = (sn_block_layout){0};
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        sn_model_tensor t;
        sn_status status = sn_model_find(model, (sn_role)role, number, &t, err);
        if (status) return status;
        if (!t.data) continue;
        bool vector = sn_role_is_vector((sn_role)role);
        int pieces = sn_role_pieces(sn_model_hparams(model), (sn_role)role);
        size_t bytes = t.cols * sizeof(float);
        if (!vector) status = device->ops->weight_size(device, t.dtype, t.rows, t.cols, &bytes, err);
        if (status) return sn_err_context(err, "block %d, %s", number, role_name((sn_role)role));
        status = check_alike(model, (sn_role)role, number, &t, pieces, err);
        if (status) return status;
        out->parts[role].dtype = t.dtype;
        out->parts[role].rows = t.rows;
        out->parts[role].cols = t.cols;
        out->parts[role].offset = out->bytes;
        out->parts[role].bytes = bytes;
        out->parts[role].stride = sn_round_up(bytes, 64);
        out->parts[role].pieces = pieces;
        out->parts[role].vector = vector;
        if (!sn_mul(out->parts[role].stride, (size_t)pieces, &bytes) || !sn_add(out->bytes, bytes, &out->bytes))
            return sn_fail(err, SN_REFUSED, "block %d is too large", number);
    }
    return SN_OK;
}

static sn_status pack_matrix(sn_device *device, const sn_model_tensor *t, void *out, sn_err *err) {
    const void *rows;
    void *copy;
    sn_status status = sn_model_contiguous(t, &rows, &copy, err);
    if (!status) status = device->ops->weight_pack(device, t->dtype, t->rows, t->cols, rows, out, err);
    free(copy);
    return status;
}

static sn_status pack_piece(const sn_model *model, sn_device *device, int number, sn_role role, int piece, void *place,
                            sn_err *err) {
    sn_model_tensor t;
    const char *name = role_name(role);
    sn_status status = sn_model_find_piece(model, role, number, piece, &t, err);
    if (status) return status;
    if (sn_role_is_vector(role))
        status = sn_vector_read(sn_model_hparams(model), role, &t, name, place, err);
    else
        status = pack_matrix(device, &t, place, err);
    sn_model_forget(model, &t);
    return status ? sn_err_context(err, "block %d, %s", number, name) : SN_OK;
}

sn_status sn_block_pack(const sn_model *model, sn_device *device, int number, const sn_block_layout *layout,
                        void *image, sn_err *err) {
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++)
        for (int i = 0; layout->parts[role].rows && i < layout->parts[role].pieces; i++) {
            char *place = (char *)image + layout->parts[role].offset + (size_t)i * layout->parts[role].stride;
            sn_status status = pack_piece(model, device, number, (sn_role)role, i, place, err);
            if (status) return status;
        }
    return SN_OK;
}

sn_block sn_block_at(const sn_block_layout *layout, const void *image) {
    sn_block block = {0};
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        if (!layout->parts[role].rows) continue;
        const void *place = (const char *)image + layout->parts[role].offset;
        if (layout->parts[role].vector)
            block.vector[role] = place, block.width[role] = (int)layout->parts[role].cols;
        else
            block.matrix[role] = (sn_weight){layout->parts[role].dtype, layout->parts[role].rows,
                                             layout->parts[role].cols, layout->parts[role].bytes, place};
        if (role >= SN_ROLE_EXPERTS_GATE && role <= SN_ROLE_EXPERTS_DOWN)
            block.experts[role - SN_ROLE_EXPERTS_GATE] =
                (sn_experts){block.matrix[role], layout->parts[role].stride, layout->parts[role].pieces};
    }
    return block;
}

/* Each step of the mathematics is one operation of the device; the first that fails ends the pass. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        sn_status status_ = (call);                                                                                    \
        if (status_) return status_;                                                                                   \
    } while (0)

sn_status sn_block_norm(const sn_block *b, const sn_block_pass *p, sn_role role, size_t n, const float *x, float *y,
                        sn_err *err) {
    int width = b->width[role], rows = (int)(n / (size_t)width);
    sn_role bias = sn_role_bias(role);
    if (p->hp->layer_norm)
        return p->device->ops->layer_norm(p->device, rows, width, x, b->vector[role],
                                          bias == SN_ROLE_COUNT ? NULL : b->vector[bias], p->hp->norm_eps, y, err);
    return p->device->ops->rms_norm(p->device, rows, width, x, b->vector[role], p->hp->norm_eps, y, err);
}

sn_status sn_block_prompt(const sn_block_pass *p, sn_err *err) {
    size_t width = (size_t)p->hp->n_embd;
    if (!p->tuning || !p->tuning->n_prompt) return SN_OK;
    for (int i = 0; i < p->n_sequences; i++) {
        const sn_sequence *q = &p->sequences[i];
        int n = p->tuning->n_prompt - q->position;
        if (n > q->n_rows) n = q->n_rows;
        if (n > 0)
            TRY(p->device->ops->add(p->device, (size_t)n * width, p->scratch->x + (size_t)q->first_row * width,
                                    p->tuning->prompt + (size_t)q->position * width, err));
    }
    return SN_OK;
}

sn_status sn_block_tune(const sn_block_pass *p, sn_role role, const float *u, float *y, sn_err *err) {
    if (!p->tuning || !p->tuning->lora[role].a.rows) return SN_OK;
    const sn_weight *a = &p->tuning->lora[role].a, *b = &p->tuning->lora[role].b;
    const sn_linear down = {.weight = a, .y = p->scratch->low}, up = {.weight = b, .y = p->scratch->wide};
    TRY(p->device->ops->linear(p->device, p->n_rows, u, 1, &down, err));
    TRY(p->device->ops->linear(p->device, p->n_rows, p->scratch->low, 1, &up, err));
    return p->device->ops->add(p->device, (size_t)p->n_rows * b->rows, y, p->scratch->wide, err);
}

/* The input of a half of the block: x, or h = norm(x) where the family norms there. */
static sn_status enter(const sn_block *b, const sn_block_pass *p, sn_role role, float *h, const float **u, sn_err *err) {
    const sn_scratch *s = p->scratch;
    *u = b->vector[role] ? h : s->x;
    return b->vector[role] ? sn_block_norm(b, p, role, (size_t)p->n_rows * (size_t)p->hp->n_embd, s->x, h, err)
                           : SN_OK;
}

/* x += h, normed before where the family norms there. */
static sn_status leave(const sn_block *b, const sn_block_pass *p, sn_role role, sn_err *err) {
    const sn_scratch *s = p->scratch;
    size_t n = (size_t)p->n_rows * (size_t)p->hp->n_embd;
    if (b->vector[role]) TRY(sn_block_norm(b, p, role, n, s->h, s->h, err));
    return p->device->ops->add(p->device, n, s->x, s->h, err);
}

/* h = attention(u): (rows, n_embd) */
static sn_status attend(const sn_block *b, int index, const sn_block_pass *p, const float *u, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    size_t q = (size_t)n * (size_t)heads * (size_t)dim, kv = (size_t)n * (size_t)kv_heads * (size_t)dim;
    bool mixture = hp->n_experts; /* every rounding here may change which experts are chosen */
    const sn_rope rope = {hp->rope_style == SN_ROPE_HALVES, hp->rope_dim, s->cos_sin[sn_rope_of(hp, p->number)]};

    /* q, k, v = u Wq^T, u Wk^T, u Wv^T (+ biases) */
    const sn_linear qkv[] = {{&b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], s->q, mixture},
                             {&b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], s->k, mixture},
                             {&b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v, mixture}};
    TRY(ops->linear(d, n, u, 3, qkv, err));
    TRY(sn_block_tune(p, SN_ROLE_ATTN_Q, u, s->q, err));
    TRY(sn_block_tune(p, SN_ROLE_ATTN_K, u, s->k, err));
    TRY(sn_block_tune(p, SN_ROLE_ATTN_V, u, s->v, err));
    /* each head of q and k normed by itself, or all as one, where the family has such norms */
    if (b->vector[SN_ROLE_ATTN_Q_NORM]) TRY(sn_block_norm(b, p, SN_ROLE_ATTN_Q_NORM, q, s->q, s->q, err));
    if (b->vector[SN_ROLE_ATTN_K_NORM]) TRY(sn_block_norm(b, p, SN_ROLE_ATTN_K_NORM, kv, s->k, s->k, err));
    /* q, k rotated by their positions */
    TRY(ops->rope(d, n, heads, dim, s->q, &rope, err));
    TRY(ops->rope(d, n, kv_heads, dim, s->k, &rope, err));
    /* past and present join in the cache; each query looks back over both */
    TRY(ops->kv_store(d, index, s->k, s->v, err));
    const sn_attention how = {.block = index, .n_heads = heads, .window = sn_window_of(hp, p->number),
                              .scale = hp->attn_scale, .slopes = b->vector[SN_ROLE_ATTN_SLOPES],
                              .sinks = b->vector[SN_ROLE_ATTN_SINKS]};
    TRY(ops->attention(d, &how, s->q, s->attn, err));
    /* h = attn Wo^T (+ bias) */
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], b->vector[SN_ROLE_ATTN_O_BIAS], s->h, mixture};
    TRY(ops->linear(d, n, s->attn, 1, &o, err));
    return sn_block_tune(p, SN_ROLE_ATTN_O, s->attn, s->h, err);
}

/* h = (a(u Wgate^T) * (u Wup^T)) Wdown^T, or a(u Wup^T) Wdown^T where the family has no gates (+ biases), or what a few of
 * many such give (experts.h): (rows, n_embd) */
static sn_status feed_forward(const sn_block *b, const sn_block_pass *p, const float *u, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    if (hp->n_experts) return sn_experts_forward(b, p, u, err);
    bool gated = hp->gated;
    float *up = gated ? s->up : s->gate;
    const sn_linear up_gate[] = {{.weight = &b->matrix[SN_ROLE_FFN_UP], .bias = b->vector[SN_ROLE_FFN_UP_BIAS], .y = up},
                                 {.weight = &b->matrix[SN_ROLE_FFN_GATE], .y = s->gate}};
    TRY(d->ops->linear(d, p->n_rows, u, gated ? 2 : 1, up_gate, err));
    TRY(sn_block_tune(p, SN_ROLE_FFN_GATE, u, s->gate, err));
    TRY(sn_block_tune(p, SN_ROLE_FFN_UP, u, up, err));
    TRY(d->ops->activate(d, (size_t)p->n_rows * (size_t)hp->n_ff, hp->activation, s->gate, gated ? up : NULL, s->gate, err));
    const sn_linear down = {.weight = &b->matrix[SN_ROLE_FFN_DOWN], .bias = b->vector[SN_ROLE_FFN_DOWN_BIAS], .y = s->h};
    TRY(d->ops->linear(d, p->n_rows, s->gate, 1, &down, err));
    return sn_block_tune(p, SN_ROLE_FFN_DOWN, s->gate, s->h, err);
}

sn_status sn_block_forward(const sn_block *block, int index, const sn_block_pass *pass, sn_err *err) {
    const sn_scratch *s = pass->scratch;
    bool parallel = pass->hp->parallel;
    const float *u, *v = NULL;
    TRY(sn_block_prompt(pass, err));
    /* u = norm(x); parallel: v = norm(x) of the same x. Ba et al. 2016, Zhang & Sennrich 2019 */
    TRY(enter(block, pass, SN_ROLE_ATTN_NORM, s->h, &u, err));
    if (parallel) TRY(enter(block, pass, SN_ROLE_FFN_NORM, s->beside, &v, err));
    /* x += attention(u) */
    TRY(attend(block, index, pass, u, err));
    TRY(leave(block, pass, SN_ROLE_ATTN_POST_NORM, err));
    /* v = norm(x); x += feed_forward(v) */
    if (!parallel) TRY(enter(block, pass, SN_ROLE_FFN_NORM, s->h, &v, err));
    TRY(feed_forward(block, pass, v, err));
    return leave(block, pass, SN_ROLE_FFN_POST_NORM, err);
}
