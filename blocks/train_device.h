/* The memory of one device for training: sn_train_device, which train.c uses. Private to blocks/. */
#ifndef SN_BLOCKS_TRAIN_DEVICE_H
#define SN_BLOCKS_TRAIN_DEVICE_H

#include "blocks/block_grad.h"
#include "blocks/span_private.h"
#include "blocks/train.h"

enum { SN_TRAIN_BUFFERS = 38 };

/* A device of the span: activations, gradients and KV pages (of one block) of one sequence. */
typedef struct sn_train_device {
    sn_device *device;
    sn_grad_scratch scratch;
    void *memory; /* device: the buffers of scratch, then the KV pages */
    size_t bytes;
    void **pages;
    float *grads; /* device: gradients of one block's LoRA matrices; reallocated when a block has more */
    size_t grads_bytes;
    bool has_cos_sin, is_long; /* the rope tables are uploaded; those of long timelines */
} sn_train_device;

/* The members of sn_grad_scratch with the elements per row of each. Returns the widest row that a matrix reads or
 * writes. */
size_t sn_train_buffers(const sn_hparams *hp, sn_grad_scratch *scratch, float **buffer[SN_TRAIN_BUFFERS],
                        size_t width[SN_TRAIN_BUFFERS]);
sn_kv_shape sn_train_kv_shape(const sn_hparams *hp); /* of the pages of one block */

size_t sn_train_device_bytes(const sn_hparams *hp, const sn_device *device, int tokens); /* of its memory */
sn_status sn_train_device_init(const sn_hparams *hp, sn_device *device, int tokens, sn_train_device *h,
                               sn_err *err) SN_MUST_USE;
void sn_train_device_fini(sn_train_device *h); /* accepts a zeroed one, and one whose init failed */

#endif
