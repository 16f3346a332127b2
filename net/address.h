/* Addresses of nodes. An address is the text HOST:PORT in options, messages and logs alike (sn_parse_host_port in
 * base/parse.h has the form); an address that a user gives may also pin the node's key: HOST:PORT#KEY. */
#ifndef SN_NET_ADDRESS_H
#define SN_NET_ADDRESS_H

#include "net/message.h"

#include <sys/socket.h>

/* Checks an address that stands in a message or is given to a transport: SN_REFUSED when it is none, with a sentence
 * that is safe to print even if the address came from a peer. to_listen: port 0 and the host * are addresses, too. */
sn_status sn_address_check(const char *address, bool to_listen, sn_err *err) SN_MUST_USE;

/* Whether the host of a valid address is an IPv4 or IPv6 address and no name. */
bool sn_address_is_numeric(const char *address);
/* As sn_address_check, for an address that will be dialled; SN_REFUSED for one with a name, too. */
sn_status sn_address_check_numeric(const char *address, sn_err *err) SN_MUST_USE;

/* The numeric host of a socket's address, in brackets where it is of IPv6; an IPv4 address in one of IPv6 is IPv4.
 * False: it has none. */
bool sn_address_host(const struct sockaddr_storage *at, char host[SN_ADDRESS_MAX + 1]);

/* Where this machine reaches its own listener, which is bound to the address `bound`: by loopback if that stands for
 * all addresses. */
void sn_address_of_own(const char *bound, char own[SN_ADDRESS_MAX + 1]);

/* How far a numeric HOST:PORT reaches: 2: everywhere, 1: inside a private network, 0: on this machine, or it is none.
 */
int sn_address_scope(const char *address);

/* The socket address of a numeric HOST:PORT. */
sn_status sn_address_read(const char *address, struct sockaddr_storage *out, socklen_t *len, sn_err *err) SN_MUST_USE;

/* Splits "HOST:PORT" or "HOST:PORT#KEY", KEY being 64 hexadecimal digits of a CURVE key. `plain` gets HOST:PORT; `key`
 * gets the key when *pinned is set. SN_REFUSED with a sentence that says what to write. */
sn_status sn_address_parse(const char *text, char plain[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE], bool *pinned,
                           sn_err *err) SN_MUST_USE;

#endif
