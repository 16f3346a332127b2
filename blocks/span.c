#include "blocks/span.h"

#include "base/math.h"
#include "base/mem.h"
#include "blocks/block.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FINISH_TIMEOUT_MS = 60000 };

struct sn_span {
    sn_device *device;
    sn_hparams hp;
    int first, end;
    sn_block *blocks; /* end - first */
    sn_hash *hashes;  /* end - first */
    sn_scratch scratch;
    void *scratch_memory; /* on the device: one piece that the buffers of scratch lie in */
    size_t scratch_bytes;
    float *cos_sin; /* host: the rope table of a pass, before it goes to the device */
    sn_sequence sequences[SN_SPAN_ROWS_MAX];
};

static sn_status new_scratch(sn_span *span, sn_err *err) {
    const sn_hparams *hp = &span->hp;
    sn_scratch *s = &span->scratch;
    size_t q = (size_t)hp->n_heads * (size_t)hp->head_dim, kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff, rope = (size_t)hp->rope_dim;
    const struct {
        float **buffer;
        size_t width;
    } parts[] = {{&s->x, embd}, {&s->h, embd},  {&s->q, q},   {&s->attn, q},      {&s->k, kv},
                 {&s->v, kv},   {&s->gate, ff}, {&s->up, ff}, {&s->cos_sin, rope}};
    size_t n_parts = sizeof parts / sizeof *parts, widest = 0, bytes = 0;
    for (size_t i = 0; i < n_parts; i++) {
        bytes += sn_round_up(parts[i].width * SN_SPAN_ROWS_MAX * sizeof(float), 64);
        if (parts[i].width > widest) widest = parts[i].width;
    }
    sn_device_limits limits = {SN_SPAN_ROWS_MAX, (int)widest, hp->n_ctx};
    sn_status status = span->device->ops->prepare(span->device, &limits, err);
    if (!status) status = span->device->ops->alloc(span->device, bytes, &span->scratch_memory, err);
    if (!status) status = sn_calloc(&span->cos_sin, rope * SN_SPAN_ROWS_MAX, sizeof(float), err);
    if (status) return status;
    span->scratch_bytes = bytes;
    char *at = span->scratch_memory;
    for (size_t i = 0; i < n_parts; i++) {
        *parts[i].buffer = (float *)(void *)at;
        at += sn_round_up(parts[i].width * SN_SPAN_ROWS_MAX * sizeof(float), 64);
    }
    return SN_OK;
}

sn_status sn_span_load(const sn_model *model, sn_device *device, int first, int end, sn_progress progress, void *ctx,
                       sn_span **out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    if (first < 0 || first >= end || end > hp->n_blocks)
        return sn_fail(err, SN_REFUSED, "blocks %d:%d are not in this model: it has blocks 0:%d", first, end,
                       hp->n_blocks);
    sn_span *span = NULL;
    sn_status status = sn_calloc(&span, 1, sizeof *span, err);
    if (status) return status;
    *span = (sn_span){.device = device, .hp = *hp, .first = first, .end = end};
    size_t n = (size_t)(end - first);
    status = sn_calloc(&span->blocks, n, sizeof *span->blocks, err);
    if (!status) status = sn_calloc(&span->hashes, n, sizeof *span->hashes, err);
    for (size_t i = 0; i < n && !status; i++) {
        status = sn_model_block_hash(model, first + (int)i, &span->hashes[i], err);
        if (!status) status = sn_block_load(model, device, first + (int)i, &span->blocks[i], err);
        if (!status && progress) progress(ctx, (int)i + 1, (int)n);
    }
    if (!status) status = new_scratch(span, err);
    if (status) sn_span_free(&span);
    *out = span;
    return status;
}

void sn_span_free(sn_span **span) {
    sn_span *s = *span;
    if (!s) return;
    for (int i = 0; s->blocks && i < s->end - s->first; i++) sn_block_unload(&s->blocks[i], s->device);
    s->device->ops->free(s->device, s->scratch_memory, s->scratch_bytes);
    free(s->blocks);
    free(s->hashes);
    free(s->cos_sin);
    free(s);
    *span = NULL;
}

int sn_span_first(const sn_span *span) { return span->first; }
int sn_span_end(const sn_span *span) { return span->end; }
const sn_hparams *sn_span_hparams(const sn_span *span) { return &span->hp; }
const sn_hash *sn_span_block_hash(const sn_span *span, int block) { return &span->hashes[block - span->first]; }

size_t sn_span_bytes(const sn_span *span) {
    size_t bytes = span->scratch_bytes;
    for (int i = 0; i < span->end - span->first; i++) bytes += span->blocks[i].bytes;
    return bytes;
}

sn_status sn_span_kv_pool(sn_span *span, size_t budget, sn_kv_pool **out, sn_err *err) {
    return sn_kv_pool_new(span->device, span->end - span->first, span->hp.n_kv_heads, span->hp.head_dim, budget, out,
                          err);
}

/* The angle of pair i at position p is p * freq[i], as a float32 product like the reference's; its cosine and sine come
 * from base/math.h, the same on every machine. */
static void rope_row(const sn_hparams *hp, int position, float *row) {
    for (int i = 0; i < hp->rope_dim / 2; i++) {
        float angle = (float)position * hp->rope_freq[i];
        double sine, cosine;
        sn_sincos((double)angle, &sine, &cosine);
        row[2 * i] = (float)cosine;
        row[2 * i + 1] = (float)sine;
    }
}

/* Brings every part's rows through the guard into scratch.x, and the rope table of their positions to the device. */
static sn_status bring_in(sn_span *span, int n_parts, const sn_span_part *parts, int *n_rows, uint64_t *moved,
                          sn_err *err) {
    const sn_hparams *hp = &span->hp;
    int rows = 0;
    for (int i = 0; i < n_parts; i++) {
        const sn_span_part *part = &parts[i];
        assert(part->n_rows > 0 && rows + part->n_rows <= SN_SPAN_ROWS_MAX);
        sn_tensor now = *part->input;
        if (now.rank != 2 || now.shape[1] != hp->n_embd || now.shape[0] < part->first_row + part->n_rows)
            return sn_fail(err, SN_REFUSED, "%s have shape (%lld, %lld) where (%d, %d) must be", now.name,
                           (long long)now.shape[0], (long long)now.shape[1], part->n_rows, hp->n_embd);
        int64_t stride = now.strides[0] ? now.strides[0] : now.shape[1];
        if (now.data)
            now.data = (const char *)now.data + (size_t)part->first_row * (size_t)stride * sn_dtype_bytes(now.dtype);
        now.shape[0] = part->n_rows;
        int64_t wanted[] = {part->n_rows, hp->n_embd};
        sn_status status =
            sn_guard(&now, span->device, 2, wanted, span->scratch.x + (size_t)rows * (size_t)hp->n_embd, moved, err);
        if (status) return status;
        span->sequences[i] = sn_kv_sequence(part->kv, rows, part->n_rows);
        for (int r = 0; r < part->n_rows; r++)
            rope_row(hp, sn_kv_length(part->kv) + r, span->cos_sin + (size_t)(rows + r) * (size_t)hp->rope_dim);
        rows += part->n_rows;
    }
    *n_rows = rows;
    return span->device->ops->upload(span->device, span->scratch.cos_sin, span->cos_sin,
                                     (size_t)rows * (size_t)hp->rope_dim * sizeof(float), err);
}

sn_status sn_span_forward(sn_span *span, int first, int end, int n_parts, const sn_span_part *parts, uint64_t *moved,
                          sn_err *err) {
    assert(n_parts > 0 && n_parts <= SN_SPAN_ROWS_MAX && span->first <= first && first < end && end <= span->end);
    int n_rows = 0;
    sn_status status = bring_in(span, n_parts, parts, &n_rows, moved, err);
    if (status) return status;

    sn_kv_shape shape = {span->end - span->first, span->hp.n_kv_heads, span->hp.head_dim, SN_KV_PAGE_TOKENS};
    sn_block_pass pass = {span->device, &span->hp, &shape, &span->scratch, n_rows, n_parts, span->sequences};
    for (int b = first; b < end && !status; b++)
        status = sn_block_forward(&span->blocks[b - span->first], b - span->first, &pass, err);

    size_t row = (size_t)span->hp.n_embd;
    for (int i = 0; i < n_parts && !status; i++)
        status = span->device->ops->download(span->device, parts[i].output,
                                             span->scratch.x + (size_t)span->sequences[i].first_row * row,
                                             (size_t)parts[i].n_rows * row * sizeof(float), err);
    if (!status) status = span->device->ops->finish(span->device, FINISH_TIMEOUT_MS, err);
    for (int i = 0; i < n_parts && !status; i++) sn_kv_append(parts[i].kv, parts[i].n_rows);
    return status;
}
