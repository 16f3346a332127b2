/* Sessions with a common prefix share pages. Keys and values in these tests encode their timeline, so that a page in
 * the wrong KV cache is noticed. */
#include "kvcache/prefix_cache.h"

#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { BLOCKS = 2, HEADS = 2, DIM = 16, ROW = HEADS * DIM, WIDTH = 8, PAGE = SN_KV_PAGE_TOKENS, LENGTH_MAX = 8 * PAGE };

typedef struct fixture {
    sn_device *device;
    sn_kv_pool *pool;
    size_t page;
} fixture;

/* A KV cache with its expected contents: the timeline hash after each token. */
typedef struct session {
    sn_kv_cache *kv;
    sn_hash hash[LENGTH_MAX + 1];
    sn_prefix_cache_scope scope;
    int length, attached;
} session;

static fixture fixture_begin(size_t pages, size_t pages_cached) {
    fixture s = {0};
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &s.device, &err));
    REQUIRE(
        s.device->ops->prepare(s.device, &(sn_device_limits){.rows = LENGTH_MAX, .width = ROW, .context = 1024}, &err));
    sn_kv_part part = {s.device, {BLOCKS, HEADS, DIM, SN_KV_PAGE_TOKENS, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false}};
    REQUIRE(sn_kv_pool_new(&part, 1, 1 << 20, &s.pool, &err));
    s.page = sn_kv_pool_bytes(s.pool) / sn_kv_pool_tokens(s.pool) * PAGE;
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_kv_pool_new(&part, 1, pages * s.page, &s.pool, &err));
    REQUIRE(sn_prefix_cache_enable(s.pool, WIDTH, pages_cached * PAGE * WIDTH * sizeof(float), &err));
    return s;
}

static void fixture_end(fixture *s) {
    cr_expect_eq(sn_kv_pool_bytes_used(s->pool), 0);
    cr_expect_eq(sn_prefix_cache_pages_shared(s->pool), 0);
    sn_kv_cache *all = NULL; /* all pages can be allocated */
    REQUIRE(sn_kv_cache_new(s->pool, &all, &err));
    REQUIRE(sn_kv_cache_reserve(all, (int)sn_kv_pool_tokens(s->pool), &err));
    cr_expect_eq(sn_prefix_cache_pages_evictable(s->pool), 0);
    sn_kv_cache_free(&all);
    sn_kv_pool_free(&s->pool);
    sn_device_close(&s->device);
}

static session *session_new(fixture *s, uint8_t scope) {
    session *l = calloc(1, sizeof *l);
    memset(&l->scope, scope, sizeof l->scope);
    REQUIRE(sn_kv_cache_new(s->pool, &l->kv, &err));
    return l;
}

static void session_free(session **l) {
    sn_kv_cache_free(&(*l)->kv);
    free(*l);
    *l = NULL;
}

static float kv_value(const sn_hash *h, int block, int i) {
    return (float)h->bytes[(i + block) % SN_HASH_SIZE] + (float)(i % 7) / 8.0f;
}

static void output_row(const sn_hash *h, float *row) {
    for (int i = 0; i < WIDTH; i++) row[i] = kv_value(h, 3, i);
}

static void expect_session(const session *l) {
    float k[ROW], v[ROW];
    cr_assert_eq(sn_kv_cache_length(l->kv), l->length);
    for (int b = 0; b < BLOCKS; b++)
        for (int p = 0; p < l->length; p++) {
            REQUIRE(sn_kv_cache_export(l->kv, 0, b, p, 1, k, v, &err));
            for (int i = 0; i < ROW; i++)
                cr_assert(k[i] == kv_value(&l->hash[p + 1], b, i) && v[i] == -k[i], "block %d position %d", b, p);
        }
}

/* Appends the hashes of n more tokens. */
static void session_extend(session *l, int n, const uint8_t *tokens) {
    for (int i = 0; i < n; i++) {
        uint8_t both[SN_HASH_SIZE + 1];
        memcpy(both, l->hash[l->length + i].bytes, SN_HASH_SIZE);
        both[SN_HASH_SIZE] = tokens[i];
        l->hash[l->length + i + 1] = sn_hash_of(both, sizeof both);
    }
}

/* Attaches pages of known tokens and writes the others, as a step does. SN_RETRY leaves the session unchanged. */
static sn_status session_step(fixture *s, session *l, int n, const uint8_t *tokens) {
    sn_page_timeline named[LENGTH_MAX / PAGE + 1];
    float output[LENGTH_MAX * WIDTH], expected[WIDTH], k[LENGTH_MAX * ROW], v[LENGTH_MAX * ROW];
    sn_err why;
    session_extend(l, n, tokens);
    int first = l->length / PAGE, pages = (l->length + n) / PAGE - first, done = 0;
    for (int i = 0; i < pages; i++) memcpy(&named[i], &l->hash[(first + i) * PAGE], sizeof *named);
    if (l->length % PAGE == 0) done = PAGE * sn_prefix_cache_attach(l->kv, &l->scope, named, pages, output);
    for (int i = 0; i < done; i++) {
        output_row(&l->hash[l->length + i + 1], expected);
        cr_assert(!memcmp(output + i * WIDTH, expected, sizeof expected), "outputs of row %d", i);
    }
    sn_status status = sn_kv_cache_reserve(l->kv, n - done, &why);
    if (status) {
        sn_kv_cache_rewind(l->kv, l->length);
        return status;
    }
    int at = l->length + done, left = n - done;
    sn_sequence sequence = sn_kv_cache_sequence(l->kv, 0, 0, left);
    for (int b = 0; b < BLOCKS && left; b++) {
        for (int i = 0; i < left * ROW; i++) {
            k[i] = kv_value(&l->hash[at + i / ROW + 1], b, i % ROW);
            v[i] = -k[i];
        }
        REQUIRE(test_kv_store(s->device, sn_kv_pool_shape(s->pool, 0), b, 1, &sequence, k, v, &err));
    }
    sn_kv_cache_append(l->kv, left);
    for (int i = 0; i < left; i++) output_row(&l->hash[at + i + 1], output + i * WIDTH);
    sn_prefix_cache_insert(l->kv, &l->scope, named + done / PAGE, left, output);
    l->length += n;
    l->attached += done;
    return SN_OK;
}

static void session_rewind(session *l, int length) {
    sn_kv_cache_rewind(l->kv, length);
    l->length = length;
}

static const uint8_t plain[LENGTH_MAX], other[LENGTH_MAX] = {[LENGTH_MAX - 1] = 1, [0] = 9};

Test(prefix_cache, a_session_attaches_the_whole_pages_of_another) {
    fixture s = fixture_begin(12, 12);
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 100, plain));
    REQUIRE(session_step(&s, b, 50, plain));
    cr_expect_eq(b->attached, PAGE);
    REQUIRE(session_step(&s, b, 14, plain + 50)); /* does not begin at a page border: computed */
    REQUIRE(session_step(&s, b, 36, plain + 64));
    cr_expect_eq(b->attached, 2 * PAGE);
    cr_expect_eq(sn_prefix_cache_hit_tokens(s.pool), 2 * PAGE);
    cr_expect_eq(sn_prefix_cache_pages_shared(s.pool), 2);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), (4 + 4 - 2) * s.page);
    expect_session(a);
    expect_session(b);
    session_free(&a); /* in whatever order sessions end, the pages of the others stay */
    expect_session(b);
    REQUIRE(session_step(&s, b, 20, plain + 100));
    expect_session(b);
    session_free(&b);
    fixture_end(&s);
}

Test(prefix_cache, a_page_filled_token_by_token_is_shared_too) {
    fixture s = fixture_begin(12, 12);
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    for (int i = 0; i < 70; i += 1 + i % 3) REQUIRE(session_step(&s, a, 1 + i % 3, plain));
    REQUIRE(session_step(&s, b, 64, plain));
    cr_expect_eq(b->attached, 64);
    expect_session(b);
    session_free(&a);
    session_free(&b);
    fixture_end(&s);
}

Test(prefix_cache, other_tokens_and_other_clients_share_nothing) {
    fixture s = fixture_begin(16, 16);
    session *a = session_new(&s, 1), *b = session_new(&s, 1), *c = session_new(&s, 2);
    REQUIRE(session_step(&s, a, 96, plain));
    REQUIRE(session_step(&s, b, 96, other));
    REQUIRE(session_step(&s, c, 96, plain));
    cr_expect_eq(b->attached + c->attached, 0);
    cr_expect_eq(sn_prefix_cache_pages_shared(s.pool), 0);
    session_free(&a);
    session_free(&b);
    session_free(&c);
    fixture_end(&s);
}

Test(prefix_cache, a_table_of_one_page_keeps_clients_apart) {
    fixture s = fixture_begin(4, 1);
    session *a = session_new(&s, 1), *b = session_new(&s, 2), *c = session_new(&s, 1);
    REQUIRE(session_step(&s, a, PAGE, plain));
    REQUIRE(session_step(&s, c, PAGE, plain));
    cr_expect_eq(c->attached, PAGE);
    REQUIRE(session_step(&s, b, PAGE, plain));
    cr_expect_eq(b->attached, 0);
    session_free(&a);
    session_free(&b);
    session_free(&c);
    fixture_end(&s);
}

Test(prefix_cache, a_page_that_is_filled_after_a_short_rewind_is_shared) {
    fixture s = fixture_begin(12, 12);
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 40, other));
    session_rewind(a, 36);
    REQUIRE(session_step(&s, a, 28, plain)); /* 36 tokens of one timeline, then of the other */
    memcpy(b->hash, a->hash, 37 * sizeof *b->hash);
    uint8_t tokens[64] = {[0] = other[0]};
    REQUIRE(session_step(&s, b, 64, tokens));
    cr_expect_eq(b->attached, 64);
    expect_session(b);
    session_free(&a);
    session_free(&b);
    fixture_end(&s);
}

Test(prefix_cache, a_page_whose_first_rows_came_without_outputs_is_not_shared) {
    fixture s = fixture_begin(12, 12);
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 10, plain));
    float rows[5 * ROW] = {0};
    REQUIRE(sn_kv_cache_reserve(a->kv, 5, &err)); /* like KV that was transferred from another node */
    for (int block = 0; block < BLOCKS; block++) REQUIRE(sn_kv_cache_import(a->kv, 0, block, 5, rows, rows, &err));
    sn_kv_cache_append(a->kv, 5);
    session_extend(a, 5, plain);
    a->length += 5;
    REQUIRE(session_step(&s, a, 17, plain));
    REQUIRE(session_step(&s, b, 32, plain));
    cr_expect_eq(b->attached, 0);
    expect_session(b);
    session_free(&a);
    session_free(&b);
    fixture_end(&s);
}

Test(prefix_cache, unused_pages_are_evicted_first) {
    fixture s = fixture_begin(5, 5);
    session *a = session_new(&s, 1), *b = session_new(&s, 1), *c = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 2 * PAGE, plain)); /* the oldest pages, in use */
    REQUIRE(session_step(&s, b, 2 * PAGE, other));
    session_free(&b);
    REQUIRE(session_step(&s, c, 4 * PAGE, plain + 1)); /* evicts both pages of a, and the entries of b */
    cr_expect_eq(c->attached, 2 * PAGE);
    b = session_new(&s, 1);
    REQUIRE(session_step(&s, b, 2 * PAGE, plain));
    cr_expect_eq(b->attached, 2 * PAGE, "an entry of a page in use was removed, which frees no memory");
    session_free(&a);
    session_free(&b);
    session_free(&c);
    fixture_end(&s);
}

Test(prefix_cache, writing_after_a_rewind_keeps_the_shared_pages) {
    const int to[] = {95, 64, 63, 33, 1};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        fixture s = fixture_begin(16, 16);
        session *a = session_new(&s, 1), *b = session_new(&s, 1), *c = session_new(&s, 1);
        REQUIRE(session_step(&s, a, 96, plain));
        REQUIRE(session_step(&s, b, 96, plain));
        session_rewind(b, to[i]);
        REQUIRE(session_step(&s, b, 40, other));
        expect_session(a);
        expect_session(b);
        session_rewind(a, to[i]); /* the session that computed the pages may rewind as well */
        REQUIRE(session_step(&s, a, 3, other));
        expect_session(a);
        expect_session(b);
        REQUIRE(session_step(&s, c, 96, plain)); /* a third session still finds them */
        cr_expect_eq(c->attached, 96);
        expect_session(c);
        session_free(&a);
        session_free(&b);
        session_free(&c);
        fixture_end(&s);
    }
}

Test(prefix_cache, cached_pages_are_evicted_from_the_end) {
    fixture s = fixture_begin(6, 6);
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 4 * PAGE, plain));
    session_free(&a);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 0);
    cr_expect_eq(sn_prefix_cache_pages_evictable(s.pool), 4);
    REQUIRE(session_step(&s, b, 4 * PAGE, other)); /* two pages are free, two have to be evicted */
    cr_expect_eq(sn_prefix_cache_pages_evictable(s.pool), 2);
    session_free(&b);
    a = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 3 * PAGE, plain));
    cr_expect_eq(a->attached, 2 * PAGE);
    session_free(&a);
    fixture_end(&s);
}

/* Takes the pages up to the first of these positions of the source that is known. */
static int session_attach(session *l, const session *source, const int *positions, size_t n) {
    sn_prefix_cache_point points[8];
    sn_hash *timeline;
    for (size_t i = 0; i < n; i++) points[i] = (sn_prefix_cache_point){positions[i], source->hash[positions[i]]};
    const int at = sn_prefix_cache_attach_known(l->kv, &l->scope, &l->hash[0], points, n, &timeline);
    if (!at) return 0;
    cr_expect(!memcmp(timeline, source->hash, (size_t)(at + 1) * sizeof *timeline));
    memcpy(l->hash, timeline, (size_t)(at + 1) * sizeof *timeline);
    free(timeline);
    l->length = at;
    return at;
}

Test(prefix_cache, a_known_hash_gives_all_pages_before_it_without_outputs) {
    fixture s = fixture_begin(12, 1); /* outputs of one page are kept */
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 100, plain));
    const session known = *a;
    session_free(&a);
    cr_expect_eq(session_attach(b, &known, (int[]){96, 64}, 2), 96);
    expect_session(b);
    REQUIRE(session_step(&s, b, 40, plain)); /* goes on behind it */
    expect_session(b);
    session *c = session_new(&s, 1);
    cr_expect_eq(session_attach(c, b, (int[]){128}, 1), 128, "pages behind attached ones are found by their hash, too");
    expect_session(c);
    session_free(&b);
    session_free(&c);
    fixture_end(&s);
}

Test(prefix_cache, a_known_hash_is_looked_for_from_the_latest_position_to_the_earliest) {
    fixture s = fixture_begin(6, 6);
    session *a = session_new(&s, 1), *b = session_new(&s, 1), *c = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 4 * PAGE, plain));
    const session known = *a;
    session_free(&a);
    REQUIRE(session_step(&s, b, 4 * PAGE, other)); /* evicts the last two pages of a */
    session_free(&b);
    cr_expect_eq(session_attach(c, &known, (int[]){4 * PAGE, 3 * PAGE}, 2), 0);
    cr_expect_eq(session_attach(c, &known, (int[]){4 * PAGE, 3 * PAGE, 2 * PAGE, PAGE}, 4), 2 * PAGE);
    expect_session(c);
    session_free(&c);
    fixture_end(&s);
}

Test(prefix_cache, a_hash_that_is_not_known_leaves_the_session_as_it_is) {
    fixture s = fixture_begin(16, 16);
    session *a = session_new(&s, 1), *b = session_new(&s, 2), *c = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 64, plain));
    REQUIRE(session_step(&s, b, 40, other));
    REQUIRE(session_step(&s, c, 40, other));
    const session mine = *b, yours = *c;
    cr_expect_eq(session_attach(b, a, (int[]){64, 32}, 2), 0, "pages of another scope");
    c->hash[0].bytes[0] = 1; /* blocks, weights or an adapter that the pages were not computed with */
    cr_expect_eq(session_attach(c, a, (int[]){64, 32}, 2), 0, "pages of another beginning");
    c->hash[0] = yours.hash[0];
    cr_expect(!memcmp(mine.hash, b->hash, sizeof mine.hash));
    expect_session(b);
    expect_session(c);
    cr_expect_eq(session_attach(c, a, (int[]){64, 32}, 2), 64); /* in place of what it held */
    expect_session(c);
    session_free(&a);
    session_free(&b);
    session_free(&c);
    fixture_end(&s);
}

Test(prefix_cache, outputs_stay_within_their_budget) {
    fixture s = fixture_begin(16, 3);
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 5 * PAGE, plain)); /* the budget is for three: the first pages, and the last one */
    REQUIRE(session_step(&s, b, 5 * PAGE, plain));
    cr_expect_eq(b->attached, 2 * PAGE);
    expect_session(b);
    session_free(&a);
    session_free(&b);
    cr_expect_eq(sn_prefix_cache_pages_evictable(s.pool), 5, "pages stay also without their outputs");
    fixture_end(&s);
}

Test(prefix_cache, without_a_budget_nothing_is_cached) {
    fixture s = fixture_begin(8, 0);
    session *a = session_new(&s, 1), *b = session_new(&s, 1);
    cr_expect_not(sn_prefix_cache_enabled(s.pool));
    REQUIRE(session_step(&s, a, 70, plain));
    REQUIRE(session_step(&s, b, 70, plain));
    cr_expect_eq(b->attached, 0);
    session_free(&a);
    cr_expect_eq(sn_prefix_cache_pages_evictable(s.pool), 0);
    session_free(&b);
    fixture_end(&s);
}

Test(prefix_cache, a_rewind_in_a_full_cache_removes_the_page_from_the_table) {
    fixture s = fixture_begin(3, 3);
    session *a = session_new(&s, 1);
    REQUIRE(session_step(&s, a, 3 * PAGE, plain));
    session_rewind(a, 3 * PAGE - 5);
    REQUIRE(session_step(&s, a, 5, other));
    expect_session(a);
    session *b = session_new(&s, 1); /* but not from another session */
    session_rewind(a, 2 * PAGE);
    REQUIRE(session_step(&s, b, PAGE, plain));
    cr_assert_eq(b->attached, PAGE);
    REQUIRE(session_step(&s, a, PAGE, other));
    session_rewind(b, 7);
    cr_expect_eq(session_step(&s, b, 1, other), SN_RETRY);
    expect_session(a);
    expect_session(b);
    session_free(&a);
    REQUIRE(session_step(&s, b, 1, other));
    expect_session(b);
    session_free(&b);
    fixture_end(&s);
}

/* Sessions that branch, rewind, end and begin in random order, in a pool that is often full. */
Test(prefix_cache, contents_are_right_under_random_work) {
    enum { LINES = 5, ROUNDS = 3000 };
    fixture s = fixture_begin(14, 9);
    session *lines[LINES];
    uint64_t random = 7, adopted = 0, full = 0;
    for (int i = 0; i < LINES; i++) lines[i] = session_new(&s, (uint8_t)(i % 2));
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned r = (unsigned)(random >> 33);
        session **l = &lines[r % LINES];
        uint8_t tokens[LENGTH_MAX] = {0};
        int n = 1 + (int)(r >> 4) % 70;
        if ((r >> 12) % 4 == 0) tokens[(r >> 14) % 16] = 1; /* one of a few continuations */
        if ((r >> 20) % 8 == 0 || (*l)->length + n > LENGTH_MAX) {
            adopted += (uint64_t)(*l)->attached;
            session_free(l);
            *l = session_new(&s, (uint8_t)((l - lines) % 2));
        } else if ((r >> 20) % 4 == 1 && (*l)->length) {
            session_rewind(*l, (int)(r >> 5) % (*l)->length);
        } else {
            sn_status status = session_step(&s, *l, n, tokens);
            cr_assert(status == SN_OK || status == SN_RETRY);
            full += status == SN_RETRY;
        }
        if (round % 50 == 0)
            for (int i = 0; i < LINES; i++) expect_session(lines[i]);
    }
    cr_expect_gt(adopted, 1000);
    cr_expect_gt(full, 10);
    for (int i = 0; i < LINES; i++) {
        expect_session(lines[i]);
        session_free(&lines[i]);
    }
    fixture_end(&s);
}
