/* A listener whose turns a test takes itself, and clients that send it what they like. The test moves the clock, so
 * nothing depends on how busy the machine is: what was sent is waited for, and takes no time of that clock. */
#ifndef SN_TESTS_LISTENER_FIXTURE_H
#define SN_TESTS_LISTENER_FIXTURE_H

#include "base/clock.h"
#include "net/transport/listener_state_private.h" /* private: turns, and limits that a test can reach */
#include "tests/support/curve_client.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { SECOND = 1000000, TURNS_MAX = 4000, KIB = 1024 };

typedef struct client {
    curve_client curve;
    int fd;
} client;

static sn_identity identity;
static sn_listener *l;
static char address[SN_ADDRESS_MAX + 1];

/* Takes turns until the condition holds. */
#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        for (int i_ = 0; !(condition) && i_ < TURNS_MAX; i_++) listener_turn(l, 5);                                    \
        cr_assert(condition, "the listener does not reach: %s", #condition);                                           \
    } while (0)

static inline void listener_begin(void) {
    virtual_clock_begin_still();
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(listener_open(&identity, &l, &err));
    REQUIRE(sn_listener_listen(l, "127.0.0.1:0", address, &err));
}

/* Lets the time pass, as it does for a thread that is never held up. */
static inline void pass(int seconds) {
    for (int i = 0; i < 2 * seconds; i++) {
        virtual_clock_advance(SECOND / 2);
        listener_turn(l, 0);
    }
}

/* Connections of which something was read at this time. */
static inline size_t n_heard(void) {
    size_t n = 0;
    for (size_t i = 0; i < l->n_slots; i++)
        n += l->slots[i] && l->slots[i]->fd >= 0 && l->slots[i]->heard_us == sn_now_us();
    return n;
}

/* Messages that wait for the owner. */
static inline size_t n_waiting(void) {
    size_t n = 0;
    for (size_t i = 0; i < l->n_slots; i++) n += l->slots[i] ? l->slots[i]->n_received : 0;
    return n;
}

static inline int new_socket(const char *host) {
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert(!bind(fd, (struct sockaddr *)&from, sizeof from), "%s is no address of this machine", host);
    return fd;
}

/* The kernel completes the connection; the listener accepts it with one of its next turns. */
static inline void dial(int fd) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)require_int(strrchr(address, ':') + 1, 1, 65535));
    cr_assert(!connect(fd, (struct sockaddr *)&to, sizeof to));
}

/* A connection from this address, one of 127.0.0.0/8. */
static inline client client_at(const char *host) {
    client c = {.fd = new_socket(host)};
    size_t before = l->n_open;
    dial(c.fd);
    UNTIL(l->n_open > before);
    return c;
}

static inline client client_new(void) { return client_at("127.0.0.1"); }

/* Takes turns until `len` bytes have come, or the listener has closed the connection. Returns how many came. */
static inline size_t read_bytes(const client *c, uint8_t *out, size_t len) {
    size_t have = 0;
    for (int i = 0; have < len && i < TURNS_MAX; i++) {
        ssize_t n = recv(c->fd, out + have, len - have, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return have;
        if (n > 0) have += (size_t)n;
        if (n < 0) listener_turn(l, 5);
    }
    cr_assert_eq(have, len, "%zu of %zu bytes came", have, len);
    return have;
}

static inline void expect_closed(const client *c) {
    uint8_t bytes[4096];
    for (int i = 0; i < TURNS_MAX; i++) {
        ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return;
        listener_turn(l, 5);
    }
    cr_assert(false, "the connection is still open");
}

static inline void send_bytes(const client *c, const void *data, size_t len) {
    for (size_t sent = 0; sent < len;) {
        ssize_t n = send(c->fd, (const uint8_t *)data + sent, len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return; /* closed: the test looks at that */
        if (n > 0) sent += (size_t)n;
        listener_turn(l, 0);
    }
}

/* False: the listener has closed the connection. */
static inline bool shake_hands(client *c) {
    uint8_t answer[SN_ZMTP_GREETING_SIZE + 170], ready;
    sn_buf bytes;
    sn_buf_init(&bytes, 4096);
    curve_client_init(&c->curve, &identity);
    curve_client_greeting(&bytes);
    curve_client_hello(&c->curve, &bytes);
    send_bytes(c, bytes.data, bytes.len);
    bool ok = read_bytes(c, answer, sizeof answer) == sizeof answer;
    bytes.len = 0;
    if (ok) curve_client_initiate(&c->curve, answer + SN_ZMTP_GREETING_SIZE + 2, &bytes);
    if (ok) send_bytes(c, bytes.data, bytes.len);
    ok = ok && read_bytes(c, &ready, 1) == 1;
    sn_buf_fini(&bytes);
    return ok;
}

/* Sends the first `part` bytes of a frame of zeros; SIZE_MAX: all of it, a message. */
static inline void send_part(client *c, size_t len, size_t part) {
    uint8_t *zeros = calloc(1, len);
    sn_buf bytes;
    sn_buf_init(&bytes, len + 4096);
    curve_client_frame(&c->curve, 0, zeros, len, &bytes);
    send_bytes(c, bytes.data, sn_min_size(part, bytes.len));
    sn_buf_fini(&bytes);
    free(zeros);
}

static inline void send_command(client *c, const char *command, size_t len) {
    sn_buf bytes;
    sn_buf_init(&bytes, 4096);
    curve_client_frame(&c->curve, 2, command, len, &bytes);
    send_bytes(c, bytes.data, bytes.len);
    sn_buf_fini(&bytes);
}

/* A connection that was answered is open. */
static inline void expect_open(client *c) {
    uint8_t bytes[4096];
    while (recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
    send_command(c, "\4PING\0\0", 7);
    cr_assert_eq(read_bytes(c, bytes, 1), 1, "the connection was closed");
}

/* A client whose first message has come. */
static inline client named_client_at(const char *host) {
    client c = client_at(host);
    size_t before = n_waiting();
    cr_assert(shake_hands(&c));
    send_part(&c, 1, SIZE_MAX);
    UNTIL(n_waiting() > before);
    return c;
}

static inline client named_client(void) { return named_client_at("127.0.0.1"); }

/* Takes everything that has come; returns how many messages, and in *gone how many ends. */
static inline int receive_all(int *gone) {
    int messages = 0;
    sn_inbound in;
    *gone = 0;
    for (sn_listener_receive(l, &in); in.peer; sn_listener_receive(l, &in)) {
        messages += !in.gone;
        *gone += in.gone != NULL;
        sn_zmtp_message_free(&in.message);
    }
    return messages;
}

#endif
