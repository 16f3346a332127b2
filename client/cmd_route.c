/* swarm route: the way that a token would take, and why. */
#include "client/cmd.h"
#include "client/prospect.h"

#include <stdio.h>
#include <string.h>

static bool explain;
static int64_t ctx = 2048;

static const sn_option route_options[] = {
    SN_OPT_FLAG("explain", &explain, "also what every hop costs, and why each other node is passed over"),
    SN_OPT_INT("ctx", "N", &ctx, 1, 1 << 30, "tokens that the session must have room for"),
    SN_OPT_FLAG("json", &sn_given.json, "print {\"hops\", \"passed_over\"}; times in microseconds"),
};

typedef struct label {
    char name[40], id[2 * SN_KEY_SIZE + 1], address[SN_ADDRESS_MAX + 1];
} label;

static label label_of(const sn_announcement *node) {
    label l = {.name = "local"};
    if (!node) return l;
    sn_hex(node->node, SN_KEY_SIZE, l.id);
    snprintf(l.name, sizeof l.name, "%.16s", *node->name ? node->name : l.id);
    snprintf(l.address, sizeof l.address, "%s", node->address);
    sn_make_plain(l.name);
    sn_make_plain(l.address);
    return l;
}

static double us(int64_t ns) { return (double)ns / 1000; }
static double ms(int64_t ns) { return (double)ns / 1e6; }

static bool is_taken(const sn_prospect *p, size_t offer) {
    for (size_t i = 0; i < p->route.n && !p->why_none.status; i++)
        if (p->route.stops[i].offer == offer) return true;
    return false;
}

/* "slower by 2.1 ms", "banned for 12 s more", "other weights". */
static const char *reason(const sn_prospect *p, size_t i, char out[80]) {
    const sn_offer *o = &p->offers.at[i];
    if (o->verdict == SN_OFFER_BANNED)
        snprintf(out, 80, "banned for %lld s more", (long long)(p->banned_us[i] + 999999) / 1000000);
    else if (o->verdict == SN_OFFER_STATE && o->node)
        snprintf(out, 80, "%s", sn_node_state_name(o->node->state));
    else if (o->verdict != SN_OFFER_USABLE)
        snprintf(out, 80, "%s", sn_verdict_name(o->verdict));
    else if (p->why_none.status || p->through[i] == INT64_MAX)
        snprintf(out, 80, "no way leads over it");
    else if (p->through[i] < p->route.cost_ns)
        snprintf(out, 80, "quicker by %.3f ms, but the way was drawn", ms(p->route.cost_ns - p->through[i]));
    else
        snprintf(out, 80, "slower by %.3f ms", ms(p->through[i] - p->route.cost_ns));
    return out;
}

/* -- for people -----------------------------------------------------------------------------------------------------
 */

static void print_hops(const sn_prospect *p) {
    const sn_route *r = &p->route;
    printf("%-10s %-16s %10s %10s %10s  %s\n", "BLOCKS", "NODE", "WAY", "QUEUE", "COMPUTE", "ADDRESS");
    for (size_t i = 0; i < r->n; i++) {
        const sn_stop *stop = &r->stops[i];
        const sn_offer *o = &p->offers.at[stop->offer];
        label l = label_of(stop->node);
        char blocks[24];
        snprintf(blocks, sizeof blocks, "%d:%d", stop->first, stop->end);
        printf("%-10s %-16s %7.3f ms %7.3f ms %7.3f ms  %s%s\n", blocks, l.name,
               ms(sn_route_way_ns(p->offers.at, r->stops, r->n, i, sn_given.push)), ms(o->queue_ns),
               ms((stop->end - stop->first) * o->block_ns), l.address,
               stop->node && !o->rtt_measured ? " (did not say how far it is)" : "");
    }
    printf("%-10s %-16s %7.3f ms\n", "back", "",
           ms(sn_route_way_ns(p->offers.at, r->stops, r->n, r->n, sn_given.push)));
}

static void print_passed_over(const sn_prospect *p) {
    size_t shown = 0;
    for (size_t i = 0; i < p->offers.n; i++) {
        const sn_offer *o = &p->offers.at[i];
        if (!o->node || is_taken(p, i)) continue;
        label l = label_of(o->node);
        char why[80], blocks[24];
        if (!shown++) puts("\npassed over:");
        snprintf(blocks, sizeof blocks, "%d:%d", (int)o->node->first_block, (int)o->node->end_block);
        printf("%-10s %-16s %s\n", blocks, l.name, reason(p, i, why));
    }
}

static void print_prospect(const sn_prospect *p) {
    if (!p->why_none.status) {
        printf("a token takes %.3f ms over %zu %s%s\n", ms(p->route.cost_ns), p->route.n,
               p->route.n == 1 ? "stop" : "stops",
               p->short_of_room ? ", though there is little room for its session" : "");
        for (size_t i = 0; i < p->route.n && !explain; i++)
            printf("%s%d:%d %s", i ? ", " : "", p->route.stops[i].first, p->route.stops[i].end,
                   label_of(p->route.stops[i].node).name);
        if (explain)
            print_hops(p);
        else
            putchar('\n');
    }
    if (explain) print_passed_over(p);
}

/* -- for scripts ----------------------------------------------------------------------------------------------------
 */

static json_t *offer_json(const sn_announcement *node, int first, int end) {
    char blocks[24];
    label l = label_of(node);
    snprintf(blocks, sizeof blocks, "%d:%d", first, end);
    return json_pack("{ss ss ss ss}", "node", l.name, "id", l.id, "address", l.address, "blocks", blocks);
}

static sn_status print_prospect_json(const sn_prospect *p, sn_err *err) {
    json_t *hops = json_array(), *passed = json_array(), *all = json_object();
    const sn_route *r = &p->route;
    for (size_t i = 0; i < r->n && !p->why_none.status; i++) {
        const sn_stop *stop = &r->stops[i];
        const sn_offer *o = &p->offers.at[stop->offer];
        json_t *hop = offer_json(stop->node, stop->first, stop->end);
        json_object_set_new(hop, "way_us",
                            json_real(us(sn_route_way_ns(p->offers.at, r->stops, r->n, i, sn_given.push))));
        json_object_set_new(hop, "queue_us", json_real(us(o->queue_ns)));
        json_object_set_new(hop, "compute_us", json_real(us((stop->end - stop->first) * o->block_ns)));
        json_object_set_new(hop, "rtt_us", json_real(us(o->rtt_ns)));
        json_object_set_new(hop, "rtt_measured", json_boolean(o->rtt_measured));
        json_array_append_new(hops, hop);
    }
    for (size_t i = 0; i < p->offers.n; i++) {
        const sn_announcement *node = p->offers.at[i].node;
        if (!node || is_taken(p, i)) continue;
        char why[80];
        json_t *one = offer_json(node, (int)node->first_block, (int)node->end_block);
        json_object_set_new(one, "reason", json_string(reason(p, i, why)));
        if (p->through[i] != INT64_MAX && !p->why_none.status)
            json_object_set_new(one, "slower_us", json_real(us(p->through[i] - r->cost_ns)));
        json_array_append_new(passed, one);
    }
    json_object_set_new(all, "found", json_boolean(!p->why_none.status));
    if (!p->why_none.status) {
        json_object_set_new(all, "cost_us", json_real(us(r->cost_ns)));
        json_object_set_new(all, "back_us",
                            json_real(us(sn_route_way_ns(p->offers.at, r->stops, r->n, r->n, sn_given.push))));
    }
    json_object_set_new(all, "push", json_boolean(sn_given.push));
    json_object_set_new(all, "route", json_string(sn_given.route));
    json_object_set_new(all, "hops", hops);
    json_object_set_new(all, "passed_over", passed);
    return sn_print_json(all, err);
}

/* -- the command -----------------------------------------------------------------------------------------------------
 */

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_setup setup = {.plan_only = true};
    sn_prospect prospect = {0};
    int max_tokens = 0;
    if (!sn_given.join.n && !sn_given.dht && !sn_given.local.given)
        return sn_fail(err, SN_REFUSED, "give --join ADDRESS of any node of the swarm, or --dht");
    sn_catch_interrupts();
    sn_status status = sn_model_open(sn_given.model, &setup.model, err);
    if (!status) setup.hp = sn_model_hparams(setup.model);
    if (!status) max_tokens = ctx < setup.hp->n_ctx ? (int)ctx : setup.hp->n_ctx;
    if (!status) status = sn_setup_chain(&setup, max_tokens, false, err);
    if (!status) status = sn_prospect_make(setup.chain, &prospect, err);
    if (!status && sn_given.json)
        status = print_prospect_json(&prospect, err);
    else if (!status)
        print_prospect(&prospect);
    if (!status && prospect.why_none.status) status = sn_fail(err, SN_RETRY, "%s", prospect.why_none.text);
    sn_prospect_fini(&prospect);
    sn_setup_close(&setup);
    return status;
}

int sn_cmd_route(int argc, char **argv) {
    const sn_option_group groups[] = {sn_group_model,
                                      {"Route:", route_options, sizeof route_options / sizeof *route_options},
                                      sn_group_chain,
                                      sn_group_log};
    const sn_command command = {
        .program = "swarm route",
        .synopsis = "--model PATH --join ADDRESS [options]",
        .about =
            "Shows the way that a token would take over the nodes of a swarm; no session is opened.\n\n"
            "What a token costs is half a round trip to the first node and from the last one, the ways between, and at "
            "each node waiting and computing. Round trips to this program are measured, those between nodes and what "
            "nodes compute are what they announce.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof *groups,
        .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
