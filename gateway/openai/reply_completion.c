/* Completions and embeddings: bodies of texts and of floats. */
#include "gateway/openai/reply_private.h"

#include <stdlib.h>
#include <string.h>

/* {"index", "text", "logprobs", "finish_reason"}, with the log-probabilities that the client does not have yet. */
static json_t *choice_json(sn_reply *r, sn_reply_choice *c, const char *text, size_t len) {
    json_t *logprobs = r->request->logprobs >= 0 ? sn_completion_logprobs(r, c) : json_null();
    return json_pack("{s:I, s:s%, s:o, s:s?}", "index", (json_int_t)c->index, "text", text, len, "logprobs", logprobs,
                     "finish_reason", c->finish);
}

static void send_chunk(sn_reply *r, json_t *choices, bool usage, json_t *swarm) {
    json_t *chunk = sn_reply_start(r, "text_completion");
    sn_reply_set(r, chunk, "choices", choices);
    if (r->request->include_usage) sn_reply_set(r, chunk, "usage", usage ? sn_reply_usage(r) : json_null());
    if (swarm) sn_reply_set(r, chunk, "swarm", json_incref(swarm));
    sn_reply_send(r, NULL, chunk);
}

static void completion_delta(sn_reply *r, sn_reply_choice *c, sn_answer_part part, size_t call, const char *text,
                             size_t len) {
    const char *finish = c->finish;
    (void)part, (void)call;
    c->finish = NULL; /* the end has a chunk of its own */
    send_chunk(r, json_pack("[o]", choice_json(r, c, text, len)), r->request->continuous_usage, NULL);
    c->finish = finish;
}

static void completion_progress(sn_reply *r, sn_reply_choice *c, json_t *progress) {
    json_t *chunk = sn_reply_start(r, "text_completion");
    sn_reply_set(
        r, chunk, "choices",
        json_pack("[{s:I, s:s, s:n, s:n}]", "index", (json_int_t)c->index, "text", "", "logprobs", "finish_reason"));
    sn_reply_set(r, chunk, "prompt_progress", progress);
    sn_reply_send(r, NULL, chunk);
}

static void completion_end(sn_reply *r, sn_reply_choice *c, json_t *swarm) {
    send_chunk(r, json_pack("[o]", choice_json(r, c, "", 0)), r->request->continuous_usage, swarm);
}

static void completion_finish(sn_reply *r, json_t *swarm) {
    if (r->request->include_usage) send_chunk(r, json_array(), true, swarm);
    sn_reply_send_text(r, "data: [DONE]\n\n");
}

static json_t *completion_whole(sn_reply *r, json_t *swarm) {
    json_t *body = sn_reply_start(r, "text_completion"), *choices = json_array();
    for (size_t i = 0; i < r->n_choices; i++) {
        sn_reply_choice *c = &r->choices[i];
        if (json_array_append_new(choices,
                                  choice_json(r, c, c->text.len ? (const char *)c->text.data : "", c->text.len)))
            r->no_memory = true;
    }
    sn_reply_set(r, body, "choices", choices);
    sn_reply_set(r, body, "usage", sn_reply_usage(r));
    if (swarm) sn_reply_set(r, body, "swarm", json_incref(swarm));
    return body;
}

const sn_reply_form sn_completion_form = {.id_prefix = "cmpl-",
                                          .delta = completion_delta,
                                          .progress = completion_progress,
                                          .end = completion_end,
                                          .finish = completion_finish,
                                          .whole = completion_whole,
                                          .fail = sn_reply_send_error};

/* -- embeddings -- */

static json_t *base64_json(const float *values, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = (const uint8_t *)values; /* little-endian, as every machine that this program runs on */
    size_t len = n * sizeof *values, at = 0;
    char *text = malloc((len + 2) / 3 * 4 + 1);
    if (!text) return NULL;
    for (size_t i = 0; i < len; i += 3) {
        size_t have = sn_min_size(3, len - i);
        uint32_t bits = (uint32_t)bytes[i] << 16;
        if (have > 1) bits |= (uint32_t)bytes[i + 1] << 8;
        if (have > 2) bits |= bytes[i + 2];
        for (size_t k = 0; k < 4; k++) text[at++] = k > have ? '=' : digits[bits >> (18 - 6 * k) & 63];
    }
    json_t *json = json_stringn(text, at);
    free(text);
    return json;
}

bool sn_reply_embedding(sn_reply *r, size_t prompt, const float *embedding, size_t width, sn_openai_error *error) {
    enum { FLOAT_BYTES = 40 }; /* of a value of JSON */
    json_t *values = r->request->base64 ? base64_json(embedding, width) : json_array();
    for (size_t i = 0; i < width && !r->request->base64; i++)
        if (json_array_append_new(values, json_real((double)embedding[i]))) r->no_memory = true;
    r->held += r->request->base64 ? json_string_length(values) : width * FLOAT_BYTES;
    json_decref(r->embeddings[prompt]);
    r->embeddings[prompt] = values;
    return (values && !r->no_memory) ||
           sn_openai_fail(error, 500, NULL, NULL,
                          "the server is out of memory for this reply, or a value is not finite");
}

static json_t *embedding_whole(sn_reply *r, json_t *swarm) {
    const sn_usage u = sn_reply_count(r);
    json_t *data = json_array();
    for (size_t i = 0; i < r->n_prompts; i++)
        if (json_array_append_new(data, json_pack("{s:s, s:I, s:O}", "object", "embedding", "index", (json_int_t)i,
                                                  "embedding", r->embeddings[i])))
            r->no_memory = true;
    json_t *body = json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", data, "model",
                             sn_served_model_name(r->served), "usage", "prompt_tokens", (json_int_t)u.prompt,
                             "total_tokens", (json_int_t)u.prompt);
    if (swarm) sn_reply_set(r, body, "swarm", json_incref(swarm));
    return body;
}

const sn_reply_form sn_embedding_form = {.id_prefix = "embd-", .whole = embedding_whole};

/* -- replies without generation -- */

static char *dump(json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

/* A token's text, or a list of its bytes where they are no UTF-8. */
static json_t *piece_json(const sn_served_model *served, int32_t id) {
    size_t len = 0;
    char *bytes = NULL;
    if (swarm_model_token_bytes(sn_served_model_get(served), id, SWARM_TEXT_SPECIAL, &bytes, &len, NULL)) len = 0;
    json_t *piece = json_stringn(bytes ? bytes : "", len);
    if (!piece) piece = json_array();
    for (size_t i = 0; i < len && json_is_array(piece); i++)
        json_array_append_new(piece, json_integer((unsigned char)bytes[i]));
    swarm_free(bytes);
    return piece;
}

static sn_status put_piece(sn_buf *out, const sn_served_model *served, int32_t id, const char *comma, sn_err *err) {
    json_t *json = piece_json(served, id);
    char *piece = json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    sn_status status = piece ? sn_buf_printf(out, err, "%s{\"id\":%d,\"piece\":%s}", comma, (int)id, piece)
                             : sn_fail(err, SN_STOP, "out of memory for a token's text");
    free(piece);
    json_decref(json);
    return status;
}

/* Written as text at once: a token would take hundreds of bytes as values of jansson. */
char *sn_reply_tokenize(const sn_request *request, const sn_served_model *served, const int32_t *ids, size_t n) {
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, SIZE_MAX);
    sn_status status = sn_buf_printf(&out, &err, "{\"tokens\":[");
    for (size_t i = 0; i < n && !status; i++)
        status = request->with_pieces ? put_piece(&out, served, ids[i], i ? "," : "", &err)
                                      : sn_buf_printf(&out, &err, "%s%d", i ? "," : "", (int)ids[i]);
    if (!status) status = sn_buf_printf(&out, &err, "],\"count\":%zu}", n);
    if (!status) status = sn_buf_append(&out, "", 1, &err);
    if (status) sn_buf_fini(&out);
    return (char *)out.data;
}

char *sn_reply_detokenize(const char *text, size_t len) {
    return dump(json_pack("{s:s%, s:s%}", "content", text, len, "prompt", text, len));
}

static json_t *model_json(const sn_served_model *served, int64_t created, int32_t context) {
    const sn_request_sampling *d = sn_served_model_sampling(served);
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:{s:f, s:f, s:i, s:f, s:f}}", "id", sn_served_model_name(served),
                     "object", "model", "created", (json_int_t)created, "owned_by", "swarm", "max_model_len",
                     (int)context, "default_sampling", "temperature", d->temperature, "top_p", d->top_p, "top_k",
                     (int)d->top_k, "min_p", d->min_p, "repeat_penalty", d->repeat_penalty);
}

char *sn_reply_model(const sn_served_model *served, int64_t created, int32_t context) {
    return dump(model_json(served, created, context));
}

char *sn_reply_models(const sn_served_model *served, int64_t created, int32_t context) {
    return dump(json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(served, created, context)));
}
