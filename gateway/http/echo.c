/* What the model expected at each place of a prompt: the logits of all its tokens, computed a few rows at a time, since
 * a row has as many floats as the vocabulary has tokens. The first token has no log-probability: nothing comes before
 * it. */
#include "gateway/http/answer_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32 };

/* The log-probability of token `id`, and into top_ids, top_logprobs those of the n most likely tokens, best first. */
static double read_row(const float *logits, size_t vocab, int32_t id, size_t n, int32_t *top_ids,
                       double *top_logprobs) {
    double sum = 0;
    size_t found = 0;
    float most = logits[0];
    for (size_t i = 1; i < vocab; i++) most = logits[i] > most ? logits[i] : most;
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)most);
    const double norm = (double)most + log(sum);
    for (size_t i = 0; i < vocab && n; i++) {
        if (found == n && !(logits[i] > logits[top_ids[n - 1]])) continue;
        size_t at = found < n ? found++ : n - 1;
        for (; at && logits[i] > logits[top_ids[at - 1]]; at--) top_ids[at] = top_ids[at - 1];
        top_ids[at] = (int32_t)i;
    }
    for (size_t i = 0; i < found; i++) top_logprobs[i] = (double)logits[top_ids[i]] - norm;
    return (double)logits[id] - norm;
}

typedef struct echo {
    sn_answer_choice *choice;
    size_t vocab, n_top;
    float *logits;          /* (ROWS, vocab) */
    sn_reply_token *tokens; /* (prompt) */
    int32_t *top_ids;       /* (prompt, n_top) */
    double *top_logprobs;   /* the same */
} echo;

static swarm_code compute(echo *e, swarm_session *session, swarm_error **error) {
    const sn_answer_prompt *prompt = e->choice->prompt;
    swarm_code code = swarm_session_rewind(session, 0, error);
    for (size_t at = 0; at < prompt->n && !code; at += ROWS) {
        size_t rows = sn_min_size(ROWS, prompt->n - at);
        code = swarm_session_append(session, prompt->ids + at, rows, e->logits, error);
        for (size_t i = at + 1; !code && i <= at + rows && i < prompt->n; i++) {
            sn_reply_token *t = &e->tokens[i];
            t->top_ids = e->top_ids + i * e->n_top;
            t->top_logprobs = e->top_logprobs + i * e->n_top;
            t->n_top = e->n_top;
            t->logprob = read_row(e->logits + (i - 1 - at) * e->vocab, e->vocab, t->id, e->n_top,
                                  e->top_ids + i * e->n_top, e->top_logprobs + i * e->n_top);
        }
    }
    return code;
}

static sn_status echo_init(echo *e, sn_answer_choice *c, sn_err *err) {
    const sn_request *r = c->answer->request;
    const size_t n = c->prompt->n;
    *e = (echo){.choice = c,
                .vocab = (size_t)swarm_model_vocab(c->answer->server->options.model),
                .n_top = r->logprobs > 0 ? (size_t)r->logprobs : 0};
    sn_status status = sn_calloc(&e->tokens, n, sizeof *e->tokens, err);
    if (!status && r->logprobs >= 0) status = sn_calloc(&e->logits, e->vocab * ROWS, sizeof *e->logits, err);
    if (!status) status = sn_calloc(&e->top_ids, n * e->n_top, sizeof *e->top_ids, err);
    if (!status) status = sn_calloc(&e->top_logprobs, n * e->n_top, sizeof *e->top_logprobs, err);
    for (size_t i = 0; !status && i < n; i++) e->tokens[i] = (sn_reply_token){.id = c->prompt->ids[i], .logprob = NAN};
    return status;
}

swarm_code sn_answer_echo(sn_answer_choice *c, swarm_session *session, swarm_error **error) {
    sn_answer *a = c->answer;
    sn_openai_error failure = {0};
    sn_err err;
    echo e;
    swarm_code code = echo_init(&e, c, &err) ? SWARM_STOP : SWARM_OK;
    if (!code && e.logits) code = compute(&e, session, error);
    if (!code) {
        pthread_mutex_lock(&a->lock);
        if (!sn_reply_echo(a->reply, c->index, e.tokens, c->prompt->n, &failure)) sn_answer_fail(a, &failure);
        pthread_mutex_unlock(&a->lock);
    }
    free(e.tokens);
    free(e.logits);
    free(e.top_ids);
    free(e.top_logprobs);
    return code;
}
