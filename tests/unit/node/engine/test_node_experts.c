/* Nodes with a part of the experts: whichever of a group serves a session, the outputs have the bits of one node with
 * all experts; two that ask each other wait for neither for ever; a holder that becomes silent in mid-step is replaced,
 * and without one the node serves no client. */
#include "base/clock.h"
#include "blocks/span.h"
#include "node/engine/engine.h"
#include "node/engine/scheduler.h"
#include "tests/support/node_client.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* 4 blocks, of which the first has no experts; 8 experts, 3 for each token. */
static const cluster_options OPTIONS = {.model = SN_FIXTURES "/golden/deepseek_v3", .kv_memory = 64};
enum { WAIT_S = 120, POLL_US = 200000 };

static void add_parts(testbed *w, int n, const int *bounds) {
    for (int i = 0; i < n; i++) cluster_add_part(w->cluster, 0, 0, (sn_expert_range){bounds[2 * i], bounds[2 * i + 1]});
}

/* Opens a session over all blocks at the node, as soon as it serves clients. */
static void open_when_complete(node_session *p, testbed *w, node_client *t) {
    int64_t until = sn_now_us() + WAIT_S * (int64_t)1000000;
    for (;;) {
        node_session_init(p, w, t, 0, w->n_blocks);
        sn_msg *msg = node_session_open_message(p), *answer = node_client_request(t, &msg);
        bool opened = answer->kind == SN_MSG_OPEN_REPLY;
        sn_msg_free(&answer);
        if (opened) return;
        cr_assert(sn_now_us() < until, "the node serves no clients");
        free(p->timeline);
        sn_sleep_us(POLL_US);
    }
}

Test(node_experts, each_of_a_group_computes_the_bits_of_one_node_with_all_experts) {
    testbed *w = testbed_new(&OPTIONS);
    add_parts(w, 3, (const int[]){0, 3, 3, 6, 6, 8});
    for (int i = 0; i < 3; i++) {
        node_client *t = node_client_new(w, i);
        node_session p;
        open_when_complete(&p, w, t);
        cr_expect(node_session_step_ok(&p, 0, 40), "node %d", i);
        for (int at = 40; at < 48; at++) cr_expect(node_session_step_ok(&p, at, 1), "node %d, token %d", i, at);
        node_session_close(&p);
        node_client_free(&t);
    }
    testbed_free(&w);
}

Test(node_experts, nodes_that_ask_each_other_at_once_all_answer) {
    enum { NODES = 3, ROUNDS = 6, ROWS = 8 };
    testbed *w = testbed_new(&OPTIONS);
    add_parts(w, NODES, (const int[]){0, 3, 3, 6, 6, 8});
    node_client *t[NODES];
    node_session p[NODES];
    for (int i = 0; i < NODES; i++) {
        t[i] = node_client_new(w, i);
        open_when_complete(&p[i], w, t[i]);
    }
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t sent[NODES];
        for (int i = 0; i < NODES; i++) {
            sn_msg *msg = node_session_step_message(&p[i], r * ROWS, ROWS);
            sent[i] = node_client_send(t[i], &msg);
        }
        for (int i = 0; i < NODES; i++)
            cr_expect(
                node_session_reply_ok(&p[i], node_client_receive(t[i], sent[i], TESTBED_WAIT_MS), r * ROWS, ROWS));
    }
    for (int i = 0; i < NODES; i++) {
        node_session_close(&p[i]);
        node_client_free(&t[i]);
    }
    testbed_free(&w);
}

Test(node_experts, clients_are_served_when_the_group_has_all_experts_and_not_before) {
    testbed *w = testbed_new(&OPTIONS);
    add_parts(w, 2, (const int[]){0, 3, 5, 8});
    node_client *t = node_client_new(w, 0);
    node_session p;
    sn_sleep_us(40 * 1000000); /* longer than news of a node takes */
    node_session_init(&p, w, t, 0, w->n_blocks);
    sn_msg *msg = node_session_open_message(&p);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_RETRY, "holds experts 3:5 of blocks 1:4"));
    free(p.timeline);
    add_parts(w, 1, (const int[]){2, 6});
    open_when_complete(&p, w, t);
    cr_expect(node_session_step_ok(&p, 0, 20));
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

Test(node_experts, a_node_with_all_experts_is_a_holder_too) {
    testbed *w = testbed_new(&OPTIONS);
    add_parts(w, 1, (const int[]){0, 3});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session p;
    open_when_complete(&p, w, t);
    cr_expect(node_session_step_ok(&p, 0, 20));
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

Test(node_experts, a_holder_that_is_silent_in_mid_step_is_replaced_by_another_one) {
    testbed *w = testbed_new(&OPTIONS);
    add_parts(w, 3, (const int[]){0, 3, 3, 8, 3, 8});
    node_client *t = node_client_new(w, 0);
    node_session p;
    open_when_complete(&p, w, t);
    cr_expect(node_session_step_ok(&p, 0, 20));
    cluster_cut_off_next_holder(w->cluster);
    cr_expect(node_session_step_ok(&p, 20, 4));
    int gone = cluster_cut_off_number(w->cluster);
    cr_expect(gone == 1 || gone == 2);
    cr_expect(node_session_step_ok(&p, 24, 4));
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

Test(node_experts, without_a_holder_a_step_is_to_be_taken_elsewhere_and_clients_are_served_no_more) {
    testbed *w = testbed_new(&OPTIONS);
    add_parts(w, 2, (const int[]){0, 3, 3, 8});
    node_client *t = node_client_new(w, 0);
    node_session p, other;
    open_when_complete(&p, w, t);
    cr_expect(node_session_step_ok(&p, 0, 20));
    cluster_cut_off_next_holder(w->cluster);
    sn_msg *msg = node_session_step_message(&p, 20, 4);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_RETRY, "no node answers for expert"));
    node_session_init(&other, w, t, 0, w->n_blocks);
    msg = node_session_open_message(&other);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_RETRY, "holds experts 3:8 of blocks 1:4"));
    free(other.timeline);
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

/* -- what a request takes: the linker replaces the span's function by one that takes longer by the clock */

static void meet_step(void);
static int pair_us, n_calls, most_pairs; /* most_pairs: of a call but the first */

sn_status __real_sn_span_run_experts(sn_span *span, const sn_expert_request *request, float *out, sn_err *why);
sn_status __wrap_sn_span_run_experts(sn_span *span, const sn_expert_request *request, float *out, sn_err *why);
sn_status __wrap_sn_span_run_experts(sn_span *span, const sn_expert_request *request, float *out, sn_err *why) {
    int pairs = 0;
    for (int i = 0; i < request->n * request->k; i++) pairs += request->ids[i] >= 0;
    meet_step();
    if (pair_us) virtual_clock_advance((int64_t)pairs * pair_us);
    if (n_calls++ && pairs > most_pairs) most_pairs = pairs;
    return __real_sn_span_run_experts(span, request, out, why);
}

/* A request of so many rows, each of them for experts 0, 3 and 7 of block 1. */
static sn_msg *expert_request(const testbed *w, int rows) {
    enum { EACH = 3 };
    static const uint64_t experts[EACH] = {0, 3, 7};
    sn_msg *msg = NULL;
    void *data = NULL;
    REQUIRE(sn_msg_new(SN_MSG_EXPERTS, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){(uint64_t)rows, (uint64_t)w->n_embd}, &data, &err));
    memcpy(data, w->inputs, (size_t)rows * (size_t)w->n_embd * sizeof(float));
    REQUIRE(
        sn_list_new((size_t)rows * EACH, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, &err));
    for (size_t i = 0; i < (size_t)rows * EACH; i++)
        msg->experts.pairs[i] = (sn_expert_pair){.row = i / EACH, .expert = experts[i % EACH]};
    msg->experts.n_pairs = (size_t)rows * EACH;
    msg->experts.protocol = SN_PROTOCOL_VERSION;
    msg->experts.block = 1;
    memcpy(msg->experts.block_hash, w->block_hash[1].bytes, SN_HASH_SIZE);
    return msg;
}

static sn_msg *ask_for_experts(const testbed *w, node_client *t, int rows) {
    sn_msg *msg = expert_request(w, rows), *answer = node_client_request(t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_EXPERTS_REPLY);
    return answer;
}

Test(node_experts, a_long_request_is_computed_in_parts_that_delay_no_step_for_long) {
    enum { ROWS = 80, DELAY_US = 10000, PAIR_US = 1000 };
    testbed *w = testbed_new(&OPTIONS);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    sn_msg *whole = ask_for_experts(w, t, ROWS);
    n_calls = most_pairs = 0;
    pair_us = PAIR_US;
    for (int i = 0; i < 20; i++) { /* until the node knows how long a pair takes */
        sn_msg *parts = ask_for_experts(w, t, ROWS);
        cr_assert_eq(parts->tensor.bytes, whole->tensor.bytes);
        cr_expect(!memcmp(parts->tensor.data, whole->tensor.data, whole->tensor.bytes), "other bits in parts");
        sn_msg_free(&parts);
        if (i == 9) most_pairs = 0;
    }
    cr_expect(most_pairs > 0 && most_pairs <= 2 * DELAY_US / PAIR_US, "%d pairs at once", most_pairs);
    sn_msg_free(&whole);
    node_client_free(&t);
    testbed_free(&w);
}

/* -- a step that comes while a part is computed: the linker replaces the engine's calls by ones that watch their order
 */

static atomic_bool step_comes, step_came, was_met; /* was_met: it came in the middle of a part */
static atomic_int parts_before, most_parts_before; /* that were begun before its pass, since it came */

/* In the device thread, at the beginning of a part. */
static void meet_step(void) {
    if (step_came) parts_before++;
    if (!step_comes || step_came) return;
    while (!step_came) usleep(100); /* no time of the virtual clock */
    was_met = true;
}

bool __real_sn_engine_submit(sn_engine *e, sn_job *job);
bool __wrap_sn_engine_submit(sn_engine *e, sn_job *job);
bool __wrap_sn_engine_submit(sn_engine *e, sn_job *job) {
    const bool step = step_comes && job->kind == SN_JOB_STEP, submitted = __real_sn_engine_submit(e, job);
    if (step) step_came = true;
    return submitted;
}

sn_job *__real_sn_scheduler_run(sn_scheduler *scheduler, int64_t now_us);
sn_job *__wrap_sn_scheduler_run(sn_scheduler *scheduler, int64_t now_us);
sn_job *__wrap_sn_scheduler_run(sn_scheduler *scheduler, int64_t now_us) {
    sn_job *done = __real_sn_scheduler_run(scheduler, now_us);
    for (const sn_job *job = done; job && step_came; job = job->next) {
        if (job->kind != SN_JOB_STEP) continue;
        if (was_met && parts_before > most_parts_before) most_parts_before = parts_before;
        step_comes = step_came = false;
    }
    return done;
}

Test(node_experts, a_client_that_decodes_waits_for_no_part_but_the_one_in_which_its_step_comes) {
    enum { ROWS = 80, PAIR_US = 1000, STEPS = 24, STEPS_MAX = TESTBED_TOKENS, AT_ONCE = 3 };
    testbed *w = testbed_new(&OPTIONS);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *stranger = node_client_new(w, 0);
    node_session p;
    int waiting = 0, met = 0;
    open_when_complete(&p, w, t);
    pair_us = PAIR_US;
    for (int i = 0; i < 10; i++) { /* until the node knows how long a pair takes */
        sn_msg *reply = ask_for_experts(w, stranger, ROWS);
        sn_msg_free(&reply);
    }
    for (int at = 0; at < STEPS || (!met && at < STEPS_MAX); at++) { /* a busy machine may let none come in a part */
        for (; waiting < AT_ONCE; waiting++) {
            sn_msg *request = expert_request(w, ROWS);
            node_client_send(stranger, &request);
        }
        parts_before = 0;
        was_met = false;
        step_comes = true;
        cr_expect(node_session_step_ok(&p, at, 1));
        met += was_met;
        sn_msg *reply = node_client_receive(stranger, 0, TESTBED_WAIT_MS);
        cr_assert(reply && reply->kind == SN_MSG_EXPERTS_REPLY);
        sn_msg_free(&reply);
        waiting--;
    }
    cr_expect_gt(met, 0, "no step came in the middle of a part");
    cr_expect_eq(most_parts_before, 0, "a step waited for %d further parts", most_parts_before);
    node_session_close(&p);
    node_client_free(&stranger);
    node_client_free(&t);
    testbed_free(&w);
}
