/* The backbone: the frozen blocks that a client trains through, all of the model or a range, either in this process
 * (sn_backbone_local) or at the nodes of a swarm (sn_backbone_swarm). Each micro-batch makes a forward pass to the last
 * block, the caller computes the loss and its gradient there (sn_loss_callback), and a backward pass returns the
 * gradients; over nodes, several micro-batches are in flight concurrently. The results have the same bits for every
 * route, for every division of the blocks over nodes, and for every grouping of sequences into micro-batches.
 *
 * The tuner calls a backbone, and one thread uses it. Errors: SN_RETRY when too many nodes failed or no route exists;
 * SN_STOP when memory is exhausted; errors of the blocks are passed on. */
#ifndef SN_CLIENT_TUNE_BACKBONE_H
#define SN_CLIENT_TUNE_BACKBONE_H

#include "base/cancel.h"
#include "client/net/link.h"
#include "client/routing/candidates.h"
#include "client/tune/params.h"
#include "device/device.h"
#include "model/base_weights.h"

/* Sequences whose rows are concatenated. The caller owns all memory. */
typedef struct sn_micro_batch {
    int n_sequences, rows; /* rows: the sum of lengths */
    const int *lengths;    /* (n_sequences): rows of each sequence */
    const float *x;        /* (rows, n_embd): input of the first block */
    float *dx;             /* (rows, n_embd): output, the gradient of x; NULL: no run has a backward pass */
    float *grads; /* (n_sequences, n_floats): output, each sequence's gradients of the blocks' parameters in the range
                     that sn_params_block_range gives; NULL: not wanted */
} sn_micro_batch;

/* Computes the loss of one micro-batch (its index). out: the output of the last block, (rows, n_embd). dout: the
 * callback writes the gradient of out into it, (rows, n_embd); NULL when there is no backward pass. */
typedef sn_status (*sn_loss_callback)(void *ctx, size_t micro_batch, const float *out, float *dout, sn_err *err);

typedef struct sn_backbone sn_backbone;
typedef struct sn_backbone_ops {
    /* Sets the parameters of later runs, without network I/O. `params` is borrowed until the next call. */
    sn_status (*set)(sn_backbone *backbone, const sn_params *params, sn_err *err);
    /* Runs the forward pass of all micro-batches and, if `back`, the backward pass. Blocks until all are done or an
     * error occurs. The order of the loss callbacks is undefined; after a failure some micro-batches are not done. */
    sn_status (*run)(sn_backbone *backbone, size_t n, const sn_micro_batch *micro_batches, bool back,
                     sn_loss_callback loss_callback, void *ctx, sn_err *err);
    void (*free)(sn_backbone *backbone);
} sn_backbone_ops;
struct sn_backbone {
    const sn_backbone_ops *ops; /* each implementation has this struct as its first member */
    const sn_hash *weights; /* (end - first): the hash of each block's weights (sn_model_block_hash), which no later run
                               changes */
};

/* Blocks [first, end) of a backbone. end 0: all. */
typedef struct sn_backbone_blocks {
    int first, end;
} sn_backbone_blocks;

typedef struct sn_backbone_local_options {
    sn_device *device; /* must outlive the backbone */
    sn_backbone_blocks blocks;
    const sn_cancel *cancel; /* a run ends with SN_RETRY soon after it is set; NULL: nothing does */
} sn_backbone_local_options;
/* A backbone in this process. The model may be closed afterwards. */
sn_status sn_backbone_local(const sn_model *model, const sn_backbone_local_options *options, sn_backbone **out,
                            sn_err *err) SN_MUST_USE;

typedef struct sn_backbone_swarm_options {
    sn_link *link;              /* must outlive the backbone */
    sn_node_filter node_filter; /* nodes that a route may use */
    int timeout_ms;             /* for one micro-batch at one node */
    int max_retries;            /* failures of nodes in a row that a run tolerates */
    sn_backbone_blocks blocks;
    const sn_cancel *cancel;     /* as of sn_backbone_local_options; it ends opening, too */
    const sn_base_weights *base; /* of the training that is resumed; NULL, or without blocks: none is. Borrowed while
                                    opening */
} sn_backbone_swarm_options;
/* A backbone over nodes. Waits for a few seconds until a route over its blocks exists. It uses only nodes with the
 * weights of the model's file; where the file lacks a block, with those that its manifest says or `base` has, else with
 * those of the first route whose nodes have all answered. */
sn_status sn_backbone_swarm(const sn_model *model, const sn_backbone_swarm_options *options, sn_backbone **out,
                            sn_err *err) SN_MUST_USE;

/* Accepts a pointer to NULL. */
static inline void sn_backbone_free(sn_backbone **backbone) {
    if (*backbone) (*backbone)->ops->free(*backbone);
    *backbone = NULL;
}

#endif
