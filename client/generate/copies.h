/* Copies: where the end of a text occurs earlier in it, so that what followed there may follow again (prompt lookup:
 * Saxena 2023). The text is the whole timeline: prompt, results of tools, answers.
 *
 * Central type: sn_copies, an index of the text that grows and shrinks at its end, a bounded amount of work for each
 * token however long the text is. One thread. */
#ifndef SN_CLIENT_GENERATE_COPIES_H
#define SN_CLIENT_GENERATE_COPIES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SN_COPY_MIN = 3, SN_COPY_MAX = 128 }; /* tokens of a match; shorter ones say too little */

typedef struct sn_copies sn_copies;

sn_status sn_copies_new(sn_copies **out, sn_err *err) SN_MUST_USE;
void sn_copies_free(sn_copies **copies); /* accepts NULL */

/* From now on the text has at most its first n tokens. */
void sn_copies_forget(sn_copies *copies, size_t n);
/* The text is ids (n), which begin with the tokens that it had. *matched: how many tokens at its end occur earlier,
 * too, SN_COPY_MIN to SN_COPY_MAX, or 0; *at: the index of the token that followed there. Of equally long places the
 * latest counts; where more than 32 newer places are alike, a longer match may be missed for one of at least 32, 16, 8
 * or 5 tokens, whichever it has. SN_STOP: out of memory. */
sn_status sn_copies_find(sn_copies *copies, const int32_t *ids, size_t n, size_t *matched, size_t *at,
                         sn_err *err) SN_MUST_USE;

#endif
