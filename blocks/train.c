/* A pass walks over the blocks segment by segment (sn_segment_walk) and calls a visitor for each block. Where two
 * segments lie on different devices, the hidden states or gradients are copied between.
 *
 *   visit_forward    downloads the hidden states that enter the block, if they are wanted, and runs its forward pass:
 * the one of block.c, or, where inner activations are saved, the one of block_grad.c that keeps them. visit_backward
 * uploads these hidden states, runs the block's backward pass, and downloads the gradients of its adapter. Blocks come
 * from last to first, so `grads` is filled from its end.
 *
 * A backward pass without saved activations repeats the forward pass first, to get the inputs of all blocks but not
 * their outputs: the last block is not run again.
 *
 * The buffers of a device (train_buffers) are one allocation; the KV pages at its end hold one block, because each
 * block overwrites those of the block before. */
#include "blocks/train.h"

#include "base/mem.h"
#include "blocks/moe.h"
#include "blocks/saved_activations.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { N_BUFFERS = 33 };

/* A device of the span: activations, gradients and KV pages (of one block) of one sequence. */
typedef struct train_device {
    sn_device *device;
    sn_grad_scratch scratch;
    void *memory; /* device: the buffers of scratch, then the KV pages */
    size_t bytes;
    void **pages;
    float *grads; /* device: gradients of one block's LoRA matrices; reallocated when a block has more */
    size_t grads_bytes;
    bool has_cos_sin; /* the rope tables are uploaded */
} train_device;

struct sn_train {
    sn_span *span;
    int tokens_max;
    train_device devices[SN_PLAN_DEVICES_MAX];
    float *block_inputs;              /* (blocks, tokens_max, n_embd) */
    float *cos_sin, *cos_sin_inverse; /* (n_ropes, tokens_max, rope_dim) */
    float *zeros;                     /* [n_zeros], to clear grads with */
    size_t n_zeros;
};

/* ---- memory ---- */

static size_t count_pages(int tokens) { return ((size_t)tokens + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS; }
static sn_kv_shape train_kv_shape(const sn_hparams *hp) {
    return (sn_kv_shape){1, hp->n_kv_heads, hp->head_dim, SN_KV_PAGE_TOKENS, SN_KV_F32};
}

/* The members of sn_grad_scratch with the elements per row of each. Returns the widest row that a matrix reads or
 * writes.
 */
static size_t train_buffers(const sn_hparams *hp, sn_grad_scratch *s, float **buffer[N_BUFFERS],
                            size_t width[N_BUFFERS]) {
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff, q = (size_t)hp->n_heads * (size_t)hp->head_dim;
    size_t kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim, rope = (size_t)hp->rope_dim;
    size_t widest = embd > q ? embd : q, post_norm = hp->post_norm ? embd : 0, rope2 = hp->n_ropes > 1 ? rope : 0;
    size_t used = (size_t)hp->n_experts_used, expert_out = used * embd,
           router_out = hp->n_experts ? sn_moe_router_width(hp) : 0;
    if (ff > widest) widest = ff;
    if (used) ff *= used;
    const struct {
        float **at;
        size_t width;
    } all[N_BUFFERS] = {{&s->x, embd},
                        {&s->mid, embd},
                        {&s->h1, embd},
                        {&s->h2, embd},
                        {&s->dy, embd},
                        {&s->dh, embd},
                        {&s->q0, q},
                        {&s->q, q},
                        {&s->attn, q},
                        {&s->dq, q},
                        {&s->dattn, q},
                        {&s->k0, kv},
                        {&s->k, kv},
                        {&s->v, kv},
                        {&s->dk, kv},
                        {&s->dv, kv},
                        {&s->gate, ff},
                        {&s->up, ff},
                        {&s->act, ff},
                        {&s->dgate, ff},
                        {&s->dup, ff},
                        {&s->lora_mid, SN_LORA_RANK_MAX},
                        {&s->dlora_mid, SN_LORA_RANK_MAX},
                        {&s->lora_out, widest},
                        {&s->o1, post_norm},
                        {&s->o2, post_norm},
                        {&s->cos_sin[0], rope},
                        {&s->cos_sin_inverse[0], rope},
                        {&s->cos_sin[1], rope2},
                        {&s->cos_sin_inverse[1], rope2},
                        {&s->router_out, router_out},
                        {&s->dexpert_weights, used},
                        {&s->expert_out, expert_out}};
    for (int i = 0; i < N_BUFFERS; i++) {
        buffer[i] = all[i].at;
        width[i] = all[i].width;
    }
    return widest;
}

static size_t buffer_bytes(size_t width, int tokens) { return sn_round_up(width * (size_t)tokens * sizeof(float), 64); }

static size_t train_device_bytes(const sn_hparams *hp, const sn_device *device, int tokens) {
    sn_grad_scratch none;
    float **buffer[N_BUFFERS];
    size_t width[N_BUFFERS], bytes = 0;
    const sn_kv_shape shape = train_kv_shape(hp);
    train_buffers(hp, &none, buffer, width);
    for (int i = 0; i < N_BUFFERS; i++) bytes += buffer_bytes(width[i], tokens);
    return bytes + count_pages(tokens) * device->ops->kv_page_bytes(device, &shape);
}

static size_t train_host_floats(const sn_span *span, int tokens) {
    return (size_t)tokens * ((size_t)(span->end - span->first) * (size_t)span->hp.n_embd +
                             2 * (size_t)span->hp.n_ropes * (size_t)span->hp.rope_dim);
}

size_t sn_train_bytes(const sn_span *span, int tokens_max) {
    size_t bytes = train_host_floats(span, tokens_max) * sizeof(float);
    for (int i = 0; i < span->n_devices; i++)
        bytes += train_device_bytes(&span->hp, span->devices[i].device, tokens_max);
    return bytes;
}

static sn_status train_device_init(const sn_hparams *hp, sn_device *device, int tokens, train_device *h, sn_err *err) {
    float **buffer[N_BUFFERS];
    size_t width[N_BUFFERS], widest = train_buffers(hp, &h->scratch, buffer, width), n_pages = count_pages(tokens);
    const sn_kv_shape shape = train_kv_shape(hp);
    sn_device_limits limits = {.rows = tokens,
                               .width = (int)widest,
                               .context = tokens,
                               .experts = hp->n_experts,
                               .experts_used = hp->n_experts_used};
    h->device = device;
    h->bytes = train_device_bytes(hp, device, tokens);
    sn_status status = sn_calloc(&h->pages, n_pages, sizeof *h->pages, err);
    if (!status) status = device->ops->prepare(device, &limits, err);
    if (!status) status = device->ops->alloc(device, h->bytes, &h->memory, err);
    if (status) return status;
    char *at = h->memory;
    for (int i = 0; i < N_BUFFERS; at += buffer_bytes(width[i++], tokens)) *buffer[i] = (float *)(void *)at;
    h->scratch.dlogits = h->scratch.router_out;
    h->scratch.dexpert_out = h->scratch.expert_out;
    for (size_t p = 0; p < n_pages; p++, at += device->ops->kv_page_bytes(device, &shape)) h->pages[p] = at;
    return SN_OK;
}

sn_status sn_train_new(sn_span *span, int tokens_max, sn_train **out, sn_err *err) {
    sn_train *t = NULL;
    *out = NULL;
    if (tokens_max < 1 || tokens_max > span->hp.n_ctx)
        return sn_fail(err, SN_REFUSED, "sequences of %d tokens cannot be trained: the model's context is %d",
                       tokens_max, span->hp.n_ctx);
    sn_status status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) return status;
    size_t rows = (size_t)tokens_max, width = (size_t)span->hp.rope_dim, ropes = (size_t)span->hp.n_ropes;
    t->span = span;
    t->tokens_max = tokens_max;
    status = sn_calloc(&t->block_inputs, rows * (size_t)(span->end - span->first) * (size_t)span->hp.n_embd,
                       sizeof(float), err);
    if (!status) status = sn_calloc(&t->cos_sin, ropes * rows * width, sizeof(float), err);
    if (!status) status = sn_calloc(&t->cos_sin_inverse, ropes * rows * width, sizeof(float), err);
    for (size_t p = 0; p < ropes * rows && !status; p++) {
        sn_span_rope_row(&span->hp, (int)(p / rows), (int)(p % rows), t->cos_sin + p * width);
        for (size_t i = 0; i < width; i++)
            t->cos_sin_inverse[p * width + i] = i % 2 ? -t->cos_sin[p * width + i] : t->cos_sin[p * width + i];
    }
    for (int i = 0; i < span->n_devices && !status; i++)
        status = train_device_init(&span->hp, span->devices[i].device, tokens_max, &t->devices[i], err);
    if (status) sn_train_free(&t);
    *out = t;
    return status;
}

void sn_train_free(sn_train **train) {
    sn_train *t = *train;
    if (!t) return;
    for (int i = 0; i < SN_PLAN_DEVICES_MAX; i++) {
        train_device *h = &t->devices[i];
        if (h->device) h->device->ops->free(h->device, h->memory, h->bytes);
        if (h->device) h->device->ops->free(h->device, h->grads, h->grads_bytes);
        free(h->pages);
    }
    free(t->block_inputs);
    free(t->cos_sin);
    free(t->cos_sin_inverse);
    free(t->zeros);
    free(t);
    *train = NULL;
}

/* ---- one sequence ---- */

typedef struct train_run {
    sn_train *train;
    train_device *dev;
    int n;             /* tokens */
    sn_kv_shape shape; /* batch_begin keeps the addresses of these two */
    sn_sequence sequence;
    const sn_adapter *adapter;
    int first, end;      /* blocks */
    float *block_inputs; /* host, (end - first, n, n_embd): hidden states that enter each block; or NULL */
    const sn_saved_activations *saved; /* of this sequence, being made or used; NULL: none */
    int skip;                          /* a forward pass does not run this block; -1: it runs all */
    float *grads; /* host: where the gradients end that are not computed yet; moves down from block to block */
} train_run;

static float *run_block_input(const train_run *j, int block) {
    return j->block_inputs + (size_t)(block - j->first) * (size_t)j->n * (size_t)j->train->span->hp.n_embd;
}
static size_t run_row_bytes(const train_run *j) {
    return (size_t)j->n * (size_t)j->train->span->hp.n_embd * sizeof(float);
}

/* Copies a tensor from outside, or from another device, to `to` on the current device. */
static sn_status run_upload(const train_run *j, const sn_tensor *from, float *to, sn_err *err) {
    const int64_t shape[] = {j->n, j->train->span->hp.n_embd};
    return sn_guard(from, j->dev->device, 2, shape, to, NULL, err);
}

static sn_status run_upload_rope(train_run *j, sn_err *err) {
    const sn_grad_scratch *s = &j->dev->scratch;
    size_t floats = (size_t)j->train->tokens_max * (size_t)j->train->span->hp.rope_dim, bytes = floats * sizeof(float);
    sn_device *d = j->dev->device;
    sn_status status = SN_OK;
    for (int i = 0; i < j->train->span->hp.n_ropes && !status && !j->dev->has_cos_sin; i++) {
        status = d->ops->upload(d, s->cos_sin[i], j->train->cos_sin + (size_t)i * floats, bytes, err);
        if (!status)
            status =
                d->ops->upload(d, s->cos_sin_inverse[i], j->train->cos_sin_inverse + (size_t)i * floats, bytes, err);
    }
    j->dev->has_cos_sin = !status;
    return status;
}

static sn_status run_begin_batch(train_run *j, const sn_segment *segment, sn_err *err) {
    sn_device *d = segment->device;
    bool replayed;
    sn_status status = run_upload_rope(j, err);
    j->shape = train_kv_shape(&j->train->span->hp);
    j->sequence = (sn_sequence){j->dev->pages, 0, 0, j->n};
    const sn_batch batch = {&j->shape, j->n, 1, &j->sequence, 0};
    return status ? status : d->ops->batch_begin(d, &batch, &replayed, err);
}

/* The scratch of the current device, with the inner activations of the block where they are saved. */
static sn_grad_scratch run_scratch(const train_run *j, int block) {
    sn_grad_scratch s = j->dev->scratch;
    if (j->saved) sn_saved_activations_bind_inner(j->saved, block, &s);
    return s;
}

static sn_status visit_forward(void *ctx, int number, const sn_block *block, sn_err *err) {
    train_run *j = ctx;
    sn_device *d = j->dev->device;
    const sn_grad_scratch *s = &j->dev->scratch;
    const sn_block_adapter *adapter = j->adapter ? sn_adapter_block(j->adapter, number) : NULL;
    sn_status status =
        j->block_inputs ? d->ops->download(d, run_block_input(j, number), s->x, run_row_bytes(j), err) : SN_OK;
    if (status || number == j->skip) return status;
    if (j->saved && sn_saved_activations_has_inner(j->saved)) {
        const sn_grad_scratch saving = run_scratch(j, number);
        const sn_backward_pass pass = {d, &j->train->span->hp, &saving, &j->sequence, adapter, NULL, number, false};
        return sn_block_forward_saving(block, &pass, err);
    }
    const sn_scratch forward = {.x = s->x,
                                .h = s->h1,
                                .ffn_input = s->h2,
                                .q = s->q,
                                .attn = s->attn,
                                .k = s->k,
                                .v = s->v,
                                .gate = s->gate,
                                .up = s->up,
                                .router_out = s->router_out,
                                .expert_out = s->expert_out,
                                .cos_sin = {s->cos_sin[0], s->cos_sin[1]},
                                .lora_mid = s->lora_mid,
                                .lora_out = s->lora_out};
    const sn_forward_pass pass = {d, &j->train->span->hp, &forward, j->n, 1, &j->sequence, adapter, number};
    return sn_block_forward(block, 0, &pass, err);
}

static train_device *train_device_of(sn_train *t, const sn_segment *segment) {
    train_device *h = t->devices;
    while (h->device != segment->device) h++;
    return h;
}

static sn_tensor run_tensor(const train_run *j, const char *name, const float *data) {
    return (sn_tensor){.name = name,
                       .device = j->dev->device,
                       .data = data,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {j->n, j->train->span->hp.n_embd}};
}

/* Runs x through the blocks; the result is scratch.x of j->dev. */
static sn_status run_forward(train_run *j, const sn_tensor *x, sn_err *err) {
    sn_span *span = j->train->span;
    sn_tensor at = *x;
    sn_status status = SN_OK;
    for (int i = 0; i < span->n_segments && !status; i++) {
        sn_segment *g = &span->segments[i];
        int from = j->first > g->first ? j->first : g->first, to = j->end < g->end ? j->end : g->end;
        if (from >= to) continue;
        j->dev = train_device_of(j->train, g);
        if (at.data != j->dev->scratch.x) status = run_upload(j, &at, j->dev->scratch.x, err);
        if (!status) status = run_begin_batch(j, g, err);
        if (!status) status = sn_segment_walk(g, from, to, false, visit_forward, j, err);
        if (!status) status = g->device->ops->batch_end(g->device, err);
        at = run_tensor(j, "hidden states", j->dev->scratch.x);
    }
    return status;
}

static sn_status run_init(sn_train *train, const sn_train_sequence *sequence, train_run *out, sn_err *err) {
    const sn_tensor *x = sequence->x;
    assert(train->span->first <= sequence->first && sequence->first < sequence->end &&
           sequence->end <= train->span->end);
    if (x->rank != 2 || x->shape[0] < 1 || x->shape[0] > train->tokens_max || x->shape[1] != train->span->hp.n_embd)
        return sn_fail(err, SN_REFUSED, "%s of shape (%lld, %lld) are no sequence of at most %d tokens of this model",
                       x->name, (long long)x->shape[0], (long long)x->shape[1], train->tokens_max);
    *out = (train_run){.train = train,
                       .n = (int)x->shape[0],
                       .adapter = sequence->adapter,
                       .first = sequence->first,
                       .end = sequence->end,
                       .skip = -1};
    return SN_OK;
}

sn_status sn_train_forward(sn_train *train, const sn_train_sequence *sequence, float *out, size_t saved_bytes_max,
                           sn_saved_activations **saved, sn_err *err) {
    train_run j;
    sn_saved_activations *k = NULL;
    sn_status status = run_init(train, sequence, &j, err);
    if (!status && saved) k = sn_saved_activations_new(train->span, j.first, j.end, j.n, saved_bytes_max);
    if (k) {
        j.block_inputs = k->block_inputs;
        j.saved = k;
    }
    if (!status) status = run_forward(&j, sequence->x, err);
    if (!status) status = j.dev->device->ops->download(j.dev->device, out, j.dev->scratch.x, run_row_bytes(&j), err);
    if (status) sn_saved_activations_free(&k);
    if (saved) *saved = k;
    return status;
}

/* ---- backward ---- */

/* Zeroes `floats` gradients on the current device, allocating them first if needed. */
static sn_status run_clear_grads(train_run *j, size_t floats, sn_err *err) {
    train_device *h = j->dev;
    sn_train *t = j->train;
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

static sn_status visit_backward(void *ctx, int number, const sn_block *block, sn_err *err) {
    train_run *j = ctx;
    sn_device *d = j->dev->device;
    const sn_grad_scratch scratch = run_scratch(j, number), *s = &scratch;
    const sn_block_adapter *adapter = j->adapter ? sn_adapter_block(j->adapter, number) : NULL;
    size_t floats = j->adapter ? sn_adapter_n_params(j->adapter, number, number + 1) : 0;
    size_t prompt = adapter ? (size_t)adapter->n_prompt * (size_t)j->train->span->hp.n_embd : 0, lora = floats - prompt;
    sn_block_grads grads = {0};
    sn_status status = d->ops->upload(d, s->x, run_block_input(j, number), run_row_bytes(j), err);
    if (!status && lora) status = run_clear_grads(j, lora, err);
    if (lora) grads = adapter_grads_layout(adapter, j->dev->grads);
    const sn_backward_pass pass = {
        d,       &j->train->span->hp,  s,      &j->sequence,
        adapter, lora ? &grads : NULL, number, j->saved && sn_saved_activations_has_inner(j->saved)};
    if (!status) status = sn_block_backward(block, &pass, err);
    j->grads -= floats;
    /* A prompt is added to x, so its gradient is that of x, as far as the sequence reaches; beyond, zero. */
    size_t n_reached = sn_min_size(prompt * sizeof(float), run_row_bytes(j));
    if (!status && prompt) memset(j->grads, 0, prompt * sizeof(float));
    if (!status && prompt) status = d->ops->download(d, j->grads, s->dy, n_reached, err);
    if (!status && lora) status = d->ops->download(d, j->grads + prompt, j->dev->grads, lora * sizeof(float), err);
    return status;
}

/* Runs dout back through the blocks, last to first; the result is scratch.dy of j->dev. */
static sn_status run_backward(train_run *j, const sn_tensor *dout, sn_err *err) {
    sn_span *span = j->train->span;
    sn_tensor at = *dout;
    sn_status status = SN_OK;
    for (int i = span->n_segments - 1; i >= 0 && !status; i--) {
        sn_segment *g = &span->segments[i];
        int from = j->first > g->first ? j->first : g->first, to = j->end < g->end ? j->end : g->end;
        if (from >= to) continue;
        j->dev = train_device_of(j->train, g);
        if (at.data != j->dev->scratch.dy) status = run_upload(j, &at, j->dev->scratch.dy, err);
        if (!status) status = run_begin_batch(j, g, err);
        if (!status) status = sn_segment_walk(g, from, to, true, visit_backward, j, err);
        if (!status) status = g->device->ops->batch_end(g->device, err);
        at = run_tensor(j, "gradients", j->dev->scratch.dy);
    }
    return status;
}

sn_status sn_train_backward(sn_train *train, const sn_train_sequence *sequence, const sn_saved_activations *saved,
                            const sn_tensor *dout, float *dx, float *grads, sn_err *err) {
    train_run j;
    sn_status status = run_init(train, sequence, &j, err);
    if (status) return status;
    j.skip = j.end - 1;
    j.block_inputs = train->block_inputs;
    if (saved) {
        assert(saved->first == j.first && saved->end == j.end && saved->n == j.n);
        j.block_inputs = (float *)(uintptr_t)saved->block_inputs; /* only read */
        j.saved = saved;
    } else {
        status = run_forward(&j, sequence->x, err);
    }
    j.grads = j.adapter ? grads + sn_adapter_n_params(j.adapter, j.first, j.end) : NULL;
    if (!status) status = run_backward(&j, dout, err);
    if (!status) status = j.dev->device->ops->download(j.dev->device, dx, j.dev->scratch.dy, run_row_bytes(&j), err);
    return status;
}
