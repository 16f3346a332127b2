/* The status of a swarm: its nodes, and the coverage of the blocks. Used on the link's thread. */
#ifndef SN_CLIENT_API_STATUS_H
#define SN_CLIENT_API_STATUS_H

#include "client/net/link.h"

#include <jansson.h>

/* A node: its announcement and its reply. */
typedef struct sn_status_row {
    sn_announcement announcement; /* a copy, its texts sanitized */
    sn_node_reply reply;          /* its texts sanitized */
} sn_status_row;

/* The nodes that serve a block: those that are online and replied. */
typedef struct sn_status_coverage {
    int nodes;
    uint64_t tokens_per_s; /* sum over the nodes; 0 of a node that has not measured it */
} sn_status_coverage;

/* Asks the nodes that the link knows, proven ones first; takes up to two seconds. SN_STOP only; free *rows with
 * sn_status_free in any case. */
sn_status sn_status_query(sn_link *link, sn_status_row **rows, size_t *n, sn_err *err) SN_MUST_USE;

void sn_status_free(sn_status_row **rows, size_t n); /* accepts NULL rows */

json_t *sn_status_json(const sn_status_row *rows, size_t n); /* docs/CLIENT.md describes the fields */

#endif
