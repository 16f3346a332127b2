/* Folders without a tokenizer.json: tokenizer.model (SentencePiece, BPE and unigram) and tekken.json. The ids of their
 * own libraries, special tokens, and files that are refused. */
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
