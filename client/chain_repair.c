/* When a group of hops fails: other hops take its place, brought to the same point by replay. */
#include "client/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Brings new hops to `length` tokens by what once went into their first block. */
static sn_status replay(sn_chain *chain, sn_hop_at *hops, size_t n_hops, const float *inputs, int length, sn_err *err) {
    size_t failed;
    float *rows[2] = {NULL, NULL}; /* the chain's own hold the step that is being repaired */
    size_t size = (size_t)SN_SPAN_ROWS_MAX * (size_t)chain->hp.n_embd;
    sn_status status = SN_OK;
    for (int k = 0; k < 2 && !status; k++) status = sn_calloc(&rows[k], size, sizeof(float), err);
    for (int at = 0, n; at < length && !status; at += n) {
        n = length - at < SN_SPAN_ROWS_MAX ? length - at : SN_SPAN_ROWS_MAX;
        const float *in = inputs + (size_t)at * (size_t)chain->hp.n_embd;
        for (size_t i = 0, j, turn = 0; i < n_hops && !status; i = j, turn ^= 1) {
            j = sn_chain_group_end(hops, n_hops, i);
            status = sn_chain_step_group(chain, hops, i, j, at, n, in, rows[turn], &failed, err);
            if (status) sn_chain_blame(chain, hops, j, i + failed);
            in = rows[turn];
        }
    }
    for (int k = 0; k < 2; k++) free(rows[k]);
    return status;
}

/* Puts other hops in the place of the group [i, j), brought to `position` tokens. */
sn_status sn_chain_replace_group(sn_chain *chain, size_t i, size_t j, int position, int64_t until_us, int *retries,
                                 sn_err *err) {
    sn_hop_at *fresh = NULL;
    size_t n_fresh = 0;
    sn_status status = sn_calloc(&fresh, SN_HOPS_MAX, sizeof *fresh, err);
    if (status) return status;
    for (;;) {
        status = sn_chain_connect(chain, chain->hops[i].first, chain->hops[j - 1].end,
                                  sn_chain_grace_ms(chain, until_us), retries, fresh, &n_fresh, err);
        if (status) goto out;
        if (chain->n_hops - (j - i) + n_fresh > SN_HOPS_MAX) {
            sn_chain_close_hops(chain, fresh, n_fresh);
            status =
                sn_fail(err, SN_RETRY, "the way over the nodes that are left takes more than %d hops", SN_HOPS_MAX);
            goto out;
        }
        status = replay(chain, fresh, n_fresh, chain->hops[i].inputs, position, err);
        if (!status) break;
        sn_chain_close_hops(chain, fresh, n_fresh);
        if (status == SN_STOP || (*retries)-- <= 0) goto out;
    }
    sn_chain_close_hops(chain, chain->hops + i, j - i);
    memmove(chain->hops + i + n_fresh, chain->hops + j, (chain->n_hops - j) * sizeof *chain->hops);
    memcpy(chain->hops + i, fresh, n_fresh * sizeof *fresh);
    chain->n_hops += n_fresh - (j - i);
    chain->failovers++;
    sn_log(SN_LOG_INFO, "blocks moved", "flow=%s blocks=%d:%d tokens=%d hops=%zu", chain->flow, chain->hops[i].first,
           chain->hops[i + n_fresh - 1].end, position, n_fresh);
out:
    free(fresh);
    return status;
}
