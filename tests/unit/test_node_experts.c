/* Nodes with a part of the experts: whichever of a group serves a session, the outputs have the bits of one node with
 * all experts; two that ask each other wait for neither for ever; a holder that becomes silent in mid-step is replaced,
 * and without one the node serves no client. */
#include "base/clock.h"
#include "tests/support/node_client.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

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
