#include "base/hash.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct sn_hasher {
    EVP_MD_CTX *ctx;
};

sn_hasher *sn_hasher_new(void) {
    sn_hasher *hasher = calloc(1, sizeof *hasher);
    if (!hasher) return NULL;
    hasher->ctx = EVP_MD_CTX_new();
    if (!hasher->ctx || EVP_DigestInit_ex(hasher->ctx, EVP_sha256(), NULL) != 1) {
        sn_hasher_free(hasher);
        return NULL;
    }
    return hasher;
}

void sn_hasher_free(sn_hasher *hasher) {
    if (!hasher) return;
    EVP_MD_CTX_free(hasher->ctx);
    free(hasher);
}

void sn_hasher_add(sn_hasher *hasher, const void *data, size_t len) { EVP_DigestUpdate(hasher->ctx, data, len); }

sn_hash sn_hasher_end(sn_hasher *hasher) {
    sn_hash hash;
    EVP_DigestFinal_ex(hasher->ctx, hash.bytes, NULL);
    EVP_DigestInit_ex(hasher->ctx, EVP_sha256(), NULL);
    return hash;
}

sn_hash sn_hash_of(const void *data, size_t len) {
    sn_hash hash;
    EVP_Digest(data, len, hash.bytes, NULL, EVP_sha256(), NULL);
    return hash;
}

char *sn_hex(const void *data, size_t len, char *out) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = data;
    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * len] = 0;
    return out;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

sn_status sn_unhex(const char *text, void *out, size_t len, sn_err *err) {
    if (strlen(text) != 2 * len)
        return sn_fail(err, SN_REFUSED, "'%.80s' must have %zu hexadecimal digits", text, 2 * len);
    for (size_t i = 0; i < len; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return sn_fail(err, SN_REFUSED, "'%.80s' is not hexadecimal", text);
        ((uint8_t *)out)[i] = (uint8_t)(high << 4 | low);
    }
    return SN_OK;
}

void sn_random(void *out, size_t len) {
    uint8_t *p = out;
    while (len) {
        ssize_t got = getrandom(p, len, 0);
        if (got <= 0) abort();
        p += got;
        len -= (size_t)got;
    }
}
