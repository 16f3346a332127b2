/* Texts, lists and dictionaries of a template, and what Python's bool(), ==, < and iteration make of values.
 *
 * A dictionary is an array of entries in the order of insertion with the hashes of their keys: a template's have a few
 * keys. A look-up counts steps by the length, so that a large dictionary from outside cannot take time for nothing. */
#include "text/jinja/value_private.h"

#include "text/tokenizer/utf8.h"

#include <math.h>
#include <string.h>

/* ---- texts ---- */

sn_jtext sn_jtext_new(sn_jrun *run) { return (sn_jtext){.run = run}; }

static void jtext_reserve(sn_jtext *out, size_t more) {
    if (more <= out->capacity - out->len) return;
    size_t capacity = sn_min_size(out->capacity, SIZE_MAX / 4) * 2 + more + 16;
    char *text = sn_jalloc(out->run, capacity, 1);
    uint8_t *marks = sn_jalloc(out->run, capacity, 1);
    if (out->len) {
        memcpy(text, out->text, out->len);
        memcpy(marks, out->marks, out->len);
    }
    out->text = text;
    out->marks = marks;
    out->capacity = capacity;
}

void sn_jtext_add(sn_jtext *out, const char *text, size_t len, uint8_t mark) {
    if (!len) return;
    jtext_reserve(out, len);
    memcpy(out->text + out->len, text, len);
    memset(out->marks + out->len, mark, len);
    out->len += len;
}

void sn_jtext_word(sn_jtext *out, const char *word, uint8_t mark) { sn_jtext_add(out, word, strlen(word), mark); }

void sn_jtext_code(sn_jtext *out, uint32_t code, uint8_t mark) {
    char bytes[4];
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        sn_jfail(out->run, "", "U+%04X is no character that UTF-8 can hold", code);
    if (n == 1) bytes[0] = (char)code;
    for (size_t i = n; n > 1 && i-- > 1; code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3f));
    if (n > 1) bytes[0] = (char)((0xf00 >> n & 0xff) | code);
    sn_jtext_add(out, bytes, n, mark);
}

void sn_jtext_slice(sn_jtext *out, const sn_jstring *from_text, size_t from, size_t to) {
    if (from >= to) return;
    jtext_reserve(out, to - from);
    memcpy(out->text + out->len, from_text->text + from, to - from);
    memcpy(out->marks + out->len, from_text->marks + from, to - from);
    out->len += to - from;
}

void sn_jtext_string(sn_jtext *out, const sn_jstring *text) { sn_jtext_slice(out, text, 0, text->len); }

static const sn_jstring *jstring_of(sn_jrun *run, const char *text, const uint8_t *marks, size_t len) {
    sn_jstring *out = sn_jalloc(run, 1, sizeof *out);
    uint32_t hash = 2166136261u;
    size_t chars = 0;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ (uint8_t)text[i]) * 16777619u;
        chars += ((uint8_t)text[i] & 0xc0) != 0x80;
    }
    sn_jcharge(run, len >> 8);
    *out = (sn_jstring){len ? text : "", marks, len, chars, hash, false};
    return out;
}

const sn_jstring *sn_jtext_end(sn_jtext *out) { return jstring_of(out->run, out->text, out->marks, out->len); }

const sn_jstring *sn_jstring_new(sn_jrun *run, const char *text, size_t len, uint8_t mark) {
    sn_jtext out = sn_jtext_new(run);
    sn_jtext_add(&out, text, len, mark);
    return sn_jtext_end(&out);
}

sn_jvalue sn_jword(sn_jrun *run, const char *text) { return sn_jstr(sn_jstring_new(run, text, strlen(text), 0)); }

const sn_jstring *sn_jstring_part(sn_jrun *run, const sn_jstring *text, size_t from, size_t to) {
    if (from == 0 && to == text->len) return text;
    const sn_jstring *part =
        from < to ? jstring_of(run, text->text + from, text->marks + from, to - from) : jstring_of(run, "", NULL, 0);
    return text->safe ? sn_jstring_safe(run, part) : part;
}

const sn_jstring *sn_jstring_safe(sn_jrun *run, const sn_jstring *text) {
    sn_jstring *out = sn_jalloc(run, 1, sizeof *out);
    *out = *text;
    out->safe = true;
    return out;
}

const sn_jstring *sn_jstring_escape(sn_jrun *run, const sn_jstring *text) {
    static const char *const escapes[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    sn_jtext out = sn_jtext_new(run);
    for (size_t at = 0; at < text->len; at++) {
        uint8_t byte = (uint8_t)text->text[at];
        const char *escape = byte < sizeof escapes / sizeof *escapes ? escapes[byte] : NULL;
        if (escape)
            sn_jtext_word(&out, escape, text->marks[at]);
        else
            sn_jtext_slice(&out, text, at, at + 1);
    }
    return sn_jstring_safe(run, sn_jtext_end(&out));
}

bool sn_jstring_is(const sn_jstring *text, const char *word) {
    return text->len == strlen(word) && !memcmp(text->text, word, text->len);
}

bool sn_jstring_equal(sn_jrun *run, const sn_jstring *a, const sn_jstring *b) {
    if (a == b) return true;
    if (a->len != b->len || a->hash != b->hash) return false;
    sn_jcharge(run, a->len >> 8);
    return !memcmp(a->text, b->text, a->len);
}

size_t sn_jstring_find(sn_jrun *run, const sn_jstring *text, const sn_jstring *part, size_t from, size_t to) {
    if (from > to || part->len > to - from) return SIZE_MAX;
    const char *at = part->len ? memmem(text->text + from, to - from, part->text, part->len) : text->text + from;
    sn_jcharge(run, 1 + ((at ? (size_t)(at - text->text) - from : to - from) >> 5)); /* 6 ns a byte at worst */
    return at ? (size_t)(at - text->text) : SIZE_MAX;
}

size_t sn_jstring_rfind(sn_jrun *run, const sn_jstring *text, const sn_jstring *part, size_t from, size_t to) {
    if (from > to || part->len > to - from) return SIZE_MAX;
    for (size_t at = to - part->len + 1; at-- > from;) {
        if (!(at & 63)) sn_jcharge(run, 1);
        if (part->len && text->text[at] == *part->text) sn_jcharge(run, 1 + (part->len >> 8));
        if (!memcmp(text->text + at, part->text, part->len)) return at;
    }
    return SIZE_MAX;
}

size_t sn_jstring_offset(sn_jrun *run, const sn_jstring *text, size_t index) {
    if (index >= text->n_chars) return text->len;
    if (text->n_chars == text->len) return index;
    size_t at = 0;
    for (size_t seen = 0; at < text->len; at++)
        if (((uint8_t)text->text[at] & 0xc0) != 0x80 && seen++ == index) break;
    sn_jcharge(run, at >> 6);
    return at;
}

uint32_t sn_jstring_code(const sn_jstring *text, size_t at, size_t *len) {
    uint32_t code = 0;
    *len = sn_utf8_decode(text->text + at, text->len - at, &code);
    if (!*len) *len = 1; /* all texts are valid UTF-8; bytes of a character never begin a part */
    return code;
}

bool sn_jis_space(uint32_t code) { return sn_utf8_is_space(code) || (code >= 0x1c && code <= 0x1f); }

/* ---- lists ---- */

sn_jlist *sn_jlist_new(sn_jrun *run, size_t capacity) {
    sn_jlist *list = sn_jalloc(run, 1, sizeof *list);
    list->at = sn_jalloc(run, capacity, sizeof *list->at);
    list->capacity = capacity;
    return list;
}

void sn_jlist_add(sn_jrun *run, sn_jlist *list, sn_jvalue value) {
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->capacity + 4;
        sn_jvalue *at = sn_jalloc(run, capacity, sizeof *at);
        if (list->n) memcpy(at, list->at, list->n * sizeof *at);
        list->at = at;
        list->capacity = capacity;
    }
    list->at[list->n++] = value;
}

sn_jlist *sn_jlist_copy(sn_jrun *run, const sn_jlist *list) {
    sn_jlist *copy = sn_jlist_new(run, list->n);
    if (list->n) memcpy(copy->at, list->at, list->n * sizeof *list->at);
    copy->n = list->n;
    sn_jcharge(run, list->n >> 3);
    return copy;
}

/* ---- dictionaries ---- */

bool sn_jis_hashable(sn_jrun *run, sn_jvalue key) {
    bool hashable = key.kind <= SN_J_STRING;
    if (key.kind == SN_J_TUPLE) {
        hashable = true;
        sn_jcharge(run, key.list->n >> 4);
        for (size_t i = 0; i < key.list->n; i++) hashable = hashable && key.list->at[i].kind <= SN_J_STRING;
    }
    return hashable;
}

static uint32_t jhash(sn_jvalue key) {
    if (key.kind == SN_J_STRING) return key.string->hash;
    if (sn_jis_number(key)) return (uint32_t)(int64_t)fmod(sn_jas_real(key), 4294967296.0) * 2654435761u;
    return (uint32_t)key.kind;
}

sn_jdict *sn_jdict_new(sn_jrun *run) { return sn_jalloc(run, 1, sizeof(sn_jdict)); }

sn_jvalue *sn_jdict_find(sn_jrun *run, const sn_jdict *dict, sn_jvalue key) {
    uint32_t hash = jhash(key);
    sn_jcharge(run, dict->n >> 6);
    for (size_t i = 0; i < dict->n; i++) {
        if (dict->at[i].hash != hash) continue;
        if (sn_jequal(run, dict->at[i].key, key)) return &dict->at[i].value;
        sn_jcharge(run, 1); /* hashes collide on purpose only */
    }
    return NULL;
}

sn_jvalue *sn_jdict_find_word(sn_jrun *run, const sn_jdict *dict, const char *key) {
    sn_jcharge(run, dict->n >> 6);
    for (size_t i = 0; i < dict->n; i++)
        if (dict->at[i].key.kind == SN_J_STRING && sn_jstring_is(dict->at[i].key.string, key))
            return &dict->at[i].value;
    return NULL;
}

void sn_jdict_set(sn_jrun *run, sn_jdict *dict, sn_jvalue key, sn_jvalue value) {
    if (!sn_jis_hashable(run, key)) sn_jfail(run, "", "a %s cannot be the key of a dictionary", sn_jtype_name(key));
    sn_jvalue *known = sn_jdict_find(run, dict, key);
    if (known) {
        *known = value;
        return;
    }
    if (dict->n == dict->capacity) {
        size_t capacity = 2 * dict->capacity + 4;
        sn_jentry *at = sn_jalloc(run, capacity, sizeof *at);
        if (dict->n) memcpy(at, dict->at, dict->n * sizeof *at);
        dict->at = at;
        dict->capacity = capacity;
    }
    dict->at[dict->n++] = (sn_jentry){key, value, jhash(key)};
}

void sn_jdict_remove(sn_jrun *run, sn_jdict *dict, sn_jvalue key) {
    size_t kept = 0;
    sn_jcharge(run, dict->n >> 4);
    for (size_t i = 0; i < dict->n; i++)
        if (!sn_jequal(run, dict->at[i].key, key)) dict->at[kept++] = dict->at[i];
    dict->n = kept;
}

/* ---- all values ---- */

bool sn_jtruth(sn_jvalue v) {
    switch (v.kind) {
    case SN_J_UNDEFINED:
    case SN_J_NONE:
        return false;
    case SN_J_BOOL:
        return v.flag;
    case SN_J_INT:
        return v.integer != 0;
    case SN_J_FLOAT:
        return v.real != 0;
    case SN_J_STRING:
        return v.string->len > 0;
    case SN_J_LIST:
    case SN_J_TUPLE:
        return v.list->n > 0;
    case SN_J_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

static bool jlists_equal(sn_jrun *run, const sn_jlist *a, const sn_jlist *b) {
    bool equal = a->n == b->n;
    if (equal) sn_jcharge(run, a->n >> 4);
    for (size_t i = 0; equal && i < a->n; i++) equal = sn_jequal(run, a->at[i], b->at[i]);
    return equal;
}

static bool jdicts_equal(sn_jrun *run, const sn_jdict *a, const sn_jdict *b) {
    bool equal = a->n == b->n;
    for (size_t i = 0; equal && i < a->n; i++) {
        const sn_jvalue *other = sn_jdict_find(run, b, a->at[i].key);
        equal = other && sn_jequal(run, a->at[i].value, *other);
    }
    return equal;
}

bool sn_jequal(sn_jrun *run, sn_jvalue a, sn_jvalue b) {
    if (sn_jis_int(a) && sn_jis_int(b)) return sn_jas_int(a) == sn_jas_int(b);
    if (sn_jis_number(a) && sn_jis_number(b)) return sn_jas_real(a) == sn_jas_real(b);
    if (a.kind != b.kind) return false;
    if (a.kind == SN_J_STRING || a.kind == SN_J_WIDE) return sn_jstring_equal(run, a.string, b.string);
    if (a.kind <= SN_J_NONE) return true;
    if (a.kind == SN_J_FUNCTION) return a.function == b.function;
    if (a.kind == SN_J_LOOP) return a.loop == b.loop;
    if (a.kind == SN_J_NAMESPACE || a.kind == SN_J_GENERATOR) return a.dict == b.dict;
    sn_jenter(run);
    bool equal = a.kind == SN_J_DICT ? jdicts_equal(run, a.dict, b.dict) : jlists_equal(run, a.list, b.list);
    sn_jleave(run);
    return equal;
}

int sn_jcompare(sn_jrun *run, sn_jvalue a, sn_jvalue b) {
    if (sn_jis_int(a) && sn_jis_int(b)) return (sn_jas_int(a) > sn_jas_int(b)) - (sn_jas_int(a) < sn_jas_int(b));
    if (sn_jis_number(a) && sn_jis_number(b))
        return (sn_jas_real(a) > sn_jas_real(b)) - (sn_jas_real(a) < sn_jas_real(b));
    if (a.kind == SN_J_STRING && b.kind == SN_J_STRING) {
        size_t n = sn_min_size(a.string->len, b.string->len);
        sn_jcharge(run, n >> 8);
        int order = n ? memcmp(a.string->text, b.string->text, n) : 0;
        return order ? order : (a.string->len > b.string->len) - (a.string->len < b.string->len);
    }
    if (!sn_jis_list(a) || a.kind != b.kind)
        sn_jfail(run, "", "a %s and a %s have no order", sn_jtype_name(a), sn_jtype_name(b));
    sn_jenter(run);
    int order = 0;
    size_t i = 0;
    sn_jcharge(run, sn_min_size(a.list->n, b.list->n) >> 4);
    for (; !order && i < a.list->n && i < b.list->n; i++)
        if (!sn_jequal(run, a.list->at[i], b.list->at[i])) order = sn_jcompare(run, a.list->at[i], b.list->at[i]);
    sn_jleave(run);
    return order ? order : (a.list->n > b.list->n) - (a.list->n < b.list->n);
}

const char *sn_jtype_name(sn_jvalue v) {
    static const char *const names[] = {[SN_J_UNDEFINED] = "undefined value",
                                        [SN_J_NONE] = "None",
                                        [SN_J_BOOL] = "bool",
                                        [SN_J_INT] = "int",
                                        [SN_J_FLOAT] = "float",
                                        [SN_J_WIDE] = "int",
                                        [SN_J_STRING] = "string",
                                        [SN_J_LIST] = "list",
                                        [SN_J_TUPLE] = "tuple",
                                        [SN_J_GENERATOR] = "generator",
                                        [SN_J_DICT] = "dictionary",
                                        [SN_J_NAMESPACE] = "namespace",
                                        [SN_J_FUNCTION] = "function",
                                        [SN_J_LOOP] = "loop"};
    return names[v.kind];
}

static sn_jlist *jcharacters(sn_jrun *run, const sn_jstring *text) {
    sn_jlist *list = sn_jlist_new(run, text->n_chars);
    if (text->safe) { /* the characters of a safe text are ordinary texts */
        sn_jstring *plain = sn_jalloc(run, 1, sizeof *plain);
        *plain = *text;
        plain->safe = false;
        text = plain;
    }
    for (size_t at = 0, len; at < text->len; at += len) {
        sn_jstring_code(text, at, &len);
        sn_jlist_add(run, list, sn_jstr(sn_jstring_part(run, text, at, at + len)));
    }
    return list;
}

sn_jlist *sn_jiterate(sn_jrun *run, const char *construct, sn_jvalue v) {
    sn_jlist *list;
    switch (v.kind) {
    case SN_J_LIST:
    case SN_J_TUPLE:
        sn_jcharge(run, v.list->n >> 4);
        return v.list;
    case SN_J_GENERATOR:
        sn_jenter(run); /* what makes its items may run over another generator */
        list = v.list->make ? v.list->make(v.list->call) : sn_jlist_copy(run, v.list);
        sn_jleave(run);
        *v.list = (sn_jlist){0};
        return list;
    case SN_J_DICT:
        list = sn_jlist_new(run, v.dict->n);
        for (size_t i = 0; i < v.dict->n; i++) sn_jlist_add(run, list, v.dict->at[i].key);
        return list;
    case SN_J_STRING:
        return jcharacters(run, v.string);
    case SN_J_UNDEFINED:
        return sn_jlist_new(run, 0);
    default:
        sn_jfail(run, construct, "a %s cannot be iterated over", sn_jtype_name(v));
    }
}

size_t sn_jlength(sn_jrun *run, const char *construct, sn_jvalue v) {
    if (v.kind == SN_J_STRING) return v.string->n_chars;
    if (sn_jis_list(v)) return v.list->n;
    if (v.kind == SN_J_DICT) return v.dict->n;
    if (v.kind == SN_J_UNDEFINED) return 0;
    sn_jfail(run, construct, "a %s has no length", sn_jtype_name(v));
}
