#include "base/file.h"
#include "net/directory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOW = 1000000 };

static void require_ok(sn_status status, const sn_err *err) { cr_assert_eq(status, SN_OK, "%s", err->text); }

static sn_identity make_identity(void) {
    sn_err err = {0};
    sn_identity identity;
    require_ok(sn_identity_new(&identity, &err), &err);
    return identity;
}

static sn_announcement make_announcement(const sn_identity *identity, uint64_t first, uint64_t end, uint64_t sequence) {
    sn_announcement a = {.address = "127.0.0.1:7001",
                         .name = "caf\xc3\xa9",
                         .version = SN_VERSION,
                         .device = "cuda:0,cpu",
                         .protocol = SN_PROTOCOL_VERSION,
                         .sequence = sequence,
                         .expires_unix_ms = NOW + SN_ANNOUNCE_LIFE_MS,
                         .state = SN_NODE_ONLINE,
                         .first_block = first,
                         .end_block = end,
                         .n_blocks = 1000,
                         .experts = {2, 5, 8},
                         .n_experts = 3,
                         .tokens_per_s = 17,
                         .decode_us = 18,
                         .prompt_tokens_per_s = 19,
                         .network_bytes_per_s = 20,
                         .kv_bytes_free = 1ull << 40,
                         .sessions = 3,
                         .queued_steps = 4,
                         .wire_dtype = {SN_F32, SN_BF16},
                         .n_wire_dtype = 2,
                         .round_trip = {{1, 250}, {UINT64_MAX, 90000}},
                         .n_round_trip = 2};
    memcpy(a.node, identity->id, SN_KEY_SIZE);
    memcpy(a.curve_key, identity->curve_key, SN_KEY_SIZE);
    sn_random(a.model, sizeof a.model);
    for (uint64_t i = 0; i < SN_SPAN_BLOCKS_MAX && first + i < end; i++) sn_random(a.block_hash[i], SN_KEY_SIZE);
    return a;
}

static sn_buf seal_announcement(const sn_announcement *a, const sn_identity *identity) {
    sn_err err = {0};
    sn_buf out;
    sn_buf_init(&out, SN_ANNOUNCEMENT_SIZE_MAX);
    require_ok(sn_announcement_seal(a, identity, &out, &err), &err);
    return out;
}

static sn_status take_announcement(sn_directory *d, const sn_announcement *a, const sn_identity *identity, int64_t now,
                                   sn_err *err) {
    sn_buf sealed = seal_announcement(a, identity);
    sn_status status = sn_directory_add(d, sealed.data, sealed.len, now, err);
    sn_buf_fini(&sealed);
    return status;
}

static sn_directory *make_directory(void) {
    sn_err err = {0};
    sn_directory *d;
    require_ok(sn_directory_new(&d, &err), &err);
    return d;
}

/* -- announcements -- */

Test(announcement, is_opened_as_sealed) {
    static const uint64_t spans[] = {1, 10, SN_SPAN_BLOCKS_MAX};
    sn_identity identity = make_identity();
    for (int i = 0; i < 3; i++) {
        sn_err err = {0};
        sn_announcement a = make_announcement(&identity, 5, 5 + spans[i], 1), back;
        sn_buf sealed = seal_announcement(&a, &identity);
        require_ok(sn_announcement_open(sealed.data, sealed.len, NOW, &back, &err), &err);
        cr_assert_arr_eq(&a, &back, sizeof a);
        sn_buf_fini(&sealed);
    }
}

Test(announcement, may_name_no_blocks_only_while_its_node_joins) {
    sn_identity identity = make_identity();
    sn_err err = {0};
    sn_announcement a = make_announcement(&identity, 0, 0, 1), back;
    a.state = SN_NODE_JOINING;
    sn_buf sealed = seal_announcement(&a, &identity), out;
    require_ok(sn_announcement_open(sealed.data, sealed.len, NOW, &back, &err), &err);
    cr_assert_eq(back.end_block, 0);
    a.state = SN_NODE_ONLINE;
    sn_buf_init(&out, SN_ANNOUNCEMENT_SIZE_MAX);
    cr_assert_eq(sn_announcement_seal(&a, &identity, &out, &err), SN_REFUSED);
    sn_buf_fini(&out);
    sn_buf_fini(&sealed);
}

Test(announcement, refuses_any_changed_byte) {
    sn_identity identity = make_identity();
    sn_announcement a = make_announcement(&identity, 0, 2, 1), back;
    sn_buf sealed = seal_announcement(&a, &identity);
    sn_err err;
    for (size_t i = 0; i < sealed.len; i++) {
        sealed.data[i] ^= 0x10;
        cr_assert_eq(sn_announcement_open(sealed.data, sealed.len, NOW, &back, &err), SN_REFUSED, "byte %zu", i);
        sealed.data[i] ^= 0x10;
    }
    for (size_t len = 0; len < sealed.len; len++)
        cr_assert_eq(sn_announcement_open(sealed.data, len, NOW, &back, &err), SN_REFUSED, "length %zu", len);
    uint8_t *large = calloc(1, SN_ANNOUNCEMENT_SIZE_MAX + 1);
    cr_assert_eq(sn_announcement_open(large, SN_ANNOUNCEMENT_SIZE_MAX + 1, NOW, &back, &err), SN_REFUSED);
    free(large);
    sn_buf_fini(&sealed);
}

Test(announcement, must_be_signed_by_its_node) {
    sn_identity identity = make_identity(), other = make_identity(), forger;
    sn_announcement a = make_announcement(&identity, 0, 2, 1), back;
    sn_err err = {0};
    sn_buf out;
    sn_buf_init(&out, SN_ANNOUNCEMENT_SIZE_MAX);
    cr_assert_eq(sn_announcement_seal(&a, &other, &out, &err), SN_REFUSED);
    cr_assert_eq(out.len, 0);
    forger = other; /* signs with its own key under the id of another node */
    memcpy(forger.id, identity.id, SN_KEY_SIZE);
    require_ok(sn_announcement_seal(&a, &forger, &out, &err), &err);
    cr_assert_eq(sn_announcement_open(out.data, out.len, NOW, &back, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "signature"), "%s", err.text);
    sn_buf_fini(&out);
}

Test(announcement, lives_for_a_limited_time) {
    sn_identity identity = make_identity();
    sn_announcement a = make_announcement(&identity, 0, 2, 1), back;
    sn_err err = {0};
    sn_buf sealed = seal_announcement(&a, &identity);
    int64_t end = (int64_t)a.expires_unix_ms;
    require_ok(sn_announcement_open(sealed.data, sealed.len, end - 1, &back, &err), &err);
    require_ok(sn_announcement_open(sealed.data, sealed.len, end - SN_ANNOUNCE_LIFE_MS_MAX, &back, &err), &err);
    cr_assert_eq(sn_announcement_open(sealed.data, sealed.len, end, &back, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "expired"), "%s", err.text);
    cr_assert_eq(sn_announcement_open(sealed.data, sealed.len, end - SN_ANNOUNCE_LIFE_MS_MAX - 1, &back, &err),
                 SN_REFUSED);
    cr_assert(strstr(err.text, "ahead"), "%s", err.text);
    cr_assert_eq(sn_announcement_open(sealed.data, sealed.len, INT64_MIN, &back, &err), SN_REFUSED);
    sn_buf_fini(&sealed);
}

#define REFUSES(change, error_part)                                                                                    \
    do {                                                                                                               \
        sn_announcement a = make_announcement(&identity, 4, 8, 1);                                                     \
        change;                                                                                                        \
        sn_err err = {0};                                                                                              \
        sn_buf out;                                                                                                    \
        sn_buf_init(&out, SN_ANNOUNCEMENT_SIZE_MAX);                                                                   \
        cr_assert_eq(sn_announcement_seal(&a, &identity, &out, &err), SN_REFUSED, #change);                            \
        cr_assert(strstr(err.text, error_part), "'%s' is not about '%s'", err.text, error_part);                       \
        sn_buf_fini(&out);                                                                                             \
    } while (0)

Test(announcement, refuses_invalid_contents) {
    sn_identity identity = make_identity();
    REFUSES(a.end_block = 4, "no range");
    REFUSES(a.end_block = 3, "no range");
    REFUSES(a.n_blocks = 7, "no range");
    REFUSES(a.end_block = 4 + SN_SPAN_BLOCKS_MAX + 1, "longer than");
    REFUSES(a.first_block = UINT64_MAX, "no range");
    REFUSES(a.protocol++, "protocol 7");
    REFUSES(a.kv_dtype = SN_BF16, "no KV cache");
    REFUSES(a.state = (sn_node_state)4, "state 4");
    REFUSES(memset(a.curve_key, 0, SN_KEY_SIZE), "CURVE");
    REFUSES(a.address[0] = 0, "no address");
    REFUSES(snprintf(a.address, sizeof a.address, "ipc:///run/other"), "no address");
    REFUSES(snprintf(a.address, sizeof a.address, "host:0"), "no address");
    REFUSES(a.reach = SN_REACH_RELAYED, "not the address of a node that is relayed");
    REFUSES(snprintf(a.address, sizeof a.address, "127.0.0.1:7001/relay"), "not the address of a node that is direct");
    REFUSES(memset(a.address, 'a', sizeof a.address), "at most 255");
    REFUSES(a.n_experts = 2, "no part of a mixture");
    REFUSES(a.experts[0] = 5, "no part of a mixture");
    REFUSES(a.experts[1] = 9, "no part of a mixture");
    REFUSES(a.n_experts = 4, "no part of a mixture");
    REFUSES(a.n_round_trip = SN_ROUND_TRIPS_MAX + 1, "at most 16");
    REFUSES(a.n_wire_dtype = SN_WIRE_DTYPES_MAX + 1, "at most 8");
    REFUSES(memset(a.name, 'a', sizeof a.name), "longer");
    REFUSES(memset(a.device, 'a', sizeof a.device), "longer");
}

Test(announcement, texts_for_people_are_printable) {
    static const char *const texts[] = {"caf\xc3\xa9", SN_VERSION, "cuda:0,cpu"};
    sn_identity identity = make_identity();
    sn_announcement a = make_announcement(&identity, 4, 6, 1), back;
    sn_buf sealed = seal_announcement(&a, &identity);
    sn_err err = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        uint8_t *at = memmem(sealed.data, sealed.len, texts[i], strlen(texts[i])), was = *at;
        *at = '\x1b';
        cr_expect_eq(sn_announcement_parse(sealed.data, sealed.len - SN_SIGNATURE_SIZE, &back, &err), SN_REFUSED);
        cr_expect(strstr(err.text, "printable"), "%s", err.text);
        *at = was;
    }
    sn_buf_fini(&sealed);
}

/* What its node would not seal, as others may send it. */
Test(announcement, refuses_bytes_that_no_node_seals) {
    sn_identity identity = make_identity();
    sn_announcement a = make_announcement(&identity, 4, 6, 1), back;
    a.round_trip[1].us = 9; /* a byte */
    sn_buf sealed = seal_announcement(&a, &identity);
    size_t len = sealed.len - SN_SIGNATURE_SIZE;
    const struct {
        const char *field, *part;
        uint8_t value; /* of the byte behind its name */
        size_t cut;
    } changes[] = {{"state", "state 9", 9, 0},
                   {"reach", "a way 9", 9, 0},
                   {"end_block", "2 block hashes for 3", 7, 0},
                   {"round_trip", "has no time", 0x93, 1}}; /* a list of three, without the last time */
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        sn_err err = {0};
        uint8_t *at = memmem(sealed.data, len, changes[i].field, strlen(changes[i].field));
        at += strlen(changes[i].field);
        uint8_t was = *at;
        *at = changes[i].value;
        cr_expect_eq(sn_announcement_parse(sealed.data, len - changes[i].cut, &back, &err), SN_REFUSED);
        cr_expect(strstr(err.text, changes[i].part), "%s: %s", changes[i].field, err.text);
        *at = was;
    }
    sn_err err = {0};
    /* A state of 64 bits whose low half is one that there is. */
    static const uint8_t wide[] = {0xcf, 0, 0, 0, 1, 0, 0, 0, 1};
    uint8_t *state = (uint8_t *)memmem(sealed.data, len, "state", 5) + 5, *longer = malloc(len + sizeof wide);
    size_t before = (size_t)(state - sealed.data);
    memcpy(longer, sealed.data, before);
    memcpy(longer + before, wide, sizeof wide);
    memcpy(longer + before + sizeof wide, state + 1, len - before - 1);
    cr_expect_eq(sn_announcement_parse(longer, len + sizeof wide - 1, &back, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "state 4294967297"), "%s", err.text);
    free(longer);
    sealed.data[len] = 0xc0;
    cr_expect_eq(sn_announcement_parse(sealed.data, len + 1, &back, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "bytes follow"), "%s", err.text);
    sn_buf_fini(&sealed);
}

/* The map without its signature, as the fuzz target reads it. SN_WRITE_CORPUS=1 writes the corpus anew. */
Test(announcement, matches_the_fuzz_corpus) {
    static const char *const path = SN_FIXTURES "/../fuzz/corpus/announcement/two-blocks";
    sn_err err = {0};
    if (getenv("SN_WRITE_CORPUS")) {
        sn_identity identity = make_identity();
        sn_announcement a = make_announcement(&identity, 4, 6, 1);
        sn_buf sealed = seal_announcement(&a, &identity);
        FILE *file = fopen(path, "wb");
        size_t len = sealed.len - SN_SIGNATURE_SIZE;
        cr_assert(file && fwrite(sealed.data, 1, len, file) == len && !fclose(file), "%s", path);
        sn_buf_fini(&sealed);
    }
    sn_buf map = {0};
    sn_announcement a;
    require_ok(sn_read_file(path, SN_ANNOUNCEMENT_SIZE_MAX, &map, &err), &err);
    require_ok(sn_announcement_parse(map.data, map.len, &a, &err), &err);
    cr_assert_eq(a.end_block - a.first_block, 2);
    sn_buf_fini(&map);
}

/* -- the directory -- */

Test(directory, lists_by_first_block_and_id) {
    enum { N = 50 };
    sn_directory *d = make_directory();
    sn_err err = {0};
    for (int i = 0; i < N; i++) {
        sn_identity identity = make_identity();
        uint64_t first = (uint64_t)(i * 7 % 5) * 10;
        sn_announcement a = make_announcement(&identity, first, first + 1, 1);
        require_ok(take_announcement(d, &a, &identity, NOW, &err), &err);
    }
    cr_assert_eq(sn_directory_count(d), N);
    for (size_t i = 1; i < N; i++) {
        const sn_announcement *x = sn_directory_at(d, i - 1), *y = sn_directory_at(d, i);
        cr_assert(x->first_block < y->first_block ||
                  (x->first_block == y->first_block && memcmp(x->node, y->node, SN_KEY_SIZE) < 0));
        sn_announcement opened;
        const sn_blob *sealed = sn_directory_sealed_at(d, i);
        require_ok(sn_announcement_open(sealed->data, sealed->len, NOW, &opened, &err), &err);
        cr_assert_arr_eq(&opened, y, sn_announcement_size(y));
    }
    sn_directory_free(&d);
    cr_assert_null(d);
    sn_directory_free(&d);
}

Test(directory, keeps_the_newest_announcement_of_a_node) {
    sn_directory *d = make_directory();
    sn_identity identity = make_identity();
    sn_err err = {0};
    sn_announcement a = make_announcement(&identity, 4, 8, 5), b = make_announcement(&identity, 2, 8, 6), twin = a;
    require_ok(take_announcement(d, &a, &identity, NOW, &err), &err);
    /* the same announcement again, from another peer */
    require_ok(take_announcement(d, &a, &identity, NOW, &err), &err);
    twin.queued_steps++;
    cr_assert_eq(take_announcement(d, &twin, &identity, NOW, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "two different announcements"), "%s", err.text);
    require_ok(take_announcement(d, &b, &identity, NOW, &err), &err);
    cr_assert_eq(take_announcement(d, &a, &identity, NOW, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "newer"), "%s", err.text);
    cr_assert_eq(sn_directory_count(d), 1);
    cr_assert_eq(sn_directory_at(d, 0)->first_block, 2);
    sn_directory_free(&d);
}

Test(directory, a_node_that_changed_its_curve_key_is_reached_by_the_new_one_only) {
    sn_directory *d = make_directory();
    sn_identity identity = make_identity(), fresh = make_identity();
    sn_err err = {0};
    sn_announcement before = make_announcement(&identity, 4, 8, 5), after = make_announcement(&identity, 4, 8, 6);
    memcpy(after.curve_key, fresh.curve_key, SN_KEY_SIZE); /* the id is the same */
    require_ok(take_announcement(d, &before, &identity, NOW, &err), &err);
    require_ok(take_announcement(d, &after, &identity, NOW, &err), &err);
    cr_assert_eq(take_announcement(d, &before, &identity, NOW, &err), SN_REFUSED,
                 "an old announcement with the old key is accepted again");
    cr_assert_eq(sn_directory_count(d), 1);
    cr_assert_arr_eq(sn_directory_at(d, 0)->curve_key, fresh.curve_key, SN_KEY_SIZE);
    sn_directory_free(&d);
}

/* Another node runs at its address. */
Test(directory, a_retired_announcement_counts_no_longer_until_a_newer_one) {
    sn_directory *d = NULL;
    sn_err err = {0};
    sn_identity gone = make_identity(), other = make_identity();
    sn_announcement a = make_announcement(&gone, 0, 2, 5), b = make_announcement(&other, 0, 2, 5);
    require_ok(sn_directory_new(&d, &err), &err);
    require_ok(take_announcement(d, &a, &gone, NOW, &err), &err);
    require_ok(take_announcement(d, &b, &other, NOW, &err), &err);
    sn_directory_retire(d, "127.0.0.1:7002", gone.curve_key);
    cr_expect_eq(sn_directory_count(d), 2, "it is at another address");
    sn_directory_retire(d, a.address, gone.curve_key);
    cr_expect_eq(sn_directory_count(d), 1);
    cr_expect(!memcmp(sn_directory_at(d, 0)->node, other.id, SN_KEY_SIZE));
    cr_expect_eq(sn_directory_find_expiry(d, gone.id), 0);
    require_ok(take_announcement(d, &a, &gone, NOW, &err), &err); /* others bring it again */
    sn_directory_expire(d, NOW);
    cr_expect_eq(sn_directory_count(d), 1);
    a.sequence++;
    require_ok(take_announcement(d, &a, &gone, NOW, &err), &err);
    cr_expect_eq(sn_directory_count(d), 2, "it is back");
    sn_directory_free(&d);
}

Test(directory, forgets_what_has_expired) {
    sn_directory *d = make_directory();
    sn_identity identity = make_identity(), other = make_identity();
    sn_err err = {0};
    sn_announcement a = make_announcement(&identity, 4, 8, 1), b = make_announcement(&other, 4, 8, 1);
    b.expires_unix_ms = NOW + 10;
    require_ok(take_announcement(d, &a, &identity, NOW, &err), &err);
    require_ok(take_announcement(d, &b, &other, NOW, &err), &err);
    sn_directory_expire(d, NOW + 9);
    cr_assert_eq(sn_directory_count(d), 2);
    sn_directory_expire(d, NOW + 10);
    cr_assert_eq(sn_directory_count(d), 1);
    cr_assert_arr_eq(sn_directory_at(d, 0)->node, identity.id, SN_KEY_SIZE);
    cr_assert_eq(take_announcement(d, &b, &other, NOW + 10, &err), SN_REFUSED);
    sn_directory_expire(d, NOW + SN_ANNOUNCE_LIFE_MS);
    cr_assert_eq(sn_directory_count(d), 0);
    sn_directory_free(&d);
}

Test(directory, reports_what_changed_in_an_announcement) {
    sn_directory *d = make_directory();
    sn_identity identity = make_identity();
    sn_err err = {0};
    sn_directory_change change;
    uint64_t tag;
    sn_announcement a = make_announcement(&identity, 4, 8, 1);
    for (uint64_t i = 1; i <= 5; i++) {
        static const sn_directory_change expected[] = {
            0, SN_CHANGE_NODE, SN_CHANGE_STATS, SN_CHANGE_NODE, SN_CHANGE_NODE, SN_CHANGE_STATS};
        a.sequence = i;
        a.queued_steps++;
        if (i == 3) a.state = SN_NODE_DRAINING;
        if (i == 4) a.end_block = 7;
        sn_buf sealed = seal_announcement(&a, &identity);
        require_ok(sn_directory_update(d, sealed.data, sealed.len, NOW, NULL, &change, &tag, &err), &err);
        cr_assert_eq(change, expected[i], "announcement %d", (int)i);
        require_ok(sn_directory_update(d, sealed.data, sealed.len, NOW, NULL, &change, &tag, &err), &err);
        cr_assert_eq(change, SN_CHANGE_NONE);
        sn_buf_fini(&sealed);
    }
    sn_directory_free(&d);
}

Test(directory, finds_announcements_by_id_and_tag_also_of_nodes_that_left) {
    enum { N = 20 };
    sn_directory *d = make_directory();
    sn_err err = {0};
    sn_identity identities[N];
    for (int i = 0; i < N; i++) {
        identities[i] = make_identity();
        sn_announcement a = make_announcement(&identities[i], 0, 1, 1);
        if (i % 2) a.state = SN_NODE_OFFLINE;
        require_ok(take_announcement(d, &a, &identities[i], NOW, &err), &err);
    }
    cr_assert_eq(sn_directory_count(d), N / 2);
    cr_assert_eq(sn_directory_known_count(d), N);
    for (int i = 0; i < N; i++) {
        const sn_announcement *a = sn_directory_find(d, identities[i].id);
        cr_assert(a && !memcmp(a->node, identities[i].id, SN_KEY_SIZE));
        cr_assert_eq(sn_directory_known_at(d, sn_directory_seek(d, sn_node_tag(identities[i].id))), a);
    }
    cr_assert_eq(sn_directory_seek(d, 0), 0);
    cr_assert_eq(sn_directory_seek(d, UINT64_MAX), N);
    cr_assert_null(sn_directory_find(d, make_identity().id));
    sn_directory_free(&d);
}

/* Look-ups begin where evenly spread ids would be; these are at one end, and one is at the other. */
Test(directory, finds_nodes_whose_ids_are_not_spread_evenly) {
    enum { N = 24 };
    sn_directory *d = make_directory();
    sn_err err = {0};
    sn_identity identities[N];
    for (int end = 0; end < 2; end++) {
        for (int i = 0; i < N; i++) {
            do identities[i] = make_identity();
            while (identities[i].id[0] >> 5 != ((i == N - 1) ^ end ? 7 : 0));
            sn_announcement a = make_announcement(&identities[i], 0, 1, 1);
            require_ok(take_announcement(d, &a, &identities[i], NOW, &err), &err);
            for (int k = 0; k <= i; k++) cr_assert(sn_directory_find(d, identities[k].id), "%d of %d", k, i);
        }
        for (size_t i = 1; i < sn_directory_known_count(d); i++)
            cr_assert_lt(sn_directory_known(d, i - 1)->tag, sn_directory_known(d, i)->tag);
        sn_directory_expire(d, NOW + SN_ANNOUNCE_LIFE_MS);
        cr_assert_eq(sn_directory_known_count(d), 0);
    }
    sn_directory_free(&d);
}

Test(directory, bounds_the_number_of_nodes) {
    sn_directory *d = make_directory();
    sn_err err = {0};
    sn_directory_limit(d, 3);
    for (uint64_t i = 0; i < 5; i++) {
        sn_identity identity = make_identity();
        sn_announcement a = make_announcement(&identity, 0, 1, 1);
        a.expires_unix_ms += i;
        require_ok(take_announcement(d, &a, &identity, NOW, &err), &err);
    }
    cr_assert_eq(sn_directory_count(d), 3);
    sn_directory_free(&d);
}

/* An older announcement with a longer lifetime must not restore a node that announced that it leaves. */
Test(directory, an_old_announcement_does_not_restore_a_node_that_left) {
    sn_directory *d = make_directory();
    sn_identity identity = make_identity();
    sn_err err = {0};
    sn_announcement online = make_announcement(&identity, 4, 8, 1), offline = make_announcement(&identity, 4, 8, 2),
                    back = make_announcement(&identity, 4, 8, 3);
    offline.state = SN_NODE_OFFLINE;
    offline.expires_unix_ms = NOW + 10;
    require_ok(take_announcement(d, &online, &identity, NOW, &err), &err);
    require_ok(take_announcement(d, &offline, &identity, NOW, &err), &err);
    cr_assert_eq(sn_directory_count(d), 0);
    cr_assert_eq(take_announcement(d, &online, &identity, NOW, &err), SN_REFUSED);
    sn_directory_expire(d, NOW + 20);
    cr_assert_eq(take_announcement(d, &online, &identity, NOW + 20, &err), SN_REFUSED);
    require_ok(take_announcement(d, &back, &identity, NOW + 20, &err), &err);
    cr_assert_eq(sn_directory_count(d), 1);
    sn_directory_free(&d);
}

static sn_identity take_from(sn_directory *d, sn_announcement_source source, int64_t life_ms) {
    sn_err err = {0};
    sn_directory_change change;
    uint64_t tag;
    sn_identity identity = make_identity();
    sn_announcement a = make_announcement(&identity, 0, 1, 1);
    a.expires_unix_ms = (uint64_t)(NOW + life_ms);
    snprintf(a.address, sizeof a.address, "10.%d.0.1:7001", identity.id[0]); /* a flood invents addresses, too */
    sn_buf sealed = seal_announcement(&a, &identity);
    if (sn_directory_update(d, sealed.data, sealed.len, NOW, &source, &change, &tag, &err))
        cr_assert(strstr(err.text, "full"), "%s", err.text);
    sn_buf_fini(&sealed);
    return identity;
}

/* 300 invented nodes for 64 places, with the longest life that is accepted, and 20 nodes that three peers brought. */
Test(directory, a_flood_of_one_peer_replaces_only_its_own_nodes) {
    enum { HONEST = 20 };
    sn_directory *d = make_directory();
    sn_identity honest[HONEST];
    sn_directory_limit(d, 64);
    for (uint64_t i = 0; i < HONEST; i++)
        honest[i] = take_from(d, (sn_announcement_source){.peer = 1 + i % 3, .dialled = i % 3 == 0}, 20000);
    for (int i = 0; i < 300; i++) take_from(d, (sn_announcement_source){.peer = 9}, SN_ANNOUNCE_LIFE_MS_MAX);
    cr_expect_eq(sn_directory_count(d), 64);
    for (int i = 0; i < HONEST; i++) cr_expect(sn_directory_find(d, honest[i].id), "node %d was evicted", i);
    sn_directory_free(&d);
}

Test(directory, nodes_of_peers_that_were_dialled_outlast_those_of_many_others) {
    sn_directory *d = make_directory();
    sn_identity honest[30];
    sn_directory_limit(d, 64);
    for (int i = 0; i < 30; i++) honest[i] = take_from(d, (sn_announcement_source){.peer = 1, .dialled = true}, 20000);
    for (uint64_t i = 0; i < 300; i++) take_from(d, (sn_announcement_source){.peer = 10 + i}, SN_ANNOUNCE_LIFE_MS_MAX);
    for (int i = 0; i < 30; i++) cr_expect(sn_directory_find(d, honest[i].id), "node %d was evicted", i);
    sn_directory_free(&d);
}

/* Each connection of the flood brings one node, an honest connection twenty. */
Test(directory, a_flood_over_many_connections_of_one_network_replaces_only_its_own_nodes) {
    sn_directory *d = make_directory();
    sn_identity honest[20];
    sn_directory_limit(d, 64);
    for (int i = 0; i < 20; i++)
        honest[i] = take_from(d, (sn_announcement_source){.peer = 1, .network = {10, 1}}, 20000);
    for (uint64_t i = 0; i < 300; i++)
        take_from(d, (sn_announcement_source){.peer = 10 + i, .network = {10, 2}}, SN_ANNOUNCE_LIFE_MS_MAX);
    for (int i = 0; i < 20; i++) cr_expect(sn_directory_find(d, honest[i].id), "node %d was evicted", i);
    sn_directory_free(&d);
}

/* No program would dial it: what a resolver is asked, and how long that takes, is not a stranger's choice. */
Test(directory, announced_names_are_refused_when_they_arrive) {
    sn_directory *d = make_directory();
    sn_identity identity = make_identity();
    sn_announcement a = make_announcement(&identity, 0, 1, 1);
    sn_err err = {0};
    sn_directory_change change;
    uint64_t tag;
    static const char *const names[] = {"node.example.org:31330", "localhost:7001", "1.2.3:7001", "127.0.0.1.:7001"};
    for (size_t i = 0; i <= 4; i++) {
        snprintf(a.address, sizeof a.address, "%s", i < 4 ? names[i] : "[::1]:7001");
        sn_buf sealed = seal_announcement(&a, &identity);
        sn_status status = sn_directory_update(d, sealed.data, sealed.len, NOW, NULL, &change, &tag, &err);
        cr_expect_eq(status, i < 4 ? SN_REFUSED : SN_OK, "%s: %s", a.address, err.text);
        cr_expect_eq(change, i < 4 ? SN_CHANGE_NAMED : SN_CHANGE_NODE);
        cr_expect_eq(sn_directory_known_count(d), i < 4 ? 0 : 1);
        sn_buf_fini(&sealed);
    }
    sn_directory_free(&d);
}

Test(directory, a_proven_node_is_not_evicted) {
    const sn_announcement_source source = {.peer = 1};
    sn_directory *d = make_directory();
    sn_directory_limit(d, 4);
    sn_identity proven = take_from(d, source, 1000);
    sn_directory_prove(d, proven.id, NOW + 600000);
    for (int i = 0; i < 20; i++) take_from(d, source, SN_ANNOUNCE_LIFE_MS_MAX);
    cr_expect(sn_directory_find(d, proven.id));
    cr_expect(sn_directory_is_proven(d, proven.id, NOW));
    cr_expect_not(sn_directory_is_proven(d, proven.id, NOW + 600000));
    cr_expect_eq(sn_directory_count(d), 4);
    sn_directory_free(&d);
}

Test(directory, an_announcement_counts_for_a_minute_after_it_arrived_whatever_it_says) {
    sn_directory *d = make_directory();
    take_from(d, (sn_announcement_source){.peer = 1}, SN_ANNOUNCE_LIFE_MS_MAX);
    sn_directory_expire(d, NOW + SN_ANNOUNCE_LIFE_MS - 1);
    cr_expect_eq(sn_directory_count(d), 1);
    sn_directory_expire(d, NOW + SN_ANNOUNCE_LIFE_MS);
    cr_expect_eq(sn_directory_count(d), 0);
    cr_expect_eq(sn_directory_known_count(d), 1, "an older announcement could be replayed");
    sn_directory_free(&d);
}

/* Making and verifying sixteen thousand signatures takes a few seconds. */
Test(directory, evicts_the_announcement_that_expires_first, .timeout = 120) {
    sn_directory *d = make_directory();
    sn_identity identity = {0}, first = {0};
    sn_err err = {0};
    for (int i = 0; i <= SN_DIRECTORY_MAX; i++) {
        identity = make_identity();
        sn_announcement a = make_announcement(&identity, 4, 5, 1);
        a.expires_unix_ms = (uint64_t)(NOW + 20000 + (i == 77 ? -1 : i));
        if (i == 77) first = identity;
        require_ok(take_announcement(d, &a, &identity, NOW, &err), &err);
    }
    cr_assert_eq(sn_directory_count(d), SN_DIRECTORY_MAX);
    for (size_t i = 0; i < SN_DIRECTORY_MAX; i++)
        cr_assert(memcmp(sn_directory_at(d, i)->node, first.id, SN_KEY_SIZE) != 0);
    identity = make_identity();
    sn_announcement soon = make_announcement(&identity, 4, 5, 1);
    soon.expires_unix_ms = NOW + 1;
    cr_assert_eq(take_announcement(d, &soon, &identity, NOW, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "full"), "%s", err.text);
    sn_directory_free(&d);
}
