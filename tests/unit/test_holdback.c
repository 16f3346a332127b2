#include "client/holdback.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_holdback holdback;
static sn_buf out;
static sn_err err;

static void leave(void) {
    sn_holdback_fini(&holdback);
    sn_buf_fini(&out);
}

TestSuite(holdback, .fini = leave);

#define START(...)                                                                                                     \
    do {                                                                                                               \
        static const char *const stops[] = {NULL, __VA_ARGS__};                                                        \
        sn_buf_init(&out, 1 << 20);                                                                                    \
        cr_assert_eq(sn_holdback_init(&holdback, stops + 1, sizeof stops / sizeof *stops - 1, &err), SN_OK);           \
    } while (0)

/* What has gone out so far, after these bytes too. */
static const char *push(const char *text) {
    cr_assert_eq(sn_holdback_push(&holdback, text, strlen(text), &out, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    out.len--;
    return (const char *)out.data;
}

static const char *end(void) {
    cr_assert_eq(sn_holdback_end(&holdback, &out, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    out.len--;
    return (const char *)out.data;
}

Test(holdback, lets_plain_text_pass_at_once) {
    START();
    cr_assert_str_eq(push("hello"), "hello");
    cr_assert_str_eq(push(" you"), "hello you");
    cr_assert_str_eq(end(), "hello you");
}

Test(holdback, keeps_an_unfinished_character_until_it_is_whole) {
    START();
    cr_assert_str_eq(push("a\xf0\x9f"), "a");
    cr_assert_str_eq(push("\x98"), "a");
    cr_assert_str_eq(push("\x80z"), "a\xf0\x9f\x98\x80z");
}

Test(holdback, replaces_what_can_be_no_character) {
    START();
    cr_assert_str_eq(push("a\xff\xc0z"), "a\xef\xbf\xbd\xef\xbf\xbdz");
    cr_assert_str_eq(push("\xe4\xb8!"), "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd!");
    cr_assert_str_eq(push("\xed\xa0\x80"),
                     "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd!\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

Test(holdback, replaces_an_unfinished_character_at_the_end_by_one_mark) {
    START();
    push("a\xf0\x9f\x98");
    cr_assert_str_eq(end(), "a\xef\xbf\xbd");
}

Test(holdback, ends_the_text_before_a_stop_string) {
    START("STOP");
    cr_assert_str_eq(push("one STOP two"), "one ");
    cr_assert(holdback.stopped);
    cr_assert_str_eq(push("three"), "one ");
    cr_assert_str_eq(end(), "one ");
}

Test(holdback, finds_a_stop_string_that_straddles_pieces) {
    START("<|end|>");
    cr_assert_str_eq(push("a<|"), "a");
    cr_assert_str_eq(push("en"), "a");
    cr_assert_str_eq(push("d|>b"), "a");
    cr_assert(holdback.stopped);
}

Test(holdback, gives_back_what_only_looked_like_a_stop_string) {
    START("<|end|>");
    cr_assert_str_eq(push("a<|e"), "a");
    cr_assert_str_eq(push("lse"), "a<|else");
    cr_assert_str_eq(push("<|"), "a<|else");
    cr_assert_str_eq(end(), "a<|else<|");
    cr_assert_not(holdback.stopped);
}

Test(holdback, looks_for_a_stop_string_that_begins_within_a_failed_one) {
    START("aab");
    cr_assert_str_eq(push("aa"), "");
    cr_assert_str_eq(push("a"), "a");
    cr_assert_str_eq(push("b"), "a");
    cr_assert(holdback.stopped);
}

Test(holdback, takes_the_earliest_of_several_stop_strings) {
    START("world", "lo");
    cr_assert_str_eq(push("hel"), "he");
    cr_assert_str_eq(push("lo world"), "hel");
    cr_assert(holdback.stopped);
}

Test(holdback, finds_a_stop_string_inside_characters_that_came_in_bytes) {
    START("\xe2\x82\xac"); /* the euro sign */
    cr_assert_str_eq(push("5 \xe2"), "5 ");
    cr_assert_str_eq(push("\x82"), "5 ");
    cr_assert_str_eq(push("\xac"), "5 ");
    cr_assert(holdback.stopped);
}

Test(holdback, can_be_used_for_the_next_text) {
    START("X");
    push("aX");
    end();
    cr_assert_str_eq(push("b"), "ab");
}

Test(holdback, refuses_empty_long_and_too_many_stop_strings) {
    static char big[SN_STOP_LEN_MAX + 2];
    memset(big, 'x', sizeof big - 1);
    const char *empty[] = {""}, *lengthy[] = {big}, *many[SN_STOPS_MAX + 1];
    for (int i = 0; i <= SN_STOPS_MAX; i++) many[i] = "s";
    cr_assert_eq(sn_holdback_init(&holdback, empty, 1, &err), SN_REFUSED);
    cr_assert_eq(sn_holdback_init(&holdback, lengthy, 1, &err), SN_REFUSED);
    cr_assert_eq(sn_holdback_init(&holdback, many, SN_STOPS_MAX + 1, &err), SN_REFUSED);
}
