/* The ZeroMQ transport with invalid peers, with libzmq's sockets, and what only this transport does. */
#include "net/transport/listener_state_private.h" /* private: what all connections may hold */
#include "tests/support/transport_fixture.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

static bool holds_little; /* in these tests */
static void setup(void) { holds_little = true; }
TestSuite(zmq, .init = setup);

size_t __real_listener_held_max(void); /* the linker's names */
size_t __wrap_listener_held_max(void);
size_t __wrap_listener_held_max(void) { return holds_little ? 64 << 20 : __real_listener_held_max(); }

/* -- invalid peers */

typedef struct raw_socket {
    void *context, *socket;
} raw_socket;

/* A ZeroMQ client without this library; keys: with CURVE. */
static raw_socket raw_socket_connect(const endpoint *node, int type, bool keys, const char *routing_id) {
    raw_socket s = {.context = zmq_ctx_new()};
    sn_identity own;
    sn_err err = {0};
    require_ok(sn_identity_new(&own, &err), &err);
    s.socket = zmq_socket(s.context, type);
    cr_assert(s.socket);
    zmq_setsockopt(s.socket, ZMQ_LINGER, &(int){0}, sizeof(int));
    if (routing_id) zmq_setsockopt(s.socket, ZMQ_ROUTING_ID, routing_id, strlen(routing_id));
    if (keys) {
        zmq_setsockopt(s.socket, ZMQ_CURVE_SERVERKEY, node->identity.curve_key, SN_KEY_SIZE);
        zmq_setsockopt(s.socket, ZMQ_CURVE_PUBLICKEY, own.curve_key, SN_KEY_SIZE);
        zmq_setsockopt(s.socket, ZMQ_CURVE_SECRETKEY, own.curve_secret, SN_KEY_SIZE);
    }
    char endpoint_name[SN_ADDRESS_MAX + 8];
    snprintf(endpoint_name, sizeof endpoint_name, "tcp://%s", node->address);
    cr_assert_eq(zmq_connect(s.socket, endpoint_name), 0);
    return s;
}

static void raw_socket_close(raw_socket *s) {
    zmq_close(s->socket);
    zmq_ctx_term(s->context);
}

static void send_parts(raw_socket *s, const sn_buf *frame, int n_more, size_t more_size) {
    zmq_send(s->socket, frame->data, frame->len, n_more ? ZMQ_SNDMORE : 0);
    uint8_t *more = calloc(1, more_size ? more_size : 1);
    for (int i = 1; i <= n_more; i++) zmq_send(s->socket, more, more_size, i < n_more ? ZMQ_SNDMORE : 0);
    free(more);
}

static void expect_malformed(sn_transport *t, const char *error_part) {
    sn_event event = receive_event(t, WAIT_MS);
    cr_assert_null(event.msg);
    cr_assert_neq(event.peer, 0, "nothing came");
    cr_assert_neq(event.err.status, SN_OK);
    cr_assert(strstr(event.err.text, error_part), "'%s' is not about '%s'", event.err.text, error_part);
}

/* A correct client is served before and after. */
static void expect_service(endpoint *node, endpoint *client) {
    cr_assert_eq(send_message(client->t, endpoint_dial(client, node), step_reply_message(9, 3)), SN_OK);
    sn_event event = expect_message(node->t);
    cr_assert_eq(event.msg->correlation_id, 9);
    cr_assert_eq(send_message(node->t, event.peer, status_message(10)), SN_OK);
    sn_msg_free(&event.msg);
    event = expect_message(client->t);
    sn_msg_free(&event.msg);
}

Test(zmq, malformed_frames_are_reported_and_other_peers_continue, .timeout = 180) {
    transport_fixture w = {0};
    endpoint node, client;
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    expect_service(&node, &client);
    raw_socket s = raw_socket_connect(&node, ZMQ_DEALER, true, NULL);
    sn_err err = {0};
    sn_buf plain, tensor;
    sn_buf_init(&plain, SN_MAP_SIZE_MAX);
    sn_buf_init(&tensor, SN_MAP_SIZE_MAX);
    sn_msg *msg = status_message(1);
    require_ok(sn_msg_encode(msg, &plain, &err), &err);
    sn_msg_free(&msg);
    msg = step_reply_message(1, 3);
    require_ok(sn_msg_encode(msg, &tensor, &err), &err);
    sn_msg_free(&msg);

    send_parts(&s, &plain, 1, 12); /* one frame too many */
    expect_malformed(node.t, "frames");
    send_parts(&s, &plain, 9, 12);
    expect_malformed(node.t, "frames");
    send_parts(&s, &tensor, 0, 0); /* one frame too few */
    expect_malformed(node.t, "frames");
    send_parts(&s, &tensor, 2, 12);
    expect_malformed(node.t, "frames");
    send_parts(&s, &tensor, 1, 11);
    expect_malformed(node.t, "11 bytes");
    send_parts(&s, &tensor, 1, 0);
    expect_malformed(node.t, "0 bytes");
    zmq_send(s.socket, "", 0, 0);
    expect_malformed(node.t, "ends in the middle");
    zmq_send(s.socket, "\xdd\x10\0\0\0", 5, 0);
    expect_malformed(node.t, "ends in the middle");
    zmq_send(s.socket, "GET / HTTP/1.1\r\n", 16, 0);
    expect_malformed(node.t, "a map");
    sn_buf large = {.data = calloc(1, SN_MAP_SIZE_MAX + 1), .len = SN_MAP_SIZE_MAX + 1};
    send_parts(&s, &large, 0, 0);
    expect_malformed(node.t, "at most");
    send_parts(&s, &tensor, 1, 12); /* and a valid message */
    sn_event event = expect_message(node.t);
    sn_msg_free(&event.msg);
    expect_service(&node, &client);
    sn_buf_fini(&large);
    sn_buf_fini(&plain);
    sn_buf_fini(&tensor);
    raw_socket_close(&s);
    endpoint_close(&client);
    endpoint_close(&node);
}

/* Under AddressSanitizer: what refers to a connection ends before it is freed. */
Test(zmq, ends_while_several_peers_are_connected, .timeout = 180) {
    enum { PEERS = 3 };
    transport_fixture w = {0};
    endpoint node, clients[PEERS];
    endpoint_open(&w, &node, true);
    for (int i = 0; i < PEERS; i++) {
        endpoint_open(&w, &clients[i], false);
        expect_service(&node, &clients[i]);
    }
    endpoint_close(&node);
    for (int i = 0; i < PEERS; i++) {
        sn_event event = receive_event(clients[i].t, WAIT_MS);
        cr_expect(event.lost, "client %d does not notice the end", i);
        endpoint_close(&clients[i]);
    }
}

Test(zmq, clients_without_curve_are_rejected, .timeout = 180) {
    transport_fixture w = {0};
    endpoint node, client;
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    raw_socket s = raw_socket_connect(&node, ZMQ_DEALER, false, NULL);
    zmq_send(s.socket, "\x80", 1, 0);
    expect_silence(node.t, 300);
    expect_service(&node, &client);
    raw_socket_close(&s);
    endpoint_close(&client);
    endpoint_close(&node);
}

/* A node has another address in its own network than outside of it. */
Test(zmq, a_key_that_was_proven_nearby_is_not_dialled_outside, .timeout = 180) {
    static const char outside[] = "[2001:db8::5]:9", relayed[] = "127.0.0.3:9/relay", as_near[] = "127.0.0.3:9";
    transport_fixture w = {0};
    endpoint node, client;
    sn_peer here, nowhere, before, later;
    sn_err err = {0};
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    uint8_t other_key[SN_KEY_SIZE];
    memcpy(other_key, client.identity.curve_key, SN_KEY_SIZE);
    require_ok(sn_transport_dial(client.t, "127.0.0.3:9", node.identity.curve_key, &nowhere, &err), &err);
    require_ok(sn_transport_dial(client.t, relayed, node.identity.curve_key, &before, &err), &err);
    cr_expect_neq(before, nowhere, "it has not proven its key");
    sn_transport_hang_up(client.t, before);
    sn_transport_hang_up(client.t, nowhere);
    here = endpoint_dial(&client, &node);
    expect_service(&node, &client);
    require_ok(sn_transport_dial(client.t, outside, node.identity.curve_key, &later, &err), &err);
    cr_expect_eq(later, here);
    require_ok(sn_transport_dial(client.t, relayed, node.identity.curve_key, &later, &err), &err);
    cr_expect_eq(later, here);
    require_ok(sn_transport_dial(client.t, as_near, node.identity.curve_key, &later, &err), &err);
    cr_expect_neq(later, here, "the node may have moved");
    require_ok(sn_transport_dial(client.t, relayed, other_key, &later, &err), &err);
    cr_expect_neq(later, here, "another key is another node");
    endpoint_close(&client);
    endpoint_close(&node);
}

/* A connection that claims the routing id of another one is another peer: it gets none of its replies. */
Test(zmq, a_claimed_routing_id_names_no_peer, .timeout = 180) {
    transport_fixture w = {0};
    endpoint node;
    endpoint_open(&w, &node, true);
    raw_socket first = raw_socket_connect(&node, ZMQ_DEALER, true, "same");
    zmq_send(first.socket, "\x80", 1, 0);
    sn_event one = receive_event(node.t, WAIT_MS);
    raw_socket second = raw_socket_connect(&node, ZMQ_DEALER, true, "same");
    zmq_send(second.socket, "\x80", 1, 0);
    sn_event two = receive_event(node.t, WAIT_MS);
    cr_assert(one.peer && two.peer && one.peer != two.peer && !two.gone);
    cr_assert(memcmp(one.key, two.key, SN_KEY_SIZE) != 0);
    cr_assert_eq(send_message(node.t, one.peer, status_message(1)), SN_OK);
    char reply[1000];
    cr_assert_gt(zmq_recv(first.socket, reply, sizeof reply, 0), 0);
    cr_assert_eq(zmq_recv(second.socket, reply, sizeof reply, ZMQ_DONTWAIT), -1);
    raw_socket_close(&first);
    sn_event gone = receive_event(node.t, WAIT_MS);
    cr_assert(gone.gone && gone.peer == one.peer);
    cr_assert_eq(send_message(node.t, one.peer, status_message(1)), SN_RETRY);
    cr_assert_eq(send_message(node.t, two.peer, status_message(1)), SN_OK);
    raw_socket_close(&second);
    endpoint_close(&node);
}

static void released(void *owner) { __atomic_store_n((int *)owner, 1, __ATOMIC_SEQ_CST); }

/* The frame is the tensor's own memory: it is released after it was sent, without a copy; borrowed data is copied at
 * once. */
Test(zmq, a_tensor_is_released_when_it_has_been_sent, .timeout = 180) {
    transport_fixture w = {0};
    endpoint node, client;
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    static float data[1 << 16];
    int gone = 0;
    for (int borrowed = 0; borrowed < 2; borrowed++) {
        sn_msg *msg = step_reply_message(1, 1 << 16);
        msg->release(msg->owner);
        msg->release = borrowed ? NULL : released;
        msg->owner = &gone;
        msg->tensor.data = data;
        for (int i = 0; i < 1 << 16; i++) data[i] = (float)i;
        cr_assert_eq(send_message(client.t, to, msg), SN_OK);
        if (borrowed) memset(data, 0, sizeof data);
        sn_event event = expect_message(node.t);
        cr_assert_eq(((const float *)event.msg->tensor.data)[65535], 65535.0f);
        sn_msg_free(&event.msg);
        for (int i = 0; i < WAIT_MS && !__atomic_load_n(&gone, __ATOMIC_SEQ_CST); i++) sn_sleep_us(1000);
        cr_assert_eq(gone, 1);
    }
    endpoint_close(&client);
    endpoint_close(&node);
}

Test(zmq, an_address_of_another_machine_cannot_be_listened_on, .timeout = 180) {
    static const char *const bad[] = {"192.0.2.1:7001", "no-such-host.invalid:7001"};
    transport_fixture w = {0};
    endpoint node;
    sn_err err = {0};
    char bound[SN_ADDRESS_MAX + 1];
    endpoint_open(&w, &node, false);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(sn_transport_listen(node.t, bad[i], bound, &err), SN_REFUSED);
        cr_assert(strstr(err.text, "choose another --listen address"), "%s", err.text);
    }
    require_ok(sn_transport_listen(node.t, "*:0", bound, &err), &err); /* a valid address can still be listened on */
    endpoint_close(&node);
}

/* A slow resolver would hold up the owner. */
Test(zmq, a_name_is_not_dialled, .timeout = 180) {
    static const char *const names[] = {"localhost:7001", "slow.example.org:7001", "1.2.3:7001"};
    transport_fixture w = {0};
    endpoint client;
    sn_err err = {0};
    sn_peer peer;
    endpoint_open(&w, &client, false);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cr_assert_eq(sn_transport_dial(client.t, names[i], client.identity.curve_key, &peer, &err), SN_REFUSED);
        cr_assert(strstr(err.text, "numeric") && strstr(err.text, names[i]), "%s", err.text);
    }
    endpoint_close(&client);
}

/* A peer that sends faster than the owner reads is stopped by TCP: what waits at the owner is bounded. */
Test(zmq, a_peer_that_is_not_read_is_stopped, .timeout = 180) {
    enum { FAR_MORE = 8000, STOPPED = 500 };
    transport_fixture w = {0};
    endpoint node, client;
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    sn_peer to = endpoint_dial(&client, &node);
    uint64_t sent = 0;
    for (int refused = 0; refused < STOPPED && sent < FAR_MORE;) {
        bool taken = send_message(client.t, to, step_reply_message(sent, 4096)) == SN_OK;
        sent += taken;
        refused = taken ? 0 : refused + 1;
        if (!taken) sn_sleep_us(1000);
    }
    cr_assert_lt(sent, FAR_MORE, "no limit");
    for (uint64_t i = 0; i < sent; i++) {
        sn_event event = expect_message(node.t);
        cr_assert_eq(event.msg->correlation_id, i);
        sn_msg_free(&event.msg);
    }
    endpoint_close(&client);
    endpoint_close(&node);
}

/* Peers that a node has dialled send all the time, and one that has dialled it, too. Returns where the last message of
 * that one is. */
static int receive_from_all(endpoint *node, endpoint *dialled, const sn_peer *back, int n_dialled, endpoint *client,
                            int each) {
    sn_peer peer = endpoint_dial(client, node);
    int last = 0;
    for (int i = 0; i < each; i++) {
        cr_assert_eq(send_message(client->t, peer, status_message(1)), SN_OK);
        for (int k = 0; k < n_dialled; k++) cr_assert_eq(send_message(dialled[k].t, back[k], status_message(2)), SN_OK);
    }
    usleep(100000); /* so that all are there, on a machine that is not busy */
    for (int i = 1; i <= each * (n_dialled + 1); i++) {
        sn_event event = expect_message(node->t);
        if (event.msg->correlation_id == 1) last = i;
        sn_msg_free(&event.msg);
    }
    return last;
}

Test(zmq, those_that_dialled_wait_for_one_message_of_all_that_were_dialled, .timeout = 180) {
    enum { DIALLED = 5, EACH = 20, TRIES = 100 };
    transport_fixture w = {0};
    endpoint node, client, dialled[DIALLED];
    sn_peer back[DIALLED];
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    expect_service(&node, &client);
    for (int k = 0; k < DIALLED; k++) {
        endpoint_open(&w, &dialled[k], true);
        cr_assert_eq(send_message(node.t, endpoint_dial(&node, &dialled[k]), status_message(3)), SN_OK);
        sn_event event = expect_message(dialled[k].t);
        back[k] = event.peer;
        sn_msg_free(&event.msg);
    }
    int last = INT32_MAX, tries = 0;
    while (last > 2 * EACH + EACH && tries++ < TRIES)
        last = receive_from_all(&node, dialled, back, DIALLED, &client, EACH);
    cr_expect_leq(tries, TRIES, "its last message is number %d", last);
    for (int k = 0; k < DIALLED; k++) endpoint_close(&dialled[k]);
    endpoint_close(&client);
    endpoint_close(&node);
}

/* -- libzmq, which any program may use */

/* The first frame of what comes to a ROUTER behind the name of its peer. */
static int64_t router_receive(void *router, uint8_t name[256], size_t *name_len, uint8_t *frame, size_t capacity) {
    int more;
    size_t len = sizeof more;
    int n = zmq_recv(router, name, 256, 0);
    cr_assert_gt(n, 0, "libzmq gets nothing: %s", zmq_strerror(zmq_errno()));
    *name_len = (size_t)n;
    n = zmq_recv(router, frame, capacity, 0);
    zmq_getsockopt(router, ZMQ_RCVMORE, &more, &len);
    cr_assert_not(more);
    return n;
}

/* A node made of libzmq: its port closes and opens while the client waits. */
Test(zmq, a_node_of_libzmq_is_dialled_and_dialled_again, .timeout = 180) {
    enum { LIVES = 2, LARGE = 1 << 20, WAIT = 60000 };
    transport_fixture w = {0};
    endpoint client, node;
    sn_err err = {0};
    static uint8_t name[256], frame[1000];
    char to[SN_ADDRESS_MAX + 8] = "tcp://127.0.0.1:*";
    void *context = zmq_ctx_new();
    endpoint_open(&w, &client, false);
    require_ok(sn_identity_new(&node.identity, &err), &err);
    for (int life = 0; life < LIVES; life++) {
        size_t len = sizeof to, name_len;
        void *router = zmq_socket(context, ZMQ_ROUTER);
        zmq_setsockopt(router, ZMQ_CURVE_SERVER, &(int){1}, sizeof(int));
        zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, node.identity.curve_secret, SN_KEY_SIZE);
        zmq_setsockopt(router, ZMQ_RCVTIMEO, &(int){WAIT}, sizeof(int));
        zmq_setsockopt(router, ZMQ_HEARTBEAT_IVL, &(int){10}, sizeof(int)); /* it sends PINGs */
        zmq_setsockopt(router, ZMQ_HEARTBEAT_TIMEOUT, &(int){WAIT}, sizeof(int));
        cr_assert_eq(zmq_bind(router, to), 0, "%s: %s", to, zmq_strerror(zmq_errno()));
        zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, to, &len);
        memcpy(node.address, to + strlen("tcp://"), sizeof node.address);
        sn_peer peer = endpoint_dial(&client, &node);
        for (uint64_t i = 0; i < 3; i++) {
            cr_assert_eq(send_message(client.t, peer, status_message(i)), SN_OK);
            int64_t n = router_receive(router, name, &name_len, frame, sizeof frame);
            zmq_send(router, name, name_len, ZMQ_SNDMORE);
            zmq_send(router, frame, (size_t)n, 0);
            sn_event event = expect_message(client.t);
            cr_assert(event.peer == peer && event.dialled && event.msg->correlation_id == i);
            cr_assert_arr_eq(event.key, node.identity.curve_key, SN_KEY_SIZE);
            sn_msg_free(&event.msg);
        }
        sn_sleep_us(100000); /* some PINGs and their answers */
        sn_buf map;
        sn_buf_init(&map, SN_MAP_SIZE_MAX);
        sn_msg *msg = step_reply_message(9, LARGE);
        require_ok(sn_msg_encode(msg, &map, &err), &err);
        zmq_send(router, name, name_len, ZMQ_SNDMORE);
        zmq_send(router, map.data, map.len, ZMQ_SNDMORE);
        zmq_send(router, msg->tensor.data, msg->tensor.bytes, 0);
        sn_event event = expect_message(client.t);
        cr_assert_eq(event.msg->tensor.bytes, msg->tensor.bytes);
        cr_assert_eq(memcmp(event.msg->tensor.data, msg->tensor.data, msg->tensor.bytes), 0);
        sn_msg_free(&event.msg);
        sn_msg_free(&msg);
        sn_buf_fini(&map);
        zmq_close(router);
        expect_loss(client.t, peer, node.address);
    }
    endpoint_close(&client);
    zmq_ctx_term(context);
}

/* -- a node that sends what it likes to who has dialled it */

enum { PART = 1 << 16, ENDLESS = 4096 }; /* bytes, and parts: 256 MiB, four times what may be held */

typedef struct endless_node {
    sn_identity identity;
    char address[SN_ADDRESS_MAX + 1];
    bool complete;  /* each part is a message; else a frame of one */
    bool one_frame; /* the parts are of one frame, which is not complete */
    bool greets;    /* the same, of a command of the handshake */
    int listener;
    atomic_int sent; /* parts, until the connection ended */
    pthread_t thread;
} endless_node;

/* Passes on what the ZMTP end has to say. False: the connection has ended. */
static bool flush_zmtp(sn_zmtp *z, int fd) {
    const uint8_t *data;
    for (size_t len; (len = sn_zmtp_output(z, &data));) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        sn_zmtp_written(z, (size_t)n);
    }
    return true;
}

/* A frame, or a command, that never ends. */
static void send_endless_frame(endless_node *node, sn_zmtp *z, int fd) {
    static const uint8_t part[PART];
    const uint8_t head[9] = {node->greets ? 6 : 2, 0, 0, 0, 0, 0x20}; /* 512 MiB */
    if (!flush_zmtp(z, fd) || send(fd, head, sizeof head, MSG_NOSIGNAL) != (ssize_t)sizeof head) return;
    for (; node->sent < ENDLESS; node->sent++)
        for (size_t at = 0; at < sizeof part;) {
            ssize_t n = send(fd, part + at, sizeof part - at, MSG_NOSIGNAL);
            if (n <= 0) return;
            at += (size_t)n;
        }
}

static void *run_endless(void *arg) {
    endless_node *node = arg;
    static uint8_t part[PART];
    uint8_t in[4096];
    sn_zmtp z;
    sn_err err;
    sn_zmtp_message message = {0};
    int fd = accept(node->listener, NULL, NULL);
    require_ok(sn_zmtp_init(&z, &node->identity, NULL, &err), &err);
    if (node->greets) send_endless_frame(node, &z, fd);
    for (ssize_t n; !node->greets && !sn_zmtp_is_ready(&z) && (n = recv(fd, in, sizeof in, 0)) > 0;) {
        const uint8_t *at = in;
        for (size_t left = (size_t)n; left;)
            if (sn_zmtp_receive(&z, &at, &left, &message) == SN_ZMTP_FAILED) cr_assert_fail("no handshake");
        sn_zmtp_message_free(&message);
        if (!flush_zmtp(&z, fd)) break;
    }
    if (node->one_frame) send_endless_frame(node, &z, fd);
    while (!node->greets && !node->one_frame && node->sent < ENDLESS &&
           sn_zmtp_send(&z, part, sizeof part, !node->complete) && flush_zmtp(&z, fd))
        node->sent++;
    while (!node->complete && recv(fd, in, sizeof in, 0) > 0) {} /* the other end is the one that closes */
    close(fd);
    sn_zmtp_fini(&z);
    return NULL;
}

static void endless_node_start(endless_node *node) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    sn_err err;
    require_ok(sn_identity_new(&node->identity, &err), &err);
    node->listener = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(!bind(node->listener, (struct sockaddr *)&at, len) && !listen(node->listener, 1) &&
              !getsockname(node->listener, (struct sockaddr *)&at, &len));
    snprintf(node->address, sizeof node->address, "127.0.0.1:%d", ntohs(at.sin_port));
    cr_assert_eq(pthread_create(&node->thread, NULL, run_endless, node), 0);
}

static void endless_node_join(endless_node *node) {
    pthread_join(node->thread, NULL);
    close(node->listener);
}

static sn_peer dial_endless(endpoint *client, const endless_node *node) {
    sn_peer peer;
    sn_err err = {0};
    require_ok(sn_transport_dial(client->t, node->address, node->identity.curve_key, &peer, &err), &err);
    return peer;
}

/* Returns the peer that was left. */
static sn_peer expect_endless_is_left(endpoint *client, endless_node *node, const char *why) {
    endless_node_start(node);
    sn_peer peer = dial_endless(client, node);
    sn_event event = receive_event(client->t, WAIT_MS);
    cr_assert(event.lost && event.peer == peer, "nothing was reported");
    cr_expect(strstr(event.err.text, why), "%s", event.err.text);
    endless_node_join(node);
    cr_expect_lt(node->sent, ENDLESS, "all was taken");
    return peer;
}

Test(zmq, a_dialled_peer_that_sends_a_frame_without_end_is_left, .timeout = 180) {
    transport_fixture w = {0};
    endpoint node, client;
    endless_node endless = {.one_frame = true};
    sn_err err = {0};
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    sn_peer peer = expect_endless_is_left(&client, &endless, "sent more than was taken");
    sn_msg *msg = status_message(1);
    cr_expect_eq(sn_transport_send(client.t, peer, &msg, &err), SN_RETRY);
    sn_msg_free(&msg);
    expect_service(&node, &client);
    sn_peer again = dial_endless(&client, &endless);
    cr_expect_neq(again, peer, "a connection that was ended is no connection");
    sn_transport_hang_up(client.t, again);
    sn_transport_hang_up(client.t, peer);
    expect_service(&node, &client);
    endpoint_close(&client);
    endpoint_close(&node);
}

/* Its frames are not kept, as far as there are too many for a message. */
Test(zmq, a_dialled_peer_that_sends_frames_without_end_takes_no_memory, .timeout = 180) {
    transport_fixture w = {0};
    endpoint node, client;
    endless_node endless = {0};
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    endless_node_start(&endless);
    sn_peer peer = dial_endless(&client, &endless);
    for (int64_t until = sn_now_us() + (int64_t)WAIT_MS * 1000; endless.sent < ENDLESS; sn_sleep_us(1000))
        cr_assert_lt(sn_now_us(), until, "%d parts were taken", endless.sent);
    expect_service(&node, &client); /* with no report of an outage before */
    sn_transport_hang_up(client.t, peer);
    endless_node_join(&endless);
    endpoint_close(&client);
    endpoint_close(&node);
}

/* A command of the handshake has 2 KiB at most. */
Test(zmq, a_dialled_peer_whose_handshake_has_no_end_is_left, .timeout = 180) {
    transport_fixture w = {0};
    endpoint client;
    endless_node endless = {.greets = true};
    endpoint_open(&w, &client, false);
    expect_endless_is_left(&client, &endless, "did not prove the expected key");
    endpoint_close(&client);
}

/* The kernel takes the connection, and no program the messages. */
Test(zmq, a_dialled_peer_that_reads_nothing_does_not_fill_the_memory, .timeout = 180) {
    enum { FLOATS = 1 << 21, FEW = 3, MANY = 5 }; /* in messages of 8 MiB: below and, with both, above what may wait */
    transport_fixture w = {0};
    endpoint node, client;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char address[SN_ADDRESS_MAX + 1];
    int silent = socket(AF_INET, SOCK_STREAM, 0);
    sn_peer peers[2];
    sn_err err = {0};
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    cr_assert(!bind(silent, (struct sockaddr *)&at, sizeof at) && !listen(silent, 8) &&
              !getsockname(silent, (struct sockaddr *)&at, &(socklen_t){sizeof at}));
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(at.sin_port));
    for (int i = 0; i < 2; i++) {
        uint8_t key[SN_KEY_SIZE];
        memcpy(key, node.identity.curve_key, SN_KEY_SIZE);
        key[0] ^= (uint8_t)i;
        require_ok(sn_transport_dial(client.t, address, key, &peers[i], &err), &err);
    }
    for (int i = 0; i < FEW; i++) cr_assert_eq(send_message(client.t, peers[0], step_reply_message(1, FLOATS)), SN_OK);
    expect_service(&node, &client);
    for (int i = 0; i < MANY; i++) cr_assert_eq(send_message(client.t, peers[1], step_reply_message(1, FLOATS)), SN_OK);
    sn_event event;
    do { /* handshakes that take too long are reported, too, on a busy machine */
        event = receive_event(client.t, WAIT_MS);
        cr_assert(event.lost, "nothing was reported");
    } while (!strstr(event.err.text, "read nothing"));
    cr_expect_eq(event.peer, peers[1]);
    cr_expect_eq(send_message(client.t, peers[1], status_message(1)), SN_RETRY);
    cr_expect_eq(send_message(client.t, peers[0], status_message(1)), SN_OK, "it had less");
    expect_service(&node, &client);
    endpoint_close(&client);
    endpoint_close(&node);
    close(silent);
}

/* A node for which messages always wait hears of an outage all the same. */
Test(zmq, an_outage_is_reported_though_messages_always_wait, .timeout = 180) {
    enum { WAITS = 200, TAKES = 500, TAKE_US = 20000 }; /* a second of pauses at least before nothing would wait */
    transport_fixture w = {0};
    endpoint node, sender, other;
    sn_event event = {0};
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &other, true);
    endpoint_open(&w, &sender, false);
    sn_peer of_other = endpoint_dial(&node, &other), of_node = endpoint_dial(&sender, &node);
    expect_service(&other, &node);
    for (int i = 0; i < WAITS; i++) cr_assert_eq(send_message(sender.t, of_node, status_message(1)), SN_OK);
    event = expect_message(node.t);
    sn_msg_free(&event.msg);
    endpoint_close(&other);
    bool lost = false;
    for (int i = 0; i < TAKES && !lost; i++) { /* for each message that is taken, another one comes */
        event = receive_event(node.t, WAIT_MS);
        lost = event.lost;
        sn_msg_free(&event.msg);
        if (!lost) cr_assert_eq(send_message(sender.t, of_node, status_message(1)), SN_OK);
        if (!lost) sn_sleep_us(TAKE_US);
    }
    cr_assert(lost, "the outage is not reported");
    cr_expect_eq(event.peer, of_other);
    endpoint_close(&sender);
    endpoint_close(&node);
}

Test(zmq, a_dialled_peer_that_reads_takes_any_number_of_bytes, .timeout = 180) {
    enum { FLOATS = 1 << 21, MESSAGES = 12, LOOKS_MS = 600 }; /* 96 MiB; two looks at what waits */
    transport_fixture w = {0};
    endpoint node, client;
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    sn_peer peer = endpoint_dial(&client, &node);
    for (int i = 0; i < MESSAGES; i++) {
        cr_assert_eq(send_message(client.t, peer, step_reply_message(1, FLOATS)), SN_OK);
        sn_event event = expect_message(node.t);
        sn_msg_free(&event.msg);
    }
    cr_expect_eq(receive_event(client.t, LOOKS_MS).peer, 0, "the connection was ended");
    expect_service(&node, &client);
    endpoint_close(&client);
    endpoint_close(&node);
}

/* As many bytes in messages that are read end nothing. */
Test(zmq, a_dialled_peer_may_send_any_number_of_messages_that_are_read, .timeout = 180) {
    transport_fixture w = {0};
    endpoint client;
    endless_node node = {.complete = true};
    endpoint_open(&w, &client, false);
    endless_node_start(&node);
    sn_peer peer = dial_endless(&client, &node);
    for (int i = 0; i < ENDLESS; i++) {
        sn_event event = receive_event(client.t, WAIT_MS);
        cr_assert(event.peer == peer && !event.lost && !event.msg, "message %d", i);
        cr_assert_neq(event.err.status, SN_OK);
    }
    endless_node_join(&node);
    cr_expect_eq(node.sent, ENDLESS);
    endpoint_close(&client);
}
