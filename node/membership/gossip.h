/* The state of gossip (gossip.c explains how it works): neighbours, queues of changes, the byte budget and the rejoin
 * peers. A part of sn_membership, plain data; used on the network thread. */
#ifndef SN_NODE_MEMBERSHIP_GOSSIP_H
#define SN_NODE_MEMBERSHIP_GOSSIP_H

#include "net/transport/transport.h"
#include "node/membership/change_queue.h"

enum {
    SN_NEIGHBOURS_MAX = 6,         /* gossip partners; one of them is replaced in each round */
    SN_FORMER_NEIGHBOURS_MAX = 16, /* connections to former neighbours that are kept for a while */
    SN_ANCHORS_MAX = 4,            /* proven nodes that are told of this one in each round */
    SN_REJOIN_PEERS_MAX = 16,
    SN_GOSSIP_BYTES_PER_S = 16384, /* of announcements that a node sends at most, however large the swarm is */
};

typedef struct sn_neighbour {
    sn_peer peer;
    uint8_t id[SN_KEY_SIZE];
    bool greeted; /* the first pull and PING were sent */
} sn_neighbour;

typedef struct sn_gossip {
    uint64_t seed; /* RNG state */
    sn_neighbour neighbours[SN_NEIGHBOURS_MAX];
    size_t n_neighbours;
    sn_peer former[SN_FORMER_NEIGHBOURS_MAX]; /* ring; 0: empty */
    size_t next_former;
    struct sn_anchor {
        sn_peer peer;
        uint8_t id[SN_KEY_SIZE];
    } anchors[SN_ANCHORS_MAX]; /* of the newest round */
    sn_change_queue changes;   /* announcements to pass on */
    /* Bytes that may be sent, as of the time budget_us; reply_budget: of them, in replies to pulls. */
    int64_t bytes_per_s, budget, reply_budget, budget_us;
    int64_t push_us, pull_us; /* when the next push (0: none is queued) and the next pull are due */
    struct sn_rejoin_peer {
        char address[SN_ADDRESS_MAX + 1]; /* empty: none */
        uint8_t id[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    } rejoin[SN_REJOIN_PEERS_MAX];
    uint64_t bytes_sent; /* paid from the budget since the start */
} sn_gossip;

#endif
