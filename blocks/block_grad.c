#include "blocks/experts.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        sn_status status_ = (call);                                                                                    \
        if (status_) return status_;                                                                                   \
    } while (0)

/* The forward pass's view of this one, for the parts that both share. */
static sn_block_pass forward_view(const sn_grad_pass *p, sn_scratch *s) {
    *s = (sn_scratch){.x = p->scratch->x, .low = p->scratch->low, .wide = p->scratch->wide};
    return (sn_block_pass){p->device, p->hp, s, p->sequence->n_rows, 1, p->sequence, p->tuning, p->number};
}

/* What enters a half: x, or *h = norm(x) where the family norms there. */
static sn_status enter_again(const sn_block *b, const sn_block_pass *f, sn_role role, const float *x, float *h,
                             const float **u, sn_err *err) {
    *u = b->vector[role] ? h : x;
    return b->vector[role] ? sn_block_norm(b, f, role, (size_t)f->n_rows * (size_t)f->hp->n_embd, x, h, err) : SN_OK;
}

/* dx = the gradient through the norm `role` of n elements, or grows by it. */
static sn_status norm_back(const sn_block *b, const sn_grad_pass *p, sn_role role, size_t n, const float *x,
                           const float *dy, bool grow, float *dx, sn_err *err) {
    const sn_device_ops *ops = p->device->ops;
    int width = b->width[role], rows = (int)(n / (size_t)width);
    return (p->hp->layer_norm ? ops->layer_norm_grad : ops->rms_norm_grad)(p->device, rows, width, x, b->vector[role],
                                                                          p->hp->norm_eps, dy, grow, dx, err);
}

/* The gradient of what a half added, o before its norm: dy, or *dh through the norm where the family norms there. */
static sn_status leave_back(const sn_block *b, const sn_grad_pass *p, sn_role role, const float *o, const float **d,
                            sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    size_t n = (size_t)p->sequence->n_rows * (size_t)p->hp->n_embd;
    *d = b->vector[role] ? s->dh : s->dy;
    return b->vector[role] ? norm_back(b, p, role, n, o, s->dy, false, s->dh, err) : SN_OK;
}

/* dy grows by dh, the gradient of what entered a half, through its norm where the family norms there. */
static sn_status enter_back(const sn_block *b, const sn_grad_pass *p, sn_role role, const float *x, sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    size_t n = (size_t)p->sequence->n_rows * (size_t)p->hp->n_embd;
    return b->vector[role] ? norm_back(b, p, role, n, x, s->dh, true, s->dy, err)
                           : p->device->ops->add(p->device, n, s->dy, s->dh, err);
}

/* x -> mid: the attention half, with all that stands between. */
static sn_status attend_again(const sn_block *b, const sn_grad_pass *p, const sn_block_pass *f, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    size_t n_q = (size_t)n * (size_t)heads * (size_t)dim, n_kv = (size_t)n * (size_t)kv_heads * (size_t)dim;
    bool mixture = hp->n_experts; /* every rounding here may change which experts are chosen */
    const sn_rope rope = {hp->rope_style == SN_ROPE_HALVES, hp->rope_dim, s->cos_sin[sn_rope_of(hp, p->number)]};
    float *q = hp->qk_norm ? s->q0 : s->q, *k = hp->qk_norm ? s->k0 : s->k;
    float *out = b->vector[SN_ROLE_ATTN_POST_NORM] ? s->o1 : s->mid;
    const float *u;

    TRY(enter_again(b, f, SN_ROLE_ATTN_NORM, s->x, s->h1, &u, err));
    const sn_linear qkv[] = {{&b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], q, mixture},
                             {&b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], k, mixture},
                             {&b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v, mixture}};
    TRY(ops->linear(d, n, u, 3, qkv, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_Q, u, q, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_K, u, k, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_V, u, s->v, err));
    if (hp->qk_norm) {
        TRY(sn_block_norm(b, f, SN_ROLE_ATTN_Q_NORM, n_q, q, s->q, err));
        TRY(sn_block_norm(b, f, SN_ROLE_ATTN_K_NORM, n_kv, k, s->k, err));
    }
    TRY(ops->rope(d, n, heads, dim, s->q, &rope, err));
    TRY(ops->rope(d, n, kv_heads, dim, s->k, &rope, err));
    TRY(ops->kv_store(d, 0, s->k, s->v, err));
    const sn_attention how = {.n_heads = heads, .window = sn_window_of(hp, p->number), .scale = hp->attn_scale,
                              .slopes = b->vector[SN_ROLE_ATTN_SLOPES], .sinks = b->vector[SN_ROLE_ATTN_SINKS]};
    TRY(ops->attention(d, &how, s->q, s->attn, err));
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], b->vector[SN_ROLE_ATTN_O_BIAS], out, mixture};
    TRY(ops->linear(d, n, s->attn, 1, &o, err));
    TRY(sn_block_tune(f, SN_ROLE_ATTN_O, s->attn, out, err));
    if (out == s->o1)
        TRY(sn_block_norm(b, f, SN_ROLE_ATTN_POST_NORM, (size_t)n * (size_t)hp->n_embd, s->o1, s->mid, err));
    return ops->add(d, (size_t)n * (size_t)hp->n_embd, s->mid, s->x, err);
}

/* What the feed-forward's norm reads. */
static const float *feeds_on(const sn_grad_pass *p) { return p->hp->parallel ? p->scratch->x : p->scratch->mid; }

static sn_status activate_again(const sn_grad_pass *p, sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    size_t n = (size_t)p->sequence->n_rows * (size_t)p->hp->n_ff;
    return p->device->ops->activate(p->device, n, p->hp->activation, s->gate,
                                    p->hp->gated ? s->up : NULL, s->act, err);
}

static sn_status feed_again(const sn_block *b, const sn_grad_pass *p, const sn_block_pass *f, sn_err *err) {
    sn_device *d = p->device;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    bool gated = p->hp->gated;
    float *up = gated ? s->up : s->gate;
    const float *u;
    TRY(enter_again(b, f, SN_ROLE_FFN_NORM, feeds_on(p), s->h2, &u, err));
    if (p->hp->n_experts) {
        TRY(sn_experts_again(b, p, u, err));
        return b->vector[SN_ROLE_FFN_POST_NORM] ? sn_experts_sum(p, s->o2, err) : SN_OK;
    }
    const sn_linear up_gate[] = {{.weight = &b->matrix[SN_ROLE_FFN_UP], .bias = b->vector[SN_ROLE_FFN_UP_BIAS], .y = up},
                                 {.weight = &b->matrix[SN_ROLE_FFN_GATE], .y = s->gate}};
    TRY(d->ops->linear(d, n, u, gated ? 2 : 1, up_gate, err));
    TRY(sn_block_tune(f, SN_ROLE_FFN_GATE, u, s->gate, err));
    TRY(sn_block_tune(f, SN_ROLE_FFN_UP, u, up, err));
    TRY(activate_again(p, err));
    if (!b->vector[SN_ROLE_FFN_POST_NORM]) return SN_OK; /* what is added is not needed but for its norm */
    const sn_linear down = {.weight = &b->matrix[SN_ROLE_FFN_DOWN], .bias = b->vector[SN_ROLE_FFN_DOWN_BIAS], .y = s->o2};
    TRY(d->ops->linear(d, n, s->act, 1, &down, err));
    return sn_block_tune(f, SN_ROLE_FFN_DOWN, s->act, s->o2, err);
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
        const sn_linear down = {.weight = lower, .y = s->low};
        TRY(ops->linear(d, n, u, 1, &down, err));
        TRY(ops->outer_grad(d, n, (int)upper->rows, (int)upper->cols, dy, s->low, p->grads->lora[role].b, err));
        TRY(ops->outer_grad(d, n, (int)lower->rows, (int)lower->cols, s->dlow, u, p->grads->lora[role].a, err));
    }
    return ops->linear_grad(d, n, s->dlow, lower, true, du, err);
}

/* dup, dattn: the gradients of what the matrices behind the feed-forward and attention read, of dy. */
static sn_status leave_feed(const sn_block *b, const sn_grad_pass *p, sn_err *err) {
    const float *added;
    TRY(leave_back(b, p, SN_ROLE_FFN_POST_NORM, p->scratch->o2, &added, err));
    if (p->hp->n_experts) return sn_experts_back(b, p, added, err); /* all the way to dh */
    return through(b, p, SN_ROLE_FFN_DOWN, p->scratch->act, added, false, p->scratch->dup, err);
}

static sn_status leave_attention(const sn_block *b, const sn_grad_pass *p, sn_err *err) {
    const float *added;
    TRY(leave_back(b, p, SN_ROLE_ATTN_POST_NORM, p->scratch->o1, &added, err));
    return through(b, p, SN_ROLE_ATTN_O, p->scratch->attn, added, false, p->scratch->dattn, err);
}

/* dy grows by what goes back through the feed-forward, from dup on. */
static sn_status feed_back(const sn_block *b, const sn_grad_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    if (hp->n_experts) return enter_back(b, p, SN_ROLE_FFN_NORM, feeds_on(p), err);
    bool gated = hp->gated;
    const float *u = b->vector[SN_ROLE_FFN_NORM] ? s->h2 : feeds_on(p);
    TRY(d->ops->activate_grad(d, (size_t)n * (size_t)hp->n_ff, hp->activation, s->gate, gated ? s->up : NULL, s->dup,
                              gated ? s->dgate : s->dup, gated ? s->dup : NULL, err));
    if (gated) TRY(through(b, p, SN_ROLE_FFN_GATE, u, s->dgate, false, s->dh, err));
    TRY(through(b, p, SN_ROLE_FFN_UP, u, s->dup, gated, s->dh, err));
    return enter_back(b, p, SN_ROLE_FFN_NORM, feeds_on(p), err);
}

/* dy grows by what goes back through attention, from dattn on. */
static sn_status attend_back(const sn_block *b, const sn_grad_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    size_t n_q = (size_t)n * (size_t)heads * (size_t)dim, n_kv = (size_t)n * (size_t)kv_heads * (size_t)dim;
    const sn_rope back = {hp->rope_style == SN_ROPE_HALVES, hp->rope_dim, s->back[sn_rope_of(hp, p->number)]};
    const float *u = b->vector[SN_ROLE_ATTN_NORM] ? s->h1 : s->x;
    const sn_attention_grad attention = {.n = n, .n_heads = heads, .n_kv_heads = kv_heads, .head_dim = dim,
                                         .window = sn_window_of(hp, p->number), .scale = hp->attn_scale,
                                         .slopes = b->vector[SN_ROLE_ATTN_SLOPES], .sinks = b->vector[SN_ROLE_ATTN_SINKS],
                                         .q = s->q, .dout = s->dattn, .k = s->k, .v = s->v,
                                         .dq = s->dq, .dk = s->dk, .dv = s->dv};
    TRY(ops->attention_grad(d, &attention, err));
    TRY(ops->rope(d, n, heads, dim, s->dq, &back, err));
    TRY(ops->rope(d, n, kv_heads, dim, s->dk, &back, err));
    if (hp->qk_norm) {
        TRY(norm_back(b, p, SN_ROLE_ATTN_Q_NORM, n_q, s->q0, s->dq, false, s->dq, err));
        TRY(norm_back(b, p, SN_ROLE_ATTN_K_NORM, n_kv, s->k0, s->dk, false, s->dk, err));
    }
    TRY(through(b, p, SN_ROLE_ATTN_Q, u, s->dq, false, s->dh, err));
    TRY(through(b, p, SN_ROLE_ATTN_K, u, s->dk, true, s->dh, err));
    TRY(through(b, p, SN_ROLE_ATTN_V, u, s->dv, true, s->dh, err));
    return enter_back(b, p, SN_ROLE_ATTN_NORM, s->x, err);
}

/* What is cheap is never kept: norms and the activation, for the adapters whose input they are. */
static sn_status complete(const sn_block *b, const sn_grad_pass *p, const sn_block_pass *f, sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    const float *u;
    if (!p->grads) return SN_OK;
    TRY(enter_again(b, f, SN_ROLE_ATTN_NORM, s->x, s->h1, &u, err));
    TRY(enter_again(b, f, SN_ROLE_FFN_NORM, feeds_on(p), s->h2, &u, err));
    return p->grads->lora[SN_ROLE_FFN_DOWN].a ? activate_again(p, err) : SN_OK;
}

sn_status sn_block_forward_apart(const sn_block *block, const sn_grad_pass *pass, sn_err *err) {
    sn_scratch view;
    const sn_block_pass forward = forward_view(pass, &view);
    sn_device *d = pass->device;
    const sn_grad_scratch *s = pass->scratch;
    const sn_linear down = {.weight = &block->matrix[SN_ROLE_FFN_DOWN], .bias = block->vector[SN_ROLE_FFN_DOWN_BIAS],
                            .y = s->x};
    size_t n = (size_t)forward.n_rows * (size_t)pass->hp->n_embd;
    TRY(sn_block_prompt(&forward, err));
    TRY(attend_again(block, pass, &forward, err));
    TRY(feed_again(block, pass, &forward, err));
    if (block->vector[SN_ROLE_FFN_POST_NORM]) {
        TRY(sn_block_norm(block, &forward, SN_ROLE_FFN_POST_NORM, n, s->o2, s->x, err));
    } else if (pass->hp->n_experts) {
        TRY(sn_experts_sum(pass, s->x, err));
    } else {
        TRY(d->ops->linear(d, forward.n_rows, s->act, 1, &down, err));
        TRY(sn_block_tune(&forward, SN_ROLE_FFN_DOWN, s->act, s->x, err));
    }
    return d->ops->add(d, n, s->x, s->mid, err);
}

sn_status sn_block_backward(const sn_block *block, const sn_grad_pass *pass, sn_err *err) {
    sn_scratch view;
    const sn_block_pass forward = forward_view(pass, &view);
    TRY(sn_block_prompt(&forward, err));
    if (!pass->kept) TRY(attend_again(block, pass, &forward, err));
    if (!pass->kept) TRY(feed_again(block, pass, &forward, err));
    if (pass->kept) TRY(complete(block, pass, &forward, err));
    /* dy, the gradient of what leaves, becomes that of mid, then that of x; parallel: both halves take it as it is */
    TRY(leave_feed(block, pass, err));
    if (pass->hp->parallel) TRY(leave_attention(block, pass, err));
    TRY(feed_back(block, pass, err));
    if (!pass->hp->parallel) TRY(leave_attention(block, pass, err));
    return attend_back(block, pass, err);
}
