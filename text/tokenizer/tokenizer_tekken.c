/* tekken.json (Mistral's models of 2024 and later): the pattern that splits a text, tokens with their bytes in base64,
 * which merge by rank as those of tiktoken.model, and special tokens. Special tokens have the first ids; a token's id
 * is its rank behind them. A file may list more tokens than the model has: default_vocab_size says how many count. */
#include "text/tokenizer/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

enum { BASE64_MAX = SN_TOKEN_BYTES_MAX / 3 * 4, OLD_VERSION_MAX = 7 };

/* The special tokens of versions up to 7, which do not list them. */
static const char *const old_special[] = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "[INST]",
                                          "[/INST]",
                                          "[AVAILABLE_TOOLS]",
                                          "[/AVAILABLE_TOOLS]",
                                          "[TOOL_RESULTS]",
                                          "[/TOOL_RESULTS]",
                                          "[TOOL_CALLS]",
                                          "[IMG]",
                                          "<pad>",
                                          "[IMG_BREAK]",
                                          "[IMG_END]",
                                          "[PREFIX]",
                                          "[MIDDLE]",
                                          "[SUFFIX]",
                                          "[SYSTEM_PROMPT]",
                                          "[/SYSTEM_PROMPT]",
                                          "[TOOL_CONTENT]"};
static const size_t N_OLD = sizeof old_special / sizeof *old_special;

static sn_status read_sizes(const json_t *file, size_t *n_special, size_t *n_tokens, sn_err *err) {
    const json_t *config = json_object_get(file, "config");
    const json_int_t all = json_integer_value(json_object_get(config, "default_vocab_size"));
    const json_int_t special = json_integer_value(json_object_get(config, "default_num_special_tokens"));
    if (special < 1 || all > SN_VOCAB_MAX || all <= special)
        return sn_fail(err, SN_REFUSED,
                       "tekken.json has a vocabulary of %lld tokens with %lld special ones: at most %d are taken, and "
                       "at least one of both kinds",
                       (long long)all, (long long)special, SN_VOCAB_MAX);
    *n_special = (size_t)special;
    *n_tokens = (size_t)(all - special);
    const size_t have = json_array_size(json_object_get(file, "vocab"));
    return have >= *n_tokens
               ? SN_OK
               : sn_fail(err, SN_REFUSED, "tekken.json lists %zu tokens and names %zu: it is damaged", have, *n_tokens);
}

/* ---- special tokens ---- */

/* They are special whatever is_control says: Mistral's own tokenizer finds none of them in a text. */
static sn_status add_special(sn_tokenizer *t, size_t id, const char *text, size_t len, sn_err *err) {
    const sn_added_token token = {.text = (char *)(uintptr_t)text, .len = len, .id = (int32_t)id, .special = true};
    return sn_tokenizer_add_token(t, 0, &token, err);
}

static sn_status check_old(const json_t *file, sn_err *err) {
    const char *version = sn_json_string(json_object_get(file, "config"), "version", "(none)");
    const bool old = version[0] == 'v' && version[1] >= '1' && version[1] <= '0' + OLD_VERSION_MAX && !version[2];
    return old ? SN_OK
               : sn_fail(err, SN_REFUSED,
                         "tekken.json of version '%.60s' lists no special tokens, as only v1 to v%d may", version,
                         OLD_VERSION_MAX);
}

static sn_status add_specials(sn_tokenizer *t, const json_t *file, size_t n, sn_err *err) {
    const json_t *list = json_object_get(file, "special_tokens");
    const bool listed = json_is_array(list);
    const size_t named = listed ? json_array_size(list) : N_OLD;
    sn_status status = listed ? SN_OK : check_old(file, err);
    if (!status && named > n)
        status = sn_fail(err, SN_REFUSED, "tekken.json names %zu special tokens; %zu have ids", named, n);
    for (size_t i = 0; !status && i < named; i++) {
        const json_t *entry = json_array_get(list, i), *rank = json_object_get(entry, "rank");
        const json_t *name = json_object_get(entry, "token_str");
        if (listed && (!json_is_integer(rank) || json_integer_value(rank) != (json_int_t)i))
            status = sn_fail(err, SN_REFUSED, "special token %zu of tekken.json does not have the rank %zu", i, i);
        else if (listed)
            status = add_special(t, i, json_string_value(name), json_string_length(name), err);
        else
            status = add_special(t, i, old_special[i], strlen(old_special[i]), err);
    }
    for (size_t i = named; !status && i < n; i++) {
        char text[40];
        snprintf(text, sizeof text, "<SPECIAL_%zu>", i);
        status = add_special(t, i, text, strlen(text), err);
    }
    return status;
}

/* ---- tokens ---- */

static sn_status add_token(sn_tokenizer *t, const json_t *entry, size_t rank, size_t n_special, sn_err *err) {
    uint8_t bytes[SN_TOKEN_BYTES_MAX];
    const json_t *text = json_object_get(entry, "token_bytes"), *have = json_object_get(entry, "rank");
    const size_t len = json_string_length(text);
    size_t n = 0;
    if (!json_is_integer(have) || json_integer_value(have) != (json_int_t)rank || len > BASE64_MAX ||
        !json_is_string(text) || !sn_base64_decode(json_string_value(text), len, bytes, &n))
        return sn_fail(err, SN_REFUSED, "entry %zu of tekken.json's vocab is not a token in base64 with the rank %zu",
                       rank, rank);
    return sn_vocab_set_bytes(&t->vocab, (int64_t)(n_special + rank), bytes, n, err);
}

static sn_status add_pattern(sn_tokenizer *t, const json_t *file, sn_err *err) {
    const json_t *pattern = json_object_get(json_object_get(file, "config"), "pattern");
    if (!json_string_length(pattern))
        return sn_fail(err, SN_REFUSED, "tekken.json has no pattern, which says how texts are split");
    return sn_pretokenizer_add(t->pretokenizer, json_string_value(pattern), json_string_length(pattern), false,
                               SN_SPLIT_ISOLATED, false, err);
}

sn_status sn_tokenizer_tekken(sn_tokenizer *t, const json_t *file, const json_t *config, sn_err *err) {
    const json_t *vocab = json_object_get(file, "vocab");
    size_t n_special = 0, n_tokens = 0;
    sn_status status = read_sizes(file, &n_special, &n_tokens, err);
    if (!status) status = sn_vocab_init(&t->vocab, n_special + n_tokens, false, err);
    if (!status) status = add_specials(t, file, n_special, err);
    for (size_t i = 0; !status && i < n_tokens; i++) status = add_token(t, json_array_get(vocab, i), i, n_special, err);
    if (!status) status = sn_tokenizer_merge_by_rank(t, "tekken.json", err);
    if (status) return status;
    t->ignore_merges = true; /* a piece that is a token becomes that token */
    t->add_bos = sn_json_bool(config, "add_bos_token", true);
    snprintf(t->bos_text, sizeof t->bos_text, "<s>");
    snprintf(t->eos_text, sizeof t->eos_text, "</s>");
    return add_pattern(t, file, err);
}
