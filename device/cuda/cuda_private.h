/* Inside of the host side of the CUDA backend: the state of one open device, and the functions that the files of
 * device/cuda/ call of each other. Private to device/cuda/.
 *
 * Two streams: `work` for everything in order, `copies` for copies that run concurrently. Every wait is a loop that
 * queries an event or a stream and ends after device->timeout_ms; no function here calls CUDA functions that wait by
 * themselves while the device may be busy. The first error of the device is kept in `stop_reason`, and every later call
 * fails with it. All functions are called on the device's thread unless they say otherwise. The operations are those of
 * sn_device_ops (device/device.h), which documents them. */
#ifndef SN_DEVICE_CUDA_CUDA_PRIVATE_H
#define SN_DEVICE_CUDA_CUDA_PRIVATE_H

#include "device/backends.h"
#include "device/cuda/cublaslt.h"
#include "device/cuda/kernels.h"
#include "device/allocations.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

enum {
    SN_CUDA_STAGES = 8,               /* pinned buffers that uploads and downloads go through */
    SN_CUDA_COPY_EVENTS = 64,         /* events of concurrent copies */
    SN_CUDA_LAUNCH_EVENTS = 4,        /* the host may queue at most SN_CUDA_LAUNCH_EVENTS */
    SN_CUDA_LAUNCHES_PER_EVENT = 128, /* times this many kernels before it waits for the device */
    SN_CUDA_GRAPHS_MAX = 128,         /* batches known: captured, or seen once */
};
#define SN_CUDA_STAGE_BYTES ((size_t)1 << 20)
#define SN_CUDA_TILE_BYTES  ((size_t)64 << 20) /* at most, of a matrix that is converted to bfloat16 for cuBLAS */
#define SN_CUDA_BLAS_BYTES  ((size_t)32 << 20) /* workspace of cuBLAS: NVIDIA's recommendation for Hopper */
/* What a captured kernel or copy is taken to cost of the device's memory (64 KiB were measured with CUDA 11.2), and
 * what all captures should have. */
#define SN_CUDA_NODE_BYTES   ((size_t)64 << 10)
#define SN_CUDA_GRAPHS_BYTES ((size_t)64 << 20)
/* What the driver is taken to need of a device beside all that is allocated: its context, the code of our kernels and
 * of cuBLAS's, and the rounding of allocations. */
#define SN_CUDA_RESERVE_BYTES ((size_t)512 << 20)

/* Device memory that the backend uses itself; it only grows. */
typedef struct sn_cuda_buffer {
    void *at;
    size_t bytes;
} sn_cuda_buffer;

/* A batch seen before: at the second time it is captured. */
typedef struct sn_cuda_graph {
    uint64_t key; /* graph_key of the batch; 0: the entry is free */
    int n_rows, n_sequences, n_few;
    bool uncapturable; /* the capture failed: the batch runs eagerly */
    cudaGraphExec_t exec;
    size_t bytes;       /* counted for exec: SN_CUDA_NODE_BYTES for each node */
    uint64_t last_used; /* value of n_batches at the last use */
} sn_cuda_graph;

typedef enum sn_cuda_batch_state {
    SN_CUDA_NO_BATCH,
    SN_CUDA_EAGER,
    SN_CUDA_CAPTURING,
    SN_CUDA_REPLAYING
} sn_cuda_batch_state;

typedef struct sn_cuda {
    sn_device base;
    char description[192];
    int n_multiprocessors;
    cudaStream_t work, copies;
    cublasHandle_t blas;
    sn_cuda_lt lt;
    int sm;            /* compute capability: 90 is 9.0 */
    bool products_lt;  /* the environment wants cuBLASLt in place of cuBLAS */
    int products_side; /* what the environment says in place of the rule of products.c; -1: nothing */
    uint16_t products_told[SN_DTYPE_COUNT]; /* classes of rows whose way the log knows */
    sn_device_limits limits;
    sn_cuda_buffer blas_workspace;
    sn_cuda_buffer x;            /* rows of x in the form that the kernels of linear read */
    sn_cuda_buffer tile;         /* rows of a matrix as bfloat16 */
    sn_cuda_buffer ids;          /* of get_rows */
    sn_cuda_buffer kv_staging;   /* keys and values between host and pages */
    sn_cuda_buffer partial;      /* partial results of attention */
    sn_cuda_buffer arrivals;     /* counters of attention, all 0 between kernels */
    sn_cuda_buffer index_scores; /* of some rows, by an indexer */
    sn_cuda_buffer groups;       /* pairs of rows and experts, grouped by expert */
    sn_cuda_buffer grad;         /* statistics of attention_grad */
    sn_allocations allocations;  /* of alloc */

    struct sn_cuda_stage {
        void *host;
        cudaEvent_t done;
        bool busy;
    } stages[SN_CUDA_STAGES];
    int next_stage;

    cudaEvent_t queue_event; /* recorded in `work`; a concurrent copy waits for it */
    cudaEvent_t copy_events[SN_CUDA_COPY_EVENTS];
    uint64_t last_fence;

    cudaEvent_t launch_events[SN_CUDA_LAUNCH_EVENTS];
    int next_launch_event, launches_since_event;
    bool launch_event_used[SN_CUDA_LAUNCH_EVENTS];

    /* -- the batch: batch.c */
    sn_cuda_batch_state state;
    bool capturable; /* the open batch has a graph_key: only operations of the forward pass are allowed in it */
    sn_kv_shape shape;
    int n_rows, n_sequences, n_tiles;
    int n_few;                    /* rows of sequences of at most SN_CUDA_CHUNK_ROWS */
    const sn_sequence *sequences; /* the caller's, until batch_end */
    int rows_capacity, tiles_capacity, states_capacity, pages_capacity; /* of the batch table */
    sn_cuda_buffer batch_table;
    void *batch_table_host;
    sn_cuda_graph graphs[SN_CUDA_GRAPHS_MAX];
    sn_cuda_graph *graph; /* of the open batch, or NULL */
    uint64_t n_batches;
    bool batch_failed; /* an operation of the open batch failed: it is not captured */

    char stop_reason[320]; /* base.lost points to it */
} sn_cuda;

/* -- queue.c: errors, waits */

/* Begins an operation: makes the device current for this thread. SN_STOP when the device has stopped. */
sn_status sn_cuda_enter(sn_cuda *cuda, sn_err *err) SN_MUST_USE;
/* As sn_cuda_enter, for operations that are not allowed in a batch that is or can be captured. SN_REFUSED there. */
sn_status sn_cuda_enter_uncaptured(sn_cuda *cuda, const char *what, sn_err *err) SN_MUST_USE;
/* SN_OK for success; otherwise stops the device, or (in a capture) fails with SN_RETRY. `what` names the activity: "a
 * kernel of linear". */
sn_status sn_cuda_check(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) SN_MUST_USE;
/* As sn_cuda_check, after a kernel launch; waits when the host has queued too much. */
sn_status sn_cuda_check_launch(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) SN_MUST_USE;
/* Fails with SN_RETRY in a capture that `why` ended: the batch runs eagerly from now on. */
sn_status sn_cuda_fail_capture(sn_cuda *cuda, const char *what, const char *why, sn_err *err);
/* Ends an operation of a batch: remembers a failure, so that an incomplete batch is not captured. Returns `status`. */
sn_status sn_cuda_op_done(sn_cuda *cuda, sn_status status);
sn_status sn_cuda_wait_event(sn_cuda *cuda, cudaEvent_t event, sn_err *err) SN_MUST_USE;
sn_status sn_cuda_wait_stream(sn_cuda *cuda, cudaStream_t stream, sn_err *err) SN_MUST_USE;
/* Whether both streams are empty or the device is lost, so that freeing memory cannot block. Queries for at most 20 ms.
 */
bool sn_cuda_idle(sn_cuda *cuda);

/* -- memory.c */
SN_OPERATION(alloc, sn_cuda_alloc);
SN_OPERATION(free, sn_cuda_free);
SN_OPERATION(owns, sn_cuda_owns);
SN_OPERATION(upload, sn_cuda_upload);
SN_OPERATION(download, sn_cuda_download);
SN_OPERATION(finish, sn_cuda_finish);
SN_OPERATION(host_alloc, sn_cuda_host_alloc);
SN_OPERATION(host_free, sn_cuda_host_free);
SN_OPERATION(copy_begin, sn_cuda_copy_begin);
SN_OPERATION(copy_join, sn_cuda_copy_join);
SN_OPERATION(copy_wait, sn_cuda_copy_wait);
/* Makes the buffer at least `bytes`; its old contents are lost. When it grows, it waits and drops all graphs, which
 * contain the old address. After a failure it is as before. */
sn_status sn_cuda_buffer_reserve(sn_cuda *cuda, sn_cuda_buffer *buffer, size_t bytes, sn_err *err) SN_MUST_USE;
/* Checks that the buffer has so many bytes: operations allocate nothing. SN_REFUSED: prepare was given smaller limits.
 */
sn_status sn_cuda_buffer_require(sn_cuda *cuda, const sn_cuda_buffer *buffer, size_t bytes, sn_err *err) SN_MUST_USE;
/* As upload, without the check of sn_cuda_enter_uncaptured: for batch_begin. */
sn_status sn_cuda_upload_staged(sn_cuda *cuda, void *device, const void *host, size_t bytes, sn_err *err) SN_MUST_USE;

/* -- pack.c */
SN_OPERATION(weight_size, sn_cuda_weight_size);
SN_OPERATION(weight_pack, sn_cuda_weight_pack);
sn_cuda_matrix sn_cuda_matrix_of(const sn_weight *weight);

/* -- batch.c */
SN_OPERATION(batch_begin, sn_cuda_batch_begin);
SN_OPERATION(batch_end, sn_cuda_batch_end);
void sn_cuda_graphs_clear(sn_cuda *cuda);
void sn_cuda_batch_abort(sn_cuda *cuda); /* ends the open batch without keeping anything of it */
/* The most pages that a batch within these limits has. */
size_t sn_cuda_table_pages(const sn_device_limits *limits);
/* Bytes of the batch table for this many rows, sequences and pages, and not less than it has room for now. */
size_t sn_cuda_table_bytes(const sn_cuda *cuda, size_t rows, size_t sequences, size_t pages);
/* Reserves room in the batch table for this many rows, sequences and pages. */
sn_status sn_cuda_table_reserve(sn_cuda *cuda, size_t rows, size_t sequences, size_t pages, sn_err *err) SN_MUST_USE;
/* Fills and uploads the batch table for these sequences. */
sn_status sn_cuda_table_upload(sn_cuda *cuda, const sn_kv_shape *shape, int n_rows, int n_sequences,
                               const sn_sequence *sequences, sn_err *err) SN_MUST_USE;
sn_cuda_kv sn_cuda_kv_of(const sn_cuda *cuda, const sn_kv_shape *shape, int block);
const sn_cuda_state *sn_cuda_states_of(const sn_cuda *cuda);

/* A product for cuBLAS: y (n, n_w) = x (n, x_stride) . w (n_w, w_stride)^T, or y += it with `accumulate`. Rows of y lie
 * y_stride elements apart. */
typedef struct sn_cuda_gemm {
    const void *x;
    int n, x_stride;
    const void *w;
    int n_w, w_stride;
    cudaDataType_t type; /* of x and w */
    bool accumulate;
    float *y;
    int y_stride;
} sn_cuda_gemm;

/* -- cublaslt.c */

/* Where the library is missing, the log says so, and cuBLAS multiplies. */
void sn_cuda_lt_open(sn_cuda *cuda);
void sn_cuda_lt_close(sn_cuda *cuda);
/* False: the product is left to cuBLAS. */
bool sn_cuda_lt_gemm(sn_cuda *cuda, const sn_cuda_gemm *g, cublasStatus_t *result);

/* -- cublas.c */
/* Loads cuBLAS at the first call (dlopen), so that the program starts where it is not installed; no cuBLAS function may
 * be called before it has succeeded. SN_REFUSED with the reason when cuBLAS cannot be used. Any thread. */
sn_status sn_cuda_cublas_load(sn_err *err) SN_MUST_USE;

/* -- nvml.c */
/* Bytes of a device that are free, without a context on it; false: that is not known. */
bool sn_cuda_free_memory(int ordinal, size_t *bytes);

/* -- linear.c */
size_t sn_cuda_x_bytes(const sn_device_limits *limits); /* bytes of cuda->x; above PTRDIFF_MAX: too large */
SN_OPERATION(linear, sn_cuda_linear_op);
SN_OPERATION(norm_linear, sn_cuda_norm_linear_op);
SN_OPERATION(attention_linear, sn_cuda_attention_linear_op);
SN_OPERATION(activate_linear, sn_cuda_activate_linear_op);

/* -- products.c: products of many rows */
sn_status sn_cuda_products_open(sn_cuda *cuda, sn_err *err) SN_MUST_USE;
/* The side of the tiles with which the kernel multiplies n rows with these matrices of one layout; 0: cuBLAS does. */
int sn_cuda_products_side(sn_cuda *cuda, int n, int n_linears, const sn_linear *linears);

/* -- kv.c */
SN_OPERATION(kv_store, sn_cuda_kv_store_op);
SN_OPERATION(rope_store, sn_cuda_rope_store_op);
SN_OPERATION(kv_read, sn_cuda_kv_read);
SN_OPERATION(kv_write, sn_cuda_kv_write);
SN_OPERATION(attention, sn_cuda_attention_op);
/* Whether attention of the open batch can write its rows, n, in 8 bits besides. */
bool sn_cuda_attends_in_8_bits(const sn_cuda *cuda, int n, int block);
/* attention, which writes its rows besides where `form` says. */
sn_status sn_cuda_attend(sn_cuda *cuda, const sn_attention *params, const float *q, float *out, sn_cuda_eight_bits form,
                         sn_err *err) SN_MUST_USE;
/* Bytes of cuda->kv_staging, cuda->partial and cuda->arrivals for calls within these limits. */
size_t sn_cuda_kv_staging_bytes(const sn_device_limits *limits);
size_t sn_cuda_partial_bytes(const sn_cuda *cuda, const sn_device_limits *limits);
size_t sn_cuda_arrivals_bytes(const sn_device_limits *limits);
SN_OPERATION(kv_page_bytes, sn_cuda_kv_page_bytes);
/* Of a page, for the shape of a block: its keys and values of a head, and of all heads. Values take as much as keys. */
size_t sn_cuda_kv_head_bytes(const sn_kv_shape *one);
size_t sn_cuda_kv_block_bytes(const sn_kv_shape *one);
/* The most parts that each of n_rows rows' keys are split into where a part of one row takes `blocks` thread blocks: as
 * many as fill the device, and some where rows may differ in length. It depends only on what identifies a captured
 * batch; how many of them a row has, depends on its length (split.cuh). */
int sn_cuda_attention_n_splits(const sn_cuda *cuda, int n_rows, int blocks);
/* The partial results that a head may have where tiles of rows are split: of a batch of n_rows, its rows times parts.
 */
int sn_cuda_tile_room(int n_rows);
/* Scratch memory for n_rows rows with sums of `dim` elements, in n_splits parts each. */
sn_status sn_cuda_attention_scratch(sn_cuda *cuda, sn_cuda_attention *a, int n_rows, int n_splits, int dim,
                                    sn_err *err) SN_MUST_USE;

/* -- latent.c */
/* attention over a latent KV cache: fills in the scratch memory, and launches. */
sn_status sn_cuda_latent_attend(sn_cuda *cuda, sn_cuda_attention *a, sn_err *err) SN_MUST_USE;
SN_OPERATION(head_linear, sn_cuda_head_linear_op);

/* -- delta.c */
SN_OPERATION(choose_keys, sn_cuda_choose_keys);
size_t sn_cuda_index_scores_bytes(const sn_device_limits *limits);
SN_OPERATION(short_conv, sn_cuda_short_conv_op);
SN_OPERATION(delta_rule, sn_cuda_delta_rule_op);

/* -- rowwise.c */
SN_OPERATION(rms_norm, sn_cuda_rms_norm_op);
SN_OPERATION(group_norm, sn_cuda_group_norm_op);
SN_OPERATION(layer_norm, sn_cuda_layer_norm_op);
SN_OPERATION(rope, sn_cuda_rope_op);
sn_status sn_cuda_check_rope(const sn_rope *rope, int head_dim, sn_err *err) SN_MUST_USE;
SN_OPERATION(activate, sn_cuda_activate_op);
SN_OPERATION(add, sn_cuda_add_op);
SN_OPERATION(scale, sn_cuda_scale_op);
SN_OPERATION(clamp, sn_cuda_clamp_op);
SN_OPERATION(dot_rows, sn_cuda_dot_rows_op);
SN_OPERATION(get_rows, sn_cuda_get_rows_op);

/* -- grad.c */
SN_OPERATION(linear_input_grad, sn_cuda_linear_input_grad_op);
SN_OPERATION(linear_weight_grad, sn_cuda_linear_weight_grad_op);
SN_OPERATION(rms_norm_grad, sn_cuda_rms_norm_grad_op);
SN_OPERATION(layer_norm_grad, sn_cuda_layer_norm_grad_op);
SN_OPERATION(activate_grad, sn_cuda_activate_grad_op);
SN_OPERATION(attention_grad, sn_cuda_attention_grad_op);

/* -- experts.c */
size_t sn_cuda_groups_bytes(const sn_device_limits *limits); /* bytes of cuda->groups */
SN_OPERATION(moe_gate, sn_cuda_moe_gate_op);
SN_OPERATION(moe_linear, sn_cuda_moe_linear_op);
SN_OPERATION(moe_combine, sn_cuda_moe_combine_op);
SN_OPERATION(moe_linear_grad, sn_cuda_moe_linear_grad_op);
SN_OPERATION(moe_combine_grad, sn_cuda_moe_combine_grad_op);
SN_OPERATION(moe_gate_grad, sn_cuda_moe_gate_grad_op);

#endif
