#include "kvcache/states.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

sn_status sn_kv_states_init(sn_kv_states *states, sn_device *device, size_t floats, size_t n_slots, size_t n_pages,
                            sn_err *err) {
    void *memory = NULL;
    *states = (sn_kv_states){.device = device, .floats = floats, .n_slots = n_slots, .n_pages = n_pages};
    sn_status status = sn_calloc(&states->free_slots, n_slots, sizeof *states->free_slots, err);
    if (!status) status = sn_calloc(&states->page_slots, n_pages, sizeof *states->page_slots, err);
    if (!status) status = sn_calloc(&states->slot_pages, n_slots, sizeof *states->slot_pages, err);
    if (!status) status = sn_calloc(&states->slot_ages, n_slots, sizeof *states->slot_ages, err);
    /* One reservation: on the CPU a slot takes memory only once it is written. */
    if (!status) status = device->ops->alloc(device, n_slots * floats * sizeof(float), &memory, err);
    if (status) return status;
    states->memory = memory;
    memset(states->page_slots, 0xff, n_pages * sizeof *states->page_slots); /* SN_KV_NO_STATE */
    memset(states->slot_pages, 0xff, n_slots * sizeof *states->slot_pages);
    while (states->n_free < n_slots) { /* the lowest number on top, as of pages */
        size_t slot = n_slots - 1 - states->n_free;
        states->free_slots[states->n_free++] = (uint32_t)slot;
    }
    return SN_OK;
}

void sn_kv_states_fini(sn_kv_states *states) {
    if (states->memory)
        states->device->ops->free(states->device, states->memory, states->n_slots * states->floats * sizeof(float));
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
