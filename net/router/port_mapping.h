/* A port that this machine's router opens for it: by PCP (RFC 6887), of IPv4 and IPv6, else, with IPv4, by NAT-PMP
 * through libnatpmp, else by UPnP-IGD through libminiupnpc.
 *
 * A mapping has one thread, which asks the router, renews what it opened long before the router would close it, and
 * closes it at the end. Every wait of the libraries and of the thread has a limit of a few seconds. A build without the
 * two libraries has none. The functions may be called on any thread. */
#ifndef SN_NET_ROUTER_PORT_MAPPING_H
#define SN_NET_ROUTER_PORT_MAPPING_H

#include "net/message.h"

typedef struct sn_port_mapping sn_port_mapping;

/* Begins to ask for the TCP and UDP port of this number. own: the numeric host of this machine, whose family is that of
 * the port; copied. `wake` is called on the thread when the answer changes. SN_STOP: there is no thread. *out stays
 * NULL in a build without the libraries. */
sn_status sn_port_mapping_new(int port, const char *own, void (*wake)(void *), void *ctx, sn_port_mapping **out,
                              sn_err *err) SN_MUST_USE;
void sn_port_mapping_free(sn_port_mapping **mapping); /* accepts NULL; closes the port, in a few seconds */
/* This machine has this address now: where it is another one, the old port is closed and a new one asked for. */
void sn_port_mapping_move(sn_port_mapping *mapping, const char *own);
/* The router's address and the port that it opened there. False: none, or not yet. */
bool sn_port_mapping_read(sn_port_mapping *mapping, char address[SN_ADDRESS_MAX + 1]);

#endif
