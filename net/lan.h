/* Nodes of the local network: `--join lan` (docs/PROTOCOL.md, "Local networks").
 *
 * Nodes send a signed record of their identity, CURVE key and port to a multicast group; programs that look for nodes
 * ask there. The host of a node is that from which its record came. The sockets, of IPv4 and IPv6, are bound to the
 * group, so nothing that comes from outside of the local network reaches them. A record is a place to ask, like an
 * address that the owner typed.
 *
 * What a stranger in the local network can cause is bounded: answers have a rate, and so many records of one host are
 * taken (SN_LAN_OF_HOST_MAX), and of all.
 *
 * An sn_lan belongs to one thread, which polls its descriptor; nothing waits. The time is an argument. */
#ifndef SN_NET_LAN_H
#define SN_NET_LAN_H

#include "net/address.h"
#include "net/identity.h"

#define SN_LAN "lan" /* instead of an address */
enum {
    SN_LAN_NODES_MAX = 16,
    SN_LAN_OF_HOST_MAX = 4,
    SN_LAN_ANSWER_EVERY_US = 500000,
};

typedef struct sn_lan sn_lan;

/* identity and bound (the address at which the transport listens): to be found; NULL: only looks. Borrows the identity.
 * SN_RETRY: this machine has no network with multicast. */
sn_status sn_lan_new(const sn_identity *identity, const char *bound, sn_lan **out, sn_err *err) SN_MUST_USE;
void sn_lan_free(sn_lan **lan);   /* accepts NULL */
int sn_lan_fd(const sn_lan *lan); /* readable when sn_lan_receive has something */
/* Sends what is due; returns when to call again. */
int64_t sn_lan_tick(sn_lan *lan, int64_t now_us, int64_t unix_ms);
/* Reads one datagram. *found: a node that is new, with its numeric address and key. False: none waits. */
bool sn_lan_receive(sn_lan *lan, int64_t unix_ms, bool *found, char address[SN_ADDRESS_MAX + 1],
                    uint8_t key[SN_KEY_SIZE]);

#endif
