/* How fast a span is: measured with a short test before it serves, and then by what it really does. */
#ifndef SN_NODE_SPEED_H
#define SN_NODE_SPEED_H

#include "blocks/span.h"

typedef struct sn_speed {
    uint64_t decode_us;           /* a pass of one token over the whole span; 0: not measured */
    uint64_t prompt_tokens_per_s; /* passes of many tokens over it */
    uint64_t row_ns;              /* what each row beyond the first adds to a pass of several */
} sn_speed;

/* Runs a few passes, for half a second or so, longer only where one token takes longer; its pages are given back. A pool that
 * is too small for it, or a span that fails, leaves zeros: it is not an error here. By the thread that owns the span. */
sn_speed sn_speed_test(sn_span *span, sn_kv_pool *pool);
/* A pass of so many rows over the whole span took so long: a running mean, of which it becomes an eighth. */
void sn_speed_note(sn_speed *speed, int rows, int64_t us);

#endif
