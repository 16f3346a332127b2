/* swarm bench: how fast a swarm is, line by line. */
#include "client/bench.h"

#include "base/text.h"
#include "base/wire.h"
#include "client/tune/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES_MAX = 128 };

static struct {
    const char *nodes, *threads, *sessions, *context, *batch;
    sn_strings link, kill, node_options, train;
    const char *json, *csv, *html;
    int64_t prompt_tokens, new_tokens, beside, repeat, warmup;
    bool push;
} given = {.threads = "1", .sessions = "1", .context = "0", .prompt_tokens = 512, .new_tokens = 128, .repeat = 5, .warmup = 1};

static const sn_option where_options[] = {
    SN_OPT_STRING("nodes", "LIST", &given.nodes, "start so many nodes on this machine, with equal cuts of the blocks, as in 1,3"),
    SN_OPT_STRINGS("join", "ADDRESS", &sn_given.join, "measure the swarm that runs there"),
    SN_OPT_BLOCKS("local", "all", &sn_given.local, "measure blocks that this program holds itself, without a node"),
    SN_OPT_STRINGS("link", "RATE,RTT[,JITTER]", &given.link,
                   "emulate this connection between all, as in 100mbit,100ms; repeatable; none: as it is"),
    SN_OPT_FLAG("push", &given.push, "nodes hand hidden states on to each other instead of back to the client"),
    SN_OPT_INT("steps-ahead", "N", &sn_given.steps_ahead, 0, SN_STEPS_AHEAD_MAX,
               "pieces of a prompt that may wait at a node while it is at work on another; 0: one by one"),
    SN_OPT_STRINGS("node-option", "OPTION", &given.node_options,
                   "hand this on to the nodes that are started; repeatable, as in --node-option=--isa=avx2"),
    SN_OPT_INT("timeout", "SECONDS", &sn_given.timeout_s, 1, 86400, "how long a node may take for one step"),
};

static const sn_option what_options[] = {
    SN_OPT_INT("prompt-tokens", "N", &given.prompt_tokens, 1, 1 << 20, "length of a prompt"),
    SN_OPT_INT("new-tokens", "N", &given.new_tokens, 2, 1 << 20, "tokens to decode"),
    SN_OPT_STRING("context", "LIST", &given.context, "tokens that the session holds before both, as in 0,512,4000"),
    SN_OPT_STRING("sessions", "LIST", &given.sessions, "sessions at once, each of its own client, as in 1,2,4,8,16"),
    SN_OPT_STRING("batch", "LIST", &given.batch,
                  "also measure passes forward, without head and choice, of so many sequences of a prompt's length at once"),
    SN_OPT_INT("beside", "N", &given.beside, 1, 1 << 20,
               "also measure decoding in the most --sessions while another client reads prompts of N tokens"),
    SN_OPT_STRINGS("kill", "HOW", &given.kill,
                   "also measure the recovery from the loss of a node in the middle of a text: replay (it is killed, another "
                   "one takes its place), replica (the same with --kv-replica) or handover (it is asked to leave); repeatable; "
                   "needs --nodes"),
    SN_OPT_STRINGS("train", "METHOD", &given.train,
                   "instead measure steps of training (prompt, deep-prompt, lora or head), forward and backward, of --batch "
                   "sequences (4) of a prompt's length; repeatable"),
    SN_OPT_INT("repeat", "N", &given.repeat, 1, 1000, "measure so often"),
    SN_OPT_INT("warmup", "N", &given.warmup, 0, 1000, "and so often before, without counting"),
    SN_OPT_STRING("threads", "LIST", &given.threads, "workers of each node, and of this program's head"),
    SN_OPT_STRING("kv-dtype", "f32|f16|q8", &sn_given.kv_dtype, "what keys and values are kept as; without it f32"),
    SN_OPT_STRING("wire", "f32|bf16|f16|q8", &sn_given.wire, "as what hidden states travel; without it f32, the others are lossy"),
    SN_OPT_STRING("isa", "NAME", &sn_given.isa, "kernels of the CPU: c, avx2, avx512 or amx; without it, the fastest"),
};

static const sn_option report_options[] = {
    SN_OPT_STRING("json", "FILE", &given.json, "write the report as JSON; - is standard output, without the table"),
    SN_OPT_STRING("csv", "FILE", &given.csv, "write its rows as comma-separated values"),
    SN_OPT_STRING("html", "FILE", &given.html, "write it as one HTML file with plots"),
};

/* -- cases -- */

typedef struct list {
    int items[SN_BENCH_LIST_MAX];
    size_t n;
} list;

static sn_status read_list(const char *name, const char *text, int low, int high, list *out, sn_err *err) {
    char copy[256], *rest = copy;
    *out = (list){0};
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return sn_fail(err, SN_REFUSED, "--%s: the list is too long", name);
    for (char *word; (word = strsep(&rest, ","));) {
        int64_t value;
        sn_status status = sn_parse_int(word, low, high, &value, err);
        if (status) return sn_err_context(err, "--%s", name);
        if (out->n == SN_BENCH_LIST_MAX)
            return sn_fail(err, SN_REFUSED, "--%s: at most %d values", name, SN_BENCH_LIST_MAX);
        out->items[out->n++] = (int)value;
    }
    return SN_OK;
}

typedef struct lists {
    list nodes, threads, sessions, context, batch;
} lists;

static sn_status read_lists(lists *l, sn_err *err) {
    sn_status status = read_list("threads", given.threads, 1, 1024, &l->threads, err);
    l->nodes = (list){.n = 1};
    l->batch = (list){0};
    if (!status && given.nodes) status = read_list("nodes", given.nodes, 1, SN_BENCH_NODES_MAX - 1, &l->nodes, err);
    if (!status) status = read_list("sessions", given.sessions, 1, SN_BENCH_SESSIONS_MAX, &l->sessions, err);
    if (!status) status = read_list("context", given.context, 0, 1 << 24, &l->context, err);
    if (!status && given.batch) status = read_list("batch", given.batch, 1, SN_BENCH_SESSIONS_MAX, &l->batch, err);
    return status;
}

static int largest(const list *l) {
    int most = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->items[i] > most) most = l->items[i];
    return most;
}

static size_t n_links(void) { return given.link.n ? given.link.n : 1; }
static const char *link_at(size_t i) { return given.link.n ? given.link.items[i] : NULL; }

static bool drafts_given(void) { return sn_given_draft.how || sn_given_draft.model; }

/* Over the link of `c`: texts that repeat and that do not, guessed in the ways that are given, and not at all. */
static size_t add_drafts(const sn_bench_case *c, sn_bench_case *out, size_t room) {
    const char *const ways[] = {"off", sn_given_draft.how, sn_given_draft.model ? "model" : NULL};
    size_t n = 0;
    for (int repeats = 1; repeats >= 0 && drafts_given(); repeats--)
        for (int k = 0; k < 3; k++) {
            if (!ways[k] || n == room) continue;
            out[n] = *c;
            out[n].kind = SN_BENCH_DRAFT;
            out[n].sessions = 1;
            out[n].context = 0;
            out[n].draft = ways[k];
            out[n++].repeats = repeats;
        }
    return n;
}

#define EACH(list_, field)                                                                                             \
    for (size_t i = 1; i < (list_).n && n < CASES_MAX; i++) {                                                          \
        out[n] = base;                                                                                                 \
        out[n++].field = (list_).items[i];                                                                             \
    }

/* Steps of training, of every method over every link; each list is swept by itself. */
static size_t make_training_cases(const lists *l, sn_bench_case *out) {
    size_t n = 0;
    for (size_t k = 0; k < n_links(); k++)
        for (size_t m = 0; m < given.train.n; m++) {
            const sn_bench_case base = {.kind = SN_BENCH_TRAIN,
                                        .nodes = l->nodes.items[0],
                                        .threads = l->threads.items[0],
                                        .link = link_at(k),
                                        .sessions = l->batch.n ? l->batch.items[0] : 4,
                                        .train = given.train.items[m]};
            if (n < CASES_MAX) out[n++] = base;
            if (k) continue;
            EACH(l->batch, sessions)
            EACH(l->threads, threads)
            EACH(l->nodes, nodes)
        }
    return n;
}

/* Each list is swept by itself, the others at their first value; forward passes and kills over every link. */
static size_t make_cases(const lists *l, sn_bench_case *out) {
    const sn_bench_case base = {.nodes = l->nodes.items[0], .threads = l->threads.items[0], .link = link_at(0),
                                .sessions = l->sessions.items[0], .context = l->context.items[0]};
    size_t n = 0;
    out[n++] = base;
    EACH(l->context, context)
    EACH(l->sessions, sessions)
    EACH(l->threads, threads)
    EACH(l->nodes, nodes)
#undef EACH
    for (size_t k = 0; k < n_links(); k++) {
        sn_bench_case c = base;
        c.link = link_at(k);
        if (k && n < CASES_MAX) out[n++] = c;
        for (size_t i = 0; i < l->batch.n && n < CASES_MAX; i++) {
            out[n] = c;
            out[n].kind = SN_BENCH_FORWARD;
            out[n++].sessions = l->batch.items[i];
        }
        if (given.beside && n < CASES_MAX) {
            out[n] = c;
            out[n].kind = SN_BENCH_BESIDE;
            out[n].sessions = largest(&l->sessions);
            out[n++].beside = (int)given.beside;
        }
        n += add_drafts(&c, out + n, CASES_MAX - n);
        for (size_t i = 0; i < given.kill.n && n < CASES_MAX; i++) {
            out[n] = c;
            out[n].kind = SN_BENCH_KILL;
            out[n].sessions = 1;
            out[n++].kill = given.kill.items[i];
        }
    }
    return n;
}

/* -- what does not go together -- */

static sn_status check_place(const lists *l, sn_err *err) {
    int places = (given.nodes != NULL) + (sn_given.join.n > 0) + sn_given.local.given;
    if (places != 1)
        return sn_fail(err, SN_REFUSED,
                       "say where the blocks are, and only once: --nodes N starts nodes here, --join ADDRESS measures a "
                       "swarm that runs, --local all holds the blocks itself");
    if (sn_given.local.given && !sn_given.local.all)
        return sn_fail(err, SN_REFUSED, "--local: all blocks or none; write --local all");
    if (given.train.n && (l->sessions.n > 1 || l->sessions.items[0] > 1 || given.beside || given.kill.n || given.push ||
                          drafts_given()))
        return sn_fail(err, SN_REFUSED,
                       "--train measures nothing but training: leave out --sessions, --beside, --kill, --push and --draft");
    if (given.train.n && sn_given.wire)
        return sn_fail(err, SN_REFUSED, "batches to train always travel as float32: leave out --wire");
    if (sn_given.local.given && !given.train.n &&
        (l->sessions.n > 1 || l->sessions.items[0] > 1 || given.batch || given.beside))
        return sn_fail(err, SN_REFUSED, "--local all is one session: start --nodes 1 to measure several at once");
    if (sn_given.local.given && (given.link.n || given.push || sn_given.wire))
        return sn_fail(err, SN_REFUSED, "with --local all nothing is sent: --link, --push and --wire need nodes");
    if (!given.nodes && given.kill.n)
        return sn_fail(err, SN_REFUSED, "--kill ends nodes: it needs --nodes, for only what was started here is ended");
    if (!given.nodes && given.node_options.n) return sn_fail(err, SN_REFUSED, "--node-option is for nodes that --nodes starts");
    return SN_OK;
}

static sn_status check_values(sn_err *err) {
    sn_shape shape;
    sn_method method;
    for (size_t i = 0; i < given.train.n; i++) {
        sn_status status = sn_method_parse(given.train.items[i], &method, err);
        if (status) return sn_err_context(err, "--train");
    }
    for (size_t i = 0; i < given.link.n; i++) {
        sn_status status = sn_shape_parse(given.link.items[i], &shape, err);
        if (status) return sn_err_context(err, "--link");
    }
    if (sn_given_draft.how && strcmp(sn_given_draft.how, "ngram"))
        return sn_fail(err, SN_REFUSED, "--draft %s: it is ngram; a model is given by --draft-model PATH", sn_given_draft.how);
    for (size_t i = 0; i < given.kill.n; i++)
        if (strcmp(given.kill.items[i], "replay") && strcmp(given.kill.items[i], "replica") &&
            strcmp(given.kill.items[i], "handover"))
            return sn_fail(err, SN_REFUSED, "--kill '%s': a node can be lost by replay, replica or handover",
                           given.kill.items[i]);
    return SN_OK;
}

static sn_status check_lengths(const sn_bench_plan *p, const lists *l, sn_err *err) {
    int more = p->more_max;
    if (p->context_max > p->hp->n_ctx - more)
        return sn_fail(err, SN_REFUSED, "a context of %d and %d tokens more are beyond the %d that this model was made for",
                       p->context_max, more, p->hp->n_ctx);
    if (given.train.n && p->prompt_tokens > p->hp->n_ctx - SN_BENCH_VIRTUAL_TOKENS)
        return sn_fail(err, SN_REFUSED, "--prompt-tokens %d and %d virtual ones are beyond the %d that this model was made for",
                       p->prompt_tokens, SN_BENCH_VIRTUAL_TOKENS, p->hp->n_ctx);
    for (size_t i = 0; i < l->nodes.n; i++)
        if (l->nodes.items[i] > p->hp->n_blocks)
            return sn_fail(err, SN_REFUSED, "--nodes %d: this model has %d blocks to cut", l->nodes.items[i], p->hp->n_blocks);
    return SN_OK;
}

/* -- running -- */

static bool same_nodes(const sn_bench_case *a, const sn_bench_case *b) {
    return a->nodes == b->nodes && a->threads == b->threads && a->link == b->link;
}

static sn_status run_one(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, bool *doubled,
                         sn_bench_row *row, sn_err *err) {
    char what[96];
        snprintf(what, sizeof what, "%s, %d sessions, context %d, link %.30s", sn_bench_what(c), c->sessions, c->context,
             c->link ? c->link : "none");
    sn_status status = SN_OK;
    if (c->kind == SN_BENCH_KILL && !*doubled) { /* somebody who can take over */
        status = sn_bench_nodes_double(nodes, (size_t)c->nodes / 2, err);
        *doubled = true;
    }
    sn_progress_shown *shown = sn_progress_begin(what);
    if (!status) status = (c->kind == SN_BENCH_TRAIN ? sn_bench_train : sn_bench_run)(plan, c, nodes, row, shown, err);
    sn_progress_end(&shown);
    return status;
}

/* The cases of one set of nodes after another: marked by a row that knows its case. */
static sn_status run_all(const sn_bench_plan *plan, const sn_bench_case *cases, size_t n, sn_bench_row *rows, sn_err *err) {
    bool done[CASES_MAX] = {false};
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        if (done[i]) continue;
        sn_bench_nodes *nodes = NULL;
        bool doubled = false;
        if (cases[i].nodes) status = sn_bench_nodes_start(plan, &cases[i], &nodes, err);
        for (int kills = 0; kills < 2; kills++) /* last: the node that takes over is not there before */
            for (size_t k = i; k < n && !status; k++) {
                if (done[k] || !same_nodes(&cases[i], &cases[k]) || (cases[k].kind == SN_BENCH_KILL) != kills) continue;
                status = run_one(plan, &cases[k], nodes, &doubled, &rows[k], err);
                done[k] = true;
            }
        sn_bench_nodes_end(&nodes);
    }
    return status;
}

/* -- the command -- */

static char command_line[4096];

static sn_status report(const sn_bench_plan *plan, const sn_bench_row *rows, size_t n, sn_err *err) {
    sn_status status = SN_OK;
    bool to_stdout = given.json && !strcmp(given.json, "-");
    if (!to_stdout) sn_bench_print(stdout, plan, rows, n);
    if (given.json) {
        json_t *o = sn_bench_json(plan, command_line, rows, n);
        if (to_stdout) status = sn_print_json(o, err);
        else if (!o || json_dump_file(o, given.json, JSON_INDENT(1) | JSON_REAL_PRECISION(6)))
            status = sn_fail(err, SN_REFUSED, "--json: %s cannot be written", given.json);
        if (!to_stdout) json_decref(o);
    }
    if (!status && given.csv) status = sn_bench_csv(given.csv, plan, rows, n, err);
    if (!status && given.html) status = sn_bench_html(given.html, plan, command_line, rows, n, err);
    return status;
}

static int64_t most_of(int64_t a, int64_t b, int64_t c) { return a > b ? (a > c ? a : c) : b > c ? b : c; }

static sn_status measure(sn_model *model, const lists *l, sn_err *err) {
    sn_bench_case cases[CASES_MAX] = {0};
    size_t n = given.train.n ? make_training_cases(l, cases) : make_cases(l, cases);
    const int sessions = largest(&l->sessions), batch = largest(&l->batch);
    sn_bench_plan plan = {.model = model,
                          .hp = sn_model_hparams(model),
                          .prompt_tokens = (int)given.prompt_tokens,
                          .new_tokens = (int)given.new_tokens,
                          .repeat = (int)given.repeat,
                          .warmup = (int)given.warmup,
                          .sessions_max = sessions > batch ? sessions : batch,
                          .context_max = largest(&l->context),
                          .more_max = (int)most_of(given.prompt_tokens + (drafts_given() ? given.new_tokens : 0), given.new_tokens,
                                                   given.beside),
                          .push = given.push,
                          .local = sn_given.local.given,
                          .join = sn_given.join,
                          .node_options = given.node_options,
                          .timeout_ms = (int)sn_given.timeout_s * 1000,
                          .steps_ahead = sn_given.steps_ahead ? (int)sn_given.steps_ahead : -1};
    sn_bench_row *rows = NULL;
    sn_status status = sn_given.kv_dtype ? sn_kv_dtype_parse(sn_given.kv_dtype, &plan.kv_dtype, err) : SN_OK;
    if (!status && sn_given.wire && (status = sn_wire_dtype_parse(sn_given.wire, &plan.wire, err))) sn_err_context(err, "--wire");
    if (!status) status = check_lengths(&plan, l, err);
    if (!status) status = sn_calloc(&rows, n, sizeof *rows, err);
    if (!status) status = run_all(&plan, cases, n, rows, err);
    if (!status) sn_bench_draft_compare(rows, n);
    if (!status) status = report(&plan, rows, n, err);
    for (size_t i = 0; i < n && rows; i++) sn_bench_row_fini(&rows[i]);
    free(rows);
    return status;
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    lists l;
    sn_model *model = NULL;
    sn_catch_interrupts();
    sn_status status = read_lists(&l, err);
    if (!status) status = check_place(&l, err);
    if (!status) status = check_values(err);
    if (!status) status = sn_model_open(sn_given.model, &model, err);
    if (!status) status = measure(model, &l, err);
    sn_model_close(&model);
    return status;
}

int sn_cmd_bench(int argc, char **argv) {
    const sn_option_group groups[] = {sn_group_model,
                                      {"Where:", where_options, sizeof where_options / sizeof *where_options},
                                      {"What:", what_options, sizeof what_options / sizeof *what_options},
                                      {"Guessing ahead (measured beside none, on a text that repeats itself and on one that does not):",
                                       sn_group_draft.options, sn_group_draft.n},
                                      {"Report:", report_options, sizeof report_options / sizeof *report_options},
                                      sn_group_log};
    const sn_command command = {
        .program = "swarm bench",
        .synopsis = "--model PATH (--nodes LIST | --join ADDRESS... | --local all) [options]",
        .about = "Measures prompts, first tokens, decoding and the time between tokens, and shows a table: medians over the "
                 "repeats, with the largest distance of a repeat from them. Each list is swept by itself, with the first "
                 "value of the others.\n\n"
                 "A prompt is read, and tokens are decoded, behind a context of the given length; each session and each "
                 "repeat has other tokens. Tokens/s are those of all sessions together. Below each line stands what a step "
                 "of one session cost at each hop.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof *groups,
        .epilogue = "--json gives {\"command\", \"machine\", \"model\", \"rows\": [{\"what\", \"nodes\", \"threads\", \"link\", "
                    "\"push\", \"wire\", \"sessions\", \"context\", \"prefill_tok_s\", \"ttft_ms\", \"decode_tok_s\", \"itl_ms\": {\"p50\", "
                    "\"p95\", \"p99\"}, \"hops\"}]}, with the range of the repeats beside each median as *_range; a row of "
                    "--train has \"method\" and \"train_tok_s\", one of --draft \"draft\", \"repeats\", \"decode_tokens\", "
                    "\"decode_steps\", \"guessed_tokens\", \"guessed_right\" and \"same_text\".\n\n" SN_EXIT_CODES};
    size_t len = 0;
    for (int i = 0; i < argc && len < sizeof command_line; i++)
        len += (size_t)snprintf(command_line + len, sizeof command_line - len, "%s%s", i ? " " : "swarm ", argv[i]);
    return sn_cmd_run(&command, argc, argv, body);
}
