/* The listening end of a connection (net/transport/zmtp_private.h). The first byte of the input selects who sends: 0,
 * anybody, and the rest is what comes over TCP; else a client after its handshake, and the rest is frames: flags, a
 * length in two bytes, and the payload, which is sealed, or sent as it is where the flags say so. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sn_identity identity;
    sn_zmtp z;
    sn_buf bytes;
    if (!identity.curve_key[0] && sn_identity_new(&identity, NULL)) abort();
    if (!size || sn_zmtp_init(&z, &identity, NULL, NULL)) return 0;
    sn_buf_init(&bytes, BYTES_MAX);
    if (data[0]) {
        curve_client client;
        curve_client_init(&client, &identity);
        curve_client_connect(&client, &z);
        for (size_t at = 1; at + 3 <= size && bytes.len < BYTES_MAX / 2;) {
            uint8_t flags = data[at];
            size_t len = sn_min_size((size_t)data[at + 1] << 8 | data[at + 2], size - at - 3);
            if (flags & UNSEALED)
                curve_append(&bytes, data + at + 3, len);
            else
                curve_client_frame(&client, flags, data + at + 3, len, &bytes);
            at += 3 + len;
        }
        receive_all(&z, bytes.data, bytes.len);
    } else {
        receive_all(&z, data + 1, size - 1);
    }
    sn_zmtp_fini(&z);
    sn_buf_fini(&bytes);
    return 0;
}
