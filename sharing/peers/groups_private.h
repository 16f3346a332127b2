/* The models whose files nodes of a directory share: announcements grouped by manifest. */
#ifndef SN_SHARING_PEERS_GROUPS_PRIVATE_H
#define SN_SHARING_PEERS_GROUPS_PRIVATE_H

#include "net/directory.h"
#include "sharing/peers/swarm_model.h"

enum { SN_MODEL_GROUPS_MAX = 64 };

typedef struct sn_model_group {
    sn_hash manifest, model;
    int n_blocks, nodes;
    bool joined; /* a node that was joined serves it, or one that such a node has proven */
    uint64_t sessions;
    int least_nodes; /* of the block that the fewest nodes serve */
    uint64_t least_tokens_per_s;
    int covered; /* blocks that a node serves */
} sn_model_group;

/* Groups what the query asks for; returns how many groups there are. Those of proven nodes have the first places: a
 * stranger may announce any number of models. */
size_t sn_model_groups(const sn_directory *directory, const sn_swarm_query *query,
                       sn_model_group groups[SN_MODEL_GROUPS_MAX]);

#endif
