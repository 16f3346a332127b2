/* The recurrent states of a KV pool: memory in equal slots, each with room for the states of all recurrent blocks of
 * the pool's part at one position (device.h: sn_delta_shape).
 *
 * Central type: sn_kv_states. A slot is free, belongs to a KV cache (kvcache.c gives each cache two), or is a snapshot:
 * the state at the end of a page, which belongs to that page and ends with it. A state cannot be rewound, so a cache
 * that goes back takes the newest state before its new end and computes the rows from there once more. Snapshots only
 * make that shorter. So when no slot is free the oldest snapshot is given up.
 *
 * This module lies below pages.c and knows pages by number only. Used by the devices' thread. Only for kvcache/. */
#ifndef SN_KVCACHE_STATES_H
#define SN_KVCACHE_STATES_H

#include "device/device.h"

#define SN_KV_NO_STATE UINT32_MAX

typedef struct sn_kv_states {
    sn_device *device; /* borrowed; NULL: the pool has no recurrent blocks, and no function but the first two is used */
    size_t floats;     /* of a slot */
    size_t n_slots, n_pages;
    size_t piece_slots;    /* slots of a piece but the last one: what the device allocates at once */
    float **pieces;        /* device, each (piece_slots, floats), the last one less; NULL: there are none yet */
    uint32_t *free_slots;  /* a stack, [n_free] */
    uint32_t *page_slots;  /* [n_pages]: the snapshot at the end of each page, or SN_KV_NO_STATE */
    uint32_t *slot_pages;  /* [n_slots]: of a snapshot, its page; else SN_KV_NO_STATE */
    uint64_t *slot_ages;   /* [n_slots]: of a snapshot, when it was taken, counted in snapshots */
    uint64_t n_taken;      /* snapshots so far */
    size_t n_free, n_kept; /* n_kept: snapshots */
} sn_kv_states;

/* Reserves n_slots states of `floats` floats, and a place for the snapshot of each page. Call sn_kv_states_fini after a
 * failure, too. */
sn_status sn_kv_states_init(sn_kv_states *states, sn_device *device, size_t floats, size_t n_slots, size_t n_pages,
                            sn_err *err) SN_MUST_USE;
void sn_kv_states_fini(sn_kv_states *states);

static inline float *sn_kv_states_at(const sn_kv_states *states, uint32_t slot) {
    return states->pieces[slot / states->piece_slots] + slot % states->piece_slots * states->floats;
}

/* A slot; the oldest snapshot is given up for it where none is free. SN_KV_NO_STATE: caches have all of them. */
uint32_t sn_kv_states_take(sn_kv_states *states);
void sn_kv_states_give(sn_kv_states *states, uint32_t slot);

/* A taken slot becomes the snapshot at the end of the page, instead of the one before. */
void sn_kv_states_keep(sn_kv_states *states, uint32_t slot, uint32_t page);
static inline uint32_t sn_kv_states_of_page(const sn_kv_states *states, uint32_t page) {
    return states->page_slots ? states->page_slots[page] : SN_KV_NO_STATE;
}
/* The page is free, or will be written: its snapshot, if it has one, is free. */
void sn_kv_states_drop(sn_kv_states *states, uint32_t page);

#endif
