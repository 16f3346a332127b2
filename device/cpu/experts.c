/* Mixtures of experts on the CPU.
 *
 * A pair is a row and one of its experts. moe_linear sorts the pairs by expert (moe_sort_pairs), copies or quantises
 * their rows into that order (rows_gather), multiplies the rows of each expert by its matrix with the kernels of
 * linear, so that the matrix is read once, and copies the results to their places (rows_scatter). The scratch memory
 * holds limits.rows pairs: more pairs are processed in waves of experts. moe_linear_grad does the same backwards and
 * sums the results of a row's experts in their order. The other operations (gate, combine and their gradients) are row
 * by row.
 *
 * A row's result has the same bits as if it were alone: the grouping of rows changes nothing. */
#include "device/cpu/cpu_private.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* The parts of cpu->moe_scratch. */
typedef struct moe_buffers {
    /* limits.rows rows of limits.width: input and output of the pairs of a wave, in the order of `order` */
    float *x, *y;
    int32_t *order;      /* pairs sorted by expert; pairs of one expert keep their order */
    int32_t *slot;       /* the index of a pair in `order` */
    int32_t *start;      /* (experts + 1): index in `order` of the first pair of each expert */
    sn_linear_job *jobs; /* (experts): of the current wave */
    size_t *first_panel; /* (experts + 1): of each job, counted over all jobs */
} moe_buffers;

/* Sets the parts to their addresses from `base` on (NULL: none). Returns the bytes of all parts, or 0 when they cannot
 * be addressed. */
static size_t moe_buffers_layout(const sn_device_limits *l, char *base, moe_buffers *m) {
    size_t experts = (size_t)l->experts + 1, row_bytes, pairs, at = 0;
    if (!sn_mul((size_t)l->rows * sizeof(float), (size_t)l->width, &row_bytes) || row_bytes > SIZE_MAX / 8 ||
        !sn_mul((size_t)l->rows * sizeof(int32_t), (size_t)l->experts_used, &pairs) || pairs > INT32_MAX)
        return 0;
    const size_t bytes[] = {row_bytes,
                            row_bytes,
                            pairs,
                            pairs,
                            experts * sizeof(int32_t),
                            experts * sizeof *m->jobs,
                            experts * sizeof *m->first_panel};
    void *parts[sizeof bytes / sizeof *bytes];
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        parts[i] = base ? base + at : NULL;
        at += sn_round_up(bytes[i], 64);
    }
    *m = (moe_buffers){parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6]};
    return at;
}

sn_status sn_cpu_moe_bytes(const sn_device_limits *limits, size_t *bytes, sn_err *err) {
    moe_buffers m;
    *bytes = 0;
    if (!limits->experts) return SN_OK;
    if (limits->experts <= SN_EXPERTS_MAX && limits->experts_used <= SN_EXPERTS_USED_MAX)
        *bytes = moe_buffers_layout(limits, NULL, &m);
    if (!*bytes || limits->experts_used < 1 || limits->experts_used > limits->experts)
        return sn_fail(err, SN_REFUSED, "%d experts, of which a row uses %d, are not possible", limits->experts,
                       limits->experts_used);
    return SN_OK;
}

bool sn_cpu_moe_grad_bytes(const sn_device_limits *l, size_t *bytes) {
    size_t pairs = (size_t)l->grad_tokens * (size_t)l->experts_used;
    return sn_mul(pairs * sizeof(float), 2 * (size_t)l->width, bytes);
}

static sn_status moe_check_selection(const sn_cpu *cpu, const sn_moe_selection *c, sn_err *err) {
    const sn_device_limits *l = &cpu->limits;
    if (c->n <= l->rows && c->n_experts <= l->experts && c->k >= 1 && c->k <= l->experts_used) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "%d rows through %d of %d experts are more than the %d through %d of %d that were prepared", c->n,
                   c->k, c->n_experts, l->rows, l->experts_used, l->experts);
}

/* Sorts the pairs by expert; those of an id below 0 are left out. */
static sn_status moe_sort_pairs(const sn_moe_selection *c, const moe_buffers *m, sn_err *err) {
    int32_t pairs = (int32_t)(c->n * c->k);
    memset(m->start, 0, ((size_t)c->n_experts + 1) * sizeof *m->start);
    for (int32_t p = 0; p < pairs; p++) {
        if (c->ids[p] >= c->n_experts)
            return sn_fail(err, SN_REFUSED, "expert %d does not exist: there are %d", (int)c->ids[p], c->n_experts);
        if (c->ids[p] >= 0) m->start[c->ids[p] + 1]++;
    }
    for (int e = 0; e < c->n_experts; e++) {
        if (m->start[e + 1] > c->n) return sn_fail(err, SN_REFUSED, "a row selects expert %d twice", e);
        m->start[e + 1] += m->start[e];
    }
    for (int32_t p = 0; p < pairs; p++)
        if (c->ids[p] >= 0) m->order[m->slot[p] = m->start[c->ids[p]]++] = p;
    for (int e = c->n_experts; e > 0; e--) m->start[e] = m->start[e - 1];
    m->start[0] = 0;
    return SN_OK;
}

/* -- rows to the order of the experts, and back */

typedef struct row_copy_job {
    sn_cpu *cpu;
    const int32_t *order; /* of pairs */
    size_t n, chunk, width, k;
    bool per_expert;
    const float *from;
    float *to;
    bool add; /* rows_sum: adds to the contents of `to` */
} row_copy_job;

static void row_copy_run(row_copy_job *job, sn_pool_fn fn) {
    job->chunk = job->n * job->width < SN_CPU_PARALLEL_MIN ? job->n : 4;
    if (job->n) sn_pool_run(job->cpu->pool, (job->n + job->chunk - 1) / job->chunk, fn, job);
}

static const float *row_copy_source(const row_copy_job *job, size_t i) {
    size_t pair = (size_t)job->order[i];
    return job->from + (job->per_expert ? pair : pair / job->k) * job->width;
}

static void rows_gather(void *ctx, size_t item, int worker) {
    (void)worker;
    const row_copy_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        memcpy(job->to + i * job->width, row_copy_source(job, i), job->width * sizeof(float));
}

static void rows_quantize(void *ctx, size_t item, int worker) {
    (void)worker;
    const row_copy_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        job->cpu->kernels->quantize(job->width, row_copy_source(job, i), job->cpu->xq + i * sn_xq_stride(job->width));
}

static void rows_scatter(void *ctx, size_t item, int worker) {
    (void)worker;
    const row_copy_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        memcpy(job->to + (size_t)job->order[i] * job->width, job->from + i * job->width, job->width * sizeof(float));
}

/* to[i] = (or with `add`, +=) the sum of from[order[i * k + j]] in the order of j. */
static void rows_sum(void *ctx, size_t item, int worker) {
    (void)worker;
    const row_copy_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++) {
        float *to = job->to + i * job->width;
        if (!job->add) memset(to, 0, job->width * sizeof *to);
        for (size_t j = 0; j < job->k; j++)
            job->cpu->kernels->add(job->width, to, job->from + (size_t)job->order[i * job->k + j] * job->width);
    }
}

/* -- linear */

typedef struct moe_wave_job {
    const sn_cpu *cpu;
    const moe_buffers *m;
    int n_jobs;
    size_t chunk, n_panels;
} moe_wave_job;

static void moe_wave_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const moe_wave_job *job = ctx;
    size_t at = item * job->chunk, end = sn_min_size(at + job->chunk, job->n_panels);
    for (int i = 0; i < job->n_jobs && at < end; i++) {
        size_t first = job->m->first_panel[i], until = sn_min_size(end, job->m->first_panel[i + 1]);
        if (at >= until) continue;
        job->cpu->kernels->linear(&job->m->jobs[i], at - first, until - first);
        at = until;
    }
}

static sn_weight expert_at(const sn_experts *experts, int e) {
    sn_weight w = experts->first;
    w.device = (const char *)w.device + (size_t)e * experts->stride;
    return w;
}

/* Multiplies the gathered rows of experts [first, end) by their matrices and copies the results to their places in
 * r->y. */
static void moe_multiply_wave(sn_cpu *cpu, const sn_moe_selection *c, const moe_buffers *m, const sn_moe_linear *r,
                              int first, int end) {
    moe_wave_job job = {.cpu = cpu, .m = m};
    size_t rows = r->experts->first.rows, stride = sn_xq_stride(r->experts->first.cols),
           begin = (size_t)m->start[first];
    for (int e = first; e < end; e++) {
        size_t at = (size_t)m->start[e] - begin;
        int n = m->start[e + 1] - m->start[e];
        if (!n) continue;
        sn_weight own = expert_at(r->experts, e);
        sn_cpu_weight w = sn_cpu_weight_view(&own);
        m->jobs[job.n_jobs] = (sn_linear_job){w,
                                              r->bias ? r->bias + (size_t)e * rows : NULL,
                                              m->y + at * rows,
                                              n,
                                              m->x + at * w.cols,
                                              cpu->xq + at * stride,
                                              stride,
                                              sn_cpu_prefetch(&w, n)};
        m->first_panel[job.n_jobs++] = job.n_panels;
        job.n_panels += w.n_panels;
    }
    m->first_panel[job.n_jobs] = job.n_panels;
    size_t threads = (size_t)sn_pool_threads(cpu->pool), items = threads == 1 ? 1 : 8 * threads;
    job.chunk = (job.n_panels + items - 1) / items;
    if (job.n_panels) sn_pool_run(cpu->pool, (job.n_panels + job.chunk - 1) / job.chunk, moe_wave_item, &job);
    row_copy_job back = {.cpu = cpu,
                         .order = m->order + begin,
                         .n = (size_t)m->start[end] - begin,
                         .width = rows,
                         .k = (size_t)c->k,
                         .from = m->y,
                         .to = r->y};
    row_copy_run(&back, rows_scatter);
}

static sn_status moe_check_linears(const sn_cpu *cpu, const sn_moe_selection *c, int n_linears,
                                   const sn_moe_linear *linears, sn_err *err) {
    for (int i = 0; i < n_linears; i++) {
        const sn_weight *w = &linears[i].experts->first;
        if (w->cols != linears[0].experts->first.cols || linears[i].experts->n != c->n_experts)
            return sn_fail(err, SN_REFUSED,
                           "matrices with different numbers of experts or of columns cannot share an input");
        if (w->cols > (size_t)cpu->limits.width || w->rows > (size_t)cpu->limits.width)
            return sn_fail(err, SN_REFUSED, "experts of %zu by %zu are wider than the %d that were prepared", w->rows,
                           w->cols, cpu->limits.width);
    }
    return moe_check_selection(cpu, c, err);
}

sn_status sn_cpu_moe_linear(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *x, int n_linears,
                            const sn_moe_linear *linears, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    moe_buffers m;
    if (c->n <= 0 || n_linears <= 0) return SN_OK;
    sn_status status = moe_check_linears(cpu, c, n_linears, linears, err);
    if (status) return status;
    moe_buffers_layout(&cpu->limits, cpu->moe_scratch, &m);
    if ((status = moe_sort_pairs(c, &m, err))) return status;
    bool plain = false, quantised = false;
    for (int i = 0; i < n_linears; i++)
        *(sn_dtype_quantised(linears[i].experts->first.dtype) ? &quantised : &plain) = true;
    /* Waves of experts, each as many as the scratch memory holds: no expert has more pairs than the call has rows. */
    for (int first = 0, end; first < c->n_experts; first = end) {
        for (end = first + 1; end < c->n_experts && m.start[end + 1] - m.start[first] <= cpu->limits.rows;) end++;
        row_copy_job rows = {.cpu = cpu,
                             .order = m.order + m.start[first],
                             .n = (size_t)(m.start[end] - m.start[first]),
                             .width = linears[0].experts->first.cols,
                             .k = (size_t)c->k,
                             .per_expert = per_expert,
                             .from = x,
                             .to = m.x};
        if (plain) row_copy_run(&rows, rows_gather);
        if (quantised) row_copy_run(&rows, rows_quantize);
        for (int i = 0; i < n_linears; i++) moe_multiply_wave(cpu, c, &m, &linears[i], first, end);
    }
    return SN_OK;
}

/* -- the gradient of linear: the columns of every expert, then the sums */

typedef struct moe_grad_job {
    sn_cpu *cpu;
    const sn_experts *experts;
    const moe_buffers *m;
    size_t tiles; /* items per expert */
    const float *dy;
    float *dx;
} moe_grad_job;

static void moe_grad_item(void *ctx, size_t item, int worker) {
    const moe_grad_job *job = ctx;
    int e = (int)(item / job->tiles);
    size_t at = (size_t)job->m->start[e], n = (size_t)job->m->start[e + 1] - at;
    sn_weight w = expert_at(job->experts, e);
    if (!n) return;
    const sn_cpu_linear_input_grad_job own = {
        job->cpu, sn_cpu_weight_view(&w), n, job->dy + at * w.rows, job->dx + at * w.cols, false};
    sn_cpu_linear_input_grad_columns(&own, item % job->tiles, worker);
}

sn_status sn_cpu_moe_linear_grad(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *dy,
                                 const sn_experts *experts, bool accumulate, float *dx, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    moe_buffers m;
    size_t rows = experts->first.rows, cols = experts->first.cols, bytes;
    if (c->n <= 0) return SN_OK;
    size_t pairs = (size_t)c->n * (size_t)c->k;
    sn_status status = moe_check_selection(cpu, c, err);
    if (!status && !sn_mul(pairs * sizeof(float), rows + cols, &bytes))
        status = sn_fail(err, SN_REFUSED, "gradients of %zu rows are too large", pairs);
    if (!status) status = sn_cpu_grad_scratch_reserve(cpu, SN_CPU_GRAD_TILE, err);
    if (!status) status = sn_cpu_scratch_reserve(cpu, &cpu->moe_grad_scratch, &cpu->moe_grad_scratch_bytes, bytes, err);
    if (status) return status;
    moe_buffers_layout(&cpu->limits, cpu->moe_scratch, &m);
    if ((status = moe_sort_pairs(c, &m, err))) return status;
    if (m.start[c->n_experts] != (int32_t)pairs)
        return sn_fail(err, SN_REFUSED, "a gradient needs all experts of its rows");
    float *own_dy = cpu->moe_grad_scratch, *own_dx = own_dy + pairs * rows;
    row_copy_job bring = {.cpu = cpu,
                          .order = m.order,
                          .n = pairs,
                          .width = rows,
                          .k = (size_t)c->k,
                          .per_expert = true,
                          .from = dy,
                          .to = own_dy};
    row_copy_run(&bring, rows_gather);
    moe_grad_job job = {cpu, experts, &m, (cols + SN_CPU_GRAD_COLS - 1) / SN_CPU_GRAD_COLS, own_dy, own_dx};
    sn_pool_run(cpu->pool, (size_t)experts->n * job.tiles, moe_grad_item, &job);
    row_copy_job sum = {.cpu = cpu,
                        .order = m.slot,
                        .n = per_expert ? pairs : (size_t)c->n,
                        .width = cols,
                        .k = per_expert ? 1 : (size_t)c->k,
                        .from = own_dx,
                        .to = dx,
                        .add = accumulate};
    row_copy_run(&sum, rows_sum);
    return SN_OK;
}

/* -- row by row */

typedef struct moe_rows_job {
    const sn_cpu *cpu;
    size_t n, chunk, width, k;
    const sn_moe_router *router;
    const float *x, *dy, *weights, *dweights;
    const int32_t *ids;
    float *y, *out;
    int32_t *out_ids;
} moe_rows_job;

static void moe_rows_run(moe_rows_job *job, sn_pool_fn fn) {
    job->chunk = job->n * job->k * job->width < SN_CPU_PARALLEL_MIN ? job->n : 4;
    if (job->n) sn_pool_run(job->cpu->pool, (job->n + job->chunk - 1) / job->chunk, fn, job);
}

static void moe_gate_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const moe_rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++) {
        int32_t *ids = j->out_ids + i * j->k;
        float *weights = j->out + i * j->k;
        j->cpu->kernels->moe_gate(j->router, j->x + i * j->width, ids, weights);
        for (size_t e = 0; j->router->factors && e < j->k; e++) weights[e] *= j->router->factors[ids[e]];
    }
}

sn_status sn_cpu_moe_gate(sn_device *d, int n, const sn_moe_router *router, const float *logits, int32_t *ids,
                          float *weights, sn_err *err) {
    if (router->k < 1 || router->k > router->n_experts || router->k > SN_EXPERTS_USED_MAX ||
        router->n_experts > SN_EXPERTS_MAX)
        return sn_fail(err, SN_REFUSED, "%d of %d experts cannot be selected", router->k, router->n_experts);
    sn_status status = sn_device_check_groups(router, err);
    if (status) return status;
    moe_rows_job job = {.cpu = (sn_cpu *)d,
                        .n = n > 0 ? (size_t)n : 0,
                        .width = (size_t)router->n_experts,
                        .k = (size_t)router->k,
                        .router = router,
                        .x = logits,
                        .out_ids = ids,
                        .out = weights};
    moe_rows_run(&job, moe_gate_rows);
    return SN_OK;
}

static moe_rows_job moe_rows_of(sn_device *d, const sn_moe_selection *c) {
    return (moe_rows_job){
        .cpu = (sn_cpu *)d, .n = c->n > 0 ? (size_t)c->n : 0, .k = (size_t)c->k, .ids = c->ids, .weights = c->weights};
}

static const float *moe_row_weights(const moe_rows_job *j, size_t row) {
    return j->weights ? j->weights + row * j->k : NULL;
}

static void moe_combine_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const moe_rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++)
        j->cpu->kernels->moe_combine((int)j->k, j->width, moe_row_weights(j, i), j->x + i * j->k * j->width,
                                     j->y + i * j->width);
}

sn_status sn_cpu_moe_combine(sn_device *d, const sn_moe_selection *c, int width, const float *x, float *y,
                             sn_err *err) {
    (void)err;
    moe_rows_job job = moe_rows_of(d, c);
    job.width = (size_t)width;
    job.x = x;
    job.y = y;
    moe_rows_run(&job, moe_combine_rows);
    return SN_OK;
}

static void moe_combine_grad_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const moe_rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++)
        j->cpu->kernels->moe_combine_grad((int)j->k, j->width, moe_row_weights(j, i), j->x + i * j->k * j->width,
                                          j->dy + i * j->width, j->y + i * j->k * j->width, j->out + i * j->k);
}

sn_status sn_cpu_moe_combine_grad(sn_device *d, const sn_moe_selection *c, int width, const float *x, const float *dy,
                                  float *dx, float *dweights, sn_err *err) {
    (void)err;
    moe_rows_job job = moe_rows_of(d, c);
    job.width = (size_t)width;
    job.x = x;
    job.dy = dy;
    job.y = dx;
    job.out = dweights;
    moe_rows_run(&job, moe_combine_grad_rows);
    return SN_OK;
}

static void moe_gate_grad_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const moe_rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++)
        j->cpu->kernels->moe_gate_grad(j->router, j->x + i * j->width, j->ids + i * j->k, moe_row_weights(j, i),
                                       j->dweights + i * j->k, j->y + i * j->width);
}

sn_status sn_cpu_moe_gate_grad(sn_device *d, const sn_moe_selection *c, const sn_moe_router *router,
                               const float *logits, const float *dweights, float *dlogits, sn_err *err) {
    (void)err;
    moe_rows_job job = moe_rows_of(d, c);
    assert(c->n_experts <= SN_EXPERTS_MAX);
    job.width = (size_t)c->n_experts;
    job.router = router;
    job.x = logits;
    job.dweights = dweights;
    job.y = dlogits;
    moe_rows_run(&job, moe_gate_grad_rows);
    return SN_OK;
}
