/* The KV cache on CUDA: storing, export and import, attention. */
#include "base/mem.h"
#include "device/cuda/cuda_private.h"

/* Bytes of keys and values in one chunk of an export or import. */
#define KV_COPY_BYTES ((size_t)4 << 20)

size_t sn_cuda_kv_staging_bytes(const sn_device_limits *l) {
    size_t row = 2 * sizeof(float) * (size_t)l->width;
    return row > KV_COPY_BYTES ? row : KV_COPY_BYTES;
}

size_t sn_cuda_kv_head_bytes(const sn_kv_shape *shape) {
    size_t dim = (size_t)shape->head_dim, elements = sn_cuda_pad(dim, 4);
    size_t row = shape->dtype == SN_KV_F32   ? elements * sizeof(float)
                 : shape->dtype == SN_KV_F16 ? elements * sizeof(uint16_t)
                                             : elements + (dim + 31) / 32 * sizeof(uint16_t);
    return (shape->latent || shape->keys_only ? 1 : 2) * (size_t)shape->page_tokens *
           row; /* a multiple of 32: page_tokens is one of 16 */
}

size_t sn_cuda_kv_block_bytes(const sn_kv_shape *one) { return (size_t)one->n_kv_heads * sn_cuda_kv_head_bytes(one); }

size_t sn_cuda_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape) {
    (void)d;
    return sn_kv_block_offset(shape, shape->n_blocks + shape->index_blocks, sn_cuda_kv_block_bytes);
}

static sn_status kv_check_block(const sn_cuda *cuda, int block, sn_err *err) {
    if (cuda->state == SN_CUDA_NO_BATCH || cuda->state == SN_CUDA_REPLAYING)
        return sn_fail(err, SN_REFUSED, "%s: kv_store or attention was called outside of a batch", cuda->description);
    if (block < 0 || block >= cuda->shape.n_blocks + cuda->shape.index_blocks)
        return sn_fail(err, SN_REFUSED, "block %d does not exist: the KV cache has %d", block,
                       cuda->shape.n_blocks + cuda->shape.index_blocks);
    return SN_OK;
}

static cudaError_t store(const sn_cuda *cuda, const sn_cuda_kv *kv, int n_rows, const float *k, const float *v) {
    return kv->in_rows ? sn_cuda_latent_store(cuda->work, kv, n_rows, k, v)
                       : sn_cuda_kv_store(cuda->work, kv, n_rows, k, v);
}

static cudaError_t load(const sn_cuda *cuda, const sn_cuda_kv *kv, int n_rows, float *k, float *v) {
    return kv->in_rows ? sn_cuda_latent_load(cuda->work, kv, n_rows, k, v)
                       : sn_cuda_kv_load(cuda->work, kv, n_rows, k, v);
}

sn_status sn_cuda_kv_store_op(sn_device *d, int block, const float *k, const float *v, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = kv_check_block(cuda, block, err);
    if (!status && cuda->n_rows) {
        sn_cuda_kv kv = sn_cuda_kv_of(cuda, &cuda->shape, block);
        status = sn_cuda_check_launch(cuda, store(cuda, &kv, cuda->n_rows, k, v), "kv_store", err);
    }
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_rope_store_op(sn_device *d, int block, const sn_rotated *p, const float *v, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = kv_check_block(cuda, block, err);
    if (!status) status = sn_cuda_check_rope(&p->rope, p->head_dim, err);
    if (!status && cuda->n_rows) {
        sn_cuda_kv kv = sn_cuda_kv_of(cuda, &cuda->shape, block);
        status = sn_cuda_check_launch(
            cuda, sn_cuda_rope_store(cuda->work, &kv, cuda->n_rows, &p->rope, p->n_heads, p->q, p->k, v), "rope_store",
            err);
    }
    return sn_cuda_op_done(cuda, status);
}

/* -- export and import: chunks of positions, copied row by row on the device */

typedef struct kv_copy {
    const sn_kv_shape *shape;
    int block, position, n;
    void *const *pages;
    float *k, *v; /* host; written to with `out`, else only read */
    bool out;
    size_t k_row, v_row; /* elements of a position */
} kv_copy;

static sn_status kv_copy_chunk(sn_cuda *cuda, const kv_copy *t, sn_err *err) {
    sn_sequence sequence = {t->pages, t->position, 0, t->n, {0}};
    size_t keys = (size_t)t->n * t->k_row, values = (size_t)t->n * t->v_row;
    size_t k_bytes = keys * sizeof(float), v_bytes = values * sizeof(float);
    sn_status status = sn_cuda_buffer_require(cuda, &cuda->kv_staging, k_bytes + v_bytes, err);
    if (!status) status = sn_cuda_table_upload(cuda, t->shape, t->n, 1, &sequence, err);
    if (status) return status;
    float *k = cuda->kv_staging.at, *v = k + keys;
    sn_cuda_kv kv = sn_cuda_kv_of(cuda, t->shape, t->block);
    if (t->out) {
        status = sn_cuda_check_launch(cuda, load(cuda, &kv, t->n, k, v), "kv_read", err);
        if (!status) status = sn_cuda_download(&cuda->base, t->k, k, k_bytes, err);
        return status || !v_bytes ? status : sn_cuda_download(&cuda->base, t->v, v, v_bytes, err);
    }
    status = sn_cuda_upload_staged(cuda, k, t->k, k_bytes, err);
    if (!status && v_bytes) status = sn_cuda_upload_staged(cuda, v, t->v, v_bytes, err);
    return status ? status : sn_cuda_check_launch(cuda, store(cuda, &kv, t->n, k, v), "kv_write", err);
}

static sn_status kv_copy_all(sn_cuda *cuda, kv_copy t, sn_err *err) {
    /* the caller has abandoned the batch */
    if (cuda->state != SN_CUDA_NO_BATCH && cuda->batch_failed) sn_cuda_batch_abort(cuda);
    if (cuda->state != SN_CUDA_NO_BATCH && !cuda->base.lost)
        return sn_fail(err, SN_REFUSED, "%s: a KV cache cannot be read or written within a batch", cuda->description);
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && (t.block < 0 || t.block >= t.shape->n_blocks + t.shape->index_blocks || t.n < 0 || t.position < 0))
        status = sn_fail(err, SN_REFUSED,
                         "block %d, positions from %d on, %d of them: not a part of a KV cache of %d blocks", t.block,
                         t.position, t.n, t.shape->n_blocks);
    if (status) return status;
    const sn_kv_shape own = sn_kv_block_shape(t.shape, t.block);
    t.k_row = (size_t)own.n_kv_heads * (size_t)sn_kv_key_dim(&own);
    t.v_row = (size_t)own.n_kv_heads * (size_t)sn_kv_value_dim(&own);
    size_t chunk_max = KV_COPY_BYTES / ((t.k_row + t.v_row) * sizeof(float));
    if (cuda->limits.rows)
        chunk_max = sn_min_size(chunk_max, (size_t)cuda->limits.rows); /* as the batch table has room */
    for (int left = t.n; left > 0 && !status; left -= t.n) {
        t.n = (size_t)left < chunk_max ? left : chunk_max ? (int)chunk_max : 1;
        status = kv_copy_chunk(cuda, &t, err);
        t.position += t.n;
        t.k += (size_t)t.n * t.k_row;
        if (t.v_row) t.v += (size_t)t.n * t.v_row;
    }
    return status ? status : sn_cuda_finish(&cuda->base, err);
}

sn_status sn_cuda_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          float *k, float *v, sn_err *err) {
    return kv_copy_all((sn_cuda *)d, (kv_copy){shape, block, position, n, pages, k, v, true, 0, 0}, err);
}

sn_status sn_cuda_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                           const float *k, const float *v, sn_err *err) {
    return kv_copy_all((sn_cuda *)d, (kv_copy){shape, block, position, n, pages, (float *)k, (float *)v, false, 0, 0},
                       err);
}

/* -- attention */

/* Rows beyond SPLIT_ROWS fill a device by themselves. A multiprocessor that has BLOCKS thread blocks reads memory at
 * its share of the full speed: arithmetic, not measured. HEADS_MOST: the most query heads of a block of any kernel. */
enum { SPLIT_ROWS = 128, BLOCKS = 4, HEADS_MOST = 16 };

static int least_splits(int n_rows) { return n_rows <= 16 ? 8 : n_rows <= SPLIT_ROWS ? 4 : 1; }

int sn_cuda_attention_n_splits(const sn_cuda *cuda, int n_rows, int blocks) {
    int64_t all = (int64_t)n_rows * blocks, fill = ((int64_t)BLOCKS * cuda->n_multiprocessors + all - 1) / all;
    int least = least_splits(n_rows);
    if (n_rows > SPLIT_ROWS) return 1;
    return fill > SN_CUDA_SPLITS ? SN_CUDA_SPLITS : fill > least ? (int)fill : least;
}

/* 512 rows of 32 heads are 256 thread blocks by themselves. */
int sn_cuda_tile_room(int n_rows) { return n_rows < 32 ? n_rows * SN_CUDA_TILE_PARTS : n_rows < 512 ? 512 : n_rows; }

size_t sn_cuda_partial_bytes(const sn_cuda *cuda, const sn_device_limits *l) {
    size_t most = 0, fill = (size_t)(HEADS_MOST * BLOCKS) * (size_t)cuda->n_multiprocessors;
    for (int rows = 1; rows <= l->rows && rows <= SPLIT_ROWS; rows++) {
        size_t heads = (size_t)rows * (size_t)l->heads, least = heads * (size_t)least_splits(rows),
               parts = sn_min_size(heads * SN_CUDA_SPLITS, heads + fill); /* rounded up: one more for each head */
        parts = parts > least ? parts : least;
        most = parts > most ? parts : most;
    }
    size_t tiles = (size_t)sn_cuda_tile_room(l->rows) * (size_t)l->heads;
    return (most > tiles ? most : tiles) * (sn_cuda_pad((size_t)l->head_dim, 4) + 2) * sizeof(float);
}

size_t sn_cuda_arrivals_bytes(const sn_device_limits *l) {
    return sizeof(unsigned) * (size_t)l->heads * (size_t)(l->rows < SPLIT_ROWS ? l->rows : SPLIT_ROWS);
}

sn_status sn_cuda_attention_scratch(sn_cuda *cuda, sn_cuda_attention *a, int n_rows, int n_splits, int dim,
                                    sn_err *err) {
    if (n_splits == 1) return SN_OK; /* no row has two parts */
    size_t heads = (size_t)n_rows * (size_t)a->n_heads, parts = heads * (size_t)n_splits,
           dims = sn_cuda_pad((size_t)dim, 4);
    sn_status status = sn_cuda_buffer_require(cuda, &cuda->partial, parts * (dims + 2) * sizeof(float), err);
    if (!status) status = sn_cuda_buffer_require(cuda, &cuda->arrivals, heads * sizeof(unsigned), err);
    a->partial = cuda->partial.at;
    a->partial_stats = a->partial + parts * dims;
    a->arrivals = cuda->arrivals.at;
    return status;
}

static sn_status attention_by_splits(sn_cuda *cuda, sn_cuda_attention *a, sn_cuda_eight_bits form, sn_err *err) {
    int group = a->n_heads / a->kv.n_kv_heads,
        blocks = a->kv.n_kv_heads * ((group + SN_CUDA_SPLIT_HEADS - 1) / SN_CUDA_SPLIT_HEADS);
    int n_splits = sn_cuda_attention_n_splits(cuda, cuda->n_few, blocks);
    sn_status status = sn_cuda_attention_scratch(cuda, a, cuda->n_few, n_splits, a->kv.head_dim, err);
    if (status) return status;
    return sn_cuda_check_launch(cuda, sn_cuda_attention_split(cuda->work, a, cuda->n_few, n_splits, form), "attention",
                                err);
}

static sn_status attention_by_tiles(sn_cuda *cuda, sn_cuda_attention *a, sn_err *err) {
    size_t parts = (size_t)sn_cuda_tile_room(cuda->n_rows) * (size_t)a->n_heads, dims = (size_t)a->kv.padded_dim;
    sn_status status = sn_cuda_buffer_require(cuda, &cuda->partial, parts * (dims + 2) * sizeof(float), err);
    if (status) return status;
    a->partial = cuda->partial.at;
    a->partial_stats = a->partial + parts * dims;
    cudaError_t error = sn_cuda_attention_tiles(cuda->work, a, cuda->n_tiles);
    if (error == cudaSuccess) error = sn_cuda_attention_join_tiles(cuda->work, a, cuda->n_tiles);
    return sn_cuda_check_launch(cuda, error, "attention", err);
}

/* Attention by tiles does not. */
bool sn_cuda_attends_in_8_bits(const sn_cuda *cuda, int n, int block) {
    if (cuda->shape.latent || cuda->n_few != n || block < 0 || block >= cuda->shape.n_blocks) return false;
    const sn_kv_shape own = sn_kv_block_shape(&cuda->shape, block);
    return sn_kv_value_dim(&own) % 32 == 0;
}

sn_status sn_cuda_attend(sn_cuda *cuda, const sn_attention *params, const float *q, float *out, sn_cuda_eight_bits form,
                         sn_err *err) {
    sn_status status = kv_check_block(cuda, params->block, err);
    if (!status && params->block >= cuda->shape.n_blocks)
        status = sn_fail(err, SN_REFUSED, "block %d has index keys only", params->block);
    if (status) return status;
    const int kv_heads = sn_kv_block_shape(&cuda->shape, params->block).n_kv_heads;
    if (params->n_heads <= 0 || params->n_heads % kv_heads)
        return sn_fail(err, SN_REFUSED, "%d query heads cannot share %d key-value heads evenly", params->n_heads,
                       kv_heads);
    if (!cuda->n_rows) return SN_OK;
    sn_cuda_attention a = {.kv = sn_cuda_kv_of(cuda, &cuda->shape, params->block),
                           .n_heads = params->n_heads,
                           .window = params->window,
                           .softcap = params->softcap,
                           .scale = params->scale,
                           .slopes = params->slopes,
                           .sinks = params->sinks,
                           .q = q,
                           .out = out,
                           .chosen = params->chosen,
                           .n_chosen = params->n_chosen};
    if (a.chosen && (!a.kv.latent || a.window || a.slopes))
        return sn_fail(err, SN_REFUSED, "positions are chosen in latent attention only, without a window or slopes");
    if (a.kv.latent)
        status = sn_cuda_latent_attend(cuda, &a, err);
    else if (cuda->n_few < cuda->n_rows)
        status = attention_by_tiles(cuda, &a, err);
    if (!status && !a.kv.latent && cuda->n_few) status = attention_by_splits(cuda, &a, form, err);
    return status;
}

sn_status sn_cuda_attention_op(sn_device *d, const sn_attention *params, const float *q, float *out, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = sn_cuda_attend(cuda, params, q, out, (sn_cuda_eight_bits){0}, err);
    return sn_cuda_op_done(cuda, status);
}
