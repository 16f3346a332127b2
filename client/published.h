/* Adapters that nodes publish, found by their name. A name is what some node says; what is used is named by its hash, the same at
 * every node of a chain. */
#ifndef SN_CLIENT_PUBLISHED_H
#define SN_CLIENT_PUBLISHED_H

#include "client/link.h"

/* `wanted`: "NAME", or "NAME@HEX" with the hash's beginning. Asks nodes of the model that announce adapters. SN_RETRY: none
 * publishes it, or nobody answers; SN_REFUSED: the name means different adapters at different nodes. */
sn_status sn_published_find(sn_link *link, const sn_hash *model, const char *wanted, int timeout_ms, sn_hash *out,
                            sn_err *err) SN_MUST_USE;

/* What one node publishes: its ADAPTERS_ARE. */
sn_status sn_published_list(sn_link *link, const sn_announcement *node, int timeout_ms, sn_msg **out, sn_err *err) SN_MUST_USE;

#endif
