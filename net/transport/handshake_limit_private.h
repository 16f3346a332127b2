/* A limit on handshakes for each network address: a token bucket of SN_HANDSHAKE_BURST handshakes, refilled by
 * SN_HANDSHAKES_PER_S a second. A connection costs memory and counters of libzmq here and nothing at its maker; a
 * refused one is told to try again, which libzmq does. Memory is fixed. Logic only: the time is an argument. Private to
 * net/transport/, used by the thread of the ZAP handler. */
#ifndef SN_NET_TRANSPORT_HANDSHAKE_LIMIT_PRIVATE_H
#define SN_NET_TRANSPORT_HANDSHAKE_LIMIT_PRIVATE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SN_HANDSHAKE_BURST = 256, /* handshakes of one address at once */
    SN_HANDSHAKES_PER_S = 32,
    SN_HANDSHAKE_ADDRESSES = 4096, /* remembered; beyond them the one that was silent longest is evicted */
};

typedef struct sn_handshake_limit sn_handshake_limit;
sn_status sn_handshake_limit_new(sn_handshake_limit **out, sn_err *err) SN_MUST_USE;
void sn_handshake_limit_free(sn_handshake_limit **limit); /* accepts NULL */
/* Whether a handshake from this address may go on; counts it. */
bool sn_handshake_limit_allows(sn_handshake_limit *limit, const void *address, size_t len, int64_t now_us);

#endif
