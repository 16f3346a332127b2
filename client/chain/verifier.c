/* What a chain does after a failed check: other nodes replace the banned ones, and the caller learns from which
 * position on to run its steps again. */
#include "client/chain/chain_private.h"

#include "base/mem.h"

#include <stdlib.h>

sn_status sn_chain_verify_step(sn_chain *chain, const sn_hop *hops, size_t n_hops, const sn_step *step, sn_err *err) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    float *rows = NULL; /* as they travelled */
    if (!verifier->note_step) return SN_OK;
    sn_status status = sn_calloc(&rows, (size_t)step->n * (size_t)step->n_embd, sizeof *rows, err);
    if (!status) status = sn_hop_inputs(&hops[0], step->position, step->n, step->n_embd, rows, err);
    const sn_step noted = {step->position, step->n, step->n_embd, rows, step->out};
    if (!status) status = verifier->note_step(verifier->ctx, hops, n_hops, &noted, err);
    free(rows);
    return status;
}

/* Whether other hops must replace the group: a node is banned, or the nodes push to each other although they are not
 * to.
 */
static bool group_must_go(const sn_chain *chain, size_t i, size_t j) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    if (j - i > 1 && !chain->push) return true;
    for (; i < j; i++)
        if (!chain->hops[i].is_local && verifier->is_banned(verifier->ctx, chain->hops[i].remote.node)) return true;
    return false;
}

void sn_chain_rewind_verifier(const sn_chain *chain, int position) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    if (verifier->rewind) verifier->rewind(verifier->ctx, position);
}

static sn_status chain_replace_banned(sn_chain *chain, sn_err *err) {
    sn_chain_begin_call(chain); /* the checks have taken their own time */
    for (size_t i = 0, j; i < chain->n_hops; i = j) {
        j = sn_hops_group_end(chain->hops, chain->n_hops, i);
        if (!group_must_go(chain, i, j)) continue;
        chain->call.retries = chain->options.limits.max_retries;
        sn_status status = sn_chain_replace_group(chain, &i, j, chain->length, err);
        if (status) return status;
        j = 0; /* the number of hops has changed: begin again */
    }
    return SN_OK;
}

sn_status sn_chain_run_audit(sn_chain *chain, bool all, sn_err *err) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    sn_finding found;
    if (!verifier->check) return SN_OK;
    sn_status status = verifier->check(verifier->ctx, chain, all, &found, err);
    if (found.wrong_from < 0) return status;
    if (found.apart) chain->push = false;
    chain->audit_failed = found.wrong_from < chain->length;
    if (chain->audit_failed) chain->length = found.wrong_from;
    if (!status) status = chain_replace_banned(chain, err);
    const char *verdict = verifier->verdict(verifier->ctx);
    if (status)
        return sn_err_context(err, "results from position %d on may be wrong: %.120s", found.wrong_from, verdict);
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
