/* Other hops take the places of a group, brought to the same position by replay: when a step failed there (failover),
 * or for a faster route. After a failure there may be a cheaper way: where only the connection was lost, the node is
 * asked for at the address that it has now, since it keeps the session for seconds; and a KV replica is promoted.
 *
 * After a call that was cancelled, steps that were sent may still be computed, and their replies come late: the link
 * drops them, and the client does not know how far the sessions are. RESUME tells each session to wait for its step,
 * and to go on from a position and a step number that the client chooses (docs/PROTOCOL.md). */
#include "client/chain/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RETURN_MS = 1000, SOON_MS = 300, ROUND_TRIPS = 4, ANSWERED_MS = 2000, FARTHEST_US = 2000000, REST_MAX = 32 };

/* Time for an answer over a connection that is made for it, to the farthest node of the chain. */
static int chain_answer_ms(const sn_chain *chain, int least) {
    int64_t us = 0;
    for (size_t i = 0; i < chain->n_hops; i++)
        if (!chain->hops[i].is_local && chain->hops[i].remote.answer_us > us) us = chain->hops[i].remote.answer_us;
    return sn_chain_left_ms(chain, least + (int)(ROUND_TRIPS * (us < FARTHEST_US ? us : FARTHEST_US) / 1000));
}

/* Whether the hop's node answers at this address; from then on its session is used over that connection. */
static bool hop_returns(sn_chain *chain, sn_hop *hop, const char *address, int least_ms) {
    sn_hop_remote *r = &hop->remote;
    sn_msg *msg = NULL, *reply = NULL;
    sn_peer peer = 0;
    sn_err err;
    const sn_call call = {address, r->curve_key, SN_MSG_STATUS_REPLY, chain_answer_ms(chain, least_ms)};
    if (sn_msg_new(SN_MSG_STATUS, 0, &msg, &err)) return false;
    msg->status.protocol = SN_PROTOCOL_VERSION;
    if (sn_link_call(chain->options.link, &call, &msg, &peer, &reply, &err)) {
        sn_link_hang_up(chain->options.link, peer);
        return false;
    }
    sn_msg_free(&reply);
    sn_log(SN_LOG_INFO, "connection renewed", "request_id=%s node=%s address=%s", chain->request_id, hop->report.node,
           address);
    r->peer = peer;
    if (address != r->address) snprintf(r->address, sizeof r->address, "%s", address);
    return true;
}

/* Whether only the connection to the node of a group of one hop was lost, and another one to it is there now: its
 * session goes on. */
static bool chain_return_to_node(sn_chain *chain, size_t i, size_t j) {
    sn_hop *hop = &chain->hops[i];
    sn_link *link = chain->options.link;
    sn_err err;
    if (j - i > 1 || hop->is_local || sn_link_is_connected(link, hop->remote.peer)) return false;
    if (hop_returns(chain, hop, hop->remote.address, RETURN_MS)) return true;
    if (hop->remote.replica || sn_link_discover(link, NULL, chain_answer_ms(chain, RETURN_MS), &err)) return false;
    const sn_announcement *node = sn_directory_find(sn_link_directory(link), hop->remote.node);
    return node && strcmp(node->address, hop->remote.address) && hop_returns(chain, hop, node->address, RETURN_MS);
}

/* The connection to a node of the group fell silent. As long as nobody answers, it is this program's own link that is
 * down, and the nodes are not to blame. Whether then all of them answer over new connections and go on at `from`. */
static bool chain_returns_from_silence(sn_chain *chain, size_t i, size_t j, int from) {
    sn_link *link = chain->options.link;
    sn_err err;
    int held = 0;
    while (!sn_link_is_answered(link, chain_answer_ms(chain, ANSWERED_MS)) && !sn_chain_is_late(chain)) {}
    for (size_t k = i; k < j; k++) {
        sn_hop *hop = &chain->hops[k];
        sn_peer begun; /* in the silence: TCP may wait for seconds before it tries again */
        if (sn_link_is_connected(link, hop->remote.peer)) continue;
        if (!sn_link_dial(link, hop->remote.address, hop->remote.curve_key, &begun, &err)) sn_link_hang_up(link, begun);
        if (!hop_returns(chain, hop, hop->remote.address, SOON_MS)) return false;
    }
    if (sn_chain_resume_group(chain, i, j, j, from, &held, &err) || held < from) return false;
    for (size_t k = i; k < j; k++) chain->hops[k].length = from;
    return true;
}

sn_status sn_chain_replay(sn_chain *chain, sn_hop *hops, size_t n_hops, const sn_hop *inputs, int from, int length,
                          sn_err *err) {
    const sn_step step = {from, length - from, chain->hp.n_embd, NULL, NULL};
    return sn_chain_run(chain, hops, n_hops, inputs, &step, err);
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

/* -- a step that failed -----------------------------------------------------------------------------------------------
 */

void sn_chain_note_failure(sn_chain *chain, const sn_hop *hops, size_t j, size_t failed) {
    if (failed == j) {
        chain->push = false;
        sn_log(SN_LOG_WARN, "push disabled", "request_id=%s text=%s", chain->request_id,
               "the nodes do not reach each other; hidden states travel by the client from now on");
        chain->call.retries--;
    } else if (!hops[failed].is_local) {
        bool gone = !sn_link_is_connected(chain->options.link, hops[failed].remote.peer);
        chain->call.retries -= !gone || chain->call.is_part;
        sn_chain_ban(chain, &hops[failed]);
    }
}

/* Whether no other node can take the group's blocks now, and the one that has no room is not tried again within the
 * call: then there is nothing to wait for. */
static bool chain_is_alone(sn_chain *chain, size_t i, size_t j, const sn_hop *full) {
    const int64_t now_us = sn_now_us(),
                  banned_us = sn_peer_stats_ban_left_us(chain->peer_stats, full->remote.node, now_us);
    sn_route route;
    sn_err none;
    return now_us + banned_us > chain->call.deadline_us &&
           sn_chain_plan_route(chain, chain->hops[i].first, chain->hops[j - 1].end, SN_CHAIN_WAIT_BRIEFLY, &route,
                               &none) == SN_RETRY;
}

sn_status sn_chain_fail_over(sn_chain *chain, size_t *i, int position, int from, size_t failed, sn_losses *losses,
                             sn_err *err) {
    const size_t j = sn_hops_group_end(chain->hops, chain->n_hops, *i);
    const sn_hop *hop = &chain->hops[*i + failed < j ? *i + failed : *i];
    const int first = chain->hops[*i].first, end = chain->hops[j - 1].end;
    sn_err cause, why;
    const bool silent = err->status == SN_REBUILD && !hop->is_local && sn_link_fell_silent(chain->options.link) &&
                        !sn_link_is_connected(chain->options.link, hop->remote.peer);
    /* A connection that was lost counts as a session that was: else a node could take a second for each token. */
    if (!losses->returned &&
        (silent ? chain_returns_from_silence(chain, *i, j, from) : chain_return_to_node(chain, *i, j)) &&
        sn_peer_stats_note_loss(chain->peer_stats, hop->remote.node, sn_now_us())) {
        losses->returned = true;
        return SN_OK;
    }
    sn_log(SN_LOG_WARN, "step failed", "request_id=%s node=%s position=%d text=%s", chain->request_id, hop->report.node,
           position, err->text);
    const bool again = !memcmp(losses->rebuilt, hop->remote.node, SN_KEY_SIZE);
    const bool nobody = silent && sn_chain_is_late(chain); /* has answered since: no node is to blame */
    const bool to_blame =
        err->status != SN_REBUILD || *i + failed >= j || again || silent ||
        (!losses->returned && !sn_peer_stats_note_loss(chain->peer_stats, hop->remote.node, sn_now_us()));
    if (to_blame && !nobody) sn_chain_note_failure(chain, chain->hops, j, *i + failed);
    memcpy(losses->rebuilt, hop->remote.node, SN_KEY_SIZE);
    sn_err_context(err, "%s", hop->report.node);
    if (sn_chain_is_late(chain))
        return sn_err_context(err, "blocks %d:%d were not passed within --timeout %.1f s, last", first, end,
                              chain->options.limits.timeout_ms / 1e3);
    if (chain->call.retries < 0)
        return sn_err_context(err, "blocks %d:%d: more nodes than --max-retries allows failed in a row, last", first,
                              end);
    if (err->reason == SN_REASON_NO_ROOM && chain_is_alone(chain, *i, j, hop)) return err->status = SN_RETRY;
    cause = *err;
    if (*i + failed < j && !sn_chain_promote_replica(chain, *i, j, *i + failed, from, &why)) return SN_OK;
    sn_status status = sn_chain_replace_group(chain, i, j, position, err);
    if (status && !err->reason) err->reason = cause.reason;
    return status ? sn_err_context(err, "%.180s; and then", cause.text) : SN_OK;
}

/* -- a call that was cancelled ----------------------------------------------------------------------------------------
 */

static void group_give_up(sn_chain *chain, size_t i, size_t j, const char *why) {
    sn_log(SN_LOG_INFO, "session lost after a cancelled step", "request_id=%s node=%s text=%s", chain->request_id,
           chain->hops[i].report.node, why);
    for (; i < j; i++) chain->hops[i].length = -1; /* the next step replaces the group */
}

sn_status sn_chain_settle_group(sn_chain *chain, size_t i, int position, sn_err *err) {
    const size_t j = sn_hops_group_end(chain->hops, chain->n_hops, i);
    const int64_t now_us = sn_now_us(), left_us = chain->call.deadline_us - now_us;
    int held = 0, from = sn_hops_known_from(&chain->hops[i], j - i, position);
    if (from < 0) return sn_fail(err, SN_REBUILD, "its session ends at a position that is not known");
    sn_status status;
    do status = sn_chain_resume_group(chain, i, j, j, from, &held, err);
    while (status == SN_RETRY && sn_now_us() < now_us + left_us / 2 &&
           sn_hops_find_silent(&chain->hops[i], j - i, chain->options.link, left_us) == j - i);
    if (!status && held < from) status = sn_fail(err, SN_REBUILD, "its session holds fewer tokens");
    for (size_t k = i; k < j && !status; k++) chain->hops[k].length = from;
    return status;
}

sn_status sn_chain_settle(sn_chain *chain, int position, sn_err *err) {
    for (size_t i = 0, j; i < chain->n_hops; i = j) {
        j = sn_hops_group_end(chain->hops, chain->n_hops, i);
        if (chain->hops[i].is_local) continue;
        sn_status status = sn_chain_settle_group(chain, i, position, err);
        if (status == SN_STOP) return status;
        if (status) group_give_up(chain, i, j, err->text);
    }
    chain->unsettled = false;
    return SN_OK;
}

/* -- a faster route: moving there when tokens on it are so much faster that the replay pays off
 * ------------------------
 */

/* The chain's present route over these candidates; false: one of its nodes is not among them. */
static bool chain_present_route(const sn_chain *chain, const sn_candidates *candidates, sn_route *out) {
    for (out->n = 0; out->n < chain->n_hops; out->n++) {
        const sn_hop *hop = &chain->hops[out->n];
        size_t k = 0;
        while (k < candidates->n && (hop->is_local ? candidates->at[k].node != NULL
                                                   : !candidates->at[k].node || memcmp(candidates->at[k].node->node,
                                                                                       hop->remote.node, SN_KEY_SIZE)))
            k++;
        if (k == candidates->n) return false;
        out->legs[out->n] = (sn_route_leg){candidates->at[k].node, hop->first, hop->end, k};
    }
    out->cost_ns = sn_route_cost(candidates->at, out->legs, out->n, chain->push);
    return true;
}

static bool leg_equals(const sn_route_leg *a, const sn_route_leg *b) {
    return a->candidate == b->candidate && a->first == b->first && a->end == b->end;
}

/* The hops [*i, *j) of the present route, whole groups, in which the better route differs. Returns the cost of bringing
 * the nodes that replace them to the present length. */
static int64_t chain_find_change(const sn_chain *chain, const sn_candidates *candidates, const sn_route *now,
                                 const sn_route *better, size_t *i, size_t *j) {
    size_t tail = 0;
    for (*i = 0; *i < now->n && *i < better->n && leg_equals(&now->legs[*i], &better->legs[*i]);) ++*i;
    while (tail < now->n - *i && tail < better->n - *i &&
           leg_equals(&now->legs[now->n - 1 - tail], &better->legs[better->n - 1 - tail]))
        tail++;
    *j = now->n - tail;
    while (*i && chain->hops[*i].pushed) --*i;
    while (*j < chain->n_hops && chain->hops[*j].pushed) ++*j;
    int64_t ns = 0;
    for (size_t k = 0; k < better->n; k++) {
        const sn_route_leg *leg = &better->legs[k];
        if (leg->first < chain->hops[*i].first || leg->end > chain->hops[*j - 1].end) continue;
        const sn_candidate *c = &candidates->at[leg->candidate];
        ns += (int64_t)chain->length * (leg->end - leg->first) * c->prefill_ns + 3 * (c->rtt_ns + c->queue_ns);
    }
    return ns;
}

/* Whether to move, and which hops. */
static bool chain_has_better_route(sn_chain *chain, const sn_candidates *candidates, size_t *i, size_t *j) {
    sn_route now, better;
    sn_err none;
    const sn_chain_options *o = &chain->options;
    if (!chain_present_route(chain, candidates, &now)) return false; /* a node drains or is lost: a step will show */
    if (sn_route_shortest(candidates->at, candidates->n, chain->push, o->first, o->end, &better, &none)) return false;
    if (sn_chain_cut_route(chain, &better, &none)) return false;
    better.cost_ns = sn_route_cost(candidates->at, better.legs, better.n, chain->push);
    if (better.cost_ns >= now.cost_ns) return false;
    int64_t replay_ns = chain_find_change(chain, candidates, &now, &better, i, j);
    int64_t left = chain->max_tokens - chain->length;
    if (*i == *j || chain->hops[*i].is_local) return false;
    if (!sn_route_is_worth_rerouting(now.cost_ns, better.cost_ns, replay_ns, left)) return false;
    sn_log(SN_LOG_INFO, "rerouting", "request_id=%s cost_us=%lld new_cost_us=%lld replay_us=%lld", chain->request_id,
           (long long)now.cost_ns / 1000, (long long)better.cost_ns / 1000, (long long)replay_ns / 1000);
    return true;
}

sn_status sn_chain_maybe_reroute(sn_chain *chain, sn_err *err) {
    const sn_chain_routing *routing = &chain->options.routing;
    sn_link *link = chain->options.link;
    int64_t now_us = sn_now_us(), every_us = (int64_t)routing->reroute_every_ms * 1000;
    if (!every_us || !link || routing->throughput || routing->every_block || !chain->length) return SN_OK;
    if (!chain->reroute_us) { /* the interval begins with the first token */
        chain->reroute_us = now_us + every_us;
        chain->reroute_rest = 1;
    }
    if (now_us < chain->reroute_us) return SN_OK;
    sn_candidates candidates = {0};
    size_t i = 0, j = 0;
    sn_chain_call call = sn_chain_begin_part(chain, 2, 0);
    sn_status status = sn_link_discover(link, &chain->model, chain_answer_ms(chain, SOON_MS), err);
    if (!status && routing->measure) status = sn_chain_measure_rtt(chain, false, err);
    if (!status) status = sn_chain_list_candidates(chain, &candidates, err);
    bool move = !status && chain_has_better_route(chain, &candidates, &i, &j);
    sn_candidates_fini(&candidates);
    if (move) {
        uint64_t failovers = chain->failovers;
        status = sn_chain_replace_group(chain, &i, j, chain->length, err);
        if (!status) chain->reroutes++;
        chain->reroute_rest = !status ? 1 : chain->reroute_rest < REST_MAX ? 2 * chain->reroute_rest : REST_MAX;
        chain->failovers = failovers;
    }
    chain->call = call;
    chain->reroute_us = sn_now_us() + every_us * chain->reroute_rest;
    if (status && status != SN_STOP)
        sn_log(SN_LOG_INFO, "not rerouted", "request_id=%s text=%s", chain->request_id, err->text);
    return status == SN_STOP ? status : SN_OK;
}
