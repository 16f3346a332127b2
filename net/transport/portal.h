/* The portal: what comes to a listener's port and is no peer's connection, and connections that a node makes so that it
 * can be reached (docs/PROTOCOL.md, "Behind routers").
 *
 * The first byte of a connection decides: 0xff begins ZMTP, and the listener keeps it; any other one goes to the
 * portal.
 *
 *   dial-back     A node asks another one by DIAL_BACK whether it can be reached. The other one opens a connection to
 *                 it and sends a token that the asker has chosen. The token at the asker's portal is the proof.
 *   relay         A node that others cannot reach keeps a connection to a relay (RELAY), which registers its CURVE key.
 *                 A client comes to the relay's portal as to a SOCKS5 proxy (RFC 1928) and names that key. The relay
 *                 tells the node (RELAY_CALL, with a token), the node connects to the relay and sends the token, and
 *                 the relay passes the bytes of the two connections on (splice_private.h). At the node the connection
 *                 becomes one of its listener, as if the client had come there.
 *
 * CURVE runs between client and node, so a relay sees sizes and times only. It makes no connection for a client: it
 * joins two connections that were made to it, one of them by a node that has registered.
 *
 * A portal has one thread. The functions may be called on any thread and never wait. What strangers can occupy is
 * bounded by the limits below: connections that are not joined have a limit for each network address and 10 seconds; a
 * relayed node has SN_RELAYED_CONNECTIONS_MAX connections, a quarter of them from one network address, clients leave
 * places to what brings tokens and to what the portal dials, and all relayed bytes together have a rate, of which each
 * connection has an equal share. */
#ifndef SN_NET_TRANSPORT_PORTAL_H
#define SN_NET_TRANSPORT_PORTAL_H

#include "net/transport/transport.h"

#include <stdio.h>
#include <sys/socket.h>

enum {
    SN_TOKEN_SIZE = SN_SESSION_ID_SIZE,
    SN_RELAYED_NODES_MAX = 32,       /* that one relay serves */
    SN_RELAYED_CONNECTIONS_MAX = 32, /* of one relayed node, joined or waiting, */
    SN_RELAYED_OF_CLIENT_MAX = 8,    /* of them from one network address */
    SN_PORTAL_OF_ADDRESS_MAX = 16,   /* connections of one network address that are not joined yet */
    SN_PORTAL_DIALS_MAX = 32,        /* connections that the portal is making */
};

/* What the portal calls, on its thread and on the listener's; neither may wait. */
typedef struct sn_portal_host {
    /* Something is there for sn_portal_next_call or sn_portal_was_reached. May be NULL. */
    void (*wake)(void *ctx);
    /* Takes a connected socket on which a client will begin ZMTP; `from` is its other end, the relay. */
    void (*adopt)(void *ctx, int fd, const struct sockaddr_storage *from);
    void *ctx;
} sn_portal_host;

/* connections_max: all connections that it holds. */
sn_status sn_portal_new(const sn_portal_host *host, size_t connections_max, sn_portal **out, sn_err *err) SN_MUST_USE;
void sn_portal_stop(sn_portal *portal);  /* joins the thread: the host is not called any more. Accepts NULL */
void sn_portal_free(sn_portal **portal); /* accepts NULL */
/* Takes an accepted connection whose first byte has come and is not ZMTP's. */
void sn_portal_take(sn_portal *portal, int fd, const struct sockaddr_storage *from);

/* -- dial-backs */

/* Brings the token to the portal at this numeric address. SN_RETRY: too many connections are being made. */
sn_status sn_portal_dial_back(sn_portal *portal, const char *address, const uint8_t token[SN_TOKEN_SIZE],
                              sn_err *err) SN_MUST_USE;
/* From now on this token is waited for, in the place of the oldest of eight. */
void sn_portal_expect(sn_portal *portal, const uint8_t token[SN_TOKEN_SIZE]);
bool sn_portal_was_reached(sn_portal *portal, const uint8_t token[SN_TOKEN_SIZE]); /* whether this token has come */

/* -- at a relay */

/* bytes_per_s: of all relayed connections, both directions together; 0: relays nothing more. */
void sn_portal_set_rate(sn_portal *portal, int64_t bytes_per_s);
/* Clients may name this key from now on. SN_RETRY: there are SN_RELAYED_NODES_MAX others, or the portal does not relay.
 */
sn_status sn_portal_register(sn_portal *portal, const uint8_t key[SN_KEY_SIZE], sn_err *err) SN_MUST_USE;
/* Ends the joined connections of this node, which has come by another way: clients find out at once, not by silence. */
void sn_portal_renew(sn_portal *portal, const uint8_t key[SN_KEY_SIZE]);
/* Connections that are joined go on until one of their ends closes them. */
void sn_portal_unregister(sn_portal *portal, const uint8_t key[SN_KEY_SIZE]);
bool sn_portal_serves(sn_portal *portal, const uint8_t key[SN_KEY_SIZE]); /* whether it is registered */
/* The next client that waits for a registered node. False: there is none. */
bool sn_portal_next_call(sn_portal *portal, uint8_t key[SN_KEY_SIZE], uint8_t token[SN_TOKEN_SIZE]);

/* -- at a relayed node */

/* Connects to the portal of a relay, names the token, and gives the connection to host.adopt. */
sn_status sn_portal_answer(sn_portal *portal, const char *relay, const uint8_t token[SN_TOKEN_SIZE],
                           sn_err *err) SN_MUST_USE;

typedef struct sn_portal_stats {
    size_t relayed_nodes, relayed_connections;
    uint64_t relayed_bytes;
    size_t places; /* for further relayed nodes; 0: it does not relay */
} sn_portal_stats;
sn_portal_stats sn_portal_read_stats(sn_portal *portal);

/* The name by which a client asks a relay for a node: 64 hexadecimal digits of its CURVE key, and ".swarm". */
enum { SN_RELAY_NAME_LEN = 2 * SN_KEY_SIZE + 6 };
static inline void sn_relay_name(const uint8_t key[SN_KEY_SIZE], char out[SN_RELAY_NAME_LEN + 1]) {
    char hex[2 * SN_KEY_SIZE + 1];
    snprintf(out, SN_RELAY_NAME_LEN + 1, "%s.swarm", sn_hex(key, SN_KEY_SIZE, hex));
}

#endif
