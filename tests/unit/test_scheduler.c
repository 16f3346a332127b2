#include "node/scheduler.h"

#include "model/safetensors.h"
#include "tests/support/far_device.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

enum { JOBS = 24, EMBD = 64, PAGE = SN_KV_PAGE_TOKENS };

typedef struct bench {
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_kv *kv[JOBS];
    float *rows; /* (512, EMBD) */
    size_t page;
    int64_t now;
} bench;

static void bench_begin(bench *b, int pages) {
    *b = (bench){.now = 1000000};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    char *path = tiny_make(&(tiny_options){.dtype = SN_F32});
    NEED(sn_model_open(path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    NEED(sn_span_load(model, b->device, 0, 4, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    tiny_remove(&path);
    NEED(sn_span_kv_pool(b->span, 16 << 20, &b->pool, &err));
    b->page = sn_kv_pool_bytes(b->pool) / sn_kv_pool_tokens(b->pool) * PAGE;
    sn_kv_pool_free(&b->pool);
    NEED(sn_span_kv_pool(b->span, (size_t)pages * b->page, &b->pool, &err));
    NEED(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    b->rows = calloc(SN_SPAN_ROWS_MAX * EMBD, sizeof(float));
    for (int i = 0; i < SN_SPAN_ROWS_MAX * EMBD; i++) b->rows[i] = (float)(i % 97) / 97.0f - 0.5f;
}

static void bench_end(bench *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < JOBS; i++) sn_kv_free(&b->kv[i]);
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    free(b->rows);
}

/* A step of n tokens for session s, over blocks [first, end), which goes into the scheduler. It waits 10 s for room. */
static sn_job *add_over(bench *b, int s, int position, int n, int first, int end) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP,
                    .session = &b->kv[s],
                    .kv = &b->kv[s],
                    .first = first,
                    .end = end,
                    .position = position,
                    .n_tokens = n,
                    .arrived_us = b->now,
                    .deadline_us = b->now + 10000000,
                    .input = {.name = "rows", .data = b->rows, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    NEED(sn_shared_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    sn_scheduler_add(b->scheduler, job);
    return job;
}

static sn_job *add(bench *b, int s, int position, int n) { return add_over(b, s, position, n, 0, 4); }

static void add_close(bench *b, int s) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_CLOSE, .session = &b->kv[s], .kv = &b->kv[s]};
    sn_scheduler_add(b->scheduler, job);
}

/* One pass. Returns how many jobs ended, all of them with `status`, and frees them; the bits of *sessions are whose. */
static int pass(bench *b, sn_status status, unsigned *sessions) {
    int n = 0;
    *sessions = 0;
    for (sn_job *job = sn_scheduler_run(b->scheduler, ++b->now), *next; job; job = next, n++) {
        next = job->next;
        *sessions |= 1u << ((sn_kv **)job->session - b->kv);
        cr_expect_eq(job->status, status, "%s", job->err.text);
        sn_job_free(&job);
    }
    return n;
}

Test(scheduler, takes_many_sessions_in_one_pass) {
    bench b;
    unsigned who;
    bench_begin(&b, 64);
    for (int s = 0; s < 20; s++) add(&b, s, 0, 1 + s % 8);
    cr_expect_eq(pass(&b, SN_OK, &who), 20);
    cr_expect_eq(sn_scheduler_passes(b.scheduler), 1);
    cr_expect(sn_scheduler_idle(b.scheduler));
    for (int s = 0; s < 20; s++) cr_expect_eq(sn_kv_length(b.kv[s]), 1 + s % 8);
    bench_end(&b);
}

Test(scheduler, writes_first_and_reads_prompts_beside_in_small_pieces) {
    bench b;
    unsigned who;
    bench_begin(&b, 64);
    sn_job *prompt = add(&b, 0, 0, 500); /* came first */
    add(&b, 1, 0, 300);
    for (int i = 0; i < 3; i++) { /* somebody always writes */
        add(&b, 2, i, 1);
        cr_expect_eq(pass(&b, SN_OK, &who), 1);
        cr_expect_eq(who, 1u << 2, "the decode step did not come out of pass %d", i);
        cr_expect_eq(prompt->n_done, (i + 1) * SN_PROMPT_ROWS_BESIDE);
    }
    cr_expect_null(b.kv[1] && sn_kv_length(b.kv[1]) ? b.kv[1] : NULL);
    b.now += 2000000;
    cr_expect_eq(pass(&b, SN_OK, &who), 1); /* nobody writes any more: a whole pass for prompts, the older first */
    cr_expect_eq(who, 1u);
    cr_expect_eq(sn_kv_length(b.kv[0]), 500);
    cr_expect_eq(sn_kv_length(b.kv[1]), SN_SPAN_ROWS_MAX - (500 - 3 * SN_PROMPT_ROWS_BESIDE));
    cr_expect_eq(pass(&b, SN_OK, &who), 1);
    cr_expect_eq(who, 2u);
    cr_expect_eq(sn_scheduler_passes(b.scheduler), 5);
    bench_end(&b);
}

/* Rows of prompts in the next pass, beside n sessions that each write one token, when a row adds so much to a pass. */
static int rows_beside(bench *b, uint64_t row_ns, int writers) {
    unsigned who;
    sn_scheduler_pace(b->scheduler, 0, row_ns);
    add(b, 0, 0, SN_SPAN_ROWS_MAX);
    for (int s = 1; s <= writers; s++) add(b, s, 0, 1);
    cr_expect_geq(pass(b, SN_OK, &who), writers);
    int rows = sn_kv_length(b->kv[0]);
    while (!sn_scheduler_idle(b->scheduler)) pass(b, SN_OK, &who);
    return rows;
}

Test(scheduler, prompts_delay_those_who_write_by_some_milliseconds_however_fast_the_device) {
    bench b;
    bench_begin(&b, 64);
    cr_expect_eq(rows_beside(&b, 600000, 3), 16);            /* 10 ms of 0.6 */
    cr_expect_eq(rows_beside(&b, 30000, 3), 328);            /* of 0.03 */
    cr_expect_eq(rows_beside(&b, 1000, 3), SN_SPAN_ROWS_MAX - 3); /* of next to nothing: as many as a pass has room for */
    cr_expect_eq(rows_beside(&b, 50000000, 3), 8);           /* never so few that the prompt stands still */
    cr_expect_eq(rows_beside(&b, 5000000, 20), 16);          /* as many as the writers' own rows always may */
    bench_end(&b);
}

Test(scheduler, who_writes_finds_no_long_pass_when_he_comes_back) {
    bench b;
    bench_begin(&b, 64);
    cr_expect_eq(rows_beside(&b, 600000, 0), SN_SPAN_ROWS_MAX, "nobody has written yet");
    cr_expect_eq(rows_beside(&b, 600000, 3), 16);
    b.now += 500000; /* the writers have their tokens, and are about to send the next steps */
    cr_expect_eq(rows_beside(&b, 600000, 0), 16);
    b.now += 1000000;
    cr_expect_eq(rows_beside(&b, 600000, 0), SN_SPAN_ROWS_MAX, "they have gone");
    unsigned who;
    add(&b, 0, 0, 1);
    pass(&b, SN_OK, &who);
    cr_expect_eq(rows_beside(&b, 600000, 0), SN_SPAN_ROWS_MAX, "it wrote itself, and reads now");
    add(&b, 1, 0, 1);
    pass(&b, SN_OK, &who);
    add_close(&b, 1);
    pass(&b, SN_OK, &who);
    cr_expect_eq(rows_beside(&b, 600000, 0), SN_SPAN_ROWS_MAX, "it was closed");
    bench_end(&b);
}

Test(scheduler, waits_a_moment_for_those_who_were_in_a_pass_with_the_one_that_is_there) {
    bench b;
    unsigned who;
    bench_begin(&b, 64);
    sn_scheduler_pace(b.scheduler, 1000, 0);
    for (int s = 0; s < 3; s++) { /* as long as they have not been in a pass together, nobody waits for anybody */
        add(&b, s, 0, 1);
        cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), 0);
    }
    cr_expect_eq(pass(&b, SN_OK, &who), 3);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), 0, "there is nothing to run");

    int64_t came = b.now += 100;
    add(&b, 0, 1, 1);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, came), came + 500);
    b.now += 300;
    add(&b, 1, 1, 1);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), came + 500, "the wait began when the first came");
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, came + 500), 0, "it has an end");
    cr_expect_eq(pass(&b, SN_OK, &who), 2);

    add(&b, 2, 1, 1); /* came too late, goes alone, and is not waited for again */
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), 0);
    cr_expect_eq(pass(&b, SN_OK, &who), 1);
    add(&b, 0, 2, 1);
    add(&b, 1, 2, 1);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), 0, "both are there that were together");
    cr_expect_eq(pass(&b, SN_OK, &who), 2);
    bench_end(&b);
}

Test(scheduler, a_wait_for_others_ends_when_there_is_enough_to_do_or_something_else) {
    bench b;
    unsigned who;
    bench_begin(&b, 64);
    sn_scheduler_pace(b.scheduler, 100000, 0);
    for (int s = 0; s < 6; s++) add(&b, s, 0, 1);
    pass(&b, SN_OK, &who);
    add(&b, 0, 1, SN_GATHER_ROWS - 1);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), b.now + SN_GATHER_US_MAX, "however long a pass takes");
    add(&b, 1, 1, 1);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), 0, "a pass of four rows is worth beginning");
    pass(&b, SN_OK, &who);
    add(&b, 2, 1, 1);
    cr_expect_gt(sn_scheduler_gathers(b.scheduler, b.now), b.now);
    add(&b, 7, 0, 100);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), 0, "there is a prompt to be read");
    while (!sn_scheduler_idle(b.scheduler)) pass(&b, SN_OK, &who);
    add(&b, 3, 1, 1);
    cr_expect_gt(sn_scheduler_gathers(b.scheduler, b.now), b.now);
    for (int s = 4; s < 6; s++) add_close(&b, s);
    pass(&b, SN_OK, &who);
    add(&b, 3, 2, 1);
    cr_expect_eq(sn_scheduler_gathers(b.scheduler, b.now), 0, "those who were with it have gone");
    pass(&b, SN_OK, &who);
    bench_end(&b);
}

Test(scheduler, a_client_with_many_prompts_does_not_keep_others_waiting) {
    bench b;
    unsigned who, early = 0;
    bench_begin(&b, 256);
    for (int s = 0; s < 5; s++) add(&b, s, 0, SN_SPAN_ROWS_MAX)->client = 1; /* each fills a pass */
    add(&b, 5, 0, SN_SPAN_ROWS_MAX)->client = 2;                             /* came last */
    add(&b, 6, 0, SN_SPAN_ROWS_MAX)->client = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(pass(&b, SN_OK, &who), 1);
        early |= who;
    }
    cr_expect_eq(early, 1u << 0 | 1u << 5 | 1u << 6, "sessions %x came first", early);
    for (int s = 1; s < 5; s++) { /* its own in their order */
        cr_expect_eq(pass(&b, SN_OK, &who), 1);
        cr_expect_eq(who, 1u << s);
    }
    cr_expect(sn_scheduler_idle(b.scheduler));
    bench_end(&b);
}

Test(scheduler, gives_the_same_numbers_in_pieces_as_at_once) {
    bench b;
    unsigned who;
    bench_begin(&b, 64);
    sn_job *pieces = add(&b, 0, 0, 200), *whole = add(&b, 3, 0, 200);
    sn_shared *first = sn_shared_ref(pieces->output), *second = sn_shared_ref(whole->output);
    for (int i = 0; i < 2; i++) {
        add(&b, 1, i, 1);
        pass(&b, SN_OK, &who);
    }
    while (!sn_scheduler_idle(b.scheduler)) pass(&b, SN_OK, &who);
    cr_expect(!memcmp(sn_shared_data(first), sn_shared_data(second), 200 * EMBD * sizeof(float)));
    sn_shared_unref(first);
    sn_shared_unref(second);
    bench_end(&b);
}

Test(scheduler, sessions_over_other_blocks_have_their_turn) {
    bench b;
    unsigned who, seen = 0;
    bench_begin(&b, 64);
    int at[4] = {0};
    for (int s = 0; s < 4; s++) add_over(&b, s, at[s]++, 1, s, s + 1);
    for (int i = 0; i < 8; i++) { /* the one that came out asks again at once */
        cr_expect_eq(pass(&b, SN_OK, &who), 1);
        seen |= who;
        for (int s = 0; s < 4; s++)
            if (who & 1u << s) add_over(&b, s, at[s]++, 1, s, s + 1);
    }
    cr_expect_eq(seen, 15u);
    for (int s = 0; s < 4; s++) cr_expect_eq(at[s], 3, "session %d had %d turns", s, at[s] - 1);
    bench_end(&b);
}

Test(scheduler, a_prompt_over_some_blocks_does_not_starve_behind_writers_over_others) {
    bench b;
    unsigned who;
    bench_begin(&b, 64);
    add_over(&b, 1, 0, 1, 2, 4);
    add_over(&b, 0, 0, 400, 0, 2);
    int passes = 0, at = 1, pieces = (400 + SN_PROMPT_ROWS_BESIDE - 1) / SN_PROMPT_ROWS_BESIDE;
    for (who = 0; passes < 40 && !(who & 1u); passes++) {
        pass(&b, SN_OK, &who);
        if (who & 2u) add_over(&b, 1, at++, 1, 2, 4);
    }
    cr_expect_eq(passes, 2 * pieces, "the prompt was read in %d passes: every other one, in small pieces", passes);
    cr_expect_eq(at, pieces + 1, "the writer wrote %d tokens meanwhile", at - 1);
    bench_end(&b);
}

static sn_tuning *tuning_of(bench *b, float scale) {
    sn_tuning *t = NULL;
    sn_buf image;
    float values[4 * EMBD];
    for (int i = 0; i < 4 * EMBD; i++) values[i] = scale * (float)(i % 89 - 44) / 44;
    const sn_safetensors_entry entries[] = {{"prompt.1", SN_F32, 2, {3, EMBD}, values},
                                            {"lora_a.2.q", SN_F32, 2, {2, EMBD}, values},
                                            {"lora_b.2.q", SN_F32, 2, {EMBD, 2}, values + EMBD}};
    sn_buf_init(&image, 1 << 20);
    NEED(sn_safetensors_image(entries, 3, &image, &err));
    NEED(sn_tuning_load(b->span, image.data, image.len, &t, &err));
    sn_buf_fini(&image);
    return t;
}

/* n rows alone, all at once: what a session with that tuning must give. */
static float *compute_tuned(bench *b, const sn_tuning *tuning, int n) {
    sn_kv *kv = NULL;
    float *out = calloc((size_t)n * EMBD, sizeof *out);
    sn_tensor input = {.name = "rows", .data = b->rows, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}};
    NEED(sn_kv_new(b->pool, &kv, &err));
    NEED(sn_kv_reserve(kv, n, &err));
    sn_span_part part = {kv, &input, 0, n, out};
    NEED(sn_span_forward_tuned(b->span, 0, 4, tuning, 1, &part, NULL, &err));
    sn_kv_free(&kv);
    return out;
}

Test(scheduler, sessions_of_one_tuning_share_passes_and_each_has_the_bits_of_being_alone) {
    bench b;
    unsigned who;
    enum { ROWS = 40 };
    bench_begin(&b, 64);
    sn_tuning *tunings[3] = {NULL, tuning_of(&b, 0.5f), tuning_of(&b, 0.25f)};
    float *want[3];
    for (int k = 0; k < 3; k++) want[k] = compute_tuned(&b, tunings[k], ROWS);
    cr_assert(memcmp(want[0], want[1], ROWS * EMBD * sizeof(float)));
    cr_assert(memcmp(want[2], want[1], ROWS * EMBD * sizeof(float)));
    sn_shared *outputs[6];
    for (int s = 0; s < 6; s++) { /* two sessions of each kind */
        sn_job *job = add(&b, s, 0, ROWS);
        job->tuning = s % 3 ? &tunings[s % 3] : NULL;
        outputs[s] = sn_shared_ref(job->output);
    }
    unsigned done = 0;
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(pass(&b, SN_OK, &who), 2, "sessions %x came out of pass %d", who, i);
        done |= who;
    }
    cr_expect_eq(done, 63u);
    cr_expect_eq(sn_scheduler_passes(b.scheduler), 3);
    for (int s = 0; s < 6; s++) {
        cr_expect(!memcmp(sn_shared_data(outputs[s]), want[s % 3], ROWS * EMBD * sizeof(float)), "session %d", s);
        sn_shared_unref(outputs[s]);
    }
    for (int k = 0; k < 3; k++) free(want[k]);
    sn_tuning_free(&tunings[1]);
    sn_tuning_free(&tunings[2]);
    bench_end(&b);
}

Test(scheduler, every_tuning_has_its_turn) {
    bench b;
    unsigned who;
    int at[5] = {0}, turns[5] = {0};
    bench_begin(&b, 64);
    sn_tuning *tunings[5];
    for (int s = 0; s < 5; s++) tunings[s] = tuning_of(&b, (float)s);
    for (int s = 0; s < 5; s++) add(&b, s, at[s]++, 1)->tuning = &tunings[s];
    for (int i = 0; i < 20; i++) {
        cr_expect_eq(pass(&b, SN_OK, &who), 1);
        for (int s = 4; s >= 0; s--) /* the later one asks sooner */
            if (who & 1u << s) {
                turns[s]++;
                add(&b, s, at[s]++, 1)->tuning = &tunings[s];
            }
    }
    for (int s = 0; s < 5; s++) cr_expect_eq(turns[s], 4, "session %d had %d turns", s, turns[s]);
    while (!sn_scheduler_idle(b.scheduler)) pass(&b, SN_OK, &who);
    for (int s = 0; s < 5; s++) sn_tuning_free(&tunings[s]);
    bench_end(&b);
}

Test(scheduler, what_is_cancelled_comes_back_undone_and_closing_frees) {
    bench b;
    unsigned who;
    bench_begin(&b, 64);
    add(&b, 0, 0, 40);
    pass(&b, SN_OK, &who);
    add(&b, 1, 0, 1);
    sn_job *job = add(&b, 0, 40, 200);
    pass(&b, SN_OK, &who); /* the first rows of it have been through */
    cr_expect_eq(job->n_done, SN_PROMPT_ROWS_BESIDE);
    atomic_store(&job->cancelled, true);
    cr_expect_eq(pass(&b, SN_REFUSED, &who), 1);
    cr_expect_eq(who, 1u);
    cr_expect_eq(sn_kv_length(b.kv[0]), 40);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 3 * b.page, "room for what was cancelled is kept");
    add_close(&b, 0);
    add_close(&b, 1);
    add_close(&b, 2); /* has no past yet */
    cr_expect_eq(pass(&b, SN_OK, &who), 3);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 0);
    cr_expect_null(b.kv[0]);
    bench_end(&b);
}

Test(scheduler, a_step_waits_for_room_until_its_deadline) {
    bench b;
    unsigned who;
    bench_begin(&b, 4);
    add(&b, 0, 0, 3 * PAGE);
    pass(&b, SN_OK, &who);
    add(&b, 1, 0, 2 * PAGE);
    cr_expect_eq(pass(&b, SN_OK, &who), 0);
    cr_expect(sn_scheduler_waiting(b.scheduler));
    add(&b, 0, 3 * PAGE, 1); /* who has a past goes on */
    cr_expect_eq(pass(&b, SN_OK, &who), 1);
    cr_expect_eq(who, 1u);
    b.now += 10000000;
    cr_expect_eq(pass(&b, SN_RETRY, &who), 1);
    cr_expect_eq(who, 2u);
    add(&b, 1, 0, 2 * PAGE);
    cr_expect_eq(pass(&b, SN_OK, &who), 0);
    add_close(&b, 0);
    pass(&b, SN_OK, &who); /* closes, and the room may be used at once or in the next pass */
    while (!sn_scheduler_idle(b.scheduler)) pass(&b, SN_OK, &who);
    cr_expect_eq(sn_kv_length(b.kv[1]), 2 * PAGE);
    add(&b, 2, 0, 4 * PAGE + 1);
    cr_expect_eq(pass(&b, SN_REFUSED, &who), 1);
    bench_end(&b);
}

Test(scheduler, new_sessions_get_room_in_the_order_in_which_they_came) {
    bench b;
    unsigned who;
    bench_begin(&b, 4);
    add(&b, 0, 0, 2 * PAGE);
    pass(&b, SN_OK, &who);
    add(&b, 1, 0, 3 * PAGE); /* large, and first */
    add(&b, 2, 0, PAGE);     /* would fit beside session 0 */
    cr_expect_eq(pass(&b, SN_OK, &who), 0);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 2 * b.page);
    add_close(&b, 0);
    while (!sn_scheduler_idle(b.scheduler) && b.now < 1000100) pass(&b, SN_OK, &who);
    cr_expect_eq(sn_kv_length(b.kv[1]), 3 * PAGE);
    cr_expect_eq(sn_kv_length(b.kv[2]), PAGE);
    bench_end(&b);
}

Test(scheduler, a_rewind_gives_room_before_it_takes_some) {
    bench b;
    unsigned who;
    bench_begin(&b, 4);
    add(&b, 0, 0, 4 * PAGE);
    pass(&b, SN_OK, &who);
    add(&b, 0, PAGE, 3 * PAGE);
    cr_expect_eq(pass(&b, SN_OK, &who), 1);
    cr_expect_eq(sn_kv_length(b.kv[0]), 4 * PAGE);
    bench_end(&b);
}

Test(scheduler, counts_and_warns_of_copies_that_no_plan_speaks_of) {
    bench b;
    unsigned who;
    far_device far;
    void *rows;
    bench_begin(&b, 64);
    far_device_init(&far, SN_DEVICE_CUDA, 0);
    NEED(far.base.ops->alloc(&far.base, 4 * EMBD * sizeof(float), &rows, &err));
    const sn_guard_watch *watch = sn_scheduler_watch(b.scheduler);
    add(&b, 0, 0, 40);
    pass(&b, SN_OK, &who);
    cr_expect_eq(watch->steps, 1);
    cr_expect_eq(watch->bytes, 0, "host memory is the CPU's: nothing moves");
    cr_expect_eq(watch->warned_us, 0);
    int64_t warned = 0;
    for (uint64_t i = 1; i <= 3; i++) {
        sn_job *job = add(&b, 0, 36 + 4 * (int)i, 4);
        job->input.device = &far.base;
        job->input.data = rows;
        pass(&b, SN_OK, &who);
        cr_expect_eq(watch->bytes, i * 4 * EMBD * sizeof(float));
        cr_expect_eq(watch->hidden_bytes, watch->bytes);
        cr_expect_eq(watch->hidden_steps, i);
        if (i == 1) warned = watch->warned_us;
        cr_expect(warned && watch->warned_us == warned, "once a minute at most");
    }
    far.base.ops->free(&far.base, rows, 4 * EMBD * sizeof(float));
    bench_end(&b);
}

Test(scheduler, frees_the_jobs_that_are_left_in_it) {
    bench b;
    bench_begin(&b, 4);
    add(&b, 0, 0, 100);
    add_close(&b, 1);
    cr_expect_not(sn_scheduler_idle(b.scheduler));
    bench_end(&b);
}

/* -- whose work comes first -------------------------------------------------------------------------------------------
 */

static sn_job *add_with(bench *b, int s, int n, int priority) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP, .session = &b->kv[s], .kv = &b->kv[s], .end = 4, .n_tokens = n,
                    .priority = priority, .arrived_us = b->now, .deadline_us = b->now + 60000000,
                    .input = {.name = "rows", .data = b->rows, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    NEED(sn_shared_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    sn_scheduler_add(b->scheduler, job);
    return job;
}

Test(scheduler, takes_prompts_of_preferred_clients_first_and_others_in_their_order) {
    bench b;
    unsigned who;
    bench_begin(&b, 200);
    const int priority[] = {0, -5, 0, 10, 10, -5}, order[] = {3, 4, 0, 2, 1, 5};
    for (int s = 0; s < 6; s++) add_with(&b, s, SN_SPAN_ROWS_MAX, priority[s]);
    for (int i = 0; i < 6; i++) {
        cr_expect_eq(pass(&b, SN_OK, &who), 1);
        cr_expect_eq(who, 1u << order[i], "at turn %d", i);
    }
    bench_end(&b);
}

Test(scheduler, lets_nobody_who_waits_for_room_be_overtaken_for_ever) {
    for (int seconds = 1; seconds < 8; seconds += 6) {
        bench b;
        unsigned who;
        bench_begin(&b, SN_SPAN_ROWS_MAX / PAGE);
        add_with(&b, 9, SN_SPAN_ROWS_MAX, 0);
        cr_expect_eq(pass(&b, SN_OK, &who), 1); /* holds the whole cache */
        add_with(&b, 0, SN_SPAN_ROWS_MAX, 0);
        cr_expect_eq(pass(&b, SN_OK, &who), 0);
        b.now += seconds * 1000000;
        add_with(&b, 1, SN_SPAN_ROWS_MAX, 100);
        for (unsigned all = 0, first = 0; all != 3 && !sn_scheduler_idle(b.scheduler);) {
            if (pass(&b, SN_OK, &who) == 0 || who & 1u << 9) {
                if (!all && b.kv[9]) add_close(&b, 9);
                continue;
            }
            if (!first) cr_expect_eq(first = who, seconds < 5 ? 2u : 1u, "after %d s", seconds);
            for (int s = 0; s < 2; s++)
                if (who & 1u << s) add_close(&b, s);
            all |= who & 3u;
        }
        while (!sn_scheduler_idle(b.scheduler)) pass(&b, SN_OK, &who);
        bench_end(&b);
    }
}
