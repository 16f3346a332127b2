/* Timings of a generation, as JSON. */
#ifndef SN_CLIENT_API_REPORT_H
#define SN_CLIENT_API_REPORT_H

#include "client/chain/chain.h"
#include "client/generate/generator.h"

#include <jansson.h>

/* {"ttft_ms", "prefill_tokens", "reused_tokens", "prefill_ms", "prefill_tok_s", "decode_tokens", "decode_ms",
 * "decode_tok_s", "client_ms", "request_id", "failovers", "hops": [{"node", "blocks": "0:10", "steps", "tokens",
 * "network_ms", "queue_ms", "compute_ms", "network_ms_per_step", "queue_ms_per_step", "compute_ms_per_step"}]}: *_ms of
 * a hop are sums since the chain was opened. docs/CLIENT.md describes the fields. */
json_t *sn_report_json(const sn_generate_timings *timings, const sn_chain *chain);

/* The hops alone: the list of the same name. */
json_t *sn_report_hops_json(const sn_chain *chain);

#endif
