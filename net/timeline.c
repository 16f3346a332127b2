#include "net/timeline.h"

#include <stdio.h>
#include <string.h>

sn_hash sn_timeline_begin(const uint8_t model[SN_HASH_SIZE], int first_block, int end_block,
                          const uint8_t (*block_hashes)[SN_HASH_SIZE]) {
    char text[64];
    int n = snprintf(text, sizeof text, "swarm timeline 1 %d:%d", first_block, end_block);
    sn_hash weights = sn_hash_of(block_hashes, (size_t)(end_block - first_block) * SN_HASH_SIZE);
    uint8_t all[sizeof text + 2 * SN_HASH_SIZE];
    memcpy(all, text, (size_t)n);
    memcpy(all + n, model, SN_HASH_SIZE);
    memcpy(all + n + SN_HASH_SIZE, weights.bytes, SN_HASH_SIZE);
    return sn_hash_of(all, (size_t)n + 2 * SN_HASH_SIZE);
}

/* SHA-256(text, a, b), without the NUL of the text */
static sn_hash timeline_hash_join(const char *text, const uint8_t a[SN_HASH_SIZE], const uint8_t b[SN_HASH_SIZE]) {
    uint8_t all[64 + 2 * SN_HASH_SIZE];
    size_t n = (size_t)snprintf((char *)all, 64, "%s", text);
    memcpy(all + n, a, SN_HASH_SIZE);
    memcpy(all + n + SN_HASH_SIZE, b, SN_HASH_SIZE);
    return sn_hash_of(all, n + 2 * SN_HASH_SIZE);
}

sn_hash sn_timeline_with_adapter(const sn_hash *begin, const uint8_t adapter[SN_HASH_SIZE]) {
    static const uint8_t none[SN_HASH_SIZE];
    return memcmp(adapter, none, sizeof none) ? timeline_hash_join("swarm timeline tuned 1", begin->bytes, adapter)
                                              : *begin;
}

sn_hash sn_timeline_if_long(const sn_hash *begin, bool is_long) {
    static const uint8_t nothing[SN_HASH_SIZE];
    return is_long ? timeline_hash_join("swarm timeline long 1", begin->bytes, nothing) : *begin;
}

sn_hash sn_timeline_next(sn_hasher *hasher, const sn_hash *before, const float *row, size_t n_embd) {
    sn_hasher_add(hasher, before->bytes, SN_HASH_SIZE);
    sn_hasher_add(hasher, row, n_embd * sizeof *row);
    return sn_hasher_end(hasher);
}

sn_hash sn_timeline_graft(const sn_hash *begin, const uint8_t source[SN_HASH_SIZE]) {
    return timeline_hash_join("swarm timeline graft 1", begin->bytes, source);
}
