/* The pre-tokenizer: splits text into the pieces within which BPE merges. It is a sequence of steps, each of which
 * splits the pieces of the step before at the matches of a pattern.
 *
 * Patterns come from model files and were written for Oniguruma; PCRE2 runs them here. What the two engines read
 * differently is translated (\s, $, nested character classes, [A&&[^B]]) or refused (pattern.h).
 *
 * Two types: sn_pretokenizer, built by one thread and then immutable, and sn_splitter, the scratch memory of one thread
 * that splits with it. */
#ifndef SN_TEXT_TOKENIZER_PRETOKENIZER_H
#define SN_TEXT_TOKENIZER_PRETOKENIZER_H

#include "base/mem.h"

#include <stdint.h>

enum { SN_PATTERN_MAX = 1 << 12, SN_PRETOKENIZER_STEPS_MAX = 8 };

/* What becomes of the matches of a step's pattern. */
typedef enum sn_split {
    SN_SPLIT_ISOLATED,             /* each match is a piece, and so is the text between two matches */
    SN_SPLIT_REMOVED,              /* matches are dropped */
    SN_SPLIT_MERGED_WITH_PREVIOUS, /* a match is appended to the text before it, unless that is a match, too */
    SN_SPLIT_MERGED_WITH_NEXT,     /* a match is put before the text after it, unless that is a match, too */
    SN_SPLIT_CONTIGUOUS,           /* matches that touch are one piece */
} sn_split;

typedef struct sn_pretokenizer sn_pretokenizer;

sn_status sn_pretokenizer_new(sn_pretokenizer **out,
                              sn_err *err) SN_MUST_USE;    /* without steps: the text is one piece */
void sn_pretokenizer_free(sn_pretokenizer **pretokenizer); /* accepts NULL */

/* Appends a step. `literal`: the pattern is a plain string. `invert`: matches are the text that the pattern does not
 * match. SN_REFUSED for a pattern that is invalid, can match the empty string, or may mean something else to PCRE2. */
sn_status sn_pretokenizer_add(sn_pretokenizer *pretokenizer, const char *pattern, size_t len, bool literal,
                              sn_split split, bool invert, sn_err *err) SN_MUST_USE;

/* Appends a step that sees bytes, which may cut characters: as one that sees them as the byte-level alphabet. The
 * pattern is the caller's own, or has classes, counts and characters of ASCII alone. */
sn_status sn_pretokenizer_add_bytes(sn_pretokenizer *pretokenizer, const char *pattern, sn_split split, bool invert,
                                    sn_err *err) SN_MUST_USE;

/* Appends the steps that a GGUF file names in tokenizer.ggml.pre; SN_REFUSED for an unknown name. *ignore_merges and
 * *add_bos: what the name implies beyond the steps. */
sn_status sn_pretokenizer_add_named(sn_pretokenizer *pretokenizer, const char *name, bool *ignore_merges, bool *add_bos,
                                    sn_err *err) SN_MUST_USE;
/* Appends GPT-2's pattern, which tokenizer.json means by ByteLevel with use_regex. */
sn_status sn_pretokenizer_add_gpt2(sn_pretokenizer *pretokenizer, sn_err *err) SN_MUST_USE;

/* Receives a piece; a failure ends sn_splitter_run, which returns it. */
typedef sn_status (*sn_piece_fn)(void *ctx, const char *piece, size_t len, sn_err *err);

/* Splits valid UTF-8 text. Several threads may use one pretokenizer, each with its own splitter. */
typedef struct sn_splitter sn_splitter;
sn_status sn_splitter_new(const sn_pretokenizer *pretokenizer, sn_splitter **out, sn_err *err) SN_MUST_USE;
void sn_splitter_free(sn_splitter **splitter); /* accepts NULL */
sn_status sn_splitter_run(sn_splitter *splitter, const char *text, size_t len, sn_piece_fn fn, void *ctx,
                          sn_err *err) SN_MUST_USE;

#endif
