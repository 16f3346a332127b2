/* The `swarm` program: finds the command and hands it the rest of the line. */
#include "client/cmd.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"generate", "write on from a prompt", sn_cmd_generate},
    {"chat", "talk with the model", sn_cmd_chat},
    {"forward", "save logits and hidden states of given tokens", sn_cmd_forward},
    {"eval", "measure how well the model predicts a text", sn_cmd_eval},
    {"bench", "measure how fast a swarm is", sn_cmd_bench},
    {"tune", "train something small to go with the model", sn_cmd_tune},
    {"tokenize", "turn text into token ids, or ids into text", sn_cmd_tokenize},
    {"inspect", "show what is in a model file", sn_cmd_inspect},
    {"route", "show the way that a token would take, and why", sn_cmd_route},
    {"status", "show who serves which blocks", sn_cmd_status},
    {"verify", "say who lied, by the evidence of an audit", sn_cmd_verify},
    {"keygen", "make an identity for a node or client", sn_cmd_keygen},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void help(void) {
    puts(
        "Usage: swarm COMMAND [options]\n\n"
        "Runs a language model whose blocks are spread over the nodes of a swarm, or held here, or both.\n\nCommands:");
    for (size_t i = 0; i < N_COMMANDS; i++) printf("  %-12s%s\n", commands[i].name, commands[i].about);
    puts("\n'swarm COMMAND --help' shows a command's options; 'swarm --version' the version.\n\n"
         "Exit codes:\n"
         "  0    done\n"
         "  1    the swarm or the network failed; trying again may help\n"
         "  2    wrong usage or bad input\n"
         "  3    out of memory, or a device failed\n"
         "  130  interrupted");
}

static int unknown(const char *word) {
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    const char *near = sn_nearest(word, names, N_COMMANDS);
    if (near)
        fprintf(stderr, "swarm: there is no command '%s'; did you mean %s?\n", word, near);
    else
        fprintf(stderr, "swarm: there is no command '%s'; 'swarm --help' lists them all.\n", word);
    return SN_EXIT_USAGE;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        fputs("swarm: a command is missing; 'swarm --help' lists them all.\n", stderr);
        return SN_EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help();
        return SN_EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("swarm %s\n", SN_VERSION);
        return SN_EXIT_OK;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
