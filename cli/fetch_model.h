/* --model ORG/NAME: fetches what this command reads of the model before it runs, so that the rest of the program sees
 * the path of a file. */
#ifndef SN_CLI_FETCH_MODEL_H
#define SN_CLI_FETCH_MODEL_H

#include "base/err.h"

/* Replaces the names of --model and --draft-model in the settings by paths. program: "swarm chat". SN_OK at once where
 * they are paths. */
sn_status sn_cli_fetch_model(const char *program, sn_err *err) SN_MUST_USE;

#endif
