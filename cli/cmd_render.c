/* swarm render: the prompt that a chat template makes of a conversation. */
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "model/chat/chat_template.h"

#include <stdio.h>
#include <string.h>

enum { JSON_FILE_MAX = 64 << 20 };

static struct {
    const char *model, *template, *messages, *tools;
    sn_strings set;
    bool no_generation_prompt;
} given;

static const sn_option render_options[] = {
    SN_OPT_STRING("model", "PATH", &given.model,
                  "a model, whose chat template is used: a GGUF file, or a folder with tokenizer.json"),
    SN_OPT_STRING("template", "FILE", &given.template, "a file with a chat template, instead of the model's"),
    SN_OPT_REQUIRED("messages", "FILE", &given.messages,
                    "a JSON file with the messages, [{\"role\": ..., \"content\": ...}]; -: standard input"),
    SN_OPT_STRING("tools", "FILE", &given.tools, "a JSON file with the tools, as a list"),
    SN_OPT_FLAG("no-generation-prompt", &given.no_generation_prompt,
                "end behind the last message, without the opening of an answer"),
    SN_OPT_STRINGS("set", "NAME=JSON", &given.set,
                   "a variable of the template, such as enable_thinking=false; repeatable"),
    SN_OPT_FLAG(
        "json", &sn_cli_output.json,
        "print {\"prompt\", \"data\", \"ids\"}: data lists the parts [begin, end) of the prompt, in bytes, that "
        "come from the messages and never become special tokens; ids are there with --model"),
};
static const sn_option_group render_group = SN_OPTION_GROUP("Prompt:", render_options);

static sn_status read_json(const char *path, const char *what, json_t **out, sn_err *err) {
    sn_buf file = {0};
    json_error_t why = {0};
    sn_status status = sn_read_input(path, JSON_FILE_MAX, &file, err);
    if (status) return status;
    *out = json_loadb((const char *)file.data, file.len, 0, &why);
    sn_buf_fini(&file);
    if (!*out) return sn_fail(err, SN_REFUSED, "%s: %s at line %d: %s", path, why.text, why.line, what);
    if (json_is_array(*out)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%s: %s", path, what);
}

/* NAME=JSON */
static sn_status set_variable(json_t *variables, const char *text, sn_err *err) {
    const char *equals = strchr(text, '=');
    size_t n = equals ? (size_t)(equals - text) : 0;
    char name[64];
    if (!n || n >= sizeof name)
        return sn_fail(err, SN_REFUSED, "--set %.60s: write NAME=JSON, for example enable_thinking=false", text);
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    json_t *value = json_loads(equals + 1, JSON_DECODE_ANY, NULL);
    if (!value)
        return sn_fail(err, SN_REFUSED,
                       "--set %.60s: the value is not JSON; a text needs double quotes, as in NAME='\"text\"'", text);
    if (json_object_set_new(variables, name, value))
        return sn_fail(err, SN_REFUSED, "--set %.60s: the name is not UTF-8", text);
    return SN_OK;
}

/* The template of --template, with the texts of the model's bos and eos tokens if there is a model; or the model's. */
static sn_status open_template(const sn_tokenizer *tokenizer, sn_chat_template **out, sn_err *err) {
    if (!given.template) return sn_chat_template_open(tokenizer, out, err);
    sn_buf file = {0};
    sn_chat_source source = tokenizer ? sn_tokenizer_chat_source(tokenizer) : (sn_chat_source){.bos = "", .eos = ""};
    sn_status status = sn_read_input(given.template, SN_CHAT_TEMPLATE_MAX, &file, err);
    source = (sn_chat_source){.text = (const char *)file.data, .len = file.len, .bos = source.bos, .eos = source.eos};
    if (!status && !file.len) status = sn_fail(err, SN_REFUSED, "%s is empty", given.template);
    if (!status) {
        status = sn_chat_template_parse(&source, out, err);
        if (status) sn_err_context(err, "%s", given.template);
    }
    sn_buf_fini(&file);
    return status;
}

static json_t *data_json(const sn_chat_prompt *prompt) {
    json_t *parts = json_array();
    for (size_t at = 0, begin; at < prompt->len; at++) {
        if (!(prompt->marks[at] & 1)) continue;
        for (begin = at; at < prompt->len && prompt->marks[at] & 1;) at++;
        json_array_append_new(parts, json_pack("[I, I]", (json_int_t)begin, (json_int_t)at));
    }
    return parts;
}

static sn_status print_json(const sn_tokenizer *tokenizer, const sn_chat_prompt *prompt, sn_err *err) {
    sn_token_ids ids = {0};
    json_t *o = json_object();
    json_object_set_new(o, "prompt", json_stringn(prompt->text, prompt->len));
    json_object_set_new(o, "data", data_json(prompt));
    sn_status status =
        tokenizer ? sn_tokenizer_encode_marked(tokenizer, prompt->text, prompt->len, prompt->marks, true, &ids, err)
                  : SN_OK;
    if (tokenizer && !status) json_object_set_new(o, "ids", sn_json_ids(ids.ids, ids.n));
    sn_token_ids_fini(&ids);
    if (!status) return sn_print_json(o, err);
    json_decref(o);
    return status;
}

static sn_status render_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_tokenizer *tokenizer = NULL;
    sn_chat_template *chat = NULL;
    sn_chat_prompt prompt = {0};
    json_t *messages = NULL, *tools = NULL, *variables = json_object();
    if (!given.model && !given.template) {
        json_decref(variables);
        return sn_fail(err, SN_REFUSED, "give --template FILE or --model PATH");
    }
    sn_status status = given.model ? sn_tokenizer_open(given.model, &tokenizer, err) : SN_OK;
    if (!status) status = open_template(tokenizer, &chat, err);
    if (!status)
        status = read_json(given.messages, "--messages needs a list of {\"role\", \"content\"}", &messages, err);
    if (!status && given.tools) status = read_json(given.tools, "--tools needs a list", &tools, err);
    for (size_t i = 0; i < given.set.n && !status; i++) status = set_variable(variables, given.set.items[i], err);
    const sn_chat_request request = {messages, tools, variables, given.no_generation_prompt};
    if (!status) status = sn_chat_template_render(chat, &request, &prompt, err);
    if (!status && sn_cli_output.json)
        status = print_json(tokenizer, &prompt, err);
    else if (!status)
        fwrite(prompt.text, 1, prompt.len, stdout);
    sn_chat_prompt_fini(&prompt);
    json_decref(messages);
    json_decref(tools);
    json_decref(variables);
    sn_chat_template_close(&chat);
    sn_tokenizer_close(&tokenizer);
    return status;
}

static const sn_option_group *const groups[] = {&render_group, &sn_group_log};

const sn_cli_command sn_cmd_render = {
    .command = {.program = "swarm render",
                .summary = "print the prompt that a chat template makes of messages",
                .synopsis = "(--template FILE | --model PATH) --messages FILE [--tools FILE] [options]",
                .about = "Prints the prompt that a model's chat template, or a template in a file, makes of a "
                         "conversation. The template is Jinja, run as transformers runs it. Only the tokenizer of the "
                         "model is read.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = render_main,
};
