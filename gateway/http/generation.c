/* A choice in a session, on a worker's thread: the session's events become calls of the reply, under the lock of the
 * answer, since other choices of the request do the same. */
#include "gateway/queue/embedding.h"
#include "gateway/http/answer_private.h"

#include <stdlib.h>
#include <string.h>

/* -- events -- */

static bool tell_token(sn_http_answer_choice *c, const swarm_event *event, sn_openai_error *error) {
    sn_http_answer *a = c->answer;
    sn_reply_token token = {.id = (int32_t)swarm_event_number(event, "id"),
                            .logprob = swarm_event_number(event, "logprob")};
    token.n_top = swarm_event_top(event, &token.top_ids, &token.top_logprobs);
    atomic_fetch_add(&a->server->counters.generated_tokens, 1);
    if (!a->begun) sn_counters_first_token(&a->server->counters, sn_now_us() - a->arrived_us);
    a->begun = true;
    return sn_reply_add_token(a->reply, c->index, &token, error);
}

/* So many tokens of the prompt were not computed: the session had them, or nodes had kept them from an earlier one.
 * With the answer's lock. */
static void tell_prompt(sn_http_answer_choice *c, size_t cached) {
    sn_http_answer *a = c->answer;
    if (c->told_prompt || c->index % (size_t)a->request->n) return; /* choices of one prompt count it once */
    c->told_prompt = true;
    sn_reply_prompt(a->reply, c->prompt_index, c->prompt->n, cached, c->prompt->thinks);
    atomic_fetch_add(&a->server->counters.prompt_tokens, c->prompt->n);
    atomic_fetch_add(&a->server->counters.cached_tokens, cached);
}

static bool tell_progress(sn_http_answer_choice *c, const swarm_event *event, sn_openai_error *error) {
    const sn_reply_progress progress = {.done = (size_t)swarm_event_number(event, "done"),
                                        .cached = (size_t)swarm_event_number(event, "reused"),
                                        .ms = (sn_now_us() - c->answer->arrived_us) / 1000};
    tell_prompt(c, progress.cached);
    return sn_reply_add_progress(c->answer->reply, c->index, &progress, error);
}

static bool tell(sn_http_answer_choice *c, const swarm_event *event, sn_openai_error *error) {
    sn_http_answer *a = c->answer;
    const char *text;
    size_t len;
    const swarm_event_kind kind = swarm_event_get_kind(event);
    c->told = c->told || kind == SWARM_EVENT_TOKEN || kind == SWARM_EVENT_TEXT;
    switch (kind) {
    case SWARM_EVENT_TOKEN:
        return tell_token(c, event, error);
    case SWARM_EVENT_TEXT:
        text = swarm_event_text(event, &len);
        return sn_reply_add_text(a->reply, c->index, text, len, error);
    case SWARM_EVENT_RETRACT:
        atomic_fetch_add(&a->server->counters.retractions, 1);
        return sn_reply_retract(a->reply, c->index, (size_t)swarm_event_number(event, "kept"),
                                (size_t)swarm_event_number(event, "kept_tokens"), error);
    case SWARM_EVENT_FAILOVER:
        atomic_fetch_add(&a->server->counters.failovers, 1);
        a->failovers++;
        return true;
    case SWARM_EVENT_PROGRESS:
        return tell_progress(c, event, error);
    case SWARM_EVENT_MOVE:
    case SWARM_EVENT_AUDIT:
        return true;
    }
    return true;
}

static int on_event(void *choice, const swarm_event *event) {
    sn_http_answer_choice *c = choice;
    sn_http_answer *a = c->answer;
    sn_openai_error error = {0};
    pthread_mutex_lock(&a->lock);
    /* A token that was sampled without its mask is not told. */
    bool failed = c->constraint && sn_constraint_failed(c->constraint, &error);
    if (!a->error.status && (failed || !tell(c, event, &error))) sn_http_answer_fail(a, &error);
    int stop = a->error.status != 0;
    sn_http_answer_collect(a);
    pthread_mutex_unlock(&a->lock);
    if (swarm_event_get_kind(event) == SWARM_EVENT_TOKEN) sn_server_queue_take_turn(a->server->options.queue, &c->job);
    return stop;
}

/* -- the run -- */

bool sn_http_answer_may_repeat(void *choice) { return !((const sn_http_answer_choice *)choice)->told; }

/* Tokens of the prompt that the session has before it runs: all but the last can be used. */
static size_t cached_tokens(const sn_http_answer_choice *c, const swarm_session *session) {
    size_t n, same = 0;
    const int32_t *ids = swarm_session_tokens(session, &n);
    n = sn_min_size(n, c->prompt->n);
    while (same < n && ids[same] == c->prompt->ids[same]) same++;
    return same == c->prompt->n && same ? same - 1 : same;
}

static void tell_prompt_now(sn_http_answer_choice *c, size_t cached) {
    pthread_mutex_lock(&c->answer->lock);
    tell_prompt(c, cached);
    pthread_mutex_unlock(&c->answer->lock);
}

/* Where the choice was computed, for our own member of the reply. */
static void note_session(sn_http_answer_choice *c, const swarm_session *session) {
    sn_http_answer *a = c->answer;
    char *text = NULL;
    swarm_error *error = NULL;
    if (swarm_session_describe(session, &text, NULL, &error)) {
        swarm_error_free(error);
        pthread_mutex_lock(&a->lock);
        a->unchecked = true;
        pthread_mutex_unlock(&a->lock);
        return;
    }
    json_t *o = json_loads(text, 0, NULL), *hop, *hops = json_array();
    const json_t *audit = json_object_get(o, "audit");
    size_t i;
    json_array_foreach(json_object_get(o, "hops"), i, hop) {
        json_array_append_new(hops, json_pack("{sO* sO* sO*}", "node", json_object_get(hop, "node"), "name",
                                              json_object_get(hop, "name"), "blocks", json_object_get(hop, "blocks")));
    }
    /* Steps of earlier answers, which the session has left, do not count. */
    bool checked = json_is_true(json_object_get(audit, "timeline_checked"));
    pthread_mutex_lock(&a->lock);
    a->unchecked |= !checked;
    json_decref(a->hops);
    a->hops = hops;
    pthread_mutex_unlock(&a->lock);
    json_decref(o);
    swarm_free(text);
}

static uint64_t number(const json_t *timings, const char *name) {
    const double n = json_number_value(json_object_get(timings, name));
    return n > 0 ? (uint64_t)n : 0;
}

/* What draft tokens did, under the answer's lock. */
static void note_drafts(sn_http_answer *a, const json_t *timings) {
    sn_counters *c = &a->server->counters;
    atomic_fetch_add(&c->drafted_tokens, number(timings, "drafted"));
    atomic_fetch_add(&c->judged_tokens, number(timings, "judged"));
    atomic_fetch_add(&c->accepted_tokens, number(timings, "accepted"));
    atomic_fetch_add(&c->windows_ahead, number(timings, "ahead"));
    atomic_fetch_add(&c->laps_saved, number(timings, "laps_saved"));
    a->laps_saved += json_number_value(json_object_get(timings, "laps_saved"));
}

static void end_choice(sn_http_answer_choice *c, const char *json) {
    sn_http_answer *a = c->answer;
    sn_openai_error error = {0};
    json_t *o = json ? json_loads(json, JSON_ALLOW_NUL, NULL) : NULL;
    const char *reason = o ? json_string_value(json_object_get(o, "finish_reason")) : "length";
    pthread_mutex_lock(&a->lock);
    note_drafts(a, json_object_get(o, "timings"));
    bool failed = c->constraint && sn_constraint_failed(c->constraint, &error);
    if (!failed && !a->error.status) failed = !sn_reply_end(a->reply, c->index, reason ? reason : "length", &error);
    if (failed) sn_http_answer_fail(a, &error);
    pthread_mutex_unlock(&a->lock);
    json_decref(o);
}

static bool has_failed(sn_http_answer *a) {
    pthread_mutex_lock(&a->lock);
    bool failed = a->error.status != 0;
    pthread_mutex_unlock(&a->lock);
    return failed;
}

swarm_code sn_http_answer_run_choice(void *choice, swarm_session *session, swarm_error **error) {
    sn_http_answer_choice *c = choice;
    const sn_request *r = c->answer->request;
    swarm_code code = SWARM_OK;
    char *json = NULL;
    if (has_failed(c->answer)) return SWARM_CANCELLED; /* another choice of it */
    c->told = c->told || r->echo;
    if (r->echo) tell_prompt_now(c, cached_tokens(c, session));
    if (r->echo) code = sn_http_answer_echo(c, session, error);
    if (r->echo && r->logprobs >= 0) note_session(c, session); /* what is checked later is given away now */
    swarm_session_on_event(session, on_event, c);
    if (c->constraint) swarm_session_on_logits(session, sn_constraint_apply, c->constraint);
    if (!code && c->generation)
        code = swarm_session_generate(session, c->prompt->ids, c->prompt->n, c->generation, &json, NULL, error);
    swarm_session_on_event(session, NULL, NULL);
    swarm_session_on_logits(session, NULL, NULL);
    if (!code) tell_prompt_now(c, 0); /* where nothing was computed; after a failure it may run once more */
    note_session(c, session);
    if (!code) end_choice(c, json);
    sn_constraint_free(&c->constraint); /* its grammar is for the next choice, and not kept until the answer is read */
    swarm_free(json);
    return code;
}

static swarm_code embed_prompt(sn_http_answer *a, size_t index, swarm_session *session, swarm_error **error) {
    const swarm_model *model = a->server->options.model;
    const sn_http_answer_prompt *prompt = &a->prompts[index];
    const size_t width = (size_t)swarm_model_width(model);
    sn_openai_error failure = {0};
    float *embedding;
    sn_err err;
    if (sn_calloc(&embedding, width, sizeof *embedding, &err)) return SWARM_STOP;
    swarm_code code = sn_embed(model, session, prompt->ids, prompt->n, embedding, error);
    if (!code) {
        pthread_mutex_lock(&a->lock);
        if (!sn_reply_embedding(a->reply, index, embedding, width, &failure)) sn_http_answer_fail(a, &failure);
        sn_http_answer_collect(a);
        pthread_mutex_unlock(&a->lock);
        atomic_fetch_add(&a->server->counters.prompt_tokens, prompt->n);
    }
    free(embedding);
    return code;
}

swarm_code sn_http_answer_embed(void *choice, swarm_session *session, swarm_error **error) {
    sn_http_answer_choice *c = choice;
    sn_http_answer *a = c->answer;
    swarm_code code = SWARM_OK;
    for (size_t i = 0; i < a->n_prompts && !code && !has_failed(a); i++) {
        if (i) note_session(c, session); /* the next one is a timeline of its own */
        code = embed_prompt(a, i, session, error);
    }
    note_session(c, session);
    return code;
}

/* -- the end -- */

/* The retry-after of a borrowed error, as the reply's error. */
static void fail_with(sn_http_answer *a, swarm_code code, const swarm_error *error) {
    sn_openai_error failure = {0};
    int status = code == SWARM_REFUSED ? 400 : code == SWARM_RETRY || code == SWARM_REBUILD ? 503 : 500;
    if (code == SWARM_CANCELLED)
        (void)sn_openai_fail(&failure, 503, "cancelled", NULL, "The server is shutting down.");
    else if (code == SWARM_RETRY && !error)
        (void)sn_openai_fail(&failure, 429, "queue_full", NULL,
                             "Other clients wait, and you have more requests than they: try again later.");
    else
        (void)sn_openai_fail(&failure, status,
                             code == SWARM_REBUILD                            ? "audit_failed"
                             : !strcmp(swarm_error_reason(error), "too_long") ? "context_length_exceeded"
                                                                              : NULL,
                             NULL, "%s", error ? swarm_error_text(error) : "Out of memory.");
    if (status == 503 && !failure.code) failure.code = "no_node";
    failure.retry_after_ms = failure.status == 429 ? SN_SERVER_RETRY_AFTER_MS : swarm_error_retry_after_ms(error);
    sn_http_answer_fail(a, &failure);
}

static json_t *describe_answer(const sn_http_answer *a) {
    return json_pack("{sO? sI sb sf}", "hops", a->hops, "failovers", (json_int_t)a->failovers, "checked", !a->unchecked,
                     "laps_saved", a->laps_saved);
}

void sn_http_answer_end_choice(void *choice, swarm_code code, const swarm_error *error) {
    sn_http_answer_choice *c = choice;
    sn_http_answer *a = c->answer;
    sn_openai_error failure = {0};
    pthread_mutex_lock(&a->lock);
    if (code) fail_with(a, code, error);
    if (++a->ended == a->n_choices) {
        json_t *swarm = describe_answer(a);
        if (!a->error.status && !sn_reply_finish(a->reply, swarm, &failure)) sn_http_answer_fail(a, &failure);
        json_decref(swarm);
        a->finished = true;
    }
    sn_http_answer_collect(a);
    /* From here on, and not from when its connection asks for more: one that is read slowly does not for long. */
    if (a->finished && a->request->stream) sn_exchange_is_read(a->exchange, a->out.len - a->sent);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}
