/* One transformer block: its weights on a device, and its mathematics. Private to blocks/. */
#ifndef SN_BLOCKS_BLOCK_H
#define SN_BLOCKS_BLOCK_H

#include "device/device.h"
#include "model/model.h"

/* Weights of one block, on the span's device. A role that the family does not have is NULL. */
typedef struct sn_block {
    sn_weight *matrix[SN_ROLE_COUNT]; /* the roles with two dimensions */
    float *vector[SN_ROLE_COUNT];     /* norms and biases, float32 */
    size_t vector_len[SN_ROLE_COUNT];
    size_t bytes;
} sn_block;

/* Activations of a pass, on the device, each with room for SN_SPAN_ROWS_MAX rows. */
typedef struct sn_scratch {
    float *x;          /* (rows, n_embd): the hidden states, from block to block */
    float *h;          /* (rows, n_embd): normed, and what a sub-layer adds to x */
    float *q, *attn;   /* (rows, n_heads, head_dim) */
    float *k, *v;      /* (rows, n_kv_heads, head_dim) */
    float *gate, *up;  /* (rows, n_ff) */
    float *cos_sin;    /* (rows, rope_dim/2, 2) */
} sn_scratch;

sn_status sn_block_load(const sn_model *model, sn_device *device, int number, sn_block *out, sn_err *err) SN_MUST_USE;
void sn_block_unload(sn_block *block, sn_device *device); /* harmless on a zeroed or half-loaded block */

/* What a block's forward works on. */
typedef struct sn_block_pass {
    sn_device *device;
    const sn_hparams *hp;
    const sn_kv_shape *kv_shape;
    const sn_scratch *scratch;
    int n_rows, n_sequences;
    const sn_sequence *sequences;
} sn_block_pass;

/* scratch->x (n_rows, n_embd) goes in and comes out. `index`: of the block within the span's KV pages. */
sn_status sn_block_forward(const sn_block *block, int index, const sn_block_pass *pass, sn_err *err) SN_MUST_USE;

#endif
