/* One end of a connection (net/transport/zmtp_private.h). The first byte of the input selects it, and who sends: 0,
 * anybody to the end that listens, and the rest is what comes over TCP; 0x80, the same to the end that has dialled;
 * 0x81, a server to that one after their handshake; else a client after its handshake. After a handshake the rest is
 * frames: flags, a length in two bytes, and the payload, which is sealed, or sent as it is where the flags say so. */
#include "tests/support/curve_client.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { UNSEALED = 0x80, BYTES_MAX = 1 << 20 };

static void receive_all(sn_zmtp *z, const uint8_t *data, size_t len) {
    for (size_t parts = 0; len;) { /* in parts of growing size */
        size_t part = sn_min_size(len, ++parts), left = part;
        sn_zmtp_result result = SN_ZMTP_MORE;
        while (left && result != SN_ZMTP_FAILED) {
            sn_zmtp_message message = {0};
            result = sn_zmtp_receive(z, &data, &left, &message);
            if (result == SN_ZMTP_MESSAGE && !message.n_frames) abort();
            sn_zmtp_message_free(&message);
        }
        if (result == SN_ZMTP_FAILED) return;
        len -= part;
    }
}

/* Appends a frame that this end seals. */
static void server_frame(sn_zmtp *server, uint8_t flags, const uint8_t *payload, size_t len, sn_buf *out) {
    uint8_t body[SN_CURVE_OVERHEAD + (1 << 16)];
    const size_t sealed = SN_CURVE_OVERHEAD + len;
    const uint8_t head[] = {2, 0, 0, 0, 0, 0, (uint8_t)(sealed >> 16), (uint8_t)(sealed >> 8), (uint8_t)sealed};
    sn_curve_seal(&server->curve, flags, payload, len, body);
    curve_append(out, head, sizeof head);
    curve_append(out, body, sealed);
}

static void shake_hands(sn_zmtp *ends[2]) {
    uint8_t bytes[1024];
    for (int i = 0; i < 6; i++) {
        size_t len = curve_take_output(ends[i % 2], bytes, sizeof bytes);
        receive_all(ends[1 - i % 2], bytes, len);
    }
    if (!sn_zmtp_is_ready(ends[0]) || !sn_zmtp_is_ready(ends[1])) abort();
}

/* What comes to `z` after a handshake with `server`, or with `client` where that is NULL. */
static void receive_frames(sn_zmtp *z, sn_zmtp *server, curve_client *client, const uint8_t *data, size_t size) {
    sn_buf bytes;
    sn_buf_init(&bytes, BYTES_MAX);
    for (size_t at = 0; at + 3 <= size && bytes.len < BYTES_MAX / 2;) {
        uint8_t flags = data[at];
        size_t len = sn_min_size((size_t)data[at + 1] << 8 | data[at + 2], size - at - 3);
        if (flags & UNSEALED)
            curve_append(&bytes, data + at + 3, len);
        else if (server)
            server_frame(server, flags, data + at + 3, len, &bytes);
        else
            curve_client_frame(client, flags, data + at + 3, len, &bytes);
        at += 3 + len;
    }
    receive_all(z, bytes.data, bytes.len);
    sn_buf_fini(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { TO_LISTENER = 0, TO_DIALLER = 0x80, SERVER = 0x81 };
    static sn_identity identity;
    sn_zmtp z, server;
    if (!identity.curve_key[0] && sn_identity_new(&identity, NULL)) abort();
    if (!size) return 0;
    const bool dials = data[0] == TO_DIALLER || data[0] == SERVER;
    if (sn_zmtp_init(&z, &identity, dials ? identity.curve_key : NULL, NULL)) return 0;
    if (data[0] == TO_LISTENER || data[0] == TO_DIALLER) {
        receive_all(&z, data + 1, size - 1);
    } else if (data[0] == SERVER) {
        if (sn_zmtp_init(&server, &identity, NULL, NULL)) abort();
        shake_hands((sn_zmtp *[]){&server, &z});
        receive_frames(&z, &server, NULL, data + 1, size - 1);
        sn_zmtp_fini(&server);
    } else {
        curve_client client;
        curve_client_init(&client, &identity);
        curve_client_connect(&client, &z);
        receive_frames(&z, NULL, &client, data + 1, size - 1);
    }
    sn_zmtp_fini(&z);
    return 0;
}
