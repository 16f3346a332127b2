/* Block coverage: the throughput of each block of a model, summed over the nodes that serve it, as far as their
 * announcements are believed. Logic without I/O; used by placement.c and block_selection.h.
 *
 * Announcements are signed, not proven, and ids cost nothing: a stranger may announce any number of nodes with any
 * throughput. So what counts depends on whether a node has answered this one (sn_directory_is_proven):
 * - a proven node counts as fast as it says, up to four times the median of the proven ones;
 * - another one counts no more than their mean, and only at blocks that a proven node serves;
 * - of these others some were asked for an answer, drawn at random (sn_coverage_draw): those that are silent do not
 *   count, and where they are the most, none of these others does;
 * - nodes that load, which may have no way to be asked yet, count as `claims_max` of them at most.
 * `serving`, on which leaving a block depends, counts proven nodes only. */
#ifndef SN_NODE_PLACEMENT_COVERAGE_H
#define SN_NODE_PLACEMENT_COVERAGE_H

#include "net/directory.h"

enum {
    SN_BLOCK_COVERAGE_MAX = 1024,
    SN_COVERAGE_TRIED_MAX = 64,     /* nodes that are asked for one decision, */
    SN_COVERAGE_TRIED_OF_BLOCK = 3, /* and of them for each block */
};

typedef struct sn_block_coverage {
    int n_blocks;
    uint64_t rate[SN_BLOCK_COVERAGE_MAX];    /* tokens/s of all nodes that serve the block or load it */
    uint32_t serving[SN_BLOCK_COVERAGE_MAX]; /* proven nodes that serve it now */
    uint64_t default_rate; /* for nodes without a measurement: the mean of the proven ones, at least 1 */
    uint64_t rate_max;     /* no node counts for more */
} sn_block_coverage;

/* An empty coverage. SN_REFUSED: the model has more than SN_BLOCK_COVERAGE_MAX blocks. */
sn_status sn_block_coverage_begin(sn_block_coverage *coverage, int n_blocks, sn_err *err) SN_MUST_USE;
/* For how much a proven node counts that says this; 0: it has not measured it. */
uint64_t sn_block_coverage_rate(const sn_block_coverage *coverage, uint64_t tokens_per_s);
/* Adds a proven node. */
void sn_block_coverage_add(sn_block_coverage *coverage, int first, int end, uint64_t tokens_per_s, bool serving);

typedef struct sn_coverage_query {
    const sn_directory *directory;
    const uint8_t *model, *self; /* self: this node, which is left out; its throughput is known. NULL: none */
    int n_blocks;
    int64_t unix_ms;        /* by which nodes are proven */
    uint64_t joining_below; /* of JOINING nodes only those whose tag (sn_node_tag) is below it */
    uint64_t claims_max;    /* at each block, of JOINING nodes that are not proven */
    const uint8_t (*tried)[SN_KEY_SIZE];
    size_t n_tried;
} sn_coverage_query;

/* Coverage by the nodes of the directory that serve the model, ONLINE or JOINING. */
sn_status sn_block_coverage_read(sn_block_coverage *coverage, const sn_coverage_query *query, sn_err *err) SN_MUST_USE;

/* Draws the nodes to be asked for an answer before a decision: those that are not proven, or of many up to
 * SN_COVERAGE_TRIED_OF_BLOCK for each block; with `joining` also of those that load. Returns how many there are. */
size_t sn_coverage_draw(const sn_coverage_query *query, bool joining, uint64_t *seed,
                        const sn_announcement *drawn[SN_COVERAGE_TRIED_MAX]);

#endif
