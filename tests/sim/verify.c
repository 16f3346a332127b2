/* Ed25519 signatures, memoised for the whole process: what one simulated node has verified, or signed, the others need not
 * compute again. The answers are those of the real functions. */
#include "base/hash.h"
#include "net/identity.h"
#include "tests/support/need.h"

#include <string.h>

bool __real_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]);
bool __wrap_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]);
sn_status __real_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err);
sn_status __wrap_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err);

enum { SLOTS = 1 << 18 };
static sn_hash good[SLOTS]; /* direct mapped: the newest stays */

static sn_hash *slot_of(const uint8_t *id, const void *data, size_t len, const uint8_t *signature, sn_hash *hash) {
    static sn_hasher *hasher;
    if (!hasher) hasher = sn_hasher_new();
    if (!hasher) abort();
    sn_hasher_add(hasher, id, SN_KEY_SIZE);
    sn_hasher_add(hasher, signature, SN_SIGNATURE_SIZE);
    sn_hasher_add(hasher, data, len);
    *hash = sn_hasher_end(hasher);
    uint32_t at;
    memcpy(&at, hash->bytes, sizeof at);
    return &good[at % SLOTS];
}

bool __wrap_sn_verify(const uint8_t id[SN_KEY_SIZE], const void *data, size_t len,
                      const uint8_t signature[SN_SIGNATURE_SIZE]) {
    sn_hash hash, *slot = slot_of(id, data, len, signature, &hash);
    if (!memcmp(slot, &hash, sizeof hash)) return true;
    bool verified = __real_sn_verify(id, data, len, signature);
    if (verified) *slot = hash;
    return verified;
}

sn_status __wrap_sn_sign(const sn_identity *identity, const void *data, size_t len,
                         uint8_t signature[SN_SIGNATURE_SIZE], sn_err *err) {
    sn_status status = __real_sn_sign(identity, data, len, signature, err);
    sn_hash hash;
    if (!status) {
        sn_hash *slot = slot_of(identity->id, data, len, signature, &hash);
        *slot = hash;
    }
    return status;
}
