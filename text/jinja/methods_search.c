/* Methods that ask something of a text: where and how often a part stands in it, and of which characters it is. */
#include "text/jinja/render_private.h"

#include <string.h>

/* The bytes of [start, end) of arguments 1 and 2; false: start lies behind the end of the text. */
static bool bounds(sn_jcall *c, size_t *from, size_t *to) {
    const sn_jstring *text = c->self.string;
    int64_t n = (int64_t)text->n_chars, start = sn_jarg_int(c, 1, 0), end = sn_jarg_int(c, 2, n);
    if (start < 0) start = start < -n ? 0 : start + n;
    if (end < 0) end = end < -n ? 0 : end + n;
    if (end > n) end = n;
    if (start > n || start > end) return false;
    *from = sn_jstring_offset(c->r->run, text, (size_t)start);
    *to = sn_jstring_offset(c->r->run, text, (size_t)end);
    return true;
}

static int64_t position(const sn_jstring *text, size_t at) {
    int64_t n = 0;
    for (size_t i = 0; i < at; i++) n += ((uint8_t)text->text[i] & 0xc0) != 0x80;
    return n;
}

static sn_jvalue find(sn_jcall *c, bool last, bool must) {
    const sn_jstring *text = c->self.string, *part = sn_jarg_string(c, 0, "");
    size_t from, to, at = SIZE_MAX;
    if (bounds(c, &from, &to))
        at =
            last ? sn_jstring_rfind(c->r->run, text, part, from, to) : sn_jstring_find(c->r->run, text, part, from, to);
    if (at == SIZE_MAX && must) sn_jcall_fail(c, "the part is not there");
    sn_jcharge(c->r->run, at == SIZE_MAX ? 0 : at >> 6);
    return sn_jint(at == SIZE_MAX ? -1 : position(text, at));
}

static sn_jvalue method_find(sn_jcall *c) { return find(c, false, false); }
static sn_jvalue method_rfind(sn_jcall *c) { return find(c, true, false); }
static sn_jvalue method_index(sn_jcall *c) { return find(c, false, true); }
static sn_jvalue method_rindex(sn_jcall *c) { return find(c, true, true); }

static sn_jvalue method_count(sn_jcall *c) {
    const sn_jstring *text = c->self.string, *part = sn_jarg_string(c, 0, "");
    size_t from, to;
    int64_t n = 0;
    if (!bounds(c, &from, &to)) return sn_jint(0);
    if (!part->len) {
        sn_jcharge(c->r->run, (from + to) >> 6);
        return sn_jint(position(text, to) - position(text, from) + 1);
    }
    for (size_t at; (at = sn_jstring_find(c->r->run, text, part, from, to)) != SIZE_MAX; n++) from = at + part->len;
    return sn_jint(n);
}

/* Whether the text has the part, or one of a tuple of parts, at its beginning or end. */
static sn_jvalue stands_at(sn_jcall *c, bool end) {
    const sn_jstring *text = c->self.string;
    size_t from, to;
    if (!bounds(c, &from, &to)) return sn_jbool(false);
    bool several = c->arg[0].kind == SN_J_TUPLE;
    for (size_t i = 0; i < (several ? c->arg[0].list->n : 1); i++) {
        sn_jvalue part = several ? c->arg[0].list->at[i] : c->arg[0];
        if (part.kind != SN_J_STRING) sn_jcall_fail(c, "expected a string, not a %s", sn_jtype_name(part));
        size_t len = part.string->len;
        sn_jcharge(c->r->run, 1 + (len >> 8));
        if (len <= to - from && !memcmp(text->text + (end ? to - len : from), part.string->text, len))
            return sn_jbool(true);
    }
    return sn_jbool(false);
}

static sn_jvalue method_startswith(sn_jcall *c) { return stands_at(c, false); }
static sn_jvalue method_endswith(sn_jcall *c) { return stands_at(c, true); }

/* ---- classes of characters ---- */

static bool is_decimal(uint32_t code) { return code < 0x80 && sn_jhas_class(code, "digit"); }
static bool is_alpha(uint32_t code) { return sn_jhas_class(code, "alpha"); }
static bool is_alnum(uint32_t code) { return is_alpha(code) || is_decimal(code); }
static bool is_ascii(uint32_t code) { return code < 0x80; }

static sn_jvalue all_are(sn_jcall *c, bool (*is)(uint32_t code), bool empty) {
    const sn_jstring *text = c->self.string;
    bool all = text->len ? true : empty;
    sn_jcharge(c->r->run, text->len);
    for (size_t at = 0, len; at < text->len && all; at += len) all = is(sn_jstring_code(text, at, &len));
    return sn_jbool(all);
}

static sn_jvalue method_isdigit(sn_jcall *c) { return all_are(c, is_decimal, false); }
static sn_jvalue method_isalpha(sn_jcall *c) { return all_are(c, is_alpha, false); }
static sn_jvalue method_isalnum(sn_jcall *c) { return all_are(c, is_alnum, false); }
static sn_jvalue method_isspace(sn_jcall *c) { return all_are(c, sn_jis_space, false); }
static sn_jvalue method_isascii(sn_jcall *c) { return all_are(c, is_ascii, true); }

static sn_jvalue case_test(sn_jcall *c, const char *name) {
    const sn_jlist none = {0};
    const sn_jdict unnamed = {0};
    return sn_jbool(sn_japply_test(c->r, sn_jstring_new(c->r->run, name, strlen(name), 0), c->self, &none, &unnamed));
}
static sn_jvalue method_islower(sn_jcall *c) { return case_test(c, "lower"); }
static sn_jvalue method_isupper(sn_jcall *c) { return case_test(c, "upper"); }

const sn_jbuiltin sn_jstring_searches[] = {
    {"find", "sub / start end", method_find},
    {"rfind", "sub / start end", method_rfind},
    {"index", "sub / start end", method_index},
    {"rindex", "sub / start end", method_rindex},
    {"count", "sub / start end", method_count},
    {"startswith", "prefix / start end", method_startswith},
    {"endswith", "suffix / start end", method_endswith},
    {"isdigit", "", method_isdigit},
    {"isdecimal", "", method_isdigit},
    {"isnumeric", "", method_isdigit},
    {"isalpha", "", method_isalpha},
    {"isalnum", "", method_isalnum},
    {"isspace", "", method_isspace},
    {"isascii", "", method_isascii},
    {"islower", "", method_islower},
    {"isupper", "", method_isupper},
    {NULL, NULL, NULL},
};
