/* The list of a device's allocations: for backends whose addresses mean nothing to the host, so that they can answer
 * `owns` of sn_device_ops. The backend's device owns the list and uses it on its own thread. Private to device/ and its
 * backends. */
#ifndef SN_DEVICE_ALLOCATIONS_H
#define SN_DEVICE_ALLOCATIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_allocation {
    uintptr_t address;
    size_t bytes;
} sn_allocation;

typedef struct sn_allocations {
    sn_allocation *items; /* sorted by address; allocations never overlap */
    size_t n, capacity;
    size_t last; /* index of the allocation found last: the pages of a KV cache lie in one allocation */
} sn_allocations;

/* Makes room for the next add. A backend calls it before it allocates, so that a failure leaves nothing to undo. */
sn_status sn_allocations_reserve(sn_allocations *allocations, sn_err *err) SN_MUST_USE;
void sn_allocations_add(sn_allocations *allocations, const void *address, size_t bytes);
/* ignores an address that was never added */
void sn_allocations_remove(sn_allocations *allocations, const void *address);
/* Whether the bytes from `address` on lie within one allocation. */
bool sn_allocations_contain(sn_allocations *allocations, const void *address, size_t bytes);
void sn_allocations_fini(sn_allocations *allocations);

#endif
