/* What a chain does about an audit's findings: others take the liars' places, and the caller is told from where on to ask
 * again. */
#include "client/audit.h"
#include "client/chain_private.h"

#include "base/clock.h"

static bool has_liar(const sn_chain *chain, size_t i, size_t j) {
    for (; i < j; i++)
        if (!chain->hops[i].local && sn_audit_caught(chain->options.audit, chain->hops[i].node)) return true;
    return false;
}

static sn_status replace_liars(sn_chain *chain, sn_err *err) {
    int64_t until_us = sn_now_us() + (int64_t)chain->options.timeout_ms * 1000;
    for (size_t i = 0, j; i < chain->n_hops; i = j) {
        j = sn_chain_group_end(chain->hops, chain->n_hops, i);
        if (!has_liar(chain, i, j)) continue;
        int retries = chain->options.max_retries;
        sn_status status = sn_chain_replace_group(chain, &i, j, chain->length, until_us, &retries, err);
        if (status) return status;
        j = 0; /* as many hops are there now as it took */
    }
    return SN_OK;
}

sn_status sn_chain_look_back(sn_chain *chain, bool all, sn_err *err) {
    int wrong_from;
    if (!chain->options.audit) return SN_OK;
    sn_status status = sn_audit_check(chain->options.audit, chain, all, &wrong_from, err);
    if (wrong_from < 0) return status;
    chain->misled = wrong_from < chain->length;
    if (chain->misled) chain->length = wrong_from;
    sn_audit_report report = sn_audit_read(chain->options.audit);
    if (!status) status = replace_liars(chain, err);
    if (status) return sn_err_context(err, "what was computed from position %d on may be wrong: %.120s", wrong_from,
                                      report.verdict);
    return chain->misled ? sn_fail(err, SN_REBUILD, "%s", report.verdict) : SN_OK;
}

sn_status sn_chain_audit(sn_chain *chain, sn_err *err) {
    chain->misled = false;
    return sn_chain_look_back(chain, true, err);
}

bool sn_chain_misled(const sn_chain *chain) { return chain->misled; }
