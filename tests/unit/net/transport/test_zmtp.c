/* The listening end of a connection (net/transport/zmtp_private.h) against a client that does what it likes. */
#include "tests/support/curve_client.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <string.h>

typedef struct ends {
    sn_identity identity;
    sn_zmtp z;
    curve_client client;
    sn_buf bytes; /* of the client, not yet sent */
} ends;

static void ends_open(ends *e) {
    REQUIRE(sn_identity_new(&e->identity, &err));
    REQUIRE(sn_zmtp_init(&e->z, &e->identity, NULL, &err));
    curve_client_init(&e->client, &e->identity);
    sn_buf_init(&e->bytes, 64 << 20);
}

static void ends_connect(ends *e) {
    ends_open(e);
    curve_client_connect(&e->client, &e->z);
}

static void ends_close(ends *e) {
    sn_zmtp_fini(&e->z);
    sn_buf_fini(&e->bytes);
}

/* Sends the client's bytes in parts of `part` bytes; returns the last result and the last message. */
static sn_zmtp_result send_bytes(ends *e, size_t part, sn_zmtp_message *message) {
    sn_zmtp_result result = SN_ZMTP_MORE;
    for (size_t at = 0; at < e->bytes.len && result != SN_ZMTP_FAILED; at += part) {
        const uint8_t *data = e->bytes.data + at;
        size_t len = sn_min_size(part, e->bytes.len - at);
        while (len && result != SN_ZMTP_FAILED) {
            sn_zmtp_message got = {0};
            result = sn_zmtp_receive(&e->z, &data, &len, &got);
            if (result != SN_ZMTP_MESSAGE) continue;
            sn_zmtp_message_free(message);
            *message = got;
        }
    }
    e->bytes.len = 0;
    return result;
}

static void expect_failure(ends *e) {
    sn_zmtp_message message = {0};
    cr_expect_eq(send_bytes(e, 4096, &message), SN_ZMTP_FAILED);
    cr_expect_eq(message.n_frames, 0);
    sn_zmtp_message_free(&message);
}

Test(zmtp, reads_messages_however_their_bytes_are_cut) {
    uint8_t map[300], tensor[1000];
    memset(map, 7, sizeof map);
    memset(tensor, 9, sizeof tensor);
    for (size_t part = 1; part < 1500; part += part < 80 ? 1 : 97) {
        ends e;
        ends_connect(&e);
        cr_assert_arr_eq(e.z.curve.peer_key, e.client.identity.curve_key, SN_KEY_SIZE);
        curve_client_frame(&e.client, 1, map, sizeof map, &e.bytes);
        curve_client_frame(&e.client, 2, "\x04PING\0\0ctx", 10, &e.bytes); /* a command may come between frames */
        curve_client_frame(&e.client, 0, tensor, sizeof tensor, &e.bytes);
        sn_zmtp_message message = {0};
        cr_assert_eq(send_bytes(&e, part, &message), SN_ZMTP_MESSAGE);
        cr_assert_eq(message.n_frames, 2);
        cr_assert(message.frames[0].len == sizeof map && !memcmp(message.frames[0].data, map, sizeof map));
        cr_assert(message.frames[1].len == sizeof tensor && !memcmp(message.frames[1].data, tensor, sizeof tensor));
        cr_assert_eq((uintptr_t)message.frames[1].data % 16, 0);
        uint8_t pong[256];
        cr_assert_eq(curve_take_output(&e.z, pong, sizeof pong), 2 + SN_CURVE_OVERHEAD + 8, "PING is not answered");
        sn_zmtp_message_free(&message);
        ends_close(&e);
    }
}

Test(zmtp, frames_beyond_two_are_counted_and_dropped) {
    ends e;
    ends_connect(&e);
    for (int i = 0; i < 50; i++) curve_client_frame(&e.client, i < 49, "x", 1, &e.bytes);
    sn_zmtp_message message = {0};
    cr_assert_eq(send_bytes(&e, 1000, &message), SN_ZMTP_MESSAGE);
    cr_expect_eq(message.n_frames, 50);
    sn_zmtp_message_free(&message);
    ends_close(&e);
}

Test(zmtp, a_changed_or_repeated_frame_ends_the_connection) {
    for (size_t at = 0; at < 2 + 33 + 5; at++) {
        ends e;
        ends_connect(&e);
        curve_client_frame(&e.client, 0, "hello", 5, &e.bytes);
        e.bytes.data[at] ^= at == 1 ? 1 : 0x40; /* the length: one byte less or more */
        if (at == 1) curve_append(&e.bytes, "\0\0\0", 3);
        expect_failure(&e);
        ends_close(&e);
    }
    ends e;
    ends_connect(&e);
    sn_zmtp_message message = {0};
    curve_client_frame(&e.client, 0, "hello", 5, &e.bytes);
    sn_buf once;
    sn_buf_init(&once, 1000);
    curve_append(&once, e.bytes.data, e.bytes.len);
    cr_assert_eq(send_bytes(&e, 1000, &message), SN_ZMTP_MESSAGE);
    sn_zmtp_message_free(&message);
    curve_append(&e.bytes, once.data, once.len);
    expect_failure(&e);
    sn_buf_fini(&once);
    ends_close(&e);
}

Test(zmtp, short_commands_are_harmless) {
    static const char *const commands[] = {"", "\x04", "\x04PING", "\x04PING\0", "\x04PONG", "\xff", "\x09SUBSCRIBE"};
    static const size_t sizes[] = {0, 1, 5, 6, 5, 1, 10};
    ends e;
    ends_connect(&e);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        curve_client_frame(&e.client, 2, commands[i], sizes[i], &e.bytes);
    sn_zmtp_message message = {0};
    cr_expect_eq(send_bytes(&e, 7, &message), SN_ZMTP_MORE);
    const uint8_t *data;
    cr_expect_eq(sn_zmtp_output(&e.z, &data), 0);
    ends_close(&e);
}

Test(zmtp, a_peer_that_asks_and_never_reads_costs_no_memory) {
    enum { PINGS = 1000, WAITS_MAX = 4096 + 256 };
    ends e;
    sn_zmtp_message message = {0};
    const uint8_t *data;
    ends_connect(&e);
    for (int i = 0; i < PINGS; i++) curve_client_frame(&e.client, 2, "\x04PING\0\0context", 14, &e.bytes);
    cr_assert_eq(send_bytes(&e, 4096, &message), SN_ZMTP_MORE);
    cr_expect_gt(sn_zmtp_output(&e.z, &data), 0);
    cr_expect_lt(sn_zmtp_output(&e.z, &data), WAITS_MAX);
    ends_close(&e);
}

/* A slow reader of an endless answer: what it has read takes no memory, though there is always more to read. */
Test(zmtp, output_that_is_never_read_to_its_end_takes_little_memory) {
    enum { FRAMES = 2000, BYTES = 1000 };
    const uint8_t payload[BYTES] = {0}, *data;
    ends e;
    ends_connect(&e);
    for (int i = 0; i < FRAMES; i++) {
        cr_assert(sn_zmtp_send(&e.z, payload, sizeof payload, false));
        size_t waits = sn_zmtp_output(&e.z, &data);
        sn_zmtp_written(&e.z, waits - 1 - (size_t)i % 100);
    }
    cr_expect_lt(sn_zmtp_output_memory(&e.z), 8 * BYTES);
    ends_close(&e);
}

Test(zmtp, an_idle_connection_keeps_little_memory) {
    enum { FRAMES = 4, BYTES = 50000, KEPT_MAX = 1 << 15 };
    static const uint8_t payload[BYTES];
    const uint8_t *data;
    ends e;
    ends_connect(&e);
    for (int i = 0; i < FRAMES; i++) cr_assert(sn_zmtp_send(&e.z, payload, BYTES, false));
    sn_zmtp_written(&e.z, sn_zmtp_output(&e.z, &data));
    cr_expect_leq(e.z.out_capacity, (size_t)KEPT_MAX);
    ends_close(&e);
}

/* Memory that is reserved counts as that of replies which a peer leaves unread. */
Test(zmtp, a_ping_behind_a_large_frame_takes_no_second_one) {
    enum { BYTES = 1 << 20, SLACK = 1 << 12 };
    uint8_t *payload = calloc(1, BYTES);
    ends e;
    ends_connect(&e);
    cr_assert(sn_zmtp_send(&e.z, payload, BYTES, false));
    for (int i = 0; i < 10; i++) cr_assert(sn_zmtp_ping(&e.z));
    cr_expect_lt(sn_zmtp_output_memory(&e.z), BYTES + SLACK);
    free(payload);
    ends_close(&e);
}

/* What the client opens with libsodium has the flags and the payload; commands wait until it is complete. */
Test(zmtp, a_frame_that_is_sealed_in_pieces_is_opened_as_a_whole) {
    enum { LEN_MAX = 5000 };
    uint8_t payload[LEN_MAX], body[LEN_MAX + 64], text[LEN_MAX + 64], nonce[24] = "CurveZMQMESSAGES";
    for (int i = 0; i < LEN_MAX; i++) payload[i] = (uint8_t)(i * 31 + i / 256);
    ends e;
    ends_connect(&e);
    for (size_t len = 0; len <= LEN_MAX; len += len < 300 ? 1 : 211)
        for (size_t piece = 64; piece < LEN_MAX; piece += 900) {
            cr_assert(sn_zmtp_send_begin(&e.z, payload, len));
            size_t pieces = 1;
            for (; !sn_zmtp_seal(&e.z, piece); pieces++) cr_assert(sn_zmtp_ping(&e.z));
            cr_expect_geq(pieces, len / piece);
            size_t size = curve_take_output(&e.z, body, sizeof body), head = len + SN_CURVE_OVERHEAD < 256 ? 2 : 9;
            cr_assert_eq(size, head + SN_CURVE_OVERHEAD + len, "%zu bytes for %zu", size, len);
            memcpy(nonce + 16, body + head + 8, 8);
            cr_assert(!crypto_box_open_easy_afternm(text, body + head + 16, size - head - 16, nonce, e.client.shared),
                      "%zu bytes in pieces of %zu", len, piece);
            cr_assert(!text[0] && !memcmp(text + 1, payload, len));
        }
    ends_close(&e);
}

Test(zmtp, other_greetings_are_refused_at_their_first_wrong_byte) {
    static const struct {
        size_t at;
        uint8_t value;
    } wrong[] = {{0, 'G'}, {9, 0}, {10, 1}, {12, 'N'}, {17, 'X'}, {32, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ends e;
        ends_open(&e);
        curve_client_greeting(&e.bytes);
        e.bytes.data[wrong[i].at] = wrong[i].value;
        expect_failure(&e);
        ends_close(&e);
    }
}

/* Makes the handshake up to INITIATE, whose bytes then lie in e->bytes. */
static void reach_initiate(ends *e) {
    uint8_t bytes[512];
    sn_zmtp_message none = {0};
    curve_take_output(&e->z, bytes, sizeof bytes);
    curve_client_greeting(&e->bytes);
    curve_client_hello(&e->client, &e->bytes);
    cr_assert_eq(send_bytes(e, 4096, &none), SN_ZMTP_MORE);
    cr_assert_eq(curve_take_output(&e->z, bytes, sizeof bytes), 170);
    curve_client_initiate(&e->client, bytes + 2, &e->bytes);
}

Test(zmtp, a_changed_byte_of_the_handshake_proves_no_key) {
    ends e;
    for (size_t at = 0; at < 202; at += 3) { /* HELLO; its padding, bytes 10 to 82, has no meaning */
        if (at >= 10 && at < 82) continue;
        ends_open(&e);
        curve_client_greeting(&e.bytes);
        curve_client_hello(&e.client, &e.bytes);
        e.bytes.data[64 + at] ^= 0x10;
        expect_failure(&e);
        ends_close(&e);
    }
    size_t n = 300;
    for (size_t at = 0; at < n; at += 5) {
        ends_open(&e);
        reach_initiate(&e);
        n = e.bytes.len;
        e.bytes.data[at] ^= 0x10;
        sn_zmtp_message none = {0};
        sn_zmtp_result result = send_bytes(&e, 4096, &none);
        cr_expect(!sn_zmtp_is_ready(&e.z), "byte %zu", at);
        cr_expect(result == SN_ZMTP_FAILED || at < 9, "byte %zu: a changed length may wait for more", at);
        ends_close(&e);
    }
}

Test(zmtp, messages_before_the_handshake_and_other_sockets_are_refused) {
    ends e;
    ends_open(&e);
    curve_client_greeting(&e.bytes);
    curve_client_frame(&e.client, 0, "hello", 5, &e.bytes);
    expect_failure(&e);
    ends_close(&e);
    static const char *const types[] = {"ROUTER", "SUB", "", "DEALERS", "PUSH"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ends_open(&e);
        e.client.socket_type = types[i];
        reach_initiate(&e);
        expect_failure(&e);
        ends_close(&e);
    }
}

/* The vouch binds the long-term key to the connection: a key whose secret the client does not hold is not proven. */
Test(zmtp, a_key_without_its_secret_is_not_proven) {
    ends e;
    sn_identity victim;
    ends_open(&e);
    REQUIRE(sn_identity_new(&victim, &err));
    memcpy(e.client.identity.curve_key, victim.curve_key, SN_KEY_SIZE);
    reach_initiate(&e);
    expect_failure(&e);
    ends_close(&e);
}

Test(zmtp, takes_memory_for_bytes_that_came_and_not_for_lengths) {
    ends e;
    sn_zmtp_message none = {0};
    ends_connect(&e);
    curve_append(&e.bytes,
                 "\2\0\0\0\0\x40\0\0\0"
                 "\x07MESSAGE",
                 17); /* 1 GiB is announced, 8 bytes of it come */
    cr_expect_eq(send_bytes(&e, 4096, &none), SN_ZMTP_MORE);
    cr_expect_lt(sn_zmtp_partial(&e.z), 1 << 16);
    cr_expect_lt(malloc_usable_size(e.z.body.memory), 1 << 16);
    ends_close(&e);
    ends_connect(&e);
    curve_append(&e.bytes, "\2\0\0\0\0\x40\0\0\x22", 9); /* a byte more than the largest */
    expect_failure(&e);
    ends_close(&e);
    ends_open(&e);
    curve_client_greeting(&e.bytes);
    curve_append(&e.bytes, "\6\0\0\0\0\0\0\x08\1", 9); /* before a key is proven, 2 KiB are enough */
    expect_failure(&e);
    ends_close(&e);
}

/* -- the end that has dialled */

/* Moves what `from` has to say to `to`, of which byte `wrong` is another one (SIZE_MAX: none). *at: the bytes before.
 */
static sn_zmtp_result pass_on(sn_zmtp *from, sn_zmtp *to, size_t wrong, size_t *at) {
    uint8_t bytes[1024];
    sn_zmtp_message message = {0};
    const uint8_t *data = bytes;
    size_t len = curve_take_output(from, bytes, sizeof bytes);
    sn_zmtp_result result = SN_ZMTP_MORE;
    if (wrong >= *at && wrong - *at < len) bytes[wrong - *at] ^= 0x40;
    *at += len;
    while (len && result != SN_ZMTP_FAILED) result = sn_zmtp_receive(to, &data, &len, &message);
    sn_zmtp_message_free(&message);
    return result;
}

/* Whether a client that expects `key` takes the server for it. */
static bool shakes_hands(const sn_identity *server, const uint8_t key[SN_KEY_SIZE], size_t wrong) {
    sn_identity own;
    sn_zmtp both[2];
    size_t at = 0, of_client = 0;
    bool good = true;
    REQUIRE(sn_identity_new(&own, &err));
    REQUIRE(sn_zmtp_init(&both[0], server, NULL, &err));
    REQUIRE(sn_zmtp_init(&both[1], &own, key, &err));
    for (int i = 0; i < 6 && good; i++)
        good = pass_on(&both[i % 2], &both[1 - i % 2], i % 2 ? SIZE_MAX : wrong, i % 2 ? &of_client : &at) !=
               SN_ZMTP_FAILED;
    good = good && sn_zmtp_is_ready(&both[1]) && !memcmp(both[0].curve.peer_key, own.curve_key, SN_KEY_SIZE);
    for (int i = 0; i < 2; i++) sn_zmtp_fini(&both[i]);
    return good;
}

Test(zmtp, only_the_owner_of_the_dialled_key_is_taken_for_it) {
    enum { GREETING = SN_ZMTP_GREETING_SIZE, WELCOME = 170, READY = 2 + 14 + 22 + 16 };
    sn_identity server, other;
    REQUIRE(sn_identity_new(&server, &err));
    REQUIRE(sn_identity_new(&other, &err));
    cr_expect(shakes_hands(&server, server.curve_key, SIZE_MAX));
    cr_expect(!shakes_hands(&other, server.curve_key, SIZE_MAX));
    for (size_t at = GREETING; at < GREETING + WELCOME + READY; at++)
        cr_expect(!shakes_hands(&server, server.curve_key, at), "byte %zu says nothing", at);
}
