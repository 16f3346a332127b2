/* swarm status: which nodes serve which blocks, once or repeatedly. */
#include "base/clock.h"
#include "base/terminal.h"
#include "cli/program.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/status_view.h"

#include <stdio.h>
#include <unistd.h>

enum { SLEEP_US = 50000 };

static int64_t watch_ms;

static const sn_option options_table[] = {
    SN_OPT_ADDRESSES("join", "HOST:PORT", &sn_program_settings.common.join, SN_HOST_PORT_PINNED,
                     "address of a node of the swarm, through which all other nodes are found; HOST:PORT#KEY also "
                     "checks the node's CURVE key; lan: nodes of the local network"),
    SN_OPT_ADDRESS("dht", "HOST:PORT", &sn_program_settings.common.dht, SN_HOST_PORT_DIAL,
                   SN_DHT_HELP("address of a DHT node (OpenDHT), through which nodes of --model are found")),
    SN_OPT_STRING("model", "PATH", &sn_program_settings.common.model, "show only nodes that serve this model"),
    SN_OPT_DURATION_MS("watch", &watch_ms, 0, 86400000,
                       "show the status at this interval until the command is interrupted; 0: once"),
    SN_OPT_STRING("identity", "FILE", &sn_program_settings.common.identity,
                  "keys made by 'swarm keygen' (default: new keys for each run)"),
    SN_OPT_STRING("swarm-key", "FILE", &sn_program_settings.common.swarm_key,
                  "the key of a private swarm, made by 'swarm keygen --swarm-key'"),
    SN_OPT_DURATION_MS("timeout", &sn_program_settings.common.timeout_ms, 1000, 86400000,
                       "limit for the first reply of a node"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print {\"nodes\", \"coverage\"}, one line each time"),
};
static const sn_option_group status_group = SN_OPTION_GROUP("Status:", options_table);

static sn_status print_status(swarm_connection *connection, sn_err *err) {
    swarm_error *error = NULL;
    char *text = NULL;
    json_t *o = NULL;
    sn_status status = sn_cli_status(swarm_connection_status(connection, &text, NULL, &error), &error, err);
    if (!status) status = sn_cli_json(text, &o, err);
    if (!status && sn_interrupted && !watch_ms) status = sn_fail(err, SN_RETRY, "interrupted");
    if (!status && sn_cli_output.json)
        status = sn_print_json(json_incref(o), err);
    else if (!status)
        sn_status_print(o);
    json_decref(o);
    return status;
}

/* Shows the status until the command is interrupted. */
static sn_status watch_status(swarm_connection *connection, sn_err *err) {
    while (!sn_interrupted) {
        int64_t until_us = sn_now_us() + watch_ms * 1000;
        if (isatty(STDOUT_FILENO) && !sn_cli_output.json)
            sn_terminal_control(stdout, "\033[H\033[J"); /* cursor to the corner, clear */
        sn_status status = print_status(connection, err);
        if (!status && !sn_cli_output.json) putchar('\n');
        if (!status) status = sn_flush_stdout(err);
        if (status) return status;
        while (!sn_interrupted && sn_now_us() < until_us) sn_sleep_us(SLEEP_US);
    }
    return SN_OK;
}

static sn_status status_main(const sn_options *options, int *code, sn_err *err) {
    const sn_common_settings *o = &sn_program_settings.common;
    swarm_connection *connection = NULL;
    swarm_error *error = NULL;
    if (!sn_settings_has_swarm(&sn_program_settings))
        return sn_fail(err, SN_REFUSED, "give --join HOST:PORT of a node of the swarm" SN_OR_DHT);
    if (o->dht && !o->model) return sn_fail(err, SN_REFUSED, "--dht finds the nodes of one model: give --model, too");
    sn_catch_interrupts();
    (void)options;
    swarm_options *given = sn_cli_options("connection", NULL, err);
    if (!given) return err->status;
    sn_progress_bar *bar = sn_progress_bar_begin("asking the swarm");
    sn_status status = sn_cli_status(swarm_connect(given, NULL, &connection, &error), &error, err);
    if (!status && !watch_ms) status = print_status(connection, err);
    sn_progress_bar_end(&bar);
    if (!status && watch_ms) status = watch_status(connection, err);
    if (!status && sn_interrupted) *code = SN_EXIT_INTERRUPTED;
    swarm_disconnect(connection);
    swarm_options_free(given);
    return status;
}

static const sn_option_group *const groups[] = {&status_group, &sn_group_log};

const sn_cli_command sn_cmd_status = {
    .command = {.program = "swarm status",
                .summary = "show the nodes of a swarm and the blocks that they serve",
                .synopsis = "--join HOST:PORT [options]",
                .about =
                    "Shows the nodes of a swarm: blocks, model, state, measured tokens per second, sessions, queue, "
                    "free KV memory, round-trip time and version; and for each range of blocks, how many nodes "
                    "serve it and their tokens per second together, and which blocks no node serves.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = status_main,
};
