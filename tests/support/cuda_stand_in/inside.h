/* What the stand-in's files share. Everything is under one lock, which the functions of the interfaces take. */
#ifndef SN_TESTS_CUDA_STAND_IN_INSIDE_H
#define SN_TESTS_CUDA_STAND_IN_INSIDE_H

#include "tests/support/cuda_stand_in/stand_in.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel or copy: `run` is called with all memory of the device open, as often as it is launched; `drop` once. */
typedef struct cuda_operation {
    void (*run)(void *ctx);
    void *ctx;
    void (*drop)(void *ctx);
} cuda_operation;

typedef enum cuda_operation_kind { CUDA_OPERATION_COPY, CUDA_OPERATION_KERNEL } cuda_operation_kind;

/* Queues it, or adds it to the capture. Takes it over, also on failure. */
cudaError_t cuda_stand_in_queue(cudaStream_t stream, cuda_operation operation, cuda_operation_kind kind);
/* A launch as the runtime sees it: checks the grid, counts. */
cudaError_t cuda_stand_in_launch(cudaStream_t stream, const unsigned grid[3], unsigned threads, size_t shared,
                                 size_t shared_allowed, cuda_operation operation);

/* memory.c: of one device */
void cuda_memory_open(int device);
void cuda_memory_close(int device);
bool cuda_memory_holds(int device, const void *at, size_t bytes); /* within one allocation */
bool cuda_memory_pinned(const void *at, size_t bytes);

/* queue.c */
void cuda_lock(void);
void cuda_unlock(void);
cudaError_t cuda_begin(void);               /* the error that every call gives now, or success */
cudaError_t cuda_unsafe(void);              /* the same; and spoils and refuses during this thread's capture */
cudaError_t cuda_result(cudaError_t error); /* remembers it for cudaGetLastError */
int cuda_this_device(void);
void cuda_drain(int device); /* waits for everything */
bool cuda_creation_fails(void);
void *cuda_new_object(size_t size); /* zeroed; counted */
void cuda_end_object(void *object);
bool cuda_count_down(int *counter); /* true when it comes to 0 now */

#ifdef __cplusplus
}
#endif
#endif
