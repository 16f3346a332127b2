/* tiktoken.model (Kimi K2 and its relatives): a line "TOKEN RANK" for each token, its bytes in base64. The rank is the
 * id, and of two neighbours in a piece those merge first whose joined bytes are the token of the lowest rank. Behind
 * these ids come SPECIAL_IDS others, which tokenizer_config.json names ("added_tokens_decoder"), and of which the rest
 * are "<|reserved_token_163600|>". The pattern stands in the code that such a folder brings along for transformers; it
 * is known here for the class TikTokenTokenizer, and other classes are refused.
 *
 * That code names two ids more than the models have rows for: here they stay text. It also cuts runs of more than
 * 25,000 characters without a border between space and other text, which changes tokens at the cuts only. */
#include "text/tokenizer/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPECIAL_IDS = 256, RANK_DIGITS_MAX = 9 };

/* ---- lines ---- */

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool sn_base64_decode(const char *text, size_t len, uint8_t *out, size_t *n_out) {
    size_t padding = len && text[len - 1] == '=' ? 1 + (len > 1 && text[len - 2] == '=') : 0, n = 0;
    uint32_t bits = 0;
    if (!len || len % 4) return false;
    for (size_t i = 0; i < len; i++) {
        int value = i < len - padding ? base64_value(text[i]) : 0;
        if (value < 0) return false;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 3) continue;
        for (int shift = 16; shift >= 0; shift -= 8) out[n++] = (uint8_t)(bits >> shift);
        bits = 0;
    }
    *n_out = n - padding;
    return true;
}

/* The next line that is not empty, from *at on. False: there is none. */
static bool next_line(const sn_buf *file, size_t *at, const char **line, size_t *len) {
    while (*at < file->len) {
        *line = (const char *)file->data + *at;
        const char *end = memchr(*line, '\n', file->len - *at);
        *len = end ? (size_t)(end - *line) : file->len - *at;
        *at += *len + (end != NULL);
        if (*len && (*line)[*len - 1] == '\r') --*len;
        if (*len) return true;
    }
    return false;
}

static sn_status read_line(sn_vocab *vocab, size_t number, const char *line, size_t len, sn_err *err) {
    uint8_t bytes[SN_TOKEN_BYTES_MAX];
    const char *space = memchr(line, ' ', len);
    size_t text = space ? (size_t)(space - line) : 0, digits = space ? len - text - 1 : 0, n = 0;
    int64_t rank = 0;
    bool valid = digits && digits <= RANK_DIGITS_MAX && text <= SN_TOKEN_BYTES_MAX / 3 * 4 &&
                 sn_base64_decode(line, text, bytes, &n);
    for (size_t i = 0; valid && i < digits; i++) {
        char c = space[1 + i];
        valid = c >= '0' && c <= '9';
        rank = rank * 10 + (c - '0');
    }
    if (!valid)
        return sn_fail(err, SN_REFUSED, "line %zu of tiktoken.model is not a token in base64, a space and its rank",
                       number);
    return sn_vocab_set_bytes(vocab, rank, bytes, n, err);
}

static sn_status read_ranks(sn_tokenizer *t, const sn_buf *file, size_t *n, sn_err *err) {
    const char *line;
    size_t len, number = 0;
    *n = 0;
    for (size_t at = 0; next_line(file, &at, &line, &len);) ++*n;
    if (!*n || *n > SN_VOCAB_MAX - SPECIAL_IDS)
        return sn_fail(err, SN_REFUSED, "tiktoken.model has %zu tokens; 1 to %d are taken", *n,
                       SN_VOCAB_MAX - SPECIAL_IDS);
    sn_status status = sn_vocab_init(&t->vocab, *n + SPECIAL_IDS, false, err);
    for (size_t at = 0; !status && next_line(file, &at, &line, &len);)
        status = read_line(&t->vocab, ++number, line, len, err);
    for (size_t id = 0; !status && id < *n; id++) /* as many ranks as tokens: none is missing, or one is too large */
        if (sn_vocab_kind(&t->vocab, (int32_t)id) == SN_TOKEN_NONE)
            status = sn_fail(err, SN_REFUSED, "tiktoken.model has %zu tokens, and none of rank %zu", *n, id);
    return status;
}

/* ---- special tokens ---- */

static sn_status check_named(const json_t *named, size_t first, sn_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)named, key, value) {
        char *end;
        unsigned long long id = strtoull(key, &end, 10);
        if (*end || !json_is_string(json_object_get(value, "content")) || id < first || id - first >= SPECIAL_IDS)
            return sn_fail(err, SN_REFUSED,
                           "tokenizer_config.json adds a token '%.60s': ids from %zu to %zu are taken, with their "
                           "content",
                           key, first, first + SPECIAL_IDS - 1);
    }
    return SN_OK;
}

static sn_status add_special(sn_tokenizer *t, const json_t *named, size_t id, sn_err *err) {
    char key[24], reserved[48];
    snprintf(key, sizeof key, "%zu", id);
    snprintf(reserved, sizeof reserved, "<|reserved_token_%zu|>", id);
    const json_t *entry = json_object_get(named, key);
    const char *text = sn_json_string(entry, "content", reserved);
    sn_added_token token = {.text = (char *)(uintptr_t)text,
                            .len = entry ? json_string_length(json_object_get(entry, "content")) : strlen(text),
                            .id = (int32_t)id,
                            .special = sn_json_bool(entry, "special", true)};
    return sn_tokenizer_add_token(t, 0, &token, err);
}

sn_status sn_tokenizer_merge_by_rank(sn_tokenizer *t, const char *file, sn_err *err) {
    float *scores = NULL;
    sn_status status = sn_vocab_index(&t->vocab, 0, err);
    for (int b = 0; !status && b < 256; b++)
        if (t->vocab.byte_ids[b] < 0)
            status = sn_fail(err, SN_REFUSED, "%s has no token for byte 0x%02x: it is damaged", file, b);
    if (!status) status = sn_calloc(&scores, t->vocab.n, sizeof *scores, err);
    for (size_t id = 0; !status && id < t->vocab.n; id++) scores[id] = -(float)id;
    if (!status) status = sn_vocab_scores(&t->vocab, scores, err);
    free(scores);
    return status;
}

sn_status sn_tokenizer_tiktoken(sn_tokenizer *t, const sn_buf *file, const json_t *config, sn_err *err) {
    const json_t *named = json_object_get(config, "added_tokens_decoder");
    const char *class = sn_json_string(config, "tokenizer_class", "(none)");
    size_t n;
    bool add_bos;
    if (strcmp(class, "TikTokenTokenizer"))
        return sn_fail(
            err, SN_REFUSED,
            "the folder has a tiktoken.model and the tokenizer class '%.60s', whose pattern is not known, only "
            "TikTokenTokenizer's is: use a GGUF file of the model, or put a tokenizer.json into the folder",
            class);
    sn_status status = read_ranks(t, file, &n, err);
    if (!status) status = check_named(named, n, err);
    for (size_t id = n; !status && id < t->vocab.n; id++) status = add_special(t, named, id, err);
    if (!status) status = sn_tokenizer_merge_by_rank(t, "tiktoken.model", err);
    return status ? status : sn_pretokenizer_add_named(t->pretokenizer, "kimi-k2", &t->ignore_merges, &add_bos, err);
}
