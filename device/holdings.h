/* Where the memory lies that a device gave: for backends whose addresses mean nothing to the host, so that they can answer
 * `owns`. Belongs to the device's thread. Private to device/. */
#ifndef SN_DEVICE_HOLDINGS_H
#define SN_DEVICE_HOLDINGS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_holding {
    uintptr_t at;
    size_t bytes;
} sn_holding;

typedef struct sn_holdings {
    sn_holding *items; /* by address; they never overlap */
    size_t n, room;
    size_t last; /* the one found last: the pages of a past lie in one */
} sn_holdings;

/* Makes sure that the next add has room: before memory is asked for, so that nothing is to be undone. */
sn_status sn_holdings_reserve(sn_holdings *holdings, sn_err *err) SN_MUST_USE;
void sn_holdings_add(sn_holdings *holdings, const void *at, size_t bytes);
void sn_holdings_remove(sn_holdings *holdings, const void *at); /* harmless for what was never added */
/* Whether the bytes from `at` on lie within one of them. */
bool sn_holdings_has(sn_holdings *holdings, const void *at, size_t bytes);
void sn_holdings_fini(sn_holdings *holdings);

#endif
