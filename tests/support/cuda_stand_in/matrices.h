/* A kernel of device/cuda/mma.cuh alone, for the tests of it. */
#ifndef SN_TESTS_CUDA_STAND_IN_MATRICES_H
#define SN_TESTS_CUDA_STAND_IN_MATRICES_H

#include "tests/support/cuda_stand_in/stand_in.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_matrices {
    cuda_number type;
    int waits_for; /* copies of the factors: 2 (all), 1 (those of a) */
    const void *a; /* (16, 16), of tf32 (16, 8) */
    const void *b; /* transposed in memory: (8, 16), of tf32 (8, 8) */
    float *d;      /* (16, 8) = d + a . b */
} cuda_matrices;

/* By `blocks` blocks of one warp, each with the matrices that follow those of the block before. */
cudaError_t cuda_matrices_launch(cudaStream_t stream, int blocks, const cuda_matrices *m);

#ifdef __cplusplus
}
#endif
#endif
