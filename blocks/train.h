/* Training through a span whose weights are frozen: sequences go forwards and backwards, nothing is kept in between but
 * what the caller asks for. A sequence goes alone and whole, from position 0, so that its bits depend on nothing else (on the CPU), however a batch
 * is split. Used by the thread that owns the span's devices. */
#ifndef SN_BLOCKS_TRAIN_H
#define SN_BLOCKS_TRAIN_H

#include "blocks/tuning.h"

typedef struct sn_train sn_train;

/* Takes memory for sequences of up to `tokens_max` tokens on each of the span's devices, and for the hidden states that
 * enter each block (chen et al. 2016: all else is computed again) on the host. */
sn_status sn_train_new(sn_span *span, int tokens_max, sn_train **out, sn_err *err) SN_MUST_USE;
void sn_train_free(sn_train **train);                       /* NULL-safe; before the span */
size_t sn_train_bytes(const sn_span *span, int tokens_max); /* what sn_train_new takes, on devices and host */

/* What entered each block when a sequence went forwards: with it the way back need not go forwards once more. The same
 * bits either way. Host memory; belongs to the span, blocks, tuning and sequence that it was made with. */
typedef struct sn_kept sn_kept;
size_t sn_kept_bytes(const sn_span *span, int first, int end, int tokens);
void sn_kept_free(sn_kept **kept); /* NULL-safe */

/* One sequence x (n, n_embd), from anywhere, through the guard, through blocks [first, end) of the span and a tuning of
 * it (or NULL). out: host, (n, n_embd). kept: for the way back, NULL after a failure or without memory; NULL: nothing is
 * kept. */
sn_status sn_train_forward(sn_train *train, int first, int end, const sn_tuning *tuning, const sn_tensor *x, float *out,
                           sn_kept **kept, sn_err *err) SN_MUST_USE;

/* The same sequence backwards: dout (n, n_embd) is the gradient of what left the last block. dx: host, (n, n_embd), of
 * what entered the first. grads: host, sn_tuning_floats(tuning, first, end) of them, of what is trained; overwritten.
 * kept: of the way forwards, NULL: it is gone again. */
sn_status sn_train_backward(sn_train *train, int first, int end, const sn_tuning *tuning, const sn_tensor *x,
                            const sn_kept *kept, const sn_tensor *dout, float *dx, float *grads,
                            sn_err *err) SN_MUST_USE;

#endif
