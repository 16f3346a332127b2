/* The program `sim_scale`: numbers of large swarms, as a Markdown table. */
#include "base/log.h"
#include "tests/sim/scale.h"
#include "tests/support/require.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_stats(const sim_scale_plan *p, const sim_scale_stats *f) {
    const struct {
        const char *name, *format;
        double value;
    } rows[] = {
        {"nodes that serve, mean", "%.0f", f->nodes},
        {"time in which every block is served", "%.1f %%", 100 * f->covered},
        {"blocks served, mean", "%.2f %%", 100 * f->blocks_covered},
        {"throughput of the slowest block divided by the mean", "%.2f", f->slowest},
        {"rebalances per node and hour", "%.2f", f->rebalances_per_node_hour},
        {"nodes in a node's directory", "%.0f", f->known},
        {"of these gone, or serving other blocks", "%.2f %%", 100 * f->known_dead},
        {"blocks for which a node knows a server", "%.1f %%", 100 * f->known_covered},
        {"bytes per second sent by a node, mean", "%.0f", f->bytes_per_s},
        {"bytes per second sent by a node, maximum", "%.0f", f->bytes_per_s_most},
        {"routes planned by new clients", "%.0f", f->routes},
        {"no route found though there was one", "%.0f", f->routes_none},
        {"routes over a node that is gone", "%.0f", f->routes_dead},
        {"cost of a route divided by the optimum, mean", "%.3f", f->route_cost},
        {"the same, 95th percentile", "%.3f", f->route_cost_p95},
        {"after a tenth of the nodes left: blocks served, minimum", "%.1f %%", 100 * f->covered_least},
        {"until every block is served again, s", "%.0f", f->heal_s},
        {"until directories are about as fresh as before, s", "%.0f", f->forget_s},
        {"until the slowest block has 9/10 of its throughput, s", "%.0f", f->slowest_s},
        {"events simulated, millions", "%.1f", f->events / 1e6},
    };
    printf("| nodes | %d |\n| --- | --- |\n", p->nodes);
    if (f->watched_s < p->measure_s) printf("| ended after, s watched | %.0f |\n", f->watched_s);
    if (f->healed_s < p->heal_s) printf("| ended after, s of healing | %.0f |\n", f->healed_s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char value[32];
        snprintf(value, sizeof value, rows[i].format, rows[i].value);
        printf("| %s | %s |\n", rows[i].name, value);
    }
}

static volatile sig_atomic_t skip;

static void on_signal(int number) {
    (void)number;
    skip = 1;
}

/* "2:5" */
static void read_room(const char *text, sim_scale_plan *plan) {
    char end;
    if (sscanf(text, "%d:%d%c", &plan->room_least, &plan->room_most, &end) != 2 || plan->room_least < 1 ||
        plan->room_most < plan->room_least || plan->room_most > 20) {
        fprintf(stderr, "--room takes MIN:MAX, blocks for which a node has room, 1 to 20\n");
        exit(2);
    }
}

int main(int argc, char **argv) {
    sim_scale_plan plan = {.seed = 1,
                           .nodes = 100,
                           .blocks = 80,
                           .stay_s = 3600,
                           .warm_s = 600,
                           .measure_s = 600,
                           .heal_s = 600,
                           .sample_s = 10,
                           .skip = &skip,
                           .progress = true};
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--quiet"))
            plan.progress = false;
        else if (!strcmp(argv[i], "--nodes") && more)
            plan.nodes = require_int(argv[++i], 20, 1000000);
        else if (!strcmp(argv[i], "--blocks") && more)
            plan.blocks = require_int(argv[++i], 20, 1000);
        else if (!strcmp(argv[i], "--room") && more)
            read_room(argv[++i], &plan);
        else if (!strcmp(argv[i], "--seed") && more)
            plan.seed = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--stay") && more)
            plan.stay_s = require_int(argv[++i], 1, 1000000);
        else if (!strcmp(argv[i], "--warm") && more)
            plan.warm_s = require_int(argv[++i], 0, 1000000);
        else if (!strcmp(argv[i], "--watch") && more)
            plan.measure_s = require_int(argv[++i], 1, 1000000);
        else if (!strcmp(argv[i], "--sample") && more)
            plan.sample_s = require_int(argv[++i], 1, 1000000);
        else if (!strcmp(argv[i], "--heal") && more)
            plan.heal_s = require_int(argv[++i], 0, 1000000);
        else {
            fprintf(stderr, "usage: sim_scale [--nodes N] [--blocks N] [--room MIN:MAX] [--seed N] [--stay S] [--warm "
                            "S] [--watch S] [--sample S] "
                            "[--heal S] [--quiet]\nSIGTERM and SIGINT end the present stage.\n");
            return 2;
        }
    }
    if (!plan.room_most) {
        plan.room_least = plan.blocks / 20;
        plan.room_most = plan.blocks / 5;
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    sn_log_setup(SN_LOG_OFF, false);
    sim_scale_stats f = sim_scale(&plan);
    print_stats(&plan, &f);
    return 0;
}
