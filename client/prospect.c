#include "client/prospect.h"

#include "base/clock.h"
#include "base/mem.h"
#include "client/chain_private.h"

#include <stdlib.h>

void sn_prospect_fini(sn_prospect *p) {
    sn_offers_fini(&p->offers);
    free(p->through);
    free(p->banned_us);
    *p = (sn_prospect){0};
}

/* What the way would be: sn_chain_plan tells no more than the stops. */
static sn_status choose(sn_chain *chain, sn_prospect *p, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    const sn_offers *offers = &p->offers;
    return o->throughput
               ? sn_route_draw(offers->at, offers->n, o->push, o->first, o->end, o->route_seed, &p->route, err)
               : sn_route_shortest(offers->at, offers->n, o->push, o->first, o->end, &p->route, err);
}

sn_status sn_prospect_make(sn_chain *chain, sn_prospect *out, sn_err *err) {
    sn_route route;
    *out = (sn_prospect){0};
    sn_status status = sn_chain_plan(chain, chain->options.first, chain->options.end, sn_chain_grace_ms(chain, 0),
                                     &route, &out->why_none);
    if (status && status != SN_RETRY) return sn_fail(err, status, "%s", out->why_none.text);
    status = chain->options.link ? sn_chain_measure(chain, true, err) : SN_OK;
    if (!status) status = sn_chain_survey(chain, &out->offers, err);
    size_t n = out->offers.n;
    if (!status) status = sn_calloc(&out->through, n, sizeof *out->through, err);
    if (!status) status = sn_calloc(&out->banned_us, n, sizeof *out->banned_us, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++)
        if (out->offers.at[i].node)
            out->banned_us[i] = sn_seen_banned_us(chain->seen, out->offers.at[i].node->node, sn_now_us());
    status = choose(chain, out, &out->why_none);
    if (status == SN_RETRY) {
        sn_err none;
        sn_offers_ignore_room(&out->offers);
        out->short_of_room = !choose(chain, out, &none);
        if (out->short_of_room) status = SN_OK;
    }
    out->why_none.status = status;
    if (status && status != SN_RETRY) return sn_fail(err, status, "%s", out->why_none.text);
    return sn_route_through(out->offers.at, n, chain->options.push, chain->options.first, chain->options.end,
                            out->through, err);
}
