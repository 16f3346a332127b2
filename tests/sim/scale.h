/* The simulator of large swarms: thousands of real protocols without weights (announcements, gossip, block
 * selection, rebalancing, routes), while nodes come and go as volunteers do. The results are numbers
 * (docs/SCALE.md). */
#ifndef SN_TESTS_SIM_SCALE_H
#define SN_TESTS_SIM_SCALE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct sim_scale_plan {
    uint64_t seed;
    int nodes;                 /* that are present at a time, about */
    int blocks;                /* of the model */
    int room_least, room_most; /* blocks for which a node has room */
    /* mean time that a node stays; Weibull distribution with shape 0.6: many leave soon, some stay for hours */
    int stay_s;
    int warm_s;    /* before measurements begin */
    int measure_s; /* duration of the measurements */
    int heal_s;    /* duration of the measurement after a tenth of the nodes leaves at once */
    int sample_s;  /* between two samples */
    /* The present stage (warm-up, measurement, healing) ends soon when this is not 0; then it is set to 0. NULL: never
     */
    volatile sig_atomic_t *skip;
    bool progress; /* progress on stderr */
} sim_scale_plan;

typedef struct sim_scale_stats {
    double watched_s, healed_s; /* virtual time measured: less than planned where a stage was ended */
    /* means over the time measured */
    double nodes;                    /* that serve */
    double covered;                  /* share of the time in which every block was served */
    double blocks_covered;           /* share of the blocks served */
    double slowest;                  /* throughput of the slowest block divided by the mean */
    double rebalances_per_node_hour; /* changes of the span while running */
    double known;                    /* nodes in a node's directory */
    double known_dead;               /* share of these that are gone */
    double known_covered;            /* share of the blocks for which a node knows another one that serves them */
    double bytes_per_s;              /* sent by a node, except for inference */
    double bytes_per_s_most;         /* by the node that sent most */
    int routes;                      /* planned by new clients */
    int routes_none;                 /* found no route, though there was one */
    int routes_dead;                 /* led over a node that was gone */
    double route_cost;               /* mean of the cost divided by the optimum under full knowledge */
    double route_cost_p95;
    /* after a tenth has left at once */
    double covered_least; /* least share of the blocks served */
    double heal_s;        /* until every block was served again; negative: not in the time measured */
    double forget_s;      /* until the share of known nodes that are gone was at most 5/4 of known_dead */
    double slowest_s;     /* until the slowest block had nine tenths of its throughput again */
    double events;
} sim_scale_stats;

sim_scale_stats sim_scale(const sim_scale_plan *plan);

#endif
