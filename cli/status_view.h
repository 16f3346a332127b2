/* The output of `swarm status` for people: the nodes of a swarm and the coverage of the blocks, as a table. */
#ifndef SN_CLI_STATUS_VIEW_H
#define SN_CLI_STATUS_VIEW_H

#include "client/api/status.h"

void sn_status_print(const sn_status_row *rows, size_t n);

#endif
