/* Inside of sn_kept (train.h). Private to blocks/. */
#ifndef SN_BLOCKS_KEPT_H
#define SN_BLOCKS_KEPT_H

#include "blocks/block_grad.h"
#include "blocks/span_private.h"
#include "blocks/train.h"

struct sn_kept {
    sn_span *span;
    int first, end, n;
    void *insides[SN_KV_PARTS_MAX]; /* of each segment: its blocks', one after the other, on its device; all NULL: not kept */
    float rows[];                   /* (end - first, n, n_embd): what entered each block */
};

/* As much of it as goes into `bytes_max`; NULL: nothing does, or there is no memory. */
sn_kept *sn_kept_new(sn_span *span, int first, int end, int n, size_t bytes_max);

/* The members of scratch that make up a block's inside point to where it is kept; nothing happens if it is not. */
void sn_kept_inside(const sn_kept *kept, int block, sn_grad_scratch *scratch);

#endif
