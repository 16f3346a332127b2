#include "blocks/span_private.h"

#include "base/math.h"
#include "base/mem.h"
#include "blocks/experts.h"
#include "blocks/tuning.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- loading ---------------------------------------------------------------------------------------------------------
 */

enum { N_BUFFERS = 13 };

/* Width of each buffer of sn_scratch, in the order of its members. */
static void buffer_widths(const sn_hparams *hp, size_t width[N_BUFFERS]) {
    size_t q = (size_t)hp->n_heads * (size_t)hp->head_dim, kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff;
    size_t rope = (size_t)hp->rope_dim, second = hp->n_ropes > 1 ? rope : 0;
    size_t used = (size_t)hp->n_experts_used, each = used * embd, chosen = hp->n_experts ? sn_experts_chosen_width(hp) : 0;
    if (used) ff *= used; /* a row goes through so many */
    const size_t widths[N_BUFFERS] = {embd, embd, hp->parallel ? embd : 0, q, q, kv, kv, ff, ff, rope, second, chosen, each};
    memcpy(width, widths, sizeof widths);
}

/* The longest row that a matrix takes or gives. */
static size_t widest_of(const sn_hparams *hp) {
    size_t q = (size_t)hp->n_heads * (size_t)hp->head_dim, widest = (size_t)hp->n_embd;
    if (q > widest) widest = q;
    return (size_t)hp->n_ff > widest ? (size_t)hp->n_ff : widest;
}

static size_t buffer_bytes(size_t width) { return sn_round_up(width * SN_SPAN_ROWS_MAX * sizeof(float), 64); }

/* Of one rope's table of a pass. */
static size_t table_floats(const sn_hparams *hp) { return (size_t)hp->rope_dim * SN_SPAN_ROWS_MAX; }

static size_t scratch_bytes(const sn_hparams *hp) {
    size_t width[N_BUFFERS], bytes = 0;
    buffer_widths(hp, width);
    for (int i = 0; i < N_BUFFERS; i++) bytes += buffer_bytes(width[i]);
    return bytes;
}

static sn_status new_scratch(sn_home *h, const sn_hparams *hp, sn_err *err) {
    sn_scratch *s = &h->scratch;
    float **buffers[N_BUFFERS] = {&s->x,  &s->h,    &s->beside, &s->q,          &s->attn,       &s->k,      &s->v,
                                  &s->gate, &s->up, &s->cos_sin[0], &s->cos_sin[1], &s->chosen, &s->each};
    size_t width[N_BUFFERS], widest = widest_of(hp);
    buffer_widths(hp, width);
    sn_device_limits limits = {.rows = SN_SPAN_ROWS_MAX, .width = (int)widest, .context = hp->n_ctx,
                               .experts = hp->n_experts, .experts_used = hp->n_experts_used};
    h->bytes = scratch_bytes(hp);
    sn_status status = h->device->ops->prepare(h->device, &limits, err);
    if (!status) status = h->device->ops->alloc(h->device, h->bytes, &h->memory, err);
    if (status) return status;
    char *at = h->memory;
    for (int i = 0; i < N_BUFFERS; i++) {
        *buffers[i] = (float *)(void *)at;
        at += buffer_bytes(width[i]);
    }
    return SN_OK;
}

/* What only passes with a tuning need is there from the first of them on. */
static sn_status add_tuned_scratch(sn_home *h, const sn_hparams *hp, sn_err *err) {
    size_t low = buffer_bytes(SN_LORA_RANK_MAX);
    if (h->tuned_memory) return SN_OK;
    h->tuned_bytes = low + buffer_bytes(widest_of(hp));
    sn_status status = h->device->ops->alloc(h->device, h->tuned_bytes, &h->tuned_memory, err);
    if (status) return status;
    h->scratch.low = h->tuned_memory;
    h->scratch.wide = h->scratch.low + low / sizeof(float);
    return SN_OK;
}

sn_status sn_span_costs(const sn_model *model, const sn_device *device, int first, int end, size_t kv_budget,
                        sn_block_cost *costs, size_t *scratch, sn_err *err) {
    *scratch = scratch_bytes(sn_model_hparams(model));
    for (int b = first; b < end; b++) {
        sn_block_layout layout;
        sn_status status = sn_block_layout_of(model, device, b, &layout, err);
        if (status) return status;
        costs[b - first] = (sn_block_cost){.weights = layout.bytes, .cache = kv_budget / (size_t)(end - first)};
    }
    return SN_OK;
}

/* Runs of blocks on one device become segments. */
static sn_status load_segments(sn_span *span, const sn_model *model, const sn_plan *plan, sn_store *store,
                               sn_progress progress, void *ctx, sn_err *err) {
    sn_status status = SN_OK;
    for (int b = span->first, next; b < span->end && !status; b = next) {
        int device = plan->places[b - span->first].device;
        for (next = b + 1; next < span->end && plan->places[next - span->first].device == device;) next++;
        if (span->n_segments == SN_KV_PARTS_MAX)
            return sn_fail(err, SN_REFUSED, "the blocks change devices more than %d times: give a plainer --device-map",
                           SN_KV_PARTS_MAX - 1);
        sn_home *h = &span->homes[device];
        status = sn_segment_load(&span->segments[span->n_segments++], model, plan, h->device, &h->scratch, store, b,
                                 next, err);
        if (!status && progress) progress(ctx, next - span->first, span->end - span->first);
    }
    return status;
}

sn_status sn_span_load_plan(const sn_model *model, const sn_plan *plan, sn_device *const *devices, sn_store *store,
                            sn_progress progress, void *ctx, sn_span **out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    *out = NULL;
    if (plan->first < 0 || plan->first >= plan->end || plan->end > hp->n_blocks)
        return sn_fail(err, SN_REFUSED, "blocks %d:%d are not in this model: it has blocks 0:%d", plan->first,
                       plan->end, hp->n_blocks);
    sn_span *span = NULL;
    sn_status status = sn_calloc(&span, 1, sizeof *span, err);
    if (status) return status;
    span->hp = *hp;
    span->first = plan->first;
    span->end = plan->end;
    size_t n = (size_t)(plan->end - plan->first);
    status = sn_calloc(&span->hashes, n, sizeof *span->hashes, err);
    for (size_t i = 0; i < n && !status; i++)
        status = sn_model_block_hash(model, plan->first + (int)i, &span->hashes[i], err);
    if (!status) status = sn_calloc(&span->cos_sin, table_floats(hp) * (size_t)hp->n_ropes, sizeof(float), err);
    for (int i = 0; i < plan->n_devices && !status; i++) {
        span->homes[span->n_homes++].device = devices[i];
        status = new_scratch(&span->homes[i], hp, err);
    }
    if (!status) status = load_segments(span, model, plan, store, progress, ctx, err);
    if (status) sn_span_free(&span);
    *out = span;
    return status;
}

sn_status sn_span_load(const sn_model *model, sn_device *device, int first, int end, sn_progress progress, void *ctx,
                       sn_span **out, sn_err *err) {
    sn_plan plan = {
        .first = first, .end = end, .n_devices = 1, .devices = {device->id}}; /* all places: device 0, on it */
    if (end - first > SN_PLAN_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED, "a span has at most %d blocks: %d:%d are too many", SN_PLAN_BLOCKS_MAX, first,
                       end);
    return sn_span_load_plan(model, &plan, &device, NULL, progress, ctx, out, err);
}

void sn_span_free(sn_span **span) {
    sn_span *s = *span;
    if (!s) return;
    for (int i = 0; i < s->n_segments; i++) sn_segment_unload(&s->segments[i]);
    for (int i = 0; i < s->n_homes; i++) {
        const sn_home *h = &s->homes[i];
        if (h->memory) h->device->ops->free(h->device, h->memory, h->bytes);
        if (h->tuned_memory) h->device->ops->free(h->device, h->tuned_memory, h->tuned_bytes);
    }
    free(s->hashes);
    free(s->cos_sin);
    free(s);
    *span = NULL;
}

int sn_span_first(const sn_span *span) { return span->first; }
int sn_span_end(const sn_span *span) { return span->end; }
const sn_hparams *sn_span_hparams(const sn_span *span) { return &span->hp; }
const sn_hash *sn_span_block_hash(const sn_span *span, int block) { return &span->hashes[block - span->first]; }

sn_span_facts sn_span_describe(const sn_span *span) {
    bool exact = true;
    for (int i = 0; i < span->n_homes; i++) exact = exact && span->homes[i].device->id.kind == SN_DEVICE_CPU;
    return (sn_span_facts){span->first, span->end, &span->hp, span->hashes, sn_span_bytes(span), exact};
}

size_t sn_span_bytes(const sn_span *span) {
    size_t bytes = 0;
    for (int i = 0; i < span->n_homes; i++) bytes += span->homes[i].bytes;
    for (int i = 0; i < span->n_segments; i++) bytes += sn_segment_bytes(&span->segments[i]);
    return bytes;
}

sn_hash sn_span_hash_of(const sn_hash *weights, sn_kv_dtype dtype) {
    uint8_t both[SN_HASH_SIZE + 32];
    if (dtype == SN_KV_F32) return *weights;
    memcpy(both, weights->bytes, SN_HASH_SIZE);
    int n = snprintf((char *)both + SN_HASH_SIZE, 32, "swarm kv %s", sn_kv_dtype_name(dtype));
    return sn_hash_of(both, SN_HASH_SIZE + (size_t)n);
}

void sn_span_keep_as(sn_span *span, sn_kv_dtype dtype) {
    span->kv_dtype = dtype;
    for (int i = 0; i < span->end - span->first; i++) span->hashes[i] = sn_span_hash_of(&span->hashes[i], dtype);
}

sn_status sn_span_kv_pool(sn_span *span, size_t budget, sn_kv_pool **out, sn_err *err) {
    sn_kv_part parts[SN_KV_PARTS_MAX];
    for (int i = 0; i < span->n_segments; i++)
        parts[i] = (sn_kv_part){span->segments[i].device, span->segments[i].end - span->segments[i].first,
                               span->kv_dtype};
    return sn_kv_pool_new(parts, span->n_segments, span->hp.n_kv_heads, span->hp.head_dim, budget, out, err);
}

sn_status sn_span_kv_export(const sn_span *span, sn_kv *kv, int block, int position, int n, float *k, float *v,
                            sn_err *err) {
    int i = 0;
    while (block >= span->segments[i].end) i++;
    return sn_kv_export(kv, i, block - span->segments[i].first, position, n, k, v, err);
}

sn_status sn_span_kv_import(const sn_span *span, sn_kv *kv, int block, int n, const sn_tensor *k, const sn_tensor *v,
                            sn_err *err) {
    const int64_t wanted[] = {n, span->hp.n_kv_heads, span->hp.head_dim};
    size_t floats = (size_t)n * (size_t)span->hp.n_kv_heads * (size_t)span->hp.head_dim;
    float *host = NULL; /* the backend's layout of pages is its own: it is given plain rows */
    int i = 0;
    while (block >= span->segments[i].end) i++;
    sn_status status = sn_calloc(&host, 2 * floats, sizeof *host, err);
    if (!status) status = sn_guard(k, NULL, 3, wanted, host, NULL, err);
    if (!status) status = sn_guard(v, NULL, 3, wanted, host + floats, NULL, err);
    if (!status) status = sn_kv_import(kv, i, block - span->segments[i].first, n, host, host + floats, err);
    free(host);
    return status;
}

/* -- a pass ----------------------------------------------------------------------------------------------------------
 */

/* The angle of pair i at position p is p * freq[i], as a float32 product like the reference's; its cosine and sine come
 * from base/math.h, the same on every machine, and are multiplied by the rope's scale. */
void sn_span_rope_row(const sn_hparams *hp, int rope, int position, float *row) {
    const float *freqs = sn_rope_freqs(hp, rope);
    for (int i = 0; i < hp->rope_dim / 2; i++) {
        float angle = (float)position * freqs[i];
        double sine, cosine;
        sn_sincos((double)angle, &sine, &cosine);
        row[2 * i] = (float)cosine * hp->rope_scale[rope];
        row[2 * i + 1] = (float)sine * hp->rope_scale[rope];
    }
}

/* Brings one part's rows through the guard to row `row` of the first device's hidden states. */
static sn_status bring_part(const sn_span *span, const sn_home *to, const sn_span_part *part, int row, uint64_t *moved,
                            sn_err *err) {
    int n_embd = span->hp.n_embd;
    sn_tensor now = *part->input;
    if (now.rank != 2 || now.shape[1] != n_embd || now.shape[0] < part->first_row + part->n_rows)
        return sn_fail(err, SN_REFUSED, "%s have shape (%lld, %lld) where (%d, %d) must be", now.name,
                       (long long)now.shape[0], (long long)now.shape[1], part->n_rows, n_embd);
    int64_t stride = now.strides[0] ? now.strides[0] : now.shape[1];
    if (now.data)
        now.data = (const char *)now.data + (size_t)part->first_row * (size_t)stride * sn_dtype_bytes(now.dtype);
    now.shape[0] = part->n_rows;
    int64_t wanted[] = {part->n_rows, n_embd};
    return sn_guard(&now, to->device, 2, wanted, to->scratch.x + (size_t)row * (size_t)n_embd, moved, err);
}

static sn_status bring_in(sn_span *span, const sn_home *to, int n_parts, const sn_span_part *parts, int *n_rows,
                          uint64_t *moved, sn_err *err) {
    int rows = 0;
    for (int i = 0; i < n_parts; i++) {
        const sn_span_part *part = &parts[i];
        assert(part->n_rows > 0 && rows + part->n_rows <= SN_SPAN_ROWS_MAX);
        sn_status status = bring_part(span, to, part, rows, moved, err);
        if (status) return status;
        for (int rope = 0; rope < span->hp.n_ropes; rope++)
            for (int r = 0; r < part->n_rows; r++)
                sn_span_rope_row(&span->hp, rope, sn_kv_length(part->kv) + r,
                                 span->cos_sin + (size_t)rope * table_floats(&span->hp) +
                                     (size_t)(rows + r) * (size_t)span->hp.rope_dim);
        rows += part->n_rows;
    }
    *n_rows = rows;
    return SN_OK;
}

/* The hidden states of a pass from one device to the next, and the rope tables if the device has not got them yet. */
static sn_status hand_over(const sn_span *span, const sn_home *from, const sn_home *to, int n_rows, bool table_is_there,
                           uint64_t *moved, sn_err *err) {
    sn_status status = SN_OK;
    if (from && from != to) {
        int64_t shape[] = {n_rows, span->hp.n_embd};
        sn_tensor x = {.name = "hidden states",
                       .device = from->device,
                       .data = from->scratch.x,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {shape[0], shape[1]}};
        status = sn_guard(&x, to->device, 2, shape, to->scratch.x, moved, err);
    }
    for (int rope = 0; rope < span->hp.n_ropes && !status && !table_is_there; rope++)
        status = to->device->ops->upload(to->device, to->scratch.cos_sin[rope],
                                         span->cos_sin + (size_t)rope * table_floats(&span->hp),
                                         (size_t)n_rows * (size_t)span->hp.rope_dim * sizeof(float), err);
    return status;
}

sn_home *sn_span_home(sn_span *span, const sn_segment *segment) {
    sn_home *h = span->homes;
    while (h->device != segment->device) h++;
    return h;
}

static bool in_host(const sn_device *device) { return !device || device->id.kind == SN_DEVICE_CPU; }

uint64_t sn_span_planned_bytes(const sn_span *span, int first, int end, int n_parts, const sn_span_part *parts) {
    uint64_t in = 0, all = 0, bytes = 0, width = (uint64_t)span->hp.n_embd;
    for (int p = 0; p < n_parts; p++) {
        uint64_t elements = (uint64_t)parts[p].n_rows * width;
        all += elements * sizeof(float);
        if (in_host(parts[p].input->device)) in += elements * sn_dtype_bytes(parts[p].input->dtype);
    }
    const sn_device *at = NULL;
    for (int i = 0; i < span->n_segments; i++) {
        const sn_device *next = span->segments[i].device;
        if (span->segments[i].end <= first || span->segments[i].first >= end) continue;
        if (!at)
            bytes += in_host(next) ? 0 : in;
        else if (at != next && !(in_host(at) && in_host(next)))
            bytes += all;
        at = next;
    }
    return bytes + (in_host(at) ? 0 : all);
}

/* Rows of the parts through the segment numbered i. */
static sn_status run_segment(sn_span *span, int i, int first, int end, const sn_tuning *tuning, int n_rows, int n_parts,
                             const sn_span_part *parts, sn_err *err) {
    sn_segment *segment = &span->segments[i];
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows)
        span->sequences[p] = sn_kv_sequence(parts[p].kv, i, row, parts[p].n_rows);
    const sn_pass pass = {sn_kv_shape_of(parts[0].kv, i), n_rows, n_parts, span->sequences, 0};
    const sn_block_tuning *tunings = tuning ? sn_tuning_of(tuning, segment->first) : NULL;
    return sn_segment_forward(segment, &span->hp, first > segment->first ? first : segment->first,
                              end < segment->end ? end : segment->end, &pass, tunings, err);
}

sn_status sn_span_forward(sn_span *span, int first, int end, int n_parts, const sn_span_part *parts, uint64_t *moved,
                          sn_err *err) {
    return sn_span_forward_tuned(span, first, end, NULL, n_parts, parts, moved, err);
}

sn_status sn_span_forward_tuned(sn_span *span, int first, int end, const sn_tuning *tuning, int n_parts,
                                const sn_span_part *parts, uint64_t *moved, sn_err *err) {
    assert(n_parts > 0 && n_parts <= SN_SPAN_ROWS_MAX && span->first <= first && first < end && end <= span->end);
    sn_home *at = NULL;
    int n_rows = 0;
    bool has_table[SN_PLAN_DEVICES_MAX] = {false};
    sn_status status = SN_OK;
    for (int i = 0; i < span->n_homes && tuning && !status; i++) status = add_tuned_scratch(&span->homes[i], &span->hp, err);
    for (int i = 0; i < span->n_segments && !status; i++) {
        if (span->segments[i].end <= first || span->segments[i].first >= end) continue;
        sn_home *next = sn_span_home(span, &span->segments[i]);
        if (!at) status = bring_in(span, next, n_parts, parts, &n_rows, moved, err);
        if (!status) status = hand_over(span, at, next, n_rows, has_table[next - span->homes], moved, err);
        has_table[next - span->homes] = true;
        at = next;
        if (!status) status = run_segment(span, i, first, end, tuning, n_rows, n_parts, parts, err);
    }
    size_t width = (size_t)span->hp.n_embd, row = 0;
    for (int i = 0; i < n_parts && !status; row += (size_t)parts[i++].n_rows)
        status = at->device->ops->download(at->device, parts[i].output, at->scratch.x + row * width,
                                           (size_t)parts[i].n_rows * width * sizeof(float), err);
    if (!status && moved && !in_host(at->device)) *moved += row * sizeof(float) * width;
    for (int i = 0; i < n_parts && !status; i++) sn_kv_append(parts[i].kv, parts[i].n_rows);
    return status;
}
