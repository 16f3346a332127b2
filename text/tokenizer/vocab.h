/* The vocabulary of a BPE tokenizer: bytes of each id, ids by bytes, and which pairs of tokens merge.
 *
 * Two kinds:
 *   byte-level     (Radford et al. 2019) Model files write each byte of a token as one printable character of an
 * alphabet of 256, so that tokens are text (a space is U+0120, a newline U+010A, ...). This module decodes the alphabet
 * when a token is set and stores the bytes that the token stands for. SentencePiece  (Kudo & Richardson 2018) A token
 * stands for its own text, in which U+2581 is a space. Characters without a token are encoded as byte tokens, "<0x00>"
 * to "<0xFF>", or as the unknown token. Which pairs merge comes as a list of pairs with ranks, or, in some
 * SentencePiece files, follows from scores: neighbours merge if their joined text is a token, the highest score first.
 *
 * Central type: sn_vocab, built by one thread: init, set for every token, index, then the merges or the scores.
 * Immutable afterwards. */
#ifndef SN_TEXT_TOKENIZER_VOCAB_H
#define SN_TEXT_TOKENIZER_VOCAB_H

#include "base/mem.h"

/* Where scores decide what merges, each byte by which a token grows takes a time by its length: 3 us at the longest. */
enum { SN_VOCAB_MAX = 1 << 22, SN_TOKEN_BYTES_MAX = 1 << 11, SN_SPACE_LEN = 3 };
#define SN_SPACE "\xe2\x96\x81" /* U+2581, a space in the tokens of SentencePiece */

typedef enum sn_token_kind {
    SN_TOKEN_NONE,    /* no token has this id, or a token without text */
    SN_TOKEN_NORMAL,  /* result of merges */
    SN_TOKEN_ADDED,   /* found in the text before merging; may be the result of merges, too */
    SN_TOKEN_SPECIAL, /* found in the text where the caller allows it; never the result of a merge */
    SN_TOKEN_BYTE,    /* SentencePiece: one byte of a character that has no token */
} sn_token_kind;

typedef struct sn_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: an empty slot */
    uint32_t rank; /* the smallest rank merges first */
    int32_t id;    /* of the merged token */
} sn_merge;

typedef struct sn_vocab_token {
    uint32_t start, len; /* in `bytes` */
    uint8_t kind;        /* sn_token_kind */
    bool indexed;        /* sn_vocab_find finds the token by its bytes */
} sn_vocab_token;

typedef struct sn_vocab {
    size_t n; /* ids are 0 to n-1 */
    bool sentencepiece;
    bool byte_fallback;   /* SentencePiece: characters without a token become byte tokens, all 256 of which exist */
    int32_t unk_id;       /* without byte_fallback they become this id; -1: they are left out */
    bool fuse_unk;        /* several unknown characters in a row become one unknown token */
    bool no_inner_spaces; /* no token has a space after another character: merges never cross such a place */
    sn_vocab_token *tokens;
    sn_buf bytes;
    int32_t *slots; /* open addressing over the tokens' bytes; -1: empty */
    size_t n_slots; /* a power of two */
    sn_merge *merges;
    size_t n_merge_slots;  /* a power of two */
    uint32_t *ranks;       /* [n], where scores decide what merges: the smallest rank first; else NULL */
    size_t longest;        /* bytes of the longest indexed token */
    int32_t byte_ids[256]; /* the token of each single byte; -1: none */
} sn_vocab;

/* After a failure of any function below, too, the caller calls fini, which accepts a zeroed vocabulary. */
sn_status sn_vocab_init(sn_vocab *vocab, size_t n, bool sentencepiece, sn_err *err) SN_MUST_USE;
void sn_vocab_fini(sn_vocab *vocab);

/* Sets the token of an id, once; only a normal token may be set again, as added or special. Byte-level: the text of a
 * normal token is in the alphabet (a text that is not, such as padding, stands for itself); texts of other kinds stand
 * for themselves. The text of a byte token is "<0x0A>". */
sn_status sn_vocab_set(sn_vocab *vocab, int64_t id, const char *text, size_t len, sn_token_kind kind,
                       sn_err *err) SN_MUST_USE;
/* Byte-level: sets the normal token of an id, once, by its bytes, which need not be text. */
sn_status sn_vocab_set_bytes(sn_vocab *vocab, int64_t id, const uint8_t *bytes, size_t len, sn_err *err) SN_MUST_USE;
/* Indexes the tokens by their bytes, with capacity for n_merges merges. SN_REFUSED when two tokens are equal, when a
 * printable ASCII character has no token (byte-level), or when a byte token is missing (SentencePiece with
 * byte_fallback). */
sn_status sn_vocab_index(sn_vocab *vocab, size_t n_merges, sn_err *err) SN_MUST_USE;
/* Adds the merge of the given rank; byte-level texts are in the alphabet. SN_REFUSED when one of the three tokens does
 * not exist or the pair is there already. A merge with a special token is ignored: text never becomes special by
 * merging. */
sn_status sn_vocab_merge(sn_vocab *vocab, size_t rank, const char *left, size_t left_len, const char *right,
                         size_t right_len, sn_err *err) SN_MUST_USE;
/* As sn_vocab_merge, for a line "left right". */
sn_status sn_vocab_merge_line(sn_vocab *vocab, size_t rank, const char *line, size_t len, sn_err *err) SN_MUST_USE;

/* Gives a token that was set another text. sn_vocab_find does not find the token by that text. */
sn_status sn_vocab_replace_text(sn_vocab *vocab, int32_t id, const char *text, size_t len, sn_err *err) SN_MUST_USE;
/* SentencePiece, instead of merges: a finite score for each id. */
sn_status sn_vocab_scores(sn_vocab *vocab, const float *scores, sn_err *err) SN_MUST_USE;

/* The byte that "<0x0A>" (capital hexadecimal digits) names; -1: the text is not of that form. */
int sn_vocab_parse_byte_token(const char *text, size_t len);
/* The id of the indexed token with these bytes; -1: none. Byte-level special tokens are not indexed. */
int32_t sn_vocab_find(const sn_vocab *vocab, const void *bytes, size_t len);
/* The merge of two ids; NULL when they do not merge. */
const sn_merge *sn_vocab_find_merge(const sn_vocab *vocab, int32_t left, int32_t right);
/* The token's bytes; NULL for ids outside the vocabulary or without a token. */
const uint8_t *sn_vocab_bytes(const sn_vocab *vocab, int32_t id, size_t *len);
sn_token_kind sn_vocab_kind(const sn_vocab *vocab, int32_t id);

#endif
