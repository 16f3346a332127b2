#include "tests/support/decode_launches.h"

#include "blocks/span.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <stdlib.h>

enum { EMBD = 128, PAST_MAX = 256 };

static void step(sn_span *span, int n_blocks, sn_kv_cache *kv, int n, float *rows) {
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}};
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    REQUIRE(sn_span_forward(span, 0, n_blocks, 1, &(sn_span_sequence){kv, &input, 0, n, rows}, NULL, &err));
}

int decode_launches(sn_device_id id, sn_dtype dtype, int n_blocks, int n_past, uint64_t (*launches)(void)) {
    static float rows[PAST_MAX * EMBD];
    char *path = tiny_model_make(&(tiny_model_options){.dtype = dtype, .n_blocks = n_blocks, .n_embd = EMBD});
    sn_device *d;
    sn_model *model;
    sn_span *span;
    sn_kv_pool *pool;
    sn_kv_cache *kv;
    REQUIRE(sn_device_open(id, NULL, &d, &err));
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_span_load(model, d, 0, n_blocks, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 4u << 20, &pool, &err));
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    for (int i = 0; i < PAST_MAX * EMBD; i++) rows[i] = (float)(i % 17 - 8) / 8;
    if (n_past) step(span, n_blocks, kv, n_past, rows);
    uint64_t before = launches();
    step(span, n_blocks, kv, 1, rows);
    int n = (int)(launches() - before);
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_model_close(&model);
    sn_device_close(&d);
    tiny_model_remove(&path);
    return n;
}

enum { HEADS = 2, DIM = 64, WIDTH = HEADS * DIM, ROWS = 32, BUFFERS = 8, PAGE = 16, PAGES = (PAST_MAX + ROWS) / PAGE };

static void *new_bytes(sn_device *d, const void *host, size_t bytes) {
    void *at;
    REQUIRE(d->ops->alloc(d, bytes, &at, &err));
    if (host) REQUIRE(d->ops->upload(d, at, host, bytes, &err));
    return at;
}

static sn_weight new_weight(sn_device *d) {
    float values[WIDTH * WIDTH];
    void *file = test_random_weight(SN_Q4_1, WIDTH, WIDTH, 3, values);
    sn_weight weight = {SN_Q4_1, WIDTH, WIDTH, 0, NULL, NULL};
    REQUIRE(d->ops->weight_size(d, SN_Q4_1, WIDTH, WIDTH, &weight.bytes, &err));
    void *image = malloc(weight.bytes);
    REQUIRE(d->ops->weight_pack(d, SN_Q4_1, WIDTH, WIDTH, file, image, &err));
    weight.device = new_bytes(d, image, weight.bytes);
    free(image);
    test_weight_free(file);
    return weight;
}

static void run_together(sn_device *d, int n, float *const at[BUFFERS], const sn_weight *w) {
    const sn_device_ops *ops = d->ops;
    const sn_linear qkv[] = {{w, NULL, at[2], false}, {w, NULL, at[3], false}, {w, at[7], at[4], false}};
    const sn_linear o = {w, NULL, at[6], false}, down = {w, NULL, at[0], false};
    const sn_norm norm = {.width = WIDTH, .x = at[0], .add = at[1], .weight = at[7], .eps = 1e-5f, .y = at[1]};
    const sn_rotated rotated = {{true, DIM / 2, at[7]}, n, HEADS, HEADS, DIM, at[2], at[3]};
    const sn_attention attention = {.n_heads = HEADS, .scale = 0.25f};
    REQUIRE(ops->norm_linear(d, n, &norm, 3, qkv, &err));
    REQUIRE(ops->rope_store(d, 0, &rotated, at[4], &err));
    REQUIRE(ops->attention_linear(d, n, &attention, at[2], at[5], &o, &err));
    REQUIRE(ops->activate_linear(d, n, &(sn_gated){SN_SILU, at[6], at[4], at[6]}, &down, &err));
}

int together_launches(sn_device_id id, sn_kv_dtype dtype, int n_past, int n, uint64_t (*launches)(void)) {
    const sn_device_limits limits = {
        .rows = ROWS, .width = WIDTH, .context = PAST_MAX + ROWS, .heads = HEADS, .head_dim = DIM};
    const sn_kv_shape shape = {1, HEADS, DIM, PAGE, dtype, 0, 0, {0}, {0}, 0, 0, false};
    float *random = test_random_floats(ROWS * WIDTH, 1), *at[BUFFERS];
    void *pages[PAGES];
    bool replayed;
    sn_device *d;
    REQUIRE(sn_device_open(id, NULL, &d, &err));
    REQUIRE(d->ops->prepare(d, &limits, &err));
    const size_t page = d->ops->kv_page_bytes(d, &shape), rows = ROWS * WIDTH * sizeof(float);
    for (int i = 0; i < BUFFERS; i++) at[i] = new_bytes(d, random, rows);
    for (int i = 0; i < PAGES; i++) pages[i] = new_bytes(d, NULL, page);
    const sn_weight weight = new_weight(d);
    const sn_sequence sequence = {pages, n_past, 0, n, {0}};
    REQUIRE(d->ops->batch_begin(d, &(sn_batch){&shape, n, 1, &sequence, 0}, &replayed, &err));
    uint64_t before = launches();
    run_together(d, n, at, &weight);
    int count = (int)(launches() - before);
    REQUIRE(d->ops->batch_end(d, &err));
    for (int i = 0; i < BUFFERS; i++) d->ops->free(d, at[i], rows);
    for (int i = 0; i < PAGES; i++) d->ops->free(d, pages[i], page);
    d->ops->free(d, (void *)weight.device, weight.bytes);
    sn_device_close(&d);
    free(random);
    return count;
}
