/* What the CUDA backend uses of cuBLASLt, as it was found at run time: pointers to its functions. cuBLAS brings the
 * library along (cublas.c), and a version that lacks a function counts as missing. Private to device/cuda/. */
#ifndef SN_DEVICE_CUDA_CUBLASLT_H
#define SN_DEVICE_CUDA_CUBLASLT_H

#include <cublasLt.h>

#include <stdbool.h>
#include <stdint.h>

/* member, function */
#define SN_CUDA_LT_FUNCTIONS(X)                                                                                        \
    X(create, cublasLtCreate)                                                                                          \
    X(destroy, cublasLtDestroy)                                                                                        \
    X(desc_create, cublasLtMatmulDescCreate)                                                                           \
    X(desc_destroy, cublasLtMatmulDescDestroy)                                                                         \
    X(desc_set, cublasLtMatmulDescSetAttribute)                                                                        \
    X(layout_create, cublasLtMatrixLayoutCreate)                                                                       \
    X(layout_destroy, cublasLtMatrixLayoutDestroy)                                                                     \
    X(preference_create, cublasLtMatmulPreferenceCreate)                                                               \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy)                                                             \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute)                                                            \
    X(heuristic, cublasLtMatmulAlgoGetHeuristic)                                                                       \
    X(algorithm_get, cublasLtMatmulAlgoConfigGetAttribute)                                                             \
    X(multiply, cublasLtMatmul)

typedef struct sn_cuda_lt_library {
#define X(member, function) __typeof__(&function) member; // NOLINT(bugprone-macro-parentheses)
    SN_CUDA_LT_FUNCTIONS(X)
#undef X
} sn_cuda_lt_library;

/* NULL: it is missing. Call after sn_cuda_cublas_load has found cuBLAS. Any thread. */
const sn_cuda_lt_library *sn_cuda_lt_load(void);

/* What an algorithm is chosen by. */
typedef struct sn_cuda_lt_shape {
    int n_w, n, columns; /* of a product of x (n, columns) with w (n_w, columns)^T */
    int w_stride, x_stride, y_stride;
    int alignment; /* bytes, of all three matrices */
} sn_cuda_lt_shape;

typedef struct sn_cuda_lt_choice {
    sn_cuda_lt_shape shape; /* n 0: the entry is free */
    bool usable;            /* false: there is no algorithm for it */
    cublasLtMatmulAlgo_t algorithm;
    uint64_t last_used;
} sn_cuda_lt_choice;

enum { SN_CUDA_LT_CHOICES = 256 }; /* the library is asked once for each of the last so many shapes */

typedef struct sn_cuda_lt {
    const sn_cuda_lt_library *library; /* NULL: it is not used */
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product; /* of the one kind of product that is asked for */
    cublasLtMatmulPreference_t preference;
    sn_cuda_lt_choice choices[SN_CUDA_LT_CHOICES];
    uint64_t n_products;
} sn_cuda_lt;

#endif
