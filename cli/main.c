/* The program `swarm`: finds the command in the first argument and runs it with the rest. */
#include "base/core_dump.h"
#include "base/program_environment.h"
#include "base/terminal.h"
#include "base/version.h"
#include "cli/command.h"
#include "cli/io.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail_unknown_command(const char *word) {
    const char *names[64];
    size_t n = sn_swarm_program.n_commands;
    for (size_t i = 0; i < n; i++) names[i] = sn_swarm_program.commands[i]->program + strlen("swarm ");
    const char *nearest = sn_nearest_name(word, names, n);
    if (nearest)
        fprintf(stderr, "swarm: there is no command '%s'; did you mean %s?\n", word, nearest);
    else
        fprintf(stderr, "swarm: there is no command '%s'; 'swarm --help' lists them all.\n", word);
    return SN_EXIT_USAGE;
}

/* What to do first, for a user who types the name alone. */
static void print_first_steps(void) {
    fputs("swarm runs a language model over the nodes of a swarm. What to do first:\n\n"
          "  get a model: a GGUF file, or a folder with safetensors\n"
          "  swarm chat -m MODEL --local all        chat with it, without any other machine\n"
          "  swarm-node -m MODEL --blocks all       serve its blocks; prints HOST:PORT\n"
          "  swarm status -j HOST:PORT              see the nodes and their blocks\n"
          "  swarm chat -m MODEL -j HOST:PORT       chat over the swarm\n\n"
          "Options that you give each time may stand in ~/.config/swarm/config,\n"
          "as lines 'join = HOST:PORT'. 'swarm --help' lists all commands.\n",
          stdout);
}

static int end_of_output(void) {
    sn_err err = {0};
    sn_status status = sn_flush_stdout(&err);
    return status ? sn_print_failure(sn_swarm_program.name, status, &err) : SN_EXIT_OK;
}

static bool is_any_of(const char *word, const char *a, const char *b) { return !strcmp(word, a) || !strcmp(word, b); }

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    sn_terminal_guard();
    sn_environment_use(getenv);
    sn_core_dump_forbid();
    if (argc < 2 && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) {
        print_first_steps();
        return end_of_output();
    }
    if (argc < 2) {
        fputs("swarm: a command is missing; 'swarm --help' lists them all.\n", stderr);
        return SN_EXIT_USAGE;
    }
    const char *word = argv[1];
    bool help = !strcmp(word, "help");
    if (is_any_of(word, "--help", "-h") || (help && argc == 2)) {
        sn_program_help(&sn_swarm_program, stdout);
    } else if (!strcmp(word, "--help=man")) {
        sn_program_man(&sn_swarm_program, stdout);
    } else if (!strcmp(word, "--help=completion")) {
        sn_program_completion(&sn_swarm_program, stdout);
    } else if (!strcmp(word, "--version")) {
        sn_version_print("swarm", argc > 2 && !strcmp(argv[2], "--json"), stdout);
    } else {
        if (help) word = argv[2];
        const sn_cli_command *command = sn_cmd_find(word);
        if (!command) return fail_unknown_command(word);
        char show_help[] = "--help", *help_argv[] = {argv[0], show_help};
        return help ? sn_cmd_run(command, 2, help_argv) : sn_cmd_run(command, argc - 1, argv + 1);
    }
    return end_of_output();
}
