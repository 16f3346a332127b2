/* A cache of parsed announcements and verified Ed25519 signatures for the whole process, so that many simulated
 * nodes do not repeat the same work. Entries are found by all of their bytes, so that the results are those of the
 * real functions. */
#include "net/directory.h"
#include "tests/sim/time.h"

#include <stdlib.h>
#include <string.h>

typedef struct memo {
    uint8_t *sealed; /* the map, then its signature (zero: not known yet) */
    size_t len;      /* of the map */
    bool verified;
    sn_announcement *a;
} memo;

enum { SLOTS = 1 << 17 };
static memo *slots[SLOTS]; /* direct mapped: a newer entry replaces an older one */

bool __real_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]);
bool __wrap_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]);
sn_status __real_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err);
sn_status __wrap_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err);
sn_status __real_sn_announcement_parse(const void *map, size_t len, sn_announcement *out, sn_err *err);
sn_status __wrap_sn_announcement_parse(const void *map, size_t len, sn_announcement *out, sn_err *err);
sn_status __real_sn_announcement_open(const void *data, size_t len, int64_t now_unix_ms, sn_announcement *out,
                                      sn_err *err);
sn_status __wrap_sn_announcement_open(const void *data, size_t len, int64_t now_unix_ms, sn_announcement *out,
                                      sn_err *err);

static memo **slot_of(const uint8_t *bytes, size_t len) {
    uint64_t hash = len;
    for (; len >= 8; bytes += 8, len -= 8) {
        uint64_t x;
        memcpy(&x, bytes, 8);
        hash = (hash ^ x) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    return &slots[hash % SLOTS];
}

/* Returns the entry of these bytes, or NULL. */
static memo *find_memo(const void *map, size_t len) {
    memo *m = *slot_of(map, len);
    return m && m->len == len && !memcmp(m->sealed, map, len) ? m : NULL;
}

static memo *add_memo(const void *map, size_t len) {
    memo **slot = slot_of(map, len), *m = find_memo(map, len);
    if (m) return m;
    if (*slot) {
        free((*slot)->sealed);
        free((*slot)->a);
        free(*slot);
    }
    *slot = m = sim_alloc(sizeof *m);
    m->sealed = sim_alloc(len + SN_SIGNATURE_SIZE);
    m->len = len;
    memcpy(m->sealed, map, len);
    return m;
}

static void add_signature(const void *map, size_t len, const uint8_t *signature) {
    memo *m = add_memo(map, len);
    memcpy(m->sealed + len, signature, SN_SIGNATURE_SIZE);
    m->verified = true;
}

bool __wrap_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]) {
    const memo *m = find_memo(data, len);
    bool known = m && m->verified && m->a && !memcmp(m->a->node, id, SN_KEY_SIZE); /* receipts are not cached */
    if (known && !memcmp(m->sealed + len, signature, SN_SIGNATURE_SIZE)) return true;
    bool good = __real_sn_verify(id, data, len, signature);
    if (good && m && m->a && !memcmp(m->a->node, id, SN_KEY_SIZE)) add_signature(data, len, signature);
    return good;
}

sn_status __wrap_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err) {
    sn_status status = __real_sn_sign(identity, data, len, signature, err);
    sn_announcement *a = status ? NULL : malloc(sizeof *a);
    sn_err ignored;
    if (a && !__wrap_sn_announcement_parse(data, len, a, &ignored) && !memcmp(a->node, identity->id, SN_KEY_SIZE))
        add_signature(data, len, signature);
    free(a);
    return status;
}

sn_status __wrap_sn_announcement_parse(const void *map, size_t len, sn_announcement *out, sn_err *err) {
    memo *m = find_memo(map, len);
    if (m && m->a) {
        sn_announcement_copy(out, m->a);
        return SN_OK;
    }
    sn_status status = __real_sn_announcement_parse(map, len, out, err);
    if (status) return status;
    m = add_memo(map, len);
    m->a = malloc(sn_announcement_size(out));
    if (!m->a) abort();
    sn_announcement_copy(m->a, out);
    return SN_OK;
}

sn_status __wrap_sn_announcement_open(const void *data, size_t len, int64_t now_unix_ms, sn_announcement *out,
                                      sn_err *err) {
    const memo *m = len > SN_SIGNATURE_SIZE ? find_memo(data, len - SN_SIGNATURE_SIZE) : NULL;
    int64_t left = m && m->a ? (int64_t)m->a->expires_unix_ms - now_unix_ms : 0;
    bool good =
        m && m->a && m->verified && !memcmp(m->sealed, data, len) && left > 0 && left <= SN_ANNOUNCE_LIFE_MS_MAX;
    if (!good) return __real_sn_announcement_open(data, len, now_unix_ms, out, err);
    sn_announcement_copy(out, m->a);
    return SN_OK;
}
