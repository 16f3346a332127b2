/* What the model expected at each place of a prompt: the logits of all its tokens, computed a few rows at a time, since
 * a row has as many floats as the vocabulary has tokens. The first token has no log-probability: nothing comes before
 * it. */
#include "gateway/queue/audited.h"
#include "gateway/http/answer_private.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 32 };

typedef struct echo {
    sn_http_answer_choice *choice;
    size_t vocab, n_top;
    float *logits;          /* (ROWS, vocab) */
    sn_reply_token *tokens; /* (prompt) */
    int32_t *top_ids;       /* (prompt, n_top) */
    double *top_logprobs;   /* the same */
} echo;

static swarm_code compute(void *ctx, swarm_session *session, swarm_error **error) {
    echo *e = ctx;
    const sn_http_answer_prompt *prompt = e->choice->prompt;
    const swarm_model *model = e->choice->answer->server->options.model;
    swarm_code code = swarm_session_rewind(session, 0, error);
    for (size_t at = 0; at < prompt->n && !code; at += ROWS) {
        size_t rows = sn_min_size(ROWS, prompt->n - at);
        code = swarm_session_append(session, prompt->ids + at, rows, e->logits, error);
        for (size_t i = at + 1; !code && i <= at + rows && i < prompt->n; i++) {
            sn_reply_token *t = &e->tokens[i];
            int32_t *top_ids = e->top_ids + i * e->n_top;
            double *top_logprobs = e->top_logprobs + i * e->n_top;
            code = swarm_model_logprob(model, e->logits + (i - 1 - at) * e->vocab, t->id, &t->logprob, e->n_top,
                                       top_ids, top_logprobs, error);
            t->top_ids = top_ids;
            t->top_logprobs = top_logprobs;
            t->n_top = e->n_top;
        }
    }
    return code;
}

static sn_status echo_init(echo *e, sn_http_answer_choice *c, sn_err *err) {
    const sn_request *r = c->answer->request;
    const size_t n = c->prompt->n;
    *e = (echo){.choice = c, .vocab = (size_t)swarm_model_vocab(c->answer->server->options.model), .n_top = 0};
    if (r->logprobs > 0) e->n_top = sn_min_size((size_t)r->logprobs, e->vocab);
    sn_status status = sn_calloc(&e->tokens, n, sizeof *e->tokens, err);
    if (!status && r->logprobs >= 0) status = sn_calloc(&e->logits, e->vocab * ROWS, sizeof *e->logits, err);
    if (!status) status = sn_calloc(&e->top_ids, n * e->n_top, sizeof *e->top_ids, err);
    if (!status) status = sn_calloc(&e->top_logprobs, n * e->n_top, sizeof *e->top_logprobs, err);
    for (size_t i = 0; !status && i < n; i++) e->tokens[i] = (sn_reply_token){.id = c->prompt->ids[i], .logprob = NAN};
    return status;
}

swarm_code sn_http_answer_echo(sn_http_answer_choice *c, swarm_session *session, swarm_error **error) {
    sn_http_answer *a = c->answer;
    sn_openai_error failure = {0};
    sn_err err;
    echo e;
    swarm_code code = echo_init(&e, c, &err) ? SWARM_STOP : SWARM_OK;
    if (!code && e.logits) code = sn_compute_audited(compute, &e, session, error);
    if (!code) {
        pthread_mutex_lock(&a->lock);
        if (!sn_reply_echo(a->reply, c->index, e.tokens, c->prompt->n, &failure)) sn_http_answer_fail(a, &failure);
        sn_http_answer_collect(a);
        pthread_mutex_unlock(&a->lock);
    }
    free(e.tokens);
    free(e.logits);
    free(e.top_ids);
    free(e.top_logprobs);
    return code;
}
