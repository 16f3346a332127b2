/* The identity of a node or client: an Ed25519 key pair, which signs, and a CURVE (X25519) key pair, which connections
 * prove.
 *
 * A node's id is its Ed25519 public key. The identity file holds both secret keys (net/secret_file.h has its rules).
 * RFC 8032 (Ed25519) through OpenSSL, X25519 through libsodium. The functions may be called on any thread. Errors:
 * SN_REFUSED for a file that is none or cannot be used, SN_STOP when a library lacks the algorithm. */
#ifndef SN_NET_IDENTITY_H
#define SN_NET_IDENTITY_H

#include "net/message.h"

enum { SN_SIGNATURE_SIZE = 64 };

typedef struct sn_identity {
    uint8_t id[SN_KEY_SIZE], sign_secret[SN_KEY_SIZE];
    uint8_t curve_key[SN_KEY_SIZE], curve_secret[SN_KEY_SIZE];
} sn_identity;

/* A new random identity. */
sn_status sn_identity_new(sn_identity *out, sn_err *err) SN_MUST_USE;
/* Computes the two public keys from the two secret keys. */
sn_status sn_identity_complete(sn_identity *identity, sn_err *err) SN_MUST_USE;
sn_status sn_identity_save(const sn_identity *identity, const char *path, sn_err *err) SN_MUST_USE;
sn_status sn_identity_load(const char *path, sn_identity *out, sn_err *err) SN_MUST_USE;

sn_status sn_sign(const sn_identity *identity, const void *data, size_t len, uint8_t signature[SN_SIGNATURE_SIZE],
                  sn_err *err) SN_MUST_USE;
/* True if `signature` over the data was made with the secret key of `id`. */
bool sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len, const uint8_t signature[SN_SIGNATURE_SIZE]);

#endif
