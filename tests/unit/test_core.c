/* The core by hand: no threads, a clock that the test sets, jobs that wait until the test runs them. */
#include "base/clock.h"
#include "node/core.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SECOND = 1000000, T0 = 100 * SECOND, TUNE_BYTES = 1 << 20 };

typedef struct bench {
    world *w; /* for its model and numbers; its cluster has no node but us */
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_transport *transport;
    sn_identity identity;
    sn_core *core;
    sn_job *waiting[16];
    int n_waiting, room;
    int64_t unix_ms; /* stands still unless the test moves it */
    talk client;
} bench;

static bool submit(void *ctx, sn_job *job) {
    bench *b = ctx;
    if (b->n_waiting == b->room) return false;
    b->waiting[b->n_waiting++] = job;
    return true;
}

static sn_engine_figures read_figures(void *ctx) {
    const bench *b = ctx;
    return (sn_engine_figures){.kv_bytes = sn_kv_pool_bytes_used(b->pool), .queue = (uint64_t)b->n_waiting};
}

static void bench_begin(bench *b) {
    *b = (bench){.w = world_new(&(cluster_options){.kv_memory = 8}), .room = 8, .unix_ms = sn_unix_ms()};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    char bound[SN_ADDRESS_MAX + 1];
    NEED(sn_model_open(b->w->path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    NEED(sn_span_load(model, b->device, 0, 4, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    NEED(sn_span_kv_pool(b->span, 8 * b->w->page_bytes, &b->pool, &err));
    NEED(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    b->transport = cluster_transport(b->w->cluster, &b->identity);
    NEED(sn_transport_listen(b->transport, "mem://bench", bound, &err));
    const sn_core_setup setup = {.transport = b->transport,
                                 .identity = &b->identity,
                                 .address = "mem://bench",
                                 .name = "bench",
                                 .span = sn_span_describe(b->span),
                                 .model = b->w->model,
                                 .kv_bytes_max = sn_kv_pool_bytes(b->pool),
                                 .sessions_max = 8,
                                 .tune_bytes_max = TUNE_BYTES,
                                 .idle_us_max = 60 * SECOND,
                                 .room_us_max = SECOND,
                                 .submit = submit,
                                 .read = read_figures,
                                 .ctx = b};
    NEED(sn_core_new(&setup, T0, &b->core, &err));
    b->client.transport = cluster_transport(b->w->cluster, &b->client.identity);
    NEED(sn_transport_dial(b->client.transport, "mem://bench", b->identity.curve_key, &b->client.node, &err));
}

static void bench_end(bench *b) {
    for (int i = 0; i < b->n_waiting; i++) sn_job_free(&b->waiting[i]);
    sn_scheduler_free(&b->scheduler);
    sn_core_free(&b->core);
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0, "the core left pages behind");
    sn_transport_free(&b->client.transport);
    sn_transport_free(&b->transport);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    world_free(&b->w);
}

static void read_messages(bench *b, int64_t now_us) {
    sn_event event;
    for (;;) {
        NEED(sn_transport_recv(b->transport, 0, &event, &err));
        if (!event.peer) return;
        sn_core_handle(b->core, &event, now_us, b->unix_ms);
    }
}

static void run_jobs(bench *b, int64_t now_us) {
    while (b->n_waiting || !sn_scheduler_idle(b->scheduler)) {
        for (int i = 0; i < b->n_waiting; i++) sn_scheduler_add(b->scheduler, b->waiting[i]);
        b->n_waiting = 0;
        for (sn_job *job = sn_scheduler_run(b->scheduler, now_us), *next; job; job = next) {
            next = job->next;
            sn_core_done(b->core, job, now_us);
        }
    }
}

static sn_msg *ask(bench *b, sn_msg *msg, int64_t now_us) {
    uint64_t request = talk_send(&b->client, &msg);
    read_messages(b, now_us);
    run_jobs(b, now_us);
    sn_msg *answer = talk_hear(&b->client, request, 100);
    return answer;
}

static void open_past(bench *b, past *p, int64_t now_us) {
    past_init(p, b->w, &b->client, 0, 4);
    sn_msg *answer = ask(b, past_open_message(p), now_us);
    cr_assert(answer && answer->kind == SN_MSG_OPENED);
    sn_msg_free(&answer);
}

static uint64_t count_sessions(bench *b, int64_t now_us) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_STATUS, 0, &msg, &err));
    sn_msg *answer = ask(b, msg, now_us);
    cr_assert(answer && answer->kind == SN_MSG_STATUS_IS);
    uint64_t n = answer->status_is.sessions;
    sn_msg_free(&answer);
    return n;
}

Test(core, closes_sessions_that_lie_idle_and_no_others) {
    bench b;
    past idle, busy;
    bench_begin(&b);
    open_past(&b, &idle, T0);
    open_past(&b, &busy, T0);
    cr_expect(past_took(&idle, ask(&b, past_step_message(&idle, 0, 40), T0), 0, 40));
    cr_expect(past_took(&busy, ask(&b, past_step_message(&busy, 0, 5), T0 + 50 * SECOND), 0, 5));
    for (int64_t now = T0; now <= T0 + 60 * SECOND; now += 5 * SECOND) sn_core_tick(b.core, now, b.unix_ms);
    cr_expect_eq(count_sessions(&b, T0 + 60 * SECOND), 2);
    sn_core_tick(b.core, T0 + 80 * SECOND, b.unix_ms);
    run_jobs(&b, T0 + 80 * SECOND);
    cr_expect_eq(count_sessions(&b, T0 + 80 * SECOND), 1);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), b.w->page_bytes);
    cr_expect(is_refusal(ask(&b, past_step_message(&idle, 40, 1), T0 + 80 * SECOND), SN_REBUILD, "does not know"));
    cr_expect(past_took(&busy, ask(&b, past_step_message(&busy, 5, 1), T0 + 80 * SECOND), 5, 1));
    free(idle.timeline), free(busy.timeline);
    bench_end(&b);
}

Test(core, serves_on_while_it_drains_and_takes_no_new_session) {
    bench b;
    past p, late;
    bench_begin(&b);
    open_past(&b, &p, T0);
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 0, 4), T0), 0, 4));
    sn_core_drain(b.core, b.unix_ms);
    sn_msg *told = talk_hear(&b.client, 0, 100);
    cr_assert(told && told->kind == SN_MSG_LEAVING && !memcmp(told->leaving.session, p.id, SN_SESSION_ID_SIZE));
    sn_msg_free(&told);
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 4, 3), T0), 4, 3));
    past_init(&late, b.w, &b.client, 0, 4);
    cr_expect(is_refusal(ask(&b, past_open_message(&late), T0), SN_RETRY, "this node is leaving"));
    cr_expect_eq(sn_core_sessions(b.core), 1);
    sn_msg *answer = ask(&b, past_close_message(&p), T0);
    cr_expect_eq(sn_core_sessions(b.core), 0, "the drain is over");
    sn_msg_free(&answer);
    free(p.timeline), free(late.timeline);
    bench_end(&b);
}

Test(core, refuses_everything_once_it_leaves) {
    bench b;
    past p, late;
    bench_begin(&b);
    open_past(&b, &p, T0);
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 0, 4), T0), 0, 4));
    sn_msg *msg = past_step_message(&p, 4, 3); /* in hand when the end comes: it is still answered */
    uint64_t request = talk_send(&b.client, &msg);
    read_messages(&b, T0);
    sn_core_leave(b.core, b.unix_ms);
    cr_expect(sn_core_busy(b.core));
    run_jobs(&b, T0);
    cr_expect_not(sn_core_busy(b.core));
    cr_expect(past_took(&p, talk_hear(&b.client, request, 100), 4, 3));
    cr_expect(is_refusal(ask(&b, past_step_message(&p, 7, 1), T0), SN_RETRY, "this node is leaving"));
    past_init(&late, b.w, &b.client, 0, 4);
    cr_expect(is_refusal(ask(&b, past_open_message(&late), T0), SN_RETRY, "this node is leaving"));
    free(p.timeline), free(late.timeline);
    bench_end(&b);
}

static sn_node_state announced_state(bench *b) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_PEERS, 0, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL;
    sn_msg *answer = ask(b, msg, T0);
    cr_assert(answer && answer->kind == SN_MSG_PEERS_ARE && answer->peers_are.n_announcements == 1);
    sn_announcement *a = calloc(1, sizeof *a);
    const sn_blob *blob = answer->peers_are.announcements;
    NEED(sn_announcement_open(blob->data, blob->len, b->unix_ms, a, &err));
    sn_node_state state = a->state;
    free(a);
    sn_msg_free(&answer);
    return state;
}

Test(core, announces_that_it_drains_and_leaves_even_in_the_same_millisecond) {
    bench b;
    bench_begin(&b);
    sn_core_tick(b.core, T0, b.unix_ms);
    cr_expect_eq(announced_state(&b), SN_NODE_ONLINE);
    sn_core_drain(b.core, b.unix_ms);
    cr_expect_eq(announced_state(&b), SN_NODE_DRAINING);
    sn_core_leave(b.core, b.unix_ms);
    cr_expect_eq(announced_state(&b), SN_NODE_OFFLINE);
    bench_end(&b);
}

Test(core, a_step_that_found_no_room_in_the_queue_leaves_a_session_that_can_go_on) {
    bench b;
    past p;
    bench_begin(&b);
    open_past(&b, &p, T0);
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 0, 20), T0), 0, 20));
    sn_msg *msg = past_step_message(&p, 5, 10); /* a rewind to other tokens, never computed */
    memset(msg->owner, 0, 64);
    b.room = 0;
    cr_expect(is_refusal(ask(&b, msg, T0), SN_RETRY, "queue is full"));
    b.room = 8;
    msg = past_step_message(&p, 20, 1); /* the tokens behind 5 may not be built on any more */
    cr_expect(is_refusal(ask(&b, msg, T0), SN_REFUSED, "beyond the session's end at 5"));
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 5, 30), T0), 5, 30));
    free(p.timeline);
    bench_end(&b);
}

Test(core, a_session_closed_while_it_works_is_closed_when_its_step_is_back) {
    bench b;
    past p;
    bench_begin(&b);
    open_past(&b, &p, T0);
    sn_msg *msg = past_step_message(&p, 0, 20);
    uint64_t request = talk_send(&b.client, &msg);
    read_messages(&b, T0);
    cr_assert_eq(b.n_waiting, 1);
    msg = past_close_message(&p);
    talk_send(&b.client, &msg);
    read_messages(&b, T0);
    msg = past_open_message(&p);
    cr_expect(is_refusal(ask(&b, msg, T0), SN_REFUSED, "in use")); /* not while the old one is on its way out */
    cr_expect_eq(count_sessions(&b, T0), 0);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 0);
    cr_expect_null(talk_hear(&b.client, request, 50));
    free(p.timeline);
    bench_end(&b);
}

Test(core, lets_go_of_everything_when_it_ends_in_the_middle_of_work) {
    bench b;
    past p;
    bench_begin(&b);
    open_past(&b, &p, T0);
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 0, 40), T0), 0, 40));
    sn_msg *msg = past_step_message(&p, 40, 20);
    talk_send(&b.client, &msg);
    read_messages(&b, T0);
    free(p.timeline);
    bench_end(&b);
}

/* A node that was to be joined is told of us again when it is back; the loss itself is answered by nothing. */
Test(core, goes_on_telling_a_joined_node_that_was_lost) {
    bench b;
    sn_identity identity;
    char bound[SN_ADDRESS_MAX + 1];
    sn_event event;
    bench_begin(&b);
    sn_transport *joined = cluster_transport(b.w->cluster, &identity);
    NEED(sn_transport_listen(joined, "mem://joined", bound, &err));
    sn_core_tick(b.core, T0, b.unix_ms);
    sn_core_join(b.core, "mem://joined", identity.curve_key);
    NEED(sn_transport_recv(joined, 0, &event, &err));
    cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS);
    sn_msg_free(&event.msg);
    sn_transport_free(&joined);
    NEED(sn_transport_recv(b.transport, 0, &event, &err));
    cr_assert(event.lost);
    joined = cluster_transport_as(b.w->cluster, &identity);
    NEED(sn_transport_listen(joined, "mem://joined", bound, &err));
    sn_core_handle(b.core, &event, T0, b.unix_ms);
    NEED(sn_transport_recv(joined, 0, &event, &err));
    cr_assert_null(event.msg);
    sn_core_tick(b.core, T0 + 16 * SECOND, b.unix_ms + 16000);
    NEED(sn_transport_recv(joined, 0, &event, &err));
    cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS);
    sn_msg_free(&event.msg);
    sn_transport_free(&joined);
    bench_end(&b);
}

/* -- steps that come before the one before them is answered -- */

static uint64_t send_step(bench *b, past *p, uint64_t step, int position, int n, bool knows) {
    sn_msg *msg = past_step_message(p, position, n);
    msg->step.step = step;
    if (!knows) memset(msg->step.timeline, 0, SN_HASH_SIZE);
    uint64_t request = talk_send(&b->client, &msg);
    read_messages(b, T0);
    return request;
}

Test(core, steps_sent_ahead_wait_and_are_answered_in_their_order) {
    bench b;
    past p;
    uint64_t requests[4];
    bench_begin(&b);
    open_past(&b, &p, T0);
    for (int i = 0; i < 4; i++) requests[i] = send_step(&b, &p, (uint64_t)i + 1, 10 * i, 10, i % 2);
    requests[2] = send_step(&b, &p, 3, 20, 10, true); /* asked twice: answered once */
    cr_expect_eq(b.n_waiting, 1, "the engine got more than one step of a session");
    run_jobs(&b, T0);
    for (int i = 0; i < 4; i++) {
        sn_msg *answer = talk_hear(&b.client, 0, 100);
        cr_assert(answer);
        cr_expect_eq(answer->request, requests[i]);
        cr_expect(past_took(&p, answer, 10 * i, 10));
    }
    cr_expect_null(talk_hear(&b.client, 0, 20));
    free(p.timeline);
    bench_end(&b);
}

Test(core, steps_behind_one_that_fails_fail_too) {
    bench b;
    past p;
    bench_begin(&b);
    open_past(&b, &p, T0);
    send_step(&b, &p, 1, 0, 10, true);
    send_step(&b, &p, 2, 11, 5, true); /* leaves a gap */
    send_step(&b, &p, 3, 16, 5, false);
    run_jobs(&b, T0);
    cr_expect(past_took(&p, talk_hear(&b.client, 0, 100), 0, 10));
    cr_expect(is_refusal(talk_hear(&b.client, 0, 100), SN_REFUSED, "beyond the session's end"));
    cr_expect(is_refusal(talk_hear(&b.client, 0, 100), SN_REBUILD, "step 3 does not follow step 1"));
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 10, 5), T0), 10, 5));
    free(p.timeline);
    bench_end(&b);
}

Test(core, steps_sent_ahead_are_bounded_in_number_and_tokens) {
    bench b;
    past p;
    bench_begin(&b);
    open_past(&b, &p, T0);
    for (uint64_t i = 1; i <= SN_STEPS_AHEAD_MAX + 1; i++) send_step(&b, &p, i, (int)i - 1, 1, true);
    send_step(&b, &p, SN_STEPS_AHEAD_MAX + 2, SN_STEPS_AHEAD_MAX + 1, 1, true);
    cr_expect(is_refusal(talk_hear(&b.client, 0, 100), SN_RETRY, "8 steps wait already"));
    run_jobs(&b, T0);
    for (int i = 0; i <= SN_STEPS_AHEAD_MAX; i++) cr_expect(past_took(&p, talk_hear(&b.client, 0, 100), i, 1));
    for (uint64_t i = 10; i < 17; i++) send_step(&b, &p, i, 9, 80, true); /* the first is computed, six wait: 480 tokens */
    send_step(&b, &p, 17, 9, 33, true);
    cr_expect(is_refusal(talk_hear(&b.client, 0, 100), SN_RETRY, "6 steps wait already"));
    free(p.timeline);
    bench_end(&b); /* with steps that wait */
}

Test(core, an_unknown_timeline_is_taken_at_the_sessions_end_only) {
    bench b;
    past p;
    bench_begin(&b);
    open_past(&b, &p, T0);
    cr_expect(past_took(&p, ask(&b, past_step_message(&p, 0, 10), T0), 0, 10));
    sn_msg *msg = past_step_message(&p, 4, 2);
    memset(msg->step.timeline, 0, SN_HASH_SIZE);
    cr_expect(is_refusal(ask(&b, msg, T0), SN_REBUILD, "MISMATCH"));
    free(p.timeline);
    bench_end(&b);
}

Test(core, a_session_closed_with_steps_that_wait_lets_go_of_them) {
    bench b;
    past p;
    bench_begin(&b);
    open_past(&b, &p, T0);
    for (uint64_t i = 1; i < 4; i++) send_step(&b, &p, i, 10 * ((int)i - 1), 10, true);
    sn_msg *msg = past_close_message(&p);
    talk_send(&b.client, &msg);
    read_messages(&b, T0);
    run_jobs(&b, T0);
    cr_expect_eq(sn_core_sessions(b.core), 0);
    free(p.timeline);
    bench_end(&b);
}

static sn_msg *batch_message(const bench *b, size_t sequences, uint64_t tokens) {
    sn_msg *msg = NULL;
    void *rows;
    NEED(sn_msg_new(SN_MSG_FORWARD, 0, &msg, &err));
    NEED(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){sequences * tokens, (uint64_t)b->w->n_embd}, &rows, &err));
    memset(rows, 0, msg->tensor.bytes);
    msg->forward.protocol = SN_PROTOCOL;
    memcpy(msg->forward.model, b->w->model.bytes, SN_HASH_SIZE);
    msg->forward.end_block = 4;
    NEED(sn_list_new(sequences, SN_SAMPLES_MAX, sizeof *msg->forward.samples, &msg->forward.samples, &err));
    msg->forward.n_samples = sequences;
    for (size_t i = 0; i < sequences; i++) msg->forward.samples[i].tokens = tokens;
    return msg;
}

Test(core, a_client_has_only_so_many_batches_in_training_and_a_node_so_many_bytes) {
    bench b;
    bench_begin(&b);
    b.room = 16;
    uint64_t asked[8];
    for (int i = 0; i < 8; i++) {
        sn_msg *msg = batch_message(&b, 1, 5);
        asked[i] = talk_send(&b.client, &msg);
    }
    read_messages(&b, T0);
    cr_expect_eq(b.n_waiting, 8);
    sn_msg *ninth = batch_message(&b, 1, 5);
    uint64_t request = talk_send(&b.client, &ninth);
    read_messages(&b, T0);
    cr_expect(is_refusal(talk_hear(&b.client, request, 100), SN_RETRY, "8 of them yours"));
    run_jobs(&b, T0);
    for (int i = 0; i < 8; i++) {
        sn_msg *answer = talk_hear(&b.client, asked[i], 100);
        cr_assert(answer && answer->kind == SN_MSG_FORWARDED, "%s", answer ? answer->error.text : "no answer");
        sn_msg_free(&answer);
    }
    sn_msg *answer = ask(&b, batch_message(&b, 1, 5), T0);
    cr_expect(answer && answer->kind == SN_MSG_FORWARDED, "there is room again");
    sn_msg_free(&answer);
    cr_assert_eq(b.w->n_embd, 64); /* 256 bytes a row: 4096 rows are all there is room for */
    cr_expect(is_refusal(ask(&b, batch_message(&b, 10, 410), T0), SN_REFUSED, "--tune-memory"));
    sn_msg *half = batch_message(&b, 5, 410), *other = batch_message(&b, 5, 410);
    talk_send(&b.client, &half);
    request = talk_send(&b.client, &other);
    read_messages(&b, T0);
    cr_expect(is_refusal(talk_hear(&b.client, request, 100), SN_RETRY, "1 batches"));
    bench_end(&b);
}
