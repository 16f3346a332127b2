#include "base/tag.h"

#include "base/hash.h"
#include "base/mem.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { NONCE_SIZE = 12, PIECE = 1 << 30 }; /* OpenSSL's lengths are ints */

struct sn_tagger {
    EVP_CIPHER_CTX *ctx;
    uint64_t number;
    bool good;
};

static uint8_t key[16];
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t last_number;

static void make_key(void) { sn_random(key, sizeof key); }

sn_tagger *sn_tagger_new(void) {
    sn_tagger *tagger = calloc(1, sizeof *tagger);
    if (!tagger) return NULL;
    pthread_once(&key_once, make_key);
    tagger->ctx = EVP_CIPHER_CTX_new();
    if (!tagger->ctx || EVP_EncryptInit_ex(tagger->ctx, EVP_aes_128_gcm(), NULL, key, NULL) != 1) {
        sn_tagger_free(tagger);
        return NULL;
    }
    return tagger;
}

void sn_tagger_free(sn_tagger *tagger) {
    if (!tagger) return;
    EVP_CIPHER_CTX_free(tagger->ctx);
    free(tagger);
}

void sn_tagger_begin(sn_tagger *t, const sn_tag *known) {
    uint8_t nonce[NONCE_SIZE] = {0};
    t->number = known && known->number ? known->number : atomic_fetch_add(&last_number, 1) + 1;
    memcpy(nonce, &t->number, sizeof t->number);
    t->good = EVP_EncryptInit_ex(t->ctx, NULL, NULL, NULL, nonce) == 1;
}

/* GMAC is GCM with nothing to encrypt: all bytes are "additional" ones. */
void sn_tagger_add(sn_tagger *t, const void *data, size_t len) {
    const uint8_t *at = data;
    int unused;
    for (size_t n; len; at += n, len -= n) {
        n = sn_min_size(len, PIECE);
        t->good = t->good && EVP_EncryptUpdate(t->ctx, NULL, &unused, at, (int)n) == 1;
    }
}

sn_tag sn_tagger_end(sn_tagger *t) {
    sn_tag tag = {.number = t->number};
    int unused;
    t->good = t->good && EVP_EncryptFinal_ex(t->ctx, tag.bytes, &unused) == 1 &&
              EVP_CIPHER_CTX_ctrl(t->ctx, EVP_CTRL_GCM_GET_TAG, sizeof tag.bytes, tag.bytes) == 1;
    return t->good ? tag : (sn_tag){0};
}

bool sn_tag_equal(const sn_tag *a, const sn_tag *b) {
    return a->number && a->number == b->number && !CRYPTO_memcmp(a->bytes, b->bytes, sizeof a->bytes);
}
