/* Training through a span whose weights are frozen: sequences go forwards and backwards, nothing is kept in between but
 * what the caller asks for. A sequence goes alone and whole, from position 0, so that its bits depend on nothing else (on the CPU), however a batch
 * is split. Used by the thread that owns the span's devices. */
#ifndef SN_BLOCKS_TRAIN_H
#define SN_BLOCKS_TRAIN_H

#include "blocks/tuning.h"

typedef struct sn_train sn_train;

/* Takes memory for sequences of up to `tokens_max` tokens on each of the span's devices, and for the hidden states that
 * enter each block (Chen et al. 2016: what is not kept is computed again) on the host. */
sn_status sn_train_new(sn_span *span, int tokens_max, sn_train **out, sn_err *err) SN_MUST_USE;
void sn_train_free(sn_train **train);                       /* NULL-safe; before the span */
size_t sn_train_bytes(const sn_span *span, int tokens_max); /* what sn_train_new takes, on devices and host */

/* What of a sequence's way forwards is kept for its way back: what entered each block, on the host, so that the way need
 * not be gone once more; and, where there is room, what the blocks' insides came to, on their devices, so that nothing of
 * the matrices' work is done twice. The same bits in every case. It belongs to the blocks, tuning and sequence that it
 * was made with; before the span. */
typedef struct sn_kept sn_kept;
size_t sn_kept_bytes(const sn_span *span, int first, int end, int tokens, bool insides); /* what it would take */
size_t sn_kept_taken(const sn_kept *kept);  /* bytes */
bool sn_kept_insides(const sn_kept *kept);  /* are the insides kept? */
void sn_kept_forget_insides(sn_kept *kept); /* for others' sake */
void sn_kept_free(sn_kept **kept);          /* NULL-safe */

/* One sequence x (n, n_embd), from anywhere, through the guard, through blocks [first, end) of the span and a tuning of
 * it (or NULL). out: host, (n, n_embd). kept: for the way back, as much as goes into kept_max bytes and there is memory
 * for; NULL when that is nothing, and after a failure. NULL itself: nothing is kept. */
sn_status sn_train_forward(sn_train *train, int first, int end, const sn_tuning *tuning, const sn_tensor *x, float *out,
                           size_t kept_max, sn_kept **kept, sn_err *err) SN_MUST_USE;

/* The same sequence backwards: dout (n, n_embd) is the gradient of what left the last block. dx: host, (n, n_embd), of
 * what entered the first. grads: host, sn_tuning_floats(tuning, first, end) of them, of what is trained; overwritten.
 * kept: of the way forwards, NULL: it is gone again. */
sn_status sn_train_backward(sn_train *train, int first, int end, const sn_tuning *tuning, const sn_tensor *x,
                            const sn_kept *kept, const sn_tensor *dout, float *dx, float *grads,
                            sn_err *err) SN_MUST_USE;

#endif
