/* SHA-256 (FIPS 180-4) through OpenSSL, hexadecimal text, and random bytes of the system. Any thread may call these
 * functions; a hasher belongs to one thread at a time. */
#ifndef SN_BASE_HASH_H
#define SN_BASE_HASH_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SN_HASH_SIZE = 32 };

typedef struct sn_hash {
    uint8_t bytes[SN_HASH_SIZE];
} sn_hash;

typedef struct sn_hasher sn_hasher; /* a running hash */

/* NULL when memory is out. Free with sn_hasher_free, which accepts NULL. */
sn_hasher *sn_hasher_new(void);
void sn_hasher_free(sn_hasher *hasher);
void sn_hasher_add(sn_hasher *hasher, const void *data, size_t len);
/* Returns the hash and resets the hasher for the next one. */
sn_hash sn_hasher_end(sn_hasher *hasher);

sn_hash sn_hash_of(const void *data, size_t len);

/* Writes `len` bytes as lower-case hexadecimal to `out` (2 * len + 1 characters). Returns out. */
char *sn_hex(const void *data, size_t len, char *out);
/* Parses exactly 2 * len hexadecimal digits. */
sn_status sn_unhex(const char *text, void *out, size_t len, sn_err *err) SN_MUST_USE;

/* Fills `out` with unpredictable bytes. Aborts when the system has none, because nothing is secure then. */
void sn_random(void *out, size_t len);

#endif
