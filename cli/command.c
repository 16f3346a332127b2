/* Running a command: options, help, log, errors, exit codes. */
#include "cli/command.h"

#include "cli/fetch_model.h"

#include "base/file.h"
#include "base/log.h"
#include "base/version.h"
#include "cli/io.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const sn_exit_code sn_exit_codes[] = {
    {SN_EXIT_OK, "done"},
    {SN_EXIT_NETWORK, "the swarm or the network failed, trying again may help"},
    {SN_EXIT_USAGE, "wrong usage or bad input"},
    {SN_EXIT_RESOURCES, "out of memory, a device failed, or a disk is full"},
    {SN_EXIT_INTERRUPTED, "interrupted"},
    {SN_EXIT_CLOSED, "what read the output has closed it"},
    {0, NULL},
};

#define COMMANDS(X)                                                                                                    \
    X(generate)                                                                                                        \
    X(chat)                                                                                                            \
    X(serve)                                                                                                           \
    X(forward)                                                                                                         \
    X(eval) X(bench) X(tune) X(tokenize) X(render) X(inspect) X(route) X(status) X(verify) X(keygen) X(hash) X(models)
#define COMMAND(name)       &sn_cmd_##name,
#define COMMAND_TABLE(name) &sn_cmd_##name.command,
static const sn_cli_command *const commands[] = {COMMANDS(COMMAND)};
static const sn_command *const command_tables[] = {COMMANDS(COMMAND_TABLE)};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

const sn_program sn_swarm_program = {
    .name = "swarm",
    .summary = "run a language model over the nodes of a swarm",
    .about = "Runs a language model whose transformer blocks are divided among the nodes of a swarm, computed in this "
             "process, or both.",
    .commands = command_tables,
    .n_commands = N_COMMANDS,
    .exit_codes = sn_exit_codes,
};

const sn_cli_command *sn_cmd_find(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (!strcmp(name, commands[i]->command.program + strlen("swarm "))) return commands[i];
    return NULL;
}

static void print_help(const sn_command *command, const sn_options *options) {
    if (options->version)
        sn_version_print("swarm", options->version_json, stdout);
    else if (options->help == SN_HELP_MAN)
        sn_options_man(command, sn_swarm_program.name, stdout);
    else if (options->help == SN_HELP_COMPLETION)
        sn_program_completion(&sn_swarm_program, stdout);
    else
        sn_options_help(command, stdout);
}

int sn_print_failure(const char *program, sn_status status, const sn_err *err) {
    static const int codes[] = {[SN_OK] = SN_EXIT_OK,
                                [SN_RETRY] = SN_EXIT_NETWORK,
                                [SN_REBUILD] = SN_EXIT_NETWORK,
                                [SN_REFUSED] = SN_EXIT_USAGE,
                                [SN_STOP] = SN_EXIT_RESOURCES};
    if (sn_interrupted) return SN_EXIT_INTERRUPTED; /* the interrupt is the cause of the failure */
    if (sn_stdout_closed) return SN_EXIT_CLOSED;
    size_t len = strlen(err->text);
    bool ended = len && strchr(".?!", err->text[len - 1]);
    fprintf(stderr, "%s: %s%s\n", program, err->text, ended ? "" : ".");
    return codes[status];
}

/* $XDG_CONFIG_HOME/swarm/config, or ~/.config/swarm/config; NULL when neither variable is set. */
static const char *user_config(char *out, size_t capacity) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    bool own = config && *config == '/'; /* the XDG specification ignores other values */
    if (!own && (!home || !*home)) return NULL;
    int len = own ? snprintf(out, capacity, "%s/swarm/config", config)
                  : snprintf(out, capacity, "%s/.config/swarm/config", home);
    return len < (int)capacity ? out : NULL;
}

/* --save of every command that has it: before the session that it is to hold begins. A file that was loaded may be
 * replaced. */
static sn_status check_save(sn_err *err) {
    const sn_session_settings *o = &sn_program_settings.session;
    if (!o->save || (o->load && !strcmp(o->save, o->load))) return SN_OK;
    return sn_check_output("--save", o->save, err);
}

int sn_cmd_run(const sn_cli_command *c, int argc, char *const *argv) {
    sn_err err = {0};
    sn_options options;
    int code = SN_EXIT_OK;
    char path[SN_PATH_SIZE];
    if (c->prepare) c->prepare(argc, argv);
    sn_status status = sn_options_parse_command(&sn_swarm_program, user_config(path, sizeof path), &c->command, argc,
                                                argv, &options, &err);
    if (!status && (options.help || options.version)) {
        print_help(&c->command, &options);
    } else if (!status) {
        sn_log_setup((sn_log_level)sn_cli_output.log_level, sn_cli_output.json_log);
        status = sn_cli_find_folders(&sn_program_settings, &err);
        if (!status) status = check_save(&err);
        if (!status) status = sn_cli_fetch_model(c->command.program, &err);
        if (!status) status = c->run(&options, &code, &err);
    }
    if (!status) status = sn_flush_stdout(&err);
    if (status) code = sn_print_failure(c->command.program, status, &err);
    sn_options_fini(&c->command, &options);
    return code;
}
