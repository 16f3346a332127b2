/* A setup (client/api/setup.h) for commands that the C API cannot serve (docs/ARCHITECTURE.md): with the settings of
 * the command line, progress and warnings on stderr, and the interrupt of Ctrl-C. Everything runs on the main thread.
 */
#ifndef SN_CLI_SETUP_H
#define SN_CLI_SETUP_H

#include "cli/options.h"
#include "client/api/setup.h"

/* A setup of which nothing is opened. */
sn_setup sn_cli_setup(void);

#endif
