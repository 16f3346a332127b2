#include "client/routing/peer_stats.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct sn_peer_stats {
    sn_peer_stat peers[SN_PEER_STATS_MAX];
    size_t n;
};

sn_status sn_peer_stats_new(sn_peer_stats **out, sn_err *err) { return sn_calloc(out, 1, sizeof **out, err); }

void sn_peer_stats_free(sn_peer_stats **peer_stats) {
    free(*peer_stats);
    *peer_stats = NULL;
}

const sn_peer_stat *sn_peer_stats_find(const sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; peer_stats && i < peer_stats->n; i++)
        if (!memcmp(peer_stats->peers[i].node, node, SN_KEY_SIZE)) return &peer_stats->peers[i];
    return NULL;
}

static sn_peer_stat *peer_stats_get(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    sn_peer_stat *peer = (sn_peer_stat *)sn_peer_stats_find(peer_stats, node);
    if (!peer) {
        peer = &peer_stats->peers[0];
        for (size_t i = 1; i < peer_stats->n; i++)
            if (peer_stats->peers[i].newest_us < peer->newest_us) peer = &peer_stats->peers[i];
        if (peer_stats->n < SN_PEER_STATS_MAX) peer = &peer_stats->peers[peer_stats->n++];
        *peer = (sn_peer_stat){.rtt_us = -1, .queue_us = -1, .block_ns = -1};
        memcpy(peer->node, node, SN_KEY_SIZE);
    }
    peer->newest_us = now_us;
    return peer;
}

/* Exponential moving average with a weight of 1/4 for the new value. `fresh` false: the old mean is too old to count.
 */
static void mean_update(int64_t *mean, int64_t value, bool fresh) {
    *mean = *mean < 0 || !fresh ? value : *mean + (value - *mean) / 4;
}

static bool peer_begin_measure(sn_peer_stat *peer, int64_t now_us) {
    bool fresh = now_us - peer->measured_us < SN_PEER_STATS_FRESH_US;
    if (!fresh) peer->rtt_us = peer->queue_us = peer->block_ns = -1;
    peer->measured_us = now_us;
    return fresh;
}

void sn_peer_stats_note_rtt(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t rtt_us,
                            int64_t now_us) {
    sn_peer_stat *peer = peer_stats_get(peer_stats, node, now_us);
    mean_update(&peer->rtt_us, rtt_us, peer_begin_measure(peer, now_us));
    peer->answers = true;
}

void sn_peer_stats_note_silence(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t waited_us,
                                int64_t now_us) {
    sn_peer_stats_note_rtt(peer_stats, node, waited_us, now_us);
    peer_stats_get(peer_stats, node, now_us)->answers = false;
}

static void peer_decay_failures(sn_peer_stat *peer, int64_t now_us) {
    if (peer->good_steps >= SN_FAILURE_DECAY_STEPS) peer->losses = 0;
    for (; peer->failures > 0 && peer->good_steps >= SN_FAILURE_DECAY_STEPS; peer->failures--)
        peer->good_steps -= SN_FAILURE_DECAY_STEPS;
    for (; peer->failures > 0 && now_us - peer->failed_us >= SN_FAILURE_DECAY_US; peer->failures--)
        peer->failed_us += SN_FAILURE_DECAY_US;
}

void sn_peer_stats_note_step(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int blocks, int tokens,
                             int64_t queue_us, int64_t compute_us, int64_t now_us) {
    sn_peer_stat *peer = peer_stats_get(peer_stats, node, now_us);
    bool fresh = peer_begin_measure(peer, now_us);
    mean_update(&peer->queue_us, queue_us, fresh);
    /* Many rows share one pass over the weights: their cost says nothing about the cost of a single token. */
    if (tokens == 1 && blocks > 0) mean_update(&peer->block_ns, compute_us * 1000 / blocks, fresh);
    peer->absences = 0;
    if (peer->failures || peer->losses) peer->good_steps++;
    peer_decay_failures(peer, now_us);
}

static uint64_t hash_of(const char *address) {
    const sn_hash hash = sn_hash_of(address, strlen(address));
    uint64_t first;
    memcpy(&first, hash.bytes, sizeof first);
    return first;
}

static int64_t peer_ban(sn_peer_stat *peer, int64_t ban_us, int64_t now_us) {
    if (peer->banned_until_us < now_us + ban_us) peer->banned_until_us = now_us + ban_us;
    peer->looked_up = false;
    return ban_us;
}

int64_t sn_peer_stats_note_absence(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    sn_peer_stat *peer = peer_stats_get(peer_stats, node, now_us);
    int64_t ban_us = (int64_t)SN_ABSENCE_US << peer->absences;
    if (ban_us < SN_ABSENCE_US_MAX) peer->absences++;
    return peer_ban(peer, ban_us, now_us);
}

int64_t sn_peer_stats_note_failure(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    sn_peer_stat *peer = peer_stats_get(peer_stats, node, now_us);
    peer_decay_failures(peer, now_us);
    int64_t ban_us = SN_BAN_US;
    for (int i = 0; i < peer->failures && ban_us < SN_BAN_US_MAX; i++) ban_us *= 2;
    if (ban_us > SN_BAN_US_MAX) ban_us = SN_BAN_US_MAX;
    peer->failures++;
    peer->good_steps = 0;
    peer->failed_us = now_us;
    return peer_ban(peer, ban_us, now_us);
}

bool sn_peer_stats_note_loss(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    sn_peer_stat *peer = peer_stats_get(peer_stats, node, now_us);
    if (now_us - peer->lost_us >= SN_FAILURE_DECAY_US) peer->losses = 0;
    peer->good_steps = 0;
    peer->lost_us = now_us;
    return peer->losses++ < SN_LOSSES_MAX;
}

int64_t sn_peer_stats_ban_left_us(const sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    const sn_peer_stat *peer = sn_peer_stats_find(peer_stats, node);
    return peer && peer->banned_until_us > now_us ? peer->banned_until_us - now_us : 0;
}

void sn_peer_stats_note_online(sn_peer_stats *peer_stats, const sn_directory *directory) {
    for (size_t i = 0; i < peer_stats->n; i++) {
        sn_peer_stat *peer = &peer_stats->peers[i];
        if (!peer->banned_until_us) continue;
        const sn_announcement *a = sn_directory_find(directory, peer->node);
        uint64_t address = a && a->state == SN_NODE_ONLINE ? hash_of(a->address) : 0;
        bool returned = peer->looked_up && address && address != peer->address;
        if (returned && peer->failures <= 1 && peer->absences <= 1) peer->banned_until_us = 0;
        peer->looked_up = true;
        peer->address = address;
    }
}
