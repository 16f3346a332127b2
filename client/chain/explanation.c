#include "client/chain/explanation.h"

#include "base/clock.h"
#include "base/mem.h"
#include "client/chain/chain_private.h"

#include <stdlib.h>

void sn_route_explanation_fini(sn_route_explanation *p) {
    sn_candidates_fini(&p->candidates);
    free(p->cost_through_ns);
    free(p->ban_left_us);
    *p = (sn_route_explanation){0};
}

sn_status sn_route_explain(sn_chain *chain, sn_route_explanation *out, sn_err *err) {
    sn_route route; /* of sn_chain_plan_route, which waits for nodes but does not say over which candidates */
    int first = chain->options.first, end = chain->options.end;
    *out = (sn_route_explanation){0};
    sn_chain_begin_call(chain);
    sn_status status = sn_chain_plan_route(chain, first, end, SN_CHAIN_WAIT_JOINED, &route, &out->no_route);
    if (status && status != SN_RETRY) return sn_fail(err, status, "%s", out->no_route.text);
    status = chain->options.link ? sn_chain_measure_rtt(chain, true, err) : SN_OK;
    if (!status) status = sn_chain_list_candidates(chain, &out->candidates, err);
    size_t n = out->candidates.n;
    if (!status) status = sn_calloc(&out->cost_through_ns, n, sizeof *out->cost_through_ns, err);
    if (!status) status = sn_calloc(&out->ban_left_us, n, sizeof *out->ban_left_us, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++)
        if (out->candidates.at[i].node)
            out->ban_left_us[i] =
                sn_peer_stats_ban_left_us(chain->peer_stats, out->candidates.at[i].node->node, sn_now_us());
    status = sn_chain_choose_route(chain, &out->candidates, first, end, &out->route, &out->no_route);
    if (status == SN_RETRY) {
        sn_err none;
        sn_candidates_ignore_kv(&out->candidates);
        out->kv_full = !sn_chain_choose_route(chain, &out->candidates, first, end, &out->route, &none);
        if (out->kv_full) status = SN_OK;
    }
    out->no_route.status = status;
    if (status && status != SN_RETRY) return sn_fail(err, status, "%s", out->no_route.text);
    return sn_route_cost_through(out->candidates.at, n, chain->push, first, end, out->cost_through_ns, err);
}
