#include "node/membership/allowance.h"

#include <string.h>

enum { PROBES = 8 };

static void bucket_refill(sn_allowance_bucket *b, int64_t bytes_per_s, int64_t burst, int64_t now_us) {
    int64_t passed = now_us - b->refilled_us, longest = 1000000000;
    if (!b->refilled_us) b->left = burst;
    if (passed > longest) passed = longest;
    if (passed > 0 && b->refilled_us) b->left += passed * bytes_per_s / 1000000;
    if (b->left > burst) b->left = burst;
    b->refilled_us = now_us > 0 ? now_us : 1;
}

/* The bucket of this key in a table of n, or one that makes room for it. */
static sn_allowance_bucket *bucket_find(sn_allowance_bucket *table, size_t n, const uint8_t key[SN_KEY_SIZE]) {
    uint64_t at;
    memcpy(&at, key, sizeof at);
    sn_allowance_bucket *oldest = &table[at % n];
    for (size_t i = 0; i < PROBES; i++) {
        sn_allowance_bucket *b = &table[(at + i) % n];
        if (b->refilled_us && !memcmp(b->key, key, SN_KEY_SIZE)) return b;
        if (b->refilled_us < oldest->refilled_us) oldest = b;
    }
    *oldest = (sn_allowance_bucket){0};
    memcpy(oldest->key, key, SN_KEY_SIZE);
    return oldest;
}

/* The buckets from which a peer's bytes are taken. */
typedef struct buckets {
    sn_allowance_bucket *of[3];
    size_t n;
} buckets;

static buckets buckets_of(sn_allowance *allowance, const sn_allowance_peer *peer, int64_t now_us) {
    static const uint8_t unknown[SN_ADDRESS_PREFIX];
    buckets b = {.of = {&allowance->all, bucket_find(allowance->peers, SN_ALLOWANCE_PEERS_MAX, peer->key)}, .n = 2};
    bucket_refill(b.of[0], SN_ALLOWANCE_ALL_BYTES_PER_S, SN_ALLOWANCE_ALL_BURST, now_us);
    bucket_refill(b.of[1], SN_ALLOWANCE_BYTES_PER_S, SN_ALLOWANCE_BURST, now_us);
    if (!memcmp(peer->network, unknown, sizeof unknown)) return b;
    uint8_t key[SN_KEY_SIZE] = {0};
    memcpy(key, peer->network, SN_ADDRESS_PREFIX);
    b.of[b.n++] = bucket_find(allowance->networks, SN_ALLOWANCE_NETWORKS_MAX, key);
    bucket_refill(b.of[2], SN_ALLOWANCE_NETWORK_BYTES_PER_S, SN_ALLOWANCE_NETWORK_BURST, now_us);
    return b;
}

size_t sn_allowance_left(sn_allowance *allowance, const sn_allowance_peer *peer, int64_t now_us, int *wait_ms) {
    static const int64_t per_s[] = {SN_ALLOWANCE_ALL_BYTES_PER_S, SN_ALLOWANCE_BYTES_PER_S,
                                    SN_ALLOWANCE_NETWORK_BYTES_PER_S};
    const buckets b = buckets_of(allowance, peer, now_us);
    int64_t left = INT64_MAX;
    *wait_ms = 0;
    for (size_t i = 0; i < b.n; i++) {
        int ms = b.of[i]->left > 0 ? 0 : (int)(-b.of[i]->left * 1000 / per_s[i]) + (i == 1 ? 1000 : 100);
        if (ms > *wait_ms) *wait_ms = ms;
        if (b.of[i]->left < left) left = b.of[i]->left;
    }
    return left > 0 ? (size_t)left : 0;
}

void sn_allowance_spend(sn_allowance *allowance, const sn_allowance_peer *peer, size_t bytes, int64_t now_us) {
    const buckets b = buckets_of(allowance, peer, now_us);
    for (size_t i = 0; i < b.n; i++) b.of[i]->left -= (int64_t)bytes;
}

enum { ONE = 1000000 };

bool sn_news_allowed(sn_news_allowance *allowance, const uint8_t source[SN_ADDRESS_PREFIX], bool dialled,
                     int64_t now_us) {
    static const int64_t one = ONE;
    static const uint8_t unknown[SN_ADDRESS_PREFIX];
    uint8_t key[SN_KEY_SIZE] = {0};
    if (!memcmp(source, unknown, sizeof unknown)) return true;
    memcpy(key, source, SN_ADDRESS_PREFIX);
    sn_allowance_bucket *own = bucket_find(dialled ? allowance->dialled : allowance->sources, SN_NEWS_SOURCES_MAX, key);
    bucket_refill(own, SN_NEWS_PER_S * one, SN_NEWS_BURST * one, now_us);
    bucket_refill(&allowance->all, SN_NEWS_ALL_PER_S * one, SN_NEWS_ALL_BURST * one, now_us);
    if (own->left < one || (!dialled && allowance->all.left < one)) return false;
    own->left -= one;
    if (!dialled) allowance->all.left -= one;
    return true;
}

bool sn_news_of_met_allowed(sn_news_allowance *allowance, int64_t now_us) {
    bucket_refill(&allowance->met, (int64_t)SN_NEWS_MET_PER_S * ONE, (int64_t)SN_NEWS_MET_BURST * ONE, now_us);
    if (allowance->met.left < ONE) return false;
    allowance->met.left -= ONE;
    return true;
}

bool sn_news_first_allowed(sn_news_allowance *allowance, uint64_t peer, int64_t now_us) {
    enum { EACH_US = 1000000 / SN_NEWS_FIRSTS_PER_S };
    struct sn_news_connection *c = &allowance->connections[peer % SN_NEWS_CONNECTIONS_MAX];
    const int64_t longest_us = now_us - (int64_t)EACH_US * (SN_NEWS_FIRSTS_BURST - 1);
    if (c->peer != peer || c->paid_us < longest_us) *c = (struct sn_news_connection){peer, longest_us};
    if (c->paid_us > now_us) return false;
    c->paid_us += EACH_US;
    return true;
}
