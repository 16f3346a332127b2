/* The timeline hash: what a session's past is a function of, in 32 bytes.
 *
 * It begins with the weights (model id, which blocks, each block's hash, what is tuned of them) and takes in one row of float32 hidden states for
 * each token. On CPU nodes equal hashes mean equal keys, values and hidden states; so a step names the hash that it builds
 * on, and a wrong cache becomes an error instead of wrong text. */
#ifndef SN_NET_TIMELINE_H
#define SN_NET_TIMELINE_H

#include "base/hash.h"

sn_hash sn_timeline_begin(const uint8_t model[SN_HASH_SIZE], int first_block, int end_block,
                          const uint8_t (*block_hashes)[SN_HASH_SIZE]);
/* The same of a session with a tuning, named by its hash; all zero: there is none, and nothing changes. */
sn_hash sn_timeline_tuned(const sn_hash *begin, const uint8_t tuning[SN_HASH_SIZE]);
/* row: (n_embd) float32, as it enters the first block. */
sn_hash sn_timeline_next(sn_hasher *hasher, const sn_hash *before, const float *row, size_t n_embd);
/* The hash behind a past that was computed over another cut of the model: `source` is the hash there, at the same position,
 * and says what it is a function of; `begin` is where this session's own timeline begins. */
sn_hash sn_timeline_graft(const sn_hash *begin, const uint8_t source[SN_HASH_SIZE]);

#endif
