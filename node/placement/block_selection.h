/* Block selection: which blocks a node should serve. Pure functions of the block coverage (coverage.h) and a
 * seed; used by placement.c.
 *
 * Joining: the node takes the window of N consecutive blocks that the swarm lacks most: the one whose sorted
 * throughputs are lexicographically least. After Petals (Borzunov et al., "Petals: Collaborative Inference and
 * Fine-tuning of Large Models", 2023, section 3.2), which takes the least sum; with the sorted comparison a window with
 * an unserved block always wins.
 *
 * Rebalancing: the node compares the coverage as it is with the coverage if it moved to another window. It moves when
 * that serves more blocks; or, while blocks are unserved, when that brings a redundant node nearer to them; or, when
 * all blocks are served, when the slowest block becomes fast enough. Each of these only improves the coverage, so nodes
 * that move one after another stop after finitely many moves. A node that alone serves a block does not leave it.
 *
 * Throughputs are the nodes' own measurements, signed but not proven, and are believed within limits (coverage.h). A
 * wrong one can keep other nodes away from blocks for a while or attract them. It cannot make a block lose its last
 * node, because leaving a block depends on the number of proven nodes that serve it. */
#ifndef SN_NODE_PLACEMENT_BLOCK_SELECTION_H
#define SN_NODE_PLACEMENT_BLOCK_SELECTION_H

#include "node/placement/coverage.h"

/* The first block of the window of n blocks (1 to n_blocks) to serve. Among equal windows those are preferred that
 * leave no stretch shorter than n beside them; the seed selects one of these. */
int sn_block_selection_window(const sn_block_coverage *others, int n, uint64_t *seed);
/* Whether the swarm lacks no other window of n blocks more than the one at `first`. */
bool sn_block_selection_is_best(const sn_block_coverage *others, int first, int n);

/* The first block of the window to which the node that serves [first, end) with this throughput should move; `first`:
 * it should stay. gain_percent: how much faster the slowest block must become. `others`: coverage without this node. */
int sn_block_selection_rebalance(const sn_block_coverage *others, int first, int end, uint64_t tokens_per_s,
                                 int gain_percent, uint64_t *seed);

/* Whether every block of [first, end) outside [to, to + end - first) is served by another node. */
bool sn_block_selection_may_leave(const sn_block_coverage *others, int first, int end, int to);

#endif
