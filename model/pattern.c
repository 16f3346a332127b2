#include "model/pattern.h"

#include <string.h>

typedef struct translator {
    const char *text;
    size_t len, at;
    int class_depth; /* 0: outside a character class */
    sn_buf *out;
    sn_err *err;
} translator;

static sn_status refuse(const translator *t, const char *why) {
    return sn_fail(t->err, SN_REFUSED, "the pattern of the pre-tokenizer has %s at byte %zu, which is not supported",
                   why, t->at);
}

static bool follows(const translator *t, const char *word) {
    size_t n = strlen(word);
    return n <= t->len - t->at && !memcmp(t->text + t->at, word, n);
}

static sn_status put(translator *t, const char *text, size_t len) { return sn_buf_append(t->out, text, len, t->err); }

static sn_status keep(translator *t, size_t n) {
    sn_status status = put(t, t->text + t->at, n);
    t->at += n;
    return status;
}

/* \p{Lu}: general categories are the same in both; of scripts only Han is known to be asked for. */
static sn_status property(translator *t) {
    static const char *const categories =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So "
        "Z Zs Zl Zp C Cc Cf Co Cs Cn ";
    size_t name = t->at + 3;
    const char *close = t->len > name && t->text[t->at + 2] == '{' ? memchr(t->text + name, '}', t->len - name) : NULL;
    size_t n = close ? (size_t)(close - t->text) - name : 0;
    if (n == 3 && !memcmp(t->text + name, "Han", 3)) {
        bool negated = t->text[t->at + 1] == 'P';
        t->at = name + n + 1;
        return negated ? put(t, "\\P{sc:Han}", 10) : put(t, "\\p{sc:Han}", 10);
    }
    char padded[5] = " ";
    if (n < 1 || n > 2) return refuse(t, "a property that is not known");
    memcpy(padded + 1, t->text + name, n);
    padded[n + 1] = ' ';
    return strstr(categories, padded) ? keep(t, n + 4) : refuse(t, "a property that is not known");
}

static sn_status escape(translator *t) {
    char c = t->at + 1 < t->len ? t->text[t->at + 1] : 0;
    if (c == 's' || c == 'S') { /* PCRE2's own has U+180E in it, Unicode's not */
        t->at += 2;
        return c == 's' ? put(t, "\\p{White_Space}", 15) : put(t, "\\P{White_Space}", 15);
    }
    if (c == 'p' || c == 'P') return property(t);
    bool punctuation =
        c > 32 && c < 127 && !strchr("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", c);
    if (punctuation || (c && strchr("rntdD", c))) return keep(t, 2);
    return refuse(t, "an escape");
}

static sn_status in_class(translator *t) {
    char c = t->text[t->at];
    if (c == '[') {
        if (follows(t, "[^") || follows(t, "[:")) return refuse(t, "a class within a class");
        t->class_depth++; /* a class within a class adds its members: PCRE2 gets them without the bracket */
        t->at++;
        return SN_OK;
    }
    if (c == ']') {
        t->at++;
        return --t->class_depth ? SN_OK : put(t, "]", 1);
    }
    if (follows(t, "&&")) return refuse(t, "an intersection of classes");
    return keep(t, 1);
}

static sn_status group(translator *t) {
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (!follows(t, "(?")) return keep(t, 1);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (follows(t, known[i])) return keep(t, strlen(known[i]));
    return refuse(t, "a group");
}

static sn_status outside_class(translator *t) {
    char c = t->text[t->at];
    if (c == '(') return group(t);
    if (c == '^' || c == '$' || c == '.') return refuse(t, "an anchor or a dot"); /* lines differ between the two */
    if (follows(t, "}+") || follows(t, "}?")) return refuse(t, "a counted repetition with something behind it");
    if (follows(t, "{,")) return refuse(t, "a repetition without a least count");
    if (c != '[') return keep(t, 1);
    if (follows(t, "[:") || follows(t, "[]") || follows(t, "[^]")) return refuse(t, "a class");
    t->class_depth = 1;
    return keep(t, follows(t, "[^") ? 2 : 1);
}

sn_status sn_pattern_translate(const char *pattern, size_t len, sn_buf *out, sn_err *err) {
    translator t = {.text = pattern, .len = len, .out = out, .err = err};
    sn_status status = SN_OK;
    while (!status && t.at < len) {
        if (pattern[t.at] == '\\')
            status = escape(&t);
        else
            status = t.class_depth ? in_class(&t) : outside_class(&t);
    }
    if (!status && t.class_depth) status = refuse(&t, "a class without an end");
    return status;
}
