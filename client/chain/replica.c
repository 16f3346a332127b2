/* KV replicas and draining nodes: copies of a hop's KV cache at other nodes, and continuing there without a replay.
 *
 * A replica is made for every remote hop when the options ask for it, and for a hop whose node drains. sn_chain_poll
 * does the work between steps, without waiting: it opens sessions over the hop's blocks at other nodes (as few as
 * possible) and asks the hop's node to send its KV pages there (KV_SEND). The node replies when all pages have arrived
 * once, and keeps the copy up to date afterwards.
 *
 * sn_chain_promote_replica continues in these sessions: each node of the group is told the position (RESUME) and
 * answers how many tokens it holds. The tokens that the copy lacks are replayed. For a draining node the rest of the KV
 * pages is sent first, so nothing is lacking. */
#include "client/chain/chain_private.h"
#include "client/chain/replica.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { REPLICA_RETRY_US = 1000000, DRAINING_AVOID_US = 60000000, RESUME_MS = 2000, RESEND_US = 3000000 };
enum { REPLICA_RETRY_US_MAX = 60000000 };
/* How long a session with recurrent states looks for a node to be copied to, before it is replayed. */
enum { COPY_PATIENCE_US = 5000000 };

void sn_kv_replica_free(sn_kv_replica **replica, sn_link *link) {
    sn_kv_replica *s = *replica;
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        if (s->pending[i]) sn_link_cancel_request(link, s->pending[i]);
        sn_hop_fini(&s->hops[i], link);
    }
    free(s->hops);
    free(s);
    *replica = NULL;
}

/* -- making a replica
 * ---------------------------------------------------------------------------------------------------- */

bool sn_chain_avoids(const sn_chain *chain, const uint8_t node[SN_KEY_SIZE]) {
    if (chain->being_replicated && !memcmp(chain->being_replicated->remote.node, node, SN_KEY_SIZE)) return true;
    for (size_t i = 0; i < chain->n_draining && i < SN_CHAIN_DRAINING_MAX; i++)
        if (!memcmp(chain->draining[i].node, node, SN_KEY_SIZE) && sn_now_us() < chain->draining[i].until_us)
            return true;
    return false;
}

/* For DRAINING_AVOID_US no session is opened at the node. */
static void chain_avoid_node(sn_chain *chain, const uint8_t node[SN_KEY_SIZE]) {
    if (sn_chain_avoids(chain, node)) return;
    size_t i = chain->n_draining++ % SN_CHAIN_DRAINING_MAX;
    memcpy(chain->draining[i].node, node, SN_KEY_SIZE);
    chain->draining[i].until_us = sn_now_us() + DRAINING_AVOID_US;
}

/* The announcement of the hop's node as this client knows it, or NULL. */
static const sn_blob *chain_announcement(const sn_chain *chain, const sn_hop *hop) {
    return sn_directory_find_sealed(sn_link_directory(chain->options.link), hop->remote.node);
}

/* A request to the node of `from`: send the KV pages of to's blocks to the session of `to`. */
static sn_status kv_send_msg_new(const sn_chain *chain, const sn_hop *from, const sn_hop *to, sn_msg **out,
                                 sn_err *err) {
    const sn_hop_remote *target = &to->remote;
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_KV_SEND, 0, &msg, err);
    if (status) return status;
    sn_msg_kv_send *send = &msg->kv_send;
    if ((status = sn_announcement_list(chain_announcement(chain, to), &send->node, &send->n_node, err))) {
        sn_msg_free(&msg);
        return status;
    }
    memcpy(send->session, from->remote.session, SN_SESSION_ID_SIZE);
    memcpy(send->target, target->session, SN_SESSION_ID_SIZE);
    send->first_block = (uint64_t)to->first;
    send->end_block = (uint64_t)to->end;
    *out = msg;
    return SN_OK;
}

/* Asks the hop's node to send its KV pages to session i of the replica. The request can be repeated: the node then
 * answers again. */
static sn_status replica_request_kv(sn_chain *chain, const sn_hop *hop, sn_kv_replica *replica, size_t i, sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = kv_send_msg_new(chain, hop, &replica->hops[i], &msg, err);
    if (status) return status;
    sn_link_cancel_request(chain->options.link, replica->pending[i]);
    replica->resend_us = sn_now_us() + RESEND_US;
    return sn_link_request_async(chain->options.link, hop->remote.peer, &msg, &replica->pending[i], err);
}

static sn_status replica_begin(sn_chain *chain, sn_hop *hop, sn_err *err) {
    sn_kv_replica *replica = NULL;
    sn_status status = sn_calloc(&replica, 1, sizeof *replica, err);
    if (!status) status = sn_calloc(&replica->hops, SN_HOPS_MAX, sizeof *replica->hops, err);
    if (status) {
        free(replica);
        return status;
    }
    chain->being_replicated = hop;
    chain->call.retries = 1;
    status = sn_chain_connect(chain, hop->first, hop->end, SN_CHAIN_WAIT_BRIEFLY, replica->hops, &replica->n, err);
    chain->being_replicated = NULL;
    if (status) replica->n = 0;
    if (!status && chain->hp.conv_taps && replica->n > 1) /* what enters the second node's blocks is nowhere kept */
        status = sn_fail(err, SN_RETRY, "no single node can hold a copy of recurrent states");
    for (size_t i = 0; i < replica->n && !status; i++) status = replica_request_kv(chain, hop, replica, i, err);
    if (status) sn_kv_replica_free(&replica, chain->options.link);
    hop->remote.replica = replica;
    return status;
}

static void replica_try_begin(sn_chain *chain, sn_hop *hop) {
    sn_err err;
    sn_hop_remote *r = &hop->remote;
    if (sn_now_us() < r->replica_retry_us) return;
    sn_status status = replica_begin(chain, hop, &err);
    /* A try may cost a token some seconds, where nodes do not answer. */
    r->replica_wait_us = 2 * r->replica_wait_us < REPLICA_RETRY_US_MAX ? 2 * r->replica_wait_us : REPLICA_RETRY_US_MAX;
    if (!status || !r->replica_wait_us) r->replica_wait_us = REPLICA_RETRY_US;
    r->replica_retry_us = sn_now_us() + r->replica_wait_us;
    if (status)
        sn_log(SN_LOG_WARN, "no node for a KV replica", "request_id=%s blocks=%d:%d text=%s", chain->request_id,
               hop->first, hop->end, err.text);
}

static void replica_drop(sn_chain *chain, sn_hop *hop, const char *why) {
    sn_log(SN_LOG_INFO, "KV replica dropped", "request_id=%s blocks=%d:%d text=%s", chain->request_id, hop->first,
           hop->end, why);
    sn_kv_replica_free(&hop->remote.replica, chain->options.link);
}

/* Reads the replies that have arrived, and drops the replica when it can no longer be used. True when the whole KV
 * cache has been copied once. */
static bool replica_is_ready(sn_chain *chain, sn_hop *hop) {
    sn_kv_replica *replica = hop->remote.replica;
    bool ready = true;
    for (size_t i = 0; i < replica->n; i++) {
        const sn_hop_remote *target = &replica->hops[i].remote;
        sn_wait lost = {.peers = &target->peer, .n_peers = 1};
        if (sn_link_lost(chain->options.link, &lost) ||
            sn_link_is_draining(chain->options.link, target->peer, target->session)) {
            if (!lost.lost) chain_avoid_node(chain, target->node);
            replica_drop(chain, hop, lost.lost ? "its node is lost" : "its node drains, too");
            return false;
        }
        sn_msg *reply = replica->pending[i] ? sn_link_take_reply(chain->options.link, replica->pending[i]) : NULL;
        bool sent = reply && reply->kind == SN_MSG_KV_SEND_REPLY;
        if (reply) replica->pending[i] = 0;
        if (reply && !sent)
            replica_drop(chain, hop, reply->kind == SN_MSG_ERROR ? reply->error.text : "the reply is of another kind");
        sn_msg_free(&reply);
        if (!hop->remote.replica) return false;
        if (!replica->pending[i]) continue;
        ready = false;
        sn_err err;
        if (sn_now_us() > replica->resend_us && replica_request_kv(chain, hop, replica, i, &err)) {
            replica_drop(chain, hop, err.text);
            return false;
        }
    }
    return ready;
}

/* -- promoting it ------------------------------------------------------------------------------------------------ */

sn_status sn_chain_resume_group(sn_chain *chain, size_t i, size_t j, size_t k, int position, int *from, sn_err *err) {
    const sn_kv_replica *replica = k < j ? chain->hops[k].remote.replica : NULL;
    const uint8_t *before = NULL; /* CURVE key of the node that pushes into the next one */
    sn_status status = SN_OK;
    uint64_t step = 0;
    *from = position;
    for (size_t x = i; x < j; x++)
        if (step <= chain->hops[x].remote.step_sent) step = chain->hops[x].remote.step_sent + 1;
    for (size_t x = i; x < j && !status; x++) {
        sn_hop *hops = x == k ? replica->hops : &chain->hops[x];
        size_t n = x == k ? replica->n : 1;
        for (size_t m = 0; m < n && !status; m++) {
            int length = 0;
            bool pushed = m ? hops[m].pushed : x > i;
            const sn_hop *next = replica && x + 1 == k               ? &replica->hops[0]
                                 : x == k && m + 1 == n && k + 1 < j ? &chain->hops[k + 1]
                                                                     : NULL; /* the others push where they did */
            sn_resume_point at = {position, step, pushed ? before : NULL, next ? chain_announcement(chain, next) : NULL,
                                  chain->hops[x].remote.timeline};
            if (next && !at.next)
                return sn_fail(err, SN_RETRY, "%s does not announce itself any more", next->report.node);
            status =
                sn_hop_resume(&hops[m], chain->options.link, &at, sn_chain_left_ms(chain, RESUME_MS), &length, err);
            if (length < *from) *from = length;
            before = hops[m].remote.curve_key;
        }
    }
    if (!status && *from < position && !sn_hop_can_replay(&chain->hops[i], *from))
        status = sn_fail(err, SN_REBUILD, "the tokens that the KV replica lacks cannot be replayed");
    return status;
}

/* Puts the hops of the replica in the place of hop k; the old session is closed. */
static sn_status replica_put_in_place(sn_chain *chain, size_t k, int position, sn_err *err) {
    sn_hop old = chain->hops[k];
    sn_kv_replica *replica = old.remote.replica;
    if (chain->n_hops - 1 + replica->n > SN_HOPS_MAX)
        return sn_fail(err, SN_RETRY, "the route over the nodes that are left has more than %d hops", SN_HOPS_MAX);
    replica->hops[0].pushed = old.pushed;
    for (size_t m = 0; m < replica->n; m++) {
        sn_status status = sn_hop_copy_timeline(&replica->hops[m], &old, position, err);
        if (status) return status; /* out of memory */
    }
    memmove(chain->hops + k + replica->n, chain->hops + k + 1, (chain->n_hops - k - 1) * sizeof *chain->hops);
    memcpy(chain->hops + k, replica->hops, replica->n * sizeof *replica->hops);
    chain->n_hops += replica->n - 1;
    replica->n = 0; /* the chain owns its sessions now */
    sn_hop_fini(&old, chain->options.link);
    return SN_OK;
}

sn_status sn_chain_promote_replica(sn_chain *chain, size_t i, size_t j, size_t k, int position, sn_err *err) {
    sn_hop *hop = &chain->hops[k];
    int from = 0;
    if (position < 0 || !hop->remote.replica || !replica_is_ready(chain, hop))
        return sn_fail(err, SN_RETRY, "there is no KV replica");
    size_t n = hop->remote.replica->n;
    sn_status status = sn_chain_resume_group(chain, i, j, k, position, &from, err);
    if (!status) status = replica_put_in_place(chain, k, position, err);
    if (status) {
        if (chain->hops[k].remote.replica) replica_drop(chain, &chain->hops[k], err->text);
        return status;
    }
    if (from < position &&
        sn_chain_replay(chain, chain->hops + i, j - i - 1 + n, chain->hops + i, from, position, err)) {
        sn_log(SN_LOG_WARN, "KV replica not completed", "text=%s", err->text);
        for (size_t m = i; m < j - 1 + n; m++) chain->hops[m].length = -1; /* the next step replaces the group */
    }
    chain->failovers++;
    chain->replicas_promoted++;
    sn_log(SN_LOG_INFO, "KV replica promoted", "request_id=%s blocks=%d:%d tokens=%d missing=%d", chain->request_id,
           chain->hops[k].first, chain->hops[k + n - 1].end, position, position - from);
    return SN_OK;
}

/* Has the tokens that the replica still lacks sent, and waits until they have arrived. */
static sn_status replica_send_rest(sn_chain *chain, const sn_hop *hop, sn_err *err) {
    sn_status status = SN_OK;
    const sn_hop_remote *source = &hop->remote;
    for (size_t m = 0; m < source->replica->n && !status; m++) {
        sn_msg *msg = NULL, *sent = NULL;
        if ((status = kv_send_msg_new(chain, hop, &source->replica->hops[m], &msg, err))) return status;
        sn_call call = {source->address, source->curve_key, SN_MSG_KV_SEND_REPLY, sn_chain_left_ms(chain, RESUME_MS)};
        status = sn_link_call(chain->options.link, &call, &msg, NULL, &sent, err);
        sn_msg_free(&sent);
    }
    return status;
}

/* The node drains and the replica is ready. */
static void hop_switch_to_replica(sn_chain *chain, size_t k) {
    sn_err err;
    sn_hop *hop = &chain->hops[k];
    size_t i = k, j = sn_hops_group_end(chain->hops, chain->n_hops, k);
    while (chain->hops[i].pushed) i--;
    sn_status status = replica_send_rest(chain, hop, &err);
    if (status == SN_STOP) return;
    if (status)
        replica_drop(chain, hop, err.text);
    else if (sn_chain_promote_replica(chain, i, j, k, sn_hops_known_from(&chain->hops[i], j - i, chain->length), &err))
        sn_log(SN_LOG_WARN, "KV replica not promoted", "text=%s", err.text);
    else
        chain->drains++;
}

/* Whether a copy of the hop's KV cache is possible: in models with recurrent states a hop has to have one. */
static bool hop_can_be_copied(const sn_chain *chain, const sn_hop *hop) {
    return !chain->hp.conv_taps || sn_n_recurrent(&chain->hp, hop->first, hop->end);
}

/* Whether a hop with recurrent states, whose node drains, no longer waits for another node to copy it to. */
static bool hop_is_to_be_left(const sn_chain *chain, const sn_hop *hop) {
    const sn_hop_remote *r = &hop->remote;
    if (!chain->hp.conv_taps || !r->draining || r->replica) return false;
    return !hop_can_be_copied(chain, hop) || sn_now_us() >= r->copy_until_us;
}

/* The node drains, and its KV cache cannot be copied: the next step replays the session elsewhere. */
static void chain_leave_hop(sn_chain *chain, size_t k) {
    size_t i = k, j = sn_hops_group_end(chain->hops, chain->n_hops, k);
    while (chain->hops[i].pushed) i--;
    if (chain->hops[i].length >= 0) chain->drains++;
    for (; i < j; i++) chain->hops[i].length = -1; /* the next step replaces the group */
}

void sn_chain_poll_hops(sn_chain *chain) {
    sn_link *link = chain->options.link;
    if (!link) return;
    sn_link_poll(link);
    sn_chain_call call = sn_chain_begin_part(chain, 4, 1);
    for (size_t k = 0; k < chain->n_hops; k++) {
        sn_hop *hop = &chain->hops[k];
        sn_hop_remote *r = &hop->remote;
        if (hop->is_local) continue;
        if (!r->draining && sn_link_is_draining(link, r->peer, r->session)) {
            sn_log(SN_LOG_INFO, "node draining", "node=%s blocks=%d:%d", hop->report.node, hop->first, hop->end);
            r->draining = true;
            r->replica_retry_us = 0;
            r->copy_until_us = sn_now_us() + COPY_PATIENCE_US;
            chain_avoid_node(chain, r->node);
        }
        if (!r->draining && !chain->options.kv.replica) continue;
        if (!r->replica && hop_can_be_copied(chain, hop)) replica_try_begin(chain, hop);
        if (hop_is_to_be_left(chain, hop)) chain_leave_hop(chain, k);
        hop->report.replicated = r->replica && replica_is_ready(chain, hop);
        if (hop->report.replicated && r->draining) hop_switch_to_replica(chain, k);
    }
    chain->call = call;
}

void sn_chain_poll(sn_chain *chain) {
    sn_chain_begin_call(chain);
    sn_chain_poll_hops(chain);
}

sn_status sn_chain_await_replica(sn_chain *chain, size_t k, int timeout_ms, sn_err *err) {
    for (int64_t until = sn_now_us() + (int64_t)timeout_ms * 1000;; sn_sleep_us(2000)) {
        sn_chain_poll(chain);
        if (k >= chain->n_hops || chain->hops[k].is_local)
            return sn_fail(err, SN_REFUSED, "hop %zu is not at a node", k);
        const sn_hop *hop = &chain->hops[k];
        if (hop->report.replicated) return replica_send_rest(chain, hop, err);
        if (sn_now_us() > until)
            return sn_fail(err, SN_RETRY, "there was no KV replica of blocks %d:%d within %.1f s", hop->first, hop->end,
                           timeout_ms / 1e3);
    }
}
