/* After a cancelled call. Steps that were sent may still be computed, and their replies come late: the link drops them,
 * and the client does not know how far the sessions are. RESUME tells each session to wait for its step, and to go on
 * from a position and a step number that the client chooses (docs/PROTOCOL.md). */
#include "client/chain/chain_private.h"

#include "base/log.h"

static void group_give_up(sn_chain *chain, size_t i, size_t j, const char *why) {
    sn_log(SN_LOG_INFO, "session lost after a cancelled step", "request_id=%s node=%s text=%s", chain->request_id,
           chain->hops[i].report.node, why);
    for (; i < j; i++) chain->hops[i].length = -1; /* the next step replaces the group */
}

sn_status sn_chain_settle(sn_chain *chain, int position, sn_err *err) {
    for (size_t i = 0, j; i < chain->n_hops; i = j) {
        j = sn_chain_group_end(chain->hops, chain->n_hops, i);
        if (chain->hops[i].is_local) continue;
        int held = 0, from = sn_chain_known_from(chain, i, j, position);
        sn_status status = SN_REBUILD;
        if (from >= 0) status = sn_chain_resume_group(chain, i, j, j, from, &held, err);
        if (status == SN_STOP) return status;
        if (status || held < from) {
            group_give_up(chain, i, j, status ? err->text : "its session holds fewer tokens");
            continue;
        }
        for (size_t k = i; k < j; k++) chain->hops[k].length = from;
    }
    chain->unsettled = false;
    return SN_OK;
}
