/* What the stand-in's files share. One lock protects everything; the public functions take it. */
#ifndef SN_TESTS_CUDA_STAND_IN_PRIVATE_H
#define SN_TESTS_CUDA_STAND_IN_PRIVATE_H

#include "tests/support/cuda_stand_in/stand_in.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel or copy: `run` is called for every launch, with the device's memory open; `drop` once, at the
 * end. */
typedef struct cuda_operation {
    void (*run)(void *ctx);
    void *ctx;
    void (*drop)(void *ctx);
} cuda_operation;

typedef enum cuda_operation_kind { CUDA_OPERATION_COPY, CUDA_OPERATION_KERNEL } cuda_operation_kind;

/* Queues the operation, or adds it to the capture. Takes ownership, also on failure. */
cudaError_t cuda_stand_in_queue(cudaStream_t stream, cuda_operation operation, cuda_operation_kind kind);
/* Launches a kernel as the runtime does: checks the grid, counts. */
cudaError_t cuda_stand_in_launch(cudaStream_t stream, const unsigned grid[3], unsigned threads, size_t shared,
                                 size_t shared_allowed, cuda_operation operation);

/* A capture on this stream can no longer succeed. */
void cuda_spoil_capture(cudaStream_t stream);

/* memory.c: operations of this device may touch its memory until it is closed */
void cuda_memory_open(int device);
void cuda_memory_close(void);
/* An operation touches these bytes, which it must say before it does. False: they are not inside one allocation of the
 * device that is open. */
bool cuda_memory_touch(const void *at, size_t bytes);
bool cuda_memory_holds(int device, const void *at, size_t bytes); /* inside one allocation */
/* When kernels stored the bytes from `at` on last, which lie in an allocation of the device that is open; 0:
 * never. NULL: no kernel has stored there, and `make` is not set. */
uint32_t *cuda_memory_times(const void *at, bool make);
/* The device's context is made: the driver takes its memory, once. */
void cuda_memory_context(int device);
/* A cuBLAS handle is made on this device: takes its memory, once. */
void cuda_memory_blas(int device);
size_t cuda_memory_free(int device);
size_t cuda_memory_total(void);
/* Counts bytes that are no allocation; false: the device has not so many left. */
bool cuda_memory_take(int device, size_t bytes);
void cuda_memory_give(int device, size_t bytes);

/* queue.c */
void cuda_lock(void);
void cuda_unlock(void);
cudaError_t cuda_begin(void); /* the error that every call returns now, or success */
/* the same; during a capture of this thread it refuses and spoils the capture */
cudaError_t cuda_begin_uncapturable(void);
cudaError_t cuda_result(cudaError_t error); /* stores the error for cudaGetLastError */
int cuda_this_device(void);
void cuda_drain(int device); /* waits for all work of the device */
bool cuda_creation_fails(void);
void *cuda_new_object(size_t size); /* zeroed; counted */
void cuda_free_object(void *object);
bool cuda_count_down(int *counter); /* decrements; true when the counter reaches 0 now */

/* -- blas.c */

/* c (n, ldc)[:, :m] = b (n, ldb)[:, :k] . a (m, lda)[:, :k]^T in row-major order: the meaning of the call if its
 * matrices are read as row-major. */
typedef struct cuda_product {
    int m, n, k, lda, ldb, ldc;
    const void *a, *b;
    cudaDataType type;
    bool grow; /* adds the product to c */
    float *c;
} cuda_product;

/* Queues the product, scaled by 1 and added to c times beta, which is 0 or 1. */
cublasStatus_t cuda_blas_product(cudaStream_t stream, const cuda_product *wanted, float alpha, float beta);
void cuda_lt_reset(void); /* blas_lt.c */

#ifdef __cplusplus
}
#endif
#endif
