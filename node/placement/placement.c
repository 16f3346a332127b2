/* The state machine of placement.h. sn_placement_tick runs the state that is due; one function decides what follows:
 *   LISTENING, BACKOFF  placement_choose
 *   CLAIMED             placement_confirm
 *   SERVING             rebalance_consider
 *   REBALANCE_PENDING   rebalance_confirm
 * and in SERVING gap_look, each second.
 *
 * Every decision reads the directory anew into an sn_block_coverage, the throughput per block over all other nodes.
 * Conflicts between nodes are resolved without a coordinator: a node announces its intention, waits until the
 * announcements of others have arrived, decides again with what arrived, and of two joining nodes the one with the
 * lower tag keeps its blocks. */
#include "node/placement/placement.h"

#include "base/log.h"
#include "base/random.h"
#include "node/placement/block_selection.h"
#include "node/placement/gap.h"

#include <stdlib.h>
#include <string.h>

enum {
    LISTEN_US = 10000000, /* at most, for bootstrap peers to answer */
    LISTEN_POLL_US = 200000,
    BACKOFF_US_MAX = 2000000,
    CONFIRM_US = 1000000,
    CLAIMS_MAX = 4,
    REBALANCE_CONFIRM_US = 3000000,
    ASK_US = 250000,   /* before a decision: claims of others that it does not show come three times as late */
    MEET_US = 2000000, /* for answers of nodes that are not known, which may be behind a relay */
    GAP_LOOK_US = 1000000,
    GAP_SETTLE_US = 3000000,   /* after a gap is seen: news arrives, nodes that join take it, unknown ones answer */
    GAP_PATIENCE_US = 3000000, /* with a node that is to fill it */
    GAP_CONFIRM_US = 1000000,
    GAP_HOLD_US = 60000000, /* for which nodes that drain or load are waited for */
    CLAIMS_BELIEVED = 2,    /* when it joins: nodes that load and have not answered, for each block */
};

static int64_t random_delay(sn_placement *p, int64_t us) { return (int64_t)sn_rng_below(&p->seed, (uint64_t)us); }

bool sn_placement_serving(const sn_placement *p) { return p->state >= SN_PLACEMENT_SERVING; }

static void placement_announce(const sn_placement *p, int64_t now_us, int64_t unix_ms) {
    p->setup.host.announce(p->setup.host.ctx, now_us, unix_ms);
}

/* Blocks [first, end) are those of the node, and none of them lacks its device. */
static void placement_set_blocks(sn_placement *p, int first, int end) {
    p->first = p->working_first = first;
    p->end = p->working_end = end;
}

void sn_placement_init(sn_placement *p, const sn_placement_setup *setup, int64_t now_us) {
    *p = (sn_placement){.setup = *setup, .seed = ~sn_node_tag(setup->node), .due_us = now_us};
    placement_set_blocks(p, setup->first, setup->end);
    p->state = setup->policy.auto_blocks ? SN_PLACEMENT_LISTENING
               : setup->loading          ? SN_PLACEMENT_LOADING
                                         : SN_PLACEMENT_SERVING;
    if (p->state == SN_PLACEMENT_LISTENING) {
        p->due_us += LISTEN_US;
        placement_set_blocks(p, 0, 0);
    }
}

static void rebalance_schedule(sn_placement *p, int64_t now_us) {
    int64_t every = p->setup.policy.rebalance_us;
    p->due_us = every && p->setup.policy.auto_blocks ? now_us + every / 2 + random_delay(p, every) : INT64_MAX;
    p->asked = false;
}

static sn_coverage_query coverage_query(const sn_placement *p, uint64_t below, int64_t unix_ms) {
    return (sn_coverage_query){.directory = p->setup.directory,
                               .model = p->setup.model,
                               .self = p->setup.node,
                               .n_blocks = p->setup.n_blocks,
                               .unix_ms = unix_ms,
                               .joining_below = below,
                               .claims_max = sn_placement_serving(p) ? 0 : CLAIMS_BELIEVED,
                               .tried = p->tried,
                               .n_tried = p->n_tried};
}

/* The coverage by all other nodes; of those that join, only by nodes with a tag below `below`. False with a log line:
 * the model has too many blocks. */
static bool coverage_of_others(const sn_placement *p, uint64_t below, int64_t unix_ms, sn_block_coverage *coverage) {
    const sn_coverage_query query = coverage_query(p, below, unix_ms);
    sn_err err;
    sn_status status = sn_block_coverage_read(coverage, &query, &err);
    if (status) sn_log(SN_LOG_ERROR, "block selection failed", "text=%s", err.text);
    return !status;
}

/* Asks nodes that are not proven for an answer. Returns how long to wait for it. Nodes that load are left out while
 * this one joins: those that start together may not be reached yet. */
static int64_t placement_meet(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    const sn_coverage_query query = coverage_query(p, UINT64_MAX, unix_ms);
    const sn_announcement *drawn[SN_COVERAGE_TRIED_MAX];
    p->n_tried = sn_coverage_draw(&query, sn_placement_serving(p), &p->seed, drawn);
    for (size_t i = 0; i < p->n_tried; i++) {
        memcpy(p->tried[i], drawn[i]->node, SN_KEY_SIZE);
        p->setup.host.meet(p->setup.host.ctx, drawn[i], now_us);
    }
    return p->n_tried ? MEET_US : 0;
}

/* -- joining ------------------------------------------------------------------------------------------------------- */

static void placement_claim(sn_placement *p, const sn_block_coverage *others, int64_t now_us, int64_t unix_ms) {
    int n = p->setup.policy.auto_blocks < p->setup.n_blocks ? p->setup.policy.auto_blocks : p->setup.n_blocks;
    int first = sn_block_selection_window(others, n, &p->seed);
    placement_set_blocks(p, first, first + n);
    p->state = SN_PLACEMENT_CLAIMED;
    p->due_us = now_us + (p->setup.policy.expects_others ? CONFIRM_US : 0);
    p->claims++;
    p->asked = false;
    sn_log(SN_LOG_INFO, "blocks selected", "blocks=%d:%d nodes=%zu", p->first, p->end,
           sn_directory_count(p->setup.directory));
    placement_announce(p, now_us, unix_ms);
}

static void placement_choose(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    sn_block_coverage *others = malloc(sizeof *others);
    if (p->state == SN_PLACEMENT_LISTENING) {
        p->state = SN_PLACEMENT_BACKOFF;
        p->due_us = now_us + placement_meet(p, now_us, unix_ms);
        p->due_us += p->setup.policy.expects_others ? random_delay(p, BACKOFF_US_MAX) : 0;
        p->asked = false;
    } else if (others && coverage_of_others(p, UINT64_MAX, unix_ms, others)) {
        placement_claim(p, others, now_us, unix_ms);
    }
    free(others);
}

/* Keeps the claim if the claimed blocks are still the best selection, or are the best without the nodes that yield to
 * this one (joining nodes with a higher tag); selects again otherwise. */
static void placement_confirm(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    sn_block_coverage *others = malloc(sizeof *others);
    int n = p->end - p->first;
    bool good = p->claims >= CLAIMS_MAX || !others || !coverage_of_others(p, UINT64_MAX, unix_ms, others) ||
                sn_block_selection_is_best(others, p->first, n) ||
                (coverage_of_others(p, sn_node_tag(p->setup.node), unix_ms, others) &&
                 sn_block_selection_is_best(others, p->first, n));
    if (good) {
        p->state = SN_PLACEMENT_LOADING;
        p->load_requested = false;
    } else if (coverage_of_others(p, UINT64_MAX, unix_ms, others)) {
        placement_claim(p, others, now_us, unix_ms);
        p->due_us += random_delay(p, CONFIRM_US);
    }
    free(others);
}

/* -- rebalancing --------------------------------------------------------------------------------------------------- */

/* The first of the blocks that the node would move to now; p->first: it stays. */
static int rebalance_find_target(sn_placement *p, int64_t unix_ms) {
    sn_block_coverage *others = malloc(sizeof *others);
    const sn_announcement *own = sn_directory_find(p->setup.directory, p->setup.node);
    int to = p->first;
    if (others && own && coverage_of_others(p, UINT64_MAX, unix_ms, others))
        to = sn_block_selection_rebalance(others, p->first, p->end, own->tokens_per_s, p->setup.policy.rebalance_gain,
                                          &p->seed);
    free(others);
    return to;
}

/* -- gaps ---------------------------------------------------------------------------------------------------------- */

typedef struct gap_view {
    sn_gap_node nodes[SN_GAP_NODES_MAX];
    size_t n;
    uint64_t drains; /* the least tag of another node that drains, perhaps to fill the gap; UINT64_MAX: none */
} gap_view;

/* The proven nodes and this one. False: there may be nodes that this one does not know, so what seems a gap is none. */
static bool gap_view_read(const sn_placement *p, int64_t unix_ms, gap_view *v) {
    const sn_directory *d = p->setup.directory;
    *v = (gap_view){.drains = UINT64_MAX};
    if (sn_directory_count(d) > SN_GAP_NODES_MAX || p->setup.n_blocks > SN_GAP_BLOCKS_MAX) return false;
    for (size_t i = 0; i < sn_directory_count(d); i++) {
        const sn_announcement *a = sn_directory_at(d, i);
        bool self = !memcmp(a->node, p->setup.node, SN_KEY_SIZE), online = a->state == SN_NODE_ONLINE;
        if (memcmp(a->model, p->setup.model, SN_KEY_SIZE) || a->n_blocks != (uint64_t)p->setup.n_blocks) continue;
        if (a->state == SN_NODE_OFFLINE || a->first_block == a->end_block) continue;
        if (!self && !sn_directory_is_proven_at(d, i, unix_ms)) continue;
        if (!self && a->state == SN_NODE_DRAINING && sn_node_tag(a->node) < v->drains) v->drains = sn_node_tag(a->node);
        v->nodes[v->n++] = (sn_gap_node){.first = (int)a->first_block,
                                         .end = (int)a->end_block,
                                         .tag = sn_node_tag(a->node),
                                         .serves = online || self,
                                         .stays = a->n_experts > 0};
    }
    return true;
}

static void gap_begin(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    p->gap.since_us = now_us;
    p->gap.next_us = now_us + GAP_SETTLE_US + GAP_PATIENCE_US;
    p->gap.passed = 0;
    placement_meet(p, now_us, unix_ms);
}

static void gap_fill(sn_placement *p, int to, int64_t now_us, int64_t unix_ms) {
    p->target_first = to;
    p->gap.filling = true;
    p->state = SN_PLACEMENT_REBALANCE_PENDING;
    p->due_us = now_us + GAP_CONFIRM_US;
    p->asked = false;
    placement_announce(p, now_us, unix_ms);
}

static void gap_look(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    gap_view v;
    p->look_us = now_us + GAP_LOOK_US;
    if (!gap_view_read(p, unix_ms, &v) || !sn_gap_exists(v.nodes, v.n, p->setup.n_blocks)) {
        p->gap.since_us = 0;
        return;
    }
    if (!p->gap.since_us) gap_begin(p, now_us, unix_ms);
    if (now_us < p->gap.since_us + GAP_SETTLE_US) return;
    sn_gap_move move;
    sn_gap_plan(v.nodes, v.n, p->setup.n_blocks, p->gap.passed, &move);
    bool holds = now_us < p->gap.since_us + GAP_HOLD_US && (v.drains != UINT64_MAX || move.waits);
    if (holds) {
        p->gap.next_us = now_us + GAP_PATIENCE_US;
    } else if (!move.tag) {
        p->gap.since_us = 0; /* all were passed over, or it cannot be filled */
    } else if (move.tag == sn_node_tag(p->setup.node)) {
        if (!move.waits) gap_fill(p, move.to, now_us, unix_ms);
    } else if (now_us >= p->gap.next_us) {
        p->gap.passed++;
        p->gap.next_us = now_us + GAP_PATIENCE_US;
    }
}

/* Whether it still is this node that is to move there: the others serve what it leaves, and none drains that goes
 * first; one that drains for ever holds no other up. */
static bool gap_is_confirmed(const sn_placement *p, int64_t now_us, int64_t unix_ms) {
    gap_view v;
    sn_gap_move move;
    const uint64_t own = sn_node_tag(p->setup.node);
    sn_block_coverage *others = malloc(sizeof *others);
    bool confirmed =
        others && gap_view_read(p, unix_ms, &v) && (v.drains > own || now_us >= p->gap.since_us + GAP_HOLD_US);
    if (confirmed) {
        sn_gap_plan(v.nodes, v.n, p->setup.n_blocks, p->gap.passed, &move);
        confirmed = move.tag == own && move.to == p->target_first && !move.waits &&
                    coverage_of_others(p, UINT64_MAX, unix_ms, others) &&
                    sn_block_selection_may_leave(others, p->first, p->end, p->target_first);
    }
    free(others);
    return confirmed;
}

/* -- rebalancing --------------------------------------------------------------------------------------------------- */

static void rebalance_consider(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    if (p->gap.since_us) {
        rebalance_schedule(p, now_us);
        return;
    }
    if (!p->asked) {
        p->asked = true;
        p->due_us = now_us + placement_meet(p, now_us, unix_ms);
        if (p->due_us > now_us) return;
    }
    p->target_first = rebalance_find_target(p, unix_ms);
    if (p->target_first == p->first) {
        rebalance_schedule(p, now_us);
        return;
    }
    p->state = SN_PLACEMENT_REBALANCE_PENDING;
    p->due_us = now_us + REBALANCE_CONFIRM_US + random_delay(p, REBALANCE_CONFIRM_US);
    p->asked = false;
    placement_announce(p, now_us, unix_ms);
}

static void rebalance_confirm(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    bool filling = p->gap.filling;
    p->gap.filling = false;
    if (!filling)
        p->target_first = rebalance_find_target(p, unix_ms);
    else if (!gap_is_confirmed(p, now_us, unix_ms))
        p->target_first = p->first;
    if (p->target_first != p->first) {
        int n = p->end - p->first;
        sn_log(SN_LOG_INFO, "rebalancing", "from=%d:%d to=%d:%d sessions=%zu", p->first, p->end, p->target_first,
               p->target_first + n, p->setup.host.session_count(p->setup.host.ctx));
        p->state = SN_PLACEMENT_REBALANCING;
        p->due_us = now_us + p->setup.policy.drain_us_max;
        p->setup.host.drain(p->setup.host.ctx, unix_ms);
        return;
    }
    p->state = SN_PLACEMENT_SERVING;
    p->gap.since_us = 0;
    rebalance_schedule(p, now_us);
    placement_announce(p, now_us, unix_ms);
}

/* -- what node/protocol calls -------------------------------------------------------------------------------------- */

/* Whether the bootstrap peers are to be asked for what is new before the decision that is due. */
static bool is_to_ask(const sn_placement *p) {
    bool decides = p->state == SN_PLACEMENT_BACKOFF || p->state == SN_PLACEMENT_CLAIMED ||
                   p->state == SN_PLACEMENT_REBALANCE_PENDING;
    return decides && !p->asked && p->setup.policy.expects_others;
}

int64_t sn_placement_tick(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    if (p->state == SN_PLACEMENT_LISTENING) {
        if (now_us >= p->due_us || !p->setup.policy.expects_others ||
            p->setup.host.bootstrap_complete(p->setup.host.ctx))
            placement_choose(p, now_us, unix_ms);
        else
            return now_us + LISTEN_POLL_US;
    }
    if (is_to_ask(p) && now_us >= p->due_us - ASK_US) {
        p->asked = true;
        p->due_us = now_us + ASK_US;
        p->setup.host.ask(p->setup.host.ctx);
    }
    if (p->state == SN_PLACEMENT_BACKOFF && now_us >= p->due_us) placement_choose(p, now_us, unix_ms);
    if (p->state == SN_PLACEMENT_CLAIMED && now_us >= p->due_us) placement_confirm(p, now_us, unix_ms);
    bool looks = p->state == SN_PLACEMENT_SERVING && p->due_us != INT64_MAX;
    if (looks && now_us >= p->look_us) gap_look(p, now_us, unix_ms);
    if (p->state == SN_PLACEMENT_SERVING && now_us >= p->due_us) rebalance_consider(p, now_us, unix_ms);
    if (p->state == SN_PLACEMENT_REBALANCE_PENDING && now_us >= p->due_us) rebalance_confirm(p, now_us, unix_ms);
    if (p->state == SN_PLACEMENT_REBALANCING && now_us >= p->due_us) {
        p->setup.host.close_sessions(p->setup.host.ctx);
        return now_us + LISTEN_POLL_US;
    }
    if (p->state == SN_PLACEMENT_LOADING) return INT64_MAX;
    int64_t next_us = p->due_us - (is_to_ask(p) ? ASK_US : 0);
    return looks && p->look_us < next_us ? p->look_us : next_us;
}

bool sn_placement_wants_blocks(sn_placement *p, int *first, int *end) {
    if (p->state != SN_PLACEMENT_LOADING || p->load_requested) return false;
    p->load_requested = true;
    *first = p->first;
    *end = p->end;
    return true;
}

void sn_placement_serve(sn_placement *p, int first, int end, int64_t now_us) {
    placement_set_blocks(p, first, end);
    p->state = SN_PLACEMENT_SERVING;
    rebalance_schedule(p, now_us);
}

void sn_placement_narrow(sn_placement *p, int first, int end) {
    p->working_first = first;
    p->working_end = end;
    if (p->state == SN_PLACEMENT_REBALANCE_PENDING) p->state = SN_PLACEMENT_SERVING;
    if (p->state == SN_PLACEMENT_SERVING) p->due_us = INT64_MAX;
}

void sn_placement_reload(sn_placement *p, int64_t now_us, int64_t unix_ms) {
    if (p->state != SN_PLACEMENT_SERVING) return; /* other blocks are about to be loaded */
    p->target_first = p->first;
    p->state = SN_PLACEMENT_REBALANCING;
    p->due_us = p->working_first < p->working_end ? now_us + p->setup.policy.drain_us_max : now_us;
    p->setup.host.drain(p->setup.host.ctx, unix_ms);
}

void sn_placement_not_loaded(sn_placement *p, bool again) {
    placement_set_blocks(p, p->first, p->end);
    if (!again) p->working_first = p->working_end = 0;
    p->load_requested = !again;
}

void sn_placement_vacate(sn_placement *p) {
    p->rebalances += p->target_first != p->first;
    placement_set_blocks(p, p->target_first, p->target_first + p->end - p->first);
    p->state = SN_PLACEMENT_LOADING;
    p->load_requested = false;
}
