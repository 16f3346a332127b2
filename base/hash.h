/* SHA-256 (FIPS 180-4) through OpenSSL, and bytes from the system's random source. */
#ifndef SN_BASE_HASH_H
#define SN_BASE_HASH_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SN_HASH_SIZE = 32 };

typedef struct sn_hash {
    uint8_t bytes[SN_HASH_SIZE];
} sn_hash;

typedef struct sn_hasher sn_hasher; /* one running hash; used by one thread at a time */

/* NULL when memory is out; free with sn_hasher_free (NULL-safe). */
sn_hasher *sn_hasher_new(void);
void sn_hasher_free(sn_hasher *hasher);
void sn_hasher_add(sn_hasher *hasher, const void *data, size_t len);
/* Gives the hash and makes the hasher ready for the next one. */
sn_hash sn_hasher_end(sn_hasher *hasher);

sn_hash sn_hash_of(const void *data, size_t len);

/* Lower-case hexadecimal of `len` bytes into `out`, which has room for 2 * len + 1. Returns out. */
char *sn_hex(const void *data, size_t len, char *out);
/* Parses exactly 2 * len hexadecimal digits. */
sn_status sn_unhex(const char *text, void *out, size_t len, sn_err *err) SN_MUST_USE;

/* Fills `out` with unpredictable bytes; aborts if the system has none (nothing safe can go on then). */
void sn_random(void *out, size_t len);

#endif
