/* The state of sn_protocol, shared by the files of this folder:
 *   protocol.c      life cycle, dispatch of messages and finished jobs, tables for membership and placement
 *   open.c          OPEN, CLOSE, and what a client's quota allows it
 *   expiry.c        sessions that end without their owner's request
 *   step.c          STEP: check, run, reply or push to the next node
 *   outgoing.c      connections to other nodes that clients cause
 *   experts.c       EXPERTS: experts for other nodes, and from them
 *   receipt.c       what this node signs about steps
 *   kv_exchange.c   KV_PUT, KV_GET, RESUME: KV pages into and out of a session
 *   kv_migration.c  KV_SEND: copying a session's KV pages to another node
 *   train.c         ADAPTER_PUT, ADAPTERS, FORWARD, BACKWARD
 *   weights.c       WEIGHTS_OFFER, WEIGHTS: bytes of the model's files for others
 *   report.c        what the node tells about itself: announcement, STATUS_REPLY, statistics */
#ifndef SN_NODE_PROTOCOL_PROTOCOL_PRIVATE_H
#define SN_NODE_PROTOCOL_PROTOCOL_PRIVATE_H

#include "node/engine/training.h"
#include "node/membership/membership.h"
#include "node/protocol/adapter_table.h"
#include "node/protocol/expert_group.h"
#include "node/protocol/protocol.h"

/* FORWARD and BACKWARD batches in the engine (train.c). */
typedef struct sn_training_batches {
    sn_job *jobs[SN_TRAINING_BATCHES_MAX];
    size_t n, bytes; /* bytes: of their tensors */
} sn_training_batches;

enum { SN_OUTGOING_MAX = 256 };

/* Connections to other nodes that clients cause (outgoing.c). */
typedef struct sn_outgoing_connection {
    sn_outgoing_target to;
    uint8_t client[SN_KEY_SIZE]; /* CURVE key of the client that caused it */
    uint8_t node[SN_KEY_SIZE];   /* id of one that was asked for an answer; zero: it was not */
    sn_peer peer;                /* 0: it was lost */
    int64_t used_us, own_us;     /* when it was used last; own_us: for the node itself, 0: never */
} sn_outgoing_connection;

typedef struct sn_outgoing {
    sn_outgoing_connection all[SN_OUTGOING_MAX];
    size_t n;
} sn_outgoing;

enum { SN_SHARING_WAITING_MAX = 256 };

/* A WEIGHTS that waits (weights.c). */
typedef struct sn_weights_request {
    sn_peer peer;
    uint8_t key[SN_KEY_SIZE];
    uint64_t correlation_id, file, from;
    size_t bytes;
    bool near; /* from this machine's own network */
    int tries; /* to read its bytes, which were not in memory */
    int64_t not_before_us;
} sn_weights_request;

typedef struct sn_sharing {
    bool shares;
    sn_hash manifest;
    struct {
        int64_t left, refilled_us; /* bytes that may be sent now; below zero: owed */
    } rates[2];                    /* towards the internet, and within its own network */
    struct {
        char host[SN_ADDRESS_MAX + 1];
        bool near;
        int64_t until_us;
    } asked;            /* whether the host is near of which the newest request came */
    int64_t stepped_us; /* when the newest step arrived */
    sn_weights_request waiting[SN_SHARING_WAITING_MAX];
    size_t n;
} sn_sharing;

enum { SN_EXPERT_ASKS_MAX = 128 };

/* An EXPERTS that this node has sent, or is about to send (experts.c). */
typedef struct sn_expert_ask {
    uint8_t holder[SN_KEY_SIZE]; /* id of the node */
    sn_peer peer;                /* 0: it is not sent, or over */
    uint64_t correlation_id;
    size_t n_pairs;
    bool needed; /* some of them are of no trial */
    int64_t sent_us, until_us;
} sn_expert_ask;

typedef struct sn_expert_work {
    sn_expert_group group;  /* of a node with a part of the experts */
    int64_t ask_us;         /* when other nodes are asked for holders again */
    int64_t read_us;        /* when the group was read; 0: not yet */
    sn_expert_round *round; /* that the device thread waits for; NULL: none */
    int *asked_of;          /* for each pair of the round: the ask that it is in */
    int64_t room_us;        /* when its open pairs are shared out anew; INT64_MAX: they wait for no room */
    int64_t waits_since_us; /* since when pairs of it wait for room; 0: none does */
    int64_t waited_us;      /* before that */
    sn_expert_ask asks[SN_EXPERT_ASKS_MAX];
    int n_asks;
    sn_job *jobs[SN_EXPERT_JOBS_MAX]; /* in the engine, for other nodes */
    size_t n_jobs;
    sn_expert_counters counters;
} sn_expert_work;

/* The CURVE keys of the nodes that have answered this one. A directory finds nodes by their ids, and looking through it
 * takes a millisecond when it is full: too long for each message of a stranger. */
typedef struct sn_proven_keys { /* zeroed: none yet */
    uint8_t (*keys)[SN_KEY_SIZE];
    size_t n;
    bool read;
    int64_t read_unix_ms;
} sn_proven_keys;

struct sn_protocol {
    sn_protocol_setup setup; /* without address and name, which membership has copied */
    const sn_hparams *hp;    /* of the model */
    sn_peer sender;          /* of the message that is handled now; 0: none is */
    bool charged;            /* that message was */
    const uint8_t *brought;  /* the key that sent it, a STEP or KV pages, if it does not own the session */
    sn_proven_keys proven;   /* who of those that bring messages is a node */
    uint64_t n_brought;      /* such messages of proven nodes, that brought no work */
    sn_relaying *relaying;   /* both NULL over a transport without a portal */
    sn_reach *reach;
    sn_membership *membership;
    sn_placement placement;
    sn_sessions *sessions;
    sn_quota *quota;
    sn_adapter_table adapters;
    sn_training_batches training;
    sn_outgoing outgoing;
    sn_sharing sharing;
    sn_expert_work experts;
    sn_hasher *hasher;
    size_t orphans;                       /* sessions whose owner's connection has ended */
    size_t jobs, kv_reads;                /* in the engine; kv_reads: those of them that read KV pages */
    uint64_t last_correlation_id;         /* of the requests that this node sends to other nodes */
    bool draining;                        /* opens no sessions */
    bool leaving;                         /* serves no steps either */
    int64_t started_us;                   /* now_us of sn_protocol_new */
    int64_t unix_ms, unix_offset_ms;      /* wall clock as of the newest call, and its difference to now_us */
    struct {                              /* counters since the start */
        uint64_t steps, tokens, sessions; /* sessions: opened */
        uint64_t shared_bytes;            /* of the model's files, given to others */
        uint64_t sessions_migrated;       /* sessions whose KV pages another node received */
        uint64_t refusals[SN_STOP + 1];   /* ERRORs sent, by status */
        sn_histogram step_us, queue_us;   /* from arrival to reply, and from arrival to the start of the computation */
    } counters;
};

/* -- protocol.c */

/* Sends *msg, or drops it with a log line: the requester notices a missing reply by its own timeout. Takes the
 * message. */
void sn_protocol_send(sn_protocol *protocol, sn_peer peer, sn_msg **msg);
/* Answers a request with an ERROR, and charges it; request may be NULL (it could not be decoded). */
void sn_protocol_refuse(sn_protocol *protocol, sn_peer peer, const sn_msg *request, const sn_err *why);
/* Counts the message that is handled now, which brings no work, at the rate of its connection (sn_transport_charge):
 * once, however often it is called, and one in BROUGHT_PER_CHARGE of what a proven node brings for clients. */
void sn_protocol_charge(sn_protocol *protocol);
/* An empty message of the kind, or NULL with a log line when memory is out. */
sn_msg *sn_protocol_new_msg(sn_msg_kind kind, uint64_t correlation_id);

/* -- open.c */

void sn_protocol_on_open(sn_protocol *protocol, const sn_event *event, int64_t now_us);
void sn_protocol_on_close(sn_protocol *protocol, const sn_event *event);
/* Frees the session's KV cache by a CLOSE job; at once, or when its jobs in the engine have returned. */
void sn_protocol_close_session(sn_protocol *protocol, sn_session *session);
void sn_protocol_session_closed(sn_protocol *protocol, sn_session *session); /* the CLOSE job has returned */
/* Whether the quota of the session's owner allows this STEP, whose tensor was not checked yet. */
sn_status sn_protocol_quota_step(sn_protocol *protocol, const sn_session *session, const sn_msg *msg, int64_t now_us,
                                 sn_err *err) SN_MUST_USE;
/* Likewise a part of KV pages, with which the session has so many tokens. It counts as a step of the owner, also when
 * another node brings it: the owner has named that one. */
sn_status sn_protocol_quota_kv_put(sn_protocol *protocol, const sn_session *session, int tokens, int64_t now_us,
                                   sn_err *err) SN_MUST_USE;

void sn_protocol_log_session(const char *event, const sn_session *session);

/* -- expiry.c */

/* The inbound connection of this peer has ended. Its sessions are closed when its key does not come back within
 * SN_OWNER_GONE_US on another connection, and at once when the node drains. */
void sn_protocol_peer_gone(sn_protocol *protocol, sn_peer peer, int64_t now_us);
/* A message of this key has arrived: its sessions that lost their connection continue over this one. */
void sn_protocol_owner_is_here(sn_protocol *protocol, const sn_event *event);
/* Closes the sessions whose owner is gone. Returns when to call again. */
int64_t sn_protocol_close_orphans(sn_protocol *protocol, int64_t now_us);
void sn_protocol_close_idle_sessions(sn_protocol *protocol, int64_t now_us);
void sn_protocol_forget_replies(sn_protocol *protocol, int64_t now_us); /* that are older than SN_REPLY_KEPT_US */
/* The table of sessions is full: frees one that was never used, if there is one that may go for this client's. */
void sn_protocol_make_room(sn_protocol *protocol, const uint8_t newcomer[SN_KEY_SIZE], int64_t now_us);

/* -- step.c */

void sn_protocol_on_step(sn_protocol *protocol, sn_event *event, int64_t now_us);
void sn_protocol_next_step(sn_protocol *protocol, sn_session *session, int64_t now_us); /* starts a queued STEP */
void sn_protocol_step_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us);
/* An ERROR from a node that this one pushed a step to: passed on to the client of the session. */
void sn_protocol_on_error(sn_protocol *protocol, const sn_event *event);

/* -- outgoing.c */

/* The node that a sealed announcement of a client names. SN_RETRY: it has expired. */
sn_status sn_protocol_read_target(const sn_protocol *protocol, const sn_blob *sealed, sn_outgoing_target *out,
                                  sn_err *err) SN_MUST_USE;
/* The connection to that node, made where there is none. SN_RETRY: the client caused too many already. */
sn_status sn_protocol_dial(sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE], const sn_outgoing_target *to,
                           int64_t now_us, sn_peer *out, sn_err *err) SN_MUST_USE;
/* The same before it is needed, to save the first step the time, while the client has caused few: nodes that are not
 * there may have taken the others. */
void sn_protocol_dial_early(sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE], const sn_outgoing_target *to,
                            int64_t now_us);
/* Asks this node for an answer. */
void sn_protocol_meet(sn_protocol *protocol, const sn_announcement *node, int64_t now_us);
void sn_protocol_met(sn_protocol *protocol, const sn_event *event); /* a PONG: the answer, perhaps */
void sn_protocol_outgoing_lost(sn_protocol *protocol, sn_peer peer);
bool sn_protocol_outgoing_has(const sn_protocol *protocol, sn_peer peer); /* whether it is one of these */
int64_t sn_protocol_outgoing_tick(sn_protocol *protocol, int64_t now_us); /* returns when to call again */

/* -- experts.c */

/* The blocks are served from now on: reads the group of a node with a part of the experts. */
void sn_protocol_experts_served(sn_protocol *protocol, int64_t now_us);
/* The experts that are missing in the group of a node with a part of them, which then serves no clients. NULL: none. */
const char *sn_protocol_experts_lacking(const sn_protocol *protocol);
void sn_protocol_on_experts(sn_protocol *protocol, sn_event *event, int64_t now_us); /* EXPERTS or EXPERTS_REPLY */
/* An ERROR. False: it does not concern a round. */
bool sn_protocol_experts_on_error(sn_protocol *protocol, const sn_event *event, int64_t now_us);
void sn_protocol_experts_pong(sn_protocol *protocol, const sn_event *event, int64_t now_us);
/* Whether experts are asked for over this connection, or a holder has answered over it. */
bool sn_protocol_experts_need(const sn_protocol *protocol, sn_peer peer);
void sn_protocol_experts_lost(sn_protocol *protocol, sn_peer peer, int64_t now_us); /* a peer that was dialled */
void sn_protocol_cancel_experts(sn_protocol *protocol, sn_peer peer);               /* its connection has ended */
void sn_protocol_experts_done(sn_protocol *protocol, sn_job *job);
int64_t sn_protocol_experts_tick(sn_protocol *protocol, int64_t now_us); /* returns when to call again */
/* Frees the round that is asked for: the engine is gone. */
void sn_protocol_experts_forget(sn_protocol *protocol);

/* -- receipt.c */

/* Remembers the input of the step at `position` that was just done, while its message is there. */
void sn_protocol_record_input(const sn_protocol *protocol, sn_session *session, int position);
/* The receipts that came with the request, then this node's own, for a reply with this tensor. To be freed as a
 * message's list, also after an error. */
sn_status sn_protocol_add_receipt(const sn_protocol *protocol, const sn_session *session, const sn_msg_step *request,
                                  const sn_wire_tensor *output, sn_blob **out, size_t *n, sn_err *err) SN_MUST_USE;

/* -- attach.c */

/* Whose KV pages the session may share: its owner's, or those of all. */
sn_prefix_cache_scope sn_protocol_prefix_scope(const sn_protocol *protocol, const sn_session *session);

void sn_protocol_on_attach(sn_protocol *protocol, sn_event *event, int64_t now_us);
void sn_protocol_attach_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us);

/* -- kv_exchange.c */

void sn_protocol_on_kv_put(sn_protocol *protocol, sn_event *event, int64_t now_us);
void sn_protocol_on_state_put(sn_protocol *protocol, sn_event *event, int64_t now_us);
void sn_protocol_on_kv_get(sn_protocol *protocol, const sn_event *event, int64_t now_us);
void sn_protocol_on_resume(sn_protocol *protocol, const sn_event *event, int64_t now_us);
void sn_protocol_kv_put_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us);
void sn_protocol_kv_get_done(sn_protocol *protocol, sn_session *session, sn_job *job);
/* A KV_PUT or KV_GET_REPLY with what a job has read; NULL: memory is out. */
sn_msg *sn_protocol_kv_message(sn_protocol *protocol, sn_msg_kind kind, uint64_t correlation_id,
                               const sn_session *session, sn_job *job);
/* A STATE_PUT with the piece that a job has read; likewise. */
sn_msg *sn_protocol_state_message(uint64_t correlation_id, const sn_session *session, sn_job *job);
/* Submits a job that reads KV pages or a piece of a snapshot; of `what`, blocks, positions and kv_read are read. It
 * counts as a step of the session's owner unless it is paid for. NULL: later (SN_RETRY), because the owner's quota is
 * used up, the engine is full, or memory is out. */
sn_job *sn_protocol_kv_read(sn_protocol *protocol, sn_session *session, const sn_job *what, bool paid, int64_t now_us,
                            sn_err *err);
/* The session of this id, if the sender owns it; notes the connection as the owner's. */
sn_status sn_protocol_owned_session(sn_protocol *protocol, const sn_event *event, const uint8_t *id, sn_session **out,
                                    sn_err *err) SN_MUST_USE;

/* -- kv_migration.c */

void sn_kv_migration_on_send(sn_protocol *protocol, const sn_event *event, int64_t now_us);
/* A KV_PUT_REPLY or STATE_PUT_REPLY. */
void sn_kv_migration_on_put_reply(sn_protocol *protocol, const sn_event *event, int64_t now_us);
/* An ERROR. False: it does not concern a migration. */
bool sn_kv_migration_on_error(sn_protocol *protocol, const sn_event *event, int64_t now_us);
void sn_protocol_kv_read_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us);
/* The session is rewound to `position`: what follows it is about to be overwritten. */
void sn_kv_migration_rewind(sn_session *session, int position);
void sn_kv_migration_continue(sn_protocol *protocol, sn_session *session, int64_t now_us);
void sn_kv_migration_free(sn_session *session, bool engine_is_gone);
int64_t sn_kv_migration_tick(sn_protocol *protocol, int64_t now_us); /* returns when to call again */

/* -- train.c */

void sn_protocol_on_adapter_put(sn_protocol *protocol, sn_event *event, int64_t now_us);
void sn_protocol_on_adapters(sn_protocol *protocol, const sn_event *event);
void sn_protocol_on_training_batch(sn_protocol *protocol, sn_event *event, int64_t now_us); /* FORWARD or BACKWARD */
void sn_protocol_cancel_training(sn_protocol *protocol, sn_peer peer); /* its connection has ended */
void sn_protocol_cancel_all_training(sn_protocol *protocol);
void sn_protocol_training_done(sn_protocol *protocol, sn_job *job, int64_t now_us);

/* -- weights.c */

void sn_protocol_on_weights_offer(sn_protocol *protocol, const sn_event *event);
void sn_protocol_on_weights(sn_protocol *protocol, const sn_event *event);
void sn_protocol_sharing_gone(sn_protocol *protocol, sn_peer peer);      /* its connection has ended */
int64_t sn_protocol_sharing_tick(sn_protocol *protocol, int64_t now_us); /* returns when to call again */

/* -- report.c */

void sn_protocol_on_status(sn_protocol *protocol, const sn_event *event, int64_t now_us);
/* Fills in what sn_membership_host.describe asks for. */
void sn_protocol_describe(const sn_protocol *protocol, sn_announcement *own);

#endif
