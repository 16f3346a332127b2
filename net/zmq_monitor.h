/* What libzmq knows of a connection and does not say by itself: it connects again in silence. Internal to net/. */
#ifndef SN_NET_ZMQ_MONITOR_H
#define SN_NET_ZMQ_MONITOR_H

#include "base/err.h"

#include <stdint.h>

typedef enum sn_connection {
    SN_CONNECTION_SAME,    /* nothing has happened */
    SN_CONNECTION_UP,      /* the handshake succeeded */
    SN_CONNECTION_DOWN,    /* it was broken off, in the handshake or later */
    SN_CONNECTION_REFUSED, /* none came about; libzmq tries again */
} sn_connection;

/* Begins to watch `socket`, before it connects. *out: a socket to poll for reading and to read from. `number` is given to no
 * other monitor of the context. */
sn_status sn_monitor_open(void *context, void *socket, uint64_t number, void **out, sn_err *err) SN_MUST_USE;
/* Ends it, before `socket` is closed. NULL-safe. */
void sn_monitor_close(void *socket, void *monitor);
/* The next thing that happened; does not wait. */
sn_connection sn_monitor_read(void *monitor);

#endif
