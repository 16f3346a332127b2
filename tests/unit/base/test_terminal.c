/* What reaches a terminal: text as it is, and nothing that a terminal acts on. */
#include "base/terminal.h"

#include <criterion/criterion.h>
#include <string.h>

#define BAD "\xef\xbf\xbd"

/* Cleans `text` in pieces of `piece` bytes: the result must not depend on where they are cut. */
static const char *cleaned(const char *text, size_t len, size_t piece) {
    static char out[4096];
    sn_terminal_text state = {0};
    size_t used = 0;
    for (size_t at = 0; at < len; at += piece)
        used += sn_terminal_clean(&state, text + at, len - at < piece ? len - at : piece, out + used);
    out[used] = 0;
    return out;
}

static void expect_cleaned(const char *text, const char *expected) {
    for (size_t piece = 1; piece <= strlen(text); piece++)
        cr_expect_str_eq(cleaned(text, strlen(text), piece), expected, "in pieces of %zu", piece);
}

Test(terminal, text_stays_as_it_is) {
    expect_cleaned("plain text,\twith tabs\nand lines", "plain text,\twith tabs\nand lines");
    expect_cleaned("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xe6\x97\xa5\xe6\x9c\xac \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
                   "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xe6\x97\xa5\xe6\x9c\xac \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d");
}

Test(terminal, control_characters_of_both_sets_are_replaced) {
    for (char c = 1; c < 0x20; c++) {
        const char text[] = {'a', c, 'b', 0};
        expect_cleaned(text, c == '\n' ? "a\nb" : c == '\t' ? "a\tb" : c == '\r' ? "ab" : "a" BAD "b");
    }
    expect_cleaned("\033[31mred\033]0;title\a\x7f", BAD "[31mred" BAD "]0;title" BAD BAD);
    for (int c = 0x80; c < 0xa0; c++) {
        const char utf8[] = {'a', '\xc2', (char)c, 'b', 0}, alone[] = {'a', (char)c, 'b', 0};
        expect_cleaned(utf8, "a" BAD "b");
        expect_cleaned(alone, "a" BAD "b");
    }
    cr_expect_str_eq(cleaned("a\0b", 3, 3), "a" BAD "b");
}

Test(terminal, overrides_of_the_writing_direction_are_replaced) {
    expect_cleaned("a\xe2\x80\xae"
                   "b\xe2\x80\xac"
                   "c\xe2\x81\xa6"
                   "d\xe2\x81\xa9",
                   "a" BAD "b" BAD "c" BAD "d" BAD);
}

Test(terminal, bytes_that_form_no_character_are_replaced) {
    expect_cleaned("a\xff\xfe"
                   "b\xc0\x9b"
                   "c",
                   "a" BAD BAD "b" BAD BAD "c"); /* C0 9B: ESC in two bytes */
    expect_cleaned("\xe0\x80\x9b"
                   "d\xed\xa0\x80"
                   "e",
                   BAD "d" BAD "e"); /* in three; half of a surrogate pair */
    expect_cleaned("f\xe2\x82"
                   "g\xe2\033[A",
                   "f" BAD "g" BAD BAD "[A"); /* cut short by what follows */
}
