/* The state of sn_membership, shared by the files of this folder. The files call each other as follows: membership.c
 * (life cycle, the node's own announcement, rounds) -> peers.c (PEERS and bootstrap peers), gossip.c, ping.c. */
#ifndef SN_NODE_MEMBERSHIP_MEMBERSHIP_PRIVATE_H
#define SN_NODE_MEMBERSHIP_MEMBERSHIP_PRIVATE_H

#include "node/membership/allowance.h"
#include "node/membership/gossip.h"
#include "node/membership/membership.h"
#include "node/membership/ping_stats.h"

typedef struct sn_bootstrap_peer {
    sn_peer peer;
    char address[SN_ADDRESS_MAX + 1];
    uint8_t curve_key[SN_KEY_SIZE];
    bool answered;
    bool asked_key; /* the node at its address was asked for its key again: it may have another one */
    bool met;       /* nodes that it has proven were asked for an answer */
    bool known;     /* its id is known: it comes first in its own list */
    uint8_t id[SN_KEY_SIZE];
    int pages_left;   /* pages of its directory that may still be asked for */
    int64_t until_us; /* of one that was found: when it is given up if it does not answer; 0: never */
} sn_bootstrap_peer;

struct sn_membership {
    sn_membership_setup setup; /* its strings are copied to: */
    char address[SN_ADDRESS_MAX + 1], name[64];
    sn_reach_kind reach;
    uint64_t relay_places;
    sn_peer relay; /* of this node; 0: none */
    sn_directory *directory;
    sn_bootstrap_peer bootstrap_peers[SN_BOOTSTRAP_PEERS_MAX];
    size_t n_bootstrap_peers;
    struct {
        int64_t due_us;    /* when the next round is due */
        uint64_t sequence; /* of the newest announcement */
        sn_buf sealed;     /* the newest announcement, signed; empty before the first one */
    } own;                 /* announcements of this node */
    sn_gossip gossip;
    sn_allowance allowance;
    sn_news_allowance news;
    sn_ping_stats ping_stats;
    sn_announcement scratch; /* of the current message */
    uint64_t last_ping;      /* correlation id of the newest PING */
    uint64_t ping_rounds;
};

static inline void sn_membership_send(const sn_membership *membership, sn_peer peer, sn_msg **msg) {
    membership->setup.host.send(membership->setup.host.ctx, peer, msg);
}
static inline void sn_membership_refuse(const sn_membership *membership, sn_peer peer, const sn_msg *request,
                                        const sn_err *why) {
    membership->setup.host.refuse(membership->setup.host.ctx, peer, request, why);
}
/* Membership does not need this connection any more. */
static inline void sn_membership_let_go(const sn_membership *membership, sn_peer peer) {
    const sn_membership_host *host = &membership->setup.host;
    if (!host->uses || !host->uses(host->ctx, peer)) sn_transport_hang_up(membership->setup.transport, peer);
}
/* An empty message of this kind; NULL with a log line when memory is out. */
sn_msg *sn_membership_new_msg(sn_msg_kind kind, uint64_t correlation_id);
/* Puts a copy of the node's newest announcement into a new list of one; *n stays 0 when there is none yet. */
sn_status sn_membership_copy_own(const sn_membership *membership, sn_blob **out, size_t *n, sn_err *err) SN_MUST_USE;
/* A peer that this node dialled has answered: it proves the node that it is known to be. */
void sn_membership_note_answer(sn_membership *membership, const sn_event *event, int64_t unix_ms);
sn_status sn_membership_copy_blob(const sn_blob *from, sn_blob *to, sn_err *err) SN_MUST_USE;

/* -- peers.c: PEERS, PEERS_REPLY, bootstrap peers */

void sn_membership_on_peers(sn_membership *membership, const sn_event *event, int64_t now_us, int64_t unix_ms);
void sn_membership_on_peers_reply(sn_membership *membership, const sn_event *event, int64_t now_us, int64_t unix_ms);
void sn_bootstrap_round(sn_membership *membership);
/* A joined node does not answer: another one may be at its address, as after a restart with new keys. */
void sn_bootstrap_ask_key(sn_membership *membership, sn_bootstrap_peer *bootstrap_peer);

/* -- gossip.c: passing announcements on */

void sn_gossip_init(sn_gossip *gossip, uint64_t seed, size_t bytes_per_s);
/* The announcement of the node with this tag changed: it is passed on soon. */
void sn_gossip_enqueue(sn_membership *membership, uint64_t tag, sn_directory_change change, int64_t now_us);
/* Sends the node's own announcement to all neighbours and bootstrap peers at once. */
void sn_gossip_announce_now(sn_membership *membership);
/* Once per announcement round: replaces a neighbour. */
void sn_gossip_round(sn_membership *membership, int64_t unix_ms);
/* Once per round, when the node's own announcement is new: tells proven nodes. */
void sn_gossip_tell_proven(sn_membership *membership, int64_t unix_ms);
/* What is due; returns when to call again. */
int64_t sn_gossip_tick(sn_membership *membership, int64_t now_us, int64_t unix_ms);
/* Asks a peer for announcements that are newer than the known ones; with_own: and sends the node's own along. */
void sn_gossip_pull(sn_membership *membership, sn_peer peer, bool with_own);
void sn_gossip_peer_lost(sn_membership *membership, sn_peer peer);
void sn_gossip_forget_neighbours(sn_membership *membership); /* and hangs up on them */
size_t sn_gossip_reply_budget(sn_membership *membership,
                              int64_t now_us); /* bytes that a reply to a node may have now */
void sn_gossip_reply_sent(sn_membership *membership, size_t bytes);

/* -- ping.c: PING and PONG */

void sn_ping_send(sn_membership *membership, sn_peer peer, const uint8_t id[SN_KEY_SIZE], bool padded, int64_t now_us);
void sn_ping_round(sn_membership *membership, int64_t now_us);
void sn_ping_on_ping(sn_membership *membership, const sn_event *event);
void sn_ping_on_pong(sn_membership *membership, const sn_event *event, int64_t now_us);

#endif
