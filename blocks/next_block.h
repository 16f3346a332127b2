/* The block behind the last one that predicts a further token (multi-token prediction: Gloeckle et al. 2024,
 * DeepSeek-AI 2024), which a client computes to draft: a block of the family with an input and a norm of its own.
 *
 * Row i is made of what the model knows of position i, the hidden state behind its last norm, and of the token at
 * position i + 1; what comes out, through the model's LM head, are the logits of the token at i + 2. A further draft
 * takes what came out in place of the model's hidden state. The block attends to the rows before, so it has a KV cache;
 * only the distance of positions counts, and the first row may be of any position.
 *
 * sn_next_block has the weights and the KV cache of one session. Thread: the one of its device, which is borrowed.
 * Errors: those of spans. */
#ifndef SN_BLOCKS_NEXT_BLOCK_H
#define SN_BLOCKS_NEXT_BLOCK_H

#include "blocks/span.h"

typedef struct sn_next_block sn_next_block;

/* For at most `positions` rows. SN_REFUSED: the model has no such block (hparams.n_next), or not all of it is here. */
sn_status sn_next_block_load(const sn_model *model, sn_device *device, sn_kv_dtype kv_dtype, int positions,
                             sn_next_block **out, sn_err *err) SN_MUST_USE;
void sn_next_block_free(sn_next_block **block); /* accepts NULL */

/* Appends n rows: embeddings (n, n_embd) of the tokens, as they enter the model's first block, and hidden (n, n_embd),
 * after the model's last norm or from `out` of the row before. out (n, n_embd): after the block's own norm; NULL: not
 * wanted. All host memory; out may be one of the others. After a failure the rows are not there. */
sn_status sn_next_block_forward(sn_next_block *block, int n, const float *embeddings, const float *hidden, float *out,
                                sn_err *err) SN_MUST_USE;
int sn_next_block_length(const sn_next_block *block); /* rows */
void sn_next_block_rewind(sn_next_block *block, int length);

#endif
