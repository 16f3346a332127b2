/* The kernels of the CUDA backend, each behind a plain C function that queues it on a stream and returns what
 * cudaGetLastError says. Pointers are device memory unless said otherwise; they do not allocate and do not wait.
 *
 * Every sum is in a fixed order: lanes take elements a fixed distance apart, then a fixed tree joins the lanes; no
 * floating atomics. So results repeat from run to run on one kind of device. */
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
    SN_CUDA_FEW_ROWS = 8,   /* rows of x that the kernels of decoding take */
    SN_CUDA_LINEARS = 4,    /* matrices that one call takes */
    SN_CUDA_TILE_ROWS = 16, /* rows of a tile of attention */
    SN_CUDA_SPLITS = 32,    /* parts that a past is split into, at most */
    SN_CUDA_HEAD_DIM_MAX = 512,
};

/* -- linear, few rows (1..SN_CUDA_FEW_ROWS) */

/* 32 elements of a row of x: x ~ scale * q. In two planes, each (rows, cols / 32). */
typedef struct sn_cuda_xscale {
    float scale;
    float sum[2]; /* scale * (sum of q of either 16) */
    float unused;
} sn_cuda_xscale;

typedef struct sn_cuda_linear {
    sn_cuda_matrix weight;
    const float *bias; /* or NULL */
    float *y;          /* (n, weight.rows) */
} sn_cuda_linear;

/* q (n, cols) and scales (n, cols / 32) of x (n, cols); cols is a multiple of 32. A row with NaN or infinity in a group
 * gets a scale of NaN there. */
cudaError_t sn_cuda_quantize(cudaStream_t stream, int n, int cols, const float *x, int8_t *q, sn_cuda_xscale *scales);
/* y = x . w^T + bias for matrices of one quantised layout and equal cols. Integer products within 32 weights, exact;
 * then float32. */
cudaError_t sn_cuda_linear_quantised(cudaStream_t stream, int n, const int8_t *q, const sn_cuda_xscale *scales,
                                     int n_linears, const sn_cuda_linear *linears);
/* The same for one of the float layouts: x (n, x_stride), x_stride at least the weights' stride, zero beyond cols,
 * aligned to 16 bytes. float32 arithmetic. */
cudaError_t sn_cuda_linear_float(cudaStream_t stream, int n, const float *x, int x_stride, int n_linears,
                                 const sn_cuda_linear *linears);
/* out (n, stride) = x (n, cols), zero beyond cols. */
cudaError_t sn_cuda_pad_rows(cudaStream_t stream, int n, int cols, const float *x, int stride, float *out);

/* -- linear, many rows: what goes into and comes out of cuBLAS */

/* out (n, stride), bfloat16 = x (n, cols), rounded to nearest even, zero beyond cols. */
cudaError_t sn_cuda_to_bf16(cudaStream_t stream, int n, int cols, const float *x, int stride, bool rest, uint16_t *out);
/* out (n, cols rounded up to 8), bfloat16 = rows [first, first + n) of a matrix of any layout but F32 and BF16. */
cudaError_t sn_cuda_dequantize(cudaStream_t stream, const sn_cuda_matrix *weight, int first, int n, uint16_t *out);
/* y (n, rows) += bias (rows). */
cudaError_t sn_cuda_add_bias(cudaStream_t stream, int n, int rows, const float *bias, float *y);

/* -- the small operations; as in device/device.h */
cudaError_t sn_cuda_rms_norm(cudaStream_t stream, int n, int width, const float *x, const float *weight, float eps,
                             float *y);
cudaError_t sn_cuda_layer_norm(cudaStream_t stream, int n, int width, const float *x, const float *weight, const float *bias,
                               float eps, float *y);
cudaError_t sn_cuda_rope(cudaStream_t stream, int n, int n_heads, int head_dim, float *x, bool halves, int dim,
                         const float *cos_sin);
cudaError_t sn_cuda_activate(cudaStream_t stream, size_t n, sn_activation kind, const float *gate, const float *up, float *y);
cudaError_t sn_cuda_add(cudaStream_t stream, size_t n, float *y, const float *x);
/* ids (n) are row numbers that the host has checked. */
cudaError_t sn_cuda_gather(cudaStream_t stream, const sn_cuda_matrix *weight, int n, const int32_t *ids, float *y);

/* -- mixtures of experts; as in device/device.h. Expert e's matrix lies e * stride bytes behind `first`. x of linear_routed
 * is read as float32, and one expert's weights for each of its pairs: plain rather than fast for many rows. */
typedef struct sn_cuda_experts {
    sn_cuda_matrix first;
    size_t stride;
} sn_cuda_experts;

cudaError_t sn_cuda_route(cudaStream_t stream, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                          float *weights);
cudaError_t sn_cuda_linear_routed(cudaStream_t stream, const sn_choice *choice, bool each, const float *x,
                                  const sn_cuda_experts *experts, const float *bias, float *y);
cudaError_t sn_cuda_combine(cudaStream_t stream, const sn_choice *choice, int width, const float *x, float *y);
cudaError_t sn_cuda_linear_routed_grad(cudaStream_t stream, const sn_choice *choice, bool each, const float *dy,
                                       const sn_cuda_experts *experts, bool grow, float *dx);
cudaError_t sn_cuda_combine_grad(cudaStream_t stream, const sn_choice *choice, int width, const float *x, const float *dy,
                                 float *dx, float *dweights);
cudaError_t sn_cuda_route_grad(cudaStream_t stream, const sn_choice *choice, bool over_all, const float *logits,
                               const float *dweights, float *dlogits);

/* -- the past. A page holds for each block, for each key-value head, keys (page_tokens, padded_dim), then values
 * likewise, float32; padded_dim is head_dim rounded up to 4. What a pass is about lies in a table at a fixed address,
 * so that a recorded pass finds its own each time. */
typedef struct sn_cuda_row { /* a row of the pass */
    int32_t first_page;      /* of its sequence, in pages */
    int32_t position;
} sn_cuda_row;

typedef struct sn_cuda_tile { /* up to SN_CUDA_TILE_ROWS rows of one sequence; n_rows 0: no tile */
    int32_t first_row, n_rows;
} sn_cuda_tile;

typedef struct sn_cuda_past {
    int n_kv_heads, head_dim, padded_dim, page_tokens;
    size_t block_floats; /* where the block begins in a page */
    const sn_cuda_row *rows;
    const sn_cuda_tile *tiles;
    float *const *pages;
} sn_cuda_past;

cudaError_t sn_cuda_kv_store(cudaStream_t stream, const sn_cuda_past *past, int n_rows, const float *k, const float *v);
/* Rows of the table to or from k and v: (n_rows, n_kv_heads, head_dim). */
cudaError_t sn_cuda_kv_load(cudaStream_t stream, const sn_cuda_past *past, int n_rows, float *k, float *v);

typedef struct sn_cuda_attention {
    sn_cuda_past past;
    int n_heads, window;
    float scale;
    const float *slopes, *sinks; /* (n_heads), or NULL */
    const float *q; /* (n_rows, n_heads, head_dim) */
    float *out;     /* likewise */
    /* Scratch of attention by splits: sums (n_rows, n_heads, n_splits, padded_dim), then (n_rows, n_heads, n_splits,
     * 2): largest score and sum of exponentials. */
    float *partial, *partial_stats;
} sn_cuda_attention;

/* One row after the other, each row's past cut into n_splits parts (of at least 64 positions) that are joined
 * afterwards. */
cudaError_t sn_cuda_attention_split(cudaStream_t stream, const sn_cuda_attention *a, int n_rows, int n_splits);
/* By tiles of rows, one pass over the keys each with running maxima. */
cudaError_t sn_cuda_attention_tiles(cudaStream_t stream, const sn_cuda_attention *a, int n_tiles);

/* -- gradients; as in device/device.h */
cudaError_t sn_cuda_linear_grad(cudaStream_t stream, const sn_cuda_matrix *weight, int n, const float *dy, bool grow,
                                float *dx);
cudaError_t sn_cuda_outer_grad(cudaStream_t stream, int n, int rows, int cols, const float *dy, const float *x, float *dw);
cudaError_t sn_cuda_rms_norm_grad(cudaStream_t stream, int n, int width, const float *x, const float *weight, float eps,
                                  const float *dy, bool grow, float *dx);
cudaError_t sn_cuda_layer_norm_grad(cudaStream_t stream, int n, int width, const float *x, const float *weight, float eps,
                                    const float *dy, bool grow, float *dx);
cudaError_t sn_cuda_activate_grad(cudaStream_t stream, size_t n, sn_activation kind, const float *gate, const float *up,
                                  const float *dy, float *dgate, float *dup);
/* stats: scratch of 3 floats for each query row and head. */
cudaError_t sn_cuda_attention_grad(cudaStream_t stream, const sn_attention_grad *grad, float *stats);

#ifdef __cplusplus
}
#endif
#endif
