#include "blocks/next_block.h"

#include "base/mem.h"
#include "blocks/span_private.h"

#include <stdlib.h>

enum { ROWS = 128 }; /* of one pass */

struct sn_next_block {
    sn_span *span; /* of one block on one device */
    sn_kv_pool *pool;
    sn_kv_cache *kv;
    float *joined; /* device, (ROWS, 2, n_embd): the normed embeddings and hidden states */
};

static sn_device *device_of(const sn_next_block *b) { return b->span->devices[0].device; }
static size_t width_of(const sn_next_block *b) { return (size_t)b->span->hp.n_embd; }
static size_t joined_bytes(const sn_next_block *b) { return ROWS * 2 * width_of(b) * sizeof(float); }

static sn_status load(sn_next_block *b, const sn_model *model, sn_device *device, sn_kv_dtype kv_dtype, int positions,
                      sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    const int number = hp->n_blocks;
    const sn_device_limits limits = {.rows = ROWS, .width = 2 * hp->n_embd, .context = 1};
    void *joined = NULL;
    SN_TRY(device->ops->prepare(device, &limits, err));
    SN_TRY(sn_span_load(model, device, number, number + 1, NULL, NULL, &b->span, err));
    sn_span_set_kv_dtype(b->span, kv_dtype);
    SN_TRY(device->ops->alloc(device, joined_bytes(b), &joined, err));
    b->joined = joined;
    const size_t budget = sn_span_kv_bytes(hp, device, number, number + 1, kv_dtype, 1, (size_t)positions);
    SN_TRY(sn_span_kv_pool(b->span, budget, &b->pool, err));
    return sn_kv_cache_new(b->pool, &b->kv, err);
}

sn_status sn_next_block_load(const sn_model *model, sn_device *device, sn_kv_dtype kv_dtype, int positions,
                             sn_next_block **out, sn_err *err) {
    sn_next_block *b = NULL;
    *out = NULL;
    if (!sn_model_hparams(model)->n_next)
        return sn_fail(err, SN_REFUSED, "the model's files have no block that predicts a further token");
    SN_TRY(sn_calloc(&b, 1, sizeof *b, err));
    sn_status status = load(b, model, device, kv_dtype, positions, err);
    if (status) sn_next_block_free(&b);
    *out = b;
    return status ? sn_err_context(err, "the block that predicts a further token") : SN_OK;
}

void sn_next_block_free(sn_next_block **block) {
    sn_next_block *b = *block;
    if (!b) return;
    sn_kv_cache_free(&b->kv);
    sn_kv_pool_free(&b->pool);
    if (b->joined) device_of(b)->ops->free(device_of(b), b->joined, joined_bytes(b));
    sn_span_free(&b->span);
    free(b);
    *block = NULL;
}

int sn_next_block_length(const sn_next_block *block) { return sn_kv_cache_length(block->kv); }

void sn_next_block_rewind(sn_next_block *block, int length) { sn_kv_cache_rewind(block->kv, length); }

/* Brings rows to the device, and norms each into its half of a joined row. */
static sn_status norm_half(const sn_next_block *b, const sn_block *block, sn_role norm, int n, const float *rows,
                           float *to, sn_err *err) {
    sn_device *d = device_of(b);
    const size_t width = width_of(b);
    float *x = b->span->devices[0].scratch.x;
    const sn_tensor outside = {
        .name = "hidden states", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {n, (int64_t)width}};
    sn_status status = sn_guard(&outside, d, 2, outside.shape, x, NULL, err);
    for (size_t i = 0; i < (size_t)n && !status; i++)
        status = d->ops->rms_norm(d, 1, (int)width, x + i * width, block->vector[norm], b->span->hp.norm_eps,
                                  to + 2 * i * width, err);
    return status;
}

typedef struct next_pass {
    const sn_next_block *b;
    int n;
    const float *embeddings, *hidden;
    float *out;
} next_pass;

/* scratch->h: the block's input. */
static sn_status visit_input(void *ctx, int number, const sn_block *block, sn_err *err) {
    const next_pass *p = ctx;
    sn_device *d = device_of(p->b);
    const sn_linear input = {.weight = &block->matrix[SN_ROLE_NEXT_INPUT],
                             .y = p->b->span->devices[0].scratch.h,
                             .high_precision = sn_has_experts(&p->b->span->hp, number)};
    float *joined = p->b->joined;
    SN_TRY(norm_half(p->b, block, SN_ROLE_NEXT_EMBED_NORM, p->n, p->embeddings, joined, err));
    SN_TRY(norm_half(p->b, block, SN_ROLE_NEXT_HIDDEN_NORM, p->n, p->hidden, joined + width_of(p->b), err));
    return d->ops->linear(d, p->n, joined, 1, &input, err);
}

/* Of the rows that the block has left in scratch->x. */
static sn_status visit_output(void *ctx, int number, const sn_block *block, sn_err *err) {
    const next_pass *p = ctx;
    (void)number;
    sn_device *d = device_of(p->b);
    const sn_scratch *s = &p->b->span->devices[0].scratch;
    const sn_hparams *hp = &p->b->span->hp;
    SN_TRY(
        d->ops->rms_norm(d, p->n, hp->n_embd, s->x, block->vector[SN_ROLE_NEXT_OUTPUT_NORM], hp->norm_eps, s->h, err));
    return d->ops->download(d, p->out, s->h, (size_t)p->n * width_of(p->b) * sizeof(float), err);
}

static sn_status run_pass(sn_next_block *b, next_pass *pass, sn_err *err) {
    sn_span *span = b->span;
    const sn_tensor input = {.name = "hidden states",
                             .device = device_of(b),
                             .data = span->devices[0].scratch.h,
                             .dtype = SN_F32,
                             .rank = 2,
                             .shape = {pass->n, span->hp.n_embd}};
    const sn_span_sequence sequence = {b->kv, &input, 0, pass->n, NULL};
    SN_TRY(sn_kv_cache_reserve(b->kv, pass->n, err));
    SN_TRY(sn_segment_walk(span->segments, span->first, span->end, false, visit_input, pass, err));
    SN_TRY(sn_span_forward(span, span->first, span->end, 1, &sequence, NULL, err));
    return pass->out ? sn_segment_walk(span->segments, span->first, span->end, false, visit_output, pass, err) : SN_OK;
}

sn_status sn_next_block_forward(sn_next_block *b, int n, const float *embeddings, const float *hidden, float *out,
                                sn_err *err) {
    const int before = sn_next_block_length(b);
    sn_status status = SN_OK;
    for (int done = 0; done < n && !status; done += ROWS) {
        const size_t at = (size_t)done * width_of(b);
        next_pass pass = {b, n - done < ROWS ? n - done : ROWS, embeddings + at, hidden + at, out ? out + at : NULL};
        status = run_pass(b, &pass, err);
    }
    if (status) sn_next_block_rewind(b, before);
    return status;
}
