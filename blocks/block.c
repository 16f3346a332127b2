/* The forward pass of one transformer block (Vaswani et al. 2017, with the norm before each half as in GPT-2). With x
 * (n, n_embd) the hidden states of the n rows of a batch:
 *
 *     x += attention(norm(x))
 *     x += feed_forward(norm(x))
 *
 * A family differs by what its descriptor says it has, not by code of its own: post-norms (x += norm(...)) besides or
 * instead of the norms before; parallel halves, which read the same x; norms of q and k; biases; ALiBi slopes or rope;
 * attention sinks; a window; gates; a mixture of experts; a recurrent half (delta.c) in place of attention. A vector
 * that the family does not have is NULL in the block, and its step is left out. Adapters (prompt, LoRA) add to the
 * result of the frozen weights.
 *
 * Each step is one operation of the device. */
#include "blocks/block.h"

#include "blocks/delta.h"
#include "blocks/moe.h"

/* ---- steps ---- */

size_t sn_block_norm_elements(const sn_hparams *hp, int n_rows, sn_role role) {
    int width = role == SN_ROLE_ATTN_Q_NORM        ? hp->n_heads * hp->head_dim
                : role == SN_ROLE_ATTN_K_NORM      ? hp->n_kv_heads * hp->head_dim
                : role == SN_ROLE_ATTN_Q_LOW_NORM  ? hp->q_rank
                : role == SN_ROLE_ATTN_LATENT_NORM ? hp->latent
                                                   : hp->n_embd;
    return (size_t)n_rows * (size_t)width;
}

/* RMS norm: Zhang & Sennrich 2019. Layer norm: Ba et al. 2016. */
sn_status sn_block_norm(const sn_block *b, const sn_forward_pass *p, sn_role role, const float *x, float *y,
                        sn_err *err) {
    int width = b->width[role], rows = (int)(sn_block_norm_elements(p->hp, p->n_rows, role) / (size_t)width);
    sn_role bias = sn_role_bias(role);
    bool inner = role == SN_ROLE_ATTN_Q_LOW_NORM || role == SN_ROLE_ATTN_LATENT_NORM;
    float eps = inner ? p->hp->latent_eps : p->hp->norm_eps;
    if (p->hp->layer_norm)
        return p->device->ops->layer_norm(p->device, rows, width, x, b->vector[role],
                                          bias == SN_ROLE_COUNT ? NULL : b->vector[bias], eps, y, err);
    return p->device->ops->rms_norm(p->device, rows, width, x, b->vector[role], eps, y, err);
}

sn_status sn_block_add_prompt(const sn_forward_pass *p, sn_err *err) {
    size_t width = (size_t)p->hp->n_embd;
    if (!p->adapter || !p->adapter->n_prompt) return SN_OK;
    for (int i = 0; i < p->n_sequences; i++) {
        const sn_sequence *sequence = &p->sequences[i];
        int n = p->adapter->n_prompt - sequence->position;
        if (n > sequence->n_rows) n = sequence->n_rows;
        if (n > 0)
            SN_TRY(p->device->ops->add(p->device, (size_t)n * width,
                                       p->scratch->x + (size_t)sequence->first_row * width,
                                       p->adapter->prompt + (size_t)sequence->position * width, err));
    }
    return SN_OK;
}

sn_status sn_block_add_lora(const sn_forward_pass *p, sn_role role, const float *u, float *y, sn_err *err) {
    if (!p->adapter || !p->adapter->lora[role].a.rows) return SN_OK;
    const sn_weight *a = &p->adapter->lora[role].a, *b = &p->adapter->lora[role].b;
    const sn_linear down = {.weight = a, .y = p->scratch->lora_mid}, up = {.weight = b, .y = p->scratch->lora_out};
    /* mid (n, rank) = u A^T;  out (n, outputs) = mid B^T;  y += out */
    SN_TRY(p->device->ops->linear(p->device, p->n_rows, u, 1, &down, err));
    SN_TRY(p->device->ops->linear(p->device, p->n_rows, p->scratch->lora_mid, 1, &up, err));
    return p->device->ops->add(p->device, (size_t)p->n_rows * b->rows, y, p->scratch->lora_out, err);
}

/* *u (n, n_embd), the input of a half: h = norm(x), or x itself where the family has no norm there. */
static sn_status block_pre_norm(const sn_block *b, const sn_forward_pass *p, sn_role role, float *h, const float **u,
                                sn_err *err) {
    *u = b->vector[role] ? h : p->scratch->x;
    return b->vector[role] ? sn_block_norm(b, p, role, p->scratch->x, h, err) : SN_OK;
}

/* x += h (n, n_embd), or norm(h) where the family has a post-norm, times residual_scale. */
static sn_status block_add_residual(const sn_block *b, const sn_forward_pass *p, sn_role role, sn_err *err) {
    const sn_scratch *s = p->scratch;
    float scale = p->hp->residual_scale;
    if (b->vector[role]) SN_TRY(sn_block_norm(b, p, role, s->h, s->h, err));
    if (scale != 1) SN_TRY(p->device->ops->scale(p->device, p->n_rows, p->hp->n_embd, s->h, scale, NULL, s->h, err));
    return p->device->ops->add(p->device, (size_t)p->n_rows * (size_t)p->hp->n_embd, s->x, s->h, err);
}

/* ---- the two halves ---- */

/* h (n, n_embd) = attention(u), u (n, n_embd), for latent attention (DeepSeek-AI 2024), in the absorbed form: a head's
 * matrix of keys multiplies its q instead of the latents, so that all heads attend to the latents themselves. Prompts
 * take this form, too: another one would round differently, and the bits would depend on the chunking. */
static sn_status block_latent_attention(const sn_block *b, int index, const sn_forward_pass *p, const float *u,
                                        sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows, heads = hp->n_heads;
    bool precise = sn_needs_precision(hp);

    /* q (n, heads, nope + rope) = norm(u Wq_low^T) Wq^T, or u Wq^T;  k (n, rope) = u Wk^T;  v (n, latent) = u Wv^T */
    sn_role first = hp->q_rank ? SN_ROLE_ATTN_Q_LOW : SN_ROLE_ATTN_Q;
    const sn_linear qkv[] = {{&b->matrix[first], NULL, hp->q_rank ? s->q_low : s->head_rows, precise},
                             {&b->matrix[SN_ROLE_ATTN_K], NULL, s->k, precise},
                             {&b->matrix[SN_ROLE_ATTN_V], NULL, s->v, precise}};
    const sn_linear q = {&b->matrix[SN_ROLE_ATTN_Q], NULL, s->head_rows, precise};
    SN_TRY(ops->linear(d, n, u, 3, qkv, err));
    if (hp->q_rank) {
        SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_Q_LOW_NORM, s->q_low, s->q_low, err));
        SN_TRY(ops->linear(d, n, s->q_low, 1, &q, err));
    }
    SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_LATENT_NORM, s->v, s->v, err));

    /* q (n, heads, latent + rope): the first nope elements of a head times its Wk_up; the last rope elements, and k,
     * rotated by their positions */
    const sn_rope rope = {hp->rope_style == SN_ROPE_NEOX, hp->rope_dim, s->cos_sin[0]};
    SN_TRY(ops->head_linear(d, n, s->head_rows, hp->nope_dim + hp->rope_dim, &b->heads[0], s->q, err));
    SN_TRY(ops->rope(d, n, heads, hp->head_dim, s->q + hp->latent, &rope, err));
    SN_TRY(ops->rope(d, n, 1, hp->rope_dim, s->k, &rope, err));

    /* k, v join the KV cache;  attn (n, heads, latent);  head_rows (n, heads, value_dim) = attn Wv_up^T, by head */
    const sn_attention attention = {.block = index, .n_heads = heads, .scale = hp->attn_scale};
    SN_TRY(ops->kv_store(d, index, s->k, s->v, err));
    SN_TRY(ops->attention(d, &attention, s->q, s->attn, err));
    SN_TRY(ops->head_linear(d, n, s->attn, hp->latent, &b->heads[1], s->head_rows, err));

    /* h (n, n_embd) = head_rows Wo^T */
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], NULL, s->h, precise};
    return ops->linear(d, n, s->head_rows, 1, &o, err);
}

/* h (n, n_embd) = attention(u), u (n, n_embd). Grouped-query attention (Ainslie et al. 2023). */
static sn_status block_attention(const sn_block *b, int index, const sn_forward_pass *p, const float *u, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    bool precise = sn_needs_precision(hp);
    if (hp->latent) return block_latent_attention(b, index, p, u, err);

    /* q (n, heads, dim) = u Wq^T + bq;  k, v (n, kv_heads, dim) = u Wk^T + bk, u Wv^T + bv;  out_gate like q */
    const sn_linear qkv[] = {{&b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], s->q, precise},
                             {&b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], s->k, precise},
                             {&b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v, precise},
                             {&b->matrix[SN_ROLE_ATTN_GATE], NULL, s->out_gate, precise}};
    SN_TRY(ops->linear(d, n, u, hp->attn_gate ? 4 : 3, qkv, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_ATTN_Q, u, s->q, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_ATTN_K, u, s->k, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_ATTN_V, u, s->v, err));

    /* q = norm(q), k = norm(k): each head by itself, or all heads of a row as one (qk_norm_wide) */
    if (b->vector[SN_ROLE_ATTN_Q_NORM]) SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_Q_NORM, s->q, s->q, err));
    if (b->vector[SN_ROLE_ATTN_K_NORM]) SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_K_NORM, s->k, s->k, err));

    /* q, k rotated by their positions (Su et al. 2021); q multiplied by a factor that grows with the position */
    const sn_rope rope = {hp->rope_style == SN_ROPE_NEOX, hp->rope_dim, s->cos_sin[sn_rope_of(hp, p->number)]};
    if (!hp->no_rope[p->number]) SN_TRY(ops->rope(d, n, heads, dim, s->q, &rope, err));
    if (!hp->no_rope[p->number]) SN_TRY(ops->rope(d, n, kv_heads, dim, s->k, &rope, err));
    if (sn_q_grows(hp, p->number)) SN_TRY(ops->scale(d, n, heads * dim, s->q, 1, s->q_factors, s->q, err));

    /* k, v join the KV cache;  attn (n, heads, dim) = softmax(q K^T * scale) V over the positions up to each row's own
     */
    SN_TRY(ops->kv_store(d, index, s->k, s->v, err));
    const sn_attention attention = {.block = index,
                                    .n_heads = heads,
                                    .window = sn_window_of(hp, p->number),
                                    .scale = hp->attn_scale,
                                    .slopes = b->vector[SN_ROLE_ATTN_SLOPES],
                                    .sinks = b->vector[SN_ROLE_ATTN_SINKS],
                                    .softcap = hp->score_softcap};
    SN_TRY(ops->attention(d, &attention, s->q, s->attn, err));

    /* attn = attn * sigmoid(out_gate) */
    if (hp->attn_gate)
        SN_TRY(
            ops->activate(d, (size_t)n * (size_t)heads * (size_t)dim, SN_SIGMOID, s->out_gate, s->attn, s->attn, err));

    /* h (n, n_embd) = attn Wo^T + bo */
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], b->vector[SN_ROLE_ATTN_O_BIAS], s->h, precise};
    SN_TRY(ops->linear(d, n, s->attn, 1, &o, err));
    return sn_block_add_lora(p, SN_ROLE_ATTN_O, s->attn, s->h, err);
}

/* h (n, n_embd) = feed_forward(u), u (n, n_embd). Gated: Shazeer 2020; with experts: moe.c. */
static sn_status block_feed_forward(const sn_block *b, const sn_forward_pass *p, const float *u, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows;
    bool precise = sn_needs_precision(hp);
    if (sn_block_has_experts(b)) return sn_moe_forward(b, p, u, err);

    /* gated: up, gate (n, n_ff) = u Wup^T + bup, u Wgate^T;  else gate = u Wup^T + bup */
    float *up = hp->gated ? s->up : s->gate;
    const sn_linear up_gate[] = {{&b->matrix[SN_ROLE_FFN_UP], b->vector[SN_ROLE_FFN_UP_BIAS], up, precise},
                                 {&b->matrix[SN_ROLE_FFN_GATE], NULL, s->gate, precise}};
    SN_TRY(ops->linear(d, n, u, hp->gated ? 2 : 1, up_gate, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_FFN_GATE, u, s->gate, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_FFN_UP, u, up, err));

    /* gate (n, n_ff) = activation(gate) * up;  else gate = activation(gate) */
    SN_TRY(
        ops->activate(d, (size_t)n * sn_block_n_ff(b), hp->activation, s->gate, hp->gated ? up : NULL, s->gate, err));

    /* h (n, n_embd) = gate Wdown^T + bdown */
    const sn_linear down = {&b->matrix[SN_ROLE_FFN_DOWN], b->vector[SN_ROLE_FFN_DOWN_BIAS], s->h, precise};
    SN_TRY(ops->linear(d, n, s->gate, 1, &down, err));
    return sn_block_add_lora(p, SN_ROLE_FFN_DOWN, s->gate, s->h, err);
}

/* ---- the block ---- */

sn_status sn_block_forward(const sn_block *block, int index, const sn_forward_pass *pass, sn_err *err) {
    const sn_scratch *s = pass->scratch;
    bool parallel = pass->hp->parallel;
    const float *u, *v = NULL; /* (n, n_embd): the inputs of attention and of the feed-forward */

    /* x += prompt (Li & Liang 2021) */
    SN_TRY(sn_block_add_prompt(pass, err));

    /* u = norm(x);  parallel: v = norm(x) of the same x */
    SN_TRY(block_pre_norm(block, pass, SN_ROLE_ATTN_NORM, s->h, &u, err));
    if (parallel) SN_TRY(block_pre_norm(block, pass, SN_ROLE_FFN_NORM, s->ffn_input, &v, err));

    /* x += attention(u), or the recurrent half of u */
    SN_TRY(pass->hp->recurrent[pass->number] ? sn_delta_forward(block, index, pass, u, err)
                                             : block_attention(block, index, pass, u, err));
    SN_TRY(block_add_residual(block, pass, SN_ROLE_ATTN_POST_NORM, err));

    /* v = norm(x), unless parallel */
    if (!parallel) SN_TRY(block_pre_norm(block, pass, SN_ROLE_FFN_NORM, s->h, &v, err));

    /* x += feed_forward(v) */
    SN_TRY(block_feed_forward(block, pass, v, err));
    return block_add_residual(block, pass, SN_ROLE_FFN_POST_NORM, err);
}
