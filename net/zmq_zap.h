/* Who may connect: the ZAP handler of a ZeroMQ context (RFC 27, rfc.zeromq.org/spec/27). Internal to net/.
 *
 * libzmq asks it for each handshake, over an inproc socket, and waits for the answer before it lets messages through.
 * It has a thread of its own, because handshakes must go on while the transport's owner computes. */
#ifndef SN_NET_ZMQ_ZAP_H
#define SN_NET_ZMQ_ZAP_H

#include "base/err.h"

typedef struct sn_zap sn_zap;

/* Serves every socket of the context that has the ZAP domain SN_ZAP_DOMAIN; to be started before the first of them. */
#define SN_ZAP_DOMAIN "swarm"
sn_status sn_zap_start(void *zmq_context, sn_zap **out, sn_err *err) SN_MUST_USE;
/* The thread ends when the context is shut down (zmq_ctx_shutdown); this waits for it. NULL-safe. */
void sn_zap_join(sn_zap **zap);

#endif
