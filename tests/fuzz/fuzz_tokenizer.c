/* The first byte chooses: bit 0 clear: the rest is a tokenizer.json (and, behind a NUL byte, a tokenizer_config.json);
 * set: the rest is text for a fixed tokenizer, which must come back as it was. */
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_MAX_INPUT = 1 << 16 };

static sn_buf view(const uint8_t *data, size_t len) { return (sn_buf){.data = (uint8_t *)data, .len = len}; }

static void round_trip(const sn_tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
                       bool must_equal) {
    sn_ids ids;
    sn_err err;
    sn_status status = sn_tokenizer_encode(tokenizer, text, len, false, parse_special, &ids, &err);
    if (status) {
        if (must_equal && sn_utf8_valid(text, len)) abort();
        return;
    }
    sn_buf back;
    sn_buf_init(&back, (size_t)1 << 30);
    for (size_t i = 0; i < ids.n; i++)
        if (sn_tokenizer_decode(tokenizer, ids.ids[i], true, &back, &err)) abort();
    if (must_equal && (back.len != len || (len && memcmp(back.data, text, len)))) abort();
    if (sn_utf8_complete_prefix(text, len) + 3 < len) abort();
    sn_buf_fini(&back);
    sn_ids_fini(&ids);
}

static void load(const uint8_t *data, size_t size) {
    static const char sample[] = "It's 12 o'clock:\n\n  na\xc3\xafve <|im_end|>";
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t first = nul ? (size_t)(nul - data) : size;
    sn_tokenizer_files files = {.tokenizer = view(data, first)};
    if (nul) files.tokenizer_config = view(nul + 1, size - first - 1);
    sn_tokenizer *tokenizer = NULL;
    sn_err err;
    if (sn_tokenizer_from_files(&files, &tokenizer, &err)) return;
    round_trip(tokenizer, sample, sizeof sample - 1, true, false);
    sn_buf out;
    sn_buf_init(&out, 1 << 20);
    sn_chat_turn turns[] = {{"user", "one"}, {"assistant", "two"}, {"user", "three"}};
    if (sn_tokenizer_chat(tokenizer, turns, 3, true, true, &out, &err) == SN_OK && !out.len) abort();
    sn_buf_fini(&out);
    sn_tokenizer_close(&tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sn_tokenizer *fixed[2]; /* the one with added tokens in it, and whole words; never freed */
    sn_err err;
    if (!fixed[0] && (sn_tokenizer_open(SN_FIXTURES "/tokenizer/qwen2", &fixed[0], &err) ||
                      sn_tokenizer_open(SN_FIXTURES "/tokenizer/llama3", &fixed[1], &err))) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    if (size == 0 || size > SIZE_MAX_INPUT) return 0;
    if (!(data[0] & 1)) {
        load(data + 1, size - 1);
        return 0;
    }
    /* "<sep>" of these tokenizers takes the white space around it along. */
    bool exact = !memmem(data + 1, size - 1, "<sep>", 5);
    round_trip(fixed[data[0] >> 1 & 1], (const char *)data + 1, size - 1, data[0] & 4, exact);
    return 0;
}
