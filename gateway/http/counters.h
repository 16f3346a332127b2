/* What the server has done, for /metrics. Any thread may count. */
#ifndef SN_GATEWAY_HTTP_COUNTERS_H
#define SN_GATEWAY_HTTP_COUNTERS_H

#include "base/mem.h"
#include "gateway/queue/queue.h"

#include <stdatomic.h>

enum { SN_STATUS_CODES = 600, SN_FIRST_TOKEN_BOUNDS = 10 };

typedef struct sn_counters {
    atomic_uint_fast64_t
        requests[SN_STATUS_CODES]; /* by the status code of their reply; 0: the client left before it */
    atomic_uint_fast64_t prompt_tokens, cached_tokens, generated_tokens, failovers, retractions, cancelled,
        drafted_tokens, judged_tokens, accepted_tokens, windows_ahead, laps_saved;
    atomic_uint_fast64_t first_token[SN_FIRST_TOKEN_BOUNDS + 1], first_token_us;
} sn_counters;

void sn_counters_first_token(sn_counters *counters, int64_t us);

/* Appends the page in Prometheus' text format. held: sn_load_get_bytes. */
sn_status sn_counters_write(sn_counters *counters, const sn_server_queue_load *load, size_t held, sn_buf *out,
                            sn_err *err) SN_MUST_USE;

#endif
