/* How long the timelines may be that the nodes of a swarm have memory for. */
#ifndef SN_CLI_SERVE_ROOM_H
#define SN_CLI_SERVE_ROOM_H

#include <jansson.h>
#include <stddef.h>

typedef struct sn_serve_room {
    size_t longest; /* tokens of one timeline, of which each block is at one node. 0: no node says */
    size_t all;     /* of all timelines together */
} sn_serve_room;

/* status: as swarm_connection_status has it; description: as swarm_model_describe. bytes: of a number in the KV cache.
 * Of the memory an eighth is left for what nodes keep besides. */
sn_serve_room sn_serve_room_of(const json_t *status, const json_t *description, double bytes);

#endif
