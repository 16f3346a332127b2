/* A simulated swarm: real cores with real schedulers over the simulated network, real chains and generators as
 * coroutines, and what must always be true of them. */
#ifndef SN_TESTS_SIM_SWARM_H
#define SN_TESTS_SIM_SWARM_H

#include "node/core.h"
#include "tests/sim/net.h"

typedef struct swarm swarm;

/* -- nodes -- */

typedef struct sim_node {
    swarm *swarm;
    int number, place;
    sim_actor actor;
    const sn_identity *identity;
    char address[SN_ADDRESS_MAX + 1];
    int first, end;  /* that it serves, or is about to */
    int auto_blocks; /* it chooses so many itself; 0: those above */
    uint64_t decode_us;
    int64_t load_us_max;
    size_t sessions_max;
    size_t pages; /* of its cache */
    size_t prefix_memory, idle_pages;
    int64_t idle_after_us;
    bool share_all;
    bool bends; /* now and then a bit of what it computes: only an audit can tell */
    /* of the program that runs */
    uint64_t life;   /* 0: none */
    uint64_t engine; /* 0: no blocks are loaded */
    sn_core *core;
    sn_scheduler *scheduler;
    sn_kv_pool *pool;
    sn_transport *transport;
    size_t jobs; /* in the engine */
    uint64_t engine_turns; /* asked for: only the newest counts */
    int64_t engine_us;     /* when that is */
    bool working;          /* what a pass gave is on its way */
    bool drains, leaving;
    int64_t stalled_until_us, drain_by_us, leave_by_us;
    uint64_t ticks; /* turns asked for: older ones are void */
} sim_node;

void sim_node_start(sim_node *node); /* it joins node 0, or node 1 if it is 0 */
void sim_node_crash(sim_node *node, bool silent);
void sim_node_drain(sim_node *node, int64_t drain_us); /* as SIGTERM does */
void sim_node_stall(sim_node *node, int64_t until_us); /* nothing happens there until then */
void sim_node_check(const sim_node *node);             /* its limits hold */
bool sim_node_is_clean(const sim_node *node);          /* no sessions, no pages in use */

/* -- clients -- */

typedef struct sim_client_plan {
    int text, tokens;   /* which, and how many to write */
    int turns;          /* of a chat: each goes back to a place of the text and on */
    bool push, receipts, throughput, replica, audit, audit_here, must_succeed;
    bool guesses; /* what comes next, four times of five rightly */
    int timeout_ms, max_retries;
    int64_t begin_us;
} sim_client_plan;

typedef struct sim_client sim_client;
sim_client *sim_client_new(swarm *swarm, int number, const sim_client_plan *plan);
void sim_client_free(sim_client **client);
bool sim_client_ended(const sim_client *client);
void sim_client_check(const sim_client *client); /* it keeps its limits in time */
const char *sim_client_story(const sim_client *client); /* how it ended */

/* -- the swarm -- */

typedef struct sim_figures {
    uint64_t events, tokens, generations, errors, failovers, crashes, joins, drains, stalls, partitions, cuts, lies, caught, moves;
    uint64_t trace;
    int64_t virtual_us;
} sim_figures;

struct swarm {
    uint64_t seed;
    sim_time *time;
    sim_net *net;
    sim_random random; /* of the faults */
    sim_node *nodes;
    int n_nodes;
    sim_client **clients;
    int n_clients;
    uint64_t lives; /* programs of nodes that were started */
    bool bent;      /* a node bends bits */
    sim_figures figures;
};

typedef struct sim_options {
    bool traced;
    bool bend_bits; /* nodes change single bits of what they computed, and nobody audits: this must be found wrong */
} sim_options;

/* Lives through one seed; ends the process when something that must be true is not. */
sim_figures sim_run(uint64_t seed, sim_options options);

/* Ends the process with the seed and what is wrong. */
void sim_wrong(const swarm *swarm, const char *format, ...) SN_PRINTF(2, 3) __attribute__((noreturn));
const sn_identity *sim_identity(int number); /* the same in every world */

#endif
