/* What `swarm chat`, `swarm generate` and `swarm eval` open: model, connection, adapter and session of the C API, as
 * the settings (client/api/settings.h) say. Messages go to stderr. Everything runs on the main thread. */
#ifndef SN_CLI_SESSION_H
#define SN_CLI_SESSION_H

#include "base/err.h"
#include "include/swarm.h"

#include <jansson.h>
#include <stdint.h>

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
