/* A pass of a sequence through the blocks is cut into pieces, so that others can use the devices in between: sn_train
 * keeps what stands between two pieces. There are four stages; a stage takes the rows of a block in their order:
 *
 *   FORWARD     the block's forward pass; the hidden states that enter it are downloaded where a backward pass needs
 * them RECOMPUTE, HALVES, QKV     the three steps of its backward pass (block_grad.h); the first one uploads these
 * hidden states, the last one downloads the gradients of the adapter
 *
 * A forward pass goes through the blocks in order with FORWARD alone. A backward pass without saved activations does
 * so, too, to get the inputs of all blocks but not their outputs (the last block is not run again); then it goes
 * through the blocks from last to first with the other stages, block by block; RECOMPUTE is left out where inner
 * activations were saved. A piece is either all stages and rows of some blocks of a segment, which are walked together
 * so that offloaded blocks are copied ahead, or, where that costs too much, some rows of one stage of one block.
 *
 * Rows that enter a segment come from outside or from the device of the segment before; they are copied with the piece
 * that uses them first. The buffers of a device (train_buffers) are one allocation for whole sequences; the KV pages at
 * its end hold one block, because each block overwrites those of the block before. */
#include "blocks/train.h"

#include "base/mem.h"
#include "blocks/moe.h"
#include "blocks/saved_activations.h"
#include "blocks/train_device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MULTIPLE = 8 /* the kernels compute 8 rows at once */ };

typedef enum train_stage { STAGE_FORWARD, STAGE_RECOMPUTE, STAGE_HALVES, STAGE_QKV } train_stage;

/* One pass of a sequence, and how far it is. */
typedef struct train_run {
    bool active;
    sn_train_sequence sequence;
    sn_tensor x, dout; /* as they were given */
    int n;             /* tokens */
    float *out;        /* host, (n, n_embd): the result: hidden states, or the gradient of x */
    float *grads;      /* host: gradients of the adapter */
    bool backward;
    float *block_inputs; /* host, (end - first, n, n_embd): hidden states that enter each block; or NULL */
    const sn_saved_activations *saved;    /* of this sequence, being made or used; NULL: none */
    sn_saved_activations *made, **result; /* what a forward pass saves, and who gets it at the end */
    /* The next piece begins with row `row` of this stage of this block. */
    int block, row;
    train_stage stage;
} train_run;

struct sn_train {
    sn_span *span;
    train_run run;
    int tokens_max;
    sn_train_device devices[SN_PLAN_DEVICES_MAX];
    float *block_inputs;              /* (blocks, tokens_max, n_embd) */
    float *cos_sin, *cos_sin_inverse; /* (n_ropes, or 2 with long_after; tokens_max, rope_dim) */
    float *q_factors;                 /* (tokens_max) */
    float *zeros;                     /* [n_zeros], to clear grads with */
    size_t n_zeros;
};

/* ---- memory ---- */

static size_t train_host_floats(const sn_span *span, int tokens) {
    return (size_t)tokens * ((size_t)(span->end - span->first) * (size_t)span->hp.n_embd +
                             2 * (size_t)span->hp.n_ropes * (size_t)span->hp.rope_dim);
}

size_t sn_train_bytes(const sn_span *span, int tokens_max) {
    size_t bytes = train_host_floats(span, tokens_max) * sizeof(float);
    for (int i = 0; i < span->n_devices; i++)
        bytes += sn_train_device_bytes(&span->hp, span->devices[i].device, tokens_max);
    return bytes;
}

sn_status sn_train_check_model(const sn_hparams *hp, int first, int end, sn_err *err) {
    const sn_heads heads = sn_usual_heads(hp);
    const char *why = hp->latent                                             ? "latent attention"
                      : sn_n_recurrent(hp, first, end)                       ? "a block with a recurrent state"
                      : hp->attn_gate || hp->head_gate                       ? "gated attention"
                      : hp->full_heads.n || heads.value_dim != heads.key_dim ? "attention with heads of two kinds"
                      : hp->norm_values                                      ? "attention with normed values"
                      : hp->act_order ? "a matrix with columns in the order of activations"
                                      : NULL;
    return why ? sn_fail(err, SN_REFUSED, "models of the %s family cannot be trained: %s has no backward pass",
                         hp->family, why)
               : SN_OK;
}

sn_status sn_train_new(sn_span *span, int tokens_max, sn_train **out, sn_err *err) {
    sn_train *t = NULL;
    *out = NULL;
    sn_status status = sn_train_check_model(&span->hp, span->first, span->end, err);
    if (status) return status;
    if (sn_span_is_partial(span))
        return sn_fail(err, SN_REFUSED,
                       "nothing can be trained through blocks of which a node holds the experts %d:%d only: take nodes "
                       "that hold all",
                       span->held.first, span->held.end);
    for (int i = 0; i < span->n_segments; i++)
        if (sn_segment_has_experts_elsewhere(&span->segments[i], span->segments[i].first, span->segments[i].end))
            return sn_fail(err, SN_REFUSED,
                           "nothing can be trained through blocks whose experts rest elsewhere than on their device");
    if (tokens_max < 1 || tokens_max > span->hp.n_ctx)
        return sn_fail(err, SN_REFUSED, "sequences of %d tokens cannot be trained: the model's context is %d",
                       tokens_max, span->hp.n_ctx);
    status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) return status;
    size_t rows = (size_t)tokens_max, width = (size_t)span->hp.rope_dim,
           ropes = span->hp.long_after ? 2 : (size_t)span->hp.n_ropes;
    t->span = span;
    t->tokens_max = tokens_max;
    status = sn_calloc(&t->block_inputs, rows * (size_t)(span->end - span->first) * (size_t)span->hp.n_embd,
                       sizeof(float), err);
    if (!status) status = sn_calloc(&t->cos_sin, ropes * rows * width, sizeof(float), err);
    if (!status) status = sn_calloc(&t->cos_sin_inverse, ropes * rows * width, sizeof(float), err);
    if (!status) status = sn_calloc(&t->q_factors, rows, sizeof(float), err);
    for (size_t i = 0; i < rows && !status && span->hp.q_growth > 0; i++)
        t->q_factors[i] = sn_span_q_factor(&span->hp, (int)i);
    for (size_t p = 0; p < ropes * rows && !status; p++) {
        sn_span_rope_row(&span->hp, (int)(p / rows), (int)(p % rows), t->cos_sin + p * width);
        for (size_t i = 0; i < width; i++)
            t->cos_sin_inverse[p * width + i] = i % 2 ? -t->cos_sin[p * width + i] : t->cos_sin[p * width + i];
    }
    for (int i = 0; i < span->n_devices && !status; i++)
        status = sn_train_device_init(&span->hp, span->devices[i].device, tokens_max, &t->devices[i], err);
    if (status) sn_train_free(&t);
    *out = t;
    return status;
}

void sn_train_free(sn_train **train) {
    sn_train *t = *train;
    if (!t) return;
    sn_saved_activations_free(&t->run.made);
    for (int i = 0; i < SN_PLAN_DEVICES_MAX; i++) sn_train_device_fini(&t->devices[i]);
    free(t->block_inputs);
    free(t->cos_sin);
    free(t->cos_sin_inverse);
    free(t->q_factors);
    free(t->zeros);
    free(t);
    *train = NULL;
}

/* ---- a piece ---- */

/* What a piece computes: rows [row, row + n) of the stages [stage, last] of the blocks [first, end) of a segment. */
typedef struct piece {
    sn_train *train;
    const train_run *run;
    sn_train_device *dev;
    sn_segment *segment;
    int first, end, row, n;
    train_stage stage, last;
    sn_kv_shape shape; /* batch_begin keeps the addresses of these two */
    sn_sequence sequence;
} piece;

static size_t run_width(const sn_train *t) { return (size_t)t->span->hp.n_embd; }
static size_t piece_bytes(const piece *p) { return (size_t)p->n * run_width(p->train) * sizeof(float); }

/* Where the rows of a piece begin in a host array (n, n_embd) of the sequence. */
static float *piece_rows(const piece *p, float *rows) { return rows + (size_t)p->row * run_width(p->train); }
static float *piece_block_input(const piece *p, int block) {
    size_t rows = (size_t)(block - p->run->sequence.first) * (size_t)p->run->n;
    return piece_rows(p, p->run->block_inputs + rows * run_width(p->train));
}

/* The scratch of the piece's device from the piece's first row on, with the inner activations of the block where they
 * are saved. */
static sn_grad_scratch piece_scratch(const piece *p, int block) {
    sn_grad_scratch s = p->dev->scratch;
    float **buffer[SN_TRAIN_BUFFERS];
    size_t width[SN_TRAIN_BUFFERS];
    if (p->run->saved) sn_saved_activations_bind_inner(p->run->saved, block, &s);
    s.dlogits = p->dev->scratch.logits;
    s.dexpert_out = p->dev->scratch.expert_out;
    sn_train_buffers(&p->train->span->hp, &s, buffer, width);
    for (int i = 0; i < SN_TRAIN_BUFFERS; i++)
        if (width[i]) *buffer[i] += (size_t)p->row * width[i];
    if (s.dlogits) s.dlogits += (size_t)p->row * (size_t)p->train->span->hp.n_experts;
    if (s.dexpert_out)
        s.dexpert_out += (size_t)p->row * (size_t)p->train->span->hp.n_experts_used * run_width(p->train);
    return s;
}

static sn_train_device *train_device_of(sn_train *t, const sn_segment *segment) {
    sn_train_device *h = t->devices;
    while (h->device != segment->device) h++;
    return h;
}

/* Blocks of the run in a segment: [*from, *to). */
static void run_blocks_of(const train_run *r, const sn_segment *g, int *from, int *to) {
    *from = r->sequence.first > g->first ? r->sequence.first : g->first;
    *to = r->sequence.end < g->end ? r->sequence.end : g->end;
}

/* Copies the piece's rows of a tensor from outside to `to`, on the piece's device. */
static sn_status piece_upload(const piece *p, const sn_tensor *from, float *to, sn_err *err) {
    const int64_t shape[] = {p->n, p->train->span->hp.n_embd};
    sn_tensor rows = *from;
    int64_t stride = from->strides[0] || from->strides[1] ? from->strides[0] : from->shape[1];
    rows.data = (const char *)from->data + p->row * stride * (int64_t)sn_dtype_bytes(from->dtype);
    rows.shape[0] = p->n;
    return sn_guard(&rows, p->dev->device, 2, shape, to, NULL, err);
}

/* The rows that enter the piece's segment at block `entered`, from outside or from the device of the neighbouring
 * segment; `name` and `offset` are those of the member of scratch. */
static sn_status piece_enter(const piece *p, const sn_tensor *outside, int neighbour, size_t offset, sn_err *err) {
    float *to = *(float **)(void *)((char *)&p->dev->scratch + offset);
    if (neighbour < p->run->sequence.first || neighbour >= p->run->sequence.end)
        return piece_upload(p, outside, piece_rows(p, to), err);
    const sn_segment *g = p->train->span->segments;
    while (neighbour < g->first || neighbour >= g->end) g++;
    sn_train_device *other = train_device_of(p->train, g);
    sn_tensor at = {.name = outside->name,
                    .device = other->device,
                    .data = *(float **)(void *)((char *)&other->scratch + offset),
                    .dtype = SN_F32,
                    .rank = 2,
                    .shape = {p->run->n, p->train->span->hp.n_embd}};
    return other == p->dev ? SN_OK : piece_upload(p, &at, piece_rows(p, to), err);
}

static sn_status piece_upload_rope(const piece *p, sn_err *err) {
    const sn_grad_scratch *s = &p->dev->scratch;
    size_t floats = (size_t)p->train->tokens_max * (size_t)p->train->span->hp.rope_dim, bytes = floats * sizeof(float);
    sn_device *d = p->dev->device;
    const bool is_long = sn_is_long(&p->train->span->hp, p->run->n);
    sn_status status = SN_OK;
    if (is_long != p->dev->is_long) p->dev->has_cos_sin = false;
    for (int i = 0; i < p->train->span->hp.n_ropes && !status && !p->dev->has_cos_sin; i++) {
        size_t at = (is_long ? 1 : (size_t)i) * floats;
        status = d->ops->upload(d, s->cos_sin[i], p->train->cos_sin + at, bytes, err);
        if (!status) status = d->ops->upload(d, s->cos_sin_inverse[i], p->train->cos_sin_inverse + at, bytes, err);
    }
    if (!status && !p->dev->has_cos_sin && p->train->span->hp.q_growth > 0)
        status =
            d->ops->upload(d, s->q_factors, p->train->q_factors, (size_t)p->train->tokens_max * sizeof(float), err);
    p->dev->has_cos_sin = !status;
    p->dev->is_long = is_long;
    return status;
}

/* Zeroes `floats` gradients on the piece's device, allocating them first if needed. */
static sn_status piece_clear_grads(const piece *p, size_t floats, sn_err *err) {
    sn_train_device *h = p->dev;
    sn_train *t = p->train;
    size_t bytes = floats * sizeof(float);
    if (bytes > h->grads_bytes) {
        void *grown = NULL;
        sn_status status = h->device->ops->alloc(h->device, bytes, &grown, err);
        if (status) return status;
        h->device->ops->free(h->device, h->grads, h->grads_bytes);
        h->grads = grown;
        h->grads_bytes = bytes;
    }
    if (floats > t->n_zeros) {
        float *zeros = NULL;
        sn_status status = sn_calloc(&zeros, floats, sizeof *zeros, err);
        if (status) return status;
        free(t->zeros);
        t->zeros = zeros;
        t->n_zeros = floats;
    }
    return floats ? h->device->ops->upload(h->device, h->grads, t->zeros, bytes, err) : SN_OK;
}

/* Where the gradients of a block's LoRA matrices go: in the order that sn_adapter_n_params describes. */
static sn_block_grads adapter_grads_layout(const sn_block_adapter *adapter, float *at) {
    sn_block_grads grads = {0};
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        const sn_weight *a = &adapter->lora[role].a, *b = &adapter->lora[role].b;
        if (!a->rows) continue;
        grads.lora[role].a = at;
        grads.lora[role].b = at + a->rows * a->cols;
        at += a->rows * a->cols + b->rows * b->cols;
    }
    return grads;
}

/* Gradients of a block's adapter, in floats. */
typedef struct adapter_floats {
    size_t prompt, lora;
} adapter_floats;
static adapter_floats piece_adapter_floats(const piece *p, int block) {
    const sn_adapter *adapter = p->run->sequence.adapter;
    if (!adapter) return (adapter_floats){0};
    size_t prompt = (size_t)sn_adapter_block(adapter, block)->n_prompt * run_width(p->train);
    return (adapter_floats){prompt, sn_adapter_n_params(adapter, block, block + 1) - prompt};
}

/* After the last row of a block: the gradients of its adapter. */
static sn_status piece_download_grads(const piece *p, int block, sn_err *err) {
    sn_device *d = p->dev->device;
    const adapter_floats n = piece_adapter_floats(p, block);
    float *at = p->run->grads + sn_adapter_n_params(p->run->sequence.adapter, p->run->sequence.first, block);
    /* A prompt is added to x, so its gradient is that of x, as far as the sequence reaches; beyond, zero. */
    size_t reached = sn_min_size(n.prompt, (size_t)p->run->n * run_width(p->train));
    memset(at, 0, n.prompt * sizeof(float));
    if (reached) SN_TRY(d->ops->download(d, at, p->dev->scratch.dy, reached * sizeof(float), err));
    return n.lora ? d->ops->download(d, at + n.prompt, p->dev->grads, n.lora * sizeof(float), err) : SN_OK;
}

/* ---- stages of a block ---- */

static sn_backward_pass stage_pass(const piece *p, int block, const sn_grad_scratch *s, const sn_block_grads *grads) {
    const sn_adapter *adapter = p->run->sequence.adapter;
    return (sn_backward_pass){.device = p->dev->device,
                              .hp = &p->train->span->hp,
                              .scratch = s,
                              .sequence = &p->sequence,
                              .adapter = adapter ? sn_adapter_block(adapter, block) : NULL,
                              .grads = grads,
                              .number = block,
                              .saved = p->run->saved && sn_saved_activations_has_inner(p->run->saved)};
}

static sn_status stage_forward(const piece *p, int number, const sn_block *block, sn_err *err) {
    sn_device *d = p->dev->device;
    const train_run *r = p->run;
    const sn_grad_scratch s = piece_scratch(p, number);
    const sn_backward_pass pass = stage_pass(p, number, &s, NULL);
    int from, to;
    run_blocks_of(r, p->segment, &from, &to);
    if (number == from) SN_TRY(piece_enter(p, &r->x, number - 1, offsetof(sn_grad_scratch, x), err));
    if (r->block_inputs) SN_TRY(d->ops->download(d, piece_block_input(p, number), s.x, piece_bytes(p), err));
    if (r->backward && number == r->sequence.end - 1) return SN_OK; /* its output is not needed */
    SN_TRY(sn_block_forward_saving(block, &pass, err));
    if (r->backward || number != r->sequence.end - 1) return SN_OK;
    return d->ops->download(d, piece_rows(p, r->out), s.x, piece_bytes(p), err);
}

static train_stage run_first_stage(const train_run *r) {
    return r->saved && sn_saved_activations_has_inner(r->saved) ? STAGE_HALVES : STAGE_RECOMPUTE;
}

static sn_status stage_backward(const piece *p, train_stage stage, int number, const sn_block *block, sn_err *err) {
    sn_device *d = p->dev->device;
    const train_run *r = p->run;
    const sn_grad_scratch s = piece_scratch(p, number);
    sn_block_grads grads = {0};
    size_t lora = piece_adapter_floats(p, number).lora;
    int from, to;
    run_blocks_of(r, p->segment, &from, &to);
    if (stage == run_first_stage(r)) SN_TRY(d->ops->upload(d, s.x, piece_block_input(p, number), piece_bytes(p), err));
    if (stage == STAGE_HALVES && !p->row) SN_TRY(piece_clear_grads(p, lora, err));
    if (stage == STAGE_HALVES && number == to - 1)
        SN_TRY(piece_enter(p, &r->dout, number + 1, offsetof(sn_grad_scratch, dy), err));
    if (lora && stage != STAGE_RECOMPUTE)
        grads = adapter_grads_layout(sn_adapter_block(r->sequence.adapter, number), p->dev->grads);
    const sn_backward_pass pass = stage_pass(p, number, &s, lora ? &grads : NULL);
    if (stage == STAGE_RECOMPUTE) return sn_block_recompute(block, &pass, err);
    if (stage == STAGE_HALVES) return sn_block_backward_halves(block, &pass, err);
    SN_TRY(sn_block_backward_qkv(block, &pass, err));
    if (r->sequence.adapter && p->row + p->n == r->n) SN_TRY(piece_download_grads(p, number, err));
    return number == r->sequence.first ? d->ops->download(d, piece_rows(p, r->out), s.dy, piece_bytes(p), err) : SN_OK;
}

static sn_status visit_block(void *ctx, int number, const sn_block *block, sn_err *err) {
    const piece *p = ctx;
    if (p->stage == STAGE_FORWARD) return stage_forward(p, number, block, err);
    for (train_stage stage = p->stage; stage <= p->last; stage++) SN_TRY(stage_backward(p, stage, number, block, err));
    return SN_OK;
}

static sn_status piece_run(piece *p, sn_err *err) {
    sn_device *d = p->segment->device;
    bool replayed;
    p->shape = sn_train_kv_shape(&p->train->span->hp);
    p->sequence = (sn_sequence){p->dev->pages, p->row, 0, p->n, {0}};
    const sn_batch batch = {&p->shape, p->n, 1, &p->sequence, 0};
    SN_TRY(piece_upload_rope(p, err));
    SN_TRY(d->ops->batch_begin(d, &batch, &replayed, err));
    sn_status status = sn_segment_walk(p->segment, p->first, p->end, p->stage != STAGE_FORWARD, visit_block, p, err);
    return sn_device_batch_end(d, &batch, status, err);
}

/* ---- cutting a pass into pieces ---- */

/* How many keys make the attention of a row as costly as the row's products with the weights of a block, on CPUs. */
static size_t keys_per_row_cost(const sn_hparams *hp) {
    size_t q = (size_t)hp->n_heads * (size_t)hp->head_dim, kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    size_t ff = (size_t)hp->n_ff * (hp->n_experts_used ? (size_t)hp->n_experts_used : 1);
    size_t keys = (size_t)hp->n_embd * (2 * q + 2 * kv + (hp->gated ? 3 : 2) * ff) / (6 * q);
    return keys ? keys : 1;
}

/* The cost of rows [row, row + n) of a stage, by what stages take on CPUs: products with weights as float32 take longer
 * than with quantised ones, and attention's gradients several times as long as attention. */
static size_t stage_cost(const sn_train *t, train_stage stage, int row, int n) {
    static const size_t row_cost[] = {1, 1, 4, 1}, keys_cost[] = {1, 1, 8, 0};
    size_t keys = (size_t)row + (size_t)n / 2; /* the mean of those that a row sees */
    size_t attention = keys_cost[stage] * keys * SN_TRAIN_ROW_COST / keys_per_row_cost(&t->span->hp);
    return (size_t)n * (row_cost[stage] * SN_TRAIN_ROW_COST + attention);
}

static train_stage run_last_stage(const train_run *r) { return r->stage == STAGE_FORWARD ? STAGE_FORWARD : STAGE_QKV; }
static train_stage run_block_stage(const train_run *r) {
    return r->stage == STAGE_FORWARD ? STAGE_FORWARD : run_first_stage(r);
}

/* The cost of all stages and rows of a block. */
static size_t run_block_cost(const sn_train *t) {
    size_t cost = 0;
    for (train_stage stage = run_block_stage(&t->run); stage <= run_last_stage(&t->run); stage++)
        cost += stage_cost(t, stage, 0, t->run.n);
    return cost;
}

/* The next piece that costs at most `budget`, or the smallest one. */
static piece run_next_piece(sn_train *t, size_t budget, size_t *cost) {
    const train_run *r = &t->run;
    piece p = {.train = t, .run = r, .segment = t->span->segments, .first = r->block, .end = r->block + 1};
    int from, to;
    while (r->block >= p.segment->end) p.segment++;
    p.dev = train_device_of(t, p.segment);
    run_blocks_of(r, p.segment, &from, &to);
    p.stage = p.last = r->stage;
    p.row = r->row;
    *cost = run_block_cost(t);
    if (r->stage == run_block_stage(r) && !r->row && *cost <= budget) {
        bool back = r->stage != STAGE_FORWARD;
        size_t blocks = sn_min_size(budget / *cost, (size_t)(back ? r->block + 1 - from : to - r->block));
        if (back)
            p.first = p.end - (int)blocks;
        else
            p.end = p.first + (int)blocks;
        p.last = run_last_stage(r);
        p.n = r->n;
        *cost *= blocks;
        return p;
    }
    int left = r->n - r->row;
    p.n = left < ROWS_MULTIPLE ? left : ROWS_MULTIPLE;
    while (p.n < left && p.n < SN_SPAN_ROWS) {
        int more = left - p.n < ROWS_MULTIPLE ? left : p.n + ROWS_MULTIPLE;
        if (stage_cost(t, r->stage, r->row, more) > budget) break;
        p.n = more;
    }
    *cost = stage_cost(t, r->stage, r->row, p.n);
    return p;
}

/* Moves on behind a piece. */
static void run_advance(train_run *r, const piece *p) {
    bool back = p->stage != STAGE_FORWARD;
    r->row = p->row + p->n;
    if (r->row < r->n) return;
    r->row = 0;
    r->stage = p->last + 1;
    if (back && r->stage <= STAGE_QKV) return;
    r->block = back ? p->first - 1 : p->end;
    r->stage = back ? run_first_stage(r) : STAGE_FORWARD;
    if (!back && r->block == r->sequence.end && r->backward) {
        r->block--;
        r->stage = run_first_stage(r);
    } else if (r->block < r->sequence.first || r->block == r->sequence.end) {
        r->active = false;
    }
}

size_t sn_train_saving(const sn_train *t) { return t->run.made ? sn_saved_activations_bytes(t->run.made) : 0; }

sn_status sn_train_run(sn_train *t, size_t budget, size_t *spent, bool *done, sn_err *err) {
    train_run *r = &t->run;
    sn_status status = SN_OK;
    size_t cost = 0, sum = 0;
    assert(r->active);
    do {
        piece p = run_next_piece(t, budget - sum, &cost);
        if (sum && cost > budget - sum) break;
        status = piece_run(&p, err);
        sum += cost;
        if (!status) run_advance(r, &p);
    } while (r->active && !status && sum < budget);
    if (spent) *spent = sum;
    *done = status || !r->active;
    if (!*done) return SN_OK;
    if (status) sn_saved_activations_free(&r->made);
    if (r->result) *r->result = r->made;
    *r = (train_run){0};
    return status;
}

void sn_train_cancel(sn_train *t) {
    sn_saved_activations_free(&t->run.made);
    t->run = (train_run){0};
}

/* ---- passes ---- */

static sn_status run_init(sn_train *train, const sn_train_sequence *sequence, sn_err *err) {
    const sn_tensor *x = sequence->x;
    assert(!train->run.active && train->span->first <= sequence->first && sequence->first < sequence->end &&
           sequence->end <= train->span->end);
    if (x->rank != 2 || x->shape[0] < 1 || x->shape[0] > train->tokens_max || x->shape[1] != train->span->hp.n_embd)
        return sn_fail(err, SN_REFUSED, "%s of shape (%lld, %lld) are no sequence of at most %d tokens of this model",
                       x->name, (long long)x->shape[0], (long long)x->shape[1], train->tokens_max);
    train->run = (train_run){.active = true,
                             .sequence = *sequence,
                             .x = *x,
                             .n = (int)x->shape[0],
                             .block = sequence->first,
                             .stage = STAGE_FORWARD};
    return SN_OK;
}

sn_status sn_train_start_forward(sn_train *train, const sn_train_sequence *sequence, float *out, size_t saved_bytes_max,
                                 sn_saved_activations **saved, sn_err *err) {
    train_run *r = &train->run;
    if (saved) *saved = NULL;
    sn_status status = run_init(train, sequence, err);
    if (status) return status;
    r->out = out;
    r->result = saved;
    if (saved) r->made = sn_saved_activations_new(train->span, sequence->first, sequence->end, r->n, saved_bytes_max);
    r->saved = r->made;
    r->block_inputs = r->made ? r->made->block_inputs : NULL;
    return SN_OK;
}

sn_status sn_train_start_backward(sn_train *train, const sn_train_sequence *sequence, const sn_saved_activations *saved,
                                  const sn_tensor *dout, float *dx, float *grads, sn_err *err) {
    train_run *r = &train->run;
    if (dout->rank != 2 || dout->shape[0] != sequence->x->shape[0] || dout->shape[1] != sequence->x->shape[1])
        return sn_fail(err, SN_REFUSED, "the %s do not have the shape of the hidden states", dout->name);
    sn_status status = run_init(train, sequence, err);
    if (status) return status;
    r->backward = true;
    r->dout = *dout;
    r->out = dx;
    r->grads = grads;
    r->block_inputs = train->block_inputs;
    if (!saved) return SN_OK;
    assert(saved->first == sequence->first && saved->end == sequence->end && saved->n == r->n);
    r->block_inputs = (float *)(uintptr_t)saved->block_inputs; /* only read */
    r->saved = saved;
    r->block = sequence->end - 1;
    r->stage = run_first_stage(r);
    return SN_OK;
}
