#include "base/locked.h"

#include "base/hash.h"
#include "base/mem.h"

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

enum { PIECE = 1 << 18, TAG = 16, SALT = 16, MAGIC = 16, KEY = 32, HEAD = 4, SECRET_MIN = 16, SECRET_MAX = 1 << 16 };
static const uint32_t LAST = 1u << 31; /* in a piece's head, beside its length */

struct sn_locked {
    char path[PATH_MAX], beside[PATH_MAX]; /* beside: where it is written; empty: it is read, or at its place */
    int fd;
    uint8_t key[KEY];
    uint64_t pieces; /* so far */
    bool last;       /* was read */
    size_t len, used; /* of data */
    uint8_t data[PIECE], wire[HEAD + PIECE + TAG];
};

/* -- the secret ---------------------------------------------------------------------------------------------------- */

sn_status sn_lock_key_load(const char *path, sn_lock_key *out, sn_err *err) {
    struct stat st;
    *out = (sn_lock_key){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = SN_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) status = sn_fail(err, SN_REFUSED, "%s is no file", path);
    else if (st.st_mode & 077) status = sn_fail(err, SN_REFUSED, "%s may be read by others: chmod 600 it", path);
    if (!status) status = sn_calloc(&out->data, SECRET_MAX, 1, err);
    ssize_t n = status ? 0 : read(fd, out->data, SECRET_MAX);
    close(fd);
    if (!status && n < SECRET_MIN)
        status = sn_fail(err, SN_REFUSED, "%s holds no key: %d bytes at least, as of head -c 32 /dev/urandom", path, SECRET_MIN);
    if (status) sn_lock_key_fini(out);
    else out->len = (size_t)n;
    return status;
}

void sn_lock_key_fini(sn_lock_key *secret) {
    if (secret->data) explicit_bzero(secret->data, SECRET_MAX);
    free(secret->data);
    *secret = (sn_lock_key){0};
}

static sn_status derive(const sn_lock_key *secret, const uint8_t salt[SALT], const char *magic, uint8_t key[KEY], sn_err *err) {
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

/* -- pieces -------------------------------------------------------------------------------------------------------- */

/* Encrypts or decrypts n bytes of piece `number`; `head` is authenticated with it. False: memory is out, or (decrypting) it is not
 * what was encrypted. */
static bool crypt_piece(const sn_locked *f, bool encrypt, const uint8_t head[HEAD], const uint8_t *from, size_t n, uint8_t *to,
                        uint8_t tag[TAG]) {
    uint8_t nonce[12] = {0}; /* never used twice with a key: it is of this file alone, and pieces are counted */
    for (int i = 0; i < 8; i++) nonce[4 + i] = (uint8_t)(f->pieces >> (8 * i));
    int len = 0;
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    bool good = ctx && EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, f->key, nonce, encrypt) == 1 &&
                EVP_CipherUpdate(ctx, NULL, &len, head, HEAD) == 1 && EVP_CipherUpdate(ctx, to, &len, from, (int)n) == 1;
    if (good && !encrypt) good = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG, tag) == 1;
    good = good && EVP_CipherFinal_ex(ctx, to + n, &len) == 1;
    if (good && encrypt) good = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG, tag) == 1;
    EVP_CIPHER_CTX_free(ctx);
    return good;
}

static sn_status write_all(sn_locked *f, const void *data, size_t len, sn_err *err) {
    const uint8_t *at = data;
    for (ssize_t n; len; at += n, len -= (size_t)n) {
        n = write(f->fd, at, len);
        if (n < 0 && errno == EINTR) n = 0;
        else if (n < 0) return sn_fail(err, SN_REFUSED, "%s cannot be written: %s", f->path, strerror(errno));
    }
    return SN_OK;
}

/* Bytes until `len` or the file's end. */
static size_t read_all(sn_locked *f, uint8_t *data, size_t len) {
    size_t got = 0;
    for (ssize_t n; got < len; got += (size_t)n) {
        n = read(f->fd, data + got, len - got);
        if (n < 0 && errno == EINTR) n = 0;
        else if (n <= 0) break;
    }
    return got;
}

static sn_status write_piece(sn_locked *f, bool last, sn_err *err) {
    uint32_t word = (uint32_t)f->len | (last ? LAST : 0);
    for (int i = 0; i < HEAD; i++) f->wire[i] = (uint8_t)(word >> (8 * i));
    if (!crypt_piece(f, true, f->wire, f->data, f->len, f->wire + HEAD, f->wire + HEAD + f->len))
        return sn_fail(err, SN_STOP, "out of memory for encrypting %s", f->path);
    sn_status status = write_all(f, f->wire, HEAD + f->len + TAG, err);
    f->pieces++;
    f->len = 0;
    return status;
}

static sn_status read_piece(sn_locked *f, sn_err *err) {
    if (f->last) return sn_fail(err, SN_REFUSED, "%s ends too soon: it is no whole saved file", f->path);
    if (read_all(f, f->wire, HEAD) < HEAD) return sn_fail(err, SN_REFUSED, "%s is cut short", f->path);
    uint32_t word = 0;
    for (int i = 0; i < HEAD; i++) word |= (uint32_t)f->wire[i] << (8 * i);
    size_t len = word & ~LAST;
    if (len > PIECE) return sn_fail(err, SN_REFUSED, "%s is damaged", f->path);
    if (read_all(f, f->wire + HEAD, len + TAG) < len + TAG) return sn_fail(err, SN_REFUSED, "%s is cut short", f->path);
    if (!crypt_piece(f, false, f->wire, f->wire + HEAD, len, f->data, f->wire + HEAD + len))
        return sn_fail(err, SN_REFUSED, f->pieces ? "%s is damaged" : "%s was locked with another key, or is damaged", f->path);
    f->pieces++;
    f->last = word & LAST;
    f->len = len;
    f->used = 0;
    return SN_OK;
}

/* -- files --------------------------------------------------------------------------------------------------------- */

static sn_status new_locked(const char *path, sn_locked **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->fd = -1;
    if ((size_t)snprintf((*out)->path, PATH_MAX, "%s", path) >= PATH_MAX - 8) {
        sn_locked_close(out);
        return sn_fail(err, SN_REFUSED, "the file's name is too long");
    }
    return SN_OK;
}

sn_status sn_locked_create(const char *path, const char magic[17], const sn_lock_key *secret, sn_locked **out, sn_err *err) {
    uint8_t salt[SALT];
    sn_status status = new_locked(path, out, err);
    if (status) return status;
    sn_locked *f = *out;
    memcpy(f->beside, f->path, strlen(f->path));
    memcpy(f->beside + strlen(f->path), ".XXXXXX", 8);
    f->fd = mkostemp(f->beside, O_CLOEXEC); /* mode 0600 */
    if (f->fd < 0) {
        f->beside[0] = 0;
        status = sn_fail(err, SN_REFUSED, "%s cannot be written: %s", path, strerror(errno));
    }
    sn_random(salt, sizeof salt);
    if (!status) status = derive(secret, salt, magic, f->key, err);
    if (!status) status = write_all(f, magic, MAGIC, err);
    if (!status) status = write_all(f, salt, SALT, err);
    if (status) sn_locked_close(out);
    return status;
}

sn_status sn_locked_write(sn_locked *f, const void *data, size_t len, sn_err *err) {
    for (size_t n; len; data = (const uint8_t *)data + n, len -= n) {
        n = sn_min_size(len, PIECE - f->len);
        memcpy(f->data + f->len, data, n);
        f->len += n;
        sn_status status = f->len == PIECE ? write_piece(f, false, err) : SN_OK;
        if (status) return status;
    }
    return SN_OK;
}

/* The folder, too, has to be on the disk, or the name may be lost. */
static void sync_folder(const char *path) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd);
        close(fd);
    }
}

sn_status sn_locked_commit(sn_locked *f, sn_err *err) {
    sn_status status = write_piece(f, true, err);
    if (status) return status;
    if (fsync(f->fd) || rename(f->beside, f->path))
        return sn_fail(err, SN_REFUSED, "%s cannot be written: %s", f->path, strerror(errno));
    f->beside[0] = 0;
    sync_folder(f->path);
    return SN_OK;
}

sn_status sn_locked_open(const char *path, const char magic[17], const sn_lock_key *secret, sn_locked **out, sn_err *err) {
    uint8_t head[MAGIC + SALT];
    sn_status status = new_locked(path, out, err);
    if (status) return status;
    sn_locked *f = *out;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) status = sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    else if (read_all(f, head, sizeof head) < sizeof head || memcmp(head, magic, MAGIC))
        status = sn_fail(err, SN_REFUSED, "%s is no saved session", path);
    if (!status) status = derive(secret, head + MAGIC, magic, f->key, err);
    if (!status) status = read_piece(f, err);
    if (status) sn_locked_close(out);
    return status;
}

sn_status sn_locked_read(sn_locked *f, void *data, size_t len, sn_err *err) {
    for (size_t n; len; data = (uint8_t *)data + n, len -= n) {
        sn_status status = f->used == f->len ? read_piece(f, err) : SN_OK;
        if (status) return status;
        n = sn_min_size(len, f->len - f->used);
        memcpy(data, f->data + f->used, n);
        f->used += n;
    }
    return SN_OK;
}

sn_status sn_locked_ended(sn_locked *f, sn_err *err) {
    if (f->used == f->len && !f->last) {
        sn_status status = read_piece(f, err);
        if (status) return status;
    }
    uint8_t byte;
    if (f->used < f->len || !f->last || read_all(f, &byte, 1))
        return sn_fail(err, SN_REFUSED, "%s holds more than a saved session", f->path);
    return SN_OK;
}

void sn_locked_close(sn_locked **file) {
    sn_locked *f = *file;
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    if (f->beside[0]) unlink(f->beside);
    explicit_bzero(f, sizeof *f);
    free(f);
    *file = NULL;
}
