/* Merging of a piece's bytes, or characters, into tokens (Sennrich et al. 2016): of all neighbours that merge, the pair of
 * lowest rank first, the leftmost among equals. A heap of candidates over a linked list: O(n log n) for a piece of n bytes. */
#ifndef SN_MODEL_BPE_H
#define SN_MODEL_BPE_H

#include "model/tokenizer.h"
#include "model/vocab.h"

/* Memory of one encoding, kept from piece to piece. Zero it before use; used by one thread. */
typedef struct sn_bpe {
    struct sn_bpe_symbol *symbols;
    uint64_t *heap; /* rank << 32 | position of the left symbol */
    size_t n_heap, room_symbols, room_heap;
    const uint8_t *piece; /* the one at work; borrowed */
    sn_ids out;
    size_t room_out;
} sn_bpe;

void sn_bpe_fini(sn_bpe *bpe);

/* Appends ids to bpe->out; the piece is valid UTF-8 where the vocabulary is of characters. `whole_words`: a piece that is a token as it stands is taken so, whatever the merges say. */
sn_status sn_bpe_piece(sn_bpe *bpe, const sn_vocab *vocab, bool whole_words, const uint8_t *piece, size_t len,
                       sn_err *err) SN_MUST_USE;
sn_status sn_bpe_id(sn_bpe *bpe, int32_t id, sn_err *err) SN_MUST_USE;

#endif
