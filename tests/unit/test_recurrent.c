/* Sessions whose blocks hold recurrent states: whatever is undone, shared or given up, the rows that are computed
 * afterwards have the bits of a session that was never rewound. */
#include "blocks/span.h"
#include "kvcache/kvcache_private.h" /* private: tests give up snapshots */
#include "kvcache/prefix_cache.h"
#include "kvcache/swap.h"
#include "node/engine/kv_transfer.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TOKENS = 200, N_EMBD = 64, N_BLOCKS = 4, PAGE = SN_KV_PAGE_TOKENS };

typedef struct setup {
    sn_model *model;
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    float *inputs, *want; /* (TOKENS, N_EMBD) */
} setup;

static void forward(const setup *s, sn_kv_cache *kv, const float *rows, int n, float *out) {
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {n, N_EMBD}};
    const sn_span_sequence part = {kv, &input, 0, n, out};
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    REQUIRE(sn_span_forward(s->span, 0, N_BLOCKS, 1, &part, NULL, &err));
}

static sn_kv_cache *new_cache(const setup *s) {
    sn_kv_cache *kv = NULL;
    REQUIRE(sn_kv_cache_new(s->pool, &kv, &err));
    return kv;
}

static setup begin(size_t kv_memory) {
    setup s = {0};
    uint32_t x = 3;
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/qwen3_5", &s.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &s.device, &err));
    REQUIRE(sn_span_load(s.model, s.device, 0, N_BLOCKS, NULL, NULL, &s.span, &err));
    s.inputs = malloc(TOKENS * N_EMBD * sizeof(float));
    s.want = malloc(TOKENS * N_EMBD * sizeof(float));
    for (int i = 0; i < TOKENS * N_EMBD; i++) {
        x = x * 1664525 + 1013904223;
        s.inputs[i] = (float)(int32_t)x * 0x1p-31f;
    }
    REQUIRE(sn_span_kv_pool(s.span, 16u << 20, &s.pool, &err));
    sn_kv_cache *kv = new_cache(&s);
    forward(&s, kv, s.inputs, TOKENS, s.want);
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_span_kv_pool(s.span, kv_memory, &s.pool, &err));
    return s;
}

static void end(setup *s) {
    sn_kv_pool_free(&s->pool);
    sn_span_free(&s->span);
    sn_device_close(&s->device);
    sn_model_close(&s->model);
    free(s->inputs);
    free(s->want);
}

/* Steps of `chunk` rows from the cache's end to `until`; every row must have the reference's bits. */
static void expect_rows(const setup *s, sn_kv_cache *kv, int until, int chunk) {
    float out[TOKENS * N_EMBD];
    for (int at = sn_kv_cache_length(kv), n; at < until; at += n) {
        n = chunk < until - at ? chunk : until - at;
        forward(s, kv, s->inputs + at * N_EMBD, n, out);
        cr_assert(!memcmp(out, s->want + at * N_EMBD, (size_t)(n * N_EMBD) * sizeof *out),
                  "other bits in rows %d to %d", at, at + n);
    }
    cr_assert_eq(sn_kv_cache_length(kv), until);
}

/* Rows that other inputs lead to: what a rejected draft leaves in a cache. */
static void other_rows(const setup *s, sn_kv_cache *kv, int n) {
    float out[TOKENS * N_EMBD];
    forward(s, kv, s->inputs + (TOKENS - n) * N_EMBD, n, out);
}

Test(recurrent, a_rewind_to_any_position_goes_on_with_the_same_bits) {
    setup s = begin(16u << 20);
    static const int to[] = {0, 1, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 190, 198, 199, 200};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        for (int chunk = 1; chunk <= 50; chunk += 49) {
            sn_kv_cache *kv = new_cache(&s);
            expect_rows(&s, kv, TOKENS, 50);
            sn_kv_cache_rewind(kv, to[i]);
            expect_rows(&s, kv, TOKENS, chunk);
            sn_kv_cache_free(&kv);
        }
    end(&s);
}

Test(recurrent, a_snapshot_within_a_pass_belongs_to_the_page_that_ends_there) {
    setup s = begin(16u << 20);
    sn_kv_cache *kv = new_cache(&s);
    expect_rows(&s, kv, 96, 96); /* ends with another page than the snapshot */
    expect_rows(&s, kv, 112, 10);
    sn_kv_cache_rewind(kv, 100);
    cr_expect_eq(sn_kv_cache_state_position(kv), 64);
    expect_rows(&s, kv, TOKENS, 50);
    sn_kv_cache_free(&kv);
    end(&s);
}

Test(recurrent, rejected_drafts_leave_nothing_behind) {
    setup s = begin(16u << 20);
    sn_kv_cache *kv = new_cache(&s);
    for (int at = 0; at + 3 <= TOKENS; at += 3) {
        expect_rows(&s, kv, at + 2, 2); /* accepted */
        other_rows(&s, kv, 5);          /* rejected, all or but for what is right by chance */
        sn_kv_cache_rewind(kv, at + 2);
        expect_rows(&s, kv, at + 3, 1);
    }
    sn_kv_cache_free(&kv);
    end(&s);
}

Test(recurrent, a_step_that_is_undone_costs_no_row_again) {
    setup s = begin(16u << 20);
    sn_kv_cache *kv = new_cache(&s);
    expect_rows(&s, kv, 70, 70);
    other_rows(&s, kv, 6);
    sn_kv_cache_rewind(kv, 70);
    cr_expect_eq(sn_kv_cache_state_position(kv), 70);
    sn_kv_cache_rewind(kv, 69);
    cr_expect_eq(sn_kv_cache_state_position(kv), 64, "not the snapshot at 64");
    sn_kv_cache_rewind(kv, 63);
    cr_expect_eq(sn_kv_cache_state_position(kv), 0);
    expect_rows(&s, kv, TOKENS, 9);
    sn_kv_cache_free(&kv);
    end(&s);
}

/* The states of two sessions, and no room for snapshots. */
static size_t smallest_pool(const setup *s) {
    size_t floats = s->pool->pages.states.floats;
    return 4 * 4 * floats * sizeof(float) + 20 * s->pool->pages.page_bytes;
}

Test(recurrent, a_pool_without_room_for_snapshots_computes_from_the_start) {
    setup s = begin(16u << 20);
    size_t bytes = smallest_pool(&s);
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_span_kv_pool(s.span, bytes, &s.pool, &err));
    while (sn_kv_states_take(&s.pool->pages.states) != SN_KV_NO_STATE)
        if (s.pool->pages.states.n_free == 2) break;
    sn_kv_cache *kv = new_cache(&s), *other = NULL;
    sn_err err;
    cr_expect_eq(sn_kv_cache_new(s.pool, &other, &err), SN_RETRY);
    cr_expect(strstr(err.text, "recurrent states of other sessions"), "%s", err.text);
    expect_rows(&s, kv, 150, 40);
    cr_expect_eq(s.pool->pages.states.n_kept, 0);
    sn_kv_cache_rewind(kv, 100);
    cr_expect_eq(sn_kv_cache_state_position(kv), 0);
    expect_rows(&s, kv, TOKENS, 7);
    sn_kv_cache_free(&kv);
    end(&s);
}

Test(recurrent, a_session_takes_the_oldest_snapshots_of_others) {
    setup s = begin(16u << 20);
    sn_kv_states *states = &s.pool->pages.states;
    sn_kv_cache *a = new_cache(&s), *b;
    expect_rows(&s, a, TOKENS, 50);
    cr_expect_eq(states->n_kept, 3); /* at 64, 128, 192 */
    while (states->n_free) (void)sn_kv_states_take(states);
    b = new_cache(&s);
    cr_expect_eq(states->n_kept, 1, "the session did not take two snapshots");
    expect_rows(&s, b, 90, 30); /* its own snapshot at 64 replaces the last one of the other */
    cr_expect_eq(states->n_kept, 1);
    sn_kv_cache_rewind(a, 195);
    cr_expect_eq(sn_kv_cache_state_position(a), 150); /* where its last step began */
    sn_kv_cache_rewind(a, 149);
    cr_expect_eq(sn_kv_cache_state_position(a), 0);
    expect_rows(&s, a, TOKENS, 5);
    expect_rows(&s, b, TOKENS, 30);
    sn_kv_cache_free(&a);
    sn_kv_cache_free(&b);
    end(&s);
}

/* ---- shared and swapped pages ---- */

/* Computes rows up to `until` and offers their pages under hashes that name their positions. */
static void publish(const setup *s, sn_kv_cache *kv, int until) {
    static const sn_prefix_cache_scope scope;
    sn_hash ends[TOKENS / PAGE + 1];
    memset(ends, 0, sizeof ends);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) ends[i].bytes[0] = (uint8_t)(i + 1);
    expect_rows(s, kv, until, until);
    sn_prefix_cache_insert(kv, &scope, ends, until, s->want);
}

static int attach(sn_kv_cache *kv, int pages, float *out) {
    static const sn_prefix_cache_scope scope;
    sn_hash ends[TOKENS / PAGE + 1];
    memset(ends, 0, sizeof ends);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) ends[i].bytes[0] = (uint8_t)(i + 1);
    return sn_prefix_cache_attach(kv, &scope, ends, pages, out);
}

Test(recurrent, pages_are_shared_up_to_one_that_ends_in_a_state) {
    setup s = begin(16u << 20);
    float out[TOKENS * N_EMBD];
    REQUIRE(sn_prefix_cache_enable(s.pool, N_EMBD, 1 << 20, &err));
    sn_kv_cache *a = new_cache(&s), *b = new_cache(&s);
    publish(&s, a, 100); /* pages end at 32, 64 and 96, the snapshot is at 64 */
    cr_expect_eq(attach(b, 3, out), 2);
    cr_expect(!memcmp(out, s.want, 64 * N_EMBD * sizeof *out));
    cr_expect_eq(sn_kv_cache_state_position(b), 64);
    expect_rows(&s, b, 80, 16);
    sn_kv_cache_rewind(b, 40); /* into a shared page */
    other_rows(&s, b, 30);     /* which b writes to, beyond its end */
    sn_kv_cache_rewind(b, 40);
    sn_kv_cache_rewind(a, 64); /* a's pages and its snapshot are as they were */
    cr_expect_eq(sn_kv_cache_state_position(a), 64, "the other session's writes gave the snapshot up");
    expect_rows(&s, a, TOKENS, 13);
    expect_rows(&s, b, TOKENS, 17);
    sn_kv_cache_free(&a);
    sn_kv_cache_free(&b);
    end(&s);
}

Test(recurrent, a_page_that_is_written_again_loses_its_snapshot) {
    setup s = begin(16u << 20);
    sn_kv_cache *kv = new_cache(&s);
    expect_rows(&s, kv, 60, 50);
    other_rows(&s, kv, 20); /* passes 64 with other rows */
    sn_kv_cache_rewind(kv, 60);
    expect_rows(&s, kv, 70, 1);
    sn_kv_cache_rewind(kv, 66);
    expect_rows(&s, kv, TOKENS, 8);
    sn_kv_cache_free(&kv);
    end(&s);
}

Test(recurrent, a_session_that_was_swapped_out_goes_on) {
    setup s = begin(16u << 20);
    sn_err why;
    size_t all = SIZE_MAX;
    REQUIRE(sn_swap_enable(s.pool, NULL, 16u << 20, 0, &err));
    sn_kv_cache *kv = new_cache(&s);
    expect_rows(&s, kv, 150, 50);
    cr_assert_eq(sn_swap_out(kv, &all, &why), SN_OK);
    cr_expect_eq(s.pool->pages.states.n_kept, 0);
    all = SIZE_MAX;
    cr_assert_eq(sn_swap_in(kv, &all, &why), SN_OK);
    expect_rows(&s, kv, 160, 5);
    sn_kv_cache_rewind(kv, 120);
    expect_rows(&s, kv, TOKENS, 11);
    sn_kv_cache_free(&kv);
    end(&s);
}

Test(recurrent, sessions_of_one_batch_keep_their_states_apart) {
    enum { SESSIONS = 5 };
    setup s = begin(16u << 20);
    float out[SESSIONS][N_EMBD];
    sn_kv_cache *kv[SESSIONS];
    sn_tensor input = {.name = "rows", .data = s.inputs, .dtype = SN_F32, .rank = 2, .shape = {TOKENS, N_EMBD}};
    for (int i = 0; i < SESSIONS; i++) {
        kv[i] = new_cache(&s);
        if (i) expect_rows(&s, kv[i], 23 * i, 23);
    }
    for (int step = 0; step < 40; step++) {
        sn_span_sequence parts[SESSIONS];
        if (step == 20) sn_kv_cache_rewind(kv[3], 66);
        for (int i = 0; i < SESSIONS; i++) {
            parts[i] = (sn_span_sequence){kv[i], &input, sn_kv_cache_length(kv[i]), 1, out[i]};
            REQUIRE(sn_kv_cache_reserve(kv[i], 1, &err));
        }
        REQUIRE(sn_span_forward(s.span, 0, N_BLOCKS, SESSIONS, parts, NULL, &err));
        for (int i = 0; i < SESSIONS; i++)
            cr_assert(!memcmp(out[i], s.want + parts[i].first_row * N_EMBD, sizeof out[i]), "session %d at %d", i,
                      parts[i].first_row);
    }
    for (int i = 0; i < SESSIONS; i++) sn_kv_cache_free(&kv[i]);
    end(&s);
}

Test(recurrent, a_block_with_a_state_has_no_keys_to_be_copied) {
    setup s = begin(16u << 20);
    sn_err why;
    sn_kv_pool *pool = NULL;
    float k[2 * 16], v[2 * 16];
    sn_kv_cache *kv = new_cache(&s);
    expect_rows(&s, kv, 10, 10);
    cr_expect_eq(sn_span_kv_export(s.span, kv, 0, 0, 1, k, v, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "no keys and values"), "%s", why.text);
    REQUIRE(sn_span_kv_export(s.span, kv, 3, 0, 1, k, v, &err)); /* has attention */
    const sn_tensor t = {.name = "keys", .data = k, .dtype = SN_F32, .rank = 3, .shape = {1, 2, 16}};
    cr_expect_eq(sn_span_kv_import(s.span, kv, 0, 1, &t, &t, &why), SN_REFUSED);
    cr_expect_eq(sn_span_kv_pool(s.span, 1000, &pool, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "--kv-memory"), "%s", why.text);
    sn_kv_cache_free(&kv);
    end(&s);
}

/* ---- copies at other nodes ---- */

enum { PIECE = 1000 }; /* floats of a snapshot that travel at once: its last piece is shorter */

typedef struct copy {
    const setup *from;
    const sn_span *span; /* of the node that gets the copy */
    int first, end;
    sn_kv_cache *source, *target;
} copy;

/* What a node reads for another one; the caller frees the output. */
static sn_job read_job(copy *c, int position, int n_tokens, sn_state_piece piece, size_t floats) {
    sn_job job = {.kv = &c->source, .first = c->first, .end = c->end, .position = position, .n_tokens = n_tokens};
    job.kv_read.piece = piece;
    REQUIRE(sn_shared_buffer_new(floats * sizeof(float), &job.output, &err));
    cr_assert_eq(sn_kv_transfer_read(c->from->span, &job), SN_OK, "%s", job.err.text);
    return job;
}

static sn_job write_job(copy *c, const sn_job *read) {
    sn_job job = {.kv = &c->target, .first = c->first, .end = c->end, .n_tokens = read->n_tokens};
    job.kv_write.input.data = sn_shared_buffer_data(read->output);
    job.kv_write.hash = read->kv_read.hash;
    job.kv_write.piece = read->kv_read.piece;
    REQUIRE(sn_kv_cache_reserve(c->target, job.n_tokens, &err));
    job.status = sn_kv_transfer_write(c->span, &job);
    return job;
}

/* Copies the rows from the target's end to `until`, `chunk` at a time. */
static void copy_rows(copy *c, int until, int chunk) {
    size_t row = sn_kv_transfer_row_floats(sn_span_hparams(c->span), c->first, c->end);
    for (int at = sn_kv_cache_length(c->target), n; at < until; at += n) {
        n = chunk < until - at ? chunk : until - at;
        sn_job read = read_job(c, at, n, (sn_state_piece){0}, (size_t)n * row), write = write_job(c, &read);
        cr_assert_eq(write.status, SN_OK, "%s", write.err.text);
        sn_shared_buffer_unref(read.output);
    }
}

/* Copies the next piece of the snapshot; what is returned says how many floats the target has. */
static sn_state_piece copy_piece(copy *c, int position, size_t offset) {
    sn_job read = read_job(c, 0, 0, (sn_state_piece){position, offset, PIECE, 0}, PIECE);
    if (!read.kv_read.piece.position) {
        sn_shared_buffer_unref(read.output);
        return read.kv_read.piece;
    }
    sn_job write = write_job(c, &read);
    cr_assert_eq(write.status, SN_OK, "%s", write.err.text);
    sn_shared_buffer_unref(read.output);
    return write.kv_write.piece;
}

/* Copies the newest snapshot, and returns its position. */
static int copy_snapshot(copy *c) {
    size_t all = sn_span_state_floats(sn_span_hparams(c->span), c->first, c->end);
    sn_state_piece piece = copy_piece(c, 0, 0);
    while (piece.position && piece.held < all) {
        cr_assert_eq(piece.held, piece.offset + piece.n);
        piece = copy_piece(c, piece.position, piece.held);
    }
    return piece.position;
}

static copy copy_within(const setup *s) { return (copy){s, s->span, 0, N_BLOCKS, new_cache(s), new_cache(s)}; }

static void copy_end(copy *c) {
    sn_kv_cache_free(&c->source);
    sn_kv_cache_free(&c->target);
}

Test(recurrent, a_copy_goes_on_from_its_snapshot_with_the_same_bits) {
    setup s = begin(16u << 20);
    copy c = copy_within(&s);
    expect_rows(&s, c.source, 150, 50);
    copy_rows(&c, 150, 37);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 0, "rows without a state");
    cr_expect_eq(copy_snapshot(&c), 128);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 128);
    expect_rows(&s, c.target, 170, 10);
    sn_kv_cache_rewind(c.target, 140); /* the rows behind the snapshot are there, too */
    cr_expect_eq(sn_kv_cache_state_position(c.target), 128);
    expect_rows(&s, c.target, TOKENS, 7);
    sn_kv_cache_rewind(c.target, 100); /* and those before it */
    expect_rows(&s, c.target, TOKENS, 50);
    copy_end(&c);
    end(&s);
}

Test(recurrent, a_copy_without_a_snapshot_computes_its_rows_again) {
    setup s = begin(16u << 20);
    copy c = copy_within(&s);
    expect_rows(&s, c.source, 60, 20);
    copy_rows(&c, 60, 60);
    cr_expect_eq(copy_snapshot(&c), 0, "there is a snapshot before 64");
    expect_rows(&s, c.target, TOKENS, 20);
    copy_end(&c);
    end(&s);
}

/* A newer snapshot replaces the first one; a rewind gives up what lies behind it, also what has come in part. */
Test(recurrent, a_copy_follows_steps_and_rewinds) {
    setup s = begin(16u << 20);
    copy c = copy_within(&s);
    expect_rows(&s, c.source, 100, 50);
    copy_rows(&c, 100, 50);
    cr_expect_eq(copy_snapshot(&c), 64);
    expect_rows(&s, c.source, TOKENS, 50);
    copy_rows(&c, TOKENS, 50);
    cr_expect_eq(copy_piece(&c, 0, 0).position, 192);
    sn_kv_cache_rewind(c.target, 150);
    cr_expect_eq(copy_piece(&c, 192, PIECE).held, 0, "a piece of what was given up is taken");
    copy_rows(&c, TOKENS, 50);
    cr_expect_eq(copy_piece(&c, 192, PIECE).held, 0, "a second piece is taken without the first one");
    cr_expect_eq(sn_kv_cache_state_position(c.target), 64);
    cr_expect_eq(copy_snapshot(&c), 192);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 192);
    sn_kv_cache_rewind(c.target, 190);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 64);
    expect_rows(&s, c.target, TOKENS, 3);
    copy_end(&c);
    end(&s);
}

Test(recurrent, a_piece_of_other_bytes_or_beyond_the_end_is_not_taken) {
    setup s = begin(16u << 20);
    copy c = copy_within(&s);
    expect_rows(&s, c.source, 150, 50);
    copy_rows(&c, 100, 50);
    cr_expect_eq(copy_piece(&c, 0, 0).held, 0, "the target has no position 128");
    copy_rows(&c, 150, 50);
    sn_job read = read_job(&c, 0, 0, (sn_state_piece){0, 0, PIECE, 0}, PIECE);
    ((float *)sn_shared_buffer_data(read.output))[PIECE - 1] += 1;
    sn_job write = write_job(&c, &read);
    cr_expect(write.status == SN_RETRY && strstr(write.err.text, "damaged in transit"));
    cr_expect_eq(sn_kv_cache_state_position(c.target), 0);
    sn_shared_buffer_unref(read.output);
    expect_rows(&s, c.target, TOKENS, 50);
    copy_end(&c);
    end(&s);
}

/* Steps of a session over blocks [first, N_BLOCKS) at a node that holds more, compared with a node of these blocks. */
Test(recurrent, the_states_of_a_part_of_the_blocks_are_found) {
    enum { FIRST = 1 };
    setup s = begin(16u << 20);
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    float want[TOKENS * N_EMBD], out[TOKENS * N_EMBD];
    sn_tensor input = {.name = "rows", .data = s.inputs, .dtype = SN_F32, .rank = 2, .shape = {TOKENS, N_EMBD}};
    REQUIRE(sn_span_load(s.model, s.device, FIRST, N_BLOCKS, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 16u << 20, &pool, &err));
    copy c = {&s, span, FIRST, N_BLOCKS, new_cache(&s), NULL};
    REQUIRE(sn_kv_cache_new(pool, &c.target, &err));
    REQUIRE(sn_kv_cache_reserve(c.source, TOKENS, &err));
    for (int at = 0; at < TOKENS; at += 50) {
        const sn_span_sequence part = {c.source, &input, at, 50, want + at * N_EMBD};
        REQUIRE(sn_span_forward(s.span, FIRST, N_BLOCKS, 1, &part, NULL, &err));
    }
    copy_rows(&c, 195, 50);
    cr_expect_eq(copy_snapshot(&c), 192);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 192);
    const sn_span_sequence rest = {c.target, &input, 195, 5, out + 195 * N_EMBD};
    REQUIRE(sn_kv_cache_reserve(c.target, 5, &err));
    REQUIRE(sn_span_forward(span, FIRST, N_BLOCKS, 1, &rest, NULL, &err));
    cr_expect(!memcmp(out + 195 * N_EMBD, want + 195 * N_EMBD, 5 * N_EMBD * sizeof *out), "other bits");
    copy_end(&c);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    end(&s);
}

/* llama.cpp's converter orders value heads in another way: another order of sums. */
Test(recurrent, a_gguf_file_gives_what_the_folder_gives) {
    setup s = begin(16u << 20);
    sn_kv_pool_free(&s.pool);
    sn_span_free(&s.span);
    sn_model_close(&s.model);
    REQUIRE(sn_model_open(SN_FIXTURES "/gguf/qwen3_5.gguf", &s.model, &err));
    REQUIRE(sn_span_load(s.model, s.device, 0, N_BLOCKS, NULL, NULL, &s.span, &err));
    REQUIRE(sn_span_kv_pool(s.span, 16u << 20, &s.pool, &err));
    sn_kv_cache *kv = new_cache(&s);
    float out[TOKENS * N_EMBD], largest = 0, furthest = 0;
    forward(&s, kv, s.inputs, TOKENS, out);
    for (int i = 0; i < TOKENS * N_EMBD; i++) {
        largest = fmaxf(largest, fabsf(s.want[i]));
        furthest = fmaxf(furthest, fabsf(s.want[i] - out[i]));
    }
    cr_expect(furthest <= 1e-5f * largest, "%g of %g", (double)furthest, (double)largest);
    sn_kv_cache_free(&kv);
    end(&s);
}
