/* Gaps: blocks that no node holds, and who fills them. Pure functions of the nodes that are known; used by placement.c.
 *
 * A gap is filled by a chain of moves: one node takes the gap and may leave blocks that it alone holds; the next one
 * takes these, and so on; the last one leaves only blocks that others hold, too. Of all chains the one counts that
 * loads the fewest blocks, a move counting as one more. It is walked from its end, so no move leaves a block without a
 * node: the last node of the chain moves now, and when it has, the rest of the chain is the plan.
 *
 * Nodes that know the same nodes make the same plan, whichever order they know them in, so one node moves and the
 * others know which. */
#ifndef SN_NODE_PLACEMENT_GAP_H
#define SN_NODE_PLACEMENT_GAP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SN_GAP_NODES_MAX = 128, SN_GAP_BLOCKS_MAX = 1024 };

typedef struct sn_gap_node {
    int first, end; /* blocks that it serves, loads, or is about to leave */
    uint64_t tag;   /* of its id */
    bool serves;    /* else it loads, or drains */
    bool stays;     /* it will not move */
} sn_gap_node;

typedef struct sn_gap_move {
    uint64_t tag; /* of the node that is to move now; 0: there is no chain */
    int to;       /* the first of the blocks that it takes */
    bool waits;   /* blocks that it leaves are still loaded by the node that takes them */
} sn_gap_move;

/* Whether a block of the model, of up to SN_GAP_BLOCKS_MAX, is held by no node. */
bool sn_gap_exists(const sn_gap_node *nodes, size_t n, int n_blocks);
/* Plans for the first gap that can be filled, after so many nodes that had their turn are passed over: they count as
 * those that stay. Sorts the nodes. The search is bounded: of many gaps that cannot be filled some may hide one that
 * can. */
void sn_gap_plan(sn_gap_node *nodes, size_t n, int n_blocks, int passed, sn_gap_move *out);

#endif
