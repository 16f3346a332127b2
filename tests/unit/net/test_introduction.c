/* Introductions over UDP on the loopback. */
#include "net/introduction.h"

#include "base/clock.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DATAGRAM = 144, SIGNED = 80, WAIT_MS = 30000 };

static atomic_int woken;
static void on_wake(void *ctx) {
    (void)ctx;
    atomic_fetch_add(&woken, 1);
}

/* A UDP socket at a free port of the loopback interface. */
static int new_socket(char address[64]) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) || getsockname(fd, (struct sockaddr *)&at, &len)) abort();
    snprintf(address, 64, "127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

static void free_port(char address[64]) { close(new_socket(address)); }

static bool take_within(sn_introducer *in, char *address, uint8_t *key, int ms) {
    int64_t deadline = sn_now_us() + (int64_t)ms * 1000;
    bool any;
    while (!(any = sn_introducer_next(in, address, key)) && sn_now_us() < deadline) sn_sleep_us(1000);
    return any;
}

static sn_introducer *new_introducer(void) {
    sn_introducer *in = NULL;
    REQUIRE(sn_introducer_new(NULL, NULL, on_wake, NULL, &in, &err));
    return in;
}

Test(introduction, returns_the_key_of_a_node_that_starts_later) {
    char where[64], address[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    sn_identity identity;
    sn_introducer *introducer = new_introducer(), *node = NULL;
    free_port(where);
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_introducer_ask(introducer, where, &err));
    cr_expect_not(take_within(introducer, address, key, 100)); /* no node listens yet */
    REQUIRE(sn_introducer_new(&identity, where, on_wake, NULL, &node, &err));
    cr_assert(take_within(introducer, address, key, WAIT_MS));
    cr_expect_str_eq(address, where);
    cr_expect(!memcmp(key, identity.curve_key, SN_KEY_SIZE));
    cr_expect_geq(woken, 1);
    cr_expect_not(sn_introducer_next(introducer, address, key), "told twice");
    sn_introducer_free(&introducer);
    sn_introducer_free(&node);
    sn_introducer_free(&node);
}

Test(introduction, a_node_that_returns_with_another_key_is_asked_for_it) {
    char where[64], address[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    sn_introducer *introducer = new_introducer();
    free_port(where);
    REQUIRE(sn_introducer_ask(introducer, where, &err));
    for (int life = 0; life < 2; life++) {
        sn_identity identity;
        sn_introducer *node = NULL;
        REQUIRE(sn_identity_new(&identity, &err));
        REQUIRE(sn_introducer_new(&identity, where, on_wake, NULL, &node, &err));
        cr_assert(take_within(introducer, address, key, WAIT_MS));
        cr_expect(!memcmp(key, identity.curve_key, SN_KEY_SIZE), "life %d", life);
        sn_introducer_free(&node);
        sn_introducer_ask_again(introducer, "127.0.0.1:1"); /* nothing was handed out for it */
        cr_expect_not(take_within(introducer, address, key, 50));
        sn_introducer_ask_again(introducer, where);
    }
    sn_introducer_free(&introducer);
}

Test(introduction, sends_no_query_where_the_key_is_pinned) {
    char where[64], pinned[256], address[SN_ADDRESS_MAX + 1], hex[2 * SN_KEY_SIZE + 1];
    uint8_t key[SN_KEY_SIZE], got[SN_KEY_SIZE];
    int fd = new_socket(where);
    sn_random(key, sizeof key);
    snprintf(pinned, sizeof pinned, "%s#%s", where, sn_hex(key, sizeof key, hex));
    sn_introducer *introducer = new_introducer();
    int before = woken;
    REQUIRE(sn_introducer_ask(introducer, pinned, &err));
    cr_expect_gt(woken, before, "the wake callback was not called");
    cr_assert(sn_introducer_next(introducer, address, got));
    cr_expect_str_eq(address, where);
    cr_expect(!memcmp(key, got, sizeof key));
    sn_introducer_ask_again(introducer, where);
    struct pollfd p = {fd, POLLIN, 0};
    cr_expect_eq(poll(&p, 1, 200), 0, "a query was sent");
    cr_expect_not(sn_introducer_next(introducer, address, got), "told twice");
    sn_introducer_free(&introducer);
    close(fd);
}

static void send_to(int fd, const struct sockaddr_in *to, const void *data, size_t n) {
    if (sendto(fd, data, n, 0, (const struct sockaddr *)to, sizeof *to) != (ssize_t)n) abort();
}

/* An answer to the query, signed by `identity`. */
static void make_answer(const sn_identity *identity, const uint8_t *query, uint8_t out[DATAGRAM]) {
    memcpy(out, "SWARM!1", 8);
    memcpy(out + 8, query + 8, 8);
    memcpy(out + 16, identity->id, SN_KEY_SIZE);
    memcpy(out + 48, identity->curve_key, SN_KEY_SIZE);
    REQUIRE(sn_sign(identity, out, SIGNED, out + SIGNED, &err));
}

Test(introduction, ignores_answers_that_are_forged) {
    char where[64], address[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE], query[DATAGRAM + 1], data[DATAGRAM + 1] = {0};
    sn_identity identity, other;
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    int fd = new_socket(where);
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_identity_new(&other, &err));
    sn_introducer *introducer = new_introducer();
    REQUIRE(sn_introducer_ask(introducer, where, &err));
    cr_assert_eq(recvfrom(fd, query, sizeof query, 0, (struct sockaddr *)&from, &len), DATAGRAM);
    cr_expect(!memcmp(query, "SWARM?1", 8));
    const size_t flips[] = {0, 8, 16, 48, SIGNED, DATAGRAM - 1}; /* magic, nonce, id, key, signature */
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        make_answer(&identity, query, data);
        data[flips[i]] ^= 1;
        send_to(fd, &from, data, DATAGRAM);
    }
    make_answer(&identity, query, data);
    memcpy(data + 48, other.curve_key, SN_KEY_SIZE); /* the key of another node under the id of this one */
    send_to(fd, &from, data, DATAGRAM);
    make_answer(&identity, query, data);
    send_to(fd, &from, data, DATAGRAM - 1);
    send_to(fd, &from, data, DATAGRAM + 1);
    send_to(fd, &from, data, 0);
    send_to(fd, &from, query, DATAGRAM);
    query[8] ^= 1;
    make_answer(&identity, query, data); /* correctly signed, for another query */
    send_to(fd, &from, data, DATAGRAM);
    cr_expect_not(take_within(introducer, address, key, 150));
    query[8] ^= 1;
    make_answer(&identity, query, data);
    send_to(fd, &from, data, DATAGRAM);
    cr_assert(take_within(introducer, address, key, WAIT_MS));
    cr_expect(!memcmp(key, identity.curve_key, SN_KEY_SIZE));
    sn_introducer_free(&introducer);
    close(fd);
}

Test(introduction, answers_queries_only_and_never_amplifies) {
    char where[64], mine[64];
    uint8_t data[DATAGRAM + 1] = {0};
    sn_identity identity;
    sn_introducer *node = NULL;
    int fd = new_socket(mine), port;
    free_port(where);
    cr_assert_eq(sscanf(where, "127.0.0.1:%d", &port), 1);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_introducer_new(&identity, where, on_wake, NULL, &node, &err));
    struct pollfd p = {fd, POLLIN, 0};
    send_to(fd, &to, data, DATAGRAM);
    memcpy(data, "SWARM?1", 8);
    send_to(fd, &to, data, 16); /* short: a larger answer would amplify */
    send_to(fd, &to, data, DATAGRAM - 1);
    send_to(fd, &to, data, DATAGRAM + 1);
    cr_expect_eq(poll(&p, 1, 150), 0, "it answered an invalid query");
    memset(data + 8, 5, 8);
    send_to(fd, &to, data, DATAGRAM);
    cr_assert_eq(poll(&p, 1, WAIT_MS), 1);
    cr_expect_eq(recv(fd, data, sizeof data, 0), DATAGRAM);
    cr_expect(!memcmp(data, "SWARM!1", 8) && data[8] == 5 && !memcmp(data + 16, identity.id, SN_KEY_SIZE));
    cr_expect(sn_verify(identity.id, data, SIGNED, data + SIGNED));
    sn_introducer_free(&node);
    close(fd);
}

Test(introduction, names_a_port_in_use) {
    char where[64];
    int fd = new_socket(where);
    sn_identity identity;
    sn_introducer *in = NULL;
    sn_err err;
    if (sn_identity_new(&identity, &err)) abort();
    cr_expect_eq(sn_introducer_new(&identity, where, on_wake, NULL, &in, &err), SN_REFUSED);
    cr_expect(strstr(err.text, where) && strstr(err.text, "--listen"), "%s", err.text);
    cr_expect_null(in);
    close(fd);
}

Test(introduction, refuses_to_ask_at_what_is_no_address) {
    char plain[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    bool pinned;
    sn_err err;
    cr_expect_eq(sn_address_parse("[::1]:7000", plain, key, &pinned, &err), SN_OK);
    cr_expect_str_eq(plain, "[::1]:7000");
    cr_expect_not(pinned);
    cr_expect_eq(sn_address_parse("host:7000#12", plain, key, &pinned, &err), SN_REFUSED);
    sn_introducer *introducer = new_introducer();
    cr_expect_eq(sn_introducer_ask(introducer, "nowhere", &err), SN_REFUSED);
    sn_introducer_free(&introducer);
}

/* Asks once from `source`; true: an answer came. */
static bool is_answered(const char *source, const char *where, int wait_ms) {
    uint8_t data[DATAGRAM + 1] = "SWARM?1";
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, source, &from.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    to.sin_port = htons((uint16_t)require_int(strrchr(where, ':') + 1, 1, 65535));
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&from, sizeof from));
    cr_assert_eq(sendto(fd, data, DATAGRAM, 0, (struct sockaddr *)&to, sizeof to), DATAGRAM);
    struct pollfd answer = {fd, POLLIN, 0};
    bool any = poll(&answer, 1, wait_ms) > 0;
    close(fd);
    return any;
}

/* One address that asks all the time gets a few answers, and takes none from others. */
Test(introduction, answers_of_one_address_have_a_rate, .timeout = 180) {
    char where[64];
    sn_identity identity;
    sn_introducer *node = NULL;
    free_port(where);
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_introducer_new(&identity, where, on_wake, NULL, &node, &err));
    int flooder = 0, others = 0;
    int64_t began = sn_now_us();
    for (int i = 0; i < 1200; i++) {
        char source[32];
        flooder += is_answered("127.0.0.2", where, i < 128 ? 10000 : 2);
        snprintf(source, sizeof source, "127.0.1.%d", i / 6);
        if (i % 6 == 0) others += is_answered(source, where, 10000);
    }
    int64_t seconds = (sn_now_us() - began) / 1000000 + 1;
    cr_expect_geq(flooder, 128);
    cr_expect_leq(flooder, 128 + 64 * seconds, "%d answers in %lld s", flooder, (long long)seconds);
    cr_expect_eq(others, 200);
    sn_introducer_free(&node);
}

/* Asks `n` times, each time with another question; the answers lie in the socket afterwards. */
static void ask_often(int fd, const struct sockaddr_in *to, int n) {
    uint8_t data[DATAGRAM] = "SWARM?1";
    for (int i = 0; i < n; i++) {
        memcpy(data + 8, &i, sizeof i);
        send_to(fd, to, data, DATAGRAM);
    }
}

static int count_answers(int fd, int at_most, int wait_ms) {
    uint8_t data[DATAGRAM];
    int n = 0;
    struct pollfd p = {fd, POLLIN, 0};
    while (n < at_most && poll(&p, 1, wait_ms) > 0 && recv(fd, data, sizeof data, MSG_DONTWAIT) > 0) n++;
    return n;
}

/* Addresses of questions can be forged, so their number costs a stranger nothing: there is a rate for all of them
 * together. The clock stands still, so the number of answers is exact. */
Test(introduction, answers_of_all_addresses_have_a_rate, .timeout = 180) {
    enum { OF_ALL = 4000, OF_ONE = 32, ADDRESSES = 160 };
    char where[64];
    sn_identity identity;
    sn_introducer *node = NULL;
    virtual_clock_begin_still();
    free_port(where);
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_introducer_new(&identity, where, on_wake, NULL, &node, &err));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)require_int(strrchr(where, ':') + 1, 1, 65535));
    int fds[ADDRESSES], answers = 0, beyond = 0;
    for (int i = 0; i < ADDRESSES; i++) {
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000201 + (uint32_t)i)};
        fds[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        cr_assert(fds[i] >= 0 && !bind(fds[i], (struct sockaddr *)&from, sizeof from));
        ask_often(fds[i], &to, OF_ONE);
        int due = OF_ALL - answers < OF_ONE ? OF_ALL - answers : OF_ONE;
        answers += count_answers(fds[i], due, WAIT_MS);
    }
    cr_expect_eq(answers, OF_ALL);
    int tries = 0;
    bool answered = false;
    while (!answered && ++tries < 25) { /* when this question is answered, all others were read */
        char source[32];
        snprintf(source, sizeof source, "127.0.3.%d", tries);
        virtual_clock_advance(10000);
        answered = is_answered(source, where, 1000);
    }
    cr_expect(answered, "later others are answered again");
    for (int i = 0; i < ADDRESSES; i++) {
        beyond += count_answers(fds[i], OF_ONE, 0);
        close(fds[i]);
    }
    cr_expect_leq(beyond, tries * OF_ALL / 100, "%d answers beyond the rate", beyond);
    sn_introducer_free(&node);
}
