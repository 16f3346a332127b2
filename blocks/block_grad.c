/* The backward pass of one block, in three parts. First the intermediate activations: recompute_attention and
 * recompute_ffn repeat the forward pass (block.c) step by step, each tensor in its own place; if they were saved, only
 * norms and activation are recomputed, because they are cheap. Then the chain rule goes back through the steps:
 *
 *     dy = gradient of the output
 *     feed-forward:  post-norm, down, activation, gate and up, norm:  dy += ..., now the gradient of mid
 *     attention:     post-norm, o, softmax, rope, norms of q and k, q, k and v, norm:  dy += ..., now the gradient of x
 *
 * where "dy +=" is the residual connection: x + half(norm(x)) has the gradient dy + d(half). The frozen weights get no
 * gradients; those of LoRA are computed where their matrix is passed (linear_backward). The gradient of a prompt is
 * that of the first rows of x, which train.c reads.
 *
 * Every step takes a row by itself, but attention: a row's key and value meet the queries of all later rows. So the
 * passes over the rows are three: up to attention's result, back to its inputs, and on from dq, dk and dv. */
#include "blocks/moe.h"

/* This pass as a forward pass, for the functions of block.h. */
static sn_forward_pass forward_pass_of(const sn_backward_pass *p, sn_scratch *s) {
    *s = (sn_scratch){.x = p->scratch->x, .lora_mid = p->scratch->lora_mid, .lora_out = p->scratch->lora_out};
    return (sn_forward_pass){.device = p->device,
                             .hp = p->hp,
                             .scratch = s,
                             .n_rows = p->sequence->n_rows,
                             .n_sequences = 1,
                             .sequences = p->sequence,
                             .adapter = p->adapter,
                             .number = p->number};
}

/* dx = the gradient of the input x of the norm `role` from that of its output, dy; accumulate: dx += it. */
static sn_status norm_backward(const sn_block *b, const sn_backward_pass *p, sn_role role, const float *x,
                               const float *dy, bool accumulate, float *dx, sn_err *err) {
    const sn_device_ops *ops = p->device->ops;
    int width = b->width[role];
    int rows = (int)(sn_block_norm_elements(p->hp, p->number, p->sequence->n_rows, role) / (size_t)width);
    return (p->hp->layer_norm ? ops->layer_norm_grad : ops->rms_norm_grad)(p->device, rows, width, x, b->vector[role],
                                                                           p->hp->norm_eps, dy, accumulate, dx, err);
}

/* to (n, n_embd) = from * residual_scale; from may be to. */
static sn_status scale_residual(const sn_backward_pass *p, const float *from, float *to, sn_err *err) {
    float scale = p->hp->residual_scale;
    if (scale == 1 && from == to) return SN_OK;
    return p->device->ops->scale(p->device, p->sequence->n_rows, p->hp->n_embd, from, scale, NULL, to, err);
}

/* *d_out, the gradient of a half's output `out`: dh, through the post-norm and the residual's scale, or dy itself where
 * there are none. */
static sn_status post_norm_backward(const sn_block *b, const sn_backward_pass *p, sn_role role, const float *out,
                                    const float **d_out, sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    const float *d_scaled = p->hp->residual_scale != 1 ? s->dh : s->dy;
    if (d_scaled == s->dh) SN_TRY(scale_residual(p, s->dy, s->dh, err));
    *d_out = b->vector[role] ? s->dh : d_scaled;
    return b->vector[role] ? norm_backward(b, p, role, out, d_scaled, false, s->dh, err) : SN_OK;
}

/* dy += dh, the gradient of a half's input, through its norm where there is one. */
static sn_status pre_norm_backward(const sn_block *b, const sn_backward_pass *p, sn_role role, const float *x,
                                   sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    size_t n = (size_t)p->sequence->n_rows * (size_t)p->hp->n_embd;
    return b->vector[role] ? norm_backward(b, p, role, x, s->dh, true, s->dy, err)
                           : p->device->ops->add(p->device, n, s->dy, s->dh, err);
}

/* The attention half, from x to mid; the steps are those of block_attention. */
static sn_status recompute_attention(const sn_block *b, const sn_backward_pass *p, const sn_forward_pass *f,
                                     sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    bool precise = sn_needs_precision(hp);
    const sn_rope rope = {hp->rope_style == SN_ROPE_NEOX, hp->rope_dim, s->cos_sin[sn_rope_of(hp, p->number)]};
    const sn_rotated rotated = {rope, n, heads, kv_heads, dim, s->q, s->k};
    bool qk_norm = b->vector[SN_ROLE_ATTN_Q_NORM];
    float *q = qk_norm ? s->q0 : s->q, *k = qk_norm ? s->k0 : s->k;
    float *out = b->vector[SN_ROLE_ATTN_POST_NORM] ? s->o1 : s->mid;
    const sn_half_input input = sn_half_input_of(b, f, SN_ROLE_ATTN_NORM, s->x, NULL, s->h1);

    const sn_linear qkv[] = {{&b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], q, precise},
                             {&b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], k, precise},
                             {&b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v, precise}};
    SN_TRY(sn_half_linear(d, n, &input, 3, qkv, err));
    SN_TRY(sn_block_add_lora(f, SN_ROLE_ATTN_Q, input.u, q, err));
    SN_TRY(sn_block_add_lora(f, SN_ROLE_ATTN_K, input.u, k, err));
    SN_TRY(sn_block_add_lora(f, SN_ROLE_ATTN_V, input.u, s->v, err));
    if (qk_norm) {
        SN_TRY(sn_block_norm(b, f, SN_ROLE_ATTN_Q_NORM, q, s->q, err));
        SN_TRY(sn_block_norm(b, f, SN_ROLE_ATTN_K_NORM, k, s->k, err));
    }
    SN_TRY(hp->no_rope[p->number] ? ops->kv_store(d, 0, s->k, s->v, err) : ops->rope_store(d, 0, &rotated, s->v, err));
    if (sn_q_grows(hp, p->number)) SN_TRY(ops->scale(d, n, heads * dim, s->q, 1, s->q_factors, s->q, err));
    const sn_attention attention = {.n_heads = heads,
                                    .window = sn_window_of(hp, p->number),
                                    .scale = hp->attn_scale,
                                    .slopes = b->vector[SN_ROLE_ATTN_SLOPES],
                                    .sinks = b->vector[SN_ROLE_ATTN_SINKS],
                                    .softcap = hp->score_softcap};
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], b->vector[SN_ROLE_ATTN_O_BIAS], out, precise};
    SN_TRY(ops->attention_linear(d, n, &attention, s->q, s->attn, &o, err));
    SN_TRY(sn_block_add_lora(f, SN_ROLE_ATTN_O, s->attn, out, err));
    if (out == s->o1) SN_TRY(sn_block_norm(b, f, SN_ROLE_ATTN_POST_NORM, s->o1, s->mid, err));
    SN_TRY(scale_residual(p, s->mid, s->mid, err));
    return ops->add(d, (size_t)n * (size_t)hp->n_embd, s->mid, s->x, err);
}

/* The hidden states that the feed-forward half reads: those between the halves, or x where the halves are parallel. */
static float *ffn_norm_input(const sn_backward_pass *p) { return p->hp->parallel ? p->scratch->x : p->scratch->mid; }

/* What the feed-forward itself reads, which recompute_ffn or recompute_norms left there. */
static const float *ffn_input(const sn_block *b, const sn_backward_pass *p) {
    return b->vector[SN_ROLE_FFN_NORM] ? p->scratch->h2 : ffn_norm_input(p);
}

static sn_status recompute_activation(const sn_block *b, const sn_backward_pass *p, sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    size_t n = (size_t)p->sequence->n_rows * sn_block_n_ff(b);
    return p->device->ops->activate(p->device, n, p->hp->activation, s->gate, p->hp->gated ? s->up : NULL, s->act, err);
}

/* The feed-forward half up to its last matrix, and that one only where a post-norm needs its result. */
static sn_status recompute_ffn(const sn_block *b, const sn_backward_pass *p, const sn_forward_pass *f, sn_err *err) {
    sn_device *d = p->device;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    bool gated = p->hp->gated, precise = sn_needs_precision(p->hp);
    float *up = gated ? s->up : s->gate;
    const sn_half_input input = sn_half_input_of(b, f, SN_ROLE_FFN_NORM, ffn_norm_input(p), NULL, s->h2);
    if (sn_block_has_experts(b)) {
        SN_TRY(sn_moe_recompute(b, p, &input, err));
        return b->vector[SN_ROLE_FFN_POST_NORM] ? sn_moe_combine(b, p, input.u, s->o2, err) : SN_OK;
    }
    const sn_linear up_gate[] = {{&b->matrix[SN_ROLE_FFN_UP], b->vector[SN_ROLE_FFN_UP_BIAS], up, precise},
                                 {&b->matrix[SN_ROLE_FFN_GATE], NULL, s->gate, precise}};
    SN_TRY(sn_half_linear(d, n, &input, gated ? 2 : 1, up_gate, err));
    SN_TRY(sn_block_add_lora(f, SN_ROLE_FFN_GATE, input.u, s->gate, err));
    SN_TRY(sn_block_add_lora(f, SN_ROLE_FFN_UP, input.u, up, err));
    SN_TRY(recompute_activation(b, p, err));
    if (!b->vector[SN_ROLE_FFN_POST_NORM]) return SN_OK;
    const sn_linear down = {&b->matrix[SN_ROLE_FFN_DOWN], b->vector[SN_ROLE_FFN_DOWN_BIAS], s->o2, precise};
    SN_TRY(d->ops->linear(d, n, s->act, 1, &down, err));
    return sn_block_add_lora(f, SN_ROLE_FFN_DOWN, s->act, s->o2, err);
}

/* Through the matrix `role`: du = the gradient of its input u from that of its output, dy; accumulate: du += it. */
static sn_status linear_backward(const sn_block *b, const sn_backward_pass *p, sn_role role, const float *u,
                                 const float *dy, bool accumulate, float *du, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    SN_TRY(ops->linear_input_grad(d, n, dy, &b->matrix[role], accumulate, du, err));
    if (!p->adapter || !p->adapter->lora[role].a.rows) return SN_OK;
    /* y += (u A^T) B^T:  dB += dy^T (u A^T),  dA += (dy B)^T u,  du += (dy B) A */
    const sn_weight *lower = &p->adapter->lora[role].a, *upper = &p->adapter->lora[role].b;
    SN_TRY(ops->linear_input_grad(d, n, dy, upper, false, s->dlora_mid, err));
    if (p->grads && p->grads->lora[role].a) {
        const sn_linear down = {.weight = lower, .y = s->lora_mid};
        SN_TRY(ops->linear(d, n, u, 1, &down, err));
        SN_TRY(ops->linear_weight_grad(d, n, (int)upper->rows, (int)upper->cols, dy, s->lora_mid,
                                       p->grads->lora[role].b, err));
        SN_TRY(ops->linear_weight_grad(d, n, (int)lower->rows, (int)lower->cols, s->dlora_mid, u,
                                       p->grads->lora[role].a, err));
    }
    return ops->linear_input_grad(d, n, s->dlora_mid, lower, true, du, err);
}

/* From dy through the last matrix of the feed-forward: dup, the gradient of act; with experts dh, through all of it. */
static sn_status ffn_output_backward(const sn_block *b, const sn_backward_pass *p, sn_err *err) {
    const float *added;
    SN_TRY(post_norm_backward(b, p, SN_ROLE_FFN_POST_NORM, p->scratch->o2, &added, err));
    if (sn_block_has_experts(b)) return sn_moe_backward(b, p, ffn_input(b, p), added, err);
    return linear_backward(b, p, SN_ROLE_FFN_DOWN, p->scratch->act, added, false, p->scratch->dup, err);
}

/* From dy through the last matrix of attention: dattn. */
static sn_status attention_output_backward(const sn_block *b, const sn_backward_pass *p, sn_err *err) {
    const float *added;
    SN_TRY(post_norm_backward(b, p, SN_ROLE_ATTN_POST_NORM, p->scratch->o1, &added, err));
    return linear_backward(b, p, SN_ROLE_ATTN_O, p->scratch->attn, added, false, p->scratch->dattn, err);
}

/* From dup (with experts: dh) through the rest of the feed-forward half: dy += the gradient of its input. */
static sn_status ffn_backward(const sn_block *b, const sn_backward_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows;
    if (sn_block_has_experts(b)) return pre_norm_backward(b, p, SN_ROLE_FFN_NORM, ffn_norm_input(p), err);
    bool gated = hp->gated;
    const float *u = ffn_input(b, p);
    SN_TRY(d->ops->activate_grad(d, (size_t)n * sn_block_n_ff(b), hp->activation, s->gate, gated ? s->up : NULL, s->dup,
                                 gated ? s->dgate : s->dup, gated ? s->dup : NULL, err));
    if (gated) SN_TRY(linear_backward(b, p, SN_ROLE_FFN_GATE, u, s->dgate, false, s->dh, err));
    SN_TRY(linear_backward(b, p, SN_ROLE_FFN_UP, u, s->dup, gated, s->dh, err));
    return pre_norm_backward(b, p, SN_ROLE_FFN_NORM, ffn_norm_input(p), err);
}

/* From dattn through attention: dq, and what these rows add to dk and dv. */
static sn_status attention_backward(const sn_block *b, const sn_backward_pass *p, sn_err *err) {
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    /* floats from the sequence's first key to that of this pass */
    size_t before = (size_t)p->sequence->position * (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    const sn_attention_grad attention = {.first = p->sequence->position,
                                         .n = p->sequence->n_rows,
                                         .n_heads = hp->n_heads,
                                         .n_kv_heads = hp->n_kv_heads,
                                         .head_dim = hp->head_dim,
                                         .window = sn_window_of(hp, p->number),
                                         .scale = hp->attn_scale,
                                         .softcap = hp->score_softcap,
                                         .slopes = b->vector[SN_ROLE_ATTN_SLOPES],
                                         .sinks = b->vector[SN_ROLE_ATTN_SINKS],
                                         .q = s->q,
                                         .dout = s->dattn,
                                         .k = s->k - before,
                                         .v = s->v - before,
                                         .dq = s->dq,
                                         .dk = s->dk - before,
                                         .dv = s->dv - before};
    return p->device->ops->attention_grad(p->device, &attention, err);
}

/* From dq, dk and dv through the rest of the attention half: dy += the gradient of its input. */
sn_status sn_block_backward_qkv(const sn_block *b, const sn_backward_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_grad_scratch *s = p->scratch;
    int n = p->sequence->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    const sn_rope back = {hp->rope_style == SN_ROPE_NEOX, hp->rope_dim, s->cos_sin_inverse[sn_rope_of(hp, p->number)]};
    const float *u = b->vector[SN_ROLE_ATTN_NORM] ? s->h1 : s->x;
    if (sn_q_grows(hp, p->number)) SN_TRY(ops->scale(d, n, heads * dim, s->dq, 1, s->q_factors, s->dq, err));
    if (!hp->no_rope[p->number]) SN_TRY(ops->rope(d, n, heads, dim, s->dq, &back, err));
    if (!hp->no_rope[p->number]) SN_TRY(ops->rope(d, n, kv_heads, dim, s->dk, &back, err));
    if (b->vector[SN_ROLE_ATTN_Q_NORM]) {
        SN_TRY(norm_backward(b, p, SN_ROLE_ATTN_Q_NORM, s->q0, s->dq, false, s->dq, err));
        SN_TRY(norm_backward(b, p, SN_ROLE_ATTN_K_NORM, s->k0, s->dk, false, s->dk, err));
    }
    SN_TRY(linear_backward(b, p, SN_ROLE_ATTN_Q, u, s->dq, false, s->dh, err));
    SN_TRY(linear_backward(b, p, SN_ROLE_ATTN_K, u, s->dk, true, s->dh, err));
    SN_TRY(linear_backward(b, p, SN_ROLE_ATTN_V, u, s->dv, true, s->dh, err));
    return pre_norm_backward(b, p, SN_ROLE_ATTN_NORM, s->x, err);
}

/* Recomputes what is never saved because it is cheap: norms and the activation, which are inputs of LoRA matrices. */
static sn_status recompute_norms(const sn_block *b, const sn_backward_pass *p, const sn_forward_pass *f, sn_err *err) {
    const sn_grad_scratch *s = p->scratch;
    bool shared = b->matrix[SN_ROLE_SHARED_UP].rows; /* the shared expert is computed again: see moe.h */
    if (p->grads && b->vector[SN_ROLE_ATTN_NORM]) SN_TRY(sn_block_norm(b, f, SN_ROLE_ATTN_NORM, s->x, s->h1, err));
    if ((p->grads || shared) && b->vector[SN_ROLE_FFN_NORM])
        SN_TRY(sn_block_norm(b, f, SN_ROLE_FFN_NORM, ffn_norm_input(p), s->h2, err));
    return p->grads && p->grads->lora[SN_ROLE_FFN_DOWN].a ? recompute_activation(b, p, err) : SN_OK;
}

sn_status sn_block_forward_saving(const sn_block *block, const sn_backward_pass *pass, sn_err *err) {
    sn_scratch view;
    const sn_forward_pass forward = forward_pass_of(pass, &view);
    sn_device *d = pass->device;
    const sn_grad_scratch *s = pass->scratch;
    const sn_linear down = {&block->matrix[SN_ROLE_FFN_DOWN], block->vector[SN_ROLE_FFN_DOWN_BIAS], s->x,
                            pass->hp->n_experts};
    size_t n = (size_t)forward.n_rows * (size_t)pass->hp->n_embd;
    SN_TRY(sn_block_add_prompt(&forward, err));
    SN_TRY(recompute_attention(block, pass, &forward, err));
    SN_TRY(recompute_ffn(block, pass, &forward, err));
    if (block->vector[SN_ROLE_FFN_POST_NORM]) {
        SN_TRY(sn_block_norm(block, &forward, SN_ROLE_FFN_POST_NORM, s->o2, s->x, err));
    } else if (sn_block_has_experts(block)) {
        SN_TRY(sn_moe_combine(block, pass, ffn_input(block, pass), s->x, err));
    } else {
        SN_TRY(d->ops->linear(d, forward.n_rows, s->act, 1, &down, err));
        SN_TRY(sn_block_add_lora(&forward, SN_ROLE_FFN_DOWN, s->act, s->x, err));
    }
    SN_TRY(scale_residual(pass, s->x, s->x, err));
    return d->ops->add(d, n, s->x, s->mid, err);
}

sn_status sn_block_recompute(const sn_block *block, const sn_backward_pass *pass, sn_err *err) {
    sn_scratch view;
    const sn_forward_pass forward = forward_pass_of(pass, &view);
    SN_TRY(sn_block_add_prompt(&forward, err));
    SN_TRY(recompute_attention(block, pass, &forward, err));
    return recompute_ffn(block, pass, &forward, err);
}

sn_status sn_block_backward_halves(const sn_block *block, const sn_backward_pass *pass, sn_err *err) {
    sn_scratch view;
    const sn_forward_pass forward = forward_pass_of(pass, &view);
    if (pass->saved) SN_TRY(sn_block_add_prompt(&forward, err));
    if (pass->saved) SN_TRY(recompute_norms(block, pass, &forward, err));
    /* dy becomes the gradient of mid; parallel: both halves start from the gradient of the output */
    SN_TRY(ffn_output_backward(block, pass, err));
    if (pass->hp->parallel) SN_TRY(attention_output_backward(block, pass, err));
    SN_TRY(ffn_backward(block, pass, err));
    if (!pass->hp->parallel) SN_TRY(attention_output_backward(block, pass, err));
    return attention_backward(block, pass, err);
}
