/* A CURVE client written from the specifications (RFC 26, RFC 37) that can misbehave: it makes the bytes that a DEALER
 * sends, command by command. Tests put them into the listening end in the order that they like. */
#ifndef SN_TESTS_CURVE_CLIENT_H
#define SN_TESTS_CURVE_CLIENT_H

#include "net/transport/zmtp_private.h" /* private: the listening end without a socket */

typedef struct curve_client {
    sn_identity identity;
    const sn_identity *server;
    uint8_t short_key[SN_KEY_SIZE], short_secret[SN_KEY_SIZE], shared[SN_KEY_SIZE];
    uint64_t nonce;
    const char *socket_type; /* "DEALER" unless a test changes it */
} curve_client;

void curve_client_init(curve_client *client, const sn_identity *server);
/* Each appends what a client sends; the second one reads WELCOME, as bytes of the server, to answer it. */
void curve_client_greeting(sn_buf *out);
void curve_client_hello(curve_client *client, sn_buf *out);
void curve_client_initiate(curve_client *client, const uint8_t welcome[168], sn_buf *out);
/* A sealed frame: flags 1 more, 2 command. */
void curve_client_frame(curve_client *client, uint8_t flags, const void *payload, size_t len, sn_buf *out);
void curve_append(sn_buf *out, const void *data, size_t len); /* or ends the process */

/* Takes the bytes that wait in `z` for the client. */
size_t curve_take_output(sn_zmtp *z, uint8_t *out, size_t capacity);
/* A whole handshake between the client and `z`; ends the process when the listening end refuses it. */
void curve_client_connect(curve_client *client, sn_zmtp *z);

#endif
