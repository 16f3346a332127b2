/* What the parts of a fetcher share: its link, its senders, and its patience. */
#ifndef SN_SHARING_PEERS_FETCHER_PRIVATE_H
#define SN_SHARING_PEERS_FETCHER_PRIVATE_H

#include "sharing/peers/senders_private.h"

struct sn_fetcher {
    sn_swarm_access access;
    sn_link *link; /* NULL: not opened yet */
    sn_senders senders;
};

/* Opens the link; the senders are those of this manifest from now on. */
sn_status sn_fetcher_begin(sn_fetcher *f, const sn_hash *manifest, size_t n_files, sn_err *err) SN_MUST_USE;
/* Asks the swarm for nodes (model NULL: of every model) and adds those that announce the manifest. */
sn_status sn_fetcher_discover(sn_fetcher *f, const sn_hash *model, sn_err *err) SN_MUST_USE;
int64_t sn_fetcher_patience_us(const sn_fetcher *f);
sn_status sn_fetcher_check_cancel(const sn_fetcher *f, sn_err *err) SN_MUST_USE;

#endif
