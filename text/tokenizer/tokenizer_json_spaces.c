/* Unicode's normal forms, and how a tokenizer.json of SentencePiece's kind turns spaces into U+2581 and back. (The
 * pre-tokenizer Metaspace, which some files have instead of the normalizer, is in tokenizer_json_steps.c.) */
#include "text/tokenizer/tokenizer_json.h"

#include <string.h>

enum { PARTS_MAX = 16 };

/* The parts of a Sequence, or the value itself. */
static sn_status list_parts(const json_t *value, const char *key, const char *what, const json_t *parts[PARTS_MAX],
                            size_t *n, sn_err *err) {
    *n = 0;
    if (!value || json_is_null(value)) return SN_OK;
    const json_t *list = json_object_get(value, key);
    bool sequence = !strcmp(sn_json_string(value, "type", ""), "Sequence") && json_is_array(list);
    if (sequence && json_array_size(list) > PARTS_MAX)
        return sn_fail(err, SN_REFUSED, "the tokenizer's %s has %zu parts; at most %d are taken", what,
                       json_array_size(list), PARTS_MAX);
    if (!sequence) parts[(*n)++] = value;
    for (size_t i = 0; sequence && i < json_array_size(list); i++) parts[(*n)++] = json_array_get(list, i);
    return SN_OK;
}

static bool part_is(const json_t *part, const char *type) {
    return !strcmp(sn_json_string(part, "type", "(none)"), type);
}

static bool part_says(const json_t *part, const char *key, const char *text) {
    return !strcmp(sn_json_string(part, key, "(none)"), text);
}

static bool part_replaces(const json_t *part, const char *from, const char *to) {
    return part_is(part, "Replace") && part_says(json_object_get(part, "pattern"), "String", from) &&
           part_says(part, "content", to);
}

/* Whether the part is one of Unicode's forms, which then goes to the tokenizer. */
static bool take_form(sn_tokenizer *t, const json_t *part) {
    static const char *const names[] = {[SN_NFC] = "NFC", [SN_NFD] = "NFD", [SN_NFKC] = "NFKC", [SN_NFKD] = "NFKD"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        /* behind U+2581 for spaces, a form that makes spaces of other characters would leave these */
        if (!part_is(part, names[i]) || t->n_forms == SN_NORMAL_FORMS_MAX || t->escapes_early) continue;
        t->forms[t->n_forms++] = (sn_normal_form)i;
        return true;
    }
    return false;
}

sn_status sn_tokenizer_json_normalizer(sn_tokenizer *t, const json_t *value, sn_err *err) {
    const json_t *parts[PARTS_MAX];
    size_t n;
    sn_status status = list_parts(value, "normalizers", "normalizer", parts, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        if (take_form(t, parts[i])) continue;
        bool spaces = t->vocab.sentencepiece;
        if (spaces && part_is(parts[i], "Prepend") && part_says(parts[i], "prepend", SN_SPACE) &&
            t->prepend == SN_PREPEND_NEVER)
            t->prepend = SN_PREPEND_ALWAYS;
        else if (spaces && part_replaces(parts[i], " ", SN_SPACE))
            t->escapes_early = true;
        else if (part_is(parts[i], "Precompiled"))
            status = sn_fail(err, SN_REFUSED,
                             "the tokenizer's normalizer is a Precompiled map of characters, which is read from "
                             "SentencePiece's own file alone: save that as tokenizer.model, and remove tokenizer.json");
        else
            status = sn_fail(err, SN_REFUSED,
                             "the tokenizer's normalizer '%.60s' is not supported in its place: NFC, NFD, NFKC and "
                             "NFKD are, and then "
                             "those of SentencePiece, which put U+2581 for spaces and before the text",
                             sn_json_string(parts[i], "type", "(none)"));
    }
    if (!status && t->prepend && !t->escapes_early)
        status = sn_fail(err, SN_REFUSED,
                         "the tokenizer's normalizer puts U+2581 before the text and not for spaces: not supported");
    return status;
}

/* Metaspace is Replace and Strip in one; behind Fuse it would take all spaces away. */
static bool take_metaspace(sn_tokenizer *t, const json_t *part, bool have[4]) {
    bool leads = sn_json_bool(part, "add_prefix_space", true); /* of older files */
    if (!part_is(part, "Metaspace") || !part_says(part, "replacement", SN_SPACE) || have[0] || have[2] || have[3])
        return false;
    t->strips_space = strcmp(sn_json_string(part, "prepend_scheme", leads ? "always" : "never"), "never") != 0;
    return have[0] = have[3] = true;
}

sn_status sn_tokenizer_json_decoder(sn_tokenizer *t, const json_t *value, sn_err *err) {
    static const char *const order[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    const json_t *parts[PARTS_MAX];
    size_t n, at = 0;
    bool have[4] = {false};
    sn_status status = list_parts(value, "decoders", "decoder", parts, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        if (take_metaspace(t, parts[i], have)) continue;
        while (at < 4 && (have[at] || !part_is(parts[i], order[at]))) at++;
        const json_t *start = json_object_get(parts[i], "start"), *stop = json_object_get(parts[i], "stop");
        bool known = at < 4 && (at != 0 || part_replaces(parts[i], SN_SPACE, " ")) &&
                     (at != 3 || (have[2] && part_says(parts[i], "content", " ") && json_integer_value(stop) == 0 &&
                                  json_integer_value(start) >= 0 && json_integer_value(start) <= 1));
        if (!known)
            return sn_fail(
                err, SN_REFUSED,
                "the tokenizer's decoder has a step '%.60s' that is not supported in its place: SentencePiece's are "
                "Replace (U+2581 by a space), ByteFallback, Fuse and Strip (one space in front)",
                sn_json_string(parts[i], "type", "(none)"));
        have[at] = true;
        if (at == 3) t->strips_space = json_integer_value(start) == 1;
        at++;
    }
    if (!status && (!have[0] || (t->vocab.byte_fallback && !have[1])))
        status = sn_fail(err, SN_REFUSED, "the tokenizer's decoder does not make %s again",
                         !have[0] ? "U+2581 a space" : "byte tokens bytes");
    return status;
}
