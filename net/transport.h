/* A transport carries whole messages between peers. Two exist: ZeroMQ with CURVE (zmq.c) and one inside the process
 * (memory.c), over which tests and the simulator run; one conformance suite holds both to what stands here.
 *
 * A transport belongs to one thread: the one that calls it. Only sn_transport_wake may be called from others. Nothing
 * blocks but recv, and that only until its deadline.
 *
 * A peer is a handle for one connection direction: either one that we dialled (an address and the CURVE key we expect
 * there), or one that came to us (then `key` of what it sends is its proven CURVE key). Handles are never reused. */
#ifndef SN_NET_TRANSPORT_H
#define SN_NET_TRANSPORT_H

#include "net/identity.h"

typedef uint64_t sn_peer; /* 0: none */

typedef struct sn_transport sn_transport;

typedef struct sn_event {
    sn_msg *msg;             /* owned by the receiver; NULL: `bad` says why a message of this peer was not one, or `lost` */
    sn_peer peer;            /* whom to answer */
    uint8_t key[SN_KEY_SIZE]; /* the sender's CURVE public key, proven by the handshake */
    int64_t arrived_us;      /* sn_now_us when it was taken from the wire */
    sn_err bad;
    /* The connection to a peer that we dialled was lost or did not come about (SN_RETRY, `bad` says how): what was sent may
     * not have arrived. Told once, until the connection is up again: the transport keeps trying, and what is sent
     * meanwhile waits, unless one hangs up. A machine that falls silent without a word is found out later, or not. */
    bool lost;
} sn_event;

typedef struct sn_transport_ops {
    /* Accepts connections at `address` ("tcp://127.0.0.1:0" picks a port). `bound` gets the real address. Does not block.
     * SN_REFUSED: the address cannot be used (taken by another program, unknown host), with what to do. */
    sn_status (*listen)(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err);
    /* Begins to connect; never blocks. That nobody is there, or not the one with this key, shows by an event.
     * Dialling the same address and key again gives the same handle. */
    sn_status (*dial)(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out, sn_err *err);
    /* Sends; takes *msg and sets it NULL on success only. Never blocks: SN_RETRY when the peer's queue is full or the
     * peer is gone. */
    sn_status (*send)(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err);
    /* Waits until deadline_us (sn_now_us clock; 0: does not wait) for the next event. *out is zeroed when none came
     * (msg NULL, peer 0), also when woken. SN_STOP: the transport cannot go on. */
    sn_status (*recv)(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err);
    void (*hang_up)(sn_transport *t, sn_peer peer); /* forgets a peer and what is queued for it */
    void (*wake)(sn_transport *t);                  /* from any thread: makes a waiting or the next recv return */
    void (*free)(sn_transport *t);                  /* unsent messages are given a second to leave */
} sn_transport_ops;

struct sn_transport {
    const sn_transport_ops *ops; /* first member of every implementation */
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
static inline sn_status SN_MUST_USE sn_transport_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    return t->ops->recv(t, deadline_us, out, err);
}
static inline void sn_transport_hang_up(sn_transport *t, sn_peer peer) { t->ops->hang_up(t, peer); }
static inline void sn_transport_wake(sn_transport *t) { t->ops->wake(t); }
static inline void sn_transport_free(sn_transport **t) {
    if (*t) (*t)->ops->free(*t);
    *t = NULL;
}

/* ZeroMQ: one ROUTER to listen on, one DEALER for each dialled peer, CURVE on all of them, a ZAP handler that admits any
 * key but makes it known (User-Id). `identity` gives our CURVE key pair and is copied. */
sn_status sn_transport_zmq_new(const sn_identity *identity, sn_transport **out, sn_err *err) SN_MUST_USE;

/* In memory: transports of one hub reach each other by address ("mem://name"). The hub is thread-safe and outlives its
 * transports. Faults for tests: a delivery filter decides each message's fate. */
typedef struct sn_hub sn_hub;
sn_status sn_hub_new(sn_hub **out, sn_err *err) SN_MUST_USE;
void sn_hub_free(sn_hub **hub);
/* SN_LATE: kept back until the next message of this direction has been delivered. */
typedef enum sn_fate { SN_DELIVER, SN_DROP, SN_DUPLICATE, SN_LATE } sn_fate;
/* `from` and `to` are the listening addresses ("" for a peer that does not listen). Called under the hub's lock. */
typedef sn_fate (*sn_hub_filter)(void *ctx, const char *from, const char *to, const sn_msg *msg);
void sn_hub_set_filter(sn_hub *hub, sn_hub_filter filter, void *ctx);
sn_status sn_transport_memory_new(sn_hub *hub, const sn_identity *identity, sn_transport **out,
                                  sn_err *err) SN_MUST_USE;

#endif
