/* A setup (client/api/setup.h) as the program uses it: with the settings of the command line, progress and warnings on
 * stderr, and the interrupt of Ctrl-C. Everything runs on the main thread. */
#ifndef SN_CLI_SETUP_H
#define SN_CLI_SETUP_H

#include "cli/options.h"
#include "client/api/setup.h"

/* A setup of which nothing is opened. */
sn_setup sn_cli_setup(void);

/* `swarm eval` of a classifier (eval_classifier.c): its accuracy over the labelled texts of a file. */
sn_status sn_eval_classifier(sn_setup *setup, const char *path, sn_err *err) SN_MUST_USE;

#endif
