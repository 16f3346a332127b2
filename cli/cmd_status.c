/* swarm status: which nodes serve which blocks, once or repeatedly. */
#include "base/clock.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/setup.h"
#include "cli/status_view.h"
#include "client/api/entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SLEEP_US = 50000 };

static const char *model_path;
static int64_t watch_ms;

static const sn_option options_table[] = {
    SN_OPT_ADDRESSES("join", "HOST:PORT", &sn_program_settings.common.join, SN_HOST_PORT_PINNED,
                     "address of a node of the swarm, through which all other nodes are found; HOST:PORT#KEY also "
                     "checks the node's CURVE key"),
    SN_OPT_ADDRESS("dht", "HOST:PORT", &sn_program_settings.common.dht, SN_HOST_PORT_DIAL,
                   "address of a DHT node (OpenDHT), through which nodes of --model are found"),
    SN_OPT_STRING("model", "PATH", &model_path, "show only nodes that serve this model"),
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

static sn_status print_status(sn_link *link, sn_err *err) {
    sn_status_row *rows = NULL;
    size_t n = 0;
    sn_status status = sn_status_query(link, &rows, &n, err);
    if (!status && sn_interrupted && !watch_ms) status = sn_fail(err, SN_RETRY, "interrupted");
    if (!status && sn_cli_output.json)
        status = sn_print_json(sn_status_json(rows, n), err);
    else if (!status)
        sn_status_print(rows, n);
    free(rows);
    return status;
}

/* Shows the status until the command is interrupted. When no node replies, the reason is shown. */
static sn_status watch_status(sn_link *link, const sn_hash *model, sn_err *err) {
    while (!sn_interrupted) {
        int64_t until_us = sn_now_us() + watch_ms * 1000;
        sn_err reason;
        if (isatty(STDOUT_FILENO) && !sn_cli_output.json)
            sn_terminal_control(stdout, "\033[H\033[J"); /* cursor to the corner, clear */
        sn_status status = print_status(link, err);
        if (!status && !sn_cli_output.json) putchar('\n');
        if (!status) status = sn_flush_stdout(err);
        if (status) return status;
        while (!sn_interrupted && sn_now_us() < until_us) sn_sleep_us(SLEEP_US);
        if (!sn_interrupted && sn_link_discover(link, model, (int)sn_program_settings.common.timeout_ms, &reason) &&
            !sn_cli_output.json)
            printf("%s\n", reason.text);
    }
    return SN_OK;
}

static sn_status read_model_id(sn_hash *id, sn_err *err) {
    sn_model *model = NULL;
    sn_status status = sn_model_open(model_path, &model, err);
    if (!status) *id = sn_model_id(model);
    sn_model_close(&model);
    return status;
}

static sn_status status_main(const sn_options *options, int *code, sn_err *err) {
    (void)options;
    sn_link *link = NULL;
    sn_hash id = {{0}};
    sn_entry entry;
    if (!sn_settings_has_swarm(&sn_program_settings))
        return sn_fail(err, SN_REFUSED, "give --join HOST:PORT of a node of the swarm, or --dht");
    if (sn_program_settings.common.dht && !model_path)
        return sn_fail(err, SN_REFUSED, "--dht finds the nodes of one model: give --model, too");
    sn_catch_interrupts();
    sn_status status = model_path ? read_model_id(&id, err) : SN_OK;
    if (status) return status;
    sn_progress_bar *bar = sn_progress_bar_begin("asking the swarm");
    status = sn_entry_find(&entry, &sn_program_settings, &id, &sn_interrupt, err);
    if (!status) status = sn_link_open(&entry.link, &link, err);
    if (!status)
        status = sn_link_discover(link, model_path ? &id : NULL, (int)sn_program_settings.common.timeout_ms, err);
    if (!status && !watch_ms) status = print_status(link, err);
    sn_progress_bar_end(&bar);
    if (!status && watch_ms) status = watch_status(link, model_path ? &id : NULL, err);
    if (!status && sn_interrupted) *code = SN_EXIT_INTERRUPTED;
    sn_link_close(&link);
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
