/* The backward pass on the CPU: how gradients are split into items for the thread pool. An item writes elements of its
 * own, so the split changes no bit of the result.
 *
 * linear_input_grad unpacks a tile of the weight (TILE_COLS columns of TILE_PANELS panels) to float32 in scratch memory
 * and multiplies all rows of dy with it; an item is TILE_COLS columns of dx. linear_weight_grad splits the larger
 * dimension of dw. Norms and activations are split by rows or elements. attention_grad gives each key-value head to one
 * worker, which adds up dk and dv of that head in the order of the rows. */
#include "device/cpu/cpu_private.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum {
    TILE_COLS = SN_CPU_GRAD_COLS, /* columns of a weight that are unpacked at a time, */
    /* and panels: 16 KiB of float32, which stay in the cache while all rows of dy are multiplied */
    TILE_PANELS = 4,
    CHUNK_ELEMENTS = 4096, /* of an item, at least */
};

/* Floats of scratch memory for a position: its key and its value, and p, dp and capped (sn_attention_grad_job). */
static size_t attention_row_floats(int head_dim) { return 2 * (size_t)head_dim + 3; }

size_t sn_cpu_grad_bytes(const sn_device_limits *l) {
    size_t attention = sn_round_up((size_t)l->grad_tokens, SN_LANES) * attention_row_floats(l->head_dim);
    if (!l->grad_tokens) return 0;
    return sizeof(float) * (attention > SN_CPU_GRAD_TILE ? attention : SN_CPU_GRAD_TILE);
}

sn_status sn_cpu_grad_scratch_reserve(sn_cpu *cpu, size_t floats, sn_err *err) {
    size_t bytes;
    if (!sn_mul(floats, sizeof(float) * (size_t)sn_pool_threads(cpu->pool), &bytes))
        return sn_fail(err, SN_REFUSED, "gradients of %zu elements are too large", floats);
    return sn_cpu_scratch_reserve(cpu, &cpu->grad_scratch, &cpu->grad_scratch_bytes, bytes, err);
}

/* Unpacks each tile of the weight once. */
void sn_cpu_linear_input_grad_columns(const sn_cpu_linear_input_grad_job *job, size_t item, int worker) {
    const sn_cpu_weight *w = &job->weight;
    float *tile = job->cpu->grad_scratch + (size_t)worker * TILE_COLS * TILE_PANELS * SN_LANES;
    size_t first = item * TILE_COLS, end = sn_min_size(first + TILE_COLS, w->cols);
    size_t panels_joined = sn_cpu_pairs(w->dtype) ? 2 : 1,
           bytes = panels_joined * w->panel_bytes / w->cols; /* bytes per column of the panels that lie interleaved */
    if (!job->accumulate)
        for (size_t i = 0; i < job->n; i++) memset(job->dx + i * w->cols + first, 0, (end - first) * sizeof(float));
    for (size_t panel = 0; panel < w->n_panels; panel += TILE_PANELS) {
        size_t row = panel * SN_LANES, panels = sn_min_size(TILE_PANELS, w->n_panels - panel);
        for (size_t p = 0; p < panels; p++)
            job->cpu->kernels->unpack(w, panel + p, first, end, tile + p * SN_LANES * TILE_COLS, TILE_COLS);
        job->cpu->kernels->multiply(
            &(sn_multiply_job){.rows = job->n,
                               .depth = sn_min_size(panels * SN_LANES, w->rows - row),
                               .width = end - first,
                               .a = job->dy + row,
                               .a_row = w->rows,
                               .a_depth = 1,
                               .b = tile,
                               .b_row = TILE_COLS,
                               .y = job->dx + first,
                               .y_row = w->cols,
                               .prefetch = w->data + (panel + panels) * w->panel_bytes + first * bytes,
                               .prefetch_n = sn_min_size(TILE_PANELS, w->n_panels - panel - panels) / panels_joined,
                               .prefetch_bytes = (end - first) * bytes,
                               .prefetch_stride = panels_joined * w->panel_bytes});
    }
}

static void linear_input_grad_item(void *ctx, size_t item, int worker) {
    sn_cpu_linear_input_grad_columns(ctx, item, worker);
}

sn_status sn_cpu_linear_input_grad(sn_device *d, int n, const float *dy, const sn_weight *weight, bool accumulate,
                                   float *dx, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    if (n <= 0) return SN_OK;
    if (weight->order) return sn_fail(err, SN_REFUSED, "a matrix with columns in an order of its own is not trained");
    sn_status status = sn_cpu_grad_scratch_reserve(cpu, SN_CPU_GRAD_TILE, err);
    if (status) return status;
    sn_cpu_linear_input_grad_job job = {cpu, sn_cpu_weight_view(weight), (size_t)n, dy, dx, accumulate};
    sn_pool_run(cpu->pool, (weight->cols + TILE_COLS - 1) / TILE_COLS, linear_input_grad_item, &job);
    return SN_OK;
}

typedef struct linear_weight_grad_job {
    sn_cpu *cpu;
    size_t n, rows, cols, chunk;
    const float *dy, *x;
    float *dw;
} linear_weight_grad_job;

/* An item is some rows of dw, or some columns: the larger dimension is split. */
static void linear_weight_grad_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const linear_weight_grad_job *job = ctx;
    bool by_rows = job->rows > job->cols;
    size_t all = by_rows ? job->rows : job->cols, first = item * job->chunk, end = sn_min_size(first + job->chunk, all);
    size_t row = by_rows ? first : 0, column = by_rows ? 0 : first;
    job->cpu->kernels->multiply(&(sn_multiply_job){.rows = by_rows ? end - first : job->rows,
                                                   .depth = job->n,
                                                   .width = by_rows ? job->cols : end - first,
                                                   .a = job->dy + row,
                                                   .a_row = 1,
                                                   .a_depth = job->rows,
                                                   .b = job->x + column,
                                                   .b_row = job->cols,
                                                   .y = job->dw + row * job->cols + column,
                                                   .y_row = job->cols});
}

sn_status sn_cpu_linear_weight_grad(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                                    sn_err *err) {
    (void)err;
    linear_weight_grad_job job = {(sn_cpu *)d, (size_t)n, (size_t)rows, (size_t)cols, 4 * SN_LANES, dy, x, dw};
    assert(n >= 0 && rows > 0 && cols > 0);
    size_t all = job.rows > job.cols ? job.rows : job.cols;
    sn_pool_run(job.cpu->pool, (all + job.chunk - 1) / job.chunk, linear_weight_grad_item, &job);
    return SN_OK;
}

/* Rows of an item, or elements (width 1). */
static size_t rows_chunk(size_t width) { return sn_round_up(CHUNK_ELEMENTS / width + 1, width == 1 ? SN_LANES : 1); }

static void rows_run(sn_cpu *cpu, size_t n, size_t chunk, sn_pool_fn fn, void *job) {
    if (n) sn_pool_run(cpu->pool, (n + chunk - 1) / chunk, fn, job);
}

/* rms_norm_grad and layer_norm_grad: the same arguments, another kernel. */
typedef struct norm_grad_job {
    sn_cpu *cpu;
    void (*kernel)(int width, const float *x, const float *weight, float eps, const float *dy, bool accumulate,
                   float *dx);
    int n, width;
    const float *x, *weight;
    float eps;
    const float *dy;
    bool accumulate;
    float *dx;
} norm_grad_job;

static void norm_grad_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const norm_grad_job *job = ctx;
    size_t width = (size_t)job->width, chunk = rows_chunk(width), i = item * chunk;
    for (size_t end = sn_min_size(i + chunk, (size_t)job->n); i < end; i++)
        job->kernel(job->width, job->x + i * width, job->weight, job->eps, job->dy + i * width, job->accumulate,
                    job->dx + i * width);
}

static sn_status norm_grad_run(norm_grad_job job) {
    assert(job.n >= 0 && job.width > 0);
    rows_run(job.cpu, (size_t)job.n, rows_chunk((size_t)job.width), norm_grad_rows, &job);
    return SN_OK;
}

sn_status sn_cpu_rms_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                               const float *dy, bool accumulate, float *dx, sn_err *err) {
    (void)err;
    sn_cpu *cpu = (sn_cpu *)d;
    return norm_grad_run(
        (norm_grad_job){cpu, cpu->kernels->rms_norm_grad, n, width, x, weight, eps, dy, accumulate, dx});
}

sn_status sn_cpu_layer_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                 const float *dy, bool accumulate, float *dx, sn_err *err) {
    (void)err;
    sn_cpu *cpu = (sn_cpu *)d;
    return norm_grad_run(
        (norm_grad_job){cpu, cpu->kernels->layer_norm_grad, n, width, x, weight, eps, dy, accumulate, dx});
}

typedef struct activate_grad_job {
    sn_cpu *cpu;
    size_t n;
    sn_activation kind;
    const float *gate, *up, *dy;
    float *dgate, *dup;
} activate_grad_job;

static void activate_grad_elements(void *ctx, size_t item, int worker) {
    (void)worker;
    const activate_grad_job *job = ctx;
    size_t chunk = rows_chunk(1), i = item * chunk, n = sn_min_size(chunk, job->n - i);
    job->cpu->kernels->activate_grad(job->kind, n, job->gate + i, job->up ? job->up + i : NULL, job->dy + i,
                                     job->dgate + i, job->up ? job->dup + i : NULL);
}

sn_status sn_cpu_activate_grad(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                               const float *dy, float *dgate, float *dup, sn_err *err) {
    (void)err;
    activate_grad_job job = {(sn_cpu *)d, n, kind, gate, up, dy, dgate, dup};
    rows_run(job.cpu, n, rows_chunk(1), activate_grad_elements, &job);
    return SN_OK;
}

typedef struct attention_grad_job {
    sn_cpu *cpu;
    const sn_attention_grad *grad;
    size_t n_padded, floats; /* floats: of a worker's scratch memory */
} attention_grad_job;

static void attention_grad_head(void *ctx, size_t head, int worker) {
    const attention_grad_job *job = ctx;
    float *at = job->cpu->grad_scratch + (size_t)worker * job->floats;
    size_t transposed = (size_t)job->grad->head_dim * job->n_padded;
    job->cpu->kernels->attention_grad(&(sn_attention_grad_job){.grad = job->grad,
                                                               .kv_head = (int)head,
                                                               .keys = at,
                                                               .values = at + transposed,
                                                               .p = at + 2 * transposed,
                                                               .dp = at + 2 * transposed + job->n_padded,
                                                               .capped = at + 2 * transposed + 2 * job->n_padded,
                                                               .n_padded = job->n_padded});
}

sn_status sn_cpu_attention_grad(sn_device *d, const sn_attention_grad *grad, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    if (grad->n <= 0) return SN_OK;
    assert(grad->n_kv_heads > 0 && grad->n_heads % grad->n_kv_heads == 0);
    size_t keys = (size_t)grad->first + (size_t)grad->n;
    attention_grad_job job = {.cpu = cpu, .grad = grad, .n_padded = sn_round_up(keys, SN_LANES)};
    if (!sn_mul(job.n_padded, attention_row_floats(grad->head_dim), &job.floats))
        return sn_fail(err, SN_REFUSED, "gradients of %zu tokens are too large", keys);
    sn_status status = sn_cpu_grad_scratch_reserve(cpu, job.floats, err);
    if (status) return status;
    sn_pool_run(cpu->pool, (size_t)grad->n_kv_heads, attention_grad_head, &job);
    return SN_OK;
}
