/* The KV cache and attention on the CPU.
 *
 * Storing (first half): kv_store writes keys and values into the pages in the layout of kv_layout.h, rounded to the
 * cache's type; kv_read and kv_write use the same functions for single positions.
 *
 * Attention (second half): a unit is a tile of tokens of one sequence with some of the query heads of one key-value
 * head, up to SN_ATTENTION_ROWS query rows, which read the same keys and values together. Three kernels compute it in
 * order: scores, softmax, values.
 *
 * With many units, each unit is one item of the pool. With few (decoding), the units are split: first all items that
 * score a chunk of a unit's keys, then all items that compute a chunk of a unit's dimensions. The last of a unit's
 * scoring items runs its softmax; its value items spin until that is done. Each key and value is still read once, by
 * whichever thread is free. Neither the choice nor the size of the chunks changes a result, because no fma chain is
 * cut. */
#include "device/cpu/cpu_private.h"

#include "base/log.h"
#include "base/mem.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* In this file a shape is that of one block, but that of a batch. */
static size_t padded_width(const sn_kv_shape *shape) { return sn_round_up((size_t)sn_kv_value_dim(shape), SN_LANES); }
/* Elements of a stored row of a value. */
static int row_dim(const sn_kv_shape *shape) { return shape->latent ? shape->head_dim : sn_kv_value_dim(shape); }
/* Bytes of one head's keys in a page (none where they lie with the values); and of its keys and values, so that every
 * head begins at a cache line. */
static size_t key_bytes(const sn_kv_shape *shape) {
    return shape->latent ? 0 : (size_t)shape->page_tokens / SN_LANES * sn_kv_tile_bytes(shape->dtype, shape->head_dim);
}
static size_t head_bytes(const sn_kv_shape *shape) {
    if (shape->keys_only) return key_bytes(shape);
    return sn_round_up(key_bytes(shape) + (size_t)shape->page_tokens * sn_kv_value_bytes(shape->dtype, row_dim(shape)),
                       64);
}

static size_t block_bytes(const sn_kv_shape *one) { return (size_t)one->n_kv_heads * head_bytes(one); }

size_t sn_cpu_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape) {
    (void)d;
    assert(shape->page_tokens > 0 && shape->page_tokens % SN_LANES == 0);
    return sn_kv_block_offset(shape, shape->n_blocks + shape->index_blocks, block_bytes);
}

/* A block, and where it begins in a page. */
typedef struct page_block {
    sn_kv_shape shape;
    size_t offset;
} page_block;

static page_block page_block_of(const sn_kv_shape *all, int block) {
    assert(block >= 0 && block < all->n_blocks + all->index_blocks);
    return (page_block){sn_kv_block_shape(all, block), sn_kv_block_offset(all, block, block_bytes)};
}

/* The offset in a page of the keys of a head; the values follow key_bytes later. */
static size_t head_offset(const page_block *b, int head) { return b->offset + (size_t)head * head_bytes(&b->shape); }

size_t sn_cpu_index_offset(const sn_kv_shape *shape, int block) {
    return sn_kv_block_offset(shape, block, block_bytes);
}

size_t sn_cpu_latent_row(const sn_kv_shape *shape, int block, int position, size_t *bytes) {
    *bytes = sn_kv_value_bytes(shape->dtype, shape->head_dim);
    return sn_kv_block_offset(shape, block, block_bytes) + (size_t)(position % shape->page_tokens) * *bytes;
}

/* Where the key and the value of one position of a head lie. */
typedef struct kv_slot {
    sn_kv_dtype dtype;
    int dim, value_dim; /* of the key, and of the row of the value */
    uint8_t *tile;      /* of 16 keys */
    size_t lane;        /* of this key in the tile: its elements lie SN_LANES elements apart */
    uint8_t *value;
} kv_slot;

/* Stores n numbers as halves, `step` apart; what is beyond their range becomes the largest one, and is told. */
static void store_halves(uint16_t *to, size_t step, const float *x, int n) {
    const float most = 65504;
    bool beyond = false;
    for (int d = 0; d < n; d++) {
        to[(size_t)d * step] = sn_f32_to_f16(x[d] > most ? most : x[d] < -most ? -most : x[d]);
        beyond |= fabsf(x[d]) > most;
    }
    if (beyond)
        sn_log_rated_at(1, SN_LOG_WARN, "keys or values beyond f16",
                        "text=numbers above %d are kept as that, so the text may be another one than in float32: give "
                        "--kv-dtype f32 to all nodes and clients of this model",
                        (int)most);
}

/* Quantises n <= 32 elements: x ~ d * q; returns d as bfloat16. Since d has 8 bits of mantissa and q is at most 127, d
 * * q is exact, and quantising it again gives the same d and q. */
static uint16_t kv_quantise_block(const float *x, int n, int8_t *q) {
    const float smallest = 1e-30f; /* blocks below it count as zero, because their quotients would not be exact */
    float amax = 0;
    for (int i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax; /* NaN does not count, and becomes 0 */
    if (amax < smallest) {
        memset(q, 0, (size_t)n);
        return 0;
    }
    uint16_t scale = sn_f32_to_bf16((amax < FLT_MAX ? amax : FLT_MAX) / 127);
    float d = sn_bf16_to_f32(scale);
    for (int i = 0; i < n; i++) {
        float y = x[i] / d;
        q[i] = (int8_t)(y >= 127 ? 127 : y <= -127 ? -127 : y == y ? lrintf(y) : 0);
    }
    return scale;
}

static void put_scale(uint8_t *scales, size_t i, uint16_t scale) { memcpy(scales + 2 * i, &scale, sizeof scale); }
static float get_scale(const uint8_t *scales, size_t i) {
    uint16_t scale;
    memcpy(&scale, scales + 2 * i, sizeof scale);
    return sn_bf16_to_f32(scale);
}

static int block_size(int dim, size_t block) {
    int left = dim - (int)block * SN_KV_BLOCK;
    return left < SN_KV_BLOCK ? left : SN_KV_BLOCK;
}

static void store_key(const kv_slot *to, const float *k) {
    uint8_t *scales = to->tile + (size_t)to->dim * SN_LANES;
    float *floats = (float *)(void *)to->tile + to->lane;
    uint16_t *halves = (uint16_t *)(void *)to->tile + to->lane;
    int8_t q[SN_KV_BLOCK], *bytes = (int8_t *)to->tile + to->lane;
    if (to->dtype == SN_KV_F32)
        for (int d = 0; d < to->dim; d++) floats[d * SN_LANES] = k[d];
    else if (to->dtype == SN_KV_F16)
        store_halves(halves, SN_LANES, k, to->dim);
    else
        for (size_t b = 0; b < sn_kv_n_scales(to->dim); b++) {
            int n = block_size(to->dim, b), first = (int)b * SN_KV_BLOCK;
            put_scale(scales, b * SN_LANES + to->lane, kv_quantise_block(k + first, n, q));
            for (int d = 0; d < n; d++) bytes[(first + d) * SN_LANES] = q[d];
        }
}

static void load_key(const kv_slot *from, float *k) {
    const uint8_t *scales = from->tile + (size_t)from->dim * SN_LANES;
    const float *floats = (const float *)(const void *)from->tile + from->lane;
    const uint16_t *halves = (const uint16_t *)(const void *)from->tile + from->lane;
    const int8_t *bytes = (const int8_t *)from->tile + from->lane;
    for (int d = 0; d < from->dim; d++)
        k[d] = from->dtype == SN_KV_F32 ? floats[d * SN_LANES]
               : from->dtype == SN_KV_F16
                   ? sn_f16_to_f32(halves[d * SN_LANES])
                   : (float)bytes[d * SN_LANES] * get_scale(scales, (size_t)(d / SN_KV_BLOCK * SN_LANES) + from->lane);
}

/* bytes of the integers of a value with SN_KV_Q8 */
static size_t padded_bytes(int dim) { return sn_round_up((size_t)dim, SN_LANES); }

static void store_value(const kv_slot *to, const float *v) {
    uint8_t *scales = to->value + padded_bytes(to->value_dim);
    if (to->dtype == SN_KV_F32)
        memcpy(to->value, v, (size_t)to->value_dim * sizeof *v);
    else if (to->dtype == SN_KV_F16)
        store_halves((uint16_t *)(void *)to->value, 1, v, to->value_dim);
    else
        for (size_t b = 0; b < sn_kv_n_scales(to->value_dim); b++)
            put_scale(scales, b,
                      kv_quantise_block(v + b * SN_KV_BLOCK, block_size(to->value_dim, b),
                                        (int8_t *)to->value + b * SN_KV_BLOCK));
}

static void load_value(const kv_slot *from, float *v) {
    const uint8_t *scales = from->value + padded_bytes(from->value_dim);
    for (int d = 0; d < from->value_dim; d++)
        v[d] = from->dtype == SN_KV_F32 ? ((const float *)(const void *)from->value)[d]
               : from->dtype == SN_KV_F16
                   ? sn_f16_to_f32(((const uint16_t *)(const void *)from->value)[d])
                   : (float)((const int8_t *)from->value)[d] * get_scale(scales, (size_t)d / SN_KV_BLOCK);
}

typedef struct store_job {
    page_block block;
    int n_sequences;
    const sn_sequence *sequences;
    const float *k, *v;
} store_job;

static kv_slot kv_slot_of(const page_block *b, void *const *pages, int head, int position) {
    const sn_kv_shape *shape = &b->shape;
    size_t in_page = (size_t)(position % shape->page_tokens);
    uint8_t *base = (uint8_t *)pages[position / shape->page_tokens] + head_offset(b, head);
    return (kv_slot){
        shape->dtype,       shape->head_dim,
        row_dim(shape),     base + in_page / SN_LANES * sn_kv_tile_bytes(shape->dtype, shape->head_dim),
        in_page % SN_LANES, base + key_bytes(shape) + in_page * sn_kv_value_bytes(shape->dtype, row_dim(shape))};
}

/* Stores the key and the value of one position of a head; where the value is a part of the key, as one row. */
static void store_slot(const sn_kv_shape *shape, const kv_slot *to, const float *k, const float *v) {
    float row[SN_LATENT_DIM_MAX];
    if (!shape->latent) {
        store_key(to, k);
        if (!shape->keys_only) store_value(to, v);
        return;
    }
    memcpy(row, v, (size_t)shape->latent * sizeof *row);
    memcpy(row + shape->latent, k, (size_t)sn_kv_key_dim(shape) * sizeof *row);
    store_value(to, row);
}

static void load_slot(const sn_kv_shape *shape, const kv_slot *from, float *k, float *v) {
    float row[SN_LATENT_DIM_MAX];
    if (!shape->latent) {
        load_key(from, k);
        if (!shape->keys_only) load_value(from, v);
        return;
    }
    load_value(from, row);
    memcpy(v, row, (size_t)shape->latent * sizeof *row);
    memcpy(k, row + shape->latent, (size_t)sn_kv_key_dim(shape) * sizeof *row);
}

static void store_head(void *ctx, size_t head, int worker) {
    (void)worker;
    const store_job *job = ctx;
    const sn_kv_shape *shape = &job->block.shape;
    size_t heads = (size_t)shape->n_kv_heads, k_dim = (size_t)sn_kv_key_dim(shape),
           v_dim = (size_t)sn_kv_value_dim(shape);
    for (int s = 0; s < job->n_sequences; s++) {
        const sn_sequence *seq = &job->sequences[s];
        for (int i = 0; i < seq->n_rows; i++) {
            size_t from = (size_t)(seq->first_row + i) * heads + head;
            kv_slot to = kv_slot_of(&job->block, seq->pages, (int)head, seq->position + i);
            store_slot(shape, &to, job->k + from * k_dim, v_dim ? job->v + from * v_dim : NULL);
        }
    }
}

static int count_rows(int n_sequences, const sn_sequence *sequences) {
    int n = 0;
    for (int s = 0; s < n_sequences; s++) n += sequences[s].n_rows;
    return n;
}

sn_status sn_cpu_kv_store(sn_device *d, int block, const float *k, const float *v, sn_err *err) {
    (void)err;
    enum { ROWS_PARALLEL_MIN = 8 }; /* with fewer rows, waking the workers costs more than it saves */
    const sn_batch *batch = &((sn_cpu *)d)->batch;
    if (!batch->n_sequences) return SN_OK;
    store_job job = {page_block_of(batch->shape, block), batch->n_sequences, batch->sequences, k, v};
    const int heads = job.block.shape.n_kv_heads;
    if (count_rows(batch->n_sequences, batch->sequences) >= ROWS_PARALLEL_MIN)
        sn_pool_run(((sn_cpu *)d)->pool, (size_t)heads, store_head, &job);
    else
        for (int h = 0; h < heads; h++) store_head(&job, (size_t)h, 0);
    return SN_OK;
}

sn_status sn_cpu_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err) {
    (void)d;
    (void)err;
    const page_block b = page_block_of(shape, block);
    const size_t k_dim = (size_t)sn_kv_key_dim(&b.shape), v_dim = (size_t)sn_kv_value_dim(&b.shape);
    for (int i = 0; i < n; i++)
        for (int h = 0; h < b.shape.n_kv_heads; h++, k += k_dim) {
            kv_slot from = kv_slot_of(&b, pages, h, position + i);
            load_slot(&b.shape, &from, k, v);
            if (v_dim) v += v_dim;
        }
    return SN_OK;
}

sn_status sn_cpu_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          const float *k, const float *v, sn_err *err) {
    (void)d;
    (void)err;
    const sn_sequence all = {.pages = pages, .position = position, .n_rows = n};
    store_job job = {page_block_of(shape, block), 1, &all, k, v};
    for (int h = 0; h < job.block.shape.n_kv_heads; h++) store_head(&job, (size_t)h, 0);
    return SN_OK;
}

/* A call of attention and how it is split: see the top. */
typedef struct attention_plan {
    sn_cpu *cpu;
    page_block block;
    const sn_kv_shape *shape; /* the block's */
    int n_heads, window;
    const sn_attention *params;
    const sn_sequence *sequences;
    const float *q;
    float *out;
    int heads, head_tiles; /* query heads of a unit; units per key-value head */
    int tokens;            /* of a unit */
    size_t n_units;
    size_t key_chunks, dim_chunks; /* chunks of keys and of dimensions of a unit, when units are split */
    int keys, dims;                /* keys of a chunk, dimensions of a chunk */
    struct progress *progress;     /* of each unit, when units are split */
} attention_plan;

typedef struct progress {
    _Atomic size_t scored; /* chunks of keys that are done */
    _Atomic bool ready;    /* softmax is done */
} progress;

enum {
    UNITS_SPLIT_MAX = 256,
    KEYS_MIN = 64, /* of a chunk: four tiles, the most that a kernel takes at once */
    YIELD_AFTER = 20000,
};

static size_t token_tiles(const attention_plan *p, const sn_sequence *seq) {
    return ((size_t)seq->n_rows + (size_t)p->tokens - 1) / (size_t)p->tokens;
}

/* The job of unit number `unit`, with scratch memory from row `scratch_row` on. */
static sn_attention_job unit_job(const attention_plan *p, size_t unit, size_t scratch_row) {
    const sn_kv_shape *shape = p->shape;
    const sn_sequence *seq = p->sequences;
    size_t heads = (size_t)shape->n_kv_heads * (size_t)p->head_tiles, units;
    for (; unit >= (units = token_tiles(p, seq) * heads); seq++) unit -= units;
    /* Late tokens attend to the most keys: they come first, so that the last items are short. */
    int head = (int)(unit % heads), tile = (int)(token_tiles(p, seq) - 1 - unit / heads);
    int group = p->n_heads / shape->n_kv_heads, kv_head = head / p->head_tiles;
    int first_head = head % p->head_tiles * p->heads, first_token = tile * p->tokens;
    int heads_left = group - first_head, tokens_left = seq->n_rows - first_token;
    size_t at = (size_t)(seq->first_row + first_token) * (size_t)p->n_heads + (size_t)(kv_head * group + first_head);
    size_t value_dim = (size_t)sn_kv_value_dim(shape);
    size_t keys = head_offset(&p->block, kv_head);
    return (sn_attention_job){
        .pages = seq->pages,
        .k_offset = keys,
        .v_offset = keys + key_bytes(shape),
        .dtype = shape->dtype,
        .page_tokens = shape->page_tokens,
        .head_dim = shape->head_dim,
        .value_dim = (int)value_dim,
        .row_dim = row_dim(shape),
        .latent = shape->latent,
        .position = seq->position + first_token,
        .n_tokens = tokens_left < p->tokens ? tokens_left : p->tokens,
        .n_heads = heads_left < p->heads ? heads_left : p->heads,
        .window = p->window,
        .scale = p->params->scale,
        .softcap = p->params->softcap,
        .slopes = p->params->slopes ? p->params->slopes + kv_head * group + first_head : NULL,
        .sinks = p->params->sinks ? p->params->sinks + kv_head * group + first_head : NULL,
        .q = p->q + at * (size_t)shape->head_dim,
        .out = p->out + at * value_dim,
        .token_heads = (size_t)p->n_heads,
        .scores = p->cpu->scores + scratch_row * p->cpu->scores_stride,
        .scores_stride = p->cpu->scores_stride,
        .sums = p->cpu->sums + scratch_row,
    };
}

static void unit_run(void *ctx, size_t item, int worker) {
    const attention_plan *p = ctx;
    const sn_cpu_kernels *kernels = p->cpu->kernels;
    sn_attention_job job = unit_job(p, item, (size_t)worker * SN_SCORE_ROWS);
    kernels->scores(&job, sn_attention_base(&job), sn_attention_end(&job));
    kernels->softmax(&job);
    kernels->values(&job, 0, job.value_dim);
}

static size_t unit_rows(const attention_plan *p) { return (size_t)p->tokens * (size_t)p->heads; }

/* Items are claimed in order, all chunks of keys before any chunk of dimensions: the items that this one waits for are
 * already running. */
static void unit_wait_softmax(progress *unit) {
    for (int i = 0; !atomic_load_explicit(&unit->ready, memory_order_acquire); i++) {
        if (i > YIELD_AFTER)
            sched_yield();
        else
            sn_pool_relax();
    }
}

static void unit_run_chunk(void *ctx, size_t item, int worker) {
    (void)worker;
    const attention_plan *p = ctx;
    const sn_cpu_kernels *kernels = p->cpu->kernels;
    size_t scoring = p->n_units * p->key_chunks;
    if (item < scoring) {
        size_t unit = item / p->key_chunks, rows = unit_rows(p);
        sn_attention_job job = unit_job(p, unit, unit * rows);
        int end = sn_attention_end(&job), first = sn_attention_base(&job) + (int)(item % p->key_chunks) * p->keys;
        if (first < end) kernels->scores(&job, first, first + p->keys < end ? first + p->keys : end);
        if (atomic_fetch_add(&p->progress[unit].scored, 1) + 1 < p->key_chunks) return;
        kernels->softmax(&job); /* this was the last chunk of the unit */
        atomic_store_explicit(&p->progress[unit].ready, true, memory_order_release);
    } else {
        size_t unit = (item - scoring) / p->dim_chunks, chunk = (item - scoring) % p->dim_chunks;
        sn_attention_job job = unit_job(p, unit, unit * unit_rows(p));
        int first = (int)chunk * p->dims, end = first + p->dims;
        unit_wait_softmax(&p->progress[unit]);
        kernels->values(&job, first, end < job.value_dim ? end : job.value_dim);
    }
}

/* The most positions that a unit attends to. */
static int plan_longest(const attention_plan *p, int n_sequences) {
    int n_keys = 0;
    for (int s = 0; s < n_sequences; s++) {
        int keys = p->sequences[s].position + p->sequences[s].n_rows;
        int most = (p->window < 0 ? -p->window : p->window) + p->tokens + SN_LANES;
        if (p->window && keys > most) keys = most;
        n_keys = keys > n_keys ? keys : n_keys;
    }
    return n_keys;
}

static void plan_run_chunks(attention_plan *p, int n_sequences, size_t threads) {
    progress units[UNITS_SPLIT_MAX] = {0};
    size_t keys = (size_t)plan_longest(p, n_sequences),
           groups = sn_round_up(padded_width(p->shape), SN_KV_BLOCK) / SN_KV_BLOCK;
    size_t chunk = sn_round_up(keys * p->n_units / (4 * threads) + 1, KEYS_MIN);
    size_t dim_chunks = sn_min_size((2 * threads + p->n_units - 1) / p->n_units, groups);
    p->progress = units;
    p->keys = (int)chunk;
    p->key_chunks = (keys + chunk - 1) / chunk;
    p->dims = (int)((groups + dim_chunks - 1) / dim_chunks) * SN_KV_BLOCK;
    p->dim_chunks = (padded_width(p->shape) + (size_t)p->dims - 1) / (size_t)p->dims;
    sn_pool_run(p->cpu->pool, p->n_units * (p->key_chunks + p->dim_chunks), unit_run_chunk, p);
}

void sn_cpu_attend(sn_cpu *cpu, const sn_batch *batch, const sn_attention *params, const float *q, float *out) {
    int n_sequences = batch->n_sequences, n_heads = params->n_heads;
    if (!n_sequences) return;
    assert(params->block >= 0 && params->block < batch->shape->n_blocks);
    const page_block block = page_block_of(batch->shape, params->block);
    const sn_kv_shape *shape = &block.shape;
    assert(n_heads > 0 && n_heads % shape->n_kv_heads == 0);
    int group = n_heads / shape->n_kv_heads, heads = group < SN_ATTENTION_ROWS ? group : SN_ATTENTION_ROWS;
    attention_plan p = {.cpu = cpu,
                        .block = block,
                        .shape = shape,
                        .n_heads = n_heads,
                        .window = params->window,
                        .params = params,
                        .sequences = batch->sequences,
                        .q = q,
                        .out = out,
                        .heads = heads,
                        .head_tiles = (group + heads - 1) / heads,
                        .tokens = SN_ATTENTION_ROWS / heads};
    for (int s = 0; s < n_sequences; s++)
        p.n_units += token_tiles(&p, &p.sequences[s]) * (size_t)shape->n_kv_heads * (size_t)p.head_tiles;
    size_t threads = (size_t)sn_pool_threads(cpu->pool);
    bool split = threads > 1 && p.n_units > 0 && p.n_units < 4 * threads && p.n_units <= UNITS_SPLIT_MAX &&
                 p.n_units * unit_rows(&p) <= threads * SN_SCORE_ROWS;
    if (split)
        plan_run_chunks(&p, n_sequences, threads);
    else
        sn_pool_run(cpu->pool, p.n_units, unit_run, &p);
}

sn_status sn_cpu_attention(sn_device *d, const sn_attention *params, const float *q, float *out, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    if (params->chosen) return sn_cpu_attend_chosen(cpu, params, q, out, err);
    sn_cpu_attend(cpu, &cpu->batch, params, q, out);
    return SN_OK;
}
