/* Spares: a copy of a hop's past at other nodes, and going on there instead of replaying. */
#include "client/chain_private.h"
#include "client/spare.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 50, LOOK_AGAIN_US = 1000000, AVOID_US = 60000000, RESUME_MS = 2000, ASK_AGAIN_US = 3000000 };

void sn_spare_free(sn_spare **spare, sn_link *link) {
    sn_spare *s = *spare;
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        if (s->asked[i]) sn_link_forget(link, s->asked[i]);
        sn_hop_fini(&s->hops[i], link);
    }
    free(s->hops);
    free(s);
    *spare = NULL;
}

/* -- making one ---------------------------------------------------------------------------------------------------- */

bool sn_chain_avoids(const sn_chain *chain, const uint8_t node[SN_KEY_SIZE]) {
    if (chain->spared && !memcmp(chain->spared->node, node, SN_KEY_SIZE)) return true;
    for (size_t i = 0; i < chain->n_avoided && i < SN_CHAIN_AVOIDED_MAX; i++)
        if (!memcmp(chain->avoided[i].node, node, SN_KEY_SIZE) && sn_now_us() < chain->avoided[i].until_us) return true;
    return false;
}

static void avoid(sn_chain *chain, const uint8_t node[SN_KEY_SIZE]) {
    if (sn_chain_avoids(chain, node)) return;
    size_t i = chain->n_avoided++ % SN_CHAIN_AVOIDED_MAX;
    memcpy(chain->avoided[i].node, node, SN_KEY_SIZE);
    chain->avoided[i].until_us = sn_now_us() + AVOID_US;
}

static sn_msg *new_send(const sn_hop_at *from, const sn_hop_at *to, sn_err *err) {
    sn_msg *msg = NULL;
    if (sn_msg_new(SN_MSG_KV_SEND, 0, &msg, err)) return NULL;
    sn_msg_kv_send *send = &msg->kv_send;
    memcpy(send->session, from->session, SN_SESSION_ID_SIZE);
    memcpy(send->target, to->session, SN_SESSION_ID_SIZE);
    memcpy(send->address, to->address, sizeof send->address);
    memcpy(send->curve_key, to->curve_key, SN_KEY_SIZE);
    send->first_block = (uint64_t)to->first;
    send->end_block = (uint64_t)to->end;
    return msg;
}

/* Has the past sent to the i-th session of the spare; asked again, it is answered again. */
static sn_status ask(sn_chain *chain, const sn_hop_at *hop, sn_spare *spare, size_t i, sn_err *err) {
    sn_msg *msg = new_send(hop, &spare->hops[i], err);
    if (!msg) return SN_STOP;
    sn_link_forget(chain->options.link, spare->asked[i]);
    spare->again_us = sn_now_us() + ASK_AGAIN_US;
    return sn_link_ask(chain->options.link, hop->peer, &msg, &spare->asked[i], err);
}

/* Opens sessions at others, as few as can be, and has the past sent there. */
static sn_status begin(sn_chain *chain, sn_hop_at *hop, sn_err *err) {
    sn_spare *spare = NULL;
    int retries = 1;
    sn_status status = sn_calloc(&spare, 1, sizeof *spare, err);
    if (!status) status = sn_calloc(&spare->hops, SN_HOPS_MAX, sizeof *spare->hops, err);
    if (status) {
        free(spare);
        return status;
    }
    chain->spared = hop;
    status = sn_chain_connect(chain, hop->first, hop->end, LOOK_MS, &retries, spare->hops, &spare->n, err);
    chain->spared = NULL;
    if (status) spare->n = 0;
    for (size_t i = 0; i < spare->n && !status; i++) status = ask(chain, hop, spare, i, err);
    if (status) sn_spare_free(&spare, chain->options.link);
    hop->spare = spare;
    return status;
}

static void look(sn_chain *chain, sn_hop_at *hop) {
    sn_err err;
    if (sn_now_us() < hop->spare_us) return;
    hop->spare_us = sn_now_us() + LOOK_AGAIN_US;
    if (begin(chain, hop, &err))
        sn_log(SN_LOG_WARN, "no other node for a copy of a past", "flow=%s blocks=%d:%d text=%s", chain->flow, hop->first, hop->end, err.text);
}

static void drop(sn_chain *chain, sn_hop_at *hop, const char *why) {
    sn_log(SN_LOG_INFO, "a copy of a past is given up", "flow=%s blocks=%d:%d text=%s", chain->flow, hop->first, hop->end, why);
    sn_spare_free(&hop->spare, chain->options.link);
}

/* Takes the answers that have come. True when all of the past has been there once. */
static bool is_ready(sn_chain *chain, sn_hop_at *hop) {
    sn_spare *spare = hop->spare;
    bool ready = true;
    for (size_t i = 0; i < spare->n; i++) {
        sn_wait lost = {.peers = &spare->hops[i].peer, .n_peers = 1};
        if (sn_link_lost(chain->options.link, &lost) || sn_link_leaving(chain->options.link, spare->hops[i].session)) {
            if (!lost.lost) avoid(chain, spare->hops[i].node);
            drop(chain, hop, lost.lost ? "its node is lost" : "its node leaves, too");
            return false;
        }
        sn_msg *answer = spare->asked[i] ? sn_link_answer(chain->options.link, spare->asked[i]) : NULL;
        bool sent = answer && answer->kind == SN_MSG_KV_SENT;
        if (answer) spare->asked[i] = 0;
        if (answer && !sent) drop(chain, hop, answer->kind == SN_MSG_ERROR ? answer->error.text : "another answer was due");
        sn_msg_free(&answer);
        if (!hop->spare) return false;
        if (!spare->asked[i]) continue;
        ready = false;
        sn_err err;
        if (sn_now_us() > spare->again_us && ask(chain, hop, spare, i, &err)) {
            drop(chain, hop, err.text);
            return false;
        }
    }
    return ready;
}

/* -- going on there ------------------------------------------------------------------------------------------------ */

/* Every session of the group [i, j), with hop k's spare in its place, is told to go on at `position`. *from: of what every one of
 * them has the past. */
static sn_status resume_all(sn_chain *chain, size_t i, size_t j, size_t k, int position, int *from, sn_err *err) {
    sn_hop_at *old = &chain->hops[k];
    const uint8_t *before = NULL; /* the node that pushes into the next one */
    sn_status status = SN_OK;
    *from = position;
    for (size_t x = i; x < j && !status; x++) {
        sn_hop_at *hops = x == k ? old->spare->hops : &chain->hops[x];
        size_t n = x == k ? old->spare->n : 1;
        for (size_t m = 0; m < n && !status; m++) {
            int length = 0;
            bool pushed = m ? hops[m].pushed : x > i;
            status = sn_hop_resume(&hops[m], chain->options.link, position, old->step, pushed ? before : NULL,
                                   chain->hops[x].timeline, RESUME_MS, &length, err);
            if (length < *from) *from = length;
            before = hops[m].curve_key;
        }
    }
    if (!status && *from < position && !sn_hop_can_replay(&chain->hops[i], *from))
        status = sn_fail(err, SN_REBUILD, "what the copy lacks cannot be sent again");
    return status;
}

/* Puts the spare of hop k in its place in the list; the old session is closed. */
static sn_status put_in_place(sn_chain *chain, size_t k, int position, sn_err *err) {
    sn_hop_at old = chain->hops[k];
    sn_spare *spare = old.spare;
    if (chain->n_hops - 1 + spare->n > SN_HOPS_MAX)
        return sn_fail(err, SN_RETRY, "the way over the nodes that are left takes more than %d hops", SN_HOPS_MAX);
    spare->hops[0].pushed = old.pushed;
    for (size_t m = 0; m < spare->n; m++) {
        sn_status status = sn_hop_take_over(&spare->hops[m], &old, position, chain->hp.n_embd, err);
        if (status) return status; /* nothing but memory can be out */
    }
    memmove(chain->hops + k + spare->n, chain->hops + k + 1, (chain->n_hops - k - 1) * sizeof *chain->hops);
    memcpy(chain->hops + k, spare->hops, spare->n * sizeof *spare->hops);
    chain->n_hops += spare->n - 1;
    spare->n = 0; /* its sessions are the chain's now */
    sn_hop_fini(&old, chain->options.link);
    return SN_OK;
}

sn_status sn_chain_take_spare(sn_chain *chain, size_t i, size_t j, size_t k, int position, sn_err *err) {
    sn_hop_at *hop = &chain->hops[k];
    int from = 0;
    if (position < 0 || !hop->spare || !is_ready(chain, hop)) return sn_fail(err, SN_RETRY, "there is no copy of this past");
    size_t n = hop->spare->n;
    sn_status status = resume_all(chain, i, j, k, position, &from, err);
    if (!status) status = put_in_place(chain, k, position, err);
    if (status) {
        if (chain->hops[k].spare) drop(chain, &chain->hops[k], err->text);
        return status;
    }
    if (from < position && sn_chain_replay(chain, chain->hops + i, j - i - 1 + n, chain->hops[i].inputs, from, position, err)) {
        sn_log(SN_LOG_WARN, "what a copy lacked was not sent", "text=%s", err->text);
        /* Nobody knows how far it came: the step that follows begins with another place for these blocks. */
        for (size_t m = k; m < k + n; m++)
            if (chain->hops[m].length >= position) chain->hops[m].timeline[position] = (sn_hash){0};
    }
    chain->failovers++;
    chain->taken_over++;
    sn_log(SN_LOG_INFO, "blocks taken over", "flow=%s blocks=%d:%d tokens=%d missing=%d", chain->flow, chain->hops[k].first,
           chain->hops[k + n - 1].end, position, position - from);
    return SN_OK;
}

/* What the copy lacks still; the answer comes when all of it is there. */
static sn_status send_rest(sn_chain *chain, const sn_hop_at *hop, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t m = 0; m < hop->spare->n && !status; m++) {
        sn_msg *msg = new_send(hop, &hop->spare->hops[m], err), *sent = NULL;
        if (!msg) return SN_STOP;
        status = sn_link_call(chain->options.link, hop->address, hop->curve_key, &msg, SN_MSG_KV_SENT, RESUME_MS, NULL, &sent, err);
        sn_msg_free(&sent);
    }
    return status;
}

/* The node leaves and the copy is there: the rest of it, and over. */
static void change_over(sn_chain *chain, size_t k) {
    sn_err err;
    sn_hop_at *hop = &chain->hops[k];
    size_t i = k, j = sn_chain_group_end(chain->hops, chain->n_hops, k);
    while (chain->hops[i].pushed) i--;
    sn_status status = send_rest(chain, hop, &err);
    if (status == SN_STOP) return;
    if (status) drop(chain, hop, err.text);
    else if (sn_chain_take_spare(chain, i, j, k, sn_chain_known_from(chain, i, j, chain->length), &err))
        sn_log(SN_LOG_WARN, "a past was not taken over", "text=%s", err.text);
}

void sn_chain_attend(sn_chain *chain) {
    sn_link *link = chain->options.link;
    if (!link) return;
    sn_link_attend(link);
    for (size_t k = 0; k < chain->n_hops; k++) {
        sn_hop_at *hop = &chain->hops[k];
        if (hop->local) continue;
        if (!hop->leaving && sn_link_leaving(link, hop->session)) {
            sn_log(SN_LOG_INFO, "a node leaves", "node=%s blocks=%d:%d", hop->report.node, hop->first, hop->end);
            hop->leaving = true;
            hop->spare_us = 0;
            avoid(chain, hop->node);
        }
        if (!hop->leaving && !chain->options.replica) continue;
        if (!hop->spare) look(chain, hop);
        hop->report.copied = hop->spare && is_ready(chain, hop);
        if (hop->report.copied && hop->leaving) change_over(chain, k);
    }
}

sn_status sn_chain_await_copy(sn_chain *chain, size_t k, int timeout_ms, sn_err *err) {
    for (int64_t until = sn_now_us() + (int64_t)timeout_ms * 1000;; sn_sleep_us(2000)) {
        sn_chain_attend(chain);
        if (k >= chain->n_hops || chain->hops[k].local) return sn_fail(err, SN_REFUSED, "hop %zu is at no node", k);
        const sn_hop_at *hop = &chain->hops[k];
        if (hop->report.copied) return send_rest(chain, hop, err);
        if (sn_now_us() > until)
            return sn_fail(err, SN_RETRY, "there was no copy of the past of blocks %d:%d within %.1f s", hop->first, hop->end, timeout_ms / 1e3);
    }
}

uint64_t sn_chain_taken_over(const sn_chain *chain) { return chain->taken_over; }
uint64_t sn_chain_replayed(const sn_chain *chain) { return chain->replayed; }
