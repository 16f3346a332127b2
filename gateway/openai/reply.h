/* Replies of the OpenAI API: what a generation tells of its tokens becomes the bytes that the client gets.
 *
 * A reply is told of prompts, tokens and texts, in the order of a choice's events; choices may alternate. With "stream"
 * it makes server-sent events at once, else one body at the end. Either way sn_reply_take gives the bytes that are
 * ready to be sent. Of a chat the text comes from the tokens so far (swarm_answer_add), so deltas do not depend
 * on how tokens are cut; of a completion from the session's texts, in which stop strings are done with.
 *
 * Central type: sn_reply, used by one thread at a time. */
#ifndef SN_GATEWAY_OPENAI_REPLY_H
#define SN_GATEWAY_OPENAI_REPLY_H

#include "gateway/openai/request.h"
#include "gateway/openai/served_model.h"

typedef struct sn_reply sn_reply;

typedef struct sn_reply_head {
    const char *id;  /* unique, letters and digits: "chatcmpl-" and the like are put before it; copied */
    int64_t created; /* seconds since 1970 */
} sn_reply_head;

/* Borrows request and model for its life. */
bool sn_reply_new(const sn_request *request, const sn_served_model *served, const sn_reply_head *head, sn_reply **out,
                  sn_openai_error *error) SN_MUST_USE;
void sn_reply_free(sn_reply **reply); /* accepts NULL */

/* A token with what is known of its place. */
typedef struct sn_reply_token {
    int32_t id;
    double logprob; /* with the request's "logprobs", as are the others; NaN: none (the first token of a prompt) */
    const int32_t *top_ids;
    const double *top_logprobs;
    size_t n_top;
} sn_reply_token;

/* Once for each prompt (of a chat 0), before its tokens: how many tokens it has, how many of them were not computed
 * again, and whether an answer begins within a thought (swarm_model_prompt_thinks). It can be told again, before the
 * first token, when the cached tokens are known. */
void sn_reply_prompt(sn_reply *reply, size_t prompt, size_t n_tokens, size_t cached, bool thinks);

/* All functions below return false when the reply failed (memory; an answer that was retracted after it was sent):
 * *error says why, and sn_reply_fail should follow. */

/* How far the choice's prompt is, before its first token: `done` of its tokens, `cached` of which were not computed
 * again, after so many ms. Told to streams that were asked for with "return_progress", else nothing. */
typedef struct sn_reply_progress {
    size_t done, cached;
    int64_t ms;
} sn_reply_progress;
bool sn_reply_add_progress(sn_reply *reply, size_t choice, const sn_reply_progress *progress,
                           sn_openai_error *error) SN_MUST_USE;
/* With "echo": the tokens of a choice's prompt, before its first token. */
bool sn_reply_echo(sn_reply *reply, size_t choice, const sn_reply_token *tokens, size_t n,
                   sn_openai_error *error) SN_MUST_USE;
/* SWARM_EVENT_TOKEN, then SWARM_EVENT_TEXT if there was any, SWARM_EVENT_RETRACT. */
bool sn_reply_add_token(sn_reply *reply, size_t choice, const sn_reply_token *token,
                        sn_openai_error *error) SN_MUST_USE;
bool sn_reply_add_text(sn_reply *reply, size_t choice, const char *text, size_t len,
                       sn_openai_error *error) SN_MUST_USE;
bool sn_reply_retract(sn_reply *reply, size_t choice, size_t kept_bytes, size_t kept_tokens,
                      sn_openai_error *error) SN_MUST_USE;
/* The choice's end: finish_reason of swarm_session_generate's JSON ("stop", "stop_text", "length", "interrupted"). */
bool sn_reply_end(sn_reply *reply, size_t choice, const char *finish_reason, sn_openai_error *error) SN_MUST_USE;
/* Embeddings: the floats (width) of a prompt. */
bool sn_reply_embedding(sn_reply *reply, size_t prompt, const float *embedding, size_t width,
                        sn_openai_error *error) SN_MUST_USE;
/* After the last choice: usage, the last event, or the whole body. swarm: our own member "swarm" (borrowed; NULL:
 * none), in the last chunk and in whole replies. */
bool sn_reply_finish(sn_reply *reply, json_t *swarm, sn_openai_error *error) SN_MUST_USE;

/* Instead of what is missing: a stream ends with an error event; a whole reply becomes the error's body, and its HTTP
 * status is the error's. */
void sn_reply_fail(sn_reply *reply, const sn_openai_error *error);

/* The bytes that are ready and were not taken yet; 0: none. Borrowed until the next call on this reply. */
const char *sn_reply_take(sn_reply *reply, size_t *len);
/* About the memory of log-probabilities and embeddings: what a whole reply makes of them at its end among it. */
size_t sn_reply_held(const sn_reply *reply);
/* Tokens generated so far, in all choices, for metrics. */
size_t sn_reply_tokens(const sn_reply *reply);

/* Replies without generation, as texts that are freed with free(); NULL: memory is out. */
char *sn_reply_tokenize(const sn_request *request, const sn_served_model *served, const int32_t *ids, size_t n);
char *sn_reply_detokenize(const char *text, size_t len);
char *sn_reply_model(const sn_served_model *served, int64_t created, int32_t context);  /* GET /v1/models/ID */
char *sn_reply_models(const sn_served_model *served, int64_t created, int32_t context); /* GET /v1/models */

#endif
