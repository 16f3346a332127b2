#include "client/api/entry.h"

sn_status sn_entry_find(sn_entry *entry, const sn_settings *settings, const sn_hash *model, const sn_cancel *cancel,
                        sn_err *err) {
    const sn_common_settings *o = &settings->common;
    *entry = (sn_entry){.link = {.swarm_key_path = o->swarm_key}};
    sn_status status = o->emulated_link ? sn_emulated_link_parse(o->emulated_link, &entry->link.shape, err) : SN_OK;
    if (status) return sn_err_context(err, "--emulate-link");
    status =
        o->identity ? sn_identity_load(o->identity, &entry->identity, err) : sn_identity_new(&entry->identity, err);
    if (status) return status;
    const sn_bootstrap_options options = {o->join.items, o->join.n, o->dht, cancel};
    status = sn_bootstrap_find(&entry->bootstrap, &options, model, (int)o->timeout_ms, err);
    entry->link.identity = &entry->identity;
    entry->link.join = entry->bootstrap.items;
    entry->link.n_join = entry->bootstrap.n;
    return status;
}
