/* One end of a ZMTP 3.1 connection (RFC 37, rfc.zeromq.org/spec/37) with CURVE: bytes in, messages out, and back.
 * Private to net/transport/.
 *
 * Of the two ends the one that has dialled is a DEALER and CURVE's client. What the peer sends beyond the protocol ends
 * the connection: another mechanism, another version, a frame that is too long or was not sealed for this connection. A
 * routing id that it claims is ignored. Logic only: there is no socket and no clock here. Memory grows with the bytes
 * that have arrived and never with a length that a peer announces. */
#ifndef SN_NET_TRANSPORT_ZMTP_PRIVATE_H
#define SN_NET_TRANSPORT_ZMTP_PRIVATE_H

#include "net/transport/curve_private.h"

enum {
    SN_ZMTP_GREETING_SIZE = 64,
    SN_ZMTP_FRAMES_KEPT = 2, /* of a message; further frames are counted and dropped */
};

typedef struct sn_zmtp_frame {
    uint8_t *memory; /* owned by the holder of the frame: free() it */
    uint8_t *data;   /* in `memory`, aligned to 16 bytes */
    size_t len;
} sn_zmtp_frame;

typedef struct sn_zmtp_message {
    sn_zmtp_frame frames[SN_ZMTP_FRAMES_KEPT];
    size_t n_frames; /* that came */
} sn_zmtp_message;

void sn_zmtp_message_free(sn_zmtp_message *message); /* also one of zeros */

typedef struct sn_zmtp {
    sn_curve curve;
    uint8_t head[SN_ZMTP_GREETING_SIZE]; /* the greeting, later the header of a frame, as far as it has come */
    size_t head_len;
    bool greeted;
    bool takes_early;   /* the peer, a server, takes messages behind INITIATE, before its READY has come */
    sn_zmtp_frame body; /* of the frame that arrives; len: bytes that have come */
    size_t body_size, body_capacity;
    sn_zmtp_message message; /* that arrives */
    uint8_t *out;            /* bytes for the peer: [out_at, out_len) */
    size_t out_at, out_len, out_capacity;
    sn_curve_sealing sealing; /* of a frame behind out_len, */
    size_t sealing_bytes;     /* which has so many bytes; 0: none is being sealed */
} sn_zmtp;

typedef enum sn_zmtp_result {
    SN_ZMTP_MORE,    /* all bytes were taken */
    SN_ZMTP_GREETED, /* once: the greeting is complete, and the handshake, which costs time, may follow; bytes may be
                        left */
    SN_ZMTP_MESSAGE, /* a message is complete; bytes may be left */
    SN_ZMTP_FAILED,  /* the peer has left the protocol, or memory is out: close the connection */
} sn_zmtp_result;

/* server_key: of the peer, which this end has dialled; NULL: the peer has dialled. Borrows the identity. */
sn_status sn_zmtp_init(sn_zmtp *z, const sn_identity *identity, const uint8_t *server_key, sn_err *err) SN_MUST_USE;
void sn_zmtp_fini(sn_zmtp *z);
/* Takes bytes from *data up to the end of the greeting or of the next message, which *out then owns, and answers
 * handshake and pings. */
sn_zmtp_result sn_zmtp_receive(sn_zmtp *z, const uint8_t **data, size_t *len, sn_zmtp_message *out) SN_MUST_USE;
/* The handshake is complete: curve.peer_key is proven, and frames may be sent. */
static inline bool sn_zmtp_is_ready(const sn_zmtp *z) { return z->curve.state == SN_CURVE_READY; }
/* Frames may be sent: the server's key is proven by its WELCOME, and what follows INITIATE is sealed for it. */
static inline bool sn_zmtp_may_send(const sn_zmtp *z) {
    return sn_zmtp_is_ready(z) || (z->takes_early && z->curve.state == SN_CURVE_READY_COMMAND);
}

/* They seal a frame for the peer; false when memory is out: close the connection. */
bool sn_zmtp_send(sn_zmtp *z, const void *payload, size_t len, bool more) SN_MUST_USE;
bool sn_zmtp_ping(sn_zmtp *z) SN_MUST_USE;
bool sn_zmtp_pong(sn_zmtp *z) SN_MUST_USE; /* that nobody has asked for: it is not answered */
/* The same for the last frame of a message, in pieces: sn_zmtp_seal goes on with n bytes at most, at least 64, and
 * returns true when the frame is sealed. Until then the payload stays where it is, and nothing else is sent: pings are
 * left out. */
bool sn_zmtp_send_begin(sn_zmtp *z, const void *payload, size_t len) SN_MUST_USE;
bool sn_zmtp_seal(sn_zmtp *z, size_t n);
static inline size_t sn_zmtp_unsealed(const sn_zmtp *z) { return z->sealing.len - z->sealing.at; }
/* Bytes of memory that hold what has come of a message that is not complete. */
static inline size_t sn_zmtp_partial(const sn_zmtp *z) {
    return z->body_capacity + z->message.frames[0].len + z->message.frames[1].len;
}
/* Bytes that wait to be written, and how many of them were. */
static inline size_t sn_zmtp_output(const sn_zmtp *z, const uint8_t **data) {
    *data = z->out + z->out_at;
    return z->out_len - z->out_at;
}
void sn_zmtp_written(sn_zmtp *z, size_t n);
/* Bytes of memory that hold them. */
static inline size_t sn_zmtp_output_memory(const sn_zmtp *z) {
    return z->out_len > z->out_at || z->sealing_bytes ? z->out_capacity : 0;
}

#endif
