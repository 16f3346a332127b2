/* A node of this program's own, as a child process that ends with it: `swarm serve --local all` computes in one place
 * for all sessions, which batches them and shares their prefixes. */
#ifndef SN_CLI_LOCAL_NODE_H
#define SN_CLI_LOCAL_NODE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct sn_local_node {
    pid_t pid;         /* 0: none runs */
    int out;           /* its standard output, which stays open for it */
    char address[320]; /* "127.0.0.1:PORT#KEY" */
} sn_local_node;

/* Starts `swarm-node` of the folder of this program with these options (ends with NULL) besides its address, and waits
 * until it is ready, or until SIGTERM or SIGINT, which are blocked, are pending. Called before the process has threads.
 * SN_RETRY: it ended before; what it said is on stderr. */
sn_status sn_local_node_start(const char *const *options, sn_local_node *out, sn_err *err) SN_MUST_USE;
/* Whether it has ended by itself. */
bool sn_local_node_has_ended(sn_local_node *node);
void sn_local_node_stop(sn_local_node *node); /* and waits for its end; accepts one that does not run */

#endif
