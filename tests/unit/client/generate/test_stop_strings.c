#include "client/generate/stop_strings.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_stop_strings strings;
static sn_buf out;
static sn_err err;

static void end_fixture(void) {
    sn_stop_strings_fini(&strings);
    sn_buf_fini(&out);
}

TestSuite(strings, .fini = end_fixture);

#define START(...)                                                                                                     \
    do {                                                                                                               \
        static const char *const stops[] = {NULL, __VA_ARGS__};                                                        \
        sn_buf_init(&out, 1 << 20);                                                                                    \
        cr_assert_eq(sn_stop_strings_init(&strings, stops + 1, sizeof stops / sizeof *stops - 1, &err), SN_OK);        \
    } while (0)

/* The text emitted so far, including these bytes. */
static const char *push_text(const char *text) {
    cr_assert_eq(sn_stop_strings_push(&strings, text, strlen(text), &out, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    out.len--;
    return (const char *)out.data;
}

static const char *end_text(void) {
    cr_assert_eq(sn_stop_strings_flush(&strings, &out, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    out.len--;
    return (const char *)out.data;
}

Test(stop_strings, passes_plain_text_at_once) {
    START();
    cr_assert_str_eq(push_text("hello"), "hello");
    cr_assert_str_eq(push_text(" you"), "hello you");
    cr_assert_str_eq(end_text(), "hello you");
}

Test(stop_strings, holds_an_incomplete_character_until_it_is_whole) {
    START();
    cr_assert_str_eq(push_text("a\xf0\x9f"), "a");
    cr_assert_str_eq(push_text("\x98"), "a");
    cr_assert_str_eq(push_text("\x80z"), "a\xf0\x9f\x98\x80z");
}

Test(stop_strings, replaces_invalid_bytes) {
    START();
    cr_assert_str_eq(push_text("a\xff\xc0z"), "a\xef\xbf\xbd\xef\xbf\xbdz");
    cr_assert_str_eq(push_text("\xe4\xb8!"), "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd!");
    cr_assert_str_eq(push_text("\xed\xa0\x80"),
                     "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd!\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

Test(stop_strings, replaces_an_incomplete_character_at_the_end) {
    START();
    push_text("a\xf0\x9f\x98");
    cr_assert_str_eq(end_text(), "a\xef\xbf\xbd");
}

Test(stop_strings, ends_the_text_before_a_stop_string) {
    START("STOP");
    cr_assert_str_eq(push_text("one STOP two"), "one ");
    cr_assert(strings.stopped);
    cr_assert_str_eq(push_text("three"), "one ");
    cr_assert_str_eq(end_text(), "one ");
}

Test(stop_strings, finds_a_stop_string_that_straddles_chunks) {
    START("<|end|>");
    cr_assert_str_eq(push_text("a<|"), "a");
    cr_assert_str_eq(push_text("en"), "a");
    cr_assert_str_eq(push_text("d|>b"), "a");
    cr_assert(strings.stopped);
}

Test(stop_strings, releases_a_partial_match) {
    START("<|end|>");
    cr_assert_str_eq(push_text("a<|e"), "a");
    cr_assert_str_eq(push_text("lse"), "a<|else");
    cr_assert_str_eq(push_text("<|"), "a<|else");
    cr_assert_str_eq(end_text(), "a<|else<|");
    cr_assert_not(strings.stopped);
}

Test(stop_strings, finds_a_stop_string_that_begins_within_a_failed_match) {
    START("aab");
    cr_assert_str_eq(push_text("aa"), "");
    cr_assert_str_eq(push_text("a"), "a");
    cr_assert_str_eq(push_text("b"), "a");
    cr_assert(strings.stopped);
}

Test(stop_strings, ends_at_the_earliest_of_several_stop_strings) {
    START("world", "lo");
    cr_assert_str_eq(push_text("hel"), "he");
    cr_assert_str_eq(push_text("lo world"), "hel");
    cr_assert(strings.stopped);
}

Test(stop_strings, finds_a_stop_string_in_characters_received_as_bytes) {
    START("\xe2\x82\xac"); /* the euro sign */
    cr_assert_str_eq(push_text("5 \xe2"), "5 ");
    cr_assert_str_eq(push_text("\x82"), "5 ");
    cr_assert_str_eq(push_text("\xac"), "5 ");
    cr_assert(strings.stopped);
}

Test(stop_strings, can_be_reused_for_the_next_text) {
    START("X");
    push_text("aX");
    end_text();
    cr_assert_str_eq(push_text("b"), "ab");
}

Test(stop_strings, refuses_empty_long_and_too_many_stop_strings) {
    static char big[SN_STOP_STRING_LEN_MAX + 2];
    memset(big, 'x', sizeof big - 1);
    const char *empty[] = {""}, *lengthy[] = {big}, *many[SN_STOP_STRINGS_MAX + 1];
    for (int i = 0; i <= SN_STOP_STRINGS_MAX; i++) many[i] = "s";
    cr_assert_eq(sn_stop_strings_init(&strings, empty, 1, &err), SN_REFUSED);
    cr_assert_eq(sn_stop_strings_init(&strings, lengthy, 1, &err), SN_REFUSED);
    cr_assert_eq(sn_stop_strings_init(&strings, many, SN_STOP_STRINGS_MAX + 1, &err), SN_REFUSED);
}
