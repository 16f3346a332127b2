/* swarm status: who serves what, once or again and again. */
#include "client/status_view.h"
#include "client/contacts.h"
#include "client/published.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ASK_TIMEOUT_MS = 2000, NAP_US = 50000 };

static const char *model_path;
static int64_t watch_s;

static const sn_option options_table[] = {
    SN_OPT_STRINGS("join", "ADDRESS", &sn_given.join,
                   "tcp://HOST:PORT of a node of the swarm; any one knows all others"),
    SN_OPT_STRING("dht", "HOST:PORT", &sn_given.dht, "find nodes of --model through a table of first contacts"),
    SN_OPT_STRING("model", "PATH", &model_path, "show only the nodes that serve this model"),
    SN_OPT_INT("watch", "SECONDS", &watch_s, 0, 86400,
               "show it again every so often, in place on a terminal, until it is interrupted; 0, the default: once"),
    SN_OPT_STRING("identity", "FILE", &sn_given.identity, "keys made by 'swarm keygen'"),
    SN_OPT_STRING("swarm-key", "FILE", &sn_given.swarm_key, "the key of a private swarm"),
    SN_OPT_INT("timeout", "SECONDS", &sn_given.timeout_s, 1, 86400, "how long to wait for the first answer"),
    SN_OPT_FLAG("json", &sn_given.json, "print {\"nodes\", \"coverage\"}, one line each time"),
};

/* Those few that publish adapters say which. */
static void ask_adapters(sn_link *link, sn_status_row *row) {
    sn_msg *told = NULL;
    sn_err err;
    if (!row->poll.answered || !row->a.n_adapters || sn_published_list(link, &row->a, ASK_TIMEOUT_MS, &told, &err)) return;
    for (row->n_adapters = 0; row->n_adapters < told->adapters_are.n_adapters; row->n_adapters++) {
        row->adapters[row->n_adapters] = told->adapters_are.adapters[row->n_adapters];
        sn_make_plain(row->adapters[row->n_adapters].name);
    }
    sn_msg_free(&told);
}

/* Asks all nodes that are known, at once. */
static sn_status ask(sn_link *link, sn_status_row **rows, size_t *n, sn_err *err) {
    const sn_directory *directory = sn_link_directory(link);
    const sn_announcement **nodes = NULL;
    sn_poll *polls = NULL;
    *n = sn_directory_count(directory);
    sn_status status = sn_calloc(rows, *n, sizeof **rows, err);
    if (!status) status = sn_calloc(&nodes, *n, sizeof *nodes, err);
    if (!status) status = sn_calloc(&polls, *n, sizeof *polls, err);
    for (size_t i = 0; i < *n && !status; i++) {
        nodes[i] = sn_directory_at(directory, i);
        sn_announcement_copy(&(*rows)[i].a, nodes[i]);
        sn_make_plain((*rows)[i].a.name);
        sn_make_plain((*rows)[i].a.version);
        sn_make_plain((*rows)[i].a.address);
    }
    if (!status) status = sn_link_poll(link, nodes, *n, ASK_TIMEOUT_MS, false, polls, err);
    for (size_t i = 0; i < *n && !status; i++) {
        (*rows)[i].poll = polls[i];
        ask_adapters(link, &(*rows)[i]);
    }
    free(nodes);
    free(polls);
    return status;
}

static sn_status show(sn_link *link, sn_err *err) {
    sn_status_row *rows = NULL;
    size_t n = 0;
    sn_status status = ask(link, &rows, &n, err);
    if (!status && sn_interrupted && !watch_s) status = sn_fail(err, SN_RETRY, "interrupted");
    if (!status && sn_given.json)
        status = sn_print_json(sn_status_json(rows, n), err);
    else if (!status)
        sn_status_print(rows, n);
    free(rows);
    return status;
}

/* Until it is interrupted; that nobody answers for a while is shown, too. */
static sn_status watch(sn_link *link, const sn_hash *model, sn_err *err) {
    while (!sn_interrupted) {
        int64_t until_us = sn_now_us() + watch_s * 1000000;
        sn_err why;
        if (isatty(STDOUT_FILENO) && !sn_given.json) fputs("\033[H\033[J", stdout); /* to the corner, and clear */
        sn_status status = show(link, err);
        if (!status && !sn_given.json) putchar('\n');
        if (!status) status = sn_flush_stdout(err);
        if (status) return status;
        while (!sn_interrupted && sn_now_us() < until_us) sn_sleep_us(NAP_US);
        if (!sn_interrupted && sn_link_discover(link, model, (int)sn_given.timeout_s * 1000, &why) && !sn_given.json)
            printf("%s\n", why.text);
    }
    return SN_OK;
}

static sn_status model_id(sn_hash *id, sn_err *err) {
    sn_model *model = NULL;
    sn_status status = sn_model_open(model_path, &model, err);
    if (!status) *id = sn_model_id(model);
    sn_model_close(&model);
    return status;
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_link *link = NULL;
    sn_hash id = {{0}};
    sn_contacts contacts;
    if (!sn_given.join.n && !sn_given.dht)
        return sn_fail(err, SN_REFUSED, "give --join ADDRESS of any node of the swarm");
    if (sn_given.dht && !model_path) return sn_fail(err, SN_REFUSED, "--dht finds nodes of a model: give --model, too");
    sn_catch_interrupts();
    sn_status status = model_path ? model_id(&id, err) : SN_OK;
    if (status) return status;
    sn_progress_shown *shown = sn_progress_begin("asking the swarm");
    status = sn_contacts_find(&contacts, &id, (int)sn_given.timeout_s * 1000, err);
    if (!status)
        status = sn_link_open(contacts.items, contacts.n, sn_given.identity, sn_given.swarm_key, NULL, &link, err);
    if (!status) status = sn_link_discover(link, model_path ? &id : NULL, (int)sn_given.timeout_s * 1000, err);
    if (!status && !watch_s) status = show(link, err);
    sn_progress_end(&shown);
    if (!status && watch_s) status = watch(link, model_path ? &id : NULL, err);
    sn_link_close(&link);
    return status;
}

int sn_cmd_status(int argc, char **argv) {
    const sn_option_group groups[] = {{"Options:", options_table, sizeof options_table / sizeof *options_table},
                                      sn_group_log};
    const sn_command command = {.program = "swarm status",
                                .synopsis = "--join ADDRESS [options]",
                                .about =
                                    "Shows the nodes of a swarm: which blocks of which model each serves, its "
                                    "state, tokens per second as it measured them, sessions, queue, free memory for "
                                    "keys and values, distance and version; and for each stretch of blocks how many "
                                    "nodes hold it and what they do together, and which blocks nobody serves.",
                                .groups = groups,
                                .n_groups = sizeof groups / sizeof *groups,
                                .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
