/* A library with cuBLAS's functions of the backend, for tests of where it is found: each one does nothing. */
#include <cublas_v2.h>

void fake_create(void); /* of cublaslt.c */

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    fake_create();
    *handle = NULL;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return handle ? CUBLAS_STATUS_INVALID_VALUE : 0; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    return handle || stream ? CUBLAS_STATUS_INVALID_VALUE : 0;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
    return handle || workspace || bytes ? CUBLAS_STATUS_INVALID_VALUE : 0;
}
const char *cublasGetStatusString(cublasStatus_t status) { return status ? "a failure" : "found"; }
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType type_a, int lda, const void *b,
                            cudaDataType type_b, int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    (void)handle, (void)op_a, (void)op_b, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)type_a, (void)lda;
    (void)b, (void)type_b, (void)ldb, (void)beta, (void)c, (void)type_c, (void)ldc, (void)compute, (void)algorithm;
    return CUBLAS_STATUS_EXECUTION_FAILED;
}
