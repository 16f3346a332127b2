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

static sn_allowance_bucket *bucket_find(sn_allowance *allowance, const uint8_t key[SN_KEY_SIZE]) {
    uint64_t at;
    memcpy(&at, key, sizeof at);
    sn_allowance_bucket *oldest = &allowance->peers[at % SN_ALLOWANCE_PEERS_MAX];
    for (size_t i = 0; i < PROBES; i++) {
        sn_allowance_bucket *b = &allowance->peers[(at + i) % SN_ALLOWANCE_PEERS_MAX];
        if (b->refilled_us && !memcmp(b->key, key, SN_KEY_SIZE)) return b;
        if (b->refilled_us < oldest->refilled_us) oldest = b;
    }
    *oldest = (sn_allowance_bucket){0};
    memcpy(oldest->key, key, SN_KEY_SIZE);
    return oldest;
}

size_t sn_allowance_left(sn_allowance *allowance, const uint8_t key[SN_KEY_SIZE], int64_t now_us, int *wait_ms) {
    sn_allowance_bucket *b = bucket_find(allowance, key);
    bucket_refill(b, SN_ALLOWANCE_BYTES_PER_S, SN_ALLOWANCE_BURST, now_us);
    bucket_refill(&allowance->all, SN_ALLOWANCE_ALL_BYTES_PER_S, SN_ALLOWANCE_ALL_BURST, now_us);
    int64_t left = b->left < allowance->all.left ? b->left : allowance->all.left;
    *wait_ms = left > 0 ? 0 : (int)(-b->left * 1000 / SN_ALLOWANCE_BYTES_PER_S) + 1000;
    return left > 0 ? (size_t)left : 0;
}

void sn_allowance_spend(sn_allowance *allowance, const uint8_t key[SN_KEY_SIZE], size_t bytes, int64_t now_us) {
    sn_allowance_bucket *b = bucket_find(allowance, key);
    bucket_refill(b, SN_ALLOWANCE_BYTES_PER_S, SN_ALLOWANCE_BURST, now_us);
    b->left -= (int64_t)bytes;
    allowance->all.left -= (int64_t)bytes;
}
