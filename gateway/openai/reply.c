/* A reply keeps the tokens that each choice was told of. Of a chat the answer so far is read on with each token, and
 * what its texts gained since the last time is sent; so no delta depends on where tokens end. A text is held
 * back where a stop string may begin, in arguments of calls too. Events wait in `out` until they are taken. */
#include "gateway/openai/reply_private.h"

#include "base/wide_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_chat(const sn_reply *r) {
    return r->request->kind == SN_REQUEST_CHAT || r->request->kind == SN_REQUEST_RESPONSE;
}

static size_t n_ids(const sn_reply_choice *c) { return c->ids.len / sizeof(int32_t); }

/* -- beginning and end -- */

static const sn_reply_form *form_of(sn_request_kind kind) {
    return kind == SN_REQUEST_CHAT         ? &sn_chat_form
           : kind == SN_REQUEST_COMPLETION ? &sn_completion_form
           : kind == SN_REQUEST_RESPONSE   ? &sn_response_form
                                           : &sn_embedding_form;
}

static uint64_t hash_text(const char *text) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text; text++) h = (h ^ (uint8_t)*text) * 0x100000001b3u;
    return h;
}

bool sn_reply_new(const sn_request *request, const sn_served_model *served, const sn_reply_head *head, sn_reply **out,
                  sn_openai_error *error) {
    sn_err err;
    sn_reply *r = NULL;
    *out = NULL;
    if (sn_calloc(&r, 1, sizeof *r, &err)) return sn_openai_fail_err(error, &err);
    r->request = request;
    r->served = served;
    r->form = form_of(request->kind);
    r->created = head->created;
    r->n_prompts = request->n_prompts ? request->n_prompts : 1;
    sn_buf_init(&r->out, SIZE_MAX);
    snprintf(r->id, sizeof r->id, "%s%s", r->form->id_prefix, head->id);
    r->id_hash = hash_text(r->id);
    bool generates = request->kind != SN_REQUEST_EMBEDDING;
    size_t n = generates ? sn_request_choices(request) : 0;
    sn_status status = sn_calloc(&r->choices, n, sizeof *r->choices, &err);
    if (!status) status = sn_calloc(&r->prompts, r->n_prompts, sizeof *r->prompts, &err);
    if (!status) status = sn_calloc(&r->embeddings, generates ? 0 : r->n_prompts, sizeof *r->embeddings, &err);
    if (!status) r->n_choices = n;
    for (size_t i = 0; i < r->n_choices; i++) {
        sn_reply_choice *c = &r->choices[i];
        c->index = i;
        c->prompt = i / (size_t)request->n;
        sn_buf *bufs[] = {&c->ids, &c->told, &c->alternatives, &c->text, &c->calls_sent};
        for (size_t k = 0; k < sizeof bufs / sizeof *bufs; k++) sn_buf_init(bufs[k], SIZE_MAX);
    }
    if (status) sn_reply_free(&r);
    *out = r;
    return status ? sn_openai_fail_err(error, &err) : true;
}

void sn_reply_free(sn_reply **reply) {
    sn_reply *r = *reply;
    if (!r) return;
    for (size_t i = 0; i < r->n_choices; i++) {
        sn_reply_choice *c = &r->choices[i];
        sn_buf *bufs[] = {&c->ids, &c->told, &c->alternatives, &c->text, &c->calls_sent};
        for (size_t k = 0; k < sizeof bufs / sizeof *bufs; k++) sn_buf_fini(bufs[k]);
        swarm_answer_close(c->answer);
    }
    for (size_t i = 0; r->embeddings && i < r->n_prompts && r->request->kind == SN_REQUEST_EMBEDDING; i++)
        json_decref(r->embeddings[i]);
    sn_response_state_free(&r->response);
    free(r->embeddings);
    free(r->choices);
    free(r->prompts);
    sn_buf_fini(&r->out);
    free(r);
    *reply = NULL;
}

/* -- sending -- */

static void put(sn_reply *r, const void *bytes, size_t len) {
    sn_err err;
    if (sn_buf_append(&r->out, bytes, len, &err)) r->no_memory = true;
}

static int put_json(const char *bytes, size_t len, void *reply) {
    put(reply, bytes, len);
    return 0;
}

void sn_reply_send_text(sn_reply *r, const char *text) { put(r, text, strlen(text)); }

void sn_reply_send(sn_reply *r, const char *name, json_t *data) {
    if (name) {
        sn_reply_send_text(r, "event: ");
        sn_reply_send_text(r, name);
        sn_reply_send_text(r, "\n");
    }
    if (r->request->stream) sn_reply_send_text(r, "data: ");
    const size_t before = r->out.len;
    if (!data || json_dump_callback(data, put_json, r, JSON_COMPACT)) r->no_memory = true;
    /* what is quoted of a request */
    r->out.len = before + sn_wide_json_restore((char *)r->out.data + before, r->out.len - before);
    if (r->request->stream) sn_reply_send_text(r, "\n\n");
    json_decref(data);
}

void sn_reply_set(sn_reply *r, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value)) r->no_memory = true;
}

const char *sn_reply_take(sn_reply *r, size_t *len) {
    size_t rest = r->out.len - r->taken;
    if (r->taken && rest) memmove(r->out.data, r->out.data + r->taken, rest);
    r->out.len = r->taken = rest;
    *len = rest;
    return rest ? (const char *)r->out.data : "";
}

/* Called first by everything that may send: what was taken is no longer borrowed. */
static void open_out(sn_reply *r) {
    size_t rest = r->out.len - r->taken;
    if (r->taken && rest) memmove(r->out.data, r->out.data + r->taken, rest);
    r->out.len = rest;
    r->taken = 0;
    if (!r->begun && r->request->stream && r->form->begin) r->form->begin(r);
    r->begun = true;
}

static bool done(const sn_reply *r, sn_openai_error *error) {
    return !r->no_memory || sn_openai_fail(error, 500, NULL, NULL, "the server is out of memory for this reply");
}

json_t *sn_reply_start(sn_reply *r, const char *object) {
    json_t *start =
        json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", r->id, "object", object, "created", (json_int_t)r->created,
                  "model", sn_served_model_name(r->served), "system_fingerprint", "swarm-" SN_VERSION);
    if (!start) r->no_memory = true;
    return start;
}

void sn_reply_call_id(const sn_reply *r, size_t choice, size_t call, char out[SN_CALL_ID_BYTES]) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t h = (r->id_hash ^ (choice * 1024 + call + 1)) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    h ^= h >> 32;
    for (int i = 0; i < SN_CALL_ID_BYTES - 1; i++, h /= 62) out[i] = digits[h % 62];
    out[SN_CALL_ID_BYTES - 1] = 0;
}

/* -- usage -- */

void sn_reply_prompt(sn_reply *r, size_t prompt, size_t n_tokens, size_t cached, bool thinks) {
    r->prompts[prompt] = (sn_prompt_usage){n_tokens, cached, thinks};
}

size_t sn_reply_tokens(const sn_reply *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_choices; i++) n += n_ids(&r->choices[i]);
    return n;
}

sn_usage sn_reply_count(const sn_reply *r) {
    sn_usage u = {.completion = sn_reply_tokens(r)};
    for (size_t i = 0; i < r->n_prompts; i++) {
        u.prompt += r->prompts[i].tokens;
        u.cached += r->prompts[i].cached;
    }
    for (size_t i = 0; i < r->n_choices; i++) u.reasoning += r->choices[i].n_reasoning;
    return u;
}

json_t *sn_reply_usage(sn_reply *r) {
    const sn_usage u = sn_reply_count(r);
    json_t *usage =
        json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)u.prompt, "completion_tokens",
                  (json_int_t)u.completion, "total_tokens", (json_int_t)(u.prompt + u.completion),
                  "prompt_tokens_details", "cached_tokens", (json_int_t)u.cached, "completion_tokens_details",
                  "reasoning_tokens", (json_int_t)u.reasoning);
    if (!usage) r->no_memory = true;
    return usage;
}

/* -- the answer of a chat -- */

/* How many of the len bytes are final: those before a stop string, and before what may be the beginning of one. Only
 * places from `from` on are looked at, since those before were final already. */
static size_t cut_at_stop(const sn_request *q, const char *text, size_t from, size_t len, bool ended) {
    for (size_t at = from; at < len && q->n_stops; at++)
        for (size_t i = 0; i < q->n_stops; i++) {
            size_t n = strlen(q->stops[i]), here = sn_min_size(n, len - at);
            if (!memcmp(text + at, q->stops[i], here) && (here == n || !ended)) return at;
        }
    return len;
}

static const char *answer_text(const sn_reply_choice *c, swarm_answer_part part, size_t call, size_t *len) {
    *len = 0;
    const char *text = c->answer ? swarm_answer_text(c->answer, part, call, len) : NULL;
    return text ? text : "";
}

const char *sn_choice_text(const sn_reply *r, const sn_reply_choice *c, sn_answer_part part, size_t *len) {
    bool content = part == SN_PART_CONTENT;
    const char *text = answer_text(c, content ? SWARM_ANSWER_CONTENT : SWARM_ANSWER_THOUGHT, 0, len);
    size_t from = content ? c->text_sent : c->reasoning_sent;
    if (from < *len) *len = cut_at_stop(r->request, text, from, *len, c->finish != NULL);
    return text;
}

size_t sn_choice_calls(const sn_reply *r, const sn_reply_choice *c) {
    size_t n = 0, len, most = r->request->parallel_calls ? SIZE_MAX : 1;
    while (n < most && c->answer && swarm_answer_text(c->answer, SWARM_ANSWER_CALL, n, &len)) n++;
    return n;
}

const char *sn_choice_call_name(const sn_reply_choice *c, size_t call, size_t *len) {
    return answer_text(c, SWARM_ANSWER_CALL, call, len);
}

const char *sn_choice_arguments(const sn_reply *r, const sn_reply_choice *c, size_t call, size_t *len) {
    const size_t *sent = (const size_t *)(const void *)c->calls_sent.data;
    const char *text = answer_text(c, SWARM_ANSWER_ARGUMENTS, call, len);
    const size_t from = call < c->calls_sent.len / sizeof *sent ? sent[call] : 0;
    if (from < *len) *len = cut_at_stop(r->request, text, from, *len, c->finish != NULL);
    return text;
}

/* Whether the answer ended within its last call, which a client must not run. */
static bool ends_in_call(const sn_reply *r, const sn_reply_choice *c) {
    const size_t n = sn_choice_calls(r, c);
    size_t len;
    if (!n) return false;
    const char *arguments = sn_choice_arguments(r, c, n - 1, &len);
    json_t *whole = json_loadb(arguments, len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    json_decref(whole);
    return !whole;
}

/* Reads on to the first n tokens of the answer. The thought took the fewest tokens that hold all of it. */
static bool read_on(sn_reply *r, sn_reply_choice *c, size_t n, sn_openai_error *error) {
    swarm_error *cause = NULL;
    const sn_request *q = r->request;
    const int32_t *ids = (const int32_t *)(const void *)c->ids.data;
    size_t before, after;
    const int flags = r->prompts[c->prompt].thinks ? SWARM_ANSWER_THINKS : 0;
    const int ends = c->finish ? SWARM_ANSWER_ENDS : 0;
    if (!c->answer &&
        swarm_answer_open(sn_served_model_get(r->served), q->tools, q->tools_len, flags, &c->answer, &cause))
        return sn_openai_fail_swarm(error, cause);
    do {
        const size_t add = c->n_read < n;
        (void)answer_text(c, SWARM_ANSWER_THOUGHT, 0, &before);
        if (swarm_answer_add(c->answer, add ? ids + c->n_read : NULL, add, ends, &cause))
            return sn_openai_fail_swarm(error, cause);
        c->n_read += add;
        (void)answer_text(c, SWARM_ANSWER_THOUGHT, 0, &after);
        if (after > before) c->n_reasoning = c->n_read;
    } while (c->n_read < n);
    return true;
}

static void forget_answer(sn_reply_choice *c) {
    swarm_answer_close(c->answer);
    c->answer = NULL;
    c->n_read = c->n_reasoning = 0;
}

static void send_text(sn_reply *r, sn_reply_choice *c, sn_answer_part part, size_t *sent) {
    size_t len;
    const char *text = sn_choice_text(r, c, part, &len);
    if (len <= *sent) return;
    r->form->delta(r, c, part, 0, text + *sent, len - *sent);
    *sent = len;
}

static void send_calls(sn_reply *r, sn_reply_choice *c) {
    sn_err err;
    const size_t n = sn_choice_calls(r, c);
    for (size_t i = c->calls_done; i < n; i++) {
        size_t len, none = 0;
        const char *text = sn_choice_arguments(r, c, i, &len);
        if (i == c->calls_sent.len / sizeof none) {
            r->no_memory |= sn_buf_append(&c->calls_sent, &none, sizeof none, &err) != SN_OK;
            if (r->no_memory) return;
            r->form->delta(r, c, SN_PART_CALL_BEGINS, i, "", 0);
        }
        size_t *sent = (size_t *)(void *)c->calls_sent.data + i;
        if (len <= *sent) continue;
        r->form->delta(r, c, SN_PART_CALL, i, text + *sent, len - *sent);
        *sent = len;
    }
    c->calls_done = n ? n - 1 : 0; /* the last one may go on */
}

static void send_news(sn_reply *r, sn_reply_choice *c) {
    if (!r->request->stream) return;
    if (!is_chat(r)) {
        const char *text = c->text.len ? (const char *)c->text.data : "";
        if (c->text.len > c->text_sent)
            r->form->delta(r, c, SN_PART_CONTENT, 0, text + c->text_sent, c->text.len - c->text_sent);
        c->text_sent = c->text.len;
        return;
    }
    send_text(r, c, SN_PART_REASONING, &c->reasoning_sent);
    send_text(r, c, SN_PART_CONTENT, &c->text_sent);
    send_calls(r, c);
}

/* -- what happens -- */

size_t sn_reply_held(const sn_reply *r) { return r->held; }

static bool keep_token(sn_reply *r, sn_reply_choice *c, const sn_reply_token *token, sn_err *err) {
    enum { KEPT_BYTES = 32, VALUE_BYTES = 256 }; /* as they are kept; as a value of JSON */
    const bool values = !r->request->stream || r->request->kind == SN_REQUEST_RESPONSE; /* which tells all at its end */
    r->held += (1 + token->n_top) * (values ? VALUE_BYTES : KEPT_BYTES);
    sn_told_token told = {token->id, token->logprob, c->alternatives.len / sizeof(sn_alternative), token->n_top};
    for (size_t i = 0; i < token->n_top; i++) {
        const sn_alternative a = {token->top_ids[i], token->top_logprobs[i]};
        if (sn_buf_append(&c->alternatives, &a, sizeof a, err)) return false;
    }
    return !sn_buf_append(&c->told, &told, sizeof told, err);
}

bool sn_reply_echo(sn_reply *r, size_t choice, const sn_reply_token *tokens, size_t n, sn_openai_error *error) {
    sn_reply_choice *c = &r->choices[choice];
    sn_err err;
    swarm_error *cause = NULL;
    char *text = NULL;
    size_t len = 0;
    int32_t *ids = NULL;
    open_out(r);
    sn_status status = sn_calloc(&ids, n, sizeof *ids, &err);
    for (size_t i = 0; i < n && !status; i++) {
        ids[i] = tokens[i].id;
        if (r->request->logprobs >= 0 && !keep_token(r, c, &tokens[i], &err)) status = err.status;
    }
    bool ok = !status || sn_openai_fail_err(error, &err);
    if (ok && swarm_model_detokenize(sn_served_model_get(r->served), ids, n, 0, &text, &len, &cause))
        ok = sn_openai_fail_swarm(error, cause);
    if (ok && sn_buf_append(&c->text, text, len, &err)) ok = sn_openai_fail_err(error, &err);
    c->n_echo = c->told.len / sizeof(sn_told_token);
    c->echo_bytes = c->text.len;
    swarm_free(text);
    free(ids);
    return ok;
}

bool sn_reply_add_token(sn_reply *r, size_t choice, const sn_reply_token *token, sn_openai_error *error) {
    sn_reply_choice *c = &r->choices[choice];
    sn_err err;
    open_out(r);
    if (sn_buf_append(&c->ids, &token->id, sizeof token->id, &err)) return sn_openai_fail_err(error, &err);
    bool shown = r->request->logprobs >= 0 && (r->request->ignore_eos || !sn_served_model_ends(r->served, token->id));
    if (shown && !keep_token(r, c, token, &err)) return sn_openai_fail_err(error, &err);
    if (!is_chat(r)) return true;
    if (!read_on(r, c, n_ids(c), error)) return false;
    send_news(r, c);
    return done(r, error);
}

bool sn_reply_add_text(sn_reply *r, size_t choice, const char *text, size_t len, sn_openai_error *error) {
    sn_reply_choice *c = &r->choices[choice];
    sn_err err;
    if (is_chat(r)) return true;
    open_out(r);
    if (sn_buf_append(&c->text, text, len, &err)) return sn_openai_fail_err(error, &err);
    send_news(r, c);
    return done(r, error);
}

bool sn_reply_retract(sn_reply *r, size_t choice, size_t kept_bytes, size_t kept_tokens, sn_openai_error *error) {
    sn_reply_choice *c = &r->choices[choice];
    size_t kept_told = c->n_echo + kept_tokens;
    open_out(r);
    if (kept_tokens < n_ids(c)) c->ids.len = kept_tokens * sizeof(int32_t);
    if (kept_told * sizeof(sn_told_token) < c->told.len) c->told.len = kept_told * sizeof(sn_told_token);
    if (!is_chat(r) && c->echo_bytes + kept_bytes < c->text.len) c->text.len = c->echo_bytes + kept_bytes;
    forget_answer(c);
    c->calls_done = 0;
    if (is_chat(r) && !read_on(r, c, n_ids(c), error)) return false;
    if (!r->request->stream) return true;
    bool sent = c->told_sent > kept_told || c->text.len < c->text_sent;
    if (is_chat(r)) {
        size_t content, reasoning, len, *calls = (size_t *)(void *)c->calls_sent.data;
        (void)sn_choice_text(r, c, SN_PART_CONTENT, &content);
        (void)sn_choice_text(r, c, SN_PART_REASONING, &reasoning);
        sent = c->told_sent > kept_told || content < c->text_sent || reasoning < c->reasoning_sent;
        for (size_t i = 0; i < c->calls_sent.len / sizeof *calls; i++)
            sent |= i >= sn_choice_calls(r, c) || (sn_choice_arguments(r, c, i, &len), len < calls[i]);
    }
    return !sent || sn_openai_fail(error, 503, "audit_failed", NULL,
                                   "an audit found that text which was sent is wrong: ask again for the answer");
}

bool sn_reply_add_progress(sn_reply *r, size_t choice, const sn_reply_progress *progress, sn_openai_error *error) {
    sn_reply_choice *c = &r->choices[choice];
    if (!r->request->return_progress || !r->form->progress || n_ids(c)) return true;
    open_out(r);
    r->form->progress(r, c,
                      json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)r->prompts[c->prompt].tokens, "cache",
                                (json_int_t)progress->cached, "processed", (json_int_t)progress->done, "time_ms",
                                (json_int_t)progress->ms));
    return done(r, error);
}

bool sn_reply_end(sn_reply *r, size_t choice, const char *finish_reason, sn_openai_error *error) {
    sn_reply_choice *c = &r->choices[choice];
    open_out(r);
    if (c->finish) return true;
    c->finish = !strcmp(finish_reason, "length") ? "length" : "stop";
    /* Before the end is told: a call that is written in tags has its brace then, with the arguments so far. */
    c->call_is_cut = is_chat(r) && strcmp(finish_reason, "stop") != 0 && ends_in_call(r, c);
    if (is_chat(r) && !read_on(r, c, n_ids(c), error)) return false;
    send_news(r, c);
    if (!strcmp(c->finish, "stop") && !c->call_is_cut && sn_choice_calls(r, c)) c->finish = "tool_calls";
    if (++r->n_ended == r->n_choices)
        r->last = c;
    else if (r->request->stream)
        r->form->end(r, c, NULL);
    return done(r, error);
}

bool sn_reply_finish(sn_reply *r, json_t *swarm, sn_openai_error *error) {
    if (r->closed) return true;
    open_out(r);
    if (r->request->stream && r->last) r->form->end(r, r->last, r->request->include_usage ? NULL : swarm);
    if (r->request->stream)
        r->form->finish(r, swarm);
    else
        sn_reply_send(r, NULL, r->form->whole(r, swarm));
    r->closed = true;
    return done(r, error);
}

void sn_reply_fail(sn_reply *r, const sn_openai_error *error) {
    if (r->closed) return;
    open_out(r);
    r->no_memory = false;
    if (r->request->stream)
        r->form->fail(r, error);
    else
        sn_reply_send(r, NULL, sn_openai_error_json(error));
    r->closed = true;
}
