/* Membership: which nodes the swarm has, and how a node makes itself known to them.
 *
 * The central type, sn_membership, owns the directory of announcements (net/directory.h), the bootstrap peers (the
 * nodes given by --join), the gossip state (gossip.h) and the ping statistics (ping_stats.h). It is protocol logic
 * without I/O of its own: it is handed messages and the time, and reaches the rest of its node through
 * sn_membership_host only.
 *
 * node/protocol owns it and calls it on the network thread. Nothing blocks. Only sn_membership_new reports errors: a
 * message that cannot be built or sent is dropped with a log line, because a later round repeats what it said.
 *
 * Times: now_us is the monotonic clock of the caller, unix_ms the wall clock, by which announcements expire. */
#ifndef SN_NODE_MEMBERSHIP_MEMBERSHIP_H
#define SN_NODE_MEMBERSHIP_MEMBERSHIP_H

#include "net/directory.h"
#include "net/transport/transport.h"

enum { SN_BOOTSTRAP_PEERS_MAX = 64 };

typedef struct sn_membership sn_membership;

/* What membership asks of the node that it belongs to; `ctx` is the first argument of each function. */
typedef struct sn_membership_host {
    /* Sends *msg to the peer, or drops it with a log line. Takes the message in both cases. */
    void (*send)(void *ctx, sn_peer peer, sn_msg **msg);
    /* Answers the request with an ERROR that carries *why. */
    void (*refuse)(void *ctx, sn_peer peer, const sn_msg *request, const sn_err *why);
    /* Completes the node's own announcement: state, model, blocks, rates, load, wire dtypes and adapters. Identity,
     * address, sequence, expiry and the measurements of the network are filled in before the call. */
    void (*describe)(void *ctx, sn_announcement *own);
    /* Asks this node for an answer, which proves it (sn_membership_prove). */
    void (*meet)(void *ctx, const sn_announcement *node, int64_t now_us);
    /* Whether the node has another use of this connection: then it is the node that hangs up, later. NULL: it never
     * has. */
    bool (*uses)(void *ctx, sn_peer peer);
    /* Asks once more which key the node at a joined address has; the answer is given to sn_membership_join. NULL, or no
     * answer: it keeps the one that it has. */
    void (*ask_key)(void *ctx, const char *address);
    void *ctx;
} sn_membership_host;

typedef struct sn_membership_setup {
    sn_transport *transport;     /* borrowed: membership dials and hangs up; messages go through host.send */
    const sn_identity *identity; /* borrowed */
    const char *address;         /* where other nodes reach this one; copied */
    const char *name;            /* for people; copied */
    size_t directory_max;        /* nodes remembered; 0: SN_DIRECTORY_MAX */
    size_t gossip_bytes_per_s;   /* limit of the bytes sent as announcements; 0: SN_GOSSIP_BYTES_PER_S */
    sn_membership_host host;     /* copied */
} sn_membership_setup;

sn_status sn_membership_new(const sn_membership_setup *setup, sn_membership **out, sn_err *err) SN_MUST_USE;
void sn_membership_free(sn_membership **membership); /* accepts NULL */

/* Adds a bootstrap peer: the node at this address is told of this one and asked for the nodes that it knows, again in
 * every round until it answers. Where one at this address does not answer and host.ask_key was called for it, it is
 * replaced: the node there has another key now. Ignored beyond SN_BOOTSTRAP_PEERS_MAX, and for the node's own key. */
void sn_membership_join(sn_membership *membership, const char *address, const uint8_t curve_key[SN_KEY_SIZE]);
/* Whether nodes that were found in a DHT are to be asked: few of them have answered, and few are being asked. */
bool sn_membership_wants_found(sn_membership *membership, int64_t now_us);
/* Adds one of them as a bootstrap peer, for as long as it answers. False: it is one already, or this node itself. */
bool sn_membership_join_found(sn_membership *membership, const char *address, const uint8_t curve_key[SN_KEY_SIZE],
                              int64_t now_us);

/* From the next announcement on, others reach this node at this address, */
void sn_membership_set_reach(sn_membership *membership, const char *address, sn_reach_kind reach);
/* and it would be a relay for so many more nodes. */
void sn_membership_set_relay_places(sn_membership *membership, uint64_t places);
/* The node with this id has answered over a connection that has proven this CURVE key: it is real. */
void sn_membership_prove(sn_membership *membership, const uint8_t id[SN_KEY_SIZE], const uint8_t curve_key[SN_KEY_SIZE],
                         int64_t unix_ms);
/* Bootstrap peers that have answered; returns how many were put into peers. */
size_t sn_membership_answered(const sn_membership *membership, sn_peer *peers, size_t max);
/* Connects to all bootstrap peers anew and forgets the neighbours: this node's own address has changed, and connections
 * that were made from the old one are dead. */
void sn_membership_redial(sn_membership *membership);
/* Asks the bootstrap peers that have answered for announcements that are newer than the known ones. */
void sn_membership_ask(sn_membership *membership);
/* Asks the bootstrap peers that have answered, and the neighbours, for nodes that serve these blocks of the model: of a
 * large swarm a node knows a part only. */
void sn_membership_ask_for_blocks(sn_membership *membership, const uint8_t model[SN_KEY_SIZE], int first, int end);
/* Keeps the connection to the relay of this node, instead of the one before; 0: of none. */
void sn_membership_hold(sn_membership *membership, sn_peer relay);

/* PEERS, PEERS_REPLY, PING and PONG; the caller keeps event->msg. */
void sn_membership_handle(sn_membership *membership, const sn_event *event, int64_t now_us, int64_t unix_ms);
/* The connection to a peer that was dialled is lost. Hangs up, unless it is a bootstrap peer. */
void sn_membership_peer_lost(sn_membership *membership, const sn_event *event);

/* Whether membership needs this connection: to a bootstrap peer, a neighbour or a former neighbour. */
bool sn_membership_uses(const sn_membership *membership, sn_peer peer);

/* Signs a new announcement of this node and passes it on: to all neighbours and bootstrap peers at once when the node's
 * state, address or blocks changed, through gossip otherwise. */
void sn_membership_announce(sn_membership *membership, int64_t now_us, int64_t unix_ms);

/* The round that is due about every SN_ANNOUNCE_EVERY_MS: expires announcements, replaces a neighbour, announces, asks
 * bootstrap peers, pings. False: it is not due yet, and nothing was done. */
bool sn_membership_round(sn_membership *membership, int64_t now_us, int64_t unix_ms);
/* Gossip that is due. Returns when to call again, the next round included. */
int64_t sn_membership_tick(sn_membership *membership, int64_t now_us, int64_t unix_ms);

const char *sn_membership_address(const sn_membership *membership); /* that it announces */
const sn_directory *sn_membership_directory(const sn_membership *membership);
/* The node's newest announcement, signed; len 0: it has not announced itself yet. Valid until the next announcement. */
sn_blob sn_membership_own_announcement(const sn_membership *membership);
size_t sn_membership_bootstrap_answered(const sn_membership *membership); /* bootstrap peers that answered */
/* Whether a bootstrap peer has answered with all pages of its directory that were asked for. */
bool sn_membership_bootstrap_complete(const sn_membership *membership);

#endif
