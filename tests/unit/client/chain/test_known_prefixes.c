/* What a client remembers of timelines: within its limit, what was used rather than what was not, and from a file. */
#include "client/chain/known_prefixes.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOPS = 3, BYTES = HOPS * (int)sizeof(sn_hash) };

static sn_hash named(int i) { return sn_hash_of(&i, sizeof i); }

static void put(sn_known_prefixes *known, int i) {
    const sn_hash key = named(i), timelines[HOPS] = {named(i + 1), named(i + 2), named(i + 3)};
    sn_known_prefixes_put(known, &key, timelines, HOPS);
}

static bool has(sn_known_prefixes *known, int i) {
    const sn_hash key = named(i), expected[HOPS] = {named(i + 1), named(i + 2), named(i + 3)};
    sn_hash timelines[HOPS];
    const size_t n = sn_known_prefixes_get(known, &key, timelines, HOPS);
    cr_expect(!n || (n == HOPS && !memcmp(timelines, expected, sizeof expected)), "other hashes of %d", i);
    return n;
}

Test(known_prefixes, stay_within_their_limit_and_keep_what_was_used) {
    sn_known_prefixes *known = NULL;
    REQUIRE(sn_known_prefixes_new(4 * BYTES, NULL, &known, &err));
    for (int i = 0; i < 4; i++) put(known, i * 10);
    cr_expect(has(known, 0)); /* used */
    int n = 0;
    for (int i = 4; i < 6; i++) put(known, i * 10);
    for (int i = 0; i < 6; i++) n += has(known, i * 10);
    cr_expect_eq(n, 4, "%d of 6 are there", n);
    cr_expect(has(known, 0), "what was used has gone");
    cr_expect(has(known, 50), "the newest has gone");
    sn_known_prefixes_free(&known);
}

Test(known_prefixes, have_the_newest_hashes_of_a_key_and_none_where_more_would_come) {
    const sn_hash key = named(0), later[1] = {named(7)};
    sn_hash got[HOPS];
    sn_known_prefixes *known = NULL;
    REQUIRE(sn_known_prefixes_new(4 * BYTES, NULL, &known, &err));
    put(known, 0);
    cr_expect_eq(sn_known_prefixes_get(known, &key, got, HOPS - 1), 0);
    sn_known_prefixes_put(known, &key, later, 1);
    cr_expect_eq(sn_known_prefixes_get(known, &key, got, HOPS), 1);
    cr_expect(!memcmp(got, later, sizeof later));
    sn_known_prefixes_free(&known);
}

Test(known_prefixes, are_read_from_their_file_as_far_as_it_is_whole) {
    enum { N = 5, HEAD = 17, ENTRY = (int)sizeof(sn_hash) + 8 + BYTES };
    char *folder = temp_folder(), path[4096];
    sn_known_prefixes *known = NULL;
    snprintf(path, sizeof path, "%s/known", folder);
    REQUIRE(sn_known_prefixes_new(1 << 20, path, &known, &err));
    for (int i = 0; i < N; i++) put(known, i * 10);
    sn_known_prefixes_save(known);
    sn_known_prefixes_free(&known);
    for (int whole = N; whole >= 0; whole--) {
        REQUIRE(sn_known_prefixes_new(1 << 20, path, &known, &err));
        for (int i = 0; i < N; i++) cr_expect_eq(has(known, i * 10), i < whole, "%d of %d", i, whole);
        sn_known_prefixes_free(&known);
        cr_assert_eq(truncate(path, HEAD + ENTRY * whole - 1), 0); /* the last one is cut short */
    }
    temp_folder_remove(&folder);
}
