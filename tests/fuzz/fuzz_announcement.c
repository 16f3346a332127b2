/* Any bytes as the map of an announcement, past the signature. What parses can be sealed, and opens as the same. */
#include "net/codec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good) {
    if (!good) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sn_identity identity;
    static const uint8_t none[SN_KEY_SIZE];
    if (!memcmp(identity.id, none, SN_KEY_SIZE)) check(sn_identity_new(&identity, NULL) == SN_OK);
    sn_err err;
    static sn_announcement a, b;
    check(sn_announcement_open(data, size, 0, &a, &err) == SN_REFUSED); /* nobody can guess a signature */
    if (sn_announcement_parse(data, size, &a, &err)) {
        check(*err.text);
        return 0;
    }
    memcpy(a.node, identity.id, SN_KEY_SIZE);
    a.expires_unix_ms = SN_ANNOUNCE_LIFE_MS;
    sn_buf sealed;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    check(sn_announcement_seal(&a, &identity, &sealed, &err) == SN_OK);
    check(sn_announcement_open(sealed.data, sealed.len, 0, &b, &err) == SN_OK);
    check(!memcmp(&a, &b, sizeof a));
    sn_buf_fini(&sealed);
    return 0;
}
