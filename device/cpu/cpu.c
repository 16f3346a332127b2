/* The CPU backend: memory, batches, linear, the operations on rows and elements, opening and closing. The other
 * operations are in attention.c, experts.c and grad.c; the arithmetic is in kernels.inc.c.
 *
 * An operation splits its call into items and runs them on the device's thread pool (base/pool.h): an item is some
 * panels of the weights for linear, some rows or elements for the others. An item calls kernels of the table that isa.c
 * chose, on its own part of the output; so the split changes no bit of the result. A call of less than
 * SN_CPU_PARALLEL_MIN elements runs on the calling thread alone.
 *
 * Operations are done when they return: the queue of device.h is empty at all times, copies are memcpy, and there are
 * no fences. Device memory is host memory. linear quantises its input rows first (cpu->xq) where a weight is quantised.
 * Scratch memory grows in `prepare` only. */
#include "device/cpu/cpu_private.h"

#include "base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- memory */

static sn_status cpu_alloc(sn_device *d, size_t bytes, void **device, sn_err *err) {
    *device = NULL;
    sn_status status = sn_device_take_memory(d, bytes, err);
    if (status) return status;
    status = sn_pages_alloc(device, bytes, err);
    if (status) sn_device_give_memory(d, bytes);
    return status;
}

static void cpu_free(sn_device *d, void *device, size_t bytes) {
    if (device) sn_device_give_memory(d, bytes);
    sn_pages_free(&device, bytes);
}

static sn_status cpu_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err) {
    (void)d;
    (void)err;
    if (bytes) memcpy(device, host, bytes);
    return SN_OK;
}

static sn_status cpu_download(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err) {
    (void)d;
    (void)err;
    if (bytes) memcpy(host, device, bytes);
    return SN_OK;
}

/* Nothing to wait for: operations are done when they return. */
static sn_status cpu_finish(sn_device *d, sn_err *err) {
    (void)d;
    (void)err;
    return SN_OK;
}

/* Tensors may lie anywhere in host memory: in a message, in a file, in memory of another allocator. */
static bool cpu_owns(const sn_device *d, const void *device, size_t bytes) {
    (void)d, (void)bytes;
    return device;
}

/* Memory of the host is not counted: it is for what does not compute here. */
static sn_status cpu_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err) {
    (void)d;
    *host = NULL;
    return sn_pages_alloc(host, bytes, err);
}

static void cpu_host_free(sn_device *d, void *host, size_t bytes) {
    (void)d;
    sn_pages_free(&host, bytes);
}

static sn_status cpu_copy_begin(sn_device *d, void *device, const void *host, size_t bytes, sn_fence *fence,
                                sn_err *err) {
    *fence = 0;
    return cpu_upload(d, device, host, bytes, err);
}

static sn_status cpu_copy_join(sn_device *d, sn_fence fence, sn_err *err) {
    (void)fence;
    return cpu_finish(d, err);
}

/* Never replays: a call costs less than the lookup of a capture would. */
static sn_status cpu_batch_begin(sn_device *d, const sn_batch *batch, bool *replayed, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    *replayed = false;
    for (int s = 0; s < batch->n_sequences; s++)
        if (batch->sequences[s].position + batch->sequences[s].n_rows > cpu->limits.context)
            return sn_fail(err, SN_REFUSED, "position %d exceeds the context of %d that was prepared",
                           batch->sequences[s].position + batch->sequences[s].n_rows - 1, cpu->limits.context);
    int widest = batch->shape->latent ? SN_LATENT_DIM_MAX : SN_CPU_HEAD_DIM_MAX;
    const int dim = sn_kv_head_dim_max(batch->shape);
    if (dim > widest)
        return sn_fail(err, SN_REFUSED, "heads of %d elements are too wide: at most %d are possible", dim, widest);
    cpu->batch = *batch;
    return SN_OK;
}

static sn_status cpu_batch_end(sn_device *d, sn_err *err) {
    ((sn_cpu *)d)->batch = (sn_batch){0};
    return cpu_finish(d, err);
}

/* Floats of a row of scores. */
static size_t scores_stride(const sn_device_limits *l) {
    return sn_round_up((size_t)l->context, SN_LANES) + 2 * SN_LANES;
}

sn_status sn_cpu_scratch_reserve(sn_cpu *cpu, void *pages, size_t *bytes, size_t wanted, sn_err *err) {
    void *grown = NULL, **old = pages;
    if (wanted <= *bytes) return SN_OK;
    sn_status status = cpu_alloc(&cpu->base, wanted, &grown, err);
    if (status) return status;
    cpu_free(&cpu->base, *old, *bytes);
    *old = grown;
    *bytes = wanted;
    return SN_OK;
}

/* A buffer of scratch memory, and the bytes that certain limits need. */
typedef struct scratch_need {
    void *pages; /* as of sn_cpu_scratch_reserve */
    size_t *bytes, wanted;
} scratch_need;

enum { SCRATCHES = 7, TIMEOUT_MS = 60000 };

/* The bytes of all scratch memory for these limits. */
static sn_status scratch_needs(sn_cpu *cpu, const sn_device_limits *l, scratch_need out[SCRATCHES], sn_err *err) {
    size_t xq, scores, moe = 0, grad = 0, moe_grad = 0, chosen = 0, threads = (size_t)sn_pool_threads(cpu->pool);
    size_t sums = threads * SN_SCORE_ROWS * sizeof(float);
    if (!sn_mul((size_t)l->rows * sizeof(sn_xblock), sn_xq_stride((size_t)l->width), &xq) ||
        !sn_mul(sums, scores_stride(l), &scores) || !sn_mul(threads, sn_cpu_grad_bytes(l), &grad) ||
        !sn_cpu_moe_grad_bytes(l, &moe_grad) || !sn_cpu_chosen_bytes(cpu, l, &chosen))
        return sn_fail(err, SN_REFUSED, "limits of %d rows, %d elements, %d positions are too large", l->rows, l->width,
                       l->context);
    sn_status status = sn_cpu_moe_bytes(l, &moe, err);
    const scratch_need all[SCRATCHES] = {{&cpu->xq, &cpu->xq_bytes, xq},
                                         {&cpu->scores, &cpu->scores_bytes, scores},
                                         {&cpu->sums, &cpu->sums_bytes, sums},
                                         {&cpu->moe_scratch, &cpu->moe_scratch_bytes, moe},
                                         {&cpu->grad_scratch, &cpu->grad_scratch_bytes, grad},
                                         {&cpu->moe_grad_scratch, &cpu->moe_grad_scratch_bytes, moe_grad},
                                         {&cpu->chosen_scratch, &cpu->chosen_scratch_bytes, chosen}};
    memcpy(out, all, sizeof all);
    return status;
}

/* Of limits as they are given: joined with earlier ones, a negative number does not show. */
static sn_status check_limits(const sn_device_limits *l, sn_err *err) {
    if (l->rows >= 0 && l->width >= 0 && l->context >= 0 && l->grad_tokens >= 0 && l->chosen >= 0) return SN_OK;
    return sn_fail(err, SN_REFUSED, "limits of %d rows, %d elements, %d positions are not possible", l->rows, l->width,
                   l->context);
}

static size_t cpu_prepare_bytes(const sn_device *d, const sn_device_limits *limits) {
    sn_cpu *cpu = (sn_cpu *)(uintptr_t)d; /* only read */
    const sn_device_limits all = sn_device_limits_join(&cpu->limits, limits);
    scratch_need needs[SCRATCHES];
    size_t sum = 0;
    if (check_limits(limits, NULL) || scratch_needs(cpu, &all, needs, NULL)) return SIZE_MAX;
    for (int i = 0; i < SCRATCHES; i++)
        if (needs[i].wanted > *needs[i].bytes && !sn_add(sum, needs[i].wanted, &sum)) return SIZE_MAX;
    return sum;
}

static sn_status cpu_prepare(sn_device *d, const sn_device_limits *limits, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    const sn_device_limits all = sn_device_limits_join(&cpu->limits, limits);
    scratch_need needs[SCRATCHES];
    sn_status status = check_limits(limits, err);
    if (!status) status = scratch_needs(cpu, &all, needs, err);
    for (int i = 0; i < SCRATCHES && !status; i++)
        status = sn_cpu_scratch_reserve(cpu, needs[i].pages, needs[i].bytes, needs[i].wanted, err);
    if (status) return status;
    cpu->scores_stride = scores_stride(&all);
    cpu->limits = all;
    return SN_OK;
}

/* -- linear */

/* An item is rows [chunk * item, chunk * (item + 1)). */
typedef struct quantize_job {
    sn_cpu *cpu;
    size_t n, chunk;
    size_t cols, stride;
    const float *x;
    const int32_t *order; /* of sn_weight */
} quantize_job;

static size_t count_chunks(size_t n, size_t chunk) { return (n + chunk - 1) / chunk; }

/* A row whose elements are brought into the order of the matrix's columns, some at a time. */
static void quantize_ordered(const quantize_job *job, const float *x, sn_xblock *out) {
    enum { SOME = 256 };
    float some[SOME];
    for (size_t at = 0; at < job->cols; at += SOME) {
        size_t n = sn_min_size(SOME, job->cols - at);
        for (size_t k = 0; k < n; k++) some[k] = x[job->order[at + k]];
        job->cpu->kernels->quantize(n, some, out + at / SN_QUANT_GROUP);
    }
}

static void quantize_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const quantize_job *job = ctx;
    size_t end = sn_min_size((item + 1) * job->chunk, job->n);
    for (size_t i = item * job->chunk; i < end; i++) {
        const float *x = job->x + i * job->cols;
        sn_xblock *out = job->cpu->xq + i * job->stride;
        if (job->order)
            quantize_ordered(job, x, out);
        else
            job->cpu->kernels->quantize(job->cols, x, out);
    }
}

enum { LINEARS_MAX = 16 };

/* The panels of all matrices form one sequence that is cut into equal items, so that a small matrix next to a large one
 * does not unbalance the threads. */
typedef struct linear_job {
    const sn_cpu_kernels *kernels;
    int n_linears;
    size_t chunk, n_panels; /* panels of an item; panels of all matrices */
    size_t first_panel[LINEARS_MAX + 1];
    sn_linear_job linears[LINEARS_MAX];
} linear_job;

static void linear_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const linear_job *job = ctx;
    size_t at = item * job->chunk, end = sn_min_size(at + job->chunk, job->n_panels);
    for (int i = 0; i < job->n_linears && at < end; i++) {
        size_t first = job->first_panel[i], until = sn_min_size(end, job->first_panel[i + 1]);
        if (at >= until) continue;
        job->kernels->linear(&job->linears[i], at - first, until - first);
        at = until;
    }
}

static sn_status linear_check(const sn_cpu *cpu, int n, int n_linears, const sn_linear *linears, sn_err *err) {
    size_t cols = linears[0].weight->cols;
    if (n > cpu->limits.rows || cols > (size_t)cpu->limits.width)
        return sn_fail(err, SN_REFUSED, "%d rows of %zu are more than the %d of %d that were prepared", n, cols,
                       cpu->limits.rows, cpu->limits.width);
    if (n_linears > LINEARS_MAX)
        return sn_fail(err, SN_REFUSED, "%d matrices at once are more than %d", n_linears, LINEARS_MAX);
    for (int i = 1; i < n_linears; i++)
        if (linears[i].weight->cols != cols)
            return sn_fail(err, SN_REFUSED, "matrices of %zu and %zu columns cannot share an input", cols,
                           linears[i].weight->cols);
    return SN_OK;
}

static bool has_order(const sn_linear *linear, const int32_t *order) {
    const int32_t *own = linear->weight->order;
    return own == order || (own && order && !memcmp(own, order, linear->weight->cols * sizeof *own));
}

/* Of matrices that have one order of columns. */
static void linear_of_one_order(sn_cpu *cpu, int n, const float *x, int n_linears, const sn_linear *linears) {
    size_t cols = linears[0].weight->cols, stride = sn_xq_stride(cols);
    linear_job job = {.kernels = cpu->kernels, .n_linears = n_linears};
    bool quantised = false;
    for (int i = 0; i < n_linears; i++) {
        sn_cpu_weight w = sn_cpu_weight_view(linears[i].weight);
        job.linears[i] =
            (sn_linear_job){w, linears[i].bias, linears[i].y, n, x, cpu->xq, stride, sn_cpu_prefetch(&w, n)};
        quantised |= sn_cpu_quantised(w.dtype);
        job.n_panels = job.first_panel[i + 1] = job.first_panel[i] + w.n_panels;
    }
    if (quantised) {
        size_t chunk = (size_t)n * cols < SN_CPU_PARALLEL_MIN ? (size_t)n : 4;
        quantize_job rows = {cpu, (size_t)n, chunk, cols, stride, x, linears[0].weight->order};
        sn_pool_run(cpu->pool, count_chunks((size_t)n, chunk), quantize_rows, &rows);
    }
    /* Several items per thread, so that a thread that the system delays holds up the others only a little; fewer items
     * when there are few rows, because the work is then reading memory, and the first read of every item waits. */
    size_t threads = (size_t)sn_pool_threads(cpu->pool);
    job.chunk = threads == 1 ? job.n_panels : count_chunks(job.n_panels, (n < 8 ? 2 : 8) * threads);
    job.chunk = sn_round_up(job.chunk, 2); /* an item never splits a pair of panels */
    if (job.n_panels) sn_pool_run(cpu->pool, count_chunks(job.n_panels, job.chunk), linear_item, &job);
}

static sn_status cpu_linear(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    if (n <= 0 || n_linears <= 0) return SN_OK;
    sn_status status = linear_check(cpu, n, n_linears, linears, err);
    for (int first = 0, end; first < n_linears && !status; first = end) {
        for (end = first + 1; end < n_linears && has_order(linears + end, linears[first].weight->order);) end++;
        linear_of_one_order(cpu, n, x, end - first, linears + first);
    }
    return status;
}

/* -- row by row, element by element */

typedef struct rowwise_job {
    sn_cpu *cpu;
    size_t n, chunk; /* rows or elements in all; of an item */
    size_t width, groups;
    const float *a, *b, *bias;
    float *y, eps, factor, low, high;
    sn_activation kind;
    int n_heads;
    const sn_rope *rope;
    const sn_cpu_weight *weight;
    const int32_t *ids;
} rowwise_job;

/* Splits n rows of `width` elements (or n elements, with width 1) into items and runs them. */
static void rowwise_run(rowwise_job *job, sn_pool_fn fn) {
    size_t width = job->width ? job->width : 1;
    job->chunk = job->n * width < SN_CPU_PARALLEL_MIN
                     ? job->n
                     : sn_round_up(count_chunks(SN_CPU_PARALLEL_MIN / 4, width), width == 1 ? 16 : 1);
    if (job->n) sn_pool_run(job->cpu->pool, count_chunks(job->n, job->chunk), fn, job);
}

static size_t rowwise_end(const rowwise_job *job, size_t item) { return sn_min_size((item + 1) * job->chunk, job->n); }

static void rms_norm_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    for (size_t i = item * job->chunk, end = rowwise_end(job, item); i < end; i++)
        job->cpu->kernels->rms_norm((int)job->width, job->a + i * job->width, job->b + i % job->groups * job->width,
                                    job->eps, job->y + i * job->width);
}

static sn_status cpu_group_norm(sn_device *d, int n, int groups, int width, const float *x, const float *weight,
                                float eps, float *y, sn_err *err) {
    (void)err;
    assert(n >= 0 && groups > 0 && width > 0);
    rowwise_job job = {.cpu = (sn_cpu *)d,
                       .n = (size_t)n * (size_t)groups,
                       .groups = (size_t)groups,
                       .width = (size_t)width,
                       .a = x,
                       .b = weight,
                       .eps = eps,
                       .y = y};
    rowwise_run(&job, rms_norm_rows);
    return SN_OK;
}

static sn_status cpu_rms_norm(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                              sn_err *err) {
    return cpu_group_norm(d, n, 1, width, x, weight, eps, y, err);
}

static void layer_norm_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    for (size_t i = item * job->chunk, end = rowwise_end(job, item); i < end; i++)
        job->cpu->kernels->layer_norm((int)job->width, job->a + i * job->width, job->b, job->bias, job->eps,
                                      job->y + i * job->width);
}

static sn_status cpu_layer_norm(sn_device *d, int n, int width, const float *x, const float *weight, const float *bias,
                                float eps, float *y, sn_err *err) {
    (void)err;
    assert(n >= 0 && width > 0);
    rowwise_job job = {.cpu = (sn_cpu *)d,
                       .n = (size_t)n,
                       .width = (size_t)width,
                       .a = x,
                       .b = weight,
                       .bias = bias,
                       .eps = eps,
                       .y = y};
    rowwise_run(&job, layer_norm_rows);
    return SN_OK;
}

static void rope_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    const sn_rope *r = job->rope;
    for (size_t i = item * job->chunk, end = rowwise_end(job, item); i < end; i++)
        job->cpu->kernels->rope(job->n_heads, (int)job->width / job->n_heads, job->y + i * job->width, r->rotate_half,
                                r->dim, r->cos_sin + i * (size_t)r->dim);
}

static sn_status cpu_rope(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err) {
    (void)err;
    assert(n >= 0 && n_heads > 0 && rope->dim % 2 == 0 && rope->dim <= head_dim);
    rowwise_job job = {.cpu = (sn_cpu *)d,
                       .n = (size_t)n,
                       .width = (size_t)n_heads * (size_t)head_dim,
                       .y = x,
                       .n_heads = n_heads,
                       .rope = rope};
    rowwise_run(&job, rope_rows);
    return SN_OK;
}

static void activate_elements(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    size_t i = item * job->chunk;
    job->cpu->kernels->activate(job->kind, rowwise_end(job, item) - i, job->a + i, job->b ? job->b + i : NULL,
                                job->y + i);
}

static sn_status cpu_activate(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y,
                              sn_err *err) {
    (void)err;
    rowwise_job job = {.cpu = (sn_cpu *)d, .n = n, .width = 1, .kind = kind, .a = gate, .b = up, .y = y};
    rowwise_run(&job, activate_elements);
    return SN_OK;
}

static void add_elements(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    size_t i = item * job->chunk;
    job->cpu->kernels->add(rowwise_end(job, item) - i, job->y + i, job->a + i);
}

static sn_status cpu_add(sn_device *d, size_t n, float *y, const float *x, sn_err *err) {
    (void)err;
    rowwise_job job = {.cpu = (sn_cpu *)d, .n = n, .width = 1, .a = x, .y = y};
    rowwise_run(&job, add_elements);
    return SN_OK;
}

static void scale_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    for (size_t i = item * job->chunk, end = rowwise_end(job, item); i < end; i++)
        job->cpu->kernels->scale(job->width, job->a + i * job->width, job->b ? job->factor * job->b[i] : job->factor,
                                 job->y + i * job->width);
}

static sn_status cpu_scale(sn_device *d, int n, int width, const float *x, float factor, const float *factors, float *y,
                           sn_err *err) {
    (void)err;
    rowwise_job job = {.cpu = (sn_cpu *)d,
                       .n = n > 0 ? (size_t)n : 0,
                       .width = (size_t)width,
                       .factor = factor,
                       .a = x,
                       .b = factors,
                       .y = y};
    rowwise_run(&job, scale_rows);
    return SN_OK;
}

static void clamp_elements(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    for (size_t i = item * job->chunk, end = rowwise_end(job, item); i < end; i++) {
        const float x = job->y[i];
        job->y[i] = x < job->low ? job->low : x > job->high ? job->high : x;
    }
}

static sn_status cpu_clamp(sn_device *d, size_t n, float *x, float low, float high, sn_err *err) {
    (void)err;
    rowwise_job job = {.cpu = (sn_cpu *)d, .n = n, .width = 1, .low = low, .high = high, .y = x};
    rowwise_run(&job, clamp_elements);
    return SN_OK;
}

static void dot_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    for (size_t i = item * job->chunk, end = rowwise_end(job, item); i < end; i++)
        job->y[i] = job->cpu->kernels->dot(job->width, job->a + i * job->width, job->b + i * job->width);
}

static sn_status cpu_dot_rows(sn_device *d, int n, int width, const float *a, const float *b, float *y, sn_err *err) {
    (void)err;
    rowwise_job job = {.cpu = (sn_cpu *)d, .n = n > 0 ? (size_t)n : 0, .width = (size_t)width, .a = a, .b = b, .y = y};
    rowwise_run(&job, dot_rows);
    return SN_OK;
}

static void get_rows_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const rowwise_job *job = ctx;
    for (size_t i = item * job->chunk, end = rowwise_end(job, item); i < end; i++)
        sn_cpu_weight_dequantize_row(job->weight, (size_t)job->ids[i], job->y + i * job->width);
}

static sn_status cpu_get_rows(sn_device *d, const sn_weight *weight, int n, const int32_t *ids, float *y, sn_err *err) {
    assert(n >= 0);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= weight->rows)
            return sn_fail(err, SN_REFUSED, "row %d does not exist: the matrix has %zu rows", ids[i], weight->rows);
    sn_cpu_weight view = sn_cpu_weight_view(weight);
    rowwise_job job = {.cpu = (sn_cpu *)d, .n = (size_t)n, .width = weight->cols, .y = y, .weight = &view, .ids = ids};
    rowwise_run(&job, get_rows_item);
    return SN_OK;
}

/* -- opening */

static void cpu_close(sn_device *d) {
    sn_cpu *cpu = (sn_cpu *)d;
    cpu_free(d, cpu->moe_scratch, cpu->moe_scratch_bytes);
    cpu_free(d, cpu->moe_grad_scratch, cpu->moe_grad_scratch_bytes);
    cpu_free(d, cpu->chosen_scratch, cpu->chosen_scratch_bytes);
    cpu_free(d, cpu->xq, cpu->xq_bytes);
    cpu_free(d, cpu->scores, cpu->scores_bytes);
    cpu_free(d, cpu->sums, cpu->sums_bytes);
    cpu_free(d, cpu->grad_scratch, cpu->grad_scratch_bytes);
    sn_pool_free(&cpu->pool);
    free(cpu);
}

static const sn_device_ops cpu_ops = {
    .alloc = cpu_alloc,
    .free = cpu_free,
    .owns = cpu_owns,
    .upload = cpu_upload,
    .download = cpu_download,
    .finish = cpu_finish,
    .prepare = cpu_prepare,
    .prepare_bytes = cpu_prepare_bytes,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .copy_begin = cpu_copy_begin,
    .copy_join = cpu_copy_join,
    .copy_wait = cpu_copy_join,
    .weight_size = sn_cpu_weight_size,
    .weight_pack = sn_cpu_weight_pack,
    .batch_begin = cpu_batch_begin,
    .batch_end = cpu_batch_end,
    .linear = cpu_linear,
    .rms_norm = cpu_rms_norm,
    .group_norm = cpu_group_norm,
    .layer_norm = cpu_layer_norm,
    .rope = cpu_rope,
    .kv_store = sn_cpu_kv_store,
    .kv_read = sn_cpu_kv_read,
    .kv_write = sn_cpu_kv_write,
    .attention = sn_cpu_attention,
    .choose_keys = sn_cpu_choose_keys,
    .short_conv = sn_cpu_short_conv,
    .delta_rule = sn_cpu_delta_rule,
    .activate = cpu_activate,
    .add = cpu_add,
    .scale = cpu_scale,
    .clamp = cpu_clamp,
    .dot_rows = cpu_dot_rows,
    .head_linear = sn_cpu_head_linear,
    .get_rows = cpu_get_rows,
    .norm_linear = sn_composed_norm_linear,
    .rope_store = sn_composed_rope_store,
    .attention_linear = sn_composed_attention_linear,
    .activate_linear = sn_composed_activate_linear,
    .activate_moe_linear = sn_composed_activate_moe_linear,
    .linear_input_grad = sn_cpu_linear_input_grad,
    .linear_weight_grad = sn_cpu_linear_weight_grad,
    .rms_norm_grad = sn_cpu_rms_norm_grad,
    .layer_norm_grad = sn_cpu_layer_norm_grad,
    .activate_grad = sn_cpu_activate_grad,
    .attention_grad = sn_cpu_attention_grad,
    .moe_gate = sn_cpu_moe_gate,
    .moe_linear = sn_cpu_moe_linear,
    .moe_combine = sn_cpu_moe_combine,
    .moe_linear_grad = sn_cpu_moe_linear_grad,
    .moe_combine_grad = sn_cpu_moe_combine_grad,
    .moe_gate_grad = sn_cpu_moe_gate_grad,
    .kv_page_bytes = sn_cpu_kv_page_bytes,
    .close = cpu_close,
};

sn_status sn_cpu_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) {
    sn_cpu *cpu = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&cpu, 1, sizeof *cpu, err);
    if (status) return status;
    cpu->base = (sn_device){.ops = &cpu_ops,
                            .id = id,
                            .host_visible = true,
                            .kv_dtypes = 1 << SN_KV_F16 | 1 << SN_KV_Q8,
                            .timeout_ms = options && options->timeout_ms ? options->timeout_ms : TIMEOUT_MS,
                            .memory_max = sn_device_memory_max(options)};
    status = sn_cpu_kernels_find(options ? options->isa : NULL, &cpu->kernels, err);
    if (!status) status = sn_pool_new(options ? options->threads : 0, &cpu->pool, err);
    if (status) {
        cpu_close(&cpu->base);
        return status;
    }
    int threads = sn_pool_threads(cpu->pool);
    snprintf(cpu->description, sizeof cpu->description, "cpu: %d thread%s, %s", threads, threads == 1 ? "" : "s",
             cpu->kernels->name);
    *out = &cpu->base;
    return SN_OK;
}

const char *sn_cpu_describe(const sn_device *device) { return ((const sn_cpu *)device)->description; }
