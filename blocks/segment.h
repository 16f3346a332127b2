/* A segment: consecutive blocks of a span that compute on one device. Private to blocks/.
 *
 * A block's weights stay on the device, or are offloaded to host memory or disk and streamed through two slots on the
 * device: the next block is copied while the present one computes. The experts of a block may rest there while the rest
 * of it stays on the device (expert_slots.h). Central type: sn_segment, which owns the memory of
 * its blocks; the device, the scratch and the offload store belong to the caller and outlive it. Used by the devices'
 * thread.
 */
#ifndef SN_BLOCKS_SEGMENT_H
#define SN_BLOCKS_SEGMENT_H

#include "blocks/block_hashing.h"
#include "blocks/expert_slots.h"
#include "blocks/offload_store.h"
#include "blocks/plan.h"

/* Where the image of one block lies. */
typedef struct sn_block_storage {
    sn_residence residence;
    sn_block_layout layout;
    void *image; /* SN_ON_DEVICE: device memory; SN_IN_HOST: host memory (host_alloc); SN_ON_DISK: NULL */
    sn_hash key; /* SN_ON_DISK: the key in the offload store */
    /* With slots only: where the experts rest, the bytes of host memory that they take there, the slots, and the block
     * with its image on the device. */
    sn_expert_rest experts;
    size_t experts_bytes;
    sn_expert_slots *slots;
    sn_block view;
    sn_experts_apart apart; /* device NULL: no other device has the experts */
    void *apart_image;
    size_t apart_bytes;
} sn_block_storage;

/* Where streamed blocks lie on a device; its segments share them, one after the other. */
typedef struct sn_slots {
    size_t bytes;       /* of each: the largest streamed block's; 0: nothing is streamed */
    bool reads_disk;    /* staging is needed */
    void *at[2];        /* device */
    void *staging[2];   /* host: what was read from disk for the slot of the same number */
    sn_fence fences[2]; /* of the last copy to each slot */
} sn_slots;

/* Allocates what the segments that were loaded with these slots need. After a failure, too, the caller frees. */
sn_status sn_slots_alloc(sn_slots *slots, sn_device *device, sn_err *err) SN_MUST_USE;
void sn_slots_free(sn_slots *slots, sn_device *device);

typedef struct sn_segment {
    sn_device *device;
    const sn_scratch *scratch;  /* of the device, shared by its segments */
    sn_slots *slots;            /* likewise */
    sn_expert_carrier *carrier; /* likewise */
    sn_offload_store *store;    /* NULL: no block is on disk */
    int first, end;             /* blocks */
    uint64_t id;                /* unique in this process */
    sn_block_storage *blocks;   /* [end - first] */
    void *resident; /* device->host_visible: the images of all SN_ON_DEVICE blocks, in one piece; else NULL */
    size_t resident_bytes;
    const sn_expert_split *split; /* of the span; NULL: it holds all experts */
    uint64_t *moved;              /* of the pass in progress: sn_forward_pass */
} sn_segment;

/* What all segments of a span are loaded from. */
typedef struct sn_segment_source {
    const sn_model *model;
    const sn_plan *plan;   /* says which blocks are offloaded, and where to */
    const sn_hash *hashes; /* of the plan's blocks, each once `hashing` has it */
    sn_block_hashing *hashing;
    sn_offload_store *store;   /* for blocks on disk; else NULL */
    sn_device *const *devices; /* of the plan, with the scratch of each */
    const sn_scratch *scratch[SN_PLAN_DEVICES_MAX];
} sn_segment_source;

/* Loads blocks [first, end) to segment->device, where its scratch and its slots belong. Before the first pass, slots
 * are allocated for all segments of the device. After a failure, too, the caller unloads. */
sn_status sn_segment_load(sn_segment *segment, const sn_segment_source *source, int first, int end,
                          sn_err *err) SN_MUST_USE;
/* Brings the experts that the plan pins to their slots, once the carrier's staging memory is allocated. */
sn_status sn_segment_pin_experts(sn_segment *segment, const sn_plan *plan, sn_err *err) SN_MUST_USE;
/* Whether experts of blocks [first, end) rest elsewhere, or are on another device or in another span. */
bool sn_segment_has_experts_elsewhere(const sn_segment *segment, int first, int end);
bool sn_segment_is_lost(const sn_segment *segment);       /* a device that it needs is */
size_t sn_segment_bytes_apart(const sn_segment *segment); /* of other devices' memory */
void sn_segment_unload(sn_segment *segment);              /* accepts a zeroed or partly loaded segment */
size_t sn_segment_bytes(const sn_segment *segment);       /* of the device's memory, without the slots */

/* Replaces scratch->x (n_rows, n_embd) by its value after blocks [first, end) of the segment. adapters: one for each
 * block of the segment, or NULL. Aborts the process when a tensor that attention uses does not lie on the segment's
 * device: that is a bug, and the message names the tensor. */
sn_status sn_segment_forward(sn_segment *segment, const sn_hparams *hp, int first, int end, const sn_batch *batch,
                             const sn_block_adapter *adapters, sn_err *err) SN_MUST_USE;

/* sn_span_run_experts, for a block of the segment. */
sn_status sn_segment_run_experts(sn_segment *segment, const sn_hparams *hp, const sn_expert_split *split,
                                 const sn_expert_request *request, float *out, sn_err *err) SN_MUST_USE;

/* Calls `visit` for blocks [first, end) of the segment, in order or `backwards`, each with its weights on the device;
 * the next streamed block is copied meanwhile. `number` is the block's number in the model. The first failure ends the
 * walk.
 */
typedef sn_status (*sn_block_visitor)(void *ctx, int number, const sn_block *block, sn_err *err);
sn_status sn_segment_walk(sn_segment *segment, int first, int end, bool backwards, sn_block_visitor visit, void *ctx,
                          sn_err *err) SN_MUST_USE;

#endif
