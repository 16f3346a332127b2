/* Conversations and answers by a chat template, for a program that judges them (system/templates.py). Each line of the
 * input is {"template", "bos", "eos", "messages", "tools", "variables", "add_generation_prompt"}, and the reply is
 * {"text"}; or {"template", "bos", "eos", "tools", "prompt", "answer"}, and the reply is {"read": message}. {"error":
 * sentence} where either is refused. */
#include "text/chat/answer_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *render(const sn_chat_template *chat, const json_t *in) {
    const sn_chat_request request = {.messages = json_object_get(in, "messages"),
                                     .tools = json_object_get(in, "tools"),
                                     .variables = json_object_get(in, "variables"),
                                     .no_generation_prompt =
                                         !json_is_true(json_object_get(in, "add_generation_prompt"))};
    sn_chat_prompt prompt;
    sn_err err;
    if (sn_chat_template_render(chat, &request, &prompt, &err)) return json_pack("{s:s}", "error", err.text);
    json_t *out = json_pack("{s:s%}", "text", prompt.text, prompt.len);
    sn_chat_prompt_fini(&prompt);
    return out;
}

/* Which bytes belong to special tokens, as most vocabularies write them: "<|" NAME "|>". */
static uint8_t *mark_special(const char *text, size_t len) {
    uint8_t *marks = calloc(len + 1, 1);
    for (const char *at = text, *end; marks && (at = strstr(at, "<|")) && (end = strstr(at, "|>")); at = end)
        memset(marks + (at - text), 1, (size_t)(end + 2 - at));
    return marks;
}

static json_t *read_answer(const sn_chat_template *chat, const json_t *in) {
    const json_t *prompt = json_object_get(in, "prompt"), *text = json_object_get(in, "answer");
    uint8_t *special = mark_special(json_string_value(text), json_string_length(text));
    sn_answer_format *format = NULL;
    json_t *message = NULL;
    sn_err err;
    sn_status status = sn_answer_format_open(chat, &format, &err);
    const sn_answer answer = {.text = json_string_value(text),
                              .special = special,
                              .len = json_string_length(text),
                              .thinks = !status && sn_answer_format_prompt_thinks(format, json_string_value(prompt),
                                                                                  json_string_length(prompt)),
                              .ended = true,
                              .tools = json_object_get(in, "tools")};
    if (!status) status = sn_answer_read(format, &answer, &message, &err);
    sn_answer_format_close(&format);
    free(special);
    return status ? json_pack("{s:s}", "error", err.text) : json_pack("{s:o}", "read", message);
}

static json_t *reply_to(const json_t *in) {
    const json_t *text = json_object_get(in, "template");
    const sn_chat_source source = {.text = json_string_value(text),
                                   .len = json_string_length(text),
                                   .bos = json_string_value(json_object_get(in, "bos")),
                                   .eos = json_string_value(json_object_get(in, "eos"))};
    sn_chat_template *chat = NULL;
    sn_err err;
    if (sn_chat_template_parse(&source, &chat, &err)) return json_pack("{s:s}", "error", err.text);
    json_t *out = json_object_get(in, "answer") ? read_answer(chat, in) : render(chat, in);
    sn_chat_template_close(&chat);
    return out;
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    for (ssize_t n; (n = getline(&line, &room, stdin)) > 0;) {
        json_t *in = json_loadb(line, (size_t)n, 0, NULL), *out = in ? reply_to(in) : NULL;
        char *text = out ? json_dumps(out, JSON_COMPACT) : NULL;
        puts(text ? text : "{\"error\":\"no JSON\"}");
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(in);
    }
    free(line);
    return 0;
}
