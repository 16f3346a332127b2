/* Filters that make texts. What they stand on becomes a text first, as Jinja2's soft_str does it. */
#include "text/jinja/render_private.h"

#include <stdio.h>
#include <string.h>

static const sn_jstring *text_of(sn_jcall *c) { return sn_jto_string(c->r->run, c->self); }

static sn_jvalue filter_upper(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, text_of(c), 'u')); }
static sn_jvalue filter_lower(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, text_of(c), 'l')); }
static sn_jvalue filter_capitalize(sn_jcall *c) { return sn_jstr(sn_jmap_case(c->r->run, text_of(c), 'c')); }

/* Words begin behind white space, - ( { [ and < here, unlike in str.title. */
static sn_jvalue filter_title(sn_jcall *c) {
    const sn_jstring *text = text_of(c);
    sn_jtext out = sn_jtext_new(c->r->run);
    bool begins = true;
    for (size_t at = 0, len; at < text->len; at += len) {
        uint32_t code = sn_jstring_code(text, at, &len);
        const sn_jstring *one = sn_jstring_part(c->r->run, text, at, at + len);
        sn_jtext_string(&out, sn_jmap_case(c->r->run, one, begins ? 'u' : 'l'));
        begins = sn_jis_space(code) || (code && code < 0x80 && strchr("-({[<", (int)code));
    }
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue filter_trim(sn_jcall *c) {
    return sn_jstr(sn_jstrip(c->r->run, text_of(c), sn_jarg_string(c, 0, NULL), true, true));
}

static sn_jvalue filter_replace(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    return sn_jstr(sn_jreplace(run, text_of(c), sn_jto_string(run, c->arg[0]), sn_jto_string(run, c->arg[1]),
                               sn_jarg_size(c, 2, -1)));
}

static sn_jvalue filter_indent(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    bool first = sn_jarg_flag(c, 1, false), blank = sn_jarg_flag(c, 2, false);
    sn_jtext spaces = sn_jtext_new(run), out = sn_jtext_new(run);
    if (c->self.kind != SN_J_STRING) sn_jcall_fail(c, "a %s is no text", sn_jtype_name(c->self));
    if (c->has[0] && c->arg[0].kind == SN_J_STRING) {
        sn_jtext_string(&spaces, c->arg[0].string);
    } else {
        int64_t width = sn_jarg_int(c, 0, 4);
        if (width > 1000) sn_jcall_fail(c, "the width is larger than 1000");
        for (int64_t i = 0; i < width; i++) sn_jtext_word(&spaces, " ", 0);
    }
    const sn_jstring *indention = sn_jtext_end(&spaces);
    sn_jtext ended = sn_jtext_new(run); /* Jinja2 puts a newline behind the text first, so that there is a line */
    sn_jtext_string(&ended, c->self.string);
    sn_jtext_word(&ended, "\n", 0);
    const sn_jlist *lines = sn_jsplit_lines(run, sn_jtext_end(&ended), false);
    for (size_t i = 0; i < lines->n; i++) {
        const sn_jstring *line = lines->at[i].string;
        if (i) sn_jtext_word(&out, "\n", 0);
        if (i ? blank || line->len : first) sn_jtext_string(&out, indention);
        sn_jtext_string(&out, line);
    }
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue filter_center(sn_jcall *c) {
    const sn_jstring *text = text_of(c);
    int64_t width = sn_jarg_size(c, 0, 80), gap = width - (int64_t)text->n_chars;
    if (gap <= 0) return sn_jstr(text);
    int64_t left = gap / 2 + (gap & width & 1);
    sn_jtext out = sn_jtext_new(c->r->run);
    for (int64_t i = 0; i < left; i++) sn_jtext_word(&out, " ", 0);
    sn_jtext_string(&out, text);
    for (int64_t i = left; i < gap; i++) sn_jtext_word(&out, " ", 0);
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue filter_wordcount(sn_jcall *c) {
    const sn_jstring *text = text_of(c);
    int64_t n = 0;
    bool inside = false;
    sn_jcharge(c->r->run, text->len);
    for (size_t at = 0, len; at < text->len; at += len) {
        uint32_t code = sn_jstring_code(text, at, &len);
        bool word = code == '_' || sn_jhas_class(code, "alpha") || sn_jhas_class(code, "digit");
        n += word && !inside;
        inside = word;
    }
    return sn_jint(n);
}

static sn_jvalue filter_truncate(sn_jcall *c) {
    sn_jrun *run = c->r->run;
    if (c->self.kind == SN_J_UNDEFINED) return c->self;
    if (c->self.kind != SN_J_STRING) sn_jcall_fail(c, "a %s is no text", sn_jtype_name(c->self));
    const sn_jstring *text = text_of(c), *end = sn_jarg_string(c, 2, "...");
    int64_t length = sn_jarg_size(c, 0, 255), leeway = sn_jarg_size(c, 3, 5);
    if (length < (int64_t)end->n_chars || leeway < 0) sn_jcall_fail(c, "the length is below that of the end");
    if ((int64_t)text->n_chars <= length + leeway) return sn_jstr(text);
    size_t kept = sn_jstring_offset(run, text, (size_t)(length - (int64_t)end->n_chars));
    sn_jtext out = sn_jtext_new(run);
    if (!sn_jarg_flag(c, 1, false)) {
        size_t space = sn_jstring_rfind(run, text, sn_jstring_new(run, " ", 1, 0), 0, kept);
        if (space != SIZE_MAX) kept = space;
    }
    sn_jtext_slice(&out, text, 0, kept);
    sn_jtext_string(&out, end);
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue filter_forceescape(sn_jcall *c) { return sn_jstr(sn_jstring_escape(c->r->run, text_of(c))); }

static sn_jvalue filter_escape(sn_jcall *c) {
    return c->self.kind == SN_J_STRING && c->self.string->safe ? c->self : filter_forceescape(c);
}

static sn_jvalue filter_urlencode(sn_jcall *c) {
    const sn_jstring *text = text_of(c);
    sn_jtext out = sn_jtext_new(c->r->run);
    if (sn_jis_list(c->self) || c->self.kind == SN_J_DICT) sn_jcall_fail(c, "only texts are encoded here");
    for (size_t at = 0; at < text->len; at++) {
        char byte = text->text[at], escape[4];
        bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                     (byte && strchr("_.-~/", byte));
        snprintf(escape, sizeof escape, "%%%02X", (uint8_t)byte);
        if (plain)
            sn_jtext_slice(&out, text, at, at + 1);
        else
            sn_jtext_word(&out, escape, text->marks[at]);
    }
    return sn_jstr(sn_jtext_end(&out));
}

static sn_jvalue filter_format(sn_jcall *c) {
    sn_jlist *values = sn_jlist_copy(c->r->run, c->given);
    if (c->named->n && c->given->n) sn_jcall_fail(c, "it takes values with names or without, not both");
    sn_jvalue given = c->named->n ? sn_jdict_value((sn_jdict *)c->named) : sn_jtuple_value(values);
    return sn_jstr(sn_jpercent_format(c, text_of(c), given));
}

const sn_jbuiltin sn_jtext_filters[] = {
    {"upper", "", filter_upper},
    {"lower", "", filter_lower},
    {"capitalize", "", filter_capitalize},
    {"title", "", filter_title},
    {"trim", "/ chars", filter_trim},
    {"replace", "old new / count", filter_replace},
    {"indent", "/ width first blank", filter_indent},
    {"center", "/ width", filter_center},
    {"wordcount", "", filter_wordcount},
    {"truncate", "/ length killwords end leeway", filter_truncate},
    {"escape", "", filter_escape},
    {"e", "", filter_escape},
    {"forceescape", "", filter_forceescape},
    {"urlencode", "", filter_urlencode},
    {"format", "*", filter_format},
    {NULL, NULL, NULL},
};
