/* The output of `swarm status`: the nodes of a swarm and the coverage of the blocks, as a table or as JSON. */
#ifndef SN_CLI_STATUS_VIEW_H
#define SN_CLI_STATUS_VIEW_H

#include "client/net/bootstrap.h"
#include "client/net/link.h"

#include <jansson.h>

/* A node: its announcement and its reply. */
typedef struct sn_status_row {
    sn_announcement announcement; /* a copy, its texts sanitized */
    sn_node_status reply;
    struct sn_adapter_info adapters[SN_ADAPTERS_MAX]; /* published by the node */
    size_t n_adapters;
} sn_status_row;

/* The nodes that serve a block: those that are online and replied. */
typedef struct sn_status_coverage {
    int nodes;
    uint64_t tokens_per_s; /* sum over the nodes; 0 of a node that has not measured it */
} sn_status_coverage;
sn_status_coverage sn_status_block_coverage(const sn_status_row *rows, size_t n, const uint8_t model[SN_KEY_SIZE],
                                            uint64_t block);

void sn_status_print(const sn_status_row *rows, size_t n);
json_t *sn_status_json(const sn_status_row *rows, size_t n); /* docs/CLIENT.md describes the fields */

#endif
