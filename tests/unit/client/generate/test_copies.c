/* Where the end of a text occurs earlier: the longest place, the latest of equals, and none that is too short; in texts
 * that grow, lose their end and grow otherwise. */
#include "client/generate/copies.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_copies *new_copies(void) {
    sn_copies *c = NULL;
    REQUIRE(sn_copies_new(&c, &err));
    return c;
}

static size_t find(sn_copies *c, const int32_t *ids, size_t n, size_t *at) {
    size_t matched;
    REQUIRE(sn_copies_find(c, ids, n, &matched, at, &err));
    return matched;
}

/* By comparing every place. */
static size_t search(const int32_t *ids, size_t n, size_t *at) {
    size_t best = 0;
    *at = 0;
    for (size_t end = n; --end > 0;) {
        size_t same = 0;
        while (same < end && same < SN_COPY_MAX && ids[end - 1 - same] == ids[n - 1 - same]) same++;
        if (same >= SN_COPY_MIN && same > best) best = same, *at = end;
    }
    return best;
}

Test(copies, the_latest_of_the_longest_places_is_found) {
    const int32_t text[] = {1, 2, 3, 50, 9, 1, 2, 3, 51, 8, 7, 2, 3, 52, 1, 2, 3};
    sn_copies *c = new_copies();
    size_t at;
    for (size_t n = 1; n <= 7; n++) cr_expect_eq(find(c, text, n, &at), 0, "nothing matches the first %zu tokens", n);
    cr_expect_eq(find(c, text, 8, &at), 3);
    cr_expect_eq(at, 3);
    cr_expect_eq(find(c, text, 17, &at), 3);
    cr_expect_eq(at, 8);
    sn_copies_free(&c);
}

static const size_t LENGTHS[] = {32, 16, 8, 5, SN_COPY_MIN};

/* Few kinds of tokens, so that matches are many, in pieces that are copied from before, taken back and replaced. */
Test(copies, are_those_of_a_search_through_the_whole_text) {
    enum { MOST = 3000, STEPS = 2500 };
    static int32_t text[MOST + 64];
    for (uint32_t seed = 1; seed <= 4; seed++) {
        uint32_t random = seed * 2654435761u;
        sn_copies *c = new_copies();
        size_t n = 0, at, at_all, none = 0, exact = 0;
        for (int step = 0; step < STEPS; step++) {
            random = random * 1664525 + 1013904223;
            const size_t from = n ? (random >> 8) % n : 0, some = random >> 24 & 15;
            if (n > 40 && (random >> 4 & 15) == 0) {
                n -= (random >> 16) % 40;
                sn_copies_forget(c, n);
            }
            for (size_t i = 0; i < some && n < MOST && from + i < n; i++, n++) text[n] = text[from + i];
            if (n == MOST) sn_copies_forget(c, n = MOST / 2);
            text[n++] = (int32_t)(random >> 20 & (seed < 3 ? 63 : 7));
            const size_t matched = find(c, text, n, &at), all = search(text, n, &at_all);
            exact += matched == all && at == at_all;
            for (int i = 0; i < 5; i++)
                cr_expect_eq(matched >= LENGTHS[i], all >= LENGTHS[i], "%zu, not %zu", matched, all);
            cr_expect(!matched || (at < n && !memcmp(text + at - matched, text + n - matched, matched * sizeof *text)));
            none += !matched;
        }
        cr_expect(none > 0 && n > 1000, "%zu of %zu", none, n);
        cr_expect_gt(exact, STEPS * 9 / 10); /* where more than 32 places are alike, not all are looked at */
        sn_copies_free(&c);
    }
}

/* The short end of the passage occurs in a thousand places since; once the passage is followed, its place is kept. */
Test(copies, a_passage_is_followed_through_places_that_look_like_it) {
    enum { NOISE = 4000 };
    static int32_t text[NOISE + 400];
    size_t n = 0, at;
    for (; n < 60; n++) text[n] = 1000 + (int32_t)n;
    text[30] = text[31] = text[32] = 7; /* in the middle of the passage: what is everywhere */
    for (; n < NOISE; n++) text[n] = n % 4 ? 7 : (int32_t)(2000 + n);
    sn_copies *c = new_copies();
    for (size_t i = 0; i < 50; i++) {
        text[n++] = text[i];
        if (i < 3) continue;
        const size_t matched = find(c, text, n, &at);
        cr_expect_eq(at, i + 1, "after %zu tokens", i + 1);
        cr_expect_eq(matched, i + 1);
    }
    sn_copies_free(&c);
}
