/* The loss at the last block: hidden states to cross-entropy, and back. */
#ifndef SN_CLIENT_TUNE_LOSS_H
#define SN_CLIENT_TUNE_LOSS_H

#include "base/pool.h"
#include "client/head.h"
#include "client/tune/dataset.h"
#include "client/tune/params.h"

typedef struct sn_loss {
    sn_head *head;
    const sn_hparams *hp;
    const sn_params *params;
    double weight;                /* of one learned token, or one label: 1 / how many the step has */
    float *score_grads;           /* (labels, n_embd): grows by those of a classifier; NULL: none are wanted */
    float *rows, *logits, *grads; /* these, and p: scratch of one call */
    double *p;                    /* (threads, vocabulary) */
    sn_pool *pool;                /* rows are shared out; each is one thread's, so the threads do not show */
} sn_loss;

/* threads: as for a device's options. */
sn_status sn_loss_open(sn_loss *loss, sn_head *head, const sn_hparams *hp, const sn_params *params, int threads,
                       sn_err *err) SN_MUST_USE;
void sn_loss_close(sn_loss *loss); /* harmless when zeroed */

/* One example: hidden (prompt + tokens, n_embd) behind the last block. *sum: of its losses, not weighted. dhidden:
 * gradient of weight * *sum, zeroed before; NULL: not wanted. *right: a classifier's best label is the example's. */
sn_status sn_loss_of(sn_loss *loss, const sn_example *example, const float *hidden, float *dhidden, double *sum,
                     bool *right, sn_err *err) SN_MUST_USE;

#endif
