/* Sessions that begin alike share pages. Keys and values in these tests say which timeline they belong to, so that a page
 * in the wrong past is seen. */
#include "kvcache/prefix.h"

#include "tests/support/cpu_devices.h"
#include "tests/support/need.h"

#include <criterion/criterion.h>
#include <string.h>

enum { BLOCKS = 2, HEADS = 2, DIM = 16, ROW = HEADS * DIM, WIDTH = 8, PAGE = SN_KV_PAGE_TOKENS, LENGTH_MAX = 8 * PAGE };

typedef struct scene {
    sn_device *device;
    sn_kv_pool *pool;
    size_t page;
} scene;

/* A past with what it must hold: the timeline's hash after each token. */
typedef struct line {
    sn_kv *kv;
    sn_hash hash[LENGTH_MAX + 1];
    sn_prefix_scope scope;
    int length, adopted;
} line;

static scene begin(size_t pages, size_t kept) {
    scene s = {0};
    sn_device_options options = {.threads = 1};
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &s.device, &err));
    NEED(s.device->ops->prepare(s.device, &(sn_device_limits){.rows = LENGTH_MAX, .width = ROW, .context = 1024}, &err));
    sn_kv_part part = {s.device, BLOCKS, SN_KV_F32};
    NEED(sn_kv_pool_new(&part, 1, HEADS, DIM, 1 << 20, &s.pool, &err));
    s.page = sn_kv_pool_bytes(s.pool) / sn_kv_pool_tokens(s.pool) * PAGE;
    sn_kv_pool_free(&s.pool);
    NEED(sn_kv_pool_new(&part, 1, HEADS, DIM, pages * s.page, &s.pool, &err));
    NEED(sn_prefix_share(s.pool, WIDTH, kept * PAGE * WIDTH * sizeof(float), &err));
    return s;
}

static void end(scene *s) {
    cr_expect_eq(sn_kv_pool_bytes_used(s->pool), 0);
    cr_expect_eq(sn_prefix_pages_shared(s->pool), 0);
    sn_kv *all = NULL; /* every page is to be had again */
    NEED(sn_kv_new(s->pool, &all, &err));
    NEED(sn_kv_reserve(all, (int)sn_kv_pool_tokens(s->pool), &err));
    cr_expect_eq(sn_prefix_pages_kept(s->pool), 0);
    sn_kv_free(&all);
    sn_kv_pool_free(&s->pool);
    sn_device_close(&s->device);
}

static line *line_new(scene *s, uint8_t scope) {
    line *l = calloc(1, sizeof *l);
    memset(&l->scope, scope, sizeof l->scope);
    NEED(sn_kv_new(s->pool, &l->kv, &err));
    return l;
}

static void line_free(line **l) {
    sn_kv_free(&(*l)->kv);
    free(*l);
    *l = NULL;
}

static float number(const sn_hash *h, int block, int i) {
    return (float)h->bytes[(i + block) % SN_HASH_SIZE] + (float)(i % 7) / 8.0f;
}

static void output_row(const sn_hash *h, float *row) {
    for (int i = 0; i < WIDTH; i++) row[i] = number(h, 3, i);
}

static void expect_line(const line *l) {
    float k[ROW], v[ROW];
    cr_assert_eq(sn_kv_length(l->kv), l->length);
    for (int b = 0; b < BLOCKS; b++)
        for (int p = 0; p < l->length; p++) {
            NEED(sn_kv_export(l->kv, 0, b, p, 1, k, v, &err));
            for (int i = 0; i < ROW; i++)
                cr_assert(k[i] == number(&l->hash[p + 1], b, i) && v[i] == -k[i], "block %d position %d", b, p);
        }
}

/* The hashes of n more tokens. */
static void extend(line *l, int n, const uint8_t *tokens) {
    for (int i = 0; i < n; i++) {
        uint8_t both[SN_HASH_SIZE + 1];
        memcpy(both, l->hash[l->length + i].bytes, SN_HASH_SIZE);
        both[SN_HASH_SIZE] = tokens[i];
        l->hash[l->length + i + 1] = sn_hash_of(both, sizeof both);
    }
}

/* Takes over what is known and writes the rest, as a step does. SN_RETRY leaves it as it was. */
static sn_status step(scene *s, line *l, int n, const uint8_t *tokens) {
    sn_hash ends[LENGTH_MAX / PAGE + 1];
    float output[LENGTH_MAX * WIDTH], expected[WIDTH], k[LENGTH_MAX * ROW], v[LENGTH_MAX * ROW];
    sn_err why;
    extend(l, n, tokens);
    int first = l->length / PAGE, pages = (l->length + n) / PAGE - first, done = 0;
    for (int i = 0; i < pages; i++) ends[i] = l->hash[(first + i + 1) * PAGE];
    if (l->length % PAGE == 0) done = PAGE * sn_prefix_adopt(l->kv, &l->scope, ends, pages, output);
    for (int i = 0; i < done; i++) {
        output_row(&l->hash[l->length + i + 1], expected);
        cr_assert(!memcmp(output + i * WIDTH, expected, sizeof expected), "outputs of row %d", i);
    }
    sn_status status = sn_kv_reserve(l->kv, n - done, &why);
    if (status) {
        sn_kv_rewind(l->kv, l->length);
        return status;
    }
    int at = l->length + done, left = n - done;
    sn_sequence sequence = sn_kv_sequence(l->kv, 0, 0, left);
    for (int b = 0; b < BLOCKS && left; b++) {
        for (int i = 0; i < left * ROW; i++) {
            k[i] = number(&l->hash[at + i / ROW + 1], b, i % ROW);
            v[i] = -k[i];
        }
        NEED(test_kv_store(s->device, sn_kv_pool_shape(s->pool, 0), b, 1, &sequence, k, v, &err));
    }
    sn_kv_append(l->kv, left);
    for (int i = 0; i < left; i++) output_row(&l->hash[at + i + 1], output + i * WIDTH);
    sn_prefix_record(l->kv, &l->scope, ends + done / PAGE, left, output);
    l->length += n;
    l->adopted += done;
    return SN_OK;
}

static void rewind_to(line *l, int length) {
    sn_kv_rewind(l->kv, length);
    l->length = length;
}

static const uint8_t plain[LENGTH_MAX], other[LENGTH_MAX] = {[LENGTH_MAX - 1] = 1, [0] = 9};

Test(prefix, a_session_takes_over_the_whole_pages_that_another_one_has_computed) {
    scene s = begin(12, 12);
    line *a = line_new(&s, 1), *b = line_new(&s, 1);
    NEED(step(&s, a, 100, plain));
    NEED(step(&s, b, 50, plain));
    cr_expect_eq(b->adopted, PAGE);
    NEED(step(&s, b, 14, plain + 50)); /* it is not at a page's beginning: computed */
    NEED(step(&s, b, 36, plain + 64));
    cr_expect_eq(b->adopted, 2 * PAGE);
    cr_expect_eq(sn_prefix_tokens(s.pool), 2 * PAGE);
    cr_expect_eq(sn_prefix_pages_shared(s.pool), 2);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), (4 + 4 - 2) * s.page);
    expect_line(a);
    expect_line(b);
    line_free(&a); /* whoever goes first: the other one's pages stay */
    expect_line(b);
    NEED(step(&s, b, 20, plain + 100));
    expect_line(b);
    line_free(&b);
    end(&s);
}

Test(prefix, a_page_filled_token_by_token_is_shared_too) {
    scene s = begin(12, 12);
    line *a = line_new(&s, 1), *b = line_new(&s, 1);
    for (int i = 0; i < 70; i += 1 + i % 3) NEED(step(&s, a, 1 + i % 3, plain));
    NEED(step(&s, b, 64, plain));
    cr_expect_eq(b->adopted, 64);
    expect_line(b);
    line_free(&a);
    line_free(&b);
    end(&s);
}

Test(prefix, other_tokens_and_other_clients_share_nothing) {
    scene s = begin(16, 16);
    line *a = line_new(&s, 1), *b = line_new(&s, 1), *c = line_new(&s, 2);
    NEED(step(&s, a, 96, plain));
    NEED(step(&s, b, 96, other));
    NEED(step(&s, c, 96, plain));
    cr_expect_eq(b->adopted + c->adopted, 0);
    cr_expect_eq(sn_prefix_pages_shared(s.pool), 0);
    line_free(&a);
    line_free(&b);
    line_free(&c);
    end(&s);
}

Test(prefix, a_table_of_one_page_keeps_clients_apart) {
    scene s = begin(4, 1);
    line *a = line_new(&s, 1), *b = line_new(&s, 2), *c = line_new(&s, 1);
    NEED(step(&s, a, PAGE, plain));
    NEED(step(&s, c, PAGE, plain));
    cr_expect_eq(c->adopted, PAGE);
    NEED(step(&s, b, PAGE, plain));
    cr_expect_eq(b->adopted, 0);
    line_free(&a);
    line_free(&b);
    line_free(&c);
    end(&s);
}

Test(prefix, a_page_that_is_filled_behind_a_short_rewind_is_shared) {
    scene s = begin(12, 12);
    line *a = line_new(&s, 1), *b = line_new(&s, 1);
    NEED(step(&s, a, 40, other));
    rewind_to(a, 36);
    NEED(step(&s, a, 28, plain)); /* 36 tokens of the one, then of the other */
    memcpy(b->hash, a->hash, 37 * sizeof *b->hash);
    uint8_t tokens[64] = {[0] = other[0]};
    NEED(step(&s, b, 64, tokens));
    cr_expect_eq(b->adopted, 64);
    expect_line(b);
    line_free(&a);
    line_free(&b);
    end(&s);
}

Test(prefix, a_page_whose_first_rows_came_without_outputs_is_not_shared) {
    scene s = begin(12, 12);
    line *a = line_new(&s, 1), *b = line_new(&s, 1);
    NEED(step(&s, a, 10, plain));
    float rows[5 * ROW] = {0};
    NEED(sn_kv_reserve(a->kv, 5, &err)); /* as a past that is brought in from elsewhere */
    for (int block = 0; block < BLOCKS; block++) NEED(sn_kv_import(a->kv, 0, block, 5, rows, rows, &err));
    sn_kv_append(a->kv, 5);
    extend(a, 5, plain);
    a->length += 5;
    NEED(step(&s, a, 17, plain));
    NEED(step(&s, b, 32, plain));
    cr_expect_eq(b->adopted, 0);
    expect_line(b);
    line_free(&a);
    line_free(&b);
    end(&s);
}

Test(prefix, room_is_taken_from_pages_that_nobody_uses) {
    scene s = begin(5, 5);
    line *a = line_new(&s, 1), *b = line_new(&s, 1), *c = line_new(&s, 1);
    NEED(step(&s, a, 2 * PAGE, plain)); /* the oldest, and in use */
    NEED(step(&s, b, 2 * PAGE, other));
    line_free(&b);
    NEED(step(&s, c, 4 * PAGE, plain + 1)); /* takes a's two, and the place of b's */
    cr_expect_eq(c->adopted, 2 * PAGE);
    b = line_new(&s, 1);
    NEED(step(&s, b, 2 * PAGE, plain));
    cr_expect_eq(b->adopted, 2 * PAGE, "a page in use was forgotten, which gave no room");
    line_free(&a);
    line_free(&b);
    line_free(&c);
    end(&s);
}

Test(prefix, writing_behind_a_rewind_leaves_the_others_past_as_it_was) {
    const int to[] = {95, 64, 63, 33, 1};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        scene s = begin(16, 16);
        line *a = line_new(&s, 1), *b = line_new(&s, 1), *c = line_new(&s, 1);
        NEED(step(&s, a, 96, plain));
        NEED(step(&s, b, 96, plain));
        rewind_to(b, to[i]);
        NEED(step(&s, b, 40, other));
        expect_line(a);
        expect_line(b);
        rewind_to(a, to[i]); /* the one that computed them may go back as well */
        NEED(step(&s, a, 3, other));
        expect_line(a);
        expect_line(b);
        NEED(step(&s, c, 96, plain)); /* and a third one still finds them */
        cr_expect_eq(c->adopted, 96);
        expect_line(c);
        line_free(&a);
        line_free(&b);
        line_free(&c);
        end(&s);
    }
}

Test(prefix, kept_pages_give_way_to_sessions_an_end_before_its_beginning) {
    scene s = begin(6, 6);
    line *a = line_new(&s, 1), *b = line_new(&s, 1);
    NEED(step(&s, a, 4 * PAGE, plain));
    line_free(&a);
    cr_expect_eq(sn_kv_pool_bytes_used(s.pool), 0);
    cr_expect_eq(sn_prefix_pages_kept(s.pool), 4);
    NEED(step(&s, b, 4 * PAGE, other)); /* two pages are free, two have to be given up */
    cr_expect_eq(sn_prefix_pages_kept(s.pool), 2);
    line_free(&b);
    a = line_new(&s, 1);
    NEED(step(&s, a, 3 * PAGE, plain));
    cr_expect_eq(a->adopted, 2 * PAGE);
    line_free(&a);
    end(&s);
}

Test(prefix, outputs_stay_within_their_budget) {
    scene s = begin(16, 3);
    line *a = line_new(&s, 1), *b = line_new(&s, 1);
    NEED(step(&s, a, 5 * PAGE, plain)); /* room for three: the first ones, and the last */
    NEED(step(&s, b, 5 * PAGE, plain));
    cr_expect_eq(b->adopted, 2 * PAGE);
    expect_line(b);
    line_free(&a);
    line_free(&b);
    cr_expect_leq(sn_prefix_pages_kept(s.pool), 3);
    end(&s);
}

Test(prefix, without_a_budget_nothing_is_kept) {
    scene s = begin(8, 0);
    line *a = line_new(&s, 1), *b = line_new(&s, 1);
    cr_expect_not(sn_prefix_sharing(s.pool));
    NEED(step(&s, a, 70, plain));
    NEED(step(&s, b, 70, plain));
    cr_expect_eq(b->adopted, 0);
    line_free(&a);
    cr_expect_eq(sn_prefix_pages_kept(s.pool), 0);
    line_free(&b);
    end(&s);
}

Test(prefix, a_rewind_in_a_full_cache_takes_the_page_back_from_the_table) {
    scene s = begin(3, 3);
    line *a = line_new(&s, 1);
    NEED(step(&s, a, 3 * PAGE, plain));
    rewind_to(a, 3 * PAGE - 5);
    NEED(step(&s, a, 5, other));
    expect_line(a);
    line *b = line_new(&s, 1); /* but not from another session */
    rewind_to(a, 2 * PAGE);
    NEED(step(&s, b, PAGE, plain));
    cr_assert_eq(b->adopted, PAGE);
    NEED(step(&s, a, PAGE, other));
    rewind_to(b, 7);
    cr_expect_eq(step(&s, b, 1, other), SN_RETRY);
    expect_line(a);
    expect_line(b);
    line_free(&a);
    NEED(step(&s, b, 1, other));
    expect_line(b);
    line_free(&b);
    end(&s);
}

/* Sessions that branch, go back, end and begin in any order, in a pool that is often full. */
Test(prefix, holds_what_belongs_there_under_random_work) {
    enum { LINES = 5, ROUNDS = 3000 };
    scene s = begin(14, 9);
    line *lines[LINES];
    uint64_t random = 7, adopted = 0, full = 0;
    for (int i = 0; i < LINES; i++) lines[i] = line_new(&s, (uint8_t)(i % 2));
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned r = (unsigned)(random >> 33);
        line **l = &lines[r % LINES];
        uint8_t tokens[LENGTH_MAX] = {0};
        int n = 1 + (int)(r >> 4) % 70;
        if ((r >> 12) % 4 == 0) tokens[(r >> 14) % 16] = 1; /* one of a few ways to go on */
        if ((r >> 20) % 8 == 0 || (*l)->length + n > LENGTH_MAX) {
            adopted += (uint64_t)(*l)->adopted;
            line_free(l);
            *l = line_new(&s, (uint8_t)((l - lines) % 2));
        } else if ((r >> 20) % 4 == 1 && (*l)->length) {
            rewind_to(*l, (int)(r >> 5) % (*l)->length);
        } else {
            sn_status status = step(&s, *l, n, tokens);
            cr_assert(status == SN_OK || status == SN_RETRY);
            full += status == SN_RETRY;
        }
        if (round % 50 == 0)
            for (int i = 0; i < LINES; i++) expect_line(lines[i]);
    }
    cr_expect_gt(adopted, 1000);
    cr_expect_gt(full, 10);
    for (int i = 0; i < LINES; i++) {
        expect_line(lines[i]);
        line_free(&lines[i]);
    }
    end(&s);
}
