/* A vocabulary of BPE: tokens by id, ids by bytes, and what merges with what.
 *
 * Of bytes (Radford et al. 2019): model files write each byte of a token as one printable character, so that tokens are
 * text (space is U+0120, newline U+010A, ...). Here tokens are kept as the bytes they stand for; the alphabet is undone
 * on the way in.
 * Of characters (Kudo & Richardson 2018, SentencePiece): tokens stand for their own text, in which U+2581 is a space.
 * Characters without a token are written in byte tokens, "<0x00>" to "<0xFF>", or as one unknown-token. What merges
 * comes as a list of pairs, or follows from scores: neighbours whose text together is a token, the highest score first.
 *
 * Built by one thread: init, set for every token, index, then the merges or scores. Afterwards immutable. */
#ifndef SN_MODEL_VOCAB_H
#define SN_MODEL_VOCAB_H

#include "base/mem.h"

enum { SN_VOCAB_MAX = 1 << 22, SN_TOKEN_BYTES_MAX = 1 << 14, SN_SPACE_LEN = 3 };
#define SN_SPACE "\xe2\x96\x81" /* U+2581, a space in the tokens of a vocabulary of characters */

typedef enum sn_token_kind {
    SN_TOKEN_NONE,    /* no token has this id, or none that stands for text */
    SN_TOKEN_NORMAL,  /* made by merging */
    SN_TOKEN_ADDED,   /* found in the text before merging; may be made by merging as well */
    SN_TOKEN_SPECIAL, /* found in the text where the caller allows it; merging never makes it */
    SN_TOKEN_BYTE,    /* of characters: one byte of a character that has no token */
} sn_token_kind;

typedef struct sn_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: an empty slot */
    uint32_t rank; /* smaller merges first */
    int32_t id;    /* what the two become */
} sn_merge;

typedef struct sn_vocab_token {
    uint32_t start, len; /* in `bytes` */
    uint8_t kind;        /* sn_token_kind */
    bool indexed;        /* found by its bytes */
} sn_vocab_token;

typedef struct sn_vocab {
    size_t n; /* ids are 0 to n-1 */
    bool of_characters;
    bool falls_back;      /* of characters: to byte tokens, all of which there are; else to `unknown` */
    int32_t unknown;      /* -1: characters without a token are left out */
    bool fuses_unknown;   /* several in a row are one token */
    bool words_stay_apart; /* no token has a space behind something else: what merges never goes over such a place */
    sn_vocab_token *tokens;
    sn_buf bytes;
    int32_t *slots; /* open addressing over the tokens' bytes; -1: empty */
    size_t n_slots; /* a power of two */
    sn_merge *merges;
    size_t n_merge_slots;  /* a power of two */
    uint32_t *ranks;       /* by id, where scores say what merges: smaller first; else NULL */
    size_t longest;        /* bytes of the longest token that is found by its bytes */
    int32_t byte_ids[256]; /* -1: no token */
} sn_vocab;

/* On failure of any of these the vocabulary still has to be given to fini; a zeroed one may be. */
sn_status sn_vocab_init(sn_vocab *vocab, size_t n, bool of_characters, sn_err *err) SN_MUST_USE;
void sn_vocab_fini(sn_vocab *vocab);

/* Gives an id its token, once for each id but for one thing: a normal token may become added or special later. Of bytes, a
 * normal token's text is in the alphabet (where it is not, as of padding, it stands for itself); the others' stands for
 * itself. A byte token's text is "<0x0A>". */
sn_status sn_vocab_set(sn_vocab *vocab, int64_t id, const char *text, size_t len, sn_token_kind kind,
                       sn_err *err) SN_MUST_USE;
/* Makes tokens findable. SN_REFUSED when two are equal, of bytes when a printable ASCII character has no token, of characters
 * when it falls back and a byte token is missing. */
sn_status sn_vocab_index(sn_vocab *vocab, size_t n_merges, sn_err *err) SN_MUST_USE;
/* The merge of the given rank, in the alphabet. SN_REFUSED when one of the three tokens is unknown or the pair known. Of
 * characters, a merge with a special token in it is left out: text never becomes one by merging. */
sn_status sn_vocab_merge(sn_vocab *vocab, size_t rank, const char *left, size_t left_len, const char *right,
                         size_t right_len, sn_err *err) SN_MUST_USE;
/* The same for "left right". */
sn_status sn_vocab_merge_line(sn_vocab *vocab, size_t rank, const char *line, size_t len, sn_err *err) SN_MUST_USE;

/* Gives a token that has been set another text; it is then not found by it. */
sn_status sn_vocab_change(sn_vocab *vocab, int32_t id, const char *text, size_t len, sn_err *err) SN_MUST_USE;
/* Of characters, instead of merges: a finite score for each id. */
sn_status sn_vocab_scores(sn_vocab *vocab, const float *scores, sn_err *err) SN_MUST_USE;

/* "<0x0A>", with capital letters: the byte; -1: it is no byte token's text. */
int sn_vocab_byte_of(const char *text, size_t len);
/* The id of the token with these bytes; -1: none, or (of bytes) a special one. */
int32_t sn_vocab_find(const sn_vocab *vocab, const void *bytes, size_t len);
/* NULL when the two do not merge. */
const sn_merge *sn_vocab_find_merge(const sn_vocab *vocab, int32_t left, int32_t right);
/* The token's bytes; ids outside and without a token have none. */
const uint8_t *sn_vocab_bytes(const sn_vocab *vocab, int32_t id, size_t *len);
sn_token_kind sn_vocab_kind(const sn_vocab *vocab, int32_t id);

#endif
