/* sim_scale: figures of large swarms. One line of a Markdown table for each size. */
#include "base/log.h"
#include "tests/sim/scale.h"
#include "tests/support/need.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print(const sim_scale_plan *p, const sim_scale_figures *f) {
    const struct {
        const char *name, *format;
        double value;
    } rows[] = {
        {"nodes that serve, mean", "%.0f", f->nodes},
        {"time in which every block is served", "%.1f %%", 100 * f->covered},
        {"blocks served, mean", "%.2f %%", 100 * f->blocks_covered},
        {"throughput of the slowest block, of the mean block's", "%.2f", f->slowest},
        {"moves for each node and hour", "%.2f", f->moves_per_node_hour},
        {"nodes that a node knows", "%.0f", f->known},
        {"of these gone, or elsewhere by now", "%.2f %%", 100 * f->known_dead},
        {"blocks for which a node knows somebody", "%.1f %%", 100 * f->known_covered},
        {"bytes a second that a node sends for all this", "%.0f", f->bytes_per_s},
        {"the node that sends most", "%.0f", f->bytes_per_s_most},
        {"routes planned by clients that come new", "%.0f", f->routes},
        {"that found none, though there was one", "%.0f", f->routes_none},
        {"that lead over a node that is gone", "%.0f", f->routes_dead},
        {"cost of a route over the optimum, mean", "%.3f", f->route_cost},
        {"the same, 95th percentile", "%.3f", f->route_cost_p95},
        {"a tenth leaves at once: blocks served, least", "%.1f %%", 100 * f->covered_least},
        {"until every block is served again, s", "%.0f", f->heal_s},
        {"until what nodes know is about as fresh as before, s", "%.0f", f->forget_s},
        {"until the slowest block carries 9/10 of before, s", "%.0f", f->slowest_s},
        {"events simulated, millions", "%.1f", f->events / 1e6},
    };
    printf("| nodes | %d |\n| --- | --- |\n", p->nodes);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char value[32];
        snprintf(value, sizeof value, rows[i].format, rows[i].value);
        printf("| %s | %s |\n", rows[i].name, value);
    }
}

int main(int argc, char **argv) {
    sim_scale_plan plan = {
        .seed = 1, .nodes = 100, .blocks = 80, .stay_s = 3600, .warm_s = 600, .watch_s = 600, .heal_s = 600, .talks = true};
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--quiet")) plan.talks = false;
        else if (!strcmp(argv[i], "--nodes") && more) plan.nodes = need_int(argv[++i], 20, 1000000);
        else if (!strcmp(argv[i], "--blocks") && more) plan.blocks = need_int(argv[++i], 20, 1000);
        else if (!strcmp(argv[i], "--seed") && more) plan.seed = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--stay") && more) plan.stay_s = atof(argv[++i]);
        else if (!strcmp(argv[i], "--warm") && more) plan.warm_s = atof(argv[++i]);
        else if (!strcmp(argv[i], "--watch") && more) plan.watch_s = atof(argv[++i]);
        else if (!strcmp(argv[i], "--heal") && more) plan.heal_s = atof(argv[++i]);
        else {
            fprintf(stderr, "usage: sim_scale [--nodes N] [--blocks N] [--seed N] [--stay S] [--warm S] [--watch S] [--heal S] "
                            "[--quiet]\n");
            return 2;
        }
    }
    sn_log_setup(SN_LOG_OFF, false);
    sim_scale_figures f = sim_scale(&plan);
    print(&plan, &f);
    return 0;
}
