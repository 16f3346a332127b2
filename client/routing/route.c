/* The shortest path over (block boundary, candidate), by dynamic programming from the first boundary to the last.
 *
 * entry(u, p): least cost of arriving at candidate u with blocks [first, p) done. done(u, e): least cost of having
 * blocks [first, e) done, the last of them at u. A candidate is entered from the cheapest of all candidates whose
 * blocks end there. Where a round trip between two nodes is only estimated, its cost is a sum of a part of each node;
 * so one sorted list of the candidates that end at p serves all that begin there, and only measured pairs are compared
 * one by one.
 *
 * sn_route_cost_through runs the same search on the swarm as it is and on its mirror image: the cost of arriving in the
 * mirror is the cost of leaving in the swarm. */
#include "client/routing/route.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNREACHED INT64_MAX
enum { START = -1, PENALTIES = 12 };
static const int64_t PENALTY_NS = 1000000;

/* State of a candidate at one boundary of its span. */
typedef struct cell {
    int64_t entry, done;
    int from;  /* the candidate from which `entry` comes, or START */
    int began; /* the boundary at which the leg of `done` began */
} cell;

typedef struct route_exit {
    int64_t cost; /* done, and its part of the network cost after it */
    int candidate;
} route_exit;

typedef struct graph {
    const sn_candidate *candidates;
    int n, first, end;
    bool push, mirrored; /* mirrored: blocks count from the end */
    int64_t hop_ns;      /* penalty added to each leg, to find routes with fewer legs */
    size_t *row;         /* (n): index of each candidate's first cell */
    cell *cells;
    route_exit *exits; /* candidates whose blocks end at the present boundary, cheapest first */
    int n_exits;
    int *here; /* eligible local candidates: a few at most */
    int n_here;
    int *stamp; /* (n): [v] == stamps: v has a measured link to the present candidate */
    int stamps;
} graph;

static int graph_first(const graph *g, int u) {
    return g->candidates[u].first > g->first ? g->candidates[u].first : g->first;
}
static int graph_end(const graph *g, int u) { return g->candidates[u].end < g->end ? g->candidates[u].end : g->end; }
static cell *graph_cell(const graph *g, int u, int boundary) {
    return &g->cells[g->row[u] + (size_t)(boundary - graph_first(g, u))];
}
/* Whether legs may meet at this boundary. */
static bool graph_may_cut(const graph *g, int p) {
    const bool *bound = g->n ? g->candidates->bound : NULL;
    return p == g->first || p == g->end || !bound || !bound[g->mirrored ? g->first + g->end - p : p];
}
static bool graph_is_usable(const graph *g, int u) {
    return g->candidates[u].eligibility == SN_ELIGIBLE && graph_first(g, u) < graph_end(g, u);
}

static void graph_fini(graph *g) {
    free(g->row);
    free(g->cells);
    free(g->exits);
    free(g->here);
    free(g->stamp);
}

static sn_status graph_init(graph *g, const sn_candidate *candidates, size_t n, bool push, int first, int end,
                            sn_err *err) {
    size_t cells = 0;
    *g = (graph){.candidates = candidates, .n = (int)n, .first = first, .end = end, .push = push};
    sn_status status = sn_calloc(&g->row, n, sizeof *g->row, err);
    for (int u = 0; u < g->n && !status; u++) {
        g->row[u] = cells;
        if (graph_is_usable(g, u)) cells += (size_t)(graph_end(g, u) - graph_first(g, u)) + 1;
    }
    if (!status) status = sn_calloc(&g->cells, cells, sizeof *g->cells, err);
    if (!status) status = sn_calloc(&g->exits, n, sizeof *g->exits, err);
    if (!status) status = sn_calloc(&g->here, n, sizeof *g->here, err);
    for (int u = 0; u < g->n && !status; u++)
        if (!candidates[u].node && graph_is_usable(g, u)) g->here[g->n_here++] = u;
    if (!status) status = sn_calloc(&g->stamp, n, sizeof *g->stamp, err);
    if (status) graph_fini(g);
    return status;
}

/* -- network costs
 * ------------------------------------------------------------------------------------------------------ */

/* A node's part of the network cost between two nodes whose round trip was not measured. */
static int64_t network_half_ns(const sn_candidate *p, bool push) { return p->rtt_ns / (push ? 4 : 2); }

/* Between two that have not measured each other. */
static int64_t network_unlinked_ns(const sn_candidate *candidates, int from, int to, bool push) {
    const sn_candidate *a = from < 0 ? NULL : &candidates[from], *b = to < 0 ? NULL : &candidates[to];
    bool a_here = !a || !a->node, b_here = !b || !b->node;
    if (a_here || b_here) return (a_here ? 0 : a->rtt_ns / 2) + (b_here ? 0 : b->rtt_ns / 2);
    return network_half_ns(a, push) + network_half_ns(b, push);
}

static int64_t network_ns(const sn_candidate *candidates, int from, int to, bool push) {
    const sn_candidate *a = from < 0 ? NULL : &candidates[from];
    for (size_t i = 0; push && a && a->node && i < a->n_links; i++)
        if (a->links[i].other == (size_t)to) return a->links[i].rtt_ns / 2;
    return network_unlinked_ns(candidates, from, to, push);
}

int64_t sn_route_network_ns(const sn_candidate *candidates, const sn_route_leg *legs, size_t n, size_t i, bool push) {
    return network_ns(candidates, i ? (int)legs[i - 1].candidate : START, i < n ? (int)legs[i].candidate : START, push);
}

int64_t sn_route_cost(const sn_candidate *candidates, const sn_route_leg *legs, size_t n, bool push) {
    int64_t cost = 0;
    for (size_t i = 0; i <= n; i++) {
        cost += sn_route_network_ns(candidates, legs, n, i, push);
        if (i == n) break;
        const sn_candidate *p = &candidates[legs[i].candidate];
        cost += p->queue_ns + (legs[i].end - legs[i].first) * p->block_ns;
    }
    return cost;
}

/* -- the search
 * --------------------------------------------------------------------------------------------------------- */

static int compare_exits(const void *a, const void *b) {
    const route_exit *x = a, *y = b;
    return x->cost != y->cost ? (x->cost < y->cost ? -1 : 1) : x->candidate - y->candidate;
}

static void graph_list_exits(graph *g, int p) {
    g->n_exits = 0;
    for (int v = 0; v < g->n; v++) {
        if (!graph_is_usable(g, v) || graph_first(g, v) >= p || graph_end(g, v) < p ||
            graph_cell(g, v, p)->done == UNREACHED)
            continue;
        g->exits[g->n_exits++] =
            (route_exit){graph_cell(g, v, p)->done + network_half_ns(&g->candidates[v], g->push), v};
    }
    qsort(g->exits, (size_t)g->n_exits, sizeof *g->exits, compare_exits);
}

static void graph_consider(const graph *g, int v, int p, int64_t network_ns, cell *best) {
    int64_t cost = graph_cell(g, v, p)->done;
    if (cost == UNREACHED) return;
    cost += network_ns;
    if (cost < best->entry || (cost == best->entry && v < best->from)) best->entry = cost, best->from = v;
}

/* Finds the cheapest route that enters candidate u at boundary p. */
static void graph_enter(graph *g, int u, int p) {
    const sn_candidate *candidate = &g->candidates[u];
    cell *best = graph_cell(g, u, p);
    best->entry = UNREACHED;
    if (p == g->first) {
        best->entry = network_ns(g->candidates, START, u, g->push);
        best->from = START;
        return;
    }
    g->stamps++;
    g->stamp[u] = g->stamps; /* u continues its own leg instead of entering itself */
    for (size_t i = 0; i < candidate->n_links && g->push; i++) {
        int v = (int)candidate->links[i].other;
        g->stamp[v] = g->stamps;
        if (graph_is_usable(g, v) && graph_first(g, v) < p && p <= graph_end(g, v))
            graph_consider(g, v, p, candidate->links[i].rtt_ns / 2, best);
    }
    for (int i = 0; i < g->n_exits; i++) {
        int v = g->exits[i].candidate;
        bool local = !candidate->node || !g->candidates[v].node; /* then the cost is not the sum of two parts */
        if (g->stamp[v] == g->stamps) continue;
        graph_consider(g, v, p, network_unlinked_ns(g->candidates, v, u, g->push), best);
        if (!local) break; /* the exits after it cost at least as much */
    }
    for (int i = 0; i < g->n_here; i++) { /* local candidates are not in the order of the exits */
        int v = g->here[i];
        if (v != u && graph_first(g, v) < p && p <= graph_end(g, v))
            graph_consider(g, v, p, network_unlinked_ns(g->candidates, v, u, g->push), best);
    }
}

static void graph_search(graph *g) {
    for (int u = 0; u < g->n; u++)
        for (int p = graph_first(g, u); graph_is_usable(g, u) && p <= graph_end(g, u); p++)
            *graph_cell(g, u, p) = (cell){UNREACHED, UNREACHED, START, 0};
    for (int p = g->first; p < g->end; p++) {
        if (!graph_may_cut(g, p)) continue;
        graph_list_exits(g, p);
        for (int u = 0; u < g->n; u++) {
            const sn_candidate *candidate = &g->candidates[u];
            if (!graph_is_usable(g, u) || p < graph_first(g, u) || p >= graph_end(g, u)) continue;
            graph_enter(g, u, p);
            int64_t entry = graph_cell(g, u, p)->entry;
            if (entry == UNREACHED) continue;
            for (int e = p + 1; e <= graph_end(g, u) && e - p <= candidate->blocks_max; e++) {
                if (!graph_may_cut(g, e)) continue;
                int64_t cost = entry + g->hop_ns + candidate->queue_ns + (e - p) * candidate->block_ns;
                if (cost < graph_cell(g, u, e)->done) graph_cell(g, u, e)->done = cost, graph_cell(g, u, e)->began = p;
            }
        }
    }
}

/* The last candidate of the cheapest complete route, or START: there is none. */
static int graph_find_last(const graph *g) {
    int64_t least = UNREACHED;
    int last = START;
    for (int u = 0; u < g->n; u++) {
        if (!graph_is_usable(g, u) || graph_end(g, u) < g->end || graph_cell(g, u, g->end)->done == UNREACHED) continue;
        int64_t cost = graph_cell(g, u, g->end)->done + network_ns(g->candidates, u, START, g->push);
        if (cost < least) least = cost, last = u;
    }
    return last;
}

/* Reads the route from the cells, from its end. False: it has too many legs. */
static bool graph_trace_route(const graph *g, int last, sn_route *out) {
    sn_route_leg back[SN_HOPS_MAX];
    out->n = 0;
    for (int u = last, e = g->end; u != START; out->n++) {
        int p = graph_cell(g, u, e)->began;
        if (out->n == SN_HOPS_MAX) return false;
        back[out->n] = (sn_route_leg){g->candidates[u].node, p, e, (size_t)u};
        u = graph_cell(g, u, p)->from;
        e = p;
    }
    for (size_t i = 0; i < out->n; i++) out->legs[i] = back[out->n - 1 - i];
    out->cost_ns = sn_route_cost(g->candidates, out->legs, out->n, g->push);
    return true;
}

/* Why known nodes are not used that could be about blocks [first, end): " (known: 2 denied, 1 banned)". */
static void list_rejections(const sn_candidate *candidates, size_t n, int first, int end, char out[256]) {
    int counts[SN_ELIGIBILITY_COUNT] = {0};
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        bool unrelated =
            candidates[i].first < candidates[i].end && (candidates[i].end <= first || candidates[i].first >= end);
        if (candidates[i].node && !unrelated) counts[candidates[i].eligibility]++;
    }
    out[0] = 0;
    for (int k = SN_ELIGIBLE + 1; k < SN_ELIGIBILITY_COUNT && used < 200; k++)
        if (counts[k])
            used += (size_t)snprintf(out + used, 256 - used, "%s%d %s",
                                     used ? ", " : " (nodes that are not used: ", counts[k],
                                     sn_eligibility_name((sn_eligibility)k));
    if (used) snprintf(out + used, 256 - used, ")");
}

/* The reason for which most of those nodes are not used. */
static const sn_candidate *main_rejection(const sn_candidate *candidates, size_t n, int first, int end) {
    const sn_candidate *example[SN_ELIGIBILITY_COUNT] = {NULL}, *most = NULL;
    int counts[SN_ELIGIBILITY_COUNT] = {0};
    for (size_t i = 0; i < n; i++) {
        const sn_candidate *c = &candidates[i];
        if (!c->node || c->eligibility == SN_ELIGIBLE || (c->first < c->end && (c->end <= first || c->first >= end)))
            continue;
        if (!counts[c->eligibility]++) example[c->eligibility] = c;
        if (!most || counts[c->eligibility] > counts[most->eligibility]) most = example[c->eligibility];
    }
    return most;
}

/* ": what to do", for the reason for which this candidate is not used. */
static void advise(const sn_candidate *candidate, char out[200]) {
    static const char *const advice[SN_ELIGIBILITY_COUNT] = {
        [SN_INELIGIBLE_STATE] = ": they start or leave; try again soon",
        [SN_INELIGIBLE_PROTOCOL] = ": their programs are of another version",
        [SN_INELIGIBLE_MODEL] = ": they serve another model, or another file of this one; 'swarm status' names it",
        [SN_INELIGIBLE_NOT_IN_ONLY] = ": --only leaves them out",
        [SN_INELIGIBLE_DENIED] = ": --deny leaves them out",
        [SN_INELIGIBLE_BANNED] = ": they failed a moment ago; try again later",
        [SN_INELIGIBLE_PARTY] = ": a replica or an audit needs another node with these blocks",
        [SN_INELIGIBLE_ADAPTER] = ": give --adapter FOLDER to bring the adapter along",
        [SN_INELIGIBLE_KV_SMALL] = ": the session has more tokens than their --kv-memory holds",
    };
    char id[9];
    const char *text = advice[candidate->eligibility];
    snprintf(out, 200, "%s", text ? text : "");
    if (candidate->eligibility == SN_INELIGIBLE_WEIGHTS)
        snprintf(out, 200, ": block %d of node %s has other weights; one of the files is damaged or another version",
                 candidate->other_block, sn_hex(candidate->node->node, 4, id));
    else if (candidate->eligibility == SN_INELIGIBLE_KV_DTYPE)
        snprintf(out, 200, ": give --kv-dtype %s", sn_word_name(sn_wire_dtype_words, (int)candidate->node->kv_dtype));
}

/* The error when there is no route, with the blocks that no eligible candidate holds, such as "3:7, 12:13". */
static sn_status route_fail_gaps(const sn_candidate *candidates, size_t n, int first, int end, sn_err *err) {
    char gaps[200] = "", rejections[256];
    size_t used = 0;
    int from = -1, gap_first = -1, gap_end = -1; /* from the first gap to the last one */
    for (int b = first; b <= end && used + 32 < sizeof gaps; b++) {
        bool held = b == end;
        for (size_t i = 0; i < n && !held; i++)
            held = candidates[i].eligibility == SN_ELIGIBLE && candidates[i].first <= b && b < candidates[i].end;
        if (!held && from < 0) from = b;
        if (!held || from < 0) continue;
        used += (size_t)snprintf(gaps + used, sizeof gaps - used, "%s%d:%d", used ? ", " : "", from, b);
        if (gap_first < 0) gap_first = from;
        gap_end = b;
        from = -1;
    }
    bool bound = false;
    for (int b = first + 1; b < end && n; b++) bound |= candidates->bound && candidates->bound[b];
    if (!used && bound)
        return sn_fail(err, SN_RETRY,
                       "the nodes that serve blocks %d:%d meet where this model cannot be cut, or have too little free "
                       "KV memory for this session",
                       first, end);
    if (!used)
        return sn_fail(err, SN_RETRY,
                       "the nodes that serve blocks %d:%d have too little free KV memory for this session", first, end);
    for (size_t i = 0; i < n; i++)
        if (candidates[i].eligibility == SN_INELIGIBLE_WIRE && candidates[i].first < end && candidates[i].end > first)
            return sn_fail(err, SN_RETRY,
                           "no node serves blocks %s with this --wire-dtype: choose f32, which all nodes accept", gaps);
    list_rejections(candidates, n, gap_first, gap_end, rejections);
    const sn_candidate *rejected = main_rejection(candidates, n, gap_first, gap_end);
    if (rejected) {
        char what[200];
        advise(rejected, what);
        return sn_fail(err, SN_RETRY, "no node serves blocks %s for this session%s%s", gaps, rejections, what);
    }
    return sn_fail(err, SN_RETRY,
                   "no node serves blocks %s of this model: start a swarm-node for them, or give --local", gaps);
}

sn_status sn_route_shortest(const sn_candidate *candidates, size_t n, bool push, int first, int end, sn_route *out,
                            sn_err *err) {
    graph g;
    sn_status status = graph_init(&g, candidates, n, push, first, end, err);
    if (status) return status;
    graph_search(&g);
    int last = graph_find_last(&g);
    bool found = last != START;
    bool fits = found && graph_trace_route(&g, last, out);
    for (int i = 0; found && !fits && i < PENALTIES;
         i++) { /* rare: raise the penalty of a leg until there are few enough */
        g.hop_ns = PENALTY_NS << (2 * i);
        graph_search(&g);
        fits = graph_trace_route(&g, graph_find_last(&g), out);
    }
    graph_fini(&g);
    if (!found) return route_fail_gaps(candidates, n, first, end, err);
    if (!fits)
        return sn_fail(err, SN_RETRY, "every route over blocks %d:%d has more than %d nodes", first, end, SN_HOPS_MAX);
    return SN_OK;
}

/* -- through each candidate
 * --------------------------------------------------------------------------------------------- */

/* The swarm with its blocks in the opposite order. */
static sn_candidate *candidates_mirrored(const sn_candidate *candidates, size_t n, int first, int end, sn_err *err) {
    sn_candidate *m = NULL;
    if (sn_calloc(&m, n, sizeof *m, err)) return NULL;
    for (size_t i = 0; i < n; i++) {
        m[i] = candidates[i];
        m[i].first = first + end - candidates[i].end;
        m[i].end = first + end - candidates[i].first;
    }
    return m;
}

static int64_t graph_least_through(const graph *there, const graph *back, int u) {
    const sn_candidate *candidate = &there->candidates[u];
    int64_t least = UNREACHED;
    if (!graph_is_usable(there, u)) return least;
    for (int p = graph_first(there, u); p < graph_end(there, u); p++) {
        int64_t entry = graph_cell(there, u, p)->entry;
        for (int e = p + 1; e <= graph_end(there, u) && e - p <= candidate->blocks_max && entry != UNREACHED; e++) {
            int64_t exit = graph_cell(back, u, there->first + there->end - e)->entry;
            if (exit == UNREACHED) continue;
            int64_t cost = entry + candidate->queue_ns + (e - p) * candidate->block_ns + exit;
            if (cost < least) least = cost;
        }
    }
    return least;
}

sn_status sn_route_cost_through(const sn_candidate *candidates, size_t n, bool push, int first, int end, int64_t *out,
                                sn_err *err) {
    graph there, back = {0};
    sn_candidate *m = candidates_mirrored(candidates, n, first, end, err);
    if (!m) return err->status;
    sn_status status = graph_init(&there, candidates, n, push, first, end, err);
    if (!status) status = graph_init(&back, m, n, push, first, end, err);
    back.mirrored = true;
    if (!status) {
        graph_search(&there);
        graph_search(&back);
        for (size_t u = 0; u < n; u++) out[u] = graph_least_through(&there, &back, (int)u);
        graph_fini(&back);
    }
    graph_fini(&there);
    free(m);
    return status;
}

/* -- rerouting
 * ---------------------------------------------------------------------------------------------------------- */

bool sn_route_is_worth_rerouting(int64_t now_ns, int64_t better_ns, int64_t replay_ns, int64_t left) {
    if (better_ns >= now_ns - now_ns / 5) return false;       /* at least a fifth faster: measurements vary */
    return left > 2 * (replay_ns / (now_ns - better_ns)) + 1; /* the replay pays off twice */
}
