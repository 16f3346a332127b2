/* A span: consecutive transformer blocks of one model, loaded on a device. Immutable once loaded, shared by all sessions;
 * used by its device's thread only. */
#ifndef SN_BLOCKS_SPAN_H
#define SN_BLOCKS_SPAN_H

#include "kvcache/kvcache.h"
#include "device/guard.h"
#include "model/model.h"

typedef struct sn_span sn_span;

enum { SN_SPAN_ROWS_MAX = 512 }; /* rows of one pass: longer inputs are passed in chunks */

/* Told after each block: blocks done of all. May be NULL. */
typedef void (*sn_progress)(void *ctx, int done, int of);

/* Loads blocks [first, end) of the model. Reads those blocks' tensors only; the model may be closed afterwards. */
sn_status sn_span_load(const sn_model *model, sn_device *device, int first, int end, sn_progress progress, void *ctx,
                       sn_span **out, sn_err *err) SN_MUST_USE;
void sn_span_free(sn_span **span); /* NULL-safe */

int sn_span_first(const sn_span *span);
int sn_span_end(const sn_span *span);
const sn_hparams *sn_span_hparams(const sn_span *span);
const sn_hash *sn_span_block_hash(const sn_span *span, int block); /* block: its number in the model */
size_t sn_span_bytes(const sn_span *span);                         /* of the device's memory: weights and scratch */

/* A pool of past keys and values for this span. */
sn_status sn_span_kv_pool(sn_span *span, size_t budget, sn_kv_pool **out, sn_err *err) SN_MUST_USE;

/* One session's part of a pass. */
typedef struct sn_span_part {
    sn_kv *kv;              /* its past; the part's rows are appended to it. Reserved before (sn_kv_reserve) */
    const sn_tensor *input; /* hidden states (rows, n_embd) from outside, through the guard */
    int first_row, n_rows;  /* which rows of input to take now */
    float *output;          /* host, (n_rows, n_embd): hidden states as they leave the last block */
} sn_span_part;

/* Runs the parts' rows, SN_SPAN_ROWS_MAX in all at most, through blocks [first, end) of the span in one pass over their
 * weights. On failure no past has grown. *moved as in sn_guard. */
sn_status sn_span_forward(sn_span *span, int first, int end, int n_parts, const sn_span_part *parts, uint64_t *moved,
                          sn_err *err) SN_MUST_USE;

#endif
