#include "node/membership/dht_client.h"

#include "base/hash.h"
#include "base/log.h"

enum {
    SEARCHES_FREQUENT = 12,
    SEARCH_FREQUENT_US = 10000000,
    SEARCH_US = 300000000,
    PUBLISH_US = 240000000, /* a record lasts ten minutes */
    PUBLISH_AGAIN_US = 10000000,
};

static void dht_take_found(sn_dht_client *client, int64_t unix_ms) {
    sn_dht_record record;
    if (!client->found.seed) sn_random(&client->found.seed, sizeof client->found.seed);
    for (size_t i = 0; i < SN_DHT_FOUND_MAX && sn_dht_next(client->dht, unix_ms, &record); i++)
        sn_dht_found_add(&client->found, &record);
}

int64_t sn_dht_client_tick(sn_dht_client *client, const sn_identity *identity, const char *address, bool serving,
                           int64_t now_us, int64_t unix_ms) {
    sn_err err;
    if (!client->dht) return INT64_MAX;
    dht_take_found(client, unix_ms);
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
