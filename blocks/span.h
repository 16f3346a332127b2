/* A span: consecutive transformer blocks of one model, loaded on one device or several.
 *
 * sn_span is the loaded half of an engine: immutable weights with the scratch memory of one batch, shared by all
 * sessions. The mutable half is each session's sn_kv_cache (kvcache.h). sn_span_forward takes the rows of several
 * sessions in one batch, reads their KV caches, and leaves hidden states; embedding and LM head belong to the client.
 *
 * Thread: the one that owns the span's devices calls every function that takes a sn_span without const; the others only
 * read what does not change. Ownership: devices and the offload store are the caller's and outlive the span; the model
 * may be closed after loading. Errors: SN_REFUSED (blocks, shapes or placements that cannot be right), SN_STOP (a
 * device or memory failed; the sentence names the device). Hidden states are float32 (rows, n_embd), row-major; keys
 * and values as in kv_store (device/device.h). On CPUs each row's output has the same bits, whatever else is in the
 * batch. */
#ifndef SN_BLOCKS_SPAN_H
#define SN_BLOCKS_SPAN_H

#include "blocks/offload_store.h"
#include "blocks/plan.h"
#include "device/guard.h"
#include "kvcache/kvcache.h"
#include "model/model.h"

typedef struct sn_span sn_span;

/* Rows of one batch: what every span takes, and what a span takes at most (sn_span_rows_max). The caller cuts longer
 * inputs into chunks. */
enum {
    SN_SPAN_ROWS = 512,
    SN_SPAN_ROWS_MAX = 2048,
    SN_SPAN_STEP_BYTES = 16 << 20, /* of the hidden states of a batch of more than SN_SPAN_ROWS rows */
};

/* ---- loading ---- */

/* Called while blocks are loaded, with the number of blocks done so far; may be NULL. */
typedef void (*sn_progress)(void *ctx, int done, int of);

/* Loads blocks [first, end) of the model, all on one device. Reads only the tensors of these blocks. */
sn_status sn_span_load(const sn_model *model, sn_device *device, int first, int end, sn_progress progress, void *ctx,
                       sn_span **out, sn_err *err) SN_MUST_USE;
/* Loads the blocks of a plan. devices[i] is plan->devices[i], opened; `store`: for blocks on disk, else NULL. */
sn_status sn_span_load_plan(const sn_model *model, const sn_plan *plan, sn_device *const *devices,
                            sn_offload_store *store, sn_progress progress, void *ctx, sn_span **out,
                            sn_err *err) SN_MUST_USE;
void sn_span_free(sn_span **span); /* accepts NULL; KV pools and adapters of the span must be freed before */

/* What a span holds of a model. */
typedef struct sn_span_part {
    int first, end;          /* blocks */
    sn_expert_range experts; /* of each mixture among them */
} sn_span_part;

/* The costs of a part's blocks on a device, as input for a plan: bytes of weights in the device's layout, and an
 * equal share of the KV budget each. costs: [end - first]. *scratch: bytes that a device needs once: for activations,
 * and for itself (prepare_bytes of device.h). */
sn_status sn_span_costs(const sn_model *model, const sn_device *device, const sn_span_part *part, size_t kv_budget,
                        sn_block_cost *costs, size_t *scratch, sn_err *err) SN_MUST_USE;

/* ---- properties ---- */

int sn_span_first(const sn_span *span);
int sn_span_end(const sn_span *span);
const sn_hparams *sn_span_hparams(const sn_span *span);
/* Of the block's weights (sn_model_block_hash); block: its number in the model. */
const sn_hash *sn_span_block_hash(const sn_span *span, int block);
bool sn_span_has_weights(const sn_span *span, int block, const sn_hash *weights);
size_t sn_span_bytes(const sn_span *span);        /* of the devices' memory: weights and scratch */
size_t sn_span_weight_bytes(const sn_span *span); /* of these, the weights */
/* Rows of its largest batch: as many as gain on all of its devices (batch_rows of device.h), as far as hidden states of
 * SN_SPAN_STEP_BYTES go, so that a step stays a message of that size, and as far as devices take the pairs of a mixture
 * (sn_device_takes_pairs); SN_SPAN_ROWS at least. A span with some of the
 * experts takes SN_SPAN_ROWS, because other nodes compute no more rows of theirs at once. */
int sn_span_rows_max(const sn_span *span);

/* Bytes that may still be allocated of the device that has least left (device.h: memory_max). Device thread. */
size_t sn_span_memory_left(const sn_span *span);

/* How experts that rest elsewhere were found, since the span was loaded. Device thread. */
typedef struct sn_expert_counts {
    uint64_t hits;          /* chosen by a forward pass of a block and there already */
    uint64_t ahead, misses; /* there or on the way because they were foreseen; not there */
    uint64_t bytes;         /* brought */
} sn_expert_counts;
sn_expert_counts sn_span_expert_counts(const sn_span *span);

/* The longest range of blocks whose devices work (device.h: `lost`), of equal ones the first; *first == *end: none.
 * Device thread. */
void sn_span_working(const sn_span *span, int *first, int *end);
/* Bit i: devices[i] of sn_span_load_plan is lost. Device thread. */
uint32_t sn_span_lost_devices(const sn_span *span);

/* A description of a span without its weights, for protocol logic and its tests. */
enum { SN_SPAN_DEVICE_NAMES = 32 };

typedef struct sn_span_info {
    int first, end;
    const sn_hparams *hp;               /* of the whole model */
    const sn_hash *block_hash;          /* [end - first]: of each block's weights (sn_model_block_hash) */
    size_t bytes;                       /* sn_span_bytes */
    sn_expert_range experts;            /* sn_span_experts */
    bool exact;                         /* every block is on a CPU: outputs have the promised bits */
    sn_kv_dtype kv_dtype;               /* in which its KV pools keep keys and values */
    int rows_max;                       /* sn_span_rows_max */
    char devices[SN_SPAN_DEVICE_NAMES]; /* of its blocks, as "cuda:0,cpu"; "..." stands for those that are too
                                         * many */
} sn_span_info;
sn_span_info sn_span_describe(const sn_span *span); /* valid as long as the span */

/* The hash that identifies what a block computes: its weights and the type of its keys and values, because both decide
 * the results. For float32 it is the hash of the weights. */
sn_hash sn_block_hash_with_kv_dtype(const sn_hash *weights, sn_kv_dtype dtype);
sn_hash sn_span_info_hash_with_kv(const sn_span_info *span, int block);
/* From now on KV pools of the span store this type (float32 at first). Call at most once, before any other use of the
 * span. */
void sn_span_set_kv_dtype(sn_span *span, sn_kv_dtype dtype);

/* ---- some of the experts (plan->experts) ---- */

/* The experts of each mixture that the span holds; {0, 0}: it has no mixtures. */
sn_expert_range sn_span_experts(const sn_span *span);
/* From now on forward passes ask this for the experts that the span does not hold; NULL (as at first): none is
 * asked, and passes that need one fail (SN_RETRY). exchange: the caller's, until another one is set. Device thread. */
void sn_span_set_expert_exchange(sn_span *span, const sn_expert_exchange *exchange);
/* Computes the pairs of a request that another span sent: out, host, (pairs, n_embd), the outputs of those with an id
 * from 0 on, in their order. SN_REFUSED: shapes, a block or an id that the span does not hold. Device thread; it may be
 * called while a forward pass of the span waits in its exchange's finish. */
sn_status sn_span_run_experts(sn_span *span, const sn_expert_request *request, float *out, sn_err *err) SN_MUST_USE;

/* ---- KV caches ---- */

/* The shape of KV pages of the model's blocks [first, end). */
sn_kv_shape sn_kv_shape_of(const sn_hparams *hp, int first, int end, sn_kv_dtype dtype);

/* A KV pool for this span; each block's pages lie on the block's device. */
sn_status sn_span_kv_pool(sn_span *span, size_t budget, sn_kv_pool **out, sn_err *err) SN_MUST_USE;
/* A budget with which a pool of blocks [first, end) holds so many sessions of so many positions each. */
size_t sn_span_kv_bytes(const sn_hparams *hp, sn_device *device, int first, int end, sn_kv_dtype dtype, size_t sessions,
                        size_t positions);
/* Copies positions [position, position + n) of a block to k and v: host, shapes as in kv_store
 * (device/device.h). Refuses blocks with a recurrent state, as import does. */
sn_status sn_span_kv_export(const sn_span *span, sn_kv_cache *kv, int block, int position, int n, float *k, float *v,
                            sn_err *err) SN_MUST_USE;
/* Writes k and v, of the same shapes, of any type and device, through the guard to the n positions after
 * the cache's end (reserved before). Call sn_kv_cache_append once all blocks are written. */
sn_status sn_span_kv_import(const sn_span *span, sn_kv_cache *kv, int block, int n, const sn_tensor *k,
                            const sn_tensor *v, sn_err *err) SN_MUST_USE;

/* The same for rows that lie in host memory, one after the other. */
sn_status sn_span_kv_import_rows(const sn_span *span, sn_kv_cache *kv, int block, int n, const float *keys,
                                 const float *values, sn_err *err) SN_MUST_USE;
/* The shape in which keys and values of n tokens travel between nodes, block by block the keys and then the values
 * (net/message.h): (blocks, 2, n, floats) where all blocks are alike, else (n, floats of a token). Returns its rank. */
enum { SN_KV_TENSOR_RANK_MAX = 4 };
int sn_kv_tensor_shape(const sn_hparams *hp, int first, int end, uint64_t n, uint64_t shape[SN_KV_TENSOR_RANK_MAX]);

/* Likewise for the index keys of a block that has some (sn_chooses_keys): keys (n, index_dim), host. */
sn_status sn_span_index_export(const sn_span *span, sn_kv_cache *kv, int block, int position, int n, float *keys,
                               sn_err *err) SN_MUST_USE;
sn_status sn_span_index_import(const sn_span *span, sn_kv_cache *kv, int block, int n, const float *keys,
                               sn_err *err) SN_MUST_USE;

/* Floats of a snapshot of the recurrent blocks among [first, end). */
size_t sn_span_state_floats(const sn_hparams *hp, int first, int end);

/* ---- forward pass ---- */

/* One session's rows in a batch. */
typedef struct sn_span_sequence {
    sn_kv_cache *kv;        /* the rows are appended to it; reserved before (sn_kv_cache_reserve) */
    const sn_tensor *input; /* hidden states (rows, n_embd) from any device, through the guard */
    int first_row, n_rows;  /* rows [first_row, first_row + n_rows) of input are computed now */
    float *output;          /* host, (n_rows, n_embd): hidden states after block end - 1 */
} sn_span_sequence;

/* Computes blocks [first, end) of the span for all rows of the sequences as one batch: at most sn_span_rows_max, of at
 * most SN_SPAN_ROWS sequences. On failure no KV cache has grown. *moved (or NULL) grows by the bytes of hidden states
 * that were copied to, between and from devices. SN_STOP: a device failed; the sentence names it. */
sn_status sn_span_forward(sn_span *span, int first, int end, int n_sequences, const sn_span_sequence *sequences,
                          uint64_t *moved, sn_err *err) SN_MUST_USE;

/* As sn_span_forward, with an adapter that was loaded for this span (blocks/adapter.h); NULL: none. */
struct sn_adapter;
sn_status sn_span_forward_adapter(sn_span *span, int first, int end, const struct sn_adapter *adapter, int n_sequences,
                                  const sn_span_sequence *sequences, uint64_t *moved, sn_err *err) SN_MUST_USE;

/* Brings a cache with recurrent states that was rewound to a position without one nearer to its end: at most rows_max
 * rows since the newest state before it are computed again, for their effect on the state. What they store besides is
 * there already, with the same bits. Nothing to do for a cache whose state is at its end, and for others. A forward
 * pass does the whole of it first; the scheduler does it in pieces, so that other sessions need not wait. */
sn_status sn_span_catch_up(sn_span *span, int first, int end, const struct sn_adapter *adapter, sn_kv_cache *kv,
                           int rows_max, sn_err *err) SN_MUST_USE;

/* By how much sn_span_forward would increase *moved; for inputs in host memory. */
uint64_t sn_span_transfer_bytes(const sn_span *span, int first, int end, int n_sequences,
                                const sn_span_sequence *sequences);

#endif
