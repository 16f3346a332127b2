/* A KV cache is a table of page numbers (page_numbers) and a table of their device addresses (addresses), which is
 * what a device reads. The pool's pages and their reference counts are in pages.c; this file decides which cache has
 * which pages.
 *
 * reserve takes pages, append moves the length, rewind releases what lies beyond the new length. Only reserve can make
 * a page writable: the page into which the next position falls may be shared or cached after a rewind or an attach,
 * and is then copied (copy on write). If the pool has no page for the copy and no other cache uses the page, the page
 * is taken out of the prefix cache instead. Everything that can fail happens before the cache changes.
 *
 * The prefix cache and swapping are called through the pool's tables of hooks (kvcache_private.h). */
#include "kvcache/kvcache_private.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the pool ---- */

static sn_status pool_check_parts(const sn_kv_part *parts, int n_parts, sn_err *err) {
    char name[32];
    for (int i = 0; i < n_parts; i++)
        if (parts[i].shape.dtype != SN_KV_F32 && !(parts[i].device->kv_dtypes >> parts[i].shape.dtype & 1))
            return sn_fail(err, SN_REFUSED,
                           "%s keeps keys and values as float32 only, not as %s: give --kv-dtype f32, or "
                           "--device cpu",
                           sn_device_id_name(parts[i].device->id, name), sn_kv_dtype_name(parts[i].shape.dtype));
    if (n_parts > SN_KV_PARTS_MAX)
        return sn_fail(err, SN_REFUSED, "a span lies in %d pieces, more than the %d allowed", n_parts, SN_KV_PARTS_MAX);
    return SN_OK;
}

static sn_status pool_new(const sn_kv_pages_part *parts, int n_parts, size_t budget, sn_kv_pool **out, sn_err *err) {
    sn_kv_pool *pool = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&pool, 1, sizeof *pool, err);
    if (status) return status;
    status = sn_kv_pages_init(&pool->pages, parts, n_parts, budget, err);
    if (status) sn_kv_pool_free(&pool);
    *out = pool;
    return status;
}

sn_status sn_kv_pool_new(const sn_kv_part *parts, int n_parts, size_t budget, sn_kv_pool **out, sn_err *err) {
    sn_kv_pages_part page_parts[SN_KV_PARTS_MAX] = {0};
    *out = NULL;
    sn_status status = pool_check_parts(parts, n_parts, err);
    if (status) return status;
    for (int i = 0; i < n_parts; i++) {
        page_parts[i].device = parts[i].device;
        page_parts[i].shape = parts[i].shape;
    }
    return pool_new(page_parts, n_parts, budget, out, err);
}

static sn_kv_pages_part recurrent_part(const sn_kv_part *part, const sn_kv_recurrence *r) {
    return (sn_kv_pages_part){
        .device = part->device, .shape = part->shape, .row_bytes = (size_t)r->row_width * sizeof(float)};
}
size_t sn_kv_state_floats(const sn_delta_shape *delta) {
    enum { LEAST = 16 }; /* of a part without attention and without recurrences: there is always a state */
    return delta->n_blocks ? (size_t)delta->n_blocks * sn_delta_floats(delta) : LEAST;
}

sn_status sn_kv_pool_new_recurrent(const sn_kv_part *part, const sn_kv_recurrence *r, size_t budget, sn_kv_pool **out,
                                   sn_err *err) {
    enum { SHARE = 4, SLOTS_MAX = 1 << 16 };
    *out = NULL;
    const sn_kv_pages_part pages = recurrent_part(part, r);
    size_t bytes = sn_kv_state_floats(&r->delta) * sizeof(float), n = sn_min_size(budget / SHARE / bytes, SLOTS_MAX);
    if (n < 2) n = 2;
    if (n * bytes > budget)
        return sn_fail(err, SN_REFUSED,
                       "%zu bytes are too few for a KV cache: the recurrent states of a session take %zu, give a "
                       "larger --kv-memory",
                       budget, n * bytes);
    sn_status status = pool_check_parts(part, 1, err);
    if (!status) status = pool_new(&pages, 1, budget - n * bytes, out, err);
    if (status) return status;
    status = sn_kv_states_init(&(*out)->pages.states, part->device, sn_kv_state_floats(&r->delta), n,
                               (*out)->pages.n_pages, err);
    if (status) sn_kv_pool_free(out);
    return status;
}

size_t sn_kv_pool_recurrent_budget(const sn_kv_part *part, const sn_kv_recurrence *r, size_t sessions,
                                   size_t positions) {
    enum { STATES = 8 }; /* of a session: its two, and snapshots */
    const sn_kv_pages_part p = recurrent_part(part, r);
    size_t page = p.device->ops->kv_page_bytes(p.device, &p.shape) + SN_KV_PAGE_TOKENS * p.row_bytes;
    size_t pages = sessions * (positions / SN_KV_PAGE_TOKENS + 1) * page;
    size_t states = sessions * STATES * sn_kv_state_floats(&r->delta) * sizeof(float);
    return (pages > 3 * states ? pages / 3 : states) * 4 + 4 * page;
}

void sn_kv_pool_free(sn_kv_pool **pool) {
    sn_kv_pool *p = *pool;
    if (!p) return;
    if (p->prefix_hooks) p->prefix_hooks->free(p);
    if (p->swap_hooks) p->swap_hooks->free(p);
    sn_kv_pages_fini(&p->pages);
    free(p);
    *pool = NULL;
}

const sn_kv_shape *sn_kv_pool_shape(const sn_kv_pool *pool, int part) { return &pool->pages.parts[part].shape; }
size_t sn_kv_pool_bytes(const sn_kv_pool *pool) { return pool->pages.n_pages * pool->pages.page_bytes; }
size_t sn_kv_pool_bytes_used(const sn_kv_pool *pool) { return sn_kv_pages_used(&pool->pages) * pool->pages.page_bytes; }
size_t sn_kv_pool_tokens(const sn_kv_pool *pool) { return pool->pages.n_pages * SN_KV_PAGE_TOKENS; }

/* ---- the table of pages ---- */

static size_t pages_for(int length) { return ((size_t)length + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS; }

void sn_kv_cache_set_page(sn_kv_cache *kv, size_t i, uint32_t page) {
    sn_kv_pages *pages = &kv->pool->pages;
    sn_kv_pages_acquire(pages, page);
    kv->page_numbers[i] = page;
    for (int part = 0; part < pages->n_parts; part++)
        kv->addresses[(size_t)part * kv->capacity + i] = sn_kv_pages_address(pages, part, page);
}

void sn_kv_cache_clear_page(sn_kv_cache *kv, size_t i, uint32_t slot) {
    if (kv->pool->prefix_hooks) kv->pool->prefix_hooks->on_swap_out(kv);
    sn_kv_pages_release(&kv->pool->pages, kv->page_numbers[i]);
    kv->page_numbers[i] = SN_KV_NONE;
    kv->swap_slots[i] = slot;
    kv->n_swapped++;
}

sn_status sn_kv_cache_grow(sn_kv_cache *kv, size_t capacity, sn_err *err) {
    size_t n_parts = (size_t)kv->pool->pages.n_parts;
    uint32_t *page_numbers = realloc(kv->page_numbers, capacity * sizeof *page_numbers);
    if (page_numbers) kv->page_numbers = page_numbers;
    uint32_t *swap_slots = realloc(kv->swap_slots, capacity * sizeof *swap_slots);
    if (swap_slots) kv->swap_slots = swap_slots;
    void **addresses = page_numbers && swap_slots ? calloc(capacity * n_parts, sizeof *addresses) : NULL;
    if (!addresses) return sn_fail(err, SN_STOP, "out of memory for a table of %zu pages", capacity);
    for (size_t i = 0; i < n_parts && kv->n_pages; i++)
        memcpy(addresses + i * capacity, kv->addresses + i * kv->capacity, kv->n_pages * sizeof *addresses);
    free(kv->addresses);
    kv->addresses = addresses;
    kv->capacity = capacity;
    return SN_OK;
}

static void kv_cache_release_pages(sn_kv_cache *kv, size_t keep) {
    while (kv->n_pages > keep) {
        size_t i = --kv->n_pages;
        if (kv->page_numbers[i] == SN_KV_NONE)
            kv->pool->swap_hooks->drop_page(kv, i);
        else
            sn_kv_pages_release(&kv->pool->pages, kv->page_numbers[i]);
    }
}

/* ---- one session's cache ---- */

sn_status sn_kv_cache_new(sn_kv_pool *pool, sn_kv_cache **out, sn_err *err) {
    sn_kv_cache *kv = NULL;
    sn_status status = sn_calloc(&kv, 1, sizeof *kv, err);
    if (status) return status;
    kv->pool = pool;
    status = sn_kv_cache_states_new(kv, err);
    if (status) {
        free(kv);
        return status;
    }
    kv->open_entry = SN_KV_NONE;
    kv->usage.sequence_number = ++pool->last_sequence_number;
    kv->prev = pool->last;
    *(pool->last ? &pool->last->next : &pool->first) = kv;
    pool->last = kv;
    *out = kv;
    return SN_OK;
}

void sn_kv_cache_rewind(sn_kv_cache *kv, int length) {
    assert(length >= 0 && length <= kv->length);
    kv->length = length;
    sn_kv_cache_states_rewind(kv);
    if (kv->pool->prefix_hooks) kv->pool->prefix_hooks->on_rewind(kv);
    kv_cache_release_pages(kv, pages_for(length));
}

void sn_kv_cache_invalidate(sn_kv_cache *kv) {
    sn_kv_cache_rewind(kv, 0);
    sn_kv_cache_states_free(kv);
    kv->invalid = true;
}

void sn_kv_cache_free(sn_kv_cache **kv) {
    if (!*kv) return;
    sn_kv_cache_rewind(*kv, 0);
    sn_kv_cache_states_free(*kv);
    *((*kv)->prev ? &(*kv)->prev->next : &(*kv)->pool->first) = (*kv)->next;
    *((*kv)->next ? &(*kv)->next->prev : &(*kv)->pool->last) = (*kv)->prev;
    free((*kv)->addresses);
    free((*kv)->page_numbers);
    free((*kv)->swap_slots);
    free(*kv);
    *kv = NULL;
}

const sn_kv_shape *sn_kv_cache_shape(const sn_kv_cache *kv, int part) { return sn_kv_pool_shape(kv->pool, part); }
int sn_kv_cache_length(const sn_kv_cache *kv) { return kv->length; }
sn_kv_cache *sn_kv_cache_next(const sn_kv_pool *pool, const sn_kv_cache *kv) { return kv ? kv->next : pool->first; }
sn_kv_cache_usage *sn_kv_cache_usage_of(sn_kv_cache *kv) { return &kv->usage; }

/* ---- reserve ---- */

static uint32_t kv_cache_last_page(const sn_kv_cache *kv) { return kv->page_numbers[kv->length / SN_KV_PAGE_TOKENS]; }

/* Whether the next position falls into a page that holds earlier positions and that other caches or the prefix cache
 * hold, too. */
static bool kv_cache_needs_copy(const sn_kv_cache *kv) {
    if (kv->length % SN_KV_PAGE_TOKENS == 0 || kv_cache_last_page(kv) == SN_KV_NONE) return false;
    const sn_kv_pages *pages = &kv->pool->pages;
    return pages->ref_counts[kv_cache_last_page(kv)] > 1 || pages->cached[kv_cache_last_page(kv)];
}

/* Replaces the last page by a copy; the pool has a free page. */
static sn_status kv_cache_copy_on_write(sn_kv_cache *kv, sn_err *err) {
    sn_kv_pages *pages = &kv->pool->pages;
    uint32_t from = kv_cache_last_page(kv), to = sn_kv_pages_next_free(pages);
    sn_status status = sn_kv_pages_copy(pages, to, from, err);
    if (status) return status;
    sn_kv_cache_set_page(kv, (size_t)kv->length / SN_KV_PAGE_TOKENS, to);
    if (kv->pool->prefix_hooks) kv->pool->prefix_hooks->on_copy(kv, from);
    sn_kv_pages_release(pages, from);
    return SN_OK;
}

sn_status sn_kv_cache_reserve(sn_kv_cache *kv, int n, sn_err *err) {
    sn_kv_pages *pages = &kv->pool->pages;
    if (n < 0 || n > INT32_MAX - SN_KV_PAGE_TOKENS - kv->length || pages_for(kv->length + n) > pages->n_pages)
        return sn_fail_because(err, SN_REFUSED, SN_REASON_TOO_LONG,
                               "a KV cache of %lld tokens cannot fit: this KV pool holds %zu in all",
                               (long long)kv->length + n, sn_kv_pool_tokens(kv->pool));
    if (kv->invalid) return sn_fail(err, SN_REBUILD, "the session's KV cache is lost: open a new session and replay");
    if (kv->n_swapped) return sn_fail(err, SN_RETRY, "the session is swapped out: it must be swapped in first");
    size_t need = pages_for(kv->length + n), more = need > kv->n_pages ? need - kv->n_pages : 0;
    size_t available = sn_kv_pages_available(pages);
    bool copy = n && kv_cache_needs_copy(kv);
    if (copy && more + 1 > available && more <= available && pages->ref_counts[kv_cache_last_page(kv)] == 1) {
        /* No page is left for a copy, and no other cache reads this one: the prefix cache gives it up. */
        pages->evictor.uncache(pages->evictor.ctx, kv_cache_last_page(kv));
        copy = false;
    }
    if (more + copy > available)
        return sn_fail_because(err, SN_RETRY, SN_REASON_NO_ROOM, "the KV cache is full: sessions use %zu of %zu pages",
                               sn_kv_pages_used(pages), pages->n_pages);
    if (need > kv->capacity) {
        sn_status status = sn_kv_cache_grow(kv, sn_min_size(need * 2, pages->n_pages), err);
        if (status) return status;
    }
    if (!sn_kv_pages_reclaim(pages, more + copy)) abort(); /* they were counted above */
    if (copy) {
        sn_status status = kv_cache_copy_on_write(kv, err);
        if (status) return status;
    }
    /* A page that will be written ends in another state, if it is whole again. */
    if (n && kv->length % SN_KV_PAGE_TOKENS) sn_kv_states_drop(&pages->states, kv_cache_last_page(kv));
    for (; kv->n_pages < need; kv->n_pages++) sn_kv_cache_set_page(kv, kv->n_pages, sn_kv_pages_next_free(pages));
    return SN_OK;
}

size_t sn_kv_cache_pages_needed(const sn_kv_cache *kv, int n) {
    size_t need = pages_for(kv->length + n);
    return (need > kv->n_pages ? need - kv->n_pages : 0) + kv->n_swapped + (n && kv_cache_needs_copy(kv));
}

size_t sn_kv_cache_pages_missing(const sn_kv_cache *kv, int n) {
    size_t needed = sn_kv_cache_pages_needed(kv, n), available = sn_kv_pages_available(&kv->pool->pages);
    return needed > available ? needed - available : 0;
}

size_t sn_kv_cache_page_parts(const sn_kv_cache *kv) {
    size_t parts = 0;
    for (size_t i = 0; i < kv->n_pages; i++)
        if (kv->page_numbers[i] != SN_KV_NONE)
            parts += SN_KV_PAGE_PARTS / kv->pool->pages.ref_counts[kv->page_numbers[i]];
    return parts;
}

/* ---- writing and reading ---- */

static void *const *kv_cache_addresses(const sn_kv_cache *kv, int part) {
    return kv->addresses + (size_t)part * kv->capacity;
}

sn_sequence sn_kv_cache_sequence(sn_kv_cache *kv, int part, int first_row, int n_rows) {
    assert(pages_for(kv->length + n_rows) <= kv->n_pages && !kv->n_swapped);
    return (sn_sequence){kv_cache_addresses(kv, part), kv->length, first_row, n_rows,
                         sn_kv_cache_states_begin(kv, n_rows)};
}

void sn_kv_cache_append(sn_kv_cache *kv, int n) {
    kv->length += n;
    sn_kv_cache_states_append(kv);
    assert(pages_for(kv->length) <= kv->n_pages);
}

static sn_status check_block(const sn_kv_shape *shape, int block, sn_err *err) {
    if (block >= 0 && block < shape->n_blocks + shape->index_blocks) return SN_OK;
    return sn_fail(err, SN_REFUSED, "block %d is not among the %d blocks of this KV cache", block,
                   shape->n_blocks + shape->index_blocks);
}

sn_status sn_kv_cache_export(sn_kv_cache *kv, int part, int block, int position, int n, float *k, float *v,
                             sn_err *err) {
    const sn_kv_pages_part *p = &kv->pool->pages.parts[part];
    if (position < 0 || n < 0 || position > kv->length - n)
        return sn_fail(err, SN_REFUSED, "positions %d to %lld are not in a KV cache of %d tokens", position,
                       (long long)position + n, kv->length);
    if (kv->n_swapped) return sn_fail(err, SN_RETRY, "the session is swapped out: it must be swapped in first");
    sn_status status = check_block(&p->shape, block, err);
    if (status) return status;
    return p->device->ops->kv_read(p->device, &p->shape, block, kv_cache_addresses(kv, part), position, n, k, v, err);
}

sn_status sn_kv_cache_import(sn_kv_cache *kv, int part, int block, int n, const float *k, const float *v, sn_err *err) {
    const sn_kv_pages_part *p = &kv->pool->pages.parts[part];
    if (n < 0 || n > INT32_MAX - SN_KV_PAGE_TOKENS - kv->length || pages_for(kv->length + n) > kv->n_pages)
        return sn_fail(err, SN_REFUSED, "%d positions after position %d are not reserved", n, kv->length);
    sn_status status = check_block(&p->shape, block, err);
    if (status) return status;
    return p->device->ops->kv_write(p->device, &p->shape, block, kv_cache_addresses(kv, part), kv->length, n, k, v,
                                    err);
}
