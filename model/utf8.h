/* UTF-8 (RFC 3629): shortest forms only, no surrogates, nothing above U+10FFFF. */
#ifndef SN_MODEL_UTF8_H
#define SN_MODEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool sn_utf8_valid(const char *text, size_t len);

/* Reads the character at `text`; returns its length in bytes, 0 when there is no whole, valid one. */
size_t sn_utf8_decode(const char *text, size_t len, uint32_t *code);

/* How many of the bytes can be printed now: all but the beginning of a character whose rest may still come (at most
 * three bytes). Bytes that can never become valid are not held back. */
size_t sn_utf8_complete_prefix(const void *bytes, size_t len);

/* White space as Unicode's White_Space property has it, which is what \s means in tokenizers' patterns. */
bool sn_utf8_is_space(uint32_t code);

/* Bytes of white space at the beginning, and at the end, of valid text. */
size_t sn_utf8_leading_space(const char *text, size_t len);
size_t sn_utf8_trailing_space(const char *text, size_t len);

#endif
