#include "device/allocations.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

sn_status sn_allocations_reserve(sn_allocations *h, sn_err *err) {
    if (h->n < h->capacity) return SN_OK;
    size_t capacity = h->capacity ? 2 * h->capacity : 64;
    sn_allocation *items = realloc(h->items, capacity * sizeof *items);
    if (!items) return sn_fail(err, SN_STOP, "out of memory for a list of %zu allocations", capacity);
    h->items = items;
    h->capacity = capacity;
    return SN_OK;
}

/* The number of allocations that begin at or below the address. */
static size_t allocations_upper_bound(const sn_allocations *h, uintptr_t address) {
    size_t low = 0, high = h->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (h->items[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void sn_allocations_add(sn_allocations *h, const void *address, size_t bytes) {
    assert(h->n < h->capacity);
    size_t i = allocations_upper_bound(h, (uintptr_t)address);
    memmove(h->items + i + 1, h->items + i, (h->n++ - i) * sizeof *h->items);
    h->items[i] = (sn_allocation){(uintptr_t)address, bytes};
}

void sn_allocations_remove(sn_allocations *h, const void *address) {
    size_t i = allocations_upper_bound(h, (uintptr_t)address);
    if (!i || h->items[i - 1].address != (uintptr_t)address) return;
    memmove(h->items + i - 1, h->items + i, (h->n-- - i) * sizeof *h->items);
}

static bool allocation_contains(const sn_allocation *item, uintptr_t address, size_t bytes) {
    return address >= item->address && address - item->address <= item->bytes &&
           bytes <= item->bytes - (address - item->address);
}

bool sn_allocations_contain(sn_allocations *h, const void *address, size_t bytes) {
    if (h->last < h->n && allocation_contains(&h->items[h->last], (uintptr_t)address, bytes)) return true;
    size_t i = allocations_upper_bound(h, (uintptr_t)address);
    if (!i || !allocation_contains(&h->items[i - 1], (uintptr_t)address, bytes)) return false;
    h->last = i - 1;
    return true;
}

void sn_allocations_fini(sn_allocations *h) {
    free(h->items);
    *h = (sn_allocations){0};
}
