/* The experts of a block that rest in host memory or on disk, and the slots of its image to which they are brought when
 * a row's router chooses them. Private to blocks/.
 *
 * A block keeps the experts that it used last, as many as it has slots; pinned ones always stay. The matrices of the
 * slots are an sn_experts like any other, so a device computes with the numbers of slots in place of those of experts,
 * and a row's result has the bits of a block whose experts all lie in its image. A forward pass goes in waves: the
 * experts that are there compute while others are brought. On the CPU threads read straight to the slots; an
 * accelerator copies from host memory beside its queue, from disk by way of staging memory.
 *
 * Central types: sn_expert_carrier is what all blocks on a device share, sn_expert_slots one block's. The segment owns
 * the slots, the span the carrier. Used by the devices' thread. Errors: SN_STOP when an expert cannot be read, or not
 * within the device's time limit. */
#ifndef SN_BLOCKS_EXPERT_SLOTS_H
#define SN_BLOCKS_EXPERT_SLOTS_H

#include "blocks/expert_reader.h"
#include "blocks/span.h"

enum { SN_EXPERT_STAGING = 8 }; /* reads from disk to an accelerator at a time */

typedef struct sn_expert_carrier {
    sn_device *device;
    sn_expert_reader *reader; /* NULL: no block of the device has slots */
    bool hangs;               /* after close: a read goes on, to memory and from a file that must stay */
    size_t staging_bytes;     /* of each; 0: none is needed */
    struct sn_expert_staging {
        void *at;
        bool taken;
        struct sn_expert_slots *slots; /* whose slot number `slot` took it */
        int slot;
        sn_fence fences[SN_EXPERT_PIECES]; /* of the last copies out of it; 0: none */
    } staging[SN_EXPERT_STAGING];
    int32_t *ids, *slots, *foreseen; /* host, (rows of a batch, experts of a row) */
    sn_expert_counts counts;
} sn_expert_carrier;

/* Called for the first block with slots, and for each: later calls only note the sizes. */
sn_status sn_expert_carrier_prepare(sn_expert_carrier *carrier, const sn_hparams *hp, const sn_block_layout *layout,
                                    bool on_disk, sn_err *err) SN_MUST_USE;
/* Allocates the staging memory, once all blocks are loaded. */
sn_status sn_expert_carrier_alloc(sn_expert_carrier *carrier, sn_err *err) SN_MUST_USE;
void sn_expert_carrier_close(sn_expert_carrier *carrier); /* before the slots and their images are freed */

typedef struct sn_expert_slots sn_expert_slots;

/* layout and rest outlive the slots; image: of the block, on the device. */
sn_status sn_expert_slots_new(sn_expert_carrier *carrier, const sn_block_layout *layout, void *image,
                              const sn_expert_rest *rest, int n_experts, sn_expert_slots **out,
                              sn_err *err) SN_MUST_USE;
void sn_expert_slots_free(sn_expert_slots **slots); /* accepts NULL */
sn_expert_carrier *sn_expert_slots_carrier(const sn_expert_slots *slots);
int sn_expert_slots_n(const sn_expert_slots *slots);

/* Brings an expert now; it stays for good. */
sn_status sn_expert_slots_pin(sn_expert_slots *slots, int expert, sn_err *err) SN_MUST_USE;

/* Begins a forward pass with these choices, host, (n_pairs); below 0: none. What is not there
 * begins to be brought. */
sn_status sn_expert_slots_begin(sn_expert_slots *slots, int n_pairs, const int32_t *ids, sn_err *err) SN_MUST_USE;
/* Begins to bring what the next pass of this block probably chooses, where that takes nothing from a pass in progress.
 */
sn_status sn_expert_slots_expect(sn_expert_slots *slots, int n_pairs, const int32_t *ids, sn_err *err) SN_MUST_USE;
/* The next wave: of each pair the slot of its expert, or -1 where it is another wave's. *any false: there was none
 * left. The waves before may be queued; they need not be done. */
sn_status sn_expert_slots_next(sn_expert_slots *slots, int n_pairs, const int32_t *ids, int32_t *out, bool *any,
                               sn_err *err) SN_MUST_USE;

#endif
