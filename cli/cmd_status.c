/* swarm status: which nodes serve which blocks, once or repeatedly. */
#include "base/clock.h"
#include "base/parse.h"
#include "base/terminal.h"
#include "cli/program.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
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

/* -- nodes and the coverage of blocks, for people -- */

static json_int_t number(const json_t *o, const char *name) { return json_integer_value(json_object_get(o, name)); }
static const char *word(const json_t *o, const char *name) {
    const char *text = json_string_value(json_object_get(o, name));
    return text ? text : "";
}
static json_int_t at(const json_t *o, const char *name, size_t i) {
    return json_integer_value(json_array_get(json_object_get(o, name), i));
}

static void print_node(const json_t *n) {
    char free_kv[32] = "", sessions[48] = "", queue[24] = "", rate[24] = "-", rtt[24] = "";
    bool answered = json_is_true(json_object_get(n, "answered"));
    json_int_t kv = number(n, "kv_bytes_max") - number(n, "kv_bytes"), joined = number(n, "joined");
    const json_t *adapters = json_object_get(n, "adapters"), *adapter;
    size_t i;
    if (number(n, "tokens_per_s")) snprintf(rate, sizeof rate, "%lld", (long long)number(n, "tokens_per_s"));
    if (answered) {
        sn_format_size(kv > 0 ? (size_t)kv : 0, free_kv);
        snprintf(sessions, sizeof sessions, "%lld/%lld", (long long)number(n, "sessions"),
                 (long long)number(n, "sessions_max"));
        snprintf(queue, sizeof queue, "%lld", (long long)number(n, "queued_steps"));
        snprintf(rtt, sizeof rtt, "%.1f ms", json_number_value(json_object_get(n, "rtt_ms")));
    }
    printf("%-14.14s %-8.8s %-9s %-8s %8s %8s %5s %10s %9s  %-8.8s %s\n", *word(n, "name") ? word(n, "name") : "-",
           word(n, "id"), word(n, "blocks"), answered ? word(n, "state") : "no reply", rate, sessions, queue, free_kv,
           rtt, word(n, "version"), word(n, "address"));
    if (!answered) printf("%-14s %s\n", "", word(n, "error"));
    if (*word(n, "device") && strcmp(word(n, "device"), "cpu")) printf("%-14s computes on %s\n", "", word(n, "device"));
    if (*word(n, "experts"))
        printf("%-14s holds experts %s of %lld\n", "", word(n, "experts"), (long long)number(n, "n_experts"));
    if (*word(n, "lacking"))
        printf("%-14s serves no clients: no node that it knows holds %s\n", "", word(n, "lacking"));
    if (answered && joined && !number(n, "bootstrap_peers"))
        printf("%-14s no node answers at the %lld %s that it joined\n", "", (long long)joined,
               joined == 1 ? "address" : "addresses");
    json_array_foreach(adapters, i, adapter)
        printf("%-14s adapter %s@%.16s\n", "", word(adapter, "name"), word(adapter, "hash"));
}

/* A line for each run of blocks with the same coverage. */
static void print_coverage(const json_t *of) {
    size_t end = json_array_size(json_object_get(of, "nodes_per_block")), missing = 0;
    printf("\n%-11s %5s %8s\n", "BLOCKS", "NODES", "TOKENS/S");
    for (size_t b = 0, e; b < end; b = e) {
        json_int_t nodes = at(of, "nodes_per_block", b), rate = at(of, "tokens_per_s_per_block", b);
        char blocks[48];
        for (e = b + 1;
             e < end && at(of, "nodes_per_block", e) == nodes && at(of, "tokens_per_s_per_block", e) == rate;)
            e++;
        snprintf(blocks, sizeof blocks, "%zu:%zu", b, e);
        if (nodes && rate)
            printf("%-11s %5lld %8lld\n", blocks, (long long)nodes, (long long)rate);
        else if (nodes)
            printf("%-11s %5lld %8s\n", blocks, (long long)nodes, "-");
        else
            printf("%-11s no node\n", blocks);
        missing += nodes ? 0 : e - b;
    }
    if (missing) printf("%zu of its blocks are not served\n", missing);
}

/* The nodes of a model, under the name that one of them gives it, and how many serve each of its blocks. Returns how
 * many nodes these are. */
static size_t print_model(const json_t *nodes, const json_t *of) {
    const json_t *n;
    const char *name = "", *id = word(of, "model");
    size_t i;
    json_array_foreach(nodes, i, n) if (!*name && !strcmp(word(n, "model"), id)) name = word(n, "model_name");
    printf("%s (%.8s), %lld blocks\n", *name ? name : "model", id, (long long)number(of, "n_blocks"));
    printf("%-14s %-8s %-9s %-8s %8s %8s %5s %10s %9s  %-8s %s\n", "NAME", "ID", "BLOCKS", "STATE", "TOKENS/S",
           "SESSIONS", "QUEUE", "FREE KV", "RTT", "VERSION", "ADDRESS");
    size_t printed = 0;
    json_array_foreach(nodes, i, n) {
        if (strcmp(word(n, "model"), id)) continue;
        print_node(n);
        printed++;
    }
    print_coverage(of);
    return printed;
}

/* The JSON of swarm_connection_status (docs/CLIENT.md) as a table. */
static void print_table(const json_t *status) {
    const json_t *of, *nodes = json_object_get(status, "nodes");
    size_t i, left = json_array_size(nodes);
    json_array_foreach(json_object_get(status, "coverage"), i, of) {
        if (i) putchar('\n');
        left -= print_model(nodes, of);
    }
    if (left) printf("\n%zu further nodes announce other models: --json lists them, --model shows one model\n", left);
}

/* -- the command -- */

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
        print_table(o);
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
