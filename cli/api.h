/* The commands that stand on the C API (include/swarm.h): from the options of the command line to handles, and from the
 * API's errors to those of the program. */
#ifndef SN_CLI_API_H
#define SN_CLI_API_H

#include "base/err.h"
#include "include/swarm.h"

#include <jansson.h>

/* The error of a call of the API as one of the program; *error is freed and becomes NULL. A pointer, because the call
 * is often an argument here, and C may read another argument before it. */
sn_status sn_cli_status(swarm_code code, swarm_error **error, sn_err *err) SN_MUST_USE;

/* The present settings of the program (client/api/settings.h) as options of this kind ("model", "session"...): what the
 * command line gave, and the defaults and folders that the program has found. except: keys that are left out, separated
 * by spaces; NULL: none. NULL after a failure. */
swarm_options *sn_cli_options(const char *of, const char *except, sn_err *err);

/* The model of --model. */
sn_status sn_cli_open_model(swarm_model **out, sn_err *err) SN_MUST_USE;
/* Only the tokenizer of the model at a path. */
sn_status sn_cli_open_tokenizer(const char *path, swarm_model **out, sn_err *err) SN_MUST_USE;
sn_status sn_cli_describe_model(const swarm_model *model, json_t **out, sn_err *err) SN_MUST_USE;

/* Parses a JSON text of the API, and frees it. */
sn_status sn_cli_json(char *text, json_t **out, sn_err *err) SN_MUST_USE;

#endif
