/* Values as text: what Python's str(), repr() and json.dumps() write. */
#include "text/jinja/value_private.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest decimal number that reads back as the same float, in the form of Python's repr. */
static void format_real(double real, char out[40]) {
    if (isnan(real) || isinf(real)) {
        snprintf(out, 40, "%s", isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    char digits[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, real);
        if (strtod(digits, NULL) == real) break;
    }
    int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10), precision = (int)(strchr(digits, 'e') - digits);
    precision -= real < 0 || signbit(real) ? 1 : 0;
    precision = precision > 2 ? precision - 2 : 0; /* digits behind the first */
    if (exponent < -4 || exponent >= 16)
        snprintf(out, 40, "%.*e", precision, real); /* both write two digits of exponent at least */
    else
        snprintf(out, 40, "%.*f", precision - exponent > 1 ? precision - exponent : 1, real);
}

static void write_string_repr(sn_jtext *out, const sn_jstring *text) {
    bool single = memchr(text->text, '\'', text->len), twice = memchr(text->text, '"', text->len);
    char quote = single && !twice ? '"' : '\'', escape[16];
    sn_jtext_add(out, &quote, 1, SN_JINJA_DATA);
    for (size_t at = 0, len; at < text->len; at += len) {
        uint32_t code = sn_jstring_code(text, at, &len);
        uint8_t mark = text->marks[at];
        if (code == (uint8_t)quote || code == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)code);
        else if (code == '\n' || code == '\r' || code == '\t')
            snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (!sn_jis_printable(code))
            snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
        else {
            sn_jtext_slice(out, text, at, at + len);
            continue;
        }
        sn_jtext_word(out, escape, mark);
    }
    sn_jtext_add(out, &quote, 1, SN_JINJA_DATA);
}

static void write_list_repr(sn_jtext *out, sn_jvalue v) {
    bool tuple = v.kind == SN_J_TUPLE;
    sn_jtext_word(out, tuple ? "(" : "[", SN_JINJA_DATA);
    for (size_t i = 0; i < v.list->n; i++) {
        if (i) sn_jtext_word(out, ", ", SN_JINJA_DATA);
        sn_jwrite_repr(out, v.list->at[i]);
    }
    if (tuple && v.list->n == 1) sn_jtext_word(out, ",", SN_JINJA_DATA);
    sn_jtext_word(out, tuple ? ")" : "]", SN_JINJA_DATA);
}

static void write_dict_repr(sn_jtext *out, const sn_jdict *dict) {
    sn_jtext_word(out, "{", SN_JINJA_DATA);
    for (size_t i = 0; i < dict->n; i++) {
        if (i) sn_jtext_word(out, ", ", SN_JINJA_DATA);
        sn_jwrite_repr(out, dict->at[i].key);
        sn_jtext_word(out, ": ", SN_JINJA_DATA);
        sn_jwrite_repr(out, dict->at[i].value);
    }
    sn_jtext_word(out, "}", SN_JINJA_DATA);
}

void sn_jwrite_repr(sn_jtext *out, sn_jvalue v) {
    sn_jenter(out->run);
    if (v.kind == SN_J_UNDEFINED)
        sn_jtext_word(out, "Undefined", 0);
    else if (v.kind == SN_J_STRING && v.string->safe) {
        sn_jtext_word(out, "Markup(", SN_JINJA_DATA);
        write_string_repr(out, v.string);
        sn_jtext_word(out, ")", SN_JINJA_DATA);
    } else if (v.kind == SN_J_STRING)
        write_string_repr(out, v.string);
    else if (sn_jis_list(v))
        write_list_repr(out, v);
    else if (v.kind == SN_J_DICT)
        write_dict_repr(out, v.dict);
    else
        sn_jwrite(out, v);
    sn_jleave(out->run);
}

void sn_jwrite(sn_jtext *out, sn_jvalue v) {
    char number[40];
    switch (v.kind) {
    case SN_J_UNDEFINED:
        return;
    case SN_J_NONE:
        sn_jtext_word(out, "None", 0);
        return;
    case SN_J_BOOL:
        sn_jtext_word(out, v.flag ? "True" : "False", 0);
        return;
    case SN_J_INT:
        snprintf(number, sizeof number, "%" PRId64, v.integer);
        sn_jtext_word(out, number, 0);
        return;
    case SN_J_FLOAT:
        format_real(v.real, number);
        sn_jtext_word(out, number, 0);
        return;
    case SN_J_STRING:
    case SN_J_WIDE:
        sn_jtext_string(out, v.string);
        return;
    case SN_J_LIST:
    case SN_J_TUPLE:
    case SN_J_DICT:
        sn_jwrite_repr(out, v);
        return;
    default: /* Python writes an address, which no template can want */
        sn_jfail(out->run, "", "a %s cannot be printed", sn_jtype_name(v));
    }
}

const sn_jstring *sn_jto_string(sn_jrun *run, sn_jvalue v) {
    if (v.kind == SN_J_STRING) return v.string;
    sn_jtext out = sn_jtext_new(run);
    sn_jwrite(&out, v);
    return sn_jtext_end(&out);
}

/* ---- JSON ---- */

typedef struct json_writer {
    sn_jtext *out;
    const sn_jjson *how;
    size_t level;
} json_writer;

static void write_json_string(json_writer *w, const sn_jstring *text) {
    char escape[16];
    sn_jtext_word(w->out, "\"", SN_JINJA_DATA);
    for (size_t at = 0, len, plain = 0; at <= text->len; at += len) {
        static const char special[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
        uint32_t code = at < text->len ? sn_jstring_code(text, at, &len) : 0;
        const char *known = code ? code < 0x80 ? strchr(special, (int)code) : NULL : NULL;
        bool escaped = code < ' ' || known || (w->how->ensure_ascii && code > '~');
        if (at < text->len && !escaped) continue;
        sn_jtext_slice(w->out, text, plain, at); /* what stood before, as it is */
        if (at >= text->len) break;
        plain = at + len;
        if (known)
            snprintf(escape, sizeof escape, "\\%c", letter[known - special]);
        else if (code < 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x", code);
        else
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                     0xdc00 + ((code - 0x10000) & 0x3ff));
        sn_jtext_word(w->out, escape, text->marks[at]);
    }
    sn_jtext_word(w->out, "\"", SN_JINJA_DATA);
}

static void write_json_break(json_writer *w) {
    if (!w->how->indent) return;
    sn_jtext_word(w->out, "\n", SN_JINJA_DATA);
    for (size_t i = 0; i < w->level; i++) sn_jtext_string(w->out, w->how->indent);
}

static void write_json_scalar(json_writer *w, sn_jvalue v) {
    char number[40];
    if (v.kind == SN_J_NONE)
        sn_jtext_word(w->out, "null", SN_JINJA_DATA);
    else if (v.kind == SN_J_BOOL)
        sn_jtext_word(w->out, v.flag ? "true" : "false", SN_JINJA_DATA);
    else if (v.kind == SN_J_INT) {
        snprintf(number, sizeof number, "%" PRId64, v.integer);
        sn_jtext_word(w->out, number, SN_JINJA_DATA);
    } else if (v.kind == SN_J_WIDE) {
        sn_jtext_string(w->out, v.string);
    } else if (v.kind == SN_J_FLOAT) {
        format_real(v.real, number);
        sn_jtext_word(w->out,
                      isnan(v.real)    ? "NaN"
                      : !isinf(v.real) ? number
                      : v.real > 0     ? "Infinity"
                                       : "-Infinity",
                      SN_JINJA_DATA);
    } else {
        sn_jfail(w->out->run, "tojson", "a %s has no form in JSON", sn_jtype_name(v));
    }
}

static void write_json_value(json_writer *w, sn_jvalue v);

static void write_json_key(json_writer *w, sn_jvalue key) {
    if (key.kind == SN_J_STRING) {
        write_json_string(w, key.string);
        return;
    }
    sn_jtext_word(w->out, "\"", SN_JINJA_DATA);
    write_json_scalar(w, key);
    sn_jtext_word(w->out, "\"", SN_JINJA_DATA);
}

/* The entries in the order of their keys: an insertion sort, since objects are short; it counts its steps. */
static const sn_jentry *sorted_entries(sn_jrun *run, const sn_jdict *dict) {
    sn_jentry *at = sn_jalloc(run, dict->n, sizeof *at);
    for (size_t i = 0; i < dict->n; i++) {
        size_t k = i;
        for (; k && sn_jcompare(run, at[k - 1].key, dict->at[i].key) > 0; k--) at[k] = at[k - 1];
        sn_jcharge(run, 1 + (i - k) / 4);
        at[k] = dict->at[i];
    }
    return at;
}

static void write_json_dict(json_writer *w, const sn_jdict *dict) {
    const sn_jentry *at = w->how->sort_keys ? sorted_entries(w->out->run, dict) : dict->at;
    sn_jtext_word(w->out, "{", SN_JINJA_DATA);
    w->level++;
    for (size_t i = 0; i < dict->n; i++) {
        if (i) sn_jtext_string(w->out, w->how->item_separator);
        write_json_break(w);
        write_json_key(w, at[i].key);
        sn_jtext_string(w->out, w->how->key_separator);
        write_json_value(w, at[i].value);
    }
    w->level--;
    if (dict->n) write_json_break(w);
    sn_jtext_word(w->out, "}", SN_JINJA_DATA);
}

static void write_json_list(json_writer *w, const sn_jlist *list) {
    sn_jtext_word(w->out, "[", SN_JINJA_DATA);
    w->level++;
    for (size_t i = 0; i < list->n; i++) {
        if (i) sn_jtext_string(w->out, w->how->item_separator);
        write_json_break(w);
        write_json_value(w, list->at[i]);
    }
    w->level--;
    if (list->n) write_json_break(w);
    sn_jtext_word(w->out, "]", SN_JINJA_DATA);
}

static void write_json_value(json_writer *w, sn_jvalue v) {
    sn_jenter(w->out->run);
    if (v.kind == SN_J_STRING)
        write_json_string(w, v.string);
    else if (v.kind == SN_J_DICT)
        write_json_dict(w, v.dict);
    else if (sn_jis_list(v))
        write_json_list(w, v.list);
    else
        write_json_scalar(w, v);
    sn_jleave(w->out->run);
}

void sn_jwrite_json(sn_jtext *out, sn_jvalue v, const sn_jjson *how) {
    write_json_value(&(json_writer){.out = out, .how = how}, v);
}
