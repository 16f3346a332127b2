/* The chain: all blocks of a model as one session, wherever the blocks are. Hidden states enter before the first block
 * and leave after the last one; the caller sees neither the nodes nor their failures. generate/, tune/, audit/ and the
 * program use it.
 *
 * sn_chain is one timeline of tokens, used by one thread. It owns the sessions at the nodes, and the loaded blocks of
 * this machine. It borrows its link, its device, and what the options say is borrowed, until it is closed.
 *
 * Positions count from 0 for the caller. An adapter's virtual tokens come before position 0; they fill the KV cache but
 * are not counted.
 *
 * Errors: SN_RETRY: no node can take over for a failed one, or serves the blocks; the message names them, and another
 * try may succeed. SN_REBUILD: the timeline was shortened (see sn_chain_step); the caller continues from its end.
 * SN_REFUSED: the arguments or the model do not allow it. SN_STOP: out of memory, a failed device, or a call that
 * was cancelled (sn_link_set_cancel, sn_device.cancel): the timeline ends where the call began, and the next call goes
 * on from there with the same nodes. */
#ifndef SN_CLIENT_CHAIN_CHAIN_H
#define SN_CLIENT_CHAIN_CHAIN_H

#include "client/chain/verifier.h"
#include "model/base_weights.h"

typedef struct sn_chain sn_chain;

/* -- options */

/* An adapter that goes with the frozen blocks (client/tune/loaded_adapter.h makes it from an adapter's folder).
 * Borrowed memory. */
typedef struct sn_chain_adapter {
    sn_hash hash;      /* names the adapter of the blocks; all zero: none */
    const void *image; /* uploaded to nodes that do not hold the adapter; NULL: only nodes that hold it are used, and no
                          local blocks */
    size_t bytes;      /* of the image */
    const float *prompt; /* (n_prompt, n_embd): virtual tokens before every timeline */
    int n_prompt;
    const sn_base_weights *base; /* blocks with other weights than these are not used; NULL: any are */
} sn_chain_adapter;

typedef struct sn_chain_limits {
    int timeout_ms;       /* for one call: opening, or a step or a chunk of a long one through all blocks, with every
                             retry, connection and replay that it needs; above 0. Local computation does not count */
    int max_retries;      /* so many nodes in a row may fail a step although they are there: by a wrong answer or none.
                             Nodes that are gone, or open no session, do not count: the call's time bounds them. 0: the
                             first one that fails ends the call */
    int prefill_depth;    /* steps of a long prompt that may wait at a node, as far as the node allows; 0: none */
    size_t replay_memory; /* bytes of hidden states that each hop but the first keeps, so that after a failure the
                             blocks before it are not computed again; 0: all */
} sn_chain_limits;

/* Blocks that this machine computes. */
typedef struct sn_chain_local {
    sn_device *device;
    int first, end;   /* blocks [first, end); equal: none */
    size_t kv_memory; /* bytes; 0: what the longest timeline needs */
} sn_chain_local;

typedef struct sn_chain_kv {
    sn_kv_dtype dtype; /* in which keys and values are kept, here and at every node that is used */
    bool replica;      /* other nodes hold a copy of each hop's KV cache, so that a node's death costs no replay */
} sn_chain_kv;

typedef struct sn_chain_routing {
    bool push;            /* nodes push hidden states to the next node instead of back to the client */
    bool throughput;      /* routes are drawn at random, so that much work spreads; else the least latency counts */
    uint64_t seed;        /* of random draws, and of the choice among equal routes */
    bool measure;         /* measure round trips to nodes before choosing among them */
    int reroute_every_ms; /* how often to look for a faster route while single tokens are decoded; 0: never */
    sn_node_filter node_filter; /* --only and --deny */
    sn_slow_nodes *slow_nodes;  /* borrowed; gets what this chain measures. NULL: none is kept */
    bool (*avoid)(void *ctx, const uint8_t node[SN_KEY_SIZE]); /* true: the node is not used; NULL: none is avoided */
    /* The node failed, and the chain does not use it for a while; NULL: failures are not told. */
    void (*note_failure)(void *ctx, const uint8_t node[SN_KEY_SIZE]);
    void *avoid_ctx;    /* of both */
    bool every_block;   /* cut the route at every block, so that the observer sees the input of each */
    const bool *cut_at; /* (n_blocks): cut the route before these blocks; NULL: nowhere. Borrowed */
} sn_chain_routing;

/* How hidden states travel to nodes, from nodes and between them. */
typedef struct sn_chain_wire {
    sn_dtype dtype;       /* SN_F32, or a smaller type to which they are rounded */
    const bool *round_at; /* (n_blocks + 1): boundaries at which they are rounded, by local blocks too; the rows that
                             enter the first block are then rounded already. NULL: where the remote hops of the first
                             route begin and end. Every later route is cut at these boundaries, so that other nodes
                             give the same bits. Borrowed during sn_chain_open */
} sn_chain_wire;

typedef struct sn_chain_verification {
    bool receipts;               /* nodes sign every step; the newest receipts are in the hops (net/receipt.h) */
    sn_verifier verifier;        /* zeroed: none. With one, receipts are always asked for */
    const sn_chain *hashes_from; /* take the hashes of the file's blocks from this chain; NULL: compute them. Borrowed
                                    during sn_chain_open */
} sn_chain_verification;

typedef struct sn_chain_options {
    sn_link *link;          /* NULL: every block is local */
    int first, end;         /* blocks [first, end) of the model; equal: all */
    int max_tokens;         /* longest timeline; 0: the model's context, less virtual tokens */
    bool plan_only;         /* open no sessions and load nothing: for sn_route_explain */
    const char *request_id; /* names the work in the nodes' logs: letters, digits, . : - _ +; NULL: drawn at random.
                               Borrowed during sn_chain_open */
    sn_chain_limits limits;
    sn_chain_local local;
    sn_chain_kv kv;
    sn_chain_routing routing;
    sn_chain_wire wire;
    sn_chain_verification verification;
    sn_chain_adapter adapter; /* zeroed: none */
    struct sn_known_prefixes
        *prefixes; /* what is known of earlier sessions (known_prefixes.h); borrowed, NULL: nothing */
} sn_chain_options;

/* Limits of 30 s, 16 retries, 64 MiB for replays and the greatest prefill depth; everything else zeroed: nothing is
 * local, pushed, rounded, replicated or verified. Every set of options begins with this. */
sn_chain_options sn_chain_options_default(void);

/* -- the session */

/* Finds a route over the live nodes and opens a session at each. SN_RETRY names the blocks that no node serves. */
sn_status sn_chain_open(const sn_model *model, const sn_chain_options *options, sn_chain **out,
                        sn_err *err) SN_MUST_USE;
void sn_chain_close(sn_chain **chain); /* accepts NULL; closes the sessions at the nodes without waiting */

/* Runs hidden (n, n_embd), as positions [position, position + n), through all blocks into out (n, n_embd). Both are
 * host memory and may be the same buffer. position == length continues the timeline; position < length rewinds it
 * first. Any n >= 1: long inputs go in chunks. A failed node is replaced and its part of the timeline replayed;
 * SN_RETRY when no node can take over. After a failure the timeline ends at `position`.
 *
 * With a verifier also SN_REBUILD: a check showed that a node answered an earlier step or this one wrongly. Then
 * sn_chain_audit_failed is true, the timeline ends at the first position whose results may be wrong, other nodes have
 * replaced the banned one, and the caller runs the steps from there again. */
sn_status sn_chain_step(sn_chain *chain, int position, int n, const float *hidden, float *out, sn_err *err) SN_MUST_USE;
/* Windows of rows of which only the first row is sure: the others are guessed, from what is guessed to come before
 * them. Several may be under way. */
typedef struct sn_guess {
    int position;     /* of the window's first row */
    int n;            /* in: rows that there is room for; out: rows of the window, 0: none now */
    float *rows;      /* out (n, n_embd) */
    size_t n_windows; /* that are under way: 0 where the first row is sure, ... */
    int n_ahead;      /* ... and their rows */
} sn_guess;

typedef enum sn_guesses_are {
    SN_GUESSES_RIGHT, /* what follows `end` was guessed right, or not at all */
    SN_GUESSES_WRONG, /* the timeline ends at `end`: what is under way behind it is given up */
    SN_GUESSES_DONE,  /* the same, and no window follows */
} sn_guesses_are;

/* A window that has left the last block: all that was guessed before it was right. */
typedef struct sn_window {
    int position, n;
    const float *out;    /* (n, n_embd) */
    int64_t lap_us;      /* time on its way through all blocks, less the time for which it waited at nodes */
    int64_t stage_us;    /* the longest time that one node, or this program, computed it, */
    int64_t compute_us;  /* and that of all of them */
    int64_t behind_us;   /* since the window before it came */
    double line_share;   /* of the time that rows take on lines, the part on this program's line */
    bool guessed;        /* it was sent while others were under way */
    int end;             /* in: position + n; out: where the right rows end, not before position + 1 */
    sn_guesses_are next; /* out */
} sn_window;

/* Both are called on the chain's thread within sn_chain_step_ahead, and may use nothing of the chain but
 * sn_chain_rewind and what is const. A status other than SN_OK ends it. */
typedef struct sn_guesses {
    /* Asked again for a position, rows may be other ones: those sent before are given up. */
    sn_status (*guess)(void *ctx, sn_guess *guess, sn_err *err);
    sn_status (*take)(void *ctx, sn_window *window, sn_err *err);
    void *ctx;
    int rows_max; /* of a window */
} sn_guesses;
/* Runs windows from `position`, at most the length, on through all blocks until one is the last, `guess` gives no sure
 * row, or other work of the chain is due: then the caller calls it again. The timeline ends where the newest window
 * that was taken says, also after a failure, which is as of sn_chain_step. */
sn_status sn_chain_step_ahead(sn_chain *chain, int position, const sn_guesses *guesses, sn_err *err) SN_MUST_USE;
/* Before steps from `position` on that will make the timeline so many tokens long: SN_REFUSED with SN_REASON_TOO_LONG
 * and the numbers if no node of some block has KV memory for them; other nodes take the places of those that have not.
 * A step looks for its own tokens only. */
sn_status sn_chain_expect(sn_chain *chain, int position, int tokens, sn_err *err) SN_MUST_USE;
int sn_chain_length(const sn_chain *chain);          /* tokens in the timeline */
void sn_chain_rewind(sn_chain *chain, int position); /* the timeline ends at `position`, if it is longer */

/* From now on the chain asks for the rows that entered its first block, where it needs them again, instead of keeping
 * them; positions count as in sn_chain_step. Before the first step. What it points to is borrowed until the chain is
 * closed. With a verifier it keeps them all the same. NULL: it has to keep them, as without this call. */
void sn_chain_set_source(sn_chain *chain, const sn_row_source *source);

/* Before a prompt of n tokens runs, of which the timeline has a beginning: nodes that still have KV pages of more of it
 * attach them, and the timeline then ends there, before the prompt's last token (or a little earlier than before, where
 * nodes have less than they had). Does nothing without options.prefixes and a source, with local blocks, or with a
 * verifier. scope: only prefixes noted under the same text are found; NULL: none. SN_STOP only. */
sn_status sn_chain_attach_prefix(sn_chain *chain, const int32_t *tokens, size_t n, const char *scope,
                                 sn_err *err) SN_MUST_USE;
/* Remembers the timeline in options.prefixes; tokens: all that the chain has computed. */
void sn_chain_note_prefix(sn_chain *chain, const int32_t *tokens, const char *scope);

/* Work between steps: reads messages, and moves the KV caches of draining nodes to others. Every step begins with it. A
 * caller that pauses, for example for input from a user, calls it from time to time: otherwise a node that drains
 * meanwhile takes its KV cache with it. */
void sn_chain_poll(sn_chain *chain);

/* Checks every step that is not checked yet: SN_REBUILD and other errors as sn_chain_step. Without a verifier: SN_OK.
 */
sn_status sn_chain_audit(sn_chain *chain, sn_err *err) SN_MUST_USE;
bool sn_chain_audit_failed(const sn_chain *chain); /* by the newest sn_chain_step or sn_chain_audit */
/* Whether steps of the timeline stay unchecked although there were nodes to check them: these failed. */
bool sn_chain_audit_is_incomplete(const sn_chain *chain);

/* Calls `watcher` during a long step, with the rows of it that have passed all hops; NULL ends that. */
void sn_chain_watch(sn_chain *chain, void (*watcher)(void *ctx, int rows), void *ctx);
/* Called with the hidden states (n, n_embd) that enter `block`, at each boundary between hops, the first and the last
 * (block == n_blocks) included. A replacement of a hop may show the same positions again. */
typedef void (*sn_chain_observer)(void *ctx, int block, int position, int n, const float *hidden);
void sn_chain_observe(sn_chain *chain, sn_chain_observer observer, void *ctx); /* NULL: none */

/* -- the KV cache of all blocks, read from the hops and written to the hops of another chain
 *
 * Layout: float32: of each block the keys, then the values, then its index keys if it has some, of positions
 * [position, position + n). Here positions count from the first virtual token. */

sn_status sn_chain_get_kv(sn_chain *chain, int position, int n, float *out, sn_err *err) SN_MUST_USE;
/* For a chain without steps; n <= SN_KV_TRANSFER_TOKENS_MAX. token_timelines[i] commits to the first i tokens; [0] to
 * the beginning. */
sn_status sn_chain_put_kv(sn_chain *chain, int position, int n, const float *in, const sn_hash *token_timelines,
                          sn_err *err) SN_MUST_USE;
/* After the last sn_chain_put_kv: the timeline has `position` tokens. inputs (position, n_embd): what entered the first
 * block, for replays; NULL: what the chain's source gives, if it has one. */
sn_status sn_chain_resume(sn_chain *chain, int position, const sn_hash *token_timelines, const float *inputs,
                          sn_err *err) SN_MUST_USE;

/* -- what the chain is and has done */

const char *sn_chain_request_id(const sn_chain *chain);
sn_kv_dtype sn_chain_kv_dtype(const sn_chain *chain); /* in which keys and values are kept, here and at every node */
const sn_chain_adapter *sn_chain_get_adapter(const sn_chain *chain);
bool sn_chain_is_long(const sn_chain *chain); /* sn_is_long of its timeline */
/* (n_blocks): hashes of what computes each block (sn_block_hash_with_kv_dtype) */
const sn_hash *sn_chain_weights(const sn_chain *chain);

/* Copies the reports of the first `capacity` hops; returns how many hops there are. */
size_t sn_chain_hops(const sn_chain *chain, sn_hop_report *out, size_t capacity);
/* The hops of the present route, first block first. Valid until the next call that is not const. */
const sn_hop *sn_chain_route_hops(const sn_chain *chain, size_t *n);

uint64_t sn_chain_failovers(const sn_chain *chain);         /* groups of hops that were replaced after a failure */
uint64_t sn_chain_replicas_promoted(const sn_chain *chain); /* of those: by a KV replica, without a replay */
uint64_t sn_chain_replayed(const sn_chain *chain);          /* tokens that nodes computed again */
uint64_t sn_chain_reroutes(const sn_chain *chain);          /* moves to a faster route; no failovers */
uint64_t sn_chain_drains(const sn_chain *chain);            /* of the failovers: moves away from a node that drains */

/* Waits until the replica of hop k holds its whole KV cache. SN_RETRY: it does not within timeout_ms. */
sn_status sn_chain_await_replica(sn_chain *chain, size_t k, int timeout_ms, sn_err *err) SN_MUST_USE;

/* Options of a second chain over blocks [first, end) that gives the same bits for the same rows: default limits, and
 * this chain's KV type, wire type with its boundaries, block hashes, and adapter without the virtual tokens, which the
 * rows include. Borrows from the chain. */
sn_chain_options sn_chain_twin_options(const sn_chain *chain, int first, int end);

/* -- a route explanation: the route that a session would take now, its cost hop by hop, and why every other node is not
 * on it. For `swarm route`; no session is opened. */

typedef struct sn_route_explanation {
    sn_candidates candidates;
    sn_route route;           /* over these candidates */
    sn_err no_route;          /* status SN_OK: there is a route; else why there is none */
    bool kv_full;             /* the route leads over nodes without free KV memory, because no other route exists */
    int64_t *cost_through_ns; /* (candidates.n): cost of a token on the fastest route over this candidate; INT64_MAX: no
                                 route leads over it */
    int64_t *ban_left_us;     /* (candidates.n): for how much longer the node is banned; 0: it is not */
} sn_route_explanation;

/* `chain`: opened with plan_only. Waits for announcements for at most the chain's timeout, and measures round trips.
 * The result borrows from the chain's link: valid until the chain or the link is used again. Free it with
 * sn_route_explanation_fini, after a failure too. */
sn_status sn_route_explain(sn_chain *chain, sn_route_explanation *out, sn_err *err) SN_MUST_USE;
void sn_route_explanation_fini(sn_route_explanation *explanation);

#endif
