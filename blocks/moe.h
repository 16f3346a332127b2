/* The feed-forward half of a block as a mixture of experts (Shazeer et al. 2017): a router chooses k of the experts for
 * each row, and their outputs are added, each times its weight; some families add a shared expert, which takes every
 * row (Dai et al. 2024). Forward and backward. Private to blocks/.
 *
 * The intermediate activations lie in scratch: gate, up and act are (n, k, n_ff), expert_out is (n, k, n_embd); what
 * the router gives is logits (n, n_experts), weights (n, k) and ids (n, k), in a forward pass all three in router_out,
 * and behind them (n, k) slots of experts that rest elsewhere.
 * k is hp->n_experts_used. */
#ifndef SN_BLOCKS_MOE_H
#define SN_BLOCKS_MOE_H

#include "blocks/block_grad.h"

/* Elements of scratch->router_out per row. */
static inline size_t sn_moe_router_width(const sn_hparams *hp) {
    return (size_t)hp->n_experts + 3 * (size_t)hp->n_experts_used;
}

/* scratch->h (n_rows, n_embd) = feed_forward(u), u (n_rows, n_embd), which may be scratch->h. */
sn_status sn_moe_forward(const sn_block *block, const sn_forward_pass *pass, const sn_half_input *input,
                         sn_err *err) SN_MUST_USE;

/* Computes the pairs that the request asks for, all of them held by the block: out, host, (pairs, n_embd). Of the pass
 * only device, hp, scratch and split are read. It may run while a forward pass of the same device waits for its
 * exchange: of what such a pass still needs it changes nothing. */
sn_status sn_moe_run_pairs(const sn_block *block, const sn_forward_pass *pass, const sn_expert_request *request,
                           float *out, sn_err *err) SN_MUST_USE;

/* sn_moe_forward up to expert_out, each intermediate activation in its own place: scratch->logits, expert_weights,
 * expert_ids, gate, up, act, expert_out. */
sn_status sn_moe_recompute(const sn_block *block, const sn_backward_pass *pass, const sn_half_input *input,
                           sn_err *err) SN_MUST_USE;
/* After it: added (n_rows, n_embd), the weighted sum of expert_out, and of the shared expert's output. */
sn_status sn_moe_combine(const sn_block *block, const sn_backward_pass *pass, const float *u, float *added,
                         sn_err *err) SN_MUST_USE;
/* scratch->dh (n_rows, n_embd) = the gradient of u, from d_added, the gradient of the sum, which may be scratch->dh
 * where there is no shared expert. The intermediate activations are those of sn_moe_recompute; they stay as they are.
 * Those of a shared expert are computed again. */
sn_status sn_moe_backward(const sn_block *block, const sn_backward_pass *pass, const float *u, const float *d_added,
                          sn_err *err) SN_MUST_USE;

#endif
