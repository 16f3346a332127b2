/* Placement: which blocks a node serves; chosen when it joins, exchanged for better ones later (rebalancing).
 *
 * The central type, sn_placement, is the state machine of one node. It is logic without I/O: it reads the directory of
 * announcements, is handed the time, and acts on its node through sn_placement_host. block_selection.h has the rule by
 * which blocks are chosen.
 *
 * Joining: the node listens until its bootstrap peers have sent what they know (LISTENING), waits for a random time
 * (BACKOFF), selects blocks and announces them (CLAIMED), and checks again: of two nodes that selected the same blocks
 * at the same time, the one with the lower tag keeps them. Then the blocks are loaded (LOADING) and served (SERVING).
 *
 * Before it decides, the node asks others that it does not know for an answer (coverage.h says what their announcements
 * count without one).
 *
 * Rebalancing: at random times, seldom, the node considers other blocks. First it announces that it drains
 * (REBALANCE_PENDING) and checks again after a few seconds, so that two nodes do not leave the same blocks at once.
 * Then its sessions are migrated (REBALANCING), and it loads the new blocks under the same identity (LOADING).
 *
 * Gaps: while all nodes are known (SN_GAP_NODES_MAX), a node looks each second for blocks that no node holds. All make
 * the same plan (gap.h), and the one that is to move does, in the same steps as for a rebalance, but at once. A node
 * that has its turn and does not use it, because its owner has given it its blocks, is passed over after some seconds.
 *
 * A device is lost: the node serves the blocks that still work, and announces only these. When the device works again,
 * the blocks are exchanged for themselves: the sessions are migrated (REBALANCING), and all are loaded anew (LOADING).
 *
 * node/protocol owns it, in its own storage, and calls it on the network thread. Nothing blocks or fails. The fields
 * may be read by the owner and by tests; only the functions below change them. */
#ifndef SN_NODE_PLACEMENT_PLACEMENT_H
#define SN_NODE_PLACEMENT_PLACEMENT_H

#include "node/placement/coverage.h"

typedef enum sn_placement_state {
    SN_PLACEMENT_LISTENING, /* which blocks does the swarm lack? */
    SN_PLACEMENT_BACKOFF,   /* a random wait, so that nodes that start together do not select the same blocks */
    SN_PLACEMENT_CLAIMED,   /* blocks are selected and announced: does another node claim the same ones? */
    SN_PLACEMENT_LOADING,
    SN_PLACEMENT_SERVING,
    SN_PLACEMENT_REBALANCE_PENDING, /* the intention to leave is announced: does another node leave the same blocks? */
    SN_PLACEMENT_REBALANCING,       /* sessions are migrated to other nodes */
} sn_placement_state;

/* What placement asks of the node that it belongs to; `ctx` is the first argument of each function. */
typedef struct sn_placement_host {
    /* Whether a bootstrap peer has sent all that it knows of the swarm. */
    bool (*bootstrap_complete)(void *ctx);
    /* Asks the bootstrap peers for what is new: before a decision, because a node behind a router that has no relay yet
     * hears from others only what it asks for. */
    void (*ask)(void *ctx);
    /* Asks this node for an answer, which proves it. */
    void (*meet)(void *ctx, const sn_announcement *node, int64_t now_us);
    /* The node's state or blocks changed: announces them. */
    void (*announce)(void *ctx, int64_t now_us, int64_t unix_ms);
    /* Takes no new sessions from now on, and asks the owners of the open ones to migrate them. */
    void (*drain)(void *ctx, int64_t unix_ms);
    size_t (*session_count)(void *ctx); /* open sessions */
    void (*close_sessions)(void *ctx);  /* closes those that are left */
    void *ctx;
} sn_placement_host;

/* What the node's owner wants; zeros: the blocks are given and stay. */
typedef struct sn_placement_policy {
    int auto_blocks;      /* the node selects so many blocks itself; 0: they are given and stay */
    bool expects_others;  /* there are nodes to join: it waits for their announcements before it selects */
    int64_t rebalance_us; /* mean time between two considerations of other blocks; 0: never */
    int rebalance_gain;   /* per cent by which the swarm's slowest block must become faster */
    int64_t drain_us_max; /* how long its sessions may take to migrate before they are closed */
} sn_placement_policy;

typedef struct sn_placement_setup {
    sn_placement_policy policy;
    sn_placement_host host;
    const sn_directory *directory; /* borrowed: what the other nodes announce */
    const uint8_t *node;           /* borrowed: this node's id, SN_KEY_SIZE bytes */
    uint8_t model[SN_KEY_SIZE];    /* sn_model_id */
    int n_blocks;                  /* of the model */
    int first, end;                /* the blocks given; ignored with policy.auto_blocks */
    bool loading;                  /* the given blocks are not loaded yet */
} sn_placement_setup;

typedef struct sn_placement {
    sn_placement_setup setup;
    sn_placement_state state;
    int first, end;                 /* blocks served, or about to be served */
    int working_first, working_end; /* of these, those that can be announced; equal: none */
    int target_first;    /* in REBALANCE_PENDING and REBALANCING: the first of the blocks that the node moves to */
    bool load_requested; /* sn_placement_wants_blocks has returned these blocks */
    int claims;          /* how often blocks were selected for this start */
    int64_t due_us;      /* when to act again */
    bool asked;          /* for what is new, or for answers, before the decision that is due */
    uint8_t tried[SN_COVERAGE_TRIED_MAX][SN_KEY_SIZE]; /* nodes that were asked for an answer */
    size_t n_tried;
    uint64_t seed;       /* RNG state */
    uint64_t rebalances; /* completed since the start */
    int64_t look_us;     /* when to look for gaps again */
    struct {
        int64_t since_us, next_us; /* since when there is a gap; 0: none. When the next best node has its turn */
        int passed;                /* nodes that had their turn to fill it, and did not */
        bool filling;              /* this node is about to: in REBALANCE_PENDING */
    } gap;
} sn_placement;

void sn_placement_init(sn_placement *placement, const sn_placement_setup *setup, int64_t now_us);

/* What is due; returns when to call again. Not to be called while the node leaves or drains for another reason than
 * rebalancing. */
int64_t sn_placement_tick(sn_placement *placement, int64_t now_us, int64_t unix_ms);

bool sn_placement_serving(const sn_placement *placement); /* blocks are loaded */

/* True, once, when the node has decided which blocks to load: [*first, *end); equal: as many as fit. */
bool sn_placement_wants_blocks(sn_placement *placement, int *first, int *end);
/* Blocks [first, end) are loaded and served from now on. */
void sn_placement_serve(sn_placement *placement, int first, int end, int64_t now_us);
/* A device is lost: of the blocks served, only [first, end) work (equal: none), until sn_placement_reload. */
void sn_placement_narrow(sn_placement *placement, int first, int end);
/* All blocks can be served again: leads to sn_placement_vacate, and to loading the same blocks. */
void sn_placement_reload(sn_placement *placement, int64_t now_us, int64_t unix_ms);
/* The blocks could not be loaded; with `again` sn_placement_wants_blocks asks for them once more. */
void sn_placement_not_loaded(sn_placement *placement, bool again);
/* The blocks were freed for a rebalance: the target blocks are to be loaded. */
void sn_placement_vacate(sn_placement *placement);

#endif
