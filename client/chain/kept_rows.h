/* Rows of hidden states that are kept as they travelled, for replays.
 *
 * sn_kept_rows holds the rows of positions [from, end) in the type of the wire, so that they take what they took there.
 * Zeroed, it holds none and may begin at position 0; with `from` SN_ROWS_NONE it begins wherever the first rows are
 * put. Used by the chain that owns it. */
#ifndef SN_CLIENT_CHAIN_KEPT_ROWS_H
#define SN_CLIENT_CHAIN_KEPT_ROWS_H

#include "base/dtype.h"

#include <limits.h>

enum { SN_ROWS_NONE = INT_MAX };

typedef struct sn_kept_rows {
    sn_dtype dtype;
    size_t row_bytes;
    int from, end; /* positions; end < from: none */
    int capacity;  /* rows that there is memory for */
    uint8_t *data; /* row `from` first */
} sn_kept_rows;

void sn_kept_rows_fini(sn_kept_rows *rows);
/* Keeps the rows (n, n_embd) of positions [position, position + n), in place of those that are there; position is at
 * most `end`, or the first one. dtype and n_embd are the same in all calls. SN_STOP: memory is out. */
sn_status sn_kept_rows_put(sn_kept_rows *rows, sn_dtype dtype, int position, int n, int n_embd, const float *in,
                           sn_err *err) SN_MUST_USE;
/* Whether the rows of [position, position + n) are there. */
bool sn_kept_rows_have(const sn_kept_rows *rows, int position, int n);
/* Decodes n rows that are there into out (n, n_embd). */
void sn_kept_rows_get(const sn_kept_rows *rows, int position, int n, int n_embd, float *out);
/* Drops the oldest rows where all take more than `most` bytes, but none of the newest `least` rows. */
void sn_kept_rows_limit(sn_kept_rows *rows, size_t most, int least);

#endif
