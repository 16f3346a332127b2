/* What SentencePiece does to a text before it is cut into tokens: its map of characters ("nmt_nfkc", for example; a
 * double array of the longest sequences and what they become), spaces that are folded, one space in front, and U+2581
 * for all spaces. User-defined symbols of the text stay as they are. Built by one thread, then immutable. */
#ifndef SN_TEXT_TOKENIZER_SPM_TEXT_H
#define SN_TEXT_TOKENIZER_SPM_TEXT_H

#include "text/tokenizer/added_tokens.h"

typedef struct sn_spm_text {
    uint32_t *units; /* heap, (n_units): the double array; NULL: characters stay as they are */
    char *strings;   /* heap, (n_strings): what sequences become, each with a NUL behind it */
    size_t n_units, n_strings;
    bool leads;      /* a space comes first */
    bool leads_once; /* not at each part of a text between special tokens, but at its beginning only */
    bool folds;      /* spaces around the text go, and of several in a row one stays */
    sn_added_tokens symbols;
} sn_spm_text;

void sn_spm_text_fini(sn_spm_text *rules); /* accepts a zeroed one */

/* Takes normalizer_spec.precompiled_charsmap. SN_REFUSED when it is damaged. */
sn_status sn_spm_text_set_map(sn_spm_text *rules, const uint8_t *map, size_t len, sn_err *err) SN_MUST_USE;

/* A text, which is valid UTF-8 of `len` bytes, and what becomes of it. */
typedef struct sn_spm_source {
    const char *text;
    size_t len;
    const uint8_t *plain; /* (len) marks of the bytes (bit 0), or NULL */
    bool continues;       /* the text continues another one: it gets no space in front, and keeps its own */
} sn_spm_source;

/* Appends the text to `out`. With marks, those of the output go to `out_plain`: a byte of it is marked if any is from
 * which it comes. */
sn_status sn_spm_text_append(const sn_spm_text *rules, const sn_spm_source *source, sn_buf *out, sn_buf *out_plain,
                             sn_err *err) SN_MUST_USE;

#endif
