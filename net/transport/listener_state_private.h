/* What the two sides of a listener share: the owner's functions (listener.c), the thread (listener_thread.c), and what
 * both do for peers that are dialled (dialled.c). Private to net/transport/. */
#ifndef SN_NET_TRANSPORT_LISTENER_STATE_PRIVATE_H
#define SN_NET_TRANSPORT_LISTENER_STATE_PRIVATE_H

#include "net/address_limit.h"
#include "net/transport/admission_private.h"
#include "net/transport/listener_private.h"
#include "net/transport/pace_private.h"

#include <pthread.h>

enum {
    /* What one connection may hold. */
    RECEIVED_MAX = 64,             /* messages that wait for the owner, beside those of one read; then TCP waits */
    RECEIVED_BYTES_MAX = 16 << 20, /* the same, in bytes */
    ADOPTED_MAX = 64,              /* connections that wait for the thread */
    SENT_MAX = 1024,               /* messages that wait to be sent */
    SENT_BYTES_MAX = 64 << 20,     /* further messages are refused while so many bytes wait for one that has dialled */
    DIALLED_MAX = 4096,            /* peers */
    READ_SIZE = 64 << 10,          /* bytes of one read */
    SOCKS_ANSWER = 12,             /* bytes of a relay's */
};

typedef struct incoming {
    struct incoming *next;
    size_t bytes;
    sn_zmtp_message message;
} incoming;

/* What a connection has that this transport makes: it stays when it ends, and is made again. */
typedef struct dialled_peer {
    char address[SN_ADDRESS_MAX + 1];
    bool relayed; /* the other end is a relay, which is asked for the peer */
    /* Of the listener's thread. */
    int64_t retry_us, pause_us;   /* when it is made again, 0: it was never made; the next pause */
    uint8_t answer[SOCKS_ANSWER]; /* of the relay, */
    size_t answer_len;            /* as far as it has come */
    bool asks;                    /* the relay was asked */
    int64_t unanswered_us; /* since when it has acknowledged nothing of what was sent; 0: it has, or is not watched */
    /* Guarded by the listener's lock. */
    bool up;               /* the key is proven */
    bool down;             /* an outage was reported, and it was not up since */
    bool reporting;        /* `report` waits for the owner, among what was received */
    int64_t round_trip_us; /* as measured while connecting; 0: not known */
    int64_t watched_us;    /* since when the owner waits for it; 0: it does not */
    sn_outage outage;
    incoming report;
} dialled_peer;

typedef struct outgoing {
    struct outgoing *next;
    sn_msg *msg;        /* owns the tensor; NULL: there is none, or it follows the map */
    const void *tensor; /* NULL: none */
    size_t map_len, tensor_len;
    uint8_t map[];
} outgoing;

typedef struct connection {
    size_t slot;
    dialled_peer *dialled; /* NULL: the peer has dialled */
    /* Of the listener's thread. */
    int fd; /* -1: ended */
    uint32_t interest;
    bool paused; /* not read, because much waits for the owner */
    sn_zmtp zmtp;
    outgoing *sealing; /* a large message that is being sealed; NULL: none */
    uint64_t sealing_number;
    sn_standing standing;
    int64_t opened_us, heard_us, pinged_us;
    int64_t warm_us; /* until when its congestion window is kept open; 0: it is not */
    sn_pace pace;
    int64_t pace_us;              /* when it may go on to write; 0: it does not wait for that */
    struct sockaddr_storage from; /* the other end */
    bool adopted;                 /* `from` is a relay */
    bool begun;                   /* its first byte has come, or one that was dialled is made: ZMTP may be sent */
    size_t partial;               /* as counted in the listener */
    /* Guarded by the listener's lock. */
    struct connection *next_ready, *next_todo;
    bool is_ready, is_todo; /* in these lists; ready: or in that of the held ones */
    int64_t paid_us;        /* when all that was charged would have been allowed at the steady rate */
    int64_t held_us;        /* until when the owner takes nothing of it */
    bool full;              /* what waits has reached its limit, and the owner has not yet taken half of it */
    bool drained;           /* the owner has nothing more to read */
    bool known;             /* the owner has the handle: of a dialled one from its beginning */
    bool unread;            /* it ends, because too much waited for it to read */
    uint64_t number;        /* of the handle */
    uint8_t key[SN_KEY_SIZE];
    const char *gone; /* why it has ended for good; NULL: it has not */
    incoming *received, **received_end;
    outgoing *sent, **sent_end;
    size_t n_received, n_sent, received_bytes, sent_bytes;
    size_t sealed_bytes; /* memory of what has left `sent` and was not written yet, as counted in the listener */
} connection;

struct sn_listener {
    const sn_identity *identity;
    int listen_fd, epoll_fd, todo_fd, ready_fd, spare_fd;
    pthread_t thread;
    bool started;
    sn_address_limit *handshakes, *all_handshakes; /* all_handshakes: counts one address, of zeros */
    size_t capacity, n_open;                       /* connections that were not dialled */
    size_t n_accepted, n_slots;                    /* slots for them, and with those of dialled peers behind */
    size_t partial;                                /* bytes of messages that are not complete */
    int64_t retry_us;                              /* when a dialled peer is due; INT64_MAX: none */
    int64_t turned_us, sweep_us;                   /* when the last turn ended, when the next sweep is due */
    int64_t warm_us;                               /* when windows are due that are kept open; INT64_MAX: none */
    int64_t pace_us;                               /* when a paced connection may go on; INT64_MAX: none waits */
    size_t n_sealing;                              /* connections that seal a large message */
    uint64_t sealing_number, n_pieces;             /* of the newest of these; pieces that were sealed */
    const sn_standing **standings;                 /* (n_accepted): of the open connections */
    uint8_t *scratch;

    pthread_mutex_t lock; /* guards the members below */
    /* (n_slots); the thread writes those that were accepted, and frees all, so it reads them without the lock. */
    connection *_Atomic *slots;
    struct {
        connection *first, **end;
    } ready[2]; /* of peers that have dialled, of dialled ones: the owner takes from both in turn */
    bool turn_of_dialled;
    connection *todo;
    size_t n_dialled;
    connection *held; /* have something to read and must wait */
    int64_t paid_us;  /* of all connections, as of each */
    int64_t held_us;  /* when the first of the held ones may be read; of the owner alone */
    uint64_t last_number;
    size_t received_bytes, sent_bytes; /* of all connections; sent_bytes: with sealed_bytes */
    size_t held_max;                   /* of received_bytes and partial together; of sent_bytes */
    int64_t linger_us;                 /* -1: runs */
    struct {
        int fd;
        struct sockaddr_storage from;
    } adopted[ADOPTED_MAX];
    size_t n_adopted;
    sn_listener_diverted diverted;
    void *diverted_ctx;
};

/* -- with the lock -- */

void listener_signal(int fd);
void listener_clear(int fd);
void listener_make_ready(sn_listener *l, connection *c); /* the owner has something to read of it */
void listener_make_todo(sn_listener *l, connection *c);  /* the thread has something to do for it */
void listener_drop_sent(sn_listener *l, connection *c);
void listener_count_sealed(sn_listener *l, connection *c, size_t bytes);
void listener_drop_received(sn_listener *l, connection *c);
void listener_free_connection(sn_listener *l, connection *c);
void listener_free_outgoing(outgoing *m); /* accepts NULL */
size_t listener_held_max(void);           /* of a new listener */
/* Of the network address that holds most in all its connections, the connection that holds most; NULL: none holds
 * anything. One address can have thousands of connections: each of them may hold less than the one message that another
 * client is sending, which must not end for it. */
connection *listener_heaviest(const sn_listener *l, size_t (*held_of)(const connection *));

/* A listener without its thread: a test takes the turns of it itself. */
sn_status listener_open(const sn_identity *identity, sn_listener **out, sn_err *err) SN_MUST_USE;

/* -- the thread -- */

void *listener_run(void *listener);
/* One turn of the thread: waits for events at most wait_ms (-1: for ever), handles them, and sweeps when that is due.
 */
void listener_turn(sn_listener *l, int wait_ms);
/* Ends a connection; one that was dialled is made again later. On the thread, or when it has ended. */
void listener_end_connection(sn_listener *l, connection *c, const char *why);
void listener_disconnect(sn_listener *l, connection *c); /* closes the socket of one that is open */
void listener_write(sn_listener *l, connection *c);      /* writes what the socket takes */
void listener_watch(sn_listener *l, connection *c);      /* for what it waits for now */

/* -- peers that are dialled, on the thread */

void dialled_retry(sn_listener *l, int64_t now);                       /* makes the connections that are due */
void dialled_proceed(sn_listener *l, connection *c, int64_t now);      /* its socket is ready, and it has not begun */
void dialled_is_up(sn_listener *l, connection *c);                     /* the key is proven */
void dialled_is_down(sn_listener *l, connection *c, sn_outage outage); /* with the lock */
void dialled_leave(sn_listener *l, connection *c);                     /* for good */
bool dialled_is_silent(sn_listener *l, connection *c, int64_t now);    /* one that is watched and ready */

#endif
