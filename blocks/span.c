/* Loading: neighbouring blocks that the plan puts on one device become a segment (segment.c). Each device of the span
 * gets one scratch, which all its segments share.
 *
 * Forward pass: the sessions' rows are copied to the first segment's device, one after the other, together with the
 * rope tables of their positions; then the segments run in order. Where two neighbouring segments lie on different
 * devices, the hidden states are copied between. At the end the rows are copied to the sessions' outputs, and only then
 * are they appended to the KV caches, so a failure leaves all caches as they were. Hidden states pass the guard
 * (device/guard.h) whenever they enter a device. */
#include "blocks/span_private.h"

#include "base/file.h"
#include "base/math.h"
#include "base/mem.h"
#include "blocks/adapter.h"
#include "blocks/delta.h"
#include "blocks/moe.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- scratch ---- */

enum { N_BUFFERS = 32 };

typedef struct scratch_buffer {
    float **at;
    size_t width; /* elements of a row */
} scratch_buffer;

/* The buffers of a scratch; partial: of a span that holds some experts. */
static void scratch_buffers(const sn_hparams *hp, bool partial, sn_scratch *s, scratch_buffer out[N_BUFFERS]) {
    const sn_heads most = sn_most_heads(hp);
    size_t embd = (size_t)hp->n_embd, heads = (size_t)most.n, q = heads * (size_t)most.key_dim;
    size_t kv = (size_t)most.n_kv;
    size_t half_out = q > sn_delta_values(hp) ? q : sn_delta_values(hp);
    size_t used = (size_t)hp->n_experts_used, ff = sn_ff_width(hp), index_heads = (size_t)hp->index_heads;
    const scratch_buffer all[N_BUFFERS] = {{&s->lora_mid, SN_LORA_RANK_MAX},
                                           {&s->lora_out, sn_widest_row(hp)},
                                           {&s->x, embd},
                                           {&s->h, embd},
                                           {&s->ffn_input, hp->parallel ? embd : 0},
                                           {&s->q, q},
                                           {&s->attn, half_out},
                                           {&s->out_gate, hp->attn_gate || hp->conv_taps ? half_out : 0},
                                           {&s->head_gate, hp->head_gate ? heads : 0},
                                           {&s->mixed, sn_delta_width(hp)},
                                           {&s->time, sn_delta_times(hp)},
                                           {&s->write, sn_delta_writes(hp)},
                                           {&s->low, 2 * (size_t)hp->delta_rank},
                                           {&s->k, kv * (size_t)(most.key_dim - hp->latent)},
                                           {&s->v, kv * (size_t)most.value_dim},
                                           {&s->q_low, (size_t)hp->q_rank},
                                           {&s->head_rows, hp->latent ? heads * sn_head_rows_dim(hp) : 0},
                                           {&s->index_q, index_heads * (size_t)hp->index_dim},
                                           {&s->index_k, (size_t)hp->index_dim},
                                           {&s->index_weights, index_heads},
                                           {&s->chosen, (size_t)hp->index_topk},
                                           {&s->gate, ff},
                                           {&s->up, ff},
                                           {&s->cos_sin[0], (size_t)hp->rope_dim},
                                           {&s->cos_sin[1], hp->n_ropes > 1 ? (size_t)hp->rope_dim_full : 0},
                                           {&s->q_factors, hp->q_growth > 0 ? 1 : 0},
                                           {&s->router_out, hp->n_experts ? sn_moe_router_width(hp) : 0},
                                           {&s->expert_out, used * (size_t)sn_expert_width(hp)},
                                           {&s->narrow, (size_t)hp->experts_width},
                                           {&s->shared_out, hp->n_ff_shared ? embd : 0},
                                           {&s->pair_rows, partial ? embd : 0},
                                           {&s->pair_ids, partial ? 1 : 0}};
    memcpy(out, all, sizeof all);
}

static size_t buffer_bytes(size_t width, int rows) { return sn_round_up(width * (size_t)rows * sizeof(float), 64); }

/* Floats of the table of one rope. */
static size_t table_floats(const sn_span *span) {
    const int full = span->hp.rope_dim_full, usual = span->hp.rope_dim;
    return (size_t)(full > usual ? full : usual) * (size_t)span->rows_max;
}

static size_t scratch_bytes(const sn_hparams *hp, bool partial, int rows) {
    sn_scratch none;
    scratch_buffer buffers[N_BUFFERS];
    size_t bytes = 0;
    scratch_buffers(hp, partial, &none, buffers);
    for (int i = 0; i < N_BUFFERS; i++) bytes += buffer_bytes(buffers[i].width, rows);
    return bytes;
}

/* sn_span_rows_max on these devices. */
static int span_rows(const sn_hparams *hp, int n_devices, const sn_device *const *devices, bool partial) {
    size_t rows = SN_SPAN_ROWS, gains = SN_SPAN_ROWS_MAX, row_bytes = (size_t)hp->n_embd * sizeof(float);
    for (int i = 0; i < n_devices; i++) gains = sn_min_size(gains, (size_t)devices[i]->batch_rows);
    while (!partial && 2 * rows <= gains && 2 * rows * row_bytes <= SN_SPAN_STEP_BYTES &&
           sn_device_takes_pairs(2 * rows, (size_t)hp->n_experts_used, sn_widest_row(hp)))
        rows *= 2;
    return (int)rows;
}

static sn_device_limits span_limits(const sn_hparams *hp, int rows) {
    const sn_heads most = sn_most_heads(hp);
    return (sn_device_limits){.rows = rows,
                              .sequences = SN_SPAN_ROWS,
                              .width = (int)sn_widest_row(hp),
                              .context = hp->n_ctx,
                              .heads = most.n,
                              .head_dim = most.key_dim,
                              .experts = hp->n_experts,
                              .experts_used = hp->n_experts_used,
                              .expert_width = hp->n_ff,
                              .chosen = hp->index_topk};
}

static sn_status span_device_init(sn_span_device *h, const sn_hparams *hp, bool partial, int rows, sn_err *err) {
    scratch_buffer buffers[N_BUFFERS];
    const sn_device_limits limits = span_limits(hp, rows);
    h->bytes = scratch_bytes(hp, partial, rows);
    sn_status status = h->device->ops->prepare(h->device, &limits, err);
    if (!status) status = h->device->ops->alloc(h->device, h->bytes, &h->memory, err);
    if (status) return status;
    char *at = h->memory;
    scratch_buffers(hp, partial, &h->scratch, buffers);
    for (int i = 0; i < N_BUFFERS; at += buffer_bytes(buffers[i++].width, rows)) *buffers[i].at = (float *)(void *)at;
    /* A span that holds all experts computes others' pairs between its passes only, and needs no memory for that. */
    if (!partial) h->scratch.pair_rows = h->scratch.x, h->scratch.pair_ids = h->scratch.router_out;
    return SN_OK;
}

/* ---- loading ---- */

/* The cost of a block with a mixture. */
static sn_status mixture_cost(const sn_model *model, const sn_device *device, int number, sn_expert_range range,
                              sn_block_cost *out, sn_err *err) {
    sn_block_layout slot, experts, rest;
    SN_TRY(sn_block_layout_of(model, device, number, 1, range, &slot, err));
    SN_TRY(sn_block_layout_of(model, device, number, SN_ONLY_EXPERTS, range, &experts, err));
    SN_TRY(sn_block_layout_of(model, device, number, SN_WITHOUT_EXPERTS, range, &rest, err));
    out->experts = experts.bytes;
    /* Each part of an image is rounded up to 64 bytes, of which a slot takes no more than these; pieces begin at pages.
     */
    out->slot = slot.expert_bytes + SN_EXPERT_PIECES * 64;
    out->n_experts = sn_n_held(slot.held);
    if (!sn_mul((size_t)out->n_experts, slot.expert_bytes, &out->resting)) out->resting = SIZE_MAX;
    out->without_experts = rest.bytes + SN_EXPERT_PIECES * SN_FILE_PAGE;
    out->n_experts_used = sn_model_hparams(model)->n_experts_used;
    if (out->n_experts_used > out->n_experts) out->n_experts_used = out->n_experts;
    return SN_OK;
}

/* ---- spans that hold some of the experts ---- */

static bool has_mixture(const sn_hparams *hp, int first, int end) {
    while (first < end && !sn_has_experts(hp, first)) first++;
    return first < end;
}

static sn_status refuse_scaled_input(const sn_hparams *hp, sn_err *err) {
    return sn_fail(err, SN_REFUSED,
                   "the %s family weighs what enters an expert: the experts of a block stay together (no --experts)",
                   hp->family);
}

/* Refuses a range of experts that is not one of the model's, and blocks and families that are not held in part. */
static sn_status check_held_experts(const sn_hparams *hp, const sn_span_part *part, sn_err *err) {
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

/* The experts of a part that was checked; {0, 0}: it has no mixture. */
static sn_expert_range held_experts(const sn_hparams *hp, const sn_span_part *part) {
    if (!has_mixture(hp, part->first, part->end)) return (sn_expert_range){0};
    return part->experts.end ? part->experts : (sn_expert_range){0, hp->n_experts};
}

/* Of a span with mixtures, once the devices are known. */
static sn_status split_init(sn_span *span, sn_err *err) {
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

static void split_free(sn_span *span) {
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
    if (r->n < 1 || r->n > SN_SPAN_ROWS || r->n_embd != sn_expert_width(hp) || r->k < 1 || r->k > hp->n_experts_used)
        return sn_fail(err, SN_REFUSED, "%d rows of %d numbers through %d experts each: at most %d of %d through %d",
                       r->n, r->n_embd, r->k, SN_SPAN_ROWS, sn_expert_width(hp), hp->n_experts_used);
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

sn_status sn_span_costs(const sn_model *model, const sn_device *device, const sn_span_part *part, size_t kv_budget,
                        sn_block_cost *costs, size_t *scratch, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    SN_TRY(check_held_experts(hp, part, err));
    bool partial = sn_holds_some_experts(hp, held_experts(hp, part));
    int rows = span_rows(hp, 1, &device, partial); /* beside another device it may be fewer */
    const sn_device_limits limits = span_limits(hp, rows);
    if (!sn_add(scratch_bytes(hp, partial, rows), device->ops->prepare_bytes(device, &limits), scratch))
        *scratch = SIZE_MAX;
    for (int b = part->first; b < part->end; b++) {
        sn_block_layout layout;
        sn_block_cost *cost = &costs[b - part->first];
        SN_TRY(sn_block_layout_of(model, device, b, SN_ALL_EXPERTS, part->experts, &layout, err));
        *cost = (sn_block_cost){.weights = layout.bytes, .cache = kv_budget / (size_t)(part->end - part->first)};
        if (sn_has_experts(hp, b)) SN_TRY(mixture_cost(model, device, b, part->experts, cost, err));
    }
    return SN_OK;
}

/* Makes segments of neighbouring blocks on one device. */
static sn_status load_segments(sn_span *span, const sn_segment_source *source, sn_progress progress, void *ctx,
                               sn_err *err) {
    const sn_plan *plan = source->plan;
    sn_status status = SN_OK;
    for (int b = span->first, next; b < span->end && !status; b = next) {
        int device = plan->placements[b - span->first].device;
        for (next = b + 1; next < span->end && plan->placements[next - span->first].device == device;) next++;
        if (span->n_segments == SN_KV_PARTS_MAX)
            return sn_fail(err, SN_REFUSED, "the blocks change devices more than %d times: give a simpler --device-map",
                           SN_KV_PARTS_MAX - 1);
        sn_span_device *h = &span->devices[device];
        sn_segment *segment = &span->segments[span->n_segments++];
        *segment = (sn_segment){.device = h->device,
                                .scratch = &h->scratch,
                                .slots = &h->slots,
                                .carrier = &h->carrier,
                                .split = sn_span_is_partial(span) ? &span->split : NULL};
        status = sn_segment_load(segment, source, b, next, err);
        if (!status && progress) progress(ctx, next - span->first, span->end - span->first);
    }
    return status;
}

/* States lie beside the pages of one part. */
static sn_status check_recurrent(const sn_span *span, sn_err *err) {
    if (span->n_devices == 1 || !sn_n_recurrent(&span->hp, span->first, span->end)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "blocks %d:%d hold recurrent states, which lie on one device: give one --device",
                   span->first, span->end);
}

sn_status sn_span_load_plan(const sn_model *model, const sn_plan *plan, sn_device *const *devices,
                            sn_offload_store *store, sn_progress progress, void *ctx, sn_span **out, sn_err *err) {
    sn_segment_source source = {.model = model, .plan = plan, .store = store, .devices = devices};
    const sn_hparams *hp = sn_model_hparams(model);
    *out = NULL;
    if (plan->first < 0 || plan->first >= plan->end || plan->end > hp->n_blocks + hp->n_next)
        return sn_fail(err, SN_REFUSED, "blocks %d:%d are not in this model: it has blocks 0:%d", plan->first,
                       plan->end, hp->n_blocks);
    const sn_span_part part = {plan->first, plan->end, plan->experts};
    sn_span *span = NULL;
    SN_TRY(check_held_experts(hp, &part, err));
    sn_status status = sn_calloc(&span, 1, sizeof *span, err);
    if (status) return status;
    span->hp = *hp;
    span->held = held_experts(hp, &part);
    span->first = plan->first;
    span->end = plan->end;
    size_t n = (size_t)(plan->end - plan->first);
    status = sn_calloc(&span->hashes, n, sizeof *span->hashes, err);
    if (!status)
        status = sn_block_hashing_begin(model, plan->first, plan->end, devices[0]->cancel, span->hashes,
                                        &source.hashing, err);
    source.hashes = span->hashes;
    span->rows_max = span_rows(hp, plan->n_devices, (const sn_device *const *)devices, sn_span_is_partial(span));
    if (!status) status = sn_calloc(&span->cos_sin, table_floats(span) * (size_t)hp->n_ropes, sizeof(float), err);
    for (int i = 0; i < plan->n_devices && !status; i++) {
        source.scratch[i] = &span->devices[i].scratch;
        span->devices[i].carrier.device = devices[i];
        span->devices[span->n_devices++].device = devices[i];
        status = span_device_init(&span->devices[i], hp, sn_span_is_partial(span), span->rows_max, err);
    }
    if (!status && span->held.end) status = split_init(span, err);
    if (!status) status = check_recurrent(span, err);
    if (!status) status = load_segments(span, &source, progress, ctx, err);
    sn_status hashed = sn_block_hashing_end(&source.hashing, !status, status ? NULL : err);
    if (!status) status = hashed;
    for (int i = 0; i < span->n_devices && !status; i++)
        status = sn_expert_carrier_alloc(&span->devices[i].carrier, err);
    for (int i = 0; i < span->n_segments && !status; i++)
        status = sn_segment_pin_experts(&span->segments[i], plan, err);
    for (int i = 0; i < span->n_devices && !status; i++)
        status = sn_slots_alloc(&span->devices[i].slots, devices[i], err);
    if (status) sn_span_free(&span);
    *out = span;
    return status;
}

sn_status sn_span_load(const sn_model *model, sn_device *device, int first, int end, sn_progress progress, void *ctx,
                       sn_span **out, sn_err *err) {
    sn_plan plan = {
        .first = first, .end = end, .n_devices = 1, .devices = {device->id}}; /* placements zeroed: on device 0 */
    if (end - first > SN_PLAN_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED, "a span has at most %d blocks: %d:%d are too many", SN_PLAN_BLOCKS_MAX, first,
                       end);
    return sn_span_load_plan(model, &plan, &device, NULL, progress, ctx, out, err);
}

void sn_span_free(sn_span **span) {
    sn_span *s = *span;
    if (!s) return;
    for (int i = 0; i < s->n_devices; i++) sn_expert_carrier_close(&s->devices[i].carrier); /* its threads write */
    for (int i = 0; i < s->n_segments; i++) sn_segment_unload(&s->segments[i]);
    for (int i = 0; i < s->n_devices; i++) {
        sn_span_device *h = &s->devices[i];
        sn_slots_free(&h->slots, h->device);
        if (h->memory) h->device->ops->free(h->device, h->memory, h->bytes);
    }
    split_free(s);
    free(s->hashes);
    free(s->cos_sin);
    free(s);
    *span = NULL;
}

/* ---- properties ---- */

int sn_span_rows_max(const sn_span *span) { return span->rows_max; }
int sn_span_first(const sn_span *span) { return span->first; }
int sn_span_end(const sn_span *span) { return span->end; }
const sn_hparams *sn_span_hparams(const sn_span *span) { return &span->hp; }
const sn_hash *sn_span_block_hash(const sn_span *span, int block) { return &span->hashes[block - span->first]; }

static void name_devices(const sn_span *span, char out[SN_SPAN_DEVICE_NAMES]) {
    static const char more[] = ",...";
    size_t n = 0;
    for (int i = 0; i < span->n_devices; i++) {
        char name[32];
        const size_t comma = i > 0, len = strlen(sn_device_id_name(span->devices[i].device->id, name)) + comma;
        const size_t kept = i + 1 < span->n_devices ? sizeof more : 1; /* for what follows */
        const bool fits = n + len + kept <= SN_SPAN_DEVICE_NAMES;
        snprintf(out + n, SN_SPAN_DEVICE_NAMES - n, "%s%s", fits && comma ? "," : "", fits ? name : more);
        if (!fits) return;
        n += len;
    }
}

sn_span_info sn_span_describe(const sn_span *span) {
    sn_span_info info = {.first = span->first,
                         .end = span->end,
                         .hp = &span->hp,
                         .block_hash = span->hashes,
                         .bytes = sn_span_bytes(span),
                         .experts = span->held,
                         .exact = true,
                         .kv_dtype = span->kv_dtype,
                         .rows_max = span->rows_max};
    for (int i = 0; i < span->n_devices; i++) info.exact &= span->devices[i].device->id.kind == SN_DEVICE_CPU;
    name_devices(span, info.devices);
    return info;
}

size_t sn_span_weight_bytes(const sn_span *span) {
    size_t bytes = 0;
    for (int i = 0; i < span->n_segments; i++)
        bytes += sn_segment_bytes(&span->segments[i]) + sn_segment_bytes_apart(&span->segments[i]);
    return bytes;
}

size_t sn_span_bytes(const sn_span *span) {
    size_t bytes = sn_span_weight_bytes(span);
    for (int i = 0; i < span->n_devices; i++) bytes += span->devices[i].bytes + 2 * span->devices[i].slots.bytes;
    return bytes;
}

size_t sn_span_memory_left(const sn_span *span) {
    size_t left = SIZE_MAX;
    for (int i = 0; i < span->n_devices; i++) left = sn_min_size(left, sn_device_memory_left(span->devices[i].device));
    return left;
}

uint32_t sn_span_lost_devices(const sn_span *span) {
    uint32_t lost = 0;
    for (int i = 0; i < span->n_devices; i++)
        if (span->devices[i].device->lost) lost |= 1u << i;
    return lost;
}

void sn_span_working(const sn_span *span, int *first, int *end) {
    *first = *end = 0;
    for (int i = 0, from = span->first; i < span->n_segments; i++) {
        const sn_segment *segment = &span->segments[i];
        if (sn_segment_is_lost(segment))
            from = segment->end;
        else if (segment->end - from > *end - *first) {
            *first = from;
            *end = segment->end;
        }
    }
}

/* ---- KV caches ---- */

sn_hash sn_block_hash_with_kv_dtype(const sn_hash *weights, sn_kv_dtype dtype) {
    uint8_t both[SN_HASH_SIZE + 32];
    if (dtype == SN_KV_F32) return *weights;
    memcpy(both, weights->bytes, SN_HASH_SIZE);
    int n = snprintf((char *)both + SN_HASH_SIZE, 32, "swarm kv %s", sn_kv_dtype_name(dtype));
    return sn_hash_of(both, SN_HASH_SIZE + (size_t)n);
}

bool sn_span_has_weights(const sn_span *span, int block, const sn_hash *weights) {
    return !memcmp(weights, sn_span_block_hash(span, block), sizeof *weights);
}

void sn_span_set_kv_dtype(sn_span *span, sn_kv_dtype dtype) { span->kv_dtype = dtype; }

sn_hash sn_span_info_hash_with_kv(const sn_span_info *span, int block) {
    return sn_block_hash_with_kv_dtype(&span->block_hash[block - span->first], span->kv_dtype);
}

sn_kv_shape sn_kv_shape_of(const sn_hparams *hp, int first, int end, sn_kv_dtype dtype) {
    const sn_heads usual = sn_usual_heads(hp), *full = &hp->full_heads;
    sn_kv_shape shape = {.n_blocks = end - first - sn_n_recurrent(hp, first, end),
                         .n_kv_heads = usual.n_kv,
                         .head_dim = usual.key_dim,
                         .page_tokens = SN_KV_PAGE_TOKENS,
                         .dtype = dtype,
                         .latent = hp->latent,
                         .value_dim = usual.value_dim,
                         .index_blocks = sn_n_choosing(hp, first, end),
                         .index_dim = hp->index_dim};
    if (!full->n) return shape;
    shape.other = (sn_kv_heads){full->n_kv, full->key_dim, full->value_dim};
    for (int b = first, place = 0; b < end; b++) {
        if (hp->recurrent[b]) continue;
        if (hp->full_attention[b]) sn_kv_set_other(&shape, place);
        place++;
    }
    return shape;
}

static sn_kv_recurrence recurrence_of(const sn_hparams *hp, int first, int end) {
    return (sn_kv_recurrence){sn_delta_shape_of(hp, sn_n_states(hp, first, end)), hp->n_embd};
}

size_t sn_span_kv_bytes(const sn_hparams *hp, sn_device *device, int first, int end, sn_kv_dtype dtype, size_t sessions,
                        size_t positions) {
    const sn_kv_shape shape = sn_kv_shape_of(hp, first, end, dtype);
    if (!sn_n_recurrent(hp, first, end))
        return sessions * (positions / SN_KV_PAGE_TOKENS + 1) * device->ops->kv_page_bytes(device, &shape);
    const sn_kv_part part = {device, shape};
    const sn_kv_recurrence recurrence = recurrence_of(hp, first, end);
    return sn_kv_pool_recurrent_budget(&part, &recurrence, sessions, positions);
}

sn_status sn_span_kv_pool(sn_span *span, size_t budget, sn_kv_pool **out, sn_err *err) {
    sn_kv_part parts[SN_KV_PARTS_MAX];
    if (sn_n_recurrent(&span->hp, span->first, span->end)) {
        const sn_kv_recurrence recurrence = recurrence_of(&span->hp, span->first, span->end);
        parts[0] =
            (sn_kv_part){span->segments[0].device, sn_kv_shape_of(&span->hp, span->first, span->end, span->kv_dtype)};
        return sn_kv_pool_new_recurrent(parts, &recurrence, budget, out, err);
    }
    for (int i = 0; i < span->n_segments; i++)
        parts[i] = (sn_kv_part){span->segments[i].device, sn_kv_shape_of(&span->hp, span->segments[i].first,
                                                                         span->segments[i].end, span->kv_dtype)};
    return sn_kv_pool_new(parts, span->n_segments, budget, out, err);
}

static int segment_of(const sn_span *span, int block) {
    int i = 0;
    while (block >= span->segments[i].end) i++;
    return i;
}

static sn_status check_has_keys(const sn_span *span, int block, sn_err *err) {
    if (!span->hp.recurrent[block]) return SN_OK;
    return sn_fail(err, SN_REFUSED, "block %d has a recurrent state, and no keys and values to be copied", block);
}

size_t sn_span_state_floats(const sn_hparams *hp, int first, int end) {
    const sn_delta_shape shape = sn_delta_shape_of(hp, sn_n_states(hp, first, end));
    return sn_n_recurrent(hp, first, end) ? sn_kv_state_floats(&shape) : 0;
}

sn_status sn_span_kv_export(const sn_span *span, sn_kv_cache *kv, int block, int position, int n, float *k, float *v,
                            sn_err *err) {
    int i = segment_of(span, block);
    sn_status status = check_has_keys(span, block, err);
    if (status) return status;
    return sn_kv_cache_export(kv, i, sn_place_of(&span->hp, span->segments[i].first, block), position, n, k, v, err);
}

int sn_kv_tensor_shape(const sn_hparams *hp, int first, int end, uint64_t n, uint64_t shape[SN_KV_TENSOR_RANK_MAX]) {
    const bool recurrent = sn_n_recurrent(hp, first, end);
    const uint64_t floats = sn_kv_width(hp, first, end) + (recurrent ? (uint64_t)hp->n_embd : 0),
                   halves = 2 * (uint64_t)(end - first);
    const bool by_block = !recurrent && !hp->full_heads.n && !sn_n_choosing(hp, first, end) && floats % halves == 0;
    const uint64_t plain[] = {halves / 2, 2, n, floats / halves}, by_token[] = {n, floats};
    memcpy(shape, by_block ? plain : by_token, by_block ? sizeof plain : sizeof by_token);
    return by_block ? 4 : 2;
}

sn_status sn_span_kv_import_rows(const sn_span *span, sn_kv_cache *kv, int block, int n, const float *keys,
                                 const float *values, sn_err *err) {
    const sn_heads heads = sn_heads_of(&span->hp, block);
    sn_tensor k = {.name = "imported keys",
                   .dtype = SN_F32,
                   .rank = 3,
                   .shape = {n, heads.n_kv, heads.key_dim - span->hp.latent},
                   .data = keys},
              v = k;
    v.name = "imported values";
    v.shape[2] = heads.value_dim;
    v.data = values;
    return sn_span_kv_import(span, kv, block, n, &k, &v, err);
}

sn_status sn_span_kv_import(const sn_span *span, sn_kv_cache *kv, int block, int n, const sn_tensor *k,
                            const sn_tensor *v, sn_err *err) {
    const sn_heads heads = sn_heads_of(&span->hp, block);
    const int64_t keys[] = {n, heads.n_kv, heads.key_dim - span->hp.latent},
                  values[] = {n, heads.n_kv, heads.value_dim};
    const size_t key_floats = (size_t)n * sn_kv_key_width(&span->hp, block);
    float *host = NULL; /* plain rows: a device converts them to its own layout of pages */
    int i = segment_of(span, block);
    sn_status status = check_has_keys(span, block, err);
    if (status) return status;
    status = sn_calloc(&host, (size_t)n * sn_kv_width(&span->hp, block, block + 1), sizeof *host, err);
    float *host_v = host + key_floats;
    if (!status) status = sn_guard_rows(k, NULL, 3, keys, host, NULL, err);
    if (!status) status = sn_guard_rows(v, NULL, 3, values, host_v, NULL, err);
    int place = sn_place_of(&span->hp, span->segments[i].first, block);
    if (!status) status = sn_kv_cache_import(kv, i, place, n, host, host_v, err);
    free(host);
    return status;
}

/* The number of a block's index keys in the pages of its segment. */
static int index_block(const sn_span *span, int segment, int block) {
    const sn_segment *g = &span->segments[segment];
    return g->end - g->first + sn_n_choosing(&span->hp, g->first, block);
}

sn_status sn_span_index_export(const sn_span *span, sn_kv_cache *kv, int block, int position, int n, float *keys,
                               sn_err *err) {
    int i = segment_of(span, block);
    return sn_kv_cache_export(kv, i, index_block(span, i, block), position, n, keys, NULL, err);
}

sn_status sn_span_index_import(const sn_span *span, sn_kv_cache *kv, int block, int n, const float *keys, sn_err *err) {
    const sn_tensor rows = {
        .name = "imported index keys", .data = keys, .dtype = SN_F32, .rank = 2, .shape = {n, span->hp.index_dim}};
    float *host = NULL;
    int i = segment_of(span, block);
    sn_status status = sn_calloc(&host, (size_t)n * (size_t)span->hp.index_dim, sizeof *host, err);
    if (!status) status = sn_guard_rows(&rows, NULL, 2, rows.shape, host, NULL, err);
    if (!status) status = sn_kv_cache_import(kv, i, index_block(span, i, block), n, host, NULL, err);
    free(host);
    return status;
}

/* ---- forward pass ---- */

float sn_span_q_factor(const sn_hparams *hp, int position) {
    int64_t turns = ((int64_t)position + hp->q_growth_offset) / hp->q_growth_step;
    return (float)(1 + (double)hp->q_growth * sn_ln(1 + (double)turns));
}

void sn_span_rope_row(const sn_hparams *hp, int rope, int position, float *row) {
    const float *freqs = sn_rope_freqs(hp, rope);
    for (int i = 0; i < sn_rope_dim(hp, rope) / 2; i++) {
        float angle = (float)position * freqs[i];
        double sine, cosine;
        sn_sincos((double)angle, &sine, &cosine);
        row[2 * i] = (float)cosine * hp->rope_scale[rope];
        row[2 * i + 1] = (float)sine * hp->rope_scale[rope];
    }
}

/* The device of the span on which the segment computes. */
static sn_span_device *device_of(sn_span *span, const sn_segment *segment) {
    sn_span_device *h = span->devices;
    while (h->device != segment->device) h++;
    return h;
}

static bool is_host_device(const sn_device *device) { return !device || device->id.kind == SN_DEVICE_CPU; }

uint64_t sn_span_transfer_bytes(const sn_span *span, int first, int end, int n_sequences,
                                const sn_span_sequence *sequences) {
    uint64_t in = 0, all = 0, bytes = 0, width = (uint64_t)span->hp.n_embd;
    for (int p = 0; p < n_sequences; p++) {
        uint64_t elements = (uint64_t)sequences[p].n_rows * width;
        all += elements * sizeof(float);
        if (is_host_device(sequences[p].input->device)) in += elements * sn_dtype_bytes(sequences[p].input->dtype);
    }
    const sn_device *at = NULL;
    for (int i = 0; i < span->n_segments; i++) {
        const sn_device *next = span->segments[i].device;
        if (span->segments[i].end <= first || span->segments[i].first >= end) continue;
        if (!at)
            bytes += is_host_device(next) ? 0 : in;
        else if (at != next && !(is_host_device(at) && is_host_device(next)))
            bytes += all;
        at = next;
        for (int b = span->segments[i].first; b < span->segments[i].end; b++) {
            const sn_device *other = span->segments[i].blocks[b - span->segments[i].first].apart.device;
            if (other && b >= first && b < end && !(is_host_device(at) && is_host_device(other))) bytes += 2 * all;
        }
    }
    return bytes + (is_host_device(at) ? 0 : all);
}

/* The inputs of one forward pass through the span. */
typedef struct span_pass {
    sn_span *span;
    int first, end; /* blocks */
    const sn_adapter *adapter;
    int n_sequences, n_rows;
    const sn_span_sequence *sequences;
    uint64_t *moved;
} span_pass;

/* Copies one session's rows through the guard to row `row` of the device's hidden states. */
static sn_status upload_sequence(const span_pass *pass, const sn_span_device *to, const sn_span_sequence *sequence,
                                 int row, sn_err *err) {
    int n_embd = pass->span->hp.n_embd;
    sn_tensor input = *sequence->input;
    if (input.rank != 2 || input.shape[1] != n_embd || input.shape[0] < sequence->first_row + sequence->n_rows)
        return sn_fail(err, SN_REFUSED, "%s have shape (%lld, %lld) where (%d, %d) must be", input.name,
                       (long long)input.shape[0], (long long)input.shape[1], sequence->n_rows, n_embd);
    int64_t stride = input.strides[0] ? input.strides[0] : input.shape[1];
    if (input.data)
        input.data =
            (const char *)input.data + (size_t)sequence->first_row * (size_t)stride * sn_dtype_bytes(input.dtype);
    input.shape[0] = sequence->n_rows;
    const int64_t shape[] = {sequence->n_rows, n_embd};
    return sn_guard_rows(&input, to->device, 2, shape, to->scratch.x + (size_t)row * (size_t)n_embd, pass->moved, err);
}

/* Copies the rows of all sessions to the first device, and writes the rope tables of their positions. */
static sn_status upload_sequences(const span_pass *pass, const sn_span_device *to, sn_err *err) {
    const sn_hparams *hp = &pass->span->hp;
    for (int i = 0, row = 0; i < pass->n_sequences; row += pass->sequences[i++].n_rows) {
        const sn_span_sequence *sequence = &pass->sequences[i];
        sn_status status = upload_sequence(pass, to, sequence, row, err);
        if (status) return status;
        for (int r = 0; r < sequence->n_rows && hp->q_growth > 0; r++)
            pass->span->q_factors[row + r] = sn_span_q_factor(hp, sn_kv_cache_length(sequence->kv) + r);
        if (sn_kv_cache_is_recurrent(sequence->kv)) { /* once it is rewound its rows may be computed again */
            SN_TRY(sn_kv_cache_restore_state(sequence->kv, err));
            SN_TRY(sn_kv_cache_rows_keep(sequence->kv, sequence->n_rows,
                                         to->scratch.x + (size_t)row * (size_t)hp->n_embd, err));
        }
        const bool is_long = sn_kv_cache_usage_of(sequence->kv)->is_long;
        for (int rope = 0; rope < hp->n_ropes; rope++)
            for (int r = 0; r < sequence->n_rows; r++)
                sn_span_rope_row(hp, is_long ? 1 : rope, sn_kv_cache_length(sequence->kv) + r,
                                 pass->span->cos_sin + (size_t)rope * table_floats(pass->span) +
                                     (size_t)(row + r) * (size_t)sn_rope_dim(hp, rope));
    }
    return SN_OK;
}

/* Copies what the rows have chosen from one device to the next, as bytes. */
static sn_status transfer_choices(const span_pass *pass, const sn_span_device *from, const sn_span_device *to,
                                  sn_err *err) {
    const int64_t shape[] = {pass->n_rows, pass->span->hp.index_topk};
    const sn_tensor chosen = {.name = "chosen positions",
                              .device = from->device,
                              .data = from->scratch.chosen,
                              .dtype = SN_F32,
                              .rank = 2,
                              .shape = {shape[0], shape[1]}};
    return sn_guard(&chosen, to->device, 2, shape, to->scratch.chosen, pass->moved, err);
}

/* Copies the hidden states that enter `block` from one device to the next (from NULL: they are there already), and the
 * rope tables unless the device has them. */
static sn_status transfer_hidden_states(const span_pass *pass, int block, const sn_span_device *from,
                                        const sn_span_device *to, bool has_table, sn_err *err) {
    const sn_hparams *hp = &pass->span->hp;
    sn_status status = SN_OK;
    if (from && from != to) {
        const int64_t shape[] = {pass->n_rows, hp->n_embd};
        sn_tensor x = {.name = "hidden states",
                       .device = from->device,
                       .data = from->scratch.x,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {shape[0], shape[1]}};
        status = sn_guard(&x, to->device, 2, shape, to->scratch.x, pass->moved, err);
    }
    if (from && from != to && !status && !sn_may_cut(hp, block)) status = transfer_choices(pass, from, to, err);
    for (int rope = 0; rope < hp->n_ropes && !status && !has_table; rope++)
        status = to->device->ops->upload(to->device, to->scratch.cos_sin[rope],
                                         pass->span->cos_sin + (size_t)rope * table_floats(pass->span),
                                         (size_t)pass->n_rows * (size_t)sn_rope_dim(hp, rope) * sizeof(float), err);
    if (!status && !has_table && hp->q_growth > 0)
        status = to->device->ops->upload(to->device, to->scratch.q_factors, pass->span->q_factors,
                                         (size_t)pass->n_rows * sizeof(float), err);
    return status;
}

/* Computes the pass's blocks of segment i. */
static sn_status run_segment(const span_pass *pass, int i, sn_err *err) {
    sn_span *span = pass->span;
    sn_segment *segment = &span->segments[i];
    segment->moved = pass->moved;
    for (int k = 0, row = 0; k < pass->n_sequences; row += pass->sequences[k++].n_rows)
        span->sequences[k] = sn_kv_cache_sequence(pass->sequences[k].kv, i, row, pass->sequences[k].n_rows);
    const sn_batch batch = {sn_kv_cache_shape(pass->sequences[0].kv, i), pass->n_rows, pass->n_sequences,
                            span->sequences, 0};
    const sn_block_adapter *adapters = pass->adapter ? sn_adapter_block(pass->adapter, segment->first) : NULL;
    return sn_segment_forward(segment, &span->hp, pass->first > segment->first ? pass->first : segment->first,
                              pass->end < segment->end ? pass->end : segment->end, &batch, adapters, err);
}

/* Copies the hidden states from the last device to the sessions' outputs. */
static sn_status download_outputs(const span_pass *pass, const sn_span_device *from, sn_err *err) {
    size_t width = (size_t)pass->span->hp.n_embd, row = 0;
    sn_status status = SN_OK;
    for (int i = 0; i < pass->n_sequences && !status; row += (size_t)pass->sequences[i++].n_rows)
        if (pass->sequences[i].output) /* else computed only for its effect on the cache */
            status = from->device->ops->download(from->device, pass->sequences[i].output, from->scratch.x + row * width,
                                                 (size_t)pass->sequences[i].n_rows * width * sizeof(float), err);
    if (!status && pass->moved && !is_host_device(from->device)) *pass->moved += row * sizeof(float) * width;
    return status;
}

static sn_status run_pass(span_pass *pass, sn_err *err) {
    sn_span *span = pass->span;
    sn_span_device *at = NULL; /* where the hidden states are */
    bool has_table[SN_PLAN_DEVICES_MAX] = {false};
    sn_status status = SN_OK;
    pass->n_rows = 0;
    assert(pass->n_sequences <= SN_SPAN_ROWS);
    for (int i = 0; i < pass->n_sequences; i++) {
        assert(pass->sequences[i].n_rows > 0 && pass->n_rows + pass->sequences[i].n_rows <= span->rows_max);
        pass->n_rows += pass->sequences[i].n_rows;
    }
    for (int i = 0; i < span->n_segments && !status; i++) {
        if (span->segments[i].end <= pass->first || span->segments[i].first >= pass->end) continue;
        sn_span_device *next = device_of(span, &span->segments[i]);
        if (!at) status = upload_sequences(pass, next, err);
        if (!status)
            status =
                transfer_hidden_states(pass, span->segments[i].first, at, next, has_table[next - span->devices], err);
        has_table[next - span->devices] = true;
        at = next;
        if (!status) status = run_segment(pass, i, err);
    }
    if (!status) status = download_outputs(pass, at, err);
    for (int i = 0; i < pass->n_sequences && !status; i++)
        sn_kv_cache_append(pass->sequences[i].kv, pass->sequences[i].n_rows);
    return status;
}

sn_status sn_span_catch_up(sn_span *span, int first, int end, const sn_adapter *adapter, sn_kv_cache *kv, int rows_max,
                           sn_err *err) {
    sn_status status = SN_OK;
    int n, length = sn_kv_cache_step_back(kv), at = sn_kv_cache_length(kv);
    int until = rows_max < length - at ? at + rows_max : length;
    for (; at < until && !status; at += n) { /* page by page */
        sn_tensor rows = {.name = "kept hidden states", .dtype = SN_F32, .rank = 2, .shape = {0, span->hp.n_embd}};
        rows.device = span->segments[0].device;
        rows.data = sn_kv_cache_rows(kv, at, &n);
        rows.shape[0] = n = n < until - at ? n : until - at;
        const sn_span_sequence sequence = {kv, &rows, 0, n, NULL};
        span_pass pass = {span, first, end, adapter, 1, 0, &sequence, NULL};
        status = run_pass(&pass, err);
    }
    sn_kv_cache_step_forward(kv, length);
    return status;
}

/* Blocks that attend to what the block before has chosen do not begin a pass, unless every row attends to all
 * positions. */
static sn_status check_begins_with_choice(const sn_span *span, int first, int n_sequences,
                                          const sn_span_sequence *sequences, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < n_sequences && !sn_may_cut(&span->hp, first) && !status; i++)
        if (sn_kv_cache_length(sequences[i].kv) + sequences[i].n_rows > span->hp.index_topk)
            status = sn_check_cuts(&span->hp, first, span->end, err);
    return status;
}

sn_status sn_span_forward_adapter(sn_span *span, int first, int end, const sn_adapter *adapter, int n_sequences,
                                  const sn_span_sequence *sequences, uint64_t *moved, sn_err *err) {
    span_pass pass = {span, first, end, adapter, n_sequences, 0, sequences, moved};
    sn_status status = check_begins_with_choice(span, first, n_sequences, sequences, err);
    assert(n_sequences > 0 && span->first <= first && first < end && end <= span->end);
    for (int i = 0; i < n_sequences && !status; i++)
        status = sn_span_catch_up(span, first, end, adapter, sequences[i].kv, INT_MAX, err);
    return status ? status : run_pass(&pass, err);
}

sn_status sn_span_forward(sn_span *span, int first, int end, int n_sequences, const sn_span_sequence *sequences,
                          uint64_t *moved, sn_err *err) {
    return sn_span_forward_adapter(span, first, end, NULL, n_sequences, sequences, moved, err);
}
