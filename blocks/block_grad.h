/* A block backwards: from the gradient of what leaves it to that of what enters it, and of what is trained of it. What
 * the forward pass had in between was kept, or is computed again. One sequence, whole, from position 0. Private to blocks/. */
#ifndef SN_BLOCKS_BLOCK_GRAD_H
#define SN_BLOCKS_BLOCK_GRAD_H

#include "blocks/block.h"

/* Activations and gradients of one sequence, on the device, each with room for its longest. */
typedef struct sn_grad_scratch {
    float *x, *mid; /* (rows, n_embd): hidden states as they enter, and between the two halves */
    float *h1, *h2; /* (rows, n_embd): these, normed; unused where the family does not norm there */
    float *o1, *o2; /* (rows, n_embd): what the two halves add, before its norm, where it has one; else unused */
    float *q0, *q,
        *attn; /* (rows, n_heads, head_dim); q0, k0: before their norms, where the family has such, else unused */
    float *k0, *k, *v;      /* (rows, n_kv_heads, head_dim) */
    float *gate, *up, *act; /* (rows, n_ff) */
    float *dy, *dh;         /* (rows, n_embd): dy comes in, and leaves as the gradient of x */
    float *dq, *dattn, *dk, *dv, *dgate, *dup;
    float *chosen, *each, *dchosen; /* of a mixture: experts.h; dchosen (rows, n_experts_used) */
    float *dlogits, *deach;         /* where chosen and each are, unless these are kept elsewhere: then they stay as they are */
    float *low, *dlow;     /* (rows, SN_LORA_RANK_MAX) */
    float *wide;           /* (rows, the widest) */
    float *cos_sin[SN_ROPES_MAX], *back[SN_ROPES_MAX]; /* (rows, rope_dim/2, 2): rope tables, and those that turn back */
} sn_grad_scratch;

/* Gradients of a block's low-rank adapters, on the device; they grow. */
typedef struct sn_block_grads {
    struct {
        float *a, *b; /* shaped like the tuning's; NULL: none */
    } lora[SN_ROLE_COUNT];
} sn_block_grads;

typedef struct sn_grad_pass {
    sn_device *device; /* in a pass over one sequence whose past has room for one block, index 0 */
    const sn_hparams *hp;
    const sn_grad_scratch *scratch;
    const sn_sequence *sequence;
    const sn_block_tuning *tuning; /* NULL: none */
    const sn_block_grads *grads;   /* NULL: none */
    int number;                    /* of the block in the model */
    bool kept; /* backwards: q to v, attn, mid, o1, o2, gate, up, chosen, each are still what the way forwards left there */
} sn_grad_pass;

/* scratch->x goes in and comes out, with the bits of sn_block_forward; what is in between each has its own place. */
sn_status sn_block_forward_apart(const sn_block *block, const sn_grad_pass *pass, sn_err *err) SN_MUST_USE;

/* scratch->x: what entered the block (the prompt not yet added); scratch->dy: gradient of what left it. */
sn_status sn_block_backward(const sn_block *block, const sn_grad_pass *pass, sn_err *err) SN_MUST_USE;

#endif
