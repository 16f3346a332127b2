/* The lexer follows Jinja2's: text up to the next "{{", "{%" or "{#", and tokens inside of tags. White space around a
 * tag goes where the template says so ("{%-", "-%}"); besides, as lstrip_blocks and trim_blocks say, a block or comment
 * takes along the spaces before it if it begins its line, and the newline behind it. "+" instead of "-" keeps both. */
#include "text/jinja/syntax_private.h"

#include "text/tokenizer/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    sn_jrun *run;
    const char *text; /* with \n for all kinds of newlines */
    size_t len, at;
    bool line_begins; /* the last tag ended with a newline */
    sn_jtoken *tokens;
    size_t n, capacity;
} lexer;

static void add_token(lexer *x, sn_jtoken_kind kind, sn_jvalue value) {
    if (x->n == x->capacity) {
        size_t capacity = 2 * x->capacity + 64;
        sn_jtoken *tokens = sn_jalloc(x->run, capacity, sizeof *tokens);
        if (x->n) memcpy(tokens, x->tokens, x->n * sizeof *tokens);
        x->tokens = tokens;
        x->capacity = capacity;
    }
    x->tokens[x->n++] = (sn_jtoken){kind, x->run->line, value};
}

static void advance(lexer *x, size_t to) {
    for (; x->at < to; x->at++) x->run->line += x->text[x->at] == '\n';
}

static bool follows(const lexer *x, size_t at, const char *word) {
    size_t n = strlen(word);
    return at <= x->len && n <= x->len - at && !memcmp(x->text + at, word, n);
}

/* Python's \s and strip() take the same characters. */
static size_t space_end(const lexer *x, size_t at) {
    for (;;) {
        uint32_t code;
        size_t n = at < x->len ? sn_utf8_decode(x->text + at, x->len - at, &code) : 0;
        if (!n || !sn_jis_space(code)) return at;
        at += n;
    }
}

static size_t space_begin(const lexer *x, size_t from, size_t at) {
    while (at > from) {
        uint32_t code = 0;
        size_t begin = at - 1;
        while (begin > from && ((uint8_t)x->text[begin] & 0xc0) == 0x80) begin--;
        if (!sn_utf8_decode(x->text + begin, at - begin, &code) || !sn_jis_space(code)) break;
        at = begin;
    }
    return at;
}

/* ---- text between tags ---- */

/* Adds the text [x->at, end) before a tag; `sign` is the character behind "{%". */
static void add_text(lexer *x, size_t end, char sign, bool strips_line) {
    size_t from = x->at, stop = end;
    if (sign == '-') {
        stop = space_begin(x, from, end);
    } else if (strips_line && sign != '+') {
        size_t line = end;
        while (line > from && x->text[line - 1] != '\n') line--;
        if ((line > from || x->line_begins) && space_begin(x, line, end) == line) stop = line;
    }
    if (stop > from) add_token(x, SN_JT_TEXT, sn_jstr(sn_jstring_new(x->run, x->text + from, stop - from, 0)));
    advance(x, end);
}

/* The end of a tag at `at`: behind "%}", with the white space that it takes along; 0: no end is there. */
static size_t tag_end(const lexer *x, size_t at, const char *mark, bool trims) {
    char sign = at < x->len ? x->text[at] : 0;
    bool minus = sign == '-' && follows(x, at + 1, mark), plus = sign == '+' && trims && follows(x, at + 1, mark);
    if (minus || plus) at++;
    if (!follows(x, at, mark)) return 0;
    at += 2;
    if (minus) return space_end(x, at);
    return trims && !plus && at < x->len && x->text[at] == '\n' ? at + 1 : at;
}

static void end_tag(lexer *x, size_t end) {
    advance(x, end);
    x->line_begins = x->text[end - 1] == '\n';
}

static void skip_comment(lexer *x) {
    const char *close = memmem(x->text + x->at + 2, x->len - x->at - 2, "#}", 2);
    if (!close) sn_jfail(x->run, "comment", "it is not closed with #}");
    size_t at = (size_t)(close - x->text);
    if (at > x->at + 2 && (close[-1] == '-' || close[-1] == '+')) at--;
    end_tag(x, tag_end(x, at, "#}", true));
}

/* Where a block tag with only this word ends that begins at `at`; 0: it is another tag. */
static size_t word_tag_end(const lexer *x, size_t at, const char *word, bool trims) {
    at += 2;
    if (at < x->len && (x->text[at] == '-' || x->text[at] == '+')) at++;
    at = space_end(x, at);
    if (!follows(x, at, word)) return 0;
    at = space_end(x, at + strlen(word));
    size_t end = tag_end(x, at, "%}", true);
    if (!trims && end && x->text[end - 1] == '\n' && x->text[at] == '%') end--;
    return end;
}

/* {% raw %}: text as it stands up to {% endraw %}. */
static bool lex_raw(lexer *x) {
    size_t end = word_tag_end(x, x->at, "raw", false);
    if (!end) return false;
    end_tag(x, end);
    for (size_t at = x->at; at + 1 < x->len; at++) {
        size_t close = follows(x, at, "{%") ? word_tag_end(x, at, "endraw", true) : 0;
        if (!close) continue;
        char sign = at + 2 < x->len ? x->text[at + 2] : 0;
        add_text(x, at, sign, true);
        end_tag(x, close);
        return true;
    }
    sn_jfail(x->run, "{% raw %}", "it is not closed with {%% endraw %%}");
}

/* ---- inside of tags ---- */

static int digit_of(char c, int base) {
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : 99;
    return digit < base ? digit : -1;
}

/* Digits with single underscores between them. */
static size_t digits_end(const lexer *x, size_t at, int base) {
    size_t end = at;
    while (end < x->len && (digit_of(x->text[end], base) >= 0 || (end > at && x->text[end] == '_' && end + 1 < x->len &&
                                                                  digit_of(x->text[end + 1], base) >= 0)))
        end++;
    return end;
}

static void lex_integer(lexer *x, size_t from, size_t end, int base) {
    int64_t value = 0;
    for (size_t i = from; i < end; i++) {
        if (x->text[i] == '_') continue;
        if (__builtin_mul_overflow(value, (int64_t)base, &value) ||
            __builtin_add_overflow(value, (int64_t)digit_of(x->text[i], base), &value))
            sn_jfail(x->run, "", "an integer has more than 64 bits");
    }
    add_token(x, SN_JT_LITERAL, sn_jint(value));
    advance(x, end);
}

static void lex_number(lexer *x) {
    static const struct {
        const char *prefix;
        int base;
    } bases[] = {{"0x", 16}, {"0X", 16}, {"0o", 8}, {"0O", 8}, {"0b", 2}, {"0B", 2}};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        if (follows(x, x->at, bases[i].prefix) && digits_end(x, x->at + 2, bases[i].base) > x->at + 2) {
            lex_integer(x, x->at + 2, digits_end(x, x->at + 2, bases[i].base), bases[i].base);
            return;
        }
    size_t whole = digits_end(x, x->at, 10), end = whole;
    bool item = x->at && x->text[x->at - 1] == '.'; /* a.0.1 is no float */
    if (!item && end < x->len && x->text[end] == '.' && digits_end(x, end + 1, 10) > end + 1)
        end = digits_end(x, end + 1, 10);
    if (!item && end < x->len && (x->text[end] == 'e' || x->text[end] == 'E')) {
        size_t power = end + 1;
        if (power < x->len && (x->text[power] == '+' || x->text[power] == '-')) power++;
        if (digits_end(x, power, 10) > power) end = digits_end(x, power, 10);
    }
    char number[128];
    size_t n = 0;
    if (end == whole) {
        lex_integer(x, x->at, end, 10);
        return;
    }
    for (size_t i = x->at; i < end && n + 1 < sizeof number; i++)
        if (x->text[i] != '_') number[n++] = x->text[i];
    number[n] = 0;
    add_token(x, SN_JT_LITERAL, sn_jreal(strtod(number, NULL)));
    advance(x, end);
}

/* \xhh, \uhhhh, \Uhhhhhhhh or \ooo, of which `at` is the character behind the backslash; returns where it ends. */
static size_t lex_code(lexer *x, size_t at, sn_jtext *out) {
    char kind = x->text[at];
    size_t n = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 3, k = 0;
    int base = digit_of(kind, 8) >= 0 ? 8 : 16;
    uint32_t code = 0;
    if (base == 16) at++;
    for (; k < n && at < x->len && digit_of(x->text[at], base) >= 0; k++, at++)
        code = code * (uint32_t)base + (uint32_t)digit_of(x->text[at], base);
    if (base == 16 && k < n) sn_jfail(x->run, "text", "\\%c needs %zu hexadecimal digits", kind, n);
    sn_jtext_code(out, code, 0);
    return at;
}

static void lex_string(lexer *x) {
    char quote = x->text[x->at];
    sn_jtext out = sn_jtext_new(x->run);
    size_t at = x->at + 1;
    while (at < x->len && x->text[at] != quote) {
        static const char letters[] = "abfnrtv\\'\"", meant[] = "\a\b\f\n\r\t\v\\'\"";
        char c = x->text[at++];
        if (c != '\\' || at == x->len) {
            sn_jtext_add(&out, &c, 1, 0);
            continue;
        }
        const char *known = x->text[at] ? strchr(letters, x->text[at]) : NULL;
        if (known)
            sn_jtext_add(&out, meant + (known - letters), 1, 0), at++;
        else if (x->text[at] == '\n')
            at++;
        else if (x->text[at] && (strchr("xuU", x->text[at]) || digit_of(x->text[at], 8) >= 0))
            at = lex_code(x, at, &out);
        else
            sn_jtext_add(&out, &c, 1, 0);
    }
    if (at >= x->len) sn_jfail(x->run, "text", "it is not closed with %c", quote);
    add_token(x, SN_JT_LITERAL, sn_jstr(sn_jtext_end(&out)));
    advance(x, at + 1);
}

static bool is_name_byte(char c, bool first) {
    bool letter = c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80);
    return letter || (!first && c >= '0' && c <= '9');
}

static void lex_sign(lexer *x, char brackets[], size_t *depth, size_t limit) {
    static const char *const signs[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    static const char opening[] = "([{", closing[] = ")]}";
    size_t i = 0, n = sizeof signs / sizeof *signs;
    while (i < n && !follows(x, x->at, signs[i])) i++;
    char c = x->text[x->at];
    if (i == n) sn_jfail(x->run, "", "unexpected character '%c'", c >= ' ' && c <= '~' ? c : '?');
    const char *open = strchr(opening, c), *close = strchr(closing, c);
    if (open && *depth == limit) sn_jfail(x->run, "", "more than %zu brackets are open", limit);
    if (open) brackets[(*depth)++] = closing[open - opening];
    if (close && (!*depth || brackets[*depth - 1] != c)) sn_jfail(x->run, "", "unexpected '%c'", c);
    if (close) --*depth;
    add_token(x, SN_JT_SIGN, sn_jword(x->run, signs[i]));
    advance(x, x->at + strlen(signs[i]));
}

/* The inside of a tag, up to and with its end. */
static void lex_tag(lexer *x, const char *mark, sn_jtoken_kind end_kind) {
    enum { BRACKETS_MAX = 200 };
    char brackets[BRACKETS_MAX];
    size_t depth = 0;
    for (;;) {
        x->at = (advance(x, space_end(x, x->at)), x->at);
        size_t end = depth ? 0 : tag_end(x, x->at, mark, *mark == '%');
        if (end) {
            add_token(x, end_kind, sn_jundefined(NULL));
            end_tag(x, end);
            return;
        }
        if (x->at >= x->len) sn_jfail(x->run, "", "the tag is not closed with %s", mark);
        char c = x->text[x->at];
        sn_jcharge(x->run, 1);
        if (is_name_byte(c, true)) {
            size_t to = x->at;
            while (to < x->len && is_name_byte(x->text[to], false)) to++;
            add_token(x, SN_JT_NAME, sn_jstr(sn_jstring_new(x->run, x->text + x->at, to - x->at, 0)));
            advance(x, to);
        } else if (c >= '0' && c <= '9') {
            lex_number(x);
        } else if (c == '\'' || c == '"') {
            lex_string(x);
        } else {
            lex_sign(x, brackets, &depth, BRACKETS_MAX);
        }
    }
}

static void lex_template(lexer *x) {
    while (x->at < x->len) {
        size_t tag = x->at;
        while (tag < x->len &&
               !(x->text[tag] == '{' && (follows(x, tag, "{{") || follows(x, tag, "{%") || follows(x, tag, "{#"))))
            tag++;
        char kind = tag < x->len ? x->text[tag + 1] : 0, sign = tag + 2 < x->len ? x->text[tag + 2] : 0;
        add_text(x, tag, kind ? sign : 0, kind && kind != '{');
        if (!kind) return;
        if (kind == '#') {
            skip_comment(x);
            continue;
        }
        if (kind == '%' && lex_raw(x)) continue;
        add_token(x, kind == '%' ? SN_JT_BLOCK_BEGIN : SN_JT_PRINT_BEGIN, sn_jundefined(NULL));
        advance(x, tag + 2 + (sign == '-' || sign == '+'));
        if (kind == '%')
            lex_tag(x, "%}", SN_JT_BLOCK_END);
        else
            lex_tag(x, "}}", SN_JT_PRINT_END);
    }
}

const sn_jtoken *sn_jlex(sn_jrun *run, const char *source, size_t len) {
    char *text = sn_jalloc(run, len + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n') continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && text[n - 1] == '\n') n--; /* one newline at the end of a template is not part of it */
    lexer x = {.run = run, .text = text, .len = n, .line_begins = true};
    run->line = 1;
    lex_template(&x);
    add_token(&x, SN_JT_END, sn_jundefined(NULL));
    return x.tokens;
}
