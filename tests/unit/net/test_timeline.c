#include "net/timeline.h"

#include <criterion/criterion.h>
#include <string.h>

static const uint8_t MODEL[SN_HASH_SIZE] = {1, 2, 3};
static const uint8_t BLOCKS[3][SN_HASH_SIZE] = {{10}, {11}, {12}};

static bool same_hash(sn_hash a, sn_hash b) { return !memcmp(a.bytes, b.bytes, SN_HASH_SIZE); }

Test(timeline, begins_with_model_blocks_and_weights) {
    sn_hash begin = sn_timeline_begin(MODEL, 4, 6, BLOCKS);
    uint8_t other[3][SN_HASH_SIZE], model[SN_HASH_SIZE];
    memcpy(other, BLOCKS, sizeof other);
    memcpy(model, MODEL, sizeof model);
    cr_expect(same_hash(begin, sn_timeline_begin(model, 4, 6, (const uint8_t(*)[SN_HASH_SIZE])other)));
    model[31] ^= 1;
    cr_expect_not(same_hash(begin, sn_timeline_begin(model, 4, 6, BLOCKS)));
    cr_expect_not(same_hash(begin, sn_timeline_begin(MODEL, 5, 7, BLOCKS)));
    cr_expect_not(same_hash(begin, sn_timeline_begin(MODEL, 4, 7, BLOCKS)));
    other[1][31] ^= 1;
    cr_expect_not(same_hash(begin, sn_timeline_begin(MODEL, 4, 6, (const uint8_t(*)[SN_HASH_SIZE])other)));
}

/* Computed as docs/PROTOCOL.md describes, step by step. */
Test(timeline, is_the_hash_of_the_protocol_document) {
    uint8_t bytes[256];
    sn_hash weights = sn_hash_of(BLOCKS, sizeof BLOCKS);
    size_t n = strlen("swarm timeline 1 4:7");
    memcpy(bytes, "swarm timeline 1 4:7", n);
    memcpy(bytes + n, MODEL, SN_HASH_SIZE);
    memcpy(bytes + n + SN_HASH_SIZE, weights.bytes, SN_HASH_SIZE);
    sn_hash begin = sn_hash_of(bytes, n + 2 * SN_HASH_SIZE);
    cr_expect(same_hash(begin, sn_timeline_begin(MODEL, 4, 7, BLOCKS)));

    uint8_t adapter[SN_HASH_SIZE] = {0};
    cr_expect(same_hash(begin, sn_timeline_with_adapter(&begin, adapter)));
    adapter[31] = 7;
    memcpy(bytes, "swarm timeline tuned 1", 22);
    memcpy(bytes + 22, begin.bytes, SN_HASH_SIZE);
    memcpy(bytes + 22 + SN_HASH_SIZE, adapter, SN_HASH_SIZE);
    cr_expect(same_hash(sn_hash_of(bytes, 22 + 2 * SN_HASH_SIZE), sn_timeline_with_adapter(&begin, adapter)));

    cr_expect(same_hash(begin, sn_timeline_if_long(&begin, false)));
    memcpy(bytes, "swarm timeline long 1", 21);
    memcpy(bytes + 21, begin.bytes, SN_HASH_SIZE);
    memset(bytes + 21 + SN_HASH_SIZE, 0, SN_HASH_SIZE);
    cr_expect(same_hash(sn_hash_of(bytes, 21 + 2 * SN_HASH_SIZE), sn_timeline_if_long(&begin, true)));

    const float row[] = {1.0f, -2.0f, 0.5f};
    memcpy(bytes, begin.bytes, SN_HASH_SIZE);
    memcpy(bytes + SN_HASH_SIZE, row, sizeof row);
    sn_hasher *hasher = sn_hasher_new();
    cr_expect(same_hash(sn_hash_of(bytes, SN_HASH_SIZE + sizeof row), sn_timeline_next(hasher, &begin, row, 3)));
    sn_hasher_free(hasher);
}

Test(timeline, depends_on_every_bit_and_the_order_of_rows) {
    sn_hash begin = sn_timeline_begin(MODEL, 0, 3, BLOCKS);
    sn_hasher *hasher = sn_hasher_new();
    const float a[] = {0.0f, 1.0f}, b[] = {-0.0f, 1.0f};
    sn_hash after_a = sn_timeline_next(hasher, &begin, a, 2), after_b = sn_timeline_next(hasher, &begin, b, 2);
    cr_expect_not(same_hash(after_a, after_b)); /* equal numbers with different bits */
    cr_expect_not(same_hash(sn_timeline_next(hasher, &after_a, b, 2), sn_timeline_next(hasher, &after_b, a, 2)));
    cr_expect(same_hash(after_a, sn_timeline_next(hasher, &begin, a, 2)));
    sn_hasher_free(hasher);
}
