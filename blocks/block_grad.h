/* The backward pass of one block: from the gradient of its output to the gradient of its input and of its adapter. The
 * intermediate activations of the forward pass were saved, or are recomputed. A pass takes rows of one sequence, some
 * or all: each of the functions below is called for the rows in their order, from position 0 on, and has taken all of
 * them before the next function begins. On CPUs the bits do not depend on where the rows are cut. Private to blocks/.
 *
 * Nothing here owns memory: train.c allocates sn_grad_scratch and sn_block_grads, saved_activations.c the saved ones.
 * Used by the devices' thread. d... is the gradient of the loss with respect to the tensor of that name. */
#ifndef SN_BLOCKS_BLOCK_GRAD_H
#define SN_BLOCKS_BLOCK_GRAD_H

#include "blocks/block.h"

/* Activations and gradients of one sequence, on the device. In a pass each points to the pass's first row; the rows
 * before it lie before. */
typedef struct sn_grad_scratch {
    float *x, *mid;         /* (rows, n_embd): the hidden states that enter, and those between the two halves */
    float *h1, *h2;         /* (rows, n_embd): inputs of the two halves after their norms; unused without such norms */
    float *o1, *o2;         /* (rows, n_embd): outputs of the two halves before their post-norms; unused without such */
    float *q0, *q, *attn;   /* (rows, n_heads, head_dim); q0: before its norm; unused without such a norm, as k0 */
    float *k0, *k, *v;      /* (rows, n_kv_heads, head_dim) */
    float *gate, *up, *act; /* (rows, sn_ff_width): (n, n_ff), or with experts (n, n_experts_used, n_ff) */
    float *dy;              /* (rows, n_embd): the gradient of the output; afterwards that of x */
    float *dh;              /* (rows, n_embd): the gradient of a half's input or output */
    float *dq, *dattn, *dk, *dv, *dgate, *dup;                /* shaped like q, attn, k, v, gate, up */
    float *logits, *expert_weights, *expert_ids, *expert_out; /* with experts only: moe.h */
    float *dexpert_weights;                                   /* (rows, n_experts_used) */
    /* (rows, n_experts), (rows, n_experts_used, n_embd): they overwrite logits and expert_out of the scratch, which are
     * not needed any more then; saved ones lie elsewhere and are not overwritten. */
    float *dlogits, *dexpert_out;
    float *shared_out,
        *shared_weight;          /* with a shared expert only: (rows, n_embd) its output; (rows) the weight of it */
    float *lora_mid, *dlora_mid; /* (rows, SN_LORA_RANK_MAX) */
    float *lora_out;             /* (rows, widest input or output of a matrix) */
    /* (rows, rope_dim/2, 2) of each rope: its table, and the table that rotates back. */
    float *cos_sin[SN_ROPES_MAX], *cos_sin_inverse[SN_ROPES_MAX];
    float *q_factors; /* as in sn_scratch */
} sn_grad_scratch;

/* The gradients of a block's LoRA matrices, on the device; a backward pass adds to them. */
typedef struct sn_block_grads {
    struct {
        float *a, *b; /* shaped like the adapter's matrices; NULL: none */
    } lora[SN_ROLE_COUNT];
} sn_block_grads;

/* The inputs of a pass over rows of one block; the device is within a batch of these rows, whose KV pages hold one
 * block. */
typedef struct sn_backward_pass {
    sn_device *device;
    const sn_hparams *hp;
    const sn_grad_scratch *scratch;
    const sn_sequence *sequence;
    const sn_block_adapter *adapter; /* NULL: none */
    const sn_block_grads *grads;     /* NULL: none */
    int number;                      /* of the block in the model */
    bool saved; /* scratch holds what sn_block_forward_saving left in q0 to v, attn, mid, o1, o2, gate, up, and of
                   experts: it is not recomputed */
} sn_backward_pass;

/* A forward pass with the bits of sn_block_forward that leaves each intermediate activation in its own place: replaces
 * scratch->x by the block's output. */
sn_status sn_block_forward_saving(const sn_block *block, const sn_backward_pass *pass, sn_err *err) SN_MUST_USE;

/* The backward pass, in three steps. sn_block_recompute, left out if the intermediate activations were saved: repeats
 * the forward pass up to the block's last matrix. In: scratch->x, the hidden states that entered (without the prompt).
 */
sn_status sn_block_recompute(const sn_block *block, const sn_backward_pass *pass, sn_err *err) SN_MUST_USE;
/* In: scratch->dy, the gradient of the output; where saved, scratch->x. Out: dy, the gradient of scratch->mid; dq; what
 * the rows add to dk and dv, which are complete after the last row; pass->grads of the matrices behind q, k and v. */
sn_status sn_block_backward_halves(const sn_block *block, const sn_backward_pass *pass, sn_err *err) SN_MUST_USE;
/* Through rope, q, k, v and the norm. Out: scratch->dy, the gradient of x; pass->grads of q, k and v. */
sn_status sn_block_backward_qkv(const sn_block *block, const sn_backward_pass *pass, sn_err *err) SN_MUST_USE;

#endif
