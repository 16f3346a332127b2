/* Speed of the CPU kernels: GB/s of packed weights with one row (decode), GOP/s with many rows (prefill), for each
 * layout and instruction set; experts; attention by depth; gradients; the cost of dividing work between threads. The
 * best of several repeats.
 *
 * Usage: bench_kernels [THREADS [ISA [PART]]]     default: 1 and 2 threads; every instruction set of the machine; all
 * parts
 *
 * Parts: memory, peak, linear, rows, token, wide, experts, attention, chosen, delta, grad, small, pack. */
#include "base/mem.h"
#include "tests/bench/reading.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 12 };

static sn_err err;
static void require_ok(sn_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

/* Matrices of SmolLM2's feed-forward network, so many that no cache near the core holds them. */
typedef struct matrices {
    int n;
    size_t rows, cols, bytes;
    sn_weight *w[64];
} matrices;

static matrices make_matrices(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t wanted_bytes) {
    matrices m = {.rows = rows, .cols = cols};
    float *values = malloc(rows * cols * sizeof *values);
    void *raw = test_random_weight(dtype, rows, cols, 1, values);
    for (; m.n < 64 && m.bytes < wanted_bytes; m.n++) {
        require_ok(test_weight_make(d, dtype, rows, cols, raw, &m.w[m.n], &err));
        m.bytes += m.w[m.n]->bytes;
    }
    test_weight_free(raw);
    free(values);
    return m;
}

/* Seconds of one run through all matrices with n rows. */
static double time_linear(sn_device *d, const matrices *m, int n, const float *x, float *y) {
    double best = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        int64_t start = sn_now_us();
        for (int i = 0; i < m->n; i++)
            require_ok(d->ops->linear(d, n, x, 1, &(sn_linear){.weight = m->w[i], .y = y}, &err));
        double s = (double)(sn_now_us() - start) * 1e-6;
        best = s < best ? s : best;
    }
    return best;
}

static const sn_dtype linear_types[] = {
    SN_Q2_K,   SN_Q3_K,  SN_Q4_0,    SN_Q4_1,    SN_Q4_K,  SN_IQ4_NL, SN_IQ4_XS, SN_MXFP4, SN_Q5_0,  SN_Q5_1,
    SN_Q5_K,   SN_Q6_K,  SN_Q8_0,    SN_F8_E4M3, SN_BF16,  SN_F16,    SN_F32,    SN_IQ1_S, SN_IQ1_M, SN_IQ2_XXS,
    SN_IQ2_XS, SN_IQ2_S, SN_IQ3_XXS, SN_IQ3_S,   SN_TQ1_0, SN_TQ2_0,  SN_NVFP4,  SN_Q1_0,  SN_Q2_0};
enum { N_TYPES = sizeof linear_types / sizeof *linear_types };

static void bench_linear(sn_device *d) {
    bool plain = strstr(sn_device_describe(d), ", c");
    int rows = plain ? 16 : 256;
    float *x = test_random_floats((size_t)rows * 576, 3), *y = malloc((size_t)rows * 1536 * sizeof *y);
    printf("  %-7s %9s %10s %12s %12s %10s\n", "", "1 row GB/s", "GOP/s", "3 rows GOP/s", "4 rows GOP/s", "many GOP/s");
    for (size_t t = 0; t < N_TYPES; t++) {
        sn_dtype dtype = linear_types[t];
        size_t cols = sn_dtype_block(dtype) > 32 ? 512 : 576;
        matrices m = make_matrices(d, dtype, 1536, cols, 30 << 20), few = m;
        few.n = m.n < 4 ? m.n : 4;
        double ops = 2e-9 * 1536 * (double)cols, one = time_linear(d, plain ? &few : &m, 1, x, y);
        double n_one = plain ? few.n : m.n;
        printf("  %-7s %9.1f %10.1f %12.1f %12.1f %10.1f\n", sn_dtype_name(dtype),
               (double)m.bytes * 1e-9 / m.n * n_one / one, ops * n_one / one,
               ops * few.n * 3 / time_linear(d, &few, 3, x, y), ops * few.n * 4 / time_linear(d, &few, 4, x, y),
               ops * few.n * rows / time_linear(d, &few, rows, x, y));
        for (int i = 0; i < m.n; i++) test_weight_drop(d, &m.w[i]);
    }
    free(x);
    free(y);
}

/* The time of 1 to 16 rows with a wide matrix that lies in no cache, as the LM head does: limited by memory for
 * few rows, by arithmetic for many. All numbers of rows are measured alternately, so that a disturbance affects all
 * of them. */
static void bench_rows(sn_device *d) {
    enum { ROWS = 16, OUTPUTS = 16384, TURNS = 12, COLD_BYTES = 96 << 20 };
    static const sn_dtype types[] = {SN_Q4_0, SN_Q4_1, SN_Q4_K, SN_Q8_0, SN_Q5_0, SN_Q5_1,
                                     SN_Q5_K, SN_Q3_K, SN_Q6_K, SN_BF16, SN_F16,  SN_F32};
    float *x = test_random_floats((size_t)ROWS * 576, 3), *y = malloc((size_t)ROWS * OUTPUTS * sizeof *y);
    printf("  %d outputs of 576 (K: 512), us by rows:\n  %-5s", OUTPUTS, "");
    for (int n = 1; n <= ROWS; n++) printf(" %5d", n);
    printf("\n");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        matrices m = make_matrices(d, types[t], OUTPUTS, sn_dtype_block(types[t]) == 256 ? 512 : 576, COLD_BYTES);
        int64_t best[ROWS];
        for (int n = 0; n < ROWS; n++) best[n] = INT64_MAX;
        for (int turn = 0; turn < TURNS; turn++)
            for (int n = 1; n <= ROWS; n++) {
                int64_t start = sn_now_us();
                for (int i = 0; i < m.n; i++)
                    require_ok(d->ops->linear(d, n, x, 1, &(sn_linear){.weight = m.w[i], .y = y}, &err));
                int64_t us = (sn_now_us() - start) / m.n;
                best[n - 1] = us < best[n - 1] ? us : best[n - 1];
            }
        printf("  %-5s", sn_dtype_name(types[t]));
        for (int n = 0; n < ROWS; n++) printf(" %5d", (int)best[n]);
        printf("\n");
        for (int i = 0; i < m.n; i++) test_weight_drop(d, &m.w[i]);
    }
    free(x);
    free(y);
}

/* Writes a weight of random values to `at`, in the device's layout; returns its bytes. */
static size_t put_random(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, uint8_t *at, sn_weight *out) {
    float *values = malloc(rows * cols * sizeof *values);
    uint8_t *raw = test_random_weight(dtype, rows, cols, 1, values);
    size_t bytes;
    require_ok(d->ops->weight_size(d, dtype, rows, cols, &bytes, &err));
    require_ok(d->ops->weight_pack(d, dtype, rows, cols, raw, at, &err));
    *out = (sn_weight){dtype, rows, cols, bytes, at, NULL};
    test_weight_free(raw);
    free(values);
    return bytes;
}

/* The matrices of SmolLM2 135M in the order and memory layout in which a token reads them: 30 blocks, each
 * contiguous, and the head. Nothing else is computed between them: this is the limit with which a token's time is
 * compared. */
static void bench_token(sn_device *d, sn_dtype dtype, sn_dtype head_dtype) {
    enum { BLOCKS = 30, PER_BLOCK = 7, HEAD = BLOCKS * PER_BLOCK, TIMES = 60 };
    enum { IMAGE = 16 << 20, HEAD_IMAGE = 128 << 20 }; /* more than any type needs; untouched pages take no memory */
    static const size_t rows[] = {576, 192, 192, 576, 1536, 1536, 576, 49152};
    static const size_t cols[] = {576, 576, 576, 576, 576, 576, 1536, 576};
    float *x = test_random_floats(1536, 3), *y = malloc(3 * 49152 * sizeof *y);
    void *images[BLOCKS + 1];
    sn_linear w[HEAD + 1];
    sn_weight weights[HEAD + 1];
    size_t bytes = 0, in_image = 0;
    for (int i = 0; i <= HEAD; i++) {
        int kind = i == HEAD ? 7 : i % PER_BLOCK;
        void **image = &images[i / PER_BLOCK];
        if (kind == 0 || i == HEAD) {
            require_ok(d->ops->alloc(d, i == HEAD ? HEAD_IMAGE : IMAGE, image, &err));
            in_image = 0;
        }
        in_image += put_random(d, i == HEAD ? head_dtype : dtype, rows[kind], cols[kind], (uint8_t *)*image + in_image,
                               &weights[i]);
        bytes += weights[i].bytes;
        w[i] = (sn_linear){.weight = &weights[i], .y = y + (size_t)kind * 2048};
    }
    double best = 1e9;
    for (int r = 0; r < TIMES; r++) {
        int64_t start = sn_now_us();
        for (int b = 0; b < BLOCKS; b++) {
            require_ok(d->ops->linear(d, 1, x, 3, w + b * PER_BLOCK, &err));
            require_ok(d->ops->linear(d, 1, x, 1, w + b * PER_BLOCK + 3, &err));
            require_ok(d->ops->linear(d, 1, x, 2, w + b * PER_BLOCK + 4, &err));
            require_ok(d->ops->linear(d, 1, x, 1, w + b * PER_BLOCK + 6, &err));
        }
        require_ok(d->ops->linear(d, 1, x, 1, w + HEAD, &err));
        double ms = (double)(sn_now_us() - start) * 1e-3;
        best = ms < best ? ms : best;
    }
    printf("  a token's matrices, SmolLM2 135M, %s, head %s: %.2f ms, %.1f GB/s\n", sn_dtype_name(dtype),
           sn_dtype_name(head_dtype), best, (double)bytes * 1e-6 / best);
    for (int i = 0; i <= BLOCKS; i++) d->ops->free(d, images[i], i == BLOCKS ? HEAD_IMAGE : IMAGE);
    free(x), free(y);
}

/* The recurrences of Qwen3-Next's, Kimi Linear's and Nemotron 3's shapes: 32 heads with a matrix of 128 by 128 each, or
 * 64 of 128 by 64. */
static void bench_delta(sn_device *d, sn_recurrence kind, int rows) {
    enum { KEYS = 16, VALUES = 32, DIM = 128, WIDTH = (2 * KEYS + VALUES) * DIM };
    static const char *const names[] = {"delta rule", "keyed delta rule", "state space"};
    const bool scan = kind == SN_STATE_SPACE;
    const int values = scan ? 2 * VALUES : VALUES;
    const sn_delta_shape shape = {.n_blocks = 1,
                                  .n_key_heads = scan ? 8 : KEYS,
                                  .n_value_heads = values,
                                  .key_dim = DIM,
                                  .value_dim = scan ? DIM / 2 : DIM,
                                  .taps = 4,
                                  .kind = kind};
    const size_t floats = sn_delta_floats(&shape);
    float *qkv = test_random_floats((size_t)rows * WIDTH, 7),
          *gates = test_random_floats((size_t)rows * VALUES * DIM, 8);
    float *state = calloc(2 * floats, sizeof *state), *out = malloc((size_t)rows * VALUES * DIM * sizeof *out);
    float rates[2 * VALUES], bias[VALUES * DIM] = {0};
    for (int h = 0; h < 2 * VALUES; h++) rates[h] = -0.1f; /* the state forgets, as in models */
    const sn_delta delta = {.shape = shape, .rates = rates, .time_bias = bias, .skip = bias};
    const sn_delta_rows in = {qkv, qkv + KEYS * DIM, qkv + 2 * KEYS * DIM, WIDTH, WIDTH, gates, gates};
    const sn_kv_shape kv = {1, 1, 64, 32, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    const sn_sequence s = {.n_rows = rows, .state = {.before = state, .after = state + floats}};
    double best = 1e9;
    const sn_batch batch = {.shape = &kv, .n_sequences = 1, .sequences = &s};
    bool replayed;
    require_ok(d->ops->batch_begin(d, &batch, &replayed, &err));
    for (int r = 0; r < REPEATS; r++) {
        int64_t start = sn_now_us();
        require_ok(d->ops->delta_rule(d, &delta, &in, out, &err));
        double us = (double)(sn_now_us() - start);
        best = us < best ? us : best;
    }
    printf("  %s, %3d rows: %8.1f us a block, %.1f us a row, %6.1f GFLOP/s, %.1f GB/s of states\n", names[kind], rows,
           best, best / rows, (scan ? 5.0 : 8.0) * VALUES * DIM * DIM * rows / best * 1e-3,
           8e-3 * (double)sn_delta_matrices(&shape) / best);
    require_ok(d->ops->batch_end(d, &err));
    free(qkv), free(gates), free(state), free(out);
}

/* SmolLM2's attention: 9 heads over 3, of 64 elements. */
static void bench_attention(sn_device *d, sn_kv_dtype dtype, int depth, int rows) {
    sn_kv_shape shape = {30, 3, 64, 32, dtype, 0, 0, {0}, {0}, 0, 0, false};
    size_t bytes = d->ops->kv_page_bytes(d, &shape);
    int n_pages = (depth + rows + 31) / 32;
    void **pages = calloc((size_t)n_pages, sizeof *pages);
    float *kv = test_random_floats((size_t)(depth + rows) * 192, 5), *q = test_random_floats((size_t)rows * 576, 6);
    float *out = malloc((size_t)rows * 576 * sizeof *out);
    void *pool;
    require_ok(d->ops->alloc(d, bytes * (size_t)n_pages, &pool, &err));
    for (int i = 0; i < n_pages; i++) pages[i] = (char *)pool + (size_t)i * bytes;
    sn_sequence all = {pages, 0, 0, depth + rows, {0}}, seq = {pages, depth, 0, rows, {0}};
    for (int b = 0; b < 30; b++) require_ok(test_kv_store(d, &shape, b, 1, &all, kv, kv, &err));
    double best = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        int64_t start = sn_now_us();
        for (int b = 0; b < 30; b++)
            require_ok(test_attention(d, &shape, 1, &seq, &(sn_attention){.block = b, .n_heads = 9, .scale = 0.125f}, q,
                                      out, &err));
        double s = (double)(sn_now_us() - start) / 30;
        best = s < best ? s : best;
    }
    double read = (double)bytes / 30 / 32 * depth, ops = 4.0 * 576 * rows * (depth + rows / 2.0);
    printf("  attention in %s, %3d rows at depth %4d: %8.1f us a block, %6.1f GB/s, %6.1f GFLOP/s\n",
           sn_kv_dtype_name(dtype), rows, depth, best, read / best * 1e-3, ops / best * 1e-3);
    d->ops->free(d, pool, bytes * (size_t)n_pages);
    free(pages), free(kv), free(q), free(out);
}

/* The least microseconds of a call, of several repeats. */
#define BEST_US(call)                                                                                                  \
    ({                                                                                                                 \
        double best_ = 1e9;                                                                                            \
        for (int r_ = 0; r_ < REPEATS; r_++) {                                                                         \
            int64_t start_ = sn_now_us();                                                                              \
            require_ok(call);                                                                                          \
            double us_ = (double)(sn_now_us() - start_);                                                               \
            best_ = us_ < best_ ? us_ : best_;                                                                         \
        }                                                                                                              \
        best_;                                                                                                         \
    })

/* A block of DeepSeek-V3.2 behind 32,000 positions, with latents in f16: its indexer of 64 heads of 128, what 128 heads
 * then attend to, and what they would attend to without it. */
static void bench_chosen(sn_device *d, int rows) {
    enum { DEPTH = 32000, INDEX_HEADS = 64, INDEX_DIM = 128, CHOSEN = 2048, HEADS = 128, LATENT = 512, KEY = 576 };
    const sn_kv_shape shape = {.n_blocks = 1,
                               .n_kv_heads = 1,
                               .head_dim = KEY,
                               .page_tokens = 32,
                               .dtype = SN_KV_F16,
                               .latent = LATENT,
                               .index_blocks = 1,
                               .index_dim = INDEX_DIM};
    const sn_device_limits limits = {.rows = rows,
                                     .width = INDEX_HEADS * INDEX_DIM,
                                     .context = DEPTH + 64,
                                     .sequences = 1,
                                     .heads = HEADS,
                                     .head_dim = KEY,
                                     .chosen = CHOSEN};
    require_ok(d->ops->prepare(d, &limits, &err));
    const size_t bytes = d->ops->kv_page_bytes(d, &shape);
    float *from = test_random_floats(32 * KEY, 1), *q = test_random_floats((size_t)rows * HEADS * KEY, 2),
          *index_q = test_random_floats((size_t)rows * INDEX_HEADS * INDEX_DIM, 3),
          *weights = test_random_floats((size_t)rows * INDEX_HEADS, 4),
          *out = malloc((size_t)rows * HEADS * LATENT * sizeof *out);
    int32_t *chosen = malloc((size_t)rows * CHOSEN * sizeof *chosen);
    void *pool, **pages = calloc(DEPTH / 32, sizeof *pages);
    require_ok(d->ops->alloc(d, bytes * (DEPTH / 32), &pool, &err));
    for (int i = 0; i < DEPTH / 32; i++) {
        pages[i] = (char *)pool + (size_t)i * bytes;
        for (int k = 0; k < 32 * KEY; k++) from[k] = from[(k * 7 + i) % (32 * KEY)];
        require_ok(d->ops->kv_write(d, &shape, 0, pages + i, 0, 32, from, from + 32 * (KEY - LATENT), &err));
        require_ok(d->ops->kv_write(d, &shape, 1, pages + i, 0, 32, from, NULL, &err));
    }
    const sn_sequence sequence = {pages, DEPTH - rows, 0, rows, {0}};
    const sn_batch batch = {&shape, rows, 1, &sequence, 0};
    const sn_indexer indexer = {1, INDEX_HEADS, INDEX_DIM, CHOSEN, index_q, weights};
    const sn_attention whole = {.n_heads = HEADS, .scale = 0.07f},
                       some = {.n_heads = HEADS, .scale = 0.07f, .chosen = chosen, .n_chosen = CHOSEN};
    bool replayed;
    require_ok(d->ops->batch_begin(d, &batch, &replayed, &err));
    printf("  %2d rows behind %d positions, ms a row: choosing %d of them %.1f, attention to these %.1f, to all %.1f\n",
           rows, DEPTH, CHOSEN, BEST_US(d->ops->choose_keys(d, &indexer, chosen, &err)) / rows * 1e-3,
           BEST_US(d->ops->attention(d, &some, q, out, &err)) / rows * 1e-3,
           BEST_US(d->ops->attention(d, &whole, q, out, &err)) / rows * 1e-3);
    require_ok(d->ops->batch_end(d, &err));
    d->ops->free(d, pool, bytes * (DEPTH / 32));
    free(from), free(q), free(index_q), free(weights), free(out), free(chosen), free(pages);
}

/* A mixture of 32 experts, 4 of them a row, each a matrix of SmolLM2's feed-forward network; forward and back. */
enum { EXPERTS = 32, EXPERTS_USED = 4, EXPERT_ROWS = 1536, EXPERT_COLS = 576, MOE_ROWS = 256 };

static sn_experts put_experts(sn_device *d, sn_dtype dtype, void **image, size_t *size) {
    sn_experts e = {.n = EXPERTS};
    require_ok(d->ops->weight_size(d, dtype, EXPERT_ROWS, EXPERT_COLS, &e.stride, &err));
    e.stride = (e.stride + 63) / 64 * 64;
    *size = EXPERTS * e.stride;
    require_ok(d->ops->alloc(d, *size, image, &err));
    for (size_t i = EXPERTS; i-- > 0;)
        put_random(d, dtype, EXPERT_ROWS, EXPERT_COLS, (uint8_t *)*image + i * e.stride, &e.first);
    return e;
}

static void bench_experts(sn_device *d) {
    static const sn_dtype types[] = {SN_Q4_1, SN_MXFP4, SN_Q5_0, SN_Q8_0, SN_BF16};
    float *x = test_random_floats((size_t)MOE_ROWS * EXPERT_COLS, 3),
          *logits = test_random_floats(MOE_ROWS * EXPERTS, 4);
    float *y = malloc(sizeof *y * MOE_ROWS * EXPERTS_USED * EXPERT_ROWS),
          *weights = malloc(sizeof *y * MOE_ROWS * EXPERTS_USED);
    int32_t *ids = malloc(sizeof *ids * MOE_ROWS * EXPERTS_USED);
    const sn_moe_router router = {.n_experts = EXPERTS, .k = EXPERTS_USED, .scale = 1};
    require_ok(d->ops->moe_gate(d, MOE_ROWS, &router, logits, ids, weights, &err));
    printf("  %d of %d experts of 1536 x 576: %12s %14s %14s %16s\n", EXPERTS_USED, EXPERTS, "1 row, us",
           "16 rows GOP/s", "256 rows GOP/s", "256 rows back");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        void *image;
        size_t size;
        const sn_experts e = put_experts(d, types[t], &image, &size);
        const sn_moe_linear l = {&e, NULL, y};
        const sn_moe_selection one = {1, EXPERTS, EXPERTS_USED, ids, weights},
                               few = {16, EXPERTS, EXPERTS_USED, ids, weights},
                               many = {MOE_ROWS, EXPERTS, EXPERTS_USED, ids, weights};
        double ops = 2e-3 * EXPERTS_USED * EXPERT_ROWS * EXPERT_COLS;
        printf("  %-6s %38.1f", sn_dtype_name(types[t]), BEST_US(d->ops->moe_linear(d, &one, false, x, 1, &l, &err)));
        printf(" %14.1f", 16 * ops / BEST_US(d->ops->moe_linear(d, &few, false, x, 1, &l, &err)));
        printf(" %14.1f", MOE_ROWS * ops / BEST_US(d->ops->moe_linear(d, &many, false, x, 1, &l, &err)));
        printf(" %16.1f\n", MOE_ROWS * ops / BEST_US(d->ops->moe_linear_grad(d, &many, false, y, &e, false, x, &err)));
        d->ops->free(d, image, size);
    }
    free(x), free(logits), free(y), free(weights), free(ids);
}

/* The backward pass of 256 rows of SmolLM2's shapes. */
static void bench_grad(sn_device *d) {
    enum { ROWS = 256, IN = 576, OUT = 1536 };
    static const sn_dtype types[] = {SN_Q4_1, SN_Q4_K, SN_Q5_0, SN_Q8_0, SN_BF16, SN_F16, SN_F32};
    float *x = test_random_floats((size_t)ROWS * OUT, 3), *dy = test_random_floats((size_t)ROWS * OUT, 4);
    float *dx = malloc(sizeof *dx * ROWS * OUT), *dw = calloc(OUT * IN, sizeof *dw),
          *dz = malloc(sizeof *dz * ROWS * OUT);
    printf("  backward through 1536 x 576 (K: 512), 256 rows, GFLOP/s:");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        size_t cols = sn_dtype_block(types[t]) == 256 ? 512 : IN;
        matrices m = make_matrices(d, types[t], OUT, cols, 1);
        double us = BEST_US(d->ops->linear_input_grad(d, ROWS, dy, m.w[0], false, dx, &err));
        printf(" %s %.1f", sn_dtype_name(types[t]), 2e-3 * ROWS * OUT * (double)cols / us);
        test_weight_drop(d, &m.w[0]);
    }
    printf("\n  gradient of a matrix, 256 rows, GFLOP/s: 1536 x 576 %.1f, 16 x 576 (LoRA) %.1f\n",
           2e-3 * ROWS * OUT * IN / BEST_US(d->ops->linear_weight_grad(d, ROWS, OUT, IN, dy, x, dw, &err)),
           2e-3 * ROWS * 16 * IN / BEST_US(d->ops->linear_weight_grad(d, ROWS, 16, IN, dy, x, dw, &err)));
    const sn_attention_grad a = {.n = ROWS,
                                 .n_heads = 9,
                                 .n_kv_heads = 3,
                                 .head_dim = 64,
                                 .scale = 0.125f,
                                 .q = x,
                                 .k = x,
                                 .v = x,
                                 .dout = dy,
                                 .dq = dx,
                                 .dk = dw,
                                 .dv = dz};
    printf("  256 rows, us: attention_grad %.0f, rms_norm_grad %.0f, activate_grad %.0f\n",
           BEST_US(d->ops->attention_grad(d, &a, &err)),
           BEST_US(d->ops->rms_norm_grad(d, ROWS, IN, x, dw, 1e-5f, dy, false, dx, &err)),
           BEST_US(d->ops->activate_grad(d, ROWS * OUT, SN_SILU, x, x, dy, dx, dz, &err)));
    free(x), free(dy), free(dx), free(dw), free(dz);
}

static void bench_small(sn_device *d) {
    float *x = test_random_floats(512 * 1536, 8), *y = malloc(512 * 1536 * sizeof *y);
    double best[3] = {1e9, 1e9, 1e9};
    for (int r = 0; r < REPEATS; r++) {
        int64_t t[4];
        t[0] = sn_now_us();
        for (int i = 0; i < 200; i++) require_ok(d->ops->rms_norm(d, 1, 576, x, x, 1e-5f, y, &err));
        t[1] = sn_now_us();
        for (int i = 0; i < 200; i++) require_ok(d->ops->activate(d, 1536, SN_SILU, x, x, y, &err));
        t[2] = sn_now_us();
        require_ok(d->ops->activate(d, 512 * 1536, SN_SILU, x, x, y, &err));
        t[3] = sn_now_us();
        const double us[] = {(double)(t[1] - t[0]) / 200, (double)(t[2] - t[1]) / 200, (double)(t[3] - t[2])};
        for (int i = 0; i < 3; i++) best[i] = us[i] < best[i] ? us[i] : best[i];
    }
    printf("  rms_norm of 576: %.2f us; silu of 1536: %.2f us, of 512 x 1536: %.0f us\n", best[0], best[1], best[2]);
    free(x), free(y);
}

/* Matrices of a width, far more than any cache holds, one row with each in turn, alternating with plain reads of the
 * same bytes: the share of the memory's limit that a type reaches where nothing else happens. */
enum { WIDE_MATRICES = 16, WIDE_BYTES = 12 << 20, WIDE_TIMES = 12, WIDE_UNIT = 64, WIDTH_MAX = 8192 };

/* A weight of random values at `at`, of about WIDE_BYTES: a few rows are repeated, because generating many takes long.
 */
static void put_repeated(sn_device *d, sn_dtype dtype, size_t cols, const void *raw, uint8_t *at, sn_weight *out) {
    size_t unit, units;
    require_ok(d->ops->weight_size(d, dtype, WIDE_UNIT, cols, &unit, &err));
    units = WIDE_BYTES / unit;
    require_ok(d->ops->weight_pack(d, dtype, WIDE_UNIT, cols, raw, at, &err));
    for (size_t i = 1; i < units; i++) memcpy(at + i * unit, at, unit);
    *out = (sn_weight){dtype, units * WIDE_UNIT, cols, units * unit, at, NULL};
}

/* GB/s of memory, and of reading alone. */
static double time_wide(sn_device *d, sn_pool *pool, const sn_weight *weights, const float *x, float *y, double *read) {
    double best = 1e9, bytes = (double)weights->bytes * WIDE_MATRICES;
    *read = 0;
    for (int r = 0; r < WIDE_TIMES; r++) {
        int64_t start = sn_now_us();
        for (int i = 0; i < WIDE_MATRICES; i++)
            require_ok(d->ops->linear(d, 1, x, 1, &(sn_linear){.weight = &weights[i], .y = y}, &err));
        double us = (double)(sn_now_us() - start);
        best = us < best ? us : best;
        double gbs = read_speed(pool, weights->device, weights->bytes * WIDE_MATRICES, r);
        *read = gbs > *read ? gbs : *read;
    }
    return bytes * 1e-3 / best;
}

/* GB/s of memory of a weight's first rows, which lie in the second-level cache: what arithmetic alone would allow. */
static double time_cached(sn_device *d, const sn_weight *weight, const float *x, float *y) {
    enum { CALLS = 64 };
    sn_weight few = *weight;
    few.rows = 4 * WIDE_UNIT;
    few.bytes = weight->bytes / (weight->rows / WIDE_UNIT) * 4;
    double best = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        int64_t start = sn_now_us();
        for (int i = 0; i < CALLS; i++)
            require_ok(d->ops->linear(d, 1, x, 1, &(sn_linear){.weight = &few, .y = y}, &err));
        double us = (double)(sn_now_us() - start);
        best = us < best ? us : best;
    }
    return (double)few.bytes * CALLS * 1e-3 / best;
}

static void bench_wide(sn_device *d, sn_pool *pool, sn_dtype dtype) {
    static const size_t widths[] = {2048, 4096, 8192};
    const size_t bytes_max = (size_t)WIDE_MATRICES * WIDE_BYTES;
    float *x = test_random_floats(WIDTH_MAX, 3), *y = malloc(sizeof *y * WIDE_BYTES / 64);
    float *values = malloc((size_t)WIDE_UNIT * WIDTH_MAX * sizeof *values);
    void *image;
    require_ok(d->ops->alloc(d, bytes_max, &image, &err));
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        sn_weight weights[WIDE_MATRICES];
        size_t row_bytes, at = 0;
        void *raw = test_random_weight(dtype, WIDE_UNIT, widths[i], 1, values);
        for (int k = 0; k < WIDE_MATRICES; at += weights[k++].bytes)
            put_repeated(d, dtype, widths[i], raw, (uint8_t *)image + at, &weights[k]);
        require_ok(sn_dtype_row_bytes(dtype, widths[i], &row_bytes, &err));
        double read, speed = time_wide(d, pool, weights, x, y, &read);
        const double all = (double)(weights->rows * widths[i]), file = (double)(row_bytes * weights->rows),
                     memory = (double)weights->bytes;
        if (!i)
            printf("  %-8s %6.4f %6.4f %6.1f ", sn_dtype_name(dtype), file / all, memory / all,
                   time_cached(d, weights, x, y) * file / memory);
        printf("  %5zu %5.1f %3.0f%%", widths[i], speed * file / memory, 100 * speed * file / memory / read);
        test_weight_free(raw);
    }
    printf("\n");
    d->ops->free(d, image, bytes_max);
    free(values), free(x), free(y);
}

/* The rate at which memory can be read: the bytes of SmolLM2's token, in huge pages. */
static void bench_memory(int threads) {
    enum { READ_BYTES = 97 << 20 };
    sn_pool *pool;
    void *memory;
    double best = 0;
    require_ok(sn_pool_new(threads, &pool, &err));
    require_ok(sn_pages_alloc(&memory, READ_BYTES, &err));
    memset(memory, 1, READ_BYTES);
    for (int r = 0; r < READ_WAYS * REPEATS; r++) {
        double gbs = read_speed(pool, memory, READ_BYTES, r);
        best = gbs > best ? gbs : best;
    }
    printf("memory, read by %d threads: %.1f GB/s\n", threads, best);
    sn_pages_free(&memory, READ_BYTES);
    sn_pool_free(&pool);
}

#if defined(__x86_64__)
/* The limit of the arithmetic: twelve chains of one instruction, and nothing else. Operations per second in units of
 * 10^9. */
#define PEAK_CHAIN(op, to) op " %%zmm12, %%zmm13, %%zmm" #to "\n"
#define PEAK_CHAINS(op)                                                                                                \
    PEAK_CHAIN(op, 0)                                                                                                  \
    PEAK_CHAIN(op, 1)                                                                                                  \
    PEAK_CHAIN(op, 2)                                                                                                  \
    PEAK_CHAIN(op, 3)                                                                                                  \
    PEAK_CHAIN(op, 4)                                                                                                  \
    PEAK_CHAIN(op, 5)                                                                                                  \
    PEAK_CHAIN(op, 6) PEAK_CHAIN(op, 7) PEAK_CHAIN(op, 8) PEAK_CHAIN(op, 9) PEAK_CHAIN(op, 10) PEAK_CHAIN(op, 11)
#define PEAK(name, op)                                                                                                 \
    static void name(void) {                                                                                           \
        for (int i = 0; i < PEAK_LOOPS; i++)                                                                           \
            __asm__ volatile("vpxor %%xmm12, %%xmm12, %%xmm12\nvpxor %%xmm13, %%xmm13, %%xmm13\n" PEAK_CHAINS(op)::    \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",     \
                                   "xmm10", "xmm11", "xmm12", "xmm13");                                                \
    }
enum { PEAK_LOOPS = 100000 };
PEAK(peak_fma, "vfmadd231ps")
PEAK(peak_dot, "vpdpbusd")
PEAK(peak_bf16, "vdpbf16ps")

static void bench_peak(void) {
    static const struct {
        const char *name;
        void (*run)(void);
        double ops; /* of one instruction */
    } all[] = {
        {"float32 fma", peak_fma, 32}, {"8-bit dot products", peak_dot, 128}, {"bfloat16 dot products", peak_bf16, 64}};
    if (!__builtin_cpu_supports("avx512vnni")) return;
    printf("most that one core computes, GFLOP/s or GOP/s:");
    for (int i = 0; i < 2 + !!__builtin_cpu_supports("avx512bf16"); i++) {
        double best = 1e9;
        for (int r = 0; r < 4 * REPEATS; r++) {
            int64_t start = sn_now_us();
            all[i].run();
            double us = (double)(sn_now_us() - start);
            best = us < best ? us : best;
        }
        printf(" %s %.0f", all[i].name, PEAK_LOOPS * 12 * all[i].ops / best * 1e-3);
    }
    printf("\n");
}
#endif

static void empty_item(void *ctx, size_t item, int worker) { (void)ctx, (void)item, (void)worker; }

static void bench_pool(int threads) {
    sn_pool *pool;
    require_ok(sn_pool_new(threads, &pool, &err));
    double best = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        int64_t start = sn_now_us();
        for (int i = 0; i < 1000; i++) sn_pool_run(pool, 16, empty_item, NULL);
        double us = (double)(sn_now_us() - start) / 1000;
        best = us < best ? us : best;
    }
    printf("dividing 16 items between %d threads: %.2f us\n", threads, best);
    sn_pool_free(&pool);
}

static void bench_pack(sn_device *d) {
    float *values = malloc((size_t)8192 * 512 * sizeof *values);
    static const sn_dtype types[] = {SN_Q4_1, SN_Q4_K, SN_Q6_K, SN_Q8_0, SN_F32};
    printf("  packing, GB/s of the file:");
    for (int t = 0; t < 3; t++) {
        size_t row_bytes;
        require_ok(sn_dtype_row_bytes(types[t], 512, &row_bytes, &err));
        void *raw = test_random_weight(types[t], 8192, 512, 1, values);
        double best = 1e9;
        for (int r = 0; r < 4; r++) {
            sn_weight *w;
            int64_t start = sn_now_us();
            require_ok(test_weight_make(d, types[t], 8192, 512, raw, &w, &err));
            double s = (double)(sn_now_us() - start) * 1e-6;
            best = s < best ? s : best;
            test_weight_drop(d, &w);
        }
        printf(" %s %.2f", sn_dtype_name(types[t]), 8192 * (double)row_bytes * 1e-9 / best);
        test_weight_free(raw);
    }
    printf("\n");
    free(values);
}

static void bench_device(sn_device *d, sn_pool *pool, const char *part, bool plain) {
    bool all = !part;
    if (all || !strcmp(part, "linear")) bench_linear(d);
    if (!plain && (all || !strcmp(part, "rows"))) bench_rows(d);
    if (all || !strcmp(part, "token")) bench_token(d, SN_Q4_1, SN_Q8_0);
    if (!plain && (all || !strcmp(part, "wide"))) {
        printf("  one row; a weight's bytes in the file, in memory; GB/s of the file: in a cache; by columns, with the "
               "share of reading alone\n");
        for (size_t t = 0; t < N_TYPES; t++) bench_wide(d, pool, linear_types[t]);
    }
    if (all || !strcmp(part, "attention")) {
        for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
            bench_attention(d, (sn_kv_dtype)t, 512, 1);
            bench_attention(d, (sn_kv_dtype)t, 4000, 1);
            if (!plain) bench_attention(d, (sn_kv_dtype)t, 0, 512);
        }
    }
    if (!plain && (all || !strcmp(part, "chosen"))) bench_chosen(d, 1), bench_chosen(d, 8);
    for (int kind = SN_GATED_DELTA; (all || !strcmp(part, "delta")) && kind < SN_SHORT_CONV; kind++)
        for (int rows = 1; rows <= 512; rows *= 8) bench_delta(d, (sn_recurrence)kind, rows);
    if (!plain && (all || !strcmp(part, "experts"))) bench_experts(d);
    if (!plain && (all || !strcmp(part, "grad"))) bench_grad(d);
    if (all || !strcmp(part, "small")) bench_small(d);
    if (all || !strcmp(part, "pack")) bench_pack(d);
}

int main(int argc, char **argv) {
    static const char *const isas[] = {"c", TEST_ISA_1, TEST_ISA_2, TEST_ISA_3};
    int first = argc > 1 ? require_int(argv[1], 1, 256) : 1, last = argc > 1 ? first : 2;
    const char *part = argc > 3 ? argv[3] : NULL;
    for (int threads = first; threads <= last; threads++) {
        if (!part) bench_pool(threads);
        if (!part || !strcmp(part, "memory")) bench_memory(threads);
#if defined(__x86_64__)
        if (!part || !strcmp(part, "peak")) bench_peak();
#endif
        sn_pool *pool;
        require_ok(sn_pool_new(threads, &pool, &err));
        for (int i = 0; i < 4; i++) {
            sn_device_options options = {.threads = threads, .isa = isas[i]};
            sn_device *d;
            if (argc > 2 && strcmp(argv[2], isas[i])) continue;
            if (sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &d, &err)) continue;
            const sn_device_limits limits = {
                .rows = 512, .width = WIDTH_MAX, .context = 8192, .experts = EXPERTS, .experts_used = EXPERTS_USED};
            require_ok(d->ops->prepare(d, &limits, &err));
            printf("%s\n", sn_device_describe(d));
            bench_device(d, pool, part, i == 0);
            sn_device_close(&d);
        }
        sn_pool_free(&pool);
    }
    return 0;
}
