#include "client/api/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* 0 when no time was measured. */
static double tokens_per_second(size_t tokens, int64_t us) { return us > 0 ? (double)tokens * 1e6 / (double)us : 0; }

static double us_to_ms(uint64_t us) { return (double)us / 1000; }
static double us_to_ms_per_step(uint64_t us, uint64_t steps) { return steps ? us_to_ms(us) / (double)steps : 0; }

/* The reports of all hops; free with free(). *n is 0 when memory is out. */
static sn_hop_report *report_hops(const sn_chain *chain, size_t *n) {
    *n = sn_chain_hops(chain, NULL, 0);
    sn_hop_report *hops = calloc(*n ? *n : 1, sizeof *hops);
    if (hops)
        *n = sn_min_size(*n, sn_chain_hops(chain, hops, *n));
    else
        *n = 0;
    return hops;
}

static json_t *hop_json(const sn_hop_report *h) {
    char blocks[32];
    snprintf(blocks, sizeof blocks, "%d:%d", h->first_block, h->end_block);
    json_t *o = json_object();
    json_object_set_new(o, "node", json_string(h->node));
    json_object_set_new(o, "blocks", json_string(blocks));
    json_object_set_new(o, "steps", json_integer((json_int_t)h->steps));
    json_object_set_new(o, "tokens", json_integer((json_int_t)h->tokens));
    json_object_set_new(o, "network_ms", json_real(us_to_ms(h->network_us)));
    json_object_set_new(o, "queue_ms", json_real(us_to_ms(h->queue_us)));
    json_object_set_new(o, "compute_ms", json_real(us_to_ms(h->compute_us)));
    json_object_set_new(o, "network_ms_per_step", json_real(us_to_ms_per_step(h->network_us, h->steps)));
    json_object_set_new(o, "queue_ms_per_step", json_real(us_to_ms_per_step(h->queue_us, h->steps)));
    json_object_set_new(o, "compute_ms_per_step", json_real(us_to_ms_per_step(h->compute_us, h->steps)));
    json_object_set_new(o, "replicated", json_boolean(h->replicated));
    return o;
}

json_t *sn_report_hops_json(const sn_chain *chain) {
    size_t n;
    sn_hop_report *hops = report_hops(chain, &n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, hop_json(&hops[i]));
    free(hops);
    return list;
}

/* Without drafts each token would have taken a lap: how many fewer it was, by the time that all took; below 0: more. */
static double laps_saved(const sn_generate_timings *t) {
    if (!t->n_laps || t->laps_us <= 0) return 0;
    return (double)t->decode_tokens - (double)t->decode_us * (double)t->n_laps / (double)t->laps_us;
}

json_t *sn_report_json(const sn_generate_timings *t, const sn_chain *chain) {
    size_t fed = t->prompt_tokens - t->reused_tokens;
    json_t *o = json_object();
    json_object_set_new(o, "ttft_ms", json_real(us_to_ms((uint64_t)t->first_token_us)));
    json_object_set_new(o, "prefill_tokens", json_integer((json_int_t)fed));
    json_object_set_new(o, "reused_tokens", json_integer((json_int_t)t->reused_tokens));
    json_object_set_new(o, "prefill_ms", json_real(us_to_ms((uint64_t)t->prefill_us)));
    json_object_set_new(o, "prefill_tok_s", json_real(tokens_per_second(fed, t->prefill_us)));
    json_object_set_new(o, "decode_tokens", json_integer((json_int_t)t->decode_tokens));
    json_object_set_new(o, "decode_steps", json_integer((json_int_t)t->decode_steps));
    json_object_set_new(o, "drafted", json_integer((json_int_t)t->n_drafted));
    json_object_set_new(o, "ahead", json_integer((json_int_t)t->n_ahead));
    json_object_set_new(o, "judged", json_integer((json_int_t)t->n_judged));
    json_object_set_new(o, "accepted", json_integer((json_int_t)t->n_accepted));
    json_object_set_new(o, "laps_saved", json_real(round(laps_saved(t) * 10) / 10));
    json_object_set_new(o, "draft_ms", json_real(us_to_ms((uint64_t)t->draft_us)));
    json_object_set_new(o, "decode_ms", json_real(us_to_ms((uint64_t)t->decode_us)));
    json_object_set_new(o, "decode_tok_s", json_real(tokens_per_second(t->decode_tokens, t->decode_us)));
    json_object_set_new(o, "client_ms", json_real(us_to_ms((uint64_t)t->client_us)));
    json_object_set_new(o, "request_id", json_string(sn_chain_request_id(chain)));
    json_object_set_new(o, "failovers", json_integer((json_int_t)sn_chain_failovers(chain)));
    json_object_set_new(o, "replicas_promoted", json_integer((json_int_t)sn_chain_replicas_promoted(chain)));
    json_object_set_new(o, "replayed_tokens", json_integer((json_int_t)sn_chain_replayed(chain)));
    json_object_set_new(o, "hops", sn_report_hops_json(chain));
    return o;
}
