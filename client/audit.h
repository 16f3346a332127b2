/* The audit: the work of nodes is done again elsewhere and compared, exactly where both are CPUs.
 *
 * After every step at a node, once its answer and receipt are here, a coin is thrown; when it falls so, all that the node has
 * answered since the last check goes in chunks through a second session over the same blocks: at other nodes, or here. (To
 * recompute one step its whole past must be there, so the steps in between cost nothing more, and are compared as well: a
 * wrong value does not have to be hit, it is found at the next throw.) When two differ, a third decides: this machine where
 * its file holds the blocks, else another node. Who lied is not used again, and what it signed is kept as evidence. A chain
 * is told from which position on its results are not to be trusted, and puts others in the liar's place.
 *
 * What it cannot see: nodes of one owner that lie alike, when no third is asked. One thread, the chain's. */
#ifndef SN_CLIENT_AUDIT_H
#define SN_CLIENT_AUDIT_H

#include "client/hop.h"

typedef struct sn_audit sn_audit;

typedef struct sn_audit_options {
    const sn_model *model; /* borrowed, as all here */
    sn_link *link;         /* the chain's: to those who check, and for what nodes announce */
    sn_device *device;     /* for blocks computed here; NULL: never here */
    bool local;            /* check here and not at other nodes */
    double share;          /* of the steps, (0, 1] */
    uint64_t seed;         /* of the coin */
    const char *evidence;  /* folder; NULL: none is kept */
    int max_tokens, timeout_ms; /* as of the chain */
    sn_pick pick;
} sn_audit_options;

sn_status sn_audit_new(const sn_audit_options *options, sn_audit **out, sn_err *err) SN_MUST_USE;
void sn_audit_free(sn_audit **audit); /* NULL-safe; after the chain that it audits, before its link */

/* A step of n rows at `position` went through hops that push to each other, of which the first one's input is in `in`. Throws
 * the coin. */
sn_status sn_audit_note(sn_audit *audit, const sn_hop_at *hops, size_t n_hops, int position, int n, int n_embd,
                        const float *in, const float *out, sn_err *err) SN_MUST_USE;

/* Makes the checks that are due; `all`: of everything not yet checked. `like`: the audited chain. *wrong_from: the position
 * from which on results of the chain may be wrong; -1: none was found to be. A check that cannot be made now waits for the
 * next one; SN_RETRY only when two differ and nobody can decide. */
sn_status sn_audit_check(sn_audit *audit, const sn_chain *like, bool all, int *wrong_from, sn_err *err) SN_MUST_USE;

/* Whether the node was caught: for sn_chain_options.avoid. ctx: the audit. */
bool sn_audit_caught(void *ctx, const uint8_t node[SN_KEY_SIZE]);

typedef struct sn_audit_report {
    uint64_t steps, checked, unchecked; /* of nodes; unchecked: not yet, or nobody could */
    uint64_t checks;                    /* how often the coin fell so */
    uint64_t lies;                      /* nodes caught */
    char verdict[256];                  /* about the newest lie: who, and what about */
    char evidence[1024];                /* its file; empty: none */
} sn_audit_report;
sn_audit_report sn_audit_read(const sn_audit *audit);

#endif
