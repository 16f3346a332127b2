/* The recurrent half of a block, in place of attention: one of the recurrences of base/recurrence.h behind a short
 * convolution, with its gates and norm. Private to blocks/; used by the devices' thread. Errors are those of the
 * device's operations.
 */
#ifndef SN_BLOCKS_DELTA_H
#define SN_BLOCKS_DELTA_H

#include "blocks/block.h"

/* The states of n_blocks recurrent blocks. */
sn_delta_shape sn_delta_shape_of(const sn_hparams *hp, int n_blocks);

/* scratch->h (n_rows, n_embd) = recurrent half(u), u (n_rows, n_embd), which may be scratch->h. place: of the block
 * among the recurrent ones of the KV pages' part. Reads and writes the states of the batch's sequences. */
sn_status sn_delta_forward(const sn_block *block, int place, const sn_forward_pass *pass, const sn_half_input *input,
                           sn_err *err) SN_MUST_USE;

#endif
