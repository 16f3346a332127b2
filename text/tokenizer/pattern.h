/* Translates the patterns of tokenizer files (regular expressions of Oniguruma, Ruby syntax) to PCRE2. */
#ifndef SN_TEXT_TOKENIZER_PATTERN_H
#define SN_TEXT_TOKENIZER_PATTERN_H

#include "base/mem.h"

/* Appends the translation to `out`. SN_REFUSED names the part that PCRE2 would read differently or that is not known.
 */
sn_status sn_pattern_translate(const char *pattern, size_t len, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
