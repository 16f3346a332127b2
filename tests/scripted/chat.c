/* `swarm chat` over the script of swarm.c: the options are those of the program. */
#include "base/terminal.h"
#include "cli/command.h"

#include <signal.h>

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    sn_terminal_guard();
    return sn_cmd_run(&sn_cmd_chat, argc, argv);
}
