/* What every command of `swarm` has besides the settings (client/api/settings.h): how it prints. The program runs one
 * command on one thread, so the values are global variables: they hold the defaults until sn_cmd_run has parsed the
 * command line, and do not change afterwards. */
#ifndef SN_CLI_OPTIONS_H
#define SN_CLI_OPTIONS_H

#include "client/api/settings.h"

typedef struct sn_output_options {
    int log_level; /* sn_log_level */
    bool json, json_log;
} sn_output_options;
extern sn_output_options sn_cli_output;

extern const sn_option_group sn_group_log; /* --log-level, --json-log */

/* Fills the folders that the settings leave open: for evidence of an audit, and for what is remembered from run to run.
 * SN_REFUSED: evidence would have no place. */
sn_status sn_cli_find_folders(sn_settings *settings, sn_err *err) SN_MUST_USE;

#endif
