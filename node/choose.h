/* Which blocks a node should serve. Logic only: it is handed what the swarm says, and a seed.
 *
 * Joining: of all windows of N blocks, the one that the swarm lacks most: the throughputs of its blocks (summed over the nodes
 * that hold each), sorted, are lexicographically least. After Petals (Borzunov et al., "Petals: Collaborative Inference and
 * Fine-tuning of Large Models", 2023, section 3.2), which takes the least sum; with a sorted comparison a gap wins always.
 *
 * Moving: a node simulates that it goes elsewhere. It goes when that covers more blocks; or, while blocks are uncovered, when
 * it brings a surplus nearer to a gap; or, when all are covered, when the slowest block gains enough. Each of the three only
 * improves, so nodes that move one after the other come to rest. A block that a node alone serves keeps it where it is.
 *
 * Throughputs are the nodes' own measurements, signed but not proven: a liar can send others away from blocks or lure them
 * there, never make a block uncovered by it. */
#ifndef SN_NODE_CHOOSE_H
#define SN_NODE_CHOOSE_H

#include "net/directory.h"

enum { SN_CENSUS_BLOCKS_MAX = 1024 };

typedef struct sn_census {
    int n_blocks;
    uint64_t rate[SN_CENSUS_BLOCKS_MAX];   /* tokens/s of all who hold the block, or are about to */
    uint32_t serving[SN_CENSUS_BLOCKS_MAX]; /* how many hold it now */
    uint64_t usual_rate;                   /* of a node that has not measured: the mean of those that have, at least 1 */
} sn_census;

/* Begins an empty census; SN_REFUSED for a model of too many blocks. */
sn_status sn_census_begin(sn_census *census, int n_blocks, sn_err *err) SN_MUST_USE;
void sn_census_add(sn_census *census, int first, int end, uint64_t tokens_per_s, bool serving);
/* Everybody in the directory who serves the model, ONLINE or JOINING, but the node `except` (NULL: nobody); of those JOINING only
 * nodes whose tag lies below `joining_below`. */
sn_status sn_census_take(sn_census *census, const sn_directory *directory, const uint8_t model[SN_KEY_SIZE], int n_blocks,
                         const uint8_t *except, uint64_t joining_below, sn_err *err) SN_MUST_USE;

/* The first block of the window of n (1 to n_blocks) to serve. Of equals those that leave no scraps beside them, one of these by
 * the seed. */
int sn_choose_window(const sn_census *others, int n, uint64_t *seed);
/* Whether no other window of n is lacked more than the one at `first`. */
bool sn_is_best_window(const sn_census *others, int first, int n);

/* Where the node that holds [first, end) with this throughput should go: the first block, or `first` to stay. gain_percent: how
 * much faster the slowest block must become. `others`: a census without this node. */
int sn_choose_move(const sn_census *others, int first, int end, uint64_t tokens_per_s, int gain_percent, uint64_t *seed);

/* Whether every block of [first, end) outside [to, to + end - first) is served by another one. */
bool sn_may_leave(const sn_census *others, int first, int end, int to);

#endif
