/* Products by cuBLASLt, where SWARM_CUDA_PRODUCTS asks for them: bfloat16 weights, or weights that were converted to
 * bfloat16, in place of cublasGemmEx.
 *
 * Which algorithm multiplies is the first answer of the library's heuristic. It is asked once for each of the last
 * SN_CUDA_LT_CHOICES shapes, whose answers are kept; the log is told only the first so many, because clients choose the
 * numbers of rows. The question depends on nothing that changes from run to run: of the addresses it says that they are
 * multiples of 16 bytes where they are, and never more, so the same build on the same card with the same library gives
 * the same bits. The workspace is that of cuBLAS, which a plan counts; both run in one stream. A shape without an
 * answer is left to cublasGemmEx. */
#include "base/log.h"
#include "device/cuda/cuda_private.h"

#include <string.h>

enum { ALIGNMENT = 16 };

static bool set_attributes(const sn_cuda_lt *lt) {
    const sn_cuda_lt_library *l = lt->library;
    const int32_t transposed = CUBLAS_OP_T;
    const uint64_t workspace = SN_CUDA_BLAS_BYTES;
    return !l->desc_set(lt->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) &&
           !l->preference_set(lt->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
}

void sn_cuda_lt_open(sn_cuda *cuda) {
    sn_cuda_lt *lt = &cuda->lt;
    const sn_cuda_lt_library *l = lt->library = sn_cuda_lt_load();
    if (l && !l->create(&lt->handle) && !l->desc_create(&lt->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
        !l->preference_create(&lt->preference) && set_attributes(lt))
        return;
    sn_cuda_lt_close(cuda);
    sn_log(SN_LOG_WARN, "cublaslt missing", "device=cuda:%d text=%s", cuda->base.id.ordinal,
           "cuBLAS multiplies in its place");
}

void sn_cuda_lt_close(sn_cuda *cuda) {
    sn_cuda_lt *lt = &cuda->lt;
    if (lt->preference) lt->library->preference_destroy(lt->preference);
    if (lt->product) lt->library->desc_destroy(lt->product);
    if (lt->handle) lt->library->destroy(lt->handle);
    *lt = (sn_cuda_lt){0};
}

/* The matrices as the library sees them: column-major, so ours transposed. */
typedef struct layouts {
    cublasLtMatrixLayout_t w, x, y;
} layouts;

static void layouts_free(const sn_cuda_lt_library *l, layouts *m) {
    if (m->w) l->layout_destroy(m->w);
    if (m->x) l->layout_destroy(m->x);
    if (m->y) l->layout_destroy(m->y);
}

static bool layouts_new(const sn_cuda_lt_library *l, const sn_cuda_lt_shape *s, layouts *m) {
    const uint64_t columns = (uint64_t)s->columns, n_w = (uint64_t)s->n_w, n = (uint64_t)s->n;
    *m = (layouts){0};
    if (!l->layout_create(&m->w, CUDA_R_16BF, columns, n_w, s->w_stride) &&
        !l->layout_create(&m->x, CUDA_R_16BF, columns, n, s->x_stride) &&
        !l->layout_create(&m->y, CUDA_R_32F, n_w, n, s->y_stride))
        return true;
    layouts_free(l, m);
    return false;
}

static int alignment_of(const sn_cuda_gemm *g) {
    int alignment = ALIGNMENT;
    while (((uintptr_t)g->w | (uintptr_t)g->x | (uintptr_t)g->y) % (uintptr_t)alignment) alignment /= 2;
    return alignment;
}

static uint32_t algorithm_word(const sn_cuda_lt_library *l, const cublasLtMatmulAlgo_t *algorithm,
                               cublasLtMatmulAlgoConfigAttributes_t what) {
    uint32_t value = 0;
    size_t written;
    return l->algorithm_get(algorithm, what, &value, sizeof value, &written) ? 0 : value;
}

static void log_choice(const sn_cuda *cuda, const sn_cuda_lt_choice *c, size_t workspace) {
    const sn_cuda_lt_library *l = cuda->lt.library;
    const sn_cuda_lt_shape *s = &c->shape;
    if (!c->usable) {
        sn_log(SN_LOG_INFO, "cublaslt", "device=cuda:%d rows=%d shape=%dx%d algorithm=none", cuda->base.id.ordinal,
               s->n, s->n_w, s->columns);
        return;
    }
    sn_log(SN_LOG_INFO, "cublaslt",
           "device=cuda:%d rows=%d shape=%dx%d algorithm=%u tile=%u stages=%u split_k=%u workspace=%zu",
           cuda->base.id.ordinal, s->n, s->n_w, s->columns, algorithm_word(l, &c->algorithm, CUBLASLT_ALGO_CONFIG_ID),
           algorithm_word(l, &c->algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
           algorithm_word(l, &c->algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
           algorithm_word(l, &c->algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), workspace);
}

static bool set_alignment(const sn_cuda_lt *lt, uint32_t bytes) {
    static const cublasLtMatmulPreferenceAttributes_t of[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (lt->library->preference_set(lt->preference, of[i], &bytes, sizeof bytes)) return false;
    return true;
}

static void ask(sn_cuda *cuda, const layouts *m, sn_cuda_lt_choice *c, bool tell) {
    sn_cuda_lt *lt = &cuda->lt;
    cublasLtMatmulHeuristicResult_t answer = {0};
    int n = 0;
    c->usable =
        set_alignment(lt, (uint32_t)c->shape.alignment) &&
        !lt->library->heuristic(lt->handle, lt->product, m->w, m->x, m->y, m->y, lt->preference, 1, &answer, &n) &&
        n == 1 && !answer.state && answer.workspaceSize <= SN_CUDA_BLAS_BYTES;
    c->algorithm = answer.algo;
    if (tell) log_choice(cuda, c, answer.workspaceSize);
}

/* The choice for a shape: as it was made, or in the entry that was not used for longest. */
static sn_cuda_lt_choice *choose(sn_cuda *cuda, const sn_cuda_lt_shape *shape, const layouts *m) {
    sn_cuda_lt *lt = &cuda->lt;
    sn_cuda_lt_choice *oldest = lt->choices;
    for (sn_cuda_lt_choice *c = lt->choices; c < lt->choices + SN_CUDA_LT_CHOICES; c++) {
        if (!memcmp(&c->shape, shape, sizeof *shape)) return c;
        if (c->last_used < oldest->last_used) oldest = c;
    }
    bool was_free = !oldest->shape.n;
    *oldest = (sn_cuda_lt_choice){.shape = *shape};
    ask(cuda, m, oldest, was_free);
    return oldest;
}

bool sn_cuda_lt_gemm(sn_cuda *cuda, const sn_cuda_gemm *g, cublasStatus_t *result) {
    sn_cuda_lt *lt = &cuda->lt;
    const float alpha = 1, beta = g->accumulate ? 1 : 0;
    const sn_cuda_lt_shape shape = {g->n_w, g->n, g->x_stride, g->w_stride, g->x_stride, g->y_stride, alignment_of(g)};
    layouts m;
    if (!lt->library || g->type != CUDA_R_16BF || !layouts_new(lt->library, &shape, &m)) return false;
    sn_cuda_lt_choice *c = choose(cuda, &shape, &m);
    c->last_used = ++lt->n_products;
    if (c->usable)
        *result = lt->library->multiply(lt->handle, lt->product, &alpha, g->w, m.w, g->x, m.x, &beta, g->y, m.y, g->y,
                                        m.y, &c->algorithm, cuda->blas_workspace.at, SN_CUDA_BLAS_BYTES, cuda->work);
    layouts_free(lt->library, &m);
    return c->usable;
}
