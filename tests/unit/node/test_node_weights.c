/* What a node gives of its model's files, to whom, and how fast (node/protocol/weights.c). */
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { CHUNK = SN_WEIGHTS_SIZE_MAX };

static const sn_hash manifest = {{7}};

static sn_msg *weights_message(uint64_t file, uint64_t from, uint64_t bytes) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_WEIGHTS, 0, &msg, &err));
    memcpy(msg->weights.manifest, manifest.bytes, SN_KEY_SIZE);
    msg->weights.file = file;
    msg->weights.from = from;
    msg->weights.bytes = bytes;
    return msg;
}

static void begin(protocol_fixture *b) {
    protocol_fixture_begin(b);
    sn_protocol_share(b->protocol, &manifest, T0, b->unix_ms);
}

/* Ticks until the protocol wants nothing before `until_us`; returns replies with bytes that arrived, -1 for an error.
 */
static int count_replies(protocol_fixture *b, node_client *client, int64_t *now_us, int64_t until_us) {
    int n = 0;
    while (*now_us < until_us) {
        sn_event event;
        sn_protocol_tick(b->protocol, *now_us, b->unix_ms);
        REQUIRE(sn_transport_recv(client->transport, 0, &event, &err));
        if (event.msg && event.msg->kind == SN_MSG_WEIGHTS_REPLY) n++;
        sn_msg_free(&event.msg);
        *now_us += 10000;
    }
    return n;
}

static void ask(protocol_fixture *b, node_client *client, uint64_t from, int64_t now_us) {
    sn_msg *msg = weights_message(1, from, CHUNK);
    node_client_send(client, &msg);
    protocol_fixture_read(b, now_us);
}

/* Replies with bytes to a client that always has as many requests open as it may, and to no other. */
static int take_for(protocol_fixture *b, int64_t *now_us, int64_t us, bool steps) {
    int n = 0;
    for (int64_t until_us = *now_us + us; *now_us < until_us;) {
        for (int i = 0; i < 10; i++) ask(b, &b->client, 0, *now_us);
        if (steps) { /* of a session that is not there: what counts is that steps arrive */
            sn_msg *msg = NULL;
            REQUIRE(sn_msg_new(SN_MSG_STEP, 0, &msg, &err));
            float zero = 0, *data;
            REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, 1}, (void **)&data, &err));
            *data = zero;
            node_client_send(&b->client, &msg);
            protocol_fixture_read(b, *now_us);
        }
        n += count_replies(b, &b->client, now_us, *now_us + SECOND / 10);
    }
    return n;
}

Test(node_weights, bytes_come_as_they_are_in_the_file) {
    protocol_fixture b;
    begin(&b);
    sn_msg *msg = weights_message(1, 12345, 40000);
    uint64_t request = node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    sn_protocol_tick(b.protocol, T0, b.unix_ms);
    sn_msg *reply = node_client_receive(&b.client, request, 100);
    cr_assert(reply && reply->kind == SN_MSG_WEIGHTS_REPLY);
    cr_expect_eq(reply->weights_reply.size, SHARED_FILE_BYTES);
    size_t at = 12345;
    for (size_t i = 0; i < reply->weights_reply.n_bytes; i++)
        for (size_t k = 0; k < reply->weights_reply.bytes[i].len; k++, at++)
            cr_assert_eq(reply->weights_reply.bytes[i].data[k], (uint8_t)(at / 1000));
    cr_expect_eq(at, 12345 + 40000);
    sn_msg_free(&reply);
    protocol_fixture_end(&b);
}

Test(node_weights, the_rate_is_bounded_and_steps_leave_a_quarter_of_it) {
    protocol_fixture b;
    int64_t now_us = T0;
    begin(&b);
    take_for(&b, &now_us, 2 * SECOND, false); /* what may be sent at once is spent */
    int alone = take_for(&b, &now_us, 16 * SECOND, false);
    take_for(&b, &now_us, 2 * SECOND, true);
    int beside = take_for(&b, &now_us, 16 * SECOND, true);
    int per_s = SHARED_BYTES_PER_S / CHUNK;
    cr_expect(alone >= 15 * per_s && alone <= 17 * per_s, "%d messages in 16 s", alone);
    cr_expect(beside >= 3 * per_s && beside <= 5 * per_s, "%d messages in 16 s beside steps", beside);
    protocol_fixture_end(&b);
}

/* -- machines of the own network */

static const char *from_host; /* of all peers */
static bool peer_host(sn_transport *t, sn_peer peer, char host[SN_ADDRESS_MAX + 1]) {
    (void)t, (void)peer;
    if (from_host) snprintf(host, SN_ADDRESS_MAX + 1, "%s", from_host);
    return from_host != NULL;
}

/* Peers come from the host; they may have 16 times the rate if that is near. */
static void begin_near(protocol_fixture *b, sn_transport_ops *ops, const char *host) {
    begin(b);
    *ops = *b->transport->ops;
    ops->peer_host = peer_host;
    b->transport->ops = ops;
    from_host = host;
}

/* Messages in 8 s, without and beside steps. */
static void take_from(const char *host, int *alone, int *beside) {
    protocol_fixture b;
    sn_transport_ops ops;
    int64_t now_us = T0;
    begin_near(&b, &ops, host);
    take_for(&b, &now_us, 2 * SECOND, false);
    *alone = take_for(&b, &now_us, 8 * SECOND, false);
    take_for(&b, &now_us, 2 * SECOND, true);
    *beside = take_for(&b, &now_us, 8 * SECOND, true);
    protocol_fixture_end(&b);
}

Test(node_weights, machines_of_the_own_network_get_more_and_less_beside_steps) {
    int alone, beside, per_s = SHARED_BYTES_PER_S / CHUNK;
    take_from("127.0.0.1", &alone, &beside);
    cr_expect(alone > 8 * 8 * per_s, "%d messages in 8 s", alone);
    cr_expect(beside <= 8 * per_s, "%d messages in 8 s beside steps", beside);
}

Test(node_weights, strangers_get_no_more_where_the_own_network_does) {
    static const char *const hosts[] = {"198.51.100.7", NULL}; /* NULL: over a relay */
    for (int i = 0; i < 2; i++) {
        int alone, beside, per_s = SHARED_BYTES_PER_S / CHUNK;
        take_from(hosts[i], &alone, &beside);
        cr_expect(alone >= 7 * per_s && alone <= 9 * per_s, "%d messages in 8 s", alone);
        cr_expect_leq(beside, 3 * per_s, "%d messages in 8 s beside steps", beside);
    }
}

Test(node_weights, a_machine_of_the_own_network_does_not_wait_for_strangers) {
    protocol_fixture b;
    sn_transport_ops ops;
    int64_t now_us = T0;
    begin_near(&b, &ops, "198.51.100.7");
    take_for(&b, &now_us, 2 * SECOND, false);
    for (int i = 0; i < 10; i++) ask(&b, &b.client, 0, now_us);
    node_client other = protocol_fixture_client(&b);
    from_host = "127.0.0.1";
    ask(&b, &other, 0, now_us);
    now_us += 20000; /* in which its first bytes may be sent */
    cr_expect_eq(count_replies(&b, &other, &now_us, now_us + 20000), 1);
    sn_transport_free(&other.transport);
    protocol_fixture_end(&b);
}

Test(node_weights, a_peer_has_eight_places_and_others_get_theirs) {
    protocol_fixture b;
    int64_t now_us = T0;
    begin(&b);
    node_client other = protocol_fixture_client(&b);
    take_for(&b, &now_us, 2 * SECOND, false);
    for (int i = 0; i < 200; i++) ask(&b, &b.client, 0, now_us);
    ask(&b, &other, 0, now_us);
    int64_t began_us = now_us;
    while (!count_replies(&b, &other, &now_us, now_us + SECOND / 10) && now_us - began_us < 60 * SECOND) {}
    cr_expect_leq(now_us - began_us, 3 * SECOND, "one of 200 requests of another peer came first");
    sn_transport_free(&other.transport);
    protocol_fixture_end(&b);
}

Test(node_weights, requests_of_all_peers_that_wait_are_bounded) {
    enum { EACH = 8, PEERS = 256 / EACH };
    protocol_fixture b;
    node_client peers[PEERS + 1];
    begin(&b);
    for (int i = 0; i <= PEERS; i++) {
        peers[i] = protocol_fixture_client(&b);
        for (int k = 0; k < (i < PEERS ? EACH : 1); k++) ask(&b, &peers[i], 0, T0);
        sn_msg *answer = node_client_receive(&peers[i], 0, i < PEERS ? 1 : 100);
        if (i < PEERS)
            cr_expect_null(answer, "peer %d finds no place", i);
        else
            cr_expect(is_refusal(answer, SN_RETRY, "gives weights to many"));
    }
    for (int i = 0; i <= PEERS; i++) sn_transport_free(&peers[i].transport);
    protocol_fixture_end(&b);
}

Test(node_weights, one_request_is_served_between_two_rounds) {
    protocol_fixture b;
    begin(&b);
    for (int i = 0; i < 8; i++) ask(&b, &b.client, 0, T0);
    cr_expect_leq(sn_protocol_tick(b.protocol, T0, b.unix_ms), T0, "the others are served at once after it");
    sn_event event;
    int n = 0;
    for (;; n++) {
        REQUIRE(sn_transport_recv(b.client.transport, 0, &event, &err));
        if (!event.msg) break;
        sn_msg_free(&event.msg);
    }
    cr_expect_eq(n, 1);
    protocol_fixture_end(&b);
}

Test(node_weights, bytes_that_are_not_in_memory_come_later) {
    protocol_fixture b;
    int64_t now_us = T0;
    begin(&b);
    b.not_in_memory = 5;
    ask(&b, &b.client, 0, now_us);
    sn_protocol_tick(b.protocol, now_us, b.unix_ms);
    cr_expect_eq(b.not_in_memory, 4, "the node waited for the disk");
    cr_expect_eq(count_replies(&b, &b.client, &now_us, now_us + SECOND), 1);
    protocol_fixture_end(&b);
}

static sn_msg *request_weights(protocol_fixture *b, sn_msg *msg) {
    uint64_t request = node_client_send(&b->client, &msg);
    protocol_fixture_read(b, T0);
    sn_protocol_tick(b->protocol, T0, b->unix_ms);
    return node_client_receive(&b->client, request, 100);
}

Test(node_weights, what_is_not_shared_is_refused) {
    protocol_fixture b;
    protocol_fixture_begin(&b);
    cr_expect(is_refusal(request_weights(&b, weights_message(1, 0, 10)), SN_REFUSED, "shares no files"));
    sn_protocol_share(b.protocol, &manifest, T0, b.unix_ms);
    cr_expect(is_refusal(request_weights(&b, weights_message(1, (uint64_t)(INT64_MAX >> 8) - 5, 10)), SN_REFUSED,
                         "not here"));
    cr_expect(is_refusal(request_weights(&b, weights_message(2, 0, 10)), SN_REFUSED, "not here"));
    sn_msg *msg = weights_message(1, 0, 10);
    msg->weights.manifest[0]++;
    cr_expect(is_refusal(request_weights(&b, msg), SN_REFUSED, "shares no files"));
    protocol_fixture_end(&b);
}
