#include "blocks/block_grad.h"

#include <math.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        sn_status status_ = (call);                                                                                    \
        if (status_) return status_;                                                                                   \
    } while (0)

/* The forward pass's view of this one, for the parts that both share. */
static sn_block_pass forward_view(const sn_grad_pass *p, sn_scratch *s) {
    *s = (sn_scratch){.x = p->scratch->x, .low = p->scratch->low, .wide = p->scratch->wide};
    return (sn_block_pass){p->device, p->hp, s, p->sequence->n_rows, 1, p->sequence, p->tuning};
}

/* x -> mid: the attention half, with all that stands between. */
static sn_status attend_again(const sn_block *b, const sn_grad_pass *p, const sn_block_pass *f, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    const sn_rope rope = {hp->rope_style == SN_ROPE_HALVES, hp->rope_dim, s->cos_sin};
    float *q = hp->qk_norm ? s->q0 : s->q, *k = hp->qk_norm ? s->k0 : s->k;

    TRY(ops->rms_norm(d, n, hp->n_embd, s->x, b->vector[SN_ROLE_ATTN_NORM], hp->norm_eps, s->h1, err));
    const sn_linear qkv[] = {{&b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], q},
                             {&b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], k},
                             {&b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v}};
    TRY(ops->linear(d, n, s->h1, 3, qkv, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_Q, s->h1, q, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_K, s->h1, k, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_V, s->h1, s->v, err));
    if (hp->qk_norm) {
        TRY(ops->rms_norm(d, n * heads, dim, q, b->vector[SN_ROLE_ATTN_Q_NORM], hp->norm_eps, s->q, err));
        TRY(ops->rms_norm(d, n * kv_heads, dim, k, b->vector[SN_ROLE_ATTN_K_NORM], hp->norm_eps, s->k, err));
    }
    TRY(ops->rope(d, n, heads, dim, s->q, &rope, err));
    TRY(ops->rope(d, n, kv_heads, dim, s->k, &rope, err));
    TRY(ops->kv_store(d, 0, s->k, s->v, err));
    TRY(ops->attention(d, 0, heads, hp->window, 1.0f / sqrtf((float)dim), s->q, s->attn, err));
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], NULL, s->mid};
    TRY(ops->linear(d, n, s->attn, 1, &o, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_O, s->attn, s->mid, err));
    return ops->add(d, (size_t)n * (size_t)hp->n_embd, s->mid, s->x, err);
}

static sn_status feed_again(const sn_block *b, const sn_grad_pass *p, const sn_block_pass *f, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    TRY(d->ops->rms_norm(d, n, hp->n_embd, s->mid, b->vector[SN_ROLE_FFN_NORM], hp->norm_eps, s->h2, err));
    const sn_linear gate_up[] = {{&b->matrix[SN_ROLE_FFN_GATE], NULL, s->gate},
                                 {&b->matrix[SN_ROLE_FFN_UP], NULL, s->up}};
    TRY(d->ops->linear(d, n, s->h2, 2, gate_up, err));
    TRY(sn_block_tune(f, SN_ROLE_FFN_GATE, s->h2, s->gate, err));
    TRY(sn_block_tune(f, SN_ROLE_FFN_UP, s->h2, s->up, err));
    return d->ops->silu_mul(d, (size_t)n * (size_t)hp->n_ff, s->gate, s->up, s->act, err);
}

/* Back through the matrix `role`, whose input was u and whose result's gradient is dy: du becomes, or grows by, u's. */
static sn_status through(const sn_block *b, const sn_grad_pass *p, sn_role role, const float *u, const float *dy,
                         bool grow, float *du, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    TRY(ops->linear_grad(d, n, dy, &b->matrix[role], grow, du, err));
    if (!p->tuning || !p->tuning->lora[role].a.rows) return SN_OK;
    /* y += (u A^T) B^T:  dB += dy^T (u A^T),  dA += (dy B)^T u,  du += (dy B) A */
    const sn_weight *lower = &p->tuning->lora[role].a, *upper = &p->tuning->lora[role].b;
    TRY(ops->linear_grad(d, n, dy, upper, false, s->dlow, err));
    if (p->grads && p->grads->lora[role].a) {
        const sn_linear down = {lower, NULL, s->low};
        TRY(ops->linear(d, n, u, 1, &down, err));
        TRY(ops->outer_grad(d, n, (int)upper->rows, (int)upper->cols, dy, s->low, p->grads->lora[role].b, err));
        TRY(ops->outer_grad(d, n, (int)lower->rows, (int)lower->cols, s->dlow, u, p->grads->lora[role].a, err));
    }
    return ops->linear_grad(d, n, s->dlow, lower, true, du, err);
}

/* dy: from the gradient of what leaves the block to that of mid. */
static sn_status feed_back(const sn_block *b, const sn_grad_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    TRY(through(b, p, SN_ROLE_FFN_DOWN, s->act, s->dy, false, s->dup, err));
    TRY(d->ops->silu_mul_grad(d, (size_t)n * (size_t)hp->n_ff, s->gate, s->up, s->dup, s->dgate, s->dup, err));
    TRY(through(b, p, SN_ROLE_FFN_GATE, s->h2, s->dgate, false, s->dh, err));
    TRY(through(b, p, SN_ROLE_FFN_UP, s->h2, s->dup, true, s->dh, err));
    return d->ops->rms_norm_grad(d, n, hp->n_embd, s->mid, b->vector[SN_ROLE_FFN_NORM], hp->norm_eps, s->dh, true,
                                 s->dy, err);
}

/* dy: from the gradient of mid to that of x. */
static sn_status attend_back(const sn_block *b, const sn_grad_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    const sn_rope back = {hp->rope_style == SN_ROPE_HALVES, hp->rope_dim, s->back};
    TRY(through(b, p, SN_ROLE_ATTN_O, s->attn, s->dy, false, s->dattn, err));
    const sn_attention_grad attention = {
        n, heads, kv_heads, dim, hp->window, 1.0f / sqrtf((float)dim), s->q, s->dattn, s->k, s->v, s->dq, s->dk, s->dv};
    TRY(ops->attention_grad(d, &attention, err));
    TRY(ops->rope(d, n, heads, dim, s->dq, &back, err));
    TRY(ops->rope(d, n, kv_heads, dim, s->dk, &back, err));
    if (hp->qk_norm) {
        TRY(ops->rms_norm_grad(d, n * heads, dim, s->q0, b->vector[SN_ROLE_ATTN_Q_NORM], hp->norm_eps, s->dq, false,
                               s->dq, err));
        TRY(ops->rms_norm_grad(d, n * kv_heads, dim, s->k0, b->vector[SN_ROLE_ATTN_K_NORM], hp->norm_eps, s->dk, false,
                               s->dk, err));
    }
    TRY(through(b, p, SN_ROLE_ATTN_Q, s->h1, s->dq, false, s->dh, err));
    TRY(through(b, p, SN_ROLE_ATTN_K, s->h1, s->dk, true, s->dh, err));
    TRY(through(b, p, SN_ROLE_ATTN_V, s->h1, s->dv, true, s->dh, err));
    return ops->rms_norm_grad(d, n, hp->n_embd, s->x, b->vector[SN_ROLE_ATTN_NORM], hp->norm_eps, s->dh, true, s->dy,
                              err);
}

sn_status sn_block_backward(const sn_block *block, const sn_grad_pass *pass, sn_err *err) {
    sn_scratch view;
    const sn_block_pass forward = forward_view(pass, &view);
    TRY(sn_block_prompt(&forward, err));
    TRY(attend_again(block, pass, &forward, err));
    TRY(feed_again(block, pass, &forward, err));
    TRY(feed_back(block, pass, err));
    return attend_back(block, pass, err);
}
