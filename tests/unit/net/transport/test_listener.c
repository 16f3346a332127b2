/* What strangers can occupy of a listener: memory, time, descriptors. */
#include "tests/unit/net/transport/listener_fixture.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* -- memory */

Test(listener, bytes_of_all_connections_together_are_bounded) {
    listener_begin();
    l->held_max = 256 * KIB;
    int gone;
    client waiting[4], greedy = named_client();
    for (int i = 0; i < 4; i++) { /* half of a message, which waits for the rest */
        waiting[i] = named_client();
        send_part(&waiting[i], 40 * KIB, 20 * KIB);
    }
    cr_expect_eq(receive_all(&gone), 5);
    UNTIL(l->partial >= (size_t)4 * 20 * KIB);
    send_part(&greedy, 1024 * KIB, 300 * KIB); /* far below the limit of one connection */
    expect_closed(&greedy);
    cr_expect_leq(l->partial, l->held_max);
    cr_expect_eq(l->n_open, 4, "those that hold less stay");
    receive_all(&gone);
    cr_expect_eq(gone, 1);
    sn_listener_free(&l, 0);
}

/* A host of which connections are counted in the same place as those of 127.0.0.1. */
static const char *host_beside(void) {
    static char host[16];
    sn_standing own = {0}, other = {0};
    const uint8_t first[] = {127, 0, 0, 1};
    memcpy(own.prefix, first, sizeof first);
    for (unsigned i = 2; i < 1 << 24; i++) {
        const uint8_t at[] = {127, (uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
        memcpy(other.prefix, at, sizeof at);
        if (i % 256 == 0 || sn_admission_bucket(&own, sn_now_us()) != sn_admission_bucket(&other, sn_now_us()))
            continue;
        snprintf(host, sizeof host, "%d.%d.%d.%d", at[0], at[1], at[2], at[3]);
        return host;
    }
    cr_assert(false, "no address shares a place");
    return NULL;
}

/* Each of many connections holds less than one message of another address, and all of them most of the memory: as much
 * of them ends as is too much. */
static void expect_large_message(const char *host, int many, size_t each) {
    enum { LARGE = 100 * KIB };
    listener_begin();
    l->held_max = (size_t)many * each + LARGE / 2;
    int gone;
    client honest = named_client_at(host);
    for (int i = 0; i < many; i++) {
        client one = named_client();
        send_part(&one, 40 * KIB, each / 2 + KIB);
    }
    cr_expect_eq(receive_all(&gone), many + 1);
    UNTIL(l->partial >= (size_t)many * each); /* memory, which grows by doubling */
    send_part(&honest, LARGE, SIZE_MAX);
    UNTIL(n_waiting() == 1);
    cr_expect_lt(l->n_open, (size_t)many + 1, "the address that holds most loses nothing");
    cr_expect_leq(l->partial + l->received_bytes, l->held_max);
    cr_expect_eq(receive_all(&gone), 1);
    expect_open(&honest);
    sn_listener_free(&l, 0);
}

Test(listener, an_address_of_many_connections_does_not_end_the_large_message_of_another) {
    expect_large_message("127.0.0.2", 6, 32 * KIB);
}

Test(listener, an_address_of_very_many_connections_loses_as_many_as_is_too_much) {
    expect_large_message("127.0.0.2", 30, 8 * KIB);
}

Test(listener, addresses_that_are_counted_in_one_place_are_told_apart) {
    virtual_clock_begin_still(); /* the place is another one at another time */
    expect_large_message(host_beside(), 6, 32 * KIB);
}

/* Messages that the owner has not read count, too, and go with the connection that ended. */
Test(listener, messages_that_wait_for_the_owner_are_bounded_and_end_with_their_connection) {
    listener_begin();
    l->held_max = 256 * KIB;
    int gone;
    client honest = named_client(), greedy = named_client();
    cr_assert_eq(receive_all(&gone), 2);
    send_part(&honest, 10 * KIB, SIZE_MAX);
    UNTIL(n_waiting() == 1);
    for (int i = 0; i < 10; i++) send_part(&greedy, 50 * KIB, SIZE_MAX);
    expect_closed(&greedy);
    UNTIL(n_waiting() == 1);
    for (int i = 0; i < 15; i++) send_part(&honest, 10 * KIB, SIZE_MAX);
    UNTIL(n_waiting() == 16);
    cr_expect_eq(receive_all(&gone), 16);
    cr_expect_eq(gone, 1);
    expect_open(&honest);
    sn_listener_free(&l, 0);
}

/* The owner takes these messages later: what such connections have left makes no room at the cost of others. */
Test(listener, what_ended_connections_have_left_ends_no_others) {
    listener_begin();
    l->held_max = 256 * KIB;
    int gone;
    client honest = named_client(), ended[4];
    for (int i = 0; i < 4; i++) ended[i] = named_client_at("127.0.0.2");
    cr_assert_eq(receive_all(&gone), 5);
    for (int i = 0; i < 4; i++) {
        send_part(&ended[i], 60 * KIB, SIZE_MAX);
        UNTIL(n_waiting() == (size_t)i + 1);
    }
    for (int i = 0; i < 4; i++) close(ended[i].fd);
    UNTIL(l->n_open == 1);
    send_part(&honest, 30 * KIB, SIZE_MAX);
    cr_expect_leq(l->partial + l->received_bytes, l->held_max);
    expect_open(&honest);
    cr_expect_eq(receive_all(&gone), 4, "one of the messages made room");
    cr_expect_eq(gone, 4);
    sn_listener_free(&l, 0);
}

/* 64 KiB of messages of one byte take four times as much. */
Test(listener, small_messages_that_wait_count_as_the_memory_that_they_take) {
    enum { MESSAGES = 1700 };
    listener_begin();
    client c = named_client();
    sn_buf bytes;
    sn_buf_init(&bytes, 1 << 20);
    for (int i = 0; i < MESSAGES; i++) curve_client_frame(&c.curve, 0, "", 1, &bytes);
    cr_assert_lt(bytes.len, (size_t)READ_SIZE);
    for (size_t sent = 0; sent < bytes.len;) { /* without a turn: one read takes all */
        ssize_t n = send(c.fd, bytes.data + sent, bytes.len - sent, MSG_NOSIGNAL);
        cr_assert_gt(n, 0);
        sent += (size_t)n;
    }
    UNTIL(n_waiting() > 64);
    cr_expect_geq(l->received_bytes, n_waiting() * sizeof(incoming));
    sn_buf_fini(&bytes);
    sn_listener_free(&l, 0);
}

/* The peer of the next message. */
static sn_peer receive_peer(void) {
    sn_inbound in;
    sn_listener_receive(l, &in);
    cr_assert(in.peer && !in.gone);
    sn_zmtp_message_free(&in.message);
    return in.peer;
}

static void send_reply(sn_peer peer, size_t bytes) {
    sn_msg *msg = NULL;
    void *data;
    sn_buf map;
    sn_buf_init(&map, 16);
    REQUIRE(sn_buf_append(&map, "map", 3, &err));
    REQUIRE(sn_msg_new(SN_MSG_STEP_REPLY, 1, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){bytes / sizeof(float)}, &data, &err));
    memset(data, 0, bytes);
    REQUIRE(sn_listener_send(l, peer, &map, &msg, &err));
    sn_buf_fini(&map);
}

/* Replies that a peer does not read wait here: the peer for which most waits ends. */
Test(listener, replies_that_are_not_read_are_bounded_over_all_connections) {
    enum { PEERS = 4 };
    listener_begin();
    l->held_max = PEERS * 1024 * KIB;
    client clients[PEERS];
    sn_peer peers[PEERS];
    for (int i = 0; i < PEERS; i++) {
        clients[i] = named_client();
        peers[i] = receive_peer();
    }
    for (int i = 0; i < PEERS; i++) send_reply(peers[i], (i == 1 ? 1050 : 1000) * KIB);
    cr_expect_gt(l->sent_bytes, (size_t)PEERS * 1000 * KIB);
    send_reply(peers[2], 48 * KIB);
    cr_expect_leq(l->sent_bytes, l->held_max);
    expect_closed(&clients[1]);
    cr_expect_eq(l->n_open, PEERS - 1, "those that leave less unread stay");
    sn_listener_free(&l, 0);
}

/* Each of many connections leaves less unread than one reply of another address has. */
static void expect_large_reply(size_t many, size_t each) {
    enum { LARGE = 1000 * KIB };
    listener_begin();
    l->held_max = 4096 * KIB;
    client honest = named_client_at("127.0.0.2");
    sn_peer of_honest = receive_peer(), peers[30];
    for (size_t i = 0; i < many; i++) {
        named_client();
        peers[i] = receive_peer();
    }
    for (size_t i = 0; i < many; i++) send_reply(peers[i], each);
    size_t too_much = l->sent_bytes + LARGE - l->held_max, ends = (too_much + each - 1) / each;
    cr_assert_lt(too_much, (size_t)LARGE);
    send_reply(of_honest, LARGE);
    cr_expect_leq(l->sent_bytes, l->held_max);
    uint8_t *bytes = calloc(1, LARGE);
    cr_expect_eq(read_bytes(&honest, bytes, LARGE), LARGE);
    UNTIL(l->n_open == 1 + many - ends);
    free(bytes);
    sn_listener_free(&l, 0);
}

Test(listener, an_address_that_leaves_many_replies_unread_does_not_end_the_large_reply_of_another) {
    expect_large_reply(5, 700 * KIB);
}

Test(listener, of_an_address_that_leaves_very_many_replies_unread_as_many_end_as_is_too_much) {
    expect_large_reply(30, 120 * KIB);
}

/* What the socket has taken does not wait any more. */
Test(listener, replies_that_were_sent_do_not_count) {
    listener_begin();
    client c = named_client();
    sn_peer peer = receive_peer();
    for (int i = 0; i < 3; i++) {
        send_reply(peer, 16 * KIB);
        UNTIL(!l->sent_bytes);
    }
    cr_expect_eq(l->n_open, 1);
    close(c.fd);
    sn_listener_free(&l, 0);
}

/* The first connection. */
static connection *first_connection(void) {
    for (size_t i = 0; i < l->n_slots; i++)
        if (l->slots[i]) return l->slots[i];
    return NULL;
}

Test(listener, a_connection_waits_behind_many_messages_or_many_bytes) {
    enum { LARGE = 1024 * KIB };
    listener_begin();
    client c = named_client();
    int gone;
    cr_assert_eq(receive_all(&gone), 1);
    for (size_t i = 1; i < RECEIVED_MAX; i++) send_part(&c, 1, SIZE_MAX);
    UNTIL(n_waiting() == RECEIVED_MAX - 1);
    cr_expect(!first_connection()->full);
    send_part(&c, 1, SIZE_MAX);
    UNTIL(n_waiting() == RECEIVED_MAX);
    cr_expect(first_connection()->full, "messages do not count");
    cr_assert_eq(receive_all(&gone), RECEIVED_MAX);
    for (size_t i = 1; i < RECEIVED_BYTES_MAX / LARGE; i++) send_part(&c, LARGE, SIZE_MAX);
    UNTIL(n_waiting() == RECEIVED_BYTES_MAX / LARGE - 1);
    cr_expect(!first_connection()->full);
    send_part(&c, LARGE, SIZE_MAX);
    UNTIL(n_waiting() == RECEIVED_BYTES_MAX / LARGE);
    cr_expect(first_connection()->full, "bytes do not count");
    sn_listener_free(&l, 0);
}

static sn_status try_reply(sn_peer peer, size_t bytes) {
    sn_msg *msg = NULL;
    void *data;
    sn_err why;
    sn_buf map;
    sn_buf_init(&map, 16);
    REQUIRE(sn_buf_append(&map, "map", 3, &err));
    REQUIRE(sn_msg_new(SN_MSG_STEP_REPLY, 1, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){bytes / sizeof(float)}, &data, &err));
    memset(data, 0, bytes);
    sn_status status = sn_listener_send(l, peer, &map, &msg, &why);
    sn_msg_free(&msg);
    sn_buf_fini(&map);
    return status;
}

Test(listener, many_replies_or_many_bytes_of_replies_wait_for_a_connection) {
    enum { LARGE = 16 * 1024 * KIB };
    listener_begin();
    client many = named_client();
    sn_peer peer = receive_peer();
    for (int i = 0; i < SENT_MAX; i++) cr_assert_eq(try_reply(peer, 4), SN_OK);
    cr_expect_eq(try_reply(peer, 4), SN_RETRY, "replies do not count");
    client large = named_client();
    peer = receive_peer();
    for (int i = 0; i < SENT_BYTES_MAX / LARGE; i++) cr_assert_eq(try_reply(peer, LARGE), SN_OK);
    cr_expect_eq(try_reply(peer, 4), SN_RETRY, "bytes do not count");
    close(many.fd);
    close(large.fd);
    sn_listener_free(&l, 0);
}

/* What was sealed for a socket that takes no more counts as well: at most one reply of each connection is. */
Test(listener, a_reply_that_its_socket_does_not_take_counts_as_unread) {
    enum { PEERS = 4, SOCKET_BYTES = 32 * KIB };
    listener_begin();
    l->held_max = (PEERS + 1) * 1024 * KIB;
    client clients[PEERS];
    sn_peer peers[PEERS];
    for (int i = 0; i < PEERS; i++) {
        clients[i] = named_client();
        peers[i] = receive_peer();
        cr_assert(!setsockopt(clients[i].fd, SOL_SOCKET, SO_RCVBUF, &(int){SOCKET_BYTES}, sizeof(int)));
    }
    for (size_t i = 0; i < l->n_slots; i++)
        if (l->slots[i]) setsockopt(l->slots[i]->fd, SOL_SOCKET, SO_SNDBUF, &(int){SOCKET_BYTES}, sizeof(int));
    for (int i = 0; i < PEERS; i++) send_reply(peers[i], 1000 * KIB);
    for (int i = 0; i < 3; i++) listener_turn(l, 5);
    for (size_t i = 0; i < l->n_slots; i++) cr_assert(!l->slots[i] || !l->slots[i]->sent, "a reply is not sealed");
    cr_expect_gt(l->sent_bytes, (size_t)PEERS * 1000 * KIB);
    send_reply(peers[2], 1040 * KIB);
    send_reply(peers[1], 100 * KIB);
    cr_expect_leq(l->sent_bytes, l->held_max);
    expect_closed(&clients[2]);
    cr_expect_eq(l->n_open, PEERS - 1, "those that leave less unread stay");
    size_t whole = l->sent_bytes;
    cr_expect_gt(whole, (size_t)(PEERS - 1) * 1000 * KIB);
    uint8_t *bytes = calloc(1, 1100 * KIB);
    cr_assert_eq(read_bytes(&clients[1], bytes, 1100 * KIB), 1100 * KIB);
    UNTIL(l->sent_bytes < whole - 1000 * KIB); /* what was read counts no more */
    free(bytes);
    sn_listener_free(&l, 0);
}

/* Sealing takes the thread that all connections share: large replies are sealed in pieces, the shortest and the oldest
 * by turns, and small ones go between them. */
Test(listener, large_replies_leave_time_for_others_and_take_turns) {
    enum { PEERS = 5, MIB = 1024 * KIB, LARGE = 32 * MIB, SHORTER = 4 * MIB, SMALL = 16 * KIB };
    listener_begin();
    client clients[PEERS];
    sn_peer peers[PEERS];
    uint8_t *bytes = calloc(1, LARGE);
    for (int i = 0; i < PEERS; i++) {
        clients[i] = named_client();
        peers[i] = receive_peer();
    }
    send_reply(peers[0], LARGE);
    listener_turn(l, 5);
    const sn_zmtp *large = &first_connection()->zmtp;
    for (int i = 1; i < PEERS - 1; i++) send_reply(peers[i], SHORTER);
    listener_turn(l, 5);
    cr_assert_eq(l->n_sealing, PEERS - 1, "they are sealed at once");
    while (l->n_sealing == PEERS - 1) listener_turn(l, 5);
    cr_expect_gt(sn_zmtp_unsealed(large), LARGE - 7 * MIB, "a shorter one is sealed behind it");
    cr_expect_lt(sn_zmtp_unsealed(large), LARGE - 3 * MIB, "the oldest has no turn");
    send_reply(peers[PEERS - 1], SMALL);
    cr_expect_gt(read_bytes(&clients[PEERS - 1], bytes, SMALL), SMALL - 1);
    cr_expect_gt(sn_zmtp_unsealed(large), 0, "a small reply waits for a large one");
    cr_expect_geq(l->sent_bytes, LARGE + 2 * SHORTER, "what is sealed does not count");
    close(clients[1].fd);
    cr_expect_gt(read_bytes(&clients[0], bytes, LARGE), LARGE - 1);
    UNTIL(!l->n_sealing && l->n_open == PEERS - 1);
    free(bytes);
    sn_listener_free(&l, 0);
}

/* -- messages that bring no work */

/* Takes what may be taken now, and charges for it as a node does for questions. */
static int receive_questions(void) {
    sn_inbound in;
    int n = 0;
    for (sn_listener_receive(l, &in); in.peer; sn_listener_receive(l, &in)) {
        sn_zmtp_message_free(&in.message);
        if (!in.gone) sn_listener_charge(l, in.peer);
        n += !in.gone;
    }
    return n;
}

/* Sends until the connection has used up what it may ask at once. */
static void ask_too_much(client *c) {
    for (int i = 0; i < SN_CHARGED_BURST; i++) {
        send_part(c, 1, SIZE_MAX);
        if (i % 8 < 7) continue;
        UNTIL(n_waiting() == 8);
        cr_assert_eq(receive_questions(), 8);
    }
    send_part(c, 1, SIZE_MAX);
    UNTIL(n_waiting() == 1);
}

Test(listener, questions_of_a_connection_have_a_rate_and_others_do_not_wait) {
    listener_begin();
    client honest = named_client(), greedy = named_client();
    cr_assert_eq(receive_questions(), 2);
    ask_too_much(&greedy);
    cr_expect_eq(receive_questions(), 0);
    cr_expect_eq(sn_listener_held_until(l), sn_now_us() + SECOND / SN_CHARGED_PER_S);
    send_part(&honest, 1, SIZE_MAX);
    UNTIL(n_waiting() == 2);
    cr_expect_eq(receive_questions(), 1, "the honest client waits for the other one");
    virtual_clock_advance(SECOND / SN_CHARGED_PER_S);
    cr_expect_eq(receive_questions(), 1, "the rate allows one more");
    cr_expect_eq(sn_listener_held_until(l), INT64_MAX, "nothing waits");
    for (int i = 0; i < 10; i++) send_part(&greedy, 1, SIZE_MAX);
    UNTIL(n_waiting() == 10);
    pass(1);
    cr_expect_eq(receive_questions(), 10);
    sn_listener_free(&l, 0);
}

Test(listener, a_connection_that_must_wait_and_ends_loses_what_it_had_sent) {
    listener_begin();
    int gone = 0;
    client greedy = named_client();
    cr_assert_eq(receive_questions(), 1);
    ask_too_much(&greedy);
    send_part(&greedy, 1, SIZE_MAX);
    UNTIL(n_waiting() == 2);
    cr_expect_eq(receive_questions(), 0);
    close(greedy.fd);
    UNTIL(!l->n_open);
    virtual_clock_advance(SECOND / SN_CHARGED_PER_S);
    cr_expect_eq(receive_all(&gone), 0);
    cr_expect_eq(gone, 1);
    sn_listener_free(&l, 0);
}

Test(listener, while_many_connections_ask_each_has_a_lower_rate) {
    listener_begin();
    client first = named_client(), second = named_client();
    cr_assert_eq(receive_questions(), 2);
    l->paid_us = sn_now_us() + (int64_t)SECOND / SN_ALL_CHARGED_PER_S * SN_ALL_CHARGED_BURST; /* by others */
    for (int i = 0; i < SN_CROWDED_BURST; i++) {
        send_part(&first, 1, SIZE_MAX);
        UNTIL(n_waiting() == 1);
        cr_assert_eq(receive_questions(), 1);
    }
    send_part(&first, 1, SIZE_MAX);
    send_part(&second, 1, SIZE_MAX);
    UNTIL(n_waiting() == 2);
    cr_expect_eq(receive_questions(), 1, "one that asks little does not wait");
    virtual_clock_advance(SECOND / SN_CROWDED_PER_S);
    cr_expect_eq(receive_questions(), 1);
    sn_listener_free(&l, 0);
}

/* What was counted at the lower rate is no debt at the usual one. */
Test(listener, the_lower_rate_ends_with_the_crowd) {
    listener_begin();
    client c = named_client();
    cr_assert_eq(receive_questions(), 1);
    l->paid_us = sn_now_us() + (int64_t)SECOND / SN_ALL_CHARGED_PER_S * SN_ALL_CHARGED_BURST; /* by others */
    for (int i = 0; i < SN_CROWDED_BURST; i++) {
        send_part(&c, 1, SIZE_MAX);
        UNTIL(n_waiting() == 1);
        cr_assert_eq(receive_questions(), 1);
    }
    l->paid_us = 0; /* the others are gone */
    virtual_clock_advance(SECOND / SN_CROWDED_PER_S);
    for (int i = 0; i < 8; i++) {
        send_part(&c, 1, SIZE_MAX);
        UNTIL(n_waiting() == 1);
        cr_expect_eq(receive_questions(), 1, "message %d has to wait", i);
        virtual_clock_advance(SECOND / SN_CHARGED_PER_S);
    }
    sn_listener_free(&l, 0);
}

/* -- time */

Test(listener, a_handshake_has_five_seconds_however_slowly_its_bytes_come) {
    static const uint8_t greeting[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'C', 'U', 'R', 'V', 'E'};
    enum { N = sizeof greeting };
    listener_begin();
    client stalling[N], quick = named_client();
    for (size_t i = 0; i < N; i++) {
        stalling[i] = client_new();
        send_bytes(&stalling[i], greeting, i);
    }
    UNTIL(n_heard() == 1 + N);
    for (size_t s = 0; s < 5; s++) { /* some send a byte each second */
        pass(1);
        for (size_t i = 0; i < N - 5; i += 2) send_bytes(&stalling[i], greeting + i + s, 1);
        UNTIL(n_heard() == (N - 4) / 2);
    }
    cr_expect_eq(l->n_open, 1 + N, "some had less than their time");
    pass(1);
    for (size_t i = 0; i < N; i++) expect_closed(&stalling[i]);
    expect_open(&quick);
    sn_listener_free(&l, 0);
}

Test(listener, the_first_message_has_ten_seconds_when_half_of_the_places_are_taken) {
    listener_begin();
    l->capacity = 8;
    client named = named_client(), silent = client_new(), others[3];
    cr_assert(shake_hands(&silent));
    for (int s = 0; s < 3; s++) {
        pass(4);
        expect_open(&named);
        expect_open(&silent); /* there is room for it */
    }
    for (int i = 0; i < 3; i++) others[i] = named_client();
    pass(1);
    expect_closed(&silent);
    for (int i = 0; i < 3; i++) expect_open(&others[i]);
    expect_open(&named);
    sn_listener_free(&l, 0);
}

Test(listener, a_peer_that_answers_nothing_for_fifteen_seconds_is_gone) {
    listener_begin();
    int gone;
    client lives = named_client(), dead = named_client();
    cr_assert_eq(receive_all(&gone), 2);
    for (int i = 0; i < 2; i++) {
        uint8_t ping[2 + SN_CURVE_OVERHEAD + 7 + 16];
        pass(6);
        cr_assert_geq(read_bytes(&lives, ping, 2), 2, "the peers are not asked whether they live");
        while (recv(lives.fd, ping, sizeof ping, MSG_DONTWAIT) > 0) {}
        send_command(&lives, "\4PONG", 5);
        UNTIL(n_heard() == 1);
    }
    pass(3);
    cr_expect_eq(l->n_open, 2, "it had less than its time");
    pass(1);
    expect_closed(&dead);
    expect_open(&lives);
    receive_all(&gone);
    cr_expect_eq(gone, 1, "the owner hears of it");
    sn_listener_free(&l, 0);
}

/* Bytes that the client has been sent meanwhile. */
static size_t bytes_of(const client *c) {
    static uint8_t bytes[256 * KIB];
    size_t all = 0;
    listener_turn(l, 0);
    for (ssize_t n; (n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) all += (size_t)n;
    return all;
}

/* Each gets a few frames behind a large reply, and none without: a stranger who asks for little gets nothing. */
Test(listener, the_window_of_a_connection_stays_open_for_a_while_behind_a_large_reply) {
    enum { FRAME = 2 + SN_CURVE_OVERHEAD + 5, EVERY = 150000, SECONDS = 5 };
    listener_begin();
    client c = named_client();
    sn_peer peer = receive_peer();
    uint8_t bytes[20 * KIB];
    size_t kept = 0, later = 0;
    send_reply(peer, 11 * KIB);
    cr_assert_eq(read_bytes(&c, bytes, 11 * KIB), 11 * KIB);
    bytes_of(&c);
    virtual_clock_advance(EVERY);
    cr_expect_eq(bytes_of(&c), 0, "the reply was small");
    send_reply(peer, 16 * KIB);
    cr_assert_eq(read_bytes(&c, bytes, 16 * KIB), 16 * KIB);
    bytes_of(&c);
    for (int i = 0; i * EVERY < SECONDS * SECOND; i++) {
        virtual_clock_advance(EVERY);
        kept += bytes_of(&c);
    }
    cr_expect_geq(kept, (SECONDS * SECOND / EVERY - 2) * FRAME);
    cr_expect_leq(kept, (SECONDS * SECOND / EVERY + 3) * FRAME, "and a question whether it lives");
    for (int i = 0; i < 20; i++) {
        virtual_clock_advance(EVERY);
        later += bytes_of(&c);
    }
    cr_expect_eq(later, 0, "%zu bytes came when no reply was large any more", later);
    cr_expect_eq(l->warm_us, INT64_MAX);
    close(c.fd);
    sn_listener_free(&l, 0);
}

/* A machine that stops for a minute, or a program under a debugger, loses no connection. */
Test(listener, time_in_which_the_listener_did_not_run_is_no_silence) {
    listener_begin();
    client peer = named_client();
    virtual_clock_advance(60 * SECOND);
    listener_turn(l, 0);
    cr_expect_eq(l->n_open, 1);
    pass(16);
    expect_closed(&peer);
    sn_listener_free(&l, 0);
}

/* -- descriptors */

/* From now on the process can open no descriptor; returns the limit before. */
static struct rlimit take_all_descriptors(void) {
    struct rlimit before, limit;
    getrlimit(RLIMIT_NOFILE, &before);
    int free_fd = fcntl(l->listen_fd, F_DUPFD_CLOEXEC, 0);
    close(free_fd);
    limit = (struct rlimit){.rlim_cur = (rlim_t)free_fd, .rlim_max = before.rlim_max};
    cr_assert(!setrlimit(RLIMIT_NOFILE, &limit));
    return before;
}

Test(listener, without_a_descriptor_newcomers_are_told_at_once) {
    listener_begin();
    client busy = named_client(), newcomers[3];
    for (int i = 0; i < 3; i++) newcomers[i].fd = new_socket("127.0.0.1");
    struct rlimit before = take_all_descriptors();
    for (int i = 0; i < 3; i++) {
        dial(newcomers[i].fd);
        expect_closed(&newcomers[i]);
    }
    expect_open(&busy); /* a connection that sends messages keeps its place */
    setrlimit(RLIMIT_NOFILE, &before);
    client late = client_new();
    cr_expect(shake_hands(&late));
    sn_listener_free(&l, 0);
}

Test(listener, without_a_descriptor_a_silent_connection_makes_room) {
    listener_begin();
    client busy = named_client(), silent = client_new(), newcomer = {.fd = new_socket("127.0.0.1")};
    struct rlimit before = take_all_descriptors();
    dial(newcomer.fd);
    cr_expect(shake_hands(&newcomer));
    expect_closed(&silent);
    expect_open(&busy);
    setrlimit(RLIMIT_NOFILE, &before);
    sn_listener_free(&l, 0);
}
