/* Who a node or client is: an Ed25519 key pair that signs, and a CURVE (X25519) key pair that connections prove.
 *
 * A node's id is its Ed25519 public key. The file holds both secret keys; it is made with mode 0600 and refused when others
 * may read it. RFC 8032 (Ed25519) through OpenSSL, CurveZMQ keys through libzmq. */
#ifndef SN_NET_IDENTITY_H
#define SN_NET_IDENTITY_H

#include "net/message.h"

enum { SN_SIGNATURE_SIZE = 64 };

typedef struct sn_identity {
    uint8_t id[SN_KEY_SIZE], sign_secret[SN_KEY_SIZE];
    uint8_t curve_key[SN_KEY_SIZE], curve_secret[SN_KEY_SIZE];
} sn_identity;

sn_status sn_identity_new(sn_identity *out, sn_err *err) SN_MUST_USE;
sn_status sn_identity_complete(sn_identity *identity, sn_err *err) SN_MUST_USE; /* the public keys from the two secrets */
sn_status sn_identity_save(const sn_identity *identity, const char *path, sn_err *err) SN_MUST_USE; /* never overwrites */
sn_status sn_identity_load(const char *path, sn_identity *out, sn_err *err) SN_MUST_USE;

sn_status sn_sign(const sn_identity *identity, const void *data, size_t len, uint8_t signature[SN_SIGNATURE_SIZE],
                  sn_err *err) SN_MUST_USE;
/* True if `signature` over the data was made by the holder of `id`. */
bool sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len, const uint8_t signature[SN_SIGNATURE_SIZE]);

#endif
