/* The numeric addresses of a HOST:PORT that the owner of this program typed.
 *
 * A resolver may take a minute, so it works in a thread of its own and can be left behind. Names are looked up for
 * owners only: addresses that come from other programs are numeric (sn_address_is_numeric), and transports dial no
 * others, because a slow name would stop all connections of a process. Any thread may call these functions; a lookup
 * belongs to one. */
#ifndef SN_NET_LOOKUP_H
#define SN_NET_LOOKUP_H

#include "net/address.h"

enum { SN_LOOKUP_ADDRESSES_MAX = 8, SN_LOOKUP_WAIT_US = 10000000 };

typedef struct sn_lookup sn_lookup;

/* Begins to look up the host of an address. A numeric one is found at once. SN_REFUSED: it is no address. */
sn_status sn_lookup_start(const char *address, sn_lookup **out, sn_err *err) SN_MUST_USE;
/* Waits until deadline_us (sn_now_us clock; 0: does not wait) for the addresses, IPv4 first. SN_RETRY: not yet.
 * SN_REFUSED: there is no such host. */
sn_status sn_lookup_wait(sn_lookup *lookup, int64_t deadline_us,
                         char addresses[SN_LOOKUP_ADDRESSES_MAX][SN_ADDRESS_MAX + 1], size_t *n,
                         sn_err *err) SN_MUST_USE;
void sn_lookup_free(sn_lookup **lookup); /* accepts NULL; does not wait */

/* The first numeric address of HOST:PORT, waiting at most SN_LOOKUP_WAIT_US. SN_REFUSED: none was found in time. */
sn_status sn_lookup_first(const char *address, char out[SN_ADDRESS_MAX + 1], sn_err *err) SN_MUST_USE;

/* The numeric host that this machine has towards a numeric address; of its own addresses the first that others could
 * reach where `toward` is empty. False: it has none. */
bool sn_local_host(const char *toward, char host[SN_ADDRESS_MAX + 1]);

#endif
