/* The table has a part for each model: its nodes, then a line for each run of blocks with the same coverage. It fits
 * 120 columns with IPv4 addresses. The JSON has all that the nodes say. */
#include "cli/status_view.h"

#include "base/text.h"
#include "cli/io.h"
#include "client/routing/candidates.h"

#include <stdio.h>
#include <string.h>

enum { BLOCKS_SHOWN_MAX = 1024 }; /* an announcement may claim any number of blocks */

sn_status_coverage sn_status_block_coverage(const sn_status_row *rows, size_t n, const uint8_t model[SN_KEY_SIZE],
                                            uint64_t block) {
    sn_status_coverage cover = {0};
    for (size_t i = 0; i < n; i++) {
        const sn_announcement *a = &rows[i].announcement;
        if (!rows[i].reply.answered || a->state != SN_NODE_ONLINE || memcmp(a->model, model, SN_KEY_SIZE)) continue;
        if (block < a->first_block || block >= a->end_block) continue;
        cover.nodes++;
        cover.tokens_per_s += a->tokens_per_s;
    }
    return cover;
}

static int n_blocks_shown(const sn_announcement *a) {
    return a->n_blocks < BLOCKS_SHOWN_MAX ? (int)a->n_blocks : BLOCKS_SHOWN_MAX;
}

static bool is_first_of_model(const sn_status_row *rows, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (!memcmp(rows[k].announcement.model, rows[i].announcement.model, SN_KEY_SIZE)) return false;
    return true;
}

/* The end of the run of blocks from `block` on that have the same coverage. */
static int coverage_run_end(const sn_status_row *rows, size_t n, const uint8_t model[SN_KEY_SIZE], int block, int end) {
    sn_status_coverage cover = sn_status_block_coverage(rows, n, model, (uint64_t)block);
    for (block++; block < end; block++) {
        sn_status_coverage next = sn_status_block_coverage(rows, n, model, (uint64_t)block);
        if (next.nodes != cover.nodes || next.tokens_per_s != cover.tokens_per_s) break;
    }
    return block;
}

/* -- for people -- */

static void print_node(const sn_status_row *r) {
    const sn_announcement *a = &r->announcement;
    const sn_msg_status_reply *s = &r->reply.status;
    char id[9], blocks[48], free_kv[32] = "", sessions[48] = "", queue[24] = "", rate[24] = "-", rtt[24] = "";
    snprintf(blocks, sizeof blocks, "%llu:%llu", (unsigned long long)a->first_block, (unsigned long long)a->end_block);
    if (a->tokens_per_s) snprintf(rate, sizeof rate, "%llu", (unsigned long long)a->tokens_per_s);
    if (r->reply.answered) {
        sn_format_size(s->kv_bytes_max > s->kv_bytes ? s->kv_bytes_max - s->kv_bytes : 0, free_kv);
        snprintf(sessions, sizeof sessions, "%llu/%llu", (unsigned long long)s->sessions,
                 (unsigned long long)s->sessions_max);
        snprintf(queue, sizeof queue, "%llu", (unsigned long long)s->queued_steps);
        snprintf(rtt, sizeof rtt, "%.1f ms", (double)r->reply.rtt_us / 1000);
    }
    printf("%-14.14s %-8s %-9s %-8s %8s %8s %5s %10s %9s  %-8.8s %s\n", *a->name ? a->name : "-",
           sn_hex(a->node, 4, id), blocks, r->reply.answered ? sn_node_state_name(a->state) : "no reply", rate,
           sessions, queue, free_kv, rtt, a->version, a->address);
    if (!r->reply.answered) printf("%-14s %s\n", "", r->reply.error);
    if (r->reply.answered && s->joined && !s->bootstrap_peers)
        printf("%-14s no node answers at the %llu %s that it joined\n", "", (unsigned long long)s->joined,
               s->joined == 1 ? "address" : "addresses");
    for (size_t i = 0; i < r->n_adapters; i++) {
        char hash[17];
        printf("%-14s adapter %s@%s\n", "", r->adapters[i].name, sn_hex(r->adapters[i].hash, 8, hash));
    }
}

/* A line for each run of blocks with the same coverage. */
static void print_coverage(const sn_status_row *rows, size_t n, const sn_announcement *of) {
    char blocks[32];
    int end = n_blocks_shown(of), missing = 0;
    printf("\n%-11s %5s %8s\n", "BLOCKS", "NODES", "TOKENS/S");
    for (int b = 0, e; b < end; b = e) {
        e = coverage_run_end(rows, n, of->model, b, end);
        sn_status_coverage cover = sn_status_block_coverage(rows, n, of->model, (uint64_t)b);
        snprintf(blocks, sizeof blocks, "%d:%d", b, e);
        if (cover.nodes && cover.tokens_per_s)
            printf("%-11s %5d %8llu\n", blocks, cover.nodes, (unsigned long long)cover.tokens_per_s);
        else if (cover.nodes)
            printf("%-11s %5d %8s\n", blocks, cover.nodes, "-");
        else
            printf("%-11s no node\n", blocks);
        missing += cover.nodes ? 0 : e - b;
    }
    if (missing) printf("%d of its blocks are not served\n", missing);
}

/* The name that a node of this model gives it; "" when none has answered. */
static const char *model_name(const sn_status_row *rows, size_t n, const uint8_t model[SN_KEY_SIZE]) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].reply.answered && !memcmp(rows[i].announcement.model, model, SN_KEY_SIZE))
            return rows[i].reply.status.model_name;
    return "";
}

/* The nodes of a model, and how many serve each of its blocks. */
static void print_model(const sn_status_row *rows, size_t n, const sn_announcement *of) {
    char id[9];
    const char *name = model_name(rows, n, of->model);
    printf("%s (%s), %llu blocks\n", *name ? name : "model", sn_hex(of->model, 4, id),
           (unsigned long long)of->n_blocks);
    printf("%-14s %-8s %-9s %-8s %8s %8s %5s %10s %9s  %-8s %s\n", "NAME", "ID", "BLOCKS", "STATE", "TOKENS/S",
           "SESSIONS", "QUEUE", "FREE KV", "RTT", "VERSION", "ADDRESS");
    for (size_t i = 0; i < n; i++)
        if (!memcmp(rows[i].announcement.model, of->model, SN_KEY_SIZE)) print_node(&rows[i]);
    print_coverage(rows, n, of);
}

void sn_status_print(const sn_status_row *rows, size_t n) {
    for (size_t i = 0, models = 0; i < n; i++) {
        if (!is_first_of_model(rows, i)) continue;
        if (models++) putchar('\n');
        print_model(rows, n, &rows[i].announcement);
    }
}

/* -- for scripts -- */

static void set_number(json_t *o, const char *name, uint64_t value) {
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

static json_t *node_json(const sn_status_row *r) {
    const sn_announcement *a = &r->announcement;
    const sn_msg_status_reply *s = &r->reply.status;
    char id[2 * SN_KEY_SIZE + 1], model[2 * SN_KEY_SIZE + 1], key[2 * SN_KEY_SIZE + 1], blocks[48];
    snprintf(blocks, sizeof blocks, "%llu:%llu", (unsigned long long)a->first_block, (unsigned long long)a->end_block);
    json_t *o = json_pack("{ss ss ss ss ss ss ss ss sb}", "id", sn_hex(a->node, SN_KEY_SIZE, id), "name", a->name,
                          "address", a->address, "curve_key", sn_hex(a->curve_key, SN_KEY_SIZE, key), "blocks", blocks,
                          "state", sn_node_state_name(a->state), "model", sn_hex(a->model, SN_KEY_SIZE, model),
                          "version", a->version, "answered", r->reply.answered);
    set_number(o, "tokens_per_s", a->tokens_per_s);
    set_number(o, "decode_us", a->decode_us);
    set_number(o, "prompt_tokens_per_s", a->prompt_tokens_per_s);
    if (!r->reply.answered) {
        json_object_set_new(o, "error", json_string(r->reply.error));
        return o;
    }
    json_object_set_new(o, "rtt_ms", json_real((double)r->reply.rtt_us / 1000));
    const struct {
        const char *name;
        uint64_t value;
    } stats[] = {{"uptime_ms", s->uptime_ms},
                 {"sessions", s->sessions},
                 {"sessions_max", s->sessions_max},
                 {"kv_bytes", s->kv_bytes},
                 {"kv_bytes_max", s->kv_bytes_max},
                 {"weight_bytes", s->weight_bytes},
                 {"queued_steps", s->queued_steps},
                 {"steps", s->steps},
                 {"tokens", s->tokens},
                 {"forward_passes", s->forward_passes},
                 {"compute_us", s->compute_us},
                 {"device_transfer_bytes", s->device_transfer_bytes},
                 {"shared_pages", s->shared_pages},
                 {"prefix_cached_tokens", s->prefix_cached_tokens},
                 {"swapped_bytes", s->swapped_bytes},
                 {"joined", s->joined},
                 {"bootstrap_peers", s->bootstrap_peers}};
    for (size_t i = 0; i < sizeof stats / sizeof *stats; i++) set_number(o, stats[i].name, stats[i].value);
    json_t *adapters = json_array();
    for (size_t i = 0; i < r->n_adapters; i++) {
        char hash[2 * SN_HASH_SIZE + 1];
        json_array_append_new(adapters, json_pack("{ss ss}", "name", r->adapters[i].name, "hash",
                                                  sn_hex(r->adapters[i].hash, SN_HASH_SIZE, hash)));
    }
    json_object_set_new(o, "adapters", adapters);
    json_object_set_new(o, "model_name", json_string(s->model_name));
    json_object_set_new(o, "draining", json_boolean(s->draining));
    return o;
}

static json_t *coverage_json(const sn_status_row *rows, size_t n, const sn_announcement *of) {
    char model[2 * SN_KEY_SIZE + 1];
    json_t *counts = json_array(), *rates = json_array(), *gaps = json_array();
    int end = n_blocks_shown(of);
    for (int b = 0; b < end; b++) {
        sn_status_coverage cover = sn_status_block_coverage(rows, n, of->model, (uint64_t)b);
        json_array_append_new(counts, json_integer(cover.nodes));
        json_array_append_new(rates, json_integer((json_int_t)cover.tokens_per_s));
    }
    for (int b = 0, e; b < end; b = e) {
        char blocks[32];
        e = coverage_run_end(rows, n, of->model, b, end);
        snprintf(blocks, sizeof blocks, "%d:%d", b, e);
        if (!sn_status_block_coverage(rows, n, of->model, (uint64_t)b).nodes)
            json_array_append_new(gaps, json_string(blocks));
    }
    return json_pack("{ss so so so}", "model", sn_hex(of->model, SN_KEY_SIZE, model), "nodes_per_block", counts,
                     "tokens_per_s_per_block", rates, "gaps", gaps);
}

json_t *sn_status_json(const sn_status_row *rows, size_t n) {
    json_t *nodes = json_array(), *coverage = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(nodes, node_json(&rows[i]));
        if (is_first_of_model(rows, i)) json_array_append_new(coverage, coverage_json(rows, n, &rows[i].announcement));
    }
    return json_pack("{so so}", "nodes", nodes, "coverage", coverage);
}
