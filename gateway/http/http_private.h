/* What the files of the HTTP server share.
 *
 * server.c    the daemon, from a connection to a checked request with its body
 * door.h      how long a connection may take for its part; load.h: what requests take of memory and processors
 * exchange.c  sending: headers of every reply, errors, whether the client is still there
 * routes.c    the table of routes, and the small ones
 * answer.c    chat, completions, embeddings: from a request to jobs of the queue, and from their bytes to the client
 * generation.c  a job in a session: from its events to the reply
 * echo.c      log-probabilities of prompts
 * view.c      the state of the swarm, asked for away from requests */
#ifndef SN_GATEWAY_HTTP_HTTP_PRIVATE_H
#define SN_GATEWAY_HTTP_HTTP_PRIVATE_H

#include "base/clock.h"
#include "gateway/http/counters.h"
#include "gateway/http/door.h"
#include "gateway/http/load.h"
#include "gateway/http/server.h"
#include "gateway/openai/reply.h"

#include <microhttpd.h>
#include <pthread.h>

enum {
    SN_BODY_MAX = 32 << 20, /* of a request */
    SN_REQUEST_NAME_MAX = 64,
    SN_IGNORED_LOGGED = 64, /* names of fields that requests have for nothing: each is logged once, others never */
};

typedef struct sn_view sn_view;
typedef struct sn_http_answer sn_http_answer;

struct sn_server {
    sn_server_options options;
    sn_served_model *served;
    const char *models[1];
    sn_request_limits limits;
    sn_view *view;
    sn_counters counters;
    struct MHD_Daemon *daemon;
    char *cert, *key; /* PEM texts */
    int port;
    int64_t started_unix_s;
    atomic_bool draining;
    _Atomic(uint64_t) ignored[SN_IGNORED_LOGGED]; /* hashes of ignored fields that the log has; 0: free */
    atomic_size_t open;                           /* requests that are not answered yet */
    sn_load load;
    sn_door *door;
};

/* A request and its reply, on the thread of their connection. */
typedef struct sn_exchange {
    sn_server *server;
    struct MHD_Connection *connection;
    const struct sn_http_route *route;
    sn_guest *guest;
    sn_taken taken; /* by the body, then by what it became */
    sn_buf body;
    const char *path, *host, *origin; /* of libmicrohttpd; the last two are headers, NULL: missing */
    sn_origin from;
    uint64_t owner; /* sn_access_owner */
    char id[SN_REQUEST_NAME_MAX + 1];
    int64_t arrived_us;
    size_t received;         /* bytes of the body */
    const char *allow;       /* methods of the path, when it was asked for with another one */
    sn_openai_error refusal; /* for the end of the body; status 0: none */
    unsigned code;           /* of the reply; 0: none yet */
    size_t to_read;          /* bytes of the reply */
    sn_http_answer *answer;
    bool streams;
} sn_exchange;

typedef struct sn_http_route {
    const char *method, *path;
    bool open; /* needs no key */
    enum MHD_Result (*handle)(sn_exchange *exchange);
} sn_http_route;
/* The route of a method and path; NULL: *allow has the methods of the path, or is NULL where there is no such path. */
const sn_http_route *sn_http_route_find(const char *method, const char *path, const char **allow);

/* Replies. The data is copied. */
enum MHD_Result sn_exchange_send(sn_exchange *x, unsigned code, const char *type, const void *data, size_t len);
/* text is freed; NULL: memory is out. */
enum MHD_Result sn_exchange_send_json(sn_exchange *x, unsigned code, char *text);
enum MHD_Result sn_exchange_refuse(sn_exchange *x, const sn_openai_error *error);
/* Adds the headers of every reply and queues it. Takes the response. */
enum MHD_Result sn_exchange_queue(sn_exchange *x, unsigned code, struct MHD_Response *response);
/* From now on the client has a limit to read what is left of its reply. */
void sn_exchange_is_read(const sn_exchange *x, size_t bytes);
/* Parses the body, which is then freed. */
bool sn_exchange_parse(sn_exchange *x, sn_request_kind kind, sn_request **out, sn_openai_error *error) SN_MUST_USE;
/* Waits until the request may be prepared (sn_load_begin); sn_load_end follows. */
bool sn_exchange_may_prepare(const sn_exchange *x, sn_openai_error *error) SN_MUST_USE;
/* Whether the client has closed its connection. */
bool sn_exchange_is_left(const sn_exchange *x);

enum MHD_Result sn_http_answer_chat(sn_exchange *x);
enum MHD_Result sn_http_answer_completion(sn_exchange *x);
enum MHD_Result sn_http_answer_embedding(sn_exchange *x);
enum MHD_Result sn_http_answer_response(sn_exchange *x);
void sn_http_answer_free(sn_http_answer **answer); /* cancels what still runs; accepts NULL */

sn_status sn_view_new(sn_server *server, sn_view **out, sn_err *err) SN_MUST_USE;
void sn_view_free(sn_view **view); /* accepts NULL */
/* The state of the swarm as a JSON text, a second old at most where nodes answer in time; freed with free(). NULL: none
 * is known yet. */
char *sn_view_get(sn_view *view);

#endif
