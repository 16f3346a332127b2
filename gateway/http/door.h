/* The connections of the server, and until when each may be in what it does: libmicrohttpd knows only how long one is
 * silent, and a client that sends a byte now and then would keep its place for hours. A connection that is late is shut
 * down, by a thread of its own. Limits are shorter while three quarters of all places are taken.
 *
 * Central types: sn_door; sn_guest, a connection, from its notification to the one of its end. Any thread may call
 * these functions. */
#ifndef SN_GATEWAY_HTTP_DOOR_H
#define SN_GATEWAY_HTTP_DOOR_H

#include "base/mem.h"

#include <stdint.h>

typedef struct sn_door sn_door;
typedef struct sn_guest sn_guest;

sn_status sn_door_new(size_t places, sn_door **out, sn_err *err) SN_MUST_USE;
void sn_door_free(sn_door **door); /* after the last guest has left; accepts NULL */

/* NULL: memory is out, and the connection has no limit. The others accept NULL. */
sn_guest *sn_door_enter(sn_door *door, int fd);
void sn_door_leave(sn_door *door, sn_guest *guest); /* before fd is closed */
/* It has this time from now on for what it does next, and the shorter one in a crowd. 0: any time. */
void sn_door_allow(sn_door *door, sn_guest *guest, int64_t ms, int64_t crowded_ms);

#endif
