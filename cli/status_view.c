/* The table has a part for each model: its nodes, then a line for each run of blocks with the same coverage. It fits
 * 120 columns with IPv4 addresses. The JSON has all that the nodes say. */
#include "cli/status_view.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>

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

void sn_status_print(const json_t *status) {
    const json_t *of, *nodes = json_object_get(status, "nodes");
    size_t i, left = json_array_size(nodes);
    json_array_foreach(json_object_get(status, "coverage"), i, of) {
        if (i) putchar('\n');
        left -= print_model(nodes, of);
    }
    if (left) printf("\n%zu further nodes announce other models: --json lists them, --model shows one model\n", left);
}
