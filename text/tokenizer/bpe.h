/* Byte pair encoding of one piece of text (Sennrich et al. 2016): its bytes or characters are symbols; of all
 * neighbouring symbols that merge, the pair of lowest rank merges first, the leftmost pair among equals, until no pair
 * is left. sn_bpe_encode_piece uses a heap of candidate pairs over a linked list of symbols: O(n log n) for n bytes. */
#ifndef SN_TEXT_TOKENIZER_BPE_H
#define SN_TEXT_TOKENIZER_BPE_H

#include "text/tokenizer/ids.h"
#include "text/tokenizer/vocab.h"

/* The memory of one encoding, reused from piece to piece, and its result. Zero it before use; used by one thread. */
typedef struct sn_bpe {
    struct sn_bpe_symbol *symbols;
    uint64_t *heap; /* rank << 32 | position of the left symbol */
    size_t n_heap, symbols_capacity, heap_capacity;
    const uint8_t *piece; /* the piece that is being encoded; borrowed */
    sn_token_ids out;     /* the ids so far */
    size_t out_capacity;
} sn_bpe;

void sn_bpe_fini(sn_bpe *bpe);

/* Appends the piece's ids to bpe->out. With SentencePiece the piece is valid UTF-8. `ignore_merges`: a piece that is a
 * token becomes that token, whatever the merges say. */
sn_status sn_bpe_encode_piece(sn_bpe *bpe, const sn_vocab *vocab, bool ignore_merges, const uint8_t *piece, size_t len,
                              sn_err *err) SN_MUST_USE;
sn_status sn_bpe_append(sn_bpe *bpe, int32_t id, sn_err *err) SN_MUST_USE;
/* SentencePiece: appends what a character without a token becomes, its byte tokens or the unknown token. */
sn_status sn_bpe_append_unknown(sn_bpe *bpe, const sn_vocab *vocab, const uint8_t *bytes, size_t len,
                                sn_err *err) SN_MUST_USE;

#endif
