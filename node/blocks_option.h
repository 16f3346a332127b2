/* The value of swarm-node's option --blocks. */
#ifndef SN_NODE_BLOCKS_OPTION_H
#define SN_NODE_BLOCKS_OPTION_H

#include "base/err.h"

#include <stdbool.h>

/* [first, end); from `first` on as many as fit (end == first); n_auto: as many blocks as this, and the node selects
 * which. */
typedef struct sn_blocks_option {
    int first, end, n_auto;
} sn_blocks_option;

/* "10:20", "all", "auto:4", "auto", "10:auto" of a model with n_blocks. are_named: other options name blocks, too, so
 * that the node cannot select them. SN_REFUSED: it is none of these, or beyond the model. */
sn_status sn_blocks_option_parse(const char *text, int n_blocks, bool are_named, sn_blocks_option *out,
                                 sn_err *err) SN_MUST_USE;

#endif
