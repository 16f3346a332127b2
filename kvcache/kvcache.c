#include "kvcache/kvcache.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct pool_part {
    sn_device *device;
    sn_kv_shape shape;
    size_t page_bytes;
    uint8_t *memory; /* on the device: n_pages of these */
} pool_part;

struct sn_kv_pool {
    pool_part parts[SN_KV_PARTS_MAX];
    int n_parts;
    size_t page_bytes, n_pages; /* of all parts together */
    uint32_t *free_pages;       /* numbers of pages: page i of every part belongs to the same session */
    size_t n_free;
};

struct sn_kv {
    sn_kv_pool *pool;
    uint32_t *numbers; /* page i holds positions [i, i+1) * SN_KV_PAGE_TOKENS */
    void **pages;      /* (n_parts, room): the addresses of each part's pages */
    size_t n_pages, room;
    int length;
};

static sn_status alloc_parts(sn_kv_pool *pool, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pool->n_parts && !status; i++) {
        /* One reservation: on the CPU its pages take memory only once they are written. */
        pool_part *part = &pool->parts[i];
        void *memory = NULL;
        status = part->device->ops->alloc(part->device, pool->n_pages * part->page_bytes, &memory, err);
        part->memory = memory;
    }
    return status;
}

sn_status sn_kv_pool_new(const sn_kv_part *parts, int n_parts, int n_kv_heads, int head_dim, size_t budget,
                         sn_kv_pool **out, sn_err *err) {
    sn_kv_pool *pool = NULL;
    *out = NULL;
    if (n_parts > SN_KV_PARTS_MAX)
        return sn_fail(err, SN_REFUSED, "a span lies in %d pieces, more than the %d allowed", n_parts, SN_KV_PARTS_MAX);
    sn_status status = sn_calloc(&pool, 1, sizeof *pool, err);
    if (status) return status;
    pool->n_parts = n_parts;
    for (int i = 0; i < n_parts; i++) {
        pool_part *part = &pool->parts[i];
        part->device = parts[i].device;
        part->shape = (sn_kv_shape){parts[i].n_blocks, n_kv_heads, head_dim, SN_KV_PAGE_TOKENS};
        part->page_bytes = part->device->ops->kv_page_bytes(part->device, &part->shape);
        pool->page_bytes += part->page_bytes;
    }
    pool->n_pages = sn_min_size(budget / pool->page_bytes, UINT32_MAX);
    if (!pool->n_pages)
        status = sn_fail(err, SN_REFUSED, "%zu bytes hold no past at all: %d tokens take %zu, give --kv-memory more",
                         budget, SN_KV_PAGE_TOKENS, pool->page_bytes);
    if (!status) status = sn_calloc(&pool->free_pages, pool->n_pages, sizeof *pool->free_pages, err);
    if (!status) status = alloc_parts(pool, err);
    if (status) {
        sn_kv_pool_free(&pool);
        return status;
    }
    while (pool->n_free < pool->n_pages) { /* the lowest on top: they are taken first, and stay warm */
        size_t number = pool->n_pages - 1 - pool->n_free;
        pool->free_pages[pool->n_free++] = (uint32_t)number;
    }
    *out = pool;
    return SN_OK;
}

void sn_kv_pool_free(sn_kv_pool **pool) {
    sn_kv_pool *p = *pool;
    if (!p) return;
    for (int i = 0; i < p->n_parts; i++) {
        pool_part *part = &p->parts[i];
        if (part->memory) part->device->ops->free(part->device, part->memory, p->n_pages * part->page_bytes);
    }
    free(p->free_pages);
    free(p);
    *pool = NULL;
}

const sn_kv_shape *sn_kv_pool_shape(const sn_kv_pool *pool, int part) { return &pool->parts[part].shape; }
size_t sn_kv_pool_bytes(const sn_kv_pool *pool) { return pool->n_pages * pool->page_bytes; }
size_t sn_kv_pool_bytes_used(const sn_kv_pool *pool) { return (pool->n_pages - pool->n_free) * pool->page_bytes; }
size_t sn_kv_pool_tokens(const sn_kv_pool *pool) { return pool->n_pages * SN_KV_PAGE_TOKENS; }

sn_status sn_kv_new(sn_kv_pool *pool, sn_kv **out, sn_err *err) {
    sn_kv *kv = NULL;
    sn_status status = sn_calloc(&kv, 1, sizeof *kv, err);
    if (status) return status;
    kv->pool = pool;
    *out = kv;
    return SN_OK;
}

static size_t pages_for(int length) { return ((size_t)length + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS; }

static void give_back_pages(sn_kv *kv, size_t keep) {
    while (kv->n_pages > keep) kv->pool->free_pages[kv->pool->n_free++] = kv->numbers[--kv->n_pages];
}

void sn_kv_free(sn_kv **kv) {
    if (!*kv) return;
    give_back_pages(*kv, 0);
    free((*kv)->pages);
    free((*kv)->numbers);
    free(*kv);
    *kv = NULL;
}

int sn_kv_length(const sn_kv *kv) { return kv->length; }

static sn_status make_room(sn_kv *kv, size_t room, sn_err *err) {
    size_t n_parts = (size_t)kv->pool->n_parts;
    uint32_t *numbers = realloc(kv->numbers, room * sizeof *numbers);
    if (numbers) kv->numbers = numbers;
    void **pages = numbers ? calloc(room * n_parts, sizeof *pages) : NULL;
    if (!pages) return sn_fail(err, SN_STOP, "out of memory for a table of %zu pages", room);
    for (size_t i = 0; i < n_parts && kv->n_pages; i++)
        memcpy(pages + i * room, kv->pages + i * kv->room, kv->n_pages * sizeof *pages);
    free(kv->pages);
    kv->pages = pages;
    kv->room = room;
    return SN_OK;
}

sn_status sn_kv_reserve(sn_kv *kv, int n, sn_err *err) {
    sn_kv_pool *pool = kv->pool;
    if (n < 0 || n > INT32_MAX - SN_KV_PAGE_TOKENS - kv->length || pages_for(kv->length + n) > pool->n_pages)
        return sn_fail(err, SN_REFUSED, "a past of %lld tokens cannot fit: this cache holds %zu in all",
                       (long long)kv->length + n, sn_kv_pool_tokens(pool));
    size_t need = pages_for(kv->length + n);
    if (need <= kv->n_pages) return SN_OK;
    if (need - kv->n_pages > pool->n_free)
        return sn_fail(err, SN_RETRY, "the cache is full: %zu of %zu pages are taken by sessions",
                       pool->n_pages - pool->n_free, pool->n_pages);
    if (need > kv->room) {
        sn_status status = make_room(kv, sn_min_size(need * 2, pool->n_pages), err);
        if (status) return status;
    }
    for (; kv->n_pages < need; kv->n_pages++) {
        uint32_t number = kv->numbers[kv->n_pages] = pool->free_pages[--pool->n_free];
        for (int i = 0; i < pool->n_parts; i++)
            kv->pages[(size_t)i * kv->room + kv->n_pages] = pool->parts[i].memory + number * pool->parts[i].page_bytes;
    }
    return SN_OK;
}

sn_sequence sn_kv_sequence(const sn_kv *kv, int part, int first_row, int n_rows) {
    assert(pages_for(kv->length + n_rows) <= kv->n_pages);
    return (sn_sequence){kv->pages + (size_t)part * kv->room, kv->length, first_row, n_rows};
}

void sn_kv_append(sn_kv *kv, int n) {
    kv->length += n;
    assert(pages_for(kv->length) <= kv->n_pages);
}

void sn_kv_rewind(sn_kv *kv, int length) {
    assert(length >= 0 && length <= kv->length);
    kv->length = length;
    give_back_pages(kv, pages_for(length));
}

sn_status sn_kv_export(sn_kv *kv, int part, int block, int position, int n, float *k, float *v, sn_err *err) {
    if (position < 0 || n < 0 || position > kv->length - n)
        return sn_fail(err, SN_REFUSED, "positions %d to %lld are not in a past of %d tokens", position,
                       (long long)position + n, kv->length);
    const pool_part *p = &kv->pool->parts[part];
    if (block < 0 || block >= p->shape.n_blocks)
        return sn_fail(err, SN_REFUSED, "block %d is not among the %d that this past is of", block, p->shape.n_blocks);
    return p->device->ops->kv_read(p->device, &p->shape, block, kv->pages + (size_t)part * kv->room, position, n, k, v, err);
}

sn_status sn_kv_import(sn_kv *kv, int part, int block, int n, const float *k, const float *v, sn_err *err) {
    const pool_part *p = &kv->pool->parts[part];
    if (n < 0 || n > INT32_MAX - SN_KV_PAGE_TOKENS - kv->length || pages_for(kv->length + n) > kv->n_pages)
        return sn_fail(err, SN_REFUSED, "%d positions behind %d have no room reserved for them", n, kv->length);
    if (block < 0 || block >= p->shape.n_blocks)
        return sn_fail(err, SN_REFUSED, "block %d is not among the %d that this past is of", block, p->shape.n_blocks);
    return p->device->ops->kv_write(p->device, &p->shape, block, kv->pages + (size_t)part * kv->room, kv->length, n, k, v,
                                    err);
}
