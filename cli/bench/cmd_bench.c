/* swarm bench: measures a swarm, one case after another.
 *
 * The options make a list of cases (sn_bench_case): each list of values is swept with the first value of the others,
 * and forward passes, drafts, kills and training add cases of their own for every emulated link. Cases that need the
 * same nodes are measured over the same processes; those that kill a node come last, because they start one more node.
 * cli/bench/run.c measures a case, train.c a case of training, nodes.c starts the nodes, report.c and html.c write the
 * results. */
#include "base/file.h"
#include "base/wire.h"
#include "cli/bench/bench.h"
#include "cli/bench/server.h"
#include "cli/command.h"
#include "client/tune/params.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES_MAX = 128 };

static struct {
    sn_ints nodes, threads, sessions, context, batch, clients;
    sn_strings link, kill, node_options, train;
    const char *json_file, *csv_file, *html_file, *server, *api_key_file;
    bool chat, answers;
    int64_t prompt_tokens, new_tokens, concurrent_prefill, repeat, warmup, seed;
} given = {.threads = {{1}, 1},
           .sessions = {{1}, 1},
           .context = {{0}, 1},
           .clients = {{1, 4, 16, 64}, 4},
           .prompt_tokens = 512,
           .new_tokens = 128,
           .concurrent_prefill = SN_INT_UNSET,
           .repeat = 5,
           .warmup = 1};

enum { TRAIN_BATCH = 4 }; /* sequences of a training step without --batch */

static const sn_word kill_words[] = {{"replay", 0}, {"replica", 0}, {"migration", 0}, {"none", 0}, {NULL, 0}};

static const sn_option model_options[] = {
    SN_OPT_STRING("model", "PATH", &sn_program_settings.common.model,
                  "the model: a GGUF file, or a folder with config.json and safetensors; not with --server"),
};
static const sn_option_group model_group = SN_OPTION_GROUP("Model:", model_options);

static const sn_option where_options[] = {
    SN_OPT_INTS("nodes", &given.nodes, 1, SN_BENCH_NODES_MAX - 1,
                "start this many nodes on this machine, which divide the blocks equally, as in 1,3"),
    SN_OPT_ADDRESSES("join", "HOST:PORT", &sn_program_settings.common.join, SN_HOST_PORT_PINNED,
                     "measure the running swarm of this node"),
    SN_OPT_BLOCKS("local", "all", &sn_program_settings.common.local, "measure blocks in this process, without a node"),
    SN_OPT_STRING("server", "URL", &given.server,
                  "measure a server of the OpenAI API, as in http://127.0.0.1:8080, with --clients"),
    SN_OPT_STRING("api-key-file", "FILE", &given.api_key_file, "a file with the key that this server wants"),
    SN_OPT_STRINGS("emulate-link", "RATE,RTT[,JITTER]", &given.link,
                   "emulate a connection like this between all processes, as in 100mbit,100ms; none: no emulation"),
    SN_OPT_FLAG("push", &sn_program_settings.common.push,
                "nodes send hidden states directly to the next node, not back to this process"),
    SN_OPT_INT("prefill-depth", "N", &sn_program_settings.common.prefill_depth, 0, SN_PREFILL_DEPTH_MAX,
               "chunks of a long prompt that may wait at a node while it computes another; 0: one chunk at a time"),
    SN_OPT_STRINGS("node-option", "OPTION", &given.node_options,
                   "an option for the nodes that are started, as in --node-option=--isa=avx2"),
    SN_OPT_DURATION_MS("timeout", &sn_program_settings.common.timeout_ms, 1000, 86400000,
                       "limit for one step at a node"),
};
static const sn_option_group where_group = SN_OPTION_GROUP("Swarm:", where_options);

static const sn_option what_options[] = {
    SN_OPT_INT("prompt-tokens", "N", &given.prompt_tokens, 1, 1 << 20, "tokens of a prompt"),
    SN_OPT_INT("new-tokens", "N", &given.new_tokens, 2, 1 << 20, "tokens to decode"),
    SN_OPT_INTS("context", &given.context, 0, 1 << 24, "tokens in the session before both, as in 0,512,4000"),
    SN_OPT_INTS("sessions", &given.sessions, 1, SN_BENCH_SESSIONS_MAX,
                "concurrent sessions, each of its own client, as in 1,2,4,8,16"),
    SN_OPT_INTS("clients", &given.clients, 1, SN_BENCH_SESSIONS_MAX,
                "of --server: concurrent clients, each with a prompt of its own of --prompt-tokens words, as in 1,16"),
    SN_OPT_INT("seed", "N", &given.seed, 0, INT32_MAX,
               "of --server: another seed makes other prompts, which the server has not in its cache"),
    SN_OPT_FLAG("chat", &given.chat, "of --server: ask /v1/chat/completions, not /v1/completions"),
    SN_OPT_FLAG("answers", &given.answers,
                "measure whole answers instead of prefill and decoding: each session decodes after its prompt, as soon "
                "as that is computed, as clients of a server do"),
    SN_OPT_INTS("batch", &given.batch, 1, SN_BENCH_SESSIONS_MAX,
                "also measure forward passes, without LM head and sampling, of this many concurrent sequences of "
                "--prompt-tokens"),
    SN_OPT_INT("concurrent-prefill", "N", &given.concurrent_prefill, 1, 1 << 20,
               "also measure decoding in the largest number of --sessions while another client sends prompts of N "
               "tokens"),
    SN_OPT_WORDS("kill", &given.kill, kill_words,
                 "also measure the recovery from the loss of a node during decoding: replay (the node is killed, and "
                 "the tokens are replayed at another), replica (the same with --kv-replica), migration (the node is "
                 "drained) or none (the client begins the text again); needs --nodes"),
    SN_OPT_WORDS("train", &given.train, sn_method_words,
                 "measure training steps instead, forward and backward, of --batch sequences (4 without it) of "
                 "--prompt-tokens"),
    SN_OPT_INT("repeat", "N", &given.repeat, 1, 1000, "repeats of each measurement"),
    SN_OPT_INT("warmup", "N", &given.warmup, 0, 1000, "repeats before these, which are not counted"),
    SN_OPT_INTS("threads", &given.threads, 1, 1024, "worker threads of each node, and of the LM head of this process"),
    SN_OPT_STRING("device", "NAME", &sn_program_settings.common.device,
                  "device of this process, for the LM head and local blocks: cpu, cuda:N, xpu:N or gpu; of nodes: "
                  "--node-option=--device=NAME"),
    SN_OPT_ENUM("kv-dtype", &sn_program_settings.common.kv_dtype, sn_kv_dtype_words, "element type of the KV cache"),
    SN_OPT_ENUM("wire-dtype", &sn_program_settings.common.wire_dtype, sn_wire_dtype_words,
                "element type of hidden states on the network; all but f32 are lossy"),
    SN_OPT_WORD("isa", &sn_program_settings.common.isa, sn_isa_words,
                "instruction set of the CPU kernels (default: the fastest that runs here)"),
};
static const sn_option_group what_group = SN_OPTION_GROUP("Measurements:", what_options);

static const sn_option report_options[] = {
    SN_OPT_FLAG("json", &sn_cli_output.json, "print one JSON object instead of the table"),
    SN_OPT_STRING("json-file", "FILE", &given.json_file, "also write the JSON object to this file"),
    SN_OPT_STRING("csv-file", "FILE", &given.csv_file, "also write the rows to this file, as comma-separated values"),
    SN_OPT_STRING("html-file", "FILE", &given.html_file, "also write a report with plots to this file, as HTML"),
};
static const sn_option_group report_group = SN_OPTION_GROUP("Report:", report_options);

/* -- cases -- */

static int largest(const sn_ints *list) {
    int64_t most = 0;
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i] > most) most = list->items[i];
    return (int)most;
}

/* The first value of a list, or another one where it is empty. */
static int first_of(const sn_ints *list, int64_t otherwise) { return (int)(list->n ? list->items[0] : otherwise); }

static size_t n_links(void) { return given.link.n ? given.link.n : 1; }
static const char *link_at(size_t i) { return given.link.n ? given.link.items[i] : NULL; }

/* The name of the draft method; NULL: none is given. */
static const char *draft_method(void) {
    const int method = (int)sn_program_settings.draft.method;
    return method == SN_DRAFT_NGRAM ? "ngram" : method == SN_DRAFT_MTP ? "mtp" : NULL;
}
static bool drafts_given(void) { return draft_method() || sn_program_settings.draft.model; }
static bool concurrent_prefill_given(void) { return given.concurrent_prefill != SN_INT_UNSET; }

/* Cases over the link of `c`: repetitive and other texts, with each draft that is given and without one. */
static size_t add_drafts(const sn_bench_case *c, sn_bench_case *out, size_t capacity) {
    const char *const methods[] = {"off", draft_method(), sn_program_settings.draft.model ? "model" : NULL};
    size_t n = 0;
    for (int repetitive = 1; repetitive >= 0 && drafts_given(); repetitive--)
        for (int k = 0; k < 3; k++) {
            if (!methods[k] || n == capacity) continue;
            out[n] = *c;
            out[n].kind = SN_BENCH_DRAFT;
            out[n].sessions = 1;
            out[n].context = 0;
            out[n].draft = methods[k];
            out[n++].repetitive = repetitive;
        }
    return n;
}

#define SWEEP_EACH(list_, field)                                                                                       \
    for (size_t i = 1; i < (list_).n && n < CASES_MAX; i++) {                                                          \
        out[n] = base;                                                                                                 \
        out[n++].field = (int)(list_).items[i];                                                                        \
    }

/* Training steps of every method over every link; each list is swept by itself. */
static size_t make_training_cases(sn_bench_case *out) {
    size_t n = 0;
    for (size_t k = 0; k < n_links(); k++)
        for (size_t m = 0; m < given.train.n; m++) {
            const sn_bench_case base = {.kind = SN_BENCH_TRAIN,
                                        .nodes = first_of(&given.nodes, 0),
                                        .threads = first_of(&given.threads, 1),
                                        .link = link_at(k),
                                        .sessions = first_of(&given.batch, TRAIN_BATCH),
                                        .train = given.train.items[m]};
            if (n < CASES_MAX) out[n++] = base;
            if (k) continue;
            SWEEP_EACH(given.batch, sessions)
            SWEEP_EACH(given.threads, threads)
            SWEEP_EACH(given.nodes, nodes)
        }
    return n;
}

/* Each list is swept by itself, the others at their first value; forward passes and kills over every link. */
static size_t make_cases(sn_bench_case *out) {
    const sn_bench_case base = {.kind = given.answers ? SN_BENCH_ANSWERS : SN_BENCH_SPEED,
                                .nodes = first_of(&given.nodes, 0),
                                .threads = first_of(&given.threads, 1),
                                .link = link_at(0),
                                .sessions = first_of(&given.sessions, 1),
                                .context = first_of(&given.context, 0)};
    size_t n = 0;
    out[n++] = base;
    SWEEP_EACH(given.context, context)
    SWEEP_EACH(given.sessions, sessions)
    SWEEP_EACH(given.threads, threads)
    SWEEP_EACH(given.nodes, nodes)
#undef SWEEP_EACH
    for (size_t k = 0; k < n_links(); k++) {
        sn_bench_case c = base;
        c.link = link_at(k);
        if (k && n < CASES_MAX) out[n++] = c;
        for (size_t i = 0; i < given.batch.n && n < CASES_MAX; i++) {
            out[n] = c;
            out[n].kind = SN_BENCH_FORWARD;
            out[n++].sessions = (int)given.batch.items[i];
        }
        if (concurrent_prefill_given() && n < CASES_MAX) {
            out[n] = c;
            out[n].kind = SN_BENCH_CONCURRENT;
            out[n].sessions = largest(&given.sessions);
            out[n++].concurrent_prefill = (int)given.concurrent_prefill;
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

/* -- checks -- */

static sn_status check_block_source(sn_err *err) {
    bool many = given.sessions.n > 1 || given.sessions.items[0] > 1, local = sn_program_settings.common.local.given;
    bool lossy = sn_program_settings.common.wire_dtype != SN_F32;
    if ((given.nodes.n > 0) + (sn_program_settings.common.join.n > 0) + local != 1)
        return sn_fail(err, SN_REFUSED,
                       "give one of --nodes N (start nodes on this machine), --join HOST:PORT (measure a running "
                       "swarm) and --local all (compute the blocks in this process)");
    if (local && !sn_program_settings.common.local.all) return sn_fail(err, SN_REFUSED, "--local must be all");
    if (given.train.n &&
        (many || concurrent_prefill_given() || given.kill.n || sn_program_settings.common.push || drafts_given()))
        return sn_fail(err, SN_REFUSED,
                       "--train measures training only: leave out --sessions, --concurrent-prefill, --kill, --push and "
                       "--draft");
    if (given.train.n && lossy)
        return sn_fail(err, SN_REFUSED, "training sends hidden states as float32 only: leave out --wire-dtype");
    if (local && !given.train.n && (many || given.batch.n || concurrent_prefill_given()))
        return sn_fail(err, SN_REFUSED, "--local all has one session: give --nodes 1 to measure several sessions");
    if (local && (given.link.n || sn_program_settings.common.push || lossy))
        return sn_fail(err, SN_REFUSED, "--local all sends nothing: leave out --emulate-link, --push and --wire-dtype");
    if (!given.nodes.n && given.kill.n)
        return sn_fail(err, SN_REFUSED, "--kill needs --nodes: only nodes that were started here are ended");
    if (!given.nodes.n && given.node_options.n)
        return sn_fail(err, SN_REFUSED, "--node-option is for nodes that --nodes starts");
    return SN_OK;
}

static sn_status check_links(sn_err *err) {
    sn_emulated_link link;
    for (size_t i = 0; i < given.link.n; i++)
        if (sn_emulated_link_parse(given.link.items[i], &link, err)) return sn_err_context(err, "--emulate-link");
    return SN_OK;
}

static sn_status check_lengths(const sn_bench_plan *p, sn_err *err) {
    int more = p->extra_tokens_max;
    if (p->context_max > p->hp->n_ctx - more)
        return sn_fail(err, SN_REFUSED,
                       "a context of %d tokens and %d more exceed the context of this model, %d tokens", p->context_max,
                       more, p->hp->n_ctx);
    if (given.train.n && p->prompt_tokens > p->hp->n_ctx - SN_BENCH_VIRTUAL_TOKENS)
        return sn_fail(err, SN_REFUSED,
                       "--prompt-tokens %d and %d virtual tokens exceed the context of this model, %d tokens",
                       p->prompt_tokens, SN_BENCH_VIRTUAL_TOKENS, p->hp->n_ctx);
    if (largest(&given.nodes) > p->hp->n_blocks)
        return sn_fail(err, SN_REFUSED, "--nodes %d: this model has %d blocks", largest(&given.nodes), p->hp->n_blocks);
    return SN_OK;
}

static sn_status check_reports(sn_err *err) {
    const char *const reports[][2] = {
        {"--json-file", given.json_file}, {"--csv-file", given.csv_file}, {"--html-file", given.html_file}};
    sn_status status = SN_OK;
    for (size_t i = 0; i < 3 && !status; i++)
        if (reports[i][1]) status = sn_check_output(reports[i][0], reports[i][1], err);
    return status;
}

/* -- running -- */

static bool same_nodes(const sn_bench_case *a, const sn_bench_case *b) {
    return a->nodes == b->nodes && a->threads == b->threads && a->link == b->link;
}

static sn_status run_case(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, bool *duplicated,
                          sn_bench_row *row, sn_err *err) {
    char what[96];
    snprintf(what, sizeof what, "%s, %d sessions, context %d, link %.30s", sn_bench_test_name(c), c->sessions,
             c->context, c->link ? c->link : "none");
    sn_status status = SN_OK;
    if (c->kind == SN_BENCH_KILL && !*duplicated) { /* another node for the same blocks */
        status = sn_bench_nodes_duplicate(nodes, (size_t)c->nodes / 2, err);
        *duplicated = true;
    }
    sn_progress_bar *bar = sn_progress_bar_begin(what);
    sn_progress_bar_unit(bar, "repeats");
    if (!status) status = (c->kind == SN_BENCH_TRAIN ? sn_bench_train : sn_bench_run)(plan, c, nodes, row, bar, err);
    sn_progress_bar_end(&bar);
    return status;
}

/* Moves the rows of measured cases to the front, and returns how many they are. */
static size_t keep_measured(sn_bench_row *rows, const bool measured[CASES_MAX], size_t n) {
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        sn_bench_row row = rows[i];
        rows[i] = (sn_bench_row){0};
        if (measured[i])
            rows[m++] = row;
        else
            sn_bench_row_fini(&row);
    }
    return m;
}

/* Measures the cases, grouped by the nodes that they need; rows[i] is the result of cases[i] where measured[i]. */
static sn_status run_cases(const sn_bench_plan *plan, const sn_bench_case *cases, size_t n, sn_bench_row *rows,
                           bool measured[CASES_MAX], sn_err *err) {
    bool done[CASES_MAX] = {false};
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        if (done[i]) continue;
        sn_bench_nodes *nodes = NULL;
        bool duplicated = false;
        if (cases[i].nodes) status = sn_bench_nodes_start(plan, &cases[i], &nodes, err);
        for (int kills = 0; kills < 2; kills++) /* kills last: they start another node */
            for (size_t k = i; k < n && !status; k++) {
                if (done[k] || !same_nodes(&cases[i], &cases[k]) || (cases[k].kind == SN_BENCH_KILL) != kills) continue;
                status = run_case(plan, &cases[k], nodes, &duplicated, &rows[k], err);
                done[k] = true;
                measured[k] = !status;
            }
        sn_bench_nodes_stop(&nodes);
    }
    return status;
}

/* -- the command -- */

static char command_line[4096];

static sn_status write_json_file(json_t *report, sn_err *err) {
    bool failed = json_dump_file(report, given.json_file, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    return failed ? sn_fail_write(err, given.json_file, errno) : SN_OK;
}

/* failure: why cases are missing; NULL: none is. */
static sn_status write_reports(const sn_bench_plan *plan, const sn_bench_row *rows, size_t n, const char *failure,
                               sn_err *err) {
    json_t *report = sn_bench_json(plan, command_line, rows, n);
    sn_status status = report ? SN_OK : sn_fail(err, SN_STOP, "out of memory for the report");
    if (failure) json_object_set_new(report, "failure", json_string(failure));
    if (!status && given.json_file) status = write_json_file(report, err);
    if (!status && sn_cli_output.json) status = sn_print_json(json_incref(report), err);
    json_decref(report);
    if (!sn_cli_output.json) sn_bench_print(stdout, plan, rows, n);
    if (!status && given.csv_file) status = sn_bench_csv(given.csv_file, plan, rows, n, err);
    if (!status && given.html_file) status = sn_bench_html(given.html_file, plan, command_line, rows, n, err);
    return status;
}

static int64_t max_of_three(int64_t a, int64_t b, int64_t c) { return a > b ? (a > c ? a : c) : b > c ? b : c; }

static sn_status run_benchmark(sn_model *model, sn_err *err) {
    sn_bench_case cases[CASES_MAX] = {0};
    size_t n = given.train.n ? make_training_cases(cases) : make_cases(cases);
    const int sessions = largest(&given.sessions), batch = largest(&given.batch);
    sn_bench_plan plan = {.model = model,
                          .hp = sn_model_hparams(model),
                          .prompt_tokens = (int)given.prompt_tokens,
                          .new_tokens = (int)given.new_tokens,
                          .repeat = (int)given.repeat,
                          .warmup = (int)given.warmup,
                          .sessions_max = sessions > batch ? sessions : batch,
                          .context_max = largest(&given.context),
                          .extra_tokens_max = (int)max_of_three(
                              given.prompt_tokens + (drafts_given() || given.answers ? given.new_tokens : 0),
                              given.new_tokens, concurrent_prefill_given() ? given.concurrent_prefill : 0),
                          .push = sn_program_settings.common.push,
                          .local = sn_program_settings.common.local.given,
                          .join = sn_program_settings.common.join,
                          .node_options = given.node_options,
                          .kv_dtype = (sn_kv_dtype)sn_program_settings.common.kv_dtype,
                          .wire_dtype = (sn_dtype)sn_program_settings.common.wire_dtype,
                          .timeout_ms = (int)sn_program_settings.common.timeout_ms,
                          .prefill_depth = (int)sn_program_settings.common.prefill_depth};
    sn_bench_row *rows = NULL;
    sn_status status = sn_device_id_parse(sn_program_settings.common.device, &plan.device, err);
    if (status) return sn_err_context(err, "--device");
    status = check_lengths(&plan, err);
    if (!status) status = sn_calloc(&rows, n, sizeof *rows, err);
    bool measured[CASES_MAX] = {false};
    if (!status) status = run_cases(&plan, cases, n, rows, measured, err);
    size_t m = rows ? keep_measured(rows, measured, n) : 0;
    if (m) sn_bench_draft_compare(rows, m);
    if (m && status) { /* what was measured is not lost; the exit code is that of the failure */
        sn_err writing;
        if (write_reports(&plan, rows, m, err->text, &writing)) fprintf(stderr, "swarm bench: %s\n", writing.text);
    } else if (!status) {
        status = write_reports(&plan, rows, m, NULL, err);
    }
    for (size_t i = 0; i < n && rows; i++) sn_bench_row_fini(&rows[i]);
    free(rows);
    return status;
}

/* -- a server -- */

static sn_status write_server_reports(const sn_server_plan *plan, const sn_server_result *result, sn_err *err) {
    json_t *report = sn_server_json(plan, command_line, result);
    sn_status status = report ? SN_OK : sn_fail(err, SN_STOP, "out of memory for the report");
    if (!status && given.json_file) status = write_json_file(report, err);
    if (!status && sn_cli_output.json) status = sn_print_json(json_incref(report), err);
    json_decref(report);
    if (!sn_cli_output.json) sn_server_print(stdout, plan, result);
    if (!status && given.csv_file) status = sn_server_csv(given.csv_file, plan, result, err);
    if (!status && given.html_file) status = sn_server_html(given.html_file, plan, command_line, result, err);
    return status;
}

static sn_status run_server(sn_err *err) {
    const sn_server_plan plan = {.url = given.server,
                                 .api_key_file = given.api_key_file,
                                 .chat = given.chat,
                                 .clients = given.clients,
                                 .prompt_words = (int)given.prompt_tokens,
                                 .new_tokens = (int)given.new_tokens,
                                 .repeat = (int)given.repeat,
                                 .warmup = (int)given.warmup,
                                 .seed = (int)given.seed,
                                 .timeout_ms = (int)sn_program_settings.common.timeout_ms};
    sn_server_result result;
    if (sn_program_settings.common.model || given.nodes.n || sn_program_settings.common.join.n ||
        sn_program_settings.common.local.given)
        return sn_fail(err, SN_REFUSED, "--server measures a server: leave out --model, --nodes, --join and --local");
    sn_status status = check_reports(err);
    if (status) return status;
    status = sn_server_measure(&plan, &result, err);
    if (result.n && status) { /* what was measured is not lost */
        sn_err writing;
        if (write_server_reports(&plan, &result, &writing)) fprintf(stderr, "swarm bench: %s\n", writing.text);
    } else if (!status) {
        status = write_server_reports(&plan, &result, err);
    }
    sn_server_result_fini(&result);
    return status;
}

static sn_status bench_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_model *model = NULL;
    sn_catch_interrupts();
    if (given.server) return run_server(err);
    if (!sn_program_settings.common.model)
        return sn_fail(err, SN_REFUSED, "--model is missing: give the model to measure, or --server URL");
    sn_status status = check_block_source(err);
    if (!status) status = check_links(err);
    if (!status) status = check_reports(err);
    if (!status) status = sn_model_open(sn_program_settings.common.model, &model, err);
    if (!status) status = run_benchmark(model, err);
    sn_model_close(&model);
    return status;
}

/* Keeps the command line for the reports. */
static void bench_prepare(int argc, char *const *argv) {
    size_t len = 0;
    for (int i = 0; i < argc && len < sizeof command_line; i++)
        len += (size_t)snprintf(command_line + len, sizeof command_line - len, "%s%s", i ? " " : "swarm ", argv[i]);
}

static const sn_option_group *const groups[] = {&model_group,  &where_group,    &what_group,  &sn_group_bench_draft,
                                                &report_group, &sn_group_force, &sn_group_log};

const sn_cli_command sn_cmd_bench = {
    .command = {.program = "swarm bench",
                .summary = "measure the speed of a swarm",
                .synopsis =
                    "(--server URL | --model PATH (--nodes LIST | --join HOST:PORT... | --local all)) [options]",
                .about = "Measures prefill, time to first token, decoding and inter-token latency, and prints a table: "
                         "medians over the repeats, with the largest deviation of a repeat. Each list is swept by "
                         "itself, with the first value of the others.\n\n"
                         "A prompt is prefilled, and tokens are decoded, after a context of the given length; each "
                         "session and each repeat has other tokens. Tokens per second are those of all sessions "
                         "together. Below each row follow the times of one step of one session at each hop.\n\n"
                         "--server measures any server of the OpenAI API by streams instead: tokens per second of all "
                         "clients, and the time to the first token.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .notes =
                    "--json prints {\"command\", \"machine\", \"device\", \"model\", \"rows\": [{\"test\", \"nodes\", "
                    "\"threads\", \"link\", \"push\", \"wire_dtype\", \"sessions\", \"context\", "
                    "\"prefill_tok_s\", \"ttft_ms\", \"decode_tok_s\", \"itl_ms\": {\"p50\", \"p95\", "
                    "\"p99\"}, \"hops\"}]}. Each median has the range of the repeats as *_range; a row of --answers "
                    "has \"answer_tok_s\", one of --train \"method\" and \"train_tok_s\", one of --draft \"draft\", "
                    "\"repetitive\", "
                    "\"decode_tokens\", \"decode_steps\", \"drafted\", \"accepted\" and \"same_text\". With --server: "
                    "\"server\" in place of \"model\", and rows of \"clients\", \"tok_s\", \"first_ms_p50\", "
                    "\"first_ms_p99\", \"between_ms_p50\", \"between_ms_p99\", \"prompt_tokens\", "
                    "\"answer_tokens\", \"requests\" and \"errors\".",
                .exit_codes = sn_exit_codes},
    .prepare = bench_prepare,
    .run = bench_main,
};
