/* swarm status: who serves what. */
#include "client/cmd.h"

#include "base/clock.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ASK_TIMEOUT_MS = 2000, BLOCKS_SHOWN_MAX = 1024 }; /* an announcement may speak of any number of blocks */

static const char *model_path;

static const sn_option options_table[] = {
    SN_OPT_STRINGS("join", "ADDRESS", &sn_given.join,
                   "tcp://HOST:PORT of a node of the swarm; any one knows all others"),
    SN_OPT_STRING("model", "PATH", &model_path, "show only the nodes that serve this model"),
    SN_OPT_STRING("identity", "FILE", &sn_given.identity, "keys made by 'swarm keygen'"),
    SN_OPT_INT("timeout", "SECONDS", &sn_given.timeout_s, 1, 86400, "how long to wait for the first answer"),
    SN_OPT_FLAG("json", &sn_given.json, "print {\"nodes\", \"coverage\"}"),
};

/* A node: what it announced, and what it said when asked. */
typedef struct row {
    const sn_announcement *a;
    bool answered;
    sn_msg_status_is s;
    double answer_ms;
    char why_not[160];
} row;

static sn_status ask(sn_link *link, row *r, sn_err *err) {
    sn_msg *question = NULL, *answer = NULL;
    sn_err why = {0};
    int64_t before = sn_now_us();
    sn_status status = sn_msg_new(SN_MSG_STATUS, sn_link_request(link), &question, err);
    if (status) return status;
    question->status.protocol = SN_PROTOCOL;
    status = sn_link_call(link, r->a->address, r->a->curve_key, &question, SN_MSG_STATUS_IS, ASK_TIMEOUT_MS, NULL,
                          &answer, &why);
    r->answered = !status;
    r->answer_ms = (double)(sn_now_us() - before) / 1000;
    if (r->answered)
        r->s = answer->status_is;
    else
        snprintf(r->why_not, sizeof r->why_not, "%.159s", why.text);
    sn_msg_free(&answer);
    sn_msg_free(&question);
    return status == SN_STOP ? sn_fail(err, SN_STOP, "%s", why.text) : SN_OK;
}

/* How many live nodes hold the block of the model. */
static int holders(const row *rows, size_t n, const uint8_t model[SN_KEY_SIZE], uint64_t block) {
    int count = 0;
    for (size_t i = 0; i < n; i++) {
        const sn_announcement *a = rows[i].a;
        count += rows[i].answered && a->state == SN_NODE_ONLINE && !memcmp(a->model, model, SN_KEY_SIZE) &&
                 a->first_block <= block && block < a->end_block;
    }
    return count;
}

static uint64_t blocks_shown(const sn_announcement *a) {
    return a->n_blocks < BLOCKS_SHOWN_MAX ? a->n_blocks : BLOCKS_SHOWN_MAX;
}

static bool is_first_of_model(const row *rows, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (!memcmp(rows[k].a->model, rows[i].a->model, SN_KEY_SIZE)) return false;
    return true;
}

/* -- for people ------------------------------------------------------------------------------------------------------
 */

static void print_row(const row *r) {
    const sn_announcement *a = r->a;
    char id[9], model[9], blocks[24], used[32], all[32], kv[72] = "", sessions[32] = "", queue[16] = "",
         moved[32] = "";
    sn_hex(a->node, 4, id);
    sn_hex(a->model, 4, model);
    snprintf(blocks, sizeof blocks, "%llu:%llu", (unsigned long long)a->first_block, (unsigned long long)a->end_block);
    if (r->answered) {
        snprintf(kv, sizeof kv, "%s / %s", sn_format_size(r->s.kv_bytes, used), sn_format_size(r->s.kv_bytes_max, all));
        snprintf(sessions, sizeof sessions, "%llu / %llu", (unsigned long long)r->s.sessions,
                 (unsigned long long)r->s.sessions_max);
        snprintf(queue, sizeof queue, "%llu", (unsigned long long)r->s.queue);
        sn_format_size(r->s.guard_bytes, moved);
    }
    printf("%-16.16s %-8s %-9s %-9s %-8s %-9s %-23s %-5s %-10s %-10.10s %s\n", *a->name ? a->name : "-", id, blocks,
           r->answered ? sn_node_state_name(a->state) : "silent", model, sessions, kv, queue, moved, a->version,
           a->address);
    if (!r->answered) printf("%-16s %s\n", "", r->why_not);
}

/* One character a block: how many live nodes hold it. */
static void print_coverage(const row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!is_first_of_model(rows, i)) continue;
        char model[9];
        uint64_t n_blocks = blocks_shown(rows[i].a), missing = 0;
        printf("\nmodel %s, holders of each of its %llu blocks: ", sn_hex(rows[i].a->model, 4, model),
               (unsigned long long)n_blocks);
        for (uint64_t b = 0; b < n_blocks; b++) {
            int count = holders(rows, n, rows[i].a->model, b);
            missing += !count;
            putchar(count > 9 ? '+' : '0' + count);
        }
        if (missing) printf("; %llu blocks are served by nobody", (unsigned long long)missing);
        putchar('\n');
    }
}

static void print_table(const row *rows, size_t n) {
    printf("%-16s %-8s %-9s %-9s %-8s %-9s %-23s %-5s %-10s %-10s %s\n", "NAME", "ID", "BLOCKS", "STATE", "MODEL", "SESSIONS",
           "KV MEMORY", "QUEUE", "MOVED", "VERSION", "ADDRESS");
    for (size_t i = 0; i < n; i++) print_row(&rows[i]);
    print_coverage(rows, n);
}

/* -- for scripts -----------------------------------------------------------------------------------------------------
 */

static json_t *row_json(const row *r) {
    const sn_announcement *a = r->a;
    char id[2 * SN_KEY_SIZE + 1], model[2 * SN_KEY_SIZE + 1], key[2 * SN_KEY_SIZE + 1], blocks[48];
    snprintf(blocks, sizeof blocks, "%llu:%llu", (unsigned long long)a->first_block, (unsigned long long)a->end_block);
    json_t *o = json_pack("{ss ss ss ss ss ss ss ss sb}", "id", sn_hex(a->node, SN_KEY_SIZE, id), "name", a->name,
                          "address", a->address, "curve_key", sn_hex(a->curve_key, SN_KEY_SIZE, key), "blocks", blocks,
                          "state", sn_node_state_name(a->state), "model", sn_hex(a->model, SN_KEY_SIZE, model), "version",
                          a->version, "answered", r->answered);
    json_object_set_new(o, "tokens_per_s", json_integer((json_int_t)a->tokens_per_s));
    if (!r->answered) {
        json_object_set_new(o, "error", json_string(r->why_not));
        return o;
    }
    json_object_set_new(o, "answer_ms", json_real(r->answer_ms));
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {{"uptime_ms", r->s.uptime_ms},
                   {"sessions", r->s.sessions},
                   {"sessions_max", r->s.sessions_max},
                   {"kv_bytes", r->s.kv_bytes},
                   {"kv_bytes_max", r->s.kv_bytes_max},
                   {"weight_bytes", r->s.weight_bytes},
                   {"queue", r->s.queue},
                   {"steps", r->s.steps},
                   {"tokens", r->s.tokens},
                   {"passes", r->s.passes},
                   {"compute_us", r->s.compute_us},
                   {"guard_bytes", r->s.guard_bytes},
                   {"shared_pages", r->s.shared_pages},
                   {"shared_tokens", r->s.shared_tokens},
                   {"idle_bytes", r->s.idle_bytes}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(o, figures[i].name, json_integer((json_int_t)figures[i].value));
    json_object_set_new(o, "draining", json_boolean(r->s.draining));
    return o;
}

static sn_status print_status_json(const row *rows, size_t n, sn_err *err) {
    json_t *nodes = json_array(), *coverage = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(nodes, row_json(&rows[i]));
        if (!is_first_of_model(rows, i)) continue;
        char model[2 * SN_KEY_SIZE + 1];
        json_t *counts = json_array();
        for (uint64_t b = 0; b < blocks_shown(rows[i].a); b++)
            json_array_append_new(counts, json_integer(holders(rows, n, rows[i].a->model, b)));
        json_array_append_new(coverage, json_pack("{ss so}", "model", sn_hex(rows[i].a->model, SN_KEY_SIZE, model),
                                                  "holders_of_block", counts));
    }
    return sn_print_json(json_pack("{so so}", "nodes", nodes, "coverage", coverage), err);
}

/* -- the command -----------------------------------------------------------------------------------------------------
 */

static sn_status show(sn_link *link, sn_err *err) {
    size_t n = sn_directory_count(sn_link_directory(link));
    row *rows = NULL;
    sn_announcement *copies = NULL; /* the directory's own may go while nodes are asked */
    sn_status status = sn_calloc(&rows, n, sizeof *rows, err);
    if (!status) status = sn_calloc(&copies, n, sizeof *copies, err);
    for (size_t i = 0; i < n && !status; i++) {
        sn_announcement_copy(&copies[i], sn_directory_at(sn_link_directory(link), i));
        sn_make_plain(copies[i].name);
        sn_make_plain(copies[i].version);
        sn_make_plain(copies[i].address);
        rows[i].a = &copies[i];
    }
    for (size_t i = 0; i < n && !status && !sn_interrupted; i++) status = ask(link, &rows[i], err);
    if (!status && sn_interrupted) status = sn_fail(err, SN_RETRY, "interrupted");
    if (!status && sn_given.json)
        status = print_status_json(rows, n, err);
    else if (!status)
        print_table(rows, n);
    free(copies);
    free(rows);
    return status;
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
    sn_hash id;
    if (!sn_given.join.n) return sn_fail(err, SN_REFUSED, "give --join ADDRESS of any node of the swarm");
    sn_catch_interrupts();
    sn_status status = model_path ? model_id(&id, err) : SN_OK;
    if (status) return status;
    sn_progress_shown *shown = sn_progress_begin("asking the swarm");
    status = sn_link_open(sn_given.join.items, sn_given.join.n, sn_given.identity, NULL, &link, err);
    if (!status) status = sn_link_discover(link, model_path ? &id : NULL, (int)sn_given.timeout_s * 1000, err);
    if (!status) status = show(link, err);
    sn_progress_end(&shown);
    sn_link_close(&link);
    return status;
}

int sn_cmd_status(int argc, char **argv) {
    const sn_option_group groups[] = {{"Options:", options_table, sizeof options_table / sizeof *options_table},
                                      sn_group_log};
    const sn_command command = {.program = "swarm status",
                                .synopsis = "--join ADDRESS [options]",
                                .about = "Shows the nodes of a swarm: which blocks of which model each serves, its "
                                         "state, sessions, memory for keys and "
                                         "values, queue, and the bytes that it moved to, between and from its "
                                         "devices; and for each block how many nodes hold it.",
                                .groups = groups,
                                .n_groups = sizeof groups / sizeof *groups,
                                .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
