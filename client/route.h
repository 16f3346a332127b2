/* Routes: which nodes a chain goes through. Logic only: no network, no clock. */
#ifndef SN_CLIENT_ROUTE_H
#define SN_CLIENT_ROUTE_H

#include "model/model.h"
#include "net/directory.h"

/* A stretch of the way: blocks [first, end) at one place. */
typedef struct sn_stop {
    const sn_announcement *node; /* NULL: here, at the client. Valid as long as the directory is not changed */
    int first, end;
} sn_stop;

typedef struct sn_route_wish {
    const sn_directory *directory;
    sn_hash model;
    /* What each block's weights must hash to (n_blocks entries), an entry NULL where unknown: a node with other weights is
     * passed over. */
    const sn_hash *const *block_hash;
    int n_blocks;
    int local_first, local_end;       /* blocks held at the client; equal: none */
    /* True for a node that must not be used. */
    bool (*excluded)(void *ctx, const sn_announcement *node);
    void *ctx;
} sn_route_wish;

/* The best way over blocks [first, end): the fewest hops, then the least loaded nodes. A node may be left in the middle of
 * its span. Writes at most SN_HOPS_MAX stops. SN_RETRY naming the blocks that nobody serves. */
sn_status sn_route_plan(const sn_route_wish *wish, int first, int end, sn_stop *stops, size_t *n_stops,
                        sn_err *err) SN_MUST_USE;

#endif
