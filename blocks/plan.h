/* Placement: which block of a span computes on which device, and where its weights are stored.
 *
 * Pure logic: sizes and budgets go in (sn_plan_query), a plan comes out (sn_plan); nothing is opened or loaded. Any
 * thread may call it. No plan uses more of a device than its budget; where none exists, SN_REFUSED says how much is
 * missing.
 *
 * What a device needs: the weights of the blocks that stay on it; the KV pages of all blocks that compute on it; its
 * scratch once; two slots of the size of the largest block that is streamed to it (the next block is copied while the
 * present one computes); and tied weights once, however many blocks share them. Tied weights are not streamed: they
 * stay on every device on which one of their users computes.
 *
 * The experts of a block may rest in host memory or on disk while the rest of it stays on the device, which brings them
 * to slots when they are chosen: the device then holds slots instead of all experts, at least as many as a row uses
 * besides the pinned ones, and in the end as many more as its budget allows, equally many for each block.
 *
 * Automatic placement gives each device one run of neighbouring blocks, devices and blocks both in order:
 *   1. If all blocks fit on the first device, they go there.
 *   2. Else the cuts between runs are chosen so that the fewest bytes of tied weights are held twice; among those, so
 * that earlier devices get the most blocks. The first device keeps space for the largest block, unless the blocks fit
 * only without that space. In both cases each device keeps query->keep_free
 * bytes free, unless that takes more devices.
 *   3. If the blocks do not fit, and offload is allowed, the experts of all blocks that are not preloaded rest there,
 * if the blocks fit so.
 *   4. Else as few blocks as possible are streamed: the last ones that are
 * not preloaded. They compute on the first device that has the space for it; the other blocks fill the devices in
 * order. Blocks that are too large for two slots stay resident.
 *   5. Else the query is refused.
 *
 * Offloaded weights in host memory do not count towards the budget of the device "cpu", which is for what computes
 * there; but both together stay within query->host_memory. An explicit map is followed exactly, or refused as a whole.
 */
#ifndef SN_BLOCKS_PLAN_H
#define SN_BLOCKS_PLAN_H

#include "base/mem.h"
#include "blocks/expert_exchange.h"
#include "device/device.h"

/* Where the weights of a block are stored. */
typedef enum sn_residence {
    SN_ON_DEVICE, /* on the device that computes the block */
    SN_IN_HOST,   /* in host memory, streamed to the device for each batch */
    SN_ON_DISK,   /* in a file, streamed likewise */
} sn_residence;

/* Where one block is computed and stored. */
typedef struct sn_block_placement {
    int device; /* index into the plan's devices */
    sn_residence residence;
    bool preload; /* named by --preload: copied to the device before the first step and kept there, so never streamed,
                     whatever its residence */
    sn_residence experts; /* of a block on its device: where its experts rest */
    int n_slots;          /* experts that are on the device at a time; 0: all of them, always */
    bool apart;           /* another device holds and computes all experts: */
    int experts_device;
} sn_block_placement;

enum { SN_PLAN_DEVICES_MAX = 16, SN_PLAN_BLOCKS_MAX = 256, SN_TIES_MAX = 8, SN_PLAN_EXPERTS_MAX = SN_EXPERTS_MAX };

typedef struct sn_plan {
    int first, end;          /* blocks */
    sn_expert_range experts; /* of each mixture that the span holds; others are asked for the rest */
    int n_devices;
    sn_device_id devices[SN_PLAN_DEVICES_MAX];         /* those that compute, in the order of first use */
    sn_block_placement placements[SN_PLAN_BLOCKS_MAX]; /* [end - first] */
    size_t device_bytes[SN_PLAN_DEVICES_MAX]; /* planned: weights, KV pages, scratch, slots of streamed blocks */
    size_t host_bytes, disk_bytes;            /* planned for offloaded weights */
    bool pinned[SN_PLAN_EXPERTS_MAX]; /* experts that are brought before the first step, and stay in their slots */
} sn_plan;

/* The memory that a block needs. */
typedef struct sn_block_cost {
    size_t weights; /* bytes, without tied weights */
    size_t cache;   /* bytes of KV pages: its share of the KV budget */
    /* A block with a mixture: bytes without any expert, of all experts alone, of all of them where they rest in host
     * memory or on disk, and of a slot for one. */
    size_t without_experts, experts, resting, slot;
    int n_experts, n_experts_used; /* that the span holds, and of these per row; 0: no mixture */
    int n_ties;                    /* weights that it shares with other blocks or modules */
    struct {
        uint64_t group; /* stable id of the tie group (ties.h) */
        size_t bytes;
    } ties[SN_TIES_MAX];
} sn_block_cost;

typedef struct sn_plan_device {
    sn_device_id id;
    size_t budget;  /* bytes that may be used */
    size_t scratch; /* bytes, needed once if any block computes there */
} sn_plan_device;

typedef struct sn_plan_query {
    int first, end;
    sn_expert_range experts;    /* as the costs count them */
    const sn_block_cost *costs; /* [end - first] */
    const sn_plan_device *devices;
    int n_devices;
    sn_residence offload; /* where blocks may be offloaded; SN_ON_DEVICE: nowhere */
    bool offload_all;     /* every block that is not preloaded is offloaded, even if all would fit */
    const char *preload;  /* blocks, "10:12,15:16" or "all", and experts, "experts:0:8"; NULL: none */
    size_t expert_memory; /* bytes of slots on each device; 0: what the rest leaves of its budget */
    size_t host_memory;   /* bytes for what rests in host memory and what the device "cpu" takes; 0: any */
    size_t keep_free;     /* bytes of each device that stay free if that takes no further device: for training */
} sn_plan_query;

sn_status sn_plan_auto(const sn_plan_query *query, sn_plan *out, sn_err *err) SN_MUST_USE;

/* The plan of an explicit map, "10:14=cuda:0,14:18=xpu:0,18:20=cpu,20:22=disk", in any order. Blocks mapped to "host"
 * and "disk" compute on the first device that the map names, or on the query's first one. "10:14.experts=host" says
 * where the experts of blocks rest, "*.experts=cpu" which device holds and computes them; "*" stands for all blocks. A
 * map that names only experts leaves the devices to automatic placement. SN_REFUSED names what is wrong: a block that
 * is not covered or covered twice, an unknown device, or devices that have too little memory. */
sn_status sn_plan_explicit(const sn_plan_query *query, const char *map, sn_plan *out, sn_err *err) SN_MUST_USE;

/* The number of blocks from query->first on (at most to query->end) that fit on the devices without offload, with
 * query->keep_free bytes left free or, where then not one fits, without them; for --blocks auto. */
int sn_plan_n_fitting(const sn_plan_query *query);

/* Prints a table: a line for each run of blocks with equal placement, then one for each device. */
sn_status sn_plan_print(const sn_plan *plan, const sn_plan_query *query, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
