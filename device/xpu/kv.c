/* The KV cache on an XPU: batches, storing, attention, export and import.
 *
 * batch_begin builds the batch table on the host (the rows, then the tiles of up to SN_XPU_TILE_ROWS rows of one
 * sequence, then the sequences' recurrent states, then the addresses of their pages; kv.cl documents it) and uploads
 * it. The kernels kv_store and attention_* follow the addresses that they find in it. Tiles of several rows use
 * attention_tile. A row by itself uses attention_row, which divides a long context into parts, so that one session
 * fills the device, too; attention_join adds them up. Batches are not captured (xpu_private.h says why). Export and
 * import copy positions through a buffer on the device, KV_COPY_BYTES at a time. */
#include "device/xpu/xpu_private.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

enum { ITEMS = 64, GROUP = 32 }; /* as in kv.cl */

/* Groups of items that store or copy a position: an item takes one element, with SN_KV_Q8 all that share a scale. */
static size_t groups_of_position(const sn_kv_shape *shape) {
    size_t dim = (size_t)shape->head_dim, spans = shape->dtype == SN_KV_Q8 ? (dim + GROUP - 1) / GROUP : dim;
    return ((size_t)shape->n_kv_heads * spans + ITEMS - 1) / ITEMS;
}

static size_t row_floats(const sn_kv_shape *shape) { return (size_t)shape->n_kv_heads * (size_t)shape->head_dim; }

/* Of k and v of a position, outside of the pages. */
static size_t k_floats(const sn_kv_shape *s) { return (size_t)s->n_kv_heads * (size_t)sn_kv_key_dim(s); }
static size_t v_floats(const sn_kv_shape *s) { return (size_t)s->n_kv_heads * (size_t)sn_kv_value_dim(s); }

/* Bytes of a key or a value; of a block in a page. */
static size_t row_bytes(const sn_kv_shape *shape, int elements) {
    size_t dim = (size_t)elements;
    return shape->dtype == SN_KV_F32   ? dim * sizeof(float)
           : shape->dtype == SN_KV_F16 ? dim * sizeof(uint16_t)
                                       : dim + (dim + GROUP - 1) / GROUP * sizeof(uint16_t);
}
static size_t block_bytes(const sn_kv_shape *one) {
    size_t position =
        row_bytes(one, one->head_dim) + (one->latent || one->keys_only ? 0 : row_bytes(one, sn_kv_value_dim(one)));
    return (size_t)one->n_kv_heads * (size_t)one->page_tokens * position;
}

/* A block as the kernels take it: its shape, and where it begins in a page. */
typedef struct page_block {
    sn_kv_shape shape;
    uint64_t at;
    int value_dim;
} page_block;

static page_block page_block_of(const sn_kv_shape *shape, int block) {
    page_block b = {sn_kv_block_shape(shape, block), sn_kv_block_offset(shape, block, block_bytes), 0};
    b.value_dim = sn_kv_value_dim(&b.shape);
    return b;
}

size_t sn_xpu_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape) {
    (void)d;
    assert(shape->page_tokens > 0 && shape->page_tokens % 16 == 0);
    return sn_kv_block_offset(shape, shape->n_blocks + shape->index_blocks, block_bytes);
}

uint64_t sn_xpu_index_at(const sn_kv_shape *shape, int block) { return sn_kv_block_offset(shape, block, block_bytes); }

/* -- the batch table */

static size_t count_pages(const sn_kv_shape *shape, int end) {
    return ((size_t)end + (size_t)shape->page_tokens - 1) / (size_t)shape->page_tokens;
}

typedef struct table_size {
    size_t rows, tiles, singles, pages; /* tiles of several rows; of one */
} table_size;

static table_size table_measure(const sn_batch *batch) {
    table_size size = {0};
    for (int s = 0; s < batch->n_sequences; s++) {
        const sn_sequence *seq = &batch->sequences[s];
        if (seq->n_rows == 0) continue;
        size.rows += (size_t)seq->n_rows;
        size.singles += seq->n_rows % SN_XPU_TILE_ROWS == 1;
        size.tiles += ((size_t)seq->n_rows + SN_XPU_TILE_ROWS - 2) / SN_XPU_TILE_ROWS;
        size.pages += count_pages(batch->shape, seq->position + seq->n_rows);
    }
    return size;
}

/* Of a sequence: delta.clh describes the words. */
enum { STATE_WORDS = 6, STATE_BYTES = STATE_WORDS * 8 };

static void states_fill(const sn_batch *batch, uint64_t (*states)[STATE_WORDS]) {
    for (int i = 0; i < batch->n_sequences; i++) {
        const sn_sequence *seq = &batch->sequences[i];
        const sn_sequence_state *s = &seq->state;
        const uint64_t words[STATE_WORDS] = {(uintptr_t)s->before,     (uintptr_t)s->after,
                                             (uintptr_t)s->snapshot,   (uint64_t)s->snapshot_rows,
                                             (uint64_t)seq->first_row, (uint64_t)seq->n_rows};
        memcpy(states[i], words, sizeof words);
    }
}

size_t sn_xpu_table_bytes(const sn_device_limits *l) {
    size_t rows = (size_t)l->rows, sequences = (size_t)(l->sequences ? l->sequences : l->rows);
    return 3 * 64 + rows * (8 + 16) + sequences * (STATE_BYTES + ((size_t)l->context / 16 + 1) * 8);
}

/* tiles: those of several rows, then those of one. */
static void table_fill(const sn_batch *batch, size_t n_tiles, uint32_t (*rows)[2], uint32_t (*tiles)[4],
                       uint64_t *pages) {
    uint32_t first_page = 0, (*singles)[4] = tiles + n_tiles;
    for (int s = 0; s < batch->n_sequences; s++) {
        const sn_sequence *seq = &batch->sequences[s];
        if (seq->n_rows == 0) continue;
        for (int i = 0; i < seq->n_rows; i++) {
            rows[seq->first_row + i][0] = first_page;
            rows[seq->first_row + i][1] = (uint32_t)(seq->position + i);
        }
        for (int i = 0; i < seq->n_rows; i += SN_XPU_TILE_ROWS) {
            const int left = seq->n_rows - i, n = left < SN_XPU_TILE_ROWS ? left : SN_XPU_TILE_ROWS;
            const uint32_t tile[4] = {(uint32_t)(seq->first_row + i), (uint32_t)n, (uint32_t)(seq->position + i),
                                      first_page};
            memcpy(n == 1 ? singles++ : tiles++, tile, sizeof tile);
        }
        size_t n = count_pages(batch->shape, seq->position + seq->n_rows);
        for (size_t p = 0; p < n; p++) *pages++ = (uint64_t)(uintptr_t)seq->pages[p];
        first_page += (uint32_t)n;
    }
}

/* The positions that the longest single row attends to. */
static int longest_single(const sn_batch *batch) {
    int longest = 0;
    for (int s = 0; s < batch->n_sequences; s++) {
        const sn_sequence *seq = &batch->sequences[s];
        if (seq->n_rows % SN_XPU_TILE_ROWS == 1 && seq->position + seq->n_rows > longest)
            longest = seq->position + seq->n_rows;
    }
    return longest;
}

static sn_status kv_check_shape(const sn_kv_shape *shape, sn_err *err) {
    const int most = shape->latent ? SN_LATENT_DIM_MAX : SN_XPU_HEAD_DIM_MAX;
    const int dim = sn_kv_head_dim_max(shape);
    if (dim > most)
        return sn_fail(err, SN_REFUSED, "heads of %d elements are too wide: an xpu takes at most %d", dim, most);
    return SN_OK;
}

sn_status sn_xpu_batch_begin(sn_device *d, const sn_batch *batch, bool *replayed, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    uint8_t *table = NULL;
    *replayed = false;
    sn_status status = kv_check_shape(batch->shape, err);
    table_size size = table_measure(batch);
    if (!status && size.rows != (size_t)batch->n_rows)
        status = sn_fail(err, SN_REFUSED, "the sequences of a batch of %d rows have %zu", batch->n_rows, size.rows);
    if (!status) status = sn_xpu_load_kv(x, batch->shape->dtype, err);
    if (status) return status;
    x->shape = *batch->shape;
    x->batch_rows = batch->n_rows;
    x->batch_tiles = (int)size.tiles;
    x->batch_singles = (int)size.singles;
    x->longest = longest_single(batch);
    x->tiles_at = sn_round_up(size.rows * 8, 64);
    x->n_sequences = batch->n_sequences;
    x->sequences = batch->sequences;
    x->states_at = sn_round_up(x->tiles_at + (size.tiles + size.singles) * 16, 64);
    x->pages_at = sn_round_up(x->states_at + (size_t)batch->n_sequences * STATE_BYTES, 64);
    size_t bytes = x->pages_at + size.pages * 8;
    status = sn_xpu_buffer_reserve(x, &x->batch_table, bytes, err);
    if (!status) status = sn_calloc(&table, 1, bytes, err);
    if (!status) {
        table_fill(batch, size.tiles, (uint32_t(*)[2])table, (uint32_t(*)[4])(table + x->tiles_at),
                   (uint64_t *)(table + x->pages_at));
        states_fill(batch, (uint64_t(*)[STATE_WORDS])(table + x->states_at));
        status = sn_xpu_upload(d, x->batch_table.device, table, bytes, err);
    }
    free(table);
    return status;
}

sn_status sn_xpu_batch_end(sn_device *d, sn_err *err) { return sn_xpu_check_alive(sn_xpu_of(d), err); }

/* -- operations within a batch */

sn_status sn_xpu_rope_store(sn_device *d, int block, const sn_rotated *p, const float *v, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    assert(block >= 0 && block < x->shape.n_blocks && !x->shape.latent && p->n == x->batch_rows);
    const uint8_t *rows = x->batch_table.device, *pages = rows + x->pages_at;
    const page_block b = page_block_of(&x->shape, block);
    uint32_t rotate_half = p->rope.rotate_half;
    sn_xpu_arg args[] = {SN_XPU_ARG(rows),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(b.at),
                         SN_XPU_ARG(p->n_heads),
                         SN_XPU_ARG(p->n_kv_heads),
                         SN_XPU_ARG(p->head_dim),
                         SN_XPU_ARG(b.value_dim),
                         SN_XPU_ARG(x->shape.page_tokens),
                         SN_XPU_ARG(p->rope.dim),
                         SN_XPU_ARG(rotate_half),
                         SN_XPU_ARG(p->rope.cos_sin),
                         SN_XPU_ARG(p->q),
                         SN_XPU_ARG(p->k),
                         SN_XPU_ARG(v)};
    sn_status status = sn_xpu_barrier(x, err);
    return status ? status
                  : sn_xpu_launch(x, x->kv[x->shape.dtype].rope_store, (size_t)(p->n_heads + p->n_kv_heads),
                                  (size_t)p->n, COUNT(args), args, err);
}

static sn_status latent_store(sn_xpu *x, int block, const float *k, const float *v, sn_err *err) {
    const uint8_t *rows = x->batch_table.device, *pages = rows + x->pages_at;
    sn_xpu_arg args[] = {SN_XPU_ARG(rows),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(block),
                         SN_XPU_ARG(x->shape.n_kv_heads),
                         SN_XPU_ARG(x->shape.head_dim),
                         SN_XPU_ARG(x->shape.page_tokens),
                         SN_XPU_ARG(k),
                         SN_XPU_ARG(v),
                         SN_XPU_ARG(x->shape.latent)};
    sn_status status = sn_xpu_barrier(x, err);
    return status ? status
                  : sn_xpu_launch(x, x->kv[x->shape.dtype].latent_store, groups_of_position(&x->shape),
                                  (size_t)x->batch_rows, COUNT(args), args, err);
}

sn_status sn_xpu_kv_store(sn_device *d, int block, const float *k, const float *v, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    assert(block >= 0 && block < x->shape.n_blocks + x->shape.index_blocks);
    if (block >= x->shape.n_blocks) return sn_xpu_index_store(x, block, k, err);
    if (x->shape.latent) return latent_store(x, block, k, v, err);
    const uint8_t *rows = x->batch_table.device, *pages = rows + x->pages_at;
    const page_block b = page_block_of(&x->shape, block);
    sn_xpu_arg args[] = {SN_XPU_ARG(rows),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(b.at),
                         SN_XPU_ARG(b.shape.n_kv_heads),
                         SN_XPU_ARG(b.shape.head_dim),
                         SN_XPU_ARG(b.value_dim),
                         SN_XPU_ARG(b.shape.page_tokens),
                         SN_XPU_ARG(k),
                         SN_XPU_ARG(v)};
    sn_status status = sn_xpu_barrier(x, err);
    return status ? status
                  : sn_xpu_launch(x, x->kv[x->shape.dtype].store, groups_of_position(&b.shape), (size_t)x->batch_rows,
                                  COUNT(args), args, err);
}

/* -- attention of single rows */

/* A part has at least so many positions; about so many groups fill the largest device. */
enum { PART_TOKENS = 128, GROUPS = 1024 };

/* rows * heads * parts is at most GROUPS * SN_XPU_ROW_HEADS where there are several parts. */
size_t sn_xpu_slot_bytes(size_t n, int elements) { return n * ((size_t)elements + 2) * sizeof(float); }
size_t sn_xpu_partial_bytes(const sn_device_limits *l) {
    const bool splits = l->context > PART_TOKENS && l->head_dim > 0 && l->head_dim <= SN_LATENT_DIM_MAX;
    return splits ? sn_xpu_slot_bytes(GROUPS * SN_XPU_ROW_HEADS, l->head_dim) : 0;
}

sn_xpu_parts sn_xpu_divide_context(const sn_xpu *x, int32_t window, size_t groups) {
    const size_t seen = (size_t)(window < 0 ? -(int64_t)window : window ? window : INT32_MAX) + 15;
    const size_t positions = sn_min_size((size_t)x->longest, seen), most = GROUPS / groups;
    size_t n = sn_min_size((positions + PART_TOKENS - 1) / PART_TOKENS, most ? most : 1);
    if (n <= 1) return (sn_xpu_parts){1, (uint32_t)sn_round_up(positions + 16, 64)};
    const size_t tokens = sn_round_up((positions + n - 1) / n, 64);
    return (sn_xpu_parts){(uint32_t)((positions - 1) / tokens + 1), (uint32_t)tokens};
}

sn_status sn_xpu_join_parts(sn_xpu *x, const sn_attention *params, int elements, sn_xpu_parts parts, float *out,
                            sn_xpu_rows8 rows8, sn_err *err) {
    const uint8_t *singles = (uint8_t *)x->batch_table.device + x->tiles_at + 16 * x->batch_tiles;
    sn_xpu_arg args[] = {
        SN_XPU_ARG(singles), SN_XPU_ARG(params->n_heads), SN_XPU_ARG(elements),     SN_XPU_ARG(params->window),
        SN_XPU_ARG(out),     SN_XPU_ARG(parts.n),         SN_XPU_ARG(parts.tokens), SN_XPU_ARG(x->partial.device),
        SN_XPU_ARG(rows8.q), SN_XPU_ARG(rows8.scales)};
    sn_status status = sn_xpu_barrier(x, err);
    return status ? status
                  : sn_xpu_launch(x, x->kv[x->shape.dtype].attention_join, (size_t)params->n_heads,
                                  (size_t)x->batch_singles, COUNT(args), args, err);
}

/* Groups of attention_row for each row and part. */
static size_t row_groups(const sn_kv_shape *shape, const sn_attention *params) {
    const int group = params->n_heads / shape->n_kv_heads, teams = (group + SN_XPU_ROW_HEADS - 1) / SN_XPU_ROW_HEADS;
    return (size_t)shape->n_kv_heads * (size_t)teams;
}

bool sn_xpu_attends_in_8_bits(const sn_xpu *x, int block) {
    const page_block b = page_block_of(&x->shape, block);
    return !b.shape.latent && b.value_dim % 32 == 0;
}

sn_status sn_xpu_attention(sn_device *d, const sn_attention *params, const float *q, float *out, sn_err *err) {
    return sn_xpu_attend(sn_xpu_of(d), params, q, out, (sn_xpu_rows8){0}, err);
}

sn_status sn_xpu_attend(sn_xpu *x, const sn_attention *params, const float *q, float *out, sn_xpu_rows8 rows8,
                        sn_err *err) {
    assert(params->block >= 0 && params->block < x->shape.n_blocks);
    const page_block b = page_block_of(&x->shape, params->block);
    const sn_kv_shape *shape = &b.shape;
    assert(params->n_heads > 0 && params->n_heads % shape->n_kv_heads == 0);
    if (shape->latent) return sn_xpu_latent_attention(x, params, q, out, err);
    if (params->chosen) return sn_fail(err, SN_REFUSED, "positions are chosen in latent attention only");
    const size_t rows = (size_t)x->batch_singles;
    const sn_xpu_parts parts = sn_xpu_divide_context(x, params->window, row_groups(shape, params) * (rows ? rows : 1));
    sn_status status = SN_OK;
    if (parts.n > 1)
        status = sn_xpu_buffer_reserve(x, &x->partial,
                                       sn_xpu_slot_bytes(rows * (size_t)params->n_heads * parts.n, b.value_dim), err);
    if (!status) status = sn_xpu_barrier(x, err);
    if (status) return status;
    const uint8_t *tiles = (uint8_t *)x->batch_table.device + x->tiles_at, *singles = tiles + 16 * x->batch_tiles,
                  *pages = (uint8_t *)x->batch_table.device + x->pages_at;
    const size_t tile_bytes = SN_XPU_TILE_ROWS * (size_t)shape->head_dim * sizeof(float);
    sn_xpu_arg args[] = {SN_XPU_ARG(singles),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(b.at),
                         SN_XPU_ARG(params->n_heads),
                         SN_XPU_ARG(shape->n_kv_heads),
                         SN_XPU_ARG(shape->head_dim),
                         SN_XPU_ARG(b.value_dim),
                         SN_XPU_ARG(shape->page_tokens),
                         SN_XPU_ARG(params->window),
                         SN_XPU_ARG(params->scale),
                         SN_XPU_ARG(params->softcap),
                         SN_XPU_ARG(params->slopes),
                         SN_XPU_ARG(params->sinks),
                         SN_XPU_ARG(q),
                         SN_XPU_ARG(out),
                         SN_XPU_ARG(parts.n),
                         SN_XPU_ARG(parts.tokens),
                         SN_XPU_ARG(x->partial.device),
                         SN_XPU_ARG(rows8.q),
                         SN_XPU_ARG(rows8.scales)};
    status = sn_xpu_launch(x, x->kv[shape->dtype].attention_row, row_groups(shape, params), rows * parts.n, COUNT(args),
                           args, err);
    args[0] = SN_XPU_ARG(tiles);
    args[15] = SN_XPU_ARG(rows8.q);
    args[16] = SN_XPU_ARG(rows8.scales);
    for (int i = 17; i < COUNT(args); i++) args[i] = SN_XPU_LOCAL(tile_bytes); /* query, keys, values */
    if (!status)
        status = sn_xpu_launch(x, x->kv[shape->dtype].attention_tile, (size_t)params->n_heads, (size_t)x->batch_tiles,
                               COUNT(args), args, err);
    return status || parts.n == 1 ? status : sn_xpu_join_parts(x, params, b.value_dim, parts, out, rows8, err);
}

/* -- export and import: chunks of positions, through a buffer on the device */

enum { KV_COPY_BYTES = 1 << 20 };

typedef struct kv_copy {
    page_block block;
    int number; /* of the block in its cache */
    void *const *pages;
    int position, n;
    float *k, *v; /* host; written to when reading, only read when writing */
    bool write;   /* into the pages; else out of them */
} kv_copy;

/* On the device: the addresses of pages, keys and values; and whether these are stored. */
typedef struct kv_places {
    uint8_t *pages, *keys, *values;
    uint32_t storing;
} kv_places;

static sn_status plain_copy(sn_xpu *x, const kv_copy *t, const kv_places *at, sn_err *err) {
    const sn_kv_shape *shape = &t->block.shape;
    sn_xpu_arg args[] = {SN_XPU_ARG(at->pages),       SN_XPU_ARG(t->block.at),        SN_XPU_ARG(shape->n_kv_heads),
                         SN_XPU_ARG(shape->head_dim), SN_XPU_ARG(t->block.value_dim), SN_XPU_ARG(shape->page_tokens),
                         SN_XPU_ARG(t->position),     SN_XPU_ARG(at->storing),        SN_XPU_ARG(at->keys),
                         SN_XPU_ARG(at->values)};
    return sn_xpu_launch(x, x->kv[shape->dtype].copy, groups_of_position(shape), (size_t)t->n, COUNT(args), args, err);
}

static sn_status latent_copy(sn_xpu *x, const kv_copy *t, const kv_places *at, sn_err *err) {
    const sn_kv_shape *shape = &t->block.shape;
    sn_xpu_arg args[] = {SN_XPU_ARG(at->pages),       SN_XPU_ARG(t->number),          SN_XPU_ARG(shape->n_kv_heads),
                         SN_XPU_ARG(shape->head_dim), SN_XPU_ARG(shape->page_tokens), SN_XPU_ARG(t->position),
                         SN_XPU_ARG(at->storing),     SN_XPU_ARG(at->keys),           SN_XPU_ARG(at->values),
                         SN_XPU_ARG(shape->latent)};
    return sn_xpu_launch(x, x->kv[shape->dtype].latent_copy, groups_of_position(shape), (size_t)t->n, COUNT(args), args,
                         err);
}

static sn_status index_copy(sn_xpu *x, const kv_copy *t, const kv_places *at, sn_err *err) {
    const sn_xpu_index_copy_of copy = {&t->block.shape,          t->block.at, t->position, t->n, t->write, at->pages,
                                       (float *)(void *)at->keys};
    return sn_xpu_index_copy(x, &copy, err);
}

/* `kv_staging` holds the addresses of n_pages pages, then keys, then values of t->n positions. */
static sn_status kv_copy_chunk(sn_xpu *x, const kv_copy *t, int n_pages, sn_err *err) {
    sn_device *d = &x->base;
    const sn_kv_shape *shape = &t->block.shape;
    size_t k_bytes = (size_t)t->n * k_floats(shape) * sizeof(float),
           v_bytes = (size_t)t->n * v_floats(shape) * sizeof(float);
    size_t keys_at = sn_round_up((size_t)n_pages * 8, 64), values_at = sn_round_up(keys_at + k_bytes, 64);
    sn_status status = sn_xpu_buffer_reserve(x, &x->kv_staging, values_at + v_bytes, err);
    if (status) return status;
    uint8_t *pages = x->kv_staging.device, *keys = pages + keys_at, *values = pages + values_at;
    const kv_places at = {pages, keys, values, t->write};
    _Static_assert(sizeof(void *) == 8, "pages are handed over as 64-bit addresses");
    status = sn_xpu_upload(d, pages, t->pages, (size_t)n_pages * 8, err);
    if (!status && t->write) status = sn_xpu_upload(d, keys, t->k, k_bytes, err);
    if (!status && t->write && v_bytes) status = sn_xpu_upload(d, values, t->v, v_bytes, err);
    if (!status) status = sn_xpu_barrier(x, err);
    if (status) return status;
    status = shape->keys_only ? index_copy(x, t, &at, err)
             : shape->latent  ? latent_copy(x, t, &at, err)
                              : plain_copy(x, t, &at, err);
    if (!status && t->write) return sn_xpu_wait(x, err);
    if (!status) status = sn_xpu_download(d, t->k, keys, k_bytes, err);
    return status || !v_bytes ? status : sn_xpu_download(d, t->v, values, v_bytes, err);
}

static size_t chunk_bytes(size_t row_floats) { return KV_COPY_BYTES + row_floats * sizeof(float); }

size_t sn_xpu_kv_staging_bytes(const sn_device_limits *l) {
    return 2 * 64 + ((size_t)l->context / 16 + 1) * 8 + 2 * chunk_bytes((size_t)l->width);
}

static sn_status kv_copy_all(sn_xpu *x, const sn_kv_shape *shape, kv_copy t, sn_err *err) {
    assert(t.number >= 0 && t.number < shape->n_blocks + shape->index_blocks && t.position >= 0 && t.n >= 0);
    t.block = page_block_of(shape, t.number);
    sn_status status = kv_check_shape(shape, err);
    if (!status) status = sn_xpu_load_kv(x, shape->dtype, err);
    int n_pages = (int)count_pages(shape, t.position + t.n);
    int chunk_max = (int)(KV_COPY_BYTES / (row_floats(&t.block.shape) * sizeof(float))) + 1;
    for (int left = t.n; left > 0 && !status; left -= t.n) {
        t.n = left < chunk_max ? left : chunk_max;
        status = kv_copy_chunk(x, &t, n_pages, err);
        t.position += t.n;
        t.k += (size_t)t.n * k_floats(&t.block.shape);
        if (t.v) t.v += (size_t)t.n * v_floats(&t.block.shape);
    }
    return status ? status : sn_xpu_check_alive(x, err);
}

sn_status sn_xpu_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err) {
    const kv_copy t = {.number = block, .pages = pages, .position = position, .n = n, .k = k, .v = v};
    return kv_copy_all(sn_xpu_of(d), shape, t, err);
}

sn_status sn_xpu_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          const float *k, const float *v, sn_err *err) {
    const kv_copy t = {.number = block,
                       .pages = pages,
                       .position = position,
                       .n = n,
                       .k = (float *)(uintptr_t)k,
                       .v = (float *)(uintptr_t)v,
                       .write = true};
    return kv_copy_all(sn_xpu_of(d), shape, t, err);
}
