#include "device/cpu/cpu.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

static size_t padded_width(const sn_kv_shape *shape) { return sn_round_up((size_t)shape->head_dim, SN_LANES); }
static size_t key_floats(const sn_kv_shape *shape) { return (size_t)shape->page_tokens * (size_t)shape->head_dim; }
static size_t head_floats(const sn_kv_shape *shape) {
    return key_floats(shape) + (size_t)shape->page_tokens * padded_width(shape);
}

size_t sn_cpu_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape) {
    (void)d;
    assert(shape->page_tokens > 0 && shape->page_tokens % SN_LANES == 0);
    return (size_t)shape->n_blocks * (size_t)shape->n_kv_heads * head_floats(shape) * sizeof(float);
}

/* Where keys of (block, head) begin in a page, in floats; values follow key_floats later. */
static size_t head_offset(const sn_kv_shape *shape, int block, int head) {
    return ((size_t)block * (size_t)shape->n_kv_heads + (size_t)head) * head_floats(shape);
}

typedef struct place {
    float *key;   /* first dimension; the next ones SN_LANES apart */
    float *value; /* contiguous */
} place;

static place place_of(const sn_kv_shape *shape, void *const *pages, int block, int head, int position) {
    size_t in_page = (size_t)(position % shape->page_tokens), dim = (size_t)shape->head_dim;
    float *base = (float *)pages[position / shape->page_tokens] + head_offset(shape, block, head);
    return (place){base + in_page / SN_LANES * SN_LANES * dim + in_page % SN_LANES,
                   base + key_floats(shape) + in_page * padded_width(shape)};
}

typedef struct store_job {
    const sn_kv_shape *shape;
    int block, n_sequences;
    const sn_sequence *sequences;
    const float *k, *v;
} store_job;

static void store_head(void *ctx, size_t head, int worker) {
    (void)worker;
    const store_job *job = ctx;
    size_t dim = (size_t)job->shape->head_dim, stride = dim * (size_t)job->shape->n_kv_heads;
    for (int s = 0; s < job->n_sequences; s++) {
        const sn_sequence *seq = &job->sequences[s];
        for (int i = 0; i < seq->n_rows; i++) {
            size_t from = (size_t)(seq->first_row + i) * stride + head * dim;
            place to = place_of(job->shape, seq->pages, job->block, (int)head, seq->position + i);
            for (size_t d = 0; d < dim; d++) to.key[d * SN_LANES] = job->k[from + d];
            memcpy(to.value, job->v + from, dim * sizeof *to.value);
        }
    }
}

static int count_rows(int n_sequences, const sn_sequence *sequences) {
    int n = 0;
    for (int s = 0; s < n_sequences; s++) n += sequences[s].n_rows;
    return n;
}

sn_status sn_cpu_kv_store(sn_device *d, const sn_kv_shape *shape, int block, int n_sequences,
                          const sn_sequence *sequences, const float *k, const float *v, sn_err *err) {
    (void)err;
    enum { WORTH_SHARING = 8 }; /* rows: below, waking others costs more than it saves */
    store_job job = {shape, block, n_sequences, sequences, k, v};
    assert(block >= 0 && block < shape->n_blocks);
    if (count_rows(n_sequences, sequences) >= WORTH_SHARING)
        sn_pool_run(((sn_cpu *)d)->pool, (size_t)shape->n_kv_heads, store_head, &job);
    else
        for (int h = 0; h < shape->n_kv_heads; h++) store_head(&job, (size_t)h, 0);
    return SN_OK;
}

sn_status sn_cpu_kv_load(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err) {
    (void)d;
    (void)err;
    size_t dim = (size_t)shape->head_dim;
    assert(block >= 0 && block < shape->n_blocks);
    for (int i = 0; i < n; i++)
        for (int h = 0; h < shape->n_kv_heads; h++, k += dim, v += dim) {
            place from = place_of(shape, pages, block, h, position + i);
            for (size_t e = 0; e < dim; e++) k[e] = from.key[e * SN_LANES];
            memcpy(v, from.value, dim * sizeof *v);
        }
    return SN_OK;
}

/* An item of attention is a tile of tokens of one sequence with some of the query heads of one key-value head. */
typedef struct attention_job {
    sn_cpu *cpu;
    const sn_kv_shape *shape;
    int block, n_sequences, n_heads, window;
    const sn_sequence *sequences;
    float scale;
    const float *q;
    float *out;
    int heads, head_tiles;   /* query heads of an item; items for a key-value head's query heads */
    int tokens;              /* of an item */
} attention_job;

static size_t token_tiles(const attention_job *job, const sn_sequence *seq) {
    return ((size_t)seq->n_rows + (size_t)job->tokens - 1) / (size_t)job->tokens;
}

static void attend(void *ctx, size_t item, int worker) {
    const attention_job *job = ctx;
    const sn_kv_shape *shape = job->shape;
    const sn_sequence *seq = job->sequences;
    size_t heads = (size_t)shape->n_kv_heads * (size_t)job->head_tiles, tiles;
    for (; item >= (tiles = token_tiles(job, seq) * heads); seq++) item -= tiles;
    /* Late tokens look back furthest: hand them out first, so that the last items are short ones. */
    int head = (int)(item % heads), tile = (int)(token_tiles(job, seq) - 1 - item / heads);
    int group = job->n_heads / shape->n_kv_heads, kv_head = head / job->head_tiles;
    int first_head = head % job->head_tiles * job->heads, first_token = tile * job->tokens;
    int heads_left = group - first_head, tokens_left = seq->n_rows - first_token;
    size_t stride = (size_t)job->n_heads * (size_t)shape->head_dim;
    size_t at = (size_t)(seq->first_row + first_token) * stride +
                (size_t)(kv_head * group + first_head) * (size_t)shape->head_dim;
    size_t keys = head_offset(shape, job->block, kv_head);
    job->cpu->kernels->attention(&(sn_attention_job){
        .pages = seq->pages,
        .k_offset = keys * sizeof(float),
        .v_offset = (keys + key_floats(shape)) * sizeof(float),
        .page_tokens = shape->page_tokens,
        .head_dim = shape->head_dim,
        .position = seq->position + first_token,
        .n_tokens = tokens_left < job->tokens ? tokens_left : job->tokens,
        .n_heads = heads_left < job->heads ? heads_left : job->heads,
        .window = job->window,
        .scale = job->scale,
        .q = job->q + at,
        .out = job->out + at,
        .stride = stride,
        .scores = job->cpu->scores + (size_t)worker * SN_ATTENTION_ROWS * job->cpu->scores_room,
        .scores_room = job->cpu->scores_room,
    });
}

static sn_status check(const sn_cpu *cpu, const sn_kv_shape *shape, int n_sequences, const sn_sequence *sequences,
                       sn_err *err) {
    if (shape->head_dim > SN_KV_WIDTH_MAX)
        return sn_fail(err, SN_REFUSED, "heads of %d elements are wider than the %d this device takes", shape->head_dim,
                       SN_KV_WIDTH_MAX);
    for (int s = 0; s < n_sequences; s++)
        if (sequences[s].position + sequences[s].n_rows > cpu->limits.context)
            return sn_fail(err, SN_REFUSED, "position %d lies beyond the context of %d that was prepared",
                           sequences[s].position + sequences[s].n_rows - 1, cpu->limits.context);
    return SN_OK;
}

sn_status sn_cpu_attention(sn_device *d, const sn_kv_shape *shape, int block, int n_sequences,
                           const sn_sequence *sequences, int n_heads, int window, float scale, const float *q,
                           float *out, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    assert(n_heads > 0 && n_heads % shape->n_kv_heads == 0 && block >= 0 && block < shape->n_blocks);
    sn_status status = check(cpu, shape, n_sequences, sequences, err);
    if (status) return status;
    int group = n_heads / shape->n_kv_heads, rows = count_rows(n_sequences, sequences);
    int threads = sn_pool_threads(cpu->pool), heads = group < SN_ATTENTION_ROWS ? group : SN_ATTENTION_ROWS;
    /* Few rows: share the heads out more finely, though keys and values are then loaded more often. */
    while (heads > 1 && rows * shape->n_kv_heads * ((group + heads - 1) / heads) < 2 * threads) heads = (heads + 1) / 2;
    attention_job job = {.cpu = cpu, .shape = shape, .block = block, .n_sequences = n_sequences, .n_heads = n_heads,
                         .window = window, .sequences = sequences, .scale = scale, .q = q, .out = out, .heads = heads,
                         .head_tiles = (group + heads - 1) / heads, .tokens = SN_ATTENTION_ROWS / heads};
    size_t items = 0;
    for (int s = 0; s < n_sequences; s++)
        items += token_tiles(&job, &sequences[s]) * (size_t)shape->n_kv_heads * (size_t)job.head_tiles;
    sn_pool_run(cpu->pool, items, attend, &job);
    return SN_OK;
}
