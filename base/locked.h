/* A file that only who has the key can read, and nobody can change: AES-256-GCM (NIST SP 800-38D) in pieces of 256 KiB, its key by
 * HKDF-SHA256 (RFC 5869) from the secret and a salt of its own. Each piece's number and whether it is the last one are part of
 * what is authenticated, so pieces are neither missing nor exchanged. Written beside its place and moved there when whole. */
#ifndef SN_BASE_LOCKED_H
#define SN_BASE_LOCKED_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The secret: what is in the file, 16 bytes to 64 KiB, which nobody else may read. Wiped by sn_lock_key_fini. */
typedef struct sn_lock_key {
    uint8_t *data;
    size_t len;
} sn_lock_key;
sn_status sn_lock_key_load(const char *path, sn_lock_key *out, sn_err *err) SN_MUST_USE;
void sn_lock_key_fini(sn_lock_key *secret);

typedef struct sn_locked sn_locked;

/* `magic`: 16 bytes that say what the file is; another kind of file is refused by them. */
sn_status sn_locked_create(const char *path, const char magic[17], const sn_lock_key *secret, sn_locked **out,
                           sn_err *err) SN_MUST_USE;
sn_status sn_locked_write(sn_locked *file, const void *data, size_t len, sn_err *err) SN_MUST_USE;
sn_status sn_locked_commit(sn_locked *file, sn_err *err) SN_MUST_USE; /* all of it is on the disk, at its place */

sn_status sn_locked_open(const char *path, const char magic[17], const sn_lock_key *secret, sn_locked **out,
                         sn_err *err) SN_MUST_USE;
/* Exactly `len` bytes; SN_REFUSED: the key is another one, the file is damaged, or it ends before. */
sn_status sn_locked_read(sn_locked *file, void *data, size_t len, sn_err *err) SN_MUST_USE;
sn_status sn_locked_ended(sn_locked *file, sn_err *err) SN_MUST_USE; /* nothing follows */

void sn_locked_close(sn_locked **file); /* NULL-safe; one that was not committed leaves nothing behind */

#endif
