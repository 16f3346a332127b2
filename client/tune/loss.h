/* The loss after the last block: cross-entropy of the output hidden states and its gradient. For a classifier it is the
 * cross-entropy of the label, and the gradient is that of the classifier's tensor.
 *
 * sn_loss borrows the LM head, the model's parameters and the trained parameters and owns its scratch buffers and its
 * threads. The tuner calls it on its own thread. */
#ifndef SN_CLIENT_TUNE_LOSS_H
#define SN_CLIENT_TUNE_LOSS_H

#include "base/pool.h"
#include "client/generate/lm_head.h"
#include "client/tune/dataset.h"
#include "client/tune/params.h"

typedef struct sn_loss {
    sn_lm_head *head;
    const sn_hparams *hp;
    const sn_params *params;
    double weight;                /* of one token's or label's loss: 1 / number of such tokens or labels in the step */
    float *score_grads;           /* (n_labels, n_embd): a classifier's gradients are added to it; NULL: not wanted */
    float *rows, *logits, *grads; /* scratch of one call */
    double *p;                    /* (n_threads, n_vocab): scratch of one call */
    sn_pool *pool;                /* one thread computes a whole row, so the bits do not depend on the thread count */
} sn_loss;

/* threads: computing threads, 0 meaning one per core (base/pool.h). */
sn_status sn_loss_open(sn_loss *loss, sn_lm_head *head, const sn_hparams *hp, const sn_params *params, int threads,
                       sn_err *err) SN_MUST_USE;
void sn_loss_close(sn_loss *loss); /* accepts a zeroed struct */

/* Computes the loss of one example. hidden: output of the last block, (n_prompt + n_tokens, n_embd). *sum: the sum of
 * the example's losses, without the weight. dhidden: output, the gradient of weight * *sum with respect to hidden, in
 * the same shape; NULL: not wanted. A classifier does not write gradients to dhidden (they are zero). *correct: whether
 * a classifier's best label is the example's label. */
sn_status sn_loss_compute(sn_loss *loss, const sn_example *example, const float *hidden, float *dhidden, double *sum,
                          bool *correct, sn_err *err) SN_MUST_USE;

#endif
