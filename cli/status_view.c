/* The table has a part for each model: its nodes, then a line for each run of blocks with the same coverage. It fits
 * 120 columns with IPv4 addresses. The JSON has all that the nodes say. */
#include "cli/status_view.h"

#include "base/text.h"
#include "client/routing/candidates.h"

#include <stdio.h>
#include <string.h>

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
    int end = sn_status_blocks_shown(of), missing = 0;
    printf("\n%-11s %5s %8s\n", "BLOCKS", "NODES", "TOKENS/S");
    for (int b = 0, e; b < end; b = e) {
        e = sn_status_run_end(rows, n, of->model, b, end);
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
        if (!sn_status_is_first_of_model(rows, i)) continue;
        if (models++) putchar('\n');
        print_model(rows, n, &rows[i].announcement);
    }
}
