/* Nodes that were much slower than they claimed, remembered from run to run in a small file.
 *
 * A node that computes a block in more than SN_SLOW_FACTOR times the time that it announces loses rank for SN_SLOW_MS:
 * routes are planned with the time that was measured. It is forgotten at once when it is measured near its claim again.
 * Central type: sn_slow_nodes, used on the chain's thread by the chains of a program. At most SN_SLOW_NODES_MAX nodes
 * are kept; the one that would be forgotten first makes room. A file that is missing, damaged or not writable costs the
 * memory and nothing else: no function here fails a run. */
#ifndef SN_CLIENT_ROUTING_SLOW_NODES_H
#define SN_CLIENT_ROUTING_SLOW_NODES_H

#include "net/message.h"

enum { SN_SLOW_NODES_MAX = 256, SN_SLOW_FACTOR = 4, SN_SLOW_MS = 3600000 };

typedef struct sn_slow_nodes sn_slow_nodes;

/* Reads the file, if there is one. path: copied; NULL: nothing is kept beyond this run. */
sn_status sn_slow_nodes_new(const char *path, int64_t unix_ms, sn_slow_nodes **out, sn_err *err) SN_MUST_USE;
void sn_slow_nodes_free(sn_slow_nodes **nodes); /* accepts NULL */

/* A block took measured_ns where the node announces claimed_ns (0: nothing). Writes the file when that changes what is
 * remembered. Accepts NULL. */
void sn_slow_nodes_note(sn_slow_nodes *nodes, const uint8_t node[SN_KEY_SIZE], int64_t claimed_ns, int64_t measured_ns,
                        int64_t unix_ms);
/* The time of a block that is remembered of this node; 0: none. Accepts NULL. */
int64_t sn_slow_nodes_block_ns(const sn_slow_nodes *nodes, const uint8_t node[SN_KEY_SIZE], int64_t unix_ms);

#endif
