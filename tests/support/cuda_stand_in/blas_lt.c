/* cuBLASLt in the stand-in, as far as the backend uses it: the heuristic's answers hold for the shapes and alignments
 * that they were asked for, and need a workspace; a product whose algorithm, addresses or workspace do not fit is
 * refused, as the real library refuses it. The product itself is that of blas.c. */
#include "tests/support/cuda_stand_in/stand_in_private.h"

#include "device/cuda/cublaslt.h" /* private: this file stands in place of what cublas.c finds */

#include <string.h>

struct cublaslt_context {
    int unused;
};
struct cublaslt_desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transposed;
};
struct cublaslt_layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cublaslt_preference {
    uint64_t workspace;
    uint32_t alignment[4];
};

enum { WORKSPACE = 4096, WORKSPACE_ALIGNMENT = 256 };

static bool missing, clueless;
static int n_asked, n_multiplied;

void cuda_stand_in_lt(bool is_missing, bool is_clueless) {
    missing = is_missing;
    clueless = is_clueless;
}
int cuda_stand_in_lt_asked(void) { return n_asked; }
int cuda_stand_in_lt_multiplied(void) { return n_multiplied; }
void cuda_lt_reset(void) {
    missing = clueless = false;
    n_asked = n_multiplied = 0;
}

const sn_cuda_lt_library *sn_cuda_lt_load(void) {
#define X(member, function) .member = function,
    static const sn_cuda_lt_library library = {SN_CUDA_LT_FUNCTIONS(X)};
#undef X
    return missing ? NULL : &library;
}

/* The real library keeps these objects in memory of the host. */
static cublasStatus_t new_object(void *at, size_t bytes) {
    cuda_lock();
    void *made = cuda_creation_fails() ? NULL : cuda_new_object(bytes);
    cuda_unlock();
    memcpy(at, &made, sizeof made);
    return made ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t free_object(void *object) {
    cuda_lock();
    cuda_free_object(object);
    cuda_unlock();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) { return new_object(handle, sizeof **handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return free_object(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    cublasStatus_t status = new_object(desc, sizeof **desc);
    if (!status) **desc = (struct cublaslt_desc){compute, scale, CUBLAS_OP_N};
    return status;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return free_object(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes) {
    if (what != CUBLASLT_MATMUL_DESC_TRANSA || bytes != sizeof desc->transposed) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&desc->transposed, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    cublasStatus_t status = new_object(layout, sizeof **layout);
    if (!status) **layout = (struct cublaslt_layout){type, rows, cols, ld};
    return status;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return free_object(layout); }

/* As the real library: no workspace, and addresses that are multiples of 256. */
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    cublasStatus_t status = new_object(preference, sizeof **preference);
    if (!status) **preference = (struct cublaslt_preference){0, {256, 256, 256, 256}};
    return status;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return free_object(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                                    size_t bytes) {
    bool workspace = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (bytes != (workspace ? sizeof preference->workspace : sizeof *preference->alignment))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(workspace ? (void *)&preference->workspace
                     : &preference->alignment[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
           value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* What an algorithm holds for. */
typedef struct terms {
    uint64_t rows, n_a, n_b;
    int64_t ld[3];
    uint32_t alignment, mark;
} terms;
_Static_assert(sizeof(terms) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm has room for its terms");
enum { MARK = 0x17a190 };

/* Whether this is a product that blas.c computes; and its terms. */
static bool read_terms(const struct cublaslt_desc *desc, const struct cublaslt_layout *a,
                       const struct cublaslt_layout *b, const struct cublaslt_layout *c, terms *out) {
    *out = (terms){a->rows, a->cols, b->cols, {a->ld, b->ld, c->ld}, 0, MARK};
    return desc->transposed == CUBLAS_OP_T && desc->compute == CUBLAS_COMPUTE_32F && desc->scale == CUDA_R_32F &&
           a->type == CUDA_R_16BF && b->type == CUDA_R_16BF && c->type == CUDA_R_32F && a->rows == b->rows &&
           c->rows == a->cols && c->cols == b->cols && a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows &&
           c->ld >= (int64_t)c->rows && a->rows && a->cols && b->cols;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n) {
    terms t;
    *n = 0;
    n_asked++;
    if (!handle || wanted < 1 || !read_terms(desc, a, b, c, &t) || memcmp(c, d, sizeof *c))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (clueless || preference->workspace < WORKSPACE) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++)
        t.alignment = preference->alignment[i] > t.alignment ? preference->alignment[i] : t.alignment;
    results[0] = (cublasLtMatmulHeuristicResult_t){.workspaceSize = WORKSPACE, .state = CUBLAS_STATUS_SUCCESS};
    memcpy(&results[0].algo, &t, sizeof t);
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t what, void *value,
                                                    size_t bytes, size_t *written) {
    uint32_t word = (uint32_t)what + (uint32_t)algorithm->data[0];
    if (bytes != sizeof word) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &word, sizeof word);
    *written = sizeof word;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    terms held, wanted;
    memcpy(&held, algorithm, sizeof held);
    bool fits = handle && read_terms(desc, a_layout, b_layout, c_layout, &wanted) && held.mark == MARK;
    wanted.alignment = held.alignment;
    fits = fits && !memcmp(&held, &wanted, sizeof held) && c == d && !memcmp(c_layout, d_layout, sizeof *c_layout) &&
           held.alignment && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % held.alignment == 0;
    if (!fits || (uintptr_t)workspace % WORKSPACE_ALIGNMENT || workspace_bytes < WORKSPACE ||
        !cuda_memory_holds(cuda_this_device(), workspace, workspace_bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    n_multiplied++;
    return cuda_blas_product(stream,
                             &(cuda_product){(int)wanted.n_a, (int)wanted.n_b, (int)wanted.rows, (int)wanted.ld[0],
                                             (int)wanted.ld[1], (int)wanted.ld[2], a, b, CUDA_R_16BF, false, d},
                             *(const float *)alpha, *(const float *)beta);
}
