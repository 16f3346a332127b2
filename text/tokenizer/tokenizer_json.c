/* Builds a tokenizer from tokenizer.json, with the companion files tokenizer_config.json, generation_config.json and
 * chat_template.jinja. read_model reads vocabulary and merges, read_pipeline the normalizer, pre-tokenizer and decoder,
 * read_post_processor the begin-of-sequence token, read_config and read_eog_ids the companion files. Everything that
 * would change the tokens and is not known is refused. */
#include "text/tokenizer/tokenizer_json.h"

#include "model/json.h"
#include "model/not_a_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the pre-tokenizer: a step, or a Sequence of steps ---- */

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

/* Whether the file is of byte-level BPE, by its pre_tokenizer and decoder; else it is SentencePiece's kind. */
static bool is_byte_level(const json_t *root) {
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

/* Adds the steps of "pre_tokenizer". SN_REFUSED for an unknown step, and when the steps do not fit the vocabulary: a
 * byte-level one needs the step ByteLevel, a SentencePiece one needs spaces to become U+2581 here or in the
 * normalizer. */
static sn_status read_steps(sn_tokenizer *t, const json_t *value, sn_err *err) {
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

/* ---- normal forms, and how spaces become U+2581 and back ---- */

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

/* "normalizer"; and of SentencePiece "decoder". */
static sn_status read_normalizer(sn_tokenizer *t, const json_t *value, sn_err *err) {
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

static sn_status read_decoder(sn_tokenizer *t, const json_t *value, sn_err *err) {
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

/* ---- the model "Unigram": pieces with their scores ---- */

static sn_status read_unigram_ids(const json_t *model, json_t **out, sn_err *err) {
    const json_t *list = json_object_get(model, "vocab");
    size_t n = json_array_size(list);
    if (!n || n > SN_VOCAB_MAX)
        return sn_fail(err, SN_REFUSED, "the tokenizer's model has a vocab of %zu pieces; 1 to %d are taken", n,
                       SN_VOCAB_MAX);
    *out = json_object();
    for (size_t id = 0; *out && id < n; id++) {
        const json_t *entry = json_array_get(list, id), *piece = json_array_get(entry, 0);
        const char *text = json_string_value(piece);
        if (json_array_size(entry) != 2 || !text || !json_is_number(json_array_get(entry, 1)))
            return sn_fail(err, SN_REFUSED, "piece %zu of the tokenizer's model is not a text with a score", id);
        if (json_object_get(*out, text))
            return sn_fail(err, SN_REFUSED, "the piece '%.60s' is twice in the tokenizer's model", text);
        if (json_object_set_new(*out, text, json_integer((json_int_t)id)))
            return sn_fail(err, SN_STOP, "out of memory for a vocabulary of %zu pieces", n);
    }
    return *out ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a vocabulary of %zu pieces", n);
}

/* The scores of that model and its unknown token, when the vocabulary is indexed. */
static sn_status read_unigram_scores(sn_tokenizer *t, const json_t *model, sn_err *err) {
    const json_t *list = json_object_get(model, "vocab"), *unknown = json_object_get(model, "unk_id");
    size_t n = json_array_size(list);
    double *scores = NULL;
    if (!json_is_integer(unknown) || json_integer_value(unknown) < 0 || (size_t)json_integer_value(unknown) >= n)
        return sn_fail(err, SN_REFUSED, "the tokenizer's model has no unk_id below %zu, for what its pieces lack", n);
    t->vocab.unk_id = (int32_t)json_integer_value(unknown);
    t->vocab.fuse_unk = true;
    sn_status status = sn_calloc(&scores, n, sizeof *scores, err);
    if (!status) status = sn_calloc(&t->unigram, 1, sizeof *t->unigram, err);
    for (size_t id = 0; !status && id < n; id++)
        scores[id] = json_number_value(json_array_get(json_array_get(list, id), 1));
    if (!status) status = sn_unigram_init(t->unigram, &t->vocab, scores, NULL, n, err);
    free(scores);
    return status;
}

/* ---- the model: vocabulary and merges ---- */

static sn_status check_model(const json_t *model, bool sentencepiece, sn_err *err) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = sn_json_string(model, "type", json_is_object(model) ? "BPE" : "(none)");
    if (strcmp(type, "BPE") && (strcmp(type, "Unigram") || !sentencepiece))
        return sn_fail(err, SN_REFUSED,
                       "the tokenizer's model is '%.60s'; BPE is supported, and Unigram over characters", type);
    if (!sentencepiece && sn_json_bool(model, "byte_fallback", false))
        return sn_fail(err, SN_REFUSED,
                       "the tokenizer falls back to byte tokens and is of byte-level BPE, which has no use for them: "
                       "not supported");
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++)
        if (*sn_json_string(model, affixes[i], ""))
            return sn_fail(err, SN_REFUSED, "the tokenizer's model has a %s, which is not supported", affixes[i]);
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return sn_fail(err, SN_REFUSED, "the tokenizer's model has a dropout: its tokens would be random");
    return SN_OK;
}

static sn_status largest_id(const json_t *vocab, const json_t *added, json_int_t *out, sn_err *err) {
    const char *key;
    json_t *value;
    size_t i;
    *out = -1;
    json_object_foreach((json_t *)vocab, key, value) {
        if (!json_is_integer(value))
            return sn_fail(err, SN_REFUSED, "the id of token '%.60s' is not a whole number", key);
        if (json_integer_value(value) > *out) *out = json_integer_value(value);
    }
    json_array_foreach(added, i, value) {
        const json_t *id = json_object_get(value, "id");
        if (!json_is_integer(id)) return sn_fail(err, SN_REFUSED, "added token %zu has no id", i);
        if (json_integer_value(id) > *out) *out = json_integer_value(id);
    }
    if (*out < 0 || *out >= SN_VOCAB_MAX)
        return sn_fail(err, SN_REFUSED, "the largest id of the vocabulary is %lld; 0 to %d are taken", (long long)*out,
                       SN_VOCAB_MAX - 1);
    return SN_OK;
}

static sn_status read_added_token(sn_tokenizer *t, const json_t *value, const json_t *vocab, sn_err *err) {
    const json_t *content = json_object_get(value, "content");
    const char *text = sn_json_string(value, "content", "");
    json_int_t id = json_integer_value(json_object_get(value, "id"));
    const json_t *same = json_object_get(vocab, text);
    if (id < 0) return sn_fail(err, SN_REFUSED, "the added token '%.60s' has the id %lld", text, (long long)id);
    if (same && json_integer_value(same) != id)
        return sn_fail(err, SN_REFUSED, "the token '%.60s' has two ids, %lld and %lld", text,
                       (long long)json_integer_value(same), (long long)id);
    if (!same && sn_vocab_kind(&t->vocab, (int32_t)id) != SN_TOKEN_NONE)
        return sn_fail(err, SN_REFUSED, "the added token '%.60s' has the id %lld of another token", text,
                       (long long)id);
    if (sn_json_bool(value, "single_word", false))
        return sn_fail(err, SN_REFUSED, "the added token '%.60s' is a single_word, which is not supported", text);
    bool special = sn_json_bool(value, "special", false);
    int pass = sn_json_bool(value, "normalized", !special);
    sn_added_token token = {.text = (char *)text,
                            .len = json_string_length(content),
                            .id = (int32_t)id,
                            .special = special,
                            .lstrip = sn_json_bool(value, "lstrip", false),
                            .rstrip = sn_json_bool(value, "rstrip", false)};
    return sn_tokenizer_add_token(t, pass, &token, err);
}

/* SentencePiece: the token for characters that have none. */
static sn_status read_unknown(sn_tokenizer *t, const json_t *model, sn_err *err) {
    const json_t *text = json_object_get(model, "unk_token");
    t->vocab.fuse_unk = sn_json_bool(model, "fuse_unk", false);
    if (!json_is_string(text) || t->vocab.byte_fallback) return SN_OK;
    t->vocab.unk_id =
        json_string_length(text) ? sn_vocab_find(&t->vocab, json_string_value(text), json_string_length(text)) : -1;
    if (t->vocab.unk_id >= 0) return SN_OK;
    return sn_fail(err, SN_REFUSED, "the vocabulary has no token '%.60s', which is to stand for what it lacks",
                   json_string_value(text));
}

/* Byte-level: the unknown token is never needed if every byte of UTF-8 has a token. */
static sn_status check_unknown(sn_tokenizer *t, const json_t *model, sn_err *err) {
    const json_t *unknown = json_object_get(model, "unk_token");
    if (t->vocab.sentencepiece) return read_unknown(t, model, err);
    for (int b = 0; json_is_string(unknown) && b <= 0xf4; b++)
        if (t->vocab.byte_ids[b] < 0 && b != 0xc0 && b != 0xc1)
            return sn_fail(err, SN_REFUSED,
                           "the vocabulary has no token for byte 0x%02x and puts '%.60s' in its place: not supported",
                           b, json_string_value(unknown));
    return SN_OK;
}

static sn_status read_token(sn_tokenizer *t, const char *text, size_t len, const json_t *id, sn_err *err) {
    bool byte = t->vocab.byte_fallback && sn_vocab_parse_byte_token(text, len) >= 0;
    return sn_vocab_set(&t->vocab, json_integer_value(id), text, len, byte ? SN_TOKEN_BYTE : SN_TOKEN_NORMAL, err);
}

/* vocab: texts and their ids. */
static sn_status read_tokens(sn_tokenizer *t, const json_t *root, const json_t *vocab, bool sentencepiece,
                             size_t n_merges, sn_err *err) {
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    json_int_t largest;
    if (!json_is_object(vocab)) return sn_fail(err, SN_REFUSED, "the tokenizer's model has no vocab");
    sn_status status = largest_id(vocab, added, &largest, err);
    if (!status) status = sn_vocab_init(&t->vocab, (size_t)largest + 1, sentencepiece, err);
    t->vocab.byte_fallback = sentencepiece && sn_json_bool(model, "byte_fallback", false);
    for (void *at = json_object_iter((json_t *)vocab); !status && at; at = json_object_iter_next((json_t *)vocab, at))
        status = read_token(t, json_object_iter_key(at), json_object_iter_key_len(at), json_object_iter_value(at), err);
    for (size_t i = 0; !status && i < json_array_size(added); i++)
        status = read_added_token(t, json_array_get(added, i), vocab, err);
    return status ? status : sn_vocab_index(&t->vocab, n_merges, err);
}

static sn_status read_merge(sn_tokenizer *t, size_t rank, const json_t *value, sn_err *err) {
    if (json_is_string(value))
        return sn_vocab_merge_line(&t->vocab, rank, json_string_value(value), json_string_length(value), err);
    const json_t *left = json_array_get(value, 0), *right = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_string(left) || !json_is_string(right))
        return sn_fail(err, SN_REFUSED, "merge %zu is neither \"a b\" nor [\"a\", \"b\"]", rank);
    return sn_vocab_merge(&t->vocab, rank, json_string_value(left), json_string_length(left), json_string_value(right),
                          json_string_length(right), err);
}

static sn_status read_unigram(sn_tokenizer *t, const json_t *root, sn_err *err) {
    const json_t *model = json_object_get(root, "model");
    json_t *ids = NULL;
    sn_status status = read_unigram_ids(model, &ids, err);
    if (!status) status = read_tokens(t, root, ids, true, 0, err);
    json_decref(ids);
    return status ? status : read_unigram_scores(t, model, err);
}

static sn_status read_model(sn_tokenizer *t, const json_t *root, sn_err *err) {
    const json_t *model = json_object_get(root, "model"), *merges = json_object_get(model, "merges");
    bool sentencepiece = !is_byte_level(root);
    sn_status status = check_model(model, sentencepiece, err);
    if (!status && !strcmp(sn_json_string(model, "type", ""), "Unigram")) return read_unigram(t, root, err);
    if (!status && !json_is_array(merges)) status = sn_fail(err, SN_REFUSED, "the tokenizer's model has no merges");
    if (!status)
        status = read_tokens(t, root, json_object_get(model, "vocab"), sentencepiece, json_array_size(merges), err);
    if (!status) status = check_unknown(t, model, err);
    for (size_t i = 0; !status && i < json_array_size(merges); i++)
        status = read_merge(t, i, json_array_get(merges, i), err);
    t->ignore_merges = sn_json_bool(model, "ignore_merges", false);
    return status;
}

/* ---- post-processor ---- */

static sn_status read_template(sn_tokenizer *t, const json_t *value, sn_err *err) {
    const json_t *single = json_object_get(value, "single");
    size_t n = json_array_size(single);
    bool text_last = n && json_object_get(json_array_get(single, n - 1), "Sequence");
    if (n == 1 && text_last) return SN_OK;
    const char *name = sn_json_string(json_object_get(json_array_get(single, 0), "SpecialToken"), "id", NULL);
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(value, "special_tokens"), name ? name : ""), "ids");
    const json_t *id = json_array_get(ids, 0);
    if (n != 2 || !text_last || !name || json_array_size(ids) != 1 || !json_is_integer(id))
        return sn_fail(
            err, SN_REFUSED,
            "the tokenizer's post_processor puts more around a text than one token before it: not supported");
    json_int_t bos = json_integer_value(id);
    if (bos < 0 || (size_t)bos >= t->vocab.n)
        return sn_fail(err, SN_REFUSED, "the post_processor's token '%.60s' has the id %lld, outside the vocabulary",
                       name, (long long)bos);
    t->bos = (int32_t)bos;
    t->add_bos = true;
    return SN_OK;
}

static sn_status read_post_processor(sn_tokenizer *t, const json_t *value, bool nested, sn_err *err) {
    if (!value || json_is_null(value)) return SN_OK;
    const char *type = sn_json_string(value, "type", "(none)");
    if (!strcmp(type, "ByteLevel")) return SN_OK; /* it changes offsets only */
    if (!strcmp(type, "TemplateProcessing")) return read_template(t, value, err);
    if (strcmp(type, "Sequence") || nested)
        return sn_fail(err, SN_REFUSED, "the tokenizer's post_processor '%.60s' is not supported", type);
    const json_t *list = json_object_get(value, "processors");
    sn_status status = SN_OK;
    for (size_t i = 0; !status && i < json_array_size(list); i++)
        status = read_post_processor(t, json_array_get(list, i), true, err);
    return status;
}

/* ---- companion files ---- */

static int64_t token_id_of_text(const sn_tokenizer *t, const char *text) {
    size_t len = strlen(text);
    for (int pass = 0; pass < SN_TOKENIZER_PASSES; pass++)
        for (size_t i = 0; i < t->added[pass].n; i++)
            if (t->added[pass].tokens[i].len == len && !memcmp(t->added[pass].tokens[i].text, text, len))
                return t->added[pass].tokens[i].id;
    return len ? sn_vocab_find(&t->vocab, text, len) : -1;
}

/* bos_token and similar keys: a text, or an object with the text as its content. Without the key `out` stays. */
static void read_token_text(const json_t *config, const char *key, char out[SN_CHAT_TOKEN_MAX]) {
    if (!json_object_get(config, key)) return;
    const char *text = sn_json_string(config, key, NULL);
    if (!text) text = sn_json_string(json_object_get(config, key), "content", "");
    snprintf(out, SN_CHAT_TOKEN_MAX, "%s", text);
}

/* "chat_template": a text, or a list of named templates. */
static const json_t *find_template(const json_t *config, const char *name) {
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!strcmp(sn_json_string(json_array_get(value, i), "name", ""), name))
            return json_object_get(json_array_get(value, i), "template");
    return json_is_string(value) && !strcmp(name, "default") ? value : NULL;
}

static sn_status read_config(sn_tokenizer *t, const json_t *config, const sn_tokenizer_files *files, sn_err *err) {
    char bos[SN_CHAT_TOKEN_MAX], eos[SN_CHAT_TOKEN_MAX];
    memcpy(bos, t->bos_text, sizeof bos);
    memcpy(eos, t->eos_text, sizeof eos);
    read_token_text(config, "bos_token", bos);
    read_token_text(config, "eos_token", eos);
    if (t->bos < 0) t->bos = (int32_t)token_id_of_text(t, bos);
    sn_tokenizer_add_eog(t, token_id_of_text(t, eos));
    const json_t *template = find_template(config, "default"), *tools = find_template(config, "tool_use");
    sn_chat_source source = {.text = json_string_value(template),
                             .len = json_string_length(template),
                             .tool_text = json_string_value(tools),
                             .tool_len = json_string_length(tools),
                             .bos = bos,
                             .eos = eos};
    if (files->chat_template.len) {
        source.text = (const char *)files->chat_template.data;
        source.len = files->chat_template.len;
        source.tool_text = (const char *)files->tool_template.data;
        source.tool_len = files->tool_template.len;
    }
    return sn_tokenizer_set_chat_source(t, &source, err);
}

static void read_eog_ids(sn_tokenizer *t, const json_t *generation) {
    const json_t *value = json_object_get(generation, "eos_token_id");
    if (json_is_integer(value)) sn_tokenizer_add_eog(t, json_integer_value(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        if (json_is_integer(json_array_get(value, i)))
            sn_tokenizer_add_eog(t, json_integer_value(json_array_get(value, i)));
}

/* Every tekken.json has "\u0000" in it, the text of a token that its bytes give, too. */
static sn_status parse_json(const sn_buf *text, const char *name, json_t **out, sn_err *err) {
    json_error_t why;
    const char *bytes = (const char *)text->data;
    if (!bytes) return SN_OK;
    const bool tekken = !strcmp(name, "tekken.json");
    *out = tekken ? json_loadb(bytes, text->len, JSON_ALLOW_NUL, &why) : sn_json_read(bytes, text->len, &why);
    const char *other = *out ? NULL : sn_not_a_model(text->data, text->len);
    if (other) return sn_fail(err, SN_REFUSED, "%s: %s", name, other);
    if (!*out) return sn_fail(err, SN_REFUSED, "%s is not valid JSON: %s, at line %d", name, why.text, why.line);
    if (!json_is_object(*out)) return sn_fail(err, SN_REFUSED, "%s is not a JSON object", name);
    return SN_OK;
}

/* What happens to text before BPE, and to tokens when they are decoded. */
static sn_status read_pipeline(sn_tokenizer *t, const json_t *root, sn_err *err) {
    const json_t *normalizer = json_object_get(root, "normalizer");
    bool sentencepiece = t->vocab.sentencepiece;
    sn_status status = read_normalizer(t, normalizer, err);
    if (!status) status = read_steps(t, json_object_get(root, "pre_tokenizer"), err);
    if (!status && sentencepiece) status = read_decoder(t, json_object_get(root, "decoder"), err);
    return status;
}

typedef struct folder {
    json_t *tokenizer, *tekken, *config, *generation, *added; /* NULL: the folder does not have the file */
} folder;

static sn_status parse_folder(const sn_tokenizer_files *files, folder *out, sn_err *err) {
    sn_status status = parse_json(&files->tokenizer, "tokenizer.json", &out->tokenizer, err);
    if (!status) status = parse_json(&files->tekken, "tekken.json", &out->tekken, err);
    if (!status) status = parse_json(&files->tokenizer_config, "tokenizer_config.json", &out->config, err);
    if (!status) status = parse_json(&files->generation_config, "generation_config.json", &out->generation, err);
    return status ? status : parse_json(&files->added_tokens, "added_tokens.json", &out->added, err);
}

static sn_status read_vocabulary(sn_tokenizer *t, const sn_tokenizer_files *files, const folder *have, sn_err *err) {
    const json_t *root = have->tokenizer;
    if (!root && files->tiktoken.data) return sn_tokenizer_tiktoken(t, &files->tiktoken, have->config, err);
    if (!root && have->tekken) return sn_tokenizer_tekken(t, have->tekken, have->config, err);
    if (!root && files->sentencepiece.data)
        return sn_tokenizer_spm(t, &files->sentencepiece, have->config, have->added, err);
    sn_status status = read_model(t, root, err);
    if (!status) status = read_pipeline(t, root, err);
    return status ? status : read_post_processor(t, json_object_get(root, "post_processor"), false, err);
}

sn_status sn_tokenizer_from_files(const sn_tokenizer_files *files, sn_tokenizer **out, sn_err *err) {
    folder have = {0};
    *out = NULL;
    sn_status status = parse_folder(files, &have, err);
    if (!status) status = sn_tokenizer_new(out, err);
    if (!status) status = read_vocabulary(*out, files, &have, err);
    if (!status) status = read_config(*out, have.config, files, err);
    if (!status) {
        read_eog_ids(*out, have.generation);
        status = sn_tokenizer_finish(*out, err);
    }
    if (status) sn_tokenizer_close(out);
    json_decref(have.tokenizer);
    json_decref(have.tekken);
    json_decref(have.config);
    json_decref(have.generation);
    json_decref(have.added);
    return status;
}
