#include "tests/support/decode_launches.h"

#include "blocks/span.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

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
