/* How often one address may open a handshake: as logic, and over ZeroMQ with real connections. */
#include "base/clock.h"
#include "net/address_limit.h"
#include "net/transport/listener_private.h" /* private: its rate */
#include "tests/support/curve_client.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"
#include "net/transport/transport.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum { SECOND = 1000000 };

static int count_admitted(sn_address_limit *g, const char *address, int n, int64_t now_us) {
    struct sockaddr_storage at = {.ss_family = AF_INET};
    uint8_t prefix[SN_ADDRESS_PREFIX];
    int yes = 0;
    cr_assert_eq(inet_pton(AF_INET, address, &((struct sockaddr_in *)&at)->sin_addr), 1);
    sn_address_prefix(&at, prefix);
    for (int i = 0; i < n; i++) yes += sn_address_limit_allows(g, prefix, now_us);
    return yes;
}

Test(handshake_limit, limits_handshakes_of_an_address) {
    sn_address_limit *g = NULL;
    REQUIRE(sn_address_limit_new(SN_HANDSHAKE_BURST, SN_HANDSHAKES_PER_S, &g, &err));
    int64_t now = 9 * SECOND;
    cr_expect_eq(count_admitted(g, "10.0.0.1", 1000, now), SN_HANDSHAKE_BURST);
    cr_expect_eq(count_admitted(g, "10.0.0.2", 10, now), 10, "another address is limited, too");
    cr_expect_eq(count_admitted(g, "10.0.0.1", 1000, now + SECOND), SN_HANDSHAKES_PER_S);
    cr_expect_eq(count_admitted(g, "10.0.0.1", 1000, now + 3600ll * SECOND), SN_HANDSHAKE_BURST);
    cr_expect_eq(count_admitted(g, "10.0.0.1", 1000, now), 0, "setting the clock back admits more");
    sn_address_limit_free(&g);
}

Test(handshake_limit, limits_a_frequent_address_among_many_others) {
    sn_address_limit *g = NULL;
    REQUIRE(sn_address_limit_new(SN_HANDSHAKE_BURST, SN_HANDSHAKES_PER_S, &g, &err));
    char address[32];
    int yes = 0;
    for (int i = 0; i < 50000; i++) { /* every second address is the same */
        snprintf(address, sizeof address, "10.%d.%d.%d", i >> 16, i >> 8 & 255, i & 255);
        cr_expect_eq(count_admitted(g, address, 1, SECOND + i), 1);
        yes += count_admitted(g, "192.168.7.7", 1, SECOND + i);
    }
    cr_expect_leq(yes, SN_HANDSHAKE_BURST + 3 * SN_HANDSHAKES_PER_S, "%d", yes);
    sn_address_limit_free(&g);
}

/* -- over ZeroMQ */

typedef struct listener {
    sn_identity identity;
    sn_transport *transport;
    char address[SN_ADDRESS_MAX + 1];
} listener;

static void listener_begin(listener *d) {
    REQUIRE(sn_identity_new(&d->identity, &err));
    REQUIRE(sn_transport_zmq_new(&d->identity, &d->transport, &err));
    REQUIRE(sn_transport_listen(d->transport, "127.0.0.1:0", d->address, &err));
}

/* Whether a message of a client with the address `source` is received in time. */
static bool is_accepted(listener *d, void *context, const char *source, int timeout_ms) {
    char public_key[41], secret_key[41], to[2 * SN_ADDRESS_MAX];
    void *socket = zmq_socket(context, ZMQ_DEALER);
    int none = 0, often = 20;
    zmq_curve_keypair(public_key, secret_key);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, d->identity.curve_key, SN_KEY_SIZE);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public_key, 41);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret_key, 41);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &often, sizeof often);
    snprintf(to, sizeof to, "tcp://%s:0;%s", source, d->address);
    cr_assert(!zmq_connect(socket, to), "%s: %s", to, zmq_strerror(zmq_errno()));
    zmq_send(socket, "x", 1, ZMQ_DONTWAIT); /* not a message: reported as such */
    sn_event event = {0};
    int64_t until = sn_now_us() + (int64_t)timeout_ms * 1000;
    while ((!event.peer || event.gone) && sn_now_us() < until)
        REQUIRE(sn_transport_recv(d->transport, until, &event, &err));
    sn_msg_free(&event.msg);
    zmq_close(socket);
    return event.peer != 0 && !event.gone;
}

Test(handshake_limit, transport_limits_each_address_separately, .timeout = 180) {
    listener d;
    void *context = zmq_ctx_new();
    listener_begin(&d);
    int accepted = 0;
    int64_t began = sn_now_us(), allowed;
    while (is_accepted(&d, context, "127.0.0.1",
                       accepted < SN_HANDSHAKE_BURST ? 20000 : 300)) { /* each with another key */
        allowed = SN_HANDSHAKE_BURST + (sn_now_us() - began) * SN_HANDSHAKES_PER_S / SECOND + 2;
        cr_assert_leq(++accepted, allowed, "%d were admitted", accepted);
        if (accepted > SN_HANDSHAKE_BURST + 64 && (sn_now_us() - began) / accepted > SECOND / SN_HANDSHAKES_PER_S / 2)
            break; /* this machine is too slow to exceed the limit */
    }
    cr_expect_geq(accepted, SN_HANDSHAKE_BURST);
    cr_expect(is_accepted(&d, context, "127.0.0.2", 20000), "another address is limited, too");
    cr_expect(is_accepted(&d, context, "127.0.0.1", 20000), "the address is not admitted again after a wait");
    zmq_ctx_term(context);
    sn_transport_free(&d.transport);
}

/* Whether the node answers the HELLO of a client with the address `source`, or closes the connection instead. */
static bool is_welcomed(const listener *d, const char *source) {
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)require_int(strrchr(d->address, ':') + 1, 1, 65535));
    cr_assert_eq(inet_pton(AF_INET, source, &from.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(!bind(fd, (struct sockaddr *)&from, sizeof from) && !connect(fd, (struct sockaddr *)&to, sizeof to));
    curve_client client;
    sn_buf hello;
    sn_buf_init(&hello, 1000);
    curve_client_init(&client, &d->identity);
    curve_client_greeting(&hello);
    curve_client_hello(&client, &hello);
    uint8_t answer[SN_ZMTP_GREETING_SIZE + 170];
    cr_assert_eq(send(fd, hello.data, hello.len, MSG_NOSIGNAL), (ssize_t)hello.len);
    bool welcomed = recv(fd, answer, sizeof answer, MSG_WAITALL) == sizeof answer;
    sn_buf_fini(&hello);
    close(fd);
    return welcomed;
}

/* Many addresses together do not keep the thread that carries all messages busy with handshakes. */
Test(handshake_limit, limits_handshakes_of_all_addresses_together, .timeout = 180) {
    enum { ATTEMPTS = 3 * SN_ALL_HANDSHAKES_PER_S };
    listener d;
    virtual_clock_begin(); /* processor time: a busy machine admits no more */
    listener_begin(&d);
    int64_t began = sn_now_us(), admitted = 0;
    for (int i = 0; i < ATTEMPTS; i++) {
        char source[32];
        snprintf(source, sizeof source, "127.2.%d.%d", i / 200, 1 + i % 200);
        admitted += is_welcomed(&d, source);
    }
    int64_t allowed = SN_ALL_HANDSHAKES_PER_S + (sn_now_us() - began) * SN_ALL_HANDSHAKES_PER_S / SECOND + 2;
    cr_expect_leq(admitted, allowed);
    cr_expect_geq(admitted, SN_ALL_HANDSHAKES_PER_S);
    sn_transport_free(&d.transport);
}
