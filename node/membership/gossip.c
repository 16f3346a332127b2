/* Gossip: how announcements spread, at a cost per node that does not grow with the swarm.
 *
 * A node keeps up to SN_NEIGHBOURS_MAX neighbours, chosen at random, and replaces one of them in each announcement
 * round. Push: an announcement that is new to this node is queued by its tag (sn_node_tag) and sent once to FANOUT
 * neighbours (to FANOUT_OF_NODE_CHANGES when a node is new or changed its state, address or blocks). That is an
 * epidemic which reaches most nodes in a few steps and then dies out (Demers et al., "Epidemic algorithms for
 * replicated database maintenance", 1987). Pull: every few seconds one neighbour is sent the list of (tag, sequence)
 * pairs that this node knows, and replies with what is newer; so nodes that the push missed catch up.
 *
 * Pushes, pulls and replies to pulls are paid from a budget of bytes per second (a token bucket), of which replies get
 * half at most, because strangers can ask for them. What is pushed first is fair by who brought it (change_queue.h). In
 * a swarm of up to about a hundred nodes every node so knows all others; in a larger swarm each node knows a random
 * sample of some hundreds, because an announcement that is not passed on in time expires. docs/SCALE.md has
 * measurements.
 *
 * Rejoin peers are a random sample of nodes that this node once knew: one that is not known any more is dialled again,
 * because the swarm may have split and that node may be in the other part. */
#include "node/membership/membership_private.h"

#include "base/mem.h"
#include "base/random.h"

#include <stdio.h>
#include <string.h>

enum {
    FANOUT = 2,
    FANOUT_OF_NODE_CHANGES = 3,
    CHANGES_WAIT_US = 150000, /* so that several changes go in one message */
    STATS_WAIT_US = 1000000,
    PULL_EVERY_US = 5000000,
    BURST_S = 4,      /* seconds for which the budget may accumulate */
    REPLIES_PART = 2, /* replies to pulls get one part of so many */
    PUSH_BYTES_MAX = 32768,
    KNOWN_MAX = 512, /* (tag, sequence) pairs in one pull */
};

void sn_gossip_init(sn_gossip *g, uint64_t seed, size_t bytes_per_s) {
    g->seed = seed;
    g->bytes_per_s = bytes_per_s ? (int64_t)bytes_per_s : SN_GOSSIP_BYTES_PER_S;
}

/* -- the budget ---------------------------------------------------------------------------------------------------- */

static int64_t refilled(int64_t budget, int64_t passed_us, int64_t bytes_per_s) {
    budget += passed_us * bytes_per_s / 1000000;
    return budget > BURST_S * bytes_per_s ? BURST_S * bytes_per_s : budget;
}

static int64_t budget_refill(sn_gossip *g, int64_t now_us) {
    int64_t passed = now_us - g->budget_us, most = BURST_S * 1000000;
    passed = passed < 0 ? 0 : passed > most ? most : passed;
    g->budget = refilled(g->budget, passed, g->bytes_per_s);
    g->reply_budget = refilled(g->reply_budget, passed, g->bytes_per_s / REPLIES_PART);
    g->budget_us = now_us;
    return g->budget;
}

static void budget_spend(sn_gossip *g, size_t bytes) {
    g->budget -= (int64_t)bytes;
    g->bytes_sent += bytes;
}

size_t sn_gossip_reply_budget(sn_membership *m, int64_t now_us) {
    int64_t left = budget_refill(&m->gossip, now_us);
    if (left > m->gossip.reply_budget) left = m->gossip.reply_budget;
    return left < 0 ? 0 : left > PUSH_BYTES_MAX ? PUSH_BYTES_MAX : (size_t)left;
}

void sn_gossip_reply_sent(sn_membership *m, size_t bytes) {
    budget_spend(&m->gossip, bytes);
    m->gossip.reply_budget -= (int64_t)bytes;
}

void sn_gossip_enqueue(sn_membership *m, uint64_t tag, sn_directory_change change, int64_t now_us) {
    sn_gossip *g = &m->gossip;
    size_t at = sn_directory_seek(m->directory, tag);
    if (change == SN_CHANGE_NONE || at == sn_directory_known_count(m->directory)) return;
    bool of_node = change == SN_CHANGE_NODE;
    sn_change_queue_add(&g->changes, tag, sn_directory_known_source_at(m->directory, at), of_node);
    int64_t due = now_us + (of_node ? CHANGES_WAIT_US : STATS_WAIT_US);
    if (due < g->push_us || !g->push_us) g->push_us = due;
}

/* -- neighbours ---------------------------------------------------------------------------------------------------- */

static bool peer_is_bootstrap(const sn_membership *m, sn_peer peer) {
    for (size_t i = 0; i < m->n_bootstrap_peers; i++)
        if (m->bootstrap_peers[i].peer == peer) return true;
    return false;
}

static bool node_is_neighbour(const sn_gossip *g, const uint8_t *id) {
    for (size_t i = 0; i < g->n_neighbours; i++)
        if (!memcmp(g->neighbours[i].id, id, SN_KEY_SIZE)) return true;
    return false;
}

static bool peer_is_in_use(const sn_membership *m, sn_peer peer) {
    const sn_gossip *g = &m->gossip;
    for (size_t i = 0; i < g->n_neighbours; i++)
        if (g->neighbours[i].peer == peer) return true;
    return peer_is_bootstrap(m, peer) || (peer && peer == m->relay);
}

bool sn_membership_uses(const sn_membership *m, sn_peer peer) {
    bool former = false;
    for (size_t i = 0; i < SN_FORMER_NEIGHBOURS_MAX; i++) former |= m->gossip.former[i] == peer;
    return former || peer_is_in_use(m, peer);
}

/* The connection to a former neighbour may soon be of use again, so it is kept for some rounds. */
static void former_add(sn_membership *m, sn_peer peer) {
    sn_gossip *g = &m->gossip;
    sn_peer *slot = &g->former[g->next_former++ % SN_FORMER_NEIGHBOURS_MAX], oldest = *slot;
    *slot = peer;
    bool kept = false;
    for (size_t k = 0; k < SN_FORMER_NEIGHBOURS_MAX; k++) kept |= g->former[k] == oldest;
    if (oldest && !kept && !peer_is_in_use(m, oldest)) sn_membership_let_go(m, oldest);
}

static void neighbour_drop(sn_membership *m, size_t i) {
    sn_gossip *g = &m->gossip;
    sn_peer peer = g->neighbours[i].peer;
    g->neighbours[i] = g->neighbours[--g->n_neighbours];
    former_add(m, peer);
}

static bool node_is_live(const sn_membership *m, const uint8_t *id, int64_t unix_ms) {
    const sn_announcement *a = sn_directory_find(m->directory, id);
    return a && a->state != SN_NODE_OFFLINE && sn_directory_find_expiry(m->directory, id) > (uint64_t)unix_ms;
}

static void rejoin_remember(sn_gossip *g, const sn_announcement *a) {
    for (size_t i = 0; i < SN_REJOIN_PEERS_MAX; i++)
        if (!memcmp(g->rejoin[i].id, a->node, SN_KEY_SIZE)) return;
    struct sn_rejoin_peer *r = &g->rejoin[sn_rng_below(&g->seed, SN_REJOIN_PEERS_MAX)];
    for (size_t i = 0; i < SN_REJOIN_PEERS_MAX && *r->address; i++)
        if (!*g->rejoin[i].address) r = &g->rejoin[i];
    snprintf(r->address, sizeof r->address, "%s", a->address);
    memcpy(r->id, a->node, SN_KEY_SIZE);
    memcpy(r->curve_key, a->curve_key, SN_KEY_SIZE);
}

/* Adds neighbours from the directory, from a random entry on, until there are enough or all nodes were tried. */
static void neighbours_fill(sn_membership *m, int64_t unix_ms) {
    sn_gossip *g = &m->gossip;
    size_t count = sn_directory_count(m->directory), from = (size_t)sn_rng_below(&g->seed, count);
    for (size_t i = 0; i < count && g->n_neighbours < SN_NEIGHBOURS_MAX; i++) {
        size_t at = (from + i) % count;
        const sn_announcement *a = sn_directory_at(m->directory, at);
        sn_peer peer;
        sn_err err;
        bool self = !memcmp(a->node, m->setup.identity->id, SN_KEY_SIZE);
        bool live = sn_directory_expiry_at(m->directory, at) > (uint64_t)unix_ms;
        if (self || !live || node_is_neighbour(g, a->node)) continue;
        if (sn_transport_dial(m->setup.transport, a->address, a->curve_key, &peer, &err)) continue;
        g->neighbours[g->n_neighbours] = (sn_neighbour){.peer = peer};
        memcpy(g->neighbours[g->n_neighbours++].id, a->node, SN_KEY_SIZE);
        rejoin_remember(g, a);
    }
}

/* -- messages ------------------------------------------------------------------------------------------------------ */

/* Adds the (tag, sequence) pairs of KNOWN_MAX announcements from `first` on, big-endian, 16 bytes each, and the range
 * of tags that the list covers completely. */
static sn_status peers_add_known(const sn_membership *m, size_t first, sn_msg_peers *peers, sn_err *err) {
    size_t count = sn_directory_known_count(m->directory), n = sn_min_size(count - first, KNOWN_MAX);
    sn_status status = sn_list_new(1, 1, sizeof *peers->known, &peers->known, err);
    if (!status) status = sn_calloc(&peers->known[0].data, n + 1, 16, err);
    if (status) return status;
    peers->n_known = 1;
    peers->known[0].len = 16 * n;
    for (size_t i = 0; i < n; i++) {
        const sn_known_node *known = sn_directory_known(m->directory, first + i);
        for (size_t k = 0; k < 8; k++) {
            peers->known[0].data[16 * i + k] = (uint8_t)(known->tag >> (56 - 8 * k));
            peers->known[0].data[16 * i + 8 + k] = (uint8_t)(known->sequence >> (56 - 8 * k));
        }
    }
    if (first) peers->from_tag = sn_directory_known(m->directory, first)->tag;
    if (first + n < count) peers->to_tag = sn_directory_known(m->directory, first + n - 1)->tag;
    return SN_OK;
}

void sn_gossip_pull(sn_membership *m, sn_peer peer, bool with_own) {
    sn_gossip *g = &m->gossip;
    sn_err err;
    size_t count = sn_directory_known_count(m->directory);
    size_t first = count > KNOWN_MAX ? (size_t)sn_rng_below(&g->seed, count - KNOWN_MAX + 1) : 0;
    sn_msg *msg = sn_membership_new_msg(SN_MSG_PEERS, 0);
    if (!msg) return;
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    if (!peers_add_known(m, first, &msg->peers, &err) &&
        (!with_own || !sn_membership_copy_own(m, &msg->peers.announcements, &msg->peers.n_announcements, &err))) {
        budget_spend(g, msg->peers.known[0].len + (with_own ? m->own.sealed.len : 0));
        sn_membership_send(m, peer, &msg);
    }
    sn_msg_free(&msg);
}

/* Takes changes from the queue, as many as the bytes allow, and writes their indices in the directory. The others stay
 * queued. */
static size_t changes_collect(sn_membership *m, size_t bytes_max, int64_t unix_ms, size_t *indices) {
    sn_gossip *g = &m->gossip;
    size_t n = 0, bytes = 0;
    uint64_t tag;
    while (n < SN_ANNOUNCEMENTS_MAX && bytes < bytes_max &&
           sn_change_queue_take(&g->changes, sn_rng_next(&g->seed), &tag)) {
        size_t at = sn_directory_seek(m->directory, tag);
        if (at == sn_directory_known_count(m->directory)) continue;
        const sn_known_node *known = sn_directory_known(m->directory, at);
        if (known->tag != tag || known->expires_unix_ms <= (uint64_t)unix_ms) continue;
        indices[n++] = at;
        bytes += sn_directory_known_sealed_at(m->directory, at)->len;
    }
    return n;
}

static void announcements_send(sn_membership *m, const sn_neighbour *neighbour, const size_t *indices, size_t n) {
    sn_err err;
    size_t bytes = 0;
    sn_msg *msg = sn_membership_new_msg(SN_MSG_PEERS, 0);
    if (!msg) return;
    sn_msg_peers *peers = &msg->peers;
    peers->protocol = SN_PROTOCOL_VERSION;
    peers->from_tag = peers->to_tag = UINT64_MAX; /* a push: it asks for nothing */
    sn_status status = sn_list_new(n, SN_ANNOUNCEMENTS_MAX, sizeof *peers->announcements, &peers->announcements, &err);
    for (size_t i = 0; i < n && !status; i++) {
        if (!memcmp(sn_directory_known_at(m->directory, indices[i])->node, neighbour->id, SN_KEY_SIZE)) continue;
        status = sn_membership_copy_blob(sn_directory_known_sealed_at(m->directory, indices[i]),
                                         &peers->announcements[peers->n_announcements], &err);
        if (!status) bytes += peers->announcements[peers->n_announcements++].len;
    }
    if (!status && peers->n_announcements) {
        budget_spend(&m->gossip, bytes);
        sn_membership_send(m, neighbour->peer, &msg);
    }
    sn_msg_free(&msg);
}

static void changes_send(sn_membership *m, int64_t now_us, int64_t unix_ms) {
    sn_gossip *g = &m->gossip;
    size_t fanout = sn_change_queue_has_of_node(&g->changes) ? FANOUT_OF_NODE_CHANGES : FANOUT,
           indices[SN_ANNOUNCEMENTS_MAX];
    int64_t left = budget_refill(g, now_us) / (int64_t)fanout;
    if (!g->n_neighbours || left <= 0) return;
    size_t n = changes_collect(m, (size_t)left < PUSH_BYTES_MAX ? (size_t)left : PUSH_BYTES_MAX, unix_ms, indices);
    size_t from = (size_t)sn_rng_below(&g->seed, g->n_neighbours);
    for (size_t i = 0; i < fanout && i < g->n_neighbours; i++)
        announcements_send(m, &g->neighbours[(from + i) % g->n_neighbours], indices, n);
}

void sn_gossip_announce_now(sn_membership *m) {
    size_t own = sn_directory_seek(m->directory, sn_node_tag(m->setup.identity->id));
    for (size_t i = 0; i < m->gossip.n_neighbours; i++) announcements_send(m, &m->gossip.neighbours[i], &own, 1);
    for (size_t i = 0; i < m->n_bootstrap_peers; i++) {
        const sn_neighbour bootstrap_peer = {.peer = m->bootstrap_peers[i].peer};
        announcements_send(m, &bootstrap_peer, &own, 1);
    }
}

/* -- rounds -------------------------------------------------------------------------------------------------------- */

/* Dials a random rejoin peer, if the directory does not know it as alive. */
static void rejoin_try(sn_membership *m, int64_t unix_ms) {
    sn_gossip *g = &m->gossip;
    const struct sn_rejoin_peer *r = &g->rejoin[sn_rng_below(&g->seed, SN_REJOIN_PEERS_MAX)];
    sn_peer peer;
    sn_err err;
    if (!*r->address || node_is_live(m, r->id, unix_ms) || g->n_neighbours == SN_NEIGHBOURS_MAX) return;
    if (sn_transport_dial(m->setup.transport, r->address, r->curve_key, &peer, &err)) return;
    g->neighbours[g->n_neighbours] = (sn_neighbour){.peer = peer};
    memcpy(g->neighbours[g->n_neighbours++].id, r->id, SN_KEY_SIZE);
}

/* Sends the node's own announcement to some proven nodes. In a flood of invented nodes most neighbours are invented,
 * and the budget goes into passing on their announcements; the proven nodes hear of each other all the same. */
void sn_gossip_tell_proven(sn_membership *m, int64_t unix_ms) {
    sn_gossip *g = &m->gossip;
    const sn_announcement *chosen[SN_ANCHORS_MAX];
    size_t seen = 0, own = sn_directory_seek(m->directory, sn_node_tag(m->setup.identity->id));
    for (size_t i = 0; i < sn_directory_count(m->directory); i++) {
        if (!sn_directory_is_proven_at(m->directory, i, unix_ms)) continue;
        const sn_announcement *a = sn_directory_at(m->directory, i);
        bool self = !memcmp(a->node, m->setup.identity->id, SN_KEY_SIZE);
        if (self || sn_directory_expiry_at(m->directory, i) <= (uint64_t)unix_ms) continue;
        size_t at = seen < SN_ANCHORS_MAX ? seen : (size_t)sn_rng_below(&g->seed, seen + 1);
        if (at < SN_ANCHORS_MAX) chosen[at] = a; /* each of them with the same chance */
        seen++;
    }
    if (!m->own.sealed.len) return;
    for (size_t i = 0; i < SN_ANCHORS_MAX && i < seen; i++) {
        sn_err err;
        struct sn_anchor *anchor = &g->anchors[i];
        if (sn_transport_dial(m->setup.transport, chosen[i]->address, chosen[i]->curve_key, &anchor->peer, &err))
            continue;
        memcpy(anchor->id, chosen[i]->node, SN_KEY_SIZE);
        if (!sn_membership_uses(m, anchor->peer)) former_add(m, anchor->peer);
        announcements_send(m, &(sn_neighbour){.peer = anchor->peer}, &own, 1);
    }
}

void sn_gossip_round(sn_membership *m, int64_t unix_ms) {
    sn_gossip *g = &m->gossip;
    for (size_t i = g->n_neighbours; i-- > 0;)
        if (!node_is_live(m, g->neighbours[i].id, unix_ms)) neighbour_drop(m, i);
    if (g->n_neighbours == SN_NEIGHBOURS_MAX) neighbour_drop(m, (size_t)sn_rng_below(&g->seed, SN_NEIGHBOURS_MAX));
    rejoin_try(m, unix_ms);
    neighbours_fill(m, unix_ms);
}

int64_t sn_gossip_tick(sn_membership *m, int64_t now_us, int64_t unix_ms) {
    sn_gossip *g = &m->gossip;
    if (g->push_us && now_us >= g->push_us) {
        neighbours_fill(m, unix_ms);
        changes_send(m, now_us, unix_ms);
        g->push_us = g->changes.n ? now_us + STATS_WAIT_US : 0;
    }
    for (size_t i = 0; i < g->n_neighbours; i++) {
        if (g->neighbours[i].greeted) continue;
        g->neighbours[i].greeted = true;
        sn_gossip_pull(m, g->neighbours[i].peer, true);
        sn_ping_send(m, g->neighbours[i].peer, g->neighbours[i].id, false, now_us);
    }
    if (now_us >= g->pull_us) {
        g->pull_us = now_us + PULL_EVERY_US / 2 + (int64_t)sn_rng_below(&g->seed, PULL_EVERY_US);
        if (g->n_neighbours && budget_refill(g, now_us) > 0)
            sn_gossip_pull(m, g->neighbours[sn_rng_below(&g->seed, g->n_neighbours)].peer, false);
    }
    return g->push_us && g->push_us < g->pull_us ? g->push_us : g->pull_us;
}

void sn_gossip_forget_neighbours(sn_membership *m) {
    sn_gossip *g = &m->gossip;
    for (size_t i = 0; i < g->n_neighbours; i++) sn_transport_hang_up(m->setup.transport, g->neighbours[i].peer);
    for (size_t i = 0; i < SN_FORMER_NEIGHBOURS_MAX; i++)
        if (g->former[i]) sn_transport_hang_up(m->setup.transport, g->former[i]);
    memset(g->former, 0, sizeof g->former);
    g->n_neighbours = 0;
}

void sn_gossip_peer_lost(sn_membership *m, sn_peer peer) {
    sn_gossip *g = &m->gossip;
    for (size_t i = 0; i < g->n_neighbours; i++)
        if (g->neighbours[i].peer == peer) g->neighbours[i] = g->neighbours[--g->n_neighbours];
    for (size_t i = 0; i < SN_FORMER_NEIGHBOURS_MAX; i++)
        if (g->former[i] == peer) g->former[i] = 0;
}
