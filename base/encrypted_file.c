/* How an encrypted file is written and read. All numbers are little-endian.
 *
 *     file  = magic (16 bytes), salt (16 bytes), chunk, chunk, ...
 *     chunk = header (4 bytes: length of the data, LAST_CHUNK in the highest bit), encrypted data, tag (16 bytes)
 *
 * The key is HKDF-SHA256 of the secret, with the salt as salt and the magic as info: a key encrypts one file only, and
 * a file of another kind has another key. Chunk i is encrypted with the nonce i, and its header is authenticated with
 * it; so a chunk that is missing, moved, changed or not the last one fails its tag. Every chunk but the last is CHUNK
 * bytes.
 *
 * Writing collects data in `data` and encrypts it into `wire` when a chunk is full; commit writes the last chunk,
 * syncs, gives the file its name and syncs the folder. Reading decrypts a chunk as a whole before it returns any
 * byte of it: nothing that was not authenticated leaves this file. */
#include "base/encrypted_file.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/sealing.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 1 << 18,
    TAG = SN_SEAL_TAG,
    SALT = 16,
    MAGIC = 16,
    KEY = SN_SEAL_KEY,
    HEADER = 4,
    SECRET_MIN = 16,
    SECRET_MAX = 1 << 16
};
static const uint32_t LAST_CHUNK = 1u << 31; /* a flag in a chunk's header, next to its length */

struct sn_encrypted_file {
    /* temp_path: a new file's name until it has its own; empty while it has none, after the commit, and when reading */
    char path[PATH_MAX], temp_path[PATH_MAX];
    int fd;
    uint8_t key[KEY];
    uint64_t chunks;  /* chunks written or read so far: the number of the next one */
    bool last;        /* the last chunk was read */
    size_t len, used; /* bytes in `data`; of these, bytes already returned by read */
    uint8_t data[CHUNK], wire[HEADER + CHUNK + TAG];
};

/* -- the secret -- */

sn_status sn_file_key_load(const char *path, sn_file_key *out, sn_err *err) {
    *out = (sn_file_key){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = sn_file_check_secret(fd, path, err);
    if (!status) status = sn_calloc(&out->data, SECRET_MAX, 1, err);
    ssize_t n = status ? 0 : read(fd, out->data, SECRET_MAX);
    close(fd);
    if (!status && n < SECRET_MIN)
        status = sn_fail(err, SN_REFUSED,
                         "%s holds no key: it needs at least %d bytes, for example from head -c 32 /dev/urandom", path,
                         SECRET_MIN);
    if (status)
        sn_file_key_fini(out);
    else
        out->len = (size_t)n;
    return status;
}

void sn_file_key_fini(sn_file_key *secret) {
    if (secret->data) explicit_bzero(secret->data, SECRET_MAX);
    free(secret->data);
    *secret = (sn_file_key){0};
}

static sn_status derive_key(const sn_file_key *secret, const uint8_t salt[SALT], const char *magic, uint8_t key[KEY],
                            sn_err *err) {
    char digest[] = "SHA256";
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret->data, secret->len),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)(uintptr_t)salt, SALT),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)magic, MAGIC),
                           OSSL_PARAM_construct_end()};
    bool good = ctx && EVP_KDF_derive(ctx, key, KEY, params) == 1;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    return good ? SN_OK : sn_fail(err, SN_STOP, "no key can be derived: OpenSSL has no HKDF, or memory is out");
}

/* -- chunks -- */

/* Chunk number f->chunks: the key belongs to this file alone, and chunks are numbered. */
static sn_seal_piece chunk_piece(const sn_encrypted_file *f, const uint8_t head[HEADER]) {
    return (sn_seal_piece){f->key, f->chunks, head, HEADER};
}

static sn_status file_write_all(sn_encrypted_file *f, const void *data, size_t len, sn_err *err) {
    const uint8_t *at = data;
    for (ssize_t n; len; at += n, len -= (size_t)n) {
        n = write(f->fd, at, len);
        if (n < 0 && errno == EINTR)
            n = 0;
        else if (n < 0)
            return sn_fail_write(err, f->path, errno);
    }
    return SN_OK;
}

/* Reads `len` bytes, fewer at the end of the file. Returns how many. */
static size_t file_read_all(sn_encrypted_file *f, uint8_t *data, size_t len) {
    size_t got = 0;
    for (ssize_t n; got < len; got += (size_t)n) {
        n = read(f->fd, data + got, len - got);
        if (n < 0 && errno == EINTR)
            n = 0;
        else if (n <= 0)
            break;
    }
    return got;
}

static sn_status chunk_write(sn_encrypted_file *f, bool last, sn_err *err) {
    uint32_t header = (uint32_t)f->len | (last ? LAST_CHUNK : 0);
    for (int i = 0; i < HEADER; i++) f->wire[i] = (uint8_t)(header >> (8 * i));
    const sn_seal_piece piece = chunk_piece(f, f->wire);
    if (!sn_seal(&piece, f->data, f->len, f->wire + HEADER, f->wire + HEADER + f->len))
        return sn_fail(err, SN_STOP, "out of memory for encrypting %s", f->path);
    sn_status status = file_write_all(f, f->wire, HEADER + f->len + TAG, err);
    f->chunks++;
    f->len = 0;
    return status;
}

static sn_status chunk_read(sn_encrypted_file *f, sn_err *err) {
    if (f->last) return sn_fail(err, SN_REFUSED, "%s ends too soon: it is not a complete file", f->path);
    if (file_read_all(f, f->wire, HEADER) < HEADER) return sn_fail(err, SN_REFUSED, "%s is cut short", f->path);
    uint32_t header = 0;
    for (int i = 0; i < HEADER; i++) header |= (uint32_t)f->wire[i] << (8 * i);
    size_t len = header & ~LAST_CHUNK;
    if (len > CHUNK) return sn_fail(err, SN_REFUSED, "%s is damaged", f->path);
    if (file_read_all(f, f->wire + HEADER, len + TAG) < len + TAG)
        return sn_fail(err, SN_REFUSED, "%s is cut short", f->path);
    const sn_seal_piece piece = chunk_piece(f, f->wire);
    if (!sn_unseal(&piece, f->wire + HEADER, len, f->data, f->wire + HEADER + len))
        return sn_fail(err, SN_REFUSED,
                       f->chunks ? "%s is damaged" : "%s was encrypted with another key, or is damaged", f->path);
    f->chunks++;
    f->last = header & LAST_CHUNK;
    f->len = len;
    f->used = 0;
    return SN_OK;
}

/* -- files -- */

static sn_status encrypted_file_new(const char *path, sn_encrypted_file **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->fd = -1;
    if ((size_t)snprintf((*out)->path, PATH_MAX, "%s", path) >= PATH_MAX - 8) {
        sn_encrypted_file_close(out);
        return sn_fail(err, SN_REFUSED, "the name of the file is too long: %.80s...", path);
    }
    return SN_OK;
}

/* A file without a name, of which nothing is left when the program is killed. Where the file system has no such files,
 * or there is no /proc, through which it gets its name, it has a temporary name from the beginning. */
static int create_unfinished(sn_encrypted_file *f) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", f->path);
    int fd = access("/proc/self/fd", X_OK) ? -1 : open(dirname(copy), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
    int n = snprintf(f->temp_path, PATH_MAX, "%s.XXXXXX", f->path);
    fd = n < PATH_MAX ? mkostemp(f->temp_path, O_CLOEXEC) : -1; /* mode 0600 */
    if (fd < 0) f->temp_path[0] = 0;
    return fd;
}

/* Only a name can replace another one, so a file without one gets a temporary name, for a moment. */
static bool name_unfinished(sn_encrypted_file *f) {
    char nameless[32], name[PATH_MAX], digits[7];
    uint8_t random[3];
    if (f->temp_path[0]) return true;
    sn_random(random, sizeof random);
    sn_hex(random, sizeof random, digits);
    snprintf(nameless, sizeof nameless, "/proc/self/fd/%d", f->fd);
    if (snprintf(name, sizeof name, "%s.%s", f->path, digits) >= PATH_MAX) return false;
    if (linkat(AT_FDCWD, nameless, AT_FDCWD, name, AT_SYMLINK_FOLLOW)) return false;
    snprintf(f->temp_path, PATH_MAX, "%s", name);
    return true;
}

sn_status sn_encrypted_file_create(const char *path, const char magic[17], const sn_file_key *secret,
                                   sn_encrypted_file **out, sn_err *err) {
    uint8_t salt[SALT];
    sn_status status = encrypted_file_new(path, out, err);
    if (status) return status;
    sn_encrypted_file *f = *out;
    f->fd = create_unfinished(f);
    if (f->fd < 0) status = sn_fail_write(err, path, errno);
    sn_random(salt, sizeof salt);
    if (!status) status = derive_key(secret, salt, magic, f->key, err);
    if (!status) status = file_write_all(f, magic, MAGIC, err);
    if (!status) status = file_write_all(f, salt, SALT, err);
    if (status) sn_encrypted_file_close(out);
    return status;
}

sn_status sn_encrypted_file_write(sn_encrypted_file *f, const void *data, size_t len, sn_err *err) {
    for (size_t n; len; data = (const uint8_t *)data + n, len -= n) {
        n = sn_min_size(len, CHUNK - f->len);
        memcpy(f->data + f->len, data, n);
        f->len += n;
        sn_status status = f->len == CHUNK ? chunk_write(f, false, err) : SN_OK;
        if (status) return status;
    }
    return SN_OK;
}

/* The folder must reach the disk, too, or the new name may be lost in a crash. */
static void sync_folder(const char *path) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd);
        close(fd);
    }
}

sn_status sn_encrypted_file_commit(sn_encrypted_file *f, sn_err *err) {
    sn_status status = chunk_write(f, true, err);
    if (status) return status;
    if (fsync(f->fd) || !name_unfinished(f) || rename(f->temp_path, f->path)) return sn_fail_write(err, f->path, errno);
    f->temp_path[0] = 0;
    sync_folder(f->path);
    return SN_OK;
}

sn_status sn_encrypted_file_open(const char *path, const char magic[17], const sn_file_key *secret,
                                 sn_encrypted_file **out, sn_err *err) {
    uint8_t head[MAGIC + SALT];
    sn_status status = encrypted_file_new(path, out, err);
    if (status) return status;
    sn_encrypted_file *f = *out;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        status = sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    else if (file_read_all(f, head, sizeof head) < sizeof head || memcmp(head, magic, MAGIC))
        status = sn_fail(err, SN_REFUSED, "%s is not a saved session", path);
    if (!status) status = derive_key(secret, head + MAGIC, magic, f->key, err);
    if (!status) status = chunk_read(f, err);
    if (status) sn_encrypted_file_close(out);
    return status;
}

sn_status sn_encrypted_file_read(sn_encrypted_file *f, void *data, size_t len, sn_err *err) {
    for (size_t n; len; data = (uint8_t *)data + n, len -= n) {
        sn_status status = f->used == f->len ? chunk_read(f, err) : SN_OK;
        if (status) return status;
        n = sn_min_size(len, f->len - f->used);
        memcpy(data, f->data + f->used, n);
        f->used += n;
    }
    return SN_OK;
}

sn_status sn_encrypted_file_expect_end(sn_encrypted_file *f, sn_err *err) {
    if (f->used == f->len && !f->last) {
        sn_status status = chunk_read(f, err);
        if (status) return status;
    }
    uint8_t byte;
    if (f->used < f->len || !f->last || file_read_all(f, &byte, 1))
        return sn_fail(err, SN_REFUSED, "%s holds more than a saved session", f->path);
    return SN_OK;
}

void sn_encrypted_file_close(sn_encrypted_file **file) {
    sn_encrypted_file *f = *file;
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    if (f->temp_path[0]) unlink(f->temp_path);
    explicit_bzero(f, sizeof *f);
    free(f);
    *file = NULL;
}
