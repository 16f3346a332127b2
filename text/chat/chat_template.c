#include "text/chat/chat_template.h"

#include "text/chat/chat_fit.h"
#include "text/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

struct sn_chat_template {
    sn_jinja *plain, *with_tools; /* with_tools may be NULL: plain is for both */
    json_t *own;                  /* bos_token, eos_token */
    sn_chat_lacks lacks;
};

/* ---- the template ---- */

void sn_chat_template_close(sn_chat_template **chat) {
    if (!*chat) return;
    sn_jinja_free(&(*chat)->plain);
    sn_jinja_free(&(*chat)->with_tools);
    json_decref((*chat)->own);
    free(*chat);
    *chat = NULL;
}

/* ---- rendering ---- */

/* Roles that templates put between the halves of a special token. None of them is the name of a token that ends a turn
 * or a text, and none can be anything but a word. */
static bool is_known_role(const char *key, const char *text) {
    static const char *const roles[] = {"system",      "user",          "assistant", "tool",
                                        "developer",   "function",      "ipython",   "environment",
                                        "observation", "tool_response", "model",     "tool_responses"};
    if (strcmp(key, "role")) return false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(text, roles[i])) return true;
    return false;
}

/* A message's reasoning under the names that templates look for, as transformers gives it to them. */
static json_t *with_reasoning(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL;
    for (size_t i = 0; i < 3 && !reasoning; i++) {
        json_t *given = json_object_get(message, names[i]);
        if (given && !json_is_null(given)) reasoning = given;
    }
    if (!reasoning) return json_incref(message);
    json_t *out = json_object();
    json_object_set(out, "thinking", reasoning);
    json_object_update(out, message);
    json_object_set(out, "reasoning_content", reasoning);
    return out;
}

static sn_status check_request(const sn_chat_request *request, sn_err *err) {
    size_t n = json_array_size(request->messages);
    if (n == 0 || n > SN_CHAT_MESSAGES_MAX)
        return sn_fail(err, SN_REFUSED, "a conversation is a list of 1 to %d messages, this one of %zu",
                       SN_CHAT_MESSAGES_MAX, n);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_object_get(json_array_get(request->messages, i), "role")))
            return sn_fail(err, SN_REFUSED, "message %zu is not {\"role\": ..., \"content\": ...}", i + 1);
    if (request->tools && !json_is_array(request->tools) && !json_is_null(request->tools))
        return sn_fail(err, SN_REFUSED, "the tools are not a list");
    if (request->variables && !json_is_object(request->variables))
        return sn_fail(err, SN_REFUSED, "the variables are not a JSON object");
    return SN_OK;
}

static json_t *variables_of(const sn_chat_request *request) {
    json_t *out = json_object(), *messages = json_array();
    for (size_t i = 0; i < json_array_size(request->messages); i++)
        json_array_append_new(messages, with_reasoning(json_array_get(request->messages, i)));
    json_object_set_new(out, "messages", messages);
    json_object_set_new(out, "tools", request->tools ? json_incref((json_t *)request->tools) : json_null());
    json_object_set_new(out, "documents", json_null());
    json_object_set_new(out, "add_generation_prompt", json_boolean(!request->no_generation_prompt));
    if (request->variables) json_object_update(out, (json_t *)request->variables);
    return out;
}

/* The conversation as it is. */
static sn_status render(const sn_chat_template *chat, const sn_chat_request *request, sn_chat_prompt *out,
                        sn_err *err) {
    sn_jinja_text text = {0};
    bool tools = json_array_size(request->tools) > 0;
    const sn_jinja *template = (tools && chat->with_tools) || !chat->plain ? chat->with_tools : chat->plain;
    json_t *variables = variables_of(request);
    sn_jinja_input input = {
        .variables = variables, .own = chat->own, .is_own = is_known_role, .limits = sn_jinja_default_limits()};
    sn_status status = variables ? sn_jinja_render(template, &input, &text, err)
                                 : sn_fail(err, SN_STOP, "out of memory for a conversation");
    if (status == SN_REFUSED) sn_err_context(err, "the chat template");
    json_decref(variables);
    *out = (sn_chat_prompt){text.text, text.marks, text.len};
    return status;
}

sn_status sn_chat_template_render(const sn_chat_template *chat, const sn_chat_request *request, sn_chat_prompt *out,
                                  sn_err *err) {
    *out = (sn_chat_prompt){0};
    sn_status status = check_request(request, err);
    if (status) return status;
    json_t *messages = sn_chat_fit_messages(&chat->lacks, request);
    sn_chat_request fitting = *request;
    fitting.messages = messages;
    if (chat->lacks.tools) fitting.tools = NULL;
    status = messages ? render(chat, &fitting, out, err) : sn_fail(err, SN_STOP, "out of memory for a conversation");
    json_decref(messages);
    return status;
}

/* ---- opening ---- */

static sn_status parse_template(const char *text, size_t len, sn_jinja **out, sn_err *err) {
    if (len > SN_CHAT_TEMPLATE_MAX)
        return sn_fail(err, SN_REFUSED, "the model's chat template has more than %d bytes", SN_CHAT_TEMPLATE_MAX);
    sn_status status = sn_jinja_parse(text, len, out, err);
    if (status) sn_err_context(err, "the model's chat template");
    return status;
}

sn_status sn_chat_template_parse(const sn_chat_source *source, sn_chat_template **out, sn_err *err) {
    *out = NULL;
    if (!source->len && !source->tool_len)
        return sn_fail(err, SN_REFUSED,
                       "the model's files have no chat template, so it was not made for conversations: let it continue "
                       "a text with swarm generate --prompt");
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->own = json_pack("{s:s, s:s}", "bos_token", source->bos, "eos_token", source->eos);
    if (!(*out)->own) status = sn_fail(err, SN_REFUSED, "the texts of the model's bos and eos tokens are not UTF-8");
    if (!status && source->len) status = parse_template(source->text, source->len, &(*out)->plain, err);
    if (!status && source->tool_len)
        status = parse_template(source->tool_text, source->tool_len, &(*out)->with_tools, err);
    if (status)
        sn_chat_template_close(out);
    else
        (*out)->lacks = sn_chat_find_lacks(*out, render);
    return status;
}

sn_status sn_chat_template_open(const sn_tokenizer *tokenizer, sn_chat_template **out, sn_err *err) {
    const sn_chat_source source = sn_tokenizer_chat_source(tokenizer);
    return sn_chat_template_parse(&source, out, err);
}

/* ---- prompts ---- */

void sn_chat_prompt_fini(sn_chat_prompt *prompt) {
    free(prompt->text);
    free(prompt->marks);
    *prompt = (sn_chat_prompt){0};
}

sn_status sn_chat_template_encode(const sn_chat_template *chat, const sn_tokenizer *tokenizer,
                                  const sn_chat_request *request, sn_token_ids *out, sn_err *err) {
    sn_chat_prompt prompt;
    *out = (sn_token_ids){0};
    sn_status status = sn_chat_template_render(chat, request, &prompt, err);
    if (!status) status = sn_tokenizer_encode_marked(tokenizer, prompt.text, prompt.len, prompt.marks, true, out, err);
    sn_chat_prompt_fini(&prompt);
    return status;
}
