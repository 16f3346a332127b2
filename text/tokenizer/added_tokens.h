/* Added tokens: tokens such as "<|im_end|>" that are found in the text as they are written, before the text is split
 * and merged. The leftmost one is taken; of those that begin at the same place, the longest. Built by one thread (add,
 * then finish), then immutable. */
#ifndef SN_TEXT_TOKENIZER_ADDED_TOKENS_H
#define SN_TEXT_TOKENIZER_ADDED_TOKENS_H

#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>

enum { SN_ADDED_TOKEN_BYTES_MAX = 1 << 10 };

typedef struct sn_added_token {
    char *text; /* heap, owned by the list */
    size_t len;
    int32_t id;
    bool special;
    bool lstrip, rstrip; /* the token takes the white space before (after) it along */
} sn_added_token;

typedef struct sn_added_tokens {
    sn_added_token *tokens; /* sorted by their bytes after sn_added_tokens_finish */
    size_t n, capacity;
    bool first_bytes[256]; /* whether any token begins with the byte */
} sn_added_tokens;

void sn_added_tokens_fini(sn_added_tokens *added);
/* Adds a copy of the token. */
sn_status sn_added_tokens_add(sn_added_tokens *added, const sn_added_token *token, sn_err *err) SN_MUST_USE;
/* Call once after the last add: sorts. SN_REFUSED when two tokens have the same text. */
sn_status sn_added_tokens_finish(sn_added_tokens *added, sn_err *err) SN_MUST_USE;

/* The first token in text[from...len), which begins at *at; NULL: none. */
const sn_added_token *sn_added_tokens_find(const sn_added_tokens *added, const char *text, size_t len, size_t from,
                                           size_t *at);

#endif
