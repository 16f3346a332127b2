/* Discovery of nodes. It sends PEERS to every joined node as soon as its CURVE key is known (net/introduction.h), and,
 * when none answers soon, to a few nodes of the directory, since the joined nodes may be gone. A node that is too busy
 * to answer is asked again when it said, whatever others refuse (client/net/refusals.h). The first answer is enough. It
 * begins with that node itself and the nodes that it has proven: from a joined node, they count as proven here, too.
 * Where the answer says that there is more, a few further pages are read from a random place; nodes that the user named
 * are asked for by name or id. */
#include "client/net/link_private.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

enum {
    KNOWN_ASKED_MAX = 16, /* nodes of the directory asked by discovery */
    REASK_US = 300000,    /* without an answer, discovery asks others, and again after twice as long, and so on: */
    REASK_MAX_US = 5000000,
    REJECTIONS = 2,     /* messages of another swarm after which a joined node is given up */
    PROVEN_MS = 600000, /* for which a joined node's word proves a node */
    PAGES_MAX = 4,      /* further pages of a node's PEERS list */
    PAGE_US = 1000000,  /* to wait for each of them */
    DIGITS_MIN = 4,     /* a shorter word is no beginning of an id */
};

/* Whether no joined node can be used: each has sent what is no message, more than once, and nothing else. */
static bool link_is_rejected(const sn_link *link) {
    for (size_t i = 0; i < link->n_seeds; i++)
        if (link->answers[i].rejections < REJECTIONS || link->answers[i].answered) return false;
    return link->n_seeds && link->n_seeds == link->n_joined && !sn_directory_count(link->directory);
}

/* A joined node that was asked for its key again has its place already. */
static void link_take_seed(sn_link *link, const sn_seed *seed) {
    size_t i = 0;
    while (i < link->n_seeds && !(link->answers[i].asked_again && !strcmp(link->seeds[i].address, seed->address))) i++;
    if (i == LINK_SEEDS_MAX) return;
    link->answers[i].asked_again = false;
    if (i == link->n_seeds)
        link->n_seeds++;
    else if (!memcmp(link->seeds[i].curve_key, seed->curve_key, SN_KEY_SIZE))
        return;
    link->seeds[i] = *seed;
    link->seed_peers[i] = 0; /* it is dialled by this key */
}

static void link_take_seeds(sn_link *link) {
    sn_seed seed;
    while (link->introducer && sn_introducer_next(link->introducer, seed.address, seed.curve_key))
        link_take_seed(link, &seed);
}

/* What a node is asked for with PEERS: some of the announcements that it knows. */
typedef struct peers_query {
    const sn_hash *model; /* NULL: of every model */
    uint64_t from_tag, to_tag;
    const char *name; /* NULL: of any name */
} peers_query;

static sn_status peers_query_message(const peers_query *query, uint64_t correlation_id, sn_msg **out, sn_err *err) {
    sn_status status = sn_msg_new(SN_MSG_PEERS, correlation_id, out, err);
    if (status) return status;
    sn_msg_peers *peers = &(*out)->peers;
    peers->protocol = SN_PROTOCOL_VERSION;
    peers->from_tag = query->from_tag;
    peers->to_tag = query->to_tag;
    if (query->name) snprintf(peers->name, sizeof peers->name, "%s", query->name);
    if (query->model) memcpy(peers->model, query->model->bytes, SN_KEY_SIZE);
    return SN_OK;
}

/* The range of tags of ids that begin with these hexadecimal digits; false: they are none, or too few. */
static bool peers_query_digits(const char *digits, uint64_t *from_tag, uint64_t *to_tag) {
    static const char all[] = "0123456789abcdef";
    size_t n = strlen(digits);
    *from_tag = *to_tag = 0;
    if (n < DIGITS_MIN || n != strspn(digits, all)) return false;
    for (size_t i = 0; i < 16; i++) {
        const char *at = i < n ? strchr(all, digits[i]) : NULL;
        uint64_t value = at ? (uint64_t)(at - all) : 0;
        *from_tag = *from_tag << 4 | value;
        *to_tag = *to_tag << 4 | (at ? value : 15);
    }
    return true;
}

static sn_status peers_ask(sn_link *link, sn_peer peer, const peers_query *query, uint64_t correlation_id,
                           sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = peers_query_message(query, correlation_id, &msg, err);
    if (status) return status;
    status = sn_link_send(link, peer, &msg, err);
    return status == SN_RETRY ? SN_OK : status; /* this node cannot be reached now; another one may */
}

static sn_status peers_dial_and_ask(sn_link *link, const sn_seed *seed, const sn_hash *model, uint64_t correlation_id,
                                    sn_peer *peer, sn_err *err) {
    *peer = 0;
    sn_status status = sn_link_dial(link, seed->address, seed->curve_key, peer, err);
    if (status) return status == SN_RETRY ? SN_OK : status;
    if (!sn_refusals_may_ask(&link->refusals, *peer, sn_now_us())) return SN_OK;
    return peers_ask(link, *peer, &(peers_query){.model = model}, correlation_id, err);
}

/* Asks those from `from` on, and those that were not dialled yet. */
static sn_status link_ask_seeds(sn_link *link, size_t from, const sn_hash *model, uint64_t correlation_id,
                                sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; i < link->n_seeds && !status; i++)
        if (i >= from || !link->seed_peers[i])
            status = peers_dial_and_ask(link, &link->seeds[i], model, correlation_id, &link->seed_peers[i], err);
    return status;
}

/* Asks a few nodes of the directory, proven ones first. */
static sn_status link_ask_known(sn_link *link, const sn_hash *model, uint64_t correlation_id, sn_err *err) {
    sn_status status = SN_OK;
    size_t asked = 0;
    for (int proven = 1; proven >= 0; proven--)
        for (size_t i = 0; i < sn_directory_count(link->directory) && asked < KNOWN_ASKED_MAX && !status; i++) {
            const sn_announcement *node = sn_directory_at(link->directory, i);
            if (sn_directory_is_proven(link->directory, node->node, sn_unix_ms()) != proven) continue;
            sn_seed known;
            sn_peer peer;
            memcpy(known.address, node->address, sizeof known.address);
            memcpy(known.curve_key, node->curve_key, SN_KEY_SIZE);
            status = peers_dial_and_ask(link, &known, model, correlation_id, &peer, err);
            asked++;
        }
    return status;
}

static bool peer_is_seed(const sn_link *link, sn_peer peer) {
    for (size_t i = 0; i < link->n_seeds; i++)
        if (link->seed_peers[i] == peer) return true;
    return false;
}

static void link_take_announcements(sn_link *link, sn_peer from, const sn_msg_peers_reply *peers) {
    sn_err err;
    const sn_announcement_source source = {.peer = from, .dialled = true};
    int64_t now_ms = sn_unix_ms();
    uint64_t proven = peer_is_seed(link, from) ? peers->proven : 0;
    for (size_t i = 0; i < peers->n_announcements; i++) {
        const sn_blob *sealed = &peers->announcements[i];
        sn_directory_change change;
        uint64_t tag;
        if (sn_directory_update(link->directory, sealed->data, sealed->len, now_ms, &source, &change, &tag, &err))
            sn_log_rated(change == SN_CHANGE_NAMED ? SN_LOG_INFO : SN_LOG_DEBUG, "announcement dropped", "text=%s",
                         err.text);
        else if (i < proven)
            sn_directory_prove(link->directory,
                               sn_directory_known_at(link->directory, sn_directory_seek(link->directory, tag))->node,
                               now_ms + PROVEN_MS);
    }
}

static void link_take_late_answers(sn_link *link) {
    for (size_t i = 0; i < link->n_seeds; i++) {
        if (link->answers[i].late)
            link_take_announcements(link, link->seed_peers[i], &link->answers[i].late->peers_reply);
        sn_msg_free(&link->answers[i].late);
    }
}

/* Asks one node, and takes what it answers within PAGE_US. *next: where its next page begins; 0: there is none. */
static sn_status link_ask_one(sn_link *link, sn_peer from, const peers_query *query, uint64_t *next, sn_err *err) {
    uint64_t correlation_id = sn_link_new_correlation_id();
    int64_t page_us = sn_now_us() + PAGE_US, until_us = link->discovery_until_us;
    int64_t deadline = page_us < until_us ? page_us : until_us;
    sn_msg *msg = NULL;
    *next = 0;
    sn_status status = peers_ask(link, from, query, correlation_id, err);
    while (!status && !msg && sn_now_us() < deadline)
        status = sn_link_receive_reply(link, correlation_id, deadline, &msg, NULL, err);
    if (status || !msg) return status;
    if (msg->kind == SN_MSG_PEERS_REPLY) {
        link_take_announcements(link, from, &msg->peers_reply);
        *next = msg->peers_reply.next_tag;
    }
    sn_msg_free(&msg);
    return SN_OK;
}

/* In a large swarm a node lists its peers page by page. A few further pages from a random place are a sufficient
 * sample; if all clients read the same first pages, all would choose the same nodes. */
static sn_status link_read_peer_pages(sn_link *link, sn_peer from, const sn_hash *model, sn_err *err) {
    uint64_t tag;
    sn_status status = SN_OK;
    sn_random(&tag, sizeof tag);
    for (int page = 0; page < PAGES_MAX && tag && !status; page++)
        status = link_ask_one(link, from, &(peers_query){.model = model, .from_tag = tag}, &tag, err);
    return status;
}

static sn_status link_ask_for_wanted(sn_link *link, sn_peer from, const sn_hash *model, sn_err *err) {
    sn_status status = SN_OK;
    uint64_t next;
    for (size_t i = 0; i < link->n_wanted && !status; i++) {
        peers_query query = {.model = model};
        if (peers_query_digits(link->wanted[i], &query.from_tag, &query.to_tag))
            status = link_ask_one(link, from, &query, &next, err);
        query = (peers_query){.model = model, .name = link->wanted[i]};
        if (!status) status = link_ask_one(link, from, &query, &next, err);
    }
    return status;
}

void sn_link_look_for(sn_link *link, const char *const *names, size_t n) {
    for (size_t i = 0; i < n && i < SN_LINK_WANTED_MAX; i++)
        snprintf(link->wanted[i], sizeof link->wanted[i], "%s", names[i]);
    link->n_wanted = n < SN_LINK_WANTED_MAX ? n : SN_LINK_WANTED_MAX;
}

static bool link_has_seed(const sn_link *link) {
    for (size_t i = 0; i < link->n_seeds; i++)
        if (sn_link_is_connected(link, link->seed_peers[i])) return true;
    return false;
}

static sn_status link_fail_silence(const sn_link *link, int64_t waited_us, sn_err *err) {
    bool why = link->outage.status != SN_OK;
    return sn_fail(err, SN_RETRY,
                   "no node answered at %s within %.1f seconds: is it running, and the address right?%s%s%s",
                   *link->joined ? link->joined : "any address (none was given: use --join)", (double)waited_us / 1e6,
                   why ? " (" : "", why ? link->outage.text : "", why ? ")" : "");
}

static sn_status link_discover(sn_link *link, const sn_hash *model, int timeout_ms, sn_err *err) {
    int64_t began = sn_now_us(), deadline = began + (int64_t)timeout_ms * 1000, ask_again = 0, wait_us = REASK_US;
    uint64_t correlation_id = link->discovery = sn_link_new_correlation_id();
    size_t asked = 0, rounds = 0;
    sn_peer from = 0;
    sn_status status = SN_OK;
    sn_err busy = {0};
    link->discovery_until_us = deadline;
    link->refusals.n = 0;
    link->outage.status = SN_OK;
    sn_directory_expire(link->directory, sn_unix_ms());
    link_take_late_answers(link);
    for (int64_t now = sn_now_us(); now < deadline && !status; now = sn_now_us()) {
        link_take_seeds(link);
        bool alone = rounds == 1 && link->n_seeds && !link_has_seed(link); /* no joined node can be waited for */
        if (alone || now >= ask_again) {
            asked = rounds == 1 && !alone ? link->n_seeds : 0; /* a first answer over a slow link takes so long */
            ask_again = now + wait_us;
            wait_us = 2 * wait_us < REASK_MAX_US ? 2 * wait_us : REASK_MAX_US;
            if (rounds++ || !link->n_seeds) status = link_ask_known(link, model, correlation_id, err);
        }
        if (!status) status = link_ask_seeds(link, asked, model, correlation_id, err);
        asked = link->n_seeds;
        sn_msg *msg = NULL;
        if (!status)
            status = sn_link_receive_reply(link, correlation_id, ask_again < deadline ? ask_again : deadline, &msg,
                                           &from, err);
        if (!status && link_is_rejected(link))
            return sn_fail(err, SN_REFUSED, "%s: %s", link->joined, link->rejected.text);
        if (status || !msg) continue;
        sn_status refused = sn_link_check_reply(&msg, SN_MSG_PEERS_REPLY, NULL, err);
        if (refused) { /* another node may accept, or this one when it is asked again */
            sn_refusals_note(&link->refusals, from, err, now = sn_now_us());
            if (sn_refusals_are_final(&link->refusals, link->seed_peers, link->n_seeds, now)) return refused;
            if (err->retry_after_ms || !busy.retry_after_ms) busy = *err;
            wait_us = REASK_US;
            if (ask_again > now + REASK_US) ask_again = now + REASK_US;
            continue;
        }
        link_take_announcements(link, from, &msg->peers_reply);
        bool more = msg->peers_reply.next_tag != 0;
        sn_msg_free(&msg);
        status = more ? link_ask_for_wanted(link, from, model, err) : SN_OK; /* before pages take the allowance */
        return status || !more ? status : link_read_peer_pages(link, from, model, err);
    }
    if (status || busy.status) return status ? status : (*err = busy).status;
    return link_fail_silence(link, sn_now_us() - began, err);
}

sn_status sn_link_discover(sn_link *link, const sn_hash *model, int timeout_ms, sn_err *err) {
    sn_status status = link_discover(link, model, timeout_ms, err);
    link->discovery = 0;
    return status;
}

bool sn_link_is_answered(sn_link *link, int timeout_ms) {
    sn_err err;
    if (sn_link_discover(link, NULL, timeout_ms, &err) != SN_RETRY || link->refusals.n) return true;
    while (link->n_alive) sn_link_hang_up(link, link->alive[0]);
    return false;
}
