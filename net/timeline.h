/* The timeline hash: 32 bytes that name everything that determines a session's KV cache.
 *
 * It begins with the weights (model id, blocks, each block's hash) and the adapter, and takes in one row of float32
 * hidden states for each token. On CPU nodes equal hashes mean equal keys, values and hidden states; a step names the
 * hash that it builds on, so a wrong KV cache becomes an error instead of wrong text. docs/PROTOCOL.md defines the
 * bytes and has an example. Pure functions, any thread; a hasher is used by one thread at a time. */
#ifndef SN_NET_TIMELINE_H
#define SN_NET_TIMELINE_H

#include "base/hash.h"

#include <stdbool.h>

/* The hash at position 0. block_hashes: (end_block - first_block) of them. */
sn_hash sn_timeline_begin(const uint8_t model[SN_HASH_SIZE], int first_block, int end_block,
                          const uint8_t (*block_hashes)[SN_HASH_SIZE]);
/* `begin` for a session with an adapter, named by its hash; all zero: no adapter, returns *begin. */
sn_hash sn_timeline_with_adapter(const sn_hash *begin, const uint8_t adapter[SN_HASH_SIZE]);
/* `begin` for a session of a model with two sets of rope frequencies that uses those of long timelines; not long:
 * *begin.
 */
sn_hash sn_timeline_if_long(const sn_hash *begin, bool is_long);
/* The hash after one more token. row: (n_embd) float32, as it enters the first block. */
sn_hash sn_timeline_next(sn_hasher *hasher, const sn_hash *before, const float *row, size_t n_embd);
/* The hash of a session whose KV pages were computed by sessions over other block ranges: `source` is the hash of such
 * a session at the same position; `begin` is the hash at position 0 of the session that receives the pages. */
sn_hash sn_timeline_graft(const sn_hash *begin, const uint8_t source[SN_HASH_SIZE]);

#endif
