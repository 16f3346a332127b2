/* Mixtures of experts on the CPU. A pair is a row and one of its experts. The pairs of an expert are brought beside each other,
 * so that they go through the kernels of linear together and its weights are read once; then each result goes where it belongs.
 * A row's result is the same bits as alone, so who is beside whom changes nothing. */
#include "device/cpu/cpu.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum { WORTH_SHARING = 32768 }; /* elements, as in cpu.c */

/* What the calls work in: pieces of cpu->mixture. */
typedef struct mixture {
    float *x, *y;         /* limits.rows rows of limits.width: of the pairs of a wave, in their order */
    int32_t *order;       /* pairs by expert, those of one in their own order */
    int32_t *place;       /* where a pair stands there */
    int32_t *start;       /* (experts + 1): where an expert's begin */
    sn_linear_job *jobs;  /* (experts) */
    size_t *first_panel;  /* (experts + 1): of a job, among all panels */
} mixture;

/* With base NULL: how many bytes that is, 0 for more than there can be. */
static size_t lay_out(const sn_device_limits *l, char *base, mixture *m) {
    size_t experts = (size_t)l->experts + 1, row_bytes, pairs, at = 0;
    if (!sn_mul((size_t)l->rows * sizeof(float), (size_t)l->width, &row_bytes) || row_bytes > SIZE_MAX / 8 ||
        !sn_mul((size_t)l->rows * sizeof(int32_t), (size_t)l->experts_used, &pairs) || pairs > INT32_MAX)
        return 0;
    const size_t bytes[] = {row_bytes, row_bytes, pairs, pairs, experts * sizeof(int32_t), experts * sizeof *m->jobs,
                            experts * sizeof *m->first_panel};
    void *pieces[sizeof bytes / sizeof *bytes];
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        pieces[i] = base ? base + at : NULL;
        at += sn_round_up(bytes[i], 64);
    }
    *m = (mixture){pieces[0], pieces[1], pieces[2], pieces[3], pieces[4], pieces[5], pieces[6]};
    return at;
}

sn_status sn_cpu_experts_prepare(sn_cpu *cpu, const sn_device_limits *limits, sn_err *err) {
    mixture m;
    if (!limits->experts) return SN_OK;
    size_t bytes = limits->experts > SN_EXPERTS_MAX || limits->experts_used > SN_EXPERTS_USED_MAX ? 0
                                                                                                  : lay_out(limits, NULL, &m);
    if (!bytes || limits->experts_used < 1 || limits->experts_used > limits->experts)
        return sn_fail(err, SN_REFUSED, "%d experts, of which a row uses %d, are not possible here", limits->experts,
                       limits->experts_used);
    return sn_cpu_grow(&cpu->mixture, &cpu->mixture_bytes, bytes, err);
}

static sn_status check_choice(const sn_cpu *cpu, const sn_choice *c, sn_err *err) {
    const sn_device_limits *l = &cpu->limits;
    if (c->n <= l->rows && c->n_experts <= l->experts && c->k >= 1 && c->k <= l->experts_used && c->k <= c->n_experts)
        return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d rows through %d of %d experts are more than the %d through %d of %d that were prepared",
                   c->n, c->k, c->n_experts, l->rows, l->experts_used, l->experts);
}

/* Orders the pairs by expert. */
static sn_status sort_pairs(const sn_choice *c, const mixture *m, sn_err *err) {
    int32_t pairs = (int32_t)(c->n * c->k);
    memset(m->start, 0, ((size_t)c->n_experts + 1) * sizeof *m->start);
    for (int32_t p = 0; p < pairs; p++) {
        if (c->ids[p] < 0 || c->ids[p] >= c->n_experts)
            return sn_fail(err, SN_REFUSED, "expert %d is asked for, but there are %d", (int)c->ids[p], c->n_experts);
        m->start[c->ids[p] + 1]++;
    }
    for (int e = 0; e < c->n_experts; e++) {
        if (m->start[e + 1] > c->n) return sn_fail(err, SN_REFUSED, "a row goes through expert %d twice", e);
        m->start[e + 1] += m->start[e];
    }
    for (int32_t p = 0; p < pairs; p++) m->order[m->place[p] = m->start[c->ids[p]]++] = p;
    for (int e = c->n_experts; e > 0; e--) m->start[e] = m->start[e - 1];
    m->start[0] = 0;
    return SN_OK;
}

/* -- rows to their places, and from them */

typedef struct move_job {
    sn_cpu *cpu;
    const int32_t *order; /* pairs */
    size_t n, chunk, width, k;
    bool each;
    const float *from;
    float *to;
    bool add; /* sum_rows: to what is there */
} move_job;

static void run_moves(move_job *job, sn_pool_fn fn) {
    job->chunk = job->n * job->width < WORTH_SHARING ? job->n : 4;
    if (job->n) sn_pool_run(job->cpu->pool, (job->n + job->chunk - 1) / job->chunk, fn, job);
}

static const float *row_of(const move_job *job, size_t i) {
    size_t pair = (size_t)job->order[i];
    return job->from + (job->each ? pair : pair / job->k) * job->width;
}

static void bring_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const move_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        memcpy(job->to + i * job->width, row_of(job, i), job->width * sizeof(float));
}

static void quantize_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const move_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        job->cpu->kernels->quantize(job->width, row_of(job, i), job->cpu->xq + i * sn_xq_stride(job->width));
}

static void take_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const move_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++)
        memcpy(job->to + (size_t)job->order[i] * job->width, job->from + i * job->width, job->width * sizeof(float));
}

/* to[i] is, or grows by, the sum of from[order[i * k ...]], added in their order. */
static void sum_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const move_job *job = ctx;
    for (size_t i = item * job->chunk, end = sn_min_size(i + job->chunk, job->n); i < end; i++) {
        float *to = job->to + i * job->width;
        if (!job->add) memset(to, 0, job->width * sizeof *to);
        for (size_t j = 0; j < job->k; j++)
            job->cpu->kernels->add(job->width, to, job->from + (size_t)job->order[i * job->k + j] * job->width);
    }
}

/* -- linear */

typedef struct wave_job {
    const sn_cpu *cpu;
    const mixture *m;
    int n_jobs;
    size_t chunk, n_panels;
} wave_job;

static void wave_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const wave_job *job = ctx;
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

/* The pairs of experts [first, end), whose rows have been brought, through their matrices to their places in r->y. */
static void multiply_wave(sn_cpu *cpu, const sn_choice *c, const mixture *m, const sn_routed *r, int first, int end) {
    wave_job job = {.cpu = cpu, .m = m};
    size_t rows = r->experts->first.rows, stride = sn_xq_stride(r->experts->first.cols), begin = (size_t)m->start[first];
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
                                              sn_cpu_ahead(&w, n)};
        m->first_panel[job.n_jobs++] = job.n_panels;
        job.n_panels += w.n_panels;
    }
    m->first_panel[job.n_jobs] = job.n_panels;
    size_t threads = (size_t)sn_pool_threads(cpu->pool), items = threads == 1 ? 1 : 8 * threads;
    job.chunk = (job.n_panels + items - 1) / items;
    if (job.n_panels) sn_pool_run(cpu->pool, (job.n_panels + job.chunk - 1) / job.chunk, wave_item, &job);
    move_job back = {.cpu = cpu,
                     .order = m->order + begin,
                     .n = (size_t)m->start[end] - begin,
                     .width = rows,
                     .k = (size_t)c->k,
                     .from = m->y,
                     .to = r->y};
    run_moves(&back, take_rows);
}

static sn_status check_routed(const sn_cpu *cpu, const sn_choice *c, int n_routed, const sn_routed *routed, sn_err *err) {
    for (int i = 0; i < n_routed; i++) {
        const sn_weight *w = &routed[i].experts->first;
        if (w->cols != routed[0].experts->first.cols || routed[i].experts->n != c->n_experts)
            return sn_fail(err, SN_REFUSED, "experts of different numbers, or over rows of different widths, share no input");
        if (w->cols > (size_t)cpu->limits.width || w->rows > (size_t)cpu->limits.width)
            return sn_fail(err, SN_REFUSED, "experts of %zu by %zu are wider than the %d that were prepared", w->rows, w->cols,
                           cpu->limits.width);
    }
    return check_choice(cpu, c, err);
}

sn_status sn_cpu_linear_routed(sn_device *d, const sn_choice *c, bool each, const float *x, int n_routed,
                               const sn_routed *routed, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    mixture m;
    if (c->n <= 0 || n_routed <= 0) return SN_OK;
    sn_status status = check_routed(cpu, c, n_routed, routed, err);
    if (status) return status;
    lay_out(&cpu->limits, cpu->mixture, &m);
    if ((status = sort_pairs(c, &m, err))) return status;
    bool plain = false, quantised = false;
    for (int i = 0; i < n_routed; i++) *(sn_dtype_quantised(routed[i].experts->first.dtype) ? &quantised : &plain) = true;
    /* Waves of experts, as many as there is room for: no expert has more pairs than the call has rows. */
    for (int first = 0, end; first < c->n_experts; first = end) {
        for (end = first + 1; end < c->n_experts && m.start[end + 1] - m.start[first] <= cpu->limits.rows;) end++;
        move_job rows = {.cpu = cpu,
                         .order = m.order + m.start[first],
                         .n = (size_t)(m.start[end] - m.start[first]),
                         .width = routed[0].experts->first.cols,
                         .k = (size_t)c->k,
                         .each = each,
                         .from = x,
                         .to = m.x};
        if (plain) run_moves(&rows, bring_rows);
        if (quantised) run_moves(&rows, quantize_rows);
        for (int i = 0; i < n_routed; i++) multiply_wave(cpu, c, &m, &routed[i], first, end);
    }
    return SN_OK;
}

/* -- its gradient: every expert's columns by themselves, then the sums */

typedef struct experts_grad_job {
    sn_cpu *cpu;
    const sn_experts *experts;
    const mixture *m;
    size_t tiles; /* of an expert */
    const float *dy;
    float *dx;
} experts_grad_job;

static void experts_grad_item(void *ctx, size_t item, int worker) {
    const experts_grad_job *job = ctx;
    int e = (int)(item / job->tiles);
    size_t at = (size_t)job->m->start[e], n = (size_t)job->m->start[e + 1] - at;
    sn_weight w = expert_at(job->experts, e);
    if (!n) return;
    const sn_cpu_linear_grad_job own = {job->cpu, sn_cpu_weight_view(&w), n, job->dy + at * w.rows, job->dx + at * w.cols, false};
    sn_cpu_linear_grad_columns(&own, item % job->tiles, worker);
}

sn_status sn_cpu_linear_routed_grad(sn_device *d, const sn_choice *c, bool each, const float *dy, const sn_experts *experts,
                                    bool grow, float *dx, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    mixture m;
    size_t rows = experts->first.rows, cols = experts->first.cols, bytes;
    if (c->n <= 0) return SN_OK;
    size_t pairs = (size_t)c->n * (size_t)c->k;
    sn_status status = check_choice(cpu, c, err);
    if (!status && !sn_mul(pairs * sizeof(float), rows + cols, &bytes))
        status = sn_fail(err, SN_REFUSED, "gradients of %zu rows are too large", pairs);
    if (!status) status = sn_cpu_grad_scratch(cpu, SN_CPU_GRAD_TILE, err);
    if (!status) status = sn_cpu_grow(&cpu->mixture_grad, &cpu->mixture_grad_bytes, bytes, err);
    if (status) return status;
    lay_out(&cpu->limits, cpu->mixture, &m);
    if ((status = sort_pairs(c, &m, err))) return status;
    float *own_dy = cpu->mixture_grad, *own_dx = own_dy + pairs * rows;
    move_job bring = {
        .cpu = cpu, .order = m.order, .n = pairs, .width = rows, .k = (size_t)c->k, .each = true, .from = dy, .to = own_dy};
    run_moves(&bring, bring_rows);
    experts_grad_job job = {cpu, experts, &m, (cols + SN_CPU_GRAD_COLS - 1) / SN_CPU_GRAD_COLS, own_dy, own_dx};
    sn_pool_run(cpu->pool, (size_t)experts->n * job.tiles, experts_grad_item, &job);
    move_job sum = {.cpu = cpu,
                    .order = m.place,
                    .n = each ? pairs : (size_t)c->n,
                    .width = cols,
                    .k = each ? 1 : (size_t)c->k,
                    .from = own_dx,
                    .to = dx,
                    .add = grow};
    run_moves(&sum, sum_rows);
    return SN_OK;
}

/* -- row by row */

typedef struct rows_job {
    const sn_cpu *cpu;
    size_t n, chunk, width, k;
    int n_experts;
    bool over_all;
    const float *x, *dy, *weights, *dweights;
    const int32_t *ids;
    float *y, *out;
    int32_t *out_ids;
} rows_job;

static void run_rows(rows_job *job, sn_pool_fn fn) {
    job->chunk = job->n * job->k * job->width < WORTH_SHARING ? job->n : 4;
    if (job->n) sn_pool_run(job->cpu->pool, (job->n + job->chunk - 1) / job->chunk, fn, job);
}

static void route_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++)
        j->cpu->kernels->route(j->n_experts, (int)j->k, j->over_all, j->x + i * j->width, j->out_ids + i * j->k,
                               j->out + i * j->k);
}

sn_status sn_cpu_route(sn_device *d, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                       float *weights, sn_err *err) {
    if (k < 1 || k > n_experts || k > SN_EXPERTS_USED_MAX || n_experts > SN_EXPERTS_MAX)
        return sn_fail(err, SN_REFUSED, "%d of %d experts cannot be chosen", k, n_experts);
    rows_job job = {.cpu = (sn_cpu *)d,
                    .n = n > 0 ? (size_t)n : 0,
                    .width = (size_t)n_experts,
                    .k = (size_t)k,
                    .n_experts = n_experts,
                    .over_all = over_all,
                    .x = logits,
                    .out_ids = ids,
                    .out = weights};
    run_rows(&job, route_rows);
    return SN_OK;
}

static rows_job rows_of(sn_device *d, const sn_choice *c) {
    return (rows_job){.cpu = (sn_cpu *)d,
                      .n = c->n > 0 ? (size_t)c->n : 0,
                      .k = (size_t)c->k,
                      .n_experts = c->n_experts,
                      .ids = c->ids,
                      .weights = c->weights};
}

static void combine_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++)
        j->cpu->kernels->combine((int)j->k, j->width, j->weights + i * j->k, j->x + i * j->k * j->width, j->y + i * j->width);
}

sn_status sn_cpu_combine(sn_device *d, const sn_choice *c, int width, const float *x, float *y, sn_err *err) {
    (void)err;
    rows_job job = rows_of(d, c);
    job.width = (size_t)width;
    job.x = x;
    job.y = y;
    run_rows(&job, combine_rows);
    return SN_OK;
}

static void combine_grad_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++)
        j->cpu->kernels->combine_grad((int)j->k, j->width, j->weights + i * j->k, j->x + i * j->k * j->width,
                                      j->dy + i * j->width, j->y + i * j->k * j->width, j->out + i * j->k);
}

sn_status sn_cpu_combine_grad(sn_device *d, const sn_choice *c, int width, const float *x, const float *dy, float *dx,
                              float *dweights, sn_err *err) {
    (void)err;
    rows_job job = rows_of(d, c);
    job.width = (size_t)width;
    job.x = x;
    job.dy = dy;
    job.y = dx;
    job.out = dweights;
    run_rows(&job, combine_grad_rows);
    return SN_OK;
}

static void route_grad_rows(void *ctx, size_t item, int worker) {
    (void)worker;
    const rows_job *j = ctx;
    for (size_t i = item * j->chunk, end = sn_min_size(i + j->chunk, j->n); i < end; i++)
        j->cpu->kernels->route_grad(j->n_experts, (int)j->k, j->over_all, j->x + i * j->width, j->ids + i * j->k,
                                    j->weights + i * j->k, j->dweights + i * j->k, j->y + i * j->width);
}

sn_status sn_cpu_route_grad(sn_device *d, const sn_choice *c, bool over_all, const float *logits, const float *dweights,
                            float *dlogits, sn_err *err) {
    (void)err;
    rows_job job = rows_of(d, c);
    assert(c->n_experts <= SN_EXPERTS_MAX);
    job.width = (size_t)c->n_experts;
    job.over_all = over_all;
    job.x = logits;
    job.dweights = dweights;
    job.y = dlogits;
    run_rows(&job, route_grad_rows);
    return SN_OK;
}
