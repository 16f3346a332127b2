#include "kvcache/kvcache.h"

#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <string.h>

enum { BLOCKS = 2, HEADS = 2, DIM = 16, ROW = HEADS * DIM, PAGES = 4 };

typedef struct fixture {
    sn_device *device;
    sn_kv_pool *pool;
    size_t page;
    sn_err err;
} fixture;

static const sn_kv_shape shape = {BLOCKS, HEADS, DIM, SN_KV_PAGE_TOKENS, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};

static fixture fixture_begin(void) {
    fixture s = {0};
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &s.device, &err));
    REQUIRE(s.device->ops->prepare(s.device, &(sn_device_limits){.rows = 64, .width = ROW, .context = 1024}, &err));
    REQUIRE(sn_kv_pool_new(&(sn_kv_part){s.device, shape}, 1, 1 << 20, &s.pool, &err));
    s.page = sn_kv_pool_bytes(s.pool) / sn_kv_pool_tokens(s.pool) * SN_KV_PAGE_TOKENS;
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_kv_pool_new(&(sn_kv_part){s.device, shape}, 1, PAGES * s.page + s.page / 2, &s.pool, &err));
    return s;
}

static void fixture_end(fixture *s) {
    cr_expect_eq(sn_kv_pool_bytes_used(s->pool), 0);
    sn_kv_pool_free(&s->pool);
    sn_device_close(&s->device);
}

/* Appends n positions whose keys and values encode their position and block. */
static void append_rows(fixture *s, sn_kv_cache *kv, int n) {
    float k[200 * ROW], v[200 * ROW];
    int at = sn_kv_cache_length(kv);
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    sn_sequence sequence = sn_kv_cache_sequence(kv, 0, 0, n);
    cr_assert_eq(sequence.position, at);
    cr_assert_eq(sequence.n_rows, n);
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < n * ROW; i++) {
            k[i] = (float)(1000 * b + at + i / ROW) + (float)(i % ROW) / 64.0f;
            v[i] = -k[i];
        }
        REQUIRE(test_kv_store(s->device, sn_kv_pool_shape(s->pool, 0), b, 1, &sequence, k, v, &err));
    }
    sn_kv_cache_append(kv, n);
}

static void expect_rows(sn_kv_cache *kv, int from, int n) {
    float k[200 * ROW], v[200 * ROW];
    for (int b = 0; b < BLOCKS; b++) {
        REQUIRE(sn_kv_cache_export(kv, 0, b, from, n, k, v, &err));
        for (int i = 0; i < n * ROW; i++) {
            float want = (float)(1000 * b + from + i / ROW) + (float)(i % ROW) / 64.0f;
            cr_assert(k[i] == want && v[i] == -want, "block %d, position %d: %f", b, from + i / ROW, (double)k[i]);
        }
    }
}

Test(kvcache, keeps_appended_rows_in_any_chunks) {
    fixture s = fixture_begin();
    sn_kv_cache *kv = NULL, *other = NULL;
    REQUIRE(sn_kv_cache_new(s.pool, &kv, &err));
    REQUIRE(sn_kv_cache_new(s.pool, &other, &err));
    append_rows(&s, other, 3); /* the pages of both caches alternate */
    const int chunks[] = {1, 30, 1, 1, 31, 5};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) append_rows(&s, kv, chunks[i]);
    cr_expect_eq(sn_kv_cache_length(kv), 69);
    expect_rows(kv, 0, 69);
    expect_rows(kv, 31, 2);
    expect_rows(other, 0, 3);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 4 * s.page);
    sn_kv_cache_free(&kv);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), s.page);
    sn_kv_cache_free(&other);
    sn_kv_cache_free(&other);
    fixture_end(&s);
}

Test(kvcache, a_rewind_keeps_earlier_rows_and_frees_pages) {
    fixture s = fixture_begin();
    sn_kv_cache *kv = NULL;
    REQUIRE(sn_kv_cache_new(s.pool, &kv, &err));
    append_rows(&s, kv, 100);
    const int to[][2] = {{97, 4}, {96, 3}, {33, 2}, {32, 1}, {1, 1}, {0, 0}};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        sn_kv_cache_rewind(kv, to[i][0]);
        cr_expect_eq(sn_kv_pool_bytes_used(s.pool), (size_t)to[i][1] * s.page, "at %d", to[i][0]);
        expect_rows(kv, 0, to[i][0]);
    }
    append_rows(&s, kv, 40);
    expect_rows(kv, 0, 40);
    sn_kv_cache_free(&kv);
    fixture_end(&s);
}

Test(kvcache, reserves_all_or_nothing) {
    fixture s = fixture_begin();
    sn_kv_cache *a = NULL, *b = NULL;
    REQUIRE(sn_kv_cache_new(s.pool, &a, &err));
    REQUIRE(sn_kv_cache_new(s.pool, &b, &err));
    append_rows(&s, a, 33);
    append_rows(&s, b, 10);
    cr_expect_eq(sn_kv_cache_reserve(b, 22 + 33, &s.err), SN_RETRY); /* needs two pages, one is free */
    cr_expect(strstr(s.err.text, "3 of 4 pages"), "%s", s.err.text);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 3 * s.page);
    cr_expect_eq(sn_kv_cache_reserve(b, 22 + 32, &s.err), SN_OK);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 4 * s.page);
    cr_expect_eq(sn_kv_cache_reserve(b, 22 + 32, &s.err), SN_OK); /* it already has these pages */
    cr_expect_eq(sn_kv_cache_reserve(a, 31, &s.err), SN_OK);
    cr_expect_eq(sn_kv_cache_reserve(a, 32, &s.err), SN_RETRY);
    sn_kv_cache_free(&b); /* pages that are only reserved are freed, too */
    cr_expect_eq(sn_kv_cache_reserve(a, 32, &s.err), SN_OK);
    expect_rows(a, 0, 33);
    sn_kv_cache_free(&a);
    fixture_end(&s);
}

Test(kvcache, refuses_a_length_that_can_never_fit) {
    fixture s = fixture_begin();
    sn_kv_cache *kv = NULL;
    REQUIRE(sn_kv_cache_new(s.pool, &kv, &err));
    cr_expect_eq(sn_kv_pool_tokens(s.pool), PAGES * SN_KV_PAGE_TOKENS);
    append_rows(&s, kv, 5);
    const int n[] = {PAGES * SN_KV_PAGE_TOKENS - 4, INT_MAX, INT_MAX - 5, INT_MAX - 40, -1, INT_MIN};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        cr_expect_eq(sn_kv_cache_reserve(kv, n[i], &s.err), SN_REFUSED, "%d", n[i]);
        cr_expect(strstr(s.err.text, "128 in all"), "%s", s.err.text);
    }
    cr_expect_eq(sn_kv_cache_reserve(kv, PAGES * SN_KV_PAGE_TOKENS - 5, &s.err), SN_OK);
    sn_kv_cache_free(&kv);
    fixture_end(&s);
}

Test(kvcache, a_budget_below_one_page_is_refused) {
    fixture s = fixture_begin();
    sn_kv_pool *pool = NULL;
    cr_expect_eq(sn_kv_pool_new(&(sn_kv_part){s.device, shape}, 1, s.page - 1, &pool, &s.err), SN_REFUSED);
    cr_expect(strstr(s.err.text, "--kv-memory"), "%s", s.err.text);
    cr_expect_null(pool);
    fixture_end(&s);
}

Test(kvcache, exports_only_stored_rows) {
    fixture s = fixture_begin();
    sn_kv_cache *kv = NULL;
    float k[4 * ROW], v[4 * ROW];
    REQUIRE(sn_kv_cache_new(s.pool, &kv, &err));
    append_rows(&s, kv, 40);
    const int beyond[][2] = {{40, 1}, {39, 2},      {-1, 1},      {0, -1},
                             {0, 41}, {1, INT_MAX}, {INT_MAX, 1}, {INT_MAX, INT_MAX}};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        cr_expect_eq(sn_kv_cache_export(kv, 0, 0, beyond[i][0], beyond[i][1], k, v, &s.err), SN_REFUSED);
        cr_expect(strstr(s.err.text, "not in a KV cache of 40"), "%s", s.err.text);
    }
    const int blocks[] = {-1, BLOCKS, INT_MAX};
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(sn_kv_cache_export(kv, 0, blocks[i], 0, 1, k, v, &s.err), SN_REFUSED);
        cr_expect(strstr(s.err.text, "not among the 2"), "%s", s.err.text);
    }
    expect_rows(kv, 36, 4);
    sn_kv_cache_free(&kv);
    fixture_end(&s);
}
