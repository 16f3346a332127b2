/* Gossip: how announcements go round, in bytes that do not grow with the swarm.
 *
 * A node talks of itself to a few others, its near ones, chosen at random and one of them replaced in each round. News goes to
 * two of them (a node that is new or changes its state, to three), once: an epidemic that reaches most nodes in a few steps and
 * then dies out (Demers et al., "Epidemic algorithms for replicated database maintenance", 1987). What it missed is asked for:
 * every few seconds one near node is sent a list of what we know, (tag, sequence) each, and answers with what is newer. All of
 * it is paid from an allowance of bytes a second. In a swarm of up to about a hundred nodes everybody so knows everybody; in a
 * larger one each knows a random sample of some hundreds, because what is not passed on in time expires. */
#include "node/core_private.h"

#include "base/mem.h"
#include "base/random.h"

#include <stdio.h>
#include <string.h>

enum {
    FANOUT = 2,
    FANOUT_OF_CHANGES = 3,
    CHANGES_WAIT_US = 150000, /* so that several go in one message */
    FIGURES_WAIT_US = 1000000,
    PULL_EVERY_US = 5000000,
    BURST_S = 4, /* that an allowance may be saved up for */
    PUSH_BYTES_MAX = 32768,
    KNOWN_MAX = 512, /* words told in one question */
};

/* -- the allowance -- */

static int64_t allowance(sn_gossip *g, int64_t now_us) {
    int64_t passed = now_us - g->allowance_us, most = BURST_S * 1000000;
    g->allowance += (passed < 0 ? 0 : passed > most ? most : passed) * g->bytes_per_s / 1000000;
    if (g->allowance > BURST_S * g->bytes_per_s) g->allowance = BURST_S * g->bytes_per_s;
    g->allowance_us = now_us;
    return g->allowance;
}

static void spend(sn_gossip *g, size_t bytes) {
    g->allowance -= (int64_t)bytes;
    g->bytes_sent += bytes;
}

size_t sn_core_answer_bytes(sn_core *core, int64_t now_us) {
    int64_t left = allowance(&core->gossip, now_us);
    return left < 0 ? 0 : left > PUSH_BYTES_MAX ? PUSH_BYTES_MAX : (size_t)left;
}

void sn_core_answered(sn_core *core, size_t bytes) { spend(&core->gossip, bytes); }

/* -- news -- */

static void put_news(sn_news_queue *q, uint64_t tag) {
    for (size_t i = 0; i < q->n; i++)
        if (q->tag[(q->first + i) % SN_NEWS_MAX] == tag) return; /* it waits already: the newest word will go out */
    if (q->n == SN_NEWS_MAX) {
        q->first++;
        q->n--;
    }
    q->tag[(q->first + q->n++) % SN_NEWS_MAX] = tag;
}

/* The newest first: where not all can be passed on, it is the old that is worth least. */
static bool take_news(sn_news_queue *q, uint64_t *tag) {
    if (!q->n) return false;
    *tag = q->tag[(q->first + --q->n) % SN_NEWS_MAX];
    return true;
}

void sn_core_heard(sn_core *core, uint64_t tag, sn_news news, int64_t now_us) {
    sn_gossip *g = &core->gossip;
    if (news == SN_NEWS_NONE) return;
    put_news(news == SN_NEWS_CHANGE ? &g->changes : &g->figures, tag);
    int64_t due = now_us + (news == SN_NEWS_CHANGE ? CHANGES_WAIT_US : FIGURES_WAIT_US);
    if (due < g->push_us || !g->push_us) g->push_us = due;
}

/* -- near ones -- */

static bool is_joined(const sn_core *core, sn_peer peer) {
    for (size_t i = 0; i < core->n_joined; i++)
        if (core->joined[i].peer == peer) return true;
    return false;
}

static bool is_near(const sn_gossip *g, const uint8_t *id) {
    for (size_t i = 0; i < g->n_near; i++)
        if (!memcmp(g->near[i].id, id, SN_KEY_SIZE)) return true;
    return false;
}

static bool has_peer(const sn_core *core, sn_peer peer) {
    const sn_gossip *g = &core->gossip;
    for (size_t i = 0; i < g->n_near; i++)
        if (g->near[i].peer == peer) return true;
    return is_joined(core, peer);
}

/* A former near one's connection may serve a chain's push: it is kept for some rounds before it is hung up. */
static void retire(sn_core *core, size_t i) {
    sn_gossip *g = &core->gossip;
    sn_peer *place = &g->retired[g->next_retired++ % SN_RETIRED_MAX], old = *place;
    *place = g->near[i].peer;
    g->near[i] = g->near[--g->n_near];
    bool again = false;
    for (size_t k = 0; k < SN_RETIRED_MAX; k++) again |= g->retired[k] == old;
    if (old && !again && !has_peer(core, old)) sn_transport_hang_up(core->setup.transport, old);
}

static bool is_live(const sn_announcement *a, int64_t unix_ms) {
    return a && a->state != SN_NODE_OFFLINE && a->expires_unix_ms > (uint64_t)unix_ms;
}

static void remember(sn_gossip *g, const sn_announcement *a) {
    for (size_t i = 0; i < SN_REMEMBERED_MAX; i++)
        if (!memcmp(g->remembered[i].id, a->node, SN_KEY_SIZE)) return;
    struct sn_remembered *r = &g->remembered[sn_seeded_below(&g->seed, SN_REMEMBERED_MAX)];
    for (size_t i = 0; i < SN_REMEMBERED_MAX && *r->address; i++)
        if (!*g->remembered[i].address) r = &g->remembered[i];
    snprintf(r->address, sizeof r->address, "%s", a->address);
    memcpy(r->id, a->node, SN_KEY_SIZE);
    memcpy(r->curve_key, a->curve_key, SN_KEY_SIZE);
}

/* As many near ones as there are nodes for; from anywhere in the directory on. */
static void fill_near(sn_core *core, int64_t unix_ms) {
    sn_gossip *g = &core->gossip;
    size_t count = sn_directory_count(core->directory), from = (size_t)sn_seeded_below(&g->seed, count);
    for (size_t i = 0; i < count && g->n_near < SN_NEAR_MAX; i++) {
        const sn_announcement *a = sn_directory_at(core->directory, (from + i) % count);
        sn_peer peer;
        sn_err err;
        bool self = !memcmp(a->node, core->setup.identity->id, SN_KEY_SIZE);
        if (self || !is_live(a, unix_ms) || is_near(g, a->node)) continue;
        if (sn_transport_dial(core->setup.transport, a->address, a->curve_key, &peer, &err)) continue;
        g->near[g->n_near] = (sn_near){.peer = peer};
        memcpy(g->near[g->n_near++].id, a->node, SN_KEY_SIZE);
        remember(g, a);
    }
}

/* -- messages -- */

/* (tag, sequence) of the words from `first` on, big-endian, 16 bytes each; and the range of tags that they are all of. */
static sn_status tell_known(const sn_core *core, size_t first, sn_msg_peers *peers, sn_err *err) {
    size_t count = sn_directory_words(core->directory), n = sn_min_size(count - first, KNOWN_MAX);
    sn_status status = sn_list_new(1, 1, sizeof *peers->known, &peers->known, err);
    if (!status) status = sn_calloc(&peers->known[0].data, n + 1, 16, err);
    if (status) return status;
    peers->n_known = 1;
    peers->known[0].len = 16 * n;
    for (size_t i = 0; i < n; i++) {
        const sn_announcement *a = sn_directory_word(core->directory, first + i);
        for (int k = 0; k < 8; k++) {
            peers->known[0].data[16 * i + (size_t)k] = a->node[k];
            peers->known[0].data[16 * i + 8 + (size_t)k] = (uint8_t)(a->sequence >> (56 - 8 * k));
        }
    }
    if (first) peers->from_tag = sn_node_tag(sn_directory_word(core->directory, first)->node);
    if (first + n < count) peers->to_tag = sn_node_tag(sn_directory_word(core->directory, first + n - 1)->node);
    return SN_OK;
}

void sn_core_ask_newer(sn_core *core, sn_peer peer, bool tell_own) {
    sn_gossip *g = &core->gossip;
    sn_err err;
    size_t count = sn_directory_words(core->directory);
    size_t first = count > KNOWN_MAX ? (size_t)sn_seeded_below(&g->seed, count - KNOWN_MAX + 1) : 0;
    sn_msg *msg = sn_core_new_msg(SN_MSG_PEERS, 0);
    if (!msg) return;
    msg->peers.protocol = SN_PROTOCOL;
    if (!tell_known(core, first, &msg->peers, &err) &&
        (!tell_own || !sn_core_list_own(core, &msg->peers.announcements, &msg->peers.n_announcements, &err))) {
        spend(g, msg->peers.known[0].len + (tell_own ? core->sealed.len : 0));
        sn_core_send(core, peer, &msg);
    }
    sn_msg_free(&msg);
}

/* Words to pass on: indices in the directory, as many as the bytes allow. What does not fit now goes later. */
static size_t gather_news(sn_core *core, size_t bytes_max, int64_t unix_ms, size_t *words) {
    sn_gossip *g = &core->gossip;
    size_t n = 0, bytes = 0;
    uint64_t tag;
    while (n < SN_ANNOUNCEMENTS_MAX && bytes < bytes_max && (take_news(&g->changes, &tag) || take_news(&g->figures, &tag))) {
        size_t at = sn_directory_seek(core->directory, tag);
        if (at == sn_directory_words(core->directory)) continue;
        const sn_announcement *a = sn_directory_word(core->directory, at);
        if (sn_node_tag(a->node) != tag || a->expires_unix_ms <= (uint64_t)unix_ms) continue;
        words[n++] = at;
        bytes += sn_directory_word_sealed(core->directory, at)->len;
    }
    return n;
}

static void send_words(sn_core *core, const sn_near *near, const size_t *words, size_t n) {
    sn_err err;
    size_t bytes = 0;
    sn_msg *msg = sn_core_new_msg(SN_MSG_PEERS, 0);
    if (!msg) return;
    sn_msg_peers *peers = &msg->peers;
    peers->protocol = SN_PROTOCOL;
    peers->from_tag = peers->to_tag = UINT64_MAX; /* it is told, not asked: nothing is wanted back */
    sn_status status = sn_list_new(n, SN_ANNOUNCEMENTS_MAX, sizeof *peers->announcements, &peers->announcements, &err);
    for (size_t i = 0; i < n && !status; i++) {
        if (!memcmp(sn_directory_word(core->directory, words[i])->node, near->id, SN_KEY_SIZE)) continue;
        status = sn_core_copy_blob(sn_directory_word_sealed(core->directory, words[i]),
                                   &peers->announcements[peers->n_announcements], &err);
        if (!status) bytes += peers->announcements[peers->n_announcements++].len;
    }
    if (!status && peers->n_announcements) {
        spend(&core->gossip, bytes);
        sn_core_send(core, near->peer, &msg);
    }
    sn_msg_free(&msg);
}

static void push_news(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_gossip *g = &core->gossip;
    size_t fanout = g->changes.n ? FANOUT_OF_CHANGES : FANOUT, words[SN_ANNOUNCEMENTS_MAX];
    int64_t left = allowance(g, now_us) / (int64_t)fanout;
    if (!g->n_near || left <= 0) return;
    size_t n = gather_news(core, (size_t)left < PUSH_BYTES_MAX ? (size_t)left : PUSH_BYTES_MAX, unix_ms, words);
    size_t from = (size_t)sn_seeded_below(&g->seed, g->n_near);
    for (size_t i = 0; i < fanout && i < g->n_near; i++) send_words(core, &g->near[(from + i) % g->n_near], words, n);
}

void sn_core_tell_everybody(sn_core *core) {
    size_t own = sn_directory_seek(core->directory, sn_node_tag(core->setup.identity->id));
    for (size_t i = 0; i < core->gossip.n_near; i++) send_words(core, &core->gossip.near[i], &own, 1);
    for (size_t i = 0; i < core->n_joined; i++) {
        const sn_near joined = {.peer = core->joined[i].peer};
        send_words(core, &joined, &own, 1);
    }
}

/* -- rounds -- */

/* One that was there once and is not known now: perhaps the swarm fell apart, and it is on the other side. */
static void look_for_the_lost(sn_core *core, int64_t unix_ms) {
    sn_gossip *g = &core->gossip;
    const struct sn_remembered *r = &g->remembered[sn_seeded_below(&g->seed, SN_REMEMBERED_MAX)];
    sn_peer peer;
    sn_err err;
    if (!*r->address || is_live(sn_directory_find(core->directory, r->id), unix_ms) || g->n_near == SN_NEAR_MAX) return;
    if (sn_transport_dial(core->setup.transport, r->address, r->curve_key, &peer, &err)) return;
    g->near[g->n_near] = (sn_near){.peer = peer};
    memcpy(g->near[g->n_near++].id, r->id, SN_KEY_SIZE);
}

void sn_core_gossip_round(sn_core *core, int64_t unix_ms) {
    sn_gossip *g = &core->gossip;
    for (size_t i = g->n_near; i-- > 0;)
        if (!is_live(sn_directory_find(core->directory, g->near[i].id), unix_ms)) retire(core, i);
    if (g->n_near == SN_NEAR_MAX) retire(core, (size_t)sn_seeded_below(&g->seed, SN_NEAR_MAX));
    look_for_the_lost(core, unix_ms);
    fill_near(core, unix_ms);
}

int64_t sn_core_gossip(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_gossip *g = &core->gossip;
    if (g->push_us && now_us >= g->push_us) {
        fill_near(core, unix_ms);
        push_news(core, now_us, unix_ms);
        g->push_us = g->changes.n || g->figures.n ? now_us + FIGURES_WAIT_US : 0;
    }
    for (size_t i = 0; i < g->n_near; i++) {
        if (g->near[i].greeted) continue;
        g->near[i].greeted = true;
        sn_core_ask_newer(core, g->near[i].peer, true);
        sn_core_ping(core, g->near[i].peer, g->near[i].id, false, now_us);
    }
    if (now_us >= g->pull_us) {
        g->pull_us = now_us + PULL_EVERY_US / 2 + (int64_t)sn_seeded_below(&g->seed, PULL_EVERY_US);
        if (g->n_near && allowance(g, now_us) > 0) 
            sn_core_ask_newer(core, g->near[sn_seeded_below(&g->seed, g->n_near)].peer, false);
    }
    return g->push_us && g->push_us < g->pull_us ? g->push_us : g->pull_us;
}

void sn_core_gossip_loss(sn_core *core, sn_peer peer) {
    sn_gossip *g = &core->gossip;
    for (size_t i = 0; i < g->n_near; i++)
        if (g->near[i].peer == peer) g->near[i] = g->near[--g->n_near];
    for (size_t i = 0; i < SN_RETIRED_MAX; i++)
        if (g->retired[i] == peer) g->retired[i] = 0;
}
