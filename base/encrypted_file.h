/* An encrypted file that only a holder of the key can read, and that cannot be changed unnoticed. The client saves
 * sessions in such files (client/generate/session_file.h).
 *
 * The data are encrypted with AES-256-GCM (NIST SP 800-38D) in chunks of 256 KiB. The file's key comes from HKDF-SHA256
 * (RFC 5869) over the secret and the file's own random salt. A chunk's number, and whether it is the last one, are
 * authenticated with it, so that chunks cannot be removed or reordered. A new file has its name, or replaces an older
 * one, when it is complete; of one that is not, nothing is left, also when the program is killed, where the file system
 * has files without a name (O_TMPFILE).
 *
 * A file belongs to one thread at a time. SN_REFUSED: the file cannot be opened, is damaged, or was encrypted with
 * another key; SN_STOP: memory is out. */
#ifndef SN_BASE_ENCRYPTED_FILE_H
#define SN_BASE_ENCRYPTED_FILE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The secret: the contents of a file of 16 bytes to 64 KiB that no other user may read. sn_file_key_fini wipes it. */
typedef struct sn_file_key {
    uint8_t *data;
    size_t len;
} sn_file_key;
sn_status sn_file_key_load(const char *path, sn_file_key *out, sn_err *err) SN_MUST_USE;
void sn_file_key_fini(sn_file_key *secret);

typedef struct sn_encrypted_file sn_encrypted_file;

/* `magic`: 16 bytes that name the kind of file; a file of another kind is refused. */
sn_status sn_encrypted_file_create(const char *path, const char magic[17], const sn_file_key *secret,
                                   sn_encrypted_file **out, sn_err *err) SN_MUST_USE;
sn_status sn_encrypted_file_write(sn_encrypted_file *file, const void *data, size_t len, sn_err *err) SN_MUST_USE;
/* writes the last chunk, syncs to disk and renames the file to its place */
sn_status sn_encrypted_file_commit(sn_encrypted_file *file, sn_err *err) SN_MUST_USE;

sn_status sn_encrypted_file_open(const char *path, const char magic[17], const sn_file_key *secret,
                                 sn_encrypted_file **out, sn_err *err) SN_MUST_USE;
/* Reads exactly `len` bytes. SN_REFUSED: the key is another one, the file is damaged, or it ends too soon. */
sn_status sn_encrypted_file_read(sn_encrypted_file *file, void *data, size_t len, sn_err *err) SN_MUST_USE;
/* SN_REFUSED when more data follow */
sn_status sn_encrypted_file_expect_end(sn_encrypted_file *file, sn_err *err) SN_MUST_USE;

void sn_encrypted_file_close(sn_encrypted_file **file); /* accepts NULL; a file that was not committed is removed */

#endif
