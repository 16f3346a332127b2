/* Sessions that rest outside of the cache: what comes back is what went, or it is said. */
#include "kvcache/idle.h"

#include "kvcache/prefix.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/files.h"
#include "tests/support/need.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCKS = 2, HEADS = 2, DIM = 16, ROW = HEADS * DIM, PAGE = SN_KV_PAGE_TOKENS };

typedef struct scene {
    sn_device *device;
    sn_kv_pool *pool;
    size_t page;
    sn_err err;
} scene;

static scene begin(size_t pages, const char *dir, size_t aside) {
    scene s = {0};
    sn_device_options options = {.threads = 1};
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &s.device, &err));
    NEED(s.device->ops->prepare(s.device, &(sn_device_limits){.rows = 256, .width = ROW, .context = 1024}, &err));
    sn_kv_part part = {s.device, BLOCKS, SN_KV_F32};
    NEED(sn_kv_pool_new(&part, 1, HEADS, DIM, 1 << 20, &s.pool, &err));
    s.page = sn_kv_pool_bytes(s.pool) / sn_kv_pool_tokens(s.pool) * PAGE;
    sn_kv_pool_free(&s.pool);
    NEED(sn_kv_pool_new(&part, 1, HEADS, DIM, pages * s.page, &s.pool, &err));
    NEED(sn_idle_open(s.pool, dir, aside * s.page, 0, &err));
    return s;
}

static void end(scene *s) {
    cr_expect_eq(sn_kv_pool_bytes_used(s->pool), 0);
    cr_expect_eq(sn_idle_bytes(s->pool), 0);
    sn_kv_pool_free(&s->pool);
    sn_device_close(&s->device);
}

static sn_kv *kv_new(scene *s) {
    sn_kv *kv = NULL;
    NEED(sn_kv_new(s->pool, &kv, &err));
    return kv;
}

static float number(int who, int block, int position, int i) {
    return (float)(10000 * who + 1000 * block + position) + (float)i / 64.0f;
}

static void append(scene *s, sn_kv *kv, int who, int n) {
    float k[256 * ROW], v[256 * ROW];
    int at = sn_kv_length(kv);
    NEED(sn_kv_reserve(kv, n, &err));
    sn_sequence sequence = sn_kv_sequence(kv, 0, 0, n);
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < n * ROW; i++) {
            k[i] = number(who, b, at + i / ROW, i % ROW);
            v[i] = -k[i];
        }
        NEED(test_kv_store(s->device, sn_kv_pool_shape(s->pool, 0), b, 1, &sequence, k, v, &err));
    }
    sn_kv_append(kv, n);
}

static void expect_past(sn_kv *kv, int who, int length) {
    float k[ROW], v[ROW];
    cr_assert_eq(sn_kv_length(kv), length);
    for (int b = 0; b < BLOCKS; b++)
        for (int p = 0; p < length; p++) {
            NEED(sn_kv_export(kv, 0, b, p, 1, k, v, &err));
            for (int i = 0; i < ROW; i++)
                cr_assert(k[i] == number(who, b, p, i) && v[i] == -k[i], "block %d position %d", b, p);
        }
}

static const char *const places[] = {NULL, "/tmp"};

Test(idle, a_past_goes_and_comes_back_page_by_page) {
    for (int i = 0; i < 2; i++) {
        scene s = begin(6, places[i], 6);
        sn_kv *a = kv_new(&s), *b = kv_new(&s);
        append(&s, a, 1, 100);
        append(&s, b, 2, 20);
        size_t pages = 3;
        NEED(sn_idle_set_aside(a, &pages, &err));
        cr_expect_eq(pages, 0);
        cr_expect_eq(sn_idle_away(a), 3);
        cr_expect_eq(sn_idle_bytes(s.pool), 3 * s.page);
        cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 2 * s.page);
        pages = 10;
        NEED(sn_idle_set_aside(a, &pages, &err));
        cr_expect_eq(pages, 9);
        cr_expect_eq(sn_kv_reserve(a, 1, &s.err), SN_RETRY, "it has to come back first");
        append(&s, b, 2, 130); /* takes the room */
        pages = 10;
        cr_expect_eq(sn_idle_bring_back(a, &pages, &s.err), SN_RETRY);
        cr_expect(strstr(s.err.text, "full"), "%s", s.err.text);
        sn_kv_rewind(b, 5);
        pages = 2;
        cr_expect_eq(sn_idle_bring_back(a, &pages, &s.err), SN_RETRY);
        pages = 10;
        NEED(sn_idle_bring_back(a, &pages, &err));
        cr_expect_eq(sn_idle_away(a), 0);
        expect_past(a, 1, 100);
        expect_past(b, 2, 5);
        append(&s, a, 1, 20);
        expect_past(a, 1, 120);
        sn_kv_free(&a);
        sn_kv_free(&b);
        end(&s);
    }
}

Test(idle, what_rests_may_be_cut_and_ended) {
    for (int i = 0; i < 2; i++) {
        scene s = begin(6, places[i], 6);
        sn_kv *a = kv_new(&s), *b = kv_new(&s);
        size_t pages = 9;
        append(&s, a, 1, 100);
        append(&s, b, 2, 40);
        NEED(sn_idle_set_aside(a, &pages, &err));
        NEED(sn_idle_set_aside(b, &pages, &err));
        cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 0);
        sn_kv_rewind(a, 33);
        cr_expect_eq(sn_idle_bytes(s.pool), 4 * s.page);
        sn_kv_free(&b);
        cr_expect_eq(sn_idle_bytes(s.pool), 2 * s.page);
        pages = 9;
        NEED(sn_idle_bring_back(a, &pages, &err));
        expect_past(a, 1, 33);
        sn_kv_free(&a);
        end(&s);
    }
}

Test(idle, stays_within_its_budget) {
    scene s = begin(6, NULL, 2);
    sn_kv *a = kv_new(&s);
    size_t pages = 4;
    append(&s, a, 1, 100);
    cr_expect_eq(sn_idle_set_aside(a, &pages, &s.err), SN_RETRY);
    cr_expect(strstr(s.err.text, "--idle-memory"), "%s", s.err.text);
    cr_expect_eq(pages, 2);
    pages = 4;
    NEED(sn_idle_bring_back(a, &pages, &err));
    expect_past(a, 1, 100);
    sn_kv_free(&a);
    end(&s);
    sn_kv_pool *pool = NULL;
    s = begin(2, NULL, 1);
    sn_kv_part part = {s.device, BLOCKS, SN_KV_F32};
    NEED(sn_kv_pool_new(&part, 1, HEADS, DIM, s.page, &pool, &err));
    cr_expect_eq(sn_idle_open(pool, NULL, s.page - 1, 0, &s.err), SN_REFUSED);
    cr_expect(strstr(s.err.text, "--idle-memory"));
    cr_expect_eq(sn_idle_open(pool, "/nowhere/at/all", s.page, 0, &s.err), SN_REFUSED);
    cr_expect(strstr(s.err.text, "--idle-dir"), "%s", s.err.text);
    sn_kv_pool_free(&pool);
    end(&s);
}

Test(idle, nobody_else_can_open_the_file) {
    scene s = begin(2, "/tmp", 2);
    struct stat info;
    int fd = unnamed_file();
    cr_assert_geq(fd, 0);
    cr_assert_eq(fstat(fd, &info), 0);
    cr_expect_eq(info.st_nlink, 0);
    cr_expect_eq(info.st_mode & 0777, 0600);
    end(&s);
}

Test(idle, a_damaged_page_costs_the_session_and_never_comes_back) {
    const off_t at[] = {0, 1000, -1}; /* from the page's end */
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        scene s = begin(6, "/tmp", 6);
        sn_kv *a = kv_new(&s), *b = kv_new(&s);
        size_t pages = 8;
        append(&s, a, 1, 100);
        append(&s, b, 2, 30);
        NEED(sn_idle_set_aside(a, &pages, &err));
        NEED(sn_idle_set_aside(b, &pages, &err));
        int fd = unnamed_file();
        uint8_t byte;
        off_t where = at[i] >= 0 ? at[i] : (off_t)s.page + at[i]; /* slot 0: the last page of a */
        cr_assert_eq(pread(fd, &byte, 1, where), 1);
        byte ^= 0x10;
        cr_assert_eq(pwrite(fd, &byte, 1, where), 1);
        pages = 8;
        cr_expect_eq(sn_idle_bring_back(a, &pages, &s.err), SN_REBUILD);
        cr_expect(strstr(s.err.text, "damaged"), "%s", s.err.text);
        cr_expect_eq(sn_kv_length(a), 0);
        cr_expect_eq(sn_idle_bring_back(a, &pages, &s.err), SN_REBUILD);
        cr_expect_eq(sn_kv_reserve(a, 1, &s.err), SN_REBUILD);
        NEED(sn_idle_bring_back(b, &pages, &err)); /* the other one is whole */
        expect_past(b, 2, 30);
        sn_kv_free(&a);
        sn_kv_free(&b);
        end(&s);
    }
}

Test(idle, a_file_that_was_cut_short_is_noticed) {
    scene s = begin(6, "/tmp", 6);
    sn_kv *a = kv_new(&s);
    size_t pages = 8;
    append(&s, a, 1, 100);
    NEED(sn_idle_set_aside(a, &pages, &err));
    cr_assert_eq(ftruncate(unnamed_file(), (off_t)(4 * s.page - 1)), 0);
    pages = 8;
    cr_expect_eq(sn_idle_bring_back(a, &pages, &s.err), SN_REBUILD);
    sn_kv_free(&a);
    end(&s);
}

Test(idle, a_full_disk_leaves_the_session_where_it_is) {
    scene s = begin(6, "/tmp", 6);
    sn_kv *a = kv_new(&s);
    size_t pages = 4;
    append(&s, a, 1, 100);
    struct rlimit was, limit;
    getrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_IGN);
    limit = was;
    limit.rlim_cur = 2 * s.page + 100; /* stands for a disk with room for two pages and a bit */
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(sn_idle_set_aside(a, &pages, &s.err), SN_RETRY);
    setrlimit(RLIMIT_FSIZE, &was);
    cr_expect(strstr(s.err.text, "--idle-dir"), "%s", s.err.text);
    cr_expect_eq(pages, 2);
    cr_expect_eq(sn_idle_bytes(s.pool), 2 * s.page);
    pages = 4;
    NEED(sn_idle_bring_back(a, &pages, &err));
    expect_past(a, 1, 100);
    sn_kv_free(&a);
    end(&s);
}

Test(idle, shared_pages_stay_with_those_who_use_them) {
    scene s = begin(8, NULL, 8);
    NEED(sn_prefix_share(s.pool, 4, 8 * PAGE * 4 * sizeof(float), &err));
    sn_kv *a = kv_new(&s), *b = kv_new(&s);
    sn_prefix_scope scope = {{1}};
    sn_hash ends[4];
    float output[100 * 4] = {0};
    size_t pages = 8;
    for (int i = 0; i < 4; i++) ends[i] = sn_hash_of(&i, sizeof i);
    append(&s, a, 1, 100);
    sn_prefix_record(a, &scope, ends, 100, output);
    cr_assert_eq(sn_prefix_adopt(b, &scope, ends, 2, output), 2);
    NEED(sn_idle_set_aside(a, &pages, &err));
    cr_expect_eq(sn_idle_away(a), 2, "two pages are b's, too");
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 2 * s.page);
    expect_past(b, 1, 64);
    sn_kv_free(&b);
    pages = 8;
    NEED(sn_idle_bring_back(a, &pages, &err));
    expect_past(a, 1, 100);
    sn_kv_free(&a);
    end(&s);
}
