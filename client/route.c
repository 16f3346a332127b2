/* The shortest path over (block boundary, offer). done[u][e]: least cost of having blocks [first, e) done, the last of
 * them at u. entry[u][p]: least cost of arriving at u with [first, p) done. An offer is entered from the cheapest of
 * all that end there; where the way between two is guessed, it is a sum of a part of each, so that one sorted list of
 * the offers that end at p serves all that begin there, and only measured pairs are looked at one by one. */
#include "client/route.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNREACHED INT64_MAX
enum { START = -1, PENALTIES = 12 };
static const int64_t PENALTY_NS = 1000000;

/* An offer's state at a boundary, of those in its span. */
typedef struct cell {
    int64_t entry, done;
    int from;  /* offer that `entry` comes from, or START */
    int began; /* boundary at which the stretch of `done` began */
} cell;

typedef struct leaver {
    int64_t cost; /* done, and its part of the way on */
    int offer;
} leaver;

typedef struct graph {
    const sn_offer *offers;
    int n, first, end;
    bool push;
    int64_t hop_ns; /* added to each stop, to make ways of fewer stops */
    size_t *row;    /* of each offer's cells in `cells` */
    cell *cells;
    leaver *leavers; /* of the boundary in work, cheapest first */
    int n_leavers;
    int *here; /* usable offers that are no node's: a few at most */
    int n_here;
    int *stamp; /* [v] == stamps: a measured way leads from v to the offer in work */
    int stamps;
} graph;

static int low(const graph *g, int u) { return g->offers[u].first > g->first ? g->offers[u].first : g->first; }
static int high(const graph *g, int u) { return g->offers[u].end < g->end ? g->offers[u].end : g->end; }
static cell *at(const graph *g, int u, int boundary) { return &g->cells[g->row[u] + (size_t)(boundary - low(g, u))]; }
static bool is_usable(const graph *g, int u) {
    return g->offers[u].verdict == SN_OFFER_USABLE && low(g, u) < high(g, u);
}

static void graph_fini(graph *g) {
    free(g->row);
    free(g->cells);
    free(g->leavers);
    free(g->here);
    free(g->stamp);
}

static sn_status graph_init(graph *g, const sn_offer *offers, size_t n, bool push, int first, int end, sn_err *err) {
    size_t cells = 0;
    *g = (graph){.offers = offers, .n = (int)n, .first = first, .end = end, .push = push};
    sn_status status = sn_calloc(&g->row, n, sizeof *g->row, err);
    for (int u = 0; u < g->n && !status; u++) {
        g->row[u] = cells;
        if (is_usable(g, u)) cells += (size_t)(high(g, u) - low(g, u)) + 1;
    }
    if (!status) status = sn_calloc(&g->cells, cells, sizeof *g->cells, err);
    if (!status) status = sn_calloc(&g->leavers, n, sizeof *g->leavers, err);
    if (!status) status = sn_calloc(&g->here, n, sizeof *g->here, err);
    for (int u = 0; u < g->n && !status; u++)
        if (!offers[u].node && is_usable(g, u)) g->here[g->n_here++] = u;
    if (!status) status = sn_calloc(&g->stamp, n, sizeof *g->stamp, err);
    if (status) graph_fini(g);
    return status;
}

/* -- the way between two --------------------------------------------------------------------------------------------
 */

/* What an offer adds to a way whose length is guessed. */
static int64_t half(const sn_offer *p, bool push) { return p->rtt_ns / (push ? 4 : 2); }

static int64_t way_ns(const sn_offer *offers, int from, int to, bool push) {
    const sn_offer *a = from < 0 ? NULL : &offers[from], *b = to < 0 ? NULL : &offers[to];
    bool a_here = !a || !a->node, b_here = !b || !b->node;
    if (a_here || b_here) return (a_here ? 0 : a->rtt_ns / 2) + (b_here ? 0 : b->rtt_ns / 2);
    for (size_t i = 0; push && i < a->n_links; i++)
        if (a->links[i].other == (size_t)to) return a->links[i].rtt_ns / 2;
    return half(a, push) + half(b, push);
}

int64_t sn_route_way_ns(const sn_offer *offers, const sn_stop *stops, size_t n, size_t i, bool push) {
    return way_ns(offers, i ? (int)stops[i - 1].offer : START, i < n ? (int)stops[i].offer : START, push);
}

int64_t sn_route_cost(const sn_offer *offers, const sn_stop *stops, size_t n, bool push) {
    int64_t cost = 0;
    for (size_t i = 0; i <= n; i++) {
        cost += sn_route_way_ns(offers, stops, n, i, push);
        if (i == n) break;
        const sn_offer *p = &offers[stops[i].offer];
        cost += p->queue_ns + (stops[i].end - stops[i].first) * p->block_ns;
    }
    return cost;
}

/* -- the search ------------------------------------------------------------------------------------------------------
 */

static int by_cost(const void *a, const void *b) {
    const leaver *x = a, *y = b;
    return x->cost != y->cost ? (x->cost < y->cost ? -1 : 1) : x->offer - y->offer;
}

static void list_leavers(graph *g, int p) {
    g->n_leavers = 0;
    for (int v = 0; v < g->n; v++) {
        if (!is_usable(g, v) || low(g, v) >= p || high(g, v) < p || at(g, v, p)->done == UNREACHED) continue;
        g->leavers[g->n_leavers++] = (leaver){at(g, v, p)->done + half(&g->offers[v], g->push), v};
    }
    qsort(g->leavers, (size_t)g->n_leavers, sizeof *g->leavers, by_cost);
}

static void consider(const graph *g, int v, int u, int p, cell *best) {
    int64_t cost = at(g, v, p)->done;
    if (cost == UNREACHED) return;
    cost += way_ns(g->offers, v, u, g->push);
    if (cost < best->entry || (cost == best->entry && v < best->from)) best->entry = cost, best->from = v;
}

/* From where u is entered at boundary p. */
static void enter(graph *g, int u, int p) {
    const sn_offer *offer = &g->offers[u];
    cell *best = at(g, u, p);
    best->entry = UNREACHED;
    if (p == g->first) {
        best->entry = way_ns(g->offers, START, u, g->push);
        best->from = START;
        return;
    }
    g->stamps++;
    g->stamp[u] = g->stamps; /* from itself it goes on, not in again */
    for (size_t i = 0; i < offer->n_links && g->push; i++) {
        int v = (int)offer->links[i].other;
        g->stamp[v] = g->stamps;
        if (is_usable(g, v) && low(g, v) < p && p <= high(g, v)) consider(g, v, u, p, best);
    }
    for (int i = 0; i < g->n_leavers; i++) {
        int v = g->leavers[i].offer;
        bool odd = !offer->node || !g->offers[v].node; /* to and from here the ways are another sum */
        if (g->stamp[v] == g->stamps) continue;
        consider(g, v, u, p, best);
        if (!odd) break; /* those behind it cost no less */
    }
    for (int i = 0; i < g->n_here; i++) { /* wherever they stand in the list */
        int v = g->here[i];
        if (v != u && low(g, v) < p && p <= high(g, v)) consider(g, v, u, p, best);
    }
}

static void search(graph *g) {
    for (int u = 0; u < g->n; u++)
        for (int p = low(g, u); is_usable(g, u) && p <= high(g, u); p++)
            *at(g, u, p) = (cell){UNREACHED, UNREACHED, START, 0};
    for (int p = g->first; p < g->end; p++) {
        list_leavers(g, p);
        for (int u = 0; u < g->n; u++) {
            const sn_offer *offer = &g->offers[u];
            if (!is_usable(g, u) || p < low(g, u) || p >= high(g, u)) continue;
            enter(g, u, p);
            int64_t entry = at(g, u, p)->entry;
            if (entry == UNREACHED) continue;
            for (int e = p + 1; e <= high(g, u) && e - p <= offer->room; e++) {
                int64_t cost = entry + g->hop_ns + offer->queue_ns + (e - p) * offer->block_ns;
                if (cost < at(g, u, e)->done) at(g, u, e)->done = cost, at(g, u, e)->began = p;
            }
        }
    }
}

/* The offer at which the cheapest whole way ends, or START. */
static int find_last(const graph *g) {
    int64_t least = UNREACHED;
    int last = START;
    for (int u = 0; u < g->n; u++) {
        if (!is_usable(g, u) || high(g, u) < g->end || at(g, u, g->end)->done == UNREACHED) continue;
        int64_t cost = at(g, u, g->end)->done + way_ns(g->offers, u, START, g->push);
        if (cost < least) least = cost, last = u;
    }
    return last;
}

/* Reads the way off the cells, from its end. False: it has too many stops. */
static bool trace_back(const graph *g, int last, sn_route *out) {
    sn_stop back[SN_HOPS_MAX];
    out->n = 0;
    for (int u = last, e = g->end; u != START; out->n++) {
        int p = at(g, u, e)->began;
        if (out->n == SN_HOPS_MAX) return false;
        back[out->n] = (sn_stop){g->offers[u].node, p, e, (size_t)u};
        u = at(g, u, p)->from;
        e = p;
    }
    for (size_t i = 0; i < out->n; i++) out->stops[i] = back[out->n - 1 - i];
    out->cost_ns = sn_route_cost(g->offers, out->stops, out->n, g->push);
    return true;
}

/* "3:7, 12:13" of the blocks that no usable offer holds. */
static sn_status fail_gaps(const sn_offer *offers, size_t n, int first, int end, sn_err *err) {
    char gaps[200] = "";
    size_t used = 0;
    int from = -1;
    for (int b = first; b <= end && used + 32 < sizeof gaps; b++) {
        bool held = b == end;
        for (size_t i = 0; i < n && !held; i++)
            held = offers[i].verdict == SN_OFFER_USABLE && offers[i].first <= b && b < offers[i].end;
        if (!held && from < 0) from = b;
        if (!held || from < 0) continue;
        used += (size_t)snprintf(gaps + used, sizeof gaps - used, "%s%d:%d", used ? ", " : "", from, b);
        from = -1;
    }
    if (!used)
        return sn_fail(err, SN_RETRY, "the caches of the nodes that serve blocks %d:%d are too full for this session",
                       first, end);
    for (size_t i = 0; i < n; i++)
        if (offers[i].verdict == SN_OFFER_WIRE && offers[i].first < end && offers[i].end > first)
            return sn_fail(err, SN_RETRY, "nobody serves blocks %s with hidden states as this --wire: choose f32, which all nodes take",
                           gaps);
    return sn_fail(err, SN_RETRY, "nobody serves blocks %s of this model: start a swarm-node for them, or give --local",
                   gaps);
}

sn_status sn_route_shortest(const sn_offer *offers, size_t n, bool push, int first, int end, sn_route *out,
                            sn_err *err) {
    graph g;
    sn_status status = graph_init(&g, offers, n, push, first, end, err);
    if (status) return status;
    search(&g);
    int last = find_last(&g);
    bool found = last != START;
    bool fits = found && trace_back(&g, last, out);
    for (int i = 0; found && !fits && i < PENALTIES; i++) { /* rarely: make stops dear until there are few enough */
        g.hop_ns = PENALTY_NS << (2 * i);
        search(&g);
        fits = trace_back(&g, find_last(&g), out);
    }
    graph_fini(&g);
    if (!found) return fail_gaps(offers, n, first, end, err);
    if (!fits)
        return sn_fail(err, SN_RETRY, "the way over blocks %d:%d takes more than %d nodes", first, end, SN_HOPS_MAX);
    return SN_OK;
}

/* -- through each offer ----------------------------------------------------------------------------------------------
 */

/* The same swarm read from its other end: what it costs to arrive there is what it costs to leave here. */
static sn_offer *mirrored(const sn_offer *offers, size_t n, int first, int end, sn_err *err) {
    sn_offer *m = NULL;
    if (sn_calloc(&m, n, sizeof *m, err)) return NULL;
    for (size_t i = 0; i < n; i++) {
        m[i] = offers[i];
        m[i].first = first + end - offers[i].end;
        m[i].end = first + end - offers[i].first;
    }
    return m;
}

static int64_t least_through(const graph *there, const graph *back, int u) {
    const sn_offer *offer = &there->offers[u];
    int64_t least = UNREACHED;
    if (!is_usable(there, u)) return least;
    for (int p = low(there, u); p < high(there, u); p++) {
        int64_t entry = at(there, u, p)->entry;
        for (int e = p + 1; e <= high(there, u) && e - p <= offer->room && entry != UNREACHED; e++) {
            int64_t exit = at(back, u, there->first + there->end - e)->entry;
            if (exit == UNREACHED) continue;
            int64_t cost = entry + offer->queue_ns + (e - p) * offer->block_ns + exit;
            if (cost < least) least = cost;
        }
    }
    return least;
}

sn_status sn_route_through(const sn_offer *offers, size_t n, bool push, int first, int end, int64_t *out, sn_err *err) {
    graph there, back = {0};
    sn_offer *m = mirrored(offers, n, first, end, err);
    if (!m) return err->status;
    sn_status status = graph_init(&there, offers, n, push, first, end, err);
    if (!status) status = graph_init(&back, m, n, push, first, end, err);
    if (!status) {
        search(&there);
        search(&back);
        for (size_t u = 0; u < n; u++) out[u] = least_through(&there, &back, (int)u);
        graph_fini(&back);
    }
    graph_fini(&there);
    free(m);
    return status;
}

/* -- whether to move -------------------------------------------------------------------------------------------------
 */

bool sn_route_is_worth_moving(int64_t now_ns, int64_t better_ns, int64_t replay_ns, int64_t left) {
    if (better_ns >= now_ns - now_ns / 5) return false;       /* a fifth at least: what is measured wavers */
    return left > 2 * (replay_ns / (now_ns - better_ns)) + 1; /* it comes back twice over */
}
