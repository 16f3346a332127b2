/* An answer: the jobs of a request, and the bytes that its client gets. Shared by answer.c, which knows requests and
 * connections, and generation.c, which knows sessions. */
#ifndef SN_GATEWAY_HTTP_ANSWER_PRIVATE_H
#define SN_GATEWAY_HTTP_ANSWER_PRIVATE_H

#include "gateway/http/http_private.h"
#include "gateway/openai/constraint.h"

typedef struct sn_http_answer_prompt {
    int32_t *ids; /* (n) */
    size_t n;
    bool own, thinks; /* own: ids are freed with swarm_free */
} sn_http_answer_prompt;

/* One of the request's choices, a job. */
typedef struct sn_http_answer_choice {
    sn_http_answer *answer;
    size_t index;
    const sn_http_answer_prompt *prompt;
    size_t prompt_index;
    sn_server_job job;
    bool told_prompt, told;    /* the reply knows how much of the prompt was computed; the client knows of the answer */
    swarm_options *generation; /* NULL: nothing is generated */
    sn_constraint *constraint; /* NULL: none */
} sn_http_answer_choice;

struct sn_http_answer {
    sn_server *server;
    const sn_exchange *exchange; /* whose answer it is */
    sn_request *request;
    sn_http_answer_prompt *prompts; /* (n_prompts) */
    sn_http_answer_choice *choices; /* (n_choices) */
    size_t n_prompts, n_choices, submitted;
    bool prepares;       /* it has one of the processors that prepare requests (sn_load_begin) */
    int64_t prepares_us; /* since then */
    uint64_t owner;
    int64_t arrived_us;
    pthread_mutex_t lock; /* of what follows, and of calls on the reply. No function of the queue is called under it */
    pthread_cond_t changed;
    sn_reply *reply;
    sn_openai_error error; /* the first; status 0: none */
    size_t ended;          /* choices */
    bool begun, finished;  /* a token came; the reply is complete */
    bool is_cut;           /* the memory of the server had no room for a part of the reply */
    json_t *hops;          /* of the choice that ended last */
    size_t failovers;
    double laps_saved;
    bool unchecked; /* a step of a choice was not audited */
    sn_buf out;     /* bytes for the client, of which `sent` are on their way */
    size_t sent;
    sn_taken taken; /* by `out` and by what the reply holds */
};

/* The job of a choice: what the functions of sn_server_job are. ctx: sn_http_answer_choice. */
swarm_code sn_http_answer_run_choice(void *choice, swarm_session *session, swarm_error **error);
bool sn_http_answer_may_repeat(void *choice);
swarm_code sn_http_answer_embed(void *choice, swarm_session *session, swarm_error **error);
void sn_http_answer_end_choice(void *choice, swarm_code code, const swarm_error *error);

/* libmicrohttpd asks for bytes of a stream: the callback's type. */
ssize_t sn_http_answer_stream(void *exchange, uint64_t at, char *out, size_t max);
/* Moves what the reply has made to `out` and wakes the connection. Under the lock. */
void sn_http_answer_collect(sn_http_answer *a);
/* The answer fails with this error, unless it has failed already. Under the lock. */
void sn_http_answer_fail(sn_http_answer *a, const sn_openai_error *error);

/* With "echo" and "logprobs": computes the prompt and tells the reply its tokens (echo.c). */
swarm_code sn_http_answer_echo(sn_http_answer_choice *c, swarm_session *session, swarm_error **error);

#endif
