/* What kvcache.c, prefix.c and idle.c share: the pool's pages, who uses them, and the pasts made of them. */
#ifndef SN_KVCACHE_KVCACHE_PRIVATE_H
#define SN_KVCACHE_KVCACHE_PRIVATE_H

#include "kvcache/kvcache.h"

#define SN_KV_NONE UINT32_MAX /* no page, no entry */

typedef struct sn_kv_pool_part {
    sn_device *device;
    sn_kv_shape shape;
    size_t page_bytes;
    uint8_t *memory; /* on the device: n_pages of these */
} sn_kv_pool_part;

/* A page is used by any number of pasts, and may be kept in the table of prefixes beside. It is free when it is neither. */
struct sn_kv_pool {
    sn_kv_pool_part parts[SN_KV_PARTS_MAX];
    int n_parts;
    size_t page_bytes, n_pages; /* of all parts together */
    uint32_t *free_pages;       /* numbers of pages: page i of every part belongs to the same positions */
    size_t n_free;
    uint32_t *users;   /* of each page: pasts */
    size_t n_shared;   /* pages of two pasts or more */
    size_t n_kept;     /* pages of no past, kept for the next one: given up when room is needed */
    sn_prefix *prefix; /* NULL: nothing is shared */
    sn_idle *idle;     /* NULL: nothing is set aside */
    sn_kv *first, *last; /* all pasts, in the order in which they began */
    uint64_t begun;
};

struct sn_kv {
    sn_kv_pool *pool;
    uint32_t *numbers; /* page i holds positions [i, i+1) * SN_KV_PAGE_TOKENS; SN_KV_NONE: it is set aside, in slots[i] */
    uint32_t *slots;
    void **pages;      /* (n_parts, room): the addresses of each part's pages */
    size_t n_pages, room;
    size_t n_away; /* pages that are set aside */
    bool lost;     /* for good: what it held is gone */
    int length;
    sn_kv *before, *next; /* in the pool's list */
    sn_kv_note note;
    uint32_t open; /* entry of the table that takes the outputs of the page that is being filled, or SN_KV_NONE */
};

/* Makes page `number` the past's page i < room; and the other way round, for the last one. */
void sn_kv_set_page(sn_kv *kv, size_t i, uint32_t number);
void sn_kv_drop_page(sn_kv_pool *pool, uint32_t number);
sn_status sn_kv_make_room(sn_kv *kv, size_t room, sn_err *err) SN_MUST_USE; /* of the table of pages */

/* Makes n pages free, giving up kept ones; false: there are too few. */
bool sn_kv_find_room(sn_kv_pool *pool, size_t n) SN_MUST_USE;

/* -- idle.c, for kvcache.c */
void sn_idle_free(sn_idle **idle);
void sn_idle_drop(sn_kv *kv, size_t i); /* page i is set aside, and no longer needed */

/* -- prefix.c, for kvcache.c. All but free: `prefix` may be NULL, which keeps nothing */
void sn_prefix_free(sn_prefix **prefix);
bool sn_prefix_keeps(const sn_prefix *prefix, uint32_t page);
/* Gives up the kept page that was longest of no use, of those without a past. False: there is none. */
bool sn_prefix_give_up(sn_prefix *prefix);
void sn_prefix_forget(sn_prefix *prefix, uint32_t page); /* no longer kept; the page itself stays its users' */
/* The past was cut to its present length, or is to be freed (length 0): what is noted of its unfinished page goes. */
void sn_prefix_cut(sn_kv *kv);
void sn_prefix_drop_open(sn_kv *kv);
/* The past's last page was shared and is now a copy of `from`: what is noted of its first rows is copied, too. */
void sn_prefix_copy_open(sn_kv *kv, uint32_t from);

#endif
