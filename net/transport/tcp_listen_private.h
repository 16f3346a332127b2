/* Opens the TCP socket of a listener. Private to net/transport/. */
#ifndef SN_NET_TRANSPORT_TCP_LISTEN_PRIVATE_H
#define SN_NET_TRANSPORT_TCP_LISTEN_PRIVATE_H

#include "net/address.h"

/* Listens at HOST:PORT; the host * stands for all IPv4 interfaces. *fd: does not block. `bound` gets the numeric
 * address with the real port. SN_REFUSED when the address cannot be used, with what to do. */
sn_status sn_tcp_listen(const char *address, int *fd, char bound[SN_ADDRESS_MAX + 1], sn_err *err) SN_MUST_USE;

#endif
