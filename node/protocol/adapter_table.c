#include "node/protocol/adapter_table.h"

#include <stdio.h>
#include <string.h>

sn_adapter_entry *sn_adapter_table_find(sn_adapter_table *table, const uint8_t hash[SN_KEY_SIZE]) {
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX; i++) {
        sn_adapter_entry *entry = &table->entries[i];
        if (entry->state != SN_ADAPTER_ENTRY_FREE && !memcmp(entry->hash.bytes, hash, SN_KEY_SIZE)) return entry;
    }
    return NULL;
}

sn_adapter_entry *sn_adapter_table_find_free(sn_adapter_table *table) {
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX; i++)
        if (table->entries[i].state == SN_ADAPTER_ENTRY_FREE) return &table->entries[i];
    return NULL;
}

/* Whether this network has more than a half of the entries, or of the bytes. */
static bool network_has_half(const sn_adapter_table *table, const uint8_t network[SN_ADDRESS_PREFIX],
                             size_t bytes_max) {
    size_t n = 0, bytes = 0;
    for (const sn_adapter_entry *e = table->entries; e < table->entries + SN_ADAPTER_ENTRIES_MAX; e++) {
        if (e->state == SN_ADAPTER_ENTRY_FREE || e->published || memcmp(e->network, network, SN_ADDRESS_PREFIX))
            continue;
        n++;
        bytes += e->bytes;
    }
    return n > SN_ADAPTER_ENTRIES_MAX / 2 || bytes > bytes_max / 2;
}

sn_adapter_entry *sn_adapter_table_find_oldest(sn_adapter_table *table, const uint8_t network[SN_ADDRESS_PREFIX],
                                               size_t bytes_max, int64_t now_us) {
    sn_adapter_entry *oldest = NULL;
    for (sn_adapter_entry *e = table->entries; e < table->entries + SN_ADAPTER_ENTRIES_MAX; e++) {
        if (e->state != SN_ADAPTER_ENTRY_READY || e->users || (oldest && e->used_us >= oldest->used_us)) continue;
        bool kept = now_us - e->used_us < SN_ADAPTER_KEPT_US && memcmp(e->network, network, SN_ADDRESS_PREFIX) &&
                    !network_has_half(table, e->network, bytes_max);
        if (!kept) oldest = e;
    }
    return oldest;
}

size_t sn_adapter_table_bytes(const sn_adapter_table *table) {
    size_t bytes = 0;
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX; i++)
        if (table->entries[i].state != SN_ADAPTER_ENTRY_FREE) bytes += table->entries[i].bytes;
    return bytes;
}

bool sn_adapter_table_may_load(const sn_adapter_table *table, const uint8_t network[SN_ADDRESS_PREFIX], size_t bytes,
                               size_t bytes_max) {
    size_t n = 0, all = bytes;
    for (const sn_adapter_entry *e = table->entries; e < table->entries + SN_ADAPTER_ENTRIES_MAX; e++) {
        if (e->state != SN_ADAPTER_ENTRY_LOADING || memcmp(e->network, network, SN_ADDRESS_PREFIX)) continue;
        n++;
        all += e->bytes;
    }
    return !n || (n < SN_ADAPTER_ENTRIES_MAX / 2 && all <= bytes_max / 2);
}

sn_status sn_adapter_table_use(sn_adapter_table *table, const uint8_t hash[SN_KEY_SIZE], int64_t now_us,
                               sn_adapter_entry **out, sn_err *err) {
    static const uint8_t no_adapter[SN_KEY_SIZE];
    *out = NULL;
    if (!memcmp(hash, no_adapter, sizeof no_adapter)) return SN_OK;
    sn_adapter_entry *entry = sn_adapter_table_find(table, hash);
    if (!entry || entry->state != SN_ADAPTER_ENTRY_READY)
        return sn_fail(err, SN_REBUILD, "this node does not hold that adapter: send it first");
    entry->used_us = now_us;
    *out = entry;
    return SN_OK;
}

void sn_adapter_table_publish(sn_adapter_table *table, sn_adapter_store *store) {
    for (size_t i = 0; i < store->n; i++) {
        struct sn_stored_adapter *stored = &store->adapters[i];
        sn_adapter_entry *entry =
            sn_adapter_table_find_free(table); /* SN_ADAPTERS_MAX entries fit: no client came yet */
        *entry = (sn_adapter_entry){.state = SN_ADAPTER_ENTRY_READY,
                                    .hash = stored->hash,
                                    .users = 1,
                                    .published = true,
                                    .adapter = stored->adapter};
        snprintf(entry->name, sizeof entry->name, "%s", stored->name);
        stored->adapter = NULL;
    }
}

sn_status sn_adapter_table_list(const sn_adapter_table *table, sn_msg_adapters_reply *out, sn_err *err) {
    size_t n = 0;
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX; i++) n += table->entries[i].published;
    sn_status status = sn_list_new(n, SN_ADAPTERS_MAX, sizeof *out->adapters, &out->adapters, err);
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX && !status; i++) {
        const sn_adapter_entry *entry = &table->entries[i];
        if (!entry->published) continue;
        memcpy(out->adapters[out->n_adapters].hash, entry->hash.bytes, SN_HASH_SIZE);
        snprintf(out->adapters[out->n_adapters++].name, sizeof out->adapters->name, "%s", entry->name);
    }
    return status;
}

void sn_adapter_table_announce(const sn_adapter_table *table, sn_announcement *a) {
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX && a->n_adapters < SN_ADAPTERS_MAX; i++)
        if (table->entries[i].published) a->adapters[a->n_adapters++] = sn_node_tag(table->entries[i].hash.bytes);
}

void sn_adapter_table_clear(sn_adapter_table *table) {
    for (int i = 0; i < SN_ADAPTER_ENTRIES_MAX; i++) {
        sn_adapter_free(&table->entries[i].adapter);
        table->entries[i] = (sn_adapter_entry){0};
    }
}
