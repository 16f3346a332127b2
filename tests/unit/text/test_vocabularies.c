/* Folders without a tokenizer.json: tokenizer.model (SentencePiece, BPE and unigram) and tekken.json. The ids of their
 * own libraries, special tokens, and files that are refused. */
#include "base/file.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"spm_bpe",           "spm_bpe_symbols", "spm_bpe_unknown", "spm_unigram",
                                    "spm_unigram_bytes", "tekken_model",    "tekken_old"};
enum { N_NAMES = sizeof names / sizeof *names };

/* Neither library finds special tokens in a text. */
static void expect_plain_encodings(const sn_tokenizer *t, const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *text = json_object_get(item, "text");
        char what[600];
        snprintf(what, sizeof what, "%s: '%.500s'", name, json_string_value(text));
        sn_token_ids ids = encode(t, json_string_value(text), json_string_length(text), false, false);
        expect_same_ids(&ids, json_object_get(item, "ids"), what);
        sn_token_ids_fini(&ids);
    }
}

Test(vocabularies, give_the_ids_of_their_own_libraries) {
    for (size_t i = 0; i < N_NAMES; i++) {
        sn_tokenizer *t = open_fixture(names[i]);
        json_t *expected = fixture_json(names[i], "expected.json");
        cr_assert_gt(json_array_size(expected), 100);
        expect_plain_encodings(t, expected, names[i]);
        json_decref(expected);
        sn_tokenizer_close(&t);
    }
}

/* By hand: SN_DIFFER=FOLDER, made by make_vocabularies.py --differ. */
Test(vocabularies, give_the_ids_of_a_folder_that_the_environment_names) {
    const char *folder = getenv("SN_DIFFER");
    char path[4096];
    sn_tokenizer *t;
    sn_err err;
    if (!folder) return;
    snprintf(path, sizeof path, "%s/differ.json", folder);
    json_t *list = json_load_file(path, JSON_ALLOW_NUL, NULL);
    cr_assert_gt(json_array_size(list), 0);
    cr_assert_eq(sn_tokenizer_open(folder, &t, &err), SN_OK, "%s", err.text);
    expect_plain_encodings(t, list, folder);
    sn_tokenizer_close(&t);
    json_decref(list);
}

/* ---- folders ---- */

static const sn_buf *fixture_file(const char *name, const char *file) {
    static sn_buf bytes; /* of the last call */
    char path[512];
    sn_err err;
    snprintf(path, sizeof path, SN_FIXTURES "/tokenizer/%s/%s", name, file);
    sn_buf_fini(&bytes);
    cr_assert_eq(sn_read_file(path, 1 << 20, &bytes, &err), SN_OK, "%s", err.text);
    return &bytes;
}

static sn_buf text_file(const char *text) {
    return (sn_buf){.data = (uint8_t *)(uintptr_t)text, .len = text ? strlen(text) : 0};
}

/* The tokenizer.model of a fixture beside other files, which may be NULL. */
static sn_tokenizer *open_beside(const char *name, const char *config, const char *added) {
    const sn_tokenizer_files files = {.sentencepiece = *fixture_file(name, "tokenizer.model"),
                                      .tokenizer_config = text_file(config),
                                      .added_tokens = text_file(added)};
    sn_tokenizer *t;
    sn_err err;
    cr_assert_eq(sn_tokenizer_from_files(&files, &t, &err), SN_OK, "%s: %s", name, err.text);
    return t;
}

static void expect_ids(const sn_tokenizer *t, const char *text, bool add_bos, bool parse, const int32_t *ids,
                       size_t n) {
    sn_token_ids got = encode(t, text, strlen(text), add_bos, parse);
    cr_expect_eq(got.n, n, "%s", text);
    for (size_t i = 0; i < sn_min_size(n, got.n); i++) cr_expect_eq(got.ids[i], ids[i], "%s, %zu", text, i);
    sn_token_ids_fini(&got);
}

static void expect_no_ids_below(const sn_tokenizer *t, const char *text, int32_t first) {
    sn_token_ids got = encode(t, text, strlen(text), false, false);
    for (size_t i = 0; i < got.n; i++) cr_expect_geq(got.ids[i], first, "%s", text);
    sn_token_ids_fini(&got);
}

Test(vocabularies, special_tokens_of_the_file_are_found_where_the_caller_allows_it) {
    enum { UNK, BOS, EOS };
    static const char *const models[] = {"spm_bpe", "spm_unigram_bytes", "tekken_model"};
    for (size_t i = 0; i < 3; i++) {
        sn_tokenizer *t = open_fixture(models[i]);
        expect_ids(t, "<s><unk></s>", true, true, (int32_t[]){BOS, UNK, EOS}, 3); /* bos is not put before itself */
        expect_ids(t, "", true, true, (int32_t[]){BOS}, 1);
        expect_no_ids_below(t, "<s><unk></s>", EOS + 1);
        cr_expect(sn_tokenizer_is_eog(t, EOS) && !sn_tokenizer_is_eog(t, BOS));
        const sn_chat_source chat = sn_tokenizer_chat_source(t);
        cr_expect(!strcmp(chat.bos, "<s>") && !strcmp(chat.eos, "</s>") && !chat.len);
        sn_tokenizer_close(&t);
    }
    sn_tokenizer *t = open_fixture("tekken_model");
    expect_ids(t, "[INST][SYSTEM_PROMPT]<SPECIAL_20><SPECIAL_23>", false, true, (int32_t[]){3, 17, 20, 23}, 4);
    expect_no_ids_below(t, "[INST]x[/INST]<SPECIAL_23>", 24);
    sn_tokenizer_close(&t);
}

Test(vocabularies, companion_files_add_tokens_and_the_template) {
    static const char config[] = "{\"bos_token\": null, \"eos_token\": \"<|im_end|>\", \"add_bos_token\": false, "
                                 "\"chat_template\": \"{{ x }}\", \"added_tokens_decoder\": {"
                                 "\"1\": {\"content\": \"<s>\", \"special\": true, \"rstrip\": true}, "
                                 "\"676\": {\"content\": \"<|im_end|>\", \"special\": true}, "
                                 "\"679\": {\"content\": \"<tool>\"}}}";
    sn_tokenizer *t = open_beside("spm_bpe", config, "{\"<|old|>\": 677, \"<|im_end|>\": 676}");
    const sn_chat_source chat = sn_tokenizer_chat_source(t);
    cr_expect(chat.len == 7 && !*chat.bos && !strcmp(chat.eos, "<|im_end|>"));
    cr_expect(sn_tokenizer_is_eog(t, 676) && sn_tokenizer_n_vocab(t) == 680);
    expect_ids(t, "<s>  <|old|><|im_end|><tool>", true, true, (int32_t[]){1, 677, 676, 679}, 4);
    sn_token_ids plain = encode(t, "<s><|old|><|im_end|>", 20, true, false);
    for (size_t i = 0; i < plain.n; i++) cr_expect(plain.ids[i] > 2 && plain.ids[i] < 676);
    sn_token_ids_fini(&plain);
    sn_tokenizer_close(&t);
}

/* transformers: "legacy": false puts a space before the first part of a text only. */
Test(vocabularies, each_part_of_a_text_gets_its_space_unless_the_config_is_newer) {
    sn_tokenizer *older = open_beside("spm_bpe", NULL, NULL),
                 *newer = open_beside("spm_bpe", "{\"legacy\": false}", NULL);
    const sn_tokenizer *all[] = {older, newer};
    for (size_t i = 0; i < 2; i++) {
        sn_token_ids ids = encode(all[i], "the<s>the", 9, false, true);
        sn_buf text = decode(all[i], &ids, true);
        cr_expect(text.len == (i ? 10u : 11u) && !memcmp(text.data, i ? " the<s>the" : " the<s> the", text.len));
        sn_buf_fini(&text);
        sn_token_ids_fini(&ids);
    }
    sn_tokenizer_close(&older);
    sn_tokenizer_close(&newer);
}

/* A user-defined piece is found in every text; one that ends an answer is not, where the text is a user's. */
Test(vocabularies, texts_of_users_end_nothing) {
    sn_tokenizer *t = open_beside("spm_bpe_symbols", "{\"eos_token\": \"<sep>\"}", NULL);
    static const char text[] = "a <sep>b<sep>";
    static const uint8_t plain[sizeof text] = {1, 1, 1, 1, 1, 1, 1, 1};
    sn_token_ids ids;
    sn_err err;
    size_t ends = 0;
    cr_assert_eq(sn_tokenizer_encode_marked(t, text, sizeof text - 1, plain, false, &ids, &err), SN_OK);
    for (size_t i = 0; i < ids.n; i++) ends += sn_tokenizer_is_eog(t, ids.ids[i]);
    cr_expect_eq(ends, 1);
    sn_token_ids_fini(&ids);
    sn_tokenizer_close(&t);
    const sn_tokenizer_files files = {.sentencepiece = *fixture_file("spm_unigram", "tokenizer.model"),
                                      .tokenizer_config = text_file("{\"eos_token\": \"<sep>\"}")};
    cr_assert_eq(sn_tokenizer_from_files(&files, &t, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "ends an answer"), "%s", err.text);
}

Test(vocabularies, a_continuation_gets_no_space_and_keeps_its_own) {
    static const char *const models[] = {"spm_bpe", "spm_unigram"};
    for (size_t i = 0; i < 2; i++) {
        sn_tokenizer *t = open_fixture(models[i]);
        sn_token_ids ids;
        sn_err err;
        cr_expect(sn_tokenizer_strips_space(t));
        for (int space = 0; space < 2; space++) {
            cr_assert_eq(sn_tokenizer_encode_continuation(t, &" the"[!space], (size_t)(3 + space), true, &ids, &err),
                         SN_OK);
            sn_buf text = decode(t, &ids, true);
            cr_expect(text.len == (size_t)(3 + space) && !memcmp(text.data, &" the"[!space], text.len));
            sn_buf_fini(&text);
            sn_token_ids_fini(&ids);
        }
        sn_tokenizer_close(&t);
    }
}

Test(vocabularies, are_read_where_there_is_no_tokenizer_json) {
    static const char *const files[][2] = {{"spm_bpe", "tokenizer.model"}, {"tekken_model", "tekken.json"}};
    char *folder = temp_folder();
    sn_tokenizer *t;
    sn_err err;
    for (size_t i = 0; i < 2; i++) { /* tekken.json goes before tokenizer.model */
        const sn_buf *bytes = fixture_file(files[i][0], files[i][1]);
        write_file(folder, files[i][1], bytes->data, bytes->len);
        cr_assert_eq(sn_tokenizer_open(folder, &t, &err), SN_OK, "%s", err.text);
        cr_expect_eq(sn_tokenizer_n_vocab(t), i ? 444 : 676);
        sn_tokenizer_close(&t);
    }
    write_file(folder, "tokenizer.json", "{}", 2);
    cr_assert_eq(sn_tokenizer_open(folder, &t, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "'(none)'"), "%s", err.text);
    temp_folder_remove(&folder);
}

/* ---- files that are refused ---- */

/* What stands behind the last message of a file counts with it, and later fields go before earlier ones. */
static const struct {
    const char *more;
    size_t len;
    const char *part;
} bad_models[] = {
    {"\x12\x02\x18\x03", 4, "model type 3"},
    {"\x12\x03\xc0\x01\x01", 5, "behind words"},
    {"\x1a\x02\x28\x00", 4, "keeps spaces"},
    {"\x2a\x03\x12\x01x", 5, "when it decodes"},
    {"\x1a\x03\x12\x01x", 5, "map of characters"},
    {"\x1a\x0a\x12\x08\x04\x00\x00\x00\x00\x00\x00\x00", 12, "map of characters"},  /* no strings */
    {"\x1a\x0b\x12\x09\x04\x00\x00\x00\x00\x00\x00\x00x", 13, "map of characters"}, /* without the NUL */
    {"\x0a\x05\x0a\x01\x01\x18\x05", 7, "of type 5"},
    {"\x0a\x05\x0a\x01\x01\x18\x02", 7, "both unknown"},
    {"\x0a\x03\x0a\x01"
     "e",
     5, "are the same"},
    {"\x0a\x02\x0a\x00", 4, "0 bytes long"},
    {"\x0a\x03\x0a\x01\xff", 5, "not valid UTF-8"},
    {"\x0a\x08\x0a\x01\x01\x15\x00\x00\xc0\x7f", 10, "no finite number"},
    {"\x0a\x7f", 2, "damaged"},
    {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "damaged"},
    {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11, "damaged"},
    {"\x0b", 1, "damaged"},
    {"\x00\x00", 2, "damaged"},
};

static sn_status open_longer(const char *name, const char *more, size_t len, const char *config, sn_err *err) {
    const sn_buf *file = fixture_file(name, "tokenizer.model");
    sn_buf longer;
    sn_tokenizer *t = NULL;
    sn_buf_init(&longer, 1 << 20);
    cr_assert_eq(sn_buf_append(&longer, file->data, file->len, err), SN_OK);
    cr_assert_eq(sn_buf_append(&longer, more, len, err), SN_OK);
    const sn_tokenizer_files files = {.sentencepiece = longer, .tokenizer_config = text_file(config)};
    sn_status status = sn_tokenizer_from_files(&files, &t, err);
    sn_tokenizer_close(&t);
    sn_buf_fini(&longer);
    return status;
}

Test(vocabularies, refuse_models_that_say_what_is_not_done) {
    sn_err err;
    for (size_t m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof bad_models / sizeof *bad_models; i++) {
            sn_status status =
                open_longer(m ? "spm_unigram" : "spm_bpe", bad_models[i].more, bad_models[i].len, NULL, &err);
            cr_expect(status == SN_REFUSED && strstr(err.text, bad_models[i].part), "%zu: %s", i, err.text);
        }
    char piece[303] = "\x0a\xac\x02\x0a\xa9\x02";
    memset(piece + 6, 'q', 297);
    cr_expect_eq(open_longer("spm_bpe", piece, 303, NULL, &err), SN_OK, "%s", err.text);
    cr_expect_eq(open_longer("spm_unigram", piece, 303, NULL, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "at most 256"), "%s", err.text);
}

Test(vocabularies, refuse_companion_files_that_do_not_fit_the_model) {
    static const char *const bad[][2] = {
        {"{\"add_eos_token\": true}", "add_eos_token"},
        {"{\"added_tokens_decoder\": {\"1\": {\"content\": \"<bos>\"}}}", "'<bos>'"},
        {"{\"added_tokens_decoder\": {\"4194304\": {\"content\": \"x\"}}}", "'4194304'"},
        {"{\"added_tokens_decoder\": {\"-1\": {\"content\": \"x\"}}}", "'-1'"},
        {"{\"added_tokens_decoder\": {\"700\": {}}}", "'700'"},
        {"{\"added_tokens_decoder\": {\"700\": {\"content\": \"x\", \"single_word\": true}}}", "single_word"},
        {"{\"added_tokens_decoder\": {\"700\": {\"content\": \"<s>\"}}}", "the same"}};
    sn_err err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(open_longer("spm_bpe", "", 0, bad[i][0], &err), SN_REFUSED, "%s", bad[i][0]);
        cr_expect(strstr(err.text, bad[i][1]), "%s: %s", bad[i][0], err.text);
    }
}

/* Files whose bytes are cut off or changed are refused with a sentence, or are another tokenizer that takes texts. */
Test(vocabularies, survive_files_that_are_damaged) {
    static const char text[] = "the session \xef\xbc\xa1 <sep> A\xcc\x8a ab\xcc\x81"
                               "c";
    uint64_t state = 5;
    for (int k = 0; k < 3000; k++) {
        const sn_buf *file = fixture_file(k % 2 ? "spm_unigram" : "spm_bpe_unknown", "tokenizer.model");
        const sn_tokenizer_files files = {
            .sentencepiece = {.data = file->data, .len = k % 3 ? file->len : (file->len - 1) * (size_t)k / 3000 + 1}};
        for (int flips = 0; k % 3 && flips < 3; flips++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            file->data[(state >> 40) % file->len] = (uint8_t)(state >> 33);
        }
        sn_tokenizer *t;
        sn_token_ids ids;
        sn_err err = {0};
        if (sn_tokenizer_from_files(&files, &t, &err)) {
            cr_assert(err.text[0]);
            continue;
        }
        if (sn_tokenizer_encode(t, text, sizeof text - 1, true, true, &ids, &err) == SN_OK) sn_token_ids_fini(&ids);
        sn_tokenizer_close(&t);
    }
}

static const struct {
    const char *path, *value, *part;
} bad_tekken[] = {
    {"config", NULL, "vocabulary of 0 tokens"},
    {"config.default_num_special_tokens", "0", "at least one"},
    {"config.default_num_special_tokens", "444", "at least one"},
    {"special_tokens", "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]",
     "names 25 special"},
    {"config.default_vocab_size", "4194305", "at most"},
    {"config.default_vocab_size", "9999", "it is damaged"},
    {"config.pattern", NULL, "no pattern"},
    {"config.pattern", "\"a(\"", "wrong at byte"},
    {"vocab", NULL, "it is damaged"},
    {"vocab.5.rank", "6", "entry 5"},
    {"vocab.5.token_bytes", "\"*\"", "entry 5"},
    {"vocab.5.token_bytes", "7", "entry 5"},
    {"vocab.5", "[]", "entry 5"},
    {"vocab.5.token_bytes", "\"YWFh\"", "byte 0x05"},
    {"special_tokens", NULL, "lists no special tokens"},
    {"special_tokens.2.rank", "3", "special token 2"},
    {"special_tokens.2.token_str", "null", "0 bytes long"},
    {"special_tokens.2.token_str", "\"<s>\"", "given twice"},
};

Test(vocabularies, refuse_tekken_files_that_are_not_whole) {
    for (size_t i = 0; i < sizeof bad_tekken / sizeof *bad_tekken; i++) {
        const sn_buf *file = fixture_file("tekken_model", "tekken.json");
        json_t *root = json_loadb((const char *)file->data, file->len, JSON_ALLOW_NUL, NULL);
        change_json(root, bad_tekken[i].path, bad_tekken[i].value);
        char *text = json_dumps(root, 0);
        const sn_tokenizer_files files = {.tekken = text_file(text)};
        sn_tokenizer *t = NULL;
        sn_err err = {0};
        cr_expect_eq(sn_tokenizer_from_files(&files, &t, &err), SN_REFUSED, "%s", bad_tekken[i].path);
        cr_expect(strstr(err.text, bad_tekken[i].part), "%s: %s", bad_tekken[i].path, err.text);
        sn_tokenizer_close(&t);
        free(text);
        json_decref(root);
    }
}
