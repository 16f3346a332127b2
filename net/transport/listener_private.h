/* The connections of the ZeroMQ transport: those that peers have dialled, DEALERs over TCP with CURVE, and those that
 * it dials itself as such a DEALER. Private to net/transport/.
 *
 * They are not made of libzmq's sockets, which do not withstand strangers: a ROUTER names connections by 32-bit
 * numbers, lets peers claim them, and ends the program when two are the same; an XPUB keeps every subscription that a
 * peer sends; a DEALER keeps all frames of a message that never ends, and in the handshake a command of any length.
 * Here a peer is a connection, and nothing else names it; one that was dialled keeps its name when it is dialled again.
 *
 * One thread accepts, connects, encrypts and decrypts; the functions below are for the one thread that owns the
 * transport, which never waits for it. What a stranger can occupy is bounded: places by admission_private.h, handshakes
 * by net/address_limit.h, memory by the enumeration in listener_state_private.h. */
#ifndef SN_NET_TRANSPORT_LISTENER_PRIVATE_H
#define SN_NET_TRANSPORT_LISTENER_PRIVATE_H

#include "net/transport/transport.h"
#include "net/transport/zmtp_private.h"

enum {
    SN_HANDSHAKE_BURST = 256, /* of one network address at once, */
    SN_HANDSHAKES_PER_S = 32, /* then in a second */
    /* Of all addresses together. A handshake takes a fifth of a millisecond of the thread that carries all messages. */
    SN_ALL_HANDSHAKES_PER_S = 500,

    /* Messages that bring no work (sn_listener_charge): of one connection at once, and then in a second, */
    SN_CHARGED_BURST = 1024,
    SN_CHARGED_PER_S = 256,
    /* unless there are more than so many of all connections: */
    SN_ALL_CHARGED_BURST = 8192,
    SN_ALL_CHARGED_PER_S = 4096,
    /* then so many of one connection. */
    SN_CROWDED_BURST = 64,
    SN_CROWDED_PER_S = 8,
};

typedef struct sn_listener sn_listener;

/* Why a dialled peer is not there. */
typedef enum sn_outage {
    SN_OUTAGE_NONE,
    SN_OUTAGE_LOST,          /* the connection has ended */
    SN_OUTAGE_SILENT,        /* it was watched, and its machine acknowledged nothing */
    SN_OUTAGE_REFUSED,       /* nothing takes it, or its relay brings nobody */
    SN_OUTAGE_UNPROVEN,      /* it was taken, and the expected key was not proven */
    SN_OUTAGE_NO_DESCRIPTOR, /* this process has none left */
    SN_OUTAGE_LEFT,          /* it held too much: it is not dialled again, and nothing is sent to it */
} sn_outage;

/* A message of a peer, or its end. */
typedef struct sn_inbound {
    sn_peer peer; /* 0: nothing has happened */
    uint8_t key[SN_KEY_SIZE];
    uint8_t network[SN_ADDRESS_PREFIX]; /* of a peer that was not dialled; else zeros */
    bool dialled;
    const char *gone;                 /* why the connection has ended of a peer that was not dialled, or NULL */
    sn_outage outage;                 /* of a dialled one, */
    char address[SN_ADDRESS_MAX + 1]; /* at which it was dialled */
    sn_zmtp_message message;          /* without end and outage: has come, and is the receiver's */
} sn_inbound;

/* Borrows the identity. */
sn_status sn_listener_new(const sn_identity *identity, sn_listener **out, sn_err *err) SN_MUST_USE;
/* Listens at `address`, once; `bound` gets the numeric address. SN_REFUSED: the address cannot be used. */
sn_status sn_listener_listen(sn_listener *listener, const char *address, char bound[SN_ADDRESS_MAX + 1],
                             sn_err *err) SN_MUST_USE;
/* Connects to the program that listens at a numeric address and has this key, again after each outage until hang_up.
 * relay: HOST:PORT of the relay through which it goes; NULL: none. The same address and key give the same handle, and
 * so do an address that reaches further, and a relay, of a key that was proven at an address nearby. SN_RETRY: there
 * are too many. */
sn_status sn_listener_dial(sn_listener *listener, const char *address, const char *relay,
                           const uint8_t key[SN_KEY_SIZE], sn_peer *out, sn_err *err) SN_MUST_USE;
/* Gives unsent messages linger_us to leave. Accepts NULL. */
void sn_listener_free(sn_listener **listener, int64_t linger_us);
/* A descriptor that is readable while sn_listener_receive has something. */
int sn_listener_fd(const sn_listener *listener);
/* The next message or end, of each peer in turn. Does not wait. */
void sn_listener_receive(sn_listener *listener, sn_inbound *out);
/* Sends the encoded map and the tensor of *msg; takes *msg on success. SN_RETRY: the queue is full or the peer is gone.
 */
sn_status sn_listener_send(sn_listener *listener, sn_peer peer, const sn_buf *map, sn_msg **msg,
                           sn_err *err) SN_MUST_USE;
/* Forgets the peer: what is queued for it is dropped, and its next message is that of a new peer. The connection to a
 * dialled one ends. */
void sn_listener_hang_up(sn_listener *listener, sn_peer peer);
/* The numeric host from which the peer came; false: it is gone, or was brought by a relay. */
bool sn_listener_peer_host(sn_listener *listener, sn_peer peer, char host[SN_ADDRESS_MAX + 1]);
/* Counts a message that brought no work, of a peer that was not dialled. When it has brought too many,
 * sn_listener_receive returns no other message of it for a while, and the messages that wait are dropped when its
 * connection ends. */
void sn_listener_charge(sn_listener *listener, sn_peer peer);
/* While on, a dialled peer whose machine acknowledges nothing for a second or two is down. */
void sn_listener_watch(sn_listener *listener, sn_peer peer, bool on);
/* The round trip to the machine of a peer that was dialled, from its last connection on; 0: there was none, or the peer
 * is behind a relay. */
int64_t sn_listener_round_trip_us(sn_listener *listener, sn_peer peer);
/* When sn_listener_receive may return a message of a peer that has to wait (sn_now_us); INT64_MAX: none has to. */
int64_t sn_listener_held_until(const sn_listener *listener);
/* Connections whose first byte is not ZMTP's are given to this function, on the listener's thread; it owns the
 * descriptor. NULL: they end. */
typedef void (*sn_listener_diverted)(void *ctx, int fd, const struct sockaddr_storage *from);
void sn_listener_divert(sn_listener *listener, sn_listener_diverted diverted, void *ctx);
/* Takes a connected socket as if it had been accepted; `from`: a relay. On any thread. */
void sn_listener_adopt(sn_listener *listener, int fd, const struct sockaddr_storage *from);

#endif
