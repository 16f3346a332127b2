/* How often one address may shake hands: as logic, and over ZeroMQ with real connections. */
#include "base/clock.h"
#include "net/gate.h"
#include "tests/support/need.h"
#include "net/transport.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum { SECOND = 1000000 };

static int admitted(sn_gate *g, const char *address, int n, int64_t now_us) {
    int yes = 0;
    for (int i = 0; i < n; i++) yes += sn_gate_admits(g, address, strlen(address), now_us);
    return yes;
}

Test(gate, lets_an_address_in_so_often_and_no_oftener) {
    sn_gate *g = NULL;
    NEED(sn_gate_new(&g, &err));
    int64_t now = 9 * SECOND;
    cr_expect_eq(admitted(g, "10.0.0.1", 1000, now), SN_GATE_AT_ONCE);
    cr_expect_eq(admitted(g, "10.0.0.2", 10, now), 10, "another one is not kept out");
    cr_expect_eq(admitted(g, "10.0.0.1", 1000, now + SECOND), SN_GATE_PER_S);
    cr_expect_eq(admitted(g, "10.0.0.1", 1000, now + 3600ll * SECOND), SN_GATE_AT_ONCE);
    cr_expect_eq(admitted(g, "10.0.0.1", 1000, now), 0, "a clock that is set back gives nothing");
    sn_gate_free(&g);
}

Test(gate, remembers_who_comes_often_among_a_crowd) {
    sn_gate *g = NULL;
    NEED(sn_gate_new(&g, &err));
    char address[32];
    int yes = 0;
    for (int i = 0; i < 50000; i++) { /* every second one is the same */
        snprintf(address, sizeof address, "10.%d.%d.%d", i >> 16, i >> 8 & 255, i & 255);
        cr_expect_eq(admitted(g, address, 1, SECOND + i), 1);
        yes += admitted(g, "192.168.7.7", 1, SECOND + i);
    }
    cr_expect_leq(yes, SN_GATE_AT_ONCE + 3 * SN_GATE_PER_S, "%d", yes);
    sn_gate_free(&g);
}

/* -- over ZeroMQ ----------------------------------------------------------------------------------------------------- */

typedef struct door {
    sn_identity identity;
    sn_transport *transport;
    char address[SN_ADDRESS_MAX + 1];
} door;

static void door_begin(door *d) {
    NEED(sn_identity_new(&d->identity, &err));
    NEED(sn_transport_zmq_new(&d->identity, &d->transport, &err));
    NEED(sn_transport_listen(d->transport, "tcp://127.0.0.1:0", d->address, &err));
}

/* Whether a client that comes from `source` is heard within the time. */
static bool is_heard(door *d, void *context, const char *source, int timeout_ms) {
    char public_key[41], secret_key[41], to[2 * SN_ADDRESS_MAX];
    void *socket = zmq_socket(context, ZMQ_DEALER);
    int none = 0, often = 20;
    zmq_curve_keypair(public_key, secret_key);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, d->identity.curve_key, SN_KEY_SIZE);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public_key, 41);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret_key, 41);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &often, sizeof often);
    snprintf(to, sizeof to, "tcp://%s:0;%s", source, d->address + strlen("tcp://"));
    cr_assert(!zmq_connect(socket, to), "%s: %s", to, zmq_strerror(zmq_errno()));
    zmq_send(socket, "x", 1, ZMQ_DONTWAIT); /* no message: it is told so */
    sn_event event = {0};
    int64_t until = sn_now_us() + (int64_t)timeout_ms * 1000;
    while (!event.peer && sn_now_us() < until) NEED(sn_transport_recv(d->transport, until, &event, &err));
    sn_msg_free(&event.msg);
    zmq_close(socket);
    return event.peer != 0;
}

Test(gate, stands_before_the_transport_one_for_each_address, .timeout = 180) {
    door d;
    void *context = zmq_ctx_new();
    door_begin(&d);
    int heard = 0;
    int64_t began = sn_now_us(), allowed;
    while (is_heard(&d, context, "127.0.0.1", heard < SN_GATE_AT_ONCE ? 20000 : 300)) { /* each with another key */
        allowed = SN_GATE_AT_ONCE + (sn_now_us() - began) * SN_GATE_PER_S / SECOND + 2;
        cr_assert_leq(++heard, allowed, "%d were let in", heard);
        if (heard > SN_GATE_AT_ONCE + 64 && (sn_now_us() - began) / heard > SECOND / SN_GATE_PER_S / 2)
            break; /* this machine is too slow to come too often */
    }
    cr_expect_geq(heard, SN_GATE_AT_ONCE);
    cr_expect(is_heard(&d, context, "127.0.0.2", 20000), "another address suffers for it");
    cr_expect(is_heard(&d, context, "127.0.0.1", 20000), "who waits is let in again");
    zmq_ctx_term(context);
    sn_transport_free(&d.transport);
}

/* Connections that say nothing, or half of it, are cut off in time, and keep nobody out meanwhile. */
Test(gate, those_who_stand_in_it_and_say_nothing_are_sent_away, .timeout = 180) {
    enum { N = 150 };
    static const uint8_t greeting[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'C', 'U', 'R', 'V', 'E'};
    door d;
    void *context = zmq_ctx_new();
    struct pollfd slow[N];
    door_begin(&d);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)need_int(strrchr(d.address, ':') + 1, 1, 65535));
    for (int i = 0; i < N; i++) {
        slow[i] = (struct pollfd){.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN | POLLRDHUP};
        cr_assert(!connect(slow[i].fd, (struct sockaddr *)&to, sizeof to), "%s", strerror(errno));
        size_t part = i % (sizeof greeting + 1);
        if (part) cr_expect_eq(send(slow[i].fd, greeting, part, MSG_NOSIGNAL), (ssize_t)part);
    }
    cr_expect(is_heard(&d, context, "127.0.0.2", 20000), "they keep others out");
    int gone = 0;
    for (int64_t until = sn_now_us() + 60 * SECOND; gone < N && sn_now_us() < until;) {
        poll(slow, N, 200);
        for (int i = 0; i < N; i++) {
            char bytes[256];
            if (slow[i].fd < 0 || !slow[i].revents) continue;
            if (recv(slow[i].fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue; /* its greeting */
            close(slow[i].fd);
            slow[i].fd = -1;
            gone++;
        }
    }
    cr_expect_eq(gone, N, "%d are still there", N - gone);
    zmq_ctx_term(context);
    sn_transport_free(&d.transport);
}
