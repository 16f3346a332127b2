/* Responses: an answer as a list of items (a thought, a message, calls), and events that tell of each as it grows. An
 * item has its place from the event that adds it; that it is done is told at the end, since a later token may still add
 * to it. Every event has a number and names itself. */
#include "gateway/openai/reply_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct item {
    sn_answer_part part; /* SN_PART_REASONING, SN_PART_CONTENT or SN_PART_CALL */
    size_t call;
} item;

struct sn_response_state {
    sn_buf items;     /* item */
    json_t *logprobs; /* of the message's text so far */
    json_int_t sequence;
};

void sn_response_state_free(struct sn_response_state **state) {
    if (!*state) return;
    sn_buf_fini(&(*state)->items);
    json_decref((*state)->logprobs);
    free(*state);
    *state = NULL;
}

static struct sn_response_state *state_of(sn_reply *r) {
    sn_err err;
    if (!r->response && !sn_calloc(&r->response, 1, sizeof *r->response, &err)) {
        sn_buf_init(&r->response->items, SIZE_MAX);
        r->response->logprobs = json_array();
    }
    if (!r->response) r->no_memory = true;
    return r->response;
}

static size_t n_items(const struct sn_response_state *s) { return s->items.len / sizeof(item); }
static const item *item_at(const struct sn_response_state *s, size_t at) {
    return (const item *)(const void *)s->items.data + at;
}

static size_t add_item(sn_reply *r, sn_answer_part part, size_t call) {
    sn_err err;
    const item added = {part, call};
    if (sn_buf_append(&r->response->items, &added, sizeof added, &err)) r->no_memory = true;
    return n_items(r->response) - 1;
}

/* -- items as JSON -- */

static json_t *item_id(const sn_reply *r, const item *i) {
    static const char *const prefixes[] = {
        [SN_PART_REASONING] = "rs", [SN_PART_CONTENT] = "msg", [SN_PART_CALL] = "fc"};
    return json_sprintf("%s_%016llx%zu", prefixes[i->part], (unsigned long long)r->id_hash, i->call);
}

/* A part of a message; text NULL: "". */
static json_t *text_part(const sn_reply *r, const char *text, size_t len) {
    return json_pack("{s:s, s:s%, s:[], s:o}", "type", "output_text", "text", text, len, "annotations", "logprobs",
                     len ? json_copy(r->response->logprobs) : json_array());
}

/* done: with what it holds; else as it begins. */
static json_t *item_json(sn_reply *r, sn_reply_choice *c, const item *i, bool done, const char *status) {
    size_t len = 0, n_name;
    json_t *id = item_id(r, i), *parts = json_array();
    if (i->part == SN_PART_CALL) {
        char call_id[SN_CALL_ID_BYTES];
        const char *name = sn_choice_call_name(c, i->call, &n_name),
                   *arguments = sn_choice_arguments(r, c, i->call, &len);
        json_decref(parts);
        sn_reply_call_id(r, c->index, i->call, call_id);
        return json_pack("{s:o, s:s, s:s, s:s, s:s%, s:s%}", "id", id, "type", "function_call", "status", status,
                         "call_id", call_id, "name", name, n_name, "arguments", arguments, done ? len : 0);
    }
    if (i->part == SN_PART_REASONING) {
        const char *thought = sn_choice_text(r, c, SN_PART_REASONING, &len);
        if (done)
            json_array_append_new(parts, json_pack("{s:s, s:s%}", "type", "reasoning_text", "text", thought, len));
        return json_pack("{s:o, s:s, s:s, s:[], s:o}", "id", id, "type", "reasoning", "status", status, "summary",
                         "content", parts);
    }
    const char *content = sn_choice_text(r, c, SN_PART_CONTENT, &len);
    if (done) json_array_append_new(parts, text_part(r, content, len));
    return json_pack("{s:o, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status, "role", "assistant",
                     "content", parts);
}

/* -- the response -- */

/* What the request says of a field, else `otherwise` (taken). */
static void quote(sn_reply *r, json_t *response, const char *key, json_t *otherwise) {
    json_t *said = json_object_get(r->request->body, key);
    bool given = said && !json_is_null(said);
    if (given) json_decref(otherwise);
    sn_reply_set(r, response, key, given ? json_incref(said) : otherwise);
}

static json_t *usage_json(const sn_reply *r) {
    const sn_usage u = sn_reply_count(r);
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)u.prompt, "input_tokens_details",
                     "cached_tokens", (json_int_t)u.cached, "output_tokens", (json_int_t)u.completion,
                     "output_tokens_details", "reasoning_tokens", (json_int_t)u.reasoning, "total_tokens",
                     (json_int_t)(u.prompt + u.completion));
}

/* error: taken; NULL: none. */
static json_t *response_json(sn_reply *r, const char *status, json_t *output, json_t *error) {
    bool incomplete = !strcmp(status, "incomplete"), ended = incomplete || !strcmp(status, "completed");
    json_t *response =
        json_pack("{s:s, s:s, s:I, s:s, s:o, s:o?, s:s, s:o}", "id", r->id, "object", "response", "created_at",
                  (json_int_t)r->created, "status", status, "error", error ? error : json_null(), "incomplete_details",
                  incomplete ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "model",
                  sn_served_model_name(r->served), "output", output);
    quote(r, response, "instructions", json_null());
    quote(r, response, "max_output_tokens", json_null());
    quote(r, response, "metadata", json_object());
    quote(r, response, "parallel_tool_calls", json_true());
    sn_reply_set(r, response, "previous_response_id", json_null());
    quote(r, response, "reasoning", json_pack("{s:n, s:n}", "effort", "summary"));
    sn_reply_set(r, response, "store", json_false());
    quote(r, response, "temperature", json_real(r->request->temperature));
    quote(r, response, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    quote(r, response, "tool_choice", json_string("auto"));
    quote(r, response, "tools", json_array());
    quote(r, response, "top_p", json_real(r->request->top_p));
    sn_reply_set(r, response, "truncation", json_string("disabled"));
    sn_reply_set(r, response, "usage", ended ? usage_json(r) : json_null());
    quote(r, response, "user", json_null());
    return response;
}

static const char *end_status(const sn_reply_choice *c) {
    return c->finish && !strcmp(c->finish, "length") ? "incomplete" : "completed";
}

/* Of an item: a whole call may be run, also where what follows it was cut. */
static const char *item_status(const sn_reply *r, const sn_reply_choice *c, const item *i) {
    const bool whole = i->part == SN_PART_CALL && !(c->call_is_cut && i->call + 1 == sn_choice_calls(r, c));
    return whole ? "completed" : end_status(c);
}

static json_t *output_json(sn_reply *r, sn_reply_choice *c) {
    json_t *output = json_array();
    for (size_t i = 0; i < n_items(r->response); i++)
        if (json_array_append_new(
                output, item_json(r, c, item_at(r->response, i), true, item_status(r, c, item_at(r->response, i)))))
            r->no_memory = true;
    return output;
}

/* -- events -- */

/* data: taken; it becomes {"type", "sequence_number", ...data}. */
static void send(sn_reply *r, const char *type, json_t *data) {
    json_t *event = json_pack("{s:s, s:I}", "type", type, "sequence_number", r->response->sequence++);
    if (!data || json_object_update(event, data)) r->no_memory = true;
    json_decref(data);
    sn_reply_send(r, type, event);
}

static void response_begin(sn_reply *r) {
    if (!state_of(r)) return;
    send(r, "response.created", json_pack("{s:o}", "response", response_json(r, "in_progress", json_array(), NULL)));
    send(r, "response.in_progress",
         json_pack("{s:o}", "response", response_json(r, "in_progress", json_array(), NULL)));
}

static json_t *place(const sn_reply *r, size_t at) {
    return json_pack("{s:o, s:I}", "item_id", item_id(r, item_at(r->response, at)), "output_index", (json_int_t)at);
}

/* {"item_id", "output_index", "content_index"}: the only part of an item. */
static json_t *part_place(const sn_reply *r, size_t at) {
    json_t *o = place(r, at);
    json_object_set_new(o, "content_index", json_integer(0));
    return o;
}

static json_t *with(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
    return object;
}

static json_t *part_json(const sn_reply *r, sn_answer_part part, const char *text, size_t len) {
    return part == SN_PART_CONTENT ? text_part(r, text, len)
                                   : json_pack("{s:s, s:s%}", "type", "reasoning_text", "text", text, len);
}

/* The item of a part; where there is none yet, it is added. */
static size_t find_item(sn_reply *r, sn_reply_choice *c, sn_answer_part part, size_t call) {
    for (size_t i = 0; i < n_items(r->response); i++)
        if (item_at(r->response, i)->part == part && item_at(r->response, i)->call == call) return i;
    size_t at = add_item(r, part, call);
    if (r->no_memory) return 0;
    send(r, "response.output_item.added",
         json_pack("{s:I, s:o}", "output_index", (json_int_t)at, "item",
                   item_json(r, c, item_at(r->response, at), false, "in_progress")));
    if (part != SN_PART_CALL)
        send(r, "response.content_part.added", with(part_place(r, at), "part", part_json(r, part, "", 0)));
    return at;
}

static void response_delta(sn_reply *r, sn_reply_choice *c, sn_answer_part part, size_t call, const char *text,
                           size_t len) {
    static const char *const types[] = {[SN_PART_REASONING] = "response.reasoning_text.delta",
                                        [SN_PART_CONTENT] = "response.output_text.delta",
                                        [SN_PART_CALL] = "response.function_call_arguments.delta"};
    bool begins = part == SN_PART_CALL_BEGINS, is_call = begins || part == SN_PART_CALL;
    if (!state_of(r)) return;
    size_t at = find_item(r, c, is_call ? SN_PART_CALL : part, call);
    if (r->no_memory || begins) return;
    json_t *delta = with(is_call ? place(r, at) : part_place(r, at), "delta", json_stringn(text, len));
    if (part == SN_PART_CONTENT) {
        json_t *logprobs = r->request->logprobs >= 0 ? sn_chat_logprobs(r, c) : json_array();
        if (json_array_extend(r->response->logprobs, logprobs)) r->no_memory = true;
        with(delta, "logprobs", logprobs);
    }
    send(r, types[part], delta);
}

static void send_done(sn_reply *r, sn_reply_choice *c, size_t at) {
    const item i = *item_at(r->response, at);
    size_t len;
    if (i.part == SN_PART_CALL) {
        const char *text = sn_choice_call_name(c, i.call, &len);
        json_t *data = with(place(r, at), "name", json_stringn(text, len));
        text = sn_choice_arguments(r, c, i.call, &len);
        send(r, "response.function_call_arguments.done", with(data, "arguments", json_stringn(text, len)));
    } else {
        bool content = i.part == SN_PART_CONTENT;
        const char *text = sn_choice_text(r, c, i.part, &len);
        json_t *done = with(part_place(r, at), "text", json_stringn(text, len));
        if (content) with(done, "logprobs", json_copy(r->response->logprobs));
        send(r, content ? "response.output_text.done" : "response.reasoning_text.done", done);
        send(r, "response.content_part.done", with(part_place(r, at), "part", part_json(r, i.part, text, len)));
    }
    send(r, "response.output_item.done",
         json_pack("{s:I, s:o}", "output_index", (json_int_t)at, "item",
                   item_json(r, c, &i, true, item_status(r, c, &i))));
}

static void response_end(sn_reply *r, sn_reply_choice *c, json_t *swarm) {
    if (!state_of(r)) return;
    if (!n_items(r->response)) (void)find_item(r, c, SN_PART_CONTENT, 0);
    for (size_t at = 0; at < n_items(r->response) && !r->no_memory; at++) send_done(r, c, at);
    json_t *response = response_json(r, end_status(c), output_json(r, c), NULL);
    if (swarm) sn_reply_set(r, response, "swarm", json_incref(swarm));
    send(r, strcmp(end_status(c), "completed") ? "response.incomplete" : "response.completed",
         json_pack("{s:o}", "response", response));
}

static void response_finish(sn_reply *r, json_t *swarm) { (void)r, (void)swarm; }

static void response_fail(sn_reply *r, const sn_openai_error *error) {
    const char *code = error->code ? error->code : "server_error";
    if (!state_of(r)) return;
    send(r, "error",
         json_pack("{s:s, s:s, s:s?}", "code", code, "message", error->message, "param",
                   *error->param ? error->param : NULL));
    json_t *cause = json_pack("{s:s, s:s}", "code", code, "message", error->message);
    send(r, "response.failed", json_pack("{s:o}", "response", response_json(r, "failed", json_array(), cause)));
}

static json_t *response_whole(sn_reply *r, json_t *swarm) {
    sn_reply_choice *c = r->choices;
    size_t content, reasoning, n_calls = sn_choice_calls(r, c);
    if (!state_of(r)) return NULL;
    if (r->request->logprobs >= 0) {
        json_decref(r->response->logprobs);
        r->response->logprobs = sn_chat_logprobs(r, c);
    }
    (void)sn_choice_text(r, c, SN_PART_CONTENT, &content);
    (void)sn_choice_text(r, c, SN_PART_REASONING, &reasoning);
    if (reasoning) add_item(r, SN_PART_REASONING, 0);
    if (content || !n_calls) add_item(r, SN_PART_CONTENT, 0);
    for (size_t i = 0; i < n_calls; i++) add_item(r, SN_PART_CALL, i);
    json_t *response = response_json(r, end_status(c), r->no_memory ? json_array() : output_json(r, c), NULL);
    if (swarm) sn_reply_set(r, response, "swarm", json_incref(swarm));
    return response;
}

const sn_reply_form sn_response_form = {.id_prefix = "resp_",
                                        .begin = response_begin,
                                        .delta = response_delta,
                                        .end = response_end,
                                        .finish = response_finish,
                                        .whole = response_whole,
                                        .fail = response_fail};
