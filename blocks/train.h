/* Training through a span whose weights are frozen: forward and backward passes of whole sequences, with an adapter.
 *
 * Central type: sn_train, the memory for one sequence on each of the span's devices. A sequence is computed alone and
 * from position 0, so that (on CPUs) its bits do not depend on how a batch is split. Between the two passes nothing is
 * kept, unless the caller asks for sn_saved_activations. A pass can be computed in pieces. Used by the thread that owns
 * the span's devices. The caller owns sn_train and the saved activations, and frees both before the span. SN_REFUSED
 * for shapes that do not fit, SN_STOP when memory or a device fails. */
#ifndef SN_BLOCKS_TRAIN_H
#define SN_BLOCKS_TRAIN_H

#include "blocks/adapter.h"

typedef struct sn_train sn_train;

/* SN_REFUSED: nothing is trained through blocks [first, end) of such a model; the sentence names the family and says
 * why. Pure. */
sn_status sn_train_check_model(const sn_hparams *hparams, int first, int end, sn_err *err) SN_MUST_USE;

/* Allocates for sequences of up to `tokens_max` tokens: activations, gradients and KV pages of one block on each of the
 * span's devices, and on the host the hidden states that enter each block (Chen et al. 2016: activations that are not
 * saved are recomputed from them). */
sn_status sn_train_new(sn_span *span, int tokens_max, sn_train **out, sn_err *err) SN_MUST_USE;
void sn_train_free(sn_train **train);                       /* accepts NULL */
size_t sn_train_bytes(const sn_span *span, int tokens_max); /* what sn_train_new allocates, on devices and host */
/* Whether each device has memory left within its limit (device.h: memory_max) for such an sn_train, and for passes of
 * it with this adapter (NULL: none). SN_RETRY: not now; the sentence names the device. */
sn_status sn_train_check_memory(const sn_span *span, int tokens_max, const sn_adapter *adapter,
                                sn_err *err) SN_MUST_USE;

/* The saved activations of one sequence: the inputs of each block, on the host, so that the backward pass needs no
 * second forward pass; and, where memory allows, the inner (intermediate) activations of the blocks, on their devices,
 * so that no matrix product is computed twice. The bits are the same in every case. They belong to the blocks, the
 * adapter and the sequence that they were made with. */
typedef struct sn_saved_activations sn_saved_activations;
size_t sn_saved_activations_estimate(const sn_span *span, int first, int end, int tokens, bool inner); /* bytes */
size_t sn_saved_activations_bytes(const sn_saved_activations *saved);
bool sn_saved_activations_has_inner(const sn_saved_activations *saved);
void sn_saved_activations_drop_inner(
    sn_saved_activations *saved);                             /* frees the inner ones, for other users of the device */
void sn_saved_activations_free(sn_saved_activations **saved); /* accepts NULL */

/* One sequence and the blocks that it goes through. */
typedef struct sn_train_sequence {
    int first, end;            /* blocks [first, end) of the span */
    const sn_adapter *adapter; /* of the span; NULL: none */
    const sn_tensor *x; /* (n, n_embd): hidden states that enter block `first`, from any device, through the guard */
} sn_train_sequence;

/* A pass is computed in pieces, so that the devices can compute for others in between: start one, then call
 * sn_train_run until *done, which is set at a failure, too. One pass at a time. All memory that is named here must stay
 * until then, the tensor's data but not its struct; *saved is set at the end. The results do not depend on the budgets.
 *
 * Forward: out: host, (n, n_embd), the hidden states after the last block. saved (NULL: save nothing): gets as much as
 * fits into saved_bytes_max bytes and into memory; *saved is NULL when that is nothing, and after a failure. */
sn_status sn_train_start_forward(sn_train *train, const sn_train_sequence *sequence, float *out, size_t saved_bytes_max,
                                 sn_saved_activations **saved, sn_err *err) SN_MUST_USE;
/* Backward, of the same sequence. saved: of its forward pass; NULL: the forward pass is repeated. dout (n, n_embd): the
 * gradient of the output. dx: host, (n, n_embd): gets the gradient of x. grads: host, sn_adapter_n_params(adapter,
 * first, end) floats: gets the gradients of the adapter. */
sn_status sn_train_start_backward(sn_train *train, const sn_train_sequence *sequence, const sn_saved_activations *saved,
                                  const sn_tensor *dout, float *dx, float *grads, sn_err *err) SN_MUST_USE;

/* Ends the pass in progress, if there is one, without a result. */
void sn_train_cancel(sn_train *train);

size_t sn_train_saving(const sn_train *train); /* bytes that the pass in progress allocated for *saved */

/* The estimated cost of one row's forward pass through one block: the unit of budgets. */
enum { SN_TRAIN_ROW_COST = 64 };
/* Computes as much as `budget` allows, and at least 8 rows of one stage of one block. *spent (NULL allowed): what it
 * cost. */
sn_status sn_train_run(sn_train *train, size_t budget, size_t *spent, bool *done, sn_err *err) SN_MUST_USE;

#endif
