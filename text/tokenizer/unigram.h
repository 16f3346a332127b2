/* The unigram model (Kudo 2018) of SentencePiece and of tokenizer.json: of all ways to cut a text into pieces of the
 * vocabulary the one whose scores have the greatest sum. A character that no piece of one character stands for may be
 * unknown, at the lowest score less 10. Built by one thread, then immutable. */
#ifndef SN_TEXT_TOKENIZER_UNIGRAM_H
#define SN_TEXT_TOKENIZER_UNIGRAM_H

#include "text/tokenizer/bpe.h"

/* A step over a text's byte looks at all bytes of the longest piece. */
enum { SN_UNIGRAM_PIECE_MAX = 256 };

typedef struct sn_unigram {
    int32_t *order; /* heap, (n): the pieces sorted by their bytes */
    size_t n;
    double *scores; /* heap, (n_scores): of ids */
    size_t n_scores;
    bool in_float;        /* sums are rounded to float, as SentencePiece does; tokenizer.json's are double */
    double unknown, best; /* the scores of an unknown character, and of a user-defined symbol's bytes */
} sn_unigram;

void sn_unigram_fini(sn_unigram *unigram); /* accepts a zeroed one */

/* Takes the normal tokens below n_scores of the indexed vocabulary and, with SentencePiece's `symbols`, the added ones
 * of which symbols[id] is true, as user-defined symbols. Without symbols the model is of a tokenizer.json. SN_REFUSED
 * when a score is not finite or a piece too long. scores, symbols: (n_scores), or symbols NULL. */
sn_status sn_unigram_init(sn_unigram *unigram, const sn_vocab *vocab, const double *scores, const bool *symbols,
                          size_t n_scores, sn_err *err) SN_MUST_USE;

/* Appends the ids of `text`, which is valid UTF-8, to bpe->out. Time: bytes of the text times bytes of the longest
 * piece at worst; memory: 24 bytes for each byte of the text. */
sn_status sn_unigram_encode(const sn_unigram *unigram, const sn_vocab *vocab, sn_bpe *bpe, const char *text, size_t len,
                            sn_err *err) SN_MUST_USE;

#endif
