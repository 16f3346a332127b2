/* Spans that hold some of the experts of their blocks, and what such a span asks of others in the middle of a forward
 * pass. Only types: the span calls (blocks/moe.c), the owner of a span implements (sn_span_set_expert_exchange).
 *
 * A forward pass routes its rows, begins the exchange for the pairs (a row and one of its experts) that the span does
 * not hold, computes its own pairs, finishes the exchange and combines all outputs in the order of a row's choices: the
 * bits are those of a span that holds all experts. Thread: the devices'. Ownership: none passes. */
#ifndef SN_BLOCKS_EXPERT_EXCHANGE_H
#define SN_BLOCKS_EXPERT_EXCHANGE_H

#include "base/err.h"

#include <stdint.h>

/* Experts [first, end) of every mixture of a span; {0, 0}: all that there are. */
typedef struct sn_expert_range {
    int first, end;
} sn_expert_range;

/* Pairs to compute in one block. */
typedef struct sn_expert_request {
    int block; /* its number in the model */
    int n, n_embd, k;
    const float *rows;  /* host, (n, n_embd): what enters the mixture, after the norm */
    const int32_t *ids; /* host, (n, k): experts, each at most once in a row; -1: nothing is asked for */
} sn_expert_request;

/* What computes the pairs that a span does not hold. At most one exchange is in progress for a span. */
typedef struct sn_expert_exchange {
    void *self;
    /* Asks for the pairs; n is the number of rows of the batch, with rows of which nothing is asked for. rows and ids
     * stay as they are until finish. */
    sn_status (*begin)(void *self, const sn_expert_request *request, sn_err *err);
    /* Ends what begin began: writes the expert's output (n_embd floats, unweighted) of each pair that was asked for to
     * its place in expert_out, host, (n, k, n_embd), and leaves the others as they are. Meanwhile it may call
     * sn_span_run_experts of the same span, so that spans that wait for each other never wait for ever. NULL: the pass
     * has failed, and the outputs are not wanted. Both functions' failures end the forward pass with their status. */
    sn_status (*finish)(void *self, float *expert_out, sn_err *err);
} sn_expert_exchange;

#endif
