#include "blocks/train.h"

#include "base/mem.h"
#include "blocks/experts.h"
#include "blocks/kept.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { N_BUFFERS = 33 };

/* A device of the span: one sequence's activations and gradients, and its past of one block. */
typedef struct train_home {
    sn_device *device;
    sn_grad_scratch scratch;
    void *memory; /* what the buffers and the pages lie in */
    size_t bytes;
    void **pages;
    float *grads; /* the tuning's on this device; grows when one needs more */
    size_t grads_bytes;
    bool has_table;
} train_home;

struct sn_train {
    sn_span *span;
    int tokens_max;
    train_home homes[SN_PLAN_DEVICES_MAX];
    float *entered;      /* (blocks, tokens_max, n_embd) */
    float *table, *back; /* (n_ropes, tokens_max, rope_dim) */
    float *zeros;        /* as many as the largest home's grads */
    size_t n_zeros;
};

/* -- memory */

static size_t count_pages(int tokens) { return ((size_t)tokens + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS; }
static sn_kv_shape shape_of(const sn_hparams *hp) {
    return (sn_kv_shape){1, hp->n_kv_heads, hp->head_dim, SN_KV_PAGE_TOKENS, SN_KV_F32};
}

/* The members of sn_grad_scratch with the width of each. Returns the widest. */
static size_t buffers_of(const sn_hparams *hp, sn_grad_scratch *s, float **buffer[N_BUFFERS], size_t width[N_BUFFERS]) {
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff, q = (size_t)hp->n_heads * (size_t)hp->head_dim;
    size_t kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim, rope = (size_t)hp->rope_dim;
    size_t widest = embd > q ? embd : q, added = hp->post_norm ? embd : 0, rope2 = hp->n_ropes > 1 ? rope : 0;
    size_t used = (size_t)hp->n_experts_used, each = used * embd, chosen = hp->n_experts ? sn_experts_chosen_width(hp) : 0;
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
                        {&s->low, SN_LORA_RANK_MAX},
                        {&s->dlow, SN_LORA_RANK_MAX},
                        {&s->wide, widest},
                        {&s->o1, added},
                        {&s->o2, added},
                        {&s->cos_sin[0], rope},
                        {&s->back[0], rope},
                        {&s->cos_sin[1], rope2},
                        {&s->back[1], rope2},
                        {&s->chosen, chosen},
                        {&s->dchosen, used},
                        {&s->each, each}};
    for (int i = 0; i < N_BUFFERS; i++) {
        buffer[i] = all[i].at;
        width[i] = all[i].width;
    }
    return widest;
}

static size_t padded(size_t width, int tokens) { return sn_round_up(width * (size_t)tokens * sizeof(float), 64); }

static size_t home_bytes(const sn_hparams *hp, const sn_device *device, int tokens) {
    sn_grad_scratch none;
    float **buffer[N_BUFFERS];
    size_t width[N_BUFFERS], bytes = 0;
    const sn_kv_shape shape = shape_of(hp);
    buffers_of(hp, &none, buffer, width);
    for (int i = 0; i < N_BUFFERS; i++) bytes += padded(width[i], tokens);
    return bytes + count_pages(tokens) * device->ops->kv_page_bytes(device, &shape);
}

static size_t host_floats(const sn_span *span, int tokens) {
    return (size_t)tokens *
           ((size_t)(span->end - span->first) * (size_t)span->hp.n_embd +
            2 * (size_t)span->hp.n_ropes * (size_t)span->hp.rope_dim);
}

size_t sn_train_bytes(const sn_span *span, int tokens_max) {
    size_t bytes = host_floats(span, tokens_max) * sizeof(float);
    for (int i = 0; i < span->n_homes; i++) bytes += home_bytes(&span->hp, span->homes[i].device, tokens_max);
    return bytes;
}

static sn_status open_home(const sn_hparams *hp, sn_device *device, int tokens, train_home *h, sn_err *err) {
    float **buffer[N_BUFFERS];
    size_t width[N_BUFFERS], widest = buffers_of(hp, &h->scratch, buffer, width), n_pages = count_pages(tokens);
    const sn_kv_shape shape = shape_of(hp);
    sn_device_limits limits = {.rows = tokens, .width = (int)widest, .context = tokens,
                               .experts = hp->n_experts, .experts_used = hp->n_experts_used};
    h->device = device;
    h->bytes = home_bytes(hp, device, tokens);
    sn_status status = sn_calloc(&h->pages, n_pages, sizeof *h->pages, err);
    if (!status) status = device->ops->prepare(device, &limits, err);
    if (!status) status = device->ops->alloc(device, h->bytes, &h->memory, err);
    if (status) return status;
    char *at = h->memory;
    for (int i = 0; i < N_BUFFERS; at += padded(width[i++], tokens))
        *buffer[i] = (float *)(void *)at;
    h->scratch.dlogits = h->scratch.chosen;
    h->scratch.deach = h->scratch.each;
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
    status =
        sn_calloc(&t->entered, rows * (size_t)(span->end - span->first) * (size_t)span->hp.n_embd, sizeof(float), err);
    if (!status) status = sn_calloc(&t->table, ropes * rows * width, sizeof(float), err);
    if (!status) status = sn_calloc(&t->back, ropes * rows * width, sizeof(float), err);
    for (size_t p = 0; p < ropes * rows && !status; p++) {
        sn_span_rope_row(&span->hp, (int)(p / rows), (int)(p % rows), t->table + p * width);
        for (size_t i = 0; i < width; i++)
            t->back[p * width + i] = i % 2 ? -t->table[p * width + i] : t->table[p * width + i];
    }
    for (int i = 0; i < span->n_homes && !status; i++)
        status = open_home(&span->hp, span->homes[i].device, tokens_max, &t->homes[i], err);
    if (status) sn_train_free(&t);
    *out = t;
    return status;
}

void sn_train_free(sn_train **train) {
    sn_train *t = *train;
    if (!t) return;
    for (int i = 0; i < SN_PLAN_DEVICES_MAX; i++) {
        train_home *h = &t->homes[i];
        if (h->device) h->device->ops->free(h->device, h->memory, h->bytes);
        if (h->device) h->device->ops->free(h->device, h->grads, h->grads_bytes);
        free(h->pages);
    }
    free(t->entered);
    free(t->table);
    free(t->back);
    free(t->zeros);
    free(t);
    *train = NULL;
}

/* -- one sequence */

typedef struct job {
    sn_train *train;
    train_home *home;
    int n;
    sn_kv_shape shape; /* pass_begin keeps these two by address */
    sn_sequence sequence;
    const sn_tuning *tuning;
    float *grads;     /* host: of the block that is worked on, and going down */
    size_t on_device; /* floats of home->grads that are in use */
    float *entered; /* (blocks from `first` on, n, n_embd), host: what enters each; NULL: it is not wanted */
    const sn_kept *kept; /* what is kept, or was; NULL: nothing */
    int first;
    int last; /* backwards: this block, the last one, need not be run. Else -1 */
} job;

static float *entered(const job *j, int block) {
    return j->entered + (size_t)(block - j->first) * (size_t)j->n * (size_t)j->train->span->hp.n_embd;
}
static size_t row_bytes(const job *j) { return (size_t)j->n * (size_t)j->train->span->hp.n_embd * sizeof(float); }

/* Brings a tensor from outside, or from another device, to `to` on the home. */
static sn_status bring(const job *j, const sn_tensor *from, float *to, sn_err *err) {
    const int64_t shape[] = {j->n, j->train->span->hp.n_embd};
    return sn_guard(from, j->home->device, 2, shape, to, NULL, err);
}

static sn_status bring_table(job *j, sn_err *err) {
    const sn_grad_scratch *s = &j->home->scratch;
    size_t floats = (size_t)j->train->tokens_max * (size_t)j->train->span->hp.rope_dim, bytes = floats * sizeof(float);
    sn_device *d = j->home->device;
    sn_status status = SN_OK;
    for (int i = 0; i < j->train->span->hp.n_ropes && !status && !j->home->has_table; i++) {
        status = d->ops->upload(d, s->cos_sin[i], j->train->table + (size_t)i * floats, bytes, err);
        if (!status) status = d->ops->upload(d, s->back[i], j->train->back + (size_t)i * floats, bytes, err);
    }
    j->home->has_table = !status;
    return status;
}

static sn_status begin(job *j, const sn_segment *segment, sn_err *err) {
    sn_device *d = segment->device;
    bool recorded;
    sn_status status = bring_table(j, err);
    j->shape = shape_of(&j->train->span->hp);
    j->sequence = (sn_sequence){j->home->pages, 0, 0, j->n};
    const sn_pass pass = {&j->shape, j->n, 1, &j->sequence, 0};
    return status ? status : d->ops->pass_begin(d, &pass, &recorded, err);
}

/* The scratch with the block's inside where it is kept. */
static sn_grad_scratch scratch_of(const job *j, int block) {
    sn_grad_scratch s = j->home->scratch;
    if (j->kept) sn_kept_inside(j->kept, block, &s);
    return s;
}

static sn_status visit_forward(void *ctx, int number, const sn_block *block, sn_err *err) {
    job *j = ctx;
    sn_device *d = j->home->device;
    const sn_grad_scratch *s = &j->home->scratch;
    const sn_block_tuning *tuning = j->tuning ? sn_tuning_of(j->tuning, number) : NULL;
    sn_status status = j->entered ? d->ops->download(d, entered(j, number), s->x, row_bytes(j), err) : SN_OK;
    if (status || number == j->last) return status;
    if (j->kept && sn_kept_insides(j->kept)) {
        const sn_grad_scratch keeping = scratch_of(j, number);
        const sn_grad_pass pass = {d, &j->train->span->hp, &keeping, &j->sequence, tuning, NULL, number, false};
        return sn_block_forward_apart(block, &pass, err);
    }
    const sn_scratch forward = {.x = s->x,
                                .h = s->h1,
                                .beside = s->h2,
                                .q = s->q,
                                .attn = s->attn,
                                .k = s->k,
                                .v = s->v,
                                .gate = s->gate,
                                .up = s->up,
                                .chosen = s->chosen,
                                .each = s->each,
                                .cos_sin = {s->cos_sin[0], s->cos_sin[1]},
                                .low = s->low,
                                .wide = s->wide};
    const sn_block_pass pass = {d, &j->train->span->hp, &forward, j->n, 1, &j->sequence, tuning, number};
    return sn_block_forward(block, 0, &pass, err);
}

static train_home *train_home_of(sn_train *t, const sn_segment *segment) {
    train_home *h = t->homes;
    while (h->device != segment->device) h++;
    return h;
}

static sn_tensor on_home(const job *j, const char *name, const float *data) {
    return (sn_tensor){.name = name,
                       .device = j->home->device,
                       .data = data,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {j->n, j->train->span->hp.n_embd}};
}

/* x through blocks [first, end); it ends in the x of j->home. */
static sn_status forward(job *j, int first, int end, const sn_tensor *x, sn_err *err) {
    sn_span *span = j->train->span;
    sn_tensor at = *x;
    sn_status status = SN_OK;
    for (int i = 0; i < span->n_segments && !status; i++) {
        sn_segment *g = &span->segments[i];
        int from = first > g->first ? first : g->first, to = end < g->end ? end : g->end;
        if (from >= to) continue;
        j->home = train_home_of(j->train, g);
        if (at.data != j->home->scratch.x) status = bring(j, &at, j->home->scratch.x, err);
        if (!status) status = begin(j, g, err);
        if (!status) status = sn_segment_walk(g, from, to, false, visit_forward, j, err);
        if (!status) status = g->device->ops->pass_end(g->device, err);
        at = on_home(j, "hidden states", j->home->scratch.x);
    }
    return status;
}

static sn_status begin_job(sn_train *train, const sn_tuning *tuning, const sn_tensor *x, job *out, sn_err *err) {
    if (x->rank != 2 || x->shape[0] < 1 || x->shape[0] > train->tokens_max || x->shape[1] != train->span->hp.n_embd)
        return sn_fail(err, SN_REFUSED, "%s of shape (%lld, %lld) are no sequence of at most %d tokens of this model",
                       x->name, (long long)x->shape[0], (long long)x->shape[1], train->tokens_max);
    *out = (job){.train = train, .n = (int)x->shape[0], .tuning = tuning, .last = -1};
    return SN_OK;
}

sn_status sn_train_forward(sn_train *train, int first, int end, const sn_tuning *tuning, const sn_tensor *x, float *out,
                           size_t kept_max, sn_kept **kept, sn_err *err) {
    job j;
    sn_kept *k = NULL;
    sn_status status = begin_job(train, tuning, x, &j, err);
    if (!status && kept) k = sn_kept_new(train->span, first, end, j.n, kept_max);
    if (k) {
        j.first = first;
        j.entered = k->rows;
        j.kept = k;
    }
    if (!status) status = forward(&j, first, end, x, err);
    if (!status) status = j.home->device->ops->download(j.home->device, out, j.home->scratch.x, row_bytes(&j), err);
    if (status) sn_kept_free(&k);
    if (kept) *kept = k;
    return status;
}

/* -- backwards */

/* Room for `floats` gradients on the home, zeroed. */
static sn_status clear_grads(job *j, size_t floats, sn_err *err) {
    train_home *h = j->home;
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

/* Where the gradients of a block's adapters go: one behind the other, as sn_tuning_floats says. */
static sn_block_grads lay_out(const sn_block_tuning *tuning, float *at) {
    sn_block_grads grads = {0};
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
        const sn_weight *a = &tuning->lora[role].a, *b = &tuning->lora[role].b;
        if (!a->rows) continue;
        grads.lora[role].a = at;
        grads.lora[role].b = at + a->rows * a->cols;
        at += a->rows * a->cols + b->rows * b->cols;
    }
    return grads;
}

static sn_status visit_backward(void *ctx, int number, const sn_block *block, sn_err *err) {
    job *j = ctx;
    sn_device *d = j->home->device;
    const sn_grad_scratch scratch = scratch_of(j, number), *s = &scratch;
    const sn_block_tuning *tuning = j->tuning ? sn_tuning_of(j->tuning, number) : NULL;
    size_t floats = j->tuning ? sn_tuning_floats(j->tuning, number, number + 1) : 0;
    size_t prompt = tuning ? (size_t)tuning->n_prompt * (size_t)j->train->span->hp.n_embd : 0, lora = floats - prompt;
    sn_block_grads grads = {0};
    sn_status status = d->ops->upload(d, s->x, entered(j, number), row_bytes(j), err);
    if (!status && lora) status = clear_grads(j, lora, err);
    if (lora) grads = lay_out(tuning, j->home->grads);
    const sn_grad_pass pass = {d,      &j->train->span->hp,   s,      &j->sequence,
                               tuning, lora ? &grads : NULL, number, j->kept && sn_kept_insides(j->kept)};
    if (!status) status = sn_block_backward(block, &pass, err);
    j->grads -= floats;
    /* A prompt is added to the hidden states that enter: their gradient is its own, where there were tokens. */
    size_t reached = sn_min_size(prompt * sizeof(float), row_bytes(j));
    if (!status && prompt) memset(j->grads, 0, prompt * sizeof(float));
    if (!status && prompt) status = d->ops->download(d, j->grads, s->dy, reached, err);
    if (!status && lora) status = d->ops->download(d, j->grads + prompt, j->home->grads, lora * sizeof(float), err);
    return status;
}

/* dout from block end - 1 down to `first`; it ends in the dy of j->home. */
static sn_status backward(job *j, int first, int end, const sn_tensor *dout, sn_err *err) {
    sn_span *span = j->train->span;
    sn_tensor at = *dout;
    sn_status status = SN_OK;
    for (int i = span->n_segments - 1; i >= 0 && !status; i--) {
        sn_segment *g = &span->segments[i];
        int from = first > g->first ? first : g->first, to = end < g->end ? end : g->end;
        if (from >= to) continue;
        j->home = train_home_of(j->train, g);
        if (at.data != j->home->scratch.dy) status = bring(j, &at, j->home->scratch.dy, err);
        if (!status) status = begin(j, g, err);
        if (!status) status = sn_segment_walk(g, from, to, true, visit_backward, j, err);
        if (!status) status = g->device->ops->pass_end(g->device, err);
        at = on_home(j, "gradients", j->home->scratch.dy);
    }
    return status;
}

sn_status sn_train_backward(sn_train *train, int first, int end, const sn_tuning *tuning, const sn_tensor *x,
                            const sn_kept *kept, const sn_tensor *dout, float *dx, float *grads, sn_err *err) {
    job j;
    assert(train->span->first <= first && first < end && end <= train->span->end);
    sn_status status = begin_job(train, tuning, x, &j, err);
    j.last = end - 1;
    j.first = first;
    j.entered = train->entered;
    if (!status && kept) {
        assert(kept->first == first && kept->end == end && kept->n == j.n);
        j.entered = (float *)(uintptr_t)kept->rows; /* only read */
        j.kept = kept;
    } else if (!status) {
        status = forward(&j, first, end, x, err);
    }
    j.grads = tuning ? grads + sn_tuning_floats(tuning, first, end) : NULL;
    if (!status) status = backward(&j, first, end, dout, err);
    if (!status) status = j.home->device->ops->download(j.home->device, dx, j.home->scratch.dy, row_bytes(&j), err);
    return status;
}
