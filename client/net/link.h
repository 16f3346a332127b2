/* A client's link to a swarm: its identity, its transport, its requests in flight, and the directory of the nodes it
 * has heard of.
 *
 * Central type: sn_link. chain/, audit/ and the program's commands use it, all on one thread; nothing is read from the
 * transport but inside the functions below. Messages that are handed to the link are consumed in any case; messages
 * that it returns belong to the caller (sn_msg_free).
 *
 * Errors: SN_RETRY: no answer in time, a lost connection, or an answer of another kind. An ERROR message from a node
 * becomes its status and its sentence, with retry_after_ms where the node names a time; SN_STOP of a node becomes
 * SN_RETRY, because another node may do it. SN_STOP: out of memory, a wait was
 * cancelled, or the transport cannot go on. */
#ifndef SN_CLIENT_NET_LINK_H
#define SN_CLIENT_NET_LINK_H

#include "base/cancel.h"
#include "net/directory.h"
#include "net/identity.h"
#include "net/transport/emulated_link.h"

typedef struct sn_link sn_link;

enum { SN_LINK_WANTED_MAX = 16 };

/* -- opening */

typedef struct sn_link_options {
    const char *const *join; /* (n_join): HOST:PORT, or HOST:PORT#KEY to pin the node's CURVE key (hexadecimal) */
    size_t n_join;
    const sn_identity *identity; /* copied; NULL: a fresh one is made */
    const char *swarm_key_path;  /* of a private swarm; NULL: none */
    sn_emulated_link shape;      /* zeroed: none */
} sn_link_options;
/* Does not connect yet. All that the options point to is borrowed for the call. */
sn_status sn_link_open(const sn_link_options *options, sn_link **out, sn_err *err) SN_MUST_USE;
void sn_link_close(sn_link **link); /* accepts NULL */

typedef struct sn_seed {
    char address[SN_ADDRESS_MAX + 1];
    uint8_t curve_key[SN_KEY_SIZE];
} sn_seed;
/* For tests: over another transport, which is taken. seeds: nodes to ask first, with known keys. */
sn_status sn_link_open_transport(sn_transport **transport, const sn_seed *seeds, size_t n_seeds, sn_link **out,
                                 sn_err *err) SN_MUST_USE;

/* -- nodes */

/* Asks the joined nodes, and nodes of the directory, which nodes they know (model NULL: of every model), and waits
 * until one has answered. SN_RETRY: none did within timeout_ms; the message names the addresses. */
sn_status sn_link_discover(sn_link *link, const sn_hash *model, int timeout_ms, sn_err *err) SN_MUST_USE;
/* The address of a joined node that has not answered yet, or whose answer the next discovery takes; NULL: there is
 * none. */
const char *sn_link_unanswered(const sn_link *link);
/* From now on discovery also asks for nodes with these names, or whose ids begin with these hexadecimal digits: in a
 * large swarm, or a flood of invented nodes, they may not be among those that a node lists. Copies up to
 * SN_LINK_WANTED_MAX of them. */
void sn_link_look_for(sn_link *link, const char *const *names, size_t n);
/* From now on every wait ends soon after the flag is set, with SN_STOP, as long as it is set. Borrowed; NULL: none. */
void sn_link_set_cancel(sn_link *link, const sn_cancel *cancel);
bool sn_link_is_cancelled(const sn_link *link);
/* Sleeps; SN_STOP when that was cancelled. */
sn_status sn_link_pause(const sn_link *link, int64_t us, sn_err *err) SN_MUST_USE;
sn_directory *sn_link_directory(sn_link *link);

enum { SN_LINK_ASKED_AT_ONCE = 64 };

/* Which nodes to ask for what, all at once. Of more than SN_LINK_ASKED_AT_ONCE nodes so many are asked at a time, in
 * their order, and the connections that this takes are closed again, as are those that a query makes beyond
 * SN_LINK_ASKED_AT_ONCE of the link. */
typedef struct sn_link_query {
    const sn_announcement *const *nodes; /* (n) of the directory, which does not change meanwhile */
    size_t n;
    bool status;        /* asks for the status, twice */
    bool adapters;      /* asks nodes that announce adapters for their list */
    bool by_connection; /* of proven nodes that are far, a connection that is made measures the round trip, where the
                           transport knows it: the status is not waited for. A stranger has to answer as itself */
    bool hurry;         /* once half of the nodes have answered, waits only as long again and a little more */
    int timeout_ms;
} sn_link_query;

typedef struct sn_node_reply {
    bool answered;
    bool gone;      /* the connection could not be made or was lost, before all was answered */
    int64_t rtt_us; /* of a question about the status; over a connection that existed already, if both were answered */
    sn_msg_status_reply status;
    sn_msg *adapters; /* an ADAPTERS_REPLY, of the caller; NULL: none */
    char error[160];  /* why there is no answer */
} sn_node_reply;
/* Waits until every node has answered all questions or timeout_ms have passed. SN_STOP only; free out[].adapters in any
 * case. */
sn_status sn_link_query_nodes(sn_link *link, const sn_link_query *query, sn_node_reply *out, sn_err *err) SN_MUST_USE;

/* -- one request and its reply */

/* Dials a node, sends *msg with a new correlation id, and waits for the reply. Error messages name the address. *peer
 * (NULL allowed): the connection. */
typedef struct sn_call {
    const char *address;
    const uint8_t *curve_key; /* SN_KEY_SIZE bytes */
    sn_msg_kind wanted;       /* kind of the reply */
    int timeout_ms;
} sn_call;
sn_status sn_link_call(sn_link *link, const sn_call *call, sn_msg **msg, sn_peer *peer, sn_msg **out,
                       sn_err *err) SN_MUST_USE;

/* -- the same in parts */

uint64_t sn_link_new_correlation_id(void); /* random, so unique; never 0 */
/* The connection to a node; made where there is none. After a lost connection its handle is never used again, and the
 * sessions opened over it count as lost; the next dial makes a new one. */
sn_status sn_link_dial(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_peer *out,
                       sn_err *err) SN_MUST_USE;
bool sn_link_is_connected(const sn_link *link, sn_peer peer);
int64_t sn_link_round_trip_us(const sn_link *link, sn_peer peer); /* as of the transport: 0, not known */
size_t sn_link_connections(const sn_link *link);                  /* how many there are */
void sn_link_hang_up(sn_link *link, sn_peer peer);
/* SN_RETRY: the message cannot be sent now, or the connection is lost. */
sn_status sn_link_send(sn_link *link, sn_peer peer, sn_msg **msg, sn_err *err) SN_MUST_USE;

/* What to wait for: a reply of this kind with this correlation id, over any connection, that needs all of `peers`. */
typedef struct sn_wait {
    uint64_t correlation_id;
    sn_msg_kind wanted;
    int64_t deadline_us;
    const sn_peer *peers;
    size_t n_peers;
    uint8_t session[SN_SESSION_ID_SIZE]; /* out: the session that an ERROR names; zero: none */
    sn_peer from;                        /* out: who answered; 0: no answer came */
    bool lost;                           /* out: a connection is lost */
    size_t lost_peer;                    /* out: index of that one in `peers` */
} sn_wait;
/* SN_RETRY, at once, also when a connection is lost. Other messages that arrive meanwhile are dropped. */
sn_status sn_link_wait(sn_link *link, sn_wait *wait, sn_msg **out, sn_err *err) SN_MUST_USE;
/* The same for the first of n waits that is answered, late or lost: *which. */
sn_status sn_link_wait_any(sn_link *link, sn_wait *waits, size_t n, size_t *which, sn_msg **out,
                           sn_err *err) SN_MUST_USE;
/* Whether the connection that was lost last had fallen silent while its peer was waited for: that node is not there, or
 * this program's own link is down. */
bool sn_link_fell_silent(const sn_link *link);
/* Whether anybody answers, of the joined nodes and those of the directory, within this time, or the wait is cancelled.
 * If nobody does, all connections are given up: TCP would take as long again to find out that they are back. */
bool sn_link_is_answered(sn_link *link, int timeout_ms);
bool sn_link_lost(const sn_link *link, sn_wait *wait); /* whether one of wait->peers is lost; sets lost and lost_peer */

/* A request whose reply is kept until it is taken, while other replies are waited for. It ends with
 * sn_link_take_reply or sn_link_cancel_request. SN_RETRY: too many such requests are open. */
sn_status sn_link_request_async(sn_link *link, sn_peer peer, sn_msg **msg, uint64_t *correlation_id,
                                sn_err *err) SN_MUST_USE;
sn_msg *sn_link_take_reply(sn_link *link, uint64_t correlation_id); /* NULL: not there yet; it may be an ERROR */
void sn_link_cancel_request(sn_link *link, uint64_t correlation_id);

/* -- reading without a request */

void sn_link_poll(sn_link *link); /* reads what has arrived, without waiting */
/* Whether the node of this session, which is this peer, has said that it drains. */
bool sn_link_is_draining(const sn_link *link, sn_peer peer, const uint8_t session[SN_SESSION_ID_SIZE]);
/* The next event until the deadline, for callers with many requests of their own in flight. event->msg belongs to the
 * caller; NULL: none arrived. A lost connection is only removed here: ask sn_link_is_connected. */
sn_status sn_link_receive(sn_link *link, int64_t deadline_us, sn_event *event, sn_err *err) SN_MUST_USE;

#endif
