/* A simulated swarm: real protocols with real schedulers over the simulated network, real chains and generators as
 * coroutines, and the conditions that must always hold. */
#ifndef SN_TESTS_SIM_SWARM_H
#define SN_TESTS_SIM_SWARM_H

#include "client/net/link.h"
#include "node/protocol/protocol.h"
#include "tests/sim/net.h"

typedef struct swarm swarm;

/* -- nodes -- */

typedef struct sim_part sim_part;

typedef struct sim_node {
    swarm *swarm;
    int number, host;
    sim_actor actor;
    const sn_identity *identity;
    char address[SN_ADDRESS_MAX + 1];
    int first, end;  /* blocks that it serves or loads */
    int auto_blocks; /* number of blocks that it chooses itself; 0: the span above */
    uint64_t decode_us;
    int64_t load_us_max;
    size_t sessions_max;
    size_t pages; /* of its KV cache */
    size_t prefix_cache_memory, swap_pages;
    int64_t swap_after_us;
    bool prefix_cache_shared;
    bool flips_bits;  /* sometimes flips a bit of its output: only an audit can notice */
    int64_t batch_us; /* time of a forward pass */
    size_t tune_bytes_max;
    sn_quota_limits quota; /* kv_bytes counts pages here */
    bool retired;          /* it has left for good */
    sim_part *part;        /* of SIM_EXPERTS (experts.c), else NULL */
    /* -- of the running program */
    uint64_t incarnation; /* number of the program; 0: none */
    uint64_t engine;      /* number of the loaded set of blocks; 0: none */
    sn_protocol *protocol;
    sn_scheduler *scheduler;
    sn_kv_pool *pool;
    sn_transport *transport;
    size_t jobs;           /* in the engine */
    uint64_t engine_polls; /* number of the newest scheduled poll; older ones are ignored */
    int64_t engine_us;     /* time of that poll */
    bool working;          /* the result of a forward pass is due */
    bool drains, leaving;
    int64_t stalled_until_us, drain_by_us, leave_by_us;
    uint64_t ticks; /* number of the newest scheduled tick; older ones are ignored */
} sim_node;

void sim_node_start(sim_node *node); /* joins node 0, or node 1 if it is node 0 */
void sim_node_crash(sim_node *node, bool silent);
void sim_node_drain(sim_node *node, int64_t drain_us);       /* as SIGTERM does */
void sim_node_stall(sim_node *node, int64_t until_us);       /* the machine does nothing until then */
void sim_node_check(const sim_node *node);                   /* its limits hold */
bool sim_node_is_clean(const sim_node *node);                /* no sessions, no KV pages in use */
sim_node *sim_node_of_engine(swarm *swarm, uint64_t engine); /* NULL: it has ended */
void sim_node_poll(sim_node *node);                          /* one round of the network thread */
void sim_node_run_pass(sim_node *node);                      /* one round of the device thread */

/* -- experts.c: nodes that divide the experts of their blocks */

void sim_part_new(sim_node *node, int first, int end); /* experts, {0, 0}: all; before the node starts */
void sim_part_free(sim_node *node);
sn_span *sim_part_serve(sim_node *node);                  /* the engine begins: its span, with an exchange */
void sim_part_run_pass(sim_node *node);                   /* sim_node_run_pass, by a task that may wait */
void sim_part_end(sim_node *node);                        /* the engine ends: a pass that waits fails */
void sim_part_submit(sim_node *node, sn_job *job);        /* an SN_JOB_EXPERTS; takes it */
void sim_part_answer(void *node, sn_expert_round *round); /* sn_protocol_setup.answer_round */

/* -- clients -- */

typedef enum sim_client_kind {
    SIM_CHATS,
    SIM_TRAINS,  /* forward and backward passes; gradients have the bits of the undisturbed ones */
    SIM_POISONS, /* puts a wrong KV cache under the right hashes into its session, and computes on top of it */
} sim_client_kind;

typedef struct sim_client_plan {
    sim_client_kind kind;
    int text, tokens; /* number of the text, tokens per turn */
    int turns;        /* of a chat: each returns to a position of the text and continues from there */
    int adapter;      /* 0: none */
    bool saves;       /* the session is saved between turns, and continued from the file in a new chain */
    bool push, receipts, throughput, replica, audit, audit_here, must_succeed;
    int drafts;     /* drafts tokens, of which every so many-th is wrong; 0: none */
    bool cancels;   /* runs of the generator, which then go on */
    int chunk_rows; /* of several chunks in flight; 0: as usual, which is more than a prompt has */
    int timeout_ms, max_retries;
    int64_t begin_us;
} sim_client_plan;

typedef struct sim_client sim_client;
sim_client *sim_client_new(swarm *swarm, int number, const sim_client_plan *plan);
void sim_client_free(sim_client **client);
bool sim_client_ended(const sim_client *client);
void sim_client_check(const sim_client *client);         /* its calls end in time */
const char *sim_client_report(const sim_client *client); /* how it ended */

/* -- the swarm -- */

typedef struct sim_stats {
    uint64_t events, tokens, generations, errors, failovers, crashes, joins, drains, stalls, slow, partitions, cuts,
        retired, garbled, wrong_replies, bans, rebalances, quota_refusals, loads, adapted, trained, poisoned, excused,
        rounds, rounds_failed, holders_dropped, cancelled, behind, /* behind: chunks that began behind others */
        ahead; /* windows of right drafts that were sent behind others */
    uint64_t trace;
    int64_t virtual_us;
} sim_stats;
enum { SIM_STATS_SUMMED = (int)(offsetof(sim_stats, trace) / sizeof(uint64_t)) };

/* What a seed concentrates on: single faults are rarely met by the state that they would break. */
typedef enum sim_theme {
    SIM_MIXED,
    SIM_REPLICAS,  /* KV replicas of chats that rewind, while messages are lost and reordered */
    SIM_PREFIXES,  /* long equal prompts, prefix caches shared by all clients, sessions from files */
    SIM_SPARSE,    /* each block has hardly more than one holder, and a node leaves for good */
    SIM_GARBLED,   /* bytes of messages change */
    SIM_TRAINING,  /* adapters, and training beside inference */
    SIM_RECURRENT, /* a model with recurrent states: neither adapters nor training */
    SIM_EXPERTS,   /* nodes divide the experts of a mixture: neither adapters nor training */
} sim_theme;

struct swarm {
    uint64_t seed;
    sim_time *time;
    sim_net *net;
    sim_rng random; /* of the faults */
    sim_theme theme;
    sim_node *nodes;
    int n_nodes;
    sim_client **clients;
    int n_clients;
    uint64_t incarnations;              /* programs and sets of blocks started so far */
    struct sn_known_prefixes *prefixes; /* of all clients, which know them where nodes share among clients */
    bool bits_flipped;                  /* a node flips bits */
    bool garbles;                       /* bytes of messages change: an error may then have any status */
    sim_stats stats;
};

typedef struct sim_options {
    bool traced;
    sim_theme theme; /* of every seed; SIM_MIXED: drawn */
    bool flip_bits;  /* all nodes flip bits and no client audits: the simulation must fail */
} sim_options;

void sim_stats_add(sim_stats *sum, const sim_stats *stats);

/* Simulates one seed; ends the process if a condition is violated. */
sim_stats sim_run(uint64_t seed, sim_options options);

/* Whether nodes that do not flip bits serve every block. */
bool sim_honest_nodes_suffice(const swarm *swarm);

/* Trains for one round over the link: adapter `number`, micro-batches of the texts. Ends the process when an output or
 * a gradient has other bits than without a network. */
sn_status sim_train(const swarm *swarm, sn_link *link, int number, int timeout_ms, int max_retries,
                    sn_err *err) SN_MUST_USE;
void sim_train_free(void); /* frees the expected results */

/* Ends the process with the seed and what is wrong. */
void sim_fail(const swarm *swarm, const char *format, ...) SN_PRINTF(2, 3) __attribute__((noreturn));
const sn_identity *sim_identity(int number); /* the same in every swarm */

#endif
