/* ZMTP (net/transport/zmtp_private.h). Input is a greeting, then frames of a header and a body. Bodies are the commands
 * of the handshake until it is complete, and sealed frames from then on, which are opened where they lie: the payload
 * begins SN_CURVE_OVERHEAD bytes behind the body, and the memory before it is such that the payload is aligned. Output
 * is one buffer of bytes in the order in which they are sealed, because the nonces of sealed frames must grow.
 *
 * A round trip of a far peer is a large part of a second, so none is spent that need not be: the client, which knows
 * the server's key, sends HELLO behind its greeting, and its first messages behind INITIATE, where the server's
 * greeting says that it takes them so (libzmq's does not). */
#include "net/transport/zmtp_private.h"

#include <stdlib.h>
#include <string.h>

enum {
    MECHANISM_AT = 12, /* in the greeting */
    MECHANISM_SIZE = 20,
    SERVER_AT = MECHANISM_AT + MECHANISM_SIZE,
    EARLY_AT = SERVER_AT + 1, /* in the filler, of which nobody else takes notice */
    FRAME_LONG = 2,           /* flags of a frame */
    FRAME_COMMAND = 4,
    SEALED_MORE = 1, /* flags inside a sealed frame */
    SEALED_COMMAND = 2,
    HEAD_SHORT = 2, /* bytes of a frame's header: flags, then the length in 1 byte or in 8 */
    HEAD_LONG = 9,
    HANDSHAKE_BODY_MAX = 2048,
    BODY_FIRST = 4096,            /* bytes of memory for a long frame at first */
    OUT_DOUBLED_MAX = 1 << 18,    /* bytes of memory for output, up to which it grows by doubling */
    OUT_KEPT_MAX = 1 << 15,       /* that an idle connection keeps: this counts nowhere, and there are thousands */
    PAD = 48 - SN_CURVE_OVERHEAD, /* before a sealed body, so that its payload is aligned */
    PING_HEAD = 7,                /* name and time to live */
    PONG_HEAD = 5,
    PING_CONTEXT_MAX = 16,
    PONG_BEHIND_MAX = 4096, /* bytes of output */
};
static const uint64_t BODY_MAX = (uint64_t)SN_TENSOR_SIZE_MAX + SN_CURVE_OVERHEAD;

static void frame_free(sn_zmtp_frame *frame) {
    free(frame->memory);
    *frame = (sn_zmtp_frame){0};
}

void sn_zmtp_message_free(sn_zmtp_message *message) {
    for (size_t i = 0; i < SN_ZMTP_FRAMES_KEPT; i++) frame_free(&message->frames[i]);
    message->n_frames = 0;
}

/* -- output -- */

/* Space for n more bytes of output, or NULL. The caller writes all of them. */
static uint8_t *out_reserve(sn_zmtp *z, size_t n) {
    if (z->out_at == z->out_len) z->out_at = z->out_len = 0;
    if (n > z->out_capacity - z->out_len && z->out_at > z->out_capacity / 2) {
        memmove(z->out, z->out + z->out_at, z->out_len - z->out_at); /* a slow reader may never have read all of it */
        z->out_len -= z->out_at;
        z->out_at = 0;
    }
    if (n > z->out_capacity - z->out_len) {
        /* Twice as much only while it is small: a PING behind a large frame would take as much as another one. */
        size_t needed = z->out_len + n, doubled = 2 * z->out_capacity;
        size_t capacity = doubled > needed && doubled <= OUT_DOUBLED_MAX ? doubled : needed;
        uint8_t *grown = realloc(z->out, capacity);
        if (!grown) return NULL;
        z->out = grown;
        z->out_capacity = capacity;
    }
    z->out_len += n;
    return z->out + z->out_len - n;
}

static size_t head_size_of(size_t len) { return len < 256 ? HEAD_SHORT : HEAD_LONG; }

/* A frame's header in the output; returns where its body goes, or NULL. */
static uint8_t *out_frame(sn_zmtp *z, uint8_t flags, size_t len) {
    size_t head_len = head_size_of(len);
    uint8_t *head = out_reserve(z, head_len + len);
    if (!head) return NULL;
    head[0] = (uint8_t)(flags | (head_len == HEAD_LONG ? FRAME_LONG : 0));
    for (size_t i = head_len - 1, rest = len; i; i--, rest >>= 8) head[i] = (uint8_t)rest;
    return head + head_len;
}

static bool send_sealed(sn_zmtp *z, uint8_t flags, const void *payload, size_t len) {
    uint8_t *body = out_frame(z, 0, SN_CURVE_OVERHEAD + len);
    if (body) sn_curve_seal(&z->curve, flags, payload, len, body);
    return body != NULL;
}

bool sn_zmtp_send(sn_zmtp *z, const void *payload, size_t len, bool more) {
    return send_sealed(z, more ? SEALED_MORE : 0, payload, len);
}

static bool send_command(sn_zmtp *z, const void *command, size_t len) {
    return z->sealing_bytes || send_sealed(z, SEALED_COMMAND, command, len);
}

bool sn_zmtp_ping(sn_zmtp *z) { return send_command(z, "\x04PING\0\0", PING_HEAD); }
bool sn_zmtp_pong(sn_zmtp *z) { return send_command(z, "\x04PONG", PONG_HEAD); }

bool sn_zmtp_send_begin(sn_zmtp *z, const void *payload, size_t len) {
    uint8_t *body = out_frame(z, 0, SN_CURVE_OVERHEAD + len);
    if (!body) return false;
    z->sealing_bytes = SN_CURVE_OVERHEAD + len + head_size_of(SN_CURVE_OVERHEAD + len);
    z->out_len -= z->sealing_bytes;
    sn_curve_seal_begin(&z->curve, 0, payload, len, body, &z->sealing);
    return true;
}

bool sn_zmtp_seal(sn_zmtp *z, size_t n) {
    if (!sn_curve_seal_piece(&z->sealing, n)) return false;
    z->out_len += z->sealing_bytes;
    z->sealing_bytes = 0;
    return true;
}

void sn_zmtp_written(sn_zmtp *z, size_t n) {
    z->out_at += n;
    if (z->out_at < z->out_len || z->sealing_bytes || z->out_capacity <= OUT_KEPT_MAX) return;
    free(z->out);
    z->out = NULL;
    z->out_at = z->out_len = z->out_capacity = 0;
}

/* -- input -- */

/* Signature, version, mechanism, as-server, filler. The whole greeting is sent at once: every peer that will be
 * answered speaks version 3. */
static void write_greeting(uint8_t out[SN_ZMTP_GREETING_SIZE], bool server) {
    static const uint8_t start[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'C', 'U', 'R', 'V', 'E'};
    memset(out, 0, SN_ZMTP_GREETING_SIZE);
    memcpy(out, start, sizeof start);
    out[SERVER_AT] = out[EARLY_AT] = server;
}

/* Whether the first n bytes of a greeting may be those of the other end of CURVE in version 3: no other server's where
 * this is one. (libzmq's servers do not say what they are.) */
static bool greeting_is_valid(const uint8_t *greeting, size_t n, bool may_serve) {
    uint8_t curve[MECHANISM_SIZE] = "CURVE";
    return (n < 1 || greeting[0] == 0xff) && (n < 10 || greeting[9] & 1) && (n < 11 || greeting[10] >= 3) &&
           (n < SN_ZMTP_GREETING_SIZE ||
            (!memcmp(greeting + MECHANISM_AT, curve, sizeof curve) && (may_serve || !greeting[SERVER_AT])));
}

static size_t take(uint8_t *to, size_t wanted, const uint8_t **data, size_t *len) {
    size_t n = wanted < *len ? wanted : *len;
    if (n) memcpy(to, *data, n);
    *data += n;
    *len -= n;
    return n;
}

/* Bytes of the greeting, or of the header of a frame as far as its first byte tells. */
static size_t head_size(const sn_zmtp *z) {
    if (!z->greeted) return SN_ZMTP_GREETING_SIZE;
    return z->head_len && z->head[0] & FRAME_LONG ? HEAD_LONG : HEAD_SHORT;
}

/* Takes the greeting, or the header of a frame. True: it is complete. */
static bool take_head(sn_zmtp *z, const uint8_t **data, size_t *len) {
    while (*len && z->head_len < head_size(z))
        z->head_len += take(z->head + z->head_len, head_size(z) - z->head_len, data, len);
    return z->head_len == head_size(z);
}

/* Reads the header of a frame; false: there is no such frame. */
static bool begin_body(sn_zmtp *z) {
    uint64_t size = 0;
    uint8_t flags = z->head[0];
    for (size_t i = 1; i < z->head_len; i++) size = size << 8 | z->head[i];
    bool ready = sn_zmtp_is_ready(z);
    if (flags & ~(FRAME_LONG | FRAME_COMMAND) || (!ready && !(flags & FRAME_COMMAND)) || !size ||
        size > (ready ? BODY_MAX : HANDSHAKE_BODY_MAX))
        return false;
    z->body_size = (size_t)size;
    z->body_capacity = 0;
    return true;
}

/* Takes bytes of the body. False: out of memory. */
static bool take_body(sn_zmtp *z, const uint8_t **data, size_t *len) {
    sn_zmtp_frame *body = &z->body;
    while (body->len < z->body_size && *len) {
        if (body->len == z->body_capacity) {
            size_t capacity = sn_min_size(z->body_size, z->body_capacity ? 2 * z->body_capacity : BODY_FIRST);
            uint8_t *grown = realloc(body->memory, PAD + capacity);
            if (!grown) return false;
            *body = (sn_zmtp_frame){.memory = grown, .data = grown + PAD, .len = body->len};
            z->body_capacity = capacity;
        }
        body->len += take(body->data + body->len, z->body_capacity - body->len, data, len);
    }
    return true;
}

/* PING is answered by PONG with the same context; other commands mean nothing here. Behind much output that waits there
 * is no PONG: the output shows as well that this end lives (libzmq notices it frame by frame), and a peer that asks and
 * never reads would make it grow. */
static bool answer_command(sn_zmtp *z, const uint8_t *command, size_t len) {
    uint8_t pong[PONG_HEAD + PING_CONTEXT_MAX] = "\x04PONG";
    if (len < PING_HEAD || memcmp(command, "\x04PING", PONG_HEAD) != 0) return true;
    if (z->out_len - z->out_at > PONG_BEHIND_MAX) return true;
    size_t context = sn_min_size(len - PING_HEAD, PING_CONTEXT_MAX);
    memcpy(pong + PONG_HEAD, command + PING_HEAD, context);
    return send_command(z, pong, PONG_HEAD + context);
}

/* Sends a command of the handshake. */
static bool send_open(sn_zmtp *z, const uint8_t *command, size_t len) {
    uint8_t *body = out_frame(z, FRAME_COMMAND, len);
    if (body) memcpy(body, command, len);
    return body != NULL;
}

static sn_zmtp_result end_handshake_body(sn_zmtp *z) {
    uint8_t answer[SN_CURVE_ANSWER_MAX];
    size_t len;
    bool good = sn_curve_answer(&z->curve, z->body.data, z->body.len, answer, &len);
    frame_free(&z->body);
    return good && (!len || send_open(z, answer, len)) ? SN_ZMTP_MORE : SN_ZMTP_FAILED;
}

/* A sealed frame is complete: a command, or a part of a message. */
static sn_zmtp_result end_sealed_body(sn_zmtp *z, sn_zmtp_message *out) {
    sn_zmtp_frame frame = z->body;
    z->body = (sn_zmtp_frame){0};
    if (!sn_curve_open(&z->curve, frame.data, frame.len)) {
        frame_free(&frame);
        return SN_ZMTP_FAILED;
    }
    uint8_t flags = frame.data[SN_CURVE_FLAGS_AT];
    frame.data += SN_CURVE_OVERHEAD;
    frame.len -= SN_CURVE_OVERHEAD;
    if (flags & SEALED_COMMAND) {
        bool answered = answer_command(z, frame.data, frame.len);
        frame_free(&frame);
        return answered ? SN_ZMTP_MORE : SN_ZMTP_FAILED;
    }
    if (z->message.n_frames < SN_ZMTP_FRAMES_KEPT)
        z->message.frames[z->message.n_frames] = frame;
    else
        frame_free(&frame);
    z->message.n_frames++;
    if (flags & SEALED_MORE) return SN_ZMTP_MORE;
    *out = z->message;
    z->message = (sn_zmtp_message){0};
    return SN_ZMTP_MESSAGE;
}

sn_zmtp_result sn_zmtp_receive(sn_zmtp *z, const uint8_t **data, size_t *len, sn_zmtp_message *out) {
    while (*len) {
        if (!z->body_size) {
            bool complete = take_head(z, data, len);
            if (!z->greeted && !greeting_is_valid(z->head, z->head_len, z->curve.client)) return SN_ZMTP_FAILED;
            if (!complete) return SN_ZMTP_MORE;
            if (z->greeted && !begin_body(z)) return SN_ZMTP_FAILED;
            z->head_len = 0;
            if (z->greeted) continue;
            z->greeted = true;
            z->takes_early = z->curve.client && z->head[EARLY_AT] == 1;
            return SN_ZMTP_GREETED;
        }
        if (!take_body(z, data, len)) return SN_ZMTP_FAILED;
        if (z->body.len < z->body_size) return SN_ZMTP_MORE;
        z->body_size = z->body_capacity = 0;
        sn_zmtp_result result = sn_zmtp_is_ready(z) ? end_sealed_body(z, out) : end_handshake_body(z);
        if (result != SN_ZMTP_MORE) return result;
    }
    return SN_ZMTP_MORE;
}

sn_status sn_zmtp_init(sn_zmtp *z, const sn_identity *identity, const uint8_t *server_key, sn_err *err) {
    *z = (sn_zmtp){0};
    sn_curve_init(&z->curve, identity, server_key);
    uint8_t *greeting = out_reserve(z, SN_ZMTP_GREETING_SIZE);
    if (!greeting) return sn_fail(err, SN_STOP, "out of memory: no space for a connection");
    write_greeting(greeting, !server_key);
    if (!server_key) return SN_OK;
    uint8_t hello[SN_CURVE_ANSWER_MAX];
    const size_t len = sn_curve_begin(&z->curve, hello);
    if (len && send_open(z, hello, len)) return SN_OK;
    sn_zmtp_fini(z);
    return sn_fail(err, SN_REFUSED, "no peer has this key");
}

void sn_zmtp_fini(sn_zmtp *z) {
    sn_curve_fini(&z->curve);
    sodium_memzero(&z->sealing, sizeof z->sealing);
    frame_free(&z->body);
    sn_zmtp_message_free(&z->message);
    free(z->out);
}
