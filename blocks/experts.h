/* The feed-forward half of a block as a mixture of experts: a router chooses a few of many for each row (Shazeer et al.
 * 2017), and what these give is added up by its weights. Forwards, and backwards. Private to blocks/. */
#ifndef SN_BLOCKS_EXPERTS_H
#define SN_BLOCKS_EXPERTS_H

#include "blocks/block_grad.h"

/* Elements of scratch->chosen for a row: its logits, then of all rows the weights, then the ids of the chosen experts. */
static inline size_t sn_experts_chosen_width(const sn_hparams *hp) {
    return (size_t)hp->n_experts + 2 * (size_t)hp->n_experts_used;
}

/* scratch->h = the mixture of u (n_rows, n_embd), which may be scratch->h. */
sn_status sn_experts_forward(const sn_block *block, const sn_block_pass *pass, const float *u, sn_err *err) SN_MUST_USE;

/* The same but for the sum, with all that stands between: scratch->gate, up, chosen and each. */
sn_status sn_experts_again(const sn_block *block, const sn_grad_pass *pass, const float *u, sn_err *err) SN_MUST_USE;
/* The sum, after it: what the half adds. */
sn_status sn_experts_sum(const sn_grad_pass *pass, float *added, sn_err *err) SN_MUST_USE;
/* scratch->dh = the gradient of u from that of what was added, which may be scratch->dh. After sn_experts_again, or with what it left
 * there kept, which stays as it is. */
sn_status sn_experts_back(const sn_block *block, const sn_grad_pass *pass, const float *d_added, sn_err *err) SN_MUST_USE;

#endif
