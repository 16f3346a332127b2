/* The simulator at scale: thousands of real cores without weights - announcements, gossip, the choice of blocks,
 * rebalancing, routes - while nodes come and go as volunteers do. What comes out are figures (docs/SCALE.md). */
#ifndef SN_TESTS_SIM_SCALE_H
#define SN_TESTS_SIM_SCALE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_scale_plan {
    uint64_t seed;
    int nodes;          /* that are there at a time, about */
    int blocks;         /* of the model */
    double stay_s;      /* mean time that a node stays; Weibull of shape 0.6: many leave soon, some stay for hours */
    double warm_s;      /* until figures are taken */
    double watch_s;     /* how long they are taken */
    double heal_s;      /* watched after a tenth of the nodes has left at once */
    bool talks;         /* progress on stderr */
} sim_scale_plan;

typedef struct sim_scale_figures {
    /* means over the time watched */
    double nodes;               /* that serve */
    double covered;             /* share of the time in which every block was served */
    double blocks_covered;      /* share of the blocks */
    double slowest;             /* throughput of the slowest block, in shares of the mean block's */
    double moves_per_node_hour; /* spans changed while running */
    double known;               /* nodes in a node's directory */
    double known_dead;          /* share of these that are gone */
    double known_covered;       /* share of the blocks for which a node knows somebody who is there */
    double bytes_per_s;         /* sent by a node for all that is not work */
    double bytes_per_s_most;    /* by the node that sent most */
    int routes;                 /* planned by clients that come new */
    int routes_none;            /* that found no way, though there was one */
    int routes_dead;            /* that led over a node that was gone */
    double route_cost;          /* mean of cost over the optimum with full knowledge */
    double route_cost_p95;
    /* after a tenth has left at once */
    double covered_least;       /* share of the blocks served, at its least */
    double heal_s;              /* until every block was served again; negative: not in the time watched */
    double forget_s;            /* until no more than a quarter above known_dead was gone of what nodes know */
    double slowest_s;           /* until the slowest block had nine tenths of its throughput again */
    double events;
} sim_scale_figures;

sim_scale_figures sim_scale(const sim_scale_plan *plan);

#endif
