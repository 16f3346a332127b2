/* The state of a link, which its two files share: link.c (connections, requests and their replies), discovery.c (which
 * nodes there are). Private to client/net. */
#ifndef SN_CLIENT_NET_LINK_PRIVATE_H
#define SN_CLIENT_NET_LINK_PRIVATE_H

#include "client/net/link.h"
#include "client/net/refusals.h"
#include "net/introduction.h"

enum {
    LINK_SEEDS_MAX = 64,
    LINK_REQUESTS_MAX = 512, /* asynchronous requests */
    LINK_DRAINING_MAX = 256,
};

struct sn_link {
    sn_identity identity;
    sn_transport *transport;
    const sn_cancel *cancel;   /* NULL: none */
    sn_introducer *introducer; /* NULL over other transports */
    sn_directory *directory;
    sn_seed seeds[LINK_SEEDS_MAX];
    sn_peer seed_peers[LINK_SEEDS_MAX]; /* 0: not dialled yet */
    struct {
        bool answered;         /* it has sent a message */
        bool asked_again;      /* for its key, which may be another one than that of the seed */
        int rejections;        /* of what it sent, bytes that are no message of this swarm */
        sn_msg *late;          /* its list of nodes, which came after the discovery that asked for it; NULL: none */
    } answers[LINK_SEEDS_MAX]; /* of the seeds */
    uint64_t discovery;        /* correlation id of the discovery that is waiting; 0: none */
    int64_t discovery_until_us;
    sn_refusals refusals;     /* of that discovery, or the newest one */
    size_t n_seeds, n_joined; /* n_joined: addresses given, of which those with a known key are seeds */
    char wanted[SN_LINK_WANTED_MAX][2 * SN_KEY_SIZE + 1]; /* names, or first digits of ids */
    size_t n_wanted;
    char joined[256]; /* the addresses as given, for error messages */
    sn_err rejected;  /* why what a joined node sent last was no message */
    sn_err outage;    /* why a joined node could not be reached last */
    bool fell_silent; /* the connection that was lost last */
    sn_peer *alive;   /* connections that were dialled and are not lost */
    size_t n_alive, alive_capacity;
    struct {
        uint64_t correlation_id;
        sn_msg *reply; /* NULL: not arrived yet */
    } requests[LINK_REQUESTS_MAX];
    size_t n_requests;
    struct {
        sn_peer peer; /* that said so */
        uint8_t session[SN_SESSION_ID_SIZE];
    } draining[LINK_DRAINING_MAX]; /* sessions whose nodes drain; the oldest is replaced first */
    size_t n_draining;
};

/* *out: the next message if it is the reply with this correlation id, else NULL. *from (NULL allowed): its sender. */
sn_status sn_link_receive_reply(sn_link *link, uint64_t correlation_id, int64_t deadline_us, sn_msg **out,
                                sn_peer *from, sn_err *err) SN_MUST_USE;
/* A reply of another kind is freed and becomes an error. session (NULL allowed): the session that an ERROR names. */
sn_status sn_link_check_reply(sn_msg **msg, sn_msg_kind wanted, uint8_t *session, sn_err *err) SN_MUST_USE;

#endif
