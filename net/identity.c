#include "net/identity.h"

#include "net/secret_file.h"

#include <openssl/evp.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { HEX_SIZE = 2 * SN_KEY_SIZE, FILE_SIZE_MAX = 512 };

static const char file_header[] = "swarm identity 1\n";

/* -- keys -- */

static sn_status sign_public(const uint8_t secret[SN_KEY_SIZE], uint8_t out[SN_KEY_SIZE], sn_err *err) {
    size_t len = SN_KEY_SIZE;
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, secret, SN_KEY_SIZE);
    bool good = key && EVP_PKEY_get_raw_public_key(key, out, &len) == 1 && len == SN_KEY_SIZE;
    EVP_PKEY_free(key);
    return good ? SN_OK
                : sn_fail(err, SN_STOP,
                          "OpenSSL cannot make an Ed25519 key: check that its configuration allows Ed25519");
}

sn_status sn_identity_complete(sn_identity *identity, sn_err *err) {
    sn_status status = sign_public(identity->sign_secret, identity->id, err);
    if (!status && crypto_scalarmult_base(identity->curve_key, identity->curve_secret))
        status = sn_fail(err, SN_STOP, "libsodium cannot make a CURVE key");
    return status;
}

sn_status sn_identity_new(sn_identity *out, sn_err *err) {
    *out = (sn_identity){0};
    sn_random(out->sign_secret, sizeof out->sign_secret);
    sn_random(out->curve_secret, sizeof out->curve_secret); /* X25519 clamps them where it uses them */
    return sn_identity_complete(out, err);
}

sn_status sn_sign(const sn_identity *identity, const void *data, size_t len, uint8_t signature[SN_SIGNATURE_SIZE],
                  sn_err *err) {
    size_t size = SN_SIGNATURE_SIZE;
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, identity->sign_secret, SN_KEY_SIZE);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = key && ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, key) == 1 &&
                EVP_DigestSign(ctx, signature, &size, data, len) == 1 && size == SN_SIGNATURE_SIZE;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    return good ? SN_OK : sn_fail(err, SN_STOP, "OpenSSL cannot sign with this identity");
}

bool sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
               const uint8_t signature[SN_SIGNATURE_SIZE]) {
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, id, SN_KEY_SIZE);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = key && ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key) == 1 &&
                EVP_DigestVerify(ctx, signature, SN_SIGNATURE_SIZE, data, len) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    return good;
}

/* -- the file -- */

sn_status sn_identity_save(const sn_identity *identity, const char *path, sn_err *err) {
    char text[FILE_SIZE_MAX], sign[HEX_SIZE + 1], curve[HEX_SIZE + 1];
    int len =
        snprintf(text, sizeof text, "%ssign %s\ncurve %s\n", file_header,
                 sn_hex(identity->sign_secret, SN_KEY_SIZE, sign), sn_hex(identity->curve_secret, SN_KEY_SIZE, curve));
    sn_status status = sn_secret_save(path, text, (size_t)len, "an identity", err);
    explicit_bzero(text, sizeof text);
    explicit_bzero(sign, sizeof sign);
    explicit_bzero(curve, sizeof curve);
    return status;
}

/* Reads "word <64 hexadecimal digits>\n" and moves *at past it. */
static bool parse_line(const char **at, const char *word, uint8_t out[SN_KEY_SIZE]) {
    char digits[HEX_SIZE + 1];
    size_t len = strlen(word);
    if (strncmp(*at, word, len) != 0) return false;
    *at += len;
    if (strlen(*at) < HEX_SIZE + 1 || (*at)[HEX_SIZE] != '\n') return false;
    memcpy(digits, *at, HEX_SIZE);
    digits[HEX_SIZE] = 0;
    *at += HEX_SIZE + 1;
    bool good = sn_unhex(digits, out, SN_KEY_SIZE, NULL) == SN_OK;
    explicit_bzero(digits, sizeof digits);
    return good;
}

static bool parse_file(const char *text, size_t len, sn_identity *out) {
    const char *at = text;
    if (strlen(text) != len || strncmp(at, file_header, strlen(file_header)) != 0) return false;
    at += strlen(file_header);
    return parse_line(&at, "sign ", out->sign_secret) && parse_line(&at, "curve ", out->curve_secret) && !*at;
}

sn_status sn_identity_load(const char *path, sn_identity *out, sn_err *err) {
    char text[FILE_SIZE_MAX + 1] = {0};
    sn_identity read_one = {0};
    size_t len = 0;
    sn_status status = sn_secret_load(path, text, FILE_SIZE_MAX, &len, err);
    if (!status && !parse_file(text, len, &read_one))
        status = sn_fail(err, SN_REFUSED, "%s is no identity file: make one with swarm keygen", path);
    if (!status) status = sn_identity_complete(&read_one, err);
    if (!status) *out = read_one;
    explicit_bzero(text, sizeof text);
    explicit_bzero(&read_one, sizeof read_one);
    return status;
}
