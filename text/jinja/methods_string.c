/* Methods of texts. Their names and arguments are those of Python's str; positions count characters. */
#include "text/jinja/render_private.h"

#include <string.h>

/* ---- texts from texts ---- */

static sn_jvalue method_upper(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, c->self.string, 'u')); }
static sn_jvalue method_lower(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, c->self.string, 'l')); }
static sn_jvalue method_title(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, c->self.string, 't')); }
static sn_jvalue method_capitalize(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, c->self.string, 'c')); }
static sn_jvalue method_swapcase(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, c->self.string, 's')); }

static sn_jvalue strip(sn_jcall *c, bool left, bool right) {
    return sn_jstr(sn_jstrip(c->r->run, c->self.string, sn_jarg_string(c, 0, NULL), left, right));
}
static sn_jvalue method_strip(sn_jcall *c) { return strip(c, true, true); }
static sn_jvalue method_lstrip(sn_jcall *c) { return strip(c, true, false); }
static sn_jvalue method_rstrip(sn_jcall *c) { return strip(c, false, true); }

static sn_jvalue method_replace(sn_jcall *c) {
    return sn_jstr(sn_jreplace(c->r->run, c->self.string, sn_jarg_string(c, 0, ""), sn_jarg_string(c, 1, ""),
                               sn_jarg_size(c, 2, -1)));
}

static bool begins_with(sn_jrun *run, const sn_jstring *text, const sn_jstring *part) {
    sn_jcharge(run, part->len >> 8);
    return part->len <= text->len && !memcmp(text->text, part->text, part->len);
}

static bool ends_with(sn_jrun *run, const sn_jstring *text, const sn_jstring *part) {
    sn_jcharge(run, part->len >> 8);
    return part->len <= text->len && !memcmp(text->text + text->len - part->len, part->text, part->len);
}

static sn_jvalue method_removeprefix(sn_jcall *c) {
    const sn_jstring *text = c->self.string, *part = sn_jarg_string(c, 0, "");
    return begins_with(c->r->run, text, part) ? sn_jstr(sn_jstring_part(c->r->run, text, part->len, text->len))
                                              : c->self;
}

static sn_jvalue method_removesuffix(sn_jcall *c) {
    const sn_jstring *text = c->self.string, *part = sn_jarg_string(c, 0, "");
    return ends_with(c->r->run, text, part) ? sn_jstr(sn_jstring_part(c->r->run, text, 0, text->len - part->len))
                                            : c->self;
}

/* Fills up to a width with `fill`, of which `left` pieces of the gap stand before the text. */
static sn_jvalue padded(sn_jcall *c, int64_t left, const sn_jstring *fill) {
    const sn_jstring *text = c->self.string;
    int64_t gap = sn_jarg_size(c, 0, 0) - (int64_t)text->n_chars;
    sn_jtext out = sn_jtext_new(c->r->run);
    if (fill->n_chars != 1) sn_jcall_fail(c, "the fill is one character");
    if (left < 0) left = gap > 0 ? gap : 0;
    for (int64_t i = 0; i < left && i < gap; i++) sn_jtext_string(&out, fill);
    sn_jtext_string(&out, text);
    for (int64_t i = left; i < gap; i++) sn_jtext_string(&out, fill);
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue method_ljust(sn_jcall *c) { return padded(c, 0, sn_jarg_string(c, 1, " ")); }
static sn_jvalue method_rjust(sn_jcall *c) { return padded(c, -1, sn_jarg_string(c, 1, " ")); }
static sn_jvalue method_center(sn_jcall *c) {
    int64_t width = sn_jarg_size(c, 0, 0), gap = width - (int64_t)c->self.string->n_chars;
    return padded(c, gap > 0 ? gap / 2 + (gap & width & 1) : 0, sn_jarg_string(c, 1, " "));
}

static sn_jvalue method_zfill(sn_jcall *c) {
    const sn_jstring *text = c->self.string;
    size_t sign = text->len && (text->text[0] == '-' || text->text[0] == '+');
    int64_t gap = sn_jarg_size(c, 0, 0) - (int64_t)text->n_chars;
    sn_jtext out = sn_jtext_new(c->r->run);
    sn_jtext_slice(&out, text, 0, sign);
    for (int64_t i = 0; i < gap; i++) sn_jtext_word(&out, "0", 0);
    sn_jtext_slice(&out, text, sign, text->len);
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue method_join(sn_jcall *c) {
    const sn_jlist *list = sn_jiterate(c->r->run, "'join'", c->arg[0]);
    sn_jtext out = sn_jtext_new(c->r->run);
    for (size_t i = 0; i < list->n; i++) {
        if (list->at[i].kind != SN_J_STRING)
            sn_jcall_fail(c, "item %zu is a %s, not a string", i, sn_jtype_name(list->at[i]));
        if (i) sn_jtext_string(&out, c->self.string);
        sn_jtext_string(&out, list->at[i].string);
    }
    return sn_jstr(sn_jtext_end(&out));
}

/* Of the text's own bytes: no NUL ends it. */
static bool has_byte_of(const sn_jstring *text, const char *set) {
    for (size_t i = 0; i < text->len; i++)
        if (text->text[i] && strchr(set, text->text[i])) return true;
    return false;
}

/* "{} {name} {0}".format(...), without conversions and formats. */
static sn_jvalue method_format(sn_jcall *c) {
    const sn_jstring *text = c->self.string;
    sn_jrun *run = c->r->run;
    sn_jtext out = sn_jtext_new(run);
    size_t next = 0;
    for (size_t at = 0; at < text->len; at++) {
        char byte = text->text[at];
        bool doubled = at + 1 < text->len && text->text[at + 1] == byte;
        if ((byte == '{' || byte == '}') && doubled) {
            sn_jtext_slice(&out, text, at, at + 1);
            at++;
            continue;
        }
        if (byte == '}') sn_jcall_fail(c, "a single '}' stands in the text");
        if (byte != '{') {
            sn_jtext_slice(&out, text, at, at + 1);
            continue;
        }
        const char *close = memchr(text->text + at, '}', text->len - at);
        if (!close) sn_jcall_fail(c, "a '{' is not closed");
        size_t end = (size_t)(close - text->text);
        const sn_jstring *field = sn_jstring_part(run, text, at + 1, end);
        int64_t index = field->len ? 0 : (int64_t)next++;
        bool digits = true;
        for (size_t i = 0; i < field->len && digits && index < 1 << 20; i++) {
            digits = field->text[i] >= '0' && field->text[i] <= '9';
            index = 10 * index + (field->text[i] - '0');
        }
        sn_jcharge(run, 1 + (field->len >> 4));
        if (!digits && has_byte_of(field, ":!.["))
            sn_jcall_fail(c, "only {}, {0} and {name} are known: use the filter format");
        const sn_jvalue *named = digits ? NULL : sn_jdict_find(run, c->named, sn_jstr(field));
        if (digits ? (size_t)index >= c->given->n : !named) sn_jcall_fail(c, "there is no value for a {...}");
        sn_jwrite(&out, digits ? c->given->at[index] : *named);
        at = end;
    }
    return sn_jstr(sn_jtext_end(&out));
}

/* ---- lists from texts ---- */

static void add_part(sn_jcall *c, sn_jlist *list, size_t from, size_t to) {
    sn_jlist_add(c->r->run, list, sn_jstr(sn_jstring_part(c->r->run, c->self.string, from, to)));
}

static sn_jlist *split_spaces(sn_jcall *c, int64_t most) {
    const sn_jstring *text = c->self.string;
    sn_jlist *list = sn_jlist_new(c->r->run, 0);
    size_t at = 0, len = 0;
    for (;; most--) {
        size_t gap = at;
        while (at < text->len && sn_jis_space(sn_jstring_code(text, at, &len))) at += len;
        sn_jcharge(c->r->run, (at - gap) >> 2);
        if (at >= text->len) return list;
        if (most == 0) {
            add_part(c, list, at, text->len);
            return list;
        }
        size_t from = at;
        while (at < text->len && !sn_jis_space(sn_jstring_code(text, at, &len))) at += len;
        sn_jcharge(c->r->run, 1 + ((at - from) >> 2));
        add_part(c, list, from, at);
    }
}

/* The same from the right. */
static sn_jlist *rsplit_spaces(sn_jcall *c, int64_t most) {
    const sn_jstring *text = c->self.string;
    sn_jlist *words = split_spaces(c, -1), *list = sn_jlist_new(c->r->run, 0);
    if (most < 0 || (int64_t)words->n <= most) return words;
    size_t kept = words->n - (size_t)most; /* words of the first part, as they stand in the text */
    const sn_jstring *last = words->at[kept - 1].string;
    size_t end = (size_t)(last->text + last->len - text->text);
    add_part(c, list, 0, end);
    for (size_t i = kept; i < words->n; i++) sn_jlist_add(c->r->run, list, words->at[i]);
    return list;
}

static const sn_jstring *separator_of(sn_jcall *c) {
    const sn_jstring *separator = sn_jarg_string(c, 0, NULL);
    if (separator && !separator->len) sn_jcall_fail(c, "the separator is empty");
    return separator;
}

static sn_jvalue method_split(sn_jcall *c) {
    const sn_jstring *text = c->self.string, *separator = separator_of(c);
    int64_t most = sn_jarg_size(c, 1, -1);
    if (!separator) return sn_jlist_value(split_spaces(c, most < 0 ? -1 : most));
    sn_jlist *list = sn_jlist_new(c->r->run, 0);
    size_t from = 0, at;
    for (; most != 0 && (at = sn_jstring_find(c->r->run, text, separator, from, text->len)) != SIZE_MAX; most--) {
        add_part(c, list, from, at);
        from = at + separator->len;
    }
    add_part(c, list, from, text->len);
    return sn_jlist_value(list);
}

static sn_jvalue method_rsplit(sn_jcall *c) {
    const sn_jstring *text = c->self.string, *separator = separator_of(c);
    int64_t most = sn_jarg_size(c, 1, -1);
    if (!separator) return sn_jlist_value(rsplit_spaces(c, most));
    sn_jlist *list = sn_jlist_new(c->r->run, 0), *turned = sn_jlist_new(c->r->run, 0);
    size_t to = text->len, at;
    for (; most != 0 && (at = sn_jstring_rfind(c->r->run, text, separator, 0, to)) != SIZE_MAX; most--) {
        add_part(c, list, at + separator->len, to);
        to = at;
    }
    add_part(c, list, 0, to);
    for (size_t i = list->n; i-- > 0;) sn_jlist_add(c->r->run, turned, list->at[i]);
    return sn_jlist_value(turned);
}

static sn_jvalue method_splitlines(sn_jcall *c) {
    return sn_jlist_value(sn_jsplit_lines(c->r->run, c->self.string, sn_jarg_flag(c, 0, false)));
}

static sn_jvalue partition(sn_jcall *c, bool from_right) {
    const sn_jstring *text = c->self.string, *separator = separator_of(c);
    if (!separator) sn_jcall_fail(c, "it needs a separator");
    size_t at = from_right ? sn_jstring_rfind(c->r->run, text, separator, 0, text->len)
                           : sn_jstring_find(c->r->run, text, separator, 0, text->len);
    bool found = at != SIZE_MAX;
    size_t end = found ? at + separator->len : from_right ? 0 : text->len;
    sn_jlist *list = sn_jlist_new(c->r->run, 3);
    add_part(c, list, 0, found ? at : from_right ? 0 : text->len);
    add_part(c, list, found ? at : end, end);
    add_part(c, list, end, text->len);
    return sn_jtuple_value(list);
}

static sn_jvalue method_partition(sn_jcall *c) { return partition(c, false); }
static sn_jvalue method_rpartition(sn_jcall *c) { return partition(c, true); }

const sn_jbuiltin sn_jstring_methods[] = {
    {"upper", "", method_upper},
    {"lower", "", method_lower},
    {"casefold", "", method_lower},
    {"title", "", method_title},
    {"capitalize", "", method_capitalize},
    {"swapcase", "", method_swapcase},
    {"strip", "/ chars", method_strip},
    {"lstrip", "/ chars", method_lstrip},
    {"rstrip", "/ chars", method_rstrip},
    {"replace", "old new / count", method_replace},
    {"removeprefix", "prefix", method_removeprefix},
    {"removesuffix", "suffix", method_removesuffix},
    {"ljust", "width / fillchar", method_ljust},
    {"rjust", "width / fillchar", method_rjust},
    {"center", "width / fillchar", method_center},
    {"zfill", "width", method_zfill},
    {"join", "iterable", method_join},
    {"format", "*", method_format},
    {"split", "/ sep maxsplit", method_split},
    {"rsplit", "/ sep maxsplit", method_rsplit},
    {"splitlines", "/ keepends", method_splitlines},
    {"partition", "sep", method_partition},
    {"rpartition", "sep", method_rpartition},
    {NULL, NULL, NULL},
};
