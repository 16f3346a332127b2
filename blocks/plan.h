/* Placement: which block of a span computes on which device, and where its weights rest. Logic only: sizes and budgets
 * go in, a plan comes out; nothing is opened or loaded. No plan plans more for a device than its budget.
 *
 * What a device needs: the weights of the blocks that stay on it, the caches of all that compute on it, its scratch
 * once, two slots of the largest block that is streamed to it (the next block is copied while the present one
 * computes), and tied weights once, whoever shares them. Tied weights are not streamed: they stay wherever one of their
 * users computes.
 *
 * Automatic placement walks the blocks in order over the devices in order, so that each device gets one run. If all fit
 * on the first device they lie there. Else the runs are cut where the fewest bytes of tied weights are held twice, and
 * of such cuts where earlier devices get the most; the first device keeps room for the largest block, unless they fit
 * only without it. If they do not fit so either, and offload is allowed, as few blocks as possible are streamed, the
 * last ones that are not preloaded: they compute on the first device that has room for that, and the others fill the
 * devices in order. Blocks too large for two slots stay resident then. Else the plan is refused, saying how much is
 * missing.
 *
 * Memory of the host where blocks rest is not counted to the budget of the device "cpu": that is for what computes
 * there.
 *
 * An explicit map is honoured exactly, or refused whole. */
#ifndef SN_BLOCKS_PLAN_H
#define SN_BLOCKS_PLAN_H

#include "base/mem.h"
#include "device/device.h"

typedef enum sn_residence {
    SN_ON_DEVICE, /* weights lie on the device that computes */
    SN_IN_HOST,   /* in host memory, streamed to the device for each pass */
    SN_ON_DISK,   /* in a file, likewise */
} sn_residence;

/* Where one block computes and rests. */
typedef struct sn_place {
    int device; /* index into the plan's devices */
    sn_residence residence;
    bool preload; /* named by --preload: on the device, whole, before the first step, and stays. So it is never
                     streamed, wherever a map lets it rest */
} sn_place;

enum { SN_PLAN_DEVICES_MAX = 16, SN_PLAN_BLOCKS_MAX = 256, SN_TIES_MAX = 8 };

typedef struct sn_plan {
    int first, end; /* blocks */
    int n_devices;
    sn_device_id devices[SN_PLAN_DEVICES_MAX]; /* that something computes on, in the order of first use */
    sn_place places[SN_PLAN_BLOCKS_MAX];       /* end - first */
    size_t device_bytes[SN_PLAN_DEVICES_MAX];  /* planned there: weights, cache, scratch, slots of streamed blocks */
    size_t host_bytes, disk_bytes;             /* planned for offloaded weights */
} sn_plan;

/* What a block takes. */
typedef struct sn_block_cost {
    size_t weights; /* bytes of its own, tied ones left out */
    size_t cache;   /* its share of the cache's budget */
    int n_ties;     /* weights that it shares with others */
    struct {
        uint64_t group; /* stable id of the tie group: never an address */
        size_t bytes;
    } ties[SN_TIES_MAX];
} sn_block_cost;

typedef struct sn_plan_device {
    sn_device_id id;
    size_t budget;  /* bytes that may be used */
    size_t scratch; /* taken once, if anything computes there */
} sn_plan_device;

typedef struct sn_plan_wish {
    int first, end;
    const sn_block_cost *costs; /* end - first */
    const sn_plan_device *devices;
    int n_devices;
    sn_residence offload; /* SN_ON_DEVICE: not allowed */
    bool all_offloaded;   /* --offload given without need: every block that is not preloaded rests there */
    const char *preload;  /* "10:12,15:16" of the span's blocks, "all", or NULL */
} sn_plan_wish;

sn_status sn_plan_auto(const sn_plan_wish *wish, sn_plan *out, sn_err *err) SN_MUST_USE;

/* `map`: "10:14=cuda:0,14:18=xpu:0,18:20=cpu,20:22=disk", in any order. "host" and "disk" compute on the device of the
 * map's first entry that names one, or the wish's first one. SN_REFUSED: a block not covered or covered twice (which),
 * an unknown device (what is there instead), too little memory (which devices, by how many bytes). */
sn_status sn_plan_explicit(const sn_plan_wish *wish, const char *map, sn_plan *out, sn_err *err) SN_MUST_USE;

/* How many blocks from wish->first on (up to wish->end) fit on the devices without offload: --blocks auto. 0: none. */
int sn_plan_fitting(const sn_plan_wish *wish);

/* A table for people: a line for each run of blocks with the same place, then one for each device. */
sn_status sn_plan_print(const sn_plan *plan, const sn_plan_wish *wish, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
