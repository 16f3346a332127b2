/* JSON whose integers may have any size, as those of a schema ("maximum": 18446744073709551615) and of a seed. jansson
 * holds integers of 64 bits; a wider one is kept here as its digits, inside an object that no text spells unless
 * JSON_ALLOW_NUL is given, and is written as these digits again. Code that does not know of this meets an object where
 * it looks for a number. Any thread. */
#ifndef SN_BASE_WIDE_JSON_H
#define SN_BASE_WIDE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    SN_WIDE_DIGITS_MAX = 4300, /* longer integers, which Python does not read either, are refused */
    SN_WIDE_MAX = 1 << 14,     /* wide integers of a text, of some 400 bytes each; more are refused */
};

/* As json_loadb. */
json_t *sn_wide_json_load(const char *text, size_t len, size_t flags, json_error_t *problem);
/* As json_dumps with JSON_COMPACT, of any value; freed with free(). */
char *sn_wide_json_dump(const json_t *value);
/* Writes the digits of wide integers in place of their objects into a text (len bytes) of json_dumps with JSON_COMPACT.
 * Returns the new length. */
size_t sn_wide_json_restore(char *text, size_t len);
/* The digits of a wide integer, with its sign; borrowed. NULL: the value is another one. */
const char *sn_wide_digits(const json_t *value);
/* Its lowest 64 bits, as two's complement has them. */
long long sn_wide_low_bits(const char *digits);

#endif
