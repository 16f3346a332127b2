/* A transport carries whole messages between peers.
 *
 * ZeroMQ with CURVE (zmq.c) is the one that programs have. Tests and the simulator run over one inside the process
 * (tests/support/memory_transport.h). Two wrappers add to an inner transport: private_swarm.h and emulated_link.h. One
 * conformance suite (tests/unit/net/transport/test_transport.c) holds all of them to this header.
 *
 * Thread: a transport belongs to one thread, which alone calls it; only sn_transport_wake may be called on others.
 * Nothing blocks but recv, and recv only until its deadline.
 *
 * Peers: an sn_peer is a handle of one connection, either one that this transport dialled (an address and the CURVE key
 * expected there), or one that the other side dialled. Handles are never reused.
 *
 * Errors: SN_REFUSED for an address that cannot be used, SN_RETRY for a peer that is gone or whose queue is full,
 * SN_STOP when the transport cannot go on. */
#ifndef SN_NET_TRANSPORT_TRANSPORT_H
#define SN_NET_TRANSPORT_TRANSPORT_H

#include "net/address_limit.h"
#include "net/identity.h"

typedef uint64_t sn_peer; /* 0: none */

typedef struct sn_transport sn_transport;
typedef struct sn_portal sn_portal;

/* What recv returns: a message (msg), bytes of a peer that are no message (msg NULL, err says why), an outage of a
 * dialled peer (lost), or the end of a peer that had dialled this transport (gone). */
typedef struct sn_event {
    sn_msg *msg;              /* owned by the receiver of the event */
    sn_peer peer;             /* the sender: where to send the answer */
    uint8_t key[SN_KEY_SIZE]; /* the peer's CURVE public key, which the handshake has proven */
    /* Of a peer that had dialled this transport: the part of its network address that names its owner. Zeros: this
     * transport dialled it, or has no such addresses. */
    uint8_t network[SN_ADDRESS_PREFIX];
    bool dialled;            /* this transport dialled the peer */
    int64_t arrived_us;      /* sn_now_us when the message was taken from the socket */
    sn_err err;              /* if msg is NULL */
    uint64_t correlation_id; /* if msg is NULL: of the bytes that are no message, where it could be read; else 0 */
    /* An outage: the connection to a dialled peer was lost, or could not be made (err is SN_RETRY and says which).
     * Messages sent before may not have arrived. Reported once until the connection is up again: the transport keeps
     * connecting, and messages sent meanwhile wait in the queue, until hang_up. A peer that becomes silent without
     * closing its connection is reported late or not at all, unless it is watched. */
    bool lost;
    bool silent; /* of an outage of a watched peer: nothing came from it; this program's own link may be down as well */
    /* Of an outage: the address that was dialled, where a program took the connection and did not prove the key that
     * was expected of it: another one, as after a restart with new keys, or one that ends just now. Else empty. */
    char other_at[SN_ADDRESS_MAX + 1];
    /* The connection of a peer that had dialled this transport, and had sent something, has ended: by its owner, by the
     * death of its program, or by a silence that the transport took for its death (err says which). Comes after the
     * peer's last message, once; the handle is dead. A program that connects again is a new peer with the same key. Not
     * reported for a peer that this transport hung up on. */
    bool gone;
} sn_event;

typedef struct sn_transport_ops {
    /* Accepts connections at `address` (HOST:PORT; port 0 selects a free one). `bound` gets the real address. Does not
     * block. SN_REFUSED: the address cannot be used (in use, not of this machine), with what to do; where it is in use,
     * retry_after_ms is set: a program that was killed holds its port until its memory is freed. */
    sn_status (*listen)(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err);
    /* Starts to connect; does not block. Over ZeroMQ the address is numeric: a transport looks up no names. An event
     * reports that no program listens there, or one with another key. Dialling the same address and key again returns
     * the same handle; over ZeroMQ so do an address that reaches further and one through a relay, of a key that was
     * proven at an address nearby. */
    sn_status (*dial)(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out, sn_err *err);
    /* Sends; takes *msg and sets it NULL on success only. Does not block: SN_RETRY when the peer's queue is full or the
     * peer is gone. */
    sn_status (*send)(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err);
    /* Waits until deadline_us (sn_now_us clock; 0: does not wait) for the next event. *out is zeroed when there is none
     * (msg NULL, peer 0), also after a wake. SN_STOP: the transport cannot go on. */
    sn_status (*recv)(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err);
    /* Drops what is queued for the peer and forgets it. A dialled peer's connection is closed; one that had dialled
     * this transport may send again, as a new peer. */
    void (*hang_up)(sn_transport *t, sn_peer peer);
    void (*wake)(sn_transport *t); /* on any thread: makes the current or the next recv return */
    void (*free)(sn_transport *t); /* gives unsent messages one second to leave */
    /* The numeric host from which a peer has dialled this transport, as it stands in an address. False: it is not
     * known, or is that of a relay. NULL: it never is. */
    bool (*peer_host)(sn_transport *t, sn_peer peer, char host[SN_ADDRESS_MAX + 1]);
    /* Counts a message of a peer that brought no work: a question, or a request that was refused. Of a peer that sends
     * many, recv returns the next message later, and the peer's own queue fills. NULL: all are taken at once. */
    void (*charge)(sn_transport *t, sn_peer peer);
    /* From now on, or (!on) no longer, the owner waits for a dialled peer: when its machine does not even acknowledge
     * what was sent, for a second or two, that is an outage. NULL: silence is noticed late. */
    void (*watch)(sn_transport *t, sn_peer peer, bool on);
    /* The round trip to a dialled peer's machine, as the kernel has measured it while connecting; 0: it is not known,
     * or the way goes through a relay. NULL: it never is. */
    int64_t (*round_trip_us)(sn_transport *t, sn_peer peer);
} sn_transport_ops;

struct sn_transport {
    const sn_transport_ops *ops; /* first member of every implementation */
    bool dials_names;            /* addresses that it dials may be names: those of a hub */
    sn_portal *portal;           /* portal.h, of one that listens at a TCP port; else NULL */
};

static inline sn_status SN_MUST_USE sn_transport_listen(sn_transport *t, const char *address,
                                                        char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    return t->ops->listen(t, address, bound, err);
}
static inline sn_status SN_MUST_USE sn_transport_dial(sn_transport *t, const char *address,
                                                      const uint8_t key[SN_KEY_SIZE], sn_peer *out, sn_err *err) {
    return t->ops->dial(t, address, key, out, err);
}
static inline sn_status SN_MUST_USE sn_transport_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    return t->ops->send(t, peer, msg, err);
}
static inline sn_status SN_MUST_USE sn_transport_recv(sn_transport *t, int64_t deadline_us, sn_event *out,
                                                      sn_err *err) {
    return t->ops->recv(t, deadline_us, out, err);
}
static inline void sn_transport_hang_up(sn_transport *t, sn_peer peer) { t->ops->hang_up(t, peer); }
static inline bool sn_transport_peer_host(sn_transport *t, sn_peer peer, char host[SN_ADDRESS_MAX + 1]) {
    return t->ops->peer_host && t->ops->peer_host(t, peer, host);
}
static inline void sn_transport_charge(sn_transport *t, sn_peer peer) {
    if (t->ops->charge) t->ops->charge(t, peer);
}
static inline void sn_transport_watch(sn_transport *t, sn_peer peer, bool on) {
    if (t->ops->watch) t->ops->watch(t, peer, on);
}
static inline int64_t sn_transport_round_trip_us(sn_transport *t, sn_peer peer) {
    return t->ops->round_trip_us ? t->ops->round_trip_us(t, peer) : 0;
}
static inline void sn_transport_wake(sn_transport *t) { t->ops->wake(t); }
static inline void sn_transport_free(sn_transport **t) {
    if (*t) (*t)->ops->free(*t);
    *t = NULL;
}

/* ZeroMQ's protocol over TCP: a ROUTER to those that dial it, a DEALER to each peer that it dials, CURVE with both. Any
 * key is admitted; an event has the key that was proven. `identity` gives the CURVE key pair and is copied. */
sn_status sn_transport_zmq_new(const sn_identity *identity, sn_transport **out, sn_err *err) SN_MUST_USE;

#endif
