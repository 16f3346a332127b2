#include "node/rendezvous.h"

#include "base/log.h"

enum {
    FOUND_MAX = 16, /* nodes asked because they were found: they know the others */
    SEARCHES_OFTEN = 12,
    SEARCH_OFTEN_US = 10000000,
    SEARCH_US = 300000000,
    OFFER_US = 240000000, /* a signpost lasts ten minutes */
    OFFER_AGAIN_US = 10000000,
};

static void ask_found(sn_rendezvous *r, sn_introducer *introducer, int64_t unix_ms) {
    char address[SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2];
    sn_err err;
    while (r->found < FOUND_MAX && sn_dht_take(r->dht, unix_ms, address)) {
        r->found++;
        sn_log(SN_LOG_INFO, "found in the table", "address=%s", address);
        if (sn_introducer_ask(introducer, address, &err)) sn_log(SN_LOG_WARN, "not asked", "text=%s", err.text);
    }
}

int64_t sn_rendezvous_tick(sn_rendezvous *r, sn_introducer *introducer, const sn_identity *identity, const char *address,
                           bool serving, int64_t now_us, int64_t unix_ms) {
    sn_err err;
    if (!r->dht) return INT64_MAX;
    ask_found(r, introducer, unix_ms);
    if (now_us >= r->search_us) {
        r->search_us = now_us + (r->searches++ < SEARCHES_OFTEN ? SEARCH_OFTEN_US : SEARCH_US);
        sn_dht_search(r->dht);
    }
    if (serving && now_us >= r->offer_us) {
        r->offer_us = now_us + (r->offer_us ? OFFER_US : OFFER_AGAIN_US); /* twice at first: the table may just be beginning */
        if (sn_dht_offer(r->dht, identity, address, unix_ms, &err))
            sn_log(SN_LOG_WARN, "no signpost put up", "text=%s", err.text);
    }
    return serving && r->offer_us < r->search_us ? r->offer_us : r->search_us;
}
