/* What the backend loads at run time, in the stand-in: cuBLAS, with the one form of product that the backend uses,
 * computed by its definition, and what NVML knows of memory. As the real cuBLAS, which has a runtime of its own, it
 * leaves no error for cudaGetLastError. */
#include "tests/support/cuda_stand_in/stand_in_private.h"

#include "base/dtype.h"
#include "device/cuda/cuda_private.h" /* private: this file stands in place of cublas.c and nvml.c */

#include <stdlib.h>

struct cublas_context {
    cudaStream_t stream;
    void *workspace;
};

/* Replaces cublas.c: here cuBLAS is always found. */
sn_status sn_cuda_cublas_load(sn_err *err) {
    (void)err;
    return SN_OK;
}

bool sn_cuda_free_memory(int ordinal, size_t *bytes) {
    *bytes = cuda_memory_free(ordinal);
    return true;
}

static int fail_product;
void cuda_stand_in_fail_product(int nth) { fail_product = nth; }

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    cuda_lock();
    cuda_memory_blas(cuda_this_device());
    bool fails = cuda_creation_fails();
    *handle = fails ? NULL : cuda_new_object(sizeof **handle);
    cuda_unlock();
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    cuda_lock();
    cuda_free_object(handle);
    cuda_unlock();
    return CUBLAS_STATUS_SUCCESS;
}

/* The real function resets the workspace as well. */
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    handle->workspace = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
    if ((uintptr_t)workspace % 256 || !cuda_memory_holds(cuda_this_device(), workspace, bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "success"
           : status == CUBLAS_STATUS_ALLOC_FAILED  ? "allocation failed"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value"
                                                   : "execution failed";
}

static void widen_values(const cuda_product *p, const void *from, size_t at, float *out) {
    for (int i = 0; i < p->k; i++)
        out[i] = p->type == CUDA_R_32F ? ((const float *)from)[at + (size_t)i]
                                       : sn_bf16_to_f32(((const uint16_t *)from)[at + (size_t)i]);
}

enum { SUMS = 16 };

static float dot_product(int k, const float *x, const float *y) {
    float sums[SUMS] = {0}, sum = 0;
    int i = 0;
    for (; i + SUMS <= k; i += SUMS)
        for (int s = 0; s < SUMS; s++) sums[s] += x[i + s] * y[i + s];
    for (; i < k; i++) sum += x[i] * y[i];
    for (int s = 0; s < SUMS; s++) sum += sums[s];
    return sum;
}

static void run_product(void *ctx) {
    const cuda_product *p = ctx;
    size_t k = (size_t)p->k;
    float *b = malloc(((size_t)p->n + 1) * k * sizeof *b), *a = b + (size_t)p->n * k;
    if (!b) abort();
    cuda_memory_touch(p->a, 1);
    cuda_memory_touch(p->b, 1);
    cuda_memory_touch(p->c, 1);
    for (int j = 0; j < p->n; j++) widen_values(p, p->b, (size_t)j * (size_t)p->ldb, b + (size_t)j * k);
    for (int i = 0; i < p->m; i++) {
        widen_values(p, p->a, (size_t)i * (size_t)p->lda, a);
        for (int j = 0; j < p->n; j++) {
            float *c = &p->c[(size_t)j * (size_t)p->ldc + (size_t)i];
            *c = dot_product(p->k, a, b + (size_t)j * k) + (p->grow ? *c : 0);
        }
    }
    free(b);
}

cublasStatus_t cuda_blas_product(cudaStream_t stream, const cuda_product *wanted, float alpha, float beta) {
    cuda_product *p = malloc(sizeof *p);
    bool scaled = alpha < 1 || alpha > 1 || ((beta < 0 || beta > 0) && (beta < 1 || beta > 1));
    /* With bfloat16, matrix units need rows that begin at multiples of 16 bytes; other rows would be slow, not
     * wrong. */
    bool slow = wanted->type == CUDA_R_16BF &&
                (wanted->lda % 8 || wanted->ldb % 8 || ((uintptr_t)wanted->a | (uintptr_t)wanted->b) % 16);
    if (!p || scaled || slow) {
        free(p);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *p = *wanted;
    p->grow = beta > 0;
    cuda_lock();
    bool fails = cuda_count_down(&fail_product);
    if (fails) cuda_spoil_capture(stream);
    cudaError_t error = cuda_stand_in_queue(stream, (cuda_operation){run_product, p, free}, CUDA_OPERATION_KERNEL);
    cuda_unlock();
    return error || fails ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType type_a, int lda, const void *b,
                            cudaDataType type_b, int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    (void)algorithm;
    bool known = op_a == CUBLAS_OP_T && op_b == CUBLAS_OP_N && type_a == type_b && type_c == CUDA_R_32F &&
                 compute == CUBLAS_COMPUTE_32F;
    bool sane = m > 0 && n > 0 && k > 0 && lda >= k && ldb >= k && ldc >= m && handle->workspace;
    if (!known || !sane) return CUBLAS_STATUS_INVALID_VALUE;
    return cuda_blas_product(handle->stream, &(cuda_product){m, n, k, lda, ldb, ldc, a, b, type_a, false, c},
                             *(const float *)alpha, *(const float *)beta);
}
