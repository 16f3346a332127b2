/* The verifier table: what a chain calls to have the work of nodes checked. The chain knows nothing else of checks;
 * client/audit fills the table (sn_audit_verifier). All functions are called on the chain's thread. */
#ifndef SN_CLIENT_CHAIN_VERIFIER_H
#define SN_CLIENT_CHAIN_VERIFIER_H

#include "client/chain/hop.h"

struct sn_chain;

typedef struct sn_finding {
    int wrong_from; /* the first position from which the chain's results may be wrong; -1: no check failed */
    bool apart;     /* one of several nodes was wrong, and it will show which if they do not push to each other */
} sn_finding;

typedef struct sn_verifier {
    void *ctx; /* borrowed; must outlive the chain */
    /* A step went through a group of hops, and its reply was accepted. step->in: what entered the first hop, rounded as
     * it travelled; step->out: what left the last one. All memory is valid during the call only. SN_STOP: out of
     * memory. */
    sn_status (*note_step)(void *ctx, const sn_hop *hops, size_t n_hops, const sn_step *step, sn_err *err);
    /* The session's timeline ends at `position` now: steps of positions from there on are no part of it any more. */
    void (*rewind)(void *ctx, int position);
    /* Makes the checks that are due; `all`: checks every step that is not checked yet. SN_RETRY: results differ, and no
     * third node can decide which are right. A check that no node can make now is not an error; is_incomplete tells of
     * it. */
    sn_status (*check)(void *ctx, const struct sn_chain *chain, bool all, sn_finding *out, sn_err *err);
    /* Whether checks are due that `check` would make now; NULL: never. */
    bool (*is_due)(void *ctx);
    /* Whether a check showed that the node computes wrong results: the chain then does not use it. */
    bool (*is_banned)(void *ctx, const uint8_t node[SN_KEY_SIZE]);
    /* Whether steps of the timeline stay unchecked because nodes that could check them failed. */
    bool (*is_incomplete)(void *ctx);
    const char *(*verdict)(void *ctx); /* one sentence about the newest failed check */
} sn_verifier;

#endif
