/* The pre-tokenizer of a tokenizer.json: a step, or a Sequence of steps. */
#include "text/tokenizer/tokenizer_json.h"

#include <string.h>

enum { SEQUENCE_DEPTH_MAX = 4 };

const char *sn_json_string(const json_t *object, const char *key, const char *fallback) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : fallback;
}

bool sn_json_bool(const json_t *object, const char *key, bool fallback) {
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_boolean_value(value) : fallback;
}

static bool has_byte_level(const json_t *value, int depth) {
    const json_t *list = json_object_get(value, "pretokenizers");
    if (!strcmp(sn_json_string(value, "type", ""), "ByteLevel")) return true;
    for (size_t i = 0; depth < SEQUENCE_DEPTH_MAX && i < json_array_size(list); i++)
        if (has_byte_level(json_array_get(list, i), depth + 1)) return true;
    return false;
}

bool sn_tokenizer_json_is_byte_level(const json_t *root) {
    const json_t *decoder = json_object_get(root, "decoder");
    return has_byte_level(json_object_get(root, "pre_tokenizer"), 0) ||
           !strcmp(sn_json_string(decoder, "type", ""), "ByteLevel");
}

typedef struct steps {
    sn_tokenizer *t;
    bool sentencepiece;
    bool byte_level; /* ByteLevel was read: the step that changes the alphabet */
    bool metaspace;  /* Metaspace was read: the step that turns spaces into U+2581 */
    size_t n;        /* other steps read so far */
    sn_err *err;
} steps;

static sn_status steps_add(steps *s, const char *pattern, bool literal, sn_split split, bool invert) {
    return sn_pretokenizer_add(s->t->pretokenizer, pattern, strlen(pattern), literal, split, invert, s->err);
}

static sn_status read_behavior(const char *name, sn_split *out, sn_err *err) {
    static const struct {
        const char *name;
        sn_split split;
    } known[] = {{"Isolated", SN_SPLIT_ISOLATED},
                 {"Removed", SN_SPLIT_REMOVED},
                 {"MergedWithPrevious", SN_SPLIT_MERGED_WITH_PREVIOUS},
                 {"MergedWithNext", SN_SPLIT_MERGED_WITH_NEXT},
                 {"Contiguous", SN_SPLIT_CONTIGUOUS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            *out = known[i].split;
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED, "a Split of the pre-tokenizer has the behavior '%.60s', which is not known", name);
}

/* Punctuation is what Unicode calls so, and all signs of ASCII. */
static sn_status read_punctuation(steps *s, const json_t *value) {
    sn_split split = SN_SPLIT_ISOLATED;
    sn_status status = read_behavior(sn_json_string(value, "behavior", "Isolated"), &split, s->err);
    return status ? status : steps_add(s, "[\\p{P}$+<=>^`|~]", false, split, false);
}

/* A step after ByteLevel sees the byte-level alphabet. Its numbers are the digits, and the characters that stand for
 * six bytes, which are parts of others; a pattern of plain ASCII finds the same there as in the text. */
static sn_status read_late_step(steps *s, const json_t *value, const char *type) {
    const char *regex = sn_json_string(json_object_get(value, "pattern"), "Regex", NULL);
    static const char plain[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz[]{},-";
    sn_split split = SN_SPLIT_ISOLATED;
    if (!strcmp(type, "Digits"))
        return sn_pretokenizer_add_bytes(
            s->t->pretokenizer, "[0-9\\xb2\\xb3\\xb9\\xbc-\\xbe]",
            sn_json_bool(value, "individual_digits", false) ? SN_SPLIT_ISOLATED : SN_SPLIT_CONTIGUOUS, false, s->err);
    if (strcmp(type, "Split") || !regex || regex[strspn(regex, plain)])
        return sn_fail(s->err, SN_REFUSED,
                       "the pre-tokenizer has a step '%.60s' after ByteLevel, which is not supported", type);
    sn_status status = read_behavior(sn_json_string(value, "behavior", "(none)"), &split, s->err);
    if (status) return status;
    return sn_pretokenizer_add_bytes(s->t->pretokenizer, regex, split, sn_json_bool(value, "invert", false), s->err);
}

static sn_status read_split(steps *s, const json_t *value) {
    const json_t *pattern = json_object_get(value, "pattern");
    const char *regex = sn_json_string(pattern, "Regex", NULL), *literal = sn_json_string(pattern, "String", NULL);
    sn_split split = SN_SPLIT_ISOLATED;
    if (!regex == !literal)
        return sn_fail(s->err, SN_REFUSED, "a Split of the pre-tokenizer needs a pattern, a Regex or a String");
    sn_status status = read_behavior(sn_json_string(value, "behavior", "(none)"), &split, s->err);
    if (status) return status;
    return steps_add(s, regex ? regex : literal, !regex, split, sn_json_bool(value, "invert", false));
}

static sn_status read_byte_level(steps *s, const json_t *value) {
    if (sn_json_bool(value, "add_prefix_space", true))
        return sn_fail(s->err, SN_REFUSED, "the tokenizer puts a space before the text, which is not supported");
    s->byte_level = true;
    return sn_json_bool(value, "use_regex", true) ? sn_pretokenizer_add_gpt2(s->t->pretokenizer, s->err) : SN_OK;
}

/* Spaces become U+2581, with one more before each part ("always") or before the text ("first"); "split": each begins a
 * piece. */
static sn_status read_metaspace(steps *s, const json_t *value) {
    bool leads = sn_json_bool(value, "add_prefix_space", true); /* of older files */
    const char *scheme = sn_json_string(value, "prepend_scheme", leads ? "always" : "never");
    bool always = !strcmp(scheme, "always"), first = !strcmp(scheme, "first");
    if (strcmp(sn_json_string(value, "replacement", ""), SN_SPACE) || (!always && !first && strcmp(scheme, "never")))
        return sn_fail(s->err, SN_REFUSED,
                       "the pre-tokenizer's Metaspace, '%.20s' for a space, '%.20s' one in front, is not known",
                       sn_json_string(value, "replacement", ""), scheme);
    if (s->n || ((always || first) && s->t->prepend))
        return sn_fail(
            s->err, SN_REFUSED,
            "the tokenizer puts spaces before the text twice, or splits the text before that: not supported");
    s->metaspace = true;
    if (always || first) s->t->prepend = always ? SN_PREPEND_UNLESS_SPACE : SN_PREPEND_FIRST;
    return sn_json_bool(value, "split", true) ? steps_add(s, SN_SPACE, true, SN_SPLIT_MERGED_WITH_NEXT, false) : SN_OK;
}

static sn_status read_step(steps *s, const json_t *value, int depth) {
    const char *type = sn_json_string(value, "type", "(none)");
    if (!strcmp(type, "Sequence") && depth < SEQUENCE_DEPTH_MAX) {
        const json_t *list = json_object_get(value, "pretokenizers");
        sn_status status = SN_OK;
        for (size_t i = 0; !status && i < json_array_size(list); i++)
            status = read_step(s, json_array_get(list, i), depth + 1);
        return status;
    }
    if (s->byte_level) return read_late_step(s, value, type);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(s, value);
    if (!strcmp(type, "Metaspace") && s->sentencepiece) return read_metaspace(s, value);
    s->n++;
    if (!strcmp(type, "Split")) return read_split(s, value);
    if (!strcmp(type, "Punctuation")) return read_punctuation(s, value);
    if (!strcmp(type, "Digits"))
        return steps_add(s, "\\p{N}", false,
                         sn_json_bool(value, "individual_digits", false) ? SN_SPLIT_ISOLATED : SN_SPLIT_CONTIGUOUS,
                         false);
    return sn_fail(s->err, SN_REFUSED, "the pre-tokenizer has a step '%.60s', which is not supported", type);
}

sn_status sn_tokenizer_json_steps(sn_tokenizer *t, const json_t *value, sn_err *err) {
    steps s = {.t = t, .sentencepiece = t->vocab.sentencepiece, .err = err};
    sn_status status = json_is_object(value) ? read_step(&s, value, 0) : SN_OK;
    if (status) return status;
    if (!s.sentencepiece && !s.byte_level)
        return sn_fail(err, SN_REFUSED, "the pre-tokenizer is not byte-level, and its decoder is: not supported");
    if (s.sentencepiece && !s.metaspace && !t->escapes_early)
        return sn_fail(err, SN_REFUSED,
                       "the tokenizer leaves spaces as they are, as neither byte-level BPE nor SentencePiece does");
    return SN_OK;
}
