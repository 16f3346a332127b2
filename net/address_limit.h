/* A limit on what each network address may cause: a token bucket of `burst` events, refilled by `per_s` a second.
 * Memory is fixed. Logic only: the time is an argument. A limit belongs to one thread. */
#ifndef SN_NET_ADDRESS_LIMIT_H
#define SN_NET_ADDRESS_LIMIT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    SN_ADDRESS_LIMIT_MAX = 4096, /* addresses remembered; beyond them the one that was silent longest is evicted */
    SN_ADDRESS_PREFIX = 8,       /* bytes of an address that name its owner: IPv4, or the network of IPv6 */
};

typedef struct sn_address_limit sn_address_limit;
sn_status sn_address_limit_new(int burst, int per_s, sn_address_limit **out, sn_err *err) SN_MUST_USE;
void sn_address_limit_free(sn_address_limit **limit); /* accepts NULL */
/* Whether this address may cause another event now; counts it. */
bool sn_address_limit_allows(sn_address_limit *limit, const uint8_t prefix[SN_ADDRESS_PREFIX], int64_t now_us);

/* The part of a socket's address that names its owner. */
void sn_address_prefix(const struct sockaddr_storage *address, uint8_t out[SN_ADDRESS_PREFIX]);

#endif
