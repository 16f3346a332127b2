/* A tuning: what a client has trained to go with frozen blocks, on the devices of one span. Deep prompts (Li & Liang
 * 2021) and low-rank adapters (LoRA, Hu et al. 2021), as many of each as the client likes, as one safetensors image:
 *
 *   prompt.B     (n_prompt, n_embd)   added to the hidden states that enter block B, at positions below n_prompt
 *   lora_a.B.T   (rank, inputs)       T: q, k, v, o, gate, up or down; with
 *   lora_b.B.T   (outputs, rank)      the matrix's result grows by (x A^T) B^T: a scale is in B already
 *
 * The image comes from outside: every name, type and shape is checked against the model. Tensors of blocks that the
 * span does not have are passed over, so one image may serve a whole chain. Immutable; used by the span's thread. */
#ifndef SN_BLOCKS_TUNING_H
#define SN_BLOCKS_TUNING_H

#include "blocks/block.h"
#include "blocks/span.h"

typedef struct sn_tuning sn_tuning;

/* Takes `len` bytes of an image, which may go afterwards. SN_REFUSED with the tensor's name when it does not fit the
 * model. */
sn_status sn_tuning_load(sn_span *span, const void *image, size_t len, sn_tuning **out, sn_err *err) SN_MUST_USE;
void sn_tuning_free(sn_tuning **tuning); /* NULL-safe; before the span */

size_t sn_tuning_bytes(const sn_tuning *tuning); /* of the devices' memory */

/* Its tensors in the blocks [first, end), as one array of float32: block after block, in each the prompt, then the
 * matrices in the order of sn_role, A before B. The layout of its gradients. */
size_t sn_tuning_floats(const sn_tuning *tuning, int first, int end);

/* -- for blocks/ */

const sn_block_tuning *sn_tuning_of(const sn_tuning *tuning, int block);

/* A matrix's letter in names of tensors, "gate"; NULL for roles that cannot be tuned. */
const char *sn_tuning_target(sn_role role);

#endif
