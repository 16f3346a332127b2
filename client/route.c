/* Shortest path over block boundaries: cost[p] is the least cost of getting from block p to the end; a node that serves p
 * leads from p to any boundary up to its end. Computed backwards, so every choice looks only at what is decided. */
#include "client/route.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOP_COST = 1000, LOCAL_COST = 1, LOAD_COST = 10, BLOCK_COST = 1, UNREACHED = INT32_MAX };

/* What reaching the end from a block takes: the next stop's node (NULL: here) and end. */
typedef struct step {
    int cost, end;
    const sn_announcement *node;
} step;

static bool weights_agree(const sn_route_wish *wish, const sn_announcement *node) {
    for (int b = (int)node->first_block; b < (int)node->end_block; b++) {
        const sn_hash *want = wish->block_hash ? wish->block_hash[b] : NULL;
        if (want && memcmp(want->bytes, node->block_hash[b - (int)node->first_block], SN_HASH_SIZE)) return false;
    }
    return true;
}

static bool usable(const sn_route_wish *wish, const sn_announcement *node) {
    return node->state == SN_NODE_ONLINE && node->protocol == SN_PROTOCOL &&
           !memcmp(node->model, wish->model.bytes, SN_HASH_SIZE) && node->n_blocks == (uint64_t)wish->n_blocks &&
           !(wish->excluded && wish->excluded(wish->ctx, node)) && weights_agree(wish, node);
}

static int load_of(const sn_announcement *node) {
    uint64_t load = node->sessions + node->queue;
    return load < 50 ? (int)load * LOAD_COST : 50 * LOAD_COST;
}

/* Lets blocks [low, high) at one place improve the ways from each of them. */
static void relax(step *best, int p, const sn_announcement *node, int high, int hop_cost) {
    for (int e = p + 1; e <= high; e++) {
        if (best[e].cost == UNREACHED) continue;
        int cost = best[e].cost + hop_cost + (e - p) * (node ? BLOCK_COST : 0);
        if (cost < best[p].cost) best[p] = (step){cost, e, node};
    }
}

/* "3:7, 12:13" of the blocks that no usable node and nobody here holds. */
static void name_gaps(const bool *held, int first, int end, char *out, size_t room) {
    size_t n = 0;
    out[0] = 0;
    for (int b = first; b < end; b++) {
        if (held[b]) continue;
        int from = b;
        while (b < end && !held[b]) b++;
        n += (size_t)snprintf(out + n, room - n, "%s%d:%d", n ? ", " : "", from, b);
        if (n + 32 > room) return;
    }
}

sn_status sn_route_plan(const sn_route_wish *wish, int first, int end, sn_stop *stops, size_t *n_stops, sn_err *err) {
    step *best = NULL;
    bool *held = NULL, *may = NULL;
    size_t n_nodes = wish->directory ? sn_directory_count(wish->directory) : 0;
    sn_status status = sn_calloc(&best, (size_t)end + 1, sizeof *best, err);
    if (!status) status = sn_calloc(&held, (size_t)end + 1, sizeof *held, err);
    if (!status) status = sn_calloc(&may, n_nodes, sizeof *may, err);
    if (status) goto out;
    for (int p = 0; p < end; p++) best[p].cost = UNREACHED;
    for (size_t i = 0; i < n_nodes; i++) may[i] = usable(wish, sn_directory_at(wish->directory, i));
    for (int p = end - 1; p >= first; p--) {
        if (p >= wish->local_first && p < wish->local_end) {
            held[p] = true;
            relax(best, p, NULL, wish->local_end < end ? wish->local_end : end, LOCAL_COST);
        }
        for (size_t i = 0; i < n_nodes; i++) {
            const sn_announcement *node = sn_directory_at(wish->directory, i);
            if ((uint64_t)p < node->first_block || (uint64_t)p >= node->end_block || !may[i]) continue;
            held[p] = true;
            relax(best, p, node, (int)node->end_block < end ? (int)node->end_block : end, HOP_COST + load_of(node));
        }
    }
    if (best[first].cost == UNREACHED) {
        char gaps[200];
        name_gaps(held, first, end, gaps, sizeof gaps);
        status = sn_fail(err, SN_RETRY, "nobody serves blocks %s of this model: start a swarm-node for them, or give --local",
                         gaps);
        goto out;
    }
    *n_stops = 0;
    for (int p = first; p < end; p = best[p].end) {
        if (*n_stops == SN_HOPS_MAX) {
            status = sn_fail(err, SN_RETRY, "the way over blocks %d:%d takes more than %d nodes", first, end, SN_HOPS_MAX);
            goto out;
        }
        stops[(*n_stops)++] = (sn_stop){best[p].node, p, best[p].end};
    }
out:
    free(best);
    free(held);
    free(may);
    return status;
}
