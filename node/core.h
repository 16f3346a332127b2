/* The core: a node's protocol. It is handed messages, finished jobs and the time, and hands out messages and jobs; it does
 * no I/O of its own, reads no clock, waits for nothing. The daemon drives it with ZeroMQ and an engine, tests with an
 * in-memory transport. Belongs to the network thread. */
#ifndef SN_NODE_CORE_H
#define SN_NODE_CORE_H

#include "net/directory.h"
#include "node/figures.h"
#include "node/published.h"
#include "node/quota.h"
#include "node/session.h"

typedef struct sn_core sn_core;

typedef struct sn_core_setup {
    sn_transport *transport;     /* borrowed: the core only sends and dials */
    const sn_identity *identity; /* borrowed */
    const char *address;         /* where others reach us; copied */
    const char *name;            /* for people; copied */
    /* Borrowed: what is served. While `loading`, hp alone counts, and the blocks that are about to be served, if that is known
     * (else first == end): the node announces that it joins, and takes no sessions until sn_core_serve. */
    sn_span_facts span;
    bool loading;
    int auto_blocks;             /* the node chooses so many blocks itself; 0: they are given and stay */
    bool expects_others;         /* there are nodes to join: it hears them before it chooses */
    int64_t rebalance_us;        /* how often it thinks of moving, about; 0: never */
    int rebalance_gain;          /* per cent that the swarm's slowest block must gain by a move */
    int64_t move_us_max;         /* how long its sessions have to be moved elsewhere before it moves */
    sn_hash model;               /* sn_model_id */
    size_t kv_bytes_max;
    size_t sessions_max;
    int64_t idle_us_max;         /* a session without a sign of its client for so long is closed */
    int64_t room_us_max;         /* how long a step may wait for room in the cache */
    size_t tune_bytes_max;       /* for training: up to half holds what clients trained, the rest is to work in;
                                  * as much again may wait in batches. 0: none is done */
    bool share_all;              /* sessions share beginnings with those of other clients, too */
    size_t directory_max;        /* nodes remembered; 0: SN_DIRECTORY_MAX */
    size_t gossip_bytes_per_s;   /* spent on telling other nodes; 0: SN_GOSSIP_BYTES_PER_S */
    sn_quota_limits quota;       /* of each client; its priorities are copied */
    bool (*submit)(void *ctx, sn_job *job);      /* false: full, the job stays ours */
    sn_engine_figures (*read)(void *ctx);
    void *ctx;
} sn_core_setup;

sn_status sn_core_new(const sn_core_setup *setup, int64_t now_us, sn_core **out, sn_err *err) SN_MUST_USE;
void sn_core_free(sn_core **core); /* NULL-safe; after the engine, before the pool */

void sn_core_handle(sn_core *core, sn_event *event, int64_t now_us, int64_t unix_ms); /* consumes event->msg */
void sn_core_done(sn_core *core, sn_job *job, int64_t now_us);                         /* consumes the job */
/* Announces, expires, closes what lies idle. Returns when to call again at the latest (now_us clock). */
int64_t sn_core_tick(sn_core *core, int64_t now_us, int64_t unix_ms);

/* From now on the core tells the node at this address of itself, and asks whom it knows. */
void sn_core_join(sn_core *core, const char *address, const uint8_t curve_key[SN_KEY_SIZE]);

/* A node's place (core_seat.c). True when it has decided which blocks to load, [*first, *end), and they are not served yet;
 * *first == *end: as many as fit. Once. */
bool sn_core_wants_blocks(sn_core *core, int *first, int *end);
/* They are loaded: it serves them from now on. The facts are borrowed until sn_core_vacate. */
void sn_core_serve(sn_core *core, const sn_span_facts *span, size_t kv_bytes_max, int64_t now_us, int64_t unix_ms);
/* What its owner publishes, before sn_core_serve: the tunings are the core's from now on. */
void sn_core_publish(sn_core *core, sn_published *published);
/* True when it is about to move and nothing uses its blocks any more: free the engine, call sn_core_vacate, free the blocks;
 * then it wants others. */
bool sn_core_wants_to_move(const sn_core *core);
void sn_core_vacate(sn_core *core, int64_t now_us, int64_t unix_ms);

/* Leaving has two parts. From drain on no new session is taken, and the owners of those there are told to have them moved;
 * steps are served on. From leave on nothing is. Both announce it. */
void sn_core_drain(sn_core *core, int64_t unix_ms);
void sn_core_leave(sn_core *core, int64_t unix_ms);
size_t sn_core_sessions(const sn_core *core); /* open ones: none are left when a drain is over */
void sn_core_read(const sn_core *core, sn_figures *out); /* for who watches the node */
bool sn_core_busy(const sn_core *core); /* jobs are in the engine */

#endif
