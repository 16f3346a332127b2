#include "kvcache/idle.h"

#include "base/hash.h"
#include "base/mem.h"
#include "device/guard.h"
#include "kvcache/kvcache_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A slot holds a page's bytes, one part behind the other. */
typedef struct slot {
    void *host;   /* host memory; NULL in a file */
    sn_hash hash; /* in a file */
} slot;

struct sn_idle {
    sn_kv_pool *pool;
    int fd; /* -1: host memory */
    int64_t after_us;
    slot *slots;
    size_t n_slots, n_free;
    uint32_t *free_slots;
    void *buffer; /* a page on its way to or from the file */
};

/* A file that nobody else can open, and that is gone with its descriptor. */
static sn_status open_file(const char *dir, int *fd, sn_err *err) {
    char path[4096];
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0) return SN_OK;
    if ((size_t)snprintf(path, sizeof path, "%s/.swarm-idle-XXXXXX", dir) >= sizeof path)
        return sn_fail(err, SN_REFUSED, "the name of the folder for idle sessions is too long: give another --idle-dir");
    *fd = mkostemp(path, O_CLOEXEC); /* where the file system knows no file without a name */
    if (*fd < 0)
        return sn_fail(err, SN_REFUSED, "idle sessions cannot be kept in %.200s: %s: give another --idle-dir", dir,
                       strerror(errno));
    unlink(path);
    return SN_OK;
}

sn_status sn_idle_open(sn_kv_pool *pool, const char *dir, size_t budget, int64_t after_us, sn_err *err) {
    sn_idle *idle = NULL;
    size_t n = sn_min_size(budget / pool->page_bytes, SN_KV_NONE - 1);
    if (!n)
        return sn_fail(err, SN_REFUSED, "%zu bytes hold no page of an idle session, which takes %zu: give --idle-memory more",
                       budget, pool->page_bytes);
    sn_status status = sn_calloc(&idle, 1, sizeof *idle, err);
    if (status) return status;
    *idle = (sn_idle){.pool = pool, .fd = -1, .after_us = after_us, .n_slots = n};
    if (dir) status = open_file(dir, &idle->fd, err);
    if (!status && dir) status = sn_calloc(&idle->buffer, pool->page_bytes, 1, err);
    if (!status) status = sn_calloc(&idle->slots, n, sizeof *idle->slots, err);
    if (!status) status = sn_calloc(&idle->free_slots, n, sizeof *idle->free_slots, err);
    if (status) {
        sn_idle_free(&idle);
        return status;
    }
    for (; idle->n_free < n; idle->n_free++) idle->free_slots[idle->n_free] = (uint32_t)(n - 1 - idle->n_free);
    pool->idle = idle;
    return SN_OK;
}

void sn_idle_free(sn_idle **idle) {
    sn_idle *i = *idle;
    if (!i) return;
    if (i->fd >= 0) close(i->fd);
    free(i->slots);
    free(i->free_slots);
    free(i->buffer);
    free(i);
    *idle = NULL;
}

bool sn_idle_there(const sn_kv_pool *pool) { return pool->idle != NULL; }
int64_t sn_idle_after_us(const sn_kv_pool *pool) { return pool->idle ? pool->idle->after_us : 0; }
size_t sn_idle_bytes(const sn_kv_pool *pool) {
    return pool->idle ? (pool->idle->n_slots - pool->idle->n_free) * pool->page_bytes : 0;
}

/* -- a page's way --------------------------------------------------------------------------------------------------- */

static sn_status fetch(const sn_kv_pool *pool, uint32_t page, uint8_t *to, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pool->n_parts && !status; to += pool->parts[i++].page_bytes) {
        const sn_kv_pool_part *part = &pool->parts[i];
        status = part->device->ops->download(part->device, to, part->memory + page * part->page_bytes, part->page_bytes, err);
    }
    return status;
}

/* The guard looks at a page as at any tensor from outside; its elements are the layout's own bytes, four at a time. */
static sn_status put(const sn_kv_pool *pool, uint32_t page, const uint8_t *from, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pool->n_parts && !status; from += pool->parts[i++].page_bytes) {
        const sn_kv_pool_part *part = &pool->parts[i];
        int64_t n = (int64_t)(part->page_bytes / sizeof(float));
        sn_tensor tensor = {.name = "a page of an idle session", .data = from, .dtype = SN_F32, .rank = 1, .shape = {n}};
        void *to = part->memory + page * part->page_bytes;
        status = sn_guard(&tensor, part->device, 1, &n, to, NULL, err);
    }
    return status;
}

static sn_status write_all(int fd, const uint8_t *data, size_t n, off_t at, sn_err *err) {
    while (n) {
        ssize_t done = pwrite(fd, data, n, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return sn_fail(err, SN_RETRY, "an idle session stays in the cache: its file cannot be written: %s: make room in "
                           "--idle-dir", strerror(done ? errno : ENOSPC));
        data += done, n -= (size_t)done, at += done;
    }
    return SN_OK;
}

static bool read_all(int fd, uint8_t *data, size_t n, off_t at) {
    while (n) {
        ssize_t done = pread(fd, data, n, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        data += done, n -= (size_t)done, at += done;
    }
    return true;
}

static void free_slot(sn_idle *idle, uint32_t number) {
    size_t bytes = idle->pool->page_bytes;
    free(idle->slots[number].host);
    idle->slots[number].host = NULL;
    if (idle->fd >= 0) /* gives the disk's room back where the file system can; the slot is used again in any case */
        (void)!fallocate(idle->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(number * bytes), (off_t)bytes);
    idle->free_slots[idle->n_free++] = number;
}

static sn_status store_page(sn_idle *idle, uint32_t page, uint32_t number, sn_err *err) {
    sn_kv_pool *pool = idle->pool;
    slot *to = &idle->slots[number];
    if (idle->fd < 0) {
        sn_status status = sn_calloc(&to->host, pool->page_bytes, 1, err);
        if (!status) status = fetch(pool, page, to->host, err);
        return status;
    }
    sn_status status = fetch(pool, page, idle->buffer, err);
    if (status) return status;
    to->hash = sn_hash_of(idle->buffer, pool->page_bytes);
    return write_all(idle->fd, idle->buffer, pool->page_bytes, (off_t)(number * pool->page_bytes), err);
}

static sn_status load_page(sn_idle *idle, uint32_t page, uint32_t number, sn_err *err) {
    size_t bytes = idle->pool->page_bytes;
    const slot *from = &idle->slots[number];
    if (idle->fd < 0) return put(idle->pool, page, from->host, err);
    bool good = read_all(idle->fd, idle->buffer, bytes, (off_t)(number * bytes));
    sn_hash hash = sn_hash_of(idle->buffer, bytes);
    if (!good || memcmp(&hash, &from->hash, sizeof hash))
        return sn_fail(err, SN_REBUILD, "the session was set aside on disk and came back damaged: open a new one and replay");
    return put(idle->pool, page, idle->buffer, err);
}

/* -- pasts ----------------------------------------------------------------------------------------------------------- */

size_t sn_idle_away(const sn_kv *kv) { return kv->n_away; }

static bool movable(const sn_kv *kv, size_t i) {
    return kv->numbers[i] != SN_KV_NONE && kv->pool->users[kv->numbers[i]] == 1;
}

size_t sn_idle_movable(const sn_kv *kv) {
    size_t n = 0;
    for (size_t i = 0; i < kv->n_pages; i++) n += movable(kv, i);
    return n;
}

void sn_idle_drop(sn_kv *kv, size_t i) {
    free_slot(kv->pool->idle, kv->slots[i]);
    kv->n_away--;
}

sn_status sn_idle_set_aside(sn_kv *kv, size_t *pages, sn_err *err) {
    sn_idle *idle = kv->pool->idle;
    for (size_t i = kv->n_pages; i-- > 0 && *pages;) {
        if (!movable(kv, i)) continue;
        if (!idle || !idle->n_free)
            return sn_fail(err, SN_RETRY, "an idle session stays in the cache: there is no room for it within --idle-memory");
        uint32_t number = idle->free_slots[--idle->n_free];
        sn_status status = store_page(idle, kv->numbers[i], number, err);
        if (status) {
            free_slot(idle, number);
            return status;
        }
        sn_prefix_drop_open(kv); /* it may be this page's */
        sn_kv_drop_page(kv->pool, kv->numbers[i]);
        kv->numbers[i] = SN_KV_NONE;
        kv->slots[i] = number;
        kv->n_away++;
        --*pages;
    }
    return SN_OK;
}

sn_status sn_idle_bring_back(sn_kv *kv, size_t *pages, sn_err *err) {
    sn_kv_pool *pool = kv->pool;
    if (kv->lost) return sn_fail(err, SN_REBUILD, "the session's past is lost: open a new one and replay");
    for (size_t i = 0; i < kv->n_pages && kv->n_away; i++) {
        if (kv->numbers[i] != SN_KV_NONE) continue;
        if (!*pages) return sn_fail(err, SN_RETRY, "the session is being brought back");
        if (!sn_kv_find_room(pool, 1))
            return sn_fail(err, SN_RETRY, "the cache is full: an idle session waits for room to come back");
        uint32_t page = pool->free_pages[pool->n_free - 1];
        sn_status status = load_page(pool->idle, page, kv->slots[i], err);
        if (status) {
            if (status == SN_REBUILD) sn_kv_lose(kv);
            return status;
        }
        pool->n_free--;
        sn_idle_drop(kv, i);
        sn_kv_set_page(kv, i, page);
        --*pages;
    }
    return SN_OK;
}
