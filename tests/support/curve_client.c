#include "tests/support/curve_client.h"

#include "tests/support/require.h"

#include <sodium.h>
#include <string.h>

enum { MAC = crypto_box_MACBYTES, NONCE = crypto_box_NONCEBYTES };

void curve_append(sn_buf *out, const void *data, size_t len) { REQUIRE(sn_buf_append(out, data, len, &err)); }

static void append_number(sn_buf *out, uint64_t n, int bytes) {
    for (int i = bytes; i-- > 0;) curve_append(out, &(uint8_t){(uint8_t)(n >> 8 * i)}, 1);
}

static void append_frame(sn_buf *out, uint8_t flags, const void *body, size_t len) {
    curve_append(out, &(uint8_t){(uint8_t)(flags | (len > 255 ? 2 : 0))}, 1);
    append_number(out, len, len > 255 ? 8 : 1);
    curve_append(out, body, len);
}

static void make_nonce(uint8_t out[NONCE], const char *prefix, uint64_t counter) {
    memcpy(out, prefix, 16);
    for (int i = 0; i < 8; i++) out[16 + i] = (uint8_t)(counter >> (56 - 8 * i));
}

void curve_client_init(curve_client *client, const sn_identity *server) {
    *client = (curve_client){.server = server, .socket_type = "DEALER"};
    REQUIRE(sn_identity_new(&client->identity, &err));
    crypto_box_keypair(client->short_key, client->short_secret);
}

void curve_client_greeting(sn_buf *out) {
    uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'C', 'U', 'R', 'V', 'E'};
    curve_append(out, greeting, sizeof greeting);
}

void curve_client_hello(curve_client *client, sn_buf *out) {
    static const uint8_t zeros[64];
    uint8_t hello[200] = "\x05HELLO\x01", nonce[NONCE];
    memcpy(hello + 80, client->short_key, SN_KEY_SIZE);
    make_nonce(nonce, "CurveZMQHELLO---", ++client->nonce);
    memcpy(hello + 112, nonce + 16, 8);
    if (crypto_box_easy(hello + 120, zeros, sizeof zeros, nonce, client->server->curve_key, client->short_secret))
        abort();
    append_frame(out, 4, hello, sizeof hello);
}

void curve_client_initiate(curve_client *client, const uint8_t welcome[168], sn_buf *out) {
    uint8_t content[128], nonce[NONCE] = "WELCOME-", vouch[2 * SN_KEY_SIZE];
    memcpy(nonce + 8, welcome + 8, 16);
    if (crypto_box_open_easy(content, welcome + 24, 144, nonce, client->server->curve_key, client->short_secret) ||
        crypto_box_beforenm(client->shared, content, client->short_secret))
        abort();
    sn_buf text, body;
    sn_buf_init(&text, 4096);
    sn_buf_init(&body, 4096);
    memcpy(vouch, client->short_key, SN_KEY_SIZE);
    memcpy(vouch + SN_KEY_SIZE, client->server->curve_key, SN_KEY_SIZE);
    uint8_t box[sizeof vouch + MAC];
    memcpy(nonce, "VOUCH---", 8);
    randombytes_buf(nonce + 8, 16);
    if (crypto_box_easy(box, vouch, sizeof vouch, nonce, content, client->identity.curve_secret)) abort();
    curve_append(&text, client->identity.curve_key, SN_KEY_SIZE);
    curve_append(&text, nonce + 8, 16);
    curve_append(&text, box, sizeof box);
    curve_append(&text, "\x08Identity\0\0\0\x05\0same", 18);
    curve_append(&text, "\x0bSocket-Type", 12);
    append_number(&text, strlen(client->socket_type), 4);
    curve_append(&text, client->socket_type, strlen(client->socket_type));
    make_nonce(nonce, "CurveZMQINITIATE", ++client->nonce);
    curve_append(&body, "\x08INITIATE", 9);
    curve_append(&body, content + SN_KEY_SIZE, 96);
    curve_append(&body, nonce + 16, 8);
    uint8_t sealed[1024];
    if (crypto_box_easy_afternm(sealed, text.data, text.len, nonce, client->shared)) abort();
    curve_append(&body, sealed, text.len + MAC);
    append_frame(out, 4, body.data, body.len);
    sn_buf_fini(&text);
    sn_buf_fini(&body);
}

void curve_client_frame(curve_client *client, uint8_t flags, const void *payload, size_t len, sn_buf *out) {
    uint8_t nonce[NONCE], *body = malloc(33 + len), *text = malloc(1 + len);
    if (!body || !text) abort();
    memcpy(body, "\x07MESSAGE", 8);
    make_nonce(nonce, "CurveZMQMESSAGEC", ++client->nonce);
    memcpy(body + 8, nonce + 16, 8);
    text[0] = flags;
    if (len) memcpy(text + 1, payload, len);
    if (crypto_box_easy_afternm(body + 16, text, 1 + len, nonce, client->shared)) abort();
    append_frame(out, 0, body, 33 + len);
    free(body);
    free(text);
}

size_t curve_take_output(sn_zmtp *z, uint8_t *out, size_t capacity) {
    const uint8_t *data;
    size_t len = sn_zmtp_output(z, &data);
    if (len > capacity) abort();
    if (len) memcpy(out, data, len);
    sn_zmtp_written(z, len);
    return len;
}

static void put(sn_zmtp *z, const sn_buf *bytes, sn_zmtp_result last) {
    const uint8_t *data = bytes->data;
    size_t len = bytes->len;
    sn_zmtp_message message;
    if (sn_zmtp_receive(z, &data, &len, &message) != last) abort();
}

void curve_client_connect(curve_client *client, sn_zmtp *z) {
    uint8_t bytes[512];
    sn_buf out;
    sn_buf_init(&out, 4096);
    curve_take_output(z, bytes, sizeof bytes);
    curve_client_greeting(&out);
    put(z, &out, SN_ZMTP_GREETED);
    out.len = 0;
    curve_client_hello(client, &out);
    put(z, &out, SN_ZMTP_MORE);
    if (curve_take_output(z, bytes, sizeof bytes) != 170) abort();
    out.len = 0;
    curve_client_initiate(client, bytes + 2, &out);
    put(z, &out, SN_ZMTP_MORE);
    if (!sn_zmtp_is_ready(z)) abort();
    curve_take_output(z, bytes, sizeof bytes);
    sn_buf_fini(&out);
}
