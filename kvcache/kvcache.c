#include "kvcache/kvcache.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct sn_kv_pool {
    sn_device *device;
    sn_kv_shape shape;
    size_t page_bytes, n_pages;
    uint8_t *memory; /* on the device: n_pages pages */
    void **free_pages;
    size_t n_free;
};

struct sn_kv {
    sn_kv_pool *pool;
    void **pages; /* page i holds positions [i, i+1) * SN_KV_PAGE_TOKENS */
    size_t n_pages, room;
    int length;
};

sn_status sn_kv_pool_new(sn_device *device, int n_blocks, int n_kv_heads, int head_dim, size_t budget, sn_kv_pool **out,
                         sn_err *err) {
    sn_kv_pool *pool = NULL;
    sn_status status = sn_calloc(&pool, 1, sizeof *pool, err);
    if (status) return status;
    pool->device = device;
    pool->shape = (sn_kv_shape){n_blocks, n_kv_heads, head_dim, SN_KV_PAGE_TOKENS};
    pool->page_bytes = device->ops->kv_page_bytes(device, &pool->shape);
    pool->n_pages = budget / pool->page_bytes;
    void *memory = NULL;
    if (!pool->n_pages) {
        status = sn_fail(err, SN_REFUSED,
                         "%zu bytes hold no past at all: %d tokens of %d blocks take %zu, give --kv-memory more",
                         budget, SN_KV_PAGE_TOKENS, n_blocks, pool->page_bytes);
        goto out;
    }
    status = sn_calloc(&pool->free_pages, pool->n_pages, sizeof *pool->free_pages, err);
    if (status) goto out;
    /* One reservation: on the CPU its pages take memory only once they are written. */
    status = device->ops->alloc(device, pool->n_pages * pool->page_bytes, &memory, err);
    if (status) goto out;
    pool->memory = memory;
    while (pool->n_free < pool->n_pages) { /* the lowest addresses on top: they are taken first, and stay warm */
        size_t i = pool->n_pages - 1 - pool->n_free;
        pool->free_pages[pool->n_free++] = pool->memory + i * pool->page_bytes;
    }
    *out = pool;
    pool = NULL;
out:
    sn_kv_pool_free(&pool);
    return status;
}

void sn_kv_pool_free(sn_kv_pool **pool) {
    sn_kv_pool *p = *pool;
    if (!p) return;
    if (p->memory) p->device->ops->free(p->device, p->memory, p->n_pages * p->page_bytes);
    free(p->free_pages);
    free(p);
    *pool = NULL;
}

const sn_kv_shape *sn_kv_pool_shape(const sn_kv_pool *pool) { return &pool->shape; }
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
    while (kv->n_pages > keep) kv->pool->free_pages[kv->pool->n_free++] = kv->pages[--kv->n_pages];
}

void sn_kv_free(sn_kv **kv) {
    if (!*kv) return;
    give_back_pages(*kv, 0);
    free((*kv)->pages);
    free(*kv);
    *kv = NULL;
}

int sn_kv_length(const sn_kv *kv) { return kv->length; }

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
        size_t room = sn_min_size(need * 2, pool->n_pages);
        void **grown = realloc(kv->pages, room * sizeof *grown);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory for a table of %zu pages", room);
        kv->pages = grown;
        kv->room = room;
    }
    while (kv->n_pages < need) kv->pages[kv->n_pages++] = pool->free_pages[--pool->n_free];
    return SN_OK;
}

sn_sequence sn_kv_sequence(const sn_kv *kv, int first_row, int n_rows) {
    assert(pages_for(kv->length + n_rows) <= kv->n_pages);
    return (sn_sequence){kv->pages, kv->length, first_row, n_rows};
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

sn_status sn_kv_export(sn_kv *kv, int block, int position, int n, float *k, float *v, sn_err *err) {
    if (position < 0 || n < 0 || position > kv->length - n)
        return sn_fail(err, SN_REFUSED, "positions %d to %lld are not in a past of %d tokens", position,
                       (long long)position + n, kv->length);
    if (block < 0 || block >= kv->pool->shape.n_blocks)
        return sn_fail(err, SN_REFUSED, "block %d is not among the %d that this past is of", block,
                       kv->pool->shape.n_blocks);
    sn_device *device = kv->pool->device;
    return device->ops->kv_load(device, &kv->pool->shape, block, kv->pages, position, n, k, v, err);
}
