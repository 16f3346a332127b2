#include "node/distance.h"

#include <string.h>

void sn_distance_asked(sn_distance *d, sn_peer peer, uint64_t request, uint64_t node, uint64_t bytes, int64_t now_us) {
    d->asked[d->next_asked++ % SN_DISTANCE_ASKED_MAX] = (struct sn_ping){peer, request, node, bytes, now_us};
}

static size_t find(const sn_distance *d, uint64_t node) {
    size_t i = 0;
    while (i < d->n_known && d->known[i].node != node) i++;
    return i;
}

/* Where a node's distance is kept; the one heard of longest ago makes room. */
static size_t place(sn_distance *d, uint64_t node) {
    size_t i = find(d, node), oldest = 0;
    if (i < d->n_known) return i;
    if (d->n_known < SN_DISTANCE_KNOWN_MAX) {
        i = d->n_known++;
    } else {
        for (size_t k = 1; k < d->n_known; k++)
            if (d->known[k].heard_us < d->known[oldest].heard_us) oldest = k;
        i = oldest;
    }
    d->known[i].node = node;
    d->known[i].us = 0;
    return i;
}

void sn_distance_answered(sn_distance *d, sn_peer peer, uint64_t request, int64_t now_us) {
    for (size_t i = 0; i < SN_DISTANCE_ASKED_MAX; i++) {
        struct sn_ping ping = d->asked[i];
        if (!ping.peer || ping.peer != peer || ping.request != request) continue;
        d->asked[i].peer = 0;
        uint64_t took = now_us > ping.sent_us ? (uint64_t)(now_us - ping.sent_us) : 1;
        if (ping.bytes) { /* what it took longer than a short one is the time of its bytes */
            uint64_t round_trip = sn_distance_to(d, ping.node);
            uint64_t us = took > round_trip ? took - round_trip : 1;
            d->rates[d->n_rates++ % SN_DISTANCE_RATES_MAX] = ping.bytes * 1000000 / us;
            return;
        }
        size_t at = place(d, ping.node);
        d->known[at].us = d->known[at].us ? (3 * d->known[at].us + took + 3) / 4 : took;
        d->known[at].heard_us = now_us;
        return;
    }
}

uint64_t sn_distance_to(const sn_distance *d, uint64_t node) {
    size_t i = find(d, node);
    return i < d->n_known ? d->known[i].us : 0;
}

uint64_t sn_distance_bytes_per_s(const sn_distance *d) {
    uint64_t sorted[SN_DISTANCE_RATES_MAX];
    size_t n = 0, have = d->n_rates < SN_DISTANCE_RATES_MAX ? (size_t)d->n_rates : SN_DISTANCE_RATES_MAX;
    for (; n < have; n++) {
        size_t at = n;
        for (; at && sorted[at - 1] > d->rates[n]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = d->rates[n];
    }
    return n ? sorted[n / 2] : 0;
}

void sn_distance_tell(const sn_distance *d, sn_announcement *a) {
    bool told[SN_DISTANCE_KNOWN_MAX] = {0};
    for (a->n_round_trip = 0; a->n_round_trip < SN_ROUND_TRIPS_MAX && a->n_round_trip < d->n_known; a->n_round_trip++) {
        size_t newest = d->n_known;
        for (size_t i = 0; i < d->n_known; i++)
            if (!told[i] && (newest == d->n_known || d->known[i].heard_us > d->known[newest].heard_us)) newest = i;
        told[newest] = true;
        a->round_trip[a->n_round_trip] = (struct sn_round_trip){d->known[newest].node, d->known[newest].us};
    }
}
