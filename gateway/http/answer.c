/* From a request to jobs of the queue, and from the bytes of its reply to the client.
 *
 * Jobs run on the queue's threads and fill `out`; the connection's thread waits for bytes, looks five times a second
 * whether the client is still there, and sends. A stream's headers go out at once, and while nothing is ready a comment
 * line each second, so that neither the client nor what is between takes silence for an end. */
#include "gateway/http/answer_private.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_MS = 200, SILENCE_MS = 1000, OUT_MAX = 128 << 20, STREAM_BLOCK = 16 << 10 };

/* -- the reply's bytes -- */

void sn_http_answer_fail(sn_http_answer *a, const sn_openai_error *error) {
    if (a->error.status) return;
    a->error = *error;
    sn_reply_fail(a->reply, error);
}

void sn_http_answer_collect(sn_http_answer *a) {
    size_t len;
    sn_err err;
    const char *bytes;
    sn_load *load = &a->server->load;
    const size_t held = sn_reply_held(a->reply);
    if (a->sent == a->out.len) a->sent = a->out.len = 0;
    bool fits = sn_load_take(load, &a->taken, a->out.len + held);
    while (fits && (bytes = sn_reply_take(a->reply, &len), len))
        fits = sn_load_take(load, &a->taken, a->out.len + held + len) && !sn_buf_append(&a->out, bytes, len, &err);
    if (!fits && !a->error.status)
        (void)sn_openai_fail(&a->error, 503, "overloaded", NULL,
                             "What was answered and not read yet is too long for the memory of the server.");
    a->is_cut |= !fits;
    pthread_cond_broadcast(&a->changed);
}

/* Waits until there are bytes to send, the answer is complete, or the time is over. Under the lock. */
static void wait_for_bytes(sn_http_answer *a, int64_t until_us) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + sn_min_size(LOOK_MS * 1000, (size_t)(until_us - sn_now_us())) * 1000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    (void)pthread_cond_timedwait(&a->changed, &a->lock, &until);
}

/* On the connection's thread. A stream of which a part was dropped ends like a connection that broke, so that no client
 * takes it for a whole one. */
ssize_t sn_http_answer_stream(void *exchange, uint64_t at, char *out, size_t max) {
    static const char comment[] = ":\n\n";
    const sn_exchange *x = exchange;
    sn_http_answer *a = x->answer;
    const int64_t until_us = sn_now_us() + SILENCE_MS * 1000;
    (void)at;
    pthread_mutex_lock(&a->lock);
    bool left = false;
    while (a->sent == a->out.len && !a->finished && !left && sn_now_us() < until_us) {
        wait_for_bytes(a, until_us);
        left = sn_exchange_is_left(x);
    }
    size_t n = sn_min_size(max, a->out.len - a->sent);
    if (n) memcpy(out, a->out.data + a->sent, n);
    a->sent += n;
    bool ended = a->finished && a->sent == a->out.len, cut = a->is_cut;
    pthread_mutex_unlock(&a->lock);
    if (left) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n) return (ssize_t)n;
    if (ended) return cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    n = sn_min_size(max, sizeof comment - 1);
    memcpy(out, comment, n);
    return (ssize_t)n;
}

static enum MHD_Result send_stream(sn_exchange *x) {
    x->streams = true;
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, sn_http_answer_stream, x, NULL);
    if (response) {
        MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* of a proxy */
    }
    return sn_exchange_queue(x, 200, response);
}

static enum MHD_Result send_whole(sn_exchange *x) {
    sn_http_answer *a = x->answer;
    bool left = false;
    pthread_mutex_lock(&a->lock);
    while (!a->finished && !left) {
        wait_for_bytes(a, INT64_MAX);
        pthread_mutex_unlock(&a->lock);
        left = sn_exchange_is_left(x);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    if (left) return MHD_NO;
    if (a->error.status) return sn_exchange_refuse(x, &a->error);
    struct MHD_Response *response = MHD_create_response_from_buffer(a->out.len, a->out.data, MHD_RESPMEM_MUST_FREE);
    if (!response) return MHD_NO;
    x->to_read = a->out.len;
    a->out.data = NULL; /* the response's; it counts as taken until the client has it */
    MHD_add_response_header(response, "Content-Type", "application/json");
    return sn_exchange_queue(x, 200, response);
}

/* -- prompts -- */

static bool render_chat(sn_http_answer *a, sn_http_answer_prompt *prompt, sn_openai_error *error) {
    const swarm_model *model = a->server->options.model;
    swarm_error *cause = NULL;
    char *text = NULL;
    size_t len = 0;
    if (swarm_model_render_chat(model, a->request->chat, a->request->chat_len, &text, &len, &prompt->ids, &prompt->n,
                                &cause))
        return sn_openai_fail_swarm(error, cause);
    prompt->thinks = swarm_model_prompt_thinks(model, text, len);
    swarm_free(text);
    return true;
}

/* Prompts of completions are as 'swarm generate' takes them: special tokens may be spelled out. */
static bool read_prompt(sn_http_answer *a, const sn_prompt *from, sn_http_answer_prompt *prompt,
                        sn_openai_error *error) {
    swarm_error *cause = NULL;
    prompt->own = !from->ids;
    if (from->ids) {
        prompt->ids = (int32_t *)(uintptr_t)from->ids; /* which are only read */
        prompt->n = from->n;
        return true;
    }
    const int flags = SWARM_TEXT_BEGINS | (a->request->kind == SN_REQUEST_COMPLETION ? SWARM_TEXT_SPECIAL : 0);
    return !swarm_model_tokenize(a->server->options.model, from->text, from->len, flags, &prompt->ids, &prompt->n,
                                 &cause) ||
           sn_openai_fail_swarm(error, cause);
}

static bool begin_to_prepare(sn_http_answer *a, sn_openai_error *error) {
    a->prepares = sn_exchange_may_prepare(a->exchange, error);
    a->prepares_us = sn_now_us();
    return a->prepares;
}

/* A request may have a minute of work for the tokenizer in many prompts: between two of them others have their turn.
 */
static bool make_way(sn_http_answer *a, sn_openai_error *error) {
    sn_load *load = &a->server->load;
    if (sn_exchange_is_left(a->exchange))
        return sn_openai_fail(error, 503, "cancelled", NULL, "The client has closed its connection.");
    if (!sn_load_is_wanted(load, a->owner, a->prepares_us)) return true;
    sn_load_end(load);
    return begin_to_prepare(a, error);
}

static bool make_prompts(sn_http_answer *a, sn_openai_error *error) {
    sn_err err;
    const sn_request *r = a->request;
    const bool chat = r->kind == SN_REQUEST_CHAT || r->kind == SN_REQUEST_RESPONSE;
    a->n_prompts = chat ? 1 : r->n_prompts;
    if (sn_calloc(&a->prompts, a->n_prompts, sizeof *a->prompts, &err)) return sn_openai_fail_err(error, &err);
    for (size_t i = 0; i < a->n_prompts; i++) {
        sn_http_answer_prompt *prompt = &a->prompts[i];
        if (i && !make_way(a, error)) return false;
        prompt->own = true;
        if (!(chat ? render_chat(a, prompt, error) : read_prompt(a, &r->prompts[i], prompt, error))) return false;
        if (!sn_request_check_length(r, prompt->n, &a->server->limits, error)) return false;
    }
    return true;
}

/* -- choices -- */

static bool make_choice(sn_http_answer *a, size_t index, sn_openai_error *error) {
    const sn_request *r = a->request;
    sn_http_answer_choice *c = &a->choices[index];
    const bool embeds = r->kind == SN_REQUEST_EMBEDDING;
    const size_t n = r->n > 1 ? (size_t)r->n : 1;
    *c = (sn_http_answer_choice){
        .answer = a, .index = index, .prompt_index = index / n, .prompt = &a->prompts[index / n]};
    c->job = (sn_server_job){.prompt = c->prompt->ids,
                             .n_prompt = c->prompt->n,
                             .ctx = c,
                             .run = embeds ? sn_http_answer_embed : sn_http_answer_run_choice,
                             .may_repeat = embeds ? NULL : sn_http_answer_may_repeat,
                             .end = sn_http_answer_end_choice,
                             .owner = a->owner,
                             .fresh = embeds};
    if (embeds || !r->max_tokens) return true;
    const sn_constraint_setup setup = {.n_prompt = c->prompt->n,
                                       .thinks = c->prompt->thinks,
                                       .later = index && c->prompt->thinks == a->prompts->thinks};
    return sn_request_generation(r, index, a->owner, &c->generation, error) &&
           sn_constraint_new(r, a->server->served, &setup, &c->constraint, error);
}

static bool submit(sn_http_answer *a, sn_openai_error *error) {
    sn_server_job **jobs;
    sn_err err;
    if (sn_calloc(&jobs, a->n_choices, sizeof *jobs, &err)) return sn_openai_fail_err(error, &err);
    for (size_t i = 0; i < a->n_choices; i++) jobs[i] = &a->choices[i].job;
    sn_status status = sn_server_queue_submit(a->server->options.queue, jobs, a->n_choices, &err);
    free(jobs);
    if (!status) a->submitted = a->n_choices;
    if (status != SN_RETRY) return !status || sn_openai_fail_err(error, &err);
    bool drains = atomic_load(&a->server->draining);
    (void)sn_openai_fail(error, drains ? 503 : 429, drains ? "shutting_down" : "queue_full", NULL, "%s.", err.text);
    error->retry_after_ms = err.retry_after_ms;
    return false;
}

static bool prepare(sn_exchange *x, sn_http_answer *a, sn_request_kind kind, sn_openai_error *error) {
    sn_server *s = x->server;
    sn_err err;
    const sn_reply_head head = {.id = x->id, .created = sn_unix_ms() / 1000};
    if (!sn_exchange_parse(x, kind, &a->request, error)) return false;
    if (!make_prompts(a, error)) return false;
    const size_t n = kind == SN_REQUEST_EMBEDDING ? 1 : sn_request_choices(a->request); /* one job for all inputs */
    if (sn_calloc(&a->choices, n, sizeof *a->choices, &err)) return sn_openai_fail_err(error, &err);
    a->n_choices = n;
    for (size_t i = 0; i < n; i++)
        if (!make_choice(a, i, error)) return false;
    if (!sn_reply_new(a->request, s->served, &head, &a->reply, error)) return false;
    for (size_t i = 0; i < a->n_prompts; i++) sn_reply_prompt(a->reply, i, a->prompts[i].n, 0, a->prompts[i].thinks);
    return submit(a, error);
}

static enum MHD_Result answer(sn_exchange *x, sn_request_kind kind) {
    sn_openai_error error = {0};
    sn_err err;
    pthread_condattr_t monotonic;
    if (sn_calloc(&x->answer, 1, sizeof *x->answer, &err)) {
        (void)sn_openai_fail_err(&error, &err);
        return sn_exchange_refuse(x, &error);
    }
    sn_http_answer *a = x->answer;
    a->server = x->server;
    a->exchange = x;
    a->owner = a->taken.owner = x->owner;
    a->arrived_us = x->arrived_us;
    sn_buf_init(&a->out, OUT_MAX);
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const bool prepared = begin_to_prepare(a, &error) && prepare(x, a, kind, &error);
    if (a->prepares) sn_load_end(&x->server->load);
    if (!prepared) return sn_exchange_refuse(x, &error);
    return a->request->stream ? send_stream(x) : send_whole(x);
}

enum MHD_Result sn_http_answer_chat(sn_exchange *x) { return answer(x, SN_REQUEST_CHAT); }
enum MHD_Result sn_http_answer_completion(sn_exchange *x) { return answer(x, SN_REQUEST_COMPLETION); }
enum MHD_Result sn_http_answer_embedding(sn_exchange *x) { return answer(x, SN_REQUEST_EMBEDDING); }
enum MHD_Result sn_http_answer_response(sn_exchange *x) { return answer(x, SN_REQUEST_RESPONSE); }

void sn_http_answer_free(sn_http_answer **answer) {
    sn_http_answer *a = *answer;
    if (!a) return;
    for (size_t i = 0; i < a->submitted; i++) sn_server_queue_cancel(a->server->options.queue, &a->choices[i].job);
    for (size_t i = 0; i < a->submitted; i++) sn_server_queue_finish(a->server->options.queue, &a->choices[i].job);
    for (size_t i = 0; i < a->n_choices; i++) {
        sn_constraint_free(&a->choices[i].constraint);
        swarm_options_free(a->choices[i].generation);
    }
    sn_reply_free(&a->reply);
    for (size_t i = 0; a->prompts && i < a->n_prompts; i++)
        if (a->prompts[i].own) swarm_free(a->prompts[i].ids);
    sn_request_free(&a->request);
    free(a->prompts);
    free(a->choices);
    json_decref(a->hops);
    sn_buf_fini(&a->out);
    sn_load_give_back(&a->server->load, &a->taken);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
    *answer = NULL;
}
