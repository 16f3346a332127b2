/* The protocol: everything that a node says and decides, without I/O.
 *
 * The central type, sn_protocol, is a state machine. Messages, finished jobs and the time go in; messages, jobs for the
 * engine and decisions about the blocks to serve come out. It opens no socket, reads no clock and waits for nothing, so
 * node.c drives it with ZeroMQ and an engine thread, and tests/sim drives thousands of them in virtual time.
 *
 * Its parts: sessions (session.h) and their steps, KV migration and receipts; adapters and training batches
 * (adapter_table.h); quotas (quota.h); which nodes there are (node/membership/membership.h); which blocks this node
 * serves (node/placement/placement.h). The last two know nothing of the protocol: each is given a table of functions by
 * which it asks for what it needs.
 *
 * Thread: all functions are called on the network thread. None blocks.
 * Ownership: what the setup points to is borrowed unless it says otherwise, and outlives the protocol. A session's KV
 * cache and the adapters belong to the device thread while the engine lives; sn_protocol_free frees what is left of
 * both, so it comes after the engine and before the KV pool and the span.
 * Errors: a request that cannot be served is answered with an ERROR whose status names the reaction of the client
 * (base/err.h). Peers can make no function fail; sn_protocol_new alone returns a status.
 * Times: now_us is the monotonic clock, unix_ms the wall clock.
 *
 * What the owner does, in its loop:
 *     sn_protocol_handle for each event, sn_protocol_job_done for each finished job, sn_protocol_tick when it is due;
 *     sn_protocol_wants_rebalance: frees the engine, calls sn_protocol_vacate, frees the blocks;
 *     sn_protocol_wants_blocks: loads them, then calls sn_protocol_publish_adapters and sn_protocol_serve. */
#ifndef SN_NODE_PROTOCOL_PROTOCOL_H
#define SN_NODE_PROTOCOL_PROTOCOL_H

#include "kvcache/swap.h"
#include "model/range_set.h"
#include "node/engine/adapter_store.h"
#include "node/membership/reach.h"
#include "node/placement/placement.h"
#include "node/protocol/adapter_table.h"
#include "node/protocol/quota.h"
#include "node/protocol/session.h"
#include "node/protocol/stats.h"

typedef struct sn_protocol sn_protocol;

enum {
    SN_OWNER_GONE_US = 10000000,    /* for which a session survives the connection of its owner */
    SN_UNUSED_SESSION_US = 2000000, /* for which a session without a step is safe from newcomers of a full node, unless
                                       its client has many */
    SN_TRAINING_BATCHES_MAX = 32,   /* in the engine, of all clients */
    SN_EXPERT_JOBS_MAX = 32,        /* in the engine, for other nodes */
    /* Of no session; each adapter is loaded or unloaded by one. */
    SN_PROTOCOL_OTHER_JOBS_MAX = SN_TRAINING_BATCHES_MAX + SN_EXPERT_JOBS_MAX + SN_ADAPTER_ENTRIES_MAX
};

/* What the node has of its model's files, for others. Both functions are called on the network thread and do not wait.
 * file: 1, 2, ... in the order of the manifest (sharing/hub/manifest.h); 0: the manifest itself, for `read` only. */
typedef struct sn_share {
    size_t bytes_per_s;      /* at most; 0: the node shares nothing */
    size_t near_bytes_per_s; /* at most to machines of its own network (net/near.h); 0: there is no other rate */
    bool tunnel;             /* what comes from this machine may be of strangers, whom a tunnel passes on */
    /* Adds the bytes of the file that are here to *out. */
    sn_status (*offer)(void *ctx, uint64_t file, sn_range_set *out, sn_err *err);
    /* Reads exactly these bytes; *size is the size of the whole file. SN_RETRY: they are read from the disk now, ask
     * again in some milliseconds. SN_REFUSED: they are not here. */
    sn_status (*read)(void *ctx, uint64_t file, uint64_t from, size_t bytes, void *out, uint64_t *size, sn_err *err);
    void *ctx;
} sn_share;

typedef struct sn_protocol_setup {
    sn_transport *transport; /* the protocol sends, dials and hangs up; its owner receives */
    const sn_identity *identity;
    const char *address; /* where other nodes and clients reach this node; copied */
    const char *name;    /* for people; copied */
    sn_hash model;       /* sn_model_id */
    /* The blocks served. While `loading`, only span.hp counts, and the range of the blocks that will be served if
     * it is known (first == end otherwise): the node announces that it joins, and opens no session until
     * sn_protocol_serve. */
    sn_span_info span;
    bool loading;
    sn_placement_policy placement;
    size_t directory_max;      /* nodes remembered; 0: SN_DIRECTORY_MAX */
    size_t gossip_bytes_per_s; /* limit of the bytes sent as announcements; 0: SN_GOSSIP_BYTES_PER_S */
    sn_kv_room kv;             /* of the KV pool */
    size_t sessions_max;
    size_t outgoing_max; /* connections that clients, and the node's own needs, make it dial: sn_protocol_outgoing_max;
                            0: the most */
    int64_t session_timeout_us; /* a session is closed when its owner sent nothing for so long */
    int64_t kv_timeout_us;      /* how long a step may wait for KV pages */
    bool prefix_cache_shared;   /* KV pages of equal prefixes are shared between clients, not only within one client */
    size_t tune_bytes_max;      /* memory for training: at most half for adapters, the rest to compute in; as much again
                                 * may lie in batches that wait. 0: the node does not train */
    sn_quota_limits quota;      /* of each client; its priorities are copied */
    sn_share share;             /* copied */
    /* How others reach this node (node/membership/reach.h); only over a transport that has a portal. */
    struct {
        const char *listen; /* the address at which the transport listens; copied */
        bool asks;
        int64_t relay_bytes_per_s; /* 0: it is no relay */
        sn_reach_host host;
    } reach;
    size_t n_joined; /* addresses given with --join, for the statistics */
    /* Hands a job to the engine, which returns it through sn_protocol_job_done. False: the engine is full, and the job
     * stays the protocol's. */
    bool (*submit)(void *ctx, sn_job *job);
    sn_engine_stats (*read_stats)(void *ctx);
    /* Gives a round back that sn_protocol_ask_experts took. */
    void (*answer_round)(void *ctx, sn_expert_round *round);
    /* Asks once more which key the node at a joined address has, for sn_protocol_join. NULL: keys stay. */
    void (*ask_key)(void *ctx, const char *address);
    void *ctx; /* of these functions */
} sn_protocol_setup;

/* How many of these a process may have that may open so many descriptors: each takes four of the quarter that
 * listener and portal leave. */
size_t sn_protocol_outgoing_max(size_t descriptors);

sn_status sn_protocol_new(const sn_protocol_setup *setup, int64_t now_us, sn_protocol **out, sn_err *err) SN_MUST_USE;
void sn_protocol_free(sn_protocol **protocol); /* accepts NULL */

/* A message, a connection that was lost or has ended, or a message that could not be decoded. Consumes event->msg. */
void sn_protocol_handle(sn_protocol *protocol, sn_event *event, int64_t now_us, int64_t unix_ms);
/* A job that the engine has finished. Consumes the job. */
void sn_protocol_job_done(sn_protocol *protocol, sn_job *job, int64_t now_us);
/* A round of the engine: asks other nodes, and gives it back by setup.answer_round. Takes the round. */
void sn_protocol_ask_experts(sn_protocol *protocol, sn_expert_round *round, int64_t now_us);
/* What is due: announcements, gossip, placement, KV migration, closing of idle sessions. Returns when to call again at
 * the latest. */
int64_t sn_protocol_tick(sn_protocol *protocol, int64_t now_us, int64_t unix_ms);

/* Adds a bootstrap peer (sn_membership_join). */
void sn_protocol_join(sn_protocol *protocol, const char *address, const uint8_t curve_key[SN_KEY_SIZE]);
/* As the functions of membership.h with these names. */
bool sn_protocol_wants_found(sn_protocol *protocol, int64_t now_us);
bool sn_protocol_join_found(sn_protocol *protocol, const char *address, const uint8_t curve_key[SN_KEY_SIZE],
                            int64_t now_us);

/* -- blocks */

/* True, once, when the node has decided which blocks to load: [*first, *end); equal: from first on as many as fit. */
bool sn_protocol_wants_blocks(sn_protocol *protocol, int *first, int *end);
/* The blocks are loaded and served from now on. *span is copied; its block hashes are borrowed until
 * sn_protocol_vacate. kv: of the KV pool. */
void sn_protocol_serve(sn_protocol *protocol, const sn_span_info *span, sn_kv_room kv, int64_t now_us, int64_t unix_ms);
/* The adapters that the node's owner publishes, before sn_protocol_serve: the protocol takes them out of the store. */
void sn_protocol_publish_adapters(sn_protocol *protocol, sn_adapter_store *store);
/* True when the node moves to other blocks, and no session and no job uses the present ones any more. */
bool sn_protocol_wants_rebalance(const sn_protocol *protocol);
/* A device is lost: of the blocks served, only [first, end) work (equal: none). Announces that. */
void sn_protocol_narrow(sn_protocol *protocol, int first, int end, int64_t now_us, int64_t unix_ms);
/* The device works again: the sessions are asked to migrate, and then, as for a rebalance, the same blocks are loaded
 * once more. */
void sn_protocol_reload(sn_protocol *protocol, int64_t now_us, int64_t unix_ms);
/* The blocks were not loaded: announces that none is served, or, with `again`, that they are loaded once more. */
void sn_protocol_not_loaded(sn_protocol *protocol, bool again, int64_t now_us, int64_t unix_ms);
/* The engine is freed, the span about to be: frees the adapters that lie on it. */
void sn_protocol_vacate(sn_protocol *protocol, int64_t now_us, int64_t unix_ms);

/* From now on the node shares the files of this manifest (its id), and announces that. NULL: nothing any more. */
void sn_protocol_share(sn_protocol *protocol, const sn_hash *manifest, int64_t now_us, int64_t unix_ms);

/* -- leaving, in two stages: both are announced */

/* From now on no session is opened, and the owners of the open sessions are asked (DRAINING) to migrate them; steps are
 * still served. */
void sn_protocol_drain(sn_protocol *protocol, int64_t unix_ms);
/* From now on no step is served either. */
void sn_protocol_leave(sn_protocol *protocol, int64_t unix_ms);
size_t sn_protocol_bootstrap_answered(const sn_protocol *protocol); /* bootstrap peers that answered */
size_t sn_protocol_session_count(const sn_protocol *protocol);      /* open sessions: 0 when a drain is complete */
bool sn_protocol_busy(const sn_protocol *protocol);                 /* jobs are in the engine */

/* -- observation */

void sn_protocol_read_stats(const sn_protocol *protocol, sn_node_stats *out);
const char *sn_protocol_address(const sn_protocol *protocol);           /* that it announces */
const sn_directory *sn_protocol_directory(const sn_protocol *protocol); /* announcements of the nodes known */

#endif
