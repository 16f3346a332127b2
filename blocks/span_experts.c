/* Spans that hold some of the experts of their blocks. */
#include "blocks/span_private.h"

#include "base/mem.h"

#include <stdlib.h>

static bool has_mixture(const sn_hparams *hp, int first, int end) {
    while (first < end && !sn_has_experts(hp, first)) first++;
    return first < end;
}

static sn_status refuse_scaled_input(const sn_hparams *hp, sn_err *err) {
    return sn_fail(err, SN_REFUSED,
                   "the %s family weighs what enters an expert: the experts of a block stay together (no --experts)",
                   hp->family);
}

sn_status sn_span_check_experts(const sn_hparams *hp, const sn_span_part *part, sn_err *err) {
    const sn_expert_range e = part->experts;
    if (!e.first && !e.end) return SN_OK;
    if (!has_mixture(hp, part->first, part->end))
        return sn_fail(err, SN_REFUSED, "blocks %d:%d have no experts of which some could be held", part->first,
                       part->end);
    if (e.first < 0 || e.first >= e.end || e.end > hp->n_experts)
        return sn_fail(err, SN_REFUSED, "the experts %d:%d do not exist: each mixture of the model has 0:%d", e.first,
                       e.end, hp->n_experts);
    return sn_n_held(e) < hp->n_experts && hp->experts_scale_input ? refuse_scaled_input(hp, err) : SN_OK;
}

sn_expert_range sn_span_held(const sn_hparams *hp, const sn_span_part *part) {
    if (!has_mixture(hp, part->first, part->end)) return (sn_expert_range){0};
    return part->experts.end ? part->experts : (sn_expert_range){0, hp->n_experts};
}

sn_status sn_span_split_init(sn_span *span, sn_err *err) {
    sn_expert_split *s = &span->split;
    size_t width = (size_t)span->hp.n_embd, pairs = (size_t)span->rows_max * (size_t)span->hp.n_experts_used;
    bool staged = false;
    SN_TRY(sn_calloc(&s->own, pairs, sizeof *s->own, err));
    SN_TRY(sn_calloc(&s->order, SN_SPAN_ROWS * (size_t)span->hp.n_experts_used, sizeof *s->order, err));
    if (!sn_span_is_partial(span)) return SN_OK;
    for (int i = 0; i < span->n_devices; i++) staged |= !span->devices[i].device->host_visible;
    SN_TRY(sn_calloc(&s->others, pairs, sizeof *s->others, err));
    if (staged) SN_TRY(sn_calloc(&s->rows, (size_t)span->rows_max, width * sizeof(float), err));
    return staged ? sn_calloc(&s->out, pairs, width * sizeof(float), err) : SN_OK;
}

void sn_span_split_free(sn_span *span) {
    sn_expert_split *s = &span->split;
    free(s->own);
    free(s->order);
    free(s->others);
    free(s->rows);
    free(s->out);
}

sn_expert_range sn_span_experts(const sn_span *span) { return span->held; }

void sn_span_set_expert_exchange(sn_span *span, const sn_expert_exchange *exchange) { span->split.exchange = exchange; }

static sn_status check_request(const sn_span *span, const sn_expert_request *r, sn_err *err) {
    const sn_hparams *hp = &span->hp;
    if (r->block < span->first || r->block >= span->end || !sn_has_experts(hp, r->block))
        return sn_fail(err, SN_REFUSED, "block %d has no experts here", r->block);
    if (hp->experts_scale_input) return refuse_scaled_input(hp, err);
    if (r->n < 1 || r->n > SN_SPAN_ROWS || r->n_embd != hp->n_embd || r->k < 1 || r->k > hp->n_experts_used)
        return sn_fail(err, SN_REFUSED, "%d rows of %d numbers through %d experts each: at most %d of %d through %d",
                       r->n, r->n_embd, r->k, SN_SPAN_ROWS, hp->n_embd, hp->n_experts_used);
    for (int i = 0; i < r->n * r->k; i++)
        if (r->ids[i] >= 0 && (r->ids[i] < span->held.first || r->ids[i] >= span->held.end))
            return sn_fail(err, SN_REFUSED, "expert %d of block %d is not held here, which has %d:%d", (int)r->ids[i],
                           r->block, span->held.first, span->held.end);
    return SN_OK;
}

sn_status sn_span_run_experts(sn_span *span, const sn_expert_request *request, float *out, sn_err *err) {
    sn_segment *segment = span->segments;
    SN_TRY(check_request(span, request, err));
    while (request->block >= segment->end) segment++;
    return sn_segment_run_experts(segment, &span->hp, &span->split, request, out, err);
}

sn_expert_counts sn_span_expert_counts(const sn_span *span) {
    sn_expert_counts all = {0};
    for (int i = 0; i < span->n_devices; i++) {
        const sn_expert_counts *one = &span->devices[i].carrier.counts;
        all.hits += one->hits;
        all.ahead += one->ahead;
        all.misses += one->misses;
        all.bytes += one->bytes;
    }
    return all;
}
