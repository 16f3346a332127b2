#include "base/sealing.h"

#include <openssl/evp.h>
#include <string.h>

enum { UPDATE_MAX = 1 << 30 }; /* OpenSSL counts in ints */

static EVP_CIPHER_CTX *begin(const sn_seal_piece *p, bool seals) {
    uint8_t nonce[12] = {0};
    int len = 0;
    for (int i = 0; i < 8; i++) nonce[4 + i] = (uint8_t)(p->number >> (8 * i));
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    if (ctx && EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, p->key, nonce, seals) == 1 &&
        (!p->n_head || EVP_CipherUpdate(ctx, NULL, &len, p->head, (int)p->n_head) == 1))
        return ctx;
    EVP_CIPHER_CTX_free(ctx);
    return NULL;
}

static bool update(EVP_CIPHER_CTX *ctx, const uint8_t *from, size_t n, uint8_t *to) {
    bool good = true;
    for (size_t at = 0, part; at < n && good; at += part) {
        int len = 0;
        part = n - at < UPDATE_MAX ? n - at : UPDATE_MAX;
        good = EVP_CipherUpdate(ctx, to + at, &len, from + at, (int)part) == 1;
    }
    return good;
}

bool sn_seal(const sn_seal_piece *piece, const void *from, size_t n, void *to, uint8_t tag[SN_SEAL_TAG]) {
    uint8_t rest[EVP_MAX_BLOCK_LENGTH];
    int len = 0;
    EVP_CIPHER_CTX *ctx = begin(piece, true);
    bool good = ctx && update(ctx, from, n, to) && EVP_CipherFinal_ex(ctx, rest, &len) == 1 &&
                EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, SN_SEAL_TAG, tag) == 1;
    EVP_CIPHER_CTX_free(ctx);
    return good;
}

bool sn_unseal(const sn_seal_piece *piece, const void *from, size_t n, void *to, const uint8_t tag[SN_SEAL_TAG]) {
    uint8_t rest[EVP_MAX_BLOCK_LENGTH], expected[SN_SEAL_TAG];
    int len = 0;
    memcpy(expected, tag, sizeof expected);
    EVP_CIPHER_CTX *ctx = begin(piece, false);
    bool good = ctx && update(ctx, from, n, to) &&
                EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, SN_SEAL_TAG, expected) == 1 &&
                EVP_CipherFinal_ex(ctx, rest, &len) == 1;
    EVP_CIPHER_CTX_free(ctx);
    return good;
}
