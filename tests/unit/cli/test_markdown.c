/* Markdown as a terminal shows it: styles, and the same result wherever the stream is cut. */
#include "cli/terminal/markdown.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Pushes text in pieces that end at the offsets `cut` and `cut + step`, `cut + 2 * step`, ...; step 0: in two pieces.
 * Free the result. */
static char *shown(const char *text, size_t cut, size_t step) {
    sn_markdown m;
    sn_buf out;
    sn_err err = {0};
    sn_markdown_init(&m);
    sn_buf_init(&out, 1 << 20);
    size_t n = strlen(text), at = 0;
    while (at < n) {
        size_t end = at == 0 && cut ? cut : step ? at + step : n;
        end = end < n ? end : n;
        cr_assert_eq(sn_markdown_push(&m, text + at, end - at, &out, &err), SN_OK);
        at = end;
    }
    cr_assert_eq(sn_markdown_end(&m, &out, &err), SN_OK);
    char *result = strndup(out.len ? (char *)out.data : "", out.len);
    sn_buf_fini(&out);
    sn_markdown_fini(&m);
    return result;
}

static void expect_shown(const char *text, const char *expected) {
    char *whole = shown(text, 0, 0);
    cr_expect_str_eq(whole, expected, "%s", text);
    for (size_t cut = 1; cut < strlen(text); cut++) {
        char *cut_once = shown(text, cut, 0);
        cr_expect_str_eq(cut_once, whole, "cut at %zu: %s", cut, text);
        free(cut_once);
    }
    for (size_t step = 1; step < 4; step++) {
        char *cut_often = shown(text, 0, step);
        cr_expect_str_eq(cut_often, whole, "in pieces of %zu: %s", step, text);
        free(cut_often);
    }
    free(whole);
}

#define B "\033[1m"
#define I "\033[3m"
#define C "\033[36m"
#define D "\033[2m"
#define H "\033[1m\033[4m"
#define E "\033[0m"

Test(markdown, emphasis_and_code_spans_get_styles_in_place_of_their_marks) {
    expect_shown("a **bold** word, an *italic* one, _another_, `code` and ***both***.",
                 "a " B "bold" E " word, an " I "italic" E " one, " I "another" E ", " C "code" E " and " B I "both" E
                 ".");
    expect_shown("**bold with `code **` in it** end", B "bold with " C "code **" E B " in it" E " end");
    expect_shown("**bold *and italic* text**", B "bold " I "and italic" E B " text" E);
    expect_shown("``a ` b`` and ** alone", C "a ` b" E " and ** alone");
    expect_shown("\xe8\xbf\x99**\xe9\x87\x8d**\xe7\x82\xb9", "\xe8\xbf\x99" B "\xe9\x87\x8d" E "\xe7\x82\xb9");
}

Test(markdown, marks_that_are_no_markdown_stay_as_they_are) {
    static const char *const plain[] = {
        "2 * 3 * 4 = 24 and 2*3*4 too",
        "snake_case_name, __init__ and a_b",
        "f(*args, **kwargs)",
        "a ** b\nc ** d\n",
        "an unclosed **bold\nand the next line",
        "an unclosed `span\nnext`",
        "-no list, #no heading",
        "****** and ****",
        "*a b\n\n*",
        "#######  seven",
        "*",
        "`",
        "**",
        "\\(x\\) and \\\\",
        "~ and ~~",
        "a\n--- \nb",
        "|a|b|\n|-|-|\n",
        "    four spaces, *",
        "``` `` not a fence",
        "\n\n \n",
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        expect_shown(plain[i], strcmp(plain[i], "\\(x\\) and \\\\") ? plain[i] : "\\(x\\) and \\");
    expect_shown("\\*not italic\\* and \\`not code\\`", "*not italic* and `not code`");
}

Test(markdown, headings_lists_and_fenced_code) {
    expect_shown("# Title\ntext\n### Sub **bold**\n#\n", H "Title" E "\ntext\n" H "Sub bold" E "\n\n");
    expect_shown("- one\n* two\n  + three *it*\n1. first\n",
                 "\xe2\x80\xa2 one\n\xe2\x80\xa2 two\n  \xe2\x80\xa2 three " I "it" E "\n1. first\n");
    expect_shown("Code:\n```c\nint *a = b * *c;\n# no heading\n``\n```\n**done**",
                 "Code:\n" D "```c" E "\n" C "int *a = b * *c;" E "\n" C "# no heading" E "\n" C "``" E "\n" D "```" E
                 "\n" B "done" E);
    expect_shown("~~~\n```\n~~~  \nx", D "~~~" E "\n" C "```" E "\n" D "~~~  " E "\nx");
    expect_shown("````\n```\n```` x\n````\n", D "````" E "\n" C "```" E "\n" C "```` x" E "\n" D "````" E "\n");
    expect_shown("```\nunfinished", D "```" E "\n" C "unfinished" E);
}

Test(markdown, a_mark_that_closes_nowhere_is_held_for_a_bounded_time) {
    char text[4 * SN_MARKDOWN_SPAN_MAX], expected[sizeof text];
    memset(text, 'x', sizeof text);
    memcpy(text, "**", 2);
    text[sizeof text - 1] = 0;
    memcpy(expected, text, sizeof text);
    expect_shown(text, expected);
    sn_markdown m;
    sn_buf out;
    sn_err err = {0};
    sn_markdown_init(&m);
    sn_buf_init(&out, 1 << 20);
    cr_assert_eq(sn_markdown_push(&m, text, SN_MARKDOWN_SPAN_MAX, &out, &err), SN_OK);
    cr_expect(out.len == SN_MARKDOWN_SPAN_MAX, "%zu bytes are shown", out.len);
    sn_markdown_fini(&m);
    sn_buf_fini(&out);
    memset(text, '`', sizeof text - 1); /* also a row of marks, whatever its length */
    memcpy(expected, text, sizeof text);
    memcpy(text + sizeof text - 9, "\n*x*", 4);
    memset(text + sizeof text - 5, 0, 5);
    char *whole = shown(text, 0, 0);
    for (size_t cut = 1; cut < strlen(text); cut++) {
        char *parts = shown(text, cut, 0);
        cr_expect_str_eq(parts, whole, "cut at %zu", cut);
        free(parts);
    }
    free(whole);
}

/* Texts made of marks, by a small generator: whatever they are, the cuts do not show, and styles end. */
Test(markdown, cuts_never_show) {
    static const char pieces[] = "**`_ \n#-\\a~ **b`x";
    uint32_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        char text[48];
        size_t n = 1 + (size_t)round % (sizeof text - 2);
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            text[i] = pieces[(seed >> 16) % (sizeof pieces - 1)];
        }
        text[n] = 0;
        char *whole = shown(text, 0, 0);
        for (size_t cut = 1; cut < n; cut++) {
            char *parts = shown(text, cut, 0);
            cr_assert_str_eq(parts, whole, "cut at %zu: %s", cut, text);
            free(parts);
        }
        char *bytes = shown(text, 0, 1);
        cr_assert_str_eq(bytes, whole, "byte by byte: %s", text);
        const char *last = strrchr(whole, '\033');
        cr_assert(!last || !strncmp(last, E, strlen(E)), "a style is left on after %s", text);
        free(bytes);
        free(whole);
    }
}
