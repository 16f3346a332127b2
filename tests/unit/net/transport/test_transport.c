/* One suite for every transport: each test below runs over ZeroMQ, over memory, and over emulated links on both.
 * After it, the filter of the in-memory hub. */
#include "tests/support/transport_fixture.h"

#include <pthread.h>
#include <stdlib.h>

/* -- what every transport does */

static void replies_reach_the_sender(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    cr_assert_eq(send_message(client.t, to, status_message(7)), SN_OK);
    sn_event asked = expect_message(node.t);
    cr_assert_eq(asked.msg->kind, SN_MSG_STATUS);
    cr_assert_eq(asked.msg->correlation_id, 7);
    cr_assert_arr_eq(asked.key, client.identity.curve_key, SN_KEY_SIZE);
    cr_assert(llabs(sn_now_us() - asked.arrived_us) < SOON_US);
    cr_assert_eq(send_message(node.t, asked.peer, step_reply_message(7, 576)), SN_OK);
    sn_event answered = expect_message(client.t);
    cr_assert_eq(answered.peer, to);
    cr_assert_arr_eq(answered.key, node.identity.curve_key, SN_KEY_SIZE);
    cr_assert_eq(answered.msg->tensor.bytes, 2304);
    cr_assert_eq(((const float *)answered.msg->tensor.data)[575], 582.0f);
    sn_msg_free(&asked.msg);
    sn_msg_free(&answered.msg);
    endpoint_close(&client);
    endpoint_close(&node);
}

static void a_large_tensor_arrives_unchanged(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    cr_assert_eq(send_message(client.t, endpoint_dial(&client, &node), step_reply_message(1, 1 << 20)), SN_OK);
    sn_event event = expect_message(node.t);
    cr_assert_eq(event.msg->tensor.rank, 2);
    cr_assert_eq(event.msg->tensor.bytes, 4 << 20);
    cr_assert_eq((uintptr_t)event.msg->tensor.data % sizeof(float), 0);
    for (size_t i = 0; i < 1 << 20; i++) cr_assert_eq(((const float *)event.msg->tensor.data)[i], (float)(1 + i));
    sn_msg_free(&event.msg);
    endpoint_close(&client);
    endpoint_close(&node);
}

static void order_is_kept(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    for (uint64_t i = 0; i < 500; i++)
        cr_assert_eq(send_message(client.t, to, i % 3 ? status_message(i) : step_reply_message(i, 1 + i * 7)), SN_OK);
    for (uint64_t i = 0; i < 500; i++) {
        sn_event event = expect_message(node.t);
        cr_assert_eq(event.msg->correlation_id, i);
        sn_msg_free(&event.msg);
    }
    endpoint_close(&client);
    endpoint_close(&node);
}

static void a_wrong_server_key_reaches_no_node(transport_fixture *w) {
    endpoint node, client, other;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    endpoint_open(w, &other, false);
    sn_err err = {0};
    sn_peer to;
    require_ok(sn_transport_dial(client.t, node.address, other.identity.curve_key, &to, &err), &err);
    cr_assert_eq(send_message(client.t, to, status_message(1)), SN_OK);
    expect_silence(node.t, 300);
    bool is_other;
    expect_outage(client.t, to, node.address, &is_other);
    cr_expect(is_other);
    cr_assert_neq(endpoint_dial(&client, &node), to);
    cr_assert_eq(send_message(client.t, endpoint_dial(&client, &node), status_message(2)), SN_OK);
    sn_event event = expect_message(node.t);
    cr_assert_eq(event.msg->correlation_id, 2);
    sn_msg_free(&event.msg);
    endpoint_close(&client);
    endpoint_close(&other);
    endpoint_close(&node);
}

static void an_address_in_use_is_refused(transport_fixture *w) {
    endpoint first, second;
    sn_err err = {0};
    char bound[SN_ADDRESS_MAX + 1];
    endpoint_open(w, &first, true);
    endpoint_open(w, &second, false);
    cr_assert_eq(sn_transport_listen(second.t, first.address, bound, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "in use"), "%s", err.text);
    cr_assert(strstr(err.text, "--listen"), "%s", err.text);
    cr_assert_eq(sn_transport_listen(first.t, first.address, bound, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "already"), "%s", err.text);
    endpoint_close(&first);
    endpoint_close(&second);
}

static void invalid_addresses_are_refused(transport_fixture *w) {
    static const char *const bad[] = {"",           "7001",         ":7001",      "host",   "host:",  "host:0",
                                      "host:65536", "host:1x",      "a;b:1",      "a b:1",  "*:7001", "[]:1",
                                      "a/b:1",      "ipc:///tmp/x", "inproc://x", "x\x1b:1"};
    endpoint m;
    sn_err err = {0};
    sn_peer peer;
    endpoint_open(w, &m, false);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(sn_transport_dial(m.t, bad[i], m.identity.curve_key, &peer, &err), SN_REFUSED, "%s", bad[i]);
        cr_assert_eq(peer, 0);
        cr_assert(strstr(err.text, "is no address"), "%s", err.text);
    }
    char longest[400] = "", bound[SN_ADDRESS_MAX + 1];
    memset(longest, 'a', 300);
    cr_assert_eq(sn_transport_dial(m.t, longest, m.identity.curve_key, &peer, &err), SN_REFUSED);
    cr_assert_eq(sn_transport_listen(m.t, longest, bound, &err), SN_REFUSED);
    cr_assert_eq(sn_transport_listen(m.t, "udp://127.0.0.1:1", bound, &err), SN_REFUSED);
    endpoint_close(&m);
}

static void dialling_twice_gives_one_handle(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    cr_assert_eq(endpoint_dial(&client, &node), endpoint_dial(&client, &node));
    endpoint_close(&client);
    endpoint_close(&node);
}

static void nothing_is_sent_after_a_hang_up(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    cr_assert_eq(send_message(client.t, to, status_message(1)), SN_OK);
    sn_event event = expect_message(node.t);
    sn_msg_free(&event.msg);
    sn_transport_hang_up(node.t, event.peer); /* a peer that connected to this end */
    cr_assert_eq(send_message(node.t, event.peer, status_message(2)), SN_RETRY);
    cr_assert_eq(send_message(client.t, to, status_message(3)), SN_OK);
    sn_event again = expect_message(node.t);
    cr_assert_neq(again.peer, event.peer, "a handle was used again");
    sn_msg_free(&again.msg);
    sn_transport_hang_up(client.t, to); /* a peer that this end dialled */
    cr_assert_eq(send_message(client.t, to, status_message(4)), SN_RETRY);
    sn_transport_hang_up(client.t, to);
    sn_transport_hang_up(client.t, 4711);
    cr_assert_neq(endpoint_dial(&client, &node), to, "a handle was used again");
    endpoint_close(&client);
    endpoint_close(&node);
}

static void a_client_that_left_gets_no_reply(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    cr_assert_eq(send_message(client.t, to, status_message(1)), SN_OK);
    sn_event event = expect_message(node.t);
    sn_msg_free(&event.msg);
    cr_assert_eq(send_message(client.t, to, status_message(3)), SN_OK);
    endpoint_close(&client); /* messages that were sent still leave */
    event = expect_message(node.t);
    sn_msg_free(&event.msg);
    sn_status status = SN_OK;
    for (int64_t until = sn_now_us() + SOON_US; status == SN_OK && sn_now_us() < until; sn_sleep_us(1000))
        status = send_message(node.t, event.peer, status_message(2));
    cr_assert_eq(status, SN_RETRY);
    endpoint_close(&node);
}

/* The owner of a peer that had dialled hears of its end once, after its last message, and of no other end. */
static void a_peer_that_left_is_reported_once(transport_fixture *w) {
    endpoint node, client, other;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    endpoint_open(w, &other, false);
    sn_peer to = endpoint_dial(&client, &node);
    cr_assert_eq(send_message(other.t, endpoint_dial(&other, &node), status_message(1)), SN_OK);
    sn_event kept = expect_message(node.t);
    cr_assert_eq(send_message(client.t, to, status_message(2)), SN_OK);
    sn_event first = expect_message(node.t);
    cr_assert_eq(send_message(node.t, first.peer, status_message(4)), SN_OK);
    sn_msg_free(&first.msg);
    first = expect_message(client.t);
    sn_msg_free(&first.msg);
    cr_assert_eq(send_message(client.t, to, status_message(3)), SN_OK);
    endpoint_close(&client);
    sn_event last = expect_message(node.t), gone = receive_event(node.t, WAIT_MS);
    cr_assert_eq(last.msg->correlation_id, 3);
    cr_assert(gone.gone && !gone.lost && !gone.msg);
    cr_assert_eq(gone.peer, last.peer);
    cr_assert_arr_eq(gone.key, client.identity.curve_key, SN_KEY_SIZE);
    cr_assert_eq(gone.err.status, SN_RETRY);
    cr_assert_eq(send_message(node.t, gone.peer, status_message(5)), SN_RETRY);
    expect_silence(node.t, 100);
    cr_assert_eq(send_message(node.t, kept.peer, status_message(6)), SN_OK);
    sn_msg_free(&kept.msg);
    sn_msg_free(&last.msg);
    endpoint_close(&other);
    endpoint_close(&node);
}

static void *wake_main(void *ctx) {
    sn_sleep_us(50000);
    sn_transport_wake(ctx);
    return NULL;
}

static void another_thread_can_wake_the_receiver(transport_fixture *w) {
    endpoint node;
    endpoint_open(w, &node, true);
    pthread_t thread;
    int64_t begun = sn_now_us();
    cr_assert_eq(pthread_create(&thread, NULL, wake_main, node.t), 0);
    expect_silence(node.t, WAIT_MS);
    int64_t took = sn_now_us() - begun;
    cr_assert(took > 40000 && took < SOON_US, "%lld us", (long long)took);
    pthread_join(thread, NULL);
    sn_transport_wake(node.t); /* before the wait */
    begun = sn_now_us();
    expect_silence(node.t, WAIT_MS);
    cr_assert(sn_now_us() - begun < SOON_US);
    begun = sn_now_us(); /* one wake ends one wait only */
    expect_silence(node.t, 50);
    cr_assert(sn_now_us() - begun >= 50000);
    endpoint_close(&node);
}

static void waiting_ends_at_its_deadline(transport_fixture *w) {
    endpoint node;
    endpoint_open(w, &node, true);
    int64_t begun = sn_now_us();
    expect_silence(node.t, 100);
    int64_t took = sn_now_us() - begun;
    cr_assert(took >= 100000 && took < SOON_US, "%lld us", (long long)took);
    begun = sn_now_us();
    for (int i = 0; i < 100; i++) expect_silence(node.t, 0);
    cr_assert(sn_now_us() - begun < SOON_US);
    endpoint_close(&node);
}

static void a_full_queue_returns_retry(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    uint64_t sent = 0;
    sn_status status;
    int64_t begun = sn_now_us();
    while (!(status = send_message(client.t, to, step_reply_message(sent, 4096))) && sent < 20000) sent++;
    cr_assert_eq(status, SN_RETRY, "%llu messages were accepted", (unsigned long long)sent);
    cr_assert(sn_now_us() - begun < SOON_US);
    for (uint64_t i = 0; i < sent; i++) { /* every accepted message arrives */
        sn_event event = expect_message(node.t);
        cr_assert_eq(event.msg->correlation_id, i);
        sn_msg_free(&event.msg);
    }
    endpoint_close(&client);
    endpoint_close(&node);
}

static void an_unreachable_peer_is_reported_once(transport_fixture *w) {
    endpoint node, client, alive;
    endpoint_open(w, &node, true);
    endpoint_open(w, &alive, true);
    endpoint_open(w, &client, false);
    sn_peer to = endpoint_dial(&client, &node), other = endpoint_dial(&client, &alive);
    endpoint_close(&node);
    int64_t begun = sn_now_us();
    for (int i = 0; i < 100; i++) cr_assert_eq(send_message(client.t, to, status_message(1)), SN_OK);
    cr_assert(sn_now_us() - begun < SOON_US);
    bool is_other; /* it may have taken the connection, and ended in the handshake */
    expect_outage(client.t, to, node.address, &is_other);
    expect_silence(client.t, 700);
    cr_assert_eq(send_message(client.t, other, status_message(2)), SN_OK);
    sn_event event = expect_message(alive.t);
    sn_msg_free(&event.msg);
    begun = sn_now_us();
    endpoint_close(&client);
    cr_assert(sn_now_us() - begun < SOON_US);
    endpoint_close(&alive);
}

static void a_lost_connection_is_reported_and_restored(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    for (int life = 0; life < 2; life++) {
        cr_assert_eq(send_message(client.t, to, status_message(1)), SN_OK);
        sn_event asked = expect_message(node.t);
        cr_assert_eq(send_message(node.t, asked.peer, step_reply_message(2, 9)), SN_OK);
        sn_event answered = expect_message(client.t);
        cr_assert_eq(send_message(node.t, asked.peer, step_reply_message(3, 9)), SN_OK);
        sn_msg_free(&asked.msg);
        sn_msg_free(&answered.msg);
        int64_t begun = sn_now_us();
        endpoint_close(&node);
        answered = expect_message(client.t); /* messages sent before the end arrive before the report of the loss */
        cr_assert_eq(answered.msg->correlation_id, 3);
        sn_msg_free(&answered.msg);
        expect_loss(client.t, to, node.address);
        cr_assert(sn_now_us() - begun < SOON_US);
        expect_silence(client.t, 100);
        endpoint_reopen(w, &node);
    }
    sn_transport_hang_up(client.t, to);
    expect_silence(client.t, 0);
    to = endpoint_dial(&client, &node);
    cr_assert_eq(send_message(client.t, to, status_message(4)), SN_OK);
    sn_event asked = expect_message(node.t);
    sn_msg_free(&asked.msg);
    endpoint_close(&client);
    endpoint_close(&node);
}

static void many_peers_are_distinguished(transport_fixture *w) {
    enum { N = 40 };
    endpoint node, clients[N];
    endpoint_open(w, &node, true);
    for (int i = 0; i < N; i++) {
        endpoint_open(w, &clients[i], false);
        cr_assert_eq(send_message(clients[i].t, endpoint_dial(&clients[i], &node), status_message((uint64_t)i)), SN_OK);
    }
    sn_peer handles[N] = {0};
    for (int i = 0; i < N; i++) {
        sn_event event = expect_message(node.t);
        uint64_t sender = event.msg->correlation_id;
        cr_assert(sender < N && !handles[sender]);
        handles[sender] = event.peer;
        cr_assert_arr_eq(event.key, clients[sender].identity.curve_key, SN_KEY_SIZE);
        sn_msg_free(&event.msg);
    }
    for (uint64_t i = 0; i < N; i++) cr_assert_eq(send_message(node.t, handles[i], status_message(100 + i)), SN_OK);
    for (uint64_t i = 0; i < N; i++) {
        sn_event event = expect_message(clients[i].t);
        cr_assert_eq(event.msg->correlation_id, 100 + i);
        sn_msg_free(&event.msg);
        endpoint_close(&clients[i]);
    }
    endpoint_close(&node);
}

/* The same in the other direction: a client that sends requests and never reads must not stop the node. */
static void a_client_that_does_not_read_fills_its_own_queue(transport_fixture *w) {
    endpoint node, client, other;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    endpoint_open(w, &other, false);
    cr_assert_eq(send_message(client.t, endpoint_dial(&client, &node), status_message(1)), SN_OK);
    sn_event event = expect_message(node.t);
    uint64_t sent = 0;
    while (!send_message(node.t, event.peer, step_reply_message(sent, 4096)) && sent < 20000) sent++;
    cr_assert_lt(sent, 20000, "no limit");
    sn_msg_free(&event.msg);
    cr_assert_eq(send_message(other.t, endpoint_dial(&other, &node), status_message(2)), SN_OK);
    sn_event asked = expect_message(node.t);
    cr_assert_eq(send_message(node.t, asked.peer, status_message(3)), SN_OK);
    sn_msg_free(&asked.msg);
    asked = expect_message(other.t);
    sn_msg_free(&asked.msg);
    endpoint_close(&client);
    endpoint_close(&other);
    endpoint_close(&node);
}

/* An endpoint that dials many peers receives from each of them: a busy peer does not starve the others. */
static void a_busy_peer_does_not_starve_others(transport_fixture *w) {
    enum { N = 10 };
    endpoint client, nodes[N];
    endpoint_open(w, &client, false);
    for (int i = 0; i < N; i++) {
        endpoint_open(w, &nodes[i], true);
        cr_assert_eq(send_message(client.t, endpoint_dial(&client, &nodes[i]), status_message(1)), SN_OK);
        sn_event event = expect_message(nodes[i].t);
        for (uint64_t k = 0; k < (i ? 1 : 50); k++)
            cr_assert_eq(send_message(nodes[i].t, event.peer, status_message((uint64_t)i)), SN_OK);
        sn_msg_free(&event.msg);
    }
    int accepted[N] = {0};
    for (int i = 0; i < 49 + N; i++) {
        sn_event event = expect_message(client.t);
        accepted[event.msg->correlation_id]++;
        sn_msg_free(&event.msg);
    }
    for (int i = 0; i < N; i++) cr_assert_eq(accepted[i], i ? 1 : 50);
    for (int i = 0; i < N; i++) endpoint_close(&nodes[i]);
    endpoint_close(&client);
}

static void a_message_that_cannot_be_encoded_stays_with_its_sender(transport_fixture *w) {
    endpoint node, client;
    endpoint_open(w, &node, true);
    endpoint_open(w, &client, false);
    sn_err err = {0};
    sn_msg *msg;
    require_ok(sn_msg_new(SN_MSG_STEP_REPLY, 1, &msg, &err), &err); /* lacks its tensor */
    cr_assert_eq(send_message(client.t, endpoint_dial(&client, &node), msg), SN_REFUSED);
    cr_assert_eq(send_message(client.t, 4711, status_message(1)), SN_RETRY);
    expect_silence(node.t, 50);
    endpoint_close(&client);
    endpoint_close(&node);
}

#define CONFORMANCE(X)                                                                                                 \
    X(replies_reach_the_sender)                                                                                        \
    X(a_large_tensor_arrives_unchanged)                                                                                \
    X(order_is_kept)                                                                                                   \
    X(a_wrong_server_key_reaches_no_node)                                                                              \
    X(an_address_in_use_is_refused)                                                                                    \
    X(invalid_addresses_are_refused)                                                                                   \
    X(dialling_twice_gives_one_handle)                                                                                 \
    X(nothing_is_sent_after_a_hang_up)                                                                                 \
    X(a_peer_that_left_is_reported_once)                                                                               \
    X(a_client_that_left_gets_no_reply)                                                                                \
    X(another_thread_can_wake_the_receiver)                                                                            \
    X(waiting_ends_at_its_deadline)                                                                                    \
    X(a_full_queue_returns_retry)                                                                                      \
    X(a_client_that_does_not_read_fills_its_own_queue)                                                                 \
    X(an_unreachable_peer_is_reported_once)                                                                            \
    X(a_lost_connection_is_reported_and_restored)                                                                      \
    X(many_peers_are_distinguished)                                                                                    \
    X(a_busy_peer_does_not_starve_others)                                                                              \
    X(a_message_that_cannot_be_encoded_stays_with_its_sender)
#define X(name)                                                                                                        \
    Test(zmq, name, .timeout = 180) { name(&(transport_fixture){0}); }                                                 \
    Test(memory, name, .timeout = 180) {                                                                               \
        transport_fixture w = {0};                                                                                     \
        sn_err err = {0};                                                                                              \
        require_ok(sn_hub_new(&w.hub, &err), &err);                                                                    \
        name(&w);                                                                                                      \
        sn_hub_free(&w.hub);                                                                                           \
    }                                                                                                                  \
    Test(zmq_emulated_link, name, .timeout = 180) { name(&(transport_fixture){.link = &emulated}); }                   \
    Test(memory_emulated_link, name, .timeout = 180) {                                                                 \
        transport_fixture w = {.link = &emulated};                                                                     \
        sn_err err = {0};                                                                                              \
        require_ok(sn_hub_new(&w.hub, &err), &err);                                                                    \
        name(&w);                                                                                                      \
        sn_hub_free(&w.hub);                                                                                           \
    }
static const sn_emulated_link emulated = {10000000000, 4000, 1000};
CONFORMANCE(X)
#undef X

/* -- the hub's filter */

typedef struct filter_log {
    int n;
    char from[64], to[64];
} filter_log;

static sn_hub_action filter_message(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    filter_log *s = ctx;
    s->n++;
    snprintf(s->from, sizeof s->from, "%s", from);
    snprintf(s->to, sizeof s->to, "%s", to);
    return (sn_hub_action)(msg->correlation_id % 3);
}

Test(memory, a_filter_decides_what_happens_to_each_message) {
    transport_fixture w = {0};
    sn_err err = {0};
    filter_log s = {0};
    endpoint node, client;
    require_ok(sn_hub_new(&w.hub, &err), &err);
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    sn_hub_set_filter(w.hub, filter_message, &s);
    sn_peer to = endpoint_dial(&client, &node);
    cr_assert_eq(send_message(client.t, to, status_message(0)), SN_OK);
    cr_assert_eq(send_message(client.t, to, status_message(1)), SN_OK);
    cr_assert_eq(send_message(client.t, to, step_reply_message(2, 10)), SN_OK);
    cr_assert_eq(s.n, 3);
    cr_assert_str_eq(s.from, "");
    cr_assert_str_eq(s.to, node.address);
    static const uint64_t arrive[] = {0, 2, 2};
    for (int i = 0; i < 3; i++) {
        sn_event event = expect_message(node.t);
        cr_assert_eq(event.msg->correlation_id, arrive[i]);
        if (i) cr_assert_eq(((const float *)event.msg->tensor.data)[9], 11.0f);
        sn_msg_free(&event.msg);
    }
    expect_silence(node.t, 0);
    endpoint_close(&client);
    endpoint_close(&node);
    sn_hub_free(&w.hub);
}
