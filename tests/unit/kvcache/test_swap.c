/* Sessions that are swapped out: swapping in restores the data, or reports an error. */
#include "kvcache/swap.h"

#include "kvcache/prefix_cache.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCKS = 2, HEADS = 2, DIM = 16, ROW = HEADS * DIM, PAGE = SN_KV_PAGE_TOKENS };

typedef struct fixture {
    sn_device *device;
    sn_kv_pool *pool;
    size_t page;
    sn_err err;
} fixture;

static fixture fixture_begin(size_t pages, const char *dir, size_t swap_pages) {
    fixture s = {0};
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &s.device, &err));
    REQUIRE(s.device->ops->prepare(s.device, &(sn_device_limits){.rows = 256, .width = ROW, .context = 1024}, &err));
    sn_kv_part part = {s.device, {BLOCKS, HEADS, DIM, SN_KV_PAGE_TOKENS, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false}};
    REQUIRE(sn_kv_pool_new(&part, 1, 1 << 20, &s.pool, &err));
    s.page = sn_kv_pool_bytes(s.pool) / sn_kv_pool_tokens(s.pool) * PAGE;
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_kv_pool_new(&part, 1, pages * s.page, &s.pool, &err));
    REQUIRE(sn_swap_enable(s.pool, dir, swap_pages * s.page, 0, &err));
    return s;
}

static void fixture_end(fixture *s) {
    cr_expect_eq(sn_kv_pool_bytes_used(s->pool), 0);
    cr_expect_eq(sn_swap_bytes(s->pool), 0);
    sn_kv_pool_free(&s->pool);
    sn_device_close(&s->device);
}

static sn_kv_cache *kv_new(fixture *s) {
    sn_kv_cache *kv = NULL;
    REQUIRE(sn_kv_cache_new(s->pool, &kv, &err));
    return kv;
}

static float kv_value(int session, int block, int position, int i) {
    return (float)(10000 * session + 1000 * block + position) + (float)i / 64.0f;
}

static void append_rows(fixture *s, sn_kv_cache *kv, int session, int n) {
    float k[256 * ROW], v[256 * ROW];
    int at = sn_kv_cache_length(kv);
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    sn_sequence sequence = sn_kv_cache_sequence(kv, 0, 0, n);
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < n * ROW; i++) {
            k[i] = kv_value(session, b, at + i / ROW, i % ROW);
            v[i] = -k[i];
        }
        REQUIRE(test_kv_store(s->device, sn_kv_pool_shape(s->pool, 0), b, 1, &sequence, k, v, &err));
    }
    sn_kv_cache_append(kv, n);
}

static void expect_rows(sn_kv_cache *kv, int session, int length) {
    float k[ROW], v[ROW];
    cr_assert_eq(sn_kv_cache_length(kv), length);
    for (int b = 0; b < BLOCKS; b++)
        for (int p = 0; p < length; p++) {
            REQUIRE(sn_kv_cache_export(kv, 0, b, p, 1, k, v, &err));
            for (int i = 0; i < ROW; i++)
                cr_assert(k[i] == kv_value(session, b, p, i) && v[i] == -k[i], "block %d position %d", b, p);
        }
}

static const char *const DIRS[] = {NULL, "/tmp"};

Test(swap, kv_pages_swap_out_and_in_one_by_one) {
    for (int i = 0; i < 2; i++) {
        fixture s = fixture_begin(6, DIRS[i], 6);
        sn_kv_cache *a = kv_new(&s), *b = kv_new(&s);
        append_rows(&s, a, 1, 100);
        append_rows(&s, b, 2, 20);
        size_t pages = 3;
        REQUIRE(sn_swap_out(a, &pages, &err));
        cr_expect_eq(pages, 0);
        cr_expect_eq(sn_swap_swapped_pages(a), 3);
        cr_expect_eq(sn_swap_bytes(s.pool), 3 * s.page);
        cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 2 * s.page);
        pages = 10;
        REQUIRE(sn_swap_out(a, &pages, &err));
        cr_expect_eq(pages, 9);
        cr_expect_eq(sn_kv_cache_reserve(a, 1, &s.err), SN_RETRY, "it must be swapped in first");
        append_rows(&s, b, 2, 130); /* takes the freed pages */
        pages = 10;
        cr_expect_eq(sn_swap_in(a, &pages, &s.err), SN_RETRY);
        cr_expect(strstr(s.err.text, "full"), "%s", s.err.text);
        sn_kv_cache_rewind(b, 5);
        pages = 2;
        cr_expect_eq(sn_swap_in(a, &pages, &s.err), SN_RETRY);
        pages = 10;
        REQUIRE(sn_swap_in(a, &pages, &err));
        cr_expect_eq(sn_swap_swapped_pages(a), 0);
        expect_rows(a, 1, 100);
        expect_rows(b, 2, 5);
        append_rows(&s, a, 1, 20);
        expect_rows(a, 1, 120);
        sn_kv_cache_free(&a);
        sn_kv_cache_free(&b);
        fixture_end(&s);
    }
}

Test(swap, a_swapped_cache_can_be_truncated_and_freed) {
    for (int i = 0; i < 2; i++) {
        fixture s = fixture_begin(6, DIRS[i], 6);
        sn_kv_cache *a = kv_new(&s), *b = kv_new(&s);
        size_t pages = 9;
        append_rows(&s, a, 1, 100);
        append_rows(&s, b, 2, 40);
        REQUIRE(sn_swap_out(a, &pages, &err));
        REQUIRE(sn_swap_out(b, &pages, &err));
        cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 0);
        sn_kv_cache_rewind(a, 33);
        cr_expect_eq(sn_swap_bytes(s.pool), 4 * s.page);
        sn_kv_cache_free(&b);
        cr_expect_eq(sn_swap_bytes(s.pool), 2 * s.page);
        pages = 9;
        REQUIRE(sn_swap_in(a, &pages, &err));
        expect_rows(a, 1, 33);
        sn_kv_cache_free(&a);
        fixture_end(&s);
    }
}

Test(swap, stays_within_its_budget) {
    fixture s = fixture_begin(6, NULL, 2);
    sn_kv_cache *a = kv_new(&s);
    size_t pages = 4;
    append_rows(&s, a, 1, 100);
    cr_expect_eq(sn_swap_out(a, &pages, &s.err), SN_RETRY);
    cr_expect(strstr(s.err.text, "--swap-memory"), "%s", s.err.text);
    cr_expect_eq(pages, 2);
    pages = 4;
    REQUIRE(sn_swap_in(a, &pages, &err));
    expect_rows(a, 1, 100);
    sn_kv_cache_free(&a);
    fixture_end(&s);
    sn_kv_pool *pool = NULL;
    s = fixture_begin(2, NULL, 1);
    sn_kv_part part = {s.device, {BLOCKS, HEADS, DIM, SN_KV_PAGE_TOKENS, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false}};
    REQUIRE(sn_kv_pool_new(&part, 1, s.page, &pool, &err));
    cr_expect_eq(sn_swap_enable(pool, NULL, s.page - 1, 0, &s.err), SN_REFUSED);
    cr_expect(strstr(s.err.text, "--swap-memory"));
    cr_expect_eq(sn_swap_enable(pool, "/nowhere/at/all", s.page, 0, &s.err), SN_REFUSED);
    cr_expect(strstr(s.err.text, "--swap-dir"), "%s", s.err.text);
    sn_kv_pool_free(&pool);
    fixture_end(&s);
}

Test(swap, others_cannot_open_the_file) {
    fixture s = fixture_begin(2, "/tmp", 2);
    struct stat info;
    int fd = unnamed_file();
    cr_assert_geq(fd, 0);
    cr_assert_eq(fstat(fd, &info), 0);
    cr_expect_eq(info.st_nlink, 0);
    cr_expect_eq(info.st_mode & 0777, 0600);
    fixture_end(&s);
}

/* Whether the file holds these bytes at all. */
static bool file_has(int fd, const void *bytes, size_t n) {
    uint8_t data[1 << 16];
    ssize_t got = pread(fd, data, sizeof data, 0);
    return got > 0 && memmem(data, (size_t)got, bytes, n);
}

Test(swap, the_file_tells_nothing_of_a_session) {
    fixture s = fixture_begin(6, "/tmp", 6);
    sn_kv_cache *a = kv_new(&s);
    size_t pages = 8;
    append_rows(&s, a, 1, 100);
    float row[ROW];
    for (int i = 0; i < ROW; i++) row[i] = kv_value(1, 0, 99, i);
    REQUIRE(sn_swap_out(a, &pages, &err));
    int fd = unnamed_file();
    struct stat info;
    cr_assert(!fstat(fd, &info) && info.st_size >= (off_t)(4 * s.page - s.page));
    cr_expect(!file_has(fd, &row[1], 2 * sizeof *row), "keys lie in the file as they are");
    uint8_t zeros[64] = {0};
    cr_expect(!file_has(fd, zeros, sizeof zeros), "what a page does not use lies in the file as it is");
    pages = 8;
    REQUIRE(sn_swap_in(a, &pages, &err));
    expect_rows(a, 1, 100);
    sn_kv_cache_free(&a);
    fixture_end(&s);
}

Test(swap, a_damaged_page_loses_its_session_only) {
    const off_t at[] = {0, 1000, -1}; /* from the page's end */
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        fixture s = fixture_begin(6, "/tmp", 6);
        sn_kv_cache *a = kv_new(&s), *b = kv_new(&s);
        size_t pages = 8;
        append_rows(&s, a, 1, 100);
        append_rows(&s, b, 2, 30);
        REQUIRE(sn_swap_out(a, &pages, &err));
        REQUIRE(sn_swap_out(b, &pages, &err));
        int fd = unnamed_file();
        uint8_t byte;
        off_t where = at[i] >= 0 ? at[i] : (off_t)s.page + at[i]; /* slot 0: the last page of a */
        cr_assert_eq(pread(fd, &byte, 1, where), 1);
        byte ^= 0x10;
        cr_assert_eq(pwrite(fd, &byte, 1, where), 1);
        pages = 8;
        cr_expect_eq(sn_swap_in(a, &pages, &s.err), SN_REBUILD);
        cr_expect(strstr(s.err.text, "damaged"), "%s", s.err.text);
        cr_expect_eq(sn_kv_cache_length(a), 0);
        cr_expect_eq(sn_swap_in(a, &pages, &s.err), SN_REBUILD);
        cr_expect_eq(sn_kv_cache_reserve(a, 1, &s.err), SN_REBUILD);
        REQUIRE(sn_swap_in(b, &pages, &err)); /* the other session is intact */
        expect_rows(b, 2, 30);
        sn_kv_cache_free(&a);
        sn_kv_cache_free(&b);
        fixture_end(&s);
    }
}

Test(swap, a_truncated_file_is_detected) {
    fixture s = fixture_begin(6, "/tmp", 6);
    sn_kv_cache *a = kv_new(&s);
    size_t pages = 8;
    append_rows(&s, a, 1, 100);
    REQUIRE(sn_swap_out(a, &pages, &err));
    cr_assert_eq(ftruncate(unnamed_file(), (off_t)(4 * s.page - 1)), 0);
    pages = 8;
    cr_expect_eq(sn_swap_in(a, &pages, &s.err), SN_REBUILD);
    sn_kv_cache_free(&a);
    fixture_end(&s);
}

Test(swap, a_full_disk_leaves_the_session_in_memory) {
    fixture s = fixture_begin(6, "/tmp", 6);
    sn_kv_cache *a = kv_new(&s);
    size_t pages = 4;
    append_rows(&s, a, 1, 100);
    struct rlimit was, limit;
    getrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_IGN);
    limit = was;
    limit.rlim_cur = 2 * s.page + 100; /* stands for a disk with space for slightly more than two pages */
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(sn_swap_out(a, &pages, &s.err), SN_RETRY);
    setrlimit(RLIMIT_FSIZE, &was);
    cr_expect(strstr(s.err.text, "--swap-dir"), "%s", s.err.text);
    cr_expect_eq(pages, 2);
    cr_expect_eq(sn_swap_bytes(s.pool), 2 * s.page);
    pages = 4;
    REQUIRE(sn_swap_in(a, &pages, &err));
    expect_rows(a, 1, 100);
    sn_kv_cache_free(&a);
    fixture_end(&s);
}

Test(swap, shared_pages_in_use_are_not_swapped_out) {
    fixture s = fixture_begin(8, NULL, 8);
    REQUIRE(sn_prefix_cache_enable(s.pool, 4, 8 * PAGE * 4 * sizeof(float), &err));
    sn_kv_cache *a = kv_new(&s), *b = kv_new(&s);
    sn_prefix_cache_scope scope = {{1}};
    sn_page_timeline named[4] = {0};
    float output[100 * 4] = {0};
    size_t pages = 8;
    for (int i = 0; i < 4; i++) named[i].after[PAGE - 1] = sn_hash_of(&i, sizeof i);
    append_rows(&s, a, 1, 100);
    sn_prefix_cache_insert(a, &scope, named, 100, output);
    cr_assert_eq(sn_prefix_cache_attach(b, &scope, named, 2, output), 2);
    REQUIRE(sn_swap_out(a, &pages, &err));
    cr_expect_eq(sn_swap_swapped_pages(a), 2, "two pages are shared with b");
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 2 * s.page);
    expect_rows(b, 1, 64);
    sn_kv_cache_free(&b);
    pages = 8;
    REQUIRE(sn_swap_in(a, &pages, &err));
    expect_rows(a, 1, 100);
    sn_kv_cache_free(&a);
    fixture_end(&s);
}
