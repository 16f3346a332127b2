/* The addresses that a client asks first: those of --join, and with --dht those that the DHT has for the model. Used by
 * the program's commands before they open a link. */
#ifndef SN_CLIENT_NET_BOOTSTRAP_H
#define SN_CLIENT_NET_BOOTSTRAP_H

#include "base/cancel.h"
#include "model/model.h"
#include "net/message.h"

enum { SN_BOOTSTRAP_FOUND_MAX = 32, SN_BOOTSTRAP_MAX = 64 };

typedef struct sn_bootstrap {
    const char *items[SN_BOOTSTRAP_MAX]; /* for sn_link_open */
    size_t n;
    char found[SN_BOOTSTRAP_FOUND_MAX][SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2];
} sn_bootstrap;

typedef struct sn_bootstrap_options {
    const char *const *join; /* addresses, borrowed */
    size_t n_join;
    const char *dht;         /* HOST:PORT of any node of the DHT, or NULL: the DHT is not asked */
    const sn_cancel *cancel; /* ends the search; NULL: nothing does */
} sn_bootstrap_options;

/* Copies the given addresses and, with a DHT, searches it until some are found (of many a random sample). SN_RETRY: no
 * address was given, and none was found within timeout_ms. */
sn_status sn_bootstrap_find(sn_bootstrap *bootstrap, const sn_bootstrap_options *options, const sn_hash *model,
                            int timeout_ms, sn_err *err) SN_MUST_USE;

#endif
