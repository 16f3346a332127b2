#include "text/tokenizer/normal_form.h"
#include "text/tokenizer/utf8.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 5, COLUMN_MAX = 256 };

static sn_buf normal(sn_normal_form form, const char *text, size_t len) {
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, 1 << 26);
    cr_assert_eq(sn_normal_form_append(form, text, len, NULL, &out, NULL, &err), SN_OK, "%s", err.text);
    return out;
}

static void expect_form(sn_normal_form form, const char *text, const char *wanted, const char *line) {
    sn_buf out = normal(form, text, strlen(text));
    cr_expect(out.len == strlen(wanted) && !memcmp(out.data, wanted, out.len), "form %d of %s gives %.*s", (int)form,
              line, (int)out.len, (const char *)out.data);
    sn_buf_fini(&out);
}

/* "0041 030A" as UTF-8. */
static void write_codes(const char *codes, char *out) {
    for (char *end; *codes && *codes != ';'; codes = end + (*end == ' ')) {
        unsigned long c = strtoul(codes, &end, 16);
        cr_assert_neq(codes, end);
        if (c < 0x80)
            *out++ = (char)c;
        else if (c < 0x800)
            *out++ = (char)(0xc0 | c >> 6), *out++ = (char)(0x80 | (c & 0x3f));
        else if (c < 0x10000)
            *out++ = (char)(0xe0 | c >> 12), *out++ = (char)(0x80 | (c >> 6 & 0x3f)),
            *out++ = (char)(0x80 | (c & 0x3f));
        else
            *out++ = (char)(0xf0 | c >> 18), *out++ = (char)(0x80 | (c >> 12 & 0x3f)),
            *out++ = (char)(0x80 | (c >> 6 & 0x3f)), *out++ = (char)(0x80 | (c & 0x3f));
    }
    *out = 0;
}

static void check_line(const char *line) {
    char c[COLUMNS][COLUMN_MAX];
    const char *at = line;
    for (int i = 0; i < COLUMNS; i++) {
        write_codes(at, c[i]);
        at = strchr(at, ';') + 1;
    }
    for (int i = 0; i < COLUMNS; i++) { /* as the file's head says */
        expect_form(SN_NFC, c[i], c[i < 3 ? 1 : 3], line);
        expect_form(SN_NFD, c[i], c[i < 3 ? 2 : 4], line);
        expect_form(SN_NFKC, c[i], c[3], line);
        expect_form(SN_NFKD, c[i], c[4], line);
    }
}

Test(normal_form, is_that_of_unicodes_own_test) {
    const char *path = getenv("SN_NORMALIZATION_TEST");
    FILE *file = fopen(path ? path : SN_FIXTURES "/unicode/NormalizationTest.txt", "r");
    char line[1024];
    int n = 0;
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file)) {
        if (strchr("#@\n\r", *line)) continue;
        check_line(line);
        n++;
    }
    fclose(file);
    cr_assert_gt(n, 500);
    printf("%d lines\n", n);
}

/* Unicode's order of combining characters takes a time in proportion to their number. */
Test(normal_form, orders_a_long_run_of_combining_characters) {
    enum { PAIRS = 400000 };
    char *text = malloc(4 * PAIRS + 1);
    text[0] = 'a';
    for (int i = 0; i < PAIRS; i++) memcpy(text + 1 + 4 * i, "\xcc\x81\xcc\xa7", 4); /* U+0301 (230), U+0327 (202) */
    sn_buf out = normal(SN_NFD, text, 4 * PAIRS + 1);
    cr_assert_eq(out.len, 4 * PAIRS + 1u);
    cr_expect(!memcmp(out.data + 1, "\xcc\xa7", 2) && !memcmp(out.data + 1 + 2 * PAIRS, "\xcc\x81", 2));
    sn_buf_fini(&out);
    free(text);
}

/* A mark of any byte that a byte of the output may come from is its mark; ASCII keeps its own. */
Test(normal_form, keeps_marks_of_bytes) {
    static const char text[] = "ab"
                               "e\xcc\x81"
                               "c\xc3\xa9"
                               "d";
    static const uint8_t marks[] = {0, 1, 1, 0, 0, 0, 0, 0, 1}, wanted[] = {0, 1, 1, 1, 0, 0, 0, 1};
    sn_buf out, plain;
    sn_err err;
    sn_buf_init(&out, 64);
    sn_buf_init(&plain, 64);
    cr_assert_eq(sn_normal_form_append(SN_NFC, text, sizeof text - 1, marks, &out, &plain, &err), SN_OK);
    cr_assert(out.len == sizeof wanted && !memcmp(out.data,
                                                  "ab\xc3\xa9"
                                                  "c\xc3\xa9"
                                                  "d",
                                                  out.len));
    cr_assert(plain.len == sizeof wanted && !memcmp(plain.data, wanted, sizeof wanted));
    sn_buf_fini(&out);
    sn_buf_fini(&plain);
}
