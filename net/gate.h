/* How often one address may shake hands. Connections cost us memory and libzmq's counters, and their makers nothing, so an
 * address gets a number at once and then so many a second; who comes too often is told to try again (and libzmq does).
 * Bounds in fixed memory. Logic only: it is handed the time. Internal to net/. */
#ifndef SN_NET_GATE_H
#define SN_NET_GATE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SN_GATE_AT_ONCE = 256, /* handshakes of one address */
    SN_GATE_PER_S = 32,
    SN_GATE_ADDRESSES = 4096, /* remembered; the one that was silent longest makes room */
};

typedef struct sn_gate sn_gate;
sn_status sn_gate_new(sn_gate **out, sn_err *err) SN_MUST_USE;
void sn_gate_free(sn_gate **gate); /* NULL-safe */
/* Whether a handshake from this address may go on. */
bool sn_gate_admits(sn_gate *gate, const void *address, size_t len, int64_t now_us);

#endif
