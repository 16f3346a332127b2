/* The time of a step by operation: the CPU's operations while ROWS sessions decode a token each, with their KV
 * caches and with everything that lies between them, as in a node and a client together. For each operation: calls
 * per step, total time (the median of the steps), and the weights that it reads. Begins with reading memory alone,
 * which is the limit.
 *
 * Usage: bench_step MODEL [ROWS [DEPTH [THREADS]]]     default: one row at depth 16, one thread */
#include "base/mem.h"
#include "blocks/span.h"
#include "client/generate/lm_head.h"
#include "tests/bench/reading.h"
#include "tests/support/require.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    STEPS = 200, /* or as many as take STEPS_MS */
    STEPS_MS = 4000,
    READ_EVERY = 8, /* steps */
    READ_BYTES = 128 << 20,
    WARM = 1,
    ROWS_MAX = 64,
    KINDS_MAX = 32,
};

typedef struct kind {
    char name[48];
    int calls; /* per step */
    size_t bytes;
    int64_t now_ns, ns[STEPS];
} kind;

static kind kinds[KINDS_MAX];
static int n_kinds, n_steps, step = -1; /* -1: nothing is recorded */
static const sn_device_ops *real;
static sn_err err;

static void require_ok(sn_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void add_time(const char *name, size_t bytes, int64_t ns) {
    int i = 0;
    if (step < 0) return;
    while (i < n_kinds && strcmp(kinds[i].name, name)) i++;
    if (i == KINDS_MAX) return;
    if (i == n_kinds) snprintf(kinds[n_kinds++].name, sizeof kinds[i].name, "%s", name);
    kinds[i].calls++;
    kinds[i].bytes += bytes;
    kinds[i].now_ns += ns;
}

#define TIMED(name, bytes, call)                                                                                       \
    int64_t began = now_ns();                                                                                          \
    sn_status status = (call);                                                                                         \
    add_time(name, bytes, now_ns() - began);                                                                           \
    return status

static sn_status timed_linear(sn_device *d, int n, const float *x, int n_linears, const sn_linear *l, sn_err *e) {
    char name[48] = "linear";
    size_t bytes = 0, at = strlen(name);
    for (int i = 0; i < n_linears; i++) {
        size_t row = 0;
        require_ok(sn_dtype_row_bytes(l[i].weight->dtype, l[i].weight->cols, &row, &err));
        bytes += row * l[i].weight->rows;
        if (at < sizeof name)
            at += (size_t)snprintf(name + at, sizeof name - at, "%s%zu", i ? "+" : " ", l[i].weight->rows);
    }
    if (at < sizeof name) snprintf(name + at, sizeof name - at, " x %zu", l->weight->cols);
    TIMED(name, bytes, real->linear(d, n, x, n_linears, l, e));
}
static sn_status timed_rms_norm(sn_device *d, int n, int width, const float *x, const float *w, float eps, float *y,
                                sn_err *e) {
    TIMED("norm", 0, real->rms_norm(d, n, width, x, w, eps, y, e));
}
static sn_status timed_rope(sn_device *d, int n, int heads, int dim, float *x, const sn_rope *rope, sn_err *e) {
    TIMED("rope", 0, real->rope(d, n, heads, dim, x, rope, e));
}
static sn_status timed_kv_store(sn_device *d, int block, const float *k, const float *v, sn_err *e) {
    TIMED("keys and values stored", 0, real->kv_store(d, block, k, v, e));
}
static sn_status timed_attention(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *e) {
    TIMED("attention", 0, real->attention(d, how, q, out, e));
}
static sn_status timed_activate(sn_device *d, size_t n, sn_activation kind_, const float *gate, const float *up,
                                float *y, sn_err *e) {
    TIMED("activation", 0, real->activate(d, n, kind_, gate, up, y, e));
}
static sn_status timed_add(sn_device *d, size_t n, float *y, const float *x, sn_err *e) {
    TIMED("add", 0, real->add(d, n, y, x, e));
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}
static double median(int64_t *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    return (double)values[n / 2];
}

/* Bytes a millisecond that memory is read at, the best of all ways. */
static int64_t time_reading(sn_pool *pool, const void *memory) {
    double best = 0;
    for (int way = 0; way < READ_WAYS; way++) {
        double gbs = read_speed(pool, memory, READ_BYTES, way);
        best = gbs > best ? gbs : best;
    }
    return (int64_t)(best * 1e6);
}

typedef struct benchmark {
    sn_device *device;
    sn_span *span;
    sn_lm_head *head;
    sn_kv_pool *pool;
    sn_kv_cache *kv[ROWS_MAX];
    int rows, n_embd, n_vocab;
    int32_t ids[ROWS_MAX];
    float *hidden, *logits;
} benchmark;

static void open_stage(benchmark *s, const char *path, int depth, int threads) {
    static sn_device_ops timed;
    sn_model *model;
    require_ok(
        sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = threads}, &s->device, &err));
    real = s->device->ops;
    timed = *real;
    timed.linear = timed_linear, timed.rms_norm = timed_rms_norm, timed.rope = timed_rope,
    timed.kv_store = timed_kv_store;
    timed.attention = timed_attention, timed.activate = timed_activate, timed.add = timed_add;
    s->device->ops = &timed;
    require_ok(sn_model_open(path, &model, &err));
    const sn_hparams *hp = sn_model_hparams(model);
    s->n_embd = hp->n_embd, s->n_vocab = hp->n_vocab;
    require_ok(sn_span_load(model, s->device, 0, hp->n_blocks, NULL, NULL, &s->span, &err));
    require_ok(sn_lm_head_load(model, s->device, &s->head, &err));
    sn_model_close(&model);
    size_t token = (size_t)hp->n_blocks * (size_t)hp->n_kv_heads * (size_t)hp->head_dim * 2 * sizeof(float);
    require_ok(sn_span_kv_pool(
        s->span, (size_t)s->rows * (size_t)(depth + WARM + STEPS + 2 * SN_KV_PAGE_TOKENS) * token, &s->pool, &err));
    for (int i = 0; i < s->rows; i++) require_ok(sn_kv_cache_new(s->pool, &s->kv[i], &err));
    s->hidden = calloc((size_t)s->rows * (size_t)s->n_embd, sizeof *s->hidden);
    s->logits = calloc((size_t)s->rows * (size_t)s->n_vocab, sizeof *s->logits);
}

static void close_stage(benchmark *s) {
    for (int i = 0; i < s->rows; i++) sn_kv_cache_free(&s->kv[i]);
    sn_kv_pool_free(&s->pool);
    sn_lm_head_free(&s->head);
    sn_span_free(&s->span);
    s->device->ops = real;
    sn_device_close(&s->device);
    free(s->hidden), free(s->logits);
}

/* One token of every session: embedded, computed through all blocks, and the likeliest next token selected. */
static void decode_one(benchmark *s) {
    sn_span_sequence parts[ROWS_MAX];
    sn_tensor input[ROWS_MAX];
    require_ok(sn_lm_head_embed(s->head, s->ids, s->rows, s->hidden, &err));
    for (int i = 0; i < s->rows; i++) {
        float *row = s->hidden + (size_t)i * (size_t)s->n_embd;
        input[i] =
            (sn_tensor){.name = "hidden states", .data = row, .dtype = SN_F32, .rank = 2, .shape = {1, s->n_embd}};
        parts[i] = (sn_span_sequence){s->kv[i], &input[i], 0, 1, row};
        require_ok(sn_kv_cache_reserve(s->kv[i], 1, &err));
    }
    require_ok(sn_span_forward(s->span, sn_span_first(s->span), sn_span_end(s->span), s->rows, parts, NULL, &err));
    require_ok(sn_lm_head_logits(s->head, s->hidden, s->rows, s->logits, &err));
    for (int i = 0; i < s->rows; i++) {
        const float *logits = s->logits + (size_t)i * (size_t)s->n_vocab;
        int32_t best = 0;
        for (int32_t id = 1; id < s->n_vocab; id++) best = logits[id] > logits[best] ? id : best;
        s->ids[i] = best;
    }
}

static void print_report(int64_t *whole, double reading, const benchmark *s, int depth) {
    double all = median(whole, n_steps) * 1e-3, rest = all, bytes = 0;
    printf("%s; %d rows, depth %d to %d; reading alone: %.1f GB/s\n", sn_device_describe(s->device), s->rows, depth,
           depth + n_steps, reading);
    printf("  %-28s %6s %9s %7s %8s\n", "", "calls", "us", "%", "GB/s");
    for (int i = 0; i < n_kinds; i++) {
        double us = median(kinds[i].ns, n_steps) * 1e-3, read = (double)kinds[i].bytes / n_steps;
        printf("  %-28s %6d %9.1f %7.1f", kinds[i].name, kinds[i].calls / n_steps, us, 100 * us / all);
        if (kinds[i].bytes) printf(" %8.1f", read * 1e-3 / us);
        printf("\n");
        rest -= us;
        bytes += read;
    }
    printf("  %-28s %6s %9.1f %7.1f\n", "the rest", "", rest, 100 * rest / all);
    printf("  %-28s %6s %9.1f %7s %8.1f  %.0f %% of reading alone\n", "a step", "", all, "", bytes * 1e-3 / all,
           bytes * 0.1 / all / reading);
}

/* Steps with memory read alone between them; returns the median speed of that in GB/s. */
static double time_steps(benchmark *s, int threads, int64_t *whole) {
    int64_t readings[STEPS], until = now_ns() + STEPS_MS * 1000000LL;
    sn_pool *pool;
    void *memory;
    int n_readings = 0;
    require_ok(sn_pool_new(threads, &pool, &err));
    require_ok(sn_pages_alloc(&memory, READ_BYTES, &err));
    memset(memory, 1, READ_BYTES);
    for (step = 0; step < STEPS && (step < READ_EVERY || now_ns() < until); step++) {
        if (step % READ_EVERY == 0) readings[n_readings++] = time_reading(pool, memory);
        int64_t began = now_ns();
        decode_one(s);
        whole[step] = now_ns() - began;
        for (int i = 0; i < n_kinds; i++) kinds[i].ns[step] = kinds[i].now_ns, kinds[i].now_ns = 0;
    }
    n_steps = step;
    sn_pages_free(&memory, READ_BYTES);
    sn_pool_free(&pool);
    return median(readings, n_readings) * 1e-6;
}

int main(int argc, char **argv) {
    static int64_t whole[STEPS];
    if (argc < 2) {
        fprintf(stderr, "bench_step MODEL [ROWS [DEPTH [THREADS]]]\n");
        return 2;
    }
    benchmark s = {.rows = argc > 2 ? require_int(argv[2], 1, ROWS_MAX) : 1};
    int depth = argc > 3 ? require_int(argv[3], WARM, 8000) : 16;
    int threads = argc > 4 ? require_int(argv[4], 1, 64) : 1;
    open_stage(&s, argv[1], depth, threads);
    for (int i = 0; i < s.rows; i++) s.ids[i] = 100 + i;
    for (int i = 0; i < depth; i++) decode_one(&s);
    double reading = time_steps(&s, threads, whole);
    print_report(whole, reading, &s, depth);
    close_stage(&s);
    return 0;
}
