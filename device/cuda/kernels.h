/* The kernels of the CUDA backend. Each is a plain C function that launches it on a stream and returns
 * cudaGetLastError. Private to device/cuda/. Pointers point to device memory unless stated otherwise; the functions do
 * not allocate and do not wait.
 *
 * Every sum has a fixed order: lanes take elements at a fixed distance, then a fixed tree joins the lanes; there are no
 * floating-point atomics. Therefore results repeat from run to run on one kind of device. */
#ifndef SN_DEVICE_CUDA_KERNELS_H
#define SN_DEVICE_CUDA_KERNELS_H

#include "device/cuda/layout.h"
#include "device/device.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SN_CUDA_CHUNK_ROWS = 8,    /* rows of x that a block of the kernels for few rows takes */
    SN_CUDA_FEW_ROWS = 32,     /* rows of x that these kernels are used for, at most: linear.c */
    SN_CUDA_LINEARS = 4,       /* matrices of one call */
    SN_CUDA_TILE_ROWS = 64,    /* rows of a tile of attention */
    SN_CUDA_TILE_PARTS = 16,   /* parts that the keys of a tile are split into, at most */
    SN_CUDA_MORE_TILES = 64,   /* that a batch has by splitting, at most */
    SN_CUDA_SPLIT_HEADS = 8,   /* query heads that a block of split attention takes, at most */
    SN_CUDA_LATENT_HEADS = 16, /* and of latent attention */
    SN_CUDA_SPLITS = 64,       /* parts that the keys of a row are split into, at most */
    SN_CUDA_HEAD_DIM_MAX = 512,
    SN_CUDA_MANY_PAIRS = 16, /* pairs of an expert from which on they are multiplied by tensor cores */
    SN_CUDA_TILE_PAIRS = 64, /* pairs of a tile of them */
};

/* -- linear, few rows (1..SN_CUDA_FEW_ROWS) */

/* 32 elements of a row of x: x ~ scale * q. q and scales are two arrays: (rows, cols) and (rows, cols / 32). */
typedef struct sn_cuda_xscale {
    float scale;
    float sum[2]; /* scale * (sum of q), of each half of 16 */
    float unused;
} sn_cuda_xscale;

/* Where an operation writes its result besides, quantised as by sn_cuda_quantize; q NULL: nowhere. Rows are then whole
 * groups of 32. */
typedef struct sn_cuda_eight_bits {
    int8_t *q;
    sn_cuda_xscale *scales;
} sn_cuda_eight_bits;

typedef struct sn_cuda_linear {
    sn_cuda_matrix weight;
    const float *bias; /* or NULL */
    float *y;          /* (n, weight.rows) */
} sn_cuda_linear;

/* Quantises x (n, cols) to q (n, cols) and scales (n, cols / 32); cols is a multiple of 32. A group with NaN or
 * infinity gets the scale NaN. */
cudaError_t sn_cuda_quantize(cudaStream_t stream, int n, int cols, const float *x, int8_t *q, sn_cuda_xscale *scales);
/* y = x . w^T + bias for matrices of one quantised layout and equal cols. Products of 32 weights are exact integers,
 * the rest is float32. */
cudaError_t sn_cuda_linear_quantised(cudaStream_t stream, int n, const int8_t *q, const sn_cuda_xscale *scales,
                                     int n_linears, const sn_cuda_linear *linears);
/* As sn_cuda_linear_quantised, for one of the float layouts, in float32: x (n, x_stride), aligned to 16 bytes and zero
 * beyond cols; x_stride is at least the stride of the weights. */
cudaError_t sn_cuda_linear_float(cudaStream_t stream, int n, const float *x, int x_stride, int n_linears,
                                 const sn_cuda_linear *linears);
/* out (n, stride) = x (n, cols), zero beyond cols. */
cudaError_t sn_cuda_pad_rows(cudaStream_t stream, int n, int cols, const float *x, int stride, float *out);

/* -- linear, many rows */

/* y = x . w^T + bias for matrices of one layout, any but F32, and equal cols: x (n, x_stride) as bfloat16, aligned to
 * 16 bytes and zero beyond cols; x_stride is cols rounded up to 8. Weights are rounded to bfloat16 as they are read,
 * sums are float32. side: of the square tiles of y, 64 or 128; it changes no bit. */
cudaError_t sn_cuda_linear_products(cudaStream_t stream, int n, const uint16_t *x, int side, int n_linears,
                                    const sn_cuda_linear *linears);

/* -- linear, many rows: conversions before and after cuBLAS */

/* out (n, stride) = x (n, cols) as bfloat16, rounded to nearest even, zero beyond cols. With `residual`: the bfloat16
 * of what that rounding left of x. */
cudaError_t sn_cuda_to_bf16(cudaStream_t stream, int n, int cols, const float *x, int stride, bool residual,
                            uint16_t *out);
/* out (n, cols rounded up to 8) = rows [first, first + n) of a matrix as bfloat16, for any layout but F32 and BF16. */
cudaError_t sn_cuda_dequantize(cudaStream_t stream, const sn_cuda_matrix *weight, int first, int n, uint16_t *out);
/* y (n, rows) += bias (rows). */
cudaError_t sn_cuda_add_bias(cudaStream_t stream, int n, int rows, const float *bias, float *y);

/* -- operations on rows and elements; as in device/device.h */
typedef struct sn_cuda_norm { /* rows (width): x += add first, where there is something to add; then y = norm */
    int width, groups;        /* row i has the factors i % groups */
    float *x;                 /* written only with add */
    const float *add;         /* NULL: nothing */
    const float *weight;
    float eps;
    float *y; /* may be x, or add */
    sn_cuda_eight_bits form;
} sn_cuda_norm;

cudaError_t sn_cuda_rms_norm(cudaStream_t stream, int n, const sn_cuda_norm *norm);
cudaError_t sn_cuda_layer_norm(cudaStream_t stream, int n, int width, const float *x, const float *weight,
                               const float *bias, float eps, float *y);
cudaError_t sn_cuda_rope(cudaStream_t stream, int n, int n_heads, int head_dim, float *x, bool rotate_half, int dim,
                         const float *cos_sin);
cudaError_t sn_cuda_activate(cudaStream_t stream, size_t n, sn_activation kind, const float *gate, const float *up,
                             float *y, sn_cuda_eight_bits form);
cudaError_t sn_cuda_add(cudaStream_t stream, size_t n, float *y, const float *x);
cudaError_t sn_cuda_scale(cudaStream_t stream, int n, int width, const float *x, float factor, const float *factors,
                          float *y);
cudaError_t sn_cuda_clamp(cudaStream_t stream, size_t n, float *x, float low, float high);
cudaError_t sn_cuda_dot_rows(cudaStream_t stream, int n, int width, const float *a, const float *b, float *y);
/* ids (n): row numbers that the host has checked. */
cudaError_t sn_cuda_get_rows(cudaStream_t stream, const sn_cuda_matrix *weight, int n, const int32_t *ids, float *y);

/* -- mixtures of experts; as in device/device.h. The matrix of expert e lies e * stride bytes after `first`. x is read
 * as float32. moe_linear reads an expert's weights once for each of its pairs of a row and an expert, moe_grouped once
 * for each of its chunks of up to SN_CUDA_CHUNK_ROWS pairs, with the same bits; moe_products once for each of its
 * tiles, with x as the sum of two bfloat16 and weights rounded to bfloat16. */
typedef struct sn_cuda_experts {
    sn_cuda_matrix first;
    size_t stride;
} sn_cuda_experts;

cudaError_t sn_cuda_moe_gate(cudaStream_t stream, int n, const sn_moe_router *router, const float *logits, int32_t *ids,
                             float *weights);
cudaError_t sn_cuda_moe_linear(cudaStream_t stream, const sn_moe_selection *selection, bool per_expert, const float *x,
                               const sn_cuda_experts *experts, const float *bias, float *y);
typedef struct sn_cuda_chunk { /* pairs order[first] to order[first + n - 1] of an expert; n 0: unused. Also a tile. */
    int32_t expert, first, n;
} sn_cuda_chunk;

typedef struct sn_cuda_groups {
    int32_t *order;        /* pairs, those of each expert together; pairs without an expert are left out */
    sn_cuda_chunk *chunks; /* (n_few + n_many): of experts of fewer than SN_CUDA_MANY_PAIRS pairs, then of the others */
    sn_cuda_chunk *tiles;  /* (n_tiles): of the others, too */
    int n_few, n_many, n_tiles; /* room for all that any ids make */
    int per_row;                /* pairs that read one row of x */
} sn_cuda_groups;

cudaError_t sn_cuda_moe_group(cudaStream_t stream, const sn_moe_selection *selection, const sn_cuda_groups *groups);
/* few: leaves out the experts that have tiles. */
cudaError_t sn_cuda_moe_grouped(cudaStream_t stream, const sn_cuda_groups *groups, bool few, const float *x,
                                const sn_cuda_experts *experts, const float *bias, float *y);
/* Those experts; any layout but F32. */
cudaError_t sn_cuda_moe_products(cudaStream_t stream, const sn_cuda_groups *groups, const float *x,
                                 const sn_cuda_experts *experts, const float *bias, float *y);
cudaError_t sn_cuda_moe_combine(cudaStream_t stream, const sn_moe_selection *selection, int width, const float *x,
                                float *y);
cudaError_t sn_cuda_moe_linear_grad(cudaStream_t stream, const sn_moe_selection *selection, bool per_expert,
                                    const float *dy, const sn_cuda_experts *experts, bool accumulate, float *dx);
cudaError_t sn_cuda_moe_combine_grad(cudaStream_t stream, const sn_moe_selection *selection, int width, const float *x,
                                     const float *dy, float *dx, float *dweights);
cudaError_t sn_cuda_moe_gate_grad(cudaStream_t stream, const sn_moe_selection *selection, const sn_moe_router *router,
                                  const float *logits, const float *dweights, float *dlogits);

/* -- the KV cache. A page holds for each block and each key-value head the keys (page_tokens, padded_dim), then the
 * values in the same shape, in the cache's type; padded_dim is head_dim rounded up to 4. With SN_KV_Q8 the bfloat16
 * scales follow, (2 page_tokens or rows, groups of 32 dimensions). The batch table (batch.c) is at a fixed address, so
 * that a replayed graph reads the data of its own batch. */
typedef struct sn_cuda_row { /* a row of the batch */
    int32_t first_page;      /* index of its sequence's first page in `pages` */
    int32_t position;
} sn_cuda_row;

/* Up to SN_CUDA_TILE_ROWS rows of one sequence, and a part of their keys; n_rows 0: unused. */
typedef struct sn_cuda_tile {
    int32_t first_row, n_rows;
    int32_t first_part;    /* of the tile's n_rows * n_parts partial results of each head, row by row */
    int16_t part, n_parts; /* n_parts 1: nothing is split, and there are no partial results */
} sn_cuda_tile;

typedef struct sn_cuda_kv {
    int n_kv_heads, head_dim, padded_dim, page_tokens; /* of the block */
    int value_dim; /* elements of a value outside of the pages; in them zeros follow, up to padded_dim */
    size_t block_floats, head_floats; /* offset of the block in a page, and the size of a head of it, in floats */
    const sn_cuda_row *rows;
    const int32_t *few; /* the rows of sequences of at most SN_CUDA_CHUNK_ROWS, which the tiles leave out */
    const sn_cuda_tile *tiles;
    float *const *pages;
    int latent; /* as in sn_kv_shape */
    sn_kv_dtype dtype;
    bool
        in_rows; /* latents, and index keys: a page holds rows (page_tokens, padded_dim), values and the rest of keys */
} sn_cuda_kv;

cudaError_t sn_cuda_kv_store(cudaStream_t stream, const sn_cuda_kv *kv, int n_rows, const float *k, const float *v);
/* Rotates q (n_rows, n_heads, head_dim) and k, and then stores k and v. */
cudaError_t sn_cuda_rope_store(cudaStream_t stream, const sn_cuda_kv *kv, int n_rows, const sn_rope *rope, int n_heads,
                               float *q, float *k, const float *v);
/* Copies the positions of the table's rows from the pages to k, (n_rows, n_kv_heads, head_dim), and v, (.., value_dim).
 */
cudaError_t sn_cuda_kv_load(cudaStream_t stream, const sn_cuda_kv *kv, int n_rows, float *k, float *v);

typedef struct sn_cuda_attention {
    sn_cuda_kv kv;
    int n_heads, window;
    float softcap;
    float scale;
    const float *slopes, *sinks; /* (n_heads), or NULL */
    const float *q;              /* (n_rows, n_heads, head_dim) */
    float *out;                  /* (n_rows, n_heads, value_dim, or latent) */
    /* Scratch memory of attention by splits: sums (n_rows, n_heads, n_splits, padded_dim) and statistics (n_rows,
     * n_heads, n_splits, 2): the largest score and the sum of exponentials; and (n_rows, n_heads) of which some count
     * the parts that are done, 0 before and after. A tile's rows have n_parts in the place of n_splits, and begin at
     * that of first_part. */
    float *partial, *partial_stats;
    unsigned int *arrivals;
    const int32_t *chosen; /* as in sn_attention */
    int n_chosen;
} sn_cuda_attention;

/* Each of the n_rows rows in kv.few by itself: its keys are split into parts of at least 64 positions, n_splits at
 * most.
 */
cudaError_t sn_cuda_attention_split(cudaStream_t stream, const sn_cuda_attention *a, int n_rows, int n_splits,
                                    sn_cuda_eight_bits form);
/* Tiles of rows, and then the joins of those that are split. */
cudaError_t sn_cuda_attention_tiles(cudaStream_t stream, const sn_cuda_attention *a, int n_tiles);
cudaError_t sn_cuda_attention_join_tiles(cudaStream_t stream, const sn_cuda_attention *a, int n_tiles);

/* -- latent attention: kv.latent is not 0. As the functions above, with k and v as in sn_device_ops.kv_store. The
 * matrix of head h is that of expert h. */
cudaError_t sn_cuda_latent_store(cudaStream_t stream, const sn_cuda_kv *kv, int n_rows, const float *k, const float *v);
cudaError_t sn_cuda_latent_load(cudaStream_t stream, const sn_cuda_kv *kv, int n_rows, float *k, float *v);
/* partial: sums (n_rows, n_heads, n_splits, latent rounded up to 4); with n_splits 1 there are none. */
cudaError_t sn_cuda_latent_attention(cudaStream_t stream, const sn_cuda_attention *a, int n_rows, int n_splits);
cudaError_t sn_cuda_head_linear(cudaStream_t stream, const sn_cuda_experts *heads, int n_heads, int n, int x_width,
                                const float *x, float *y);

/* -- an indexer, of rows [first_row, first_row + n_rows) of the batch. Rows below position n_chosen are left out. */
typedef struct sn_cuda_indexer {
    sn_cuda_kv keys; /* of the block of index keys */
    int n_heads, n_chosen, first_row, n_rows;
    const float *q, *weights; /* of all rows */
    float *scores;            /* (n_rows, stride) */
    size_t stride;
    int32_t *chosen; /* of all rows */
} sn_cuda_indexer;

cudaError_t sn_cuda_index_scores(cudaStream_t stream, const sn_cuda_indexer *p);
cudaError_t sn_cuda_choose(cudaStream_t stream, const sn_cuda_indexer *p);

/* -- recurrent blocks; as in device/device.h. The states of a sequence of the batch, and its rows: */
typedef struct sn_cuda_state {
    const float *before;
    float *after, *snapshot; /* after NULL: the batch has no states */
    int32_t snapshot_rows, first_row, n_rows, unused;
} sn_cuda_state;

typedef struct sn_cuda_delta {
    int key_heads, value_heads, key_dim, value_dim, taps;
    bool key_heads_alternate;
    sn_recurrence kind;
    size_t channels, first_channel, count;
    size_t matrix_floats, block_floats; /* of a block's state: of its matrices; of the blocks before it */
    const float *tap_weights, *taps_bias, *rates, *time_bias, *skip;
    float floor;
    const sn_cuda_state *states; /* (sequences of the batch) */
} sn_cuda_delta;

cudaError_t sn_cuda_short_conv(cudaStream_t stream, const sn_cuda_delta *p, int n_sequences, float *x);
cudaError_t sn_cuda_delta_rule(cudaStream_t stream, const sn_cuda_delta *p, int n_sequences, const sn_delta_rows *rows,
                               float *out);

/* -- the backward pass; as in device/device.h */
cudaError_t sn_cuda_linear_input_grad(cudaStream_t stream, const sn_cuda_matrix *weight, int n, const float *dy,
                                      bool accumulate, float *dx);
cudaError_t sn_cuda_linear_weight_grad(cudaStream_t stream, int n, int rows, int cols, const float *dy, const float *x,
                                       float *dw);
cudaError_t sn_cuda_rms_norm_grad(cudaStream_t stream, int n, int width, const float *x, const float *weight, float eps,
                                  const float *dy, bool accumulate, float *dx);
cudaError_t sn_cuda_layer_norm_grad(cudaStream_t stream, int n, int width, const float *x, const float *weight,
                                    float eps, const float *dy, bool accumulate, float *dx);
cudaError_t sn_cuda_activate_grad(cudaStream_t stream, size_t n, sn_activation kind, const float *gate, const float *up,
                                  const float *dy, float *dgate, float *dup);
/* stats: scratch memory of 3 floats for each query row and head. */
cudaError_t sn_cuda_attention_grad(cudaStream_t stream, const sn_attention_grad *grad, float *stats);

#ifdef __cplusplus
}
#endif
#endif
