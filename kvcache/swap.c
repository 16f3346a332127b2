/* The budget is divided into slots of one page each. Free slots are a stack; an occupied slot belongs to one page of
 * one KV cache, which notes the slot's number in kv->swap_slots[i] and SN_KV_NONE in kv->page_numbers[i]. In host
 * memory each slot allocates its bytes when it is filled. In a file slot i lies at i * page_bytes, encrypted with a key
 * that this process draws and never writes; its tag stays in memory, and the file's blocks are released when the slot
 * becomes free.
 *
 * swap_out goes from the last page to the first, swap_in from the first to the last: each stops when the caller's
 * number of pages is moved and goes on at the next call. A page is released (swap_out) or its slot is freed (swap_in)
 * only after the copy has succeeded, so a failure leaves the cache as it was. */
#include "kvcache/swap.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/sealing.h"
#include "device/guard.h"
#include "kvcache/kvcache_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A slot holds the bytes of a page, one part after the other. */
typedef struct slot {
    void *host;               /* host memory: the bytes. File: NULL */
    uint64_t number;          /* file: of the piece that was sealed, */
    uint8_t tag[SN_SEAL_TAG]; /* and its tag */
} slot;

typedef struct sn_swap {
    const sn_kv_pages *pages; /* of the pool */
    int fd;                   /* of the file; -1: host memory */
    int64_t after_us;
    slot *slots;
    size_t n_slots, n_free;
    uint32_t *free_slots;
    void *buffer;             /* file: one page, between device and file */
    uint8_t key[SN_SEAL_KEY]; /* of the file */
    uint64_t sealed;          /* pages so far: each has a number of its own */
} sn_swap;

/* Opens a file without a name: no other process can open it, and it vanishes with its descriptor. */
static sn_status swap_file_open(const char *dir, int *fd, sn_err *err) {
    char path[4096];
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0) return SN_OK;
    if ((size_t)snprintf(path, sizeof path, "%s/.swarm-swap-XXXXXX", dir) >= sizeof path)
        return sn_fail(err, SN_REFUSED,
                       "the name of the folder for idle sessions is too long: give another --swap-dir");
    *fd = mkostemp(path, O_CLOEXEC); /* the file system has no O_TMPFILE */
    if (*fd < 0)
        return sn_fail(err, SN_REFUSED, "idle sessions cannot be kept in %.200s: %s: give another --swap-dir", dir,
                       strerror(errno));
    unlink(path);
    return SN_OK;
}

/* ---- one page between device and slot ---- */

static sn_status page_download(const sn_kv_pages *pages, uint32_t page, uint8_t *to, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pages->n_parts && !status; to += pages->parts[i++].page_bytes) {
        const sn_kv_pages_part *part = &pages->parts[i];
        const void *from = sn_kv_pages_address(pages, i, page);
        status = part->device->ops->download(part->device, to, from, part->page_bytes, err);
    }
    return status;
}

/* The guard checks a page as it checks any tensor from outside. Its elements are the bytes of the device's layout, four
 * at a time. */
static sn_status page_upload(const sn_kv_pages *pages, uint32_t page, const uint8_t *from, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pages->n_parts && !status; from += pages->parts[i++].page_bytes) {
        const sn_kv_pages_part *part = &pages->parts[i];
        int64_t n = (int64_t)(part->page_bytes / sizeof(float));
        sn_tensor tensor = {
            .name = "a page of an idle session", .data = from, .dtype = SN_F32, .rank = 1, .shape = {n}};
        status = sn_guard(&tensor, part->device, 1, &n, sn_kv_pages_address(pages, i, page), NULL, err);
    }
    return status;
}

static sn_status swap_file_write(int fd, const void *data, size_t n, uint64_t at, sn_err *err) {
    int error = sn_file_write_at(fd, data, n, at);
    return error ? sn_fail(err, SN_RETRY,
                           "an idle session stays in the KV cache: the swap file cannot be written: %s: free "
                           "space in --swap-dir",
                           strerror(error))
                 : SN_OK;
}

static void slot_free(sn_swap *swap, uint32_t number) {
    size_t bytes = swap->pages->page_bytes;
    free(swap->slots[number].host);
    swap->slots[number].host = NULL;
    if (swap->fd >= 0) /* releases the blocks of the file where the file system can; if not, the slot still is free */
        (void)!fallocate(swap->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(number * bytes), (off_t)bytes);
    swap->free_slots[swap->n_free++] = number;
}

static sn_status slot_store_page(sn_swap *swap, uint32_t page, uint32_t number, sn_err *err) {
    size_t bytes = swap->pages->page_bytes;
    slot *to = &swap->slots[number];
    if (swap->fd < 0) {
        sn_status status = sn_calloc(&to->host, bytes, 1, err);
        if (!status) status = page_download(swap->pages, page, to->host, err);
        return status;
    }
    sn_status status = page_download(swap->pages, page, swap->buffer, err);
    if (status) return status;
    to->number = ++swap->sealed;
    const sn_seal_piece piece = {.key = swap->key, .number = to->number};
    if (!sn_seal(&piece, swap->buffer, bytes, swap->buffer, to->tag))
        return sn_fail(err, SN_RETRY, "an idle session stays in the KV cache: no memory to encrypt it");
    return swap_file_write(swap->fd, swap->buffer, bytes, (uint64_t)number * bytes, err);
}

static sn_status slot_load_page(sn_swap *swap, uint32_t page, uint32_t number, sn_err *err) {
    size_t bytes = swap->pages->page_bytes;
    const slot *from = &swap->slots[number];
    if (swap->fd < 0) return page_upload(swap->pages, page, from->host, err);
    bool good = !sn_file_read_at(swap->fd, swap->buffer, bytes, (uint64_t)number * bytes);
    const sn_seal_piece piece = {.key = swap->key, .number = from->number};
    if (!good || !sn_unseal(&piece, swap->buffer, bytes, swap->buffer, from->tag))
        return sn_fail(err, SN_REBUILD,
                       "the session was swapped out to disk and is damaged there: open a new session and replay");
    return page_upload(swap->pages, page, swap->buffer, err);
}

/* ---- caches ---- */

static bool page_is_movable(const sn_kv_cache *kv, size_t i) {
    return kv->page_numbers[i] != SN_KV_NONE && kv->pool->pages.ref_counts[kv->page_numbers[i]] == 1;
}

size_t sn_swap_movable_pages(const sn_kv_cache *kv) {
    size_t n = 0;
    for (size_t i = 0; i < kv->n_pages; i++) n += page_is_movable(kv, i);
    return n;
}

size_t sn_swap_swapped_pages(const sn_kv_cache *kv) { return kv->n_swapped; }

sn_status sn_swap_out(sn_kv_cache *kv, size_t *pages, sn_err *err) {
    sn_swap *swap = kv->pool->swap;
    for (size_t i = kv->n_pages; i-- > 0 && *pages;) {
        if (!page_is_movable(kv, i)) continue;
        if (!swap || !swap->n_free)
            return sn_fail(err, SN_RETRY, "an idle session stays in the KV cache: --swap-memory is used up");
        uint32_t slot_number = swap->free_slots[--swap->n_free];
        sn_status status = slot_store_page(swap, kv->page_numbers[i], slot_number, err);
        if (status) {
            slot_free(swap, slot_number);
            return status;
        }
        sn_kv_cache_clear_page(kv, i, slot_number);
        --*pages;
    }
    return SN_OK;
}

/* Of sn_kv_swap_hooks. */
static void swap_drop_page(sn_kv_cache *kv, size_t i) {
    slot_free(kv->pool->swap, kv->swap_slots[i]);
    kv->n_swapped--;
}

sn_status sn_swap_in(sn_kv_cache *kv, size_t *pages, sn_err *err) {
    sn_kv_pages *pool_pages = &kv->pool->pages;
    if (kv->invalid) return sn_fail(err, SN_REBUILD, "the session's KV cache is lost: open a new session and replay");
    for (size_t i = 0; i < kv->n_pages && kv->n_swapped; i++) {
        if (kv->page_numbers[i] != SN_KV_NONE) continue;
        if (!*pages) return sn_fail(err, SN_RETRY, "the session is being swapped in");
        if (!sn_kv_pages_reclaim(pool_pages, 1))
            return sn_fail_because(err, SN_RETRY, SN_REASON_NO_ROOM,
                                   "the KV cache is full: an idle session waits for pages to be swapped in");
        uint32_t page = sn_kv_pages_next_free(pool_pages);
        sn_status status = slot_load_page(kv->pool->swap, page, kv->swap_slots[i], err);
        if (status) {
            if (status == SN_REBUILD) sn_kv_cache_invalidate(kv);
            return status;
        }
        swap_drop_page(kv, i);
        sn_kv_cache_set_page(kv, i, page);
        --*pages;
    }
    return SN_OK;
}

/* ---- the pool's swap ---- */

static void swap_free(sn_kv_pool *pool) {
    sn_swap *swap = pool->swap;
    if (swap->fd >= 0) close(swap->fd);
    free(swap->slots);
    free(swap->free_slots);
    free(swap->buffer);
    explicit_bzero(swap->key, sizeof swap->key);
    free(swap);
    pool->swap = NULL;
}

static const sn_kv_swap_hooks swap_hooks = {.drop_page = swap_drop_page, .free = swap_free};

sn_status sn_swap_enable(sn_kv_pool *pool, const char *dir, size_t budget, int64_t after_us, sn_err *err) {
    sn_swap *swap = NULL;
    size_t page_bytes = pool->pages.page_bytes, n = sn_min_size(budget / page_bytes, SN_KV_NONE - 1);
    if (!n)
        return sn_fail(err, SN_REFUSED,
                       "%zu bytes hold no page of an idle session, which takes %zu bytes: give a larger --swap-memory",
                       budget, page_bytes);
    sn_status status = sn_calloc(&swap, 1, sizeof *swap, err);
    if (status) return status;
    pool->swap = swap;
    *swap = (sn_swap){.pages = &pool->pages, .fd = -1, .after_us = after_us, .n_slots = n};
    sn_random(swap->key, sizeof swap->key);
    if (dir) status = swap_file_open(dir, &swap->fd, err);
    if (!status && dir) status = sn_calloc(&swap->buffer, page_bytes, 1, err);
    if (!status) status = sn_calloc(&swap->slots, n, sizeof *swap->slots, err);
    if (!status) status = sn_calloc(&swap->free_slots, n, sizeof *swap->free_slots, err);
    if (status) {
        swap_free(pool);
        return status;
    }
    for (; swap->n_free < n; swap->n_free++) swap->free_slots[swap->n_free] = (uint32_t)(n - 1 - swap->n_free);
    pool->swap_hooks = &swap_hooks;
    return SN_OK;
}

bool sn_swap_enabled(const sn_kv_pool *pool) { return pool->swap != NULL; }
int64_t sn_swap_after_us(const sn_kv_pool *pool) { return pool->swap ? pool->swap->after_us : 0; }
size_t sn_swap_bytes(const sn_kv_pool *pool) {
    return pool->swap ? (pool->swap->n_slots - pool->swap->n_free) * pool->pages.page_bytes : 0;
}

sn_kv_room sn_kv_room_of(const sn_kv_pool *pool) {
    return (sn_kv_room){.bytes_max = sn_kv_pool_bytes(pool),
                        .tokens_max = sn_kv_pool_tokens(pool),
                        .swap_bytes_max = pool->swap ? pool->swap->n_slots * pool->pages.page_bytes : 0};
}
