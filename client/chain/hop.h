/* A hop: consecutive blocks at one place, this process or one node, with the one session that runs there.
 *
 * sn_hop has a part that every hop has, and, by its tag is_local, either a local part (blocks of this process) or a
 * remote part (a node and the session there). Consecutive remote hops whose nodes push hidden states to each other form
 * a group: the functions named sn_hops_* take such a group as `hops` (n_hops of them), of which only the first one gets
 * its input from the client. For every group the client keeps the rows that entered it, so that other nodes can be
 * brought to the same position by replay: as they travelled, within a limit. Of the first block of a chain that knows
 * how to make them again, from tokens, none are kept.
 *
 * Used by the chain that owns the hops, on the chain's thread; audits read the hops. Every function that waits for a
 * node takes a timeout or a deadline. Errors of a node: SN_RETRY (this step failed; another node may do it), SN_REBUILD
 * (the session there is lost or in another state than expected), SN_REFUSED (the node refuses the request); SN_STOP:
 * out of memory, or the wait was cancelled. */
#ifndef SN_CLIENT_CHAIN_HOP_H
#define SN_CLIENT_CHAIN_HOP_H

#include "blocks/adapter.h"
#include "client/chain/kept_rows.h"
#include "client/net/link.h"
#include "client/routing/route.h"
#include "net/receipt.h"

struct sn_kv_replica; /* client/chain/replica.h */

/* What a hop has cost since its session was opened. */
typedef struct sn_hop_report {
    char node[80]; /* "local", or the node's name and address */
    int first_block, end_block;
    uint64_t steps, tokens;
    uint64_t
        network_us; /* from sending to reply, less queue_us and compute_us; of a group: at its first hop, for all */
    uint64_t queue_us, compute_us; /* as the nodes report them */
    bool replicated;               /* other nodes hold a copy of its KV cache (replica.h) */
} sn_hop_report;

/* Blocks of this process. */
typedef struct sn_hop_local {
    sn_span *span;             /* the chain's */
    const sn_adapter *adapter; /* the chain's; NULL: none */
    sn_kv_cache *kv;           /* the hop's own */
} sn_hop_local;

/* Makes the rows (n, n_embd) again that entered the chain's first block. */
typedef struct sn_row_source {
    sn_status (*rows)(void *ctx, int position, int n, float *out, sn_err *err); /* NULL: it cannot */
    void *ctx;
} sn_row_source;

/* A node's session. The timeline has one hash for each position that the session holds: hash [i] commits to the weights
 * and to the first i rows (net/timeline.h). Of a pushed hop the client knows only the hashes that the node's replies
 * state, and no inputs. */
typedef struct sn_hop_remote {
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    const char *request_id; /* the chain's name for its work in the nodes' logs; borrowed */
    sn_peer peer;           /* the connection over which the session was opened; 0: none yet */
    uint8_t session[SN_SESSION_ID_SIZE];
    uint64_t step;         /* number of the newest step that the session has done */
    uint64_t step_sent;    /* highest number that a STEP or RESUME to the session had: it may have done that one, too */
    int tokens_max;        /* that a session at the node can have; 0: not known */
    int step_tokens_max;   /* rows that the node takes in one step */
    int prefill_depth_max; /* steps that may wait at the node while it computes one; 0: none */
    int64_t pass_us;       /* of a token through its blocks, as the node announces it; 0: not known */
    int64_t answer_us;     /* the shortest time in which it answered, less what it computed: a round trip, or some */

    sn_hash model, weights; /* weights: SHA-256 of sn_hop_hash_with_kv of its blocks */
    sn_hash adapter_hash;   /* all zero: no adapter */
    int timeline_capacity;
    sn_hash *timeline;       /* [i], i <= length; all zero where it is not known */
    sn_kept_rows inputs;     /* from SN_ROWS_NONE after KV pages came from elsewhere; of a pushed hop there are none */
    size_t inputs_max;       /* bytes of them; 0: without a limit */
    size_t inputs_token_max; /* and no more for each token: what its keys and values take; 0: it has none */
    const sn_row_source *source; /* the chain's, of a hop at its first block that needs no inputs therefore; or NULL */

    bool wants_receipt;               /* every step asks for a receipt */
    sn_dtype kv_dtype;                /* in which the node keeps keys and values; a receipt must say so */
    uint8_t receipt[SN_RECEIPT_SIZE]; /* of the newest step, as it was signed */
    sn_receipt last_receipt;          /* the same receipt, read */

    struct sn_kv_replica *replica; /* owned; NULL: none */
    int64_t replica_wait_us;       /* between the tries to make a replica: longer after each that failed */
    int64_t replica_retry_us;      /* earliest time at which to look for nodes for a replica again */
    bool draining;                 /* the node has said that it drains */
    int64_t copy_until_us;         /* if it drains: a session with recurrent states is replayed elsewhere after that */

    uint64_t last_network_us, last_queue_us, last_compute_us; /* of the newest step; network as in the report */
} sn_hop_remote;

typedef struct sn_hop {
    int first, end; /* blocks [first, end) */
    bool is_local;  /* which member of the union holds */
    bool is_long;   /* sn_is_long of the chain's timeline */
    bool pushed;    /* remote, and its input comes from the node of the hop before it, not from the client */
    sn_dtype input_dtype, output_dtype; /* in which hidden states travel to the hop, and from it */
    int length; /* positions that the session holds; -1: not known, the session is good for nothing any more */
    sn_hop_report report;
    union {
        sn_hop_remote remote; /* first and largest: an initialiser zeroes all of the union */
        sn_hop_local local;
    };
} sn_hop;

/* One step: n rows of hidden states as positions [position, position + n). Both buffers are host memory, borrowed. */
typedef struct sn_step {
    int position, n, n_embd;
    const float *in; /* (n, n_embd) */
    float *out;      /* (n, n_embd); for remote hops it may be the same buffer as `in` */
} sn_step;

/* -- sessions */

/* What a block of an announced node computes: the hash of its weights and of the type of its keys and values. */
sn_hash sn_hop_hash_with_kv(const sn_announcement *node, int block);
/* Prepares a hop for a leg of a route. adapter_hash all zero: no adapter. The caller sets the fields of a local hop's
 * union member. No session is opened. */
sn_status sn_hop_init(sn_hop *hop, const sn_route_leg *leg, const sn_hash *model, const sn_hash *adapter_hash,
                      bool pushed, sn_err *err) SN_MUST_USE;
/* Sends a CLOSE without waiting for a reply, and frees what the hop owns. Accepts a zeroed hop. */
void sn_hop_fini(sn_hop *hop, sn_link *link);

/* Who may talk to a session, and to whom it talks. */
typedef struct sn_hop_peers {
    const uint8_t *predecessor; /* CURVE key of the node that will push hidden states into it; NULL: none */
    const uint8_t *kv_source;   /* CURVE key of the node that will put KV pages into it; NULL: none */
    const sn_blob *next;        /* sealed announcement of the node that it will push to; NULL: none */
} sn_hop_peers;
/* Asks the node of a remote hop to open its session; *wait is for the reply, which sn_hop_opened takes. */
sn_status sn_hop_open(sn_hop *hop, sn_link *link, int max_tokens, const sn_hop_peers *peers, int64_t until_us,
                      sn_wait *wait, sn_err *err) SN_MUST_USE;
sn_status sn_hop_opened(sn_hop *hop, const sn_msg *reply, sn_err *err) SN_MUST_USE;
/* Uploads the image of the hop's adapter to its node, which must hold the adapter before a session can use it. */
sn_status sn_hop_put_adapter(const sn_hop *hop, sn_link *link, const void *image, size_t bytes, int timeout_ms,
                             sn_err *err) SN_MUST_USE;

/* -- the timeline of a remote hop */

/* Drops positions from step->position on and records the step's input: rows (rounded to the wire type) and hashes. */
sn_status sn_hop_record(sn_hop *hop, const sn_step *step, sn_hasher *hasher, sn_err *err) SN_MUST_USE;
/* Rows of the step, which end where the hop's next step begins, become inputs of a hop that knows none: its KV cache
 * came from elsewhere and lacks them. Does nothing for other hops. */
sn_status sn_hop_keep_inputs(sn_hop *hop, const sn_step *step, sn_err *err) SN_MUST_USE;
bool sn_hops_know_hash(const sn_hop *hops, size_t n_hops, int position); /* each of them knows its own */
/* The last position up to `position` whose hash every hop of the group knows: of pushed hops only hashes at the ends of
 * steps are known. -1: there is none, or the inputs since then are not known. */
int sn_hops_known_from(const sn_hop *hops, size_t n_hops, int position);
bool sn_hop_can_replay(const sn_hop *hop, int from); /* the inputs are known from position `from` on */
/* The inputs (n, n_embd) of positions [position, position + n), as they travelled, of a hop that can replay them. */
sn_status sn_hop_inputs(const sn_hop *hop, int position, int n, int n_embd, float *out, sn_err *err) SN_MUST_USE;

/* Where a session that holds KV pages from elsewhere continues. */
typedef struct sn_resume_point {
    int position;
    uint64_t step;              /* the next step has this number + 1; above step_sent of every hop of the group */
    const uint8_t *predecessor; /* CURVE key of the node that will push into it; NULL: none */
    const sn_blob *next;        /* sealed announcement of the node that it will push to; NULL: as before */
    const sn_hash *timeline;    /* [0, position], of a hop whose blocks include this hop's; all zero where unknown */
} sn_resume_point;
/* The session continues at at->position with the KV pages that were put into it. *length: how many positions they hold;
 * it may be less. SN_REBUILD: the session's KV cache does not belong to at->timeline. */
sn_status sn_hop_resume(sn_hop *hop, sn_link *link, const sn_resume_point *at, int timeout_ms, int *length,
                        sn_err *err) SN_MUST_USE;
/* For a hop whose KV cache is a copy of the one of source_hop, or of a later part of its blocks: takes over what is
 * known of the first `position` tokens. Where both hops begin at the same block, the inputs move to `hop`. */
sn_status sn_hop_copy_timeline(sn_hop *hop, sn_hop *source_hop, int position, sn_err *err) SN_MUST_USE;
/* For a hop into which KV pages of `position` tokens with these hashes were put ([0]: of the beginning). inputs:
 * (position, n_embd), or NULL where they are not known. */
sn_status sn_hop_set_timeline(sn_hop *hop, int position, int n_embd, const sn_hash *token_timelines,
                              const float *inputs, sn_err *err) SN_MUST_USE;

/* The node made the pages up to positions[n - 1] of a known prefix the session's. timelines[k * stride]: the hash at
 * positions[k]. */
sn_status sn_hop_attached(sn_hop *hop, const int *positions, const sn_hash *timelines, size_t stride, size_t n,
                          sn_err *err) SN_MUST_USE;

/* -- steps */

/* Runs a step through local blocks. */
sn_status sn_hop_step_local(sn_hop *hop, const sn_step *step, sn_err *err) SN_MUST_USE;

size_t sn_hops_group_end(const sn_hop *hops, size_t n_hops, size_t i); /* j of the group that begins at hop i */

/* A step through a group goes in two halves, so that several can be in flight over one group, and replies of several
 * groups can be waited for together. */
typedef struct sn_step_in_flight {
    sn_step step;
    int64_t until_us; /* how long to wait for the reply; set like `step` before it is sent, the others by that */
    int64_t began_us;
    sn_wait wait;
} sn_step_in_flight;
/* Sends a step, after sn_hop_record on hops[0]. n_in_flight: steps that are in flight over this group already. With
 * any, the hashes on which pushed hops continue are not known yet, and the nodes do not check them. peers: memory for
 * n_hops, which step->wait borrows. */
sn_status sn_hops_send(sn_hop *hops, size_t n_hops, sn_link *link, size_t n_in_flight, sn_peer *peers,
                       sn_step_in_flight *step, sn_err *err) SN_MUST_USE;
/* Takes the reply to the oldest step in flight and decodes it into its step.out. It is accepted when its shape, route,
 * hashes and receipts are right and all its numbers are finite. *failed, where it is not: index of the hop that caused
 * it; n_hops when every node lives but the hidden states or the reply were lost between them. */
sn_status sn_hops_receive(sn_hop *hops, size_t n_hops, const sn_step_in_flight *in_flight, const sn_msg *result,
                          size_t *failed, sn_err *err) SN_MUST_USE;
/* After a failure of one of these two, or of the wait between them, which *err tells: who caused it, as above. *failed:
 * as of sn_hops_receive; SN_HOP_UNKNOWN without a reply. Returns the status of the failure. SN_REBUILD: the session is
 * lost, or its connection broke. */
enum { SN_HOP_UNKNOWN = SN_HOPS_MAX + 1 };
sn_status sn_hops_blame(const sn_hop *hops, size_t n_hops, sn_link *link, sn_step_in_flight *in_flight, size_t *failed,
                        sn_err *err) SN_MUST_USE;

/* Index of the first hop whose node does not answer within a second, or within a part of step_us, the time of a step;
 * n_hops: all do. */
size_t sn_hops_find_silent(const sn_hop *hops, size_t n_hops, sn_link *link, int64_t step_us);

/* Checks the receipts of a reply, each against its hop, and all of them against `sent` (SHA-256 of the tensor's bytes
 * as they were sent) and the reply, and keeps them in the hops. *failed: as above; n_hops when two nodes signed
 * different bytes for what went from one to the other. */
sn_status sn_hops_check_receipts(sn_hop *hops, size_t n_hops, const sn_hash *sent, const sn_msg *result,
                                 const sn_step *step, size_t *failed, sn_err *err) SN_MUST_USE;

#endif
