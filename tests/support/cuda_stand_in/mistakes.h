/* Kernels with one mistake each, and the same without it: for tests that the stand-in sees it (watch.c). */
#ifndef SN_TESTS_CUDA_STAND_IN_MISTAKES_H
#define SN_TESTS_CUDA_STAND_IN_MISTAKES_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cuda_mistake {
    CUDA_MISTAKE_ALIGNMENT,          /* 16 bytes are loaded at a multiple of 4 */
    CUDA_MISTAKE_BEYOND_ALLOCATION,  /* the element behind the last one is stored: 4 bytes that no page ends before */
    CUDA_MISTAKE_BEFORE_ALLOCATION,  /* the element before the first one is loaded */
    CUDA_MISTAKE_BEYOND_SHARED,      /* of the shared memory that the launch asks for */
    CUDA_MISTAKE_READ_OF_A_STORE,    /* no barrier between the store of a thread and the load of another one */
    CUDA_MISTAKE_STORE_OVER_A_READ,  /* no barrier between the load of a thread and the store of another one */
    CUDA_MISTAKE_STORE_OVER_A_STORE, /* two threads store to one address */
    CUDA_MISTAKE_IN_AN_ARRAY,        /* as READ_OF_A_STORE, in a __shared__ array */
    CUDA_MISTAKE_A_SHUFFLE_ORDERS,   /* a shuffle in place of the warp's barrier */
    CUDA_MISTAKE_HOST_MEMORY,        /* pinned memory of the host is touched */
    CUDA_MISTAKE_OTHERS_MEMORY,      /* two blocks store to one address of the device */
    CUDA_MISTAKE_NO_STORE_FENCE,     /* a block counts before its stores are seen */
    CUDA_MISTAKE_NO_LOAD_FENCE,      /* the block that counts last loads what others stored as it pleases */
    CUDA_MISTAKE_NO_COUNTER,         /* a block loads what another one stored without counting */
    CUDA_MISTAKES,
} cuda_mistake;

/* Launches one block of 64 threads, for mistakes between blocks two, on `memory`, 64 floats on the device that are 0.
 * host: as many, pinned. */
cudaError_t cuda_mistake_launch(cudaStream_t stream, cuda_mistake which, bool make, float *memory, float *host);

#ifdef __cplusplus
}
#endif
#endif
