#include "cli/report.h"

#include <stdio.h>

static double number(const json_t *o, const char *name) { return json_number_value(json_object_get(o, name)); }
static long long count(const json_t *o, const char *name) { return (long long)number(o, name); }
static const char *word(const json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

static double hop_ms(const json_t *hop) {
    return number(hop, "network_ms") + number(hop, "queue_ms") + number(hop, "compute_ms");
}

void sn_report_print(const json_t *t, size_t n_generated) {
    const json_t *hops = json_object_get(t, "hops"), *hop;
    size_t i;
    fprintf(stderr, "prompt %lld tokens, %.1f tok/s; first token after %.0f ms; %zu tokens", count(t, "prefill_tokens"),
            number(t, "prefill_tok_s"), number(t, "ttft_ms"), n_generated);
    if (count(t, "decode_tokens")) fprintf(stderr, ", %.1f tok/s", number(t, "decode_tok_s"));
    if (count(t, "drafted"))
        fprintf(stderr, " in %lld forward passes; %lld of %lld drafted tokens accepted", count(t, "decode_steps"),
                count(t, "accepted"), count(t, "drafted"));
    if (count(t, "failovers")) fprintf(stderr, "; %lld nodes replaced", count(t, "failovers"));
    double all = number(t, "client_ms") + number(t, "draft_ms");
    json_array_foreach(hops, i, hop) all += hop_ms(hop);
    double percent = all > 0 ? 100 / all : 0;
    fprintf(stderr, "\n  %4.1f %%  client: embedding, LM head, sampling\n", number(t, "client_ms") * percent);
    if (number(t, "draft_ms") > 0) fprintf(stderr, "  %4.1f %%  client: drafting\n", number(t, "draft_ms") * percent);
    json_array_foreach(hops, i, hop)
        fprintf(stderr, "  %4.1f %%  blocks %s at %s; a step: %.2f ms compute, %.2f ms queue, %.2f ms network\n",
                hop_ms(hop) * percent, word(hop, "blocks"), word(hop, "node"), number(hop, "compute_ms_per_step"),
                number(hop, "queue_ms_per_step"), number(hop, "network_ms_per_step"));
}
