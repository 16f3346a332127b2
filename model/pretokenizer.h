/* Cuts text into the pieces within which bytes are merged: a row of steps, each of which cuts the pieces of the one
 * before at the matches of a pattern.
 *
 * Patterns come from model files and were written for Oniguruma; they run here in PCRE2. What the two would read
 * differently is translated (\s, nested character classes) or refused. */
#ifndef SN_MODEL_PRETOKENIZER_H
#define SN_MODEL_PRETOKENIZER_H

#include "base/mem.h"

#include <stdint.h>

enum { SN_PATTERN_MAX = 1 << 12, SN_PRETOKENIZER_STEPS_MAX = 8 };

/* What becomes of the pieces that match. */
typedef enum sn_split {
    SN_SPLIT_ISOLATED,             /* each is a piece, as is what lies between */
    SN_SPLIT_REMOVED,              /* dropped */
    SN_SPLIT_MERGED_WITH_PREVIOUS, /* appended to what lies before, when that is no match */
    SN_SPLIT_MERGED_WITH_NEXT,     /* put before what follows, when that is no match */
    SN_SPLIT_CONTIGUOUS,           /* matches that touch are one piece */
} sn_split;

typedef struct sn_pretokenizer sn_pretokenizer;

sn_status sn_pretokenizer_new(sn_pretokenizer **out, sn_err *err) SN_MUST_USE; /* no steps: text is one piece */
void sn_pretokenizer_free(sn_pretokenizer **pretokenizer);                     /* NULL-safe */

/* Appends a step. `literal`: the pattern is text to be found as it is. `invert`: what does not match is taken for what
 * does. SN_REFUSED for a pattern that is wrong, matches nothing at all (""), or is not understood for certain. */
sn_status sn_pretokenizer_add(sn_pretokenizer *pretokenizer, const char *pattern, size_t len, bool literal,
                              sn_split split, bool invert, sn_err *err) SN_MUST_USE;

/* The steps of a GGUF file's tokenizer.ggml.pre; SN_REFUSED for a name that is not known. `whole_words` and `add_bos`
 * say what the name implies beyond the pattern. */
sn_status sn_pretokenizer_add_named(sn_pretokenizer *pretokenizer, const char *name, bool *whole_words, bool *add_bos,
                                    sn_err *err) SN_MUST_USE;
/* GPT-2's own pattern, the one that tokenizer.json means with ByteLevel and use_regex. */
sn_status sn_pretokenizer_add_gpt2(sn_pretokenizer *pretokenizer, sn_err *err) SN_MUST_USE;

/* Takes a piece; a failure ends the cutting and is what cut returns. */
typedef sn_status (*sn_piece_fn)(void *ctx, const char *piece, size_t len, sn_err *err);

/* Cuts valid UTF-8. Several threads may cut with one pretokenizer, each with its own scratch. */
typedef struct sn_cutter sn_cutter;
sn_status sn_cutter_new(const sn_pretokenizer *pretokenizer, sn_cutter **out, sn_err *err) SN_MUST_USE;
void sn_cutter_free(sn_cutter **cutter); /* NULL-safe */
sn_status sn_cutter_run(sn_cutter *cutter, const char *text, size_t len, sn_piece_fn fn, void *ctx,
                        sn_err *err) SN_MUST_USE;

#endif
