/* A segment: consecutive blocks of a span that compute on one device. Their weights lie there, or rest in host memory
 * or on disk and stream through two slots: the next one's copy goes on beside the present one's computation. Private to
 * blocks/. */
#ifndef SN_BLOCKS_SEGMENT_H
#define SN_BLOCKS_SEGMENT_H

#include "blocks/block.h"
#include "blocks/plan.h"
#include "blocks/store.h"

/* Where one block's image rests. */
typedef struct sn_resting {
    sn_residence residence;
    sn_block_layout layout;
    void *image; /* on the device, or in host memory of the device's host_alloc; NULL: on disk */
    sn_hash key; /* on disk */
} sn_resting;

typedef struct sn_segment {
    sn_device *device;
    const sn_scratch *scratch; /* of the device, shared by its segments */
    sn_store *store;
    int first, end; /* blocks */
    uint64_t id;    /* unlike any other segment's in this process */
    sn_resting *blocks;
    void *resident; /* images of the blocks on a device whose memory the host sees, in one piece; NULL: each by itself */
    size_t resident_bytes;
    void *slots[2];   /* on the device, slot_bytes each; NULL: nothing is streamed */
    void *staging[2]; /* in host memory, what was read from disk on its way to the slot of the same number */
    sn_ticket tickets[2];
    size_t slot_bytes;
    bool reads_disk;
} sn_segment;

/* Loads blocks [first, end) of the model by the plan. */
sn_status sn_segment_load(sn_segment *segment, const sn_model *model, const sn_plan *plan, sn_device *device,
                          const sn_scratch *scratch, sn_store *store, int first, int end, sn_err *err) SN_MUST_USE;
void sn_segment_unload(sn_segment *segment);        /* harmless when zeroed or half loaded */
size_t sn_segment_bytes(const sn_segment *segment); /* of the device's memory */

/* scratch->x goes through blocks [first, end) of the segment. tunings: of the segment's blocks from its first on, or
 * NULL. Aborts, naming it, when a tensor that attention uses does not lie on the segment's device. */
sn_status sn_segment_forward(sn_segment *segment, const sn_hparams *hp, int first, int end, const sn_pass *pass,
                             const sn_block_tuning *tunings, sn_err *err) SN_MUST_USE;

/* Visits blocks [first, end) of the segment in order or from the last to the first, each with its weights on the
 * device; the next one's come while one works on this one. The first failure ends it. */
typedef sn_status (*sn_block_visitor)(void *ctx, int number, const sn_block *block, sn_err *err);
sn_status sn_segment_walk(sn_segment *segment, int first, int end, bool backwards, sn_block_visitor visit, void *ctx,
                          sn_err *err) SN_MUST_USE;

#endif
