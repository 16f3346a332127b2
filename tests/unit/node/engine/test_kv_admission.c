/* The scheduler when the KV cache is full: which sessions wait, get pages or lose pages, and that no session waits
 * for ever. */
#include "node/engine/scheduler.h"

#include "kvcache/prefix_cache.h"
#include "kvcache/swap.h"
#include "node/engine/kv_transfer.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SESSIONS = 12, EMBD = 64, PAGE = SN_KV_PAGE_TOKENS, SECOND = 1000000, WAIT = 10 * SECOND, LENGTH_MAX = 256 };

typedef struct fixture {
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_kv_cache *kv[SESSIONS];
    uint64_t client[SESSIONS];                        /* of the session */
    sn_job *job[SESSIONS];                            /* in the scheduler */
    sn_status ended[SESSIONS];                        /* status of the newest finished job */
    bool newly_served[SESSIONS];                      /* by the newest round, with a step at position 0 */
    int n_ended, length[SESSIONS], n_reads[SESSIONS]; /* n_reads: in the scheduler */
    float *rows, *expected; /* (LENGTH_MAX, EMBD): the input of every session, and the output of a session alone */
    sn_hash hash[LENGTH_MAX + 1];
    int64_t now;
} fixture;

static void add_step(fixture *b, int s, int position, int n) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){
        .kind = SN_JOB_STEP,
        .session = &b->kv[s],
        .kv = &b->kv[s],
        .client = b->client[s],
        .end = 2,
        .position = position,
        .n_tokens = n,
        .step.cacheable = true,
        .arrived_us = b->now,
        .deadline_us = b->now + WAIT,
        .step.input = {
            .name = "rows", .data = b->rows + position * EMBD, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    REQUIRE(sn_shared_buffer_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    job->step.n_pages = (position + n) / PAGE - position / PAGE;
    if (job->step.n_pages) job->step.pages = calloc((size_t)job->step.n_pages, sizeof *job->step.pages);
    for (int i = 0; i < job->step.n_pages; i++)
        memcpy(&job->step.pages[i], &b->hash[(position / PAGE + i) * PAGE], sizeof *job->step.pages);
    b->job[s] = job;
    sn_scheduler_add(b->scheduler, job);
}

/* Adds a job that reads the session's first row. */
static void add_read(fixture *b, int s) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){
        .kind = SN_JOB_KV_READ, .session = &b->kv[s], .kv = &b->kv[s], .client = b->client[s], .end = 2, .n_tokens = 1};
    size_t row = sn_kv_transfer_row_floats(sn_span_hparams(b->span), 0, 2);
    REQUIRE(sn_shared_buffer_new(row * sizeof(float), &job->output, &err));
    b->n_reads[s]++;
    sn_scheduler_add(b->scheduler, job);
}

static void add_close(fixture *b, int s) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_CLOSE, .session = &b->kv[s], .kv = &b->kv[s]};
    b->job[s] = job;
    sn_scheduler_add(b->scheduler, job);
}

/* Runs one round, `us` later. Compares the output of finished jobs with that of a session alone, and frees them. */
static void run_round_after(fixture *b, int64_t us) {
    b->now += us;
    memset(b->newly_served, 0, sizeof b->newly_served);
    for (sn_job *job = sn_scheduler_run(b->scheduler, b->now), *next; job; job = next) {
        next = job->next;
        int s = (int)((sn_kv_cache **)job->session - b->kv);
        if (job->kind == SN_JOB_KV_READ) {
            b->n_reads[s]--;
            sn_job_free(&job);
            continue;
        }
        b->job[s] = NULL;
        b->ended[s] = job->status;
        b->newly_served[s] = job->kind == SN_JOB_STEP && !job->position && job->started_us == b->now;
        b->n_ended++;
        if (job->kind == SN_JOB_CLOSE) {
            b->length[s] = 0;
        } else if (!job->status) {
            b->length[s] = job->position + job->n_tokens;
            cr_assert(!b->expected || !memcmp(sn_shared_buffer_data(job->output), b->expected + job->position * EMBD,
                                              (size_t)job->n_tokens * EMBD * sizeof(float)),
                      "session %d, position %d", s, job->position);
        } else {
            b->length[s] = job->position < b->length[s] ? job->position : b->length[s];
        }
        sn_job_free(&job);
    }
}

static void fixture_begin(fixture *b, int pages, int swap_pages, size_t prefix_cache_memory) {
    *b = (fixture){.now = SECOND};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_blocks = 2});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    REQUIRE(sn_span_load(model, b->device, 0, 2, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    tiny_model_remove(&path);
    b->rows = calloc(LENGTH_MAX * EMBD, sizeof(float));
    for (int i = 0; i < LENGTH_MAX * EMBD; i++) b->rows[i] = (float)(i % 97) / 97.0f - 0.5f;
    for (int i = 1; i <= LENGTH_MAX; i++) b->hash[i] = sn_hash_of(&b->hash[i - 1], SN_HASH_SIZE);
    REQUIRE(sn_span_kv_pool(b->span, 16 << 20, &b->pool, &err)); /* enough for the expected output */
    REQUIRE(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    add_step(b, 0, 0, LENGTH_MAX);
    float *expected = calloc(LENGTH_MAX * EMBD, sizeof(float));
    sn_shared_buffer *output = sn_shared_buffer_ref(b->job[0]->output);
    while (b->job[0]) run_round_after(b, 1);
    memcpy(expected, sn_shared_buffer_data(output), LENGTH_MAX * EMBD * sizeof(float));
    sn_shared_buffer_unref(output);
    b->expected = expected;
    b->length[0] = b->n_ended = 0;
    sn_kv_cache_free(&b->kv[0]);
    sn_scheduler_free(&b->scheduler);
    size_t page = sn_kv_pool_bytes(b->pool) / sn_kv_pool_tokens(b->pool) * PAGE;
    sn_kv_pool_free(&b->pool);
    REQUIRE(sn_span_kv_pool(b->span, (size_t)pages * page, &b->pool, &err));
    if (swap_pages) REQUIRE(sn_swap_enable(b->pool, NULL, (size_t)swap_pages * page, 30 * SECOND, &err));
    REQUIRE(sn_prefix_cache_enable(b->pool, EMBD, prefix_cache_memory, &err));
    REQUIRE(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
}

static void fixture_end(fixture *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < SESSIONS; i++) sn_kv_cache_free(&b->kv[i]);
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0);
    cr_expect_eq(sn_swap_bytes(b->pool), 0);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    free(b->rows);
    free(b->expected);
}

/* Runs rounds of 100 ms until the session's job ends, or the time is over. */
static bool job_ends_within(fixture *b, int s, int64_t us) {
    for (int64_t until = b->now + us; b->job[s] && b->now < until;) run_round_after(b, SECOND / 10);
    return !b->job[s];
}

static void complete_step(fixture *b, int s, int position, int n) {
    add_step(b, s, position, n);
    cr_assert(job_ends_within(b, s, SECOND));
    cr_assert_eq(b->ended[s], SN_OK);
}

Test(kv_admission, an_idle_session_swaps_out_and_in_with_its_bits) {
    fixture b;
    fixture_begin(&b, 8, 8, 0);
    complete_step(&b, 0, 0, 100);
    complete_step(&b, 1, 0, 40);
    for (int i = 0; i < 31; i++) run_round_after(&b, SECOND); /* time passes without jobs */
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 0);
    cr_expect_eq(sn_swap_swapped_pages(b.kv[0]), 4);
    complete_step(&b, 0, 100, 1);
    cr_expect_eq(sn_swap_swapped_pages(b.kv[1]), 2);
    complete_step(&b, 0, 101, 70);
    complete_step(&b, 1, 13, 50); /* a rewind of swapped-out pages */
    fixture_end(&b);
}

Test(kv_admission, swaps_out_the_longest_idle_session_for_a_waiting_one) {
    fixture b;
    fixture_begin(&b, 4, 8, 0);
    complete_step(&b, 0, 0, 64);
    run_round_after(&b, SECOND);
    complete_step(&b, 1, 0, 64);
    run_round_after(&b, SECOND);
    complete_step(&b, 2, 0, 40);
    cr_expect_eq(sn_swap_swapped_pages(b.kv[0]), 2);
    cr_expect_eq(sn_swap_swapped_pages(b.kv[1]), 0);
    complete_step(&b, 0, 64, 3);
    fixture_end(&b);
}

Test(kv_admission, an_active_session_is_not_swapped_out_immediately) {
    fixture b;
    fixture_begin(&b, 4, 8, 0);
    complete_step(&b, 0, 0, 100);
    add_step(&b, 1, 0, 64);
    for (int i = 0; i < 40; i++) { /* four seconds */
        add_step(&b, 0, 100 + i % 20, 1);
        run_round_after(&b, SECOND / 10);
        cr_assert_null(b.job[0]);
        cr_assert_eq(b.ended[0], SN_OK);
        cr_assert_eq(sn_swap_swapped_pages(b.kv[0]), 0);
    }
    cr_expect(b.job[1]);
    for (int i = 0; i < 20; i++) { /* half of its wait is over: the active session is swapped out now */
        if (!b.job[0]) add_step(&b, 0, 100, 1);
        run_round_after(&b, SECOND / 20);
        run_round_after(&b, SECOND / 20);
    }
    cr_expect_null(b.job[1]);
    cr_expect_eq(b.ended[1], SN_OK);
    fixture_end(&b);
}

/* Four prompts of 7 pages in steps of one page, in a pool that holds two of them and no half of all four. */
static int64_t run_four_prompts(int swap_pages) {
    enum { PROMPTS = 4, PAGES = 7 };
    fixture b;
    fixture_begin(&b, 14, swap_pages, 0);
    int64_t began = b.now;
    for (int left = PROMPTS; left && b.now < began + 600 * SECOND;) {
        left = 0;
        for (int s = 0; s < PROMPTS; s++) {
            if (b.job[s] || b.length[s] == PAGES * PAGE) {
                left += b.job[s] != NULL;
                continue;
            }
            cr_assert_eq(b.ended[s], SN_OK, "session %d, token %d", s, b.length[s]);
            add_step(&b, s, b.length[s], PAGE);
            left++;
        }
        run_round_after(&b, SECOND / 50);
    }
    for (int s = 0; s < PROMPTS; s++) cr_expect_eq(b.length[s], PAGES * PAGE);
    int64_t took = b.now - began;
    fixture_end(&b);
    return took;
}

Test(kv_admission, sessions_that_fit_in_part_take_turns_where_pages_are_swapped_out) {
    int64_t took = run_four_prompts(28);
    cr_expect_lt(took, WAIT, "%lld ms", (long long)took / 1000); /* less than one step may wait */
}

Test(kv_admission, nothing_is_discarded_for_a_turn) {
    fixture b;
    fixture_begin(&b, 4, 1, 0); /* what is swapped out makes no room for the turn */
    complete_step(&b, 0, 0, 64);
    complete_step(&b, 1, 0, 64);
    add_step(&b, 0, 64, 64);
    add_step(&b, 1, 64, 64);
    for (int i = 0; i < 40; i++) run_round_after(&b, SECOND / 10); /* four seconds */
    cr_expect(b.job[0] && b.job[1], "a session lost its pages before half of the wait was over");
    cr_assert(job_ends_within(&b, 0, WAIT) && job_ends_within(&b, 1, WAIT));
    cr_expect_eq(b.ended[0], SN_OK);
    fixture_end(&b);
}

/* Two sessions hold half of the pages each, and need more. */
static void fill_in_halves(fixture *b, int swap_pages) {
    fixture_begin(b, 4, swap_pages, 0);
    complete_step(b, 0, 0, 64);
    complete_step(b, 1, 0, 64);
    add_step(b, 0, 64, 33);
    add_step(b, 1, 64, 33);
}

Test(kv_admission, two_growing_sessions_both_fit_with_swap) {
    fixture b;
    fill_in_halves(&b, 8);
    cr_expect(job_ends_within(&b, 0, WAIT * 2 / 3));
    cr_expect(job_ends_within(&b, 1, WAIT * 2 / 3));
    cr_expect(b.ended[0] == SN_OK && b.ended[1] == SN_OK);
    fixture_end(&b);
}

Test(kv_admission, without_swap_the_younger_session_is_dropped) {
    fixture b;
    fill_in_halves(&b, 0);
    cr_expect(job_ends_within(&b, 0, WAIT * 2 / 3));
    cr_expect(job_ends_within(&b, 1, WAIT * 2 / 3));
    cr_expect_eq(b.ended[0], SN_OK);
    cr_expect_eq(b.ended[1], SN_REBUILD);
    add_step(&b, 1, 64, 1); /* its pages were freed for good */
    cr_expect(job_ends_within(&b, 1, SECOND));
    cr_expect_eq(b.ended[1], SN_REBUILD);
    fixture_end(&b);
}

Test(kv_admission, a_new_session_takes_no_pages_of_earlier_ones) {
    fixture b;
    fixture_begin(&b, 4, 0, 0);
    complete_step(&b, 0, 0, 128);
    add_step(&b, 1, 0, 64);
    for (int i = 0; i < 110 && b.job[1]; i++) {
        if (!b.job[0]) add_step(&b, 0, 127, 1);
        run_round_after(&b, SECOND / 10);
        cr_assert_eq(b.ended[0], SN_OK);
    }
    cr_expect_eq(b.ended[1], SN_RETRY);
    fixture_end(&b);
}

/* Sessions 0 and 1 are of client 1, and have all pages between two steps. */
static void fill_by_one_client(fixture *b, size_t prefix_cache_memory, int rows) {
    fixture_begin(b, 4, 0, prefix_cache_memory);
    b->client[0] = b->client[1] = 1;
    complete_step(b, 0, 0, rows);
    complete_step(b, 1, 0, rows);
    cr_assert_eq(sn_kv_pool_bytes_used(b->pool), sn_kv_pool_bytes(b->pool));
}

Test(kv_admission, a_client_that_leaves_most_pages_idle_makes_room_for_another) {
    fixture b;
    fill_by_one_client(&b, 0, 64);
    b.client[2] = 2;
    add_step(&b, 2, 0, 40);
    cr_expect(job_ends_within(&b, 2, SECOND));
    cr_expect_eq(b.ended[2], SN_OK);
    complete_step(&b, 1, 40, 24); /* it was idle for less long */
    add_step(&b, 0, 64, 1);
    cr_expect(job_ends_within(&b, 0, SECOND));
    cr_expect_eq(b.ended[0], SN_REBUILD, "its client is told to replay");
    fixture_end(&b);
}

Test(kv_admission, a_client_with_most_pages_keeps_none_by_reads_without_end) {
    fixture b;
    fill_by_one_client(&b, 0, 64);
    b.client[2] = 2;
    add_step(&b, 2, 0, 40);
    for (int i = 0; i < 10 && b.job[2]; i++) {
        for (int s = 0; s < 2; s++)
            while (b.n_reads[s] < 2) add_read(&b, s);
        run_round_after(&b, SECOND / 10);
    }
    cr_expect_null(b.job[2]);
    cr_expect_eq(b.ended[2], SN_OK);
    fixture_end(&b);
}

/* Session 1 is read, but waits for pages to be swapped in; a step of it brings them in, and begins before it is the
 * read's turn. Then session 0, which is older, claims pages. */
Test(kv_admission, pages_of_a_step_that_has_begun_are_not_taken_from_a_read_beside_it) {
    fixture b;
    size_t pages = 2;
    fixture_begin(&b, 6, 8, 0);
    sn_scheduler_set_throughput(b.scheduler, 0, 1250000); /* 8 rows in a batch beside others */
    for (int s = 0; s < 5; s++) b.client[s] = (uint64_t)s + 1;
    complete_step(&b, 0, 0, 32);
    complete_step(&b, 1, 0, 64);
    complete_step(&b, 2, 0, 32);
    complete_step(&b, 3, 0, 32);
    REQUIRE(sn_swap_out(b.kv[1], &pages, &err));
    complete_step(&b, 4, 0, 96);
    add_step(&b, 0, 32, 128);
    add_read(&b, 1);
    run_round_after(&b, 1);
    cr_assert(b.job[0]->kv_waited && b.n_reads[1]);
    add_read(&b, 2);
    add_read(&b, 3);
    add_close(&b, 4);
    add_step(&b, 1, 64, 32);
    for (int i = 0; i < 2; i++) {
        sn_scheduler_note_others(b.scheduler, b.now + 6 * SECOND * i);
        run_round_after(&b, i ? 6 * SECOND : 1);
        cr_assert(b.job[1] && b.job[1]->n_done == 8 * (i + 1) && b.n_reads[1], "the step has begun before the read");
    }
    cr_expect(job_ends_within(&b, 1, SECOND));
    cr_expect_eq(b.ended[1], SN_OK);
    cr_expect(job_ends_within(&b, 0, 3 * SECOND));
    cr_expect_eq(b.ended[0], SN_OK);
    cr_expect_eq(b.n_reads[1], 0);
    fixture_end(&b);
}

Test(kv_admission, a_session_whose_read_waits_is_swapped_out_and_not_lost) {
    fixture b;
    size_t pages = 1;
    fixture_begin(&b, 5, 8, 0);
    complete_step(&b, 0, 0, 32);
    complete_step(&b, 1, 0, 64);
    REQUIRE(sn_swap_out(b.kv[1], &pages, &err));
    complete_step(&b, 0, 32, 96);
    add_step(&b, 0, 128, 32);
    add_read(&b, 1);
    run_round_after(&b, 1);
    cr_assert(b.job[0] && b.n_reads[1]);
    cr_expect(job_ends_within(&b, 0, 6 * SECOND));
    cr_expect_eq(b.ended[0], SN_OK);
    cr_expect_eq(sn_swap_swapped_pages(b.kv[1]), 2);
    complete_step(&b, 1, 64, 1);
    fixture_end(&b);
}

Test(kv_admission, shared_pages_of_one_client_that_are_idle_for_long_make_room) {
    fixture b;
    fill_by_one_client(&b, 1 << 20, 4 * PAGE);
    cr_assert_eq(sn_prefix_cache_pages_shared(b.pool), 4);
    run_round_after(&b, 5 * SECOND);
    b.client[2] = 2;
    add_step(&b, 2, 0, 40);
    cr_expect(!job_ends_within(&b, 2, 4 * SECOND)); /* each of the two has too much to be given up so soon */
    cr_expect(job_ends_within(&b, 2, 2 * SECOND));
    cr_expect_eq(b.ended[2], SN_OK);
    fixture_end(&b);
}

Test(kv_admission, two_clients_do_not_take_pages_from_each_other_in_turn) {
    fixture b;
    fixture_begin(&b, 4, 0, 0);
    b.client[0] = 1;
    b.client[1] = 2;
    complete_step(&b, 0, 0, 128); /* all pages in one session */
    add_step(&b, 1, 0, 64);
    while (b.job[1]) {
        if (!b.job[0]) add_step(&b, 0, 127, 1);
        run_round_after(&b, SECOND / 20);
        run_round_after(&b, SECOND / 20);
        cr_assert_eq(b.ended[0], SN_OK);
    }
    cr_expect_eq(b.ended[1], SN_RETRY);
    fixture_end(&b);
}

Test(kv_admission, a_client_with_most_pages_gives_some_also_when_it_waits) {
    fixture b;
    fill_by_one_client(&b, 0, 64);
    add_step(&b, 0, 64, 33);
    add_step(&b, 1, 64, 33);
    run_round_after(&b, 1);
    b.client[2] = 2;
    add_step(&b, 2, 0, 40);
    cr_expect(job_ends_within(&b, 2, SECOND));
    cr_expect_eq(b.ended[2], SN_OK);
    cr_expect(!b.job[1] && b.ended[1] == SN_REBUILD, "the younger of the two that wait gives its pages");
    cr_expect(b.job[0], "the other one waits");
    fixture_end(&b);
}

Test(kv_admission, a_client_with_most_pages_holds_no_others_up_when_it_waits) {
    fixture b;
    fixture_begin(&b, 4, 0, 0);
    b.client[0] = b.client[1] = 1;
    b.client[2] = 2;
    complete_step(&b, 0, 0, 96);
    add_step(&b, 1, 0, 64);
    run_round_after(&b, 1);
    add_step(&b, 2, 0, 1); /* for which there is a page */
    cr_expect(job_ends_within(&b, 2, SECOND));
    cr_expect_eq(b.ended[2], SN_OK);
    cr_expect(b.job[1] && sn_kv_cache_length(b.kv[0]) == 96);
    fixture_end(&b);
}

Test(kv_admission, a_client_with_most_pages_goes_on_beside_a_step_that_asks_for_too_many) {
    fixture b;
    fixture_begin(&b, 4, 0, 0);
    b.client[0] = 1;
    b.client[1] = 2;
    complete_step(&b, 0, 0, 96);
    add_step(&b, 1, 0, 64); /* which lacks a page, and the other session has too much to be given up */
    run_round_after(&b, 1);
    add_step(&b, 0, 96, 1);
    cr_expect(job_ends_within(&b, 0, SECOND));
    cr_expect_eq(b.ended[0], SN_OK);
    cr_expect(job_ends_within(&b, 1, WAIT));
    cr_expect_eq(b.ended[1], SN_RETRY);
    fixture_end(&b);
}

Test(kv_admission, a_client_with_half_of_the_pages_keeps_them) {
    fixture b;
    fixture_begin(&b, 4, 0, 0);
    for (int s = 0; s < 3; s++) b.client[s] = (uint64_t)s + 1;
    complete_step(&b, 0, 0, 64);
    complete_step(&b, 1, 0, 64);
    add_step(&b, 2, 0, 1);
    cr_expect(job_ends_within(&b, 2, WAIT + SECOND));
    cr_expect_eq(b.ended[2], SN_RETRY);
    complete_step(&b, 0, 40, 24);
    complete_step(&b, 1, 40, 24);
    fixture_end(&b);
}

Test(kv_admission, a_cancelled_wait_frees_its_pages_at_once) {
    fixture b;
    fill_in_halves(&b, 0);
    run_round_after(&b, 1);
    cr_assert(b.job[0] && b.job[1]);
    atomic_store(&b.job[1]->cancelled, true);
    run_round_after(&b, 1);
    cr_assert_null(b.job[1]);
    add_close(&b, 1);
    run_round_after(&b, 1);
    run_round_after(&b, 1);
    cr_expect_null(b.job[0]);
    cr_expect_eq(b.ended[0], SN_OK);
    fixture_end(&b);
}

/* Thousands of steps, rewinds, cancellations and closed sessions in a KV cache that is nearly always full. Every job
 * ends by its deadline, every result has the bits of a session alone, sessions without pages get pages in the order
 * in which they asked, and all memory is freed at the end. */
static void run_random_work(unsigned seed, int swap_pages, size_t prefix_cache_memory, int clients) {
    enum { ROUNDS = 4000 };
    fixture b;
    fixture_begin(&b, 9, swap_pages, prefix_cache_memory);
    for (int s = 0; s < SESSIONS; s++) b.client[s] = (uint64_t)(s * s % clients);
    uint64_t random = seed;
    int ended[2] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned r = (unsigned)(random >> 33);
        int s = (int)(r % SESSIONS), at = b.length[s], n = 1 + (int)(r >> 8) % 60;
        if (b.job[s]) {
            if ((r >> 4) % 8 == 0 && b.job[s]->kind == SN_JOB_STEP) atomic_store(&b.job[s]->cancelled, true);
        } else if ((r >> 4) % 8 == 0 || b.ended[s] == SN_REBUILD || at + n > LENGTH_MAX) {
            add_close(&b, s);
        } else {
            if ((r >> 4) % 8 == 1 && at) at = (int)(r >> 16) % at;
            add_step(&b, s, at, (r >> 20) % 2 ? n : 1);
        }
        int first = -1; /* the first session without KV pages */
        int64_t came = INT64_MAX;
        for (int k = 0; k < SESSIONS; k++)
            if (b.job[k] && b.job[k]->kind == SN_JOB_STEP && !b.job[k]->position && b.job[k]->arrived_us < came &&
                !b.job[k]->started_us)
                first = k, came = b.job[k]->arrived_us;
        int before = b.n_ended;
        run_round_after(&b, 1 + (int64_t)(r >> 12) % (SECOND / 2));
        for (int k = 0; k < SESSIONS; k++) {
            const sn_job *job = b.job[k] && b.job[k]->kind == SN_JOB_STEP ? b.job[k] : NULL;
            cr_assert(!job || job->started_us || b.now <= job->deadline_us, "seed %u: a job waits beyond its deadline",
                      seed);
            bool served = b.newly_served[k] || (job && !job->position && job->started_us == b.now);
            bool others_wait = clients == 1 && first >= 0 && k != first && b.job[first] && !b.job[first]->started_us;
            cr_assert(!served || !others_wait, "seed %u: session %d was served before %d", seed, k, first);
        }
        ended[b.n_ended > before]++;
    }
    for (int s = 0; s < SESSIONS; s++) {
        if (b.job[s] && b.job[s]->kind == SN_JOB_STEP) atomic_store(&b.job[s]->cancelled, true);
        cr_assert(job_ends_within(&b, s, SECOND));
        add_close(&b, s);
    }
    run_round_after(&b, 1);
    cr_expect(sn_scheduler_idle(b.scheduler));
    cr_expect_gt(ended[1], ROUNDS / 8);
    fixture_end(&b);
}

Test(kv_admission, invariants_hold_under_random_work) {
    for (unsigned seed = 1; seed <= 3; seed++) run_random_work(seed, 0, 0, 1);
}
Test(kv_admission, invariants_hold_under_random_work_with_swap) {
    for (unsigned seed = 11; seed <= 13; seed++) run_random_work(seed, 20, 0, 1);
}
Test(kv_admission, invariants_hold_under_random_work_with_little_swap) {
    for (unsigned seed = 21; seed <= 23; seed++) run_random_work(seed, 3, 0, 1);
}
Test(kv_admission, invariants_hold_under_random_work_with_prefix_cache) {
    for (unsigned seed = 31; seed <= 33; seed++) run_random_work(seed, 10, 12 * PAGE * EMBD * sizeof(float), 1);
}
Test(kv_admission, invariants_hold_under_random_work_of_clients) {
    for (unsigned seed = 41; seed <= 49; seed++)
        run_random_work(seed, seed % 3 ? 0 : 3, seed % 2 ? 12 * PAGE * EMBD * sizeof(float) : 0, 3);
}
