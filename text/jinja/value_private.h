/* Values of a template, as Python has them: None, booleans, integers (of 64 bits), floats, texts, lists, tuples,
 * dictionaries in the order of insertion, namespaces, functions, and what is undefined. Texts are immutable; parts of a
 * text share its bytes. Each byte of a text has a mark (SN_JINJA_DATA, ...), and sn_jtext, with which all texts are
 * built, takes marks along. */
#ifndef SN_TEXT_JINJA_VALUE_PRIVATE_H
#define SN_TEXT_JINJA_VALUE_PRIVATE_H

#include "text/jinja/run_private.h"

typedef enum sn_jkind {
    SN_J_UNDEFINED, /* zeroed values are undefined */
    SN_J_NONE,
    SN_J_BOOL,
    SN_J_INT,
    SN_J_FLOAT,
    SN_J_WIDE, /* an integer beyond 64 bits, of a request: it is shown and compared, and nothing is computed with it */
    SN_J_STRING,
    SN_J_LIST,
    SN_J_TUPLE,
    SN_J_GENERATOR, /* what map, select and their like return: true, without a length, and empty after one run */
    SN_J_DICT,
    SN_J_NAMESPACE,
    SN_J_FUNCTION,
    SN_J_LOOP,
} sn_jkind;

typedef struct sn_jstring {
    const char *text; /* (len) valid UTF-8, no NUL behind it */
    const uint8_t *marks;
    size_t len, n_chars;
    uint32_t hash;
    bool safe; /* of the filters safe and escape: a text that is added to it is escaped for HTML (Python's Markup) */
} sn_jstring;

typedef struct sn_jlist sn_jlist;
typedef struct sn_jdict sn_jdict;
typedef struct sn_jfunction sn_jfunction;
typedef struct sn_jloop sn_jloop;

typedef struct sn_jvalue {
    sn_jkind kind;
    union {
        bool flag;
        int64_t integer;
        double real;
        const sn_jstring *string; /* of undefined: the name that was looked for, or NULL; of a wide integer: digits */
        sn_jlist *list;           /* also of tuples and generators */
        sn_jdict *dict;           /* also of namespaces */
        const sn_jfunction *function;
        sn_jloop *loop;
    };
} sn_jvalue;

struct sn_jlist {
    sn_jvalue *at;
    size_t n, capacity;
    /* Of a generator that has not run yet: what makes its items. NULL: they are there. */
    sn_jlist *(*make)(void *call);
    void *call;
};

typedef struct sn_jentry {
    sn_jvalue key, value;
    uint32_t hash;
} sn_jentry;

struct sn_jdict {
    sn_jentry *at;
    size_t n, capacity;
};

static inline sn_jvalue sn_jundefined(const sn_jstring *name) {
    return (sn_jvalue){.kind = SN_J_UNDEFINED, .string = name};
}
static inline sn_jvalue sn_jnone(void) { return (sn_jvalue){.kind = SN_J_NONE}; }
static inline sn_jvalue sn_jbool(bool flag) { return (sn_jvalue){.kind = SN_J_BOOL, .flag = flag}; }
static inline sn_jvalue sn_jint(int64_t integer) { return (sn_jvalue){.kind = SN_J_INT, .integer = integer}; }
static inline sn_jvalue sn_jreal(double real) { return (sn_jvalue){.kind = SN_J_FLOAT, .real = real}; }
static inline sn_jvalue sn_jstr(const sn_jstring *string) { return (sn_jvalue){.kind = SN_J_STRING, .string = string}; }
static inline sn_jvalue sn_jlist_value(sn_jlist *list) { return (sn_jvalue){.kind = SN_J_LIST, .list = list}; }
static inline sn_jvalue sn_jtuple_value(sn_jlist *list) { return (sn_jvalue){.kind = SN_J_TUPLE, .list = list}; }
static inline sn_jvalue sn_jgenerator_value(sn_jlist *list) {
    return (sn_jvalue){.kind = SN_J_GENERATOR, .list = list};
}
static inline sn_jvalue sn_jdict_value(sn_jdict *dict) { return (sn_jvalue){.kind = SN_J_DICT, .dict = dict}; }

static inline bool sn_jis_list(sn_jvalue v) { return v.kind == SN_J_LIST || v.kind == SN_J_TUPLE; }
static inline bool sn_jis_int(sn_jvalue v) { return v.kind == SN_J_INT || v.kind == SN_J_BOOL; }
static inline bool sn_jis_number(sn_jvalue v) { return sn_jis_int(v) || v.kind == SN_J_FLOAT; }
static inline int64_t sn_jas_int(sn_jvalue v) { return v.kind == SN_J_BOOL ? v.flag : v.integer; }
static inline double sn_jas_real(sn_jvalue v) { return v.kind == SN_J_FLOAT ? v.real : (double)sn_jas_int(v); }

/* ---- texts ---- */

/* A text in the making. */
typedef struct sn_jtext {
    sn_jrun *run;
    char *text;
    uint8_t *marks;
    size_t len, capacity;
} sn_jtext;

sn_jtext sn_jtext_new(sn_jrun *run);
void sn_jtext_add(sn_jtext *out, const char *text, size_t len, uint8_t mark);
void sn_jtext_word(sn_jtext *out, const char *word, uint8_t mark);
void sn_jtext_code(sn_jtext *out, uint32_t code, uint8_t mark); /* one character */
/* Bytes [from, to) of a text, with their marks. */
void sn_jtext_slice(sn_jtext *out, const sn_jstring *from_text, size_t from, size_t to);
void sn_jtext_string(sn_jtext *out, const sn_jstring *text);
const sn_jstring *sn_jtext_end(sn_jtext *out); /* the text so far; `out` is not used after this */

/* A text of the template's own, or with the mark for all bytes. Copies. */
const sn_jstring *sn_jstring_new(sn_jrun *run, const char *text, size_t len, uint8_t mark);
sn_jvalue sn_jword(sn_jrun *run, const char *text); /* own text as a value */
/* The same text, safe; and as text for HTML. */
const sn_jstring *sn_jstring_safe(sn_jrun *run, const sn_jstring *text);
const sn_jstring *sn_jstring_escape(sn_jrun *run, const sn_jstring *text);
/* Bytes [from, to) as a text that shares the bytes. */
const sn_jstring *sn_jstring_part(sn_jrun *run, const sn_jstring *text, size_t from, size_t to);
bool sn_jstring_is(const sn_jstring *text, const char *word);
bool sn_jstring_equal(sn_jrun *run, const sn_jstring *a, const sn_jstring *b);
/* Where `part` begins in text at or after `from`; SIZE_MAX: nowhere. The last place before `to`. */
size_t sn_jstring_find(sn_jrun *run, const sn_jstring *text, const sn_jstring *part, size_t from, size_t to);
size_t sn_jstring_rfind(sn_jrun *run, const sn_jstring *text, const sn_jstring *part, size_t from, size_t to);
/* The byte at which character number `index` begins; len at the end. */
size_t sn_jstring_offset(sn_jrun *run, const sn_jstring *text, size_t index);
uint32_t sn_jstring_code(const sn_jstring *text, size_t at, size_t *len); /* the character at a byte; its length */
bool sn_jis_space(uint32_t code);                                         /* as Python's str.isspace */
bool sn_jis_printable(uint32_t code);

/* ---- lists and dictionaries ---- */

sn_jlist *sn_jlist_new(sn_jrun *run, size_t capacity);
void sn_jlist_add(sn_jrun *run, sn_jlist *list, sn_jvalue value);
sn_jlist *sn_jlist_copy(sn_jrun *run, const sn_jlist *list);

sn_jdict *sn_jdict_new(sn_jrun *run);
/* The value under the key, or NULL. Keys that compare equal (1, 1.0, true) are one key. */
sn_jvalue *sn_jdict_find(sn_jrun *run, const sn_jdict *dict, sn_jvalue key);
sn_jvalue *sn_jdict_find_word(sn_jrun *run, const sn_jdict *dict, const char *key);
void sn_jdict_set(sn_jrun *run, sn_jdict *dict, sn_jvalue key, sn_jvalue value);
void sn_jdict_remove(sn_jrun *run, sn_jdict *dict, sn_jvalue key);
bool sn_jis_hashable(sn_jrun *run, sn_jvalue key);

/* ---- all values ---- */

bool sn_jtruth(sn_jvalue v);
bool sn_jequal(sn_jrun *run, sn_jvalue a, sn_jvalue b);
/* < 0, 0, > 0; values that have no order fail. */
int sn_jcompare(sn_jrun *run, sn_jvalue a, sn_jvalue b);
const char *sn_jtype_name(sn_jvalue v); /* Python's name of the type, static */
/* What a for loop runs over: a copy of nothing, the list itself, keys, characters. Fails for other values. */
sn_jlist *sn_jiterate(sn_jrun *run, const char *construct, sn_jvalue v);
size_t sn_jlength(sn_jrun *run, const char *construct, sn_jvalue v);

/* str(), repr() and json.dumps() of Python (write.c). */
const sn_jstring *sn_jto_string(sn_jrun *run, sn_jvalue v);
void sn_jwrite(sn_jtext *out, sn_jvalue v);
void sn_jwrite_repr(sn_jtext *out, sn_jvalue v);
typedef struct sn_jjson {
    bool ensure_ascii, sort_keys;
    const sn_jstring *indent; /* NULL: one line */
    const sn_jstring *item_separator, *key_separator;
} sn_jjson;
void sn_jwrite_json(sn_jtext *out, sn_jvalue v, const sn_jjson *how);

/* JSON as values (from_json.c). `is_own` may be NULL; `mark` is that of all texts. */
sn_jvalue sn_jfrom_json(sn_jrun *run, const json_t *json, bool (*is_own)(const char *key, const char *text),
                        uint8_t mark);

#endif
