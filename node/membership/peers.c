/* PEERS and PEERS_REPLY: how nodes and clients ask for announcements page by page, and the bootstrap peers, which this
 * node asks itself.
 *
 * A PEERS carries announcements of the asker, and selects what it wants: a range of tags (sn_node_tag), blocks, a
 * model. It may list what the asker knows already as (tag, sequence) pairs; then the reply holds only newer
 * announcements and is paid from the gossip budget, because nodes ask so all the time. Without the list (clients, nodes
 * that just started) the reply is one page of PAGE_BYTES_MAX, and next_tag says where the next page begins. The first
 * page begins with the node's own announcement and those of nodes that it has proven (net/directory.h), so that a flood
 * of invented nodes does not hide them.
 *
 * What one peer gets is bounded (allowance.h): then a page is refused for a while, and a pull gets an empty list. So is
 * what is verified of what it brings.
 *
 * A bootstrap peer is asked for up to PAGES_MAX pages in every round until it answers; afterwards it is asked like a
 * neighbour, but rarely enough that a swarm which was given one address does not overload that node. */
#include "node/membership/membership_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_BYTES_MAX = 65536,                /* of announcements in a reply to a PEERS without a list of what is known */
    PROVEN_BYTES_MAX = PAGE_BYTES_MAX / 2, /* of them, of proven nodes that come first */
    PAGES_MAX = 8,                         /* asked of a bootstrap peer */
    PULL_PRICE = 8,                        /* one peer cannot take the whole gossip budget by its pulls */
    REPLY_BYTES = 64,                      /* of a reply besides its announcements, about */
    LOOK_BYTES = 2,                        /* an announcement that is looked at and not wanted costs as much time */
    BOOTSTRAP_ASKED_BY = 32,               /* nodes of the swarm that ask one bootstrap peer per round, about */
    MET_MAX = 16,                          /* of a joined node's proven nodes that are asked for an answer */
    FOUND_ENOUGH = 4,                      /* nodes found in a DHT that have answered: they know the others */
    FOUND_ASKED_MAX = 16,                  /* at a time */
    FOUND_ANSWER_US = 15000000,            /* perhaps over a relay */
};

static bool key_is_zero(const uint8_t key[SN_KEY_SIZE]) {
    for (int i = 0; i < SN_KEY_SIZE; i++)
        if (key[i]) return false;
    return true;
}

/* -- PEERS --------------------------------------------------------------------------------------------------------- */

static uint64_t read_u64(const uint8_t *bytes) {
    uint64_t n = 0;
    for (int i = 0; i < 8; i++) n = n << 8 | bytes[i];
    return n;
}

/* Whether the asker's list holds this announcement or a later one of the same node. The list is to be sorted by tag; an
 * unsorted list only makes the reply longer than it need be. */
static bool announcement_is_known(const sn_msg_peers *peers, const sn_known_node *node) {
    if (!peers->n_known) return false;
    const uint8_t *list = peers->known[0].data;
    size_t low = 0, high = peers->known[0].len / 16, end = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (read_u64(list + 16 * middle) < node->tag)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && read_u64(list + 16 * low) == node->tag && read_u64(list + 16 * low + 8) >= node->sequence;
}

static bool announcement_is_wanted(const sn_msg_peers *peers, const sn_directory *d, size_t i, int64_t unix_ms) {
    const sn_known_node *node = sn_directory_known(d, i);
    if (node->expires_unix_ms <= (uint64_t)unix_ms || announcement_is_known(peers, node)) return false;
    const sn_announcement *a = sn_directory_known_at(d, i);
    if (!key_is_zero(peers->model) && memcmp(a->model, peers->model, SN_KEY_SIZE)) return false;
    if (*peers->name && strcmp(a->name, peers->name)) return false;
    bool overlaps = a->first_block < peers->end_block && a->end_block > peers->first_block;
    return !peers->end_block || overlaps;
}

static bool blob_is_listed(const sn_blob *sealed, const sn_msg_peers_reply *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (out->announcements[i].len == sealed->len && !memcmp(out->announcements[i].data, sealed->data, sealed->len))
            return true;
    return false;
}

static sn_status announcement_add(const sn_blob *sealed, sn_msg_peers_reply *out, size_t *bytes, sn_err *err) {
    sn_status status = sn_membership_copy_blob(sealed, &out->announcements[out->n_announcements], err);
    if (status) return status;
    out->n_announcements++;
    *bytes += sealed->len;
    return SN_OK;
}

/* Puts this node itself and other proven nodes first. */
static sn_status announcements_list_proven(const sn_membership *m, const sn_msg_peers *peers, int64_t unix_ms,
                                           sn_msg_peers_reply *out, size_t *bytes, size_t *looks, sn_err *err) {
    const sn_directory *d = m->directory;
    size_t count = sn_directory_known_count(d), own = sn_directory_seek(d, sn_node_tag(m->setup.identity->id));
    sn_status status = SN_OK;
    for (size_t k = 0; k < count && !status && *bytes < PROVEN_BYTES_MAX; k++) {
        size_t i =
            (own + k) % count; /* this node first; the others from there on, so that each node begins elsewhere */
        if (out->n_announcements == SN_ANNOUNCEMENTS_MAX / 2) break;
        if (!sn_directory_known_is_proven(d, i, unix_ms)) continue;
        ++*looks;
        if (!announcement_is_wanted(peers, d, i, unix_ms)) continue;
        if (sn_directory_known_at(d, i)->state == SN_NODE_OFFLINE) continue;
        status = announcement_add(sn_directory_known_sealed_at(d, i), out, bytes, err);
    }
    out->proven = out->n_announcements;
    return status;
}

/* The announcements that the asker wants, from from_tag on, until the message is full; then out->next_tag says where
 * the next page begins (0: this is the last one). *bytes counts what was put in, *looks what was looked at. */
static sn_status announcements_list(const sn_membership *m, const sn_msg_peers *peers, size_t bytes_max,
                                    int64_t unix_ms, sn_msg_peers_reply *out, size_t *bytes, size_t *looks,
                                    sn_err *err) {
    const sn_directory *d = m->directory;
    size_t count = sn_directory_known_count(d), first = sn_directory_seek(d, peers->from_tag);
    uint64_t last = peers->to_tag ? peers->to_tag : UINT64_MAX;
    bool first_page = !peers->n_known && !peers->from_tag && !peers->to_tag;
    sn_status status = sn_list_new(sn_min_size(first_page ? count : count - first, SN_ANNOUNCEMENTS_MAX),
                                   SN_ANNOUNCEMENTS_MAX, sizeof *out->announcements, &out->announcements, err);
    if (!status && first_page) status = announcements_list_proven(m, peers, unix_ms, out, bytes, looks, err);
    size_t n_proven = out->n_announcements;
    for (size_t i = first; i < count && !status; i++) {
        uint64_t tag = sn_directory_known(d, i)->tag;
        if (tag > last) break;
        ++*looks;
        if (!announcement_is_wanted(peers, d, i, unix_ms)) continue;
        const sn_blob *sealed = sn_directory_known_sealed_at(d, i);
        if (blob_is_listed(sealed, out, n_proven)) continue;
        bool full = out->n_announcements == SN_ANNOUNCEMENTS_MAX || *bytes + sealed->len > bytes_max;
        if (full) {
            out->next_tag = tag;
            break;
        }
        status = announcement_add(sealed, out, bytes, err);
    }
    return status;
}

static bool was_told_to_join(const sn_membership *m, sn_peer peer) {
    for (size_t i = 0; i < m->n_bootstrap_peers; i++)
        if (m->bootstrap_peers[i].peer == peer) return !m->bootstrap_peers[i].until_us;
    return false;
}

/* Whether this one of a message may be verified. The first one that a peer brings has the rate of its own connection,
 * too: nodes bring their own that way, also from an address that floods. What is not verified comes again. */
static bool news_is_allowed(sn_membership *m, const sn_blob *sealed, size_t at, const sn_announcement_source *source,
                            int64_t now_us) {
    uint8_t from[SN_ADDRESS_PREFIX];
    memcpy(from, source->network, sizeof from);
    if (source->dialled) memcpy(from, &source->peer, sizeof from);
    if (!sn_directory_is_news(m->directory, sealed->data, sealed->len)) return true;
    if (sn_news_allowed(&m->news, from, source->dialled, now_us))
        return !source->dialled || was_told_to_join(m, source->peer) || sn_news_of_met_allowed(&m->news, now_us);
    return !at && !source->dialled && sn_news_first_allowed(&m->news, source->peer, now_us);
}

static void announcements_learn(sn_membership *m, const sn_blob *blobs, size_t n, const sn_announcement_source *source,
                                int64_t now_us, int64_t unix_ms) {
    sn_err err;
    for (size_t i = 0; i < n; i++) {
        sn_directory_change change;
        uint64_t tag;
        if (!news_is_allowed(m, &blobs[i], i, source, now_us)) continue;
        if (!sn_directory_update(m->directory, blobs[i].data, blobs[i].len, unix_ms, source, &change, &tag, &err))
            sn_gossip_enqueue(m, tag, change, now_us);
        else if (change == SN_CHANGE_NAMED)
            sn_log_rated(SN_LOG_INFO, "announcement dropped", "text=%s", err.text);
        else
            sn_log(SN_LOG_DEBUG, "announcement dropped", "text=%s", err.text);
    }
}

void sn_membership_on_peers(sn_membership *m, const sn_event *event, int64_t now_us, int64_t unix_ms) {
    const sn_msg_peers *peers = &event->msg->peers;
    sn_err err;
    if (peers->protocol != SN_PROTOCOL_VERSION) {
        (void)sn_fail(&err, SN_REFUSED, "this node speaks protocol %d: use a matching version", SN_PROTOCOL_VERSION);
        sn_membership_refuse(m, event->peer, event->msg, &err);
        return;
    }
    sn_announcement_source source = {.peer = event->peer};
    memcpy(source.network, event->network, SN_ADDRESS_PREFIX);
    bool asks_nothing = peers->from_tag == UINT64_MAX; /* a push, which is always answered, by an empty list */
    announcements_learn(m, peers->announcements, peers->n_announcements, &source, now_us, unix_ms);
    sn_allowance_peer peer = {0};
    memcpy(peer.key, event->key, SN_KEY_SIZE);
    memcpy(peer.network, event->network, SN_ADDRESS_PREFIX);
    size_t left = sn_allowance_left(&m->allowance, &peer, now_us, &err.retry_after_ms);
    if (!left && !peers->n_known && !asks_nothing) {
        int wait_ms = err.retry_after_ms;
        (void)sn_fail(&err, SN_RETRY,
                      "this node lists %d KiB of announcements a second for one program, and %d for all: ask later",
                      SN_ALLOWANCE_BYTES_PER_S / 1024, SN_ALLOWANCE_ALL_BYTES_PER_S / 1024);
        err.retry_after_ms = wait_ms;
        sn_membership_refuse(m, event->peer, event->msg, &err);
        return;
    }
    sn_msg *msg = sn_membership_new_msg(SN_MSG_PEERS_REPLY, event->msg->correlation_id);
    if (!msg) return;
    size_t most = peers->n_known ? sn_gossip_reply_budget(m, now_us) : PAGE_BYTES_MAX, bytes = 0, looks = 0;
    size_t price = peers->n_known ? PULL_PRICE : 1; /* of a byte */
    most = sn_min_size(most, left / price);
    if (left && announcements_list(m, peers, most, unix_ms, &msg->peers_reply, &bytes, &looks, &err))
        sn_membership_refuse(m, event->peer, event->msg, &err);
    else
        sn_membership_send(m, event->peer, &msg);
    if (peers->n_known) sn_gossip_reply_sent(m, bytes);
    sn_allowance_spend(&m->allowance, &peer, price * bytes + REPLY_BYTES + LOOK_BYTES * looks, now_us);
    sn_msg_free(&msg);
}

/* -- bootstrap peers ----------------------------------------------------------------------------------------------- */

/* Sends the node's own announcement, and asks for the page of announcements that begins at this tag. */
static void bootstrap_ask(sn_membership *m, const sn_bootstrap_peer *bootstrap_peer, uint64_t from_tag) {
    sn_msg *msg = sn_membership_new_msg(SN_MSG_PEERS, 0);
    sn_err err;
    if (!msg) return;
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    msg->peers.from_tag = from_tag;
    if (!sn_membership_copy_own(m, &msg->peers.announcements, &msg->peers.n_announcements, &err))
        sn_membership_send(m, bootstrap_peer->peer, &msg);
    sn_msg_free(&msg);
}

/* The first announcement of a list is of the node that sends it: thus the id of a bootstrap peer becomes known. */
static void bootstrap_note_id(sn_membership *m, const sn_event *event, const sn_blob *sealed) {
    sn_announcement *a = &m->scratch;
    for (size_t i = 0; i < m->n_bootstrap_peers; i++) {
        sn_bootstrap_peer *bootstrap_peer = &m->bootstrap_peers[i];
        if (bootstrap_peer->peer != event->peer || sealed->len <= SN_SIGNATURE_SIZE) continue;
        if (sn_announcement_parse(sealed->data, sealed->len - SN_SIGNATURE_SIZE, a, NULL)) continue;
        if (memcmp(a->curve_key, event->key, SN_KEY_SIZE)) continue;
        bootstrap_peer->known = true;
        memcpy(bootstrap_peer->id, a->node, SN_KEY_SIZE);
    }
}

/* Asks nodes that the joined node has proven for an answer: in a flood of invented nodes this one would hardly meet a
 * real one. */
static void meet_proven(sn_membership *m, const sn_msg_peers_reply *reply, int64_t now_us, int64_t unix_ms) {
    for (size_t i = 0, n = 0; i < reply->proven && i < reply->n_announcements && n < MET_MAX; i++) {
        const sn_blob *sealed = &reply->announcements[i];
        uint8_t id[SN_KEY_SIZE];
        uint64_t sequence;
        if (sn_announcement_peek(sealed->data, sealed->len, id, &sequence, NULL)) continue;
        const sn_announcement *a = sn_directory_find(m->directory, id);
        bool self = !memcmp(id, m->setup.identity->id, SN_KEY_SIZE);
        if (!a || self || a->state == SN_NODE_OFFLINE || sn_directory_is_proven(m->directory, id, unix_ms)) continue;
        m->setup.host.meet(m->setup.host.ctx, a, now_us);
        n++;
    }
}

void sn_membership_on_peers_reply(sn_membership *m, const sn_event *event, int64_t now_us, int64_t unix_ms) {
    const sn_msg_peers_reply *reply = &event->msg->peers_reply;
    const sn_announcement_source source = {.peer = event->peer, .dialled = true};
    if (!sn_membership_uses(m, event->peer)) return; /* this node has not asked it */
    announcements_learn(m, reply->announcements, reply->n_announcements, &source, now_us, unix_ms);
    if (reply->proven && reply->n_announcements) bootstrap_note_id(m, event, &reply->announcements[0]);
    sn_membership_note_answer(m, event, unix_ms);
    for (size_t i = 0; i < m->n_bootstrap_peers; i++) {
        sn_bootstrap_peer *bootstrap_peer = &m->bootstrap_peers[i];
        if (bootstrap_peer->peer != event->peer) continue;
        bootstrap_peer->answered = true;
        if (reply->proven && !bootstrap_peer->met) meet_proven(m, reply, now_us, unix_ms);
        bootstrap_peer->met |= reply->proven > 0;
        if (reply->next_tag && bootstrap_peer->pages_left) {
            bootstrap_peer->pages_left--;
            bootstrap_ask(m, bootstrap_peer, reply->next_tag);
        } else {
            bootstrap_peer->pages_left = 0;
        }
    }
}

/* A connection that was lost is made again by itself, unless the transport has ended it: then this dials again. */
static void bootstrap_dial(sn_membership *m, sn_bootstrap_peer *bootstrap_peer) {
    sn_peer before = bootstrap_peer->peer;
    sn_err err;
    if (sn_transport_dial(m->setup.transport, bootstrap_peer->address, bootstrap_peer->curve_key, &bootstrap_peer->peer,
                          &err))
        bootstrap_peer->peer = 0;
    if (before && before != bootstrap_peer->peer) sn_transport_hang_up(m->setup.transport, before);
}

/* One that was found stands with the key that it was found with. */
void sn_bootstrap_ask_key(sn_membership *m, sn_bootstrap_peer *bootstrap_peer) {
    if (bootstrap_peer->until_us || !m->setup.host.ask_key) return;
    bootstrap_peer->asked_key = true;
    m->setup.host.ask_key(m->setup.host.ctx, bootstrap_peer->address);
}

void sn_bootstrap_round(sn_membership *m) {
    for (size_t i = 0; i < m->n_bootstrap_peers; i++) {
        sn_bootstrap_peer *bootstrap_peer = &m->bootstrap_peers[i];
        if (!bootstrap_peer->answered) {
            if (bootstrap_peer->asked_key) sn_bootstrap_ask_key(m, bootstrap_peer); /* its connection was lost once */
            bootstrap_dial(m, bootstrap_peer);
            bootstrap_peer->pages_left = PAGES_MAX;
            bootstrap_ask(m, bootstrap_peer, 0);
        } else if (sn_rng_below(&m->gossip.seed, sn_directory_count(m->directory)) < BOOTSTRAP_ASKED_BY) {
            sn_gossip_pull(m, bootstrap_peer->peer, true);
        }
    }
}

/* The place of a peer that is joined now: a new one, or that of a peer that does not answer any more, whose address was
 * asked for its key again. NULL: there is no room, or that address has the key that it had, or still answers. */
static sn_bootstrap_peer *bootstrap_place(sn_membership *m, const char *address, const uint8_t curve_key[SN_KEY_SIZE]) {
    bool known = false;
    for (sn_bootstrap_peer *b = m->bootstrap_peers; b < m->bootstrap_peers + m->n_bootstrap_peers; b++) {
        if (!b->asked_key || strcmp(b->address, address) != 0) continue;
        if (!b->answered && memcmp(b->curve_key, curve_key, SN_KEY_SIZE) != 0) return b;
        known = true;
    }
    return !known && m->n_bootstrap_peers < SN_BOOTSTRAP_PEERS_MAX ? &m->bootstrap_peers[m->n_bootstrap_peers] : NULL;
}

void sn_membership_join(sn_membership *m, const char *address, const uint8_t curve_key[SN_KEY_SIZE]) {
    sn_bootstrap_peer *b = bootstrap_place(m, address, curve_key);
    sn_peer peer;
    sn_err err;
    if (!b || !memcmp(curve_key, m->setup.identity->curve_key, SN_KEY_SIZE)) return;
    if (sn_transport_dial(m->setup.transport, address, curve_key, &peer, &err)) {
        sn_log(SN_LOG_WARN, "cannot join", "address=%s text=%s", address, err.text);
        return;
    }
    const bool is_new = b == &m->bootstrap_peers[m->n_bootstrap_peers];
    const sn_peer before = is_new ? 0 : b->peer;
    *b = (sn_bootstrap_peer){.peer = peer, .asked_key = !is_new, .pages_left = PAGES_MAX};
    snprintf(b->address, sizeof b->address, "%s", address);
    memcpy(b->curve_key, curve_key, SN_KEY_SIZE);
    m->n_bootstrap_peers += is_new;
    if (before && before != peer && !sn_membership_uses(m, before)) sn_membership_let_go(m, before);
    if (m->own.sealed.len) bootstrap_ask(m, b, 0);
}

/* Gives up those found that did not answer in time. One that has answered before stays until another one answers. */
static void found_give_up(sn_membership *m, int64_t now_us) {
    size_t answered = sn_membership_bootstrap_answered(m);
    for (size_t i = m->n_bootstrap_peers; i-- > 0;) {
        sn_bootstrap_peer *b = &m->bootstrap_peers[i];
        if (!b->until_us || b->answered || now_us < b->until_us || (b->known && !answered)) continue;
        sn_peer peer = b->peer;
        *b = m->bootstrap_peers[--m->n_bootstrap_peers];
        if (peer && !sn_membership_uses(m, peer)) sn_membership_let_go(m, peer);
    }
}

bool sn_membership_wants_found(sn_membership *m, int64_t now_us) {
    size_t answered = 0, silent = 0;
    found_give_up(m, now_us);
    for (const sn_bootstrap_peer *b = m->bootstrap_peers; b < m->bootstrap_peers + m->n_bootstrap_peers; b++) {
        answered += b->until_us && b->answered;
        silent += b->until_us && !b->answered;
    }
    return answered < FOUND_ENOUGH && silent < FOUND_ASKED_MAX && m->n_bootstrap_peers < SN_BOOTSTRAP_PEERS_MAX;
}

bool sn_membership_join_found(sn_membership *m, const char *address, const uint8_t curve_key[SN_KEY_SIZE],
                              int64_t now_us) {
    size_t before = m->n_bootstrap_peers;
    for (size_t i = 0; i < before; i++)
        if (!memcmp(m->bootstrap_peers[i].curve_key, curve_key, SN_KEY_SIZE)) return false;
    sn_membership_join(m, address, curve_key);
    if (m->n_bootstrap_peers == before) return false;
    m->bootstrap_peers[before].until_us = now_us + FOUND_ANSWER_US;
    return true;
}

size_t sn_membership_answered(const sn_membership *m, sn_peer *peers, size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_bootstrap_peers && n < max; i++)
        if (m->bootstrap_peers[i].answered) peers[n++] = m->bootstrap_peers[i].peer;
    return n;
}

void sn_membership_redial(sn_membership *m) {
    sn_err err;
    sn_gossip_forget_neighbours(m);
    for (size_t i = 0; i < m->n_bootstrap_peers; i++) {
        sn_bootstrap_peer *b = &m->bootstrap_peers[i];
        sn_transport_hang_up(m->setup.transport, b->peer);
        b->answered = false;
        b->pages_left = PAGES_MAX;
        if (sn_transport_dial(m->setup.transport, b->address, b->curve_key, &b->peer, &err))
            b->peer = 0;
        else
            bootstrap_ask(m, b, 0);
    }
}

void sn_membership_ask(sn_membership *m) {
    for (size_t i = 0; i < m->n_bootstrap_peers; i++)
        if (m->bootstrap_peers[i].answered) sn_gossip_pull(m, m->bootstrap_peers[i].peer, true);
}

static void ask_for_blocks(sn_membership *m, sn_peer peer, const uint8_t model[SN_KEY_SIZE], int first, int end) {
    sn_msg *msg = sn_membership_new_msg(SN_MSG_PEERS, 0);
    if (!msg) return;
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->peers.model, model, SN_KEY_SIZE);
    msg->peers.first_block = (uint64_t)first;
    msg->peers.end_block = (uint64_t)end;
    sn_membership_send(m, peer, &msg);
}

void sn_membership_ask_for_blocks(sn_membership *m, const uint8_t model[SN_KEY_SIZE], int first, int end) {
    for (size_t i = 0; i < m->n_bootstrap_peers; i++)
        if (m->bootstrap_peers[i].answered) ask_for_blocks(m, m->bootstrap_peers[i].peer, model, first, end);
    for (size_t i = 0; i < m->gossip.n_neighbours; i++)
        ask_for_blocks(m, m->gossip.neighbours[i].peer, model, first, end);
}

void sn_membership_hold(sn_membership *m, sn_peer relay) {
    sn_peer before = m->relay;
    m->relay = relay;
    if (before && before != relay && !sn_membership_uses(m, before)) sn_membership_let_go(m, before);
}

size_t sn_membership_bootstrap_answered(const sn_membership *m) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_bootstrap_peers; i++) n += m->bootstrap_peers[i].answered;
    return n;
}

bool sn_membership_bootstrap_complete(const sn_membership *m) {
    for (size_t i = 0; i < m->n_bootstrap_peers; i++)
        if (m->bootstrap_peers[i].answered && !m->bootstrap_peers[i].pages_left) return true;
    return false;
}
