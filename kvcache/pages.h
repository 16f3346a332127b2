/* The pages of a KV pool: device memory in equal pages with reference counts.
 *
 * Central type: sn_kv_pages. It reserves its memory once, when it is initialised. A page has one part on each device of
 * the span; the parts of one number hold the same positions. A page is used by any number of KV caches (its reference
 * count), and the prefix cache may keep it besides (it is then `cached`). A page is
 *   free        when no KV cache uses it and it is not cached,
 *   evictable   when no KV cache uses it and it is cached: reclaim makes it free,
 *   shared      when two KV caches or more use it.
 *
 * This module lies below kvcache.c, prefix_cache.c and swap.c and calls none of them: the module that caches pages
 * registers an sn_kv_page_evictor. Used by the devices' thread. Only for kvcache/; other folders use kvcache.h. */
#ifndef SN_KVCACHE_PAGES_H
#define SN_KVCACHE_PAGES_H

#include "kvcache/states.h"

#define SN_KV_NONE UINT32_MAX /* no page */

/* The part of every page that lies on one device. */
typedef struct sn_kv_pages_part {
    sn_device *device; /* borrowed; must outlive the pages */
    sn_kv_shape shape;
    size_t row_bytes; /* behind keys and values each page has so many bytes for each position */
    size_t page_bytes;
    size_t piece_pages; /* of a piece of memory: as many pages as the device allocates at once */
    uint8_t **pieces;   /* device, each piece_pages * page_bytes, the last one less; NULL: there are none yet */
} sn_kv_pages_part;

/* How the owner of cached pages gives them up. Both operations end in sn_kv_pages_uncache and cannot fail. */
typedef struct sn_kv_page_evictor {
    void *ctx;
    void (*evict)(void *ctx);                  /* uncaches one evictable page; called only when there is one */
    void (*uncache)(void *ctx, uint32_t page); /* uncaches this cached page */
} sn_kv_page_evictor;

typedef struct sn_kv_pages {
    sn_kv_pages_part *parts; /* [n_parts] */
    int n_parts;
    size_t page_bytes, n_pages; /* page_bytes: of all parts together */
    uint32_t *free_pages;       /* a stack of page numbers, [n_free] */
    size_t n_free;
    uint32_t *ref_counts; /* [n_pages]: KV caches that use the page */
    bool *cached;         /* [n_pages] */
    size_t n_shared, n_evictable;
    sn_kv_page_evictor evictor; /* zero: no page is ever cached */
    sn_kv_states states; /* of the snapshots at the ends of pages; pages.c gives up that of a page that is free */
} sn_kv_pages;

/* Divides `budget` bytes into pages and reserves them. Of the parts, device, shape and row_bytes are read. SN_REFUSED
 * when not even one page fits; SN_STOP when a device has too little memory. Call sn_kv_pages_fini after a failure, too.
 */
sn_status sn_kv_pages_init(sn_kv_pages *pages, const sn_kv_pages_part *parts, int n_parts, size_t budget,
                           sn_err *err) SN_MUST_USE;
void sn_kv_pages_fini(sn_kv_pages *pages);

static inline size_t sn_kv_pages_available(const sn_kv_pages *pages) { return pages->n_free + pages->n_evictable; }
static inline size_t sn_kv_pages_used(const sn_kv_pages *pages) {
    return pages->n_pages - sn_kv_pages_available(pages);
}

/* Evicts until n pages are free. False: fewer than n are available, and nothing was evicted. */
bool sn_kv_pages_reclaim(sn_kv_pages *pages, size_t n) SN_MUST_USE;
/* The free page that is to be acquired next; n_free must not be 0. The page stays free. */
uint32_t sn_kv_pages_next_free(const sn_kv_pages *pages);

/* One more KV cache uses the page: the next free one, or one that is in use or cached. */
void sn_kv_pages_acquire(sn_kv_pages *pages, uint32_t page);
/* One KV cache less uses the page. */
void sn_kv_pages_release(sn_kv_pages *pages, uint32_t page);

/* For the evictor's owner: keeps a page that a KV cache uses; and no longer keeps it. */
void sn_kv_pages_cache(sn_kv_pages *pages, uint32_t page);
void sn_kv_pages_uncache(sn_kv_pages *pages, uint32_t page);

/* Copies the bytes of all parts from one page to another. */
sn_status sn_kv_pages_copy(const sn_kv_pages *pages, uint32_t to, uint32_t from, sn_err *err) SN_MUST_USE;

static inline void *sn_kv_pages_address(const sn_kv_pages *pages, int part, uint32_t page) {
    const sn_kv_pages_part *p = &pages->parts[part];
    return p->pieces[page / p->piece_pages] + page % p->piece_pages * p->page_bytes;
}

#endif
