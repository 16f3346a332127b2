/* Inside of the CUDA backend's host side: one device's state and what its files call of each other.
 *
 * Two streams: `work` for everything in order, `copies` for copies beside it. Every wait is a loop that asks an event
 * or a stream whether it is done and gives up after device->timeout_ms; nothing here calls a function of CUDA that
 * waits by itself while the device may be busy. The first thing that goes wrong with the device is kept in `sentence`,
 * and every later call fails with it. */
#ifndef SN_DEVICE_CUDA_INSIDE_H
#define SN_DEVICE_CUDA_INSIDE_H

#include "device/backends.h"
#include "device/cuda/kernels.h"
#include "device/holdings.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

enum {
    SN_CUDA_STAGES = 8,        /* pieces of pinned memory that uploads and downloads go through */
    SN_CUDA_TICKETS = 64,      /* events of copies beside the queue */
    SN_CUDA_FENCES = 4,        /* how far the host may run ahead of the device: */
    SN_CUDA_FENCE_EVERY = 128, /* fences times this many kernels */
    SN_CUDA_RECORDS = 128,     /* passes known, recorded or seen once */
};
#define SN_CUDA_STAGE_BYTES ((size_t)1 << 20)
#define SN_CUDA_TILE_BYTES  ((size_t)64 << 20) /* at most, of a matrix made bfloat16 for cuBLAS */
#define SN_CUDA_BLAS_BYTES  ((size_t)32 << 20) /* workspace of cuBLAS: what NVIDIA advises for Hopper */

/* Device memory of the backend's own that only grows. */
typedef struct sn_cuda_room {
    void *at;
    size_t bytes;
} sn_cuda_room;

/* A pass that came by: once, then recorded the second time. */
typedef struct sn_cuda_record {
    uint64_t graph; /* 0: free */
    int n_rows, n_sequences;
    bool refused; /* could not be recorded: run as it is */
    cudaGraphExec_t exec;
    uint64_t used; /* when, in passes */
} sn_cuda_record;

typedef enum sn_cuda_pass_state {
    SN_CUDA_NO_PASS,
    SN_CUDA_EAGER,
    SN_CUDA_RECORDING,
    SN_CUDA_REPLAYING
} sn_cuda_pass_state;

typedef struct sn_cuda {
    sn_device base;
    char description[128];
    cudaStream_t work, copies;
    cublasHandle_t blas;
    sn_device_limits limits;
    sn_cuda_room blas_room;
    sn_cuda_room x;       /* rows of x as the kernels of linear want them */
    sn_cuda_room tile;    /* rows of a matrix as bfloat16 */
    sn_cuda_room ids;     /* of gather */
    sn_cuda_room past;    /* keys and values on their way in or out */
    sn_cuda_room partial; /* of attention */
    sn_cuda_room grad;    /* of its gradient */
    sn_holdings held;     /* what alloc gave */

    struct sn_cuda_stage {
        void *host;
        cudaEvent_t done;
        bool busy;
    } stages[SN_CUDA_STAGES];
    int next_stage;

    cudaEvent_t queued; /* what a copy waits for */
    cudaEvent_t tickets[SN_CUDA_TICKETS];
    uint64_t last_ticket;

    cudaEvent_t fences[SN_CUDA_FENCES];
    int next_fence, since_fence;
    bool fenced[SN_CUDA_FENCES];

    /* -- the pass: pass.c */
    sn_cuda_pass_state state;
    bool named; /* the open pass has a graph number: nothing but mathematics may come within */
    sn_kv_shape shape;
    int n_rows, n_sequences, n_tiles;
    int rows_room, tiles_room, pages_room; /* of the table */
    sn_cuda_room table;
    void *table_host;
    sn_cuda_record records[SN_CUDA_RECORDS];
    sn_cuda_record *record; /* of the open pass, or NULL */
    uint64_t passes;
    bool spoilt; /* an operation of the open pass failed: no record is made of it */

    bool stopped;
    char sentence[256];
} sn_cuda;

/* -- queue.c: errors, waits */

/* Begins an operation: SN_STOP when the device has stopped; makes it the thread's device. */
sn_status sn_cuda_enter(sn_cuda *cuda, sn_err *err) SN_MUST_USE;
/* The same for operations that may not come within a pass that is or will be recorded. */
sn_status sn_cuda_enter_unrecorded(sn_cuda *cuda, const char *what, sn_err *err) SN_MUST_USE;
/* SN_OK for success; else the device stops. `what` was being done: "a kernel of linear". */
sn_status sn_cuda_check(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) SN_MUST_USE;
/* After a kernel was queued: as check; and waits when the host is too far ahead. */
sn_status sn_cuda_queued(sn_cuda *cuda, cudaError_t error, const char *what, sn_err *err) SN_MUST_USE;
/* After an operation of a pass: remembers a failure, so that no record is made of half a pass. Returns `status`. */
sn_status sn_cuda_done(sn_cuda *cuda, sn_status status);
void sn_cuda_left_device(void); /* this thread's device of CUDA is not the one that enter chose any more */
sn_status sn_cuda_wait_event(sn_cuda *cuda, cudaEvent_t event, sn_err *err) SN_MUST_USE;
sn_status sn_cuda_wait_stream(sn_cuda *cuda, cudaStream_t stream, sn_err *err) SN_MUST_USE;
/* Whether both streams are empty or the device is lost, so that giving memory back cannot block. Asks for 20 ms at
 * most. */
bool sn_cuda_idle(sn_cuda *cuda);

/* -- memory.c */
sn_status sn_cuda_alloc(sn_device *d, size_t bytes, void **device, sn_err *err);
void sn_cuda_free(sn_device *d, void *device, size_t bytes);
bool sn_cuda_owns(const sn_device *d, const void *device, size_t bytes);
sn_status sn_cuda_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err);
sn_status sn_cuda_download(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err);
sn_status sn_cuda_finish(sn_device *d, sn_err *err);
sn_status sn_cuda_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err);
void sn_cuda_host_free(sn_device *d, void *host, size_t bytes);
sn_status sn_cuda_copy_begin(sn_device *d, void *device, const void *host, size_t bytes, sn_ticket *ticket,
                             sn_err *err);
sn_status sn_cuda_copy_join(sn_device *d, sn_ticket ticket, sn_err *err);
sn_status sn_cuda_copy_wait(sn_device *d, sn_ticket ticket, sn_err *err);
/* At least `bytes` at room->at; what was there is lost. Waits and forgets all records when it grows. */
sn_status sn_cuda_make_room(sn_cuda *cuda, sn_cuda_room *room, size_t bytes, sn_err *err) SN_MUST_USE;
/* The same without a check of passes, for use within pass_begin. */
sn_status sn_cuda_put(sn_cuda *cuda, void *device, const void *host, size_t bytes, sn_err *err) SN_MUST_USE;

/* -- pack.c */
sn_status sn_cuda_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err);
sn_status sn_cuda_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                              sn_err *err);
sn_cuda_matrix sn_cuda_matrix_of(const sn_weight *weight);

/* -- pass.c */
sn_status sn_cuda_pass_begin(sn_device *d, const sn_pass *pass, bool *recorded, sn_err *err);
sn_status sn_cuda_pass_end(sn_device *d, sn_err *err);
void sn_cuda_forget_records(sn_cuda *cuda);
void sn_cuda_abandon(sn_cuda *cuda); /* ends the open pass; nothing of it is kept */
/* Room in the table for so many rows, sequences and pages. */
sn_status sn_cuda_table_room(sn_cuda *cuda, size_t rows, size_t sequences, size_t pages, sn_err *err) SN_MUST_USE;
/* Fills and sends the table for these sequences of `shape`. */
sn_status sn_cuda_table_send(sn_cuda *cuda, const sn_kv_shape *shape, int n_rows, int n_sequences,
                             const sn_sequence *sequences, sn_err *err) SN_MUST_USE;
sn_cuda_past sn_cuda_past_of(const sn_cuda *cuda, const sn_kv_shape *shape, int block);

/* -- linear.c */
size_t sn_cuda_x_bytes(const sn_device_limits *limits); /* of cuda->x; above PTRDIFF_MAX: too large */
sn_status sn_cuda_linear_op(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err);

/* -- past.c */
sn_status sn_cuda_kv_store_op(sn_device *d, int block, const float *k, const float *v, sn_err *err);
sn_status sn_cuda_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          float *k, float *v, sn_err *err);
sn_status sn_cuda_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                           const float *k, const float *v, sn_err *err);
sn_status sn_cuda_attention_op(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *err);
size_t sn_cuda_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape);

/* -- rows.c: the small operations */
sn_status sn_cuda_rms_norm_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                              sn_err *err);
sn_status sn_cuda_layer_norm_op(sn_device *d, int n, int width, const float *x, const float *weight, const float *bias,
                                float eps, float *y, sn_err *err);
sn_status sn_cuda_rope_op(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err);
sn_status sn_cuda_activate_op(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y,
                              sn_err *err);
sn_status sn_cuda_add_op(sn_device *d, size_t n, float *y, const float *x, sn_err *err);
sn_status sn_cuda_gather_op(sn_device *d, const sn_weight *weight, int n, const int32_t *ids, float *y, sn_err *err);

/* -- grad.c */
sn_status sn_cuda_linear_grad_op(sn_device *d, int n, const float *dy, const sn_weight *weight, bool grow, float *dx,
                                 sn_err *err);
sn_status sn_cuda_outer_grad_op(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                                sn_err *err);
sn_status sn_cuda_rms_norm_grad_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                   const float *dy, bool grow, float *dx, sn_err *err);
sn_status sn_cuda_layer_norm_grad_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                     const float *dy, bool grow, float *dx, sn_err *err);
sn_status sn_cuda_activate_grad_op(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                                   const float *dy, float *dgate, float *dup, sn_err *err);
sn_status sn_cuda_attention_grad_op(sn_device *d, const sn_attention_grad *grad, sn_err *err);

/* -- experts.c */
sn_status sn_cuda_route_op(sn_device *d, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                           float *weights, sn_err *err);
sn_status sn_cuda_linear_routed_op(sn_device *d, const sn_choice *choice, bool each, const float *x, int n_routed,
                                   const sn_routed *routed, sn_err *err);
sn_status sn_cuda_combine_op(sn_device *d, const sn_choice *choice, int width, const float *x, float *y, sn_err *err);
sn_status sn_cuda_linear_routed_grad_op(sn_device *d, const sn_choice *choice, bool each, const float *dy,
                                        const sn_experts *experts, bool grow, float *dx, sn_err *err);
sn_status sn_cuda_combine_grad_op(sn_device *d, const sn_choice *choice, int width, const float *x, const float *dy,
                                  float *dx, float *dweights, sn_err *err);
sn_status sn_cuda_route_grad_op(sn_device *d, const sn_choice *choice, bool over_all, const float *logits,
                                const float *dweights, float *dlogits, sn_err *err);

#endif
