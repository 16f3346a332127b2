/* Patterns as tokenizers write them (Oniguruma, Ruby's syntax) put into PCRE2's. */
#ifndef SN_MODEL_PATTERN_H
#define SN_MODEL_PATTERN_H

#include "base/mem.h"

/* Appends the translation. SN_REFUSED names the part that the two engines read differently, or that is not known. */
sn_status sn_pattern_translate(const char *pattern, size_t len, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
