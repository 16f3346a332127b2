/* What a node serves with: devices, a span on them, a cache, an engine. Loaded as a whole, freed as a whole: a node that moves
 * to other blocks does it again. */
#ifndef SN_NODE_SERVING_H
#define SN_NODE_SERVING_H

#include "node/engine.h"
#include "node/node.h"
#include "node/published.h"

typedef struct sn_serving {
    sn_placing placing;
    sn_span *span;
    sn_kv_pool *pool;
    sn_published published;
    sn_engine *engine;
    sn_speed speed; /* as measured before it served */
} sn_serving;

/* All but the engine, for blocks [first, end) (equal: from first on as many as fit); measures the span's speed. May take
 * minutes; in any one thread. */
sn_status sn_serving_load(sn_serving *serving, const sn_node_config *config, int first, int end, sn_progress progress,
                          void *ctx, sn_err *err) SN_MUST_USE;
void sn_serving_free(sn_serving *serving); /* harmless when zeroed; after the sessions whose past lies in the pool */

/* A load in a thread of its own, so that the network thread goes on answering. */
typedef struct sn_loader sn_loader;
/* `finished` is called on the thread at the end; it must only wake somebody. `config` and `serving` are its until it is taken. */
sn_status sn_loader_start(sn_serving *serving, const sn_node_config *config, int first, int end, sn_progress progress,
                          void *progress_ctx, void (*finished)(void *), void *ctx, sn_loader **out, sn_err *err) SN_MUST_USE;
bool sn_loader_done(const sn_loader *loader);
/* Waits for its end, frees it, and says how it went. NULL-safe. */
sn_status sn_loader_take(sn_loader **loader, sn_err *err) SN_MUST_USE;

#endif
