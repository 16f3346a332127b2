/* A vocabulary of byte-level BPE: tokens by id, ids by bytes, and what merges with what.
 *
 * Model files write each byte of a token as one printable character, so that tokens are text (Radford et al. 2019:
 * space is U+0120, newline U+010A, ...). Here tokens are kept as the bytes they stand for; the alphabet is undone on
 * the way in. Built by one thread: init, set for every token, index, then the merges. Afterwards immutable. */
#ifndef SN_MODEL_VOCAB_H
#define SN_MODEL_VOCAB_H

#include "base/mem.h"

enum { SN_VOCAB_MAX = 1 << 22, SN_TOKEN_BYTES_MAX = 1 << 14 };

typedef enum sn_token_kind {
    SN_TOKEN_NONE,    /* no token has this id, or none that stands for text */
    SN_TOKEN_NORMAL,  /* made by merging */
    SN_TOKEN_ADDED,   /* found in the text before merging; may be made by merging as well */
    SN_TOKEN_SPECIAL, /* found in the text where the caller allows it; merging never makes it */
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
    sn_vocab_token *tokens;
    sn_buf bytes;
    int32_t *slots; /* open addressing over the tokens' bytes; -1: empty */
    size_t n_slots; /* a power of two */
    sn_merge *merges;
    size_t n_merge_slots;  /* a power of two */
    int32_t byte_ids[256]; /* -1: no token */
} sn_vocab;

/* On failure of any of these the vocabulary still has to be given to fini; a zeroed one may be. */
sn_status sn_vocab_init(sn_vocab *vocab, size_t n, sn_err *err) SN_MUST_USE;
void sn_vocab_fini(sn_vocab *vocab);

/* Gives an id its token, once for each id but for one thing: a normal token may become added or special later. A normal
 * token's text is in the alphabet (where it is not, as of padding, it stands for itself); the others' stands for
 * itself. */
sn_status sn_vocab_set(sn_vocab *vocab, int64_t id, const char *text, size_t len, sn_token_kind kind,
                       sn_err *err) SN_MUST_USE;
/* Makes tokens findable. SN_REFUSED when two are equal, or a printable ASCII character has no token. */
sn_status sn_vocab_index(sn_vocab *vocab, size_t n_merges, sn_err *err) SN_MUST_USE;
/* The merge of the given rank, in the alphabet. SN_REFUSED when one of the three tokens is unknown or the pair known.
 */
sn_status sn_vocab_merge(sn_vocab *vocab, size_t rank, const char *left, size_t left_len, const char *right,
                         size_t right_len, sn_err *err) SN_MUST_USE;
/* The same for "left right". */
sn_status sn_vocab_merge_line(sn_vocab *vocab, size_t rank, const char *line, size_t len, sn_err *err) SN_MUST_USE;

/* The id of the token with these bytes; -1: none, or a special one. */
int32_t sn_vocab_find(const sn_vocab *vocab, const void *bytes, size_t len);
/* NULL when the two do not merge. */
const sn_merge *sn_vocab_find_merge(const sn_vocab *vocab, int32_t left, int32_t right);
/* The token's bytes; ids outside and without a token have none. */
const uint8_t *sn_vocab_bytes(const sn_vocab *vocab, int32_t id, size_t *len);
sn_token_kind sn_vocab_kind(const sn_vocab *vocab, int32_t id);

#endif
