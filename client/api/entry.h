/* How this process enters a swarm: its identity, and the addresses that it asks first. Read once from the settings;
 * every link that is opened with it has the same identity, so that nodes share prefix caches among them.
 *
 * Central type: sn_entry. It does not change after sn_entry_find, and any thread may then open links with it. It must
 * not be moved, and borrows from the settings. */
#ifndef SN_CLIENT_API_ENTRY_H
#define SN_CLIENT_API_ENTRY_H

#include "client/api/settings.h"
#include "client/net/bootstrap.h"
#include "client/net/link.h"

typedef struct sn_entry {
    sn_identity identity;
    sn_bootstrap bootstrap;
    sn_link_options link;
} sn_entry;

/* model: whose nodes are looked for in the DHT; all zero where the settings name no DHT. SN_REFUSED: a setting or a
 * file is wrong; SN_RETRY: the DHT has no node. Without a swarm in the settings no address is found. */
sn_status sn_entry_find(sn_entry *entry, const sn_settings *settings, const sn_hash *model, const sn_cancel *cancel,
                        sn_err *err) SN_MUST_USE;

#endif
