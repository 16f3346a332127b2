/* The past: storing, reading and writing, attention. */
#include "base/mem.h"
#include "device/cuda/inside.h"

/* Bytes of keys and values that travel at once between host and past. */
#define TRAVEL_BYTES ((size_t)4 << 20)

size_t sn_cuda_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape) {
    (void)d;
    return (size_t)shape->n_blocks * (size_t)shape->n_kv_heads * 2 * (size_t)shape->page_tokens *
           sn_cuda_pad((size_t)shape->head_dim, 4) * sizeof(float);
}

static sn_status check_block(const sn_cuda *cuda, int block, sn_err *err) {
    if (cuda->state == SN_CUDA_NO_PASS || cuda->state == SN_CUDA_REPLAYING)
        return sn_fail(err, SN_REFUSED, "%s: the past is worked on outside of a pass", cuda->description);
    if (block < 0 || block >= cuda->shape.n_blocks)
        return sn_fail(err, SN_REFUSED, "block %d is not one of the past's %d", block, cuda->shape.n_blocks);
    return SN_OK;
}

sn_status sn_cuda_kv_store_op(sn_device *d, int block, const float *k, const float *v, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = check_block(cuda, block, err);
    if (!status && cuda->n_rows) {
        sn_cuda_past past = sn_cuda_past_of(cuda, &cuda->shape, block);
        status = sn_cuda_queued(cuda, sn_cuda_kv_store(cuda->work, &past, cuda->n_rows, k, v), "kv_store", err);
    }
    return sn_cuda_done(cuda, status);
}

/* -- export and import, some positions at a time through a row-by-row copy on the device */

typedef struct travel {
    const sn_kv_shape *shape;
    int block, position, n;
    void *const *pages;
    float *k, *v; /* host; written to when `out` */
    bool out;
} travel;

static sn_status travel_part(sn_cuda *cuda, const travel *t, sn_err *err) {
    sn_sequence sequence = {t->pages, t->position, 0, t->n};
    size_t floats = (size_t)t->n * (size_t)t->shape->n_kv_heads * (size_t)t->shape->head_dim,
           bytes = floats * sizeof(float);
    sn_status status = sn_cuda_make_room(cuda, &cuda->past, 2 * bytes, err);
    if (!status) status = sn_cuda_table_send(cuda, t->shape, t->n, 1, &sequence, err);
    if (status) return status;
    float *k = cuda->past.at, *v = k + floats;
    sn_cuda_past past = sn_cuda_past_of(cuda, t->shape, t->block);
    if (t->out) {
        status = sn_cuda_queued(cuda, sn_cuda_kv_load(cuda->work, &past, t->n, k, v), "kv_read", err);
        if (!status) status = sn_cuda_download(&cuda->base, t->k, k, bytes, err);
        return status ? status : sn_cuda_download(&cuda->base, t->v, v, bytes, err);
    }
    status = sn_cuda_put(cuda, k, t->k, bytes, err);
    if (!status) status = sn_cuda_put(cuda, v, t->v, bytes, err);
    return status ? status : sn_cuda_queued(cuda, sn_cuda_kv_store(cuda->work, &past, t->n, k, v), "kv_write", err);
}

static sn_status travel_all(sn_cuda *cuda, travel t, sn_err *err) {
    if (cuda->state != SN_CUDA_NO_PASS && !cuda->stopped)
        return sn_fail(err, SN_REFUSED, "%s: a past cannot be read or written within a pass", cuda->description);
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && (t.block < 0 || t.block >= t.shape->n_blocks || t.n < 0 || t.position < 0))
        status =
            sn_fail(err, SN_REFUSED, "block %d, positions from %d on, %d of them: no such part of a past of %d blocks",
                    t.block, t.position, t.n, t.shape->n_blocks);
    size_t row = (size_t)t.shape->n_kv_heads * (size_t)t.shape->head_dim;
    size_t most = TRAVEL_BYTES / (2 * row * sizeof(float));
    for (int left = t.n; left > 0 && !status; left -= t.n) {
        t.n = (size_t)left < most ? left : most ? (int)most : 1;
        status = travel_part(cuda, &t, err);
        t.position += t.n;
        t.k += (size_t)t.n * row;
        t.v += (size_t)t.n * row;
    }
    return status ? status : sn_cuda_finish(&cuda->base, err);
}

sn_status sn_cuda_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          float *k, float *v, sn_err *err) {
    return travel_all((sn_cuda *)d, (travel){shape, block, position, n, pages, k, v, true}, err);
}

sn_status sn_cuda_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                           const float *k, const float *v, sn_err *err) {
    return travel_all((sn_cuda *)d, (travel){shape, block, position, n, pages, (float *)k, (float *)v, false}, err);
}

/* -- attention */

/* Into how many parts each row's past is split: enough blocks for the whole device, whatever the number of rows.
 * Depends on what a record's name covers only. */
static int splits_for(int n_rows) { return n_rows <= 16 ? SN_CUDA_SPLITS : n_rows <= 128 ? 4 : 1; }

static sn_status by_splits(sn_cuda *cuda, sn_cuda_attention *a, sn_err *err) {
    int n_splits = splits_for(cuda->n_rows);
    size_t parts = (size_t)cuda->n_rows * (size_t)a->n_heads * (size_t)n_splits, dims = (size_t)a->past.padded_dim;
    sn_status status = sn_cuda_make_room(cuda, &cuda->partial, parts * (dims + 2) * sizeof(float), err);
    if (status) return status;
    a->partial = cuda->partial.at;
    a->partial_stats = a->partial + parts * dims;
    return sn_cuda_queued(cuda, sn_cuda_attention_split(cuda->work, a, cuda->n_rows, n_splits), "attention", err);
}

sn_status sn_cuda_attention_op(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = check_block(cuda, how->block, err);
    if (!status && (how->n_heads <= 0 || how->n_heads % cuda->shape.n_kv_heads))
        status = sn_fail(err, SN_REFUSED, "%d query heads cannot share %d key-value heads evenly", how->n_heads,
                         cuda->shape.n_kv_heads);
    if (status || !cuda->n_rows) return sn_cuda_done(cuda, status);
    sn_cuda_attention a = {.past = sn_cuda_past_of(cuda, &cuda->shape, how->block),
                           .n_heads = how->n_heads,
                           .window = how->window,
                           .scale = how->scale,
                           .slopes = how->slopes,
                           .sinks = how->sinks,
                           .q = q,
                           .out = out};
    if (cuda->n_rows <= SN_CUDA_FEW_ROWS * cuda->n_sequences)
        status = by_splits(cuda, &a, err);
    else
        status = sn_cuda_queued(cuda, sn_cuda_attention_tiles(cuda->work, &a, cuda->n_tiles), "attention", err);
    return sn_cuda_done(cuda, status);
}
