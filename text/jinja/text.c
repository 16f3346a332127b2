/* Work on texts that filters, methods and tests share: case, stripping, replacing, lines, the % operator. */
#include "text/jinja/render_private.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

/* A locale whose characters are Unicode's, opened once and never freed; 0: the system has none, and only ASCII has
 * case. */
static locale_t unicode(void) {
    static locale_t opened;
    locale_t known = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
    if (known) return known;
    known = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    locale_t none = (locale_t)0;
    if (known && !__atomic_compare_exchange_n(&opened, &none, known, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        freelocale(known);
        known = none;
    }
    return known;
}

bool sn_jhas_class(uint32_t code, const char *class) {
    locale_t where = unicode();
    wctype_t type = where ? wctype_l(class, where) : wctype(class);
    if (code < 0x80 || !where) return code < 0x80 && iswctype((wint_t)code, wctype(class));
    /* glibc calls letters without case alpha, too, and digits of other scripts alpha instead of digit. */
    return iswctype_l((wint_t)code, type, where);
}

/* As Python's str.isprintable: glibc's iswprint takes format characters and those for private use, Python does not. */
bool sn_jis_printable(uint32_t code) {
    static const uint32_t hidden[][2] = {{0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},     {0x6dd, 0x6dd},
                                         {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x180e, 0x180e},
                                         {0x200b, 0x200f},   {0x202a, 0x202e},   {0x2060, 0x206f},   {0xe000, 0xf8ff},
                                         {0xfeff, 0xfeff},   {0xfff9, 0xfffb},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
                                         {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0001, 0xe007f},
                                         {0xf0000, 0x10ffff}};
    if (code < 0x7f) return code >= ' ';
    if (code < 0xa1 || sn_jis_space(code)) return false;
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i][0] && code <= hidden[i][1]) return false;
    return !unicode() || iswprint_l((wint_t)code, unicode());
}

static uint32_t to_case(uint32_t code, bool upper) {
    locale_t where = unicode();
    if (code < 0x80) {
        bool changes = upper ? code >= 'a' && code <= 'z' : code >= 'A' && code <= 'Z';
        return changes ? code ^ 0x20 : code;
    }
    if (!where) return code;
    return (uint32_t)(upper ? towupper_l((wint_t)code, where) : towlower_l((wint_t)code, where));
}

const sn_jstring *sn_jmap_case(sn_jrun *run, const sn_jstring *text, char how) {
    sn_jtext out = sn_jtext_new(run);
    bool word = false; /* inside of a word */
    sn_jcharge(run, text->len >> 2);
    for (size_t at = 0, len; at < text->len; at += len) {
        uint32_t code = sn_jstring_code(text, at, &len);
        bool cased = to_case(code, true) != code || to_case(code, false) != code || code == 0xdf;
        bool upper = how == 'u' || (how == 'c' && at == 0) || (how == 't' && !word) ||
                     (how == 's' && to_case(code, false) == code);
        if (code == 0xdf && upper) /* the sharp s, whose upper case is two letters */
            sn_jtext_word(&out, how == 'u' || how == 's' ? "SS" : "Ss", text->marks[at]);
        else
            sn_jtext_code(&out, to_case(code, upper), text->marks[at]);
        word = cased;
    }
    const sn_jstring *mapped = sn_jtext_end(&out);
    return text->safe ? sn_jstring_safe(run, mapped) : mapped;
}

static bool in_set(const sn_jstring *text, size_t at, size_t len, const sn_jstring *set) {
    size_t ignored;
    if (!set) return sn_jis_space(sn_jstring_code(text, at, &ignored));
    for (size_t i = 0, n; i < set->len; i += n) {
        sn_jstring_code(set, i, &n);
        if (n == len && !memcmp(set->text + i, text->text + at, len)) return true;
    }
    return false;
}

const sn_jstring *sn_jstrip(sn_jrun *run, const sn_jstring *text, const sn_jstring *set, bool left, bool right) {
    size_t from = 0, to = text->len, len, steps = 1 + (set ? set->len >> 2 : 0); /* of each character */
    while (left && from < to) {
        sn_jcharge(run, steps);
        sn_jstring_code(text, from, &len);
        if (!in_set(text, from, len, set)) break;
        from += len;
    }
    while (right && to > from) {
        sn_jcharge(run, steps);
        size_t at = to - 1;
        while (at > from && ((uint8_t)text->text[at] & 0xc0) == 0x80) at--;
        if (!in_set(text, at, to - at, set)) break;
        to = at;
    }
    return sn_jstring_part(run, text, from, to);
}

const sn_jstring *sn_jreplace(sn_jrun *run, const sn_jstring *text, const sn_jstring *old, const sn_jstring *now,
                              int64_t count) {
    sn_jtext out = sn_jtext_new(run);
    size_t done = 0;
    if (!old->len) { /* between all characters, as Python does */
        for (size_t at = 0, len; count && at <= text->len; at += len, count--) {
            sn_jcharge(run, 1);
            sn_jtext_string(&out, now);
            done = at;
            if (at == text->len) break;
            sn_jstring_code(text, at, &len);
            sn_jtext_slice(&out, text, at, at + len);
            done = at + len;
        }
        sn_jtext_slice(&out, text, done, text->len);
        return sn_jtext_end(&out);
    }
    for (size_t at; count && (at = sn_jstring_find(run, text, old, done, text->len)) != SIZE_MAX; count--) {
        sn_jtext_slice(&out, text, done, at);
        sn_jtext_string(&out, now);
        done = at + old->len;
    }
    if (!done && !out.len) return text;
    sn_jtext_slice(&out, text, done, text->len);
    return sn_jtext_end(&out);
}

static bool ends_line(uint32_t code) {
    return (code >= '\n' && code <= '\r') || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

sn_jlist *sn_jsplit_lines(sn_jrun *run, const sn_jstring *text, bool keep_ends) {
    sn_jlist *lines = sn_jlist_new(run, 0);
    size_t from = 0, len;
    sn_jcharge(run, text->len >> 4);
    for (size_t at = 0; at < text->len; at += len) {
        uint32_t code = sn_jstring_code(text, at, &len);
        if (!ends_line(code)) continue;
        if (code == '\r' && at + 1 < text->len && text->text[at + 1] == '\n') len = 2;
        sn_jlist_add(run, lines, sn_jstr(sn_jstring_part(run, text, from, keep_ends ? at + len : at)));
        from = at + len;
    }
    if (from < text->len) sn_jlist_add(run, lines, sn_jstr(sn_jstring_part(run, text, from, text->len)));
    return lines;
}

/* ---- "%s" % values ---- */

typedef struct conversion {
    bool left, plus, space, zero, alternate;
    int width, precision; /* precision -1: not given */
    char kind;
} conversion;

static void add_padded(sn_jtext *out, const conversion *how, const sn_jstring *text) {
    int64_t gap = how->width - (int64_t)text->n_chars;
    for (int64_t i = 0; !how->left && i < gap; i++) sn_jtext_word(out, " ", 0);
    sn_jtext_string(out, text);
    for (int64_t i = 0; how->left && i < gap; i++) sn_jtext_word(out, " ", 0);
}

static void add_number(sn_jcall *call, sn_jtext *out, const conversion *how, sn_jvalue v) {
    char format[40], number[512];
    bool real = strchr("eEfFgG", how->kind);
    char precision[16] = "";
    if (!sn_jis_number(v)) sn_jcall_fail(call, "%%%c needs a number, not a %s", how->kind, sn_jtype_name(v));
    if (!real && v.kind == SN_J_FLOAT &&
        (v.real != v.real || v.real > 9e18 || v.real < -9e18 || strchr("xXo", how->kind)))
        sn_jcall_fail(call, "%%%c needs an integer", how->kind);
    if (how->precision >= 0) snprintf(precision, sizeof precision, ".%d", how->precision);
    snprintf(format, sizeof format, "%%%s%s%s%s%s%d%s%s%c", how->left ? "-" : "", how->plus ? "+" : "",
             how->space ? " " : "", how->zero ? "0" : "", how->alternate ? "#" : "", how->width, precision,
             real ? "" : "ll", how->kind == 'i' || how->kind == 'u' ? 'd' : how->kind);
    long long integer = v.kind == SN_J_FLOAT && !real ? (long long)v.real : real ? 0 : (long long)sn_jas_int(v);
    int n = real ? snprintf(number, sizeof number, format, sn_jas_real(v))
                 : snprintf(number, sizeof number, format, integer);
    if (n < 0 || n >= (int)sizeof number) sn_jcall_fail(call, "the number is too long");
    sn_jtext_add(out, number, (size_t)n, 0);
}

static void add_converted(sn_jcall *call, sn_jtext *out, const conversion *how, sn_jvalue v) {
    sn_jrun *run = call->r->run;
    if (strchr("diueEfFgGxXo", how->kind)) {
        add_number(call, out, how, v);
        return;
    }
    if (!strchr("src", how->kind))
        sn_jcall_fail(call, "%%%c is no conversion", how->kind > ' ' && how->kind < 127 ? how->kind : '?');
    sn_jtext text = sn_jtext_new(run);
    if (how->kind == 'r')
        sn_jwrite_repr(&text, v);
    else if (how->kind == 'c' && sn_jis_int(v))
        sn_jtext_code(&text, (uint32_t)sn_jas_int(v), SN_JINJA_DATA);
    else
        sn_jwrite(&text, v);
    const sn_jstring *whole = sn_jtext_end(&text);
    if (how->precision >= 0)
        whole = sn_jstring_part(run, whole, 0, sn_jstring_offset(run, whole, (size_t)how->precision));
    add_padded(out, how, whole);
}

static int parse_number(sn_jcall *call, const sn_jstring *format, size_t *at) {
    int n = 0;
    for (; *at < format->len && format->text[*at] >= '0' && format->text[*at] <= '9'; ++*at)
        if ((n = 10 * n + (format->text[*at] - '0')) > 400) sn_jcall_fail(call, "a width in the format is above 400");
    return n;
}

/* Reads the conversion behind a % at `*at`, and the value that it takes. */
static conversion parse_conversion(sn_jcall *call, const sn_jstring *format, size_t *at, sn_jvalue values,
                                   sn_jvalue *key) {
    conversion how = {.precision = -1};
    *key = sn_jnone();
    if (*at < format->len && format->text[*at] == '(') {
        const char *close = memchr(format->text + *at, ')', format->len - *at);
        if (!close || values.kind != SN_J_DICT) sn_jcall_fail(call, "%%(name) needs values with names");
        *key = sn_jstr(sn_jstring_part(call->r->run, format, *at + 1, (size_t)(close - format->text)));
        *at = (size_t)(close - format->text) + 1;
    }
    for (; *at < format->len && format->text[*at] && strchr("-+ 0#", format->text[*at]); ++*at) {
        char flag = format->text[*at];
        *(flag == '-'   ? &how.left
          : flag == '+' ? &how.plus
          : flag == ' ' ? &how.space
          : flag == '0' ? &how.zero
                        : &how.alternate) = true;
    }
    how.width = parse_number(call, format, at);
    if (*at < format->len && format->text[*at] == '.') {
        ++*at;
        how.precision = parse_number(call, format, at);
    }
    if (*at >= format->len || !format->text[*at]) sn_jcall_fail(call, "the format ends within a conversion");
    how.kind = format->text[(*at)++]; /* never NUL, which strchr finds in every string */
    return how;
}

const sn_jstring *sn_jpercent_format(sn_jcall *call, const sn_jstring *format, sn_jvalue values) {
    sn_jrun *run = call->r->run;
    sn_jtext out = sn_jtext_new(run);
    size_t used = 0, at = 0;
    while (at < format->len) {
        const char *percent = memchr(format->text + at, '%', format->len - at);
        size_t stop = percent ? (size_t)(percent - format->text) : format->len;
        sn_jtext_slice(&out, format, at, stop);
        at = stop + 1;
        if (!percent) break;
        sn_jvalue key, v = values;
        sn_jcharge(run, 1);
        conversion how = parse_conversion(call, format, &at, values, &key);
        if (how.kind == '%') {
            sn_jtext_word(&out, "%", 0);
            continue;
        }
        if (key.kind == SN_J_STRING) {
            const sn_jvalue *found = sn_jdict_find(run, values.dict, key);
            if (!found) sn_jcall_fail(call, "there is no value with the name in %%(...)");
            v = *found;
        } else if (values.kind == SN_J_TUPLE) {
            if (used >= values.list->n) sn_jcall_fail(call, "there are more conversions than values");
            v = values.list->at[used++];
        } else if (used++) {
            sn_jcall_fail(call, "there are more conversions than values");
        }
        add_converted(call, &out, &how, v);
    }
    bool single = values.kind != SN_J_TUPLE && values.kind != SN_J_DICT && values.kind != SN_J_LIST;
    if ((values.kind == SN_J_TUPLE && used < values.list->n) || (single && !used))
        sn_jcall_fail(call, "there are more values than conversions");
    return sn_jtext_end(&out);
}
