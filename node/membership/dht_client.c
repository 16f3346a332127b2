#include "node/membership/dht_client.h"

#include "base/log.h"

enum {
    FOUND_MAX = 16, /* nodes of the DHT that are asked; they know the other nodes of the swarm */
    SEARCHES_FREQUENT = 12,
    SEARCH_FREQUENT_US = 10000000,
    SEARCH_US = 300000000,
    PUBLISH_US = 240000000, /* a record lasts ten minutes */
    PUBLISH_AGAIN_US = 10000000,
};

static void dht_ask_found(sn_dht_client *client, sn_introducer *introducer, int64_t unix_ms) {
    char address[SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2];
    sn_err err;
    while (client->found < FOUND_MAX && sn_dht_next(client->dht, unix_ms, address)) {
        client->found++;
        sn_log(SN_LOG_INFO, "peer found in DHT", "address=%s", address);
        if (sn_introducer_ask(introducer, address, &err))
            sn_log(SN_LOG_WARN, "introduction not requested", "text=%s", err.text);
    }
}

int64_t sn_dht_client_tick(sn_dht_client *client, sn_introducer *introducer, const sn_identity *identity,
                           const char *address, bool serving, int64_t now_us, int64_t unix_ms) {
    sn_err err;
    if (!client->dht) return INT64_MAX;
    dht_ask_found(client, introducer, unix_ms);
    if (now_us >= client->search_us) {
        client->search_us = now_us + (client->searches++ < SEARCHES_FREQUENT ? SEARCH_FREQUENT_US : SEARCH_US);
        sn_dht_search(client->dht);
    }
    if (serving && now_us >= client->publish_us) {
        /* The second publication follows soon, because at first the DHT may have had no other node yet. */
        client->publish_us = now_us + (client->publish_us ? PUBLISH_US : PUBLISH_AGAIN_US);
        if (sn_dht_publish(client->dht, identity, address, unix_ms, &err))
            sn_log(SN_LOG_WARN, "DHT record not published", "text=%s", err.text);
    }
    return serving && client->publish_us < client->search_us ? client->publish_us : client->search_us;
}
