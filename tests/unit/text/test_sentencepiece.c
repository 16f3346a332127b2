/* Vocabularies in SentencePiece's style: spaces as U+2581, characters, byte tokens; read from tokenizer.json and
 * from GGUF. */
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *part_of_fixture(const char *file) { return fixture_json("sentencepiece", file); }

/* The tokenizer.json of a family: the fixture's file with this family's parts in it. */
static json_t *family_json(const json_t *variant) {
    json_t *root = part_of_fixture("tokenizer.json"), *model = json_object_get(root, "model");
    json_object_update(root, json_object_get(variant, "parts"));
    json_object_update(model, json_object_get(variant, "model"));
    if (json_is_true(json_object_get(variant, "tab"))) { /* as in Gemma, a tab has the id of its byte token */
        json_t *vocab = json_object_get(model, "vocab");
        json_object_set(vocab, "\t", json_object_get(vocab, "<0x09>"));
        json_object_del(vocab, "<0x09>");
    }
    return root;
}

static sn_tokenizer *open_json(json_t *root) {
    sn_tokenizer *t;
    sn_err err;
    cr_assert_eq(tokenizer_from_json(root, NULL, NULL, NULL, &t, &err), SN_OK, "%s", err.text);
    json_decref(root);
    return t;
}

static sn_tokenizer *open_family(const char *name) {
    json_t *variants = part_of_fixture("variants.json"), *variant;
    size_t i;
    sn_tokenizer *t = NULL;
    json_array_foreach(variants, i, variant) if (!strcmp(json_string_value(json_object_get(variant, "name")), name)) t =
        open_json(family_json(variant));
    cr_assert(t, "no %s", name);
    json_decref(variants);
    return t;
}

/* The text that is shown for the ids of a whole text: without special tokens, and without the space that its
 * encoding put before it. */
static void expect_decoded(const sn_tokenizer *t, const sn_token_ids *ids, const json_t *text, const char *what) {
    sn_buf out = decode(t, ids, false);
    size_t skip = sn_tokenizer_strips_space(t) && out.len && out.data[0] == ' ';
    if (json_is_string(text)) { /* otherwise the ids are not complete UTF-8 */
        cr_assert_eq(out.len - skip, json_string_length(text), "%s", what);
        cr_assert(!out.len || !memcmp(out.data + skip, json_string_value(text), out.len - skip), "%s", what);
    }
    sn_buf_fini(&out);
}

Test(sentencepiece, matches_ids_and_texts_of_the_reference_in_every_family) {
    json_t *variants = part_of_fixture("variants.json"), *variant, *item;
    size_t i, k;
    cr_assert_geq(json_array_size(variants), 8u);
    json_array_foreach(variants, i, variant) {
        const char *name = json_string_value(json_object_get(variant, "name"));
        sn_tokenizer *t = open_json(family_json(variant));
        expect_encodings(t, json_object_get(variant, "expected"), true, name);
        json_array_foreach(json_object_get(variant, "expected"), k, item) {
            const json_t *text = json_object_get(item, "text");
            sn_token_ids ids = encode(t, json_string_value(text), json_string_length(text), true, true);
            expect_decoded(t, &ids, json_object_get(item, "shown"), name);
            sn_token_ids_fini(&ids);
        }
        sn_tokenizer_close(&t);
    }
    json_decref(variants);
}

/* -- GGUF */

typedef struct gguf_options {
    bool no_prefix, phi3, folds;
    const char *charsmap;
    int without;       /* this token loses its type: it becomes unused */
    const char *token; /* replaces token 300 */
    int type;          /* of token 300; 0: unchanged */
    bool short_scores, no_scores;
    float score;         /* of token 300; 0: unchanged */
    const char *user[2]; /* additional tokens of type user-defined */
} gguf_options;

enum { PIECES_MAX = 600 };

/* The fixture's pieces as a converter writes them. */
static sn_buf gguf_of_pieces(const gguf_options *o) {
    json_t *root = part_of_fixture("pieces.json"), *pieces = json_object_get(root, "pieces"), *piece;
    const char *tokens[PIECES_MAX];
    float scores[PIECES_MAX];
    int types[PIECES_MAX];
    size_t n;
    cr_assert_lt(json_array_size(pieces) + 2, (size_t)PIECES_MAX);
    json_array_foreach(pieces, n, piece) {
        tokens[n] = json_string_value(json_array_get(piece, 0));
        scores[n] = (float)json_number_value(json_array_get(piece, 1));
        types[n] = (int)json_integer_value(json_array_get(piece, 2));
    }
    for (int i = 0; i < 2 && o->user[i]; i++, n++) tokens[n] = o->user[i], scores[n] = -1000, types[n] = 4;
    if (o->token) tokens[300] = o->token;
    if (o->type) types[300] = o->type;
    if (o->score != 0) scores[300] = o->score;
    if (o->without) types[o->without] = 5;
    sn_buf b = {0};
    put_gguf_header(&b, 3, 0, 9 - o->no_scores + !!o->charsmap);
    put_gguf_text(&b, "general.architecture", o->phi3 ? "phi3" : "llama");
    put_gguf_text(&b, "tokenizer.ggml.model", "llama");
    put_gguf_strings(&b, "tokenizer.ggml.tokens", tokens, n);
    put_gguf_key(&b, "tokenizer.ggml.token_type", SN_GGUF_ARRAY);
    put_u32(&b, SN_GGUF_I32);
    put_u64(&b, n);
    for (size_t i = 0; i < n; i++) put_u32(&b, (uint32_t)types[i]);
    if (!o->no_scores) {
        put_gguf_key(&b, "tokenizer.ggml.scores", SN_GGUF_ARRAY);
        put_u32(&b, SN_GGUF_F32);
        put_u64(&b, n - o->short_scores);
        for (size_t i = 0; i < n - o->short_scores; i++) put_f32(&b, scores[i]);
    }
    put_gguf_u32(&b, "tokenizer.ggml.bos_token_id", 1);
    put_gguf_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    put_gguf_bool(&b, "tokenizer.ggml.add_space_prefix", !o->no_prefix);
    put_gguf_bool(&b, "tokenizer.ggml.remove_extra_whitespaces", o->folds);
    if (o->charsmap) put_gguf_text(&b, "tokenizer.ggml.precompiled_charsmap", o->charsmap);
    pad_to(&b, 32);
    json_decref(root);
    return b;
}

static sn_tokenizer *open_gguf(const gguf_options *o) {
    sn_tokenizer *t;
    sn_err err;
    cr_assert_eq(tokenizer_from_gguf(gguf_of_pieces(o), &t, &err), SN_OK, "%s", err.text);
    return t;
}

Test(sentencepiece, merges_by_scores_as_sentencepiece_itself) {
    json_t *root = part_of_fixture("pieces.json"), *variants = part_of_fixture("variants.json");
    sn_tokenizer *t = open_gguf(&(gguf_options){0});
    expect_encodings(t, json_object_get(root, "expected"), false, "SentencePiece");
    expect_encodings(t, json_object_get(json_array_get(variants, 0), "expected"), true, "Llama 2");
    cr_assert(sn_tokenizer_is_eog(t, 2));
    sn_tokenizer_close(&t);
    json_decref(root);
    json_decref(variants);
}

static void expect_equal_encoding(const sn_tokenizer *t, const char *text, const sn_tokenizer *other,
                                  const char *same) {
    sn_token_ids a = encode(t, text, strlen(text), true, true), b = encode(other, same, strlen(same), true, true);
    cr_assert(a.n == b.n && !memcmp(a.ids, b.ids, a.n * sizeof *a.ids), "'%s' and '%s'", text, same);
    sn_token_ids_fini(&a);
    sn_token_ids_fini(&b);
}

/* Gemma: no space before the text, and runs of spaces are user-defined tokens. */
Test(sentencepiece, reads_gguf_settings_beyond_the_scores) {
    sn_tokenizer *with = open_gguf(&(gguf_options){0}), *without = open_gguf(&(gguf_options){.no_prefix = true});
    cr_assert(sn_tokenizer_strips_space(with) && !sn_tokenizer_strips_space(without));
    expect_equal_encoding(with, "the node", without, " the node");
    sn_tokenizer *runs = open_gguf(&(gguf_options){.no_prefix = true, .user = {SN_SPACE SN_SPACE SN_SPACE, "\n\n"}});
    sn_token_ids ids = encode(runs, "a    \n\nb", 8, false, false);
    int32_t last = sn_tokenizer_n_vocab(runs) - 1;
    cr_assert(ids.n == 5 && ids.ids[1] == last - 1 && ids.ids[3] == last, "%zu", ids.n);
    sn_buf back = decode(runs, &ids, false);
    cr_assert(back.len == 8 && !memcmp(back.data, "a    \n\nb", 8));
    sn_buf_fini(&back);
    sn_token_ids_fini(&ids);
    sn_tokenizer *phi3 = open_gguf(&(gguf_options){.phi3 = true});
    expect_equal_encoding(phi3, "[INST] \nthe", with, "[INST]the");
    expect_equal_encoding(phi3, "<s> the", with, "<s> the");
    sn_tokenizer *all[] = {with, without, runs, phi3};
    for (size_t i = 0; i < 4; i++) sn_tokenizer_close(&all[i]);
}

Test(sentencepiece, refuses_every_kind_of_wrong_gguf_metadata) {
    static const struct {
        gguf_options options;
        const char *error_part;
    } bad[] = {
        {{.no_scores = true}, "scores"},
        {{.short_scores = true}, "560 tokens and 559 scores"},
        {{.score = __builtin_nanf("")}, "score of token 300 is no finite number"},
        {{.score = -__builtin_inff()}, "score of token 300 is no finite number"},
        {{.without = 5 + 0xe5}, "no token <0xE5>"},
        {{.type = 6}, "stands for a byte that it does not name"},
        {{.token = "<0x41>", .type = 6}, "another token stands for"},
        {{.token = "<0x4g>", .type = 6}, "does not name"},
        {{.token = "the", .type = 7}, "of type 7, which SentencePiece's"},
        {{.token = "a"}, "are the same"},
        {{.token = ""}, "0 bytes long"},
        {{.token = "\xff"}, "not valid UTF-8"},
        {{.folds = true}, "folds spaces"},
        {{.charsmap = "x"}, "changes characters"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sn_tokenizer *t = NULL;
        sn_err err = {0};
        cr_assert_eq(tokenizer_from_gguf(gguf_of_pieces(&bad[i].options), &t, &err), SN_REFUSED, "case %zu", i);
        cr_assert(strstr(err.text, bad[i].error_part), "case %zu: %s", i, err.text);
        cr_assert_null(t);
    }
}

/* -- both formats */

#define SEQUENCE(parts) "{\"type\": \"Sequence\", \"decoders\": [" parts "]}"
#define REPLACE         "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" SN_SPACE "\"}, \"content\": \" \"}"
#define STRIP(start)    "{\"type\": \"Strip\", \"content\": \" \", \"start\": " start ", \"stop\": 0}"
#define METASPACE(rest) "{\"type\": \"Metaspace\", \"replacement\": \"" SN_SPACE "\"" rest "}"

static const struct {
    const char *path, *value, *error_part;
} bad_json[] = {
    {"model.vocab.<0xE5>", NULL, "no token <0xE5>"},
    {"model.vocab.a", "9223372036854775807", "largest id"},
    {"model.vocab.a", "66", "given to two tokens"},
    {"model.merges.0", "[\"q\", \"zz\"]", "does not have"},
    {"model.merges.0", "[\"a\", \"\"]", "not written"},
    {"model.merges.1", "[\"" SN_SPACE "\", \"" SN_SPACE "\"]", "given twice"},
    {"model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix"},
    {"normalizer", "null", "leaves spaces as they are"},
    {"normalizer", "{\"type\": \"NFKC\"}", "leaves spaces as they are"},
    {"normalizer.normalizers.1", "{\"type\": \"Lowercase\"}", "'Lowercase'"},
    {"normalizer",
     "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
     "\"content\": \"" SN_SPACE "\"}, {\"type\": \"NFKC\"}]}",
     "'NFKC' is not supported in its place"},
    {"normalizer.normalizers.0.prepend", "\"_\"", "'Prepend'"},
    {"normalizer.normalizers.1.content", "\"_\"", "'Replace'"},
    {"normalizer.normalizers.1", "{\"type\": \"Prepend\", \"prepend\": \"" SN_SPACE "\"}", "'Prepend'"},
    {"normalizer", "{\"type\": \"Prepend\", \"prepend\": \"" SN_SPACE "\"}", "not for spaces"},
    {"pre_tokenizer", METASPACE(", \"prepend_scheme\": \"odd\""), "'odd'"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"_\"}", "'_'"},
    {"pre_tokenizer", METASPACE(""), "twice"},
    {"pre_tokenizer", "{\"type\": \"Whitespace\"}", "'Whitespace'"},
    {"decoder", "null", "U+2581 a space"},
    {"decoder", SEQUENCE(REPLACE), "byte tokens bytes"},
    {"decoder", SEQUENCE("{\"type\": \"ByteFallback\"}, " REPLACE), "'Replace'"},
    {"decoder", SEQUENCE(REPLACE ", {\"type\": \"ByteFallback\"}, " STRIP("1")), "'Strip'"},
    {"decoder", SEQUENCE(REPLACE ", {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, " STRIP("2")), "'Strip'"},
    {"decoder", SEQUENCE(REPLACE ", {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"CTC\"}"), "'CTC'"},
    {"decoder", METASPACE(""), "byte tokens bytes"},
    {"decoder", SEQUENCE(REPLACE ", " METASPACE("")), "'Metaspace'"},
    {"decoder", SEQUENCE("{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, " METASPACE("")), "'Metaspace'"},
    {"decoder", SEQUENCE("{\"type\": \"ByteFallback\"}, " METASPACE("") ", {\"type\": \"Fuse\"}, " STRIP("1")),
     "'Strip'"},
};

Test(sentencepiece, refuses_every_kind_of_wrong_tokenizer_json) {
    for (size_t i = 0; i < sizeof bad_json / sizeof *bad_json; i++) {
        json_t *root = part_of_fixture("tokenizer.json");
        sn_tokenizer *t = NULL;
        sn_err err = {0};
        change_json(root, bad_json[i].path, bad_json[i].value);
        cr_assert_eq(tokenizer_from_json(root, NULL, NULL, NULL, &t, &err), SN_REFUSED, "case %zu, %s = %s is taken", i,
                     bad_json[i].path, bad_json[i].value);
        cr_assert(strstr(err.text, bad_json[i].error_part), "case %zu, %s = %s: %s", i, bad_json[i].path,
                  bad_json[i].value, err.text);
        cr_assert_null(t);
        json_decref(root);
    }
}

/* Without byte tokens, a character without a token becomes the unknown token, which must exist. */
Test(sentencepiece, requires_the_declared_unknown_token) {
    json_t *root = part_of_fixture("tokenizer.json");
    sn_tokenizer *t = NULL;
    sn_err err = {0};
    change_json(root, "model.byte_fallback", "false");
    change_json(root, "model.unk_token", "\"<none>\"");
    cr_assert_eq(tokenizer_from_json(root, NULL, NULL, NULL, &t, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "no token '<none>'"), "%s", err.text);
    json_decref(root);
}

Test(sentencepiece, never_makes_special_tokens_of_plain_text) {
    static const char text[] = "<s>[INST] the</s>";
    sn_tokenizer *all[] = {open_family("llama2"), open_family("gemma"), open_gguf(&(gguf_options){0})};
    for (size_t i = 0; i < 3; i++) {
        sn_token_ids plain = encode(all[i], text, strlen(text), false, false);
        for (size_t k = 0; k < plain.n; k++) cr_assert_geq(plain.ids[k], 5, "tokenizer %zu", i);
        sn_buf back = decode(all[i], &plain, false);
        size_t skip = sn_tokenizer_strips_space(all[i]);
        cr_assert(back.len == strlen(text) + skip && !memcmp(back.data + skip, text, strlen(text)));
        sn_buf_fini(&back);
        sn_token_ids_fini(&plain);
        sn_tokenizer_close(&all[i]);
    }
}

/* Phi-3's "</s>" ends a text and is not called special. */
Test(sentencepiece, never_makes_the_end_of_a_text_of_plain_text) {
    json_t *root = part_of_fixture("tokenizer.json"), *token, *generation = NULL;
    sn_tokenizer *t;
    sn_err err;
    size_t i;
    json_array_foreach(json_object_get(root, "added_tokens"), i, token) {
        if (strcmp(json_string_value(json_object_get(token, "content")), "</s>")) continue;
        json_object_set_new(token, "special", json_false());
        generation = json_pack("{s:O}", "eos_token_id", json_object_get(token, "id"));
    }
    cr_assert_not_null(generation);
    cr_assert_eq(tokenizer_from_json(root, NULL, generation, NULL, &t, &err), SN_OK, "%s", err.text);
    for (int special = 0; special < 2; special++) {
        sn_token_ids ids = encode(t, "a</s>", 5, false, special);
        bool ends = false;
        for (size_t k = 0; k < ids.n; k++) ends = ends || sn_tokenizer_is_eog(t, ids.ids[k]);
        cr_assert_eq(ends, special);
        sn_token_ids_fini(&ids);
    }
    sn_tokenizer_close(&t);
    json_decref(generation);
    json_decref(root);
}

/* A file may hold merges whose result is the text of a special token. */
Test(sentencepiece, skips_merges_that_make_special_tokens) {
    json_t *root = part_of_fixture("tokenizer.json"), *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_int_t id = json_integer_value(json_object_get(vocab, SN_SPACE "the"));
    cr_assert_gt(id, 5);
    sn_tokenizer *before = open_json(json_incref(root));
    sn_token_ids ids = encode(before, "the", 3, false, false);
    cr_assert(ids.n == 1 && ids.ids[0] == id);
    sn_token_ids_fini(&ids);
    json_array_append_new(
        json_object_get(root, "added_tokens"),
        json_pack("{s:I, s:s, s:b, s:b}", "id", id, "content", SN_SPACE "the", "special", 1, "normalized", 0));
    sn_tokenizer *t = open_json(root);
    ids = encode(t, "the", 3, false, false);
    cr_assert_gt(ids.n, 1u);
    for (size_t i = 0; i < ids.n; i++) cr_assert_neq(ids.ids[i], id);
    sn_token_ids_fini(&ids);
    sn_tokenizer_close(&before);
    sn_tokenizer_close(&t);
}

/* "the" and " node" give the text of "the node": continued text gets no space of its own. */
Test(sentencepiece, adds_no_space_before_continued_text) {
    sn_tokenizer *all[] = {open_family("llama2"), open_family("mistral"), open_family("gemma"),
                           open_gguf(&(gguf_options){0})};
    for (size_t i = 0; i < 4; i++) {
        sn_token_ids whole = encode(all[i], "the node", 8, false, true), begin = encode(all[i], "the", 3, false, true),
                     more;
        sn_err err;
        cr_assert_eq(sn_tokenizer_encode_continuation(all[i], " node", 5, true, &more, &err), SN_OK);
        cr_assert_eq(begin.n + more.n, whole.n, "tokenizer %zu", i);
        cr_assert(!memcmp(begin.ids, whole.ids, begin.n * sizeof *whole.ids));
        cr_assert(!memcmp(more.ids, whole.ids + begin.n, more.n * sizeof *whole.ids));
        sn_token_ids *lists[] = {&whole, &begin, &more};
        for (size_t k = 0; k < 3; k++) sn_token_ids_fini(lists[k]);
        sn_tokenizer_close(&all[i]);
    }
}

/* A merge of quadratic time would take minutes for these texts; the limit allows for sanitizers and busy machines. */
Test(sentencepiece, encodes_long_runs_without_spaces) {
    enum { LEN = 1 << 19 };
    sn_tokenizer *all[] = {open_family("gemma"), open_gguf(&(gguf_options){.no_prefix = true})};
    char *text = malloc(LEN);
    static const char *const units[] = {"a", "th", " ", "session", "\xc3\xa9\xe5\x9b\xb2 "};
    double start = now_s();
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t step = strlen(units[u]), len = LEN / step * step;
        for (size_t i = 0; i < len; i++) text[i] = units[u][i % step];
        for (size_t k = 0; k < 2; k++) expect_round_trip(all[k], text, len, true);
    }
    cr_assert_lt(now_s() - start, 60.0);
    free(text);
    for (size_t k = 0; k < 2; k++) sn_tokenizer_close(&all[k]);
}

/* -- the model Unigram of tokenizer.json */

/* The file of a variant: the fixture's with this variant's parts in it. */
static json_t *unigram_json(const json_t *fixture, const json_t *variant) {
    json_t *root = json_deep_copy(json_object_get(fixture, "root")), *model = json_object_get(root, "model");
    json_t *parts = json_deep_copy(json_object_get(variant, "parts"));
    json_object_update(model, json_object_get(parts, "model"));
    json_object_del(parts, "model");
    json_object_update(root, parts);
    json_decref(parts);
    return root;
}

Test(unigram, of_tokenizer_json_gives_the_ids_and_texts_of_the_reference) {
    json_t *fixture = load_json("tokenizer", "unigram.json"), *variant, *item;
    size_t i, k;
    cr_assert_geq(json_array_size(json_object_get(fixture, "variants")), 4u);
    json_array_foreach(json_object_get(fixture, "variants"), i, variant) {
        const char *name = json_string_value(json_object_get(variant, "name"));
        sn_tokenizer *t = open_json(unigram_json(fixture, variant));
        expect_encodings(t, json_object_get(variant, "expected"), true, name);
        json_array_foreach(json_object_get(variant, "expected"), k, item) {
            const json_t *text = json_object_get(item, "text"), *shown = json_object_get(item, "shown");
            sn_token_ids ids = encode(t, json_string_value(text), json_string_length(text), true, true);
            /* Metaspace takes several signs U+2581 of the first token away, and this program one. */
            if (strncmp(json_string_value(text), "  ", 2) != 0) expect_decoded(t, &ids, shown, name);
            sn_token_ids_fini(&ids);
        }
        sn_tokenizer_close(&t);
    }
    json_decref(fixture);
}

Test(unigram, texts_of_users_make_no_special_tokens) {
    json_t *fixture = load_json("tokenizer", "unigram.json");
    static const char text[] = "a </s><s> b";
    sn_tokenizer *t = open_json(unigram_json(fixture, json_array_get(json_object_get(fixture, "variants"), 1)));
    sn_token_ids ids = encode(t, text, strlen(text), false, false);
    for (size_t i = 0; i < ids.n; i++) cr_expect_gt(ids.ids[i], 2);
    sn_token_ids_fini(&ids);
    sn_tokenizer_close(&t);
    json_decref(fixture);
}

Test(unigram, refuses_models_that_are_not_whole) {
    static const struct {
        const char *path, *value, *says;
    } bad[] = {{"model.unk_id", "null", "unk_id"},
               {"model.unk_id", "100000", "unk_id"},
               {"model.unk_id", "-1", "unk_id"},
               {"model.vocab", "[]", "0 pieces"},
               {"model.vocab", "{}", "0 pieces"},
               {"model.vocab", "[[\"a\", 1, 2]]", "a text with a score"},
               {"model.vocab", "[[\"a\", \"b\"]]", "a text with a score"},
               {"model.vocab", "[[\"a\", 0], [\"a\", 0]]", "twice"},
               {"model.byte_fallback", "true", "byte"},
               {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "over characters"},
               {"decoder", "{\"type\": \"ByteLevel\"}", "over characters"},
               {"normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"\"}", "tokenizer.model"}};
    json_t *fixture = load_json("tokenizer", "unigram.json");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *root = unigram_json(fixture, json_array_get(json_object_get(fixture, "variants"), 0));
        sn_tokenizer *t = NULL;
        sn_err err = {0};
        change_json(root, bad[i].path, bad[i].value);
        cr_expect_eq(tokenizer_from_json(root, NULL, NULL, NULL, &t, &err), SN_REFUSED, "%s %s", bad[i].path,
                     bad[i].value);
        cr_expect(strstr(err.text, bad[i].says), "%s", err.text);
        json_decref(root);
    }
    json_decref(fixture);
}
