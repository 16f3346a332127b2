/* Adapters: what a client trained to go with frozen blocks, on the devices of one span.
 *
 * An adapter consists of deep prompts (Li & Liang 2021) and low-rank adapters (LoRA, Hu et al. 2021), any of them for
 * any block, as one safetensors image:
 *
 *   prompt.B     (n_prompt, n_embd)   added to the hidden states that enter block B, at positions below n_prompt
 *   lora_a.B.T   (rank, inputs)       T: q, k, v, o, gate, up or down; with
 *   lora_b.B.T   (outputs, rank)      the matrix's result gets + (x A^T) B^T; a scale is in B already
 *
 * The image comes from outside: every name, type and shape is checked against the model. Tensors of blocks that the
 * span does not have are ignored, so one image serves a whole chain. Central type: sn_adapter, which owns its device
 * memory and belongs to one span; immutable; used by the thread that owns the span's devices. */
#ifndef SN_BLOCKS_ADAPTER_H
#define SN_BLOCKS_ADAPTER_H

#include "blocks/span.h"

enum { SN_LORA_RANK_MAX = 256 };

typedef struct sn_adapter sn_adapter;

/* Loads an image of `len` bytes, which is not needed afterwards. SN_REFUSED with the tensor's name when it does not fit
 * the model; SN_STOP when a device has too little memory. */
sn_status sn_adapter_load(sn_span *span, const void *image, size_t len, sn_adapter **out, sn_err *err) SN_MUST_USE;

/* The same in pieces, so that the devices can compute for others in between: start, then run until *done, which is set
 * at a failure, too. The image must stay until then. */
typedef struct sn_adapter_loader sn_adapter_loader;
sn_status sn_adapter_load_start(sn_span *span, const void *image, size_t len, sn_adapter_loader **out,
                                sn_err *err) SN_MUST_USE;
/* Loads about `bytes` bytes of the image, and at least 16 rows of a tensor. *out: the adapter, at the end. */
sn_status sn_adapter_load_run(sn_adapter_loader *loader, size_t bytes, bool *done, sn_adapter **out,
                              sn_err *err) SN_MUST_USE;
size_t sn_adapter_loader_bytes(const sn_adapter_loader *loader); /* of the devices' memory, before the end */
void sn_adapter_loader_free(sn_adapter_loader **loader); /* accepts NULL; frees what was loaded and not given out */
void sn_adapter_free(sn_adapter **adapter);              /* accepts NULL; free it before its span */

size_t sn_adapter_bytes(const sn_adapter *adapter); /* of the devices' memory */

/* Number of float32 values of the adapter in blocks [first, end), as one array: block after block, in each the prompt,
 * then the matrices in the order of sn_role, A before B. Gradients have this layout. */
size_t sn_adapter_n_params(const sn_adapter *adapter, int first, int end);

/* The name of a matrix in names of tensors, "gate"; NULL for roles that cannot be adapted. */
const char *sn_adapter_target(sn_role role);

/* The adapter of one block of the span; for blocks/ (block.h). */
const struct sn_block_adapter *sn_adapter_block(const sn_adapter *adapter, int block);

#endif
