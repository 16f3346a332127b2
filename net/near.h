/* Whether another machine is in a network of this one: what is sent to it takes nothing of the line to the internet. */
#ifndef SN_NET_NEAR_H
#define SN_NET_NEAR_H

#include "net/address.h"

#include <ifaddrs.h>
#include <stdio.h>

/* Whether the numeric host (as sn_transport_peer_host gives it) is this machine, or has a private address (RFC 1918,
 * unique local, link-local) in the network of one of this machine's interfaces that is no tunnel. The address of a
 * gateway is not near: routers and containers may pass strangers on under it. Nor is this machine itself where it is
 * reached by a `tunnel`, whose end is here and passes strangers on, too. */
bool sn_host_is_near(const char *host, bool tunnel);

/* The rule alone: `all` are the interfaces, `gateways` the content of /proc/net/route, for IPv6 of
 * /proc/net/ipv6_route, or NULL. */
bool sn_address_is_near(const struct sockaddr_storage *at, bool tunnel, const struct ifaddrs *all, FILE *gateways);

#endif
