/* The first byte selects the input. Bit 0 clear: the rest is a tokenizer.json (optionally followed by a NUL byte and
 * a tokenizer_config.json), with bit 2 a tiktoken.model in its place, with bit 3 a tekken.json; or with bit 1 a GGUF
 * file, or with bit 4 a tokenizer.model. Bit 0 set: the rest is text for a fixed tokenizer, which must round-trip. */
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer_private.h" /* private: vocabularies and rules without a file around them */
#include "text/tokenizer/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_MAX_INPUT = 1 << 16 };

static sn_buf buf_view(const uint8_t *data, size_t len) { return (sn_buf){.data = (uint8_t *)data, .len = len}; }

static void round_trip(const sn_tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
                       bool must_equal) {
    sn_token_ids ids;
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
    sn_token_ids_fini(&ids);
}

static void use_tokenizer(sn_tokenizer *tokenizer) {
    static const char sample[] = "It's 12 o'clock:\n\n  na\xc3\xafve \xf0\x9f\x9a\x80 <|im_end|> </s>";
    sn_err err;
    round_trip(tokenizer, sample, sizeof sample - 1, true, false);
    round_trip(tokenizer, sample, sizeof sample - 1, false, false);
    sn_chat_template *chat;
    sn_token_ids ids;
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", sample);
    const sn_chat_request request = {.messages = messages};
    if (sn_chat_template_open(tokenizer, &chat, &err) == SN_OK) {
        if (sn_chat_template_encode(chat, tokenizer, &request, &ids, &err) == SN_OK) sn_token_ids_fini(&ids);
        sn_chat_template_close(&chat);
    }
    json_decref(messages);
    sn_tokenizer_close(&tokenizer);
}

static void load_gguf(const uint8_t *data, size_t size) {
    sn_gguf *gguf = NULL;
    sn_tokenizer *tokenizer = NULL;
    sn_err err = {0};
    if (sn_gguf_open_memory(data, size, "input", &gguf, &err)) return;
    sn_status status = sn_tokenizer_from_gguf(gguf, &tokenizer, &err);
    sn_gguf_close(&gguf);
    if (status && !err.text[0]) abort(); /* every refusal has a message */
    if (!status) use_tokenizer(tokenizer);
}

static void load_model(const uint8_t *data, size_t size) {
    const sn_tokenizer_files files = {.sentencepiece = buf_view(data, size)};
    sn_tokenizer *tokenizer = NULL;
    sn_err err = {0};
    sn_status status = sn_tokenizer_from_files(&files, &tokenizer, &err);
    if (status && !err.text[0]) abort(); /* every refusal has a message */
    if (!status) use_tokenizer(tokenizer);
}

static void load_folder(const uint8_t *data, size_t size, int kind) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t first = nul ? (size_t)(nul - data) : size;
    sn_tokenizer_files files = {0};
    *(kind & 4 ? &files.tiktoken : kind & 8 ? &files.tekken : &files.tokenizer) = buf_view(data, first);
    if (nul) files.tokenizer_config = buf_view(nul + 1, size - first - 1);
    sn_tokenizer *tokenizer = NULL;
    sn_err err;
    if (sn_tokenizer_from_files(&files, &tokenizer, &err)) return;
    use_tokenizer(tokenizer);
}

/* SentencePiece adds one space before the text, and U+2581 in the text is a space. */
static void with_spaces(const sn_tokenizer *tokenizer, const char *text, size_t len, bool parse_special) {
    static char plain[SIZE_MAX_INPUT];
    sn_token_ids ids;
    sn_err err;
    if (sn_tokenizer_encode(tokenizer, text, len, false, parse_special, &ids, &err)) {
        if (sn_utf8_valid(text, len)) abort();
        return;
    }
    size_t n = 0;
    for (size_t at = 0; at < len; n++) {
        bool space = len - at >= SN_SPACE_LEN && !memcmp(text + at, SN_SPACE, SN_SPACE_LEN);
        plain[n] = space ? ' ' : text[at];
        at += space ? SN_SPACE_LEN : 1;
    }
    sn_buf back;
    sn_buf_init(&back, (size_t)1 << 30);
    for (size_t i = 0; i < ids.n; i++)
        if (sn_tokenizer_decode(tokenizer, ids.ids[i], true, &back, &err)) abort();
    bool led = n && back.len && back.data[0] == ' ';
    if (!parse_special && (led != (n > 0) || back.len != n + led || (n && memcmp(back.data + 1, plain, n)))) abort();
    sn_buf_fini(&back);
    sn_token_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sn_tokenizer *fixed[3]; /* with added tokens; whole words; SentencePiece; never freed */
    sn_err err;
    if (!fixed[0] && (sn_tokenizer_open(SN_FIXTURES "/tokenizer/smollm", &fixed[0], &err) ||
                      sn_tokenizer_open(SN_FIXTURES "/tokenizer/llama3", &fixed[1], &err) ||
                      sn_tokenizer_open(SN_FIXTURES "/tokenizer/sentencepiece", &fixed[2], &err))) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    if (size == 0 || size > SIZE_MAX_INPUT) return 0;
    if (!(data[0] & 1)) {
        if (data[0] & 2)
            load_gguf(data + 1, size - 1);
        else if (data[0] & 16)
            load_model(data + 1, size - 1);
        else
            load_folder(data + 1, size - 1, data[0] & 12);
        return 0;
    }
    if (data[0] & 8) {
        with_spaces(fixed[2], (const char *)data + 1, size - 1, data[0] & 4);
        return 0;
    }
    /* "<sep>" of these tokenizers also matches the white space around it. */
    bool exact = !memmem(data + 1, size - 1, "<sep>", 5);
    round_trip(fixed[data[0] >> 1 & 1], (const char *)data + 1, size - 1, data[0] & 4, exact);
    return 0;
}
