/* Weights from a hub are compared with what proven nodes announce. */
#include "base/hash.h"
#include "net/identity.h"
#include "node/weights_watch.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { NOW = 1000000, FIRST = 4, END = 7 };

typedef struct fixture {
    sn_directory *directory;
    sn_hash model, hashes[END - FIRST];
    sn_span_info span;
    sn_weights_watch watch;
} fixture;

static fixture begin(void) {
    fixture f = {.watch = {.on = true}};
    REQUIRE(sn_directory_new(&f.directory, &err));
    sn_random(&f.model, sizeof f.model);
    sn_random(f.hashes, sizeof f.hashes);
    return f;
}

/* A node that serves the blocks from `first` to 9; change: whether block 5 is another one. */
static void announce(fixture *f, uint64_t first, sn_kv_dtype dtype, bool change, bool proven) {
    sn_identity identity;
    sn_buf sealed;
    REQUIRE(sn_identity_new(&identity, &err));
    sn_announcement a = {.address = "127.0.0.1:7001",
                         .name = "other",
                         .version = SN_VERSION,
                         .protocol = SN_PROTOCOL_VERSION,
                         .sequence = 1,
                         .expires_unix_ms = NOW + SN_ANNOUNCE_LIFE_MS,
                         .state = SN_NODE_ONLINE,
                         .first_block = first,
                         .end_block = 9,
                         .n_blocks = 10,
                         .kv_dtype = (uint64_t)sn_kv_dtype_element(dtype),
                         .wire_dtype = {SN_F32},
                         .n_wire_dtype = 1};
    memcpy(a.node, identity.id, SN_KEY_SIZE);
    memcpy(a.curve_key, identity.curve_key, SN_KEY_SIZE);
    memcpy(a.model, &f->model, SN_KEY_SIZE);
    for (uint64_t b = first; b < 9; b++) {
        if (b >= FIRST && b < END) memcpy(a.block_hash[b - first], &f->hashes[b - FIRST], SN_KEY_SIZE);
    }
    if (change) a.block_hash[5 - first][0] ^= 1;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(&a, &identity, &sealed, &err));
    REQUIRE(sn_directory_add(f->directory, sealed.data, sealed.len, NOW, &err));
    if (proven) sn_directory_prove(f->directory, identity.id, NOW + 1000);
    sn_buf_fini(&sealed);
}

static void look(fixture *f) {
    uint8_t self[SN_KEY_SIZE] = {0};
    f->span = (sn_span_info){.first = FIRST, .end = END, .block_hash = f->hashes};
    f->watch.due_us = 0;
    sn_weights_watch_tick(&f->watch, f->directory, &f->model, self, &f->span, 1, NOW);
}

Test(weights_watch, equal_blocks_of_another_node_confirm_ours_whatever_its_kv_cache) {
    for (int dtype = SN_KV_F32; dtype <= SN_KV_Q8; dtype++) {
        fixture f = begin();
        announce(&f, 2, (sn_kv_dtype)dtype, false, true);
        look(&f);
        cr_expect(f.watch.confirmed && !f.watch.n_named);
        sn_directory_free(&f.directory);
    }
}

Test(weights_watch, a_node_with_other_weights_is_named) {
    fixture f = begin();
    announce(&f, 5, SN_KV_F32, true, true);
    look(&f);
    cr_expect(f.watch.n_named == 1 && !f.watch.confirmed);
    sn_directory_free(&f.directory);
}

Test(weights_watch, each_node_with_other_weights_is_named_once) {
    fixture f = begin();
    for (int i = 0; i < 2; i++) announce(&f, 5, SN_KV_F32, true, true);
    for (int i = 0; i < 3; i++) look(&f);
    cr_expect_eq(f.watch.n_named, 2);
    for (int i = 0; i < SN_WEIGHTS_WATCH_NAMED; i++) announce(&f, 5, SN_KV_F32, true, true);
    for (int i = 0; i < 2; i++) look(&f);
    cr_expect_eq(f.watch.n_named, SN_WEIGHTS_WATCH_NAMED, "there is a limit");
    sn_directory_free(&f.directory);
}

Test(weights_watch, strangers_and_other_models_count_for_nothing) {
    fixture f = begin();
    announce(&f, 2, SN_KV_F32, true, false);
    announce(&f, 2, SN_KV_F32, false, false);
    const sn_hash ours = f.model;
    sn_random(&f.model, sizeof f.model);
    announce(&f, 2, SN_KV_F32, true, true);
    announce(&f, 2, SN_KV_F32, false, true);
    f.model = ours;
    look(&f);
    cr_expect(!f.watch.n_named && !f.watch.confirmed);
    sn_directory_free(&f.directory);
}
