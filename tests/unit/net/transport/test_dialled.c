/* Connections that a transport makes: when it makes them, and for how long it waits. */
#include "tests/unit/net/transport/listener_fixture.h"

#include <sys/resource.h>
#include <unistd.h>

/* A program that takes connections, and what it has taken. */
typedef struct program {
    int listen_fd, fd;
    char address[SN_ADDRESS_MAX + 1];
} program;

static program program_at(int port) {
    program p = {.fd = -1};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)port);
    p.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    cr_assert(!setsockopt(p.listen_fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
    cr_assert(!bind(p.listen_fd, (struct sockaddr *)&at, sizeof at) && !listen(p.listen_fd, 8) &&
              !getsockname(p.listen_fd, (struct sockaddr *)&at, &(socklen_t){sizeof at}));
    snprintf(p.address, sizeof p.address, "127.0.0.1:%d", ntohs(at.sin_port));
    return p;
}

static bool accepts(program *p) { return (p->fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0; }

/* Takes turns until the program has the next connection. */
static void expect_dialled(program *p) { UNTIL(p->fd >= 0 || accepts(p)); }

static sn_peer dial_program(const program *p, const char *relay, const uint8_t key[SN_KEY_SIZE]) {
    sn_peer peer;
    REQUIRE(sn_listener_dial(l, p->address, relay, key, &peer, &err));
    return peer;
}

static sn_outage next_outage(void) {
    sn_inbound in;
    sn_listener_receive(l, &in);
    cr_assert(!in.peer || (in.outage && in.dialled), "this is no outage");
    return in.outage;
}

static void expect_outage(sn_outage expected) {
    sn_outage outage = SN_OUTAGE_NONE;
    UNTIL(outage || (outage = next_outage()));
    cr_expect_eq(outage, expected);
}

Test(dialled, a_peer_that_takes_the_connection_has_five_seconds_to_prove_its_key) {
    listener_begin();
    program silent = program_at(0);
    dial_program(&silent, NULL, identity.curve_key);
    expect_dialled(&silent);
    client c = {.fd = silent.fd};
    uint8_t greeting[SN_ZMTP_GREETING_SIZE];
    read_bytes(&c, greeting, sizeof greeting);
    pass(5);
    cr_expect_eq(next_outage(), SN_OUTAGE_NONE, "it had less than its time");
    pass(1);
    expect_outage(SN_OUTAGE_UNPROVEN);
    expect_closed(&c);
    sn_listener_free(&l, 0);
}

Test(dialled, time_in_which_this_program_did_not_run_says_nothing_of_a_key) {
    listener_begin();
    program silent = program_at(0);
    dial_program(&silent, NULL, identity.curve_key);
    expect_dialled(&silent);
    client c = {.fd = silent.fd};
    uint8_t greeting[SN_ZMTP_GREETING_SIZE];
    read_bytes(&c, greeting, sizeof greeting);
    virtual_clock_advance(60 * SECOND);
    listener_turn(l, 0);
    pass(5);
    cr_expect_eq(next_outage(), SN_OUTAGE_NONE, "it had less than its time");
    pass(1);
    expect_outage(SN_OUTAGE_UNPROVEN);
    sn_listener_free(&l, 0);
}

Test(dialled, a_relay_has_ten_seconds_to_bring_a_peer) {
    listener_begin();
    program relay = program_at(0);
    dial_program(&relay, relay.address, identity.curve_key);
    expect_dialled(&relay);
    client c = {.fd = relay.fd};
    uint8_t request[80];
    read_bytes(&c, request, sizeof request);
    cr_expect(!memcmp(request, "\5\1\0\5\1\0\3\106", 8));
    pass(10);
    cr_expect_eq(next_outage(), SN_OUTAGE_NONE, "it had less than its time");
    pass(1);
    expect_outage(SN_OUTAGE_REFUSED);
    expect_closed(&c);
    sn_listener_free(&l, 0);
}

/* A node that its relay does not bring may be there: what it announced stays. Its relay may also close at once. */
Test(dialled, a_relay_that_brings_nobody_says_nothing_of_a_key) {
    static const uint8_t unreachable[] = {5, 0, 5, 4, 0, 1, 0, 0, 0, 0, 0, 0};
    static const size_t lengths[] = {0, 2, 4, sizeof unreachable};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        listener_begin();
        program relay = program_at(0);
        dial_program(&relay, relay.address, identity.curve_key);
        expect_dialled(&relay);
        client c = {.fd = relay.fd};
        send_bytes(&c, unreachable, lengths[i]);
        close(relay.fd);
        expect_outage(SN_OUTAGE_REFUSED);
        sn_listener_free(&l, 0);
    }
}

/* Time in which the relay itself is reached is none of silence. */
Test(dialled, a_relay_that_was_reached_late_has_its_ten_seconds_all_the_same) {
    listener_begin();
    program relay = program_at(0);
    dial_program(&relay, relay.address, identity.curve_key);
    listener_turn(l, 5); /* begins to connect */
    virtual_clock_advance(9 * SECOND);
    l->turned_us = sn_now_us(); /* the listener was not held up */
    expect_dialled(&relay);
    client c = {.fd = relay.fd};
    uint8_t request[80];
    read_bytes(&c, request, sizeof request);
    pass(10);
    cr_expect_eq(next_outage(), SN_OUTAGE_NONE, "it had less than its time");
    pass(1);
    expect_outage(SN_OUTAGE_REFUSED);
    sn_listener_free(&l, 0);
}

Test(dialled, without_a_descriptor_a_peer_is_dialled_when_there_is_one) {
    struct rlimit before, none;
    listener_begin();
    program there = program_at(0);
    cr_assert(!getrlimit(RLIMIT_NOFILE, &before));
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    cr_assert(!setrlimit(RLIMIT_NOFILE, &none));
    dial_program(&there, NULL, identity.curve_key);
    expect_outage(SN_OUTAGE_NO_DESCRIPTOR);
    cr_assert(!setrlimit(RLIMIT_NOFILE, &before));
    virtual_clock_advance(SECOND);
    expect_dialled(&there);
    sn_listener_free(&l, 0);
}

/* How often it is dialled in so many seconds. */
static int dials_in(program *p, int seconds) {
    int n = 0;
    for (int i = 0; i < 20 * seconds; i++) {
        virtual_clock_advance(SECOND / 20);
        for (int k = 0; k < 3; k++) listener_turn(l, 0); /* connects, learns that it is connected, that it has ended */
        for (; accepts(p); n++) close(p->fd);
    }
    return n;
}

Test(dialled, a_peer_that_is_not_there_is_dialled_at_growing_intervals_and_reported_once) {
    listener_begin();
    program closes = program_at(0);
    dial_program(&closes, NULL, identity.curve_key);
    int first = dials_in(&closes, 5), later = dials_in(&closes, 60);
    cr_expect(first >= 4 && first <= 8, "%d times in five seconds", first);
    cr_expect(later >= 10 && later <= 14, "%d times in a minute", later);
    cr_expect_eq(next_outage(), SN_OUTAGE_UNPROVEN);
    cr_expect_eq(next_outage(), SN_OUTAGE_NONE, "it is reported again");
    close(closes.listen_fd);
    sn_listener_free(&l, 0);
}

Test(dialled, a_connection_that_nothing_takes_is_reported_at_once) {
    listener_begin();
    program gone = program_at(0);
    close(gone.listen_fd);
    dial_program(&gone, NULL, identity.curve_key);
    expect_outage(SN_OUTAGE_REFUSED);
    sn_listener_free(&l, 0);
}

Test(dialled, peers_that_are_hung_up_leave_their_places_to_others) {
    static sn_peer peers[DIALLED_MAX];
    uint8_t key[SN_KEY_SIZE] = {1};
    program gone = program_at(0);
    sn_peer surplus;
    sn_err err;
    close(gone.listen_fd);
    listener_begin();
    for (int i = 0; i < DIALLED_MAX; i++) {
        memcpy(key, &i, sizeof i);
        peers[i] = dial_program(&gone, NULL, key);
        cr_assert(!i || peers[i] != peers[i - 1]);
    }
    cr_expect_eq(dial_program(&gone, NULL, key), peers[DIALLED_MAX - 1], "one that is dialled is dialled again");
    cr_expect_eq(sn_listener_dial(l, gone.address, NULL, identity.curve_key, &surplus, &err), SN_RETRY);
    for (int i = 0; i < DIALLED_MAX; i++) sn_listener_hang_up(l, peers[i]);
    UNTIL(!l->n_dialled);
    cr_expect_eq(next_outage(), SN_OUTAGE_NONE);
    dial_program(&gone, NULL, key);
    sn_listener_free(&l, 0);
}
