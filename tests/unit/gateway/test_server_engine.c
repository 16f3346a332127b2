/* The server's queue: jobs in sessions over nodes of this process, under the virtual clock. */
#include "base/clock.h"
#include "gateway/queue/queue.h"
#include "tests/support/api_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { PROMPT = 12, LONG_PROMPT = 100, SECOND_US = 1000000, IDLE_MS = 60000 };

static api_swarm api;
static sn_server_queue *queue;

/* A job that generates `tokens` after its prompt. While it is held, it stops after its first token. */
typedef struct work {
    sn_server_job job;
    int32_t prompt[LONG_PROMPT + 8];
    const char *tokens; /* "max-tokens" */
    bool asks_engine;   /* at its end */
    bool takes_turns;   /* after its tokens; the second one is held, too, while `held_again` */
    struct work *then;  /* submitted at its end; NULL: nothing */
    atomic_int events, ends;
    atomic_bool runs, held, held_again;
    const swarm_session *session;
    size_t had, queued_at_end; /* tokens in the session before; jobs in the queue at the end */
    swarm_code code;
} work;

static int count(void *ctx, const swarm_event *event) {
    work *w = ctx;
    atomic_fetch_add(&w->events, swarm_event_get_kind(event) == SWARM_EVENT_TOKEN);
    while (atomic_load(&w->events) > 1 && atomic_load(&w->held_again)) sn_sleep_us(1000);
    while (atomic_load(&w->events) && atomic_load(&w->held)) sn_sleep_us(1000);
    if (w->takes_turns && swarm_event_get_kind(event) == SWARM_EVENT_TOKEN) sn_server_queue_take_turn(queue, &w->job);
    return 0;
}

static swarm_code run(void *ctx, swarm_session *session, swarm_error **error) {
    work *w = ctx;
    swarm_options *options = api_options("max-tokens", w->tokens, "ignore-eos", "true", "temperature", "0", NULL);
    w->session = session;
    (void)swarm_session_tokens(session, &w->had);
    atomic_store(&w->runs, true);
    swarm_session_on_event(session, count, w);
    swarm_code code = swarm_session_generate(session, w->job.prompt, w->job.n_prompt, options, NULL, NULL, error);
    swarm_session_on_event(session, NULL, NULL);
    swarm_options_free(options);
    return code;
}

static void end(void *ctx, swarm_code code, const swarm_error *error) {
    work *w = ctx;
    (void)error;
    w->code = code;
    if (w->asks_engine) w->queued_at_end = sn_server_queue_get_load(queue).queued;
    if (w->then) {
        sn_err err;
        cr_assert_eq(sn_server_queue_submit(queue, (sn_server_job *[]){&w->then->job}, 1, &err), SN_OK);
    }
    atomic_fetch_add(&w->ends, 1);
}

static void begin_with_room(size_t sessions, size_t queue_max, size_t tokens) {
    const sn_server_queue_options options = {.model = api.model,
                                             .connection = api.connection,
                                             .sessions_max = sessions,
                                             .queue_max = queue_max,
                                             .idle_ms = IDLE_MS,
                                             .tokens_max = tokens};
    REQUIRE(sn_server_queue_new(&options, &queue, &err));
}

static void begin(size_t sessions, size_t queue_max) { begin_with_room(sessions, queue_max, 0); }

static void set_up(void) { api = api_swarm_begin((cluster_options){0}, NULL); }
static void tear_down(void) {
    sn_server_queue_free(&queue);
    api_swarm_end(&api);
}

TestSuite(server_engine, .init = set_up, .fini = tear_down, .timeout = 180);

/* A prompt of n tokens, which differs from those of other `kind`s from its first token on. */
static void make(work *w, int kind, size_t n, const char *tokens) {
    *w = (work){.tokens = tokens};
    for (size_t i = 0; i < n; i++) w->prompt[i] = 3 + (kind * 31 + (int)i * 7) % 300;
    w->job = (sn_server_job){.prompt = w->prompt, .n_prompt = n, .ctx = w, .run = run, .end = end};
}

static sn_status submit(work *w) {
    sn_err err;
    return sn_server_queue_submit(queue, (sn_server_job *[]){&w->job}, 1, &err);
}

static void finish(work *w, swarm_code code) {
    sn_server_queue_finish(queue, &w->job);
    cr_assert_eq(w->code, code, "code %d", (int)w->code);
    cr_assert_eq(w->ends, 1);
}

static void run_whole(work *w) {
    cr_assert_eq(submit(w), SN_OK);
    finish(w, SWARM_OK);
}

/* Submits a long job that is held. */
static void hold(work *w) {
    make(w, 1, PROMPT, "200");
    atomic_store(&w->held, true);
    cr_assert_eq(submit(w), SN_OK);
    while (!atomic_load(&w->events)) sn_sleep_us(1000);
}

static void release(work *w) { atomic_store(&w->held, false); }

Test(server_engine, a_prompt_that_continues_a_session_goes_to_it) {
    work a, b, c, d;
    begin(2, 4);
    make(&a, 1, PROMPT, "2");
    make(&b, 2, PROMPT, "2");
    make(&c, 2, PROMPT + 4, "2"); /* not in the session that was used longest ago */
    make(&d, 1, PROMPT + 4, "2");
    run_whole(&a);
    run_whole(&b);
    run_whole(&c);
    run_whole(&d);
    cr_expect_neq(a.session, b.session);
    cr_expect_eq(c.session, b.session);
    cr_expect_eq(d.session, a.session);
    cr_expect(c.had > PROMPT && d.had > PROMPT, "%zu %zu", c.had, d.had);
}

Test(server_engine, a_conversation_goes_on_in_its_session_though_its_long_answer_is_left_out) {
    work a, b, c;
    begin(3, 4);
    make(&a, 1, PROMPT, "40"); /* thoughts, which the next prompt leaves out */
    make(&b, 2, PROMPT, "2");
    make(&c, 1, PROMPT + 4, "2");
    run_whole(&a);
    run_whole(&b);
    run_whole(&c);
    cr_expect_eq(c.session, a.session);
}

Test(server_engine, conversations_with_one_beginning_do_not_cut_each_other) {
    work a, b, c;
    begin(2, 4);
    make(&a, 1, LONG_PROMPT, "2");
    make(&b, 1, LONG_PROMPT, "2"); /* another question behind the same system prompt */
    for (int i = LONG_PROMPT / 2 + 5; i < LONG_PROMPT; i++) b.prompt[i] += 7;
    make(&c, 1, LONG_PROMPT + 4, "2");
    run_whole(&a);
    run_whole(&b);
    run_whole(&c);
    cr_expect_neq(b.session, a.session);
    cr_expect_eq(c.session, a.session);
    cr_expect_gt(c.had, LONG_PROMPT);
    make(&b, 1, LONG_PROMPT, "2"); /* with no place left, the session that has more of it */
    for (int i = LONG_PROMPT / 2 + 20; i < LONG_PROMPT; i++) b.prompt[i] += 9;
    run_whole(&b);
    cr_expect_eq(b.session, c.session);
}

Test(server_engine, a_prompt_finds_nothing_of_another_owner) {
    work a, b, c;
    begin(1, 4);
    make(&a, 1, PROMPT, "2");
    make(&b, 1, PROMPT + 4, "2");
    make(&c, 1, PROMPT + 6, "2");
    b.job.owner = c.job.owner = 7;
    run_whole(&a);
    run_whole(&b);
    run_whole(&c);
    cr_expect(b.session == a.session && c.session == a.session);
    cr_expect_eq(b.had, 0);
    cr_expect_gt(c.had, PROMPT, "its owner's");
}

Test(server_engine, of_two_sessions_a_prompt_continues_none_of_another_owner) {
    work a, b, c;
    begin(2, 4);
    make(&a, 1, PROMPT, "2");
    make(&b, 2, PROMPT, "2");
    make(&c, 2, PROMPT + 4, "2");
    a.job.owner = c.job.owner = 7;
    run_whole(&a);
    run_whole(&b);
    run_whole(&c);
    cr_expect_eq(c.session, a.session, "the one that was used longest ago");
}

Test(server_engine, a_session_is_free_when_the_end_of_its_job_is_told) {
    work a, b;
    begin(2, 4);
    make(&a, 1, PROMPT, "2");
    make(&b, 1, PROMPT + 4, "2");
    a.then = &b;
    run_whole(&a);
    finish(&b, SWARM_OK);
    cr_expect_eq(b.session, a.session);
}

Test(server_engine, other_prompts_go_to_the_session_that_was_used_longest_ago) {
    work a, b, c;
    begin(2, 4);
    make(&a, 1, PROMPT, "2");
    make(&b, 2, PROMPT, "2");
    make(&c, 3, PROMPT, "2");
    run_whole(&a);
    run_whole(&b);
    run_whole(&c);
    cr_expect_eq(c.session, a.session);
}

Test(server_engine, a_job_that_wants_a_fresh_session_gets_one_that_ends_with_it) {
    work a, b;
    begin(1, 4);
    make(&a, 1, PROMPT, "2");
    make(&b, 1, PROMPT, "2");
    b.job.fresh = true;
    run_whole(&a);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 1);
    run_whole(&b);
    cr_expect_eq(b.had, 0);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 0);
}

Test(server_engine, a_session_without_jobs_is_closed) {
    work a;
    begin(1, 4);
    make(&a, 1, PROMPT, "2");
    run_whole(&a);
    sn_sleep_us(IDLE_MS * 1000 / 2);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 1);
    sn_sleep_us(IDLE_MS * 1000);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 0);
}

/* Three conversations of which nodes hold two: the one that was used longest ago makes room. */
Test(server_engine, idle_sessions_make_room_for_a_job) {
    work a, b, c, again;
    begin_with_room(4, 4, 2 * PROMPT + PROMPT / 2);
    make(&a, 1, PROMPT, "2");
    make(&b, 2, PROMPT, "2");
    make(&c, 3, PROMPT, "2");
    make(&again, 2, PROMPT, "2");
    run_whole(&a);
    run_whole(&b);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 2);
    run_whole(&c);
    sn_sleep_us(3 * SECOND_US);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 2);
    run_whole(&again);
    cr_expect(again.had >= PROMPT, "the conversation that was used last is gone");
}

/* Nodes with 10 pages each: two conversations of 4 pages fit, and the server does not know. */
static void begin_over_full_nodes(void) {
    tear_down();
    const size_t page = 2 * 2 * 32 * sizeof(uint16_t) * 32; /* 2 blocks, f16 */
    api = api_swarm_begin((cluster_options){.kv_memory = 10 * page}, NULL);
    begin(4, 4);
}

static bool repeats(void *ctx) { return !atomic_load(&((work *)ctx)->events); }

Test(server_engine, an_idle_session_ends_when_a_node_says_that_it_has_no_room) {
    work a, b, c, again;
    begin_over_full_nodes();
    make(&a, 1, LONG_PROMPT, "2");
    make(&b, 2, LONG_PROMPT, "2");
    make(&c, 3, LONG_PROMPT, "2");
    make(&again, 2, LONG_PROMPT + 4, "2");
    c.job.may_repeat = again.job.may_repeat = repeats;
    run_whole(&a);
    run_whole(&b);
    run_whole(&c);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 2, "the one that was used longest ago made room");
    run_whole(&again);
    cr_expect_geq(again.had, LONG_PROMPT, "the conversation that was used last is gone");
}

Test(server_engine, a_job_that_has_told_something_does_not_run_again_but_makes_room_for_the_next) {
    work a, b, c;
    begin_over_full_nodes();
    make(&a, 1, LONG_PROMPT, "2");
    make(&b, 2, LONG_PROMPT, "2");
    make(&c, 3, LONG_PROMPT, "2");
    run_whole(&a);
    run_whole(&b);
    cr_assert_eq(submit(&c), SN_OK); /* may_repeat is NULL */
    finish(&c, SWARM_RETRY);
    make(&c, 3, LONG_PROMPT, "2");
    run_whole(&c);
}

Test(server_engine, idle_sessions_stay_when_a_job_fails_for_another_reason) {
    work a, b;
    begin(4, 4);
    make(&a, 1, PROMPT, "2");
    make(&b, 2, PROMPT, "2");
    b.job.may_repeat = repeats;
    run_whole(&a);
    cluster_cut_off(api.nodes, 1);
    cr_assert_eq(submit(&b), SN_OK);
    finish(&b, SWARM_RETRY);
    sn_sleep_us(3 * SECOND_US);
    cr_expect_eq(sn_server_queue_get_load(queue).sessions, 1, "the idle session was closed");
}

Test(server_engine, the_queue_takes_all_jobs_of_a_request_or_none) {
    work running, waits[3];
    sn_err err;
    begin(1, 2);
    hold(&running);
    for (int i = 0; i < 3; i++) make(&waits[i], 2 + i, PROMPT, "1");
    cr_assert_eq(submit(&waits[0]), SN_OK);
    sn_server_job *both[] = {&waits[1].job, &waits[2].job};
    cr_expect_eq(sn_server_queue_submit(queue, both, 2, &err), SN_RETRY);
    cr_expect_gt(err.retry_after_ms, 0);
    cr_expect_eq(sn_server_queue_get_load(queue).queued, 1);
    cr_assert_eq(submit(&waits[1]), SN_OK);
    cr_expect_eq(submit(&waits[2]), SN_RETRY);
    sn_server_queue_cancel_all(queue);
    release(&running);
    finish(&running, SWARM_CANCELLED);
    finish(&waits[0], SWARM_CANCELLED);
    finish(&waits[1], SWARM_CANCELLED);
    cr_expect(!waits[0].runs && !waits[1].runs && !waits[2].ends);
    run_whole(&waits[2]);
}

Test(server_engine, owners_are_served_round_robin) {
    work running, first[3], second[2];
    begin(1, 8);
    hold(&running); /* of owner 0, as are all of the first */
    for (int i = 0; i < 3; i++) {
        make(&first[i], 2 + i, PROMPT, "1");
        cr_assert_eq(submit(&first[i]), SN_OK);
    }
    for (int i = 0; i < 2; i++) {
        make(&second[i], 5 + i, PROMPT, "1");
        second[i].job.owner = 7;
        atomic_store(&second[i].held, true);
        cr_assert_eq(submit(&second[i]), SN_OK);
    }
    release(&running);
    while (!atomic_load(&second[0].events)) sn_sleep_us(1000);
    cr_expect(first[0].ends && !first[1].runs && !second[1].runs, "a turn of each");
    release(&second[0]);
    while (!atomic_load(&second[1].events)) sn_sleep_us(1000);
    cr_expect(first[1].ends && !first[2].runs);
    release(&second[1]);
    for (int i = 0; i < 3; i++) finish(&first[i], SWARM_OK);
    for (int i = 0; i < 2; i++) finish(&second[i], SWARM_OK);
    finish(&running, SWARM_OK);
}

Test(server_engine, one_owner_leaves_sessions_for_others) {
    work many[4], other;
    begin(4, 8);
    for (int i = 0; i < 3; i++) hold(&many[i]);
    make(&many[3], 5, PROMPT, "1");
    cr_assert_eq(submit(&many[3]), SN_OK);
    cr_expect_eq(sn_server_queue_get_load(queue).running, 3);
    make(&other, 6, PROMPT, "2");
    other.job.owner = 7;
    run_whole(&other); /* beside the three */
    cr_expect(!many[3].runs && sn_server_queue_get_load(queue).running == 3);
    for (int i = 0; i < 3; i++) release(&many[i]);
    for (int i = 0; i < 4; i++) finish(&many[i], SWARM_OK);
}

static int count_second_tokens(work *works, int n) {
    int tokens = 0;
    for (int i = 0; i < n; i++) tokens += atomic_load(&works[i].events) > 1;
    return tokens;
}

/* 16 sessions, two owners: two jobs of each compute at once, in turn. */
Test(server_engine, jobs_of_an_owner_compute_in_turn_beside_those_of_another) {
    enum { MANY = 6 };
    work many[MANY], other;
    begin(16, 8);
    for (int i = 0; i < MANY; i++) {
        hold(&many[i]);
        many[i].takes_turns = true;
        atomic_store(&many[i].held_again, true);
    }
    make(&other, 6, PROMPT, "2");
    other.job.owner = 7;
    atomic_store(&other.held, true);
    cr_assert_eq(submit(&other), SN_OK);
    while (!atomic_load(&other.events)) sn_sleep_us(1000);
    for (int i = 0; i < MANY; i++) release(&many[i]);
    while (count_second_tokens(many, MANY) < 2) sn_sleep_us(1000);
    sn_sleep_us(SECOND_US / 5);
    cr_expect_eq(count_second_tokens(many, MANY), 2, "%d compute at once", count_second_tokens(many, MANY));
    for (int i = 0; i < MANY; i++) atomic_store(&many[i].held_again, false);
    while (count_second_tokens(many, MANY) < MANY) sn_sleep_us(1000); /* each has its turn beside the other owner */
    release(&other);
    finish(&other, SWARM_OK);
    for (int i = 0; i < MANY; i++) finish(&many[i], SWARM_OK);
}

Test(server_engine, a_job_that_waits_for_its_turn_to_compute_is_cancelled) {
    work many[3], other;
    begin(4, 8); /* one of each owner computes */
    for (int i = 0; i < 3; i++) {
        hold(&many[i]);
        many[i].takes_turns = true;
        atomic_store(&many[i].held_again, true);
    }
    make(&other, 6, PROMPT, "2");
    other.job.owner = 7;
    atomic_store(&other.held, true);
    cr_assert_eq(submit(&other), SN_OK);
    while (!atomic_load(&other.events)) sn_sleep_us(1000);
    for (int i = 0; i < 3; i++) release(&many[i]);
    while (!count_second_tokens(many, 3)) sn_sleep_us(1000);
    for (int i = 0; i < 3; i++) {
        if (atomic_load(&many[i].events) > 1) continue;
        sn_server_queue_cancel(queue, &many[i].job);
        for (int ms = 0; ms < 20000 && !atomic_load(&many[i].ends); ms++) sn_sleep_us(1000);
        cr_expect_eq(many[i].code, SWARM_CANCELLED);
        cr_expect_eq(atomic_load(&many[i].ends), 1, "it still waits after 20 seconds");
    }
    for (int i = 0; i < 3; i++) atomic_store(&many[i].held_again, false);
    release(&other);
    finish(&other, SWARM_OK);
    for (int i = 0; i < 3; i++) sn_server_queue_finish(queue, &many[i].job);
}

Test(server_engine, an_owners_short_prompt_goes_before_its_long_ones) {
    enum { SHORT = 9 };
    work running, longer, shorter[SHORT];
    begin(1, 16);
    hold(&running);
    make(&longer, 2, 2 * PROMPT, "1");
    atomic_store(&longer.held, true);
    cr_assert_eq(submit(&longer), SN_OK);
    for (int i = 0; i < SHORT; i++) {
        make(&shorter[i], 3, PROMPT / 2, "1");
        cr_assert_eq(submit(&shorter[i]), SN_OK);
    }
    release(&running);
    while (!atomic_load(&longer.events)) sn_sleep_us(1000);
    for (int i = 0; i < SHORT; i++)
        cr_expect_eq(atomic_load(&shorter[i].ends), i < 8, "job %d: eight of them go before", i);
    release(&longer);
    for (int i = 0; i < SHORT; i++) finish(&shorter[i], SWARM_OK);
    finish(&longer, SWARM_OK);
    finish(&running, SWARM_OK);
}

Test(server_engine, a_full_queue_refuses_first_the_owner_with_most_jobs) {
    work running, many[4], other[3];
    begin(1, 4);
    hold(&running);
    for (int i = 0; i < 4; i++) {
        make(&many[i], 2 + i, PROMPT, "1");
        cr_assert_eq(submit(&many[i]), SN_OK);
    }
    for (int i = 0; i < 3; i++) {
        make(&other[i], 6 + i, PROMPT, "1");
        other[i].job.owner = 7;
    }
    cr_expect_eq(submit(&other[0]), SN_OK);
    finish(&many[3], SWARM_RETRY);
    sn_server_queue_cancel(queue, &many[3].job); /* which its end has come before */
    cr_expect_eq(submit(&other[1]), SN_OK);
    finish(&many[2], SWARM_RETRY);
    cr_expect_eq(submit(&other[2]), SN_RETRY, "it has most of them itself");
    make(&many[2], 4, PROMPT, "1");
    cr_expect_eq(submit(&many[2]), SN_RETRY);
    cr_expect_eq(sn_server_queue_get_load(queue).queued, 4);
    release(&running);
    for (int i = 0; i < 2; i++) finish(&many[i], SWARM_OK);
    finish(&other[0], SWARM_OK);
    finish(&other[1], SWARM_OK);
    finish(&running, SWARM_OK);
    cr_expect(!many[3].runs && !other[2].ends);
}

Test(server_engine, a_job_in_the_queue_is_cancelled_without_a_lock_and_does_not_run) {
    work running, waits;
    begin(1, 2);
    hold(&running);
    make(&waits, 2, PROMPT, "1");
    waits.asks_engine = true;
    cr_assert_eq(submit(&waits), SN_OK);
    sn_server_queue_cancel(queue, &waits.job);
    finish(&waits, SWARM_CANCELLED);
    cr_expect(!waits.runs);
    cr_expect_eq(waits.queued_at_end, 0);
    sn_server_queue_cancel(queue, &waits.job); /* once more: nothing */
    sn_server_queue_cancel(queue, &running.job);
    release(&running);
    finish(&running, SWARM_CANCELLED);
    cr_expect_eq(waits.ends, 1);
}

Test(server_engine, a_running_job_is_cancelled_and_its_session_serves_the_next) {
    work a, b;
    begin(1, 2);
    hold(&a);
    make(&b, 1, PROMPT, "2");
    const int64_t before_us = sn_now_us();
    sn_server_queue_cancel(queue, &a.job);
    release(&a);
    finish(&a, SWARM_CANCELLED);
    cr_expect_lt(sn_now_us() - before_us, 2 * SECOND_US);
    cr_expect_lt(atomic_load(&a.events), 200);
    run_whole(&b);
    cr_expect_eq(b.session, a.session);
    cr_expect_geq(b.had, PROMPT);
}

/* The node that a job waits for is silent: its end is bounded by the cancelling, not by the limit of a step. */
Test(server_engine, a_job_that_waits_for_a_silent_node_ends_soon_after_it_is_cancelled) {
    work a;
    begin(1, 2);
    hold(&a);
    cluster_cut_off(api.nodes, 1);
    release(&a);
    sn_sleep_us(3 * SECOND_US);
    cr_assert_eq(a.ends, 0);
    const int64_t before_us = sn_now_us();
    sn_server_queue_cancel(queue, &a.job);
    finish(&a, SWARM_CANCELLED);
    cr_expect_lt(sn_now_us() - before_us, 2 * SECOND_US);
}

Test(server_engine, a_drain_refuses_jobs_and_finishes_those_it_has) {
    work a, b;
    sn_err err;
    begin(1, 2);
    hold(&a);
    make(&b, 2, PROMPT, "1");
    sn_server_queue_drain(queue);
    release(&a);
    cr_expect_eq(sn_server_queue_submit(queue, (sn_server_job *[]){&b.job}, 1, &err), SN_RETRY);
    finish(&a, SWARM_OK);
    cr_expect_eq(b.ends, 0);
}
