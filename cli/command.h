/* The commands of the program `swarm`: a command is a table of options and a function, and sn_cmd_run runs one from
 * argv to the exit code. main.c finds the command of a command line. Everything runs on the main thread. */
#ifndef SN_CLI_COMMAND_H
#define SN_CLI_COMMAND_H

#include "base/options.h"

/* Exit codes, of both programs. CLOSED: as that of a program that SIGPIPE ends. */
enum {
    SN_EXIT_OK = 0,
    SN_EXIT_NETWORK = 1,
    SN_EXIT_USAGE = 2,
    SN_EXIT_RESOURCES = 3,
    SN_EXIT_INTERRUPTED = 130,
    SN_EXIT_CLOSED = 141
};
extern const sn_exit_code sn_exit_codes[]; /* of all commands but verify */

typedef struct sn_cli_command {
    sn_command command;                           /* name, help texts, options */
    void (*prepare)(int argc, char *const *argv); /* called before parsing, to set defaults of its own; may be NULL */
    /* The work, when the options are parsed. *code: the exit code after SN_OK, SN_EXIT_OK unless it is set. */
    sn_status (*run)(const sn_options *options, int *code, sn_err *err);
} sn_cli_command;

extern const sn_cli_command sn_cmd_generate, sn_cmd_chat, sn_cmd_serve, sn_cmd_forward, sn_cmd_eval, sn_cmd_bench,
    sn_cmd_tune, sn_cmd_tokenize, sn_cmd_render, sn_cmd_inspect, sn_cmd_route, sn_cmd_status, sn_cmd_verify,
    sn_cmd_keygen, sn_cmd_hash, sn_cmd_models;

extern const sn_program sn_swarm_program; /* with all commands, in the order of the help text */

/* The command of this name ("generate"), or NULL. */
const sn_cli_command *sn_cmd_find(const char *name);

/* A command from its options to its exit code: parses argv[1...] (argv[0] is its name), prints help, man page,
 * completion or version when asked to, sets up the log, runs it, and prints an error on stderr. */
int sn_cmd_run(const sn_cli_command *command, int argc, char *const *argv);

/* Prints a failure of `program` on stderr, and returns its exit code. */
int sn_print_failure(const char *program, sn_status status, const sn_err *err);

#endif
