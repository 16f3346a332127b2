/* What kvcache.c, prefix_cache.c and swap.c share: the two structs, and the tables of callbacks by which the prefix
 * cache and swapping follow what happens to a KV cache. kvcache.c calls them only through these tables, and they do not
 * call each other. The order of the folder, each file using only those before it: states.c, pages.c, recurrence.c,
 * kvcache.c, then prefix_cache.c and swap.c. */
#ifndef SN_KVCACHE_KVCACHE_PRIVATE_H
#define SN_KVCACHE_KVCACHE_PRIVATE_H

#include "kvcache/kvcache.h"
#include "kvcache/pages.h"

/* Implemented by prefix_cache.c. */
typedef struct sn_kv_prefix_hooks {
    /* The cache now has a smaller length, or is to be freed (length 0); it still has its pages. */
    void (*on_rewind)(sn_kv_cache *kv);
    /* The cache's last page was shared or cached and is now a copy of page `from`, in the same place. */
    void (*on_copy)(sn_kv_cache *kv, uint32_t from);
    /* A page of the cache is about to be swapped out. */
    void (*on_swap_out)(sn_kv_cache *kv);
    void (*free)(sn_kv_pool *pool);
} sn_kv_prefix_hooks;

/* Implemented by swap.c. */
typedef struct sn_kv_swap_hooks {
    /* Page i of the cache is swapped out and not needed any more: its slot becomes free. */
    void (*drop_page)(sn_kv_cache *kv, size_t i);
    void (*free)(sn_kv_pool *pool);
} sn_kv_swap_hooks;

struct sn_kv_pool {
    sn_kv_pages pages;
    sn_kv_cache *first, *last; /* all caches, in the order in which they were made */
    uint64_t last_sequence_number;
    struct sn_prefix_cache *prefix_cache; /* NULL, as its hooks: nothing is shared */
    const sn_kv_prefix_hooks *prefix_hooks;
    struct sn_swap *swap; /* NULL, as its hooks: nothing is swapped out */
    const sn_kv_swap_hooks *swap_hooks;
};

/* The states of a cache: states of kvcache/states.h. */
typedef struct sn_kv_cache_states {
    uint32_t slots[2];
    int positions[2];   /* -1: none */
    uint32_t next_slot; /* taken for the snapshot of the forward pass; or SN_KV_NO_STATE */
    int snapshot_at;    /* the position of that snapshot; 0: the pass leaves none */
    int written;        /* which of the two the forward pass writes; -1: none runs */
    int incoming;       /* the position of a state that comes from another node, piece by piece; 0: none */
    size_t n_incoming;  /* floats of it so far */
    int incoming_to;    /* which of the two it becomes */
} sn_kv_cache_states;

struct sn_kv_cache {
    sn_kv_pool *pool;
    sn_kv_cache_states states; /* of recurrence.c */
    uint32_t *page_numbers; /* [n_pages]: page i holds positions [i, i+1) * SN_KV_PAGE_TOKENS. SN_KV_NONE: it is swapped
                               out to swap_slots[i] */
    uint32_t *swap_slots;   /* of swap.c */
    void **addresses;       /* (n_parts, capacity), device: the addresses of each part's pages */
    size_t n_pages, capacity;
    size_t n_swapped; /* pages that are swapped out */
    bool invalid;     /* the contents are lost (sn_kv_cache_invalidate) */
    int length;
    sn_kv_cache *prev, *next; /* in the pool's list */
    sn_kv_cache_usage usage;
    uint32_t open_entry; /* of prefix_cache.c: the entry that collects the outputs of the last page, or SN_KV_NONE */
};

/* Page i < capacity of the cache is `page` from now on; acquires it. */
void sn_kv_cache_set_page(sn_kv_cache *kv, size_t i, uint32_t page);
/* Gives the tables of pages a capacity. */
sn_status sn_kv_cache_grow(sn_kv_cache *kv, size_t capacity, sn_err *err) SN_MUST_USE;
/* Of recurrence.c; of caches without recurrent blocks they do nothing. new: takes the two states, SN_RETRY when the
 * pool has none. begin: the states for a pass of n rows at the end. append: that pass is done. rewind: the length is
 * smaller. */
sn_status sn_kv_cache_states_new(sn_kv_cache *kv, sn_err *err);
void sn_kv_cache_states_free(sn_kv_cache *kv);
sn_sequence_state sn_kv_cache_states_begin(sn_kv_cache *kv, int n);
void sn_kv_cache_states_append(sn_kv_cache *kv);
void sn_kv_cache_states_rewind(sn_kv_cache *kv);

/* Page i, which is in the pool, is released: it is swapped out to the slot. */
void sn_kv_cache_clear_page(sn_kv_cache *kv, size_t i, uint32_t slot);

#endif
