#include "net/transport/handshake_limit_private.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { PROBES = 16, SECOND_US = 1000000 };

/* The token bucket of one address. A handshake costs 1,000,000 credit, so that refilling by microseconds is exact. */
typedef struct bucket {
    sn_hash address;         /* its hash: the same size for every family */
    int64_t credit, seen_us; /* seen_us 0: free */
} bucket;

struct sn_handshake_limit {
    bucket buckets[SN_HANDSHAKE_ADDRESSES];
    uint8_t secret[SN_HASH_SIZE]; /* so that a peer cannot choose addresses that evict another one */
};

sn_status sn_handshake_limit_new(sn_handshake_limit **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (!status) sn_random((*out)->secret, sizeof(*out)->secret);
    return status;
}

void sn_handshake_limit_free(sn_handshake_limit **limit) {
    free(*limit);
    *limit = NULL;
}

static bucket *bucket_find(sn_handshake_limit *limit, const void *address, size_t len, int64_t now_us) {
    uint8_t text[SN_HASH_SIZE + 64] = {0};
    memcpy(text, limit->secret, SN_HASH_SIZE);
    memcpy(text + SN_HASH_SIZE, address, sn_min_size(len, sizeof text - SN_HASH_SIZE));
    sn_hash name = sn_hash_of(text, sizeof text);
    uint64_t at;
    memcpy(&at, name.bytes, sizeof at);
    bucket *oldest = &limit->buckets[at % SN_HANDSHAKE_ADDRESSES];
    for (size_t i = 0; i < PROBES; i++) {
        bucket *b = &limit->buckets[(at + i) % SN_HANDSHAKE_ADDRESSES];
        if (b->seen_us && !memcmp(&b->address, &name, sizeof name)) return b;
        if (b->seen_us < oldest->seen_us) oldest = b;
    }
    *oldest = (bucket){name, (int64_t)SN_HANDSHAKE_BURST * SECOND_US, now_us};
    return oldest;
}

bool sn_handshake_limit_allows(sn_handshake_limit *limit, const void *address, size_t len, int64_t now_us) {
    const int64_t full = (int64_t)SN_HANDSHAKE_BURST * SECOND_US;
    if (now_us < 1) now_us = 1;
    bucket *b = bucket_find(limit, address, len, now_us);
    int64_t passed = now_us - b->seen_us;
    if (passed > SN_HANDSHAKE_BURST / SN_HANDSHAKES_PER_S * (int64_t)SECOND_US)
        passed = full / SN_HANDSHAKES_PER_S; /* the time that fills it */
    if (passed > 0) {
        b->credit = b->credit + passed * SN_HANDSHAKES_PER_S < full ? b->credit + passed * SN_HANDSHAKES_PER_S : full;
        b->seen_us = now_us;
    }
    if (b->credit < SECOND_US) return false;
    b->credit -= SECOND_US;
    return true;
}
