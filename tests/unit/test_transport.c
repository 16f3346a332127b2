/* One suite for every transport: each test below runs over ZeroMQ, over memory, and over emulated links on both. Then the
 * filter of the memory's hub. */
#include "tests/unit/transport_world.h"

#include <pthread.h>
#include <stdlib.h>

/* -- what every transport does -- */

static void answers_reach_the_asker(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    sn_peer to = dial(&client, &node);
    cr_assert_eq(send_it(client.t, to, status_message(7)), SN_OK);
    sn_event asked = expect(node.t);
    cr_assert_eq(asked.msg->kind, SN_MSG_STATUS);
    cr_assert_eq(asked.msg->request, 7);
    cr_assert_arr_eq(asked.key, client.identity.curve_key, SN_KEY_SIZE);
    cr_assert(llabs(sn_now_us() - asked.arrived_us) < SOON_US);
    cr_assert_eq(send_it(node.t, asked.peer, result_message(7, 576)), SN_OK);
    sn_event answered = expect(client.t);
    cr_assert_eq(answered.peer, to);
    cr_assert_arr_eq(answered.key, node.identity.curve_key, SN_KEY_SIZE);
    cr_assert_eq(answered.msg->tensor.bytes, 2304);
    cr_assert_eq(((const float *)answered.msg->tensor.data)[575], 582.0f);
    sn_msg_free(&asked.msg);
    sn_msg_free(&answered.msg);
    leave(&client);
    leave(&node);
}

static void a_large_tensor_arrives_unchanged(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    cr_assert_eq(send_it(client.t, dial(&client, &node), result_message(1, 1 << 20)), SN_OK);
    sn_event event = expect(node.t);
    cr_assert_eq(event.msg->tensor.rank, 2);
    cr_assert_eq(event.msg->tensor.bytes, 4 << 20);
    cr_assert_eq((uintptr_t)event.msg->tensor.data % sizeof(float), 0);
    for (size_t i = 0; i < 1 << 20; i++) cr_assert_eq(((const float *)event.msg->tensor.data)[i], (float)(1 + i));
    sn_msg_free(&event.msg);
    leave(&client);
    leave(&node);
}

static void order_is_kept(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    sn_peer to = dial(&client, &node);
    for (uint64_t i = 0; i < 500; i++)
        cr_assert_eq(send_it(client.t, to, i % 3 ? status_message(i) : result_message(i, 1 + i * 7)), SN_OK);
    for (uint64_t i = 0; i < 500; i++) {
        sn_event event = expect(node.t);
        cr_assert_eq(event.msg->request, i);
        sn_msg_free(&event.msg);
    }
    leave(&client);
    leave(&node);
}

static void another_key_reaches_nobody(world *w) {
    member node, client, other;
    join(w, &node, true);
    join(w, &client, false);
    join(w, &other, false);
    sn_err err = {0};
    sn_peer to;
    must(sn_transport_dial(client.t, node.address, other.identity.curve_key, &to, &err), &err);
    cr_assert_eq(send_it(client.t, to, status_message(1)), SN_OK);
    expect_silence(node.t, 300);
    expect_loss(client.t, to, node.address);
    cr_assert_neq(dial(&client, &node), to);
    cr_assert_eq(send_it(client.t, dial(&client, &node), status_message(2)), SN_OK);
    sn_event event = expect(node.t);
    cr_assert_eq(event.msg->request, 2);
    sn_msg_free(&event.msg);
    leave(&client);
    leave(&other);
    leave(&node);
}

static void an_address_in_use_is_refused(world *w) {
    member first, second;
    sn_err err = {0};
    char bound[SN_ADDRESS_MAX + 1];
    join(w, &first, true);
    join(w, &second, false);
    cr_assert_eq(sn_transport_listen(second.t, first.address, bound, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "in use"), "%s", err.text);
    cr_assert(strstr(err.text, "--listen"), "%s", err.text);
    cr_assert_eq(sn_transport_listen(first.t, first.address, bound, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "already"), "%s", err.text);
    leave(&first);
    leave(&second);
}

static void addresses_that_are_none_are_refused(world *w) {
    static const char *const bad[] = {"",
                                      "7001",
                                      "tcp://",
                                      "tcp://:7001",
                                      "tcp://host",
                                      "tcp://host:",
                                      "tcp://host:0",
                                      "tcp://host:65536",
                                      "tcp://host:1x",
                                      "tcp://a;b:1",
                                      "tcp://a b:1",
                                      "ipc:///tmp/x",
                                      "inproc://x",
                                      "tcp://*:7001",
                                      "mem://",
                                      "tcp://[]:1",
                                      "tcp://a/b:1"};
    member m;
    sn_err err = {0};
    sn_peer peer;
    join(w, &m, false);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(sn_transport_dial(m.t, bad[i], m.identity.curve_key, &peer, &err), SN_REFUSED, "%s", bad[i]);
        cr_assert_eq(peer, 0);
        cr_assert(strstr(err.text, "is no address"), "%s", err.text);
    }
    char longest[400] = "tcp://", bound[SN_ADDRESS_MAX + 1];
    memset(longest + 6, 'a', 300);
    cr_assert_eq(sn_transport_dial(m.t, longest, m.identity.curve_key, &peer, &err), SN_REFUSED);
    cr_assert_eq(sn_transport_listen(m.t, longest, bound, &err), SN_REFUSED);
    cr_assert_eq(sn_transport_listen(m.t, "udp://127.0.0.1:1", bound, &err), SN_REFUSED);
    leave(&m);
}

static void dialling_twice_gives_one_handle(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    cr_assert_eq(dial(&client, &node), dial(&client, &node));
    leave(&client);
    leave(&node);
}

static void nothing_is_sent_to_a_peer_hung_up_on(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    sn_peer to = dial(&client, &node);
    cr_assert_eq(send_it(client.t, to, status_message(1)), SN_OK);
    sn_event event = expect(node.t);
    sn_msg_free(&event.msg);
    sn_transport_hang_up(node.t, event.peer); /* a peer that came to us */
    cr_assert_eq(send_it(node.t, event.peer, status_message(2)), SN_RETRY);
    cr_assert_eq(send_it(client.t, to, status_message(3)), SN_OK);
    sn_event again = expect(node.t);
    cr_assert_neq(again.peer, event.peer, "a handle came back");
    sn_msg_free(&again.msg);
    sn_transport_hang_up(client.t, to); /* one that we dialled */
    cr_assert_eq(send_it(client.t, to, status_message(4)), SN_RETRY);
    sn_transport_hang_up(client.t, to);
    sn_transport_hang_up(client.t, 4711);
    cr_assert_neq(dial(&client, &node), to, "a handle came back");
    leave(&client);
    leave(&node);
}

static void a_client_that_left_cannot_be_answered(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    cr_assert_eq(send_it(client.t, dial(&client, &node), status_message(1)), SN_OK);
    leave(&client); /* what was sent still leaves */
    sn_event event = expect(node.t);
    sn_msg_free(&event.msg);
    sn_status status = SN_OK;
    for (int64_t until = sn_now_us() + SOON_US; status == SN_OK && sn_now_us() < until; sn_sleep_us(1000))
        status = send_it(node.t, event.peer, status_message(2));
    cr_assert_eq(status, SN_RETRY);
    leave(&node);
}

static void *wake_soon(void *ctx) {
    sn_sleep_us(50000);
    sn_transport_wake(ctx);
    return NULL;
}

static void another_thread_wakes_the_waiting_one(world *w) {
    member node;
    join(w, &node, true);
    pthread_t thread;
    int64_t begun = sn_now_us();
    cr_assert_eq(pthread_create(&thread, NULL, wake_soon, node.t), 0);
    expect_silence(node.t, WAIT_MS);
    int64_t took = sn_now_us() - begun;
    cr_assert(took > 40000 && took < SOON_US, "%lld us", (long long)took);
    pthread_join(thread, NULL);
    sn_transport_wake(node.t); /* before the wait */
    begun = sn_now_us();
    expect_silence(node.t, WAIT_MS);
    cr_assert(sn_now_us() - begun < SOON_US);
    begun = sn_now_us(); /* and only once */
    expect_silence(node.t, 50);
    cr_assert(sn_now_us() - begun >= 50000);
    leave(&node);
}

static void waiting_ends_at_its_deadline(world *w) {
    member node;
    join(w, &node, true);
    int64_t begun = sn_now_us();
    expect_silence(node.t, 100);
    int64_t took = sn_now_us() - begun;
    cr_assert(took >= 100000 && took < SOON_US, "%lld us", (long long)took);
    begun = sn_now_us();
    for (int i = 0; i < 100; i++) expect_silence(node.t, 0);
    cr_assert(sn_now_us() - begun < SOON_US);
    leave(&node);
}

static void a_full_queue_says_try_later(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    sn_peer to = dial(&client, &node);
    uint64_t sent = 0;
    sn_status status;
    int64_t begun = sn_now_us();
    while (!(status = send_it(client.t, to, result_message(sent, 4096))) && sent < 20000) sent++;
    cr_assert_eq(status, SN_RETRY, "%llu messages went", (unsigned long long)sent);
    cr_assert(sn_now_us() - begun < SOON_US);
    for (uint64_t i = 0; i < sent; i++) { /* nothing of what was taken is lost */
        sn_event event = expect(node.t);
        cr_assert_eq(event.msg->request, i);
        sn_msg_free(&event.msg);
    }
    leave(&client);
    leave(&node);
}

static void a_peer_that_is_not_there_is_told_once(world *w) {
    member node, client, alive;
    join(w, &node, true);
    join(w, &alive, true);
    join(w, &client, false);
    sn_peer to = dial(&client, &node), other = dial(&client, &alive);
    leave(&node);
    int64_t begun = sn_now_us();
    for (int i = 0; i < 100; i++) cr_assert_eq(send_it(client.t, to, status_message(1)), SN_OK);
    cr_assert(sn_now_us() - begun < SOON_US);
    expect_loss(client.t, to, node.address);
    expect_silence(client.t, 700);
    cr_assert_eq(send_it(client.t, other, status_message(2)), SN_OK);
    sn_event event = expect(alive.t);
    sn_msg_free(&event.msg);
    begun = sn_now_us();
    leave(&client);
    cr_assert(sn_now_us() - begun < SOON_US);
    leave(&alive);
}

static void a_lost_connection_is_told_and_made_again(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    sn_peer to = dial(&client, &node);
    for (int life = 0; life < 2; life++) {
        cr_assert_eq(send_it(client.t, to, status_message(1)), SN_OK);
        sn_event asked = expect(node.t);
        cr_assert_eq(send_it(node.t, asked.peer, result_message(2, 9)), SN_OK);
        sn_event answered = expect(client.t);
        cr_assert_eq(send_it(node.t, asked.peer, result_message(3, 9)), SN_OK);
        sn_msg_free(&asked.msg);
        sn_msg_free(&answered.msg);
        int64_t begun = sn_now_us();
        leave(&node);
        answered = expect(client.t); /* what was sent before the end comes before the news of it */
        cr_assert_eq(answered.msg->request, 3);
        sn_msg_free(&answered.msg);
        expect_loss(client.t, to, node.address);
        cr_assert(sn_now_us() - begun < SOON_US);
        expect_silence(client.t, 100);
        again(w, &node);
    }
    sn_transport_hang_up(client.t, to);
    expect_silence(client.t, 0);
    to = dial(&client, &node);
    cr_assert_eq(send_it(client.t, to, status_message(4)), SN_OK);
    sn_event asked = expect(node.t);
    sn_msg_free(&asked.msg);
    leave(&client);
    leave(&node);
}

static void many_peers_are_told_apart(world *w) {
    enum { N = 40 };
    member node, clients[N];
    join(w, &node, true);
    for (int i = 0; i < N; i++) {
        join(w, &clients[i], false);
        cr_assert_eq(send_it(clients[i].t, dial(&clients[i], &node), status_message((uint64_t)i)), SN_OK);
    }
    sn_peer handles[N] = {0};
    for (int i = 0; i < N; i++) {
        sn_event event = expect(node.t);
        uint64_t who = event.msg->request;
        cr_assert(who < N && !handles[who]);
        handles[who] = event.peer;
        cr_assert_arr_eq(event.key, clients[who].identity.curve_key, SN_KEY_SIZE);
        sn_msg_free(&event.msg);
    }
    for (uint64_t i = 0; i < N; i++) cr_assert_eq(send_it(node.t, handles[i], status_message(100 + i)), SN_OK);
    for (uint64_t i = 0; i < N; i++) {
        sn_event event = expect(clients[i].t);
        cr_assert_eq(event.msg->request, 100 + i);
        sn_msg_free(&event.msg);
        leave(&clients[i]);
    }
    leave(&node);
}

/* The same in the other direction: a client that asks and never reads must not stop the node. */
static void a_client_that_does_not_read_fills_its_own_queue(world *w) {
    member node, client, other;
    join(w, &node, true);
    join(w, &client, false);
    join(w, &other, false);
    cr_assert_eq(send_it(client.t, dial(&client, &node), status_message(1)), SN_OK);
    sn_event event = expect(node.t);
    uint64_t sent = 0;
    while (!send_it(node.t, event.peer, result_message(sent, 4096)) && sent < 20000) sent++;
    cr_assert_lt(sent, 20000, "no limit");
    sn_msg_free(&event.msg);
    cr_assert_eq(send_it(other.t, dial(&other, &node), status_message(2)), SN_OK);
    sn_event asked = expect(node.t);
    cr_assert_eq(send_it(node.t, asked.peer, status_message(3)), SN_OK);
    sn_msg_free(&asked.msg);
    asked = expect(other.t);
    sn_msg_free(&asked.msg);
    leave(&client);
    leave(&other);
    leave(&node);
}

/* One that dials many hears each of them, and the busy one does not silence the others. */
static void a_busy_peer_does_not_starve_others(world *w) {
    enum { N = 10 };
    member client, nodes[N];
    join(w, &client, false);
    for (int i = 0; i < N; i++) {
        join(w, &nodes[i], true);
        cr_assert_eq(send_it(client.t, dial(&client, &nodes[i]), status_message(1)), SN_OK);
        sn_event event = expect(nodes[i].t);
        for (uint64_t k = 0; k < (i ? 1 : 50); k++)
            cr_assert_eq(send_it(nodes[i].t, event.peer, status_message((uint64_t)i)), SN_OK);
        sn_msg_free(&event.msg);
    }
    int heard[N] = {0};
    for (int i = 0; i < 49 + N; i++) {
        sn_event event = expect(client.t);
        heard[event.msg->request]++;
        sn_msg_free(&event.msg);
    }
    for (int i = 0; i < N; i++) cr_assert_eq(heard[i], i ? 1 : 50);
    for (int i = 0; i < N; i++) leave(&nodes[i]);
    leave(&client);
}

static void a_message_that_cannot_be_encoded_stays_with_its_sender(world *w) {
    member node, client;
    join(w, &node, true);
    join(w, &client, false);
    sn_err err = {0};
    sn_msg *msg;
    must(sn_msg_new(SN_MSG_RESULT, 1, &msg, &err), &err); /* lacks its tensor */
    cr_assert_eq(send_it(client.t, dial(&client, &node), msg), SN_REFUSED);
    cr_assert_eq(send_it(client.t, 4711, status_message(1)), SN_RETRY);
    expect_silence(node.t, 50);
    leave(&client);
    leave(&node);
}

#define CONFORMANCE(X)                                                                                                 \
    X(answers_reach_the_asker)                                                                                         \
    X(a_large_tensor_arrives_unchanged)                                                                                \
    X(order_is_kept)                                                                                                   \
    X(another_key_reaches_nobody)                                                                                      \
    X(an_address_in_use_is_refused)                                                                                    \
    X(addresses_that_are_none_are_refused)                                                                             \
    X(dialling_twice_gives_one_handle)                                                                                 \
    X(nothing_is_sent_to_a_peer_hung_up_on)                                                                            \
    X(a_client_that_left_cannot_be_answered)                                                                           \
    X(another_thread_wakes_the_waiting_one)                                                                            \
    X(waiting_ends_at_its_deadline)                                                                                    \
    X(a_full_queue_says_try_later)                                                                                     \
    X(a_client_that_does_not_read_fills_its_own_queue)                                                                 \
    X(a_peer_that_is_not_there_is_told_once)                                                                           \
    X(a_lost_connection_is_told_and_made_again)                                                                        \
    X(many_peers_are_told_apart)                                                                                       \
    X(a_busy_peer_does_not_starve_others)                                                                              \
    X(a_message_that_cannot_be_encoded_stays_with_its_sender)
#define X(name)                                                                                                        \
    Test(zmq, name, .timeout = 180) { name(&(world){0}); }                                                              \
    Test(memory, name, .timeout = 180) {                                                                                \
        world w = {0};                                                                                                 \
        sn_err err = {0};                                                                                              \
        must(sn_hub_new(&w.hub, &err), &err);                                                                          \
        name(&w);                                                                                                      \
        sn_hub_free(&w.hub);                                                                                           \
    }                                                                                                                  \
    Test(zmq_shaped, name, .timeout = 180) { name(&(world){.shape = &shape}); }                                         \
    Test(memory_shaped, name, .timeout = 180) {                                                                         \
        world w = {.shape = &shape};                                                                                   \
        sn_err err = {0};                                                                                              \
        must(sn_hub_new(&w.hub, &err), &err);                                                                          \
        name(&w);                                                                                                      \
        sn_hub_free(&w.hub);                                                                                           \
    }
static const sn_shape shape = {10000000000, 4000, 1000};
CONFORMANCE(X)
#undef X

/* -- the hub's filter -- */

typedef struct seen {
    int n;
    char from[64], to[64];
} seen;

static sn_fate decide(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    seen *s = ctx;
    s->n++;
    snprintf(s->from, sizeof s->from, "%s", from);
    snprintf(s->to, sizeof s->to, "%s", to);
    return (sn_fate)(msg->request % 3);
}

Test(memory, a_filter_decides_what_happens_to_each_message) {
    world w = {0};
    sn_err err = {0};
    seen s = {0};
    member node, client;
    must(sn_hub_new(&w.hub, &err), &err);
    join(&w, &node, true);
    join(&w, &client, false);
    sn_hub_set_filter(w.hub, decide, &s);
    sn_peer to = dial(&client, &node);
    cr_assert_eq(send_it(client.t, to, status_message(0)), SN_OK);
    cr_assert_eq(send_it(client.t, to, status_message(1)), SN_OK);
    cr_assert_eq(send_it(client.t, to, result_message(2, 10)), SN_OK);
    cr_assert_eq(s.n, 3);
    cr_assert_str_eq(s.from, "");
    cr_assert_str_eq(s.to, node.address);
    static const uint64_t arrive[] = {0, 2, 2};
    for (int i = 0; i < 3; i++) {
        sn_event event = expect(node.t);
        cr_assert_eq(event.msg->request, arrive[i]);
        if (i) cr_assert_eq(((const float *)event.msg->tensor.data)[9], 11.0f);
        sn_msg_free(&event.msg);
    }
    expect_silence(node.t, 0);
    leave(&client);
    leave(&node);
    sn_hub_free(&w.hub);
}
