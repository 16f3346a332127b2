/* Device placement: from the owner's options to open devices and a plan of which block computes on which device. Called
 * once per load, on the thread that loads (node/serving.h), and by `swarm-node --plan`. */
#ifndef SN_NODE_PLACEMENT_DEVICE_PLACEMENT_H
#define SN_NODE_PLACEMENT_DEVICE_PLACEMENT_H

#include "blocks/span.h"

/* The options as the owner gave them; strings are borrowed. */
typedef struct sn_device_placement_options {
    const char *device;               /* "auto", or names separated by commas: "cuda:0,xpu:0" */
    const char *device_map;           /* "10:14=cuda:0,14:20=cpu", or NULL */
    const char *const *device_memory; /* "cuda:0=20GiB": limits of the memory used */
    size_t n_device_memory;
    sn_residence offload;             /* where blocks that do not fit are kept; SN_ON_DEVICE: they are refused */
    const char *offload_dir;          /* for SN_ON_DISK */
    bool offload_all;                 /* offload blocks that would fit, too, unless they are preloaded */
    const char *preload;              /* "10:12,15:16", "all", "experts:0:8", or NULL */
    sn_expert_range experts;          /* of each mixture that the span holds; {0, 0}: all */
    size_t expert_memory;             /* bytes of slots for experts on each device; 0: what the rest leaves */
    sn_device_options device_options; /* for every device opened */
    size_t kv_memory;                 /* bytes reserved for the KV pool */
    size_t host_reserved; /* bytes of host memory that nothing of the blocks may take: for swapped KV pages, if given */
    size_t tune_memory;   /* bytes that training may take where blocks leave them */
} sn_device_placement_options;

typedef struct sn_device_placement {
    sn_device *devices[SN_PLAN_DEVICES_MAX]; /* open; in the order of plan.devices */
    sn_plan plan;
    sn_offload_store *store; /* NULL: no block is offloaded to disk */
    sn_buf table;            /* the plan as text, terminated by 0 */
} sn_device_placement;

/* Opens devices and plans blocks [first, *end) of the model; *end == first: as many as fit, and *end is set. Loads
 * nothing. SN_REFUSED: an option is wrong, or the blocks do not fit. */
sn_status sn_device_placement_make(const sn_device_placement_options *options, const sn_model *model, int first,
                                   int *end, sn_device_placement *out, sn_err *err) SN_MUST_USE;
void sn_device_placement_close(sn_device_placement *placement); /* accepts a zeroed one; after the span */

#endif
