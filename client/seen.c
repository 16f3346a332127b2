#include "client/seen.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct sn_seen {
    sn_sight sights[SN_SEEN_MAX];
    size_t n;
};

sn_status sn_seen_new(sn_seen **out, sn_err *err) { return sn_calloc(out, 1, sizeof **out, err); }

void sn_seen_free(sn_seen **seen) {
    free(*seen);
    *seen = NULL;
}

const sn_sight *sn_seen_of(const sn_seen *seen, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; seen && i < seen->n; i++)
        if (!memcmp(seen->sights[i].node, node, SN_KEY_SIZE)) return &seen->sights[i];
    return NULL;
}

static sn_sight *make(sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    sn_sight *sight = (sn_sight *)sn_seen_of(seen, node);
    if (!sight) {
        sight = &seen->sights[0];
        for (size_t i = 1; i < seen->n; i++)
            if (seen->sights[i].heard_us < sight->heard_us) sight = &seen->sights[i];
        if (seen->n < SN_SEEN_MAX) sight = &seen->sights[seen->n++];
        *sight = (sn_sight){.rtt_us = -1, .queue_us = -1, .block_ns = -1};
        memcpy(sight->node, node, SN_KEY_SIZE);
    }
    sight->heard_us = now_us;
    return sight;
}

/* Means forget: a quarter of each is the newest value. What was measured long ago counts for nothing. */
static void mix(int64_t *mean, int64_t value, bool fresh) {
    *mean = *mean < 0 || !fresh ? value : *mean + (value - *mean) / 4;
}

static bool begin_measure(sn_sight *sight, int64_t now_us) {
    bool fresh = now_us - sight->measured_us < SN_SEEN_FRESH_US;
    if (!fresh) sight->rtt_us = sight->queue_us = sight->block_ns = -1;
    sight->measured_us = now_us;
    return fresh;
}

void sn_seen_round_trip(sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int64_t rtt_us, int64_t now_us) {
    sn_sight *sight = make(seen, node, now_us);
    mix(&sight->rtt_us, rtt_us, begin_measure(sight, now_us));
}

static void forgive(sn_sight *sight, int64_t now_us) {
    for (; sight->failures > 0 && sight->good_steps >= SN_FORGIVE_STEPS; sight->failures--)
        sight->good_steps -= SN_FORGIVE_STEPS;
    for (; sight->failures > 0 && now_us - sight->failed_us >= SN_FORGIVE_US; sight->failures--)
        sight->failed_us += SN_FORGIVE_US;
}

void sn_seen_step(sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int blocks, int tokens, int64_t queue_us,
                  int64_t compute_us, int64_t now_us) {
    sn_sight *sight = make(seen, node, now_us);
    bool fresh = begin_measure(sight, now_us);
    mix(&sight->queue_us, queue_us, fresh);
    /* Many rows share one pass over the weights: what they cost says nothing about a token alone. */
    if (tokens == 1 && blocks > 0) mix(&sight->block_ns, compute_us * 1000 / blocks, fresh);
    if (sight->failures) sight->good_steps++;
    forgive(sight, now_us);
}

int64_t sn_seen_failure(sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    sn_sight *sight = make(seen, node, now_us);
    forgive(sight, now_us);
    int64_t ban_us = SN_BAN_US;
    for (int i = 0; i < sight->failures && ban_us < SN_BAN_US_MAX; i++) ban_us *= 2;
    if (ban_us > SN_BAN_US_MAX) ban_us = SN_BAN_US_MAX;
    sight->failures++;
    sight->good_steps = 0;
    sight->failed_us = now_us;
    sight->banned_until_us = now_us + ban_us;
    sight->gone = false;
    return ban_us;
}

int64_t sn_seen_banned_us(const sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int64_t now_us) {
    const sn_sight *sight = sn_seen_of(seen, node);
    return sight && sight->banned_until_us > now_us ? sight->banned_until_us - now_us : 0;
}

void sn_seen_presence(sn_seen *seen, const sn_directory *directory) {
    for (size_t i = 0; i < seen->n; i++) {
        sn_sight *sight = &seen->sights[i];
        if (!sight->banned_until_us) continue;
        bool online = false;
        for (size_t k = 0; k < sn_directory_count(directory) && !online; k++) {
            const sn_announcement *a = sn_directory_at(directory, k);
            online = a->state == SN_NODE_ONLINE && !memcmp(a->node, sight->node, SN_KEY_SIZE);
        }
        if (!online)
            sight->gone = true;
        else if (sight->gone)
            sight->banned_until_us = 0;
    }
}
