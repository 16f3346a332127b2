/* A device with several threads, compared with one of a single thread: products, and both ways in which attention is
 * divided between threads (few rows are split, many are not); and a device with several threads whose products use
 * tiles. For ThreadSanitizer, which cannot run under Criterion. */
#include "tests/support/cpu_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADS = 9,
    KV_HEADS = 3,
    DIM = 24,
    WIDTH = HEADS * DIM,
    KV_WIDTH = KV_HEADS * DIM,
    DEPTH = 700,
    ROWS = 40,
    PAGES = 23
};

static sn_err err;
static void require_ok(sn_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static void multiply(sn_device *d, float *y) {
    float *values = malloc((size_t)64 * 512 * sizeof *values), *x = test_random_floats((size_t)ROWS * 512, 2);
    void *raw = test_random_weight(SN_Q4_1, 64, 512, 1, values);
    sn_weight *w;
    require_ok(test_weight_make(d, SN_Q4_1, 64, 512, raw, &w, &err));
    require_ok(d->ops->linear(d, ROWS, x, 1, &(sn_linear){.weight = w, .y = y}, &err));
    require_ok(d->ops->activate(d, (size_t)ROWS * 64, SN_SILU, y, y, y, &err));
    test_weight_drop(d, &w);
    test_weight_free(raw);
    free(values), free(x);
}

static void run_attention(sn_device *d, float *out) {
    sn_kv_shape shape = {1, KV_HEADS, DIM, 32, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    size_t bytes = d->ops->kv_page_bytes(d, &shape);
    float *kv = test_random_floats((size_t)(DEPTH + ROWS) * KV_WIDTH, 3), *q = test_random_floats(ROWS * WIDTH, 4);
    void *pool, *pages[PAGES + 1];
    require_ok(d->ops->alloc(d, bytes * (PAGES + 1), &pool, &err));
    for (size_t i = 0; i <= PAGES; i++) pages[i] = (char *)pool + i * bytes;
    sn_sequence n_past = {.pages = pages, .n_rows = DEPTH}, many = {.pages = pages, .n_rows = ROWS};
    require_ok(test_kv_store(d, &shape, 0, 1, &n_past, kv, kv, &err));
    require_ok(test_attention(d, &shape, 1, &many, &(sn_attention){.n_heads = HEADS, .scale = 1}, q, out, &err));
    for (int i = 0; i < ROWS; i++) {
        sn_sequence one = {pages, DEPTH - ROWS + i, 0, 1, {0}};
        require_ok(test_attention(d, &shape, 1, &one,
                                  &(sn_attention){.n_heads = HEADS, .window = i % 2 ? 100 : 0, .scale = 1},
                                  q + i * WIDTH, out + (ROWS + i) * WIDTH, &err));
    }
    d->ops->free(d, pool, bytes * (PAGES + 1));
    free(kv), free(q);
}

int main(void) {
    enum { PRODUCTS = ROWS * 64, ALL = PRODUCTS + 2 * ROWS * WIDTH };
    static const char *const isas[] = {NULL, NULL, TEST_TILES};
    static float results[3][ALL];
    size_t at = ALL;
    for (int i = 0; i < 3; i++) {
        sn_device *d;
        require_ok(test_cpu_open(isas[i], i ? 4 : 1, &d, &err));
        require_ok(d->ops->prepare(d, &(sn_device_limits){.rows = ROWS, .width = 512, .context = DEPTH + ROWS}, &err));
        for (int repeat = 0; repeat < (i < 2 ? 20 : 3); repeat++) {
            multiply(d, results[i]);
            run_attention(d, results[i] + PRODUCTS);
        }
        sn_device_close(&d);
        if (i && at == ALL) at = test_differ(results[0], results[i], ALL);
    }
    if (at < ALL) fprintf(stderr, "element %zu differs\n", at);
    return at < ALL;
}
