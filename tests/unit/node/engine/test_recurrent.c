/* Sessions whose blocks hold recurrent states: whatever is undone, shared or given up, the rows that are computed
 * afterwards have the bits of a session that was never rewound. */
#include "node/engine/kv_transfer.h"
#include "node/engine/scheduler.h"
#include "tests/support/recurrent_sessions.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const recurrent_options ON_CPU = {.model = SN_FIXTURES "/golden/qwen3_5", .device = {SN_DEVICE_CPU, 0}};

static recurrent_options on_cpu(const char *model) {
    recurrent_options options = ON_CPU;
    options.model = model;
    return options;
}

/* Calls `check` with a model of each recurrence; Nemotron has blocks of one half, too, which keep nothing. */
static void of_every_kind(void (*check)(const char *model)) {
    static const char *const models[] = {SN_FIXTURES "/golden/qwen3_5", SN_FIXTURES "/golden/lfm2_moe",
                                         SN_FIXTURES "/golden/nemotron_h_latent", SN_FIXTURES "/golden/bailing_hybrid"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) check(models[i]);
}

Test(recurrent, a_rewind_to_any_position_goes_on_with_the_same_bits) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    static const int to[] = {0, 1, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 190, 198, 199, 200};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        for (int chunk = 1; chunk <= 50; chunk += 49) {
            sn_kv_cache *kv = recurrent_new_cache(&s);
            recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 50);
            sn_kv_cache_rewind(kv, to[i]);
            recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, chunk);
            sn_kv_cache_free(&kv);
        }
    recurrent_end(&s);
}

static void a_rewind_of_each_kind(const char *model) {
    recurrent_sessions s = recurrent_begin(on_cpu(model), 16u << 20);
    static const int to[] = {0, 33, 64, 129, 199};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        sn_kv_cache *kv = recurrent_new_cache(&s);
        recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 50);
        sn_kv_cache_rewind(kv, to[i]);
        recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 11);
        sn_kv_cache_free(&kv);
    }
    recurrent_end(&s);
}

Test(recurrent, every_kind_of_state_is_rewound_to_the_same_bits) { of_every_kind(a_rewind_of_each_kind); }

Test(recurrent, a_snapshot_within_a_pass_belongs_to_the_page_that_ends_there) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    sn_kv_cache *kv = recurrent_new_cache(&s);
    recurrent_expect_rows(&s, kv, 96, 96); /* ends with another page than the snapshot */
    recurrent_expect_rows(&s, kv, 112, 10);
    sn_kv_cache_rewind(kv, 100);
    cr_expect_eq(sn_kv_cache_state_position(kv), 64);
    recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 50);
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

static void rejected_drafts_leave_nothing_behind(const char *model) {
    recurrent_sessions s = recurrent_begin(on_cpu(model), 16u << 20);
    sn_kv_cache *kv = recurrent_new_cache(&s);
    for (int at = 0; at + 3 <= RECURRENT_TOKENS; at += 3) {
        recurrent_expect_rows(&s, kv, at + 2, 2); /* accepted */
        recurrent_other_rows(&s, kv, 5);          /* rejected, all or but for what is right by chance */
        sn_kv_cache_rewind(kv, at + 2);
        recurrent_expect_rows(&s, kv, at + 3, 1);
    }
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

Test(recurrent, rejected_drafts_leave_nothing_behind) { of_every_kind(rejected_drafts_leave_nothing_behind); }

Test(recurrent, a_step_that_is_undone_costs_no_row_again) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    sn_kv_cache *kv = recurrent_new_cache(&s);
    recurrent_expect_rows(&s, kv, 70, 70);
    recurrent_other_rows(&s, kv, 6);
    sn_kv_cache_rewind(kv, 70);
    cr_expect_eq(sn_kv_cache_state_position(kv), 70);
    sn_kv_cache_rewind(kv, 69);
    cr_expect_eq(sn_kv_cache_state_position(kv), 64, "not the snapshot at 64");
    sn_kv_cache_rewind(kv, 63);
    cr_expect_eq(sn_kv_cache_state_position(kv), 0);
    recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 9);
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

/* The states of two sessions, and no room for snapshots. */
static size_t smallest_pool(const recurrent_sessions *s) {
    size_t floats = s->pool->pages.states.floats;
    return 4 * 4 * floats * sizeof(float) + 20 * s->pool->pages.page_bytes;
}

Test(recurrent, a_pool_without_room_for_snapshots_computes_from_the_start) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    size_t bytes = smallest_pool(&s);
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_span_kv_pool(s.span, bytes, &s.pool, &err));
    while (sn_kv_states_take(&s.pool->pages.states) != SN_KV_NO_STATE)
        if (s.pool->pages.states.n_free == 2) break;
    sn_kv_cache *kv = recurrent_new_cache(&s), *other = NULL;
    sn_err err;
    cr_expect_eq(sn_kv_cache_new(s.pool, &other, &err), SN_RETRY);
    cr_expect(strstr(err.text, "recurrent states of other sessions"), "%s", err.text);
    recurrent_expect_rows(&s, kv, 150, 40);
    cr_expect_eq(s.pool->pages.states.n_kept, 0);
    sn_kv_cache_rewind(kv, 100);
    cr_expect_eq(sn_kv_cache_state_position(kv), 0);
    recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 7);
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

static int64_t scheduler_us = 1000000;

/* Adds a step of one row at the position, which may wait for a second. */
static sn_job *add_step(const recurrent_sessions *s, sn_scheduler *scheduler, sn_kv_cache **kv, uint64_t client,
                        int position) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){
        .session = kv,
        .kv = kv,
        .client = client,
        .end = RECURRENT_BLOCKS,
        .position = position,
        .n_tokens = 1,
        .arrived_us = scheduler_us,
        .deadline_us = scheduler_us + 1000000,
        .step.input = {.name = "rows", .data = s->inputs, .dtype = SN_F32, .rank = 2, .shape = {1, RECURRENT_WIDTH}}};
    REQUIRE(sn_shared_buffer_new(RECURRENT_WIDTH * sizeof(float), &job->output, &err));
    sn_scheduler_add(scheduler, job);
    return job;
}

/* Runs rounds until a job ends, which must be this one: how. */
static sn_status expect_end(sn_scheduler *scheduler, sn_job *job) {
    sn_job *done = NULL;
    while (!done) done = sn_scheduler_run(scheduler, scheduler_us += 100000);
    cr_assert(done == job && !done->next);
    sn_status status = job->status;
    sn_job_free(&job);
    return status;
}

static sn_status step_in_scheduler(const recurrent_sessions *s, sn_scheduler *scheduler, sn_kv_cache **kv,
                                   uint64_t client, int position) {
    return expect_end(scheduler, add_step(s, scheduler, kv, client, position));
}

Test(recurrent, a_client_with_most_states_gives_those_of_an_idle_session_to_another) {
    enum { SESSIONS = 16 };
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    size_t bytes = smallest_pool(&s);
    sn_kv_cache *kv[SESSIONS] = {NULL}, **const other = &kv[SESSIONS - 1], **const third = &kv[SESSIONS - 2];
    sn_scheduler *scheduler = NULL;
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_span_kv_pool(s.span, bytes, &s.pool, &err));
    REQUIRE(sn_scheduler_new(s.span, s.pool, &scheduler, &err));
    const int n = (int)sn_kv_pool_sessions_max(s.pool);
    cr_assert(n >= 2 && n < SESSIONS - 2 && n % 2 == 0);
    for (int i = 0; i < n; i++) cr_expect_eq(step_in_scheduler(&s, scheduler, &kv[i], 1, 0), SN_OK);
    cr_expect_eq(step_in_scheduler(&s, scheduler, &kv[n], 1, 0), SN_RETRY, "a client takes none of its own");
    cr_expect_eq(step_in_scheduler(&s, scheduler, other, 2, 0), SN_OK);
    cr_expect_eq(step_in_scheduler(&s, scheduler, &kv[0], 1, 1), SN_REBUILD);
    for (int i = 1; i < n; i++) cr_expect_eq(step_in_scheduler(&s, scheduler, &kv[i], 1, 1), SN_OK);
    for (int i = n / 2 + 1; i < n; i++) sn_kv_cache_free(&kv[i]);
    for (int i = n / 2 + 1; i < n; i++) cr_expect_eq(step_in_scheduler(&s, scheduler, &kv[i], 2, 0), SN_OK);
    cr_expect_eq(step_in_scheduler(&s, scheduler, third, 3, 0), SN_RETRY, "two with a half each keep it");
    sn_scheduler_free(&scheduler);
    for (int i = 0; i < SESSIONS; i++) sn_kv_cache_free(&kv[i]);
    recurrent_end(&s);
}

Test(recurrent, a_client_with_most_states_that_waits_itself_holds_no_others_up) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    size_t bytes = smallest_pool(&s);
    sn_kv_cache *kv[16] = {NULL};
    sn_scheduler *scheduler = NULL;
    sn_kv_pool_free(&s.pool);
    REQUIRE(sn_span_kv_pool(s.span, bytes, &s.pool, &err));
    REQUIRE(sn_scheduler_new(s.span, s.pool, &scheduler, &err));
    const int n = (int)sn_kv_pool_sessions_max(s.pool);
    for (int i = 0; i < n; i++) cr_expect_eq(step_in_scheduler(&s, scheduler, &kv[i], 1, 0), SN_OK);
    sn_job *own = add_step(&s, scheduler, &kv[n], 1, 0), *other = add_step(&s, scheduler, &kv[n + 1], 2, 0);
    cr_expect_eq(expect_end(scheduler, own), SN_OK, "it came first");
    cr_expect_eq(expect_end(scheduler, other), SN_OK);
    sn_scheduler_free(&scheduler);
    for (int i = 0; i < 16; i++) sn_kv_cache_free(&kv[i]);
    recurrent_end(&s);
}

Test(recurrent, a_session_takes_the_oldest_snapshots_of_others) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    sn_kv_states *states = &s.pool->pages.states;
    sn_kv_cache *a = recurrent_new_cache(&s), *b;
    recurrent_expect_rows(&s, a, RECURRENT_TOKENS, 50);
    cr_expect_eq(states->n_kept, 3); /* at 64, 128, 192 */
    while (states->n_free) (void)sn_kv_states_take(states);
    b = recurrent_new_cache(&s);
    cr_expect_eq(states->n_kept, 1, "the session did not take two snapshots");
    recurrent_expect_rows(&s, b, 90, 30); /* its own snapshot at 64 replaces the last one of the other */
    cr_expect_eq(states->n_kept, 1);
    sn_kv_cache_rewind(a, 195);
    cr_expect_eq(sn_kv_cache_state_position(a), 150); /* where its last step began */
    sn_kv_cache_rewind(a, 149);
    cr_expect_eq(sn_kv_cache_state_position(a), 0);
    recurrent_expect_rows(&s, a, RECURRENT_TOKENS, 5);
    recurrent_expect_rows(&s, b, RECURRENT_TOKENS, 30);
    sn_kv_cache_free(&a);
    sn_kv_cache_free(&b);
    recurrent_end(&s);
}

/* ---- shared and swapped pages ---- */

static void pages_are_shared_up_to_one_that_ends_in_a_state(const char *model) {
    recurrent_sessions s = recurrent_begin(on_cpu(model), 16u << 20);
    float out[RECURRENT_TOKENS * RECURRENT_WIDTH];
    REQUIRE(sn_prefix_cache_enable(s.pool, RECURRENT_WIDTH, 1 << 20, &err));
    sn_kv_cache *a = recurrent_new_cache(&s), *b = recurrent_new_cache(&s);
    recurrent_publish(&s, a, 100); /* pages end at 32, 64 and 96, the snapshot is at 64 */
    cr_expect_eq(recurrent_attach(b, 3, out), 2);
    cr_expect(!memcmp(out, s.want, 64 * RECURRENT_WIDTH * sizeof *out));
    cr_expect_eq(sn_kv_cache_state_position(b), 64);
    recurrent_expect_rows(&s, b, 80, 16);
    sn_kv_cache_rewind(b, 40);       /* into a shared page */
    recurrent_other_rows(&s, b, 30); /* which b writes to, beyond its end */
    sn_kv_cache_rewind(b, 40);
    sn_kv_cache_rewind(a, 64); /* a's pages and its snapshot are as they were */
    cr_expect_eq(sn_kv_cache_state_position(a), 64, "the other session's writes gave the snapshot up");
    recurrent_expect_rows(&s, a, RECURRENT_TOKENS, 13);
    recurrent_expect_rows(&s, b, RECURRENT_TOKENS, 17);
    sn_kv_cache_free(&a);
    sn_kv_cache_free(&b);
    recurrent_end(&s);
}

Test(recurrent, pages_are_shared_up_to_one_that_ends_in_a_state) {
    of_every_kind(pages_are_shared_up_to_one_that_ends_in_a_state);
}

Test(recurrent, a_page_that_is_written_again_loses_its_snapshot) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    sn_kv_cache *kv = recurrent_new_cache(&s);
    recurrent_expect_rows(&s, kv, 60, 50);
    recurrent_other_rows(&s, kv, 20); /* passes 64 with other rows */
    sn_kv_cache_rewind(kv, 60);
    recurrent_expect_rows(&s, kv, 70, 1);
    sn_kv_cache_rewind(kv, 66);
    recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 8);
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

static void a_session_that_was_swapped_out_goes_on(const char *model) {
    recurrent_sessions s = recurrent_begin(on_cpu(model), 16u << 20);
    sn_err why;
    size_t all = SIZE_MAX;
    REQUIRE(sn_swap_enable(s.pool, NULL, 16u << 20, 0, &err));
    sn_kv_cache *kv = recurrent_new_cache(&s);
    recurrent_expect_rows(&s, kv, 150, 50);
    cr_assert_eq(sn_swap_out(kv, &all, &why), SN_OK);
    cr_expect_eq(s.pool->pages.states.n_kept, 0);
    all = SIZE_MAX;
    cr_assert_eq(sn_swap_in(kv, &all, &why), SN_OK);
    recurrent_expect_rows(&s, kv, 160, 5);
    sn_kv_cache_rewind(kv, 120);
    recurrent_expect_rows(&s, kv, RECURRENT_TOKENS, 11);
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

Test(recurrent, a_session_that_was_swapped_out_goes_on) { of_every_kind(a_session_that_was_swapped_out_goes_on); }

static void sessions_of_one_batch_keep_their_states_apart(const char *model) {
    recurrent_sessions s = recurrent_begin(on_cpu(model), 16u << 20);
    recurrent_expect_batches(&s, 5, 40, 66);
    recurrent_end(&s);
}

Test(recurrent, sessions_of_one_batch_keep_their_states_apart) {
    of_every_kind(sessions_of_one_batch_keep_their_states_apart);
}

Test(recurrent, a_block_with_a_state_has_no_keys_to_be_copied) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    sn_err why;
    sn_kv_pool *pool = NULL;
    float k[2 * 16], v[2 * 16];
    sn_kv_cache *kv = recurrent_new_cache(&s);
    recurrent_expect_rows(&s, kv, 10, 10);
    cr_expect_eq(sn_span_kv_export(s.span, kv, 0, 0, 1, k, v, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "no keys and values"), "%s", why.text);
    REQUIRE(sn_span_kv_export(s.span, kv, 3, 0, 1, k, v, &err)); /* has attention */
    const sn_tensor t = {.name = "keys", .data = k, .dtype = SN_F32, .rank = 3, .shape = {1, 2, 16}};
    cr_expect_eq(sn_span_kv_import(s.span, kv, 0, 1, &t, &t, &why), SN_REFUSED);
    cr_expect_eq(sn_span_kv_pool(s.span, 1000, &pool, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "--kv-memory"), "%s", why.text);
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

/* ---- copies at other nodes ---- */

enum { PIECE = 1000 }; /* floats of a snapshot that travel at once: its last piece is shorter */

typedef struct copy {
    const recurrent_sessions *from;
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

static copy copy_within(const recurrent_sessions *s) {
    return (copy){s, s->span, 0, s->n_blocks, recurrent_new_cache(s), recurrent_new_cache(s)};
}

static void copy_end(copy *c) {
    sn_kv_cache_free(&c->source);
    sn_kv_cache_free(&c->target);
}

static void a_copy_goes_on_from_its_snapshot_with_the_same_bits(const char *model) {
    recurrent_sessions s = recurrent_begin(on_cpu(model), 16u << 20);
    copy c = copy_within(&s);
    recurrent_expect_rows(&s, c.source, 150, 50);
    copy_rows(&c, 150, 37);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 0, "rows without a state");
    cr_expect_eq(copy_snapshot(&c), 128);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 128);
    recurrent_expect_rows(&s, c.target, 170, 10);
    sn_kv_cache_rewind(c.target, 140); /* the rows behind the snapshot are there, too */
    cr_expect_eq(sn_kv_cache_state_position(c.target), 128);
    recurrent_expect_rows(&s, c.target, RECURRENT_TOKENS, 7);
    sn_kv_cache_rewind(c.target, 100); /* and those before it */
    recurrent_expect_rows(&s, c.target, RECURRENT_TOKENS, 50);
    copy_end(&c);
    recurrent_end(&s);
}

Test(recurrent, a_copy_goes_on_from_its_snapshot_with_the_same_bits) {
    of_every_kind(a_copy_goes_on_from_its_snapshot_with_the_same_bits);
}

Test(recurrent, a_copy_without_a_snapshot_computes_its_rows_again) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    copy c = copy_within(&s);
    recurrent_expect_rows(&s, c.source, 60, 20);
    copy_rows(&c, 60, 60);
    cr_expect_eq(copy_snapshot(&c), 0, "there is a snapshot before 64");
    recurrent_expect_rows(&s, c.target, RECURRENT_TOKENS, 20);
    copy_end(&c);
    recurrent_end(&s);
}

/* A newer snapshot replaces the first one; a rewind gives up what lies behind it, also what has come in part. */
Test(recurrent, a_copy_follows_steps_and_rewinds) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    copy c = copy_within(&s);
    recurrent_expect_rows(&s, c.source, 100, 50);
    copy_rows(&c, 100, 50);
    cr_expect_eq(copy_snapshot(&c), 64);
    recurrent_expect_rows(&s, c.source, RECURRENT_TOKENS, 50);
    copy_rows(&c, RECURRENT_TOKENS, 50);
    cr_expect_eq(copy_piece(&c, 0, 0).position, 192);
    sn_kv_cache_rewind(c.target, 150);
    cr_expect_eq(copy_piece(&c, 192, PIECE).held, 0, "a piece of what was given up is taken");
    copy_rows(&c, RECURRENT_TOKENS, 50);
    cr_expect_eq(copy_piece(&c, 192, PIECE).held, 0, "a second piece is taken without the first one");
    cr_expect_eq(sn_kv_cache_state_position(c.target), 64);
    cr_expect_eq(copy_snapshot(&c), 192);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 192);
    sn_kv_cache_rewind(c.target, 190);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 64);
    recurrent_expect_rows(&s, c.target, RECURRENT_TOKENS, 3);
    copy_end(&c);
    recurrent_end(&s);
}

Test(recurrent, a_piece_of_other_bytes_or_beyond_the_end_is_not_taken) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    copy c = copy_within(&s);
    recurrent_expect_rows(&s, c.source, 150, 50);
    copy_rows(&c, 100, 50);
    cr_expect_eq(copy_piece(&c, 0, 0).held, 0, "the target has no position 128");
    copy_rows(&c, 150, 50);
    sn_job read = read_job(&c, 0, 0, (sn_state_piece){0, 0, PIECE, 0}, PIECE);
    ((float *)sn_shared_buffer_data(read.output))[PIECE - 1] += 1;
    sn_job write = write_job(&c, &read);
    cr_expect(write.status == SN_RETRY && strstr(write.err.text, "damaged in transit"));
    cr_expect_eq(sn_kv_cache_state_position(c.target), 0);
    sn_shared_buffer_unref(read.output);
    recurrent_expect_rows(&s, c.target, RECURRENT_TOKENS, 50);
    copy_end(&c);
    recurrent_end(&s);
}

/* Steps of a session over blocks [first, RECURRENT_BLOCKS) at a node that holds more, compared with a node of these
 * blocks. */
Test(recurrent, the_states_of_a_part_of_the_blocks_are_found) {
    enum { FIRST = 1 };
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    float want[RECURRENT_TOKENS * RECURRENT_WIDTH], out[RECURRENT_TOKENS * RECURRENT_WIDTH];
    sn_tensor input = {
        .name = "rows", .data = s.inputs, .dtype = SN_F32, .rank = 2, .shape = {RECURRENT_TOKENS, RECURRENT_WIDTH}};
    REQUIRE(sn_span_load(s.model, s.device, FIRST, RECURRENT_BLOCKS, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 16u << 20, &pool, &err));
    copy c = {&s, span, FIRST, RECURRENT_BLOCKS, recurrent_new_cache(&s), NULL};
    REQUIRE(sn_kv_cache_new(pool, &c.target, &err));
    REQUIRE(sn_kv_cache_reserve(c.source, RECURRENT_TOKENS, &err));
    for (int at = 0; at < RECURRENT_TOKENS; at += 50) {
        const sn_span_sequence part = {c.source, &input, at, 50, want + at * RECURRENT_WIDTH};
        REQUIRE(sn_span_forward(s.span, FIRST, RECURRENT_BLOCKS, 1, &part, NULL, &err));
    }
    copy_rows(&c, 195, 50);
    cr_expect_eq(copy_snapshot(&c), 192);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 192);
    const sn_span_sequence rest = {c.target, &input, 195, 5, out + 195 * RECURRENT_WIDTH};
    REQUIRE(sn_kv_cache_reserve(c.target, 5, &err));
    REQUIRE(sn_span_forward(span, FIRST, RECURRENT_BLOCKS, 1, &rest, NULL, &err));
    cr_expect(!memcmp(out + 195 * RECURRENT_WIDTH, want + 195 * RECURRENT_WIDTH, 5 * RECURRENT_WIDTH * sizeof *out),
              "other bits");
    copy_end(&c);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    recurrent_end(&s);
}

/* llama.cpp's converter orders value heads in another way: another order of sums. */
Test(recurrent, a_gguf_file_gives_what_the_folder_gives) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    sn_kv_pool_free(&s.pool);
    sn_span_free(&s.span);
    sn_model_close(&s.model);
    REQUIRE(sn_model_open(SN_FIXTURES "/gguf/qwen3_5.gguf", &s.model, &err));
    REQUIRE(sn_span_load(s.model, s.device, 0, RECURRENT_BLOCKS, NULL, NULL, &s.span, &err));
    REQUIRE(sn_span_kv_pool(s.span, 16u << 20, &s.pool, &err));
    sn_kv_cache *kv = recurrent_new_cache(&s);
    float out[RECURRENT_TOKENS * RECURRENT_WIDTH], largest = 0, furthest = 0;
    recurrent_forward(&s, kv, s.inputs, RECURRENT_TOKENS, out);
    for (int i = 0; i < RECURRENT_TOKENS * RECURRENT_WIDTH; i++) {
        largest = fmaxf(largest, fabsf(s.want[i]));
        furthest = fmaxf(furthest, fabsf(s.want[i] - out[i]));
    }
    cr_expect(furthest <= 1e-5f * largest, "%g of %g", (double)furthest, (double)largest);
    sn_kv_cache_free(&kv);
    recurrent_end(&s);
}

/* What a pass that failed has begun must not become a state, or another session's snapshot. */
Test(recurrent, a_copy_after_a_pass_that_failed_takes_nothing_of_it) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    copy c = copy_within(&s);
    REQUIRE(sn_kv_cache_reserve(c.target, 128, &err));
    (void)sn_kv_cache_sequence(c.target, 0, 0, 128); /* the pass fails: its rows are not appended, but undone */
    sn_kv_cache_rewind(c.target, 0);
    recurrent_expect_rows(&s, c.source, 150, 150); /* takes the same pages */
    copy_rows(&c, 5, 5);
    cr_expect_eq(sn_kv_cache_state_position(c.target), 0, "rows of a copy count as a state");
    sn_kv_cache_rewind(c.source, 140);
    recurrent_expect_rows(&s, c.source, RECURRENT_TOKENS, 10);
    recurrent_expect_rows(&s, c.target, RECURRENT_TOKENS, 10);
    copy_end(&c);
    recurrent_end(&s);
}

Test(recurrent, rows_of_pages_that_were_given_to_another_session_are_not_read) {
    recurrent_sessions s = recurrent_begin(ON_CPU, 16u << 20);
    copy c = copy_within(&s);
    sn_job job = {.kv = &c.source, .first = 0, .end = 3, .n_tokens = 64}; /* blocks without keys and values */
    recurrent_other_rows(&s, c.source, 64);
    sn_kv_cache_invalidate(c.source); /* the KV pool is full */
    recurrent_expect_rows(&s, c.target, 150, 150);
    REQUIRE(sn_shared_buffer_new(64 * RECURRENT_WIDTH * sizeof(float), &job.output, &err));
    cr_expect_eq(sn_kv_transfer_read(s.span, &job), SN_REBUILD);
    sn_shared_buffer_unref(job.output);
    copy_end(&c);
    recurrent_end(&s);
}
