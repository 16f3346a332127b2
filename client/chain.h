/* The chain: all blocks of a model, wherever they are, as one session. Hidden states go in before the first block and come
 * out behind the last; that they travel over nodes, that a node died on the way and another took its place, does not show.
 * One timeline of tokens, one thread. */
#ifndef SN_CLIENT_CHAIN_H
#define SN_CLIENT_CHAIN_H

#include "blocks/span.h"
#include "client/link.h"
#include "client/offer.h"

typedef struct sn_chain sn_chain;
struct sn_audit; /* client/audit.h */

/* What was trained to go with the frozen blocks (client/tune/trained.h makes it of an adapter's folder). Borrowed memory. */
typedef struct sn_chain_tuned {
    sn_hash hash;        /* names the tuning of the blocks; all zero: nothing is added to them */
    const void *image;   /* its bytes, which go to nodes that do not hold it; NULL: only nodes that do are used, and no local blocks */
    size_t bytes;
    const float *prompt; /* (n_prompt, n_embd): virtual tokens, which stand before every timeline and are not counted in it */
    int n_prompt;
} sn_chain_tuned;

typedef struct sn_chain_options {
    sn_link *link;            /* NULL: every block is local */
    sn_device *device;        /* for local blocks */
    int first, end;           /* only these blocks; equal: all of the model's */
    int local_first, local_end; /* blocks held here; equal: none */
    sn_kv_dtype kv_dtype;     /* what keys and values are kept as, here and at every node that is used */
    size_t kv_memory;         /* for local blocks; 0: what the longest timeline needs */
    int max_tokens;           /* longest timeline; 0: the model's context */
    int timeout_ms;           /* for one step at one node; 0: 30,000 */
    int max_retries;          /* failed nodes in a row before giving up; 0: 3, negative: none */
    bool push;                /* nodes hand hidden states on to each other instead of back to the client */
    bool replica;             /* each hop's past is also kept at other nodes, so that a sudden death costs no replay */
    int steps_ahead;          /* steps of a long input that may wait at a node; 0: as many as it takes; negative: none */
    bool receipts;            /* nodes sign every step; the newest receipts are in the hops (net/receipt.h) */
    const char *flow;         /* what nodes call this work in their logs, a plain word; NULL: one drawn at random */
    bool plan_only;           /* opens no sessions and loads nothing: for client/prospect.h */
    bool every_block;         /* cut the route at every block, so that every hidden state comes by here */
    const bool *cut_at;       /* (n_blocks), or NULL: the same at the blocks that are set; borrowed */
    sn_dtype wire;            /* as what hidden states travel to and from nodes and between them: F32, or rounded */
    const bool *round_at;     /* (n_blocks + 1), or NULL: where they are rounded, whoever computes what lies beside; what goes
                                 into `first` is then rounded already. NULL: where the first way over nodes begins and ends.
                                 There the route is cut from then on. Borrowed while opening */
    struct sn_audit *audit;   /* is told every step of a node, and may find that one lied; borrowed; NULL: none */
    sn_chain_tuned tuned;     /* zeroed: nothing */
    sn_pick pick;             /* which nodes may be used */
    bool throughput;          /* routes for much work at once: drawn, so that it spreads; else of the least latency */
    uint64_t route_seed;      /* for what is drawn, and among equals */
    bool measure;             /* ask nodes how far they are before choosing among them */
    int replan_ms;            /* how often a better way is looked for while tokens come one by one; 0: never */
    bool (*avoid)(void *ctx, const uint8_t node[SN_KEY_SIZE]); /* true: this node must not be used; NULL: any may */
    void *avoid_ctx;
    const sn_chain *like;     /* block hashes of the file are taken over from this one, instead of read again; NULL: read */
} sn_chain_options;

/* Finds a route over the live nodes and opens a session at each. SN_RETRY naming the blocks that nobody serves. */
sn_status sn_chain_open(const sn_model *model, const sn_chain_options *options, sn_chain **out, sn_err *err) SN_MUST_USE;
void sn_chain_close(sn_chain **chain); /* NULL-safe; tells the nodes */

/* Runs hidden (n, n_embd), host, as positions [position, position + n) through all blocks into out (n, n_embd), host,
 * which may be the same buffer. position == length continues, position < length rewinds first; any n >= 1 (long inputs go
 * in chunks). A failing node is replaced and its part replayed; SN_RETRY when nobody can take its place. After a failure the
 * timeline ends at `position`. */
sn_status sn_chain_step(sn_chain *chain, int position, int n, const float *hidden, float *out, sn_err *err) SN_MUST_USE;
int sn_chain_length(const sn_chain *chain);
void sn_chain_rewind(sn_chain *chain, int position); /* forgets what lies behind: the timeline ends there, at the latest */

/* With an audit, sn_chain_step also fails with SN_REBUILD when a node was found to have lied about an earlier step or this one:
 * sn_chain_misled is then true, the timeline ends at the first position whose results may be wrong, the liar's place has
 * been taken by others, and the caller feeds again from there. This checks all that is not checked yet, with the same
 * outcomes; without an audit it does nothing. */
sn_status sn_chain_audit(sn_chain *chain, sn_err *err) SN_MUST_USE;
bool sn_chain_misled(const sn_chain *chain);

/* Called with the hidden states (n, n_embd) that enter `block`, at each boundary between hops, the first and the last
 * (block == n_blocks) included. */
typedef void (*sn_chain_observer)(void *ctx, int block, int position, int n, const float *hidden);
void sn_chain_observe(sn_chain *chain, sn_chain_observer observer, void *ctx);

/* What each hop of the present route has cost since it was opened. */
typedef struct sn_hop_report {
    char node[80];            /* "local", or the node's name and address */
    int first_block, end_block;
    uint64_t steps, tokens;
    uint64_t network_us;      /* from sending to answer, less queue and compute of the node (of a pushed row of nodes: at the
                                 first, for all of them) */
    uint64_t queue_us, compute_us;
    bool copied;              /* others get a copy of its past (sn_chain_options.replica, or its node leaves) */
} sn_hop_report;
size_t sn_chain_hops(const sn_chain *chain, sn_hop_report *out, size_t room); /* returns how many there are */
uint64_t sn_chain_moves(const sn_chain *chain); /* to a better way, with nobody failing */
const char *sn_chain_flow(const sn_chain *chain); /* by which the nodes' logs can be followed */
const sn_chain_tuned *sn_chain_tuned_by(const sn_chain *chain);
/* The past of all blocks, gathered from the hops and put into others (chain_past.c); virtual tokens are its first positions: float32 (n_blocks, 2, n, n_kv_heads * head_dim),
 * of each block the keys, then the values, of positions [position, position + n). */
sn_status sn_chain_get_past(sn_chain *chain, int position, int n, float *out, sn_err *err) SN_MUST_USE;
/* Of a chain that has not begun; n <= SN_PAST_TOKENS_MAX. marks[i]: commits to what the first i tokens were ([0]: to none). */
sn_status sn_chain_put_past(sn_chain *chain, int position, int n, const float *in, const sn_hash *marks,
                            sn_err *err) SN_MUST_USE;
/* All is put: the timeline has `position` tokens. inputs (position, n_embd): what went into the first block. */
sn_status sn_chain_go_on(sn_chain *chain, int position, const sn_hash *marks, const float *inputs, sn_err *err) SN_MUST_USE;
/* Hashes of the weights that compute here, (n_blocks). */
const sn_hash *sn_chain_weights(const sn_chain *chain);

uint64_t sn_chain_failovers(const sn_chain *chain);  /* nodes replaced, in whatever way */
uint64_t sn_chain_taken_over(const sn_chain *chain); /* of those: by one that had a copy of the past */
uint64_t sn_chain_replayed(const sn_chain *chain);   /* tokens that nodes were fed again */

/* Does what is to be done between steps: hears which nodes leave, has their pasts moved. Each step begins with it; who pauses
 * for long (for somebody to type) calls it now and then, or a node that leaves meanwhile takes the past with it. */
void sn_chain_attend(sn_chain *chain);
/* Waits until the copy of the k-th hop's past holds all of it (sn_chain_options.replica): SN_RETRY when it does not in time. */
sn_status sn_chain_await_copy(sn_chain *chain, size_t k, int timeout_ms, sn_err *err) SN_MUST_USE;

#endif
