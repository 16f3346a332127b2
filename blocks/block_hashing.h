/* The hashes of a span's blocks, computed on threads beside the loading of the blocks: each block is hashed about when
 * it is loaded, so that its bytes come from the disk once.
 *
 * The thread that loads calls these functions; the model and the hashes outlive the hashing. Of a model whose bytes are
 * fetched (model/source.h) the hashes are computed at once, because a fetch brings a whole block. */
#ifndef SN_BLOCKS_BLOCK_HASHING_H
#define SN_BLOCKS_BLOCK_HASHING_H

#include "base/cancel.h"
#include "model/model.h"

typedef struct sn_block_hashing sn_block_hashing;

/* hashes: (end - first), written until sn_block_hashing_end. cancel: ends it with SN_STOP; NULL: never. */
sn_status sn_block_hashing_begin(const sn_model *model, int first, int end, const sn_cancel *cancel, sn_hash *hashes,
                                 sn_block_hashing **out, sn_err *err) SN_MUST_USE;
/* Waits for the hash of one block. */
sn_status sn_block_hashing_wait(sn_block_hashing *hashing, int block, sn_err *err) SN_MUST_USE;
/* Waits for all hashes, or, if they are not wanted any more, for no more than the end of the threads; frees it. Accepts
 * NULL. */
sn_status sn_block_hashing_end(sn_block_hashing **hashing, bool wanted, sn_err *err) SN_MUST_USE;

#endif
