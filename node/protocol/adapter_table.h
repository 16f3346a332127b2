/* The adapters that a node holds, by hash: those that clients sent (ADAPTER_PUT) and those that the owner publishes
 * (--adapters). A fixed table, plain data in the caller's storage; logic without I/O. Used on the network thread.
 *
 * An entry is named by the hash of the adapter's image, so every client that knows the hash may use it. A session, and
 * a task in the engine, that uses an entry counts in `users`; an entry with users is never unloaded. The adapter itself
 * (entry->adapter) belongs to the device thread while the engine lives: the network thread passes its address on, and
 * does not look at it. */
#ifndef SN_NODE_PROTOCOL_ADAPTER_TABLE_H
#define SN_NODE_PROTOCOL_ADAPTER_TABLE_H

#include "net/directory.h"
#include "node/engine/adapter_store.h"

enum {
    SN_ADAPTER_ENTRIES_MAX = 64,
    SN_ADAPTER_KEPT_US = 60000000, /* that an adapter of a modest network is kept after it was used */
};

typedef struct sn_adapter_entry {
    enum { SN_ADAPTER_ENTRY_FREE, SN_ADAPTER_ENTRY_LOADING, SN_ADAPTER_ENTRY_READY, SN_ADAPTER_ENTRY_UNLOADING } state;
    sn_hash hash;
    size_t
        bytes; /* of the memory for training that it takes: of the image, once loaded of the devices' copy if larger */
    size_t users; /* sessions, and tasks in the engine */
    int64_t used_us;
    uint8_t network[SN_ADDRESS_PREFIX]; /* of the client that sent it */
    bool published; /* by the node's owner: it always counts as one user, and takes no memory for training */
    char name[SN_ADAPTER_NAME_MAX + 1]; /* of a published one */
    sn_adapter *adapter;
} sn_adapter_entry;

typedef struct sn_adapter_table {
    sn_adapter_entry entries[SN_ADAPTER_ENTRIES_MAX];
} sn_adapter_table;

/* The entry with this hash in any state but FREE, or NULL. */
sn_adapter_entry *sn_adapter_table_find(sn_adapter_table *table, const uint8_t hash[SN_KEY_SIZE]);
sn_adapter_entry *sn_adapter_table_find_free(sn_adapter_table *table); /* or NULL */
/* The READY entry without users that was used longest ago, of those that a client of this network may have unloaded; or
 * NULL. What clients of other networks used in the last minute stays, unless their network has more than a half of the
 * entries or of bytes_max: so one network that sends adapter after adapter unloads its own. */
sn_adapter_entry *sn_adapter_table_find_oldest(sn_adapter_table *table, const uint8_t network[SN_ADDRESS_PREFIX],
                                               size_t bytes_max, int64_t now_us);
size_t sn_adapter_table_bytes(const sn_adapter_table *table); /* of all entries */
/* Whether one more adapter of so many bytes may be loaded for clients of this network: those that are being loaded for
 * them have at most a half of the entries and, if they are several, of bytes_max. */
bool sn_adapter_table_may_load(const sn_adapter_table *table, const uint8_t network[SN_ADDRESS_PREFIX], size_t bytes,
                               size_t bytes_max);

/* The READY entry of this hash, marked as used now; *out NULL for a hash of zeros (no adapter). SN_REBUILD: the adapter
 * is not held. */
sn_status sn_adapter_table_use(sn_adapter_table *table, const uint8_t hash[SN_KEY_SIZE], int64_t now_us,
                               sn_adapter_entry **out, sn_err *err) SN_MUST_USE;

/* Takes the adapters of the store, which is left without them. Before any client could fill the table. */
void sn_adapter_table_publish(sn_adapter_table *table, sn_adapter_store *store);
/* Hashes and names of the published adapters, for an ADAPTERS_REPLY; and their tags, for an announcement. */
sn_status sn_adapter_table_list(const sn_adapter_table *table, sn_msg_adapters_reply *out, sn_err *err) SN_MUST_USE;
void sn_adapter_table_announce(const sn_adapter_table *table, sn_announcement *a);

/* Frees all adapters: after the engine, before the span on whose devices they lie. */
void sn_adapter_table_clear(sn_adapter_table *table);

#endif
