/* The struct of sn_saved_activations (train.h), for train.c. Private to blocks/. */
#ifndef SN_BLOCKS_SAVED_ACTIVATIONS_H
#define SN_BLOCKS_SAVED_ACTIVATIONS_H

#include "blocks/block_grad.h"
#include "blocks/span_private.h"
#include "blocks/train.h"

struct sn_saved_activations {
    sn_span *span;
    int first, end, n; /* blocks, tokens */
    /* Of each segment, on its device: the inner activations of its blocks, one block after the other; all NULL: not
     * saved */
    void *inner[SN_KV_PARTS_MAX];
    float block_inputs[]; /* (end - first, n, n_embd): the hidden states that entered each block */
};

/* Allocates as much as fits into `bytes_max`; NULL: nothing fits, or memory is out. */
sn_saved_activations *sn_saved_activations_new(sn_span *span, int first, int end, int n, size_t bytes_max);

/* Points the members of scratch that hold inner activations to where those of the block are saved; leaves scratch as it
 * is if they are not saved. */
void sn_saved_activations_bind_inner(const sn_saved_activations *saved, int block, sn_grad_scratch *scratch);

#endif
