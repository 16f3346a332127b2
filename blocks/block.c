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
 * Each step is one operation of the device, and so are steps that belong together: a norm and the products of its
 * result, rope and the store, attention or an activation and the product behind it. What a half adds to x is added by
 * the norm of the next half, of the next block, too (sn_forward_pass.due). */
#include "blocks/block.h"

#include "blocks/delta.h"
#include "blocks/moe.h"

#include <math.h>

/* ---- steps ---- */

size_t sn_block_norm_elements(const sn_hparams *hp, int block, int n_rows, sn_role role) {
    const sn_heads heads = sn_heads_of(hp, block);
    int width = role == SN_ROLE_ATTN_V_NORM        ? heads.n_kv * heads.value_dim
                : role == SN_ROLE_ATTN_Q_NORM      ? heads.n * heads.key_dim
                : role == SN_ROLE_ATTN_K_NORM      ? heads.n_kv * heads.key_dim
                : role == SN_ROLE_ATTN_Q_LOW_NORM  ? hp->q_rank
                : role == SN_ROLE_ATTN_LATENT_NORM ? hp->latent
                                                   : hp->n_embd;
    return (size_t)n_rows * (size_t)width;
}

/* RMS norm: Zhang & Sennrich 2019. Layer norm: Ba et al. 2016. */
static sn_norm block_norm_of(const sn_block *b, const sn_hparams *hp, sn_role role) {
    sn_role bias = sn_role_bias(role);
    bool inner = role == SN_ROLE_ATTN_Q_LOW_NORM || role == SN_ROLE_ATTN_LATENT_NORM;
    return (sn_norm){.layer = hp->layer_norm,
                     .width = b->width[role],
                     .weight = b->vector[role],
                     .bias = bias == SN_ROLE_COUNT ? NULL : b->vector[bias],
                     .eps = inner ? hp->latent_eps : hp->norm_eps};
}

sn_status sn_block_norm(const sn_block *b, const sn_forward_pass *p, sn_role role, const float *x, float *y,
                        sn_err *err) {
    const sn_device_ops *ops = p->device->ops;
    const sn_norm m = block_norm_of(b, p->hp, role);
    int rows = (int)(sn_block_norm_elements(p->hp, p->number, p->n_rows, role) / (size_t)m.width);
    return m.layer ? ops->layer_norm(p->device, rows, m.width, x, m.weight, m.bias, m.eps, y, err)
                   : ops->rms_norm(p->device, rows, m.width, x, m.weight, m.eps, y, err);
}

sn_half_input sn_half_input_of(const sn_block *b, const sn_forward_pass *p, sn_role role, float *x, const float *add,
                               float *h) {
    if (!b->vector[role]) return sn_half_input_at(x);
    sn_half_input input = {h, block_norm_of(b, p->hp, role)};
    input.norm.x = x;
    input.norm.add = add;
    input.norm.y = h;
    return input;
}

sn_status sn_half_linear(sn_device *d, int n, const sn_half_input *input, int n_linears, const sn_linear *linears,
                         sn_err *err) {
    return input->norm.y ? d->ops->norm_linear(d, n, &input->norm, n_linears, linears, err)
                         : d->ops->linear(d, n, input->u, n_linears, linears, err);
}

sn_status sn_block_add_due(const sn_forward_pass *p, sn_err *err) {
    size_t elements = (size_t)p->n_rows * (size_t)p->hp->n_embd;
    return p->due ? p->device->ops->add(p->device, elements, p->scratch->x, p->due, err) : SN_OK;
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

/* The input of a half, u = norm(x + due), or x + due where the family has no norm there; pass->due: what is due. */
static sn_status block_begin_half(const sn_block *b, const sn_forward_pass *p, sn_role role, sn_half_input *input,
                                  sn_err *err) {
    *input = sn_half_input_of(b, p, role, p->scratch->x, p->due, p->scratch->h);
    return b->vector[role] ? SN_OK : sn_block_add_due(p, err);
}

/* h (n, n_embd), which is due then: h, or norm(h) where the family has a post-norm, times residual_scale. */
static sn_status block_end_half(const sn_block *b, const sn_forward_pass *p, sn_role role, sn_err *err) {
    float *h = p->scratch->h, scale = p->hp->residual_scale;
    if (b->vector[role]) SN_TRY(sn_block_norm(b, p, role, h, h, err));
    return scale != 1 ? p->device->ops->scale(p->device, p->n_rows, p->hp->n_embd, h, scale, NULL, h, err) : SN_OK;
}

sn_status sn_activate_limited(sn_device *d, size_t n, const sn_gated *g, float limit, sn_err *err) {
    const sn_device_ops *ops = d->ops;
    SN_TRY(ops->activate(d, n, g->kind, g->gate, NULL, g->y, err));
    SN_TRY(ops->clamp(d, n, g->y, -INFINITY, limit, err));
    SN_TRY(ops->clamp(d, n, (float *)(uintptr_t)g->up, -limit, limit, err));
    return ops->scale(d, (int)n, 1, g->y, 1, g->up, g->y, err);
}

/* ---- the indexer ---- */

/* The index keys of the rows join the KV cache, and the rows choose the positions that they attend to: chosen (n,
 * index_topk). The products with the block's input, index_k and index_weights, are there. q_low: the queries before
 * their matrix, normed. */
static sn_status block_choose(const sn_block *b, const sn_forward_pass *p, const float *q_low, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows, heads = hp->index_heads, dim = hp->index_dim;
    const sn_rope rope = {!hp->index_as_rope || hp->rope_style == SN_ROPE_NEOX, hp->rope_dim, s->cos_sin[0]};
    const sn_linear q = {&b->matrix[SN_ROLE_INDEX_Q], NULL, s->index_q, true};
    const sn_indexer indexer = {p->index_block, heads, dim, hp->index_topk, s->index_q, s->index_weights};

    /* index_k = norm(index_k), its first elements rotated by the position */
    SN_TRY(ops->layer_norm(d, n, dim, s->index_k, b->vector[SN_ROLE_INDEX_K_NORM], b->vector[SN_ROLE_INDEX_K_NORM_BIAS],
                           hp->latent_eps, s->index_k, err));
    SN_TRY(ops->rope(d, n, 1, dim, s->index_k, &rope, err));
    SN_TRY(ops->kv_store(d, p->index_block, s->index_k, NULL, err));
    if (!p->chooses) return SN_OK;

    /* index_q (n, index_heads, index_dim) = q_low Wq^T, rotated likewise */
    SN_TRY(ops->linear(d, n, q_low, 1, &q, err));
    SN_TRY(ops->rope(d, n, heads, dim, s->index_q, &rope, err));
    return ops->choose_keys(d, &indexer, sn_chosen_of(s), err);
}

/* ---- the two halves ---- */

/* h (n, n_embd) = attention(u), u (n, n_embd), for latent attention (DeepSeek-AI 2024), in the absorbed form: a head's
 * matrix of keys multiplies its q instead of the latents, so that all heads attend to the latents themselves. Prompts
 * take this form, too: another one would round differently, and the bits would depend on the chunking. */
static sn_status block_latent_attention(const sn_block *b, int index, const sn_forward_pass *p,
                                        const sn_half_input *input, sn_err *err) {
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
                             {&b->matrix[SN_ROLE_ATTN_V], NULL, s->v, precise},
                             hp->head_gate
                                 ? (sn_linear){&b->matrix[SN_ROLE_ATTN_HEAD_GATE], NULL, s->head_gate, precise}
                                 : (sn_linear){&b->matrix[SN_ROLE_INDEX_K], NULL, s->index_k, true},
                             {&b->matrix[SN_ROLE_INDEX_WEIGHTS], NULL, s->index_weights, true}};
    const sn_linear q = {&b->matrix[SN_ROLE_ATTN_Q], NULL, s->head_rows, precise};
    const sn_half_input low = sn_half_input_of(b, p, SN_ROLE_ATTN_Q_LOW_NORM, s->q_low, NULL, s->q_low);
    const int more = hp->head_gate ? 1 : !sn_chooses_keys(hp, p->number) ? 0 : p->chooses ? 2 : 1;
    SN_TRY(sn_half_linear(d, n, input, 3 + more, qkv, err));
    if (hp->q_rank) SN_TRY(sn_half_linear(d, n, &low, 1, &q, err));
    if (sn_chooses_keys(hp, p->number)) SN_TRY(block_choose(b, p, s->q_low, err));
    SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_LATENT_NORM, s->v, s->v, err));

    /* q (n, heads, latent + rope): the first nope elements of a head times its Wk_up; the last rope elements, and k,
     * rotated by their positions */
    const sn_rope rope = {hp->rope_style == SN_ROPE_NEOX, hp->rope_dim, s->cos_sin[0]};
    SN_TRY(ops->head_linear(d, n, s->head_rows, hp->nope_dim + hp->rope_dim, &b->heads[0], s->q, err));
    const bool turns = !hp->no_rope[p->number];
    if (turns) SN_TRY(ops->rope(d, n, heads, hp->head_dim, s->q + hp->latent, &rope, err));
    if (turns) SN_TRY(ops->rope(d, n, 1, hp->rope_dim, s->k, &rope, err));
    if (sn_q_grows(hp, p->number)) SN_TRY(ops->scale(d, n, heads * hp->head_dim, s->q, 1, s->q_factors, s->q, err));

    /* k, v join the KV cache;  attn (n, heads, latent);  head_rows (n, heads, value_dim) = attn Wv_up^T, by head */
    const sn_attention attention = {.block = index,
                                    .n_heads = heads,
                                    .scale = hp->attn_scale,
                                    .chosen = p->chooses ? sn_chosen_of(s) : NULL,
                                    .n_chosen = hp->index_topk};
    SN_TRY(ops->kv_store(d, index, s->k, s->v, err));
    SN_TRY(ops->attention(d, &attention, s->q, s->attn, err));
    SN_TRY(ops->head_linear(d, n, s->attn, hp->latent, &b->heads[1], s->head_rows, err));

    /* head_rows of each head times sigmoid(head_gate (n, heads));  h (n, n_embd) = head_rows Wo^T */
    if (hp->head_gate) {
        SN_TRY(ops->activate(d, (size_t)(n * heads), SN_SIGMOID, s->head_gate, NULL, s->head_gate, err));
        SN_TRY(ops->scale(d, n * heads, hp->value_dim, s->head_rows, 1, s->head_gate, s->head_rows, err));
    }
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], NULL, s->h, precise};
    return ops->linear(d, n, s->head_rows, 1, &o, err);
}

/* h (n, n_embd) = attention(u), u (n, n_embd). Grouped-query attention (Ainslie et al. 2023). */
static sn_status block_attention(const sn_block *b, int index, const sn_forward_pass *p, const sn_half_input *input,
                                 sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    const sn_heads heads = sn_heads_of(hp, p->number);
    int n = p->n_rows;
    bool precise = sn_needs_precision(hp);
    const sn_role gate = hp->head_gate ? SN_ROLE_ATTN_HEAD_GATE : SN_ROLE_ATTN_GATE;
    if (hp->latent) return block_latent_attention(b, index, p, input, err);

    /* q (n, heads, key_dim) = u Wq^T + bq;  k (n, kv_heads, key_dim) = u Wk^T + bk;  v (n, kv_heads, value_dim)
     * = u Wv^T + bv;  out_gate like q */
    const sn_linear qkv[] = {{&b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], s->q, precise},
                             {&b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], s->k, precise},
                             {&b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v, precise},
                             {&b->matrix[gate], NULL, hp->head_gate ? s->head_gate : s->out_gate, precise}};
    const bool values = b->matrix[SN_ROLE_ATTN_V].rows; /* else they are what gives keys */
    SN_TRY(sn_half_linear(d, n, input, !values ? 2 : hp->attn_gate || hp->head_gate ? 4 : 3, qkv, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_ATTN_Q, input->u, s->q, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_ATTN_K, input->u, s->k, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_ATTN_V, input->u, s->v, err));

    /* v = norm(v), or norm of what will be k */
    if (b->vector[SN_ROLE_ATTN_V_NORM])
        SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_V_NORM, values ? s->v : s->k, s->v, err));

    /* q = norm(q), k = norm(k): each head by itself, or all heads of a row as one (qk_norm_wide) */
    if (b->vector[SN_ROLE_ATTN_Q_NORM]) SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_Q_NORM, s->q, s->q, err));
    if (b->vector[SN_ROLE_ATTN_K_NORM]) SN_TRY(sn_block_norm(b, p, SN_ROLE_ATTN_K_NORM, s->k, s->k, err));

    /* v multiplied by value_scale */
    if (hp->value_scale > 0)
        SN_TRY(ops->scale(d, n, heads.n_kv * heads.value_dim, s->v, hp->value_scale, NULL, s->v, err));

    /* q, k rotated by their positions (Su et al. 2021); k, v join the KV cache; q multiplied by a factor that grows
     * with the position */
    const int table = sn_rope_of(hp, p->number);
    const sn_rope rope = {hp->rope_style == SN_ROPE_NEOX, sn_rope_dim(hp, table), s->cos_sin[table]};
    const sn_rotated rotated = {rope, n, heads.n, heads.n_kv, heads.key_dim, s->q, s->k};
    SN_TRY(hp->no_rope[p->number] ? ops->kv_store(d, index, s->k, s->v, err)
                                  : ops->rope_store(d, index, &rotated, s->v, err));
    if (sn_q_grows(hp, p->number)) SN_TRY(ops->scale(d, n, heads.n * heads.key_dim, s->q, 1, s->q_factors, s->q, err));

    /* attn (n, heads, value_dim) = softmax(q K^T * scale) V over the positions up to each row's own; where there is a
     * gate, attn = attn * sigmoid(out_gate);  h (n, n_embd) = attn Wo^T + bo */
    const sn_attention attention = {.block = index,
                                    .n_heads = heads.n,
                                    .window = sn_window_of(hp, p->number),
                                    .scale = hp->attn_scale,
                                    .slopes = b->vector[SN_ROLE_ATTN_SLOPES],
                                    .sinks = b->vector[SN_ROLE_ATTN_SINKS],
                                    .softcap = hp->score_softcap};
    const sn_linear o = {&b->matrix[SN_ROLE_ATTN_O], b->vector[SN_ROLE_ATTN_O_BIAS], s->h, precise};
    const sn_gated gated = {SN_SIGMOID, s->out_gate, s->attn, s->attn};
    if (hp->attn_gate) {
        SN_TRY(ops->attention(d, &attention, s->q, s->attn, err));
        SN_TRY(ops->activate_linear(d, n, &gated, &o, err));
    } else if (hp->head_gate) { /* of each head one number */
        const int rows = n * heads.n;
        SN_TRY(ops->attention(d, &attention, s->q, s->attn, err));
        SN_TRY(ops->activate(d, (size_t)rows, SN_SIGMOID, s->head_gate, NULL, s->head_gate, err));
        SN_TRY(ops->scale(d, rows, heads.value_dim, s->attn, 1, s->head_gate, s->attn, err));
        SN_TRY(ops->linear(d, n, s->attn, 1, &o, err));
    } else {
        SN_TRY(ops->attention_linear(d, n, &attention, s->q, s->attn, &o, err));
    }
    return sn_block_add_lora(p, SN_ROLE_ATTN_O, s->attn, s->h, err);
}

/* h (n, n_embd) = feed_forward(u), u (n, n_embd). Gated: Shazeer 2020; with experts: moe.c. */
static sn_status block_feed_forward(const sn_block *b, const sn_forward_pass *p, const sn_half_input *input,
                                    sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows;
    bool precise = sn_needs_precision(hp);
    if (sn_block_has_experts(b)) return sn_moe_forward(b, p, input, err);

    /* gated: up, gate (n, n_ff) = u Wup^T + bup, u Wgate^T;  else gate = u Wup^T + bup */
    float *up = hp->gated ? s->up : s->gate;
    const sn_linear up_gate[] = {{&b->matrix[SN_ROLE_FFN_UP], b->vector[SN_ROLE_FFN_UP_BIAS], up, precise},
                                 {&b->matrix[SN_ROLE_FFN_GATE], NULL, s->gate, precise}};
    SN_TRY(sn_half_linear(d, n, input, hp->gated ? 2 : 1, up_gate, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_FFN_GATE, input->u, s->gate, err));
    SN_TRY(sn_block_add_lora(p, SN_ROLE_FFN_UP, input->u, up, err));

    /* gate (n, n_ff) = activation(gate) * up;  else gate = activation(gate);  h (n, n_embd) = gate Wdown^T + bdown */
    const sn_gated act = {hp->activation, s->gate, hp->gated ? up : NULL, s->gate};
    const sn_linear down = {&b->matrix[SN_ROLE_FFN_DOWN], b->vector[SN_ROLE_FFN_DOWN_BIAS], s->h, precise};
    const float limit = hp->dense_limit[p->number];
    if (limit > 0) SN_TRY(sn_activate_limited(d, (size_t)n * sn_block_n_ff(b), &act, limit, err));
    SN_TRY(limit > 0 ? d->ops->linear(d, n, s->gate, 1, &down, err) : d->ops->activate_linear(d, n, &act, &down, err));
    return sn_block_add_lora(p, SN_ROLE_FFN_DOWN, s->gate, s->h, err);
}

/* ---- the block ---- */

/* v = norm(x);  x += feed_forward(v): due */
static sn_status block_second_half(const sn_block *block, const sn_forward_pass *p, sn_err *err) {
    sn_half_input v;
    SN_TRY(block_begin_half(block, p, SN_ROLE_FFN_NORM, &v, err));
    SN_TRY(block_feed_forward(block, p, &v, err));
    return block_end_half(block, p, SN_ROLE_FFN_POST_NORM, err);
}

/* Its halves, or the one that it has. */
static sn_status block_halves(const sn_block *block, int index, const sn_forward_pass *pass, sn_err *err) {
    sn_forward_pass p = *pass;
    const sn_scratch *s = p.scratch;
    sn_half_input u, v; /* of attention, and of the feed-forward */

    /* x += prompt (Li & Liang 2021) */
    if (p.adapter && p.adapter->n_prompt) {
        SN_TRY(sn_block_add_due(&p, err));
        SN_TRY(sn_block_add_prompt(&p, err));
        p.due = NULL;
    }

    /* u = norm(x);  x += attention(u), or the recurrent half of u: due */
    if (p.hp->no_mixer[p.number]) return block_second_half(block, &p, err);
    SN_TRY(block_begin_half(block, &p, SN_ROLE_ATTN_NORM, &u, err));
    SN_TRY(p.hp->recurrent[p.number] ? sn_delta_forward(block, index, &p, &u, err)
                                     : block_attention(block, index, &p, &u, err));
    p.due = s->h;

    /* v = norm(x), parallel: of the same x */
    if (p.hp->parallel) {
        v = sn_half_input_at(block->vector[SN_ROLE_FFN_NORM] ? s->ffn_input : s->x);
        if (v.u == s->ffn_input) SN_TRY(sn_block_norm(block, &p, SN_ROLE_FFN_NORM, s->x, s->ffn_input, err));
    }
    SN_TRY(block_end_half(block, &p, SN_ROLE_ATTN_POST_NORM, err));
    if (p.hp->no_ff[p.number]) return SN_OK;
    if (!p.hp->parallel) return block_second_half(block, &p, err);
    SN_TRY(sn_block_add_due(&p, err));
    SN_TRY(block_feed_forward(block, &p, &v, err));
    return block_end_half(block, &p, SN_ROLE_FFN_POST_NORM, err);
}

sn_status sn_block_forward(const sn_block *block, int index, const sn_forward_pass *pass, sn_err *err) {
    const sn_device_ops *ops = pass->device->ops;
    const sn_scratch *s = pass->scratch;
    SN_TRY(block_halves(block, index, pass, err));
    if (!block->scales) return SN_OK;

    /* x + what is due is multiplied by the block's scale */
    SN_TRY(ops->scale(pass->device, pass->n_rows, pass->hp->n_embd, s->x, block->scale, NULL, s->x, err));
    return ops->scale(pass->device, pass->n_rows, pass->hp->n_embd, s->h, block->scale, NULL, s->h, err);
}
