/* The output of `swarm status` for people: the nodes of a swarm and the coverage of the blocks, as a table. */
#ifndef SN_CLI_STATUS_VIEW_H
#define SN_CLI_STATUS_VIEW_H

#include <jansson.h>

/* Prints the JSON of swarm_connection_status (docs/CLIENT.md) on stdout. */
void sn_status_print(const json_t *status);

#endif
