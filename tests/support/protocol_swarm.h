/* Many protocols (node/protocol/) without blocks, over the in-memory transport, in time that the test controls.
 * Loading and freeing blocks, the program's part, takes a while of that time and nothing else. Every function ends
 * the process with a message when a prerequisite is missing. */
#ifndef SN_TESTS_PROTOCOL_SWARM_H
#define SN_TESTS_PROTOCOL_SWARM_H

#include "node/membership/membership_private.h" /* private: seeds the gossip, so that each run is the same */
#include "node/protocol/protocol_private.h"     /* private: tests look at the state of placement and gossip */
#include "tests/support/memory_transport.h"

enum { PROTOCOL_SWARM_MAX = 80, PROTOCOL_SWARM_BLOCKS_MAX = 64, PROTOCOL_SWARM_SECOND = 1000000 };

typedef struct protocol_swarm_node {
    sn_identity identity;
    sn_transport *transport;
    sn_protocol *protocol;
    int64_t due_us, loaded_us; /* loaded_us: when the blocks in loading are ready; 0: none are loading */
    int first, end;            /* blocks in loading */
    uint64_t decode_us;
    int64_t skew_ms;
    bool dead;
} protocol_swarm_node;

typedef struct protocol_swarm {
    sn_hub *hub;
    sn_hparams hp;
    sn_hash block_hash[PROTOCOL_SWARM_BLOCKS_MAX];
    protocol_swarm_node nodes[PROTOCOL_SWARM_MAX];
    int n, partition; /* partition: nodes with a smaller number and the others do not reach each other; 0: all do */
    int unreached;    /* nodes from this number on are behind routers: what others ask of them does not come; 0: none */
    size_t bytes_per_s;
    int auto_blocks; /* of nodes added from now on; 0: each serves one block, round robin */
    int rebalance_s;
    int64_t now_us, unix_ms;
    void (*on_step)(struct protocol_swarm *c); /* called after every time step; may be NULL */
} protocol_swarm;

protocol_swarm *protocol_swarm_new(int n_blocks, size_t bytes_per_s); /* bytes_per_s: for gossip; 0: the default */
void protocol_swarm_free(protocol_swarm *c);
/* adds a node that joins node `joins` (-1: none); returns its number */
int protocol_swarm_add(protocol_swarm *c, int joins);
/* A transport with a key of its own that has dialled node i, for tests that speak the protocol by hand. */
sn_transport *protocol_swarm_stranger(protocol_swarm *c, int i, sn_peer *peer);
void protocol_swarm_run(protocol_swarm *c, double seconds);
size_t protocol_swarm_known(const protocol_swarm *c, int i); /* nodes that the node knows, including itself */
size_t protocol_swarm_least_known(const protocol_swarm *c);
int protocol_swarm_serving(const protocol_swarm *c, int block); /* number of nodes that serve the block */

#endif
