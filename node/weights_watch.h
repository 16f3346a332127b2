/* Weights that came from a hub, compared with what other nodes announce: a node that fetched its blocks by name says
 * once that others have the same weights, and names once each of those that have others under the same model. Only
 * nodes that have answered this node, or one that it joined, count: a stranger could announce anything.
 *
 * Central type: sn_weights_watch, of the network thread; it borrows nothing. */
#ifndef SN_NODE_WEIGHTS_WATCH_H
#define SN_NODE_WEIGHTS_WATCH_H

#include "blocks/span.h"
#include "net/directory.h"

enum { SN_WEIGHTS_WATCH_NAMED = 64 };

typedef struct sn_weights_watch {
    bool on;                                /* this node's weights came from a hub */
    bool confirmed;                         /* the log says that another node has the same */
    uint64_t named[SN_WEIGHTS_WATCH_NAMED]; /* nodes with others that the log has named: the first bytes of their ids */
    size_t n_named;                         /* when there is no more room, the log names no further ones */
    int64_t due_us;
} sn_weights_watch;

/* Looks at what `directory` says of the span's blocks, every few seconds; returns when to call again. model: the id of
 * the span's model. self: the node's id. */
int64_t sn_weights_watch_tick(sn_weights_watch *watch, const sn_directory *directory, const sn_hash *model,
                              const uint8_t *self, const sn_span_info *span, int64_t now_us, int64_t unix_ms);

#endif
