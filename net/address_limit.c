#include "net/address_limit.h"

#include "base/hash.h"
#include "base/mem.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

enum { PROBES = 16, SECOND_US = 1000000 };

/* The token bucket of one address. An event costs 1,000,000 credit, so that refilling by microseconds is exact. */
typedef struct bucket {
    sn_hash address;         /* its hash: the same size for every family */
    int64_t credit, seen_us; /* seen_us 0: free */
} bucket;

struct sn_address_limit {
    int64_t full, per_s; /* full: the credit of an address that was silent */
    bucket buckets[SN_ADDRESS_LIMIT_MAX];
    uint8_t secret[SN_HASH_SIZE]; /* so that a peer cannot choose addresses that evict another one */
};

sn_status sn_address_limit_new(int burst, int per_s, sn_address_limit **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->full = (int64_t)burst * SECOND_US;
    (*out)->per_s = per_s;
    sn_random((*out)->secret, sizeof(*out)->secret);
    return SN_OK;
}

void sn_address_limit_free(sn_address_limit **limit) {
    free(*limit);
    *limit = NULL;
}

void sn_address_prefix(const struct sockaddr_storage *address, uint8_t out[SN_ADDRESS_PREFIX]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}; /* IPv4 in IPv6 */
    memset(out, 0, SN_ADDRESS_PREFIX);
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    if (address->ss_family == AF_INET)
        memcpy(out, &((const struct sockaddr_in *)address)->sin_addr, 4);
    else if (!memcmp(&six->sin6_addr, mapped, sizeof mapped))
        memcpy(out, six->sin6_addr.s6_addr + sizeof mapped, 4);
    else
        memcpy(out, &six->sin6_addr, SN_ADDRESS_PREFIX);
}

static bucket *bucket_find(sn_address_limit *limit, const uint8_t prefix[SN_ADDRESS_PREFIX], int64_t now_us) {
    uint8_t text[SN_HASH_SIZE + SN_ADDRESS_PREFIX];
    memcpy(text, limit->secret, SN_HASH_SIZE);
    memcpy(text + SN_HASH_SIZE, prefix, SN_ADDRESS_PREFIX);
    sn_hash name = sn_hash_of(text, sizeof text);
    uint64_t at;
    memcpy(&at, name.bytes, sizeof at);
    bucket *oldest = &limit->buckets[at % SN_ADDRESS_LIMIT_MAX];
    for (size_t i = 0; i < PROBES; i++) {
        bucket *b = &limit->buckets[(at + i) % SN_ADDRESS_LIMIT_MAX];
        if (b->seen_us && !memcmp(&b->address, &name, sizeof name)) return b;
        if (b->seen_us < oldest->seen_us) oldest = b;
    }
    *oldest = (bucket){name, limit->full, now_us};
    return oldest;
}

bool sn_address_limit_allows(sn_address_limit *limit, const uint8_t prefix[SN_ADDRESS_PREFIX], int64_t now_us) {
    if (now_us < 1) now_us = 1;
    bucket *b = bucket_find(limit, prefix, now_us);
    int64_t passed = now_us - b->seen_us, to_fill = limit->full / limit->per_s + 1;
    if (passed > 0) {
        b->credit += (passed < to_fill ? passed : to_fill) * limit->per_s;
        if (b->credit > limit->full) b->credit = limit->full;
        b->seen_us = now_us;
    }
    if (b->credit < SECOND_US) return false;
    b->credit -= SECOND_US;
    return true;
}
