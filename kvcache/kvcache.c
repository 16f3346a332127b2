#include "kvcache/kvcache_private.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static sn_status alloc_parts(sn_kv_pool *pool, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pool->n_parts && !status; i++) {
        /* One reservation: on the CPU its pages take memory only once they are written. */
        sn_kv_pool_part *part = &pool->parts[i];
        void *memory = NULL;
        status = part->device->ops->alloc(part->device, pool->n_pages * part->page_bytes, &memory, err);
        part->memory = memory;
    }
    return status;
}

sn_status sn_kv_pool_new(const sn_kv_part *parts, int n_parts, int n_kv_heads, int head_dim, size_t budget,
                         sn_kv_pool **out, sn_err *err) {
    sn_kv_pool *pool = NULL;
    char name[32];
    *out = NULL;
    for (int i = 0; i < n_parts; i++)
        if (parts[i].dtype != SN_KV_F32 && !(parts[i].device->kv_dtypes >> parts[i].dtype & 1))
            return sn_fail(err, SN_REFUSED, "%s keeps keys and values as float32 only, not as %s: give --kv-dtype f32, or "
                           "--device cpu", sn_device_id_name(parts[i].device->id, name), sn_kv_dtype_name(parts[i].dtype));
    if (n_parts > SN_KV_PARTS_MAX)
        return sn_fail(err, SN_REFUSED, "a span lies in %d pieces, more than the %d allowed", n_parts, SN_KV_PARTS_MAX);
    sn_status status = sn_calloc(&pool, 1, sizeof *pool, err);
    if (status) return status;
    pool->n_parts = n_parts;
    for (int i = 0; i < n_parts; i++) {
        sn_kv_pool_part *part = &pool->parts[i];
        part->device = parts[i].device;
        part->shape = (sn_kv_shape){parts[i].n_blocks, n_kv_heads, head_dim, SN_KV_PAGE_TOKENS, parts[i].dtype};
        part->page_bytes = part->device->ops->kv_page_bytes(part->device, &part->shape);
        pool->page_bytes += part->page_bytes;
    }
    pool->n_pages = sn_min_size(budget / pool->page_bytes, UINT32_MAX);
    if (!pool->n_pages)
        status = sn_fail(err, SN_REFUSED, "%zu bytes hold no past at all: %d tokens take %zu, give --kv-memory more",
                         budget, SN_KV_PAGE_TOKENS, pool->page_bytes);
    if (!status) status = sn_calloc(&pool->free_pages, pool->n_pages, sizeof *pool->free_pages, err);
    if (!status) status = sn_calloc(&pool->users, pool->n_pages, sizeof *pool->users, err);
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
    sn_prefix_free(&p->prefix);
    sn_idle_free(&p->idle);
    for (int i = 0; i < p->n_parts; i++) {
        sn_kv_pool_part *part = &p->parts[i];
        if (part->memory) part->device->ops->free(part->device, part->memory, p->n_pages * part->page_bytes);
    }
    free(p->free_pages);
    free(p->users);
    free(p);
    *pool = NULL;
}

const sn_kv_shape *sn_kv_pool_shape(const sn_kv_pool *pool, int part) { return &pool->parts[part].shape; }
size_t sn_kv_pool_bytes(const sn_kv_pool *pool) { return pool->n_pages * pool->page_bytes; }
static size_t pages_used(const sn_kv_pool *pool) { return pool->n_pages - pool->n_free - pool->n_kept; }
size_t sn_kv_pool_bytes_used(const sn_kv_pool *pool) { return pages_used(pool) * pool->page_bytes; }
size_t sn_kv_pool_tokens(const sn_kv_pool *pool) { return pool->n_pages * SN_KV_PAGE_TOKENS; }

sn_status sn_kv_new(sn_kv_pool *pool, sn_kv **out, sn_err *err) {
    sn_kv *kv = NULL;
    sn_status status = sn_calloc(&kv, 1, sizeof *kv, err);
    if (status) return status;
    kv->pool = pool;
    kv->open = SN_KV_NONE;
    kv->note.number = ++pool->begun;
    kv->before = pool->last;
    *(pool->last ? &pool->last->next : &pool->first) = kv;
    pool->last = kv;
    *out = kv;
    return SN_OK;
}

static size_t pages_for(int length) { return ((size_t)length + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS; }

/* -- who uses which page ---------------------------------------------------------------------------------------------- */

static void use_page(sn_kv_pool *pool, uint32_t number) {
    if (pool->users[number]++ == 0 && sn_prefix_keeps(pool->prefix, number)) pool->n_kept--;
    if (pool->users[number] == 2) pool->n_shared++;
}

void sn_kv_drop_page(sn_kv_pool *pool, uint32_t number) {
    if (pool->users[number]-- == 2) pool->n_shared--;
    if (pool->users[number]) return;
    if (sn_prefix_keeps(pool->prefix, number))
        pool->n_kept++;
    else
        pool->free_pages[pool->n_free++] = number;
}

void sn_kv_set_page(sn_kv *kv, size_t i, uint32_t number) {
    const sn_kv_pool *pool = kv->pool;
    use_page(kv->pool, number);
    kv->numbers[i] = number;
    for (int part = 0; part < pool->n_parts; part++)
        kv->pages[(size_t)part * kv->room + i] = pool->parts[part].memory + number * pool->parts[part].page_bytes;
}

static void give_back_pages(sn_kv *kv, size_t keep) {
    while (kv->n_pages > keep) {
        size_t i = --kv->n_pages;
        if (kv->numbers[i] == SN_KV_NONE)
            sn_idle_drop(kv, i);
        else
            sn_kv_drop_page(kv->pool, kv->numbers[i]);
    }
}

bool sn_kv_find_room(sn_kv_pool *pool, size_t n) {
    if (n > pool->n_free + pool->n_kept) return false;
    while (pool->n_free < n)
        if (!sn_prefix_give_up(pool->prefix)) abort();
    return true;
}

void sn_kv_lose(sn_kv *kv) {
    sn_kv_rewind(kv, 0);
    kv->lost = true;
}

void sn_kv_free(sn_kv **kv) {
    if (!*kv) return;
    (*kv)->length = 0;
    sn_prefix_cut(*kv);
    give_back_pages(*kv, 0);
    *((*kv)->before ? &(*kv)->before->next : &(*kv)->pool->first) = (*kv)->next;
    *((*kv)->next ? &(*kv)->next->before : &(*kv)->pool->last) = (*kv)->before;
    free((*kv)->pages);
    free((*kv)->numbers);
    free((*kv)->slots);
    free(*kv);
    *kv = NULL;
}

const sn_kv_shape *sn_kv_shape_of(const sn_kv *kv, int part) { return &kv->pool->parts[part].shape; }
int sn_kv_length(const sn_kv *kv) { return kv->length; }
sn_kv *sn_kv_next(const sn_kv_pool *pool, const sn_kv *kv) { return kv ? kv->next : pool->first; }
sn_kv_note *sn_kv_note_of(sn_kv *kv) { return &kv->note; }

sn_status sn_kv_make_room(sn_kv *kv, size_t room, sn_err *err) {
    size_t n_parts = (size_t)kv->pool->n_parts;
    uint32_t *numbers = realloc(kv->numbers, room * sizeof *numbers);
    if (numbers) kv->numbers = numbers;
    uint32_t *slots = realloc(kv->slots, room * sizeof *slots);
    if (slots) kv->slots = slots;
    void **pages = numbers && slots ? calloc(room * n_parts, sizeof *pages) : NULL;
    if (!pages) return sn_fail(err, SN_STOP, "out of memory for a table of %zu pages", room);
    for (size_t i = 0; i < n_parts && kv->n_pages; i++)
        memcpy(pages + i * room, kv->pages + i * kv->room, kv->n_pages * sizeof *pages);
    free(kv->pages);
    kv->pages = pages;
    kv->room = room;
    return SN_OK;
}

/* The page that the next position falls into, if the past has one that holds earlier positions too. */
static bool within_page(const sn_kv *kv) { return kv->length % SN_KV_PAGE_TOKENS != 0; }
static uint32_t last_page(const sn_kv *kv) { return kv->numbers[kv->length / SN_KV_PAGE_TOKENS]; }

/* After a rewind into a page that other pasts or the table know. */
static bool writes_to_shared(const sn_kv *kv) {
    return within_page(kv) && last_page(kv) != SN_KV_NONE && (kv->pool->users[last_page(kv)] > 1 || sn_prefix_keeps(kv->pool->prefix, last_page(kv)));
}

static sn_status copy_page(const sn_kv_pool *pool, uint32_t to, uint32_t from, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pool->n_parts && !status; i++) {
        const sn_kv_pool_part *part = &pool->parts[i];
        void *host = NULL;
        const uint8_t *source = part->memory + from * part->page_bytes;
        if (!part->device->host_visible) {
            status = sn_calloc(&host, part->page_bytes, 1, err);
            if (!status) status = part->device->ops->download(part->device, host, source, part->page_bytes, err);
            source = host;
        }
        if (!status)
            status = part->device->ops->upload(part->device, part->memory + to * part->page_bytes, source,
                                               part->page_bytes, err);
        free(host);
    }
    return status;
}

/* There is a free page. */
static sn_status copy_last_page(sn_kv *kv, sn_err *err) {
    sn_kv_pool *pool = kv->pool;
    uint32_t from = last_page(kv), to = pool->free_pages[pool->n_free - 1];
    sn_status status = copy_page(pool, to, from, err);
    if (status) return status;
    pool->n_free--;
    sn_kv_set_page(kv, (size_t)kv->length / SN_KV_PAGE_TOKENS, to);
    sn_prefix_copy_open(kv, from);
    sn_kv_drop_page(pool, from);
    return SN_OK;
}

sn_status sn_kv_reserve(sn_kv *kv, int n, sn_err *err) {
    sn_kv_pool *pool = kv->pool;
    if (n < 0 || n > INT32_MAX - SN_KV_PAGE_TOKENS - kv->length || pages_for(kv->length + n) > pool->n_pages)
        return sn_fail(err, SN_REFUSED, "a past of %lld tokens cannot fit: this cache holds %zu in all",
                       (long long)kv->length + n, sn_kv_pool_tokens(pool));
    if (kv->lost) return sn_fail(err, SN_REBUILD, "the session's past is lost: open a new one and replay");
    if (kv->n_away) return sn_fail(err, SN_RETRY, "the session is set aside: it has to come back first");
    size_t need = pages_for(kv->length + n), more = need > kv->n_pages ? need - kv->n_pages : 0;
    bool copy = n && writes_to_shared(kv);
    size_t there = pool->n_free + pool->n_kept;
    if (copy && more + 1 > there && more <= there && pool->users[last_page(kv)] == 1) {
        sn_prefix_forget(pool->prefix, last_page(kv)); /* no room for a copy, and no other past reads it */
        copy = false;
    }
    if (more + copy > there)
        return sn_fail(err, SN_RETRY, "the cache is full: %zu of %zu pages are taken by sessions", pages_used(pool),
                       pool->n_pages);
    if (need > kv->room) {
        sn_status status = sn_kv_make_room(kv, sn_min_size(need * 2, pool->n_pages), err);
        if (status) return status;
    }
    if (!sn_kv_find_room(pool, more + copy)) abort(); /* it was counted above */
    if (copy) {
        sn_status status = copy_last_page(kv, err);
        if (status) return status;
    }
    for (; kv->n_pages < need; kv->n_pages++) sn_kv_set_page(kv, kv->n_pages, pool->free_pages[--pool->n_free]);
    return SN_OK;
}

size_t sn_kv_wanted(const sn_kv *kv, int n) {
    size_t need = pages_for(kv->length + n);
    return (need > kv->n_pages ? need - kv->n_pages : 0) + kv->n_away + (n && writes_to_shared(kv));
}

size_t sn_kv_missing(const sn_kv *kv, int n) {
    size_t wanted = sn_kv_wanted(kv, n), there = kv->pool->n_free + kv->pool->n_kept;
    return wanted > there ? wanted - there : 0;
}

sn_sequence sn_kv_sequence(const sn_kv *kv, int part, int first_row, int n_rows) {
    assert(pages_for(kv->length + n_rows) <= kv->n_pages && !kv->n_away);
    return (sn_sequence){kv->pages + (size_t)part * kv->room, kv->length, first_row, n_rows};
}

void sn_kv_append(sn_kv *kv, int n) {
    kv->length += n;
    assert(pages_for(kv->length) <= kv->n_pages);
}

void sn_kv_rewind(sn_kv *kv, int length) {
    assert(length >= 0 && length <= kv->length);
    kv->length = length;
    sn_prefix_cut(kv);
    give_back_pages(kv, pages_for(length));
}

sn_status sn_kv_export(sn_kv *kv, int part, int block, int position, int n, float *k, float *v, sn_err *err) {
    if (position < 0 || n < 0 || position > kv->length - n)
        return sn_fail(err, SN_REFUSED, "positions %d to %lld are not in a past of %d tokens", position,
                       (long long)position + n, kv->length);
    if (kv->n_away) return sn_fail(err, SN_RETRY, "the session is set aside: it has to come back first");
    const sn_kv_pool_part *p = &kv->pool->parts[part];
    if (block < 0 || block >= p->shape.n_blocks)
        return sn_fail(err, SN_REFUSED, "block %d is not among the %d that this past is of", block, p->shape.n_blocks);
    return p->device->ops->kv_read(p->device, &p->shape, block, kv->pages + (size_t)part * kv->room, position, n, k, v, err);
}

sn_status sn_kv_import(sn_kv *kv, int part, int block, int n, const float *k, const float *v, sn_err *err) {
    const sn_kv_pool_part *p = &kv->pool->parts[part];
    if (n < 0 || n > INT32_MAX - SN_KV_PAGE_TOKENS - kv->length || pages_for(kv->length + n) > kv->n_pages)
        return sn_fail(err, SN_REFUSED, "%d positions behind %d have no room reserved for them", n, kv->length);
    if (block < 0 || block >= p->shape.n_blocks)
        return sn_fail(err, SN_REFUSED, "block %d is not among the %d that this past is of", block, p->shape.n_blocks);
    return p->device->ops->kv_write(p->device, &p->shape, block, kv->pages + (size_t)part * kv->room, kv->length, n, k, v,
                                    err);
}
