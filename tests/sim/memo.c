/* Opened announcements and verified Ed25519 signatures, kept once for the whole process, so that many simulated nodes
 * neither repeat the same work nor hold the same bytes. The linker replaces the functions of net/ and node/membership/
 * that open, copy and free announcements by those below.
 *
 * An announcement is found by its signature, and is the one that is kept if all of its bytes are the same, so that the
 * results are those of the real functions. It is kept while a directory or a message owns it: copies that a node puts
 * into a message are the kept bytes themselves. */
#include "net/codec_private.h" /* private: knows the lists in messages that may hold shared bytes */
#include "net/directory.h"
#include "node/membership/membership_private.h" /* private: replaces the function that copies announcements */
#include "tests/sim/net.h"

#include <stdlib.h>
#include <string.h>

typedef struct memo {
    size_t owners;
    struct memo *next; /* of the same slot */
    sn_opened opened;  /* the last member: it is allocated up to the last hash of its span, then the sealed bytes */
} memo;

enum { SLOTS = 1 << 17 };
static memo *slots[SLOTS];

static bool fake_signatures;

sn_status __real_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err);
sn_status __wrap_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err);
bool __real_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]);
bool __wrap_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]);
sn_status __real_sn_announcement_peek(const void *data, size_t len, uint8_t node[SN_KEY_SIZE], uint64_t *sequence,
                                      sn_err *err);
sn_status __wrap_sn_announcement_peek(const void *data, size_t len, uint8_t node[SN_KEY_SIZE], uint64_t *sequence,
                                      sn_err *err);
sn_status __wrap_sn_opened_new(const void *data, size_t len, int64_t now_unix_ms, const sn_opened **out, sn_err *err);
void __wrap_sn_opened_release(const sn_opened *opened);
sn_status __real_sn_membership_copy_blob(const sn_blob *from, sn_blob *to, sn_err *err);
sn_status __wrap_sn_membership_copy_blob(const sn_blob *from, sn_blob *to, sn_err *err);
void __real_sn_schema_fini(const sn_schema *schema, void *structure);
void __wrap_sn_schema_fini(const sn_schema *schema, void *structure);

static memo **slot_of(const uint8_t *data, size_t len) {
    uint64_t head; /* of the signature */
    memcpy(&head, data + len - SN_SIGNATURE_SIZE, sizeof head);
    return &slots[head % SLOTS];
}

/* The announcement of these bytes, or NULL. */
static memo *find_memo(const uint8_t *data, size_t len) {
    if (len <= SN_SIGNATURE_SIZE) return NULL;
    for (memo *m = *slot_of(data, len); m; m = m->next) {
        const sn_blob *sealed = &m->opened.sealed;
        if (sealed->data == data || (sealed->len == len && !memcmp(sealed->data, data, len))) return m;
    }
    return NULL;
}

static void release_memo(memo *m) {
    if (--m->owners) return;
    memo **at = slot_of(m->opened.sealed.data, m->opened.sealed.len);
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    free(m);
}

/* -- signatures -- */

void sim_fake_signatures(void) { fake_signatures = true; }

static void fake_signature(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                           uint8_t signature[SN_SIGNATURE_SIZE]) {
    uint64_t state[SN_SIGNATURE_SIZE / 8], x;
    memcpy(state, id, SN_KEY_SIZE);
    memcpy(state + 4, id, SN_KEY_SIZE);
    for (size_t i = 0; i < len; i += 8) {
        x = i;
        memcpy(&x, (const uint8_t *)data + i, len - i < 8 ? len - i : 8);
        state[i / 8 % 8] = ((state[i / 8 % 8] ^ x) + i) * 0x9e3779b97f4a7c15;
    }
    for (size_t i = 0; i < 16; i++) {
        state[i % 8] = (state[i % 8] ^ state[(i + 7) % 8] >> 29) * 0xbf58476d1ce4e5b9;
        state[i % 8] ^= state[i % 8] >> 32;
    }
    memcpy(signature, state, SN_SIGNATURE_SIZE);
}

sn_status __wrap_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err) {
    if (!fake_signatures) return __real_sn_sign(identity, data, len, signature, err);
    fake_signature(identity->id, data, len, signature);
    return SN_OK;
}

bool __wrap_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]) {
    if (fake_signatures) {
        uint8_t expected[SN_SIGNATURE_SIZE];
        fake_signature(id, data, len, expected);
        return !memcmp(expected, signature, sizeof expected);
    }
    bool adjacent = signature == (const uint8_t *)data + len; /* as in an announcement */
    const memo *m = adjacent ? find_memo(data, len + SN_SIGNATURE_SIZE) : NULL;
    if (m && !memcmp(m->opened.a.node, id, SN_KEY_SIZE)) return true;
    return __real_sn_verify(id, data, len, signature);
}

/* -- announcements -- */

sn_status __wrap_sn_announcement_peek(const void *data, size_t len, uint8_t node[SN_KEY_SIZE], uint64_t *sequence,
                                      sn_err *err) {
    const memo *m = find_memo(data, len);
    if (!m) return __real_sn_announcement_peek(data, len, node, sequence, err);
    memcpy(node, m->opened.a.node, SN_KEY_SIZE);
    *sequence = m->opened.a.sequence;
    return SN_OK;
}

sn_status __wrap_sn_opened_new(const void *data, size_t len, int64_t now_unix_ms, const sn_opened **out, sn_err *err) {
    memo *m = find_memo(data, len);
    int64_t left = m ? (int64_t)m->opened.a.expires_unix_ms - now_unix_ms : 0;
    if (!m || left <= 0 || left > SN_ANNOUNCE_LIFE_MS_MAX) {
        sn_announcement a;
        sn_status status = sn_announcement_open(data, len, now_unix_ms, &a, err);
        if (status) return status;
        size_t size = offsetof(memo, opened.a) + sn_announcement_size(&a);
        m = sim_alloc(size + len);
        sn_announcement_copy(&m->opened.a, &a);
        m->opened.sealed = (sn_blob){(uint8_t *)m + size, len};
        memcpy(m->opened.sealed.data, data, len);
        m->next = *slot_of(data, len);
        *slot_of(data, len) = m;
    }
    m->owners++;
    *out = &m->opened;
    return SN_OK;
}

void __wrap_sn_opened_release(const sn_opened *opened) {
    release_memo((memo *)((uintptr_t)opened - offsetof(memo, opened)));
}

sn_status __wrap_sn_membership_copy_blob(const sn_blob *from, sn_blob *to, sn_err *err) {
    memo *m = find_memo(from->data, from->len);
    if (!m || m->opened.sealed.data != from->data) return __real_sn_membership_copy_blob(from, to, err);
    m->owners++;
    *to = *from;
    return SN_OK;
}

/* Shared bytes are released, and the lists left to the real function without them. */
void __wrap_sn_schema_fini(const sn_schema *schema, void *structure) {
    for (const sn_field *f = schema->fields; f < schema->fields + schema->n_fields; f++) {
        if (f->type != SN_FIELD_BLOBS) continue;
        sn_blob *blobs;
        memcpy(&blobs, (uint8_t *)structure + f->offset, sizeof(sn_blob *));
        size_t n = blobs ? *(size_t *)((uint8_t *)structure + f->n_offset) : 0;
        for (size_t i = 0; i < n; i++) {
            memo *m = blobs[i].data ? find_memo(blobs[i].data, blobs[i].len) : NULL;
            if (!m || m->opened.sealed.data != blobs[i].data) continue;
            blobs[i].data = NULL;
            release_memo(m);
        }
    }
    __real_sn_schema_fini(schema, structure);
}
