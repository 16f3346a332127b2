/* The server's side of CurveZMQ for one connection (RFC 26, rfc.zeromq.org/spec/26): the handshake, then sealed frames.
 * Private to net/transport/.
 *
 * The handshake proves the client's long-term key, which names it from then on, and gives both ends a fresh secret. The
 * ciphers are libsodium's (crypto_box: X25519, XSalsa20, Poly1305). Any key is admitted. Logic only: bodies of commands
 * are arguments. Every length is checked here; nothing that a peer sends is an error of this program. */
#ifndef SN_NET_TRANSPORT_CURVE_SERVER_PRIVATE_H
#define SN_NET_TRANSPORT_CURVE_SERVER_PRIVATE_H

#include "net/identity.h"

#include <sodium.h>
#include <stdbool.h>

enum {
    SN_CURVE_COOKIE_SIZE = 96,
    SN_CURVE_ANSWER_MAX = 168, /* WELCOME, the longer answer of the handshake */
    SN_CURVE_OVERHEAD = 33,    /* a sealed body: "\x07MESSAGE", 8 bytes of nonce, 16 of authenticator, flags, payload */
    SN_CURVE_FLAGS_AT = 32,    /* where the flags of an opened body are; the payload follows */
};

typedef enum sn_curve_state { SN_CURVE_HELLO, SN_CURVE_INITIATE, SN_CURVE_READY } sn_curve_state;

typedef struct sn_curve_server {
    const sn_identity *identity;       /* of the server; borrowed */
    sn_curve_state state;              /* the command that the client must send next; READY: messages */
    uint8_t client_key[SN_KEY_SIZE];   /* the client's long-term key, proven once the state is READY */
    uint8_t client_short[SN_KEY_SIZE]; /* its key for this connection */
    uint8_t short_secret[SN_KEY_SIZE]; /* the server's key for this connection */
    uint8_t shared[SN_KEY_SIZE];       /* the secret of this connection */
    uint8_t cookie[SN_CURVE_COOKIE_SIZE];
    uint64_t sent, received; /* nonces */
} sn_curve_server;

void sn_curve_server_init(sn_curve_server *curve, const sn_identity *identity);
void sn_curve_server_fini(sn_curve_server *curve); /* wipes the secrets */
/* Takes the client's next command of the handshake and writes the answer to it. Returns the answer's length; 0: the
 * client does not follow the protocol, expects another key, or is no DEALER, and the connection must end. */
size_t sn_curve_server_answer(sn_curve_server *curve, const uint8_t *command, size_t len,
                              uint8_t answer[SN_CURVE_ANSWER_MAX]);
/* Opens a sealed body of `len` bytes in place: body[SN_CURVE_FLAGS_AT] has the flags, then the payload follows. False:
 * it is none of this connection, or comes a second time. */
bool sn_curve_server_open(sn_curve_server *curve, uint8_t *body, size_t len) SN_MUST_USE;
/* Seals flags and payload into `body`, which has SN_CURVE_OVERHEAD + len bytes. */
void sn_curve_server_seal(sn_curve_server *curve, uint8_t flags, const void *payload, size_t len, uint8_t *body);

/* The same in pieces. Payload and body stay where they are until it is done. */
typedef struct sn_curve_sealing {
    uint8_t key[SN_KEY_SIZE], nonce[crypto_stream_salsa20_NONCEBYTES]; /* of the stream of this body */
    crypto_onetimeauth_state auth;
    const uint8_t *payload;
    uint8_t *body;
    size_t at, len; /* of the payload */
} sn_curve_sealing;
void sn_curve_server_seal_begin(sn_curve_server *curve, uint8_t flags, const void *payload, size_t len, uint8_t *body,
                                sn_curve_sealing *out);
/* Goes on with at most n bytes, at least 64; true: the body is sealed. */
bool sn_curve_seal_piece(sn_curve_sealing *sealing, size_t n);

#endif
