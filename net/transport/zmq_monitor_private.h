/* The state of a libzmq connection, from a socket monitor: libzmq reconnects without a report. Private to
 * net/transport/. Used by the transport's thread. */
#ifndef SN_NET_TRANSPORT_ZMQ_MONITOR_PRIVATE_H
#define SN_NET_TRANSPORT_ZMQ_MONITOR_PRIVATE_H

#include "base/err.h"

#include <stdint.h>

typedef enum sn_connection {
    SN_CONNECTION_UNCHANGED, /* nothing has happened */
    SN_CONNECTION_MADE,      /* by TCP; the handshake follows */
    SN_CONNECTION_UP,        /* the handshake succeeded */
    SN_CONNECTION_DOWN,      /* it was closed, in the handshake or later */
    SN_CONNECTION_REFUSED,   /* it could not be made; libzmq tries again */
} sn_connection;

/* Starts to watch `socket`; call it before the socket connects. *out: a socket to poll for reading and to pass to
 * sn_zmq_monitor_read. `number` is unique among the monitors of the context. */
sn_status sn_zmq_monitor_open(void *context, void *socket, uint64_t number, void **out, sn_err *err) SN_MUST_USE;
/* Stops watching; call it before `socket` is closed. monitor may be NULL. */
void sn_zmq_monitor_close(void *socket, void *monitor);
/* The next change; does not wait. MADE: *fd is the connection's descriptor, which stays libzmq's: it may be closed, and
 * be that of another file, before the outage is read here. */
sn_connection sn_zmq_monitor_read(void *monitor, int *fd);
/* Bytes that have come over this connection; 0 where the system does not say, or it is no TCP connection. */
uint64_t sn_zmq_bytes_received(int fd);
/* Bytes that may have come from all peers together and are in no message that was taken from libzmq. */
uint64_t sn_zmq_unread_max(void);
/* Bytes of tensors that may wait for all peers together. */
uint64_t sn_zmq_unsent_max(void);

#endif
