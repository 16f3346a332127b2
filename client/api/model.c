/* A model: tokenizer and chat template are read when it is opened, headers and all; the embedding and the LM head with
 * the device that they rest on are loaded by the first call that computes with them, since many callers only tokenize.
 * Everything but these two is immutable, and the LM head takes one call at a time (client/generate/lm_head.h): so any
 * thread may call any function. */
#include "client/api/api_private.h"

#include "base/file.h"
#include "base/wide_json.h"
#include "client/api/describe.h"
#include "client/generate/logprob.h"
#include "sharing/hub/manifest.h"
#include "text/tokenizer/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The template of the option "template", with the texts of the model's bos and eos tokens if there is a model. */
static sn_status read_template(swarm_model *m, const char *path, sn_err *err) {
    sn_buf file = {0};
    sn_chat_source source = {.bos = "", .eos = ""};
    if (m->tokenizer) source = sn_tokenizer_chat_source(m->tokenizer);
    sn_status status = sn_read_file_or_pipe(path, SN_CHAT_TEMPLATE_MAX, &file, err);
    if (status) return status;
    source = (sn_chat_source){.text = (const char *)file.data, .len = file.len, .bos = source.bos, .eos = source.eos};
    status = file.len ? sn_chat_template_parse(&source, &m->chat, err) : sn_fail(err, SN_REFUSED, "it is empty");
    sn_buf_fini(&file);
    return status ? sn_err_context(err, "%s", path) : SN_OK;
}

static sn_status open_chat(swarm_model *m, sn_err *err) {
    const char *path = m->options.settings.api.chat_template;
    if (path) return read_template(m, path, err);
    if (!m->tokenizer) return SN_OK;
    if (sn_chat_template_open(m->tokenizer, &m->chat, &m->no_chat)) m->chat = NULL;
    if (m->no_chat.status == SN_STOP) *err = m->no_chat;
    return m->no_chat.status == SN_STOP ? SN_STOP : SN_OK;
}

/* path NULL: nothing but the chat template of the options. */
static sn_status model_open(swarm_model *m, const char *path, const swarm_options *options, sn_err *err) {
    sn_status status = sn_api_options_init(&m->options, options, "model", NULL, err);
    const sn_settings *o = &m->options.settings;
    char place[SN_PATH_SIZE];
    if (!status && !path && !o->api.chat_template)
        status = sn_fail(err, SN_REFUSED, "give the path of a model, or a template");
    bool whole = path && o->api.parts == SN_PARTS_ALL;
    if (!status && path && (whole || o->common.cache)) {
        status = sn_api_open_named(path, &m->options.settings, place, &m->model, err);
        path = place;
    }
    if (!status && path) status = sn_api_text(path, strlen(path), &m->path, NULL, err);
    if (status) return status;
    if (whole) sn_model_keep_hashes(m->model, o->common.cache);
    if (whole) sn_manifest_tell(path, m->model);
    if (whole) m->hp = sn_model_hparams(m->model);
    m->sampling = path ? sn_sampling_hint_read(path) : (sn_sampling_hint){NAN, NAN, NAN, NAN, NAN};
    if (!path) {
        (void)sn_fail(&m->no_tokenizer, SN_REFUSED, "no model was opened, only a chat template");
    } else if (sn_tokenizer_open(path, &m->tokenizer, &m->no_tokenizer)) {
        m->tokenizer = NULL;
        *err = m->no_tokenizer;
        if (!whole || err->status == SN_STOP) return err->status;
    }
    if (!whole) sn_model_close(&m->model); /* it held the files of the tokenizer, which is read now */
    return open_chat(m, err);
}

swarm_code swarm_model_open(const char *path, const swarm_options *options, swarm_model **model, swarm_error **error) {
    sn_err err;
    swarm_model *m = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, &err);
    if (!status) {
        pthread_mutex_init(&m->lock, NULL);
        status = model_open(m, path, options, &err);
    }
    if (!status)
        *model = m;
    else
        swarm_model_close(m);
    return sn_api_end(status, &err, NULL, error);
}

void swarm_model_close(swarm_model *m) {
    if (!m) return;
    sn_lm_head_free(&m->lm_head);
    sn_device_close(&m->device);
    sn_answer_format_close(&m->answers);
    sn_chat_template_close(&m->chat);
    sn_tokenizer_close(&m->tokenizer);
    sn_model_close(&m->model);
    sn_api_options_fini(&m->options);
    pthread_mutex_destroy(&m->lock);
    free(m->path);
    free(m);
}

int32_t swarm_model_blocks(const swarm_model *m) { return m->hp ? m->hp->n_blocks : 0; }
int32_t swarm_model_width(const swarm_model *m) { return m->hp ? m->hp->n_embd : 0; }
int32_t swarm_model_context(const swarm_model *m) { return m->hp ? m->hp->n_ctx : 0; }
int32_t swarm_model_vocab(const swarm_model *m) {
    return m->hp ? m->hp->n_vocab : m->tokenizer ? sn_tokenizer_n_vocab(m->tokenizer) : 0;
}

static sn_status needs_weights(const swarm_model *m, sn_err *err) {
    return m->model ? SN_OK
                    : sn_fail(err, SN_REFUSED, "only the tokenizer or a template was opened: open the whole model");
}

sn_status sn_model_needs_tokenizer(const swarm_model *m, sn_err *err) {
    if (m->tokenizer) return SN_OK;
    *err = m->no_tokenizer;
    return sn_err_context(err, "text needs the model's tokenizer");
}

sn_status sn_model_open_head(const swarm_model *model, sn_lm_head **out, sn_err *err) {
    swarm_model *m = (swarm_model *)(uintptr_t)model; /* constant for callers; the lock is for what is opened late */
    sn_status status = needs_weights(m, err);
    if (status) return status;
    pthread_mutex_lock(&m->lock);
    if (!m->device) status = sn_setup_device(&m->options.settings, NULL, &m->device, err);
    if (!status && !m->lm_head) status = sn_lm_head_load(m->model, m->device, &m->lm_head, err);
    *out = m->lm_head;
    pthread_mutex_unlock(&m->lock);
    return status;
}

static json_t *sampling_json(const sn_sampling_hint *hint) {
    const struct {
        const char *name;
        double value;
    } fields[] = {{"temperature", hint->temperature},
                  {"top_p", hint->top_p},
                  {"min_p", hint->min_p},
                  {"repeat_penalty", hint->repeat_penalty}};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!isnan(fields[i].value)) json_object_set_new(o, fields[i].name, json_real(fields[i].value));
    if (!isnan(hint->top_k)) json_object_set_new(o, "top_k", json_integer((json_int_t)hint->top_k));
    return o;
}

/* How an answer is sampled when its options say nothing. */
static json_t *answer_sampling_json(const sn_sampling_hint *hint) {
    sn_sampling_settings s = {NAN, NAN, NAN, NAN, .top_k = SN_INT_UNSET};
    sn_sampling_settings_fill(&s, hint);
    return sampling_json(&(sn_sampling_hint){.temperature = s.temperature,
                                             .top_k = (double)s.top_k,
                                             .top_p = s.top_p,
                                             .min_p = s.min_p,
                                             .repeat_penalty = s.repeat_penalty});
}

static sn_status describe(const swarm_model *m, json_t **out, sn_err *err) {
    const sn_api_settings *o = &m->options.settings.api;
    sn_status status = needs_weights(m, err);
    if (!status) status = sn_model_json(m->model, o->hashes, o->tensors, out, err);
    if (status) return status;
    json_object_set_new(*out, "tokenizer_vocab",
                        m->tokenizer ? json_integer(sn_tokenizer_n_vocab(m->tokenizer)) : json_null());
    json_object_set_new(*out, "sampling", sampling_json(&m->sampling));
    json_object_set_new(*out, "answer_sampling", answer_sampling_json(&m->sampling));
    if (!m->tokenizer) json_object_set_new(*out, "no_tokenizer", json_string(m->no_tokenizer.text));
    sn_chat_source chat = m->tokenizer ? sn_tokenizer_chat_source(m->tokenizer) : (sn_chat_source){0};
    json_object_set_new(*out, "chat_template_bytes", chat.text ? json_integer((json_int_t)chat.len) : json_null());
    json_object_set_new(*out, "tool_template", json_boolean(chat.tool_text != NULL));
    return SN_OK;
}

swarm_code swarm_model_describe(const swarm_model *m, char **json, size_t *length, swarm_error **error) {
    sn_err err;
    json_t *value = NULL;
    sn_status status = describe(m, &value, &err);
    if (!status) status = sn_api_json(value, json, length, &err);
    return sn_api_end(status, &err, NULL, error);
}

/* -- text -- */

/* Moves token ids to the caller. */
static void give_ids(sn_token_ids *from, int32_t **ids, size_t *n) {
    *ids = from->ids;
    *n = from->n;
    *from = (sn_token_ids){0};
}

swarm_code swarm_model_tokenize(const swarm_model *m, const char *text, size_t length, int flags, int32_t **ids,
                                size_t *n, swarm_error **error) {
    sn_err err;
    sn_token_ids out = {0};
    bool special = flags & SWARM_TEXT_SPECIAL;
    sn_status status = sn_model_needs_tokenizer(m, &err);
    if (!status)
        status =
            flags & SWARM_TEXT_BEGINS
                ? sn_tokenizer_encode(m->tokenizer, text, length, !(flags & SWARM_TEXT_NO_BOS), special, &out, &err)
                : sn_tokenizer_encode_continuation(m->tokenizer, text, length, special, &out, &err);
    if (!status) give_ids(&out, ids, n);
    sn_token_ids_fini(&out);
    return sn_api_end(status, &err, NULL, error);
}

/* Appends U+FFFD for what is not valid UTF-8. */
static sn_status append_valid(sn_buf *out, const char *text, size_t len, sn_err *err) {
    sn_status status = SN_OK;
    uint32_t code;
    for (size_t at = 0, end; at < len && !status; at = end) {
        for (end = at; end < len;) {
            size_t n = sn_utf8_decode(text + end, len - end, &code);
            if (!n) break;
            end += n;
        }
        status = sn_buf_append(out, text + at, end - at, err);
        if (status || end == len) continue;
        do end++;
        while (end < len && ((uint8_t)text[end] & 0xc0) == 0x80);
        status = sn_buf_append(out, "\xef\xbf\xbd", 3, err);
    }
    return status;
}

sn_status sn_model_spell_token(const swarm_model *m, int32_t id, bool special, sn_buf *out, sn_err *err) {
    bool pads = id >= sn_tokenizer_n_vocab(m->tokenizer) && id < swarm_model_vocab(m); /* models round it up */
    return pads ? SN_OK : sn_tokenizer_decode(m->tokenizer, id, special, out, err);
}

bool sn_model_drop_space(const swarm_model *m, sn_buf *text) {
    if (!text->len || text->data[0] != ' ' || !sn_tokenizer_strips_space(m->tokenizer)) return false;
    memmove(text->data, text->data + 1, --text->len);
    return true;
}

static sn_status detokenize(const swarm_model *m, const int32_t *ids, size_t n, int flags, sn_buf *out, sn_err *err) {
    sn_buf bytes;
    sn_buf_init(&bytes, (size_t)1 << 30);
    sn_status status = sn_model_needs_tokenizer(m, err);
    for (size_t i = 0; i < n && !status; i++) {
        status = sn_model_spell_token(m, ids[i], flags & SWARM_TEXT_SPECIAL, &bytes, err);
        if (status) sn_err_context(err, "the token at index %zu", i);
    }
    if (!status && flags & SWARM_TEXT_BEGINS) sn_model_drop_space(m, &bytes);
    if (!status) status = append_valid(out, (const char *)bytes.data, bytes.len, err);
    sn_buf_fini(&bytes);
    return status;
}

swarm_code swarm_model_detokenize(const swarm_model *m, const int32_t *ids, size_t n, int flags, char **text,
                                  size_t *length, swarm_error **error) {
    sn_err err;
    sn_buf out;
    sn_buf_init(&out, SIZE_MAX);
    sn_status status = detokenize(m, ids, n, flags, &out, &err);
    if (!status) status = sn_api_text(out.data, out.len, text, length, &err);
    sn_buf_fini(&out);
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_model_token_bytes(const swarm_model *m, int32_t id, int flags, char **bytes, size_t *length,
                                   swarm_error **error) {
    sn_err err;
    sn_buf out;
    sn_buf_init(&out, SIZE_MAX);
    sn_status status = sn_model_needs_tokenizer(m, &err);
    if (!status) status = sn_model_spell_token(m, id, flags & SWARM_TEXT_SPECIAL, &out, &err);
    if (!status && flags & SWARM_TEXT_BEGINS) sn_model_drop_space(m, &out);
    if (!status) status = sn_api_text(out.data, out.len, bytes, length, &err);
    sn_buf_fini(&out);
    return sn_api_end(status, &err, NULL, error);
}

int swarm_model_ends(const swarm_model *m, int32_t id) {
    return m->tokenizer && id >= 0 && id < sn_tokenizer_n_vocab(m->tokenizer) && sn_tokenizer_is_eog(m->tokenizer, id);
}

/* -- chats -- */

static sn_status needs_chat(const swarm_model *m, sn_err *err) {
    if (m->chat) return SN_OK;
    if (!m->tokenizer) return sn_model_needs_tokenizer(m, err);
    *err = m->no_chat;
    return err->status;
}

/* Reads {"messages", "tools", "add_generation_prompt", "variables", "continues"}; the result borrows from the JSON
 * value. *begins: the prompt is the beginning of a timeline. */
static sn_status read_request(const json_t *value, sn_chat_request *out, bool *begins, sn_err *err) {
    static const char *const names[] = {"messages", "tools", "add_generation_prompt", "variables", "continues"};
    enum { N = sizeof names / sizeof *names };
    const char *key;
    json_t *field;
    if (!json_is_object(value)) return sn_fail(err, SN_REFUSED, "a chat request is a JSON object with \"messages\"");
    json_object_foreach((json_t *)(uintptr_t)value, key, field) {
        size_t i = 0;
        while (i < N && strcmp(names[i], key)) i++;
        if (i == N) return sn_fail(err, SN_REFUSED, "a chat request has no \"%.60s\"", key);
    }
    const json_t *opens = json_object_get(value, "add_generation_prompt"),
                 *continues = json_object_get(value, "continues");
    *begins = !json_is_true(continues);
    *out = (sn_chat_request){.messages = json_object_get(value, "messages"),
                             .tools = json_object_get(value, "tools"),
                             .variables = json_object_get(value, "variables"),
                             .no_generation_prompt = json_is_false(opens)};
    if (json_is_null(out->tools)) out->tools = NULL;
    if (!json_is_array(out->messages)) return sn_fail(err, SN_REFUSED, "\"messages\" of a chat request is a list");
    if (out->tools && !json_is_array(out->tools))
        return sn_fail(err, SN_REFUSED, "\"tools\" of a chat request is a list");
    if (opens && !json_is_boolean(opens))
        return sn_fail(err, SN_REFUSED, "\"add_generation_prompt\" of a chat request is true or false");
    if (continues && !json_is_boolean(continues))
        return sn_fail(err, SN_REFUSED, "\"continues\" of a chat request is true or false");
    if (out->variables && !json_is_object(out->variables))
        return sn_fail(err, SN_REFUSED, "\"variables\" of a chat request is an object");
    return SN_OK;
}

typedef struct rendered {
    sn_chat_prompt prompt;
    sn_token_ids ids;
} rendered;

static sn_status render_chat(const swarm_model *m, const char *request, size_t length, bool with_ids, rendered *out,
                             sn_err *err) {
    json_error_t why;
    sn_chat_request parsed;
    bool begins = true;
    sn_status status = needs_chat(m, err);
    if (!status && with_ids) status = sn_model_needs_tokenizer(m, err);
    if (status) return status;
    json_t *value = sn_wide_json_load(request, length, JSON_ALLOW_NUL, &why);
    if (!value) return sn_fail(err, SN_REFUSED, "the chat request is no JSON: %.200s at line %d", why.text, why.line);
    status = read_request(value, &parsed, &begins, err);
    if (!status) status = sn_chat_template_render(m->chat, &parsed, &out->prompt, err);
    if (!status && with_ids)
        status = sn_tokenizer_encode_marked(m->tokenizer, out->prompt.text, out->prompt.len, out->prompt.marks, begins,
                                            &out->ids, err);
    json_decref(value);
    return status;
}

swarm_code swarm_model_render_chat(const swarm_model *m, const char *request, size_t request_length, char **text,
                                   size_t *length, int32_t **ids, size_t *n, swarm_error **error) {
    sn_err err;
    rendered out = {0};
    sn_status status = render_chat(m, request, request_length, ids != NULL, &out, &err);
    if (!status && text) {
        *text = out.prompt.text;
        if (length) *length = out.prompt.len;
        out.prompt.text = NULL;
    }
    if (!status && ids) give_ids(&out.ids, ids, n);
    sn_chat_prompt_fini(&out.prompt);
    sn_token_ids_fini(&out.ids);
    return sn_api_end(status, &err, NULL, error);
}

/* The parts [begin, end) of the prompt that come from the request. */
static json_t *data_json(const sn_chat_prompt *prompt) {
    json_t *parts = json_array();
    for (size_t at = 0, begin; at < prompt->len; at++) {
        if (!(prompt->marks[at] & 1)) continue;
        for (begin = at; at < prompt->len && prompt->marks[at] & 1;) at++;
        json_array_append_new(parts, json_pack("[I, I]", (json_int_t)begin, (json_int_t)at));
    }
    return parts;
}

swarm_code swarm_model_render_parts(const swarm_model *m, const char *request, size_t request_length, char **json,
                                    size_t *length, swarm_error **error) {
    sn_err err;
    rendered out = {0};
    sn_status status = render_chat(m, request, request_length, m->tokenizer != NULL, &out, &err);
    json_t *prompt = status ? NULL : json_stringn(out.prompt.text, out.prompt.len);
    if (!status && !prompt) status = sn_fail(&err, SN_REFUSED, "the template gives no valid UTF-8 text");
    if (!status) {
        json_t *o = json_object();
        json_object_set_new(o, "prompt", prompt);
        json_object_set_new(o, "data", data_json(&out.prompt));
        if (m->tokenizer) json_object_set_new(o, "ids", sn_api_ids_json(&out.ids));
        status = sn_api_json(o, json, length, &err);
    }
    sn_chat_prompt_fini(&out.prompt);
    sn_token_ids_fini(&out.ids);
    return sn_api_end(status, &err, NULL, error);
}

sn_status sn_model_open_answers(const swarm_model *model, const sn_answer_format **out, sn_err *err) {
    swarm_model *m = (swarm_model *)(uintptr_t)model; /* as in sn_model_open_head */
    sn_status status = needs_chat(m, err);
    if (status) return status;
    pthread_mutex_lock(&m->lock);
    if (!m->answers) status = sn_answer_format_open(m->chat, &m->answers, err);
    *out = m->answers;
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* -- the ends -- */

/* Rows go through the ends in pieces, so that a count is an int and the lock is free in between. */
enum { ROWS = 512 };

swarm_code swarm_model_embed(const swarm_model *m, const int32_t *ids, size_t n, float *hidden, swarm_error **error) {
    sn_err err;
    sn_lm_head *head = NULL;
    sn_status status = sn_model_open_head(m, &head, &err);
    for (size_t at = 0; at < n && !status; at += ROWS)
        status =
            sn_lm_head_embed(head, ids + at, (int)sn_min_size(ROWS, n - at), hidden + at * (size_t)m->hp->n_embd, &err);
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_model_logits(const swarm_model *m, const float *hidden, size_t n, float *logits, swarm_error **error) {
    sn_err err;
    sn_lm_head *head = NULL;
    sn_status status = sn_model_open_head(m, &head, &err);
    for (size_t at = 0; at < n && !status; at += ROWS)
        status = sn_lm_head_logits(head, hidden + at * (size_t)m->hp->n_embd, (int)sn_min_size(ROWS, n - at),
                                   logits + at * (size_t)m->hp->n_vocab, &err);
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_model_logprob(const swarm_model *m, const float *logits, int32_t id, double *logprob, size_t n_top,
                               int32_t *top_ids, double *top_logprobs, swarm_error **error) {
    sn_err err;
    const size_t vocab = (size_t)swarm_model_vocab(m);
    int32_t best;
    sn_status status =
        id < 0 || (size_t)id >= vocab || n_top > vocab
            ? sn_fail(&err, SN_REFUSED, "the model has %zu tokens: one outside of them was asked for", vocab)
            : sn_logits_argmax(logits, vocab, &best, &err);
    if (!status) {
        *logprob = sn_logits_logprob(logits, vocab, (double)logits[best], id);
        sn_logits_top(logits, vocab, (double)logits[best], n_top, top_ids, top_logprobs);
    }
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_model_norm(const swarm_model *m, const float *hidden, size_t n, float *out, swarm_error **error) {
    sn_err err;
    sn_lm_head *head = NULL;
    sn_status status = sn_model_open_head(m, &head, &err);
    for (size_t at = 0; at < n && !status; at += ROWS) {
        size_t row = at * (size_t)m->hp->n_embd;
        status = sn_lm_head_norm(head, hidden + row, (int)sn_min_size(ROWS, n - at), out + row, &err);
    }
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_model_logits_backward(const swarm_model *m, const float *hidden, size_t n,
                                       const float *logits_gradient, float *hidden_gradient, swarm_error **error) {
    sn_err err;
    sn_lm_head *head = NULL;
    sn_status status = sn_model_open_head(m, &head, &err);
    for (size_t at = 0; at < n && !status; at += ROWS) {
        size_t row = at * (size_t)m->hp->n_embd;
        status = sn_lm_head_logits_grad(head, hidden + row, (int)sn_min_size(ROWS, n - at),
                                        logits_gradient + at * (size_t)m->hp->n_vocab, hidden_gradient + row, &err);
    }
    return sn_api_end(status, &err, NULL, error);
}
