/* UTF-8 (RFC 3629), checked strictly: shortest forms only, no surrogates, nothing above U+10FFFF. */
#ifndef SN_TEXT_TOKENIZER_UTF8_H
#define SN_TEXT_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool sn_utf8_valid(const char *text, size_t len);

/* Reads the character at `text`. Returns its length in bytes; 0 when no complete, valid character is there. */
size_t sn_utf8_decode(const char *text, size_t len, uint32_t *code);

/* How many of the bytes can be printed now: all except an incomplete character at the end (at most three bytes) whose
 * remaining bytes may still follow. Bytes that can never become valid count as printable. */
size_t sn_utf8_complete_prefix(const void *bytes, size_t len);

/* Whether the character has Unicode's White_Space property, which is what \s means in tokenizers' patterns. */
bool sn_utf8_is_space(uint32_t code);

/* The number of bytes of white space at the beginning and at the end of valid text. */
size_t sn_utf8_leading_space(const char *text, size_t len);
size_t sn_utf8_trailing_space(const char *text, size_t len);

#endif
