/* A span: consecutive transformer blocks of one model, loaded on one device or several. Immutable once loaded, shared
 * by all sessions; used by one thread, which owns its devices. */
#ifndef SN_BLOCKS_SPAN_H
#define SN_BLOCKS_SPAN_H

#include "blocks/plan.h"
#include "blocks/store.h"
#include "device/guard.h"
#include "kvcache/kvcache.h"
#include "model/model.h"

typedef struct sn_span sn_span;

enum { SN_SPAN_ROWS_MAX = 512 }; /* rows of one pass: longer inputs are passed in chunks */

/* Told after each block: blocks done of all. May be NULL. */
typedef void (*sn_progress)(void *ctx, int done, int of);

/* Loads blocks [first, end) of the model, all on one device. Reads those blocks' tensors only; the model may be closed
 * afterwards. */
sn_status sn_span_load(const sn_model *model, sn_device *device, int first, int end, sn_progress progress, void *ctx,
                       sn_span **out, sn_err *err) SN_MUST_USE;
/* The same by a plan. devices[i] is plan->devices[i], open; `store` for blocks on disk (else NULL). All outlive the
 * span. */
sn_status sn_span_load_plan(const sn_model *model, const sn_plan *plan, sn_device *const *devices, sn_store *store,
                            sn_progress progress, void *ctx, sn_span **out, sn_err *err) SN_MUST_USE;
void sn_span_free(sn_span **span); /* NULL-safe */

/* What the blocks cost on a device, for a plan: weights in its layout, and an equal share of the cache's budget each.
 * costs: (end - first). *scratch: bytes of activations on a device, and of what the device itself needs. */
sn_status sn_span_costs(const sn_model *model, const sn_device *device, int first, int end, size_t kv_budget,
                        sn_block_cost *costs, size_t *scratch, sn_err *err) SN_MUST_USE;

int sn_span_first(const sn_span *span);
int sn_span_end(const sn_span *span);
const sn_hparams *sn_span_hparams(const sn_span *span);
const sn_hash *sn_span_block_hash(const sn_span *span, int block); /* block: its number in the model */
size_t sn_span_bytes(const sn_span *span);                         /* of the devices' memory: weights and scratch */

/* What others need to know of a span: for protocol logic, which then runs without weights too. */
typedef struct sn_span_facts {
    int first, end;
    const sn_hparams *hp;      /* of the whole model */
    const sn_hash *block_hash; /* (end - first) */
    size_t bytes;
    bool exact;                 /* every block is on a CPU: results have the promised bits */
} sn_span_facts;
sn_span_facts sn_span_describe(const sn_span *span); /* valid as long as the span */

/* What computes a block, by name: its weights, and what keys and values are kept as, since both decide its results. For
 * float32 it is the hash of the weights. */
sn_hash sn_span_hash_of(const sn_hash *weights, sn_kv_dtype dtype);
/* From now on pools of the span keep that, and its blocks' hashes say so. Before anybody else looks; once. */
void sn_span_keep_as(sn_span *span, sn_kv_dtype dtype);

/* A pool of past keys and values for this span, each block's on the block's device. */
sn_status sn_span_kv_pool(sn_span *span, size_t budget, sn_kv_pool **out, sn_err *err) SN_MUST_USE;
/* Keys and values of a block (its number in the model), host, (n, n_kv_heads, head_dim) each. */
sn_status sn_span_kv_export(const sn_span *span, sn_kv *kv, int block, int position, int n, float *k, float *v,
                            sn_err *err) SN_MUST_USE;

/* Puts keys and values from outside, (n, n_kv_heads, head_dim) each, of any type and device, through the guard to the n
 * positions behind the past's end (reserved before) of a block. When all blocks have theirs, sn_kv_append makes them
 * past. */
sn_status sn_span_kv_import(const sn_span *span, sn_kv *kv, int block, int n, const sn_tensor *k, const sn_tensor *v,
                            sn_err *err) SN_MUST_USE;

/* One session's part of a pass. */
typedef struct sn_span_part {
    sn_kv *kv;                      /* its past; the part's rows are appended to it. Reserved before (sn_kv_reserve) */
    const sn_tensor *input;         /* hidden states (rows, n_embd) from outside, through the guard */
    int first_row, n_rows;          /* which rows of input to take now */
    float *output;                  /* host, (n_rows, n_embd): hidden states as they leave the last block */
} sn_span_part;

/* Runs the parts' rows, SN_SPAN_ROWS_MAX in all at most, through blocks [first, end) of the span in one pass over their
 * weights. On failure no past has grown. *moved (NULL allowed) grows by the hidden states' bytes that crossed the
 * border of a device, in, on the way and out. SN_STOP: a device on the way failed, it is named. */
sn_status sn_span_forward(sn_span *span, int first, int end, int n_parts, const sn_span_part *parts, uint64_t *moved,
                          sn_err *err) SN_MUST_USE;

/* The same with what a client has trained (blocks/tuning.h, loaded for this span) added to the frozen weights; NULL: nothing. */
struct sn_tuning;
sn_status sn_span_forward_tuned(sn_span *span, int first, int end, const struct sn_tuning *tuning, int n_parts,
                                const sn_span_part *parts, uint64_t *moved, sn_err *err) SN_MUST_USE;

/* What *moved grows by when the parts come from the host, as a plan supposes: that there, from device to device, and
 * back. */
uint64_t sn_span_planned_bytes(const sn_span *span, int first, int end, int n_parts, const sn_span_part *parts);

#endif
