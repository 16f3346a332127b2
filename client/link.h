/* A client's link to a swarm: its identity, its transport, and the directory of nodes it has heard of. One thread. */
#ifndef SN_CLIENT_LINK_H
#define SN_CLIENT_LINK_H

#include "net/directory.h"
#include "net/shaped.h"

typedef struct sn_link sn_link;

/* `join`: addresses of nodes ("tcp://host:port", with "#" and the node's CURVE key in hexadecimal behind it if it is to be
 * pinned). A fresh identity is made when identity_path is NULL; swarm_key_path: of a private swarm, NULL: none. shape: an emulated link, NULL: none. Connects to nobody
 * yet. */
sn_status sn_link_open(const char *const *join, size_t n_join, const char *identity_path,
                       const char *swarm_key_path, const sn_shape *shape,
                       sn_link **out, sn_err *err) SN_MUST_USE;
void sn_link_close(sn_link **link); /* NULL-safe */

/* Asks the joined nodes who they know (model: NULL for every model) and waits until one has answered: SN_RETRY when none
 * did within timeout_ms, naming the addresses. */
sn_status sn_link_discover(sn_link *link, const sn_hash *model, int timeout_ms, sn_err *err) SN_MUST_USE;
sn_directory *sn_link_directory(sn_link *link);

/* Over another transport (tests): taken. `seeds`: nodes to ask, their keys known. */
typedef struct sn_seed {
    char address[SN_ADDRESS_MAX + 1];
    uint8_t curve_key[SN_KEY_SIZE];
} sn_seed;
sn_status sn_link_over(sn_transport **transport, const sn_seed *seeds, size_t n_seeds, sn_link **out,
                       sn_err *err) SN_MUST_USE;

/* A number for the next request, never given before. */
uint64_t sn_link_request(sn_link *link);
/* The connection to a node, made where there is none. When it is lost, its handle is dead for good, as are the sessions
 * opened over it for all we know; the next dial begins anew. */
sn_status sn_link_dial(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_peer *out,
                       sn_err *err) SN_MUST_USE;
/* Sends *msg (consumed in any case). SN_RETRY when it cannot be sent now, or the connection was lost. */
sn_status sn_link_send(sn_link *link, sn_peer peer, sn_msg **msg, sn_err *err) SN_MUST_USE;

/* What is waited for: the answer of this kind that echoes `request`, from whoever sends it, who needs all of `peers`. */
typedef struct sn_wait {
    uint64_t request;
    sn_msg_kind wanted;
    int64_t deadline_us;
    const sn_peer *peers;
    size_t n_peers;
    uint8_t session[SN_SESSION_ID_SIZE]; /* out: the one that an ERROR speaks of; zero: none */
    bool lost;                           /* out: a connection was */
    size_t lost_peer;                    /* out: which of `peers` */
} sn_wait;
/* Other messages are dropped. SN_RETRY: none came in time, one of another kind came, or a connection is lost, at once. An
 * ERROR becomes its status and sentence. */
sn_status sn_link_wait(sn_link *link, sn_wait *wait, sn_msg **out, sn_err *err) SN_MUST_USE;

/* The same for the first of n that is answered, late or lost: *which. */
sn_status sn_link_wait_any(sn_link *link, sn_wait *waits, size_t n, size_t *which, sn_msg **out, sn_err *err) SN_MUST_USE;

bool sn_link_lost(const sn_link *link, sn_wait *wait); /* whether a connection is: sets lost, lost_peer */

/* A question whose answer may come while others are waited for. Takes *msg in any case, sets its request. SN_RETRY when too many
 * are open. It is closed by the answer being taken, or by sn_link_forget. */
sn_status sn_link_ask(sn_link *link, sn_peer peer, sn_msg **msg, uint64_t *request, sn_err *err) SN_MUST_USE;
sn_msg *sn_link_answer(sn_link *link, uint64_t request); /* the answer, an ERROR too, if it has come; never waits */
void sn_link_forget(sn_link *link, uint64_t request);
void sn_link_attend(sn_link *link); /* reads what has come, without waiting */
/* Whether the node that has this session says that it leaves. */
bool sn_link_leaving(const sn_link *link, const uint8_t session[SN_SESSION_ID_SIZE]);

/* For who has many questions under way: whatever comes next until the deadline; event->msg is the caller's, NULL when nothing
 * came. Whether a connection stands is to be asked by itself: lost ones are only forgotten here. */
sn_status sn_link_hear(sn_link *link, int64_t deadline_us, sn_event *event, sn_err *err) SN_MUST_USE;
bool sn_link_stands(const sn_link *link, sn_peer peer);

/* All in one: *msg is consumed, its request set. Sentences name the address; *peer (NULL allowed) is who was asked. */
sn_status sn_link_call(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_msg **msg,
                       sn_msg_kind wanted, int timeout_ms, sn_peer *peer, sn_msg **out, sn_err *err) SN_MUST_USE;

/* What a node says of itself when it is asked. */
typedef struct sn_poll {
    bool answered;
    int64_t rtt_us; /* over a connection that stood already, if it answered twice */
    sn_msg_status_is status;
    char why_not[160];
} sn_poll;
/* Asks all of these nodes at once, and waits until each has answered or timeout_ms have passed; in a hurry, for those that
 * are left when half have answered, no more than as long again and a little. SN_STOP only. */
sn_status sn_link_poll(sn_link *link, const sn_announcement *const *nodes, size_t n, int timeout_ms, bool hurry,
                       sn_poll *out, sn_err *err) SN_MUST_USE;

const uint8_t *sn_link_curve_key(const sn_link *link);

#endif
