/* The chain's state and the functions that its files share: one object in several files, one for each subject.
 *
 * chain.c      opening, closing, the limits of a call, what comes before and after a step
 * step.c       rows through all hops, in chunks of which several may be in flight
 * connect.c    which nodes may be used, planning a route, opening sessions along it
 * attach.c     KV pages of known prefixes, by their hashes
 * failover.c   other hops replace a group, brought to the same position by replay
 * replica.c    KV replicas and draining nodes
 * room.c       nodes that can hold the timeline
 * kv.c         the KV cache of all blocks, read and written
 * verifier.c   checks of steps, and what happens after a failed one
 *
 * Inside these files positions count from the first virtual token. A group is a row of remote hops that push to each
 * other, stepped and replaced as one; every other hop is a group of its own. Groups are named by their hops [i, j). */
#ifndef SN_CLIENT_CHAIN_CHAIN_PRIVATE_H
#define SN_CLIENT_CHAIN_CHAIN_PRIVATE_H

#include "client/chain/chain.h"

enum { SN_CHAIN_DRAINING_MAX = 64 };

/* How long to wait for nodes that serve missing blocks, within the time of the call. */
typedef enum sn_chain_patience {
    SN_CHAIN_WAIT_BRIEFLY, /* for what the session can do without */
    SN_CHAIN_WAIT_JOINED,  /* a few seconds, and until every joined address has answered */
    SN_CHAIN_WAIT_CALL,    /* as long as the call lasts */
} sn_chain_patience;

/* What is left of the limits of the present call. */
typedef struct sn_chain_call {
    int64_t deadline_us;
    int retries;  /* so many more nodes may fail in a row; -1: one too many has */
    bool is_part; /* of a call that can do without: nodes that cannot be reached or open no session count, too */
} sn_chain_call;

enum { SN_CHAIN_ROWS_MAX = 1024 }; /* rows of the longest chunk */

struct sn_chain {
    sn_chain_options options; /* as given, less what was borrowed while opening; link may be NULL */
    sn_hparams hp;
    sn_hash model;
    sn_chain_call call;
    int max_tokens;        /* of the timeline, with virtual tokens */
    int expected;          /* tokens that it will have at least: nodes that cannot hold them are not used */
    bool push;             /* options.routing.push, until nodes turn out not to reach each other */
    sn_hash *weights;      /* (n_blocks): what each block's weights must hash to, where it is known */
    const sn_hash **known; /* (n_blocks): into weights; NULL: not known yet */
    sn_hash *computed_by;  /* (n_blocks): sn_block_hash_with_kv_dtype of what computes the blocks now */
    bool *round_at;        /* (n_blocks + 1): boundaries at which hidden states are rounded to the wire type; they
                              never change, so that a replacement gives the same bits. NULL: not known yet */
    sn_span *span;         /* local blocks; NULL: none */
    sn_adapter *adapter;   /* of the local blocks; NULL: none */
    sn_kv_pool *pool;      /* of the local blocks; NULL: none */
    sn_hop hops[SN_HOPS_MAX];
    size_t n_hops;
    sn_row_source tokens, source; /* as given; with the virtual tokens before them. rows NULL: there is none */
    int length;                   /* positions of the timeline; hops may hold more, which the next step overwrites */
    sn_hasher *hasher;
    sn_peer_stats *peer_stats; /* measurements and bans of nodes */
    int reroute_rest;          /* intervals until then: more after each move that failed */
    int64_t reroute_us;        /* when to look for a faster route again; 0: before the first token */
    char request_id[SN_REQUEST_ID_MAX + 1];
    int64_t worked_us; /* when the work between steps was done last */
    bool audit_failed;
    bool unsettled;     /* a call was cancelled: steps may still be on their way (sn_chain_settle) */
    int chunk_rows_max; /* fewer after long chunks have failed: perhaps a link is too slow for them */
    struct {
        uint8_t node[SN_KEY_SIZE];
        int64_t until_us;
    } draining[SN_CHAIN_DRAINING_MAX]; /* nodes that drain and are avoided; the oldest entry is overwritten first */
    size_t n_draining;
    const sn_hop *being_replicated; /* while sessions for its replica are opened: its node is the source of KV pages,
                                       and is avoided */
    uint64_t failovers, reroutes, drains, replicas_promoted, replayed;
    void (*watcher)(void *ctx, int rows); /* NULL: none */
    void *watcher_ctx;
    sn_chain_observer observer;
    void *observer_ctx;
};

/* -- connect.c */

/* Bans the hop's node for a while, after a failure. */
void sn_chain_ban(sn_chain *chain, const sn_hop *hop);
/* Hashes the blocks that this machine's file holds, so that nodes with other weights under the same name are not used.
 */
sn_status sn_chain_learn_hashes(sn_chain *chain, const sn_model *model, sn_err *err) SN_MUST_USE;
/* Opens sessions along a route over blocks [first, end) into hops (capacity SN_HOPS_MAX). A node that fails to open is
 * banned and another route tried, as long as the call lasts. */
sn_status sn_chain_connect(sn_chain *chain, int first, int end, sn_chain_patience patience, sn_hop *hops, size_t *n,
                           sn_err *err) SN_MUST_USE;
/* All nodes as they are known now. Free with sn_candidates_fini; valid as long as the directory does not change. */
sn_status sn_chain_list_candidates(sn_chain *chain, sn_candidates *out, sn_err *err) SN_MUST_USE;
/* A route over blocks [first, end), from what is known now, or after waiting for nodes that serve them. */
sn_status sn_chain_plan_route(sn_chain *chain, int first, int end, sn_chain_patience patience, sn_route *out,
                              sn_err *err) SN_MUST_USE;
/* (n_blocks): the blocks at which no hop begins, as the chain may have more tokens than what a block before them
 * chooses; NULL: none. */
const bool *sn_chain_bound_blocks(const sn_chain *chain);
/* Cuts the legs of a route at every boundary where the chain must be cut. */
sn_status sn_chain_cut_route(const sn_chain *chain, sn_route *route, sn_err *err) SN_MUST_USE;
/* Measures round trips to nodes whose round trip is not known: to nodes among which there is a choice, or (`all`) to
 * every eligible one. Takes a fraction of a second. */
sn_status sn_chain_measure_rtt(sn_chain *chain, bool all, sn_err *err) SN_MUST_USE;
/* Updates peer statistics after a step of n rows through the group [i, j). */
void sn_chain_note_step(sn_chain *chain, const sn_hop *hops, size_t i, size_t j, int n);
/* How much of its inputs a remote hop keeps. */
void sn_chain_limit_inputs(const sn_chain *chain, sn_hop *hop);
void sn_chain_close_hops(sn_chain *chain, sn_hop *hops, size_t n);
/* The type in which hidden states cross the boundary before `block`. */
sn_dtype sn_chain_wire_at(const sn_chain *chain, int block);

/* -- chain.c */

/* A new call begins: its time and its retries are those of the options. */
void sn_chain_begin_call(sn_chain *chain);
/* A part of the call that is not necessary to it may take 1 / share of the time that is left, and has this many
 * retries. Returns the call as it was, which the caller restores. */
sn_chain_call sn_chain_begin_part(sn_chain *chain, int share, int retries);
/* Until when one node is waited for: three quarters of the time that is left where another one may be tried (of 30 s,
 * longer than a node lets a step wait for KV pages), else all of it. */
int64_t sn_chain_attempt_until_us(const sn_chain *chain);
/* Whether a request is to be repeated, because the node said when to try again (--client-steps) and that was waited
 * for; not where it is later than until_us. *status is that of the request, then of the pause. */
bool sn_chain_is_put_off(sn_chain *chain, int64_t until_us, sn_status *status, sn_err *err);
/* The same in milliseconds from now on, at least 1 and at most `most`; and the time that is left of the call. */
int sn_chain_attempt_ms(const sn_chain *chain, int most);
int sn_chain_left_ms(const sn_chain *chain, int most);
bool sn_chain_is_late(const sn_chain *chain); /* the call's time is spent */
/* Whether there is work between steps: windows under way end for it. */
bool sn_chain_has_work(const sn_chain *chain);
/* -- room.c */

/* The timeline goes on at `position` and will have so many tokens: nodes that cannot hold them are replaced, or
 * SN_REFUSED with SN_REASON_TOO_LONG. Costs nothing where all can. */
sn_status sn_chain_make_room(sn_chain *chain, int position, int tokens, sn_err *err) SN_MUST_USE;

/* -- verifier.c */

/* Has the verifier, if there is one, note a step that a remote group has done. */
sn_status sn_chain_verify_step(sn_chain *chain, const sn_hop *hops, size_t n_hops, const sn_step *step,
                               sn_err *err) SN_MUST_USE;
/* The timeline ends at `position` now, whatever the steps behind it were. */
void sn_chain_rewind_verifier(const sn_chain *chain, int position);
/* Makes the checks that are due (`all`: every check that is possible). After a failed one: as sn_chain_audit. */
sn_status sn_chain_run_audit(sn_chain *chain, bool all, sn_err *err) SN_MUST_USE;

/* -- replica.c */

/* sn_chain_poll within a call. */
void sn_chain_poll_hops(sn_chain *chain);
/* Whether the node is avoided because it drains, or is the source of the replica that is being opened. */
bool sn_chain_avoids(const sn_chain *chain, const uint8_t node[SN_KEY_SIZE]);
/* Continues at `position` with the replica of hop k of the group [i, j); only tokens that the replica lacks are
 * replayed. On failure the chain is as before, without the replica, or the group must be replaced. */
sn_status sn_chain_promote_replica(sn_chain *chain, size_t i, size_t j, size_t k, int position,
                                   sn_err *err) SN_MUST_USE;

/* Tells every session of the group [i, j), with the replica in the place of hop k (j: with none), to continue at
 * `position`. *from: the position up to which all of them hold the KV cache. */
sn_status sn_chain_resume_group(sn_chain *chain, size_t i, size_t j, size_t k, int position, int *from,
                                sn_err *err) SN_MUST_USE;

/* -- step.c */

/* Rows of a chunk for n rows over a route of so many hops, all of which take `taken` rows in a step. row_bytes: of a
 * row on the wire. */
int sn_chunk_rows(int n, size_t n_hops, int taken, size_t row_bytes);
/* The same for this chain; 0: the input is too short to cut, or the nodes take one step at a time. */
int sn_chain_chunk_rows(const sn_chain *chain, int n);
/* Runs a step of any length through the chain's hops, with as many failovers as the limits of the call allow; each
 * chunk of a long one has these limits. With inputs: a replay, through hops that are to become the chain's, of what
 * this hop at the same first block keeps (it may be hops[0]); the step has no rows, and what fails is noted, not
 * replaced. */
sn_status sn_chain_run(sn_chain *chain, sn_hop *hops, size_t n_hops, const sn_hop *inputs, const sn_step *step,
                       sn_err *err) SN_MUST_USE;

/* The same for windows of rows that the caller guesses, up to position `end` (sn_chain_step_ahead). */
sn_status sn_chain_run_ahead(sn_chain *chain, int position, int end, const sn_guesses *guesses,
                             sn_err *err) SN_MUST_USE;

/* -- failover.c */

/* Brings hops from `from` to `length` tokens with the inputs of a hop at the same first block, which may be hops[0]. */
sn_status sn_chain_replay(sn_chain *chain, sn_hop *hops, size_t n_hops, const sn_hop *inputs, int from, int length,
                          sn_err *err) SN_MUST_USE;
/* Replaces the group [*i, j) by other hops at `position`. *i becomes the first of these. Hops before the group are
 * replaced, too, where they are needed to compute the group's input. */
sn_status sn_chain_replace_group(sn_chain *chain, size_t *i, size_t j, int position, sn_err *err) SN_MUST_USE;
/* After a failure in the group that ends before hop j: bans the node of hop `failed`, and counts it unless the node is
 * gone: how many die, time alone bounds. failed == j: every node lives but the nodes do not reach each other; from then
 * on hidden states travel by the client. */
void sn_chain_note_failure(sn_chain *chain, const sn_hop *hops, size_t j, size_t failed);

/* What has failed at a group while a step tried to pass it; zeroed: nothing. */
typedef struct sn_losses {
    uint8_t rebuilt[SN_KEY_SIZE]; /* the node that last lost its session: the first time it is not banned */
    bool returned;                /* a lost connection to the node was made again */
} sn_losses;
/* After a failure at hop `failed` of the group that begins at hop *i, which *err tells: SN_OK when the step can try
 * again at *i, where other hops may be now. `from`: the last position that the group knew. */
sn_status sn_chain_fail_over(sn_chain *chain, size_t *i, int position, int from, size_t failed, sn_losses *losses,
                             sn_err *err) SN_MUST_USE;
/* Brings the sessions of the group that begins at hop i to `position`, or to the last one before it that is known,
 * when what they were sent is done. SN_RETRY: a node is silent, or busy for half of the call's time. */
sn_status sn_chain_settle_group(sn_chain *chain, size_t i, int position, sn_err *err) SN_MUST_USE;
/* After a call that was cancelled: brings the sessions at the nodes to `position`, as far as they answer; the others
 * are replaced by the next step. SN_STOP only. */
sn_status sn_chain_settle(sn_chain *chain, int position, sn_err *err) SN_MUST_USE;
/* Before a step, from time to time: moves the session when another route is clearly faster. A failed move leaves the
 * chain as it was; SN_STOP only. */
sn_status sn_chain_maybe_reroute(sn_chain *chain, sn_err *err) SN_MUST_USE;

#endif
