#include "device/holdings.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

sn_status sn_holdings_reserve(sn_holdings *h, sn_err *err) {
    if (h->n < h->room) return SN_OK;
    size_t room = h->room ? 2 * h->room : 64;
    sn_holding *items = realloc(h->items, room * sizeof *items);
    if (!items) return sn_fail(err, SN_STOP, "out of memory for a list of %zu allocations", room);
    h->items = items;
    h->room = room;
    return SN_OK;
}

/* How many begin at or below the address. */
static size_t begun(const sn_holdings *h, uintptr_t at) {
    size_t low = 0, high = h->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (h->items[middle].at <= at) low = middle + 1;
        else high = middle;
    }
    return low;
}

void sn_holdings_add(sn_holdings *h, const void *at, size_t bytes) {
    assert(h->n < h->room);
    size_t i = begun(h, (uintptr_t)at);
    memmove(h->items + i + 1, h->items + i, (h->n++ - i) * sizeof *h->items);
    h->items[i] = (sn_holding){(uintptr_t)at, bytes};
}

void sn_holdings_remove(sn_holdings *h, const void *at) {
    size_t i = begun(h, (uintptr_t)at);
    if (!i || h->items[i - 1].at != (uintptr_t)at) return;
    memmove(h->items + i - 1, h->items + i, (h->n-- - i) * sizeof *h->items);
}

static bool within(const sn_holding *item, uintptr_t at, size_t bytes) {
    return at >= item->at && at - item->at <= item->bytes && bytes <= item->bytes - (at - item->at);
}

bool sn_holdings_has(sn_holdings *h, const void *at, size_t bytes) {
    if (h->last < h->n && within(&h->items[h->last], (uintptr_t)at, bytes)) return true;
    size_t i = begun(h, (uintptr_t)at);
    if (!i || !within(&h->items[i - 1], (uintptr_t)at, bytes)) return false;
    h->last = i - 1;
    return true;
}

void sn_holdings_fini(sn_holdings *h) {
    free(h->items);
    *h = (sn_holdings){0};
}
