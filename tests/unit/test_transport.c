/* One suite for every transport: each test of `conformance` runs over ZeroMQ and over memory. The rest is ZeroMQ's own.
 */
#include "base/clock.h"
#include "net/transport.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* -- a place where transports live -- */

typedef struct world {
    sn_hub *hub; /* NULL: ZeroMQ */
    int n;
} world;

typedef struct member {
    sn_identity identity;
    sn_transport *t;
    char address[SN_ADDRESS_MAX + 1];
} member;

static void must(sn_status status, const sn_err *err) { cr_assert_eq(status, SN_OK, "%s", err->text); }

static void join(world *w, member *m, bool listens) {
    sn_err err = {0};
    must(sn_identity_new(&m->identity, &err), &err);
    must(w->hub ? sn_transport_memory_new(w->hub, &m->identity, &m->t, &err)
                : sn_transport_zmq_new(&m->identity, &m->t, &err),
         &err);
    if (!listens) return;
    char name[64] = "tcp://127.0.0.1:0";
    if (w->hub) snprintf(name, sizeof name, "mem://node-%d", w->n++);
    must(sn_transport_listen(m->t, name, m->address, &err), &err);
}

static sn_peer dial(member *from, const member *to) {
    sn_err err = {0};
    sn_peer peer;
    must(sn_transport_dial(from->t, to->address, to->identity.curve_key, &peer, &err), &err);
    return peer;
}

static sn_msg *status_message(uint64_t request) {
    sn_err err = {0};
    sn_msg *msg;
    must(sn_msg_new(SN_MSG_STATUS, request, &msg, &err), &err);
    msg->status.protocol = SN_PROTOCOL;
    return msg;
}

static sn_msg *result_message(uint64_t request, uint64_t floats) {
    sn_err err = {0};
    sn_msg *msg;
    void *data;
    must(sn_msg_new(SN_MSG_RESULT, request, &msg, &err), &err);
    must(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, floats}, &data, &err), &err);
    for (uint64_t i = 0; i < floats; i++) ((float *)data)[i] = (float)(request + i);
    return msg;
}

static sn_status send_it(sn_transport *t, sn_peer peer, sn_msg *msg) {
    sn_err err = {0};
    sn_status status = sn_transport_send(t, peer, &msg, &err);
    cr_assert_eq(msg == NULL, status == SN_OK);
    sn_msg_free(&msg);
    return status;
}

static sn_event receive(sn_transport *t, int wait_ms) {
    sn_err err = {0};
    sn_event event;
    must(sn_transport_recv(t, wait_ms ? sn_now_us() + wait_ms * 1000 : 0, &event, &err), &err);
    return event;
}

/* Something arrives within five seconds, and it is a message. */
static sn_event expect(sn_transport *t) {
    sn_event event = receive(t, 5000);
    cr_assert(event.msg, "%s", event.peer ? event.bad.text : "nothing came");
    return event;
}

static void expect_silence(sn_transport *t, int wait_ms) {
    sn_event event = receive(t, wait_ms);
    cr_assert_null(event.msg);
    cr_assert_eq(event.peer, 0);
}

static void leave(member *m) { sn_transport_free(&m->t); }

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
    cr_assert(llabs(sn_now_us() - asked.arrived_us) < 5000000);
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
    for (int64_t until = sn_now_us() + 5000000; status == SN_OK && sn_now_us() < until; sn_sleep_us(1000))
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
    expect_silence(node.t, 5000);
    int64_t took = sn_now_us() - begun;
    cr_assert(took > 40000 && took < 2000000, "%lld us", (long long)took);
    pthread_join(thread, NULL);
    sn_transport_wake(node.t); /* before the wait */
    begun = sn_now_us();
    expect_silence(node.t, 5000);
    cr_assert(sn_now_us() - begun < 2000000);
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
    cr_assert(took >= 100000 && took < 1000000, "%lld us", (long long)took);
    begun = sn_now_us();
    for (int i = 0; i < 100; i++) expect_silence(node.t, 0);
    cr_assert(sn_now_us() - begun < 1000000);
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
    cr_assert(sn_now_us() - begun < 10000000);
    for (uint64_t i = 0; i < sent; i++) { /* nothing of what was taken is lost */
        sn_event event = expect(node.t);
        cr_assert_eq(event.msg->request, i);
        sn_msg_free(&event.msg);
    }
    leave(&client);
    leave(&node);
}

static void a_dead_peer_is_silence(world *w) {
    member node, client, alive;
    join(w, &node, true);
    join(w, &alive, true);
    join(w, &client, false);
    sn_peer to = dial(&client, &node), other = dial(&client, &alive);
    leave(&node);
    int64_t begun = sn_now_us();
    for (int i = 0; i < 100; i++) cr_assert_eq(send_it(client.t, to, status_message(1)), SN_OK);
    cr_assert(sn_now_us() - begun < 1000000);
    expect_silence(client.t, 50);
    cr_assert_eq(send_it(client.t, other, status_message(2)), SN_OK);
    sn_event event = expect(alive.t);
    sn_msg_free(&event.msg);
    begun = sn_now_us();
    leave(&client);
    cr_assert(sn_now_us() - begun < 3000000);
    leave(&alive);
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
    X(a_dead_peer_is_silence)                                                                                          \
    X(many_peers_are_told_apart)                                                                                       \
    X(a_busy_peer_does_not_starve_others)                                                                              \
    X(a_message_that_cannot_be_encoded_stays_with_its_sender)
#define X(name)                                                                                                        \
    Test(zmq, name, .timeout = 60) { name(&(world){0}); }                                                              \
    Test(memory, name, .timeout = 60) {                                                                                \
        world w = {0};                                                                                                 \
        sn_err err = {0};                                                                                              \
        must(sn_hub_new(&w.hub, &err), &err);                                                                          \
        name(&w);                                                                                                      \
        sn_hub_free(&w.hub);                                                                                           \
    }
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

/* -- strangers on the wire -- */

typedef struct stranger {
    void *context, *socket;
} stranger;

/* A ZeroMQ client of its own making; keys: whether it speaks CURVE. */
static stranger come(const member *node, int type, bool keys, const char *routing_id) {
    stranger s = {.context = zmq_ctx_new()};
    sn_identity own;
    sn_err err = {0};
    must(sn_identity_new(&own, &err), &err);
    s.socket = zmq_socket(s.context, type);
    cr_assert(s.socket);
    zmq_setsockopt(s.socket, ZMQ_LINGER, &(int){0}, sizeof(int));
    if (routing_id) zmq_setsockopt(s.socket, ZMQ_ROUTING_ID, routing_id, strlen(routing_id));
    if (keys) {
        zmq_setsockopt(s.socket, ZMQ_CURVE_SERVERKEY, node->identity.curve_key, SN_KEY_SIZE);
        zmq_setsockopt(s.socket, ZMQ_CURVE_PUBLICKEY, own.curve_key, SN_KEY_SIZE);
        zmq_setsockopt(s.socket, ZMQ_CURVE_SECRETKEY, own.curve_secret, SN_KEY_SIZE);
    }
    cr_assert_eq(zmq_connect(s.socket, node->address), 0);
    return s;
}

static void go(stranger *s) {
    zmq_close(s->socket);
    zmq_ctx_term(s->context);
}

static void send_parts(stranger *s, const sn_buf *frame, int n_more, size_t more_size) {
    zmq_send(s->socket, frame->data, frame->len, n_more ? ZMQ_SNDMORE : 0);
    uint8_t *more = calloc(1, more_size ? more_size : 1);
    for (int i = 1; i <= n_more; i++) zmq_send(s->socket, more, more_size, i < n_more ? ZMQ_SNDMORE : 0);
    free(more);
}

static void expect_bad(sn_transport *t, const char *word) {
    sn_event event = receive(t, 5000);
    cr_assert_null(event.msg);
    cr_assert_neq(event.peer, 0, "nothing came");
    cr_assert_neq(event.bad.status, SN_OK);
    cr_assert(strstr(event.bad.text, word), "'%s' is not about '%s'", event.bad.text, word);
}

/* A well-behaved client is served before and after. */
static void expect_service(member *node, member *client) {
    cr_assert_eq(send_it(client->t, dial(client, node), result_message(9, 3)), SN_OK);
    sn_event event = expect(node->t);
    cr_assert_eq(event.msg->request, 9);
    cr_assert_eq(send_it(node->t, event.peer, status_message(10)), SN_OK);
    sn_msg_free(&event.msg);
    event = expect(client->t);
    sn_msg_free(&event.msg);
}

Test(zmq, wrong_frames_are_told_and_others_go_on, .timeout = 60) {
    world w = {0};
    member node, client;
    join(&w, &node, true);
    join(&w, &client, false);
    expect_service(&node, &client);
    stranger s = come(&node, ZMQ_DEALER, true, NULL);
    sn_err err = {0};
    sn_buf plain, tensor;
    sn_buf_init(&plain, SN_MAP_SIZE_MAX);
    sn_buf_init(&tensor, SN_MAP_SIZE_MAX);
    sn_msg *msg = status_message(1);
    must(sn_msg_encode(msg, &plain, &err), &err);
    sn_msg_free(&msg);
    msg = result_message(1, 3);
    must(sn_msg_encode(msg, &tensor, &err), &err);
    sn_msg_free(&msg);

    send_parts(&s, &plain, 1, 12); /* a frame too many */
    expect_bad(node.t, "frames");
    send_parts(&s, &plain, 9, 12);
    expect_bad(node.t, "frames");
    send_parts(&s, &tensor, 0, 0); /* one too few */
    expect_bad(node.t, "frames");
    send_parts(&s, &tensor, 2, 12);
    expect_bad(node.t, "frames");
    send_parts(&s, &tensor, 1, 11);
    expect_bad(node.t, "11 bytes");
    send_parts(&s, &tensor, 1, 0);
    expect_bad(node.t, "0 bytes");
    zmq_send(s.socket, "", 0, 0);
    expect_bad(node.t, "ends in the middle");
    zmq_send(s.socket, "\xdd\x10\0\0\0", 5, 0);
    expect_bad(node.t, "ends in the middle");
    zmq_send(s.socket, "GET / HTTP/1.1\r\n", 16, 0);
    expect_bad(node.t, "a map");
    sn_buf large = {.data = calloc(1, SN_MAP_SIZE_MAX + 1), .len = SN_MAP_SIZE_MAX + 1};
    send_parts(&s, &large, 0, 0);
    expect_bad(node.t, "at most");
    send_parts(&s, &tensor, 1, 12); /* and a good one */
    sn_event event = expect(node.t);
    sn_msg_free(&event.msg);
    expect_service(&node, &client);
    sn_buf_fini(&large);
    sn_buf_fini(&plain);
    sn_buf_fini(&tensor);
    go(&s);
    leave(&client);
    leave(&node);
}

Test(zmq, clients_without_curve_are_not_heard, .timeout = 60) {
    world w = {0};
    member node, client;
    join(&w, &node, true);
    join(&w, &client, false);
    stranger s = come(&node, ZMQ_DEALER, false, NULL);
    zmq_send(s.socket, "\x80", 1, 0);
    expect_silence(node.t, 300);
    expect_service(&node, &client);
    go(&s);
    leave(&client);
    leave(&node);
}

/* A connection that takes over a routing id is another peer: it must not be answered in the first one's name. */
Test(zmq, a_handle_belongs_to_one_key, .timeout = 60) {
    world w = {0};
    member node;
    join(&w, &node, true);
    stranger first = come(&node, ZMQ_DEALER, true, "same");
    zmq_send(first.socket, "\x80", 1, 0);
    sn_event one = receive(node.t, 5000);
    go(&first);
    sn_sleep_us(300000);
    stranger second = come(&node, ZMQ_DEALER, true, "same");
    zmq_send(second.socket, "\x80", 1, 0);
    sn_event two = receive(node.t, 5000);
    cr_assert_neq(one.peer, 0);
    cr_assert_neq(two.peer, 0);
    cr_assert_neq(one.peer, two.peer);
    cr_assert_eq(send_it(node.t, one.peer, status_message(1)), SN_RETRY);
    cr_assert_eq(send_it(node.t, two.peer, status_message(1)), SN_OK);
    go(&second);
    leave(&node);
}

static void released(void *owner) { __atomic_store_n((int *)owner, 1, __ATOMIC_SEQ_CST); }

/* The frame is the tensor's own memory: released when it has left, not copied; borrowed data is copied at once. */
Test(zmq, a_tensor_is_released_when_it_has_been_sent, .timeout = 60) {
    world w = {0};
    member node, client;
    join(&w, &node, true);
    join(&w, &client, false);
    sn_peer to = dial(&client, &node);
    static float data[1 << 16];
    int gone = 0;
    for (int borrowed = 0; borrowed < 2; borrowed++) {
        sn_msg *msg = result_message(1, 1 << 16);
        msg->release(msg->owner);
        msg->release = borrowed ? NULL : released;
        msg->owner = &gone;
        msg->tensor.data = data;
        for (int i = 0; i < 1 << 16; i++) data[i] = (float)i;
        cr_assert_eq(send_it(client.t, to, msg), SN_OK);
        if (borrowed) memset(data, 0, sizeof data);
        sn_event event = expect(node.t);
        cr_assert_eq(((const float *)event.msg->tensor.data)[65535], 65535.0f);
        sn_msg_free(&event.msg);
        for (int i = 0; i < 5000 && !__atomic_load_n(&gone, __ATOMIC_SEQ_CST); i++) sn_sleep_us(1000);
        cr_assert_eq(gone, 1);
    }
    leave(&client);
    leave(&node);
}

Test(zmq, an_address_of_another_machine_cannot_be_listened_on, .timeout = 60) {
    static const char *const bad[] = {"tcp://192.0.2.1:7001", "tcp://no-such-host.invalid:7001"};
    world w = {0};
    member node;
    sn_err err = {0};
    char bound[SN_ADDRESS_MAX + 1];
    join(&w, &node, false);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(sn_transport_listen(node.t, bad[i], bound, &err), SN_REFUSED);
        cr_assert(strstr(err.text, "choose another --listen address"), "%s", err.text);
    }
    must(sn_transport_listen(node.t, "tcp://*:0", bound, &err), &err); /* it may still be told a good one */
    leave(&node);
}
