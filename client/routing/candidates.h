/* Candidates: every known node with the costs that route planning uses, or with the reason why it is not eligible.
 *
 * Central type: sn_candidates, a list made from the announcements of the directory, corrected by this client's own
 * measurements (peer_stats.h), with one further candidate for the client's local blocks. The chain makes it, and plans
 * a route over it (route.h), on its thread. Costs are whole nanoseconds, so that the same knowledge gives the same
 * route on every machine. No network and no clock: the time is an argument. The list borrows announcements from the
 * directory: it is valid as long as the directory does not change. SN_STOP: out of memory; no other error. */
#ifndef SN_CLIENT_ROUTING_CANDIDATES_H
#define SN_CLIENT_ROUTING_CANDIDATES_H

#include "client/routing/peer_stats.h"
#include "client/routing/slow_nodes.h"

/* Costs that are assumed where none is known; SN_STRANGER_US is added for a stranger; SN_STEP_OVERHEAD_US is added to
 * the queue time of every node. */
enum {
    SN_DEFAULT_RTT_US = 20000,
    SN_DEFAULT_BLOCK_US = 1000,
    SN_STEP_OVERHEAD_US = 50,
    SN_STRANGER_US = 20000,
    SN_SILENT_STRANGER_US = 60000000
};

typedef enum sn_eligibility {
    SN_ELIGIBLE,
    SN_INELIGIBLE_STATE, /* not online: joining, draining, offline */
    SN_INELIGIBLE_PROTOCOL,
    SN_INELIGIBLE_MODEL,       /* another model, or another number of blocks */
    SN_INELIGIBLE_WEIGHTS,     /* other weights under the same name */
    SN_INELIGIBLE_KV_DTYPE,    /* the element type of its KV cache */
    SN_INELIGIBLE_WIRE,        /* does not accept hidden states in the session's wire type */
    SN_INELIGIBLE_NOT_IN_ONLY, /* not in the node filter's `only` list */
    SN_INELIGIBLE_DENIED,
    SN_INELIGIBLE_BANNED,
    SN_INELIGIBLE_PARTY,    /* computes these blocks of the session already: a replica or an audit needs another node */
    SN_INELIGIBLE_ADAPTER,  /* does not hold the session's adapter, which this client cannot upload */
    SN_INELIGIBLE_KV_SMALL, /* its KV memory could never hold the session */
    SN_INELIGIBLE_KV_FULL,  /* its free KV memory does not suffice for one block of the session */
    SN_ELIGIBILITY_COUNT
} sn_eligibility;
const char *sn_eligibility_name(sn_eligibility eligibility); /* "banned", ... */

/* A measured round trip between two candidates; listed at both of them. */
typedef struct sn_candidate_link {
    size_t other; /* index of the other candidate */
    int64_t rtt_ns;
} sn_candidate_link;

typedef struct sn_candidate {
    const sn_announcement *node; /* borrowed from the directory; NULL: the client's local blocks */
    sn_eligibility eligibility;
    int first, end;                    /* blocks [first, end) that it holds */
    int blocks_max;                    /* for how many of them its free KV memory suffices in this session */
    int64_t rtt_ns;                    /* round trip between it and the client */
    int64_t queue_ns;                  /* cost of a step besides computing: waiting and handling */
    int64_t block_ns;                  /* of one token through one block */
    int64_t prefill_ns;                /* the same for a token among many that are computed together */
    bool rtt_measured, block_measured; /* rtt_ns, block_ns: measured by this client */
    int other_block;                   /* of WEIGHTS: the first block that differs */
    bool answers;                      /* it has answered this client */
    bool stranger;                     /* neither measured nor proven: its claims do not count */
    double tokens_per_s;               /* through all its blocks, with many tokens at once */
    const sn_candidate_link *links;    /* (n_links): to other candidates, each at most once */
    size_t n_links;
    const bool *bound; /* (blocks of the model) or NULL, the same in all candidates of a list: no leg begins at these */
} sn_candidate;

enum { SN_NODE_FILTER_DIGITS_MIN = 4 }; /* a shorter word is not compared with node ids */

/* Which nodes may be used: by name, or by the first hexadecimal digits of the node id. Borrowed. */
typedef struct sn_node_filter {
    const char *const *only; /* n_only 0: any node */
    size_t n_only;
    const char *const *deny;
    size_t n_deny;
} sn_node_filter;

typedef struct sn_candidate_query {
    const sn_directory *directory;   /* NULL: no nodes */
    const sn_peer_stats *peer_stats; /* NULL: nothing was measured */
    const sn_slow_nodes *slow_nodes; /* NULL: none is remembered */
    int64_t now_us;                  /* on the clock of peer_stats */
    int64_t unix_ms;                 /* by which proven nodes are proven; 0: none is, and no node is a stranger */
    sn_hash model;
    int n_blocks;
    int kv_dtype;                     /* sn_dtype in which nodes must keep keys and values; -1: in any */
    const sn_hash *const *block_hash; /* (n_blocks): what each block's weights must hash to, NULL where unknown; the
                                         array may be NULL */
    int local_first, local_end;       /* the client's local blocks; equal: none */
    const bool *bound;                /* as in sn_candidate; borrowed as long as the list lives */
    sn_node_filter node_filter;
    sn_dtype wire;               /* of hidden states; SN_F32: every node accepts them */
    uint64_t adapter;            /* tag of the adapter that nodes must hold already; 0: none */
    uint64_t kv_bytes_per_block; /* the session's greatest KV cache of one block; 0: KV memory is not considered */
    uint64_t tokens;             /* that the session will have at least; 0: not known */
    uint64_t seed;               /* decides among candidates of equal cost; 0: the directory's order decides */
} sn_candidate_query;

typedef struct sn_candidates {
    sn_candidate *at;
    size_t n;
    sn_candidate_link *links; /* of all candidates */
} sn_candidates;

/* One candidate for each node of the directory, eligible or not, and one for local blocks. */
sn_status sn_candidates_make(const sn_candidate_query *query, sn_candidates *out, sn_err *err) SN_MUST_USE;
void sn_candidates_ignore_kv(sn_candidates *candidates); /* nodes without free KV memory become eligible */
/* The longest timeline that, of each of these blocks, some node could hold that this session might use, now or later. A
 * node that does not say counts as one without a limit; INT_MAX too where there is no node at all. */
int sn_candidates_tokens_max(const sn_candidates *candidates, int first, int end);
void sn_candidates_fini(sn_candidates *candidates); /* accepts a zeroed list */

#endif
