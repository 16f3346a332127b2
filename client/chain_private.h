/* What chain.c and chain_*.c share: one object in a few files, one for each subject.
 *
 * The chain steps from hop to hop. Consecutive nodes that push to each other form a group that is stepped, and
 * replaced, as one; otherwise every hop is a group of its own. */
#ifndef SN_CLIENT_CHAIN_PRIVATE_H
#define SN_CLIENT_CHAIN_PRIVATE_H

#include "blocks/tuning.h"
#include "client/chain.h"
#include "client/hop.h"
#include "client/route.h"

enum { SN_CHAIN_AVOIDED_MAX = 64 };

struct sn_chain {
    sn_chain_options options;
    sn_hparams hp;
    sn_hash model;
    sn_hash *block_hash;        /* of blocks whose weights our own file holds */
    const sn_hash **known_hash; /* n_blocks: into block_hash, or NULL */
    sn_hash *weights;           /* (n_blocks): of what computes them */
    bool *rounds;               /* (n_blocks + 1): hidden states are rounded to options.wire there. They stay where they were at
                                   the beginning, so that whoever takes whose place gives the same bits. NULL: not known yet */
    sn_span *span;              /* local blocks */
    sn_tuning *tuning;          /* of these; NULL: none */
    sn_kv_pool *pool;
    sn_hop_at hops[SN_HOPS_MAX];
    size_t n_hops;
    int length; /* of what the hops hold: virtual tokens are counted here */
    sn_hasher *hasher;
    float *rows[2]; /* hidden states between hops, SN_SPAN_ROWS_MAX rows each */
    sn_seen *seen; /* how nodes did, and who is banned */
    int64_t replan_us; /* when to look for a better way again */
    char flow[SN_FLOW_MAX + 1];
    bool misled; /* by a node, as the audit found in the last step */
    struct {
        uint8_t node[SN_KEY_SIZE];
        int64_t until_us;
    } avoided[SN_CHAIN_AVOIDED_MAX]; /* nodes that said they leave; the oldest is forgotten first */
    size_t n_avoided;
    const sn_hop_at *spared; /* while sessions are opened that get a copy of its past: its node is the source, and not used */
    uint64_t failovers, moves, taken_over, replayed;
    sn_chain_observer observer;
    void *observer_ctx;
};

/* -- chain_way.c: which nodes may be used, and sessions along a way over them */

void sn_chain_ban(sn_chain *chain, const sn_hop_at *hop); /* for a while */
/* Hashes the blocks that our own file holds, so that nodes with other weights under the same name are passed over. */
sn_status sn_chain_learn_hashes(sn_chain *chain, const sn_model *model, sn_err *err) SN_MUST_USE;
/* How long to wait for somebody who serves blocks: until `until_us`, if that is not too soon. */
int sn_chain_grace_ms(const sn_chain *chain, int64_t until_us);
/* Opens sessions along a way over blocks [first, end) into hops (room for SN_HOPS_MAX), waiting up to wait_ms for
 * somebody to serve them. Nodes that do not open are given up, *retries times in all. */
sn_status sn_chain_connect(sn_chain *chain, int first, int end, int wait_ms, int *retries, sn_hop_at *hops, size_t *n,
                           sn_err *err) SN_MUST_USE;
/* What is known of the nodes now. Free with sn_offers_fini; valid as long as the directory is not changed. */
sn_status sn_chain_survey(sn_chain *chain, sn_offers *out, sn_err *err) SN_MUST_USE;
/* A way over blocks [first, end), by what is known now, or after waiting up to wait_ms for somebody to serve them. */
sn_status sn_chain_plan(sn_chain *chain, int first, int end, int wait_ms, sn_route *out, sn_err *err) SN_MUST_USE;
/* Cuts the stops of a way further, where the chain must be cut. */
sn_status sn_chain_cut(const sn_chain *chain, sn_route *route, sn_err *err) SN_MUST_USE;
/* Asks those nodes among which there is a choice, or all that may be used, how far they are, unless that is known. Takes
 * a fraction of a second. */
sn_status sn_chain_measure(sn_chain *chain, bool all, sn_err *err) SN_MUST_USE;
/* After a step of n rows through the group of hops [i, j). */
void sn_chain_note_step(sn_chain *chain, const sn_hop_at *hops, size_t i, size_t j, int n);
void sn_chain_close_hops(sn_chain *chain, sn_hop_at *hops, size_t n);

/* The type in which hidden states go over the boundary before `block`. */
sn_dtype sn_chain_wire_at(const sn_chain *chain, int block);

/* -- chain.c: rows through one group */

size_t sn_chain_group_end(const sn_hop_at *hops, size_t n_hops, size_t i); /* of the group that begins at hop i */
/* n rows (SN_SPAN_ROWS_MAX at most) through the group of hops [i, j), once: no second try. *failed: as of sn_hops_step.
 */
sn_status sn_chain_step_group(sn_chain *chain, sn_hop_at *hops, size_t i, size_t j, int position, int n,
                              const float *in, float *out, size_t *failed, sn_err *err) SN_MUST_USE;
/* The last position up to `position` whose hash every hop of the group [i, j) knows: of pushed hops only those are known that the
 * answers told, at the ends of steps. -1: what went in since then is not known. */
int sn_chain_known_from(const sn_chain *chain, size_t i, size_t j, int position);
/* After a failure in the group that ends before hop j. failed == j: all of it lives, but the nodes do not reach each
 * other; from then on the client stands between them. */
void sn_chain_blame(sn_chain *chain, const sn_hop_at *hops, size_t j, size_t failed);

/* -- chain_replan.c */

/* Now and then, before a step: moves the session when another way is so much better that it comes back. What goes wrong
 * in trying leaves the chain as it was; SN_STOP only. */
sn_status sn_chain_reconsider(sn_chain *chain, sn_err *err) SN_MUST_USE;

/* -- chain_audit.c */

/* Makes the checks that are due (`all`: that could be made); after a lie as sn_chain_audit says. */
sn_status sn_chain_look_back(sn_chain *chain, bool all, sn_err *err) SN_MUST_USE;

/* -- chain_spare.c: copies of a past at other nodes */

bool sn_chain_avoids(const sn_chain *chain, const uint8_t node[SN_KEY_SIZE]); /* it leaves */
/* Goes on with the spare of hop k, of the group [i, j), at `position`, without a replay but of what it lacks. On failure the
 * chain is as before, without the spare, or the group has to be replaced. */
sn_status sn_chain_take_spare(sn_chain *chain, size_t i, size_t j, size_t k, int position, sn_err *err) SN_MUST_USE;

/* -- chain_ahead.c: long inputs in pieces that are under way at several nodes */

int sn_chain_piece_rows(const sn_chain *chain, int n); /* of n rows; 0: they are too few, or the nodes take one at a time */
/* n rows through all hops in pieces of `rows`; no second try. *done: how many came through, in order, before a failure. */
sn_status sn_chain_step_ahead(sn_chain *chain, int position, int n, int rows, const float *hidden, float *out, int *done,
                              sn_err *err) SN_MUST_USE;

/* -- chain_repair.c */

/* Brings hops from `from` to `length` tokens by what went into their first block. */
sn_status sn_chain_replay(sn_chain *chain, sn_hop_at *hops, size_t n_hops, const float *inputs, int from, int length,
                          sn_err *err) SN_MUST_USE;

/* Puts other hops in the place of the group [*i, j), brought to `position` tokens. *i becomes the first of them; hops before it are
 * replaced, too, where they are needed to know what went into the group. */
sn_status sn_chain_replace_group(sn_chain *chain, size_t *i, size_t j, int position, int64_t until_us, int *retries,
                                 sn_err *err) SN_MUST_USE;

#endif
