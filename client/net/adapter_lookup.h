/* Adapters that nodes publish, found by name. A name is chosen by a node's owner and proves nothing; a chain then uses
 * the adapter by its hash, the same at every node. Used by the program's commands, on the link's thread. */
#ifndef SN_CLIENT_NET_ADAPTER_LOOKUP_H
#define SN_CLIENT_NET_ADAPTER_LOOKUP_H

#include "client/net/link.h"

/* wanted: NAME, or NAME@HEX with the first digits of the hash. Asks nodes of the model that announce adapters, at once;
 * discovery and this share timeout_ms. SN_RETRY: no node publishes it, or none answers; SN_REFUSED: the name means
 * different adapters at different nodes. */
sn_status sn_adapter_lookup(sn_link *link, const sn_hash *model, const char *wanted, int timeout_ms, sn_hash *out,
                            sn_err *err) SN_MUST_USE;

#endif
