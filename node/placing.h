/* From options to devices: which are opened, and which block computes where. */
#ifndef SN_NODE_PLACING_H
#define SN_NODE_PLACING_H

#include "blocks/span.h"

/* The options of placement, as a person gives them. */
typedef struct sn_placing_wish {
    const char *device;              /* "auto", or names separated by commas: "cuda:0,xpu:0" */
    const char *device_map;          /* "10:14=cuda:0,14:20=cpu", or NULL */
    const char *const *device_memory; /* "cuda:0=20GiB": the most that may be used */
    size_t n_device_memory;
    const char *offload;             /* "host", "disk", or NULL: what does not fit is refused */
    const char *offload_dir;         /* for disk */
    bool offload_all;                /* also blocks that would fit, unless preloaded */
    const char *preload;             /* "10:12,15:16", "all", or NULL */
    sn_device_options options;       /* for every device opened */
    size_t kv_memory;
} sn_placing_wish;

typedef struct sn_placing {
    sn_device *devices[SN_PLAN_DEVICES_MAX]; /* open; in the order of plan.devices */
    sn_plan plan;
    sn_store *store; /* NULL: nothing rests on disk */
    sn_buf table;    /* the plan, for people */
} sn_placing;

/* Opens devices and plans blocks [first, end) of the model; *end == first: as many as fit, and *end is set. Loads nothing. */
sn_status sn_placing_make(const sn_placing_wish *wish, const sn_model *model, int first, int *end, sn_placing *out,
                          sn_err *err) SN_MUST_USE;
void sn_placing_close(sn_placing *placing); /* harmless when zeroed; after the span */

#endif
