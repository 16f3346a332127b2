/* Gradients of the CPU's operations: how they are shared out. Which worker takes what changes no result: an item's
 * elements are its own. */
#include "device/cpu/cpu.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum {
    TILE_COLS = SN_CPU_GRAD_COLS, /* columns of a weight that are unpacked at a time, */
    TILE_PANELS = 4,      /* and panels: 16 KiB of float32, which stay close while all rows of dy go by */
    WORTH_SHARING = 4096, /* elements */
};

/* Scratch for each worker: `floats` of it. */
sn_status sn_cpu_grad_scratch(sn_cpu *cpu, size_t floats, sn_err *err) {
    size_t bytes;
    void *grown = NULL, *old = cpu->grad;
    if (!sn_mul(floats, sizeof(float) * (size_t)sn_pool_threads(cpu->pool), &bytes))
        return sn_fail(err, SN_REFUSED, "gradients of %zu elements are too large", floats);
    if (bytes <= cpu->grad_bytes) return SN_OK;
    sn_status status = sn_pages_alloc(&grown, bytes, err);
    if (status) return status;
    sn_pages_free(&old, cpu->grad_bytes);
    cpu->grad = grown;
    cpu->grad_bytes = bytes;
    return SN_OK;
}

/* TILE_COLS columns of dx, all rows: the weight's tiles are unpacked once each. */
void sn_cpu_linear_grad_columns(const sn_cpu_linear_grad_job *job, size_t item, int worker) {
    const sn_cpu_weight *w = &job->weight;
    float *tile = job->cpu->grad + (size_t)worker * TILE_COLS * TILE_PANELS * SN_LANES;
    size_t first = item * TILE_COLS, end = sn_min_size(first + TILE_COLS, w->cols);
    size_t beside = sn_layout_pairs(w->layout) ? 2 : 1, bytes = beside * w->panel_bytes / w->cols; /* of panels that lie as one */
    if (!job->grow)
        for (size_t i = 0; i < job->n; i++) memset(job->dx + i * w->cols + first, 0, (end - first) * sizeof(float));
    for (size_t panel = 0; panel < w->n_panels; panel += TILE_PANELS) {
        size_t row = panel * SN_LANES, panels = sn_min_size(TILE_PANELS, w->n_panels - panel);
        for (size_t p = 0; p < panels; p++)
            job->cpu->kernels->unpack(w, panel + p, first, end, tile + p * SN_LANES * TILE_COLS, TILE_COLS);
        job->cpu->kernels->multiply(&(sn_multiply_job){.rows = job->n,
                                                       .depth = sn_min_size(panels * SN_LANES, w->rows - row),
                                                       .width = end - first,
                                                       .a = job->dy + row,
                                                       .a_row = w->rows,
                                                       .a_depth = 1,
                                                       .b = tile,
                                                       .b_row = TILE_COLS,
                                                       .y = job->dx + first,
                                                       .y_row = w->cols,
                                                       .soon = w->data + (panel + panels) * w->panel_bytes + first * bytes,
                                                       .soon_n = sn_min_size(TILE_PANELS, w->n_panels - panel - panels) / beside,
                                                       .soon_bytes = (end - first) * bytes,
                                                       .soon_apart = beside * w->panel_bytes});
    }
}

static void linear_grad_item(void *ctx, size_t item, int worker) { sn_cpu_linear_grad_columns(ctx, item, worker); }

sn_status sn_cpu_linear_grad(sn_device *d, int n, const float *dy, const sn_weight *weight, bool grow, float *dx,
                             sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    if (n <= 0) return SN_OK;
    sn_status status = sn_cpu_grad_scratch(cpu, SN_CPU_GRAD_TILE, err);
    if (status) return status;
    sn_cpu_linear_grad_job job = {cpu, sn_cpu_weight_view(weight), (size_t)n, dy, dx, grow};
    sn_pool_run(cpu->pool, (weight->cols + TILE_COLS - 1) / TILE_COLS, linear_grad_item, &job);
    return SN_OK;
}

typedef struct outer_grad_job {
    sn_cpu *cpu;
    size_t n, rows, cols, chunk;
    const float *dy, *x;
    float *dw;
} outer_grad_job;

/* Some rows of dw, or some columns: whichever there are more of is shared out. */
static void outer_grad_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const outer_grad_job *job = ctx;
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

sn_status sn_cpu_outer_grad(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                            sn_err *err) {
    (void)err;
    outer_grad_job job = {(sn_cpu *)d, (size_t)n, (size_t)rows, (size_t)cols, 4 * SN_LANES, dy, x, dw};
    assert(n >= 0 && rows > 0 && cols > 0);
    size_t all = job.rows > job.cols ? job.rows : job.cols;
    sn_pool_run(job.cpu->pool, (all + job.chunk - 1) / job.chunk, outer_grad_item, &job);
    return SN_OK;
}

typedef struct rows_grad_job {
    sn_cpu *cpu;
    size_t n, chunk, width;
    const float *x, *weight, *dy, *up;
    float *dx, *dup, eps;
    bool grow;
    sn_activation kind;
} rows_grad_job;

static void run_rows(rows_grad_job *job, sn_pool_fn fn) {
    job->chunk = sn_round_up(WORTH_SHARING / job->width + 1, job->width == 1 ? SN_LANES : 1);
    if (job->n) sn_pool_run(job->cpu->pool, (job->n + job->chunk - 1) / job->chunk, fn, job);
}

static void rms_norm_grad_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rows_grad_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        job->cpu->kernels->rms_norm_grad((int)job->width, job->x + i * job->width, job->weight, job->eps,
                                         job->dy + i * job->width, job->grow, job->dx + i * job->width);
}

sn_status sn_cpu_rms_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                               const float *dy, bool grow, float *dx, sn_err *err) {
    (void)err;
    assert(n >= 0 && width > 0);
    rows_grad_job job = {.cpu = (sn_cpu *)d,
                         .n = (size_t)n,
                         .width = (size_t)width,
                         .x = x,
                         .weight = weight,
                         .eps = eps,
                         .dy = dy,
                         .grow = grow,
                         .dx = dx};
    run_rows(&job, rms_norm_grad_rows);
    return SN_OK;
}

static void layer_norm_grad_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rows_grad_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        job->cpu->kernels->layer_norm_grad((int)job->width, job->x + i * job->width, job->weight, job->eps,
                                           job->dy + i * job->width, job->grow, job->dx + i * job->width);
}

sn_status sn_cpu_layer_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                 const float *dy, bool grow, float *dx, sn_err *err) {
    (void)err;
    assert(n >= 0 && width > 0);
    rows_grad_job job = {.cpu = (sn_cpu *)d, .n = (size_t)n, .width = (size_t)width, .x = x, .weight = weight, .eps = eps,
                         .dy = dy, .grow = grow, .dx = dx};
    run_rows(&job, layer_norm_grad_rows);
    return SN_OK;
}

static void activate_grad_elements(void *ctx, size_t item, int worker) {
    (void)worker;
    const rows_grad_job *job = ctx;
    size_t i = item * job->chunk, n = sn_min_size(job->chunk, job->n - i);
    job->cpu->kernels->activate_grad(job->kind, n, job->x + i, job->up ? job->up + i : NULL, job->dy + i, job->dx + i,
                                     job->up ? job->dup + i : NULL);
}

sn_status sn_cpu_activate_grad(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                               const float *dy, float *dgate, float *dup, sn_err *err) {
    (void)err;
    rows_grad_job job = {.cpu = (sn_cpu *)d, .n = n, .width = 1, .kind = kind, .x = gate, .up = up, .dy = dy, .dx = dgate,
                         .dup = dup};
    run_rows(&job, activate_grad_elements);
    return SN_OK;
}

typedef struct attention_grad_job {
    sn_cpu *cpu;
    const sn_attention_grad *grad;
    size_t room, floats; /* floats: of a worker's scratch */
} attention_grad_job;

static void attention_grad_head(void *ctx, size_t head, int worker) {
    const attention_grad_job *job = ctx;
    float *at = job->cpu->grad + (size_t)worker * job->floats;
    size_t turned = (size_t)job->grad->head_dim * job->room;
    job->cpu->kernels->attention_grad(&(sn_attention_grad_job){.grad = job->grad,
                                                               .kv_head = (int)head,
                                                               .keys = at,
                                                               .values = at + turned,
                                                               .p = at + 2 * turned,
                                                               .dp = at + 2 * turned + job->room,
                                                               .room = job->room});
}

sn_status sn_cpu_attention_grad(sn_device *d, const sn_attention_grad *grad, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    if (grad->n <= 0) return SN_OK;
    assert(grad->n_kv_heads > 0 && grad->n_heads % grad->n_kv_heads == 0);
    attention_grad_job job = {.cpu = cpu, .grad = grad, .room = sn_round_up((size_t)grad->n, SN_LANES)};
    if (!sn_mul(job.room, 2 * (size_t)grad->head_dim + 2, &job.floats))
        return sn_fail(err, SN_REFUSED, "gradients of %d tokens are too large", grad->n);
    sn_status status = sn_cpu_grad_scratch(cpu, job.floats, err);
    if (status) return status;
    sn_pool_run(cpu->pool, (size_t)grad->n_kv_heads, attention_grad_head, &job);
    return SN_OK;
}
