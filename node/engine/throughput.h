/* Throughput of a span: measured by a short test before it serves, then updated by the passes that it really runs.
 * Belongs to the thread that owns the span. */
#ifndef SN_NODE_ENGINE_THROUGHPUT_H
#define SN_NODE_ENGINE_THROUGHPUT_H

#include "blocks/span.h"

typedef struct sn_throughput {
    uint64_t decode_us;           /* forward pass of one token over the whole span; 0: not measured */
    uint64_t prompt_tokens_per_s; /* in passes of many tokens over the whole span */
    uint64_t row_ns;              /* what each row beyond the first adds to a pass of several */
} sn_throughput;

/* Runs a few passes, for about half a second (longer only where one token takes longer), and returns the KV pages that
 * it used. When the pool is too small or a pass fails, it logs that and returns zeros. */
sn_throughput sn_throughput_measure(sn_span *span, sn_kv_pool *pool);
/* A pass of so many rows over the whole span took so long. Running means, with weight 1/8 for the newest. */
void sn_throughput_update(sn_throughput *throughput, int rows, int64_t us);

#endif
