/* Serving: everything that lies in memory for the blocks that a node serves.
 *
 * sn_serving holds the open devices, the span on them, the KV pool, the published adapters and the engine. It is loaded
 * and freed as a whole; a node that rebalances frees it and loads another one. sn_loader loads it on a thread of its
 * own, so that the network thread answers messages meanwhile; while a loader exists, the sn_serving belongs to its
 * thread. */
#ifndef SN_NODE_SERVING_H
#define SN_NODE_SERVING_H

#include "node/engine/adapter_store.h"
#include "node/engine/engine.h"
#include "node/placement/device_placement.h"
#include "sharing/peers/swarm_model.h"

/* What the owner of a node wants of the blocks' memory. Borrowed as long as a load runs. */
typedef struct sn_serving_options {
    const char *model_path;       /* or a name, if hub is given */
    const sn_hub_settings *hub;   /* NULL: models are paths */
    const sn_swarm_access *swarm; /* for models of the swarm */
    bool keep_ends;               /* fetch embedding and LM head, too, which clients without a file ask for */
    sn_device_placement_options device_placement;
    sn_kv_dtype kv_dtype;
    size_t prefix_cache_memory; /* host memory of the prefix cache; 0: none */
    sn_residence swap_to;       /* where the KV caches of idle sessions go; SN_ON_DEVICE: they stay */
    const char *swap_dir;       /* for SN_ON_DISK */
    size_t swap_memory;         /* bytes there at most; SN_SIZE_UNSET: sn_serving_swap_default */
    int swap_after_s;           /* idle time before a KV cache is swapped out; 0: only when others need its pages */
    const char *adapters;       /* folder of the adapters that are published; NULL: none */
    void (*on_plan)(const char *table); /* receives the plan as text before anything is loaded; may be NULL */
} sn_serving_options;

typedef struct sn_serving {
    sn_device_placement device_placement;
    sn_span *span;
    sn_kv_pool *pool;
    sn_adapter_store adapter_store;
    sn_engine *engine;        /* started by the owner, on the loaded span */
    sn_throughput throughput; /* measured after loading */
} sn_serving;

/* Blocks [first, end) to load; equal: from first on as many as fit. */
typedef struct sn_load_request {
    const sn_serving_options *options;
    int first, end;
    sn_progress progress; /* on the loading thread; may be NULL */
    void *progress_ctx;
} sn_load_request;

/* Bytes of idle sessions besides the KV memory where the owner did not say: four times as much, and of host memory at
 * most a quarter of what is available once the blocks are loaded, less the KV memory that is still to be taken of it.
 */
size_t sn_serving_swap_default(size_t kv_memory, bool disk, bool kv_in_host, size_t available);

/* Loads all but the engine, and measures the span's throughput. May take minutes; on any one thread. */
sn_status sn_serving_load(sn_serving *serving, const sn_load_request *request, sn_err *err) SN_MUST_USE;
/* Frees the engine first. Accepts a zeroed one; after the sessions whose KV caches lie in the pool. */
void sn_serving_free(sn_serving *serving);

typedef struct sn_loader sn_loader;
/* Starts a thread that loads. `finished` is called on that thread at the end; it may only wake another thread. The
 * request is copied; its options and `serving` belong to the loader until sn_loader_join. */
sn_status sn_loader_start(sn_serving *serving, const sn_load_request *request, void (*finished)(void *), void *ctx,
                          sn_loader **out, sn_err *err) SN_MUST_USE;
bool sn_loader_done(const sn_loader *loader); /* sn_loader_join would not wait */
/* Waits for the end of the load, frees the loader, and returns the status of the load. Accepts NULL. */
sn_status sn_loader_join(sn_loader **loader, sn_err *err) SN_MUST_USE;

#endif
