/* Tokenizers in tiktoken.model: the ids of the reference (tiktoken with the pattern and the special tokens of Kimi's
 * tokenizer), and files that are refused. */
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

Test(tiktoken, gives_the_ids_of_the_reference_implementation) {
    sn_tokenizer *t = open_fixture("tiktoken");
    json_t *expected = fixture_json("tiktoken", "expected.json");
    cr_assert_gt(json_array_size(expected), 80);
    expect_encodings(t, expected, true, "tiktoken"); /* no token is put before a text */
    for (size_t i = 0; i < json_array_size(expected); i++) {
        const json_t *text = json_object_get(json_array_get(expected, i), "text");
        expect_round_trip(t, json_string_value(text), json_string_length(text), true);
        expect_round_trip(t, json_string_value(text), json_string_length(text), false);
    }
    json_decref(expected);
    sn_tokenizer_close(&t);
}

Test(tiktoken, special_tokens_come_from_tokenizer_config) {
    static const char turn[] = "<|im_user|>x<|im_end|>";
    sn_tokenizer *t = open_fixture("tiktoken");
    sn_token_ids plain = encode(t, turn, strlen(turn), false, false), ids = encode(t, turn, strlen(turn), false, true);
    cr_expect_eq(ids.n, 3);
    cr_expect_gt(plain.n, 10);
    cr_expect(sn_tokenizer_is_eog(t, ids.ids[2]) && !sn_tokenizer_is_eog(t, ids.ids[0]));
    sn_token_ids end = encode(t, "[EOS]", 5, false, true);
    cr_expect(end.n == 1 && sn_tokenizer_is_eog(t, end.ids[0]));
    cr_expect_gt(sn_tokenizer_chat_source(t).len, 0);
    sn_buf text = decode(t, &ids, false);
    cr_expect(text.len == 1 && text.data[0] == 'x');
    sn_buf_fini(&text);
    sn_token_ids_fini(&plain);
    sn_token_ids_fini(&ids);
    sn_token_ids_fini(&end);
    sn_tokenizer_close(&t);
}

/* ---- files that are refused ---- */

enum { FILE_MAX = 1 << 16, SINGLES = 256 };

static const char CONFIG[] = "{\"tokenizer_class\": \"TikTokenTokenizer\"}";

/* Lines for all single bytes: base64 of a byte is two characters and "==". */
static size_t single_bytes(char *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t len = 0;
    for (int b = 0; b < SINGLES; b++)
        len += (size_t)snprintf(out + len, FILE_MAX - len, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    return len;
}

static sn_status open_ranks(const char *ranks, size_t len, const char *config, sn_tokenizer **out, sn_err *err) {
    const sn_tokenizer_files files = {
        .tiktoken = {.data = (uint8_t *)(uintptr_t)ranks, .len = len},
        .tokenizer_config = {.data = (uint8_t *)(uintptr_t)config, .len = strlen(config)},
    };
    return sn_tokenizer_from_files(&files, out, err);
}

/* The single bytes, and behind them `more`. */
static void expect_refused(const char *more, const char *config, const char *part) {
    char ranks[FILE_MAX];
    sn_tokenizer *t;
    sn_err err;
    size_t len = single_bytes(ranks);
    len += (size_t)snprintf(ranks + len, sizeof ranks - len, "%s", more);
    cr_assert_eq(open_ranks(ranks, len, config, &t, &err), SN_REFUSED, "%s", more);
    cr_expect(strstr(err.text, part), "%s: %s", more, err.text);
}

Test(tiktoken, single_bytes_and_lines_of_other_systems_are_enough) {
    char ranks[FILE_MAX];
    sn_tokenizer *t;
    sn_err err;
    size_t len = single_bytes(ranks);
    len += (size_t)snprintf(ranks + len, sizeof ranks - len, "\n\r\nYWI= 256\r\nYWJj 257"); /* "ab", "abc" */
    cr_assert_eq(open_ranks(ranks, len, CONFIG, &t, &err), SN_OK, "%s", err.text);
    sn_token_ids ids = encode(t, "abcd", 4, false, true);
    cr_expect(ids.n == 2 && ids.ids[0] == 257 && ids.ids[1] == 'd');
    sn_token_ids_fini(&ids);
    sn_tokenizer_close(&t);
}

Test(tiktoken, refuses_lines_that_are_no_token_and_rank) {
    static const char *const lines[] = {"YWI=256",  "YWI= ",       "YWI= x",         "YWI= -1",
                                        " 256",     "YWI 256",     "Y=I= 256",       "YWI= 256 1",
                                        "==== 256", "YW\xff= 256", "YWI= 9999999999"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_refused(lines[i], CONFIG, "line 257 of tiktoken.model");
}

Test(tiktoken, refuses_ranks_that_are_not_those_of_a_vocabulary) {
    expect_refused("YWI= 255", CONFIG, "given to two tokens");
    expect_refused("YWI= 257", CONFIG, "none of rank 256");
    expect_refused("YWI= 100000", CONFIG, "outside the vocabulary");
    expect_refused("YQ== 256", CONFIG, "are the same");
    char ranks[FILE_MAX];
    sn_tokenizer *t;
    sn_err err;
    size_t len = single_bytes(ranks);
    memcpy(ranks, "YWI=", 4); /* instead of byte 0 */
    cr_assert_eq(open_ranks(ranks, len, CONFIG, &t, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "byte 0x00"), "%s", err.text);
    cr_assert_eq(open_ranks("\n", 1, CONFIG, &t, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "has 0 tokens"), "%s", err.text);
}

Test(tiktoken, refuses_special_tokens_and_classes_that_are_not_known) {
    expect_refused("", "{}", "class '(none)'");
    expect_refused("", "{\"tokenizer_class\": \"QWenTokenizer\"}", "class 'QWenTokenizer'");
    static const char *const added[] = {"\"5\": {\"content\": \"x\"}", "\"512\": {\"content\": \"x\"}", "\"256\": {}",
                                        "\"x\": {\"content\": \"x\"}", "\"-1\": {\"content\": \"x\"}"};
    char config[256];
    for (size_t i = 0; i < sizeof added / sizeof *added; i++) {
        snprintf(config, sizeof config, "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {%s}}",
                 added[i]);
        expect_refused("", config, "ids from 256 to 511");
    }
    snprintf(config, sizeof config,
             "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {\"256\": {\"content\": \"\"}}}");
    expect_refused("", config, "0 bytes long");
}

/* tokenizer.json goes before it. */
Test(tiktoken, is_read_where_there_is_no_tokenizer_json) {
    char *folder = temp_folder(), ranks[FILE_MAX];
    sn_tokenizer *t;
    sn_err err;
    write_file(folder, "tiktoken.model", ranks, single_bytes(ranks));
    cr_assert_eq(sn_tokenizer_open(folder, &t, &err), SN_REFUSED);
    cr_expect(strstr(err.text, folder) && strstr(err.text, "use a GGUF file"), "%s", err.text);
    write_file(folder, "tokenizer_config.json", CONFIG, strlen(CONFIG));
    cr_assert_eq(sn_tokenizer_open(folder, &t, &err), SN_OK, "%s", err.text);
    cr_expect_eq(sn_tokenizer_n_vocab(t), 2 * SINGLES);
    sn_tokenizer_close(&t);
    write_file(folder, "tokenizer.json", "{}", 2);
    cr_assert_eq(sn_tokenizer_open(folder, &t, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "'(none)'"), "%s", err.text);
    temp_folder_remove(&folder);
}
