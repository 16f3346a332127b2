/* The mathematics of a block. A family differs by what its descriptor says it has (biases, q/k norms, a window, the
 * style of its rope), not by code of its own. */
#include "blocks/block.h"

#include "base/mem.h"
#include "device/guard.h"

#include <math.h>
#include <string.h>

static const char *role_name(sn_role role) {
    static const char *const names[] = {
#define X(name) #name,
        SN_ROLES(X)
#undef X
    };
    return names[role];
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
        size_t bytes = t.cols * sizeof(float);
        if (!vector) status = device->ops->weight_size(device, t.dtype, t.rows, t.cols, &bytes, err);
        if (status) return sn_err_context(err, "block %d, %s", number, role_name((sn_role)role));
        out->parts[role].dtype = t.dtype;
        out->parts[role].rows = t.rows;
        out->parts[role].cols = t.cols;
        out->parts[role].offset = out->bytes;
        out->parts[role].bytes = bytes;
        out->parts[role].vector = vector;
        if (!sn_add(out->bytes, sn_round_up(bytes, 64), &out->bytes))
            return sn_fail(err, SN_REFUSED, "block %d is too large", number);
    }
    return SN_OK;
}

static sn_status pack_vector(const sn_model_tensor *t, const char *name, float *out, sn_err *err) {
    sn_tensor outside = {.name = name, .data = t->data, .dtype = t->dtype, .rank = 1, .shape = {(int64_t)t->cols}};
    return sn_guard(&outside, NULL, 1, outside.shape, out, NULL, err);
}

sn_status sn_block_pack(const sn_model *model, sn_device *device, int number, const sn_block_layout *layout,
                        void *image, sn_err *err) {
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        sn_model_tensor t;
        sn_status status = sn_model_find(model, (sn_role)role, number, &t, err);
        if (status) return status;
        if (!t.data) continue;
        void *place = (char *)image + layout->parts[role].offset;
        const char *name = role_name((sn_role)role);
        if (layout->parts[role].vector)
            status = pack_vector(&t, name, place, err);
        else
            status = device->ops->weight_pack(device, t.dtype, t.rows, t.cols, t.data, place, err);
        sn_model_forget(model, &t);
        if (status) return sn_err_context(err, "block %d, %s", number, name);
    }
    return SN_OK;
}

sn_block sn_block_at(const sn_block_layout *layout, const void *image) {
    sn_block block = {0};
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        if (!layout->parts[role].rows) continue;
        const void *place = (const char *)image + layout->parts[role].offset;
        if (layout->parts[role].vector)
            block.vector[role] = place;
        else
            block.matrix[role] = (sn_weight){layout->parts[role].dtype, layout->parts[role].rows,
                                             layout->parts[role].cols, layout->parts[role].bytes, place};
    }
    return block;
}

/* Each step of the mathematics is one operation of the device; the first that fails ends the pass. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        sn_status status_ = (call);                                                                                    \
        if (status_) return status_;                                                                                   \
    } while (0)

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
    const sn_linear down = {a, NULL, p->scratch->low}, up = {b, NULL, p->scratch->wide};
    TRY(p->device->ops->linear(p->device, p->n_rows, u, 1, &down, err));
    TRY(p->device->ops->linear(p->device, p->n_rows, p->scratch->low, 1, &up, err));
    return p->device->ops->add(p->device, (size_t)p->n_rows * b->rows, y, p->scratch->wide, err);
}

/* h = attention(norm(x)): (rows, n_embd) */
static sn_status attend(const sn_block *b, int index, const sn_block_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    const sn_rope rope = {hp->rope_style == SN_ROPE_HALVES, hp->rope_dim, s->cos_sin};

    /* h = x / rms(x) * w */
    TRY(ops->rms_norm(d, n, hp->n_embd, s->x, b->vector[SN_ROLE_ATTN_NORM], hp->norm_eps, s->h, err));
    /* q, k, v = h Wq^T, h Wk^T, h Wv^T (+ biases) */
    const sn_linear qkv[] = {{&b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], s->q},
                             {&b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], s->k},
                             {&b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v}};
    TRY(ops->linear(d, n, s->h, 3, qkv, err));
    TRY(sn_block_tune(p, SN_ROLE_ATTN_Q, s->h, s->q, err));
    TRY(sn_block_tune(p, SN_ROLE_ATTN_K, s->h, s->k, err));
    TRY(sn_block_tune(p, SN_ROLE_ATTN_V, s->h, s->v, err));
    /* each head of q and k normed by itself, where the family has such norms */
    if (b->vector[SN_ROLE_ATTN_Q_NORM])
        TRY(ops->rms_norm(d, n * heads, dim, s->q, b->vector[SN_ROLE_ATTN_Q_NORM], hp->norm_eps, s->q, err));
    if (b->vector[SN_ROLE_ATTN_K_NORM])
        TRY(ops->rms_norm(d, n * kv_heads, dim, s->k, b->vector[SN_ROLE_ATTN_K_NORM], hp->norm_eps, s->k, err));
    /* q, k rotated by their positions */
    TRY(ops->rope(d, n, heads, dim, s->q, &rope, err));
    TRY(ops->rope(d, n, kv_heads, dim, s->k, &rope, err));
    /* past and present join in the cache; each query looks back over both */
    TRY(ops->kv_store(d, index, s->k, s->v, err));
    float scale = 1.0f / sqrtf((float)dim);
    TRY(ops->attention(d, index, heads, hp->window, scale, s->q, s->attn, err));
    /* h = attn Wo^T */
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], NULL, s->h};
    TRY(ops->linear(d, n, s->attn, 1, &o, err));
    return sn_block_tune(p, SN_ROLE_ATTN_O, s->attn, s->h, err);
}

/* h = (silu(norm(x) Wgate^T) * (norm(x) Wup^T)) Wdown^T: (rows, n_embd) */
static sn_status feed_forward(const sn_block *b, const sn_block_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    TRY(d->ops->rms_norm(d, p->n_rows, hp->n_embd, s->x, b->vector[SN_ROLE_FFN_NORM], hp->norm_eps, s->h, err));
    const sn_linear gate_up[] = {{&b->matrix[SN_ROLE_FFN_GATE], NULL, s->gate},
                                 {&b->matrix[SN_ROLE_FFN_UP], NULL, s->up}};
    TRY(d->ops->linear(d, p->n_rows, s->h, 2, gate_up, err));
    TRY(sn_block_tune(p, SN_ROLE_FFN_GATE, s->h, s->gate, err));
    TRY(sn_block_tune(p, SN_ROLE_FFN_UP, s->h, s->up, err));
    TRY(d->ops->silu_mul(d, (size_t)p->n_rows * (size_t)hp->n_ff, s->gate, s->up, s->gate, err));
    const sn_linear down = {&b->matrix[SN_ROLE_FFN_DOWN], NULL, s->h};
    TRY(d->ops->linear(d, p->n_rows, s->gate, 1, &down, err));
    return sn_block_tune(p, SN_ROLE_FFN_DOWN, s->gate, s->h, err);
}

sn_status sn_block_forward(const sn_block *block, int index, const sn_block_pass *pass, sn_err *err) {
    const sn_scratch *s = pass->scratch;
    size_t n = (size_t)pass->n_rows * (size_t)pass->hp->n_embd;
    TRY(sn_block_prompt(pass, err));
    /* x += attention(norm(x)) */
    TRY(attend(block, index, pass, err));
    TRY(pass->device->ops->add(pass->device, n, s->x, s->h, err));
    /* x += feed_forward(norm(x)) */
    TRY(feed_forward(block, pass, err));
    return pass->device->ops->add(pass->device, n, s->x, s->h, err);
}
