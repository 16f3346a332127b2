/* A crowd: many cores without blocks behind them, over the in-memory transport, in time that the test makes. What a daemon does
 * for its core (load blocks, free them) takes a while of that time and nothing else. Every function ends the process with a
 * message when what it needs cannot be had. */
#ifndef SN_TESTS_CROWD_H
#define SN_TESTS_CROWD_H

#include "node/core_private.h"

enum { CROWD_MAX = 80, CROWD_BLOCKS_MAX = 64, CROWD_SECOND = 1000000 };

typedef struct crowd_member {
    sn_identity identity;
    sn_transport *transport;
    sn_core *core;
    int64_t due_us, loaded_us; /* loaded_us: when the blocks that it loads are there; 0: it loads none */
    int first, end;            /* that it loads */
    uint64_t decode_us;
    int64_t skew_ms;
    bool gone;
} crowd_member;

typedef struct crowd {
    sn_hub *hub;
    sn_hparams hp;
    sn_hash block_hash[CROWD_BLOCKS_MAX];
    crowd_member nodes[CROWD_MAX];
    int n, cut; /* cut: nodes below it and the others do not reach each other; 0: all do */
    size_t bytes_per_s;
    int auto_blocks; /* of nodes added from now on; 0: each gets one block, in turn */
    int rebalance_s;
    int64_t now_us, unix_ms;
    void (*watch)(struct crowd *c); /* called at every step; may be NULL */
} crowd;

crowd *crowd_new(int n_blocks, size_t bytes_per_s); /* bytes_per_s: for gossip, 0: the usual */
void crowd_free(crowd *c);
int crowd_add(crowd *c, int joins); /* a node that joins another one (-1: nobody); its number */
void crowd_run(crowd *c, double seconds);
size_t crowd_known(const crowd *c, int i); /* whom the node knows, itself too */
size_t crowd_least_known(const crowd *c);
int crowd_serving(const crowd *c, int block); /* how many nodes serve it */

#endif
