/* y = x . w^T on an XPU, up to three matrices of one form in a launch.
 *
 * Few rows: kernels that read each weight once for up to 8 of them. Where the device has an instruction for four
 * products of bytes (dp4a), quantised weights are multiplied with x in 8 bits in groups of 32, as on the CPU, up to 32
 * rows, and any number where the device has matrix units (XMX); an operation that makes x in the same call writes it
 * so. Elsewhere everything is float32, many rows by tiles. */
#include "base/mem.h"
#include "device/xpu/xpu_private.h"

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

enum { FEW_ROWS = 8, FEW_ROWS_DOT = 32, TILE = 64 }; /* TILE: as in linear.cl */

static size_t groups_of(size_t n, size_t size) { return (n + size - 1) / size; }

/* -- rows in 8 bits */

static size_t rows8_bytes(size_t rows, size_t cols) {
    const size_t width = sn_round_up(cols, 32);
    return rows * (width + width / 16 * 2 * sizeof(float));
}

/* Experts and matrix units take any number of rows in 8 bits, experts also a row for each pair. */
size_t sn_xpu_rows8_bytes(const sn_xpu *x, const sn_device_limits *limits) {
    const size_t rows = (size_t)limits->rows, used = (size_t)limits->experts_used;
    const size_t most = x->xmx_lanes || used ? rows : sn_min_size(rows, FEW_ROWS_DOT),
                 shared = rows8_bytes(most, (size_t)limits->width),
                 own = rows8_bytes(rows * used, (size_t)limits->expert_width);
    return x->dp4a ? shared > own ? shared : own : 0;
}

sn_xpu_rows8 sn_xpu_rows8_of(const sn_xpu *x, size_t n, size_t cols) {
    uint8_t *at = x->rows8.device;
    return (sn_xpu_rows8){at, at + n * cols};
}

sn_status sn_xpu_rows8_reserve(sn_xpu *x, size_t n, size_t cols, sn_xpu_rows8 *rows, sn_err *err) {
    const size_t all = n * cols;
    sn_status status = sn_xpu_buffer_reserve(x, &x->rows8, all + all / 16 * 2 * sizeof(float), err);
    *rows = sn_xpu_rows8_of(x, n, cols);
    return status;
}

sn_status sn_xpu_rows8_make(sn_xpu *x, int n, size_t cols, const float *in, sn_err *err) {
    sn_xpu_rows8 rows;
    uint64_t n_groups = (size_t)n * cols / 32;
    sn_status status = sn_xpu_rows8_reserve(x, (size_t)n, cols, &rows, err);
    sn_xpu_arg args[] = {SN_XPU_ARG(n_groups), SN_XPU_ARG(in), SN_XPU_ARG(rows.q), SN_XPU_ARG(rows.scales)};
    if (!status) status = sn_xpu_barrier(x, err);
    return status ? status
                  : sn_xpu_launch(x, x->kernels[SN_XPU_quantise], groups_of(n_groups, 64), 1, COUNT(args), args, err);
}

/* -- products */

int sn_xpu_matrix_args(const sn_xpu_matrix *matrices, sn_xpu_arg *args) {
    int n = 0;
    for (int i = 0; i < SN_XPU_MATRICES; i++) {
        args[n++] = SN_XPU_ARG(matrices[i].weight);
        args[n++] = SN_XPU_ARG(matrices[i].at);
        args[n++] = SN_XPU_ARG(matrices[i].bias);
        args[n++] = SN_XPU_ARG(matrices[i].y);
    }
    return n;
}

/* The first matrices that have one form; returns how many. */
static sn_status matrices_of(int n_linears, const sn_linear *linears, sn_xpu_matrix out[SN_XPU_MATRICES], int *n,
                             sn_xpu_form *form, sn_err *err) {
    for (*n = 0; *n < n_linears && *n < SN_XPU_MATRICES; ++*n) {
        const sn_linear *l = &linears[*n];
        sn_xpu_layout layout;
        sn_status status = sn_xpu_layout_of(l->weight->dtype, l->weight->rows, l->weight->cols, &layout, err);
        if (status) return status;
        if (*n > 0 && (layout.form != *form || l->high_precision != linears[0].high_precision)) return SN_OK;
        *form = layout.form;
        out[*n] = (sn_xpu_matrix){
            l->weight->device, {layout.highs, layout.scales, layout.supers, l->weight->rows}, l->bias, l->y};
    }
    return SN_OK;
}

/* How a product is computed. */
typedef enum way { FLOATS, BYTES, MATRIX_UNITS } way;

/* Loads the kernels, of which the driver may refuse those in 8 bits. */
static sn_status way_of(sn_xpu *x, const sn_linear *linear, sn_xpu_form form, int n, way *out, sn_err *err) {
    const bool quantised = sn_dtype_quantised(linear->weight->dtype);
    sn_status status = SN_OK;
    *out = FLOATS;
    if (quantised && n <= FEW_ROWS_DOT) {
        status = sn_xpu_load_dot(x, form, err);
        if (x->dp4a) *out = BYTES;
    } else if (quantised && !linear->high_precision) {
        status = sn_xpu_load_xmx(x, form, err);
        if (x->xmx_lanes) *out = MATRIX_UNITS;
    }
    return status || *out != FLOATS ? status : sn_xpu_load_linear(x, form, err);
}

/* The kernel for n rows, and how many outputs and rows its groups compute. */
static ze_kernel_handle_t kernel_for(const sn_xpu *x, sn_xpu_form form, int n, way by, size_t *outputs, size_t *rows) {
    const sn_xpu_linear_kernels *k = &x->linear[form];
    const sn_xpu_dot_kernels *d = &x->dots[form];
    if (by == MATRIX_UNITS) {
        *outputs = 32;
        *rows = 4 * (size_t)x->xmx_lanes;
        return x->xmx[form].matmul;
    }
    *outputs = SN_XPU_OUTPUTS;
    *rows = n == 1 ? 1 : n <= 4 ? 4 : 8;
    if (by == BYTES) return n == 1 ? d->matvec1 : n <= 4 ? d->matvec4 : d->matvec8;
    if (n <= FEW_ROWS) return n == 1 ? k->matvec1 : n <= 4 ? k->matvec4 : k->matvec8;
    *outputs = TILE;
    *rows = n <= 32 ? 32 : TILE;
    return n <= 32 ? k->matmul_tile32 : k->matmul_tile64;
}

static sn_status launch_product(sn_xpu *x, int n, const float *in, uint32_t cols,
                                const sn_xpu_matrix m[SN_XPU_MATRICES], sn_xpu_form form, way by, sn_err *err) {
    size_t outputs, rows, groups = 0;
    const ze_kernel_handle_t kernel = kernel_for(x, form, n, by, &outputs, &rows);
    const sn_xpu_rows8 rows8 = sn_xpu_rows8_of(x, (size_t)n, cols);
    sn_xpu_arg args[4 * SN_XPU_MATRICES + 4];
    int n_args = sn_xpu_matrix_args(m, args);
    for (int i = 0; i < SN_XPU_MATRICES; i++) groups += groups_of((size_t)m[i].at[3], outputs);
    args[n_args++] = SN_XPU_ARG(cols);
    args[n_args++] = by == FLOATS ? SN_XPU_ARG(in) : SN_XPU_ARG(rows8.q);
    if (by != FLOATS) args[n_args++] = SN_XPU_ARG(rows8.scales);
    args[n_args++] = SN_XPU_ARG(n);
    return sn_xpu_launch(x, kernel, groups, groups_of((size_t)n, rows), n_args, args, err);
}

static sn_status check_cols(int n_linears, const sn_linear *linears, sn_err *err) {
    const size_t cols = linears[0].weight->cols;
    for (int i = 1; i < n_linears; i++)
        if (linears[i].weight->cols != cols)
            return sn_fail(err, SN_REFUSED, "matrices of %zu and %zu columns cannot share an input", cols,
                           linears[i].weight->cols);
    return SN_OK;
}

/* made: rows8 has x. */
static sn_status linear_run(sn_xpu *xpu, int n, const float *x, bool made, int n_linears, const sn_linear *linears,
                            sn_err *err) {
    const size_t cols = linears[0].weight->cols;
    bool ready = false;
    sn_status status = SN_OK;
    for (int i = 0, count = 0; i < n_linears && !status; i += count) {
        sn_xpu_matrix m[SN_XPU_MATRICES] = {0};
        sn_xpu_form form = SN_XPU_FORM_F32;
        way by = FLOATS;
        status = matrices_of(n_linears - i, linears + i, m, &count, &form, err);
        if (!status) status = way_of(xpu, &linears[i], form, n, &by, err);
        if (!status && by != FLOATS && !made) {
            status = sn_xpu_rows8_make(xpu, n, cols, x, err);
            made = true;
            ready = false;
        }
        if (!status && !ready) status = sn_xpu_barrier(xpu, err);
        ready = true;
        if (!status) status = launch_product(xpu, n, x, (uint32_t)cols, m, form, by, err);
    }
    return status;
}

sn_status sn_xpu_linear(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    if (n <= 0 || n_linears <= 0) return sn_xpu_check_alive(xpu, err);
    sn_status status = check_cols(n_linears, linears, err);
    return status ? status : linear_run(xpu, n, x, false, n_linears, linears, err);
}

/* -- products of rows that the same call makes */

/* Where what makes x (n, cols) writes it in 8 bits besides; nowhere if the first matrix reads floats. */
static sn_status rows8_for(sn_xpu *xpu, int n, int n_linears, const sn_linear *linears, sn_xpu_rows8 *rows,
                           sn_err *err) {
    const sn_weight *first = linears[0].weight;
    sn_xpu_layout layout;
    way by = FLOATS;
    *rows = (sn_xpu_rows8){0};
    sn_status status = check_cols(n_linears, linears, err);
    if (!status) status = sn_xpu_layout_of(first->dtype, first->rows, first->cols, &layout, err);
    if (!status) status = way_of(xpu, &linears[0], layout.form, n, &by, err);
    return status || by == FLOATS ? status : sn_xpu_rows8_reserve(xpu, (size_t)n, first->cols, rows, err);
}

sn_status sn_xpu_norm_linear(sn_device *d, int n, const sn_norm *p, int n_linears, const sn_linear *linears,
                             sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_xpu_rows8 rows;
    if (p->layer) return sn_composed_norm_linear(d, n, p, n_linears, linears, err);
    if (n <= 0) return sn_xpu_check_alive(xpu, err);
    sn_status status = rows8_for(xpu, n, n_linears, linears, &rows, err);
    if (!status) status = sn_xpu_launch_norm(xpu, n, p, rows, err);
    return status ? status : linear_run(xpu, n, p->y, rows.q, n_linears, linears, err);
}

sn_status sn_xpu_attention_linear(sn_device *d, int n, const sn_attention *params, const float *q, float *out,
                                  const sn_linear *linear, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_xpu_rows8 rows = {0};
    if (n <= 0) return sn_xpu_check_alive(xpu, err);
    sn_status status = sn_xpu_attends_in_8_bits(xpu, params->block) ? rows8_for(xpu, n, 1, linear, &rows, err) : SN_OK;
    if (!status) status = sn_xpu_attend(xpu, params, q, out, rows, err);
    return status ? status : linear_run(xpu, n, out, rows.q, 1, linear, err);
}

sn_status sn_xpu_activate_linear(sn_device *d, int n, const sn_gated *p, const sn_linear *linear, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_xpu_rows8 rows;
    if (n <= 0) return sn_xpu_check_alive(xpu, err);
    sn_status status = rows8_for(xpu, n, 1, linear, &rows, err);
    if (!status) status = sn_xpu_launch_activate(xpu, (size_t)n * linear->weight->cols, p, rows, err);
    return status ? status : linear_run(xpu, n, p->y, rows.q, 1, linear, err);
}
