/* For a machine with an NVIDIA GPU: the conformance suite on the GPU, and the throughput of models of 1B and 8B
 * shape with random weights in bfloat16 and 4 bits: decode compared with the limit set by memory bandwidth, prefill
 * compared with what cuBLAS reaches in one large product. Prints "no CUDA device" and succeeds where there is none.
 * Nothing is buffered: what a killed run has measured stands.
 *
 * Usage: bench_cuda [ORDINAL] [--conformance[=CASE]] [--products] [--shape 1B|8B] [--type TYPE]
 *
 * --conformance: only the suite, or one case of it. --shape, --type: only these measurements, of any type of weights.
 * --products: a line of JSON for each product of many rows and each way (SWARM_CUDA_PRODUCTS; "": the rule's), instead.
 *
 * Decode: one session, its batches recorded, with a short and a long KV cache. The limit is the bytes of weights and
 * KV cache that a step reads, in the device's layout and in the file's, divided by the rate at which the device adds
 * two long vectors. */
#include "base/program_environment.h"
#include "base/clock.h"
#include "tests/support/weight_whole.h"
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

static bool run_case(int ordinal, conformance_case which) {
    static conformance c;
    int64_t begin = sn_now_us();
    c = (conformance){.id = {SN_DEVICE_CUDA, ordinal}, .linear_rounding = 0x1p-8 * 1.01, .eight_bit_rows = true};
    bool passed = conformance_run(&c, which);
    printf("%s  %s, %.2f s%s%s\n",
           c.skipped ? "skipped"
           : passed  ? "passed "
                     : "FAILED ",
           conformance_name(which), (double)(sn_now_us() - begin) * 1e-6, passed ? "" : ": ", c.failure);
    return passed;
}

/* What most depends on comes first: copies, products, captured batches, attention; then the rest. */
static int run_conformance(int ordinal, const char *only) {
    static const conformance_case first[] = {
        CONFORMANCE_copies_come_back_unchanged, CONFORMANCE_linear_of_every_type,
        CONFORMANCE_linear_that_is_to_be_exact, CONFORMANCE_a_recorded_batch_follows_its_sessions,
        CONFORMANCE_attention_while_decoding,   CONFORMANCE_attention_of_several_prompts};
    enum { N_FIRST = sizeof first / sizeof *first };
    bool done[CONFORMANCE_COUNT] = {false};
    int failed = 0, n = 0;
    for (int i = 0; i < N_FIRST + CONFORMANCE_COUNT; i++) {
        int which = i < N_FIRST ? (int)first[i] : i - N_FIRST;
        if (done[which] || (*only && strcmp(only, conformance_name((conformance_case)which)))) continue;
        done[which] = true;
        n++;
        failed += !run_case(ordinal, (conformance_case)which);
    }
    printf("conformance: %d cases, %d failed\n\n", n, failed);
    return n ? failed : 1;
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

/* Zeros would flatter: products with them take less power. */
static float *upload_random(sn_device *d, size_t n) {
    float *random = test_random_floats(n, 1), *at;
    require_ok(d->ops->alloc(d, n * sizeof *random, (void **)&at, &err));
    require_ok(d->ops->upload(d, at, random, n * sizeof *random, &err));
    free(random);
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
    require_ok(weight_load(m->d, dtype, rows, cols, all, out, &err));
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
    *m = (model){
        .d = d,
        .s = s,
        .kv = {.n_blocks = s->n_blocks, .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .page_tokens = PAGE}};
    size_t e = (size_t)s->n_embd, q = (size_t)(s->n_heads * s->head_dim), kv = (size_t)(s->n_kv_heads * s->head_dim);
    m->w = calloc((size_t)s->n_blocks, sizeof *m->w);
    for (int b = 0; b < s->n_blocks; b++) load_block(m, dtype, m->w[b]);
    require_ok(d->ops->prepare(
        d,
        &(sn_device_limits){
            .rows = PROMPT, .width = s->n_ff, .context = CONTEXT, .heads = s->n_heads, .head_dim = s->head_dim},
        &err));
    m->page_bytes = d->ops->kv_page_bytes(d, &m->kv);
    require_ok(d->ops->alloc(d, m->page_bytes * (CONTEXT / PAGE), &m->pool, &err));
    for (int i = 0; i < CONTEXT / PAGE; i++) m->pages[i] = (char *)m->pool + (size_t)i * m->page_bytes;
    m->norm = upload_random(d, e);
    m->x = upload_random(d, PROMPT * e);
    m->h = alloc_floats(m, PROMPT * e);
    m->q = alloc_floats(m, PROMPT * q);
    m->attn = alloc_floats(m, PROMPT * q);
    m->k = alloc_floats(m, PROMPT * kv);
    m->v = alloc_floats(m, PROMPT * kv);
    m->gate = alloc_floats(m, PROMPT * (size_t)s->n_ff);
    m->up = alloc_floats(m, PROMPT * (size_t)s->n_ff);
    m->cos_sin = upload_random(m->d, PROMPT * (size_t)s->head_dim);
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
    float *x = upload_random(d, (size_t)SIDE * SIDE);
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
    for (int at = 0; at < depths[1]; at += PROMPT) run_batch(&m, at, PROMPT); /* keys and values that are not zero */
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

/* -- ways of products */

static char way[16];
static char *environment(const char *name) { return strcmp(name, "SWARM_CUDA_PRODUCTS") ? getenv(name) : way; }

/* Microseconds of a product of n rows with these weights in one call: the least of several. */
static int64_t product_us(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        int64_t begin = sn_now_us();
        require_ok(d->ops->linear(d, n, x, n_linears, linears, &err));
        require_ok(d->ops->finish(d, &err));
        int64_t took = sn_now_us() - begin;
        if (took < least) least = took;
    }
    return least;
}

static void bench_products(sn_device *d, const shape *s, sn_dtype dtype) {
    static const int counts[] = {33, 64, 128, 256, 512, 1024};
    enum { SHAPES = 4, MOST = 1024 };
    size_t e = (size_t)s->n_embd, ff = (size_t)s->n_ff, kv = (size_t)(s->n_kv_heads * s->head_dim);
    const size_t sides[SHAPES][3] = {{e, e, 1}, {kv, e, 2}, {ff, e, 2}, {e, ff, 1}}; /* outputs, columns, matrices */
    model m = {.d = d};
    require_ok(d->ops->prepare(d, &(sn_device_limits){.rows = MOST, .width = s->n_ff, .context = 16}, &err));
    float *x = upload_random(d, MOST * ff);
    for (int i = 0; i < SHAPES; i++) {
        sn_weight w[2];
        sn_linear linears[2];
        int matrices = (int)sides[i][2];
        for (int k = 0; k < matrices; k++) {
            load_matrix(&m, dtype, sides[i][0], sides[i][1], &w[k]);
            linears[k] = (sn_linear){.weight = &w[k], .y = alloc_floats(&m, MOST * sides[i][0])};
        }
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            printf("{\"way\": \"%s\", \"type\": \"%s\", \"rows\": %d, \"matrices\": %d, \"outputs\": %zu, "
                   "\"columns\": %zu, \"us\": %lld}\n",
                   way, sn_dtype_name(dtype), counts[c], matrices, sides[i][0], sides[i][1],
                   (long long)product_us(d, counts[c], x, matrices, linears));
        for (int k = 0; k < matrices; k++) {
            d->ops->free(d, linears[k].y, 0);
            sn_weight_unload(d, &w[k]);
        }
    }
    d->ops->free(d, x, 0);
}

typedef struct args {
    int ordinal;
    bool conformance, products;
    const char *only, *shape, *type;
} args;

static args parse(int argc, char **argv) {
    args a = {.only = ""};
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        bool has_value = i + 1 < argc;
        if (!strncmp(arg, "--conformance", 13) && (!arg[13] || arg[13] == '=')) {
            a.conformance = true;
            a.only = arg[13] ? arg + 14 : "";
        } else if (!strcmp(arg, "--products"))
            a.products = true;
        else if (!strcmp(arg, "--shape") && has_value)
            a.shape = argv[++i];
        else if (!strcmp(arg, "--type") && has_value)
            a.type = argv[++i];
        else
            a.ordinal = require_int(arg, 0, 63);
    }
    return a;
}

/* What the driver has taken by itself of the device, and what the process holds. */
static void print_reserve(sn_device *d, size_t free_before) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0;
    require_ok(sn_devices_list_kind(SN_DEVICE_CUDA, infos, &n, &err));
    for (size_t i = 0; i < n; i++)
        if (sn_device_id_equal(infos[i].id, d->id))
            printf("memory: the driver took %.0f MiB by itself, we %.0f MiB\n",
                   ((double)free_before - (double)infos[i].memory_free - (double)d->memory_used) / 0x1p20,
                   (double)d->memory_used / 0x1p20);
}

static const sn_dtype usual[] = {SN_BF16, SN_Q4_1, SN_Q4_K};

static bool is_wanted(const args *a, const shape *s, sn_dtype dtype) {
    bool wanted = a->type && !strcmp(a->type, sn_dtype_name(dtype));
    for (size_t u = 0; u < sizeof usual / sizeof *usual && !a->type; u++) wanted |= usual[u] == dtype;
    return wanted && (!a->shape || !strcmp(a->shape, s->name));
}

static int measure_products(const args *a) {
    static const char *const ways[] = {"kernel-64", "kernel-128", "cublas", "cublaslt", ""};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        sn_device *d;
        snprintf(way, sizeof way, "%s", ways[i]);
        sn_environment_use(environment);
        require_ok(sn_device_open((sn_device_id){SN_DEVICE_CUDA, a->ordinal}, NULL, &d, &err));
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int t = 0; t < SN_DTYPE_COUNT; t++)
                if (is_wanted(a, &shapes[s], (sn_dtype)t)) bench_products(d, &shapes[s], (sn_dtype)t);
        sn_device_close(&d);
    }
    return 0;
}

static int measure(const args *a) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0, free_before = 0;
    sn_device *d;
    require_ok(sn_devices_list_kind(SN_DEVICE_CUDA, infos, &n, &err));
    for (size_t i = 0; i < n; i++)
        if (infos[i].id.ordinal == a->ordinal) free_before = infos[i].memory_free;
    require_ok(sn_device_open((sn_device_id){SN_DEVICE_CUDA, a->ordinal}, NULL, &d, &err));
    double memory = memory_speed(d), matrices = matrix_speed(d);
    printf("memory: %.0f GB/s (y += x); cuBLAS, bfloat16, 8192^3: %.1f TFLOP/s\n", memory * 1e-9, matrices * 1e-12);
    print_reserve(d, free_before);
    int measured = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < SN_DTYPE_COUNT; t++) {
            if (!is_wanted(a, &shapes[s], (sn_dtype)t)) continue;
            bench_model(d, &shapes[s], (sn_dtype)t, memory, matrices);
            measured++;
        }
    sn_device_close(&d);
    if (!measured) fprintf(stderr, "there is no such shape or type\n");
    return measured ? 0 : 2;
}

int main(int argc, char **argv) {
    const args a = parse(argc, argv);
    sn_device *d;
    setvbuf(stdout, NULL, _IONBF, 0);
    sn_environment_use(getenv);
    if (sn_device_open((sn_device_id){SN_DEVICE_CUDA, a.ordinal}, NULL, &d, &err)) {
        printf("no CUDA device: %s\n", err.text);
        return 1;
    }
    printf("%s\n", sn_device_describe(d));
    sn_device_close(&d);
    if (a.products) return measure_products(&a);
    int failed = a.conformance || (!a.shape && !a.type) ? run_conformance(a.ordinal, a.only) : 0;
    return a.conformance ? failed > 0 : measure(&a) || failed > 0;
}
