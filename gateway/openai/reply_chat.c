/* Chat completions: a first chunk with the role, chunks with what is new, one with the reason of the end for each
 * choice, one with the usage if that was asked for, and "[DONE]". */
#include "gateway/openai/reply_private.h"

#include <string.h>

static json_t *or_null(json_t *value) { return value ? value : json_null(); }

/* One chunk with one choice. delta: taken. finish: NULL: it goes on. */
static void send_chunk(sn_reply *r, sn_reply_choice *c, json_t *delta, const char *finish, json_t *swarm) {
    json_t *chunk = sn_reply_start(r, "chat.completion.chunk"), *logprobs = NULL;
    if (r->request->logprobs >= 0) logprobs = json_pack("{s:o, s:n}", "content", sn_chat_logprobs(r, c), "refusal");
    json_t *choice = json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)c->index, "delta", delta, "logprobs",
                               or_null(logprobs), "finish_reason", finish);
    sn_reply_set(r, chunk, "choices", json_pack("[o]", choice));
    if (r->request->include_usage)
        sn_reply_set(r, chunk, "usage", r->request->continuous_usage ? sn_reply_usage(r) : json_null());
    if (swarm) sn_reply_set(r, chunk, "swarm", json_incref(swarm));
    sn_reply_send(r, NULL, chunk);
}

static void begin_choice(sn_reply *r, sn_reply_choice *c) {
    if (c->begun) return;
    c->begun = true;
    size_t told = c->told.len;
    c->told.len = c->told_sent * sizeof(sn_told_token); /* they come with their text */
    send_chunk(r, c, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL, NULL);
    c->told.len = told;
}

static void chat_progress(sn_reply *r, sn_reply_choice *c, json_t *progress) {
    begin_choice(r, c);
    json_t *chunk = sn_reply_start(r, "chat.completion.chunk");
    sn_reply_set(
        r, chunk, "choices",
        json_pack("[{s:I, s:{}, s:n, s:n}]", "index", (json_int_t)c->index, "delta", "logprobs", "finish_reason"));
    sn_reply_set(r, chunk, "prompt_progress", progress);
    sn_reply_send(r, NULL, chunk);
}

static json_t *call_json(const sn_reply *r, const sn_reply_choice *c, size_t call, const char *arguments, size_t len) {
    char id[SN_CALL_ID_BYTES];
    size_t n_name;
    const char *name = sn_choice_call_name(c, call, &n_name);
    sn_reply_call_id(r, c->index, call, id);
    return json_pack("{s:s, s:s, s:{s:s%, s:s%}}", "id", id, "type", "function", "function", "name", name, n_name,
                     "arguments", arguments, len);
}

static void chat_delta(sn_reply *r, sn_reply_choice *c, sn_answer_part part, size_t call, const char *text,
                       size_t len) {
    begin_choice(r, c);
    if (part == SN_PART_CONTENT || part == SN_PART_REASONING) {
        const char *key = part == SN_PART_CONTENT ? "content" : "reasoning_content";
        send_chunk(r, c, json_pack("{s:s%}", key, text, len), NULL, NULL);
        return;
    }
    json_t *head = json_pack("{s:I}", "index", (json_int_t)call);
    json_t *rest = part == SN_PART_CALL_BEGINS ? call_json(r, c, call, text, len)
                                               : json_pack("{s:{s:s%}}", "function", "arguments", text, len);
    if (json_object_update(head, rest)) r->no_memory = true;
    json_decref(rest);
    send_chunk(r, c, json_pack("{s:[o]}", "tool_calls", head), NULL, NULL);
}

static void chat_end(sn_reply *r, sn_reply_choice *c, json_t *swarm) {
    begin_choice(r, c);
    send_chunk(r, c, json_object(), c->finish, swarm);
}

static void chat_finish(sn_reply *r, json_t *swarm) {
    if (r->request->include_usage) { /* clients that did not ask for it expect a choice in each chunk */
        json_t *chunk = sn_reply_start(r, "chat.completion.chunk");
        sn_reply_set(r, chunk, "choices", json_array());
        sn_reply_set(r, chunk, "usage", sn_reply_usage(r));
        if (swarm) sn_reply_set(r, chunk, "swarm", json_incref(swarm));
        sn_reply_send(r, NULL, chunk);
    }
    sn_reply_send_text(r, "data: [DONE]\n\n");
}

static json_t *message_json(sn_reply *r, sn_reply_choice *c) {
    size_t content_len, reasoning_len, n_calls = sn_choice_calls(r, c);
    const char *content = sn_choice_text(r, c, SN_PART_CONTENT, &content_len);
    const char *reasoning = sn_choice_text(r, c, SN_PART_REASONING, &reasoning_len);
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                                !content_len && n_calls ? json_null() : json_stringn(content, content_len), "refusal");
    if (c->n_reasoning) sn_reply_set(r, message, "reasoning_content", json_stringn(reasoning, reasoning_len));
    json_t *calls = n_calls ? json_array() : NULL;
    for (size_t i = 0; i < n_calls; i++) {
        size_t len;
        const char *arguments = sn_choice_arguments(r, c, i, &len);
        if (json_array_append_new(calls, call_json(r, c, i, arguments, len))) r->no_memory = true;
    }
    if (calls) sn_reply_set(r, message, "tool_calls", calls);
    return message;
}

static json_t *chat_whole(sn_reply *r, json_t *swarm) {
    json_t *body = sn_reply_start(r, "chat.completion"), *choices = json_array();
    for (size_t i = 0; i < r->n_choices; i++) {
        sn_reply_choice *c = &r->choices[i];
        json_t *logprobs = NULL;
        if (r->request->logprobs >= 0) logprobs = json_pack("{s:o, s:n}", "content", sn_chat_logprobs(r, c), "refusal");
        if (json_array_append_new(choices, json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)i, "message",
                                                     message_json(r, c), "logprobs", or_null(logprobs), "finish_reason",
                                                     c->finish)))
            r->no_memory = true;
    }
    sn_reply_set(r, body, "choices", choices);
    sn_reply_set(r, body, "usage", sn_reply_usage(r));
    if (swarm) sn_reply_set(r, body, "swarm", json_incref(swarm));
    return body;
}

void sn_reply_send_error(sn_reply *r, const sn_openai_error *error) {
    sn_reply_send(r, NULL, sn_openai_error_json(error));
    sn_reply_send_text(r, "data: [DONE]\n\n");
}

const sn_reply_form sn_chat_form = {.id_prefix = "chatcmpl-",
                                    .delta = chat_delta,
                                    .progress = chat_progress,
                                    .end = chat_end,
                                    .finish = chat_finish,
                                    .whole = chat_whole,
                                    .fail = sn_reply_send_error};
