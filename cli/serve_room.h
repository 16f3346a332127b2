/* How long the timelines may be that the nodes of a swarm have memory for. */
#ifndef SN_CLI_SERVE_ROOM_H
#define SN_CLI_SERVE_ROOM_H

#include <jansson.h>
#include <stddef.h>

typedef struct sn_serve_room {
    size_t longest; /* tokens of one timeline, of which each block is at one node. 0: no node says */
    size_t all;     /* of all timelines together, with those that idle sessions give up for a while */
} sn_serve_room;

/* status: as swarm_connection_status has it; description: as swarm_model_describe. Of all timelines together an eighth
 * is left, for what is on its way between KV memory and the place of idle sessions, and for pages that are not full. */
sn_serve_room sn_serve_room_of(const json_t *status, const json_t *description);

#endif
