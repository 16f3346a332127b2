#include "text/tokenizer/pattern.h"

#include <string.h>

typedef struct translator {
    const char *text;
    size_t len, at;
    int class_depth; /* 0: outside a character class */
    sn_buf *out;
    sn_err *err;
} translator;

static sn_status pattern_refuse(const translator *t, const char *why) {
    return sn_fail(t->err, SN_REFUSED, "the pattern of the pre-tokenizer has %s at byte %zu, which is not supported",
                   why, t->at);
}

static bool pattern_follows(const translator *t, const char *word) {
    size_t n = strlen(word);
    return n <= t->len - t->at && !memcmp(t->text + t->at, word, n);
}

static sn_status pattern_put(translator *t, const char *text, size_t len) {
    return sn_buf_append(t->out, text, len, t->err);
}

static sn_status pattern_keep(translator *t, size_t n) {
    sn_status status = pattern_put(t, t->text + t->at, n);
    t->at += n;
    return status;
}

/* \p{Lu}: general categories mean the same in both engines. Of scripts only Han is used by known models. */
static sn_status translate_property(translator *t) {
    static const char *const categories =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So "
        "Z Zs Zl Zp C Cc Cf Co Cs Cn ";
    size_t name = t->at + 3;
    const char *close = t->len > name && t->text[t->at + 2] == '{' ? memchr(t->text + name, '}', t->len - name) : NULL;
    size_t n = close ? (size_t)(close - t->text) - name : 0;
    if (n == 3 && !memcmp(t->text + name, "Han", 3)) {
        bool negated = t->text[t->at + 1] == 'P';
        t->at = name + n + 1;
        return negated ? pattern_put(t, "\\P{sc:Han}", 10) : pattern_put(t, "\\p{sc:Han}", 10);
    }
    char padded[5] = " ";
    if (n < 1 || n > 2) return pattern_refuse(t, "a property that is not known");
    memcpy(padded + 1, t->text + name, n);
    padded[n + 1] = ' ';
    return strstr(categories, padded) ? pattern_keep(t, n + 4) : pattern_refuse(t, "a property that is not known");
}

static sn_status translate_escape(translator *t) {
    char c = t->at + 1 < t->len ? t->text[t->at + 1] : 0;
    if (c == 's' || c == 'S') { /* PCRE2's \s contains U+180E, Unicode's White_Space does not */
        t->at += 2;
        return c == 's' ? pattern_put(t, "\\p{White_Space}", 15) : pattern_put(t, "\\P{White_Space}", 15);
    }
    if (c == 'p' || c == 'P') return translate_property(t);
    bool punctuation =
        c > 32 && c < 127 && !strchr("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", c);
    if (punctuation || (c && strchr("rntdD", c))) return pattern_keep(t, 2);
    return pattern_refuse(t, "an escape");
}

static sn_status translate_in_class(translator *t) {
    char c = t->text[t->at];
    if (c == '[') {
        if (pattern_follows(t, "[^") || pattern_follows(t, "[:")) return pattern_refuse(t, "a class within a class");
        t->class_depth++; /* a class within a class adds its members: written to PCRE2 without the bracket */
        t->at++;
        return SN_OK;
    }
    if (c == ']') {
        t->at++;
        return --t->class_depth ? SN_OK : pattern_put(t, "]", 1);
    }
    if (pattern_follows(t, "&&")) return pattern_refuse(t, "an intersection of classes");
    return pattern_keep(t, 1);
}

static sn_status translate_group(translator *t) {
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (pattern_follows(t, "(*")) return pattern_refuse(t, "a verb of PCRE2"); /* "(*NO_JIT)" undoes its limits */
    if (!pattern_follows(t, "(?")) return pattern_keep(t, 1);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (pattern_follows(t, known[i])) return pattern_keep(t, strlen(known[i]));
    return pattern_refuse(t, "a group");
}

/* [A&&[^B]]: finds && and the end of B. */
static bool find_intersection(const translator *t, size_t *and, size_t *end) {
    const char *text = t->text;
    size_t i = t->at + 1;
    while (i < t->len && !strchr("[]&^", text[i])) i += text[i] == '\\' ? 2 : 1;
    if (i + 4 >= t->len || memcmp(text + i, "&&[^", 4)) return false;
    *and = i;
    for (i += 4; i < t->len && text[i] && !strchr("[]", text[i]);) i += text[i] == '\\' ? 2 : 1;
    *end = i;
    return i + 1 < t->len && i > *and + 4 && !memcmp(text + i, "]]", 2);
}

static sn_status translate_members(const translator *t, size_t from, size_t end) {
    translator members = *t;
    sn_status status = SN_OK;
    members.at = from, members.len = end, members.class_depth = 1;
    while (!status && members.at < end)
        status = members.text[members.at] == '\\' ? translate_escape(&members) : translate_in_class(&members);
    return status;
}

/* What is in A and not in B, which PCRE2 says by looking ahead. */
static sn_status translate_intersection(translator *t, size_t and, size_t end) {
    sn_status status = pattern_put(t, "(?:(?![", 7);
    if (!status) status = translate_members(t, and+4, end);
    if (!status) status = pattern_put(t, "])[", 3);
    if (!status) status = translate_members(t, t->at + 1, and);
    t->at = end + 2;
    return status ? status : pattern_put(t, "])", 2);
}

static sn_status translate_outside_class(translator *t) {
    char c = t->text[t->at];
    size_t and, end;
    if (c == '(') return translate_group(t);
    if (c == '$') { /* of Oniguruma: the end of a line, which ends before a line feed only */
        t->at++;
        return pattern_put(t, "(?=\\n|\\z)", 9);
    }
    if (c == '^' || c == '.') return pattern_refuse(t, "an anchor or a dot"); /* the engines differ in what a line is */
    if (pattern_follows(t, "}+") || pattern_follows(t, "}?"))
        return pattern_refuse(t, "a counted repetition with something after it");
    if (pattern_follows(t, "{,")) return pattern_refuse(t, "a repetition without a minimum");
    if (c != '[') return pattern_keep(t, 1);
    if (pattern_follows(t, "[:") || pattern_follows(t, "[]") || pattern_follows(t, "[^]"))
        return pattern_refuse(t, "a class");
    if (find_intersection(t, &and, &end)) return translate_intersection(t, and, end);
    t->class_depth = 1;
    return pattern_keep(t, pattern_follows(t, "[^") ? 2 : 1);
}

sn_status sn_pattern_translate(const char *pattern, size_t len, sn_buf *out, sn_err *err) {
    translator t = {.text = pattern, .len = len, .out = out, .err = err};
    sn_status status = SN_OK;
    while (!status && t.at < len) {
        if (pattern[t.at] == '\\')
            status = translate_escape(&t);
        else
            status = t.class_depth ? translate_in_class(&t) : translate_outside_class(&t);
    }
    if (!status && t.class_depth) status = pattern_refuse(&t, "a class without an end");
    return status;
}
