/* y = x . w^T on CUDA.
 *
 * Few rows: kernels that read the weights as they are, in chunks of SN_CUDA_CHUNK_ROWS rows. Quantised weights are
 * multiplied with x quantised to 8 bits in groups of 32 (as on the CPU), float weights with x as float32.
 *
 * More rows: tensor cores, with both sides as bfloat16 and sums in float32 (F32 weights: everything in float32), by a
 * kernel that reads the weights as they are, or by cuBLAS: products.c chooses. For cuBLAS, a matrix of another type is
 * converted to bfloat16 one part at a time. With high_precision, x is split into the sum of two bfloat16 numbers, and
 * cuBLAS multiplies both.
 *
 * How many rows are few, is arithmetic, not measured: docs/BENCHMARKS.md (how many rows read quantised weights as they
 * are). */
#include "base/mem.h"
#include "device/cuda/cuda_private.h"

/* The parts of cuda->x, for few rows. */
typedef struct few_parts {
    int8_t *q;
    sn_cuda_xscale *scales;
    float *padded;
} few_parts;

static few_parts few_parts_of(const sn_cuda *cuda) {
    size_t width = sn_cuda_pad((size_t)cuda->limits.width, 32);
    char *at = cuda->x.at;
    return (few_parts){(int8_t *)at, (sn_cuda_xscale *)(at + SN_CUDA_FEW_ROWS * width),
                       (float *)(at + SN_CUDA_FEW_ROWS * (width + width / 32 * sizeof(sn_cuda_xscale)))};
}

/* The memory that the parts take, or x as bfloat16. */
size_t sn_cuda_x_bytes(const sn_device_limits *limits) {
    size_t width = sn_cuda_pad((size_t)limits->width, 32), few, many;
    if (!sn_mul(width, SN_CUDA_FEW_ROWS * (1 + sizeof(float)) + SN_CUDA_FEW_ROWS * sizeof(sn_cuda_xscale) / 32, &few) ||
        !sn_mul(width * sizeof(uint16_t), (size_t)limits->rows, &many))
        return SIZE_MAX;
    return few > many ? few : many;
}

static sn_status linear_check(const sn_cuda *cuda, int n, int n_linears, const sn_linear *linears, sn_err *err) {
    size_t cols = linears[0].weight->cols;
    if (n < 0 || n > cuda->limits.rows || cols > (size_t)cuda->limits.width)
        return sn_fail(err, SN_REFUSED, "%s was prepared for %d rows of %d, not for %d of %zu", cuda->description,
                       cuda->limits.rows, cuda->limits.width, n, cols);
    for (int i = 1; i < n_linears; i++)
        if (linears[i].weight->cols != cols)
            return sn_fail(err, SN_REFUSED, "matrices of %zu and %zu columns cannot share an input", cols,
                           linears[i].weight->cols);
    return SN_OK;
}

static bool is_float(const sn_weight *weight) { return !sn_dtype_quantised(weight->dtype); }

/* -- few rows */

/* Converts x to the form that the kernels of `weight` read, unless it has that form already. */
static sn_status few_rows_input(sn_cuda *cuda, int n, const float *x, const sn_weight *weight, bool done[2],
                                const float **float_x, sn_err *err) {
    int cols = (int)weight->cols, stride = (int)sn_cuda_pad(weight->cols, 8);
    bool plain = is_float(weight);
    few_parts parts = few_parts_of(cuda);
    if (plain && cols == stride && (uintptr_t)x % 16 == 0) {
        *float_x = x;
        return SN_OK;
    }
    if (plain) *float_x = parts.padded;
    if (done[plain]) return SN_OK;
    done[plain] = true;
    cudaError_t error = plain ? sn_cuda_pad_rows(cuda->work, n, cols, x, stride, parts.padded)
                              : sn_cuda_quantize(cuda->work, n, cols, x, parts.q, parts.scales);
    return sn_cuda_check_launch(cuda, error, "converting rows", err);
}

/* cuBLAS reads F32 and BF16 once whatever the number of rows; all else is first read, written as bfloat16 and read
 * again. A chunk of rows of F16, F8, NF4 and FP4 costs about a third of that, of quantised weights a sixth. */
static bool rows_are_few(int n, const sn_weight *weight) {
    if (!is_float(weight)) return n <= SN_CUDA_FEW_ROWS;
    sn_cuda_layout layout = sn_cuda_matrix_of(weight).layout;
    return n <=
           (layout == SN_CUDA_F16 || layout == SN_CUDA_F8 || layout == SN_CUDA_FLOAT4 ? 2 : 1) * SN_CUDA_CHUNK_ROWS;
}

/* Takes the first matrices of one layout, as many as a kernel takes; returns their number. */
static int take_group(int n_linears, const sn_linear *linears, sn_cuda_linear group[SN_CUDA_LINEARS]) {
    int n = 0;
    for (; n < n_linears && n < SN_CUDA_LINEARS; n++) {
        sn_cuda_matrix m = sn_cuda_matrix_of(linears[n].weight);
        if (n && m.layout != group[0].weight.layout) break;
        group[n] = (sn_cuda_linear){m, linears[n].bias, linears[n].y};
    }
    return n;
}

/* quantised: x has been. */
static sn_status linear_few_rows(sn_cuda *cuda, int n, const float *x, bool quantised, int n_linears,
                                 const sn_linear *linears, sn_err *err) {
    bool done[2] = {quantised, false}; /* done[1]: x was padded */
    sn_status status = SN_OK;
    for (int i = 0, taken; i < n_linears && !status; i += taken) {
        sn_cuda_linear group[SN_CUDA_LINEARS];
        const float *float_x = x;
        const sn_weight *first = linears[i].weight;
        taken = take_group(n_linears - i, linears + i, group);
        if ((status = few_rows_input(cuda, n, x, first, done, &float_x, err))) break;
        few_parts parts = few_parts_of(cuda);
        cudaError_t error =
            is_float(first)
                ? sn_cuda_linear_float(cuda->work, n, float_x, (int)sn_cuda_pad(first->cols, 8), taken, group)
                : sn_cuda_linear_quantised(cuda->work, n, parts.q, parts.scales, taken, group);
        status = sn_cuda_check_launch(cuda, error, "a kernel of linear", err);
    }
    return status;
}

/* -- many rows */

static sn_status blas_check(sn_cuda *cuda, cublasStatus_t result, sn_err *err) {
    if (result == CUBLAS_STATUS_SUCCESS) return sn_cuda_check_launch(cuda, cudaSuccess, "cuBLAS", err);
    /* cuBLAS has a runtime of its own: the error is not in ours. In a capture any failure may be the capture's fault.
     */
    if (cuda->state == SN_CUDA_CAPTURING)
        return sn_cuda_fail_capture(cuda, "cuBLAS", cublasGetStatusString(result), err);
    return sn_fail(err, SN_STOP, "%s: cuBLAS failed: %s", cuda->description, cublasGetStatusString(result));
}

/* cuBLAS is column-major, so its matrices are ours transposed. */
static sn_status gemm_run(sn_cuda *cuda, const sn_cuda_gemm *g, sn_err *err) {
    const float alpha = 1, beta = g->accumulate ? 1 : 0;
    cublasStatus_t result;
    if (!sn_cuda_lt_gemm(cuda, g, &result))
        result = cublasGemmEx(cuda->blas, CUBLAS_OP_T, CUBLAS_OP_N, g->n_w, g->n, g->x_stride, &alpha, g->w, g->type,
                              g->w_stride, g->x, g->type, g->x_stride, &beta, g->y, CUDA_R_32F, g->y_stride,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return blas_check(cuda, result, err);
}

static sn_status multiply_dequantised(sn_cuda *cuda, int n, const sn_cuda_matrix *w, bool accumulate, float *y,
                                      sn_err *err) {
    int stride = (int)sn_cuda_pad((size_t)w->cols, 8), part = (int)(cuda->tile.bytes / sizeof(uint16_t)) / stride;
    sn_status status = SN_OK;
    for (int first = 0; first < w->rows && !status; first += part) {
        int rows = w->rows - first < part ? w->rows - first : part;
        cudaError_t error = sn_cuda_dequantize(cuda->work, w, first, rows, cuda->tile.at);
        status = sn_cuda_check_launch(cuda, error, "dequantising", err);
        if (!status)
            status = gemm_run(cuda,
                              &(sn_cuda_gemm){cuda->x.at, n, stride, cuda->tile.at, rows, stride, CUDA_R_16BF,
                                              accumulate, y + first, w->rows},
                              err);
    }
    return status;
}

/* cuda->x = x as bfloat16, or what that rounding leaves of x; unless *rounded says that it is there. */
static sn_status round_rows(sn_cuda *cuda, int n, int cols, const float *x, bool residual, bool *rounded, sn_err *err) {
    if (*rounded) return SN_OK;
    *rounded = true;
    cudaError_t error =
        sn_cuda_to_bf16(cuda->work, n, cols, x, (int)sn_cuda_pad((size_t)cols, 8), residual, cuda->x.at);
    return sn_cuda_check_launch(cuda, error, "rounding rows", err);
}

/* A product by cuBLAS with x rounded to bfloat16; with `residual`, adds the product with what the rounding left of x.
 * F32 weights are multiplied with x itself. */
static sn_status blas_product(sn_cuda *cuda, int n, const float *x, const sn_linear *l, bool residual, bool *rounded,
                              sn_err *err) {
    sn_cuda_matrix w = sn_cuda_matrix_of(l->weight);
    int stride = (int)sn_cuda_pad((size_t)w.cols, 8);
    if (!w.rows || (residual && w.layout == SN_CUDA_F32)) return SN_OK;
    if (w.layout == SN_CUDA_F32)
        return gemm_run(
            cuda, &(sn_cuda_gemm){x, n, w.cols, w.plane[0], w.rows, stride, CUDA_R_32F, false, l->y, w.rows}, err);
    sn_status status = round_rows(cuda, n, w.cols, x, residual, rounded, err);
    if (status) return status;
    if (w.layout != SN_CUDA_BF16) return multiply_dequantised(cuda, n, &w, residual, l->y, err);
    return gemm_run(
        cuda, &(sn_cuda_gemm){cuda->x.at, n, stride, w.plane[0], w.rows, stride, CUDA_R_16BF, residual, l->y, w.rows},
        err);
}

static sn_status add_bias(sn_cuda *cuda, int n, const sn_linear *l, sn_err *err) {
    if (!l->bias || !l->weight->rows) return SN_OK;
    return sn_cuda_check_launch(cuda, sn_cuda_add_bias(cuda->work, n, (int)l->weight->rows, l->bias, l->y),
                                "adding a bias", err);
}

static sn_status linear_high_precision(sn_cuda *cuda, int n, const float *x, int n_linears, const sn_linear *linears,
                                       sn_err *err) {
    sn_status status = SN_OK;
    for (int residual = 0; residual < 2; residual++) {
        bool rounded = false;
        for (int i = 0; i < n_linears && !status; i++)
            status = blas_product(cuda, n, x, &linears[i], residual, &rounded, err);
    }
    for (int i = 0; i < n_linears && !status; i++) status = add_bias(cuda, n, &linears[i], err);
    return status;
}

static sn_status linear_many_rows(sn_cuda *cuda, int n, const float *x, int n_linears, const sn_linear *linears,
                                  sn_err *err) {
    bool rounded = false;
    sn_status status = SN_OK;
    for (int i = 0; i < n_linears; i++)
        if (linears[i].high_precision) return linear_high_precision(cuda, n, x, n_linears, linears, err);
    for (int i = 0, taken; i < n_linears && !status; i += taken) {
        sn_cuda_linear group[SN_CUDA_LINEARS];
        taken = take_group(n_linears - i, linears + i, group);
        int side = sn_cuda_products_side(cuda, n, taken, linears + i);
        for (int k = i; k < i + taken && !side && !status; k++) {
            status = blas_product(cuda, n, x, &linears[k], false, &rounded, err);
            if (!status) status = add_bias(cuda, n, &linears[k], err);
        }
        if (side && !status) status = round_rows(cuda, n, group[0].weight.cols, x, false, &rounded, err);
        if (side && !status)
            status = sn_cuda_check_launch(cuda, sn_cuda_linear_products(cuda->work, n, cuda->x.at, side, taken, group),
                                          "products", err);
    }
    return status;
}

/* quantised: x has been, for few rows. */
static sn_status linear_run(sn_cuda *cuda, int n, const float *x, bool quantised, int n_linears,
                            const sn_linear *linears, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0, end; i < n_linears && !status; i = end) {
        bool few = rows_are_few(n, linears[i].weight);
        for (end = i + 1; end < n_linears && rows_are_few(n, linears[end].weight) == few;) end++;
        status = few ? linear_few_rows(cuda, n, x, quantised && i == 0, end - i, linears + i, err)
                     : linear_many_rows(cuda, n, x, end - i, linears + i, err);
    }
    return status;
}

static sn_status linear_begin(sn_cuda *cuda, int n, int n_linears, const sn_linear *linears, sn_err *err) {
    sn_status status = sn_cuda_enter(cuda, err);
    return status || !n || !n_linears ? status : linear_check(cuda, n, n_linears, linears, err);
}

sn_status sn_cuda_linear_op(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = linear_begin(cuda, n, n_linears, linears, err);
    if (!status && n) status = linear_run(cuda, n, x, false, n_linears, linears, err);
    return sn_cuda_op_done(cuda, status);
}

/* -- products of rows that the same call makes */

/* Where what makes x (n, cols) writes it in 8 bits besides; nowhere if the first matrix reads another form. */
static sn_cuda_eight_bits form_for(const sn_cuda *cuda, int n, const sn_linear *first) {
    const few_parts parts = few_parts_of(cuda);
    if (is_float(first->weight) || !rows_are_few(n, first->weight)) return (sn_cuda_eight_bits){0};
    return (sn_cuda_eight_bits){parts.q, parts.scales};
}

sn_status sn_cuda_norm_linear_op(sn_device *d, int n, const sn_norm *p, int n_linears, const sn_linear *linears,
                                 sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    if (p->layer) return sn_composed_norm_linear(d, n, p, n_linears, linears, err);
    sn_status status = linear_begin(cuda, n, n_linears, linears, err);
    if (status || !n) return sn_cuda_op_done(cuda, status);
    const sn_cuda_eight_bits form = form_for(cuda, n, linears);
    const sn_cuda_norm norm = {p->width, 1, p->x, p->add, p->weight, p->eps, p->y, form};
    status = sn_cuda_check_launch(cuda, sn_cuda_rms_norm(cuda->work, n, &norm), "rms_norm", err);
    if (!status) status = linear_run(cuda, n, p->y, form.q, n_linears, linears, err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_attention_linear_op(sn_device *d, int n, const sn_attention *params, const float *q, float *out,
                                      const sn_linear *linear, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = linear_begin(cuda, n, 1, linear, err);
    sn_cuda_eight_bits form = {0};
    if (!status && sn_cuda_attends_in_8_bits(cuda, n, params->block)) form = form_for(cuda, n, linear);
    if (!status) status = sn_cuda_attend(cuda, params, q, out, form, err);
    if (!status && n) status = linear_run(cuda, n, out, form.q, 1, linear, err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_activate_linear_op(sn_device *d, int n, const sn_gated *p, const sn_linear *linear, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    const size_t elements = (size_t)n * linear->weight->cols;
    sn_status status = linear_begin(cuda, n, 1, linear, err);
    if (status || !elements) return sn_cuda_op_done(cuda, status);
    const sn_cuda_eight_bits form = form_for(cuda, n, linear);
    status = sn_cuda_check_launch(cuda, sn_cuda_activate(cuda->work, elements, p->kind, p->gate, p->up, p->y, form),
                                  "activate", err);
    if (!status) status = linear_run(cuda, n, p->y, form.q, 1, linear, err);
    return sn_cuda_op_done(cuda, status);
}
