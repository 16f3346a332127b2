/* The HTTP server of `swarm serve`: the door (this file), access (access.h), and the routes that docs/SERVER.md lists.
 *
 * Each connection has a thread, on which its requests are read, checked and answered; generations run on the queue's
 * threads. Everything that comes from outside is bounded: connections, connections of one address, bytes of headers and
 * bodies, time without a byte, time for headers, bodies and reading (door.h), memory and preparing (load.h). */
#ifndef SN_GATEWAY_HTTP_SERVER_H
#define SN_GATEWAY_HTTP_SERVER_H

#include "base/mem.h"
#include "gateway/queue/queue.h"
#include "gateway/http/access.h"

typedef struct sn_server sn_server;

typedef struct sn_server_options {
    const swarm_model *model;
    swarm_connection *connection;
    sn_server_queue *queue;
    sn_access access;       /* its lists are borrowed */
    const char *model_name; /* as requests call the model */
    int32_t context;        /* tokens of the longest timeline */
    size_t choices_max;     /* of one request; those that the queue can take */
    const char *host;       /* to listen at, and port (0: a free one) */
    int port;
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS */
    int64_t headers_ms;             /* for the headers of a request; 0: 30 s */
    int64_t body_ms;                /* for its body; 0: 120 s */
    int64_t read_ms;                /* for reading a finished answer, besides its length; 0: 120 s */
} sn_server_options;                /* borrowed for the server's life */

sn_status sn_server_new(const sn_server_options *options, sn_server **out, sn_err *err) SN_MUST_USE;
int sn_server_port(const sn_server *server);
/* Ends the server: new requests are refused, those in progress have until the deadline (clock of sn_now_us), then they
 * are cancelled. Returns whether all of them were answered. */
bool sn_server_drain(sn_server *server, int64_t deadline_us);
/* Closes all connections. */
void sn_server_free(sn_server **server);

#endif
