/* The conversation is rendered twice: as the prompt, and with an answer that calls the tool with known arguments. What
 * the second has beyond the first is the call. */
#include "gateway/openai/call_form.h"

#include <stdlib.h>
#include <string.h>

#define KNOWN "sn_argument"

/* The request's chat; with_call: with a call of the function as its last message. */
static char *render(const sn_request *request, const sn_served_model *served, const json_t *function, bool with_call,
                    size_t *len) {
    char *text = NULL;
    json_t *chat = json_loadb(request->chat, request->chat_len, 0, NULL);
    json_t *call = json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:O, s:{s:i}}}]}", "role", "assistant", "content", "",
                             "tool_calls", "id", "call00000", "type", "function", "function", "name",
                             json_object_get(function, "name"), "arguments", KNOWN, 1);
    if (with_call) {
        json_array_append(json_object_get(chat, "messages"), call);
        json_object_set_new(chat, "add_generation_prompt", json_false());
    }
    char *json = chat ? json_dumps(chat, JSON_COMPACT) : NULL;
    if (!json || swarm_model_render_chat(sn_served_model_get(served), json, strlen(json), &text, len, NULL, NULL, NULL))
        text = NULL;
    json_decref(call);
    json_decref(chat);
    free(json);
    return text;
}

static bool tokenize(const sn_served_model *served, const char *text, size_t len, int32_t **ids, size_t *n) {
    int32_t *own = NULL;
    size_t count = 0;
    if (swarm_model_tokenize(sn_served_model_get(served), text, len, SWARM_TEXT_SPECIAL, &own, &count, NULL))
        return false;
    *n = 0;
    while (*n < count && !sn_served_model_ends(served, own[*n])) ++*n; /* what ends the turn is not part of the call */
    *ids = own;
    return true;
}

bool sn_call_form_init(sn_call_form *form, const sn_request *request, const sn_served_model *served,
                       const json_t *function, sn_openai_error *error) {
    size_t n_prompt = 0, n_call = 0;
    *form = (sn_call_form){0};
    char *prompt = render(request, served, function, false, &n_prompt);
    char *call = render(request, served, function, true, &n_call);
    const char *begin = NULL, *end = NULL;
    if (prompt && call && n_call > n_prompt && !memcmp(prompt, call, n_prompt))
        begin = strstr(call + n_prompt, "{\"" KNOWN "\"");
    if (begin) end = strchr(begin, '}');
    bool ok =
        end && tokenize(served, call + n_prompt, (size_t)(begin - call) - n_prompt, &form->before, &form->n_before) &&
        tokenize(served, end + 1, (size_t)(call + n_call - end - 1), &form->after, &form->n_after) && form->n_before;
    swarm_free(prompt);
    swarm_free(call);
    if (ok) return true;
    sn_call_form_fini(form);
    return sn_openai_fail(error, 400, "unsupported_parameter", "tool_choice",
                          "with this model's chat template a call cannot be forced: set 'tool_choice' to \"auto\"");
}

void sn_call_form_fini(sn_call_form *form) {
    swarm_free(form->before);
    swarm_free(form->after);
    *form = (sn_call_form){0};
}
