#include "model/tokenizer_json.h"

#include <string.h>

enum { SEQUENCE_DEPTH_MAX = 4 };

const char *sn_json_string(const json_t *object, const char *key, const char *missing) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : missing;
}

bool sn_json_bool(const json_t *object, const char *key, bool missing) {
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_boolean_value(value) : missing;
}

typedef struct steps {
    sn_pretokenizer *pretokenizer;
    bool byte_level; /* the step that changes the alphabet has come */
    sn_err *err;
} steps;

static sn_status add(steps *s, const char *pattern, bool literal, sn_split split, bool invert) {
    return sn_pretokenizer_add(s->pretokenizer, pattern, strlen(pattern), literal, split, invert, s->err);
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

static sn_status read_split(steps *s, const json_t *value) {
    const json_t *pattern = json_object_get(value, "pattern");
    const char *regex = sn_json_string(pattern, "Regex", NULL), *literal = sn_json_string(pattern, "String", NULL);
    sn_split split = SN_SPLIT_ISOLATED;
    if (!regex == !literal)
        return sn_fail(s->err, SN_REFUSED, "a Split of the pre-tokenizer needs a pattern, a Regex or a String");
    sn_status status = read_behavior(sn_json_string(value, "behavior", "(none)"), &split, s->err);
    if (status) return status;
    return add(s, regex ? regex : literal, !regex, split, sn_json_bool(value, "invert", false));
}

static sn_status read_byte_level(steps *s, const json_t *value) {
    if (sn_json_bool(value, "add_prefix_space", true))
        return sn_fail(s->err, SN_REFUSED, "the tokenizer puts a space before the text, which is not supported");
    s->byte_level = true;
    return sn_json_bool(value, "use_regex", true) ? sn_pretokenizer_add_gpt2(s->pretokenizer, s->err) : SN_OK;
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
    if (s->byte_level) /* it would see the byte-level alphabet, not the text */
        return sn_fail(s->err, SN_REFUSED,
                       "the pre-tokenizer has a step '%.60s' behind ByteLevel, which is not supported", type);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(s, value);
    if (!strcmp(type, "Split")) return read_split(s, value);
    if (!strcmp(type, "Digits"))
        return add(s, "\\p{N}", false,
                   sn_json_bool(value, "individual_digits", false) ? SN_SPLIT_ISOLATED : SN_SPLIT_CONTIGUOUS, false);
    return sn_fail(s->err, SN_REFUSED, "the pre-tokenizer has a step '%.60s', which is not supported", type);
}

sn_status sn_tokenizer_json_steps(const json_t *value, sn_pretokenizer *pretokenizer, sn_err *err) {
    steps s = {.pretokenizer = pretokenizer, .err = err};
    sn_status status = json_is_object(value) ? read_step(&s, value, 0) : SN_OK;
    if (!status && !s.byte_level)
        status = sn_fail(err, SN_REFUSED, "the pre-tokenizer is not byte-level: only byte-level BPE is supported");
    return status;
}
