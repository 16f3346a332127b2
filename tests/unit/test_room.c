/* The scheduler when the cache is full: who waits, who gets room, who gives it; and that nobody waits for ever. */
#include "node/scheduler.h"

#include "kvcache/idle.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SESSIONS = 12, EMBD = 64, PAGE = SN_KV_PAGE_TOKENS, SECOND = 1000000, WAIT = 10 * SECOND, LENGTH_MAX = 256 };

typedef struct bench {
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_kv *kv[SESSIONS];
    sn_job *job[SESSIONS]; /* in the scheduler */
    sn_status ended[SESSIONS]; /* how the last one ended */
    bool newly_served[SESSIONS]; /* in the last round, a step at position 0 */
    int n_ended, length[SESSIONS];
    float *rows, *expected; /* (LENGTH_MAX, EMBD): the input of every session, and what a session alone makes of it */
    sn_hash hash[LENGTH_MAX + 1];
    int64_t now;
} bench;

static void add(bench *b, int s, int position, int n) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP,
                    .session = &b->kv[s],
                    .kv = &b->kv[s],
                    .end = 2,
                    .position = position,
                    .n_tokens = n,
                    .shares = true,
                    .arrived_us = b->now,
                    .deadline_us = b->now + WAIT,
                    .input = {.name = "rows", .data = b->rows + position * EMBD, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    NEED(sn_shared_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    for (int i = 0, page = position / PAGE + 1; (page + i) * PAGE <= position + n; i++)
        job->ends[i] = b->hash[(page + i) * PAGE];
    b->job[s] = job;
    sn_scheduler_add(b->scheduler, job);
}

static void add_close(bench *b, int s) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_CLOSE, .session = &b->kv[s], .kv = &b->kv[s]};
    b->job[s] = job;
    sn_scheduler_add(b->scheduler, job);
}

/* One round, after `us`. What ended is checked against what a session alone makes, and freed. */
static void round_after(bench *b, int64_t us) {
    b->now += us;
    memset(b->newly_served, 0, sizeof b->newly_served);
    for (sn_job *job = sn_scheduler_run(b->scheduler, b->now), *next; job; job = next) {
        next = job->next;
        int s = (int)((sn_kv **)job->session - b->kv);
        b->job[s] = NULL;
        b->ended[s] = job->status;
        b->newly_served[s] = job->kind == SN_JOB_STEP && !job->position && job->started_us == b->now;
        b->n_ended++;
        if (job->kind == SN_JOB_CLOSE) {
            b->length[s] = 0;
        } else if (!job->status) {
            b->length[s] = job->position + job->n_tokens;
            cr_assert(!b->expected || !memcmp(sn_shared_data(job->output), b->expected + job->position * EMBD,
                                              (size_t)job->n_tokens * EMBD * sizeof(float)),
                      "session %d, position %d", s, job->position);
        } else {
            b->length[s] = job->position < b->length[s] ? job->position : b->length[s];
        }
        sn_job_free(&job);
    }
}

static void bench_begin(bench *b, int pages, int idle_pages, size_t prefix_memory) {
    *b = (bench){.now = SECOND};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    char *path = tiny_make(&(tiny_options){.dtype = SN_F32, .n_blocks = 2});
    NEED(sn_model_open(path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    NEED(sn_span_load(model, b->device, 0, 2, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    tiny_remove(&path);
    b->rows = calloc(LENGTH_MAX * EMBD, sizeof(float));
    for (int i = 0; i < LENGTH_MAX * EMBD; i++) b->rows[i] = (float)(i % 97) / 97.0f - 0.5f;
    for (int i = 1; i <= LENGTH_MAX; i++) b->hash[i] = sn_hash_of(&b->hash[i - 1], SN_HASH_SIZE);
    NEED(sn_span_kv_pool(b->span, 16 << 20, &b->pool, &err)); /* roomy, for what is expected */
    NEED(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    add(b, 0, 0, LENGTH_MAX);
    float *expected = calloc(LENGTH_MAX * EMBD, sizeof(float));
    sn_shared *output = sn_shared_ref(b->job[0]->output);
    while (b->job[0]) round_after(b, 1);
    memcpy(expected, sn_shared_data(output), LENGTH_MAX * EMBD * sizeof(float));
    sn_shared_unref(output);
    b->expected = expected;
    b->length[0] = b->n_ended = 0;
    sn_kv_free(&b->kv[0]);
    sn_scheduler_free(&b->scheduler);
    size_t page = sn_kv_pool_bytes(b->pool) / sn_kv_pool_tokens(b->pool) * PAGE;
    sn_kv_pool_free(&b->pool);
    NEED(sn_span_kv_pool(b->span, (size_t)pages * page, &b->pool, &err));
    if (idle_pages) NEED(sn_idle_open(b->pool, NULL, (size_t)idle_pages * page, 30 * SECOND, &err));
    NEED(sn_prefix_share(b->pool, EMBD, prefix_memory, &err));
    NEED(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
}

static void bench_end(bench *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < SESSIONS; i++) sn_kv_free(&b->kv[i]);
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0);
    cr_expect_eq(sn_idle_bytes(b->pool), 0);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    free(b->rows);
    free(b->expected);
}

/* Rounds of 100 ms until the session's job ends, or the time is over. */
static bool ends_within(bench *b, int s, int64_t us) {
    for (int64_t until = b->now + us; b->job[s] && b->now < until;) round_after(b, SECOND / 10);
    return !b->job[s];
}

static void done(bench *b, int s, int position, int n) {
    add(b, s, position, n);
    cr_assert(ends_within(b, s, SECOND));
    cr_assert_eq(b->ended[s], SN_OK);
}

Test(room, a_session_at_rest_goes_and_comes_back_with_its_bits) {
    bench b;
    bench_begin(&b, 8, 8, 0);
    done(&b, 0, 0, 100);
    done(&b, 1, 0, 40);
    for (int i = 0; i < 31; i++) round_after(&b, SECOND); /* no jobs: only time */
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 0);
    cr_expect_eq(sn_idle_away(b.kv[0]), 4);
    done(&b, 0, 100, 1);
    cr_expect_eq(sn_idle_away(b.kv[1]), 2);
    done(&b, 0, 101, 70);
    done(&b, 1, 13, 50); /* a rewind of what is away */
    bench_end(&b);
}

Test(room, who_waits_gets_the_room_of_who_rests_the_longest) {
    bench b;
    bench_begin(&b, 4, 8, 0);
    done(&b, 0, 0, 64);
    round_after(&b, SECOND);
    done(&b, 1, 0, 64);
    round_after(&b, SECOND);
    done(&b, 2, 0, 40);
    cr_expect_eq(sn_idle_away(b.kv[0]), 2);
    cr_expect_eq(sn_idle_away(b.kv[1]), 0);
    done(&b, 0, 64, 3);
    bench_end(&b);
}

Test(room, a_session_between_two_steps_is_not_sent_away_at_once) {
    bench b;
    bench_begin(&b, 4, 8, 0);
    done(&b, 0, 0, 100);
    add(&b, 1, 0, 64);
    for (int i = 0; i < 40; i++) { /* four seconds */
        add(&b, 0, 100 + i % 20, 1);
        round_after(&b, SECOND / 10);
        cr_assert_null(b.job[0]);
        cr_assert_eq(b.ended[0], SN_OK);
        cr_assert_eq(sn_idle_away(b.kv[0]), 0);
    }
    cr_expect(b.job[1]);
    for (int i = 0; i < 20; i++) { /* half of its time is over: now it is its turn */
        if (!b.job[0]) add(&b, 0, 100, 1);
        round_after(&b, SECOND / 20);
        round_after(&b, SECOND / 20);
    }
    cr_expect_null(b.job[1]);
    cr_expect_eq(b.ended[1], SN_OK);
    bench_end(&b);
}

/* Two sessions hold half each, and want more than that. */
static void halves(bench *b, int idle_pages) {
    bench_begin(b, 4, idle_pages, 0);
    done(b, 0, 0, 64);
    done(b, 1, 0, 64);
    add(b, 0, 64, 33);
    add(b, 1, 64, 33);
}

Test(room, two_that_hold_half_each_and_want_more_both_get_it_where_one_can_be_set_aside) {
    bench b;
    halves(&b, 8);
    cr_expect(ends_within(&b, 0, WAIT * 2 / 3));
    cr_expect(ends_within(&b, 1, WAIT * 2 / 3));
    cr_expect(b.ended[0] == SN_OK && b.ended[1] == SN_OK);
    bench_end(&b);
}

Test(room, else_the_younger_one_gives_way_and_the_older_one_goes_on) {
    bench b;
    halves(&b, 0);
    cr_expect(ends_within(&b, 0, WAIT * 2 / 3));
    cr_expect(ends_within(&b, 1, WAIT * 2 / 3));
    cr_expect_eq(b.ended[0], SN_OK);
    cr_expect_eq(b.ended[1], SN_REBUILD);
    add(&b, 1, 64, 1); /* what it held is gone for good */
    cr_expect(ends_within(&b, 1, SECOND));
    cr_expect_eq(b.ended[1], SN_REBUILD);
    bench_end(&b);
}

Test(room, a_newcomer_does_not_take_it_from_those_who_were_first) {
    bench b;
    bench_begin(&b, 4, 0, 0);
    done(&b, 0, 0, 128);
    add(&b, 1, 0, 64);
    for (int i = 0; i < 110 && b.job[1]; i++) {
        if (!b.job[0]) add(&b, 0, 127, 1);
        round_after(&b, SECOND / 10);
        cr_assert_eq(b.ended[0], SN_OK);
    }
    cr_expect_eq(b.ended[1], SN_RETRY);
    bench_end(&b);
}

Test(room, what_is_cancelled_while_it_waits_gives_its_room_at_once) {
    bench b;
    halves(&b, 0);
    round_after(&b, 1);
    cr_assert(b.job[0] && b.job[1]);
    atomic_store(&b.job[1]->cancelled, true);
    round_after(&b, 1);
    cr_assert_null(b.job[1]);
    add_close(&b, 1);
    round_after(&b, 1);
    round_after(&b, 1);
    cr_expect_null(b.job[0]);
    cr_expect_eq(b.ended[0], SN_OK);
    bench_end(&b);
}

/* Thousands of steps, rewinds, cancellations and ends in a cache that is nearly always full. Every job ends by its deadline,
 * every result has the bits of a session alone, sessions that have nothing yet get room in the order in which they came, and
 * all memory comes back. */
static void stress(unsigned seed, int idle_pages, size_t prefix_memory) {
    enum { ROUNDS = 4000 };
    bench b;
    bench_begin(&b, 9, idle_pages, prefix_memory);
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
            add(&b, s, at, (r >> 20) % 2 ? n : 1);
        }
        int first = -1; /* the first of those without a past */
        int64_t came = INT64_MAX;
        for (int k = 0; k < SESSIONS; k++)
            if (b.job[k] && b.job[k]->kind == SN_JOB_STEP && !b.job[k]->position && b.job[k]->arrived_us < came &&
                !b.job[k]->started_us)
                first = k, came = b.job[k]->arrived_us;
        int before = b.n_ended;
        round_after(&b, 1 + (int64_t)(r >> 12) % (SECOND / 2));
        for (int k = 0; k < SESSIONS; k++) {
            const sn_job *job = b.job[k] && b.job[k]->kind == SN_JOB_STEP ? b.job[k] : NULL;
            cr_assert(!job || job->started_us || b.now <= job->deadline_us, "seed %u: a job waits for ever", seed);
            bool served = b.newly_served[k] || (job && !job->position && job->started_us == b.now);
            bool others_wait = first >= 0 && k != first && b.job[first] && !b.job[first]->started_us;
            cr_assert(!served || !others_wait, "seed %u: session %d was served before %d", seed, k, first);
        }
        ended[b.n_ended > before]++;
    }
    for (int s = 0; s < SESSIONS; s++) {
        if (b.job[s] && b.job[s]->kind == SN_JOB_STEP) atomic_store(&b.job[s]->cancelled, true);
        cr_assert(ends_within(&b, s, SECOND));
        add_close(&b, s);
    }
    round_after(&b, 1);
    cr_expect(sn_scheduler_idle(b.scheduler));
    cr_expect_gt(ended[1], ROUNDS / 8);
    bench_end(&b);
}

Test(room, holds_under_random_work) {
    for (unsigned seed = 1; seed <= 3; seed++) stress(seed, 0, 0);
}
Test(room, holds_under_random_work_with_sessions_set_aside) {
    for (unsigned seed = 11; seed <= 13; seed++) stress(seed, 20, 0);
}
Test(room, holds_under_random_work_with_little_place_aside) {
    for (unsigned seed = 21; seed <= 23; seed++) stress(seed, 3, 0);
}
Test(room, holds_under_random_work_with_shared_beginnings) {
    for (unsigned seed = 31; seed <= 33; seed++) stress(seed, 10, 12 * PAGE * EMBD * sizeof(float));
}
