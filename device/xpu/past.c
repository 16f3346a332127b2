/* Pages of the past, passes, attention. block.cl describes a page and a pass's table. */
#include "device/xpu/xpu.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

static size_t row_floats(const sn_kv_shape *shape) { return (size_t)shape->n_kv_heads * (size_t)shape->head_dim; }

size_t sn_xpu_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape) {
    (void)d;
    assert(shape->page_tokens > 0 && shape->page_tokens % 16 == 0);
    return (size_t)shape->n_blocks * row_floats(shape) * 2 * (size_t)shape->page_tokens * sizeof(float);
}

/* -- the table of a pass: rows, then tiles, then the addresses of the sequences' pages */

static size_t pages_of(const sn_kv_shape *shape, int end) {
    return ((size_t)end + (size_t)shape->page_tokens - 1) / (size_t)shape->page_tokens;
}

typedef struct table_size {
    size_t rows, tiles, pages;
} table_size;

static table_size measure(const sn_pass *pass) {
    table_size size = {0};
    for (int s = 0; s < pass->n_sequences; s++) {
        const sn_sequence *seq = &pass->sequences[s];
        if (seq->n_rows == 0) continue;
        size.rows += (size_t)seq->n_rows;
        size.tiles += ((size_t)seq->n_rows + SN_XPU_TILE_ROWS - 1) / SN_XPU_TILE_ROWS;
        size.pages += pages_of(pass->shape, seq->position + seq->n_rows);
    }
    return size;
}

static void fill_table(const sn_pass *pass, uint32_t (*rows)[2], uint32_t (*tiles)[4], uint64_t *pages) {
    uint32_t first_page = 0;
    for (int s = 0; s < pass->n_sequences; s++) {
        const sn_sequence *seq = &pass->sequences[s];
        if (seq->n_rows == 0) continue;
        for (int i = 0; i < seq->n_rows; i++) {
            rows[seq->first_row + i][0] = first_page;
            rows[seq->first_row + i][1] = (uint32_t)(seq->position + i);
        }
        for (int i = 0; i < seq->n_rows; i += SN_XPU_TILE_ROWS, tiles++) {
            int left = seq->n_rows - i;
            (*tiles)[0] = (uint32_t)(seq->first_row + i);
            (*tiles)[1] = (uint32_t)(left < SN_XPU_TILE_ROWS ? left : SN_XPU_TILE_ROWS);
            (*tiles)[2] = (uint32_t)(seq->position + i);
            (*tiles)[3] = first_page;
        }
        size_t n = pages_of(pass->shape, seq->position + seq->n_rows);
        for (size_t p = 0; p < n; p++) *pages++ = (uint64_t)(uintptr_t)seq->pages[p];
        first_page += (uint32_t)n;
    }
}

static sn_status check_shape(const sn_kv_shape *shape, sn_err *err) {
    if (shape->head_dim > SN_XPU_HEAD_DIM_MAX)
        return sn_fail(err, SN_REFUSED, "heads of %d elements are wider than the %d an xpu takes", shape->head_dim,
                       SN_XPU_HEAD_DIM_MAX);
    return SN_OK;
}

sn_status sn_xpu_pass_begin(sn_device *d, const sn_pass *pass, bool *recorded, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    uint8_t *table = NULL;
    *recorded = false;
    sn_status status = check_shape(pass->shape, err);
    table_size size = measure(pass);
    if (!status && size.rows != (size_t)pass->n_rows)
        status = sn_fail(err, SN_REFUSED, "a pass of %d rows has sequences of %zu", pass->n_rows, size.rows);
    if (status) return status;
    x->shape = *pass->shape;
    x->pass_rows = pass->n_rows;
    x->pass_tiles = (int)size.tiles;
    x->pass_decodes = size.tiles == size.rows; /* every tile is one row */
    x->tiles_at = sn_round_up(size.rows * 8, 64);
    x->pages_at = sn_round_up(x->tiles_at + size.tiles * 16, 64);
    size_t bytes = x->pages_at + size.pages * 8;
    status = sn_xpu_reserve(x, &x->table, bytes, err);
    if (!status) status = sn_calloc(&table, 1, bytes, err);
    if (!status) {
        fill_table(pass, (uint32_t(*)[2])table, (uint32_t(*)[4])(table + x->tiles_at),
                   (uint64_t *)(table + x->pages_at));
        status = sn_xpu_upload(d, x->table.device, table, bytes, err);
    }
    free(table);
    return status;
}

sn_status sn_xpu_pass_end(sn_device *d, sn_err *err) { return sn_xpu_alive(sn_xpu_of(d), err); }

/* -- what a pass does */

sn_status sn_xpu_kv_store(sn_device *d, int block, const float *k, const float *v, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    assert(block >= 0 && block < x->shape.n_blocks);
    const uint8_t *rows = x->table.device, *pages = rows + x->pages_at;
    sn_xpu_arg args[] = {SN_XPU_ARG(rows),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(block),
                         SN_XPU_ARG(x->shape.n_kv_heads),
                         SN_XPU_ARG(x->shape.head_dim),
                         SN_XPU_ARG(x->shape.page_tokens),
                         SN_XPU_ARG(k),
                         SN_XPU_ARG(v)};
    sn_status status = sn_xpu_order(x, err);
    return status ? status
                  : sn_xpu_launch(x, x->kernels[SN_XPU_kv_store], (row_floats(&x->shape) + 63) / 64,
                                  (size_t)x->pass_rows, COUNT(args), args, err);
}

sn_status sn_xpu_attention(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    const sn_kv_shape *shape = &x->shape;
    assert(how->n_heads > 0 && how->n_heads % shape->n_kv_heads == 0 && how->block >= 0 && how->block < shape->n_blocks);
    const uint8_t *rows = x->table.device, *tiles = rows + x->tiles_at, *pages = rows + x->pages_at;
    size_t tile_bytes = SN_XPU_TILE_ROWS * (size_t)shape->head_dim * sizeof(float);
    uint32_t within = how->window > 0 ? (uint32_t)how->window : 0;
    sn_xpu_arg args[] = {x->pass_decodes ? SN_XPU_ARG(rows) : SN_XPU_ARG(tiles),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(how->block),
                         SN_XPU_ARG(how->n_heads),
                         SN_XPU_ARG(shape->n_kv_heads),
                         SN_XPU_ARG(shape->head_dim),
                         SN_XPU_ARG(shape->page_tokens),
                         SN_XPU_ARG(within),
                         SN_XPU_ARG(how->scale),
                         SN_XPU_ARG(how->slopes),
                         SN_XPU_ARG(how->sinks),
                         SN_XPU_ARG(q),
                         SN_XPU_ARG(out),
                         SN_XPU_LOCAL(tile_bytes), /* attention_tile only: query, keys, values */
                         SN_XPU_LOCAL(tile_bytes),
                         SN_XPU_LOCAL(tile_bytes)};
    sn_status status = sn_xpu_order(x, err);
    if (status) return status;
    if (x->pass_decodes)
        return sn_xpu_launch(x, x->kernels[SN_XPU_attention_row], (size_t)how->n_heads, (size_t)x->pass_rows,
                             COUNT(args) - 3, args, err);
    return sn_xpu_launch(x, x->kernels[SN_XPU_attention_tile], (size_t)how->n_heads, (size_t)x->pass_tiles, COUNT(args),
                         args, err);
}

/* -- export and import: positions go through device memory of their own, some at a time */

enum { MOVE_BYTES = 1 << 20 };

typedef struct move {
    const sn_kv_shape *shape;
    int block;
    void *const *pages;
    int n_pages;
} move;

/* `rows` gets: the pages' addresses, then keys, then values of `n` positions. */
static sn_status move_some(sn_xpu *x, const move *m, int first, int n, bool store, float *k, float *v, sn_err *err) {
    sn_device *d = &x->base;
    size_t floats = (size_t)n * row_floats(m->shape), bytes = floats * sizeof(float);
    size_t keys_at = sn_round_up((size_t)m->n_pages * 8, 64), values_at = sn_round_up(keys_at + bytes, 64);
    sn_status status = sn_xpu_reserve(x, &x->rows, values_at + bytes, err);
    if (status) return status;
    uint8_t *pages = x->rows.device, *keys = pages + keys_at, *values = pages + values_at;
    uint32_t storing = store;
    _Static_assert(sizeof(void *) == 8, "pages are handed over as 64-bit addresses");
    status = sn_xpu_upload(d, pages, m->pages, (size_t)m->n_pages * 8, err);
    if (!status && store) status = sn_xpu_upload(d, keys, k, bytes, err);
    if (!status && store) status = sn_xpu_upload(d, values, v, bytes, err);
    if (!status) status = sn_xpu_order(x, err);
    if (status) return status;
    sn_xpu_arg args[] = {SN_XPU_ARG(pages),
                         SN_XPU_ARG(m->block),
                         SN_XPU_ARG(m->shape->n_kv_heads),
                         SN_XPU_ARG(m->shape->head_dim),
                         SN_XPU_ARG(m->shape->page_tokens),
                         SN_XPU_ARG(first),
                         SN_XPU_ARG(storing),
                         SN_XPU_ARG(keys),
                         SN_XPU_ARG(values)};
    status = sn_xpu_launch(x, x->kernels[SN_XPU_kv_move], (row_floats(m->shape) + 63) / 64, (size_t)n, COUNT(args),
                           args, err);
    if (!status && store) return sn_xpu_wait(x, err);
    if (!status) status = sn_xpu_download(d, k, keys, bytes, err);
    return status ? status : sn_xpu_download(d, v, values, bytes, err);
}

static sn_status move_all(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          bool store, float *k, float *v, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    assert(block >= 0 && block < shape->n_blocks && position >= 0 && n >= 0);
    sn_status status = check_shape(shape, err);
    move m = {shape, block, pages, (int)pages_of(shape, position + n)};
    int most = (int)(MOVE_BYTES / (row_floats(shape) * sizeof(float))) + 1;
    for (int at = 0; at < n && !status; at += most) {
        size_t from = (size_t)at * row_floats(shape);
        status = move_some(x, &m, position + at, n - at < most ? n - at : most, store, k + from, v + from, err);
    }
    return status ? status : sn_xpu_alive(x, err);
}

sn_status sn_xpu_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err) {
    return move_all(d, shape, block, pages, position, n, false, k, v, err);
}

/* k and v are only read when storing. */
sn_status sn_xpu_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          const float *k, const float *v, sn_err *err) {
    return move_all(d, shape, block, pages, position, n, true, (float *)k, (float *)v, err);
}
