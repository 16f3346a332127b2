#include "client/net/refusals.h"

enum { ANSWER_US = 1000000 }; /* that a node is waited for which is asked again */

static size_t refusals_find(const sn_refusals *refusals, sn_peer peer) {
    size_t i = 0;
    while (i < refusals->n && refusals->at[i].peer != peer) i++;
    return i;
}

void sn_refusals_note(sn_refusals *refusals, sn_peer peer, const sn_err *err, int64_t now_us) {
    size_t i = refusals_find(refusals, peer);
    if (i == SN_REFUSALS_MAX) return;
    if (i == refusals->n) refusals->n++;
    refusals->at[i].peer = peer;
    refusals->at[i].ask_at_us = err->retry_after_ms ? now_us + (int64_t)err->retry_after_ms * 1000 : 0;
}

bool sn_refusals_may_ask(const sn_refusals *refusals, sn_peer peer, int64_t now_us) {
    size_t i = refusals_find(refusals, peer);
    return i == refusals->n || now_us >= refusals->at[i].ask_at_us;
}

bool sn_refusals_are_final(const sn_refusals *refusals, const sn_peer *peers, size_t n, int64_t now_us) {
    for (size_t i = 0; i < refusals->n; i++)
        if (refusals->at[i].ask_at_us && now_us < refusals->at[i].ask_at_us + ANSWER_US) return false;
    for (size_t i = 0; i < n; i++) {
        size_t k = refusals_find(refusals, peers[i]);
        if (k == refusals->n || refusals->at[k].ask_at_us) return false;
    }
    return n > 0;
}
