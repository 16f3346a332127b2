/* A shortest path over holes: a hole is a run of blocks without a node, first the gap, then what the node leaves that
 * takes it. A hole that is reached with the least cost is expanded next: each node that is not in its chain yet takes
 * it from where it has to move least. What the chain's nodes have left counts as left, and what they take does not
 * count as held, because they move after the nodes behind them in the chain. */
#include "node/placement/gap.h"

#include <stdlib.h>
#include <string.h>

enum { HOLES_MAX = 512, EXPANDED_MAX = 2048 /* in all of a plan: some milliseconds of the thread that asks */ };

typedef struct hole {
    int first, end; /* equal: nothing is left open, the chain is complete */
    int cost;
    int node, to; /* the move that left it; -1: none, it is the gap */
    int parent;   /* the hole that this move takes */
    bool expanded;
} hole;

typedef struct search {
    const sn_gap_node *nodes;
    size_t n;
    int n_blocks, n_holes, n_expanded;
    int held[SN_GAP_BLOCKS_MAX], left[SN_GAP_BLOCKS_MAX]; /* by how many nodes; without the chain of a hole */
    hole holes[HOLES_MAX];
} search;

static int compare_nodes(const void *x, const void *y) {
    const sn_gap_node *a = x, *b = y;
    if (a->tag != b->tag) return a->tag < b->tag ? -1 : 1;
    return a->first - b->first;
}

static void count_held(const sn_gap_node *nodes, size_t n, int n_blocks, int *held) {
    memset(held, 0, (size_t)n_blocks * sizeof *held);
    for (size_t i = 0; i < n; i++)
        for (int b = nodes[i].first; b < nodes[i].end && b < n_blocks; b++) held[b]++;
}

static int clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

/* Where the node stands that takes the hole, or as much of it as it has room for, and moves least. */
static int place_over(const search *s, const sn_gap_node *node, const hole *h) {
    int n = node->end - node->first;
    int at =
        n >= h->end - h->first ? clamp(node->first, h->end - n, h->first) : clamp(node->first, h->first, h->end - n);
    return clamp(at, 0, s->n_blocks - n);
}

static bool is_in_chain(const search *s, int at, int node) {
    for (; at >= 0 && s->holes[at].node >= 0; at = s->holes[at].parent)
        if (s->holes[at].node == node) return true;
    return false;
}

/* Adds a hole, or a cheaper way to it. */
static void reach(search *s, const hole *h) {
    int at = 0;
    while (at < s->n_holes && (s->holes[at].first != h->first || s->holes[at].end != h->end)) at++;
    if (at == HOLES_MAX || (at < s->n_holes && s->holes[at].cost <= h->cost)) return;
    s->n_holes += at == s->n_holes;
    s->holes[at] = *h;
}

static void expand(search *s, int at) {
    const hole h = s->holes[at];
    memcpy(s->left, s->held, sizeof s->left);
    for (int i = at; s->holes[i].node >= 0; i = s->holes[i].parent) {
        const sn_gap_node *moved = &s->nodes[s->holes[i].node];
        for (int b = moved->first; b < moved->end; b++) s->left[b]--;
    }
    s->holes[at].expanded = true;
    for (int i = 0; i < (int)s->n; i++) {
        const sn_gap_node *node = &s->nodes[i];
        int n = node->end - node->first, to = place_over(s, node, &h);
        hole next = {.cost = h.cost + 1, .node = i, .to = to, .parent = at};
        if (node->stays || !node->serves || is_in_chain(s, at, i)) continue;
        for (int b = node->first; b < node->end; b++) {
            bool keeps = b >= to && b < to + n;
            if (!keeps) next.cost++; /* it loads as many as it leaves */
            if (keeps || s->left[b] > 1) continue;
            if (next.first == next.end) next.first = b;
            next.end = b + 1;
        }
        if (next.first == next.end) next.first = next.end = 0;
        if (next.cost > h.cost + 1) reach(s, &next);
    }
}

/* The complete chain of least cost for the gap; -1: there is none. */
static int find_chain(search *s, int first, int end) {
    s->holes[0] = (hole){.first = first, .end = end, .node = -1, .parent = -1};
    s->n_holes = 1;
    for (;;) {
        int best = -1;
        for (int i = 0; i < s->n_holes; i++)
            if (!s->holes[i].expanded && (best < 0 || s->holes[i].cost < s->holes[best].cost)) best = i;
        if (best < 0 || s->holes[best].first == s->holes[best].end) return best;
        if (s->n_expanded == EXPANDED_MAX) return -1;
        s->n_expanded++;
        expand(s, best);
    }
}

/* Whether a block that the node leaves is served by no other one yet. */
static bool has_to_wait(const search *s, int i, int to) {
    const sn_gap_node *node = &s->nodes[i];
    for (int b = node->first; b < node->end; b++) {
        int n = 0;
        for (size_t k = 0; k < s->n; k++) {
            const sn_gap_node *other = &s->nodes[k];
            n += (int)k != i && other->serves && b >= other->first && b < other->end;
        }
        if (!n && (b < to || b >= to + node->end - node->first)) return true;
    }
    return false;
}

bool sn_gap_exists(const sn_gap_node *nodes, size_t n, int n_blocks) {
    int held[SN_GAP_BLOCKS_MAX];
    count_held(nodes, n, n_blocks, held);
    for (int b = 0; b < n_blocks; b++)
        if (!held[b]) return true;
    return false;
}

/* The move that is due for the first gap that can be filled. */
static void find_move(search *s, sn_gap_move *out) {
    *out = (sn_gap_move){0};
    for (int b = 0, end; b < s->n_blocks && !out->tag; b = end + 1) {
        for (end = b; end < s->n_blocks && !s->held[end];) end++;
        int chain = end > b ? find_chain(s, b, end) : -1;
        if (chain < 0) continue;
        const hole *last = &s->holes[chain];
        *out = (sn_gap_move){s->nodes[last->node].tag, last->to, has_to_wait(s, last->node, last->to)};
    }
}

void sn_gap_plan(sn_gap_node *nodes, size_t n, int n_blocks, int passed, sn_gap_move *out) {
    search *s = calloc(1, sizeof *s);
    *out = (sn_gap_move){0};
    if (!s) return;
    qsort(nodes, n, sizeof *nodes, compare_nodes);
    s->nodes = nodes;
    s->n = n;
    s->n_blocks = n_blocks;
    count_held(nodes, n, n_blocks, s->held);
    for (find_move(s, out); passed > 0 && out->tag; passed--, find_move(s, out))
        for (size_t i = 0; i < n; i++) nodes[i].stays |= nodes[i].tag == out->tag;
    free(s);
}
