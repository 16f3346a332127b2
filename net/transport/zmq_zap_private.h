/* Admission of connections: the ZAP handler of a ZeroMQ context (RFC 27, rfc.zeromq.org/spec/27). Private to
 * net/transport/.
 *
 * libzmq asks the handler for each handshake, over an inproc socket, and lets messages through after its answer. The
 * handler has its own thread, because handshakes must go on while the transport's owner computes. It admits every key
 * that the handshake has proven, from addresses within the limit of handshake_limit_private.h, and attaches the key to
 * the connection as its User-Id. */
#ifndef SN_NET_TRANSPORT_ZMQ_ZAP_PRIVATE_H
#define SN_NET_TRANSPORT_ZMQ_ZAP_PRIVATE_H

#include "base/err.h"

typedef struct sn_zap sn_zap;

/* Starts the handler for all sockets of the context with the ZAP domain SN_ZAP_DOMAIN; call it before the first of them
 * is opened. */
#define SN_ZAP_DOMAIN "swarm"
sn_status sn_zap_start(void *zmq_context, sn_zap **out, sn_err *err) SN_MUST_USE;
/* Waits for the thread, which ends when the context is shut down (zmq_ctx_shutdown). Accepts NULL. */
void sn_zap_join(sn_zap **zap);

#endif
