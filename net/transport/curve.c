/* The handshake, command by command, with the fields of CurveZMQ at their places; then sealed bodies, which are opened
 * as a whole, and sealed as a whole or piece by piece, with the same bytes. */
#include "net/transport/curve_private.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

static_assert(SN_KEY_SIZE == crypto_box_PUBLICKEYBYTES && SN_KEY_SIZE == crypto_box_SECRETKEYBYTES &&
                  SN_KEY_SIZE == crypto_box_BEFORENMBYTES,
              "keys are of X25519");

enum { MAC = crypto_box_MACBYTES, NONCE = crypto_box_NONCEBYTES, SHORT_NONCE = 8, LONG_NONCE = 16 };
#define TEXT_AND_LENGTH(text) (text), (sizeof(text) - 1)

/* Where the fields of the commands are. */
enum {
    HELLO_SIZE = 200,
    HELLO_VERSION_AT = 6,
    HELLO_KEY_AT = 80,
    HELLO_NONCE_AT = 112,
    HELLO_BOX_AT = 120,
    WELCOME_NONCE_AT = 8,
    WELCOME_BOX_AT = 24,
    INITIATE_COOKIE_AT = 9,
    INITIATE_NONCE_AT = INITIATE_COOKIE_AT + SN_CURVE_COOKIE_SIZE,
    INITIATE_BOX_AT = INITIATE_NONCE_AT + SHORT_NONCE,
    VOUCH_SIZE = 2 * SN_KEY_SIZE,
    VOUCH_NONCE_AT = SN_KEY_SIZE, /* in the opened box: key, nonce of the vouch, vouch, metadata */
    VOUCH_AT = VOUCH_NONCE_AT + LONG_NONCE,
    METADATA_AT = VOUCH_AT + VOUCH_SIZE + MAC,
    METADATA_MAX = 1024,
    READY_NONCE_AT = 6,
    READY_BOX_AT = READY_NONCE_AT + SHORT_NONCE,
    MESSAGE_NONCE_AT = 8,
    MESSAGE_MAC_AT = 16,
};
static const char from_client[] = "CurveZMQMESSAGEC", from_server[] = "CurveZMQMESSAGES";
static const char message_name[] = "\x07MESSAGE";
static const char dealer[] = "\x0bSocket-Type\0\0\0\x06" /* metadata: a name and a value with their lengths */
                             "DEALER";

static void make_nonce(uint8_t out[NONCE], const char *prefix, const uint8_t *rest) {
    size_t n = 0;
    for (; prefix[n]; n++) out[n] = (uint8_t)prefix[n];
    memcpy(out + n, rest, NONCE - n);
}

static uint64_t read_counter(const uint8_t *at) {
    uint64_t n = 0;
    for (int i = 0; i < SHORT_NONCE; i++) n = n << 8 | at[i];
    return n;
}

/* The next nonce of this end, big-endian. */
static void write_counter(sn_curve *curve, uint8_t *at) {
    uint64_t n = ++curve->sent;
    for (int i = SHORT_NONCE; i-- > 0; n >>= 8) at[i] = (uint8_t)n;
}

void sn_curve_init(sn_curve *curve, const sn_identity *identity, const uint8_t *server_key) {
    *curve = (sn_curve){.identity = identity, .client = server_key != NULL};
    curve->state = server_key ? SN_CURVE_WELCOME : SN_CURVE_HELLO;
    if (server_key) memcpy(curve->peer_key, server_key, SN_KEY_SIZE);
}

void sn_curve_fini(sn_curve *curve) { sodium_memzero(curve, sizeof *curve); }

static bool has_name(const uint8_t *command, size_t len, const char *name, size_t name_len) {
    return len >= name_len && !memcmp(command, name, name_len);
}

/* HELLO shows that the client knows the server's key. WELCOME has the server's key for this connection and a cookie,
 * which the client returns; the state lives as long as the TCP connection, so the cookie is a random number. */
static size_t answer_hello(sn_curve *curve, const uint8_t *hello, size_t len, uint8_t *welcome) {
    static const uint8_t zeros[64], version[2] = {1, 0};
    uint8_t nonce[NONCE], text[sizeof zeros], shared[SN_KEY_SIZE], content[SN_KEY_SIZE + SN_CURVE_COOKIE_SIZE];
    if (len != HELLO_SIZE || !has_name(hello, len, TEXT_AND_LENGTH("\x05HELLO")) ||
        memcmp(hello + HELLO_VERSION_AT, version, sizeof version) != 0)
        return 0;
    memcpy(curve->peer_short, hello + HELLO_KEY_AT, SN_KEY_SIZE);
    make_nonce(nonce, "CurveZMQHELLO---", hello + HELLO_NONCE_AT);
    if (crypto_box_beforenm(shared, curve->peer_short, curve->identity->curve_secret) ||
        crypto_box_open_easy_afternm(text, hello + HELLO_BOX_AT, sizeof zeros + MAC, nonce, shared) ||
        memcmp(text, zeros, sizeof zeros) != 0)
        return 0;
    crypto_box_keypair(curve->short_key, curve->short_secret);
    memcpy(content, curve->short_key, SN_KEY_SIZE);
    randombytes_buf(curve->cookie, sizeof curve->cookie);
    memcpy(content + SN_KEY_SIZE, curve->cookie, sizeof curve->cookie);
    memcpy(welcome, TEXT_AND_LENGTH("\x07WELCOME"));
    randombytes_buf(welcome + WELCOME_NONCE_AT, LONG_NONCE);
    make_nonce(nonce, "WELCOME-", welcome + WELCOME_NONCE_AT);
    (void)!crypto_box_easy_afternm(welcome + WELCOME_BOX_AT, content, sizeof content, nonce, shared);
    sodium_memzero(shared, sizeof shared);
    curve->state = SN_CURVE_INITIATE;
    return WELCOME_BOX_AT + sizeof content + MAC;
}

/* Whether the metadata, a list of names and values with their lengths before them, says that the peer is a DEALER. */
static bool is_dealer(const uint8_t *metadata, size_t len) {
    while (len) {
        if (has_name(metadata, len, TEXT_AND_LENGTH(dealer))) return true;
        size_t name_len = metadata[0] + 1u;
        if (len < name_len + 4) return false;
        const uint8_t *size = metadata + name_len;
        size_t value_len = (size_t)size[0] << 24 | (size_t)size[1] << 16 | (size_t)size[2] << 8 | size[3];
        if (len - name_len - 4 < value_len) return false;
        metadata += name_len + 4 + value_len;
        len -= name_len + 4 + value_len;
    }
    return false;
}

/* The vouch, which only the owner of the long-term key can make, binds it to this connection's keys. */
static bool vouch_is_valid(const sn_curve *curve, const uint8_t *content) {
    uint8_t nonce[NONCE], vouch[VOUCH_SIZE];
    make_nonce(nonce, "VOUCH---", content + VOUCH_NONCE_AT);
    return !crypto_box_open_easy(vouch, content + VOUCH_AT, VOUCH_SIZE + MAC, nonce, content, curve->short_secret) &&
           !memcmp(vouch, curve->peer_short, SN_KEY_SIZE) &&
           !memcmp(vouch + SN_KEY_SIZE, curve->identity->curve_key, SN_KEY_SIZE);
}

static size_t write_ready(sn_curve *curve, uint8_t *ready) {
    static const char metadata[] = "\x0bSocket-Type\0\0\0\x06ROUTER";
    uint8_t nonce[NONCE];
    memcpy(ready, TEXT_AND_LENGTH("\x05READY"));
    write_counter(curve, ready + READY_NONCE_AT);
    make_nonce(nonce, "CurveZMQREADY---", ready + READY_NONCE_AT);
    (void)!crypto_box_easy_afternm(ready + READY_BOX_AT, (const uint8_t *)metadata, sizeof metadata - 1, nonce,
                                   curve->shared);
    return READY_BOX_AT + sizeof metadata - 1 + MAC;
}

static size_t answer_initiate(sn_curve *curve, const uint8_t *initiate, size_t len, uint8_t *ready) {
    uint8_t nonce[NONCE], content[METADATA_AT + METADATA_MAX];
    if (!has_name(initiate, len, TEXT_AND_LENGTH("\x08INITIATE")) || len < INITIATE_BOX_AT + METADATA_AT + MAC ||
        len > INITIATE_BOX_AT + sizeof content + MAC ||
        sodium_memcmp(initiate + INITIATE_COOKIE_AT, curve->cookie, sizeof curve->cookie) ||
        crypto_box_beforenm(curve->shared, curve->peer_short, curve->short_secret))
        return 0;
    make_nonce(nonce, "CurveZMQINITIATE", initiate + INITIATE_NONCE_AT);
    size_t content_len = len - INITIATE_BOX_AT - MAC;
    if (crypto_box_open_easy_afternm(content, initiate + INITIATE_BOX_AT, content_len + MAC, nonce, curve->shared) ||
        !vouch_is_valid(curve, content) || !is_dealer(content + METADATA_AT, content_len - METADATA_AT))
        return 0;
    memcpy(curve->peer_key, content, SN_KEY_SIZE);
    curve->received = read_counter(initiate + INITIATE_NONCE_AT);
    curve->state = SN_CURVE_READY;
    return write_ready(curve, ready);
}

/* -- the client's side -- */

size_t sn_curve_begin(sn_curve *curve, uint8_t hello[SN_CURVE_ANSWER_MAX]) {
    static const uint8_t zeros[64];
    uint8_t nonce[NONCE];
    memset(hello, 0, HELLO_SIZE);
    memcpy(hello, TEXT_AND_LENGTH("\x05HELLO"));
    hello[HELLO_VERSION_AT] = 1;
    crypto_box_keypair(curve->short_key, curve->short_secret);
    memcpy(hello + HELLO_KEY_AT, curve->short_key, SN_KEY_SIZE);
    write_counter(curve, hello + HELLO_NONCE_AT);
    make_nonce(nonce, "CurveZMQHELLO---", hello + HELLO_NONCE_AT);
    return crypto_box_easy(hello + HELLO_BOX_AT, zeros, sizeof zeros, nonce, curve->peer_key, curve->short_secret)
               ? 0
               : HELLO_SIZE;
}

/* The vouch binds the client's long-term key to this connection's keys; the metadata says what it is. False: there is
 * no such server. */
static bool write_identity(const sn_curve *curve, uint8_t content[METADATA_AT]) {
    uint8_t nonce[NONCE], vouch[VOUCH_SIZE];
    memcpy(content, curve->identity->curve_key, SN_KEY_SIZE);
    randombytes_buf(content + VOUCH_NONCE_AT, LONG_NONCE);
    make_nonce(nonce, "VOUCH---", content + VOUCH_NONCE_AT);
    memcpy(vouch, curve->short_key, SN_KEY_SIZE);
    memcpy(vouch + SN_KEY_SIZE, curve->peer_key, SN_KEY_SIZE);
    return !crypto_box_easy(content + VOUCH_AT, vouch, VOUCH_SIZE, nonce, curve->peer_short,
                            curve->identity->curve_secret);
}

/* WELCOME, which only the owner of the server's key can make, has its key for this connection. INITIATE returns the
 * cookie and names the client. */
static size_t answer_welcome(sn_curve *curve, const uint8_t *welcome, size_t len, uint8_t *initiate) {
    uint8_t nonce[NONCE], keys[SN_KEY_SIZE + SN_CURVE_COOKIE_SIZE], content[METADATA_AT + sizeof dealer - 1];
    static_assert(INITIATE_BOX_AT + sizeof content + MAC <= SN_CURVE_ANSWER_MAX, "INITIATE has its place");
    if (len != WELCOME_BOX_AT + sizeof keys + MAC || !has_name(welcome, len, TEXT_AND_LENGTH("\x07WELCOME"))) return 0;
    make_nonce(nonce, "WELCOME-", welcome + WELCOME_NONCE_AT);
    if (crypto_box_open_easy(keys, welcome + WELCOME_BOX_AT, sizeof keys + MAC, nonce, curve->peer_key,
                             curve->short_secret))
        return 0;
    memcpy(curve->peer_short, keys, SN_KEY_SIZE);
    if (!write_identity(curve, content) || crypto_box_beforenm(curve->shared, curve->peer_short, curve->short_secret))
        return 0;
    memcpy(content + METADATA_AT, dealer, sizeof dealer - 1);
    memcpy(initiate, TEXT_AND_LENGTH("\x08INITIATE"));
    memcpy(initiate + INITIATE_COOKIE_AT, keys + SN_KEY_SIZE, SN_CURVE_COOKIE_SIZE);
    write_counter(curve, initiate + INITIATE_NONCE_AT);
    make_nonce(nonce, "CurveZMQINITIATE", initiate + INITIATE_NONCE_AT);
    (void)!crypto_box_easy_afternm(initiate + INITIATE_BOX_AT, content, sizeof content, nonce, curve->shared);
    curve->state = SN_CURVE_READY_COMMAND;
    return INITIATE_BOX_AT + sizeof content + MAC;
}

/* READY, which only a server with the key of this connection can make, ends the handshake. Its metadata says nothing
 * that matters here. */
static bool take_ready(sn_curve *curve, const uint8_t *ready, size_t len) {
    uint8_t nonce[NONCE], metadata[METADATA_MAX];
    if (len < READY_BOX_AT + MAC || len > READY_BOX_AT + sizeof metadata + MAC ||
        !has_name(ready, len, TEXT_AND_LENGTH("\x05READY")))
        return false;
    make_nonce(nonce, "CurveZMQREADY---", ready + READY_NONCE_AT);
    if (crypto_box_open_easy_afternm(metadata, ready + READY_BOX_AT, len - READY_BOX_AT, nonce, curve->shared))
        return false;
    curve->received = read_counter(ready + READY_NONCE_AT);
    curve->state = SN_CURVE_READY;
    return true;
}

bool sn_curve_answer(sn_curve *curve, const uint8_t *command, size_t len, uint8_t answer[SN_CURVE_ANSWER_MAX],
                     size_t *answer_len) {
    *answer_len = 0;
    switch (curve->state) {
    case SN_CURVE_HELLO:
        return (*answer_len = answer_hello(curve, command, len, answer)) > 0;
    case SN_CURVE_INITIATE:
        return (*answer_len = answer_initiate(curve, command, len, answer)) > 0;
    case SN_CURVE_WELCOME:
        return (*answer_len = answer_welcome(curve, command, len, answer)) > 0;
    case SN_CURVE_READY_COMMAND:
        return take_ready(curve, command, len);
    case SN_CURVE_READY:
        break;
    }
    return false;
}

/* -- sealed bodies -- */

bool sn_curve_open(sn_curve *curve, uint8_t *body, size_t len) {
    uint8_t nonce[NONCE], *text = body + SN_CURVE_FLAGS_AT;
    if (curve->state != SN_CURVE_READY || len < SN_CURVE_OVERHEAD ||
        !has_name(body, len, TEXT_AND_LENGTH(message_name)))
        return false;
    uint64_t counter = read_counter(body + MESSAGE_NONCE_AT);
    make_nonce(nonce, curve->client ? from_server : from_client, body + MESSAGE_NONCE_AT);
    if (counter <= curve->received || crypto_box_open_detached_afternm(text, text, body + MESSAGE_MAC_AT,
                                                                       len - SN_CURVE_FLAGS_AT, nonce, curve->shared))
        return false;
    curve->received = counter;
    return true;
}

/* The body is a box of NaCl (crypto_box_afternm): the first 32 bytes of the stream are the authenticator's key, the
 * text takes those that follow, so that the rest of the first block is a piece of its own. */
enum { BLOCK = 64, AUTH_KEY = crypto_onetimeauth_KEYBYTES, FIRST_PIECE = BLOCK - AUTH_KEY - 1 };

void sn_curve_seal_begin(sn_curve *curve, uint8_t flags, const void *payload, size_t len, uint8_t *body,
                         sn_curve_sealing *out) {
    uint8_t nonce[NONCE], block[BLOCK] = {0};
    const size_t first = len < FIRST_PIECE ? len : FIRST_PIECE;
    *out = (sn_curve_sealing){.payload = payload, .body = body, .at = first, .len = len};
    memcpy(body, TEXT_AND_LENGTH(message_name));
    write_counter(curve, body + MESSAGE_NONCE_AT);
    make_nonce(nonce, curve->client ? from_client : from_server, body + MESSAGE_NONCE_AT);
    memcpy(out->nonce, nonce + crypto_core_hsalsa20_INPUTBYTES, sizeof out->nonce);
    (void)!crypto_core_hsalsa20(out->key, nonce, curve->shared, NULL);
    block[AUTH_KEY] = flags;
    if (first) memcpy(block + AUTH_KEY + 1, payload, first);
    (void)!crypto_stream_salsa20_xor(block, block, sizeof block, out->nonce, out->key);
    crypto_onetimeauth_init(&out->auth, block);
    memcpy(body + SN_CURVE_FLAGS_AT, block + AUTH_KEY, 1 + first);
    crypto_onetimeauth_update(&out->auth, body + SN_CURVE_FLAGS_AT, 1 + first);
    sodium_memzero(block, sizeof block);
}

bool sn_curve_seal_piece(sn_curve_sealing *s, size_t n) {
    n = s->len - s->at < n ? s->len - s->at : n - n % BLOCK;
    uint8_t *text = s->body + SN_CURVE_OVERHEAD + s->at;
    if (n) {
        (void)!crypto_stream_salsa20_xor_ic(text, s->payload + s->at, n, s->nonce, 1 + (s->at - FIRST_PIECE) / BLOCK,
                                            s->key);
        crypto_onetimeauth_update(&s->auth, text, n);
    }
    s->at += n;
    if (s->at < s->len) return false;
    crypto_onetimeauth_final(&s->auth, s->body + MESSAGE_MAC_AT);
    sodium_memzero(s, sizeof *s);
    return true;
}

void sn_curve_seal(sn_curve *curve, uint8_t flags, const void *payload, size_t len, uint8_t *body) {
    sn_curve_sealing sealing;
    sn_curve_seal_begin(curve, flags, payload, len, body, &sealing);
    while (!sn_curve_seal_piece(&sealing, SIZE_MAX)) continue;
}
