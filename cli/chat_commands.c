/* Commands of a chat: a table of names, arguments, help and functions, which /help, completion and suggestions read. */
#include "base/file.h"
#include "cli/program.h"
#include "cli/chat.h"
#include "cli/chat_conversation.h"
#include "client/api/settings.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct chat_command {
    const char *name, *argument,
        *help; /* argument: what follows the name; "": nothing may; in brackets: it may be left out */
    sn_status (*run)(sn_chat *chat, const char *argument, sn_err *err);
} chat_command;

/* -- turns -- */

static sn_status run_reset(sn_chat *c, const char *argument, sn_err *err) {
    (void)argument, (void)err;
    sn_conversation_reset(c->messages);
    fprintf(stderr, "[a new conversation%s]\n", json_array_size(c->messages) ? "; the system message stays" : "");
    return SN_OK;
}

static sn_status run_system(sn_chat *c, const char *argument, sn_err *err) {
    const char *now = sn_conversation_system(c->messages);
    if (!*argument) {
        printf("%s\n", now ? now : "There is no system message.");
        return SN_OK;
    }
    bool none = !strcmp(argument, "none");
    sn_status status = sn_conversation_set_system(c->messages, none ? NULL : argument, err);
    if (!status) fputs(none ? "[the system message is gone]\n" : "[the system message is set]\n", stderr);
    return status;
}

static sn_status run_undo(sn_chat *c, const char *argument, sn_err *err) {
    size_t turn = sn_conversation_last_turn(c->messages);
    (void)argument;
    if (turn == json_array_size(c->messages)) return sn_fail(err, SN_REFUSED, "there is no turn to undo");
    const char *text = json_string_value(json_object_get(json_array_get(c->messages, turn), "content"));
    int shown = (int)strcspn(text, "\n");
    bool cut = shown > 60 || text[shown];
    while (shown > 60 || (shown && (text[shown] & 0xc0) == 0x80)) shown--;
    fprintf(stderr, "[removed: %.*s%s]\n", shown, text, cut ? "..." : "");
    sn_conversation_cut(c->messages, turn);
    return SN_OK;
}

static sn_status run_retry(sn_chat *c, const char *argument, sn_err *err) {
    size_t turn = sn_conversation_last_turn(c->messages), n = json_array_size(c->messages);
    (void)argument;
    if (turn == n) return sn_fail(err, SN_REFUSED, "there is no turn to answer again");
    json_t *answers = json_array(); /* the present ones come back if there is no other */
    for (size_t i = turn + 1; i < n; i++) json_array_append(answers, json_array_get(c->messages, i));
    sn_conversation_cut(c->messages, turn + 1);
    sn_status status = sn_chat_answer(c, turn + 1, err);
    if (json_array_size(c->messages) == turn + 1) json_array_extend(c->messages, answers);
    json_decref(answers);
    return status;
}

/* -- files -- */

static sn_status run_save(sn_chat *c, const char *argument, sn_err *err) {
    bool own = c->file && !strcmp(c->file, argument);
    sn_status status = sn_conversation_save(c->messages, argument, own, err);
    if (status) return status;
    if (!own) {
        free(c->file);
        c->file = strdup(argument);
    }
    fprintf(stderr, "[%zu turns are in %s]\n", sn_conversation_turns(c->messages), argument);
    return SN_OK;
}

static sn_status run_load(sn_chat *c, const char *argument, sn_err *err) {
    json_t *messages;
    sn_status status = sn_conversation_load(argument, &messages, err);
    if (status) return status;
    json_decref(c->messages);
    c->messages = messages;
    free(c->file);
    c->file = strdup(argument);
    fprintf(stderr, "[%zu turns of %s]\n", sn_conversation_turns(messages), argument);
    return SN_OK;
}

/* -- settings and figures -- */

static const char *const settable[] = {"temperature",    "top-p",      "top-k", "min-p",
                                       "repeat-penalty", "max-tokens", "seed"};
enum { N_SETTABLE = sizeof settable / sizeof *settable };

/* The options of the command line that may be set. */
static const sn_option_group *settable_group(void) {
    static sn_option options[N_SETTABLE];
    static sn_option_group group = {.title = "Sampling:", .options = options};
    for (size_t i = 0; i < N_SETTABLE && group.n < N_SETTABLE; i++)
        for (size_t k = 0; k < sn_group_sampling.n; k++)
            if (!strcmp(sn_group_sampling.options[k].name, settable[i]))
                options[group.n++] = sn_group_sampling.options[k];
    return &group;
}

static void print_settings(void) {
    const sn_option_group *group = settable_group();
    char text[64];
    for (size_t i = 0; i < group->n; i++) {
        const char *value = sn_option_value(&group->options[i], 0, text, sizeof text);
        if (value && (group->options[i].kind == SN_OPTION_FLOAT || group->options[i].kind == SN_OPTION_RATIO))
            snprintf(text, sizeof text, "%g", *(double *)group->options[i].target);
        printf("%-15s %s\n", group->options[i].name, value ? value : "random");
    }
}

static sn_status run_set(sn_chat *c, const char *argument, sn_err *err) {
    char name[32], line[256];
    size_t n = strcspn(argument, " =\t"), value = n + strspn(argument + n, " =\t");
    (void)c;
    snprintf(name, sizeof name, "%.*s", (int)sn_min_size(n, sizeof name - 1), argument);
    for (char *at = name; *at; at++)
        if (*at == '_') *at = '-'; /* as other programs spell them */
    bool known = false;
    for (size_t i = 0; i < N_SETTABLE; i++) known |= !strcmp(settable[i], name);
    if (*name && !known) {
        const char *nearest = sn_nearest_name(name, settable, N_SETTABLE);
        return nearest ? sn_fail(err, SN_REFUSED, "there is no setting '%s'; did you mean %s?", name, nearest)
                       : sn_fail(err, SN_REFUSED, "there is no setting '%s'; /set lists them", name);
    }
    if (!*name || !argument[value]) {
        print_settings();
        return SN_OK;
    }
    const sn_option_group *const groups[] = {settable_group()};
    const sn_command command = {.program = "/set", .groups = groups, .n_groups = 1};
    sn_options parsed;
    snprintf(line, sizeof line, "%s = %.200s\n", name, argument + value);
    sn_status status = sn_options_parse_file(&command, line, strlen(line), "/set", &parsed, err);
    sn_options_fini(&command, &parsed);
    const char *told = status ? strstr(err->text, ": ") : NULL; /* behind "/set:1: ", which is no file */
    if (told) memmove(err->text, told + 2, strlen(told + 2) + 1);
    return status;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "?";
}

static sn_status run_model(sn_chat *c, const char *argument, sn_err *err) {
    (void)argument, (void)err;
    printf("name     %s\nfamily   %s\nblocks   %d, width %d\ncontext  %zu of %d tokens\nfile     %s\n",
           text_of(c->description, "name"), text_of(c->description, "family"), swarm_model_blocks(c->swarm.model),
           swarm_model_width(c->swarm.model), c->context, swarm_model_context(c->swarm.model), c->path);
    return SN_OK;
}

static sn_status run_stats(sn_chat *c, const char *argument, sn_err *err) {
    const sn_chat_figures *f = &c->last;
    size_t used, n;
    char *text;
    swarm_error *error = NULL;
    (void)argument;
    swarm_session_tokens(c->swarm.session, &used);
    printf("conversation  %zu turns, %zu of %zu tokens of the context\n", sn_conversation_turns(c->messages), used,
           c->context);
    if (f->answer_tokens)
        printf("last answer   %zu tokens, %.1f tok/s; first token after %.1f s; prompt %zu tokens, %zu of them known\n",
               f->answer_tokens, sn_chat_tokens_per_second(f), (double)f->first_token_us / 1e6, f->prompt_tokens,
               f->reused_tokens);
    sn_status status = sn_cli_status(swarm_session_describe(c->swarm.session, &text, &n, &error), &error, err);
    if (status) return status;
    json_t *session = json_loadb(text, n, 0, NULL), *hops = json_object_get(session, "hops");
    swarm_free(text);
    for (size_t i = 0; i < json_array_size(hops); i++) {
        const json_t *hop = json_array_get(hops, i);
        printf("blocks %-6s %s: a step %.1f ms compute, %.1f ms queue, %.1f ms network\n", text_of(hop, "blocks"),
               text_of(hop, "node"), json_number_value(json_object_get(hop, "compute_ms_per_step")),
               json_number_value(json_object_get(hop, "queue_ms_per_step")),
               json_number_value(json_object_get(hop, "network_ms_per_step")));
    }
    json_int_t failovers = json_integer_value(json_object_get(session, "failovers"));
    if (failovers) printf("failovers     %lld\n", (long long)failovers);
    json_decref(session);
    return SN_OK;
}

static sn_status run_quit(sn_chat *c, const char *argument, sn_err *err) {
    (void)argument, (void)err;
    c->quit = true;
    return SN_OK;
}

static sn_status run_help(sn_chat *chat, const char *argument, sn_err *err);

static const chat_command commands[] = {
    {"/help", "", "show this text", run_help},
    {"/reset", "", "begin a new conversation; the system message stays", run_reset},
    {"/system", "[TEXT]", "set the system message; none removes it; without TEXT: show it", run_system},
    {"/set", "[NAME VALUE]", "set temperature, top-p, top-k, min-p, repeat-penalty, max-tokens or seed", run_set},
    {"/save", "FILE", "write the conversation to a file", run_save},
    {"/load", "FILE", "continue the conversation of a file", run_load},
    {"/retry", "", "answer the last message again", run_retry},
    {"/undo", "", "remove the last message and its answer", run_undo},
    {"/model", "", "show what the model is", run_model},
    {"/stats", "", "show figures of the last answer and of the session", run_stats},
    {"/quit", "", "end the chat, as Ctrl-D and /exit do", run_quit},
    {"/exit", "", NULL, run_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static sn_status run_help(sn_chat *c, const char *argument, sn_err *err) {
    (void)argument, (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (commands[i].help) printf("%-8s %-13s %s\n", commands[i].name, commands[i].argument, commands[i].help);
    if (c->terminal)
        puts("\nAlt-Enter begins a new line of a message; so does Enter between two \"\"\".\n"
             "Ctrl-C stops an answer and drops a line; twice at an empty line it ends the\n"
             "chat. Up and Ctrl-R find earlier lines, Tab completes.");
    return SN_OK;
}

/* -- finding a command -- */

static const chat_command *find_command(const char *word) {
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i].name, word)) return &commands[i];
    return NULL;
}

sn_status sn_chat_run_command(sn_chat *c, const char *line, sn_err *err) {
    const char *names[N_COMMANDS];
    char word[32];
    size_t n = strcspn(line, " \t\n");
    snprintf(word, sizeof word, "%.*s", (int)sn_min_size(n, sizeof word - 1), line);
    const chat_command *command = find_command(word);
    if (!command) {
        for (size_t i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
        const char *nearest = sn_nearest_name(word, names, N_COMMANDS);
        return nearest ? sn_fail(err, SN_REFUSED, "there is no command %s; did you mean %s?", word, nearest)
                       : sn_fail(err, SN_REFUSED, "there is no command %s; /help lists them", word);
    }
    char *argument = strdup(line + n + strspn(line + n, " \t\n"));
    if (!argument) return sn_fail(err, SN_STOP, "out of memory for a command");
    for (size_t end = strlen(argument); end && strchr(" \t\n", argument[end - 1]);) argument[--end] = 0;
    sn_status status;
    if (*argument && !*command->argument)
        status = sn_fail(err, SN_REFUSED, "%s takes no argument", command->name);
    else if (!*argument && *command->argument && *command->argument != '[')
        status =
            sn_fail(err, SN_REFUSED, "%s needs an argument: %s %s", command->name, command->name, command->argument);
    else
        status = command->run(c, argument, err);
    free(argument);
    return status;
}

/* -- completion -- */

/* Adds the files whose path begins as the text after `before` does. */
static void complete_path(const char *text, const char *before, sn_completions *out) {
    const char *path = text + strlen(before), *slash = strrchr(path, '/');
    char folder[SN_PATH_SIZE] = ".", prefix[SN_PATH_SIZE + 32], name[300];
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof folder) return;
    if (n) snprintf(folder, sizeof folder, "%.*s", (int)n, path);
    snprintf(prefix, sizeof prefix, "%s%.*s", before, (int)n, path);
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        if (*entry->d_name == '.' && path[n] != '.') continue;
        snprintf(name, sizeof name, "%s%s", entry->d_name, entry->d_type == DT_DIR ? "/" : "");
        sn_completions_add(out, text, prefix, name);
    }
    if (dir) closedir(dir);
}

void sn_chat_complete(void *chat, const char *text, sn_completions *out) {
    (void)chat;
    char word[64];
    for (size_t i = 0; i < N_COMMANDS && *text == '/'; i++) {
        const chat_command *command = &commands[i];
        snprintf(word, sizeof word, "%s%s", command->name, *command->argument ? " " : "");
        if (command->help) sn_completions_add(out, text, "", word);
    }
    if (!strncmp(text, "/save ", 6) || !strncmp(text, "/load ", 6)) {
        snprintf(word, sizeof word, "%.6s", text);
        complete_path(text, word, out);
    }
    for (size_t i = 0; i < N_SETTABLE && !strncmp(text, "/set ", 5); i++) {
        snprintf(word, sizeof word, "%s ", settable[i]);
        sn_completions_add(out, text, "/set ", word);
    }
}
