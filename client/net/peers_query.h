/* What a client asks a node for with PEERS: some of the announcements that the node knows. */
#ifndef SN_CLIENT_NET_PEERS_QUERY_H
#define SN_CLIENT_NET_PEERS_QUERY_H

#include "net/message.h"

typedef struct sn_peers_query {
    const sn_hash *model; /* NULL: of every model */
    uint64_t from_tag, to_tag;
    const char *name; /* NULL: of any name */
} sn_peers_query;

sn_status sn_peers_query_message(const sn_peers_query *query, uint64_t correlation_id, sn_msg **out,
                                 sn_err *err) SN_MUST_USE;
/* The range of tags of ids that begin with these hexadecimal digits; false: they are none, or too few. */
bool sn_peers_query_digits(const char *digits, uint64_t *from_tag, uint64_t *to_tag);

#endif
