/* Rows against matrices. Up to SN_CUDA_FEW_ROWS rows by kernels that are as fast as the weights' memory: quantised
 * weights meet x as 8-bit numbers in groups of 32 (as on the CPU), plain ones meet it as float32. More rows by cuBLAS:
 * both sides as bfloat16, sums in float32 (F32 weights: all in float32); a matrix of another type is made bfloat16 a
 * part at a time. Where it has to be exact, x is the sum of two bfloat16 and goes through twice. */
#include "base/mem.h"
#include "device/cuda/inside.h"

/* The parts of the room for x, for few rows. */
typedef struct few_parts {
    int8_t *q;
    sn_cuda_xscale *scales;
    float *padded;
} few_parts;

static few_parts parts_of(const sn_cuda *cuda) {
    size_t width = sn_cuda_pad((size_t)cuda->limits.width, 32);
    char *at = cuda->x.at;
    return (few_parts){(int8_t *)at, (sn_cuda_xscale *)(at + SN_CUDA_FEW_ROWS * width),
                       (float *)(at + SN_CUDA_FEW_ROWS * (width + width / 32 * sizeof(sn_cuda_xscale)))};
}

/* Room that the parts, or x as bfloat16, take. */
size_t sn_cuda_x_bytes(const sn_device_limits *limits) {
    size_t width = sn_cuda_pad((size_t)limits->width, 32), few, many;
    if (!sn_mul(width, SN_CUDA_FEW_ROWS * (1 + sizeof(float)) + SN_CUDA_FEW_ROWS * sizeof(sn_cuda_xscale) / 32, &few) ||
        !sn_mul(width * sizeof(uint16_t), (size_t)limits->rows, &many))
        return SIZE_MAX;
    return few > many ? few : many;
}

static sn_status check_call(const sn_cuda *cuda, int n, int n_linears, const sn_linear *linears, sn_err *err) {
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

static bool is_float(const sn_weight *weight) {
    return weight->dtype == SN_F32 || weight->dtype == SN_F16 || weight->dtype == SN_BF16;
}

/* -- few rows */

/* Brings x into the form that the kernels of `weight` read, if it is not so already. */
static sn_status bring_few(sn_cuda *cuda, int n, const float *x, const sn_weight *weight, bool done[2],
                           const float **float_x, sn_err *err) {
    int cols = (int)weight->cols, stride = (int)sn_cuda_pad(weight->cols, 8);
    bool plain = is_float(weight);
    few_parts parts = parts_of(cuda);
    if (plain && cols == stride && (uintptr_t)x % 16 == 0) {
        *float_x = x;
        return SN_OK;
    }
    if (plain) *float_x = parts.padded;
    if (done[plain]) return SN_OK;
    done[plain] = true;
    cudaError_t error = plain ? sn_cuda_pad_rows(cuda->work, n, cols, x, stride, parts.padded)
                              : sn_cuda_quantize(cuda->work, n, cols, x, parts.q, parts.scales);
    return sn_cuda_queued(cuda, error, "bringing rows to a matrix", err);
}

static sn_status few_rows(sn_cuda *cuda, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err) {
    bool done[2] = {false, false}; /* x was quantised, padded */
    sn_status status = SN_OK;
    for (int i = 0, end; i < n_linears && !status; i = end) {
        sn_cuda_linear batch[SN_CUDA_LINEARS];
        const float *float_x = x;
        const sn_weight *first = linears[i].weight;
        sn_cuda_layout layout = sn_cuda_matrix_of(first).layout;
        for (end = i; end < n_linears && end - i < SN_CUDA_LINEARS; end++) {
            sn_cuda_matrix m = sn_cuda_matrix_of(linears[end].weight);
            if (m.layout != layout) break;
            batch[end - i] = (sn_cuda_linear){m, linears[end].bias, linears[end].y};
        }
        if ((status = bring_few(cuda, n, x, first, done, &float_x, err))) break;
        few_parts parts = parts_of(cuda);
        cudaError_t error =
            is_float(first)
                ? sn_cuda_linear_float(cuda->work, n, float_x, (int)sn_cuda_pad(first->cols, 8), end - i, batch)
                : sn_cuda_linear_quantised(cuda->work, n, parts.q, parts.scales, end - i, batch);
        status = sn_cuda_queued(cuda, error, "a kernel of linear", err);
    }
    return status;
}

/* -- many rows */

static sn_status blas(sn_cuda *cuda, cublasStatus_t result, sn_err *err) {
    if (result == CUBLAS_STATUS_SUCCESS) return sn_cuda_queued(cuda, cudaSuccess, "cuBLAS", err);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return sn_cuda_check(cuda, error, "cuBLAS", err);
    return sn_fail(err, SN_STOP, "%s: cuBLAS gave up: %s", cuda->description, cublasGetStatusString(result));
}

/* y (n, rows of the whole matrix) from column `first` on = x (n, stride) . w (n_w, stride)^T, or grows by it. cuBLAS counts
 * columns first, so its matrices are ours transposed. */
static sn_status multiply(sn_cuda *cuda, int n, const void *x, int x_stride, const void *w, int n_w, int stride,
                          cudaDataType_t type, bool grow, float *y, int y_stride, sn_err *err) {
    const float one = 1, kept = grow ? 1 : 0;
    return blas(cuda,
                cublasGemmEx(cuda->blas, CUBLAS_OP_T, CUBLAS_OP_N, n_w, n, x_stride, &one, w, type, stride, x, type,
                             x_stride, &kept, y, CUDA_R_32F, y_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                err);
}

static sn_status by_parts(sn_cuda *cuda, int n, const sn_cuda_matrix *w, bool grow, float *y, sn_err *err) {
    int stride = (int)sn_cuda_pad((size_t)w->cols, 8), part = (int)(cuda->tile.bytes / sizeof(uint16_t)) / stride;
    sn_status status = SN_OK;
    for (int first = 0; first < w->rows && !status; first += part) {
        int rows = w->rows - first < part ? w->rows - first : part;
        cudaError_t error = sn_cuda_dequantize(cuda->work, w, first, rows, cuda->tile.at);
        status = sn_cuda_queued(cuda, error, "dequantising", err);
        if (!status)
            status = multiply(cuda, n, cuda->x.at, stride, cuda->tile.at, rows, stride, CUDA_R_16BF, grow, y + first,
                              w->rows, err);
    }
    return status;
}

/* What x gives as bfloat16; `rest`: what that left of x, added to it. F32 weights meet x itself. */
static sn_status halved_rows(sn_cuda *cuda, int n, const float *x, int n_linears, const sn_linear *linears, bool rest,
                             sn_err *err) {
    sn_status status = SN_OK;
    bool halved = false;
    for (int i = 0; i < n_linears && !status; i++) {
        const sn_linear *l = &linears[i];
        sn_cuda_matrix w = sn_cuda_matrix_of(l->weight);
        int stride = (int)sn_cuda_pad((size_t)w.cols, 8);
        if (!w.rows || (rest && w.layout == SN_CUDA_F32)) continue;
        if (w.layout != SN_CUDA_F32 && !halved) {
            cudaError_t error = sn_cuda_to_bf16(cuda->work, n, w.cols, x, stride, rest, cuda->x.at);
            if ((status = sn_cuda_queued(cuda, error, "rounding rows", err))) break;
            halved = true;
        }
        if (w.layout == SN_CUDA_F32)
            status = multiply(cuda, n, x, w.cols, w.plane[0], w.rows, stride, CUDA_R_32F, false, l->y, w.rows, err);
        else if (w.layout == SN_CUDA_BF16)
            status = multiply(cuda, n, cuda->x.at, stride, w.plane[0], w.rows, stride, CUDA_R_16BF, rest, l->y, w.rows, err);
        else
            status = by_parts(cuda, n, &w, rest, l->y, err);
    }
    return status;
}

static sn_status many_rows(sn_cuda *cuda, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err) {
    bool exact = false;
    for (int i = 0; i < n_linears; i++) exact |= linears[i].exact;
    sn_status status = halved_rows(cuda, n, x, n_linears, linears, false, err);
    if (!status && exact) status = halved_rows(cuda, n, x, n_linears, linears, true, err);
    for (int i = 0; i < n_linears && !status; i++) {
        const sn_linear *l = &linears[i];
        if (l->bias && l->weight->rows)
            status = sn_cuda_queued(cuda, sn_cuda_add_bias(cuda->work, n, (int)l->weight->rows, l->bias, l->y),
                                    "adding a bias", err);
    }
    return status;
}

sn_status sn_cuda_linear_op(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n && n_linears) status = check_call(cuda, n, n_linears, linears, err);
    if (!status && n && n_linears)
        status = (n <= SN_CUDA_FEW_ROWS ? few_rows : many_rows)(cuda, n, x, n_linears, linears, err);
    return sn_cuda_done(cuda, status);
}
