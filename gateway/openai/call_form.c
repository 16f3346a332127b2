/* A short conversation is rendered as a prompt, and with an answer that calls the tool with known arguments, once and
 * twice. What the answers have beyond the prompt are the calls. */
#include "gateway/openai/call_form.h"

#include <stdlib.h>
#include <string.h>

#define KNOWN "sn_argument"

/* The conversation, with n_calls of the function in its last message; *text is NULL where the template refuses it.
 * Freed with swarm_free. */
static void render(const sn_served_model *served, const json_t *variables, const json_t *function, int n_calls,
                   char **text) {
    swarm_error *error = NULL;
    json_t *name = json_object_get(function, "name"), *calls = json_array();
    for (int i = 0; i < n_calls; i++)
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:O, s:{s:i}}}", "id", i ? "call00001" : "call00000",
                                               "type", "function", "function", "name", name, "arguments", KNOWN, 1));
    json_t *chat =
        json_pack("{s:[{s:s, s:s}], s:[{s:s, s:{s:O, s:s, s:O}}], s:O*, s:b}", "messages", "role", "user", "content",
                  "hello", "tools", "type", "function", "function", "name", name, "description", "", "parameters",
                  json_object_get(function, "parameters"), "variables", variables, "add_generation_prompt", !n_calls);
    if (n_calls)
        json_array_append_new(json_object_get(chat, "messages"),
                              json_pack("{s:s, s:s, s:O}", "role", "assistant", "content", "", "tool_calls", calls));
    char *json = chat ? json_dumps(chat, JSON_COMPACT) : NULL;
    *text = NULL;
    if (json)
        (void)swarm_model_render_chat(sn_served_model_get(served), json, strlen(json), text, NULL, NULL, NULL, &error);
    swarm_error_free(error);
    json_decref(calls);
    json_decref(chat);
    free(json);
}

/* Behind what the answer shares with the prompt, but not within a tag, which the prompt may have opened for a thought;
 * and behind the thought. */
static const char *skip_prompt(const char *prompt, const char *answer, const char *thought_end) {
    size_t n = 0;
    while (prompt[n] && prompt[n] == answer[n]) n++;
    for (size_t back = 1; prompt[n] && back <= 24 && back <= n; back++)
        if (answer[n - back] == '<' || answer[n - back] == '[') {
            n -= back;
            break;
        }
    const char *at = answer + n, *arguments = strstr(at, "{\"" KNOWN "\"");
    for (const char *end; thought_end && (end = strstr(at, thought_end)) && end < arguments;)
        at = end + strlen(thought_end);
    return at;
}

/* Ends the text where the turn ends, which is not part of the call. */
static bool cut_turn(const sn_served_model *served, char *text) {
    int32_t *ids = NULL;
    size_t n = 0, at = 0;
    bool found = true;
    if (swarm_model_tokenize(sn_served_model_get(served), text, strlen(text), SWARM_TEXT_SPECIAL, &ids, &n, NULL))
        return false;
    while (at < n && !sn_served_model_ends(served, ids[at])) at++;
    if (at < n) {
        char *ending = NULL;
        found = !swarm_model_token_bytes(sn_served_model_get(served), ids[at], SWARM_TEXT_SPECIAL, &ending, NULL, NULL);
        char *end = found ? strstr(text, ending) : NULL;
        if (end) *end = 0;
        swarm_free(ending);
    }
    swarm_free(ids);
    return found;
}

/* What stands before the arguments, and *end: behind them; NULL: there are none. */
static char *take_until_arguments(const char *from, const char **end) {
    const char *at = strstr(from, "{\"" KNOWN "\""), *close = at ? strchr(at, '}') : NULL;
    *end = close ? close + 1 : NULL;
    return close ? strndup(from, (size_t)(at - from)) : NULL;
}

bool sn_call_form_init(sn_call_form *form, const json_t *variables, const sn_served_model *served,
                       const json_t *function) {
    const char *thought_end = sn_served_model_marks(served)->thought_end, *end = NULL;
    char *prompt, *one, *two;
    render(served, variables, function, 0, &prompt);
    render(served, variables, function, 1, &one);
    render(served, variables, function, 2, &two);
    *form = (sn_call_form){0};
    if (prompt && one) form->before = take_until_arguments(skip_prompt(prompt, one, thought_end), &end);
    if (end) form->after = strdup(end);
    if (two) free(take_until_arguments(two, &end));
    if (two && end) form->again = take_until_arguments(end, &end);
    swarm_free(prompt);
    swarm_free(one);
    swarm_free(two);
    if (form->before && *form->before && form->after && cut_turn(served, form->after)) return true;
    sn_call_form_fini(form);
    return false;
}

void sn_call_form_fini(sn_call_form *form) {
    free(form->before);
    free(form->again);
    free(form->after);
    *form = (sn_call_form){0};
}
