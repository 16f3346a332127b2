/* swarm render: the prompt that a chat template makes of a conversation, by the C API. */
#include "cli/program.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
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

/* The model of --model, with the template of --template; or this template alone. */
static sn_status open_model(swarm_model **out, sn_err *err) {
    swarm_error *error = NULL;
    const char *path = given.template && !strcmp(given.template, "-") ? "/dev/stdin" : given.template;
    swarm_options *options = swarm_options_new();
    if (!options) return sn_fail(err, SN_STOP, "out of memory for the options");
    swarm_code code = swarm_options_set(options, "parts", "tokenizer", &error);
    if (!code && path) code = swarm_options_set(options, "template", path, &error);
    if (!code) code = swarm_model_open(given.model, options, out, &error);
    swarm_options_free(options);
    return sn_cli_status(code, &error, err);
}

/* The conversation as the API takes it. */
static sn_status make_request(json_t **out, sn_err *err) {
    json_t *messages = NULL, *tools = NULL, *variables = json_object();
    sn_status status = read_json(given.messages, "--messages needs a list of {\"role\", \"content\"}", &messages, err);
    if (!status && given.tools) status = read_json(given.tools, "--tools needs a list", &tools, err);
    for (size_t i = 0; i < given.set.n && !status; i++) status = set_variable(variables, given.set.items[i], err);
    if (!status)
        *out = json_pack("{s:O, s:O*, s:O, s:b}", "messages", messages, "tools", tools, "variables", variables,
                         "add_generation_prompt", !given.no_generation_prompt);
    json_decref(messages);
    json_decref(tools);
    json_decref(variables);
    return status || *out ? status : sn_fail(err, SN_STOP, "out of memory for the conversation");
}

static sn_status render(const swarm_model *model, const json_t *request, sn_err *err) {
    char *json = NULL, *text = json_dumps(request, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_t *o = NULL;
    swarm_error *error = NULL;
    sn_status status = text ? SN_OK : sn_fail(err, SN_STOP, "out of memory for the conversation");
    if (!status)
        status = sn_cli_status(swarm_model_render_parts(model, text, strlen(text), &json, NULL, &error), &error, err);
    free(text);
    if (!status) status = sn_cli_json(json, &o, err);
    if (status) return status;
    if (sn_cli_output.json) return sn_print_json(o, err);
    const json_t *prompt = json_object_get(o, "prompt");
    fwrite(json_string_value(prompt), 1, json_string_length(prompt), stdout);
    json_decref(o);
    return SN_OK;
}

static sn_status render_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    swarm_model *model = NULL;
    json_t *request = NULL;
    if (!given.model && !given.template) return sn_fail(err, SN_REFUSED, "give --template FILE or --model PATH");
    sn_status status = open_model(&model, err);
    if (!status) status = make_request(&request, err);
    if (!status) status = render(model, request, err);
    json_decref(request);
    swarm_model_close(model);
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
