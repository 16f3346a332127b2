/* Failover: other hops replace a group that failed, brought to the same position by replay. Before that, where only the
 * connection was lost, the node is asked for at the address that it has now, since it keeps the session for seconds. */
#include "client/chain/chain_private.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RETURN_MS = 1000 };

/* Whether the hop's node answers at this address; from then on its session is used over that connection. */
static bool hop_returns(sn_chain *chain, sn_hop *hop, const char *address) {
    sn_hop_remote *r = &hop->remote;
    sn_msg *msg = NULL, *reply = NULL;
    sn_peer peer = 0;
    sn_err err;
    const sn_call call = {address, r->curve_key, SN_MSG_STATUS_REPLY, sn_chain_left_ms(chain, RETURN_MS)};
    if (sn_msg_new(SN_MSG_STATUS, 0, &msg, &err)) return false;
    msg->status.protocol = SN_PROTOCOL_VERSION;
    if (sn_link_call(chain->options.link, &call, &msg, &peer, &reply, &err)) return false;
    sn_msg_free(&reply);
    sn_log(SN_LOG_INFO, "connection renewed", "request_id=%s node=%s address=%s", chain->request_id, hop->report.node,
           address);
    r->peer = peer;
    if (address != r->address) snprintf(r->address, sizeof r->address, "%s", address);
    return true;
}

bool sn_chain_return_to_node(sn_chain *chain, size_t i, size_t j) {
    sn_hop *hop = &chain->hops[i];
    sn_link *link = chain->options.link;
    sn_err err;
    if (j - i > 1 || hop->is_local || sn_link_is_connected(link, hop->remote.peer)) return false;
    if (hop_returns(chain, hop, hop->remote.address)) return true;
    if (hop->remote.replica || sn_link_discover(link, NULL, sn_chain_left_ms(chain, RETURN_MS), &err)) return false;
    const sn_announcement *node = sn_directory_find(sn_link_directory(link), hop->remote.node);
    return node && strcmp(node->address, hop->remote.address) && hop_returns(chain, hop, node->address);
}

sn_status sn_chain_replay(sn_chain *chain, sn_hop *hops, size_t n_hops, const sn_hop *inputs, int from, int length,
                          sn_err *err) {
    size_t failed;
    float *rows[2] = {NULL, NULL}; /* chain->rows holds the step that failed */
    size_t size = (size_t)SN_SPAN_ROWS * (size_t)chain->hp.n_embd;
    sn_status status = SN_OK;
    for (int k = 0; k < 2 && !status; k++) status = sn_calloc(&rows[k], size, sizeof(float), err);
    for (int at = from, n; at < length && !status; at += n) {
        n = length - at < SN_SPAN_ROWS ? length - at : SN_SPAN_ROWS;
        status = sn_hop_inputs(inputs, at, n, chain->hp.n_embd, rows[0], err);
        sn_step step = {at, n, chain->hp.n_embd, rows[0], NULL};
        for (size_t i = 0, j, buffer = 1; i < n_hops && !status; i = j, buffer ^= 1) {
            j = sn_chain_group_end(hops, n_hops, i);
            step.out = rows[buffer];
            status = sn_chain_step_group(chain, hops, i, j, &step, &failed, err);
            if (status) sn_chain_note_failure(chain, hops, j, i + failed);
            step.in = step.out;
        }
        if (!status) chain->replayed += (uint64_t)n;
    }
    for (int k = 0; k < 2; k++) free(rows[k]);
    return status;
}

/* What is to be replaced: the group [i, j) at `position`, and the hops [low, i) before it where the group's own inputs
 * are not known, because its KV pages came from elsewhere. The hops before the group have done the present step
 * already: they are brought to `length`. */
typedef struct gap {
    size_t low, i, j;
    int position, length;
} gap;

static sn_status gap_find(const sn_chain *chain, size_t i, size_t j, int position, gap *out, sn_err *err) {
    *out = (gap){i, i, j, position, position};
    while (out->low > 0 && !sn_hop_can_replay(&chain->hops[out->low], 0)) out->low--;
    if (!sn_hop_can_replay(&chain->hops[out->low], 0))
        return sn_fail(err, SN_RETRY, "blocks %d:%d cannot be computed again: their inputs are not known here",
                       chain->hops[i].first, chain->hops[j - 1].end);
    if (out->low < i) out->length = chain->hops[out->low].length;
    return SN_OK;
}

/* Opens sessions over the blocks of the gap, with a boundary where the group began: *upper is the first hop after it.
 */
static sn_status gap_connect(sn_chain *chain, const gap *g, sn_hop *fresh, size_t *n, size_t *upper, sn_err *err) {
    const sn_hop *hops = chain->hops;
    *n = *upper = 0;
    if (g->low < g->i) {
        sn_status status =
            sn_chain_connect(chain, hops[g->low].first, hops[g->i - 1].end, SN_CHAIN_WAIT_CALL, fresh, upper, err);
        if (status) return status;
    }
    sn_status status =
        sn_chain_connect(chain, hops[g->i].first, hops[g->j - 1].end, SN_CHAIN_WAIT_CALL, fresh + *upper, n, err);
    if (status) sn_chain_close_hops(chain, fresh, *upper);
    *n += *upper;
    return status;
}

static sn_status gap_replay(sn_chain *chain, const gap *g, sn_hop *fresh, size_t n, size_t upper, sn_err *err) {
    const sn_hop *inputs = &chain->hops[g->low];
    sn_status status = sn_chain_replay(chain, fresh, n, inputs, 0, g->position, err);
    return status ? status : sn_chain_replay(chain, fresh, upper, inputs, g->position, g->length, err);
}

sn_status sn_chain_replace_group(sn_chain *chain, size_t *i, size_t j, int position, sn_err *err) {
    sn_hop *fresh = NULL;
    size_t n = 0, upper = 0;
    gap g;
    sn_status status = gap_find(chain, *i, j, position, &g, err);
    if (!status) status = sn_calloc(&fresh, 2 * SN_HOPS_MAX, sizeof *fresh, err);
    if (status) return status;
    for (;;) {
        status = gap_connect(chain, &g, fresh, &n, &upper, err);
        if (status) goto out;
        if (chain->n_hops - (j - g.low) + n > SN_HOPS_MAX) {
            sn_chain_close_hops(chain, fresh, n);
            status =
                sn_fail(err, SN_RETRY, "the route over the nodes that are left has more than %d hops", SN_HOPS_MAX);
            goto out;
        }
        status = gap_replay(chain, &g, fresh, n, upper, err);
        if (!status) break;
        sn_chain_close_hops(chain, fresh, n);
        if (status == SN_STOP || sn_chain_is_late(chain) || chain->call.retries < 0) goto out;
    }
    sn_chain_close_hops(chain, chain->hops + g.low, j - g.low);
    memmove(chain->hops + g.low + n, chain->hops + j, (chain->n_hops - j) * sizeof *chain->hops);
    memcpy(chain->hops + g.low, fresh, n * sizeof *fresh);
    chain->n_hops += n - (j - g.low);
    *i = g.low + upper;
    chain->failovers++;
    sn_log(SN_LOG_INFO, "blocks replaced", "request_id=%s blocks=%d:%d tokens=%d hops=%zu", chain->request_id,
           chain->hops[g.low].first, chain->hops[g.low + n - 1].end, position, n);
out:
    free(fresh);
    return status;
}
