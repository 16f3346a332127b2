/* The commands that stand on the C API (include/swarm.h): from the options of the command line to handles, and from the
 * API's errors to those of the program. Messages go to stderr. Everything runs on the main thread. */
#ifndef SN_CLI_PROGRAM_H
#define SN_CLI_PROGRAM_H

#include "base/err.h"
#include "include/swarm.h"

#include <jansson.h>
#include <stdint.h>

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

/* What `swarm chat`, `swarm generate` and `swarm eval` open, as the settings (client/api/settings.h) say. */
typedef struct sn_cli_session {
    swarm_cancel *cancel;         /* that of sn_catch_interrupts_with; may be NULL */
    swarm_connection *connection; /* NULL: this process computes all blocks */
    swarm_model *model;
    swarm_adapter *adapter; /* NULL: none */
    swarm_session *session;
} sn_cli_session;

/* Opens cancel and model, and catches interrupts (sn_catch_interrupts_with). SN_REFUSED: the settings do not go
 * together; that is told before anything is opened. Close *session in any case. */
sn_status sn_cli_session_begin(sn_cli_session *session, int presses, void (*restore)(void), sn_err *err) SN_MUST_USE;
/* Opens the rest. timeline: expected tokens beside those of --load. */
sn_status sn_cli_session_open(sn_cli_session *session, int64_t timeline, sn_err *err) SN_MUST_USE;
/* Writes the file of --save, if there is one. extra: NULL or a text that is saved with it. */
sn_status sn_cli_session_save(const sn_cli_session *session, const char *extra, sn_err *err) SN_MUST_USE;
void sn_cli_session_close(sn_cli_session *session); /* all of it, also after a failure, and cancel */

/* The report "audit" of a generation (docs/CLIENT.md; NULL: there was none); each line between `open` and `close`. */
void sn_cli_audit_print(const json_t *audit, const char *open, const char *close);

#endif
