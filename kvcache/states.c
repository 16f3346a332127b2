#include "kvcache/states.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t count_pieces(const sn_kv_states *s) { return (s->n_slots + s->piece_slots - 1) / s->piece_slots; }

static size_t piece_bytes(const sn_kv_states *s, size_t piece) {
    return sn_min_size(s->piece_slots, s->n_slots - piece * s->piece_slots) * s->floats * sizeof(float);
}

/* One reservation, if the device allocates so much at once: on the CPU a slot takes memory only once it is written. */
static sn_status states_alloc(sn_kv_states *s, sn_err *err) {
    const size_t most = s->device->allocation_max;
    if (most) s->piece_slots = sn_min_size(s->n_slots, most / (s->floats * sizeof(float)));
    if (!s->piece_slots) s->piece_slots = 1; /* the device refuses it with a sentence */
    sn_status status = sn_calloc(&s->pieces, count_pieces(s), sizeof *s->pieces, err);
    for (size_t i = 0; !status && i < count_pieces(s); i++) {
        void *memory = NULL;
        status = s->device->ops->alloc(s->device, piece_bytes(s, i), &memory, err);
        s->pieces[i] = memory;
    }
    return status;
}

sn_status sn_kv_states_init(sn_kv_states *states, sn_device *device, size_t floats, size_t n_slots, size_t n_pages,
                            sn_err *err) {
    *states = (sn_kv_states){
        .device = device, .floats = floats, .n_slots = n_slots, .piece_slots = n_slots, .n_pages = n_pages};
    sn_status status = sn_calloc(&states->free_slots, n_slots, sizeof *states->free_slots, err);
    if (!status) status = sn_calloc(&states->page_slots, n_pages, sizeof *states->page_slots, err);
    if (!status) status = sn_calloc(&states->slot_pages, n_slots, sizeof *states->slot_pages, err);
    if (!status) status = sn_calloc(&states->slot_ages, n_slots, sizeof *states->slot_ages, err);
    if (!status) status = states_alloc(states, err);
    if (status) return status;
    memset(states->page_slots, 0xff, n_pages * sizeof *states->page_slots); /* SN_KV_NO_STATE */
    memset(states->slot_pages, 0xff, n_slots * sizeof *states->slot_pages);
    while (states->n_free < n_slots) { /* the lowest number on top, as of pages */
        size_t slot = n_slots - 1 - states->n_free;
        states->free_slots[states->n_free++] = (uint32_t)slot;
    }
    return SN_OK;
}

void sn_kv_states_fini(sn_kv_states *states) {
    for (size_t i = 0; states->pieces && i < count_pieces(states); i++)
        if (states->pieces[i]) states->device->ops->free(states->device, states->pieces[i], piece_bytes(states, i));
    free(states->pieces);
    free(states->free_slots);
    free(states->page_slots);
    free(states->slot_pages);
    free(states->slot_ages);
    *states = (sn_kv_states){0};
}

void sn_kv_states_drop(sn_kv_states *states, uint32_t page) {
    uint32_t slot = sn_kv_states_of_page(states, page);
    if (slot == SN_KV_NO_STATE) return;
    states->page_slots[page] = states->slot_pages[slot] = SN_KV_NO_STATE;
    states->n_kept--;
    sn_kv_states_give(states, slot);
}

/* The page of the snapshot that was taken first. */
static uint32_t states_oldest_page(const sn_kv_states *states) {
    size_t oldest = SIZE_MAX;
    for (size_t i = 0; i < states->n_slots; i++)
        if (states->slot_pages[i] != SN_KV_NO_STATE &&
            (oldest == SIZE_MAX || states->slot_ages[i] < states->slot_ages[oldest]))
            oldest = i;
    return states->slot_pages[oldest];
}

uint32_t sn_kv_states_take(sn_kv_states *states) {
    if (!states->n_free && states->n_kept) sn_kv_states_drop(states, states_oldest_page(states));
    return states->n_free ? states->free_slots[--states->n_free] : SN_KV_NO_STATE;
}

void sn_kv_states_give(sn_kv_states *states, uint32_t slot) {
    assert(states->n_free < states->n_slots && states->slot_pages[slot] == SN_KV_NO_STATE);
    states->free_slots[states->n_free++] = slot;
}

void sn_kv_states_keep(sn_kv_states *states, uint32_t slot, uint32_t page) {
    sn_kv_states_drop(states, page);
    states->page_slots[page] = slot;
    states->slot_pages[slot] = page;
    states->slot_ages[slot] = ++states->n_taken;
    states->n_kept++;
}
