/* CurveZMQ for one end of one connection (RFC 26, rfc.zeromq.org/spec/26): the handshake, then sealed frames. Private
 * to net/transport/.
 *
 * The end that listens is the server, the one that has dialled the client, which knows the server's key before. The
 * handshake proves the long-term keys of both and gives them a fresh secret. The server admits any key. The ciphers are
 * libsodium's (crypto_box: X25519, XSalsa20, Poly1305). Logic only: bodies of commands are arguments. Every length is
 * checked here; nothing that a peer sends is an error of this program. */
#ifndef SN_NET_TRANSPORT_CURVE_PRIVATE_H
#define SN_NET_TRANSPORT_CURVE_PRIVATE_H

#include "net/identity.h"

#include <sodium.h>
#include <stdbool.h>

enum {
    SN_CURVE_COOKIE_SIZE = 96,
    SN_CURVE_ANSWER_MAX = 320, /* INITIATE, the longest command of the handshake that is sent */
    SN_CURVE_OVERHEAD = 33,    /* a sealed body: "\x07MESSAGE", 8 bytes of nonce, 16 of authenticator, flags, payload */
    SN_CURVE_FLAGS_AT = 32,    /* where the flags of an opened body are; the payload follows */
};

/* The command that the peer must send next. READY: messages. */
typedef enum sn_curve_state {
    SN_CURVE_HELLO,
    SN_CURVE_INITIATE,
    SN_CURVE_WELCOME,
    SN_CURVE_READY_COMMAND,
    SN_CURVE_READY
} sn_curve_state;

typedef struct sn_curve {
    const sn_identity *identity; /* of this end; borrowed */
    bool client;
    sn_curve_state state;
    uint8_t peer_key[SN_KEY_SIZE];   /* the peer's long-term key, proven once the state is READY */
    uint8_t peer_short[SN_KEY_SIZE]; /* its key for this connection */
    uint8_t short_key[SN_KEY_SIZE], short_secret[SN_KEY_SIZE]; /* of this end for this connection */
    uint8_t shared[SN_KEY_SIZE];                               /* the secret of this connection */
    uint8_t cookie[SN_CURVE_COOKIE_SIZE];
    uint64_t sent, received; /* nonces */
} sn_curve;

/* server_key: of the server that this end has dialled; NULL: this end is the server. */
void sn_curve_init(sn_curve *curve, const sn_identity *identity, const uint8_t *server_key);
void sn_curve_fini(sn_curve *curve); /* wipes the secrets */
/* Writes the client's first command, unasked; returns its length, 0: there is no such server. */
size_t sn_curve_begin(sn_curve *curve, uint8_t hello[SN_CURVE_ANSWER_MAX]);
/* Takes the peer's next command of the handshake and writes the answer to it, of *answer_len bytes (0: there is none).
 * False: the peer does not follow the protocol, has or expects another key, or is no DEALER, and the connection must
 * end. */
bool sn_curve_answer(sn_curve *curve, const uint8_t *command, size_t len, uint8_t answer[SN_CURVE_ANSWER_MAX],
                     size_t *answer_len) SN_MUST_USE;
/* Opens a sealed body of `len` bytes in place: body[SN_CURVE_FLAGS_AT] has the flags, then the payload follows. False:
 * it is none of this connection, or comes a second time. */
bool sn_curve_open(sn_curve *curve, uint8_t *body, size_t len) SN_MUST_USE;
/* Seals flags and payload into `body`, which has SN_CURVE_OVERHEAD + len bytes. */
void sn_curve_seal(sn_curve *curve, uint8_t flags, const void *payload, size_t len, uint8_t *body);

/* The same in pieces. Payload and body stay where they are until it is done. */
typedef struct sn_curve_sealing {
    uint8_t key[SN_KEY_SIZE], nonce[crypto_stream_salsa20_NONCEBYTES]; /* of the stream of this body */
    crypto_onetimeauth_state auth;
    const uint8_t *payload;
    uint8_t *body;
    size_t at, len; /* of the payload */
} sn_curve_sealing;
void sn_curve_seal_begin(sn_curve *curve, uint8_t flags, const void *payload, size_t len, uint8_t *body,
                         sn_curve_sealing *out);
/* Goes on with at most n bytes, at least 64; true: the body is sealed. */
bool sn_curve_seal_piece(sn_curve_sealing *sealing, size_t n);

#endif
