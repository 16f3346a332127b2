/* A device: memory, an ordered queue of work, and the operations of a transformer block on it.
 *
 * sn_device is an open device; sn_device_ops is its table of operations, which each backend (cpu/, cuda/, xpu/)
 * implements whole: no entry is optional. One conformance suite (tests/support/conformance.h) runs over all backends,
 * with the plain-C kernels of the CPU as the reference. The callers are blocks/ and kvcache/ (forward and backward
 * passes of a span), and the client's embedding and LM head.
 *
 * Threads: a device belongs to one thread, the one that calls it; nothing here locks. Operations are queued in the
 * order of the calls and may return before they are done. `finish` and `download` wait for all work queued before them;
 * what else waits says so.
 *
 * Ownership: the caller frees what `alloc` and `host_alloc` gave, with the same number of bytes, before it closes the
 * device. All other pointers are borrowed. A pointer that is marked `host` may be reused when the call returns, unless
 * the operation says how long it must stay; memory of the device may be reused by work that is queued later.
 *
 * Errors: an operation fills *err with a sentence and returns
 * - SN_REFUSED: the call is not possible (type, shape, limits, an operation in the wrong place). The device goes on.
 * - SN_RETRY: the batch could not be captured (sn_batch.graph_key) and was not run: the caller may repeat it.
 * - SN_STOP: the device has no memory left, or it is lost. It is lost when it reports an error, or does not answer
 *   within device->timeout_ms; from then on every call fails at once with the same sentence, except `free` and `close`.
 *
 * Shapes: activations are float32 in the device's memory, row-major, rows contiguous. (n, width) names the dimensions,
 * the outermost first. A pointer marked `device` lies in memory of this device (on the CPU that is any memory), one
 * marked `host` in memory of the host.
 *
 * Bits: on the CPU a row's result is the same bits whatever the number of rows and sequences in the call, the number of
 * threads, and the instruction set; cpu/kernels.inc.c says how. */
#ifndef SN_DEVICE_DEVICE_H
#define SN_DEVICE_DEVICE_H

#include "base/activation.h"
#include "base/dtype.h"
#include "base/recurrence.h"
#include "base/router.h"
#include "base/parse.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_device sn_device;

/* -- names of devices -- */

typedef enum sn_device_kind { SN_DEVICE_CPU, SN_DEVICE_CUDA, SN_DEVICE_XPU } sn_device_kind;

/* A device's name, parsed once where it enters the program; below that, no strings are compared. */
typedef struct sn_device_id {
    sn_device_kind kind;
    int ordinal;
} sn_device_id;

/* "cpu", "cuda:1", "xpu:0"; "CUDA" is cuda:0. "gpu", "gpu:1", "0" and "1" are the accelerator of that number: cuda
 * where this machine has a CUDA device, else xpu. SN_REFUSED, with the list of devices, when the name is not valid or
 * this machine has no such device. */
sn_status sn_device_id_parse(const char *name, sn_device_id *out, sn_err *err) SN_MUST_USE;
/* As sn_device_id_parse, for the n devices of a list instead of this machine's. */
sn_status sn_device_id_match(const char *name, const sn_device_id *available, size_t n, sn_device_id *out,
                             sn_err *err) SN_MUST_USE;
static inline bool sn_device_id_equal(sn_device_id a, sn_device_id b) {
    return a.kind == b.kind && a.ordinal == b.ordinal;
}
char *sn_device_id_name(sn_device_id id, char out[32]); /* "cpu", "cuda:0"; returns out */

/* -- devices of this machine -- */

typedef struct sn_device_info {
    sn_device_id id;
    char name[64];
    char features[96];          /* "avx512, 2 threads"; "sm_90, graphs" */
    size_t memory, memory_free; /* bytes; of a device whose driver tells nothing memory_free is memory */
    size_t memory_reserve;      /* bytes that the driver takes by itself of a device that is used */
} sn_device_info;

enum { SN_DEVICES_MAX = 32 };

/* All devices, in the order cpu, cuda:0, cuda:1, ..., xpu:0, .... A backend that is not built, or has no driver, lists
 * nothing and logs the reason once. */
sn_status sn_devices_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;
/* The devices of one kind; does not load the drivers of the others. */
sn_status sn_devices_list_kind(sn_device_kind kind, sn_device_info out[SN_DEVICES_MAX], size_t *n,
                               sn_err *err) SN_MUST_USE;

typedef struct sn_device_options {
    int threads; /* cpu: workers, the calling thread included; 0: one per core */
    /* cpu, for tests and reports: one of sn_isa_words, or NULL for the best of this machine. */
    const char *isa;
    int timeout_ms;    /* limit of every wait for the device; 0: 60,000 */
    size_t memory_max; /* bytes of its memory that may be allocated; 0: as many as it has */
    int batch_rows;    /* for tests: that of sn_device; 0: the device's own */
} sn_device_options;

/* options may be NULL. SN_REFUSED with the reason when there is no such device. */
sn_status sn_device_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
void sn_device_close(sn_device **device); /* accepts NULL in *device; the caller has freed all its allocations */
enum { SN_DEVICE_TRY_BYTES = 4096 };      /* of its memory that a try takes */
/* Whether the device works now: opens it once more, copies bytes to it and back, and closes it. For a device that was
 * lost; what has it open is not touched. Any thread. */
sn_status sn_device_try(sn_device_id id, const sn_device_options *options, sn_err *err) SN_MUST_USE;
/* One line for people: "cpu: 2 threads, avx512". Static, or owned by the device. */
const char *sn_device_describe(const sn_device *device);

/* The largest calls that will come, given to `prepare` before the first operation, so that no operation allocates. */
typedef struct sn_device_limits {
    int rows;                  /* of one call */
    int width;                 /* elements of a row that linear or moe_linear reads, or that moe_linear writes */
    int context;               /* positions that attention attends to */
    int sequences;             /* of one batch; 0: as many as rows */
    int heads, head_dim;       /* query heads of attention, and elements of each */
    int experts, experts_used; /* of a mixture of experts, and of these per row; 0: no mixture */
    int expert_width;          /* elements of a row that moe_linear reads of a pair (per_expert) */
    int grad_tokens;           /* of a sequence in the backward pass; 0: none will come */
    int chosen;                /* positions that a row of choose_keys chooses; 0: there is no indexer */
} sn_device_limits;
/* For each member the larger one of both. */
sn_device_limits sn_device_limits_join(const sn_device_limits *a, const sn_device_limits *b);

/* -- weights -- */

/* A matrix of weights in the device's own layout. A plain value: it does not own the bytes at `device`. */
typedef struct sn_weight {
    sn_dtype dtype; /* of the model file */
    size_t rows, cols;
    size_t bytes;       /* of the device's memory: weight_size */
    const void *device; /* aligned to 64 bytes */
    /* Device, (cols): column k of the matrix meets element order[k] of a row of x. NULL: element k. For linear of CPUs
     * alone, and quantised types. */
    const int32_t *order;
} sn_weight;

/* y (n, weight->rows) = x (n, weight->cols) . weight^T + bias. */
typedef struct sn_linear {
    const sn_weight *weight;
    const float *bias; /* device, (rows), or NULL */
    float *y;          /* device */
    /* x keeps at least 16 bits where a batch of many rows might round it to fewer: set when y selects experts. */
    bool high_precision;
} sn_linear;

/* The matrices of a mixture of experts (Shazeer et al. 2017), of one type and shape. Expert e lies e * stride bytes
 * after `first`, which is expert 0. */
typedef struct sn_experts {
    sn_weight first;
    size_t stride; /* bytes: a multiple of 64, first.bytes at least */
    int n;
} sn_experts;

enum { SN_EXPERTS_MAX = 1024, SN_EXPERTS_USED_MAX = 64 };
enum { SN_MOE_PAIRS_MAX = 1 << 18 };
/* Whether every device takes so many rows, of `used` experts each, in one call of the operations of mixtures. width:
 * elements of a row that an expert reads or writes. */
bool sn_device_takes_pairs(size_t rows, size_t used, size_t width);

/* How the logits of a row become its experts and their weights. */
typedef struct sn_moe_router {
    int n_experts, k; /* experts of the mixture; experts per row */
    sn_router_scoring scoring;
    /* Device, (n_experts), or NULL: it is added to the scores to choose experts, and is no part of their weights. It
     * may be negative. Wang et al. 2024. With SN_ROUTER_SIGMOID, or with SN_ROUTER_SOFTMAX without groups: scores are
     * the softmax of all logits, and weights their shares, at most 1e12 times them (ERNIE 4.5, 2025). */
    const float *correction;
    bool normalised; /* SN_ROUTER_SIGMOID only: the weights of a row add up to 1, before they are scaled */
    float scale;     /* of all weights; usually 1 */
    /* The experts in n_groups equal parts, of which only those of the n_groups_used best can be chosen. A group is as
     * good as its best expert, or with SN_ROUTER_SIGMOID its two best ones together (their scores plus the
     * corrections). DeepSeek-AI 2024. 0: no groups. */
    int n_groups, n_groups_used;
    const float
        *factors;     /* device, (n_experts), or NULL: at last the weight of an expert is multiplied by its factor */
    float sum_offset; /* SN_ROUTER_SIGMOID, normalised: added to the sum that divides the weights; 0: 1e-20 */
} sn_moe_router;

static inline float sn_router_offset(const sn_moe_router *r) { return r->sum_offset > 0 ? r->sum_offset : 1e-20f; }

/* The experts of each row and their weights; moe_gate computes them. */
typedef struct sn_moe_selection {
    int n, n_experts, k;  /* rows; experts; experts per row, all different (k > n_experts: some ids are below 0) */
    const int32_t *ids;   /* device, (n, k) */
    const float *weights; /* device, (n, k); NULL: all are 1 */
} sn_moe_selection;

/* One matrix of moe_linear: y (n, k, rows of an expert) of the selected experts. */
typedef struct sn_moe_linear {
    const sn_experts *experts;
    const float *bias; /* device, (experts->n, rows of an expert), or NULL */
    float *y;          /* device */
} sn_moe_linear;

/* -- the KV cache and batches -- */

/* How keys and values are stored. F16: rounded to the nearest half, at most 65504. Q8: each 32 elements of a head's key
 * or value (the last group may have fewer) as integers of at most 127 times a bfloat16. Reading gives float32 exactly
 * as stored, and storing what was read gives the same bytes again; attention computes in float32 on what is stored. */
typedef enum sn_kv_dtype {
    SN_KV_F32,
    SN_KV_F16,
    SN_KV_Q8,
    SN_KV_DTYPE_COUNT,
    SN_KV_DTYPE_DEFAULT = SN_KV_F16 /* of the programs, nodes and clients alike */
} sn_kv_dtype;
extern const sn_word sn_kv_dtype_words[]; /* "f32", "f16", "q8" */
const char *sn_kv_dtype_name(sn_kv_dtype dtype);
sn_dtype sn_kv_dtype_element(sn_kv_dtype dtype);                 /* the element type of the same name */
bool sn_kv_dtype_of_element(uint64_t element, sn_kv_dtype *out); /* false: no cache has this type */
extern const sn_word sn_isa_words[]; /* instruction sets of the CPU kernels: device/cpu/kernels.h */

/* Heads of keys and values: their number, and the elements of a key and of a value. */
typedef struct sn_kv_heads {
    int n, key_dim, value_dim;
} sn_kv_heads;

/* A session's KV cache on this device is a list of pages of `page_tokens` positions. A page holds the keys and values
 * of all n_blocks blocks (transformer layers) in the backend's own layout, kv_page_bytes in size. Position p lies in
 * page p / page_tokens. */
enum { SN_KV_BLOCKS_MAX = 1024 };
typedef struct sn_kv_shape {
    int n_blocks, n_kv_heads, head_dim, page_tokens; /* page_tokens: a multiple of 16 */
    sn_kv_dtype dtype;                               /* one of the device's kv_dtypes */
    /* Latent attention (DeepSeek-AI 2024): the values are the first `latent` elements of the keys and are stored once,
     * as part of them; the other head_dim - latent elements are the keys' own. 0: values of head_dim, stored besides.
     */
    int latent;
    int value_dim; /* elements of a value that is stored besides, head_dim at most; 0: head_dim */
    /* Blocks that have other heads than the numbers above say: those whose bit is set. */
    sn_kv_heads other;
    uint64_t is_other[SN_KV_BLOCKS_MAX / 64];
    /* Index keys, by which rows choose positions (sn_indexer): behind the n_blocks blocks a page holds those of
     * index_blocks more, of index_dim numbers for each position, float32 whatever the dtype. kv_store, kv_read and
     * kv_write know them as the keys of the blocks from n_blocks on, of one head and without values (NULL). 0: none. */
    int index_blocks, index_dim;
    bool keys_only; /* of sn_kv_block_shape: a block of index keys */
} sn_kv_shape;

/* Block b of the shape has the other heads. */
static inline void sn_kv_set_other(sn_kv_shape *shape, int b) { shape->is_other[b / 64] |= UINT64_C(1) << b % 64; }
/* Elements of the widest key. */
static inline int sn_kv_head_dim_max(const sn_kv_shape *s) {
    return s->other.key_dim > s->head_dim ? s->other.key_dim : s->head_dim;
}
/* How many of the blocks before `block` do. */
static inline int sn_kv_n_other(const sn_kv_shape *shape, int block) {
    int n = 0;
    for (int i = 0; i < block / 64; i++) n += __builtin_popcountll(shape->is_other[i]);
    return block % 64 ? n + __builtin_popcountll(shape->is_other[block / 64] << (64 - block % 64)) : n;
}
/* The shape of a cache with nothing but this block, which may be one of index keys. */
sn_kv_shape sn_kv_block_shape(const sn_kv_shape *shape, int block);
/* Bytes of a page before this block, where a block alone takes block_bytes; block may be n_blocks + index_blocks. */
size_t sn_kv_block_offset(const sn_kv_shape *shape, int block, size_t (*block_bytes)(const sn_kv_shape *one));

/* Elements of a key in latent attention, and of the rows and columns of a matrix of head_linear. */
enum { SN_LATENT_DIM_MAX = 1024 };

/* Elements of a key and of a value, each without what it shares with the other: of the k and v of kv_store, in a shape
 * whose blocks are alike. */
static inline int sn_kv_key_dim(const sn_kv_shape *shape) { return shape->head_dim - shape->latent; }
static inline int sn_kv_value_dim(const sn_kv_shape *shape) {
    return shape->keys_only ? 0 : shape->latent ? shape->latent : shape->value_dim ? shape->value_dim : shape->head_dim;
}

/* A recurrent block: a gated delta rule or another recurrence (base/recurrence.h) behind a short convolution. Instead
 * of keys and values a session has a state of fixed size there, float32: for each value head a matrix (key_dim,
 * value_dim), one head after the other, and behind them the last taps - 1 rows that entered the convolution, (taps - 1,
 * channels), the oldest first. */
typedef struct sn_delta_shape {
    int n_blocks; /* recurrent blocks of the part; 0: there are none */
    int n_key_heads, n_value_heads, key_dim, value_dim;
    int taps;                 /* of the convolution */
    bool key_heads_alternate; /* value head h reads key head h % n_key_heads; else h / (n_value_heads / n_key_heads) */
    sn_recurrence kind;       /* SN_SHORT_CONV: key_dim is 0, and value_dim any: there are no matrices */
} sn_delta_shape;
enum { SN_DELTA_DIM_MAX = 512, SN_DELTA_TAPS_MAX = 8 };

/* Columns of the rows that the convolution takes: queries and keys of the key heads, values of the value heads. */
static inline size_t sn_delta_channels(const sn_delta_shape *s) {
    return 2 * (size_t)s->n_key_heads * (size_t)s->key_dim + (size_t)s->n_value_heads * (size_t)s->value_dim;
}
/* Floats of the matrices of a block's state, and of the whole state of a block. */
static inline size_t sn_delta_matrices(const sn_delta_shape *s) {
    return (size_t)s->n_value_heads * (size_t)s->key_dim * (size_t)s->value_dim;
}
static inline size_t sn_delta_floats(const sn_delta_shape *s) {
    return (sn_delta_matrices(s) + (size_t)(s->taps - 1) * sn_delta_channels(s) + 15) / 16 * 16;
}

/* The states of a session around its rows in a batch: device, of all recurrent blocks of the part, one after the other.
 * Zeroed in a part without recurrent blocks. */
typedef struct sn_sequence_state {
    const float *before; /* NULL: all zero, before position 0 */
    float *after;        /* written; another one than `before` */
    float *snapshot;     /* written: the state after the first snapshot_rows rows; or NULL */
    int snapshot_rows;   /* 1 to n_rows */
} sn_sequence_state;

/* The rows of one session in a batch: rows [first_row, first_row + n_rows) are its positions [position, position +
 * n_rows). */
typedef struct sn_sequence {
    void *const *pages; /* host array of device addresses, enough for position + n_rows */
    int position, first_row, n_rows;
    sn_sequence_state state;
} sn_sequence;

/* A batch: the rows of several sessions in one forward pass over some blocks. batch_begin takes it once; kv_store and
 * attention of every block use it until batch_end. */
typedef struct sn_batch {
    const sn_kv_shape *shape; /* host; shape and sequences must stay until batch_end */
    int n_rows, n_sequences;
    const sn_sequence *sequences;
    /* Names the operations that follow, with all their pointers: two batches of equal graph_key, n_rows and n_sequences
     * issue the same calls. A device may then capture them once and replay the capture. 0: never captured. */
    uint64_t graph_key;
} sn_batch;

/* Names a copy to the device that runs concurrently with the queue (copy_begin). */
typedef uint64_t sn_fence;

/* -- parameters of operations -- */

/* Rotary position embedding of a head: pairs (2i, 2i + 1), or (i, i + dim / 2) with rotate_half. Means the same as the
 * model's sn_rope_style. */
typedef struct sn_rope {
    bool rotate_half;
    int dim;              /* rotated dimensions, even, <= head_dim; the others do not change */
    const float *cos_sin; /* device, (n, dim / 2, 2): one entry per row */
} sn_rope;

/* A norm of rows whose sum comes first: x += add; y = norm(x). All pointers: device. */
typedef struct sn_norm {
    bool layer; /* layer_norm; else rms_norm, without `bias` */
    int width;
    float *x;         /* (n, width) */
    const float *add; /* (n, width), or NULL: nothing is added, and x stays as it is */
    const float *weight, *bias;
    float eps;
    float *y; /* (n, width); may be add, or without that x */
} sn_norm;

/* y = activation(gate) * up, with the pointers and aliases of `activate`. */
typedef struct sn_gated {
    sn_activation kind;
    const float *gate, *up;
    float *y;
} sn_gated;

/* The queries and keys of a batch of n rows, whose KV cache is not latent, that one rope rotates in place: q (n,
 * n_heads, head_dim), k (n, n_kv_heads, head_dim), with the heads of the cache. */
typedef struct sn_rotated {
    sn_rope rope;
    int n, n_heads, n_kv_heads, head_dim;
    float *q, *k; /* device */
} sn_rotated;

/* Attention of one block over the KV cache. */
typedef struct sn_attention {
    int block, n_heads; /* n_heads: query heads, a multiple of n_kv_heads (GQA) */
    /* Above 0: a row attends to the last `window` positions, its own included. 0: to all. Below 0: to those of its own
     * chunk of -window positions: (position / -window) * -window is its first one. */
    int window;
    float scale;
    const float *slopes; /* device, (n_heads), or NULL. The score of a key n positions back is lowered by n times the
                          * head's slope (ALiBi: Press et al. 2021) */
    const float *sinks;  /* device, (n_heads), or NULL. The score of an additional key whose value is zero: it takes its
                          * share of the softmax (Xiao et al. 2023; learned: gpt-oss, 2025) */
    float softcap;       /* above 0: a score s becomes softcap * tanh(s / softcap), before the slopes (Gemma 2, 2024) */
    /* Device, (n_rows, n_chosen), of choose_keys, or NULL. A row at a position from n_chosen on attends to these
     * positions alone, and reads no others. Latent attention only, without window and slopes. */
    const int32_t *chosen;
    int n_chosen;
} sn_attention;

/* How rows choose the positions that they attend to (DeepSeek-AI 2025). The score of a position is the sum over the
 * heads, in their order, of weight * max(q . key, 0), with the index key that block `block` of the cache has of it. */
typedef struct sn_indexer {
    int block;        /* from n_blocks of the shape on */
    int n_heads, dim; /* dim: index_dim of the shape */
    int n_chosen;
    const float *q;       /* device, (n_rows, n_heads, dim) */
    const float *weights; /* device, (n_rows, n_heads) */
} sn_indexer;

/* The backward pass of attention for rows of one sequence: n query rows at positions [first, first + n), and the keys
 * and values of all positions below first + n, with q and k as attention took them (rotated). Calls for consecutive
 * rows, from position 0 on, add up dk and dv in the order of the rows. All pointers: device. */
typedef struct sn_attention_grad {
    int first, n, n_heads, n_kv_heads, head_dim;
    int window; /* window, scale, softcap, slopes and sinks: as in sn_attention */
    float scale, softcap;
    const float *slopes, *sinks;
    const float *q, *dout; /* (n, n_heads, head_dim); dout: gradient of attention's result */
    const float *k, *v;    /* (first + n, n_kv_heads, head_dim) */
    float *dq;             /* as q; overwritten */
    float *dk, *dv;        /* as k: rows from `first` on are overwritten, those before are added to */
} sn_attention_grad;

/* The weights of a recurrent block, device. */
typedef struct sn_delta {
    sn_delta_shape shape;
    int block;                   /* its number among the recurrent blocks of the part */
    const float *taps;           /* (channels, shape.taps): the last tap is that of the row itself */
    const float *rates;          /* (n_value_heads): below zero; delta_rule says of what */
    const float *time_bias;      /* (n_value_heads), with SN_KEYED_DELTA (n_value_heads, key_dim) */
    const float *taps_bias;      /* (channels), or NULL: added to what the convolution gives */
    const float *skip;           /* (n_value_heads), SN_STATE_SPACE only */
    float floor;                 /* SN_KEYED_DELTA only, below zero: of the logarithm of a decay; 0: there is none */
    size_t first_channel, count; /* of short_conv: the channels in x, of which alone `taps` are; count 0: all */
} sn_delta;

/* The channels that short_conv takes. */
static inline size_t sn_delta_count(const sn_delta *delta) {
    return delta->count ? delta->count : sn_delta_channels(&delta->shape);
}

/* What enters delta_rule, device. Row i of q, k and v begins stride elements behind row i - 1; a row of q and of k is
 * (n_key_heads, key_dim), of v (n_value_heads, value_dim). */
typedef struct sn_delta_rows {
    const float *q, *k, *v;
    size_t key_stride, value_stride;
    const float *a; /* (n_rows, n_value_heads), with SN_KEYED_DELTA (n_rows, n_value_heads, key_dim) */
    const float *b; /* (n_rows, n_value_heads); not used with SN_STATE_SPACE */
} sn_delta_rows;

/* The first position that a row at `position` attends to within this window (sn_attention). */
static inline int sn_window_first(int position, int window) {
    if (window < 0) return position / -window * -window;
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

/* -- the table of operations -- */

typedef struct sn_device_ops {
    /* ---- memory of the device ---- */

    /* Zeroed, aligned to 64 bytes. SN_STOP when the device has no memory left. */
    sn_status (*alloc)(sn_device *d, size_t bytes, void **device, sn_err *err);
    /* Accepts NULL. `bytes` as given to alloc. Waits for queued work that may still use the memory. */
    void (*free)(sn_device *d, void *device, size_t bytes);
    /* Whether the bytes lie within one allocation of this device: for assertions, once per forward pass. On the CPU any
     * address but NULL does. */
    bool (*owns)(const sn_device *d, const void *device, size_t bytes);
    /* Both return when the host memory may be changed; download waits for all work queued before it. */
    sn_status (*upload)(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err);
    sn_status (*download)(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err);
    /* Waits until the queue is empty. */
    sn_status (*finish)(sn_device *d, sn_err *err);
    /* Allocates what the largest calls need. May be called again with larger limits; after a failure those before are
     * still prepared. */
    sn_status (*prepare)(sn_device *d, const sn_device_limits *limits, sn_err *err);
    /* At most the bytes of device memory that prepare with these limits takes beside those that are in use now, during
     * the call and afterwards. SIZE_MAX: too many. */
    size_t (*prepare_bytes)(const sn_device *d, const sn_device_limits *limits);

    /* ---- memory of the host, and copies concurrent with the queue ---- */

    /* Host memory that the device copies from at full speed (pinned). Free with the same bytes. */
    sn_status (*host_alloc)(sn_device *d, size_t bytes, void **host, sn_err *err);
    void (*host_free)(sn_device *d, void *host, size_t bytes);
    /* Starts a copy to the device when all work queued so far is done; work queued later runs concurrently with it. The
     * host memory (of host_alloc) must not change until copy_wait of this fence, or finish, has returned. */
    sn_status (*copy_begin)(sn_device *d, void *device, const void *host, size_t bytes, sn_fence *fence, sn_err *err);
    /* Work queued from now on starts after the copy is done. Does not wait itself. */
    sn_status (*copy_join)(sn_device *d, sn_fence fence, sn_err *err);
    /* Waits until the copy is done: its host memory may then be changed. */
    sn_status (*copy_wait)(sn_device *d, sn_fence fence, sn_err *err);

    /* ---- weights ---- */

    /* Bytes of a matrix in the device's layout; SN_REFUSED for a type that the device cannot use. */
    sn_status (*weight_size)(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err);
    /* Converts rows x cols elements of `dtype`, as in the model file, to the device's layout in host memory (`image`,
     * weight_size bytes, aligned to 64), ready to be copied to the device unchanged. Where device->host_visible, image
     * may be the device's memory itself. The image of a float32 matrix consists of the images of its parts of 16 rows
     * (the last one may have fewer), one after the other. */
    sn_status (*weight_pack)(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err);

    /* ---- batches ---- */

    /* *replayed (out): the device will replay a captured batch at batch_end, and the caller issues no operations
     * between the two. What a capture reads at fixed addresses (rows, rope table) is uploaded before batch_begin. */
    sn_status (*batch_begin)(sn_device *d, const sn_batch *batch, bool *replayed, sn_err *err);
    sn_status (*batch_end)(sn_device *d, sn_err *err);

    /* ---- the forward pass. Pointers: device, unless marked host ---- */

    /* y[i] = x . w[i]^T + bias[i] for several weights of equal cols and the same x (n, cols). */
    sn_status (*linear)(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err);
    /* y (n, width) = x / sqrt(mean(x^2) + eps) * weight (width). y may be x. Zhang & Sennrich 2019. */
    sn_status (*rms_norm)(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                          sn_err *err);
    /* The same of each of `groups` parts of a row by itself: y (n, groups, width), weight (groups, width). */
    sn_status (*group_norm)(sn_device *d, int n, int groups, int width, const float *x, const float *weight, float eps,
                            float *y, sn_err *err);
    /* y (n, width) = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias. bias may be NULL, y may be x. Ba et
     * al. 2016. */
    sn_status (*layer_norm)(sn_device *d, int n, int width, const float *x, const float *weight, const float *bias,
                            float eps, float *y, sn_err *err);
    /* Rotates x (n, n_heads, head_dim) in place. Su et al. 2021. */
    sn_status (*rope)(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err);
    /* Within a batch: stores k (n_rows, n_kv_heads, sn_kv_key_dim) and v (n_rows, n_kv_heads, sn_kv_value_dim) at the
     * positions of its sequences, in block `block`. Of index keys k is (n_rows, index_dim). */
    /* Within a batch: stores k (n_rows, n_kv_heads, sn_kv_key_dim) and v (n_rows, n_kv_heads, sn_kv_value_dim), with
     * the heads of the block, at the positions of its sequences. */
    sn_status (*kv_store)(sn_device *d, int block, const float *k, const float *v, sn_err *err);
    /* Outside of a batch: reads (export) or writes (import) positions [position, position + n) of one session's block.
     * k and v: host, shapes as in kv_store. Both wait. */
    sn_status (*kv_read)(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err);
    sn_status (*kv_write)(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          const float *k, const float *v, sn_err *err);
    /* Within a batch: out (n_rows, n_heads, sn_kv_value_dim) = softmax(q . K^T * scale) . V, q (n_rows, n_heads,
     * head_dim). Each row attends to the stored positions of its sequence up to its own. */
    sn_status (*attention)(sn_device *d, const sn_attention *params, const float *q, float *out, sn_err *err);
    /* Within a batch: chosen (n_rows, n_chosen): of each row at a position from n_chosen on, those positions up to its
     * own that have the highest scores, in ascending order; of equal scores the lower position. Of other rows, which
     * would choose all, nothing is written. A score that is not a number is the lowest. */
    sn_status (*choose_keys)(sn_device *d, const sn_indexer *indexer, int32_t *chosen, sn_err *err);
    /* Both within a batch, row by row in the order of positions, with the sequences'
     * states. x (n_rows, channels) = silu(depthwise causal convolution of x + taps_bias); SN_SHORT_CONV: without silu.
     * A call may take some of the channels (delta->count); all of them are taken once in a batch. */
    sn_status (*short_conv)(sn_device *d, const sn_delta *delta, float *x, sn_err *err);
    /* out (n_rows, n_value_heads, value_dim). With S the value head's matrix:
     * - SN_GATED_DELTA and SN_KEYED_DELTA: q and k are divided by their lengths, sqrt(sum of squares + 1e-6), and q by
     *   sqrt(key_dim). beta = sigmoid(b) and decay = exp(rate * softplus(a + time_bias)); of SN_KEYED_DELTA each row of
     *   S has its own, with a floor exp(floor * sigmoid(-rate * (a + time_bias))):
     *       S *= decay;  S += k (beta (v - S^T k))^T;  out = S^T q
     * - SN_STATE_SPACE: step = softplus(a + time_bias), decay = exp(rate * step):
     *       S = S decay + k (step v)^T;  out = S^T q + skip v */
    sn_status (*delta_rule)(sn_device *d, const sn_delta *delta, const sn_delta_rows *rows, float *out, sn_err *err);
    /* y (n) = activation(gate) * up (base/activation.h names the kind for which `up` is changed first), or
     * activation(gate) when up is NULL. y may be gate or up. */
    sn_status (*activate)(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y,
                          sn_err *err);
    sn_status (*add)(sn_device *d, size_t n, float *y, const float *x, sn_err *err); /* y (n) += x */
    /* y (n, width) = x * factor * factors[i] of row i; factors (n), or NULL: 1 for each row. y may be x. */
    sn_status (*scale)(sn_device *d, int n, int width, const float *x, float factor, const float *factors, float *y,
                       sn_err *err);
    /* x (n) = min(max(x, low), high); NaN stays. */
    sn_status (*clamp)(sn_device *d, size_t n, float *x, float low, float high, sn_err *err);
    /* y (n) = the sum of a * b over the width of each row; a and b (n, width). */
    sn_status (*dot_rows)(sn_device *d, int n, int width, const float *a, const float *b, float *y, sn_err *err);
    /* y (n, heads, y_width) from x (n, heads, x_width), each head with the matrix of its number: the first elements of
     * y are the first cols elements of x . matrix^T, and the x_width - cols elements after them follow unchanged, so
     * that y_width is rows + x_width - cols. y must not overlap x. */
    sn_status (*head_linear)(sn_device *d, int n, const float *x, int x_width, const sn_experts *heads, float *y,
                             sn_err *err);
    /* y (n, cols) = row ids[i] of the weight, as float32. ids: host, each below weight->rows (checked). */
    sn_status (*get_rows)(sn_device *d, const sn_weight *weight, int n, const int32_t *ids, float *y, sn_err *err);

    /* ---- what belongs together in a block, so that a device may do it in fewer launches ----
     *
     * Each is the operations that it names, one after the other, with the same bits in all that they write; composed.c
     * composes it for backends that have no kernel for it. */

    /* x += add; y (n, width) = rms_norm or layer_norm of x; linears of y. At least one matrix. */
    sn_status (*norm_linear)(sn_device *d, int n, const sn_norm *norm, int n_linears, const sn_linear *linears,
                             sn_err *err);
    /* Within a batch: rope of q and of k; kv_store of k and v. */
    sn_status (*rope_store)(sn_device *d, int block, const sn_rotated *rotated, const float *v, sn_err *err);
    /* Within a batch of n rows: attention; linear of its result, out (n, n_heads * sn_kv_value_dim). */
    sn_status (*attention_linear)(sn_device *d, int n, const sn_attention *params, const float *q, float *out,
                                  const sn_linear *linear, sn_err *err);
    /* y (n, cols) = activate; linear of y. */
    sn_status (*activate_linear)(sn_device *d, int n, const sn_gated *gated, const sn_linear *linear, sn_err *err);
    /* y (n, k, cols) = activate, of all pairs; moe_linear of y, per expert. */
    sn_status (*activate_moe_linear)(sn_device *d, const sn_moe_selection *selection, const sn_gated *gated,
                                     const sn_moe_linear *linear, sn_err *err);

    /* ---- mixtures of experts, forward ---- */

    /* ids and weights (n, k): the experts with the k largest of a row's logits (n, n_experts), or of its scores plus
     * the correction, the largest first, of equal ones the lower id first; and their weights by router->scoring. At
     * most SN_EXPERTS_MAX experts, SN_EXPERTS_USED_MAX per row. A row of NaN gets valid ids, and weights of NaN. */
    sn_status (*moe_gate)(sn_device *d, int n, const sn_moe_router *router, const float *logits, int32_t *ids,
                          float *weights, sn_err *err);
    /* y (n, k, rows) = x . expert ids[i, j]^T + bias, for several matrices and the same x: (n, cols), one row for all k
     * experts, or with `per_expert` (n, k, cols). An id below 0 is left out: its y stays as it was. On the CPU, the
     * bits of linear. */
    sn_status (*moe_linear)(sn_device *d, const sn_moe_selection *selection, bool per_expert, const float *x,
                            int n_linears, const sn_moe_linear *linears, sn_err *err);
    /* y (n, width) = the sum over j of weights[i, j] * x[i, j], with x (n, k, width), in the order of j. */
    sn_status (*moe_combine)(sn_device *d, const sn_moe_selection *selection, int width, const float *x, float *y,
                             sn_err *err);

    /* ---- the backward pass, through frozen weights ----
     *
     * dT is the gradient of a loss with respect to tensor T. With `accumulate` the result is added to dx, else it
     * replaces it. Not within a batch that is captured. On the CPU a row's results depend on that row alone, and sums
     * over rows are one chain in the order of the rows: the same bits whatever the threads and the instruction set. */

    /* dx (n, cols) = dy (n, rows) . weight, the weight as float32, as get_rows gives it. A quantised linear rounds its
     * inputs: the rounding is not differentiated (straight-through estimator, Bengio et al. 2013). */
    sn_status (*linear_input_grad)(sn_device *d, int n, const float *dy, const sn_weight *weight, bool accumulate,
                                   float *dx, sn_err *err);
    /* dw (rows, cols) += dy^T (rows, n) . x (n, cols). */
    sn_status (*linear_weight_grad)(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                                    sn_err *err);
    /* dx (n, width): the gradient of the x of rms_norm. Without `accumulate` dx may be dy. */
    sn_status (*rms_norm_grad)(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                               const float *dy, bool accumulate, float *dx, sn_err *err);
    /* dx (n, width): the gradient of the x of layer_norm. Without `accumulate` dx may be dy. */
    sn_status (*layer_norm_grad)(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                 const float *dy, bool accumulate, float *dx, sn_err *err);
    /* dgate, dup (n) from the inputs of activate and dy (n), which may be dgate or dup; dgate may be gate, and dup may
     * be up. up NULL: dup is not written. */
    sn_status (*activate_grad)(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                               const float *dy, float *dgate, float *dup, sn_err *err);
    /* Allocates memory for a row of scores, never for a matrix of scores (Dao et al. 2022). */
    sn_status (*attention_grad)(sn_device *d, const sn_attention_grad *grad, sn_err *err);

    /* dx (n, cols): the sum over the k experts of a row; or with `per_expert` (n, k, cols). */
    sn_status (*moe_linear_grad)(sn_device *d, const sn_moe_selection *selection, bool per_expert, const float *dy,
                                 const sn_experts *experts, bool accumulate, float *dx, sn_err *err);
    /* dx (n, k, width) and dweights (n, k) from the x of moe_combine and dy (n, width). dx may be x. */
    sn_status (*moe_combine_grad)(sn_device *d, const sn_moe_selection *selection, int width, const float *x,
                                  const float *dy, float *dx, float *dweights, sn_err *err);
    /* dlogits (n, n_experts) from the result of moe_gate; the selection of experts counts as constant. dlogits may be
     * logits. */
    sn_status (*moe_gate_grad)(sn_device *d, const sn_moe_selection *selection, const sn_moe_router *router,
                               const float *logits, const float *dweights, float *dlogits, sn_err *err);

    /* ---- sizes, and the end ---- */

    size_t (*kv_page_bytes)(const sn_device *d, const sn_kv_shape *shape);
    void (*close)(sn_device *d); /* sn_device_close calls it */
} sn_device_ops;

struct sn_cancel; /* base/cancel.h, which C++ cannot read */

/* The first member of every backend's device. */
struct sn_device {
    const sn_device_ops *ops;
    sn_device_id id;
    bool host_visible;              /* device memory is host memory */
    unsigned kv_dtypes;             /* 1 << sn_kv_dtype for each type besides SN_KV_F32 that the device can store */
    int timeout_ms;                 /* limit of every wait for the device; may be changed */
    const char *lost;               /* NULL: it works. Else it is lost: the sentence with which every call fails */
    uint64_t graphs_captured;       /* batches captured so far: for tests that nothing is captured twice */
    size_t memory_max;              /* bytes of its memory that may be allocated; SIZE_MAX: as many as it has */
    size_t allocation_max;          /* bytes of one allocation; 0: no limit of its own */
    size_t memory_used;             /* bytes that are allocated; backends count with the next two functions */
    size_t memory_extra;            /* bytes beside all others with which it is faster: captured batches */
    int batch_rows;                 /* rows of a batch up to which a row becomes cheaper; 0: no more than usual */
    const struct sn_cancel *cancel; /* of a CPU device: between two blocks it ends loading and forward passes with
                                 SN_STOP; NULL: nothing does. Borrowed; set by the device's owner */
};

/* For backends: memory_max of a device that is opened with these options (or NULL). */
size_t sn_device_memory_max(const sn_device_options *options);
/* Counts bytes that a backend is about to allocate. SN_STOP with a sentence: they go beyond memory_max. */
sn_status sn_device_take_memory(sn_device *d, size_t bytes, sn_err *err) SN_MUST_USE;
void sn_device_give_memory(sn_device *d, size_t bytes); /* they are freed, or could not be allocated */
size_t sn_device_memory_left(const sn_device *d);       /* that may be allocated; of a device without limit SIZE_MAX */

/* Ends a batch whose operations returned `status`, and returns that unless it is SN_OK. A batch may also fail where the
 * device takes no part, as in an exchange with other nodes: left open, it would keep KV caches from being read and
 * written. One that failed and has a graph_key is left to the next batch_begin, so that no part of it is captured. */
sn_status sn_device_batch_end(sn_device *d, const sn_batch *batch, sn_status status, sn_err *err) SN_MUST_USE;

#endif
