/* The map of the swarm as one node sees it: JSON for the page /swarm (docs/SERVER.md#pages), from the announcements
 * that the node knows. It asks no other node, so it lacks what only a status_reply says. */
#ifndef SN_NODE_SWARM_MAP_H
#define SN_NODE_SWARM_MAP_H

#include "net/directory.h"

/* What the node gave since it started; for its owner. */
typedef struct sn_node_given {
    double hours;
    uint64_t tokens, sessions, weights_bytes, relayed_bytes;
} sn_node_given;

/* The node that looks, and its model, whose blocks are counted. */
typedef struct sn_swarm_map_view {
    const uint8_t *node, *model;      /* SN_KEY_SIZE bytes: its id, sn_model_id */
    const char *address, *model_name; /* at which others reach it; for display */
    int n_blocks;
    sn_node_given given;
} sn_swarm_map_view;

enum { SN_SWARM_MAP_NODES_MAX = 1000 }; /* listed; all are counted */

/* *json is freed with free(). On the directory's thread. SN_STOP only. */
sn_status sn_swarm_map(const sn_directory *directory, const sn_swarm_map_view *view, char **json,
                       sn_err *err) SN_MUST_USE;

#endif
