/* swarm route: the route that a new session would take, and why.
 *
 * The chain is opened with plan_only, so it plans a route and opens no session. client/chain/chain.h gives all
 * candidates with their costs; this file prints the legs of the route and, with --explain, why each other candidate was
 * rejected, as text or as JSON. */
#include "base/parse.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "client/chain/chain.h"

#include <stdio.h>
#include <string.h>

static bool explain;
static int64_t ctx = 2048;

static const sn_option route_options[] = {
    SN_OPT_FLAG("explain", &explain, "also show what each hop costs, and why other nodes are rejected"),
    SN_OPT_INT("ctx", "N", &ctx, 1, 1 << 30,
               "length of the session's timeline in tokens, for which KV memory is needed"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print {\"hops\", \"rejected\"}; times in microseconds"),
};
static const sn_option_group route_group = SN_OPTION_GROUP("Route:", route_options);

typedef struct label {
    char name[40], id[2 * SN_KEY_SIZE + 1], address[SN_ADDRESS_MAX + 1];
} label;

static label node_label(const sn_announcement *node) {
    label l = {.name = "local"};
    if (!node) return l;
    sn_hex(node->node, SN_KEY_SIZE, l.id);
    snprintf(l.name, sizeof l.name, "%.16s", *node->name ? node->name : l.id);
    snprintf(l.address, sizeof l.address, "%s", node->address);
    sn_sanitize_text(l.name);
    sn_sanitize_text(l.address);
    return l;
}

static double ns_to_us(int64_t ns) { return (double)ns / 1000; }
static double ns_to_ms(int64_t ns) { return (double)ns / 1e6; }

static bool is_on_route(const sn_route_explanation *p, size_t candidate) {
    for (size_t i = 0; i < p->route.n && !p->no_route.status; i++)
        if (p->route.legs[i].candidate == candidate) return true;
    return false;
}

/* "slower by 2.1 ms", "banned for 12 s more", "other weights". */
static const char *rejection_reason(const sn_route_explanation *p, size_t i, char out[80]) {
    const sn_candidate *o = &p->candidates.at[i];
    if (o->eligibility == SN_INELIGIBLE_BANNED)
        snprintf(out, 80, "banned for %lld s more", (long long)(p->ban_left_us[i] + 999999) / 1000000);
    else if (o->eligibility == SN_INELIGIBLE_STATE && o->node)
        snprintf(out, 80, "%s", sn_node_state_name(o->node->state));
    else if (o->eligibility != SN_ELIGIBLE)
        snprintf(out, 80, "%s", sn_eligibility_name(o->eligibility));
    else if (p->no_route.status || p->cost_through_ns[i] == INT64_MAX)
        snprintf(out, 80, "no route leads over it");
    else if (p->cost_through_ns[i] < p->route.cost_ns)
        snprintf(out, 80, "faster by %.3f ms, but the route was sampled",
                 ns_to_ms(p->route.cost_ns - p->cost_through_ns[i]));
    else
        snprintf(out, 80, "slower by %.3f ms", ns_to_ms(p->cost_through_ns[i] - p->route.cost_ns));
    return out;
}

/* -- for people -- */

static void print_hops(const sn_route_explanation *p) {
    const sn_route *r = &p->route;
    printf("%-10s %-16s %10s %10s %10s  %s\n", "BLOCKS", "NODE", "NETWORK", "QUEUE", "COMPUTE", "ADDRESS");
    for (size_t i = 0; i < r->n; i++) {
        const sn_route_leg *leg = &r->legs[i];
        const sn_candidate *o = &p->candidates.at[leg->candidate];
        label l = node_label(leg->node);
        char blocks[24];
        snprintf(blocks, sizeof blocks, "%d:%d", leg->first, leg->end);
        printf("%-10s %-16s %7.3f ms %7.3f ms %7.3f ms  %s%s\n", blocks, l.name,
               ns_to_ms(sn_route_network_ns(p->candidates.at, r->legs, r->n, i, sn_program_settings.common.push)),
               ns_to_ms(o->queue_ns), ns_to_ms((leg->end - leg->first) * o->block_ns), l.address,
               leg->node && !o->rtt_measured ? " (round trip not measured)" : "");
    }
    printf("%-10s %-16s %7.3f ms\n", "return", "",
           ns_to_ms(sn_route_network_ns(p->candidates.at, r->legs, r->n, r->n, sn_program_settings.common.push)));
}

static void print_rejected(const sn_route_explanation *p) {
    size_t shown = 0;
    for (size_t i = 0; i < p->candidates.n; i++) {
        const sn_candidate *o = &p->candidates.at[i];
        if (!o->node || is_on_route(p, i)) continue;
        label l = node_label(o->node);
        char reason[80], blocks[24];
        if (!shown++) puts("\nrejected:");
        snprintf(blocks, sizeof blocks, "%d:%d", (int)o->node->first_block, (int)o->node->end_block);
        printf("%-10s %-16s %s\n", blocks, l.name, rejection_reason(p, i, reason));
    }
}

static void print_explanation(const sn_route_explanation *p) {
    if (!p->no_route.status) {
        printf("a token takes %.3f ms over %zu %s%s\n", ns_to_ms(p->route.cost_ns), p->route.n,
               p->route.n == 1 ? "hop" : "hops", p->kv_full ? ", but a node has little KV memory for the session" : "");
        for (size_t i = 0; i < p->route.n && !explain; i++)
            printf("%s%d:%d %s", i ? ", " : "", p->route.legs[i].first, p->route.legs[i].end,
                   node_label(p->route.legs[i].node).name);
        if (explain)
            print_hops(p);
        else
            putchar('\n');
    }
    if (explain) print_rejected(p);
}

/* -- for scripts -- */

static json_t *candidate_json(const sn_announcement *node, int first, int end) {
    char blocks[24];
    label l = node_label(node);
    snprintf(blocks, sizeof blocks, "%d:%d", first, end);
    return json_pack("{ss ss ss ss}", "node", l.name, "id", l.id, "address", l.address, "blocks", blocks);
}

static sn_status print_explanation_json(const sn_route_explanation *p, sn_err *err) {
    json_t *hops = json_array(), *rejected = json_array(), *all = json_object();
    const sn_route *r = &p->route;
    for (size_t i = 0; i < r->n && !p->no_route.status; i++) {
        const sn_route_leg *leg = &r->legs[i];
        const sn_candidate *o = &p->candidates.at[leg->candidate];
        json_t *hop = candidate_json(leg->node, leg->first, leg->end);
        json_object_set_new(hop, "network_us",
                            json_real(ns_to_us(sn_route_network_ns(p->candidates.at, r->legs, r->n, i,
                                                                   sn_program_settings.common.push))));
        json_object_set_new(hop, "queue_us", json_real(ns_to_us(o->queue_ns)));
        json_object_set_new(hop, "compute_us", json_real(ns_to_us((leg->end - leg->first) * o->block_ns)));
        json_object_set_new(hop, "rtt_us", json_real(ns_to_us(o->rtt_ns)));
        json_object_set_new(hop, "rtt_measured", json_boolean(o->rtt_measured));
        json_array_append_new(hops, hop);
    }
    for (size_t i = 0; i < p->candidates.n; i++) {
        const sn_announcement *node = p->candidates.at[i].node;
        if (!node || is_on_route(p, i)) continue;
        char reason[80];
        json_t *one = candidate_json(node, (int)node->first_block, (int)node->end_block);
        json_object_set_new(one, "reason", json_string(rejection_reason(p, i, reason)));
        if (p->cost_through_ns[i] != INT64_MAX && !p->no_route.status)
            json_object_set_new(one, "slower_us", json_real(ns_to_us(p->cost_through_ns[i] - r->cost_ns)));
        json_array_append_new(rejected, one);
    }
    json_object_set_new(all, "found", json_boolean(!p->no_route.status));
    if (!p->no_route.status) {
        json_object_set_new(all, "cost_us", json_real(ns_to_us(r->cost_ns)));
        json_object_set_new(all, "return_us",
                            json_real(ns_to_us(sn_route_network_ns(p->candidates.at, r->legs, r->n, r->n,
                                                                   sn_program_settings.common.push))));
    }
    json_object_set_new(all, "push", json_boolean(sn_program_settings.common.push));
    json_object_set_new(all, "route", json_string(sn_word_name(sn_route_words, sn_program_settings.common.route)));
    json_object_set_new(all, "hops", hops);
    json_object_set_new(all, "rejected", rejected);
    return sn_print_json(all, err);
}

/* -- the command -- */

static sn_status route_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_setup setup = sn_cli_setup();
    sn_route_explanation explanation = {0};
    int max_tokens = 0;
    setup.plan_only = true;
    if (!sn_settings_has_swarm(&sn_program_settings) && !sn_program_settings.common.local.given)
        return sn_fail(err, SN_REFUSED, "give --join HOST:PORT of a node of the swarm" SN_OR_DHT);
    sn_catch_interrupts();
    sn_status status = sn_model_open(sn_program_settings.common.model, &setup.model, err);
    if (!status) setup.hp = sn_model_hparams(setup.model);
    if (!status) max_tokens = ctx < setup.hp->n_ctx ? (int)ctx : setup.hp->n_ctx;
    if (!status) status = sn_setup_chain(&setup, max_tokens, false, err);
    if (!status) status = sn_route_explain(setup.chain, &explanation, err);
    if (!status && sn_cli_output.json)
        status = print_explanation_json(&explanation, err);
    else if (!status)
        print_explanation(&explanation);
    if (!status && explanation.no_route.status) status = sn_fail(err, SN_RETRY, "%s", explanation.no_route.text);
    sn_route_explanation_fini(&explanation);
    sn_setup_close(&setup);
    return status;
}

static const sn_option_group *const groups[] = {&sn_group_model, &route_group, &sn_group_connection, &sn_group_chain,
                                                &sn_group_log};

const sn_cli_command sn_cmd_route = {
    .command = {.program = "swarm route",
                .summary = "show the route that a session would take, and why",
                .synopsis = "--model PATH --join HOST:PORT [options]",
                .about =
                    "Shows the route that a session would take over the nodes of a swarm; no session is opened.\n\n"
                    "A token costs half a round trip to the first node and half a round trip from the last one, "
                    "the network between the nodes, and queue and compute time at each. Round trips to this "
                    "process are measured; round trips between nodes and compute times are those that the nodes "
                    "announce.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = route_main,
};
