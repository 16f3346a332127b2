/* What a terminal sends becomes characters and pastes, wherever its bytes are cut. */
#include "cli/terminal/keys.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define PASTE(text) "\033[200~" text "\033[201~"

/* The keys of the bytes as text, pastes in brackets; the bytes come in two pieces. Free the result. */
static char *keys_of(const char *bytes, size_t n, size_t cut) {
    sn_keys keys;
    sn_buf out;
    sn_err err = {0};
    sn_keys_init(&keys, 1 << 20);
    sn_buf_init(&out, 1 << 20);
    for (int piece = 0; piece < 2; piece++) {
        cr_assert_eq(sn_keys_push(&keys, piece ? bytes + cut : bytes, piece ? n - cut : cut, &err), SN_OK);
        for (;;) {
            sn_buf paste;
            sn_status status;
            uint32_t c;
            sn_buf_init(&paste, 1 << 20);
            sn_key key = sn_keys_next(&keys, &c, &paste, &status, &err);
            cr_assert_eq(status, SN_OK);
            char text[4];
            sn_status done = SN_OK;
            if (key == SN_KEY_PASTE) done = sn_buf_printf(&out, &err, "[%.*s]", (int)paste.len, (char *)paste.data);
            if (key == SN_KEY_CHARACTER) done = sn_buf_append(&out, text, sn_utf8_put(c, text), &err);
            cr_assert_eq(done, SN_OK);
            sn_buf_fini(&paste);
            if (key == SN_KEY_NONE) break;
        }
    }
    char *result = strndup((char *)out.data, out.len);
    sn_buf_fini(&out);
    sn_keys_fini(&keys);
    return result;
}

static void expect_keys(const char *bytes, const char *expected) {
    for (size_t cut = 0; cut <= strlen(bytes); cut++) {
        char *keys = keys_of(bytes, strlen(bytes), cut);
        cr_expect_str_eq(keys, expected, "cut at %zu: %s", cut, bytes);
        free(keys);
    }
}

Test(keys, characters_of_any_size_and_sequences_pass) {
    expect_keys("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\r", "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\r");
    expect_keys("x\033[A\033[20y\033z", "x\033[A\033[20y\033z");
    expect_keys("a\xff"
                "b\xe2\x82"
                "c",
                "a\xef\xbf\xbd"
                "b\xef\xbf\xbd\xef\xbf\xbd"
                "c");
}

Test(keys, a_paste_is_one_key_with_the_lines_that_it_has) {
    expect_keys("a" PASTE("one\rtwo\r\nthree\n\nend") "b\r", "a[one\ntwo\nthree\n\nend]b\r");
    expect_keys(PASTE("") PASTE("\033[200 \033[201 \xc3\xa4\xff"), "[][\033[200 \033[201 \xc3\xa4\xef\xbf\xbd]");
    expect_keys(PASTE("cut \xe2\x82"), "[cut \xef\xbf\xbd\xef\xbf\xbd]");
}

Test(keys, a_paste_beyond_the_limit_is_refused_and_the_next_key_works) {
    sn_keys keys;
    sn_err err = {0};
    uint32_t c;
    sn_status status;
    sn_keys_init(&keys, 100);
    char much[200] = SN_KEYS_PASTE_BEGINS;
    cr_expect_eq(sn_keys_push(&keys, much, 90, &err), SN_OK);
    cr_expect_eq(sn_keys_next(&keys, &c, NULL, &status, &err), SN_KEY_NONE);
    cr_expect_eq(sn_keys_push(&keys, much, 90, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "paste"), "%s", err.text);
    cr_expect_eq(sn_keys_push(&keys, "k", 1, &err), SN_OK);
    cr_expect_eq(sn_keys_next(&keys, &c, NULL, &status, &err), SN_KEY_CHARACTER);
    cr_expect_eq(c, 'k');
    sn_keys_fini(&keys);
}

static void expect_typed_ahead(const char *bytes, const char *expected) {
    sn_keys keys;
    sn_buf out;
    sn_err err = {0};
    sn_keys_init(&keys, 1 << 20);
    sn_buf_init(&out, 1 << 20);
    cr_assert_eq(sn_keys_push(&keys, bytes, strlen(bytes), &err), SN_OK);
    cr_assert_eq(sn_keys_typed_ahead(&keys, &out, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    cr_expect_str_eq((char *)out.data, expected, "%s", bytes);
    sn_buf_fini(&out);
    sn_keys_fini(&keys);
}

Test(keys, what_was_typed_ahead_is_text_without_what_cursor_keys_send) {
    expect_typed_ahead("next quest\x7f\x7f\xc3\xa4\x7fon\r", "next queon");
    expect_typed_ahead("\r\r\033[A\033[1;5Ca\033OBb\x0c\x15\t\033xc\r\r", "abc");
    expect_typed_ahead("one\rtwo" PASTE("three\rfour\r"), "one\ntwothree\nfour");
    expect_typed_ahead("\x7f\x7f\033", "");
}
