/* What a chain does after a failed check: other nodes replace the banned ones, and the caller learns from which
 * position on to run its steps again. */
#include "client/chain/chain_private.h"

static bool group_has_banned(const sn_chain *chain, size_t i, size_t j) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    for (; i < j; i++)
        if (!chain->hops[i].is_local && verifier->is_banned(verifier->ctx, chain->hops[i].remote.node)) return true;
    return false;
}

static sn_status chain_replace_banned(sn_chain *chain, sn_err *err) {
    sn_chain_begin_call(chain); /* the checks have taken their own time */
    for (size_t i = 0, j; i < chain->n_hops; i = j) {
        j = sn_chain_group_end(chain->hops, chain->n_hops, i);
        if (!group_has_banned(chain, i, j)) continue;
        chain->call.retries = chain->options.limits.max_retries;
        sn_status status = sn_chain_replace_group(chain, &i, j, chain->length, err);
        if (status) return status;
        j = 0; /* the number of hops has changed: begin again */
    }
    return SN_OK;
}

sn_status sn_chain_run_audit(sn_chain *chain, bool all, sn_err *err) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    int wrong_from;
    if (!verifier->check) return SN_OK;
    sn_status status = verifier->check(verifier->ctx, chain, all, &wrong_from, err);
    if (wrong_from < 0) return status;
    chain->audit_failed = wrong_from < chain->length;
    if (chain->audit_failed) chain->length = wrong_from;
    if (!status) status = chain_replace_banned(chain, err);
    const char *verdict = verifier->verdict(verifier->ctx);
    if (status) return sn_err_context(err, "results from position %d on may be wrong: %.120s", wrong_from, verdict);
    return chain->audit_failed ? sn_fail(err, SN_REBUILD, "%s", verdict) : SN_OK;
}

sn_status sn_chain_audit(sn_chain *chain, sn_err *err) {
    chain->audit_failed = false;
    return sn_chain_run_audit(chain, true, err);
}

bool sn_chain_audit_is_incomplete(const sn_chain *chain) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    return verifier->is_incomplete && verifier->is_incomplete(verifier->ctx);
}

bool sn_chain_audit_failed(const sn_chain *chain) { return chain->audit_failed; }
