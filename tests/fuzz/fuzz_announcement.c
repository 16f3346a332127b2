/* Any bytes as the map of an announcement, after the signature check. A map that is parsed can be sealed, and opens
 * as the same announcement. */
#include "net/directory.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good) {
    if (!good) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sn_identity identity;
    static const uint8_t none[SN_KEY_SIZE];
    if (!memcmp(identity.id, none, SN_KEY_SIZE)) require(sn_identity_new(&identity, NULL) == SN_OK);
    sn_err err;
    static sn_announcement a, b;
    require(sn_announcement_open(data, size, 0, &a, &err) == SN_REFUSED); /* a random signature is never valid */
    uint8_t node[SN_KEY_SIZE];
    uint64_t sequence;
    if (sn_announcement_peek(data, size, node, &sequence, &err)) require(*err.text);
    if (sn_announcement_parse(data, size, &a, &err)) {
        require(*err.text);
        return 0;
    }
    memcpy(a.node, identity.id, SN_KEY_SIZE);
    a.expires_unix_ms = SN_ANNOUNCE_LIFE_MS;
    sn_buf sealed;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    require(sn_announcement_seal(&a, &identity, &sealed, &err) == SN_OK);
    require(sn_announcement_open(sealed.data, sealed.len, 0, &b, &err) == SN_OK);
    require(!memcmp(&a, &b, sizeof a));
    require(sn_announcement_peek(sealed.data, sealed.len, node, &sequence, &err) == SN_OK);
    require(!memcmp(node, a.node, SN_KEY_SIZE) && sequence == a.sequence);
    sn_buf_fini(&sealed);
    return 0;
}
