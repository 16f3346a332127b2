/* What may be in the place of a tokenizer.json (https://huggingface.co/docs/tokenizers), for tokenizer_json.c and the
 * files that read it. Every function refuses what it does not know. */
#ifndef SN_TEXT_TOKENIZER_TOKENIZER_JSON_H
#define SN_TEXT_TOKENIZER_TOKENIZER_JSON_H

#include "text/tokenizer/tokenizer_private.h"

#include <jansson.h>

/* Instead of tokenizer.json: vocabulary, special tokens and pre-tokenizer of a tiktoken.model (`file`) beside
 * tokenizer_config.json (`config`, or NULL). */
sn_status sn_tokenizer_tiktoken(sn_tokenizer *t, const sn_buf *file, const json_t *config, sn_err *err) SN_MUST_USE;

/* The same from a tekken.json (`file`, parsed), and from a tokenizer.model with added_tokens.json (`older`, or NULL).
 */
sn_status sn_tokenizer_tekken(sn_tokenizer *t, const json_t *file, const json_t *config, sn_err *err) SN_MUST_USE;
sn_status sn_tokenizer_spm(sn_tokenizer *t, const sn_buf *file, const json_t *config, const json_t *older,
                           sn_err *err) SN_MUST_USE;

/* Writes the bytes of a base64 text, which ends in its padding: at most len / 4 * 3. False: it is none. */
bool sn_base64_decode(const char *text, size_t len, uint8_t *out, size_t *n_out);
/* Byte-level, after all tokens are set: those of the lowest ids merge first. SN_REFUSED when a byte has none. */
sn_status sn_tokenizer_merge_by_rank(sn_tokenizer *t, const char *file, sn_err *err) SN_MUST_USE;

/* A member that is a string or a bool; `fallback` when it is absent, null or of another type. */
const char *sn_json_string(const json_t *object, const char *key, const char *fallback);
bool sn_json_bool(const json_t *object, const char *key, bool fallback);

#endif
