/* The blocks that training goes through, wherever they are: here, or at the nodes of a swarm. Micro-batches go forwards
 * to the last block, are turned there by the caller (loss and its gradient), and come back; over nodes many are on the
 * way at once. What comes back is the same bits whatever the way, the cut, and how sequences are put into
 * micro-batches. */
#ifndef SN_CLIENT_TUNE_TRUNK_H
#define SN_CLIENT_TUNE_TRUNK_H

#include "client/link.h"
#include "client/offer.h"
#include "client/tune/params.h"
#include "device/device.h"

/* Some sequences, one behind the other. All memory is the caller's. */
typedef struct sn_micro {
    int n_sequences, rows;
    const int *lengths;
    const float *x; /* (rows, n_embd): enters block 0 */
    float *dx;      /* (rows, n_embd): comes back */
    float
        *grads; /* (n_sequences, floats): gradients of what is trained of the blocks, as sn_params_of_blocks; or NULL */
} sn_micro;

/* out (rows, n_embd) has left the last block. dout: its gradient, to be written; NULL when nothing goes back. */
typedef sn_status (*sn_turn)(void *ctx, size_t micro, const float *out, float *dout, sn_err *err);

typedef struct sn_trunk sn_trunk;
typedef struct sn_trunk_ops {
    /* What is trained has these values from now on. `params` is borrowed until the next call. */
    sn_status (*set)(sn_trunk *trunk, const sn_params *params, sn_err *err);
    /* All micro-batches there and, if `back`, back. Any order of turns; on failure some are not done. */
    sn_status (*run)(sn_trunk *trunk, size_t n, const sn_micro *micros, bool back, sn_turn turn, void *ctx,
                     sn_err *err);
    void (*free)(sn_trunk *trunk);
} sn_trunk_ops;
struct sn_trunk {
    const sn_trunk_ops *ops; /* first member of both */
};

/* All blocks here. The model may be closed afterwards; the device outlives the trunk. */
sn_status sn_trunk_local(const sn_model *model, sn_device *device, int tokens_max, sn_trunk **out,
                         sn_err *err) SN_MUST_USE;

typedef struct sn_trunk_swarm_options {
    sn_link *link; /* outlives the trunk */
    sn_pick pick;
    int timeout_ms;  /* for one micro-batch at one node */
    int max_retries; /* nodes that fail in a row before giving up */
} sn_trunk_swarm_options;
sn_status sn_trunk_swarm(const sn_model *model, const sn_trunk_swarm_options *options, sn_trunk **out,
                         sn_err *err) SN_MUST_USE;

static inline void sn_trunk_free(sn_trunk **trunk) {
    if (*trunk) (*trunk)->ops->free(*trunk);
    *trunk = NULL;
}

#endif
