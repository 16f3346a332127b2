/* The audit: a share of the nodes' steps is computed again elsewhere and compared, bit by bit where both are CPUs.
 *
 * Central type: sn_audit, one for each chain. The chain calls it through its verifier table (client/chain/verifier.h)
 * on its own thread. After each step at nodes, once the reply and receipts are accepted, a random draw decides whether
 * to check. A check runs every step since the last check, in chunks, through a second session over the same blocks, the
 * auditor: at other nodes, or on this machine. (Computing one step again needs the KV cache of everything before it, so
 * the steps in between cost nothing more and are compared as well: a wrong value does not have to be drawn itself, the
 * next draw finds it.)
 *
 * When the two differ, an arbiter decides: this machine if its file holds the blocks, else a third node. The node that
 * was wrong is banned, and what it signed is saved as evidence (evidence.h). The chain learns from which position on
 * its results may be wrong, and replaces the node.
 *
 * Not found: nodes of one owner that give the same wrong results, when no third party is asked. */
#ifndef SN_CLIENT_AUDIT_AUDIT_H
#define SN_CLIENT_AUDIT_AUDIT_H

#include "client/chain/chain.h"

typedef struct sn_audit sn_audit;

typedef struct sn_audit_options {
    const sn_model *model;      /* borrowed, as all pointers here */
    sn_link *link;              /* the chain's: leads to auditors, and holds the nodes' announcements */
    sn_device *device;          /* a CPU, for blocks computed on this machine; NULL: none are */
    bool local;                 /* the auditor is this machine, not other nodes */
    double share;               /* of the steps after which to check, (0, 1] */
    uint64_t seed;              /* of the draws; a node that knows it knows which steps are checked */
    const char *evidence;       /* folder; NULL: no evidence is saved */
    int max_tokens, timeout_ms; /* as of the chain */
    sn_node_filter node_filter; /* which nodes may be auditors */
} sn_audit_options;

sn_status sn_audit_new(const sn_audit_options *options, sn_audit **out, sn_err *err) SN_MUST_USE;
void sn_audit_free(sn_audit **audit); /* accepts NULL; call it after closing the chain, and before closing its link */

/* For sn_chain_options.verification; NULL gives an empty table. Borrows the audit. */
sn_verifier sn_audit_verifier(sn_audit *audit);

/* Whether an audit check failed for this node. ctx: the sn_audit. */
bool sn_audit_is_banned(void *ctx, const uint8_t node[SN_KEY_SIZE]);

typedef struct sn_audit_report {
    uint64_t seed;                      /* of the draws */
    uint64_t steps, checked, unchecked; /* steps of nodes; unchecked: not yet, or no auditor was found */
    uint64_t unchecked_failed;          /* of these: auditors were found, but failed or gave wrong results */
    uint64_t checks;                    /* draws that asked for a check */
    uint64_t nodes_banned;
    char verdict[256];   /* on the newest failed check: which node, and about what; empty: none failed */
    char evidence[1024]; /* path of the newest evidence file; empty: none */
} sn_audit_report;
sn_audit_report sn_audit_get_report(const sn_audit *audit);
/* Whether every step of the session's present timeline was checked. The report counts the steps of earlier ones, too.
 */
bool sn_audit_timeline_is_checked(const sn_audit *audit);

#endif
