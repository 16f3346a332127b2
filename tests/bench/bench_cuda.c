/* For a machine with an NVIDIA GPU: the conformance suite on the GPU, and the throughput of models of 1B and 8B
 * shape with random weights in bfloat16 and 4 bits: decode compared with the limit set by memory bandwidth, prefill
 * compared with what cuBLAS reaches in one large product. Prints "no CUDA device" and succeeds where there is none.
 *
 * Usage: bench_cuda [ORDINAL]
 *
 * Decode: one session, its batches recorded, with a short and a long KV cache. The limit is the bytes of weights and
 * KV cache that a step reads, in the device's layout and in the file's, divided by the rate at which the device adds
 * two long vectors. */
#include "base/clock.h"
#include "device/weight.h"
#include "tests/support/conformance.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
static void require_ok(sn_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static int run_conformance(int ordinal) {
    int failed = 0;
    static conformance c;
    for (int i = 0; i < CONFORMANCE_COUNT; i++) {
        c = (conformance){.id = {SN_DEVICE_CUDA, ordinal}, .linear_rounding = 0x1p-8 * 1.01, .eight_bit_rows = true};
        bool passed = conformance_run(&c, (conformance_case)i);
        failed += !passed;
        if (!passed || c.skipped)
            printf("%s  %s%s%s\n", passed ? "skipped" : "FAILED ", conformance_name((conformance_case)i),
                   passed ? "" : ": ", c.failure);
    }
    printf("conformance: %d cases, %d failed\n\n", CONFORMANCE_COUNT, failed);
    return failed;
}

/* -- models */

enum { CONTEXT = 8192, PAGE = 32, PROMPT = 512, STEPS = 64, MATRICES = 7 };

typedef struct shape {
    const char *name;
    int n_blocks, n_embd, n_heads, n_kv_heads, head_dim, n_ff;
} shape;

static const shape shapes[] = {{"1B", 16, 2048, 32, 8, 64, 8192}, {"8B", 32, 4096, 32, 8, 128, 14336}};

typedef struct model {
    sn_device *d;
    const shape *s;
    sn_weight (*w)[MATRICES]; /* of each block: q k v o gate up down */
    size_t bytes, file_bytes;
    sn_kv_shape kv;
    size_t page_bytes;
    void *pool, *pages[CONTEXT / PAGE];
    float *norm, *x, *h, *q, *k, *v, *attn, *gate, *up, *cos_sin;
} model;

static float *alloc_floats(model *m, size_t n) {
    void *at;
    require_ok(m->d->ops->alloc(m->d, n * sizeof(float), &at, &err));
    return at;
}

/* Random bytes with valid scales, in which a few rows are repeated: the values do not matter for speed, but must
 * stay finite. */
static void load_matrix(model *m, sn_dtype dtype, size_t rows, size_t cols, sn_weight *out) {
    enum { ROWS = 64 };
    float *values = malloc(ROWS * cols * sizeof *values);
    uint8_t *few = test_random_weight(dtype, ROWS, cols, 1, values);
    size_t row_bytes;
    require_ok(sn_dtype_row_bytes(dtype, cols, &row_bytes, &err));
    uint8_t *all = malloc(rows * row_bytes);
    for (size_t r = 0; r < rows; r += ROWS) memcpy(all + r * row_bytes, few, ROWS * row_bytes);
    require_ok(sn_weight_load(m->d, dtype, rows, cols, all, out, &err));
    m->bytes += out->bytes;
    m->file_bytes += rows * row_bytes;
    free(all);
    free(values);
    test_weight_free(few);
}

static void load_block(model *m, sn_dtype dtype, sn_weight w[MATRICES]) {
    size_t e = (size_t)m->s->n_embd, q = (size_t)(m->s->n_heads * m->s->head_dim);
    size_t kv = (size_t)(m->s->n_kv_heads * m->s->head_dim), ff = (size_t)m->s->n_ff;
    const size_t sides[MATRICES][2] = {{q, e}, {kv, e}, {kv, e}, {e, q}, {ff, e}, {ff, e}, {e, ff}};
    for (int i = 0; i < MATRICES; i++) load_matrix(m, dtype, sides[i][0], sides[i][1], &w[i]);
}

static void model_load(model *m, sn_device *d, const shape *s, sn_dtype dtype) {
    *m = (model){.d = d, .s = s, .kv = {s->n_blocks, s->n_kv_heads, s->head_dim, PAGE}};
    size_t e = (size_t)s->n_embd, q = (size_t)(s->n_heads * s->head_dim), kv = (size_t)(s->n_kv_heads * s->head_dim);
    m->w = calloc((size_t)s->n_blocks, sizeof *m->w);
    for (int b = 0; b < s->n_blocks; b++) load_block(m, dtype, m->w[b]);
    require_ok(d->ops->prepare(d, &(sn_device_limits){.rows = PROMPT, .width = s->n_ff, .context = CONTEXT}, &err));
    m->page_bytes = d->ops->kv_page_bytes(d, &m->kv);
    require_ok(d->ops->alloc(d, m->page_bytes * (CONTEXT / PAGE), &m->pool, &err));
    for (int i = 0; i < CONTEXT / PAGE; i++) m->pages[i] = (char *)m->pool + (size_t)i * m->page_bytes;
    float *random = test_random_floats(PROMPT * e, 1);
    m->norm = alloc_floats(m, e);
    m->x = alloc_floats(m, PROMPT * e);
    require_ok(d->ops->upload(d, m->norm, random, e * sizeof(float), &err));
    require_ok(d->ops->upload(d, m->x, random, PROMPT * e * sizeof(float), &err));
    free(random);
    m->h = alloc_floats(m, PROMPT * e);
    m->q = alloc_floats(m, PROMPT * q);
    m->attn = alloc_floats(m, PROMPT * q);
    m->k = alloc_floats(m, PROMPT * kv);
    m->v = alloc_floats(m, PROMPT * kv);
    m->gate = alloc_floats(m, PROMPT * (size_t)s->n_ff);
    m->up = alloc_floats(m, PROMPT * (size_t)s->n_ff);
    m->cos_sin = alloc_floats(m, PROMPT * (size_t)s->head_dim);
}

static void model_free(model *m) {
    void *all[] = {m->pool, m->norm, m->x, m->h, m->q, m->attn, m->k, m->v, m->gate, m->up, m->cos_sin};
    for (int b = 0; b < m->s->n_blocks; b++)
        for (int i = 0; i < MATRICES; i++) sn_weight_unload(m->d, &m->w[b][i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) m->d->ops->free(m->d, all[i], 0);
    free(m->w);
}

static void issue_block(model *m, int b, int n) {
    const sn_device_ops *ops = m->d->ops;
    const shape *s = m->s;
    const sn_weight *w = m->w[b];
    sn_rope rope = {true, s->head_dim, m->cos_sin};
    size_t e = (size_t)n * (size_t)s->n_embd;
    require_ok(ops->rms_norm(m->d, n, s->n_embd, m->x, m->norm, 1e-5f, m->h, &err));
    require_ok(ops->linear(
        m->d, n, m->h, 3,
        (sn_linear[]){{.weight = &w[0], .y = m->q}, {.weight = &w[1], .y = m->k}, {.weight = &w[2], .y = m->v}}, &err));
    require_ok(ops->rope(m->d, n, s->n_heads, s->head_dim, m->q, &rope, &err));
    require_ok(ops->rope(m->d, n, s->n_kv_heads, s->head_dim, m->k, &rope, &err));
    require_ok(ops->kv_store(m->d, b, m->k, m->v, &err));
    require_ok(
        ops->attention(m->d, &(sn_attention){.block = b, .n_heads = s->n_heads, .scale = 0.1f}, m->q, m->attn, &err));
    require_ok(ops->linear(m->d, n, m->attn, 1, (sn_linear[]){{.weight = &w[3], .y = m->h}}, &err));
    require_ok(ops->add(m->d, e, m->x, m->h, &err));
    require_ok(ops->rms_norm(m->d, n, s->n_embd, m->x, m->norm, 1e-5f, m->h, &err));
    require_ok(ops->linear(m->d, n, m->h, 2,
                           (sn_linear[]){{.weight = &w[4], .y = m->gate}, {.weight = &w[5], .y = m->up}}, &err));
    require_ok(ops->activate(m->d, (size_t)n * (size_t)s->n_ff, SN_SILU, m->gate, m->up, m->gate, &err));
    require_ok(ops->linear(m->d, n, m->gate, 1, (sn_linear[]){{.weight = &w[6], .y = m->h}}, &err));
    require_ok(ops->add(m->d, e, m->x, m->h, &err));
}

static void run_batch(model *m, int position, int n) {
    sn_sequence sequence = {m->pages, position, 0, n, {0}};
    bool recorded;
    require_ok(m->d->ops->batch_begin(m->d, &(sn_batch){&m->kv, n, 1, &sequence, 1}, &recorded, &err));
    for (int b = 0; b < m->s->n_blocks && !recorded; b++) issue_block(m, b, n);
    require_ok(m->d->ops->batch_end(m->d, &err));
    require_ok(m->d->ops->finish(m->d, &err));
}

/* Seconds of a forward pass: the median of several, after those that are not recorded yet. */
static int compare_times(const void *a, const void *b) { return *(const int64_t *)a < *(const int64_t *)b ? -1 : 1; }
static double seconds(model *m, int position, int n, int times) {
    int64_t us[STEPS];
    for (int i = 0; i < 3; i++) run_batch(m, position, n);
    for (int i = 0; i < times; i++) {
        int64_t begin = sn_now_us();
        run_batch(m, position + (n == 1 ? i : 0), n);
        us[i] = sn_now_us() - begin;
    }
    qsort(us, (size_t)times, sizeof *us, compare_times);
    return (double)us[times / 2] * 1e-6;
}

/* -- the device's limits */

/* Bytes per second of y += x over 1 GiB each: two reads and one write. */
static double memory_speed(sn_device *d) {
    enum { N = 1 << 28, TIMES = 20 };
    void *x, *y;
    require_ok(d->ops->alloc(d, sizeof(float) * N, &x, &err));
    require_ok(d->ops->alloc(d, sizeof(float) * N, &y, &err));
    for (int warm = 0; warm < 2; warm++) require_ok(d->ops->add(d, N, y, x, &err));
    require_ok(d->ops->finish(d, &err));
    int64_t begin = sn_now_us();
    for (int i = 0; i < TIMES; i++) require_ok(d->ops->add(d, N, y, x, &err));
    require_ok(d->ops->finish(d, &err));
    double s = (double)(sn_now_us() - begin) * 1e-6;
    d->ops->free(d, x, 0);
    d->ops->free(d, y, 0);
    return 3.0 * sizeof(float) * N * TIMES / s;
}

/* Operations per second of one large product in bfloat16. */
static double matrix_speed(sn_device *d) {
    enum { SIDE = 8192, TIMES = 10 };
    model m = {.d = d};
    sn_weight w;
    require_ok(d->ops->prepare(d, &(sn_device_limits){.rows = SIDE, .width = SIDE, .context = 16}, &err));
    load_matrix(&m, SN_BF16, SIDE, SIDE, &w);
    sn_linear linear = {.weight = &w, .y = alloc_floats(&m, (size_t)SIDE * SIDE)};
    float *x = alloc_floats(&m, (size_t)SIDE * SIDE);
    for (int i = 0; i < 2; i++) require_ok(d->ops->linear(d, SIDE, x, 1, &linear, &err));
    require_ok(d->ops->finish(d, &err));
    int64_t begin = sn_now_us();
    for (int i = 0; i < TIMES; i++) require_ok(d->ops->linear(d, SIDE, x, 1, &linear, &err));
    require_ok(d->ops->finish(d, &err));
    double s = (double)(sn_now_us() - begin) * 1e-6;
    d->ops->free(d, x, 0);
    d->ops->free(d, linear.y, 0);
    sn_weight_unload(d, &w);
    return 2.0 * SIDE * SIDE * SIDE * TIMES / s;
}

static void bench_model(sn_device *d, const shape *s, sn_dtype dtype, double memory, double matrices) {
    static const int depths[] = {16, 4000};
    model m;
    model_load(&m, d, s, dtype);
    double elements = 0;
    for (int i = 0; i < MATRICES; i++) elements += (double)m.w[0][i].rows * (double)m.w[0][i].cols * s->n_blocks;
    for (int i = 0; i < 2; i++) {
        double n_past = 2.0 * depths[i] * s->n_kv_heads * s->head_dim * sizeof(float) * s->n_blocks;
        double took = seconds(&m, depths[i], 1, STEPS), own = (double)m.bytes + n_past,
               file = (double)m.file_bytes + n_past;
        printf("%s %-5s decode at %4d: %8.1f tokens/s, %5.1f%% of the memory's speed (%5.1f%% by the file's bytes)\n",
               s->name, sn_dtype_name(dtype), depths[i], 1 / took, 100 * own / took / memory,
               100 * file / took / memory);
    }
    double took = seconds(&m, 0, PROMPT, 10);
    printf("%s %-5s prompt of %d: %8.1f tokens/s, %5.1f%% of cuBLAS's speed\n", s->name, sn_dtype_name(dtype), PROMPT,
           PROMPT / took, 100 * 2 * elements * PROMPT / took / matrices);
    model_free(&m);
}

int main(int argc, char **argv) {
    static const sn_dtype types[] = {SN_BF16, SN_Q4_1, SN_Q4_K};
    int ordinal = argc > 1 ? require_int(argv[1], 0, 63) : 0;
    sn_device *d;
    if (sn_device_open((sn_device_id){SN_DEVICE_CUDA, ordinal}, NULL, &d, &err)) {
        printf("no CUDA device: %s\n", err.text);
        return 0;
    }
    printf("%s\n", sn_device_describe(d));
    sn_device_close(&d);
    int failed = run_conformance(ordinal);
    require_ok(sn_device_open((sn_device_id){SN_DEVICE_CUDA, ordinal}, NULL, &d, &err));
    double memory = memory_speed(d), matrices = matrix_speed(d);
    printf("memory: %.0f GB/s (y += x); cuBLAS, bfloat16, 8192^3: %.1f TFLOP/s\n", memory * 1e-9, matrices * 1e-12);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            bench_model(d, &shapes[s], types[t], memory, matrices);
    sn_device_close(&d);
    return failed > 0;
}
