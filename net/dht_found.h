/* Nodes that were found in a DHT, and which of them to ask next.
 *
 * A DHT keeps what anyone publishes under a key: a stranger may put any number of records of invented nodes beside the
 * honest ones, each validly signed. So none wins by being first: of many a random sample is kept, fair by the network
 * that the address is in (/24 of IPv4, /48 of IPv6); they are asked in turns, those of networks from which few were
 * asked first. A program asks on until nodes have answered.
 *
 * Logic only: the time is an argument. Plain data of one thread, zeroed before the first use. */
#ifndef SN_NET_DHT_FOUND_H
#define SN_NET_DHT_FOUND_H

#include "net/dht_record.h"

enum { SN_DHT_FOUND_MAX = 256 };

typedef struct sn_dht_found {
    struct sn_dht_node {
        sn_dht_record record;
        uint64_t network, rank; /* rank: random */
        uint64_t asked;         /* how often */
    } nodes[SN_DHT_FOUND_MAX];
    size_t n;
    uint64_t seed; /* RNG state */
} sn_dht_found;

/* Adds a record that was opened (sn_dht_record_open), or replaces the node's older one. */
void sn_dht_found_add(sn_dht_found *found, const sn_dht_record *record);
/* The node to ask next; one that was asked comes again behind all others. NULL: there is none, or with `new_only` none
 * that was not asked. */
const sn_dht_record *sn_dht_found_next(sn_dht_found *found, bool new_only, int64_t now_unix_ms);

#endif
