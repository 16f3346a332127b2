/* Virtual time: events ordered by time, actors with their own clocks, clients as coroutines.
 *
 * The simulated programs read time and random numbers through base/clock.h and base/hash.h. In the simulator's
 * programs the linker replaces these functions (-Wl,--wrap, see tests/CMakeLists.txt), so that node/ and client/ run
 * unchanged. Everything depends on the seed only: there is one thread, events of the same time run in the order in
 * which they were scheduled, and neither pointer values nor the real clock are used. */
#ifndef SN_TESTS_SIM_TIME_H
#define SN_TESTS_SIM_TIME_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SECOND_US = 1000000 };

void *sim_alloc(size_t bytes); /* zeroed; ends the process without memory */

/* -- random numbers */

typedef struct sim_rng {
    uint64_t state;
} sim_rng;
uint64_t sim_rng_next(sim_rng *random);
uint64_t sim_rng_below(sim_rng *random, uint64_t n);                 /* [0, n); n 0: 0 */
int64_t sim_rng_between(sim_rng *random, int64_t low, int64_t high); /* both included */
double sim_rng_uniform(sim_rng *random);                             /* [0, 1) */
bool sim_rng_bernoulli(sim_rng *random, double probability);
double sim_rng_exponential(sim_rng *random, double mean);
sim_rng sim_rng_fork(sim_rng *random); /* an independent generator: numbers drawn from it do not change this one */

/* -- actors -- */

/* A machine whose clocks are not exact. */
typedef struct sim_actor {
    char name[16];
    int64_t offset_us; /* of its monotonic clock */
    int64_t drift_ppm;
    int64_t unix_offset_ms; /* of its wall clock */
    sim_rng random;         /* of sn_random */
} sim_actor;

typedef struct sim_time sim_time;

int64_t sim_local_us(const sim_time *time, const sim_actor *actor);
/* The time at which the actor's clock shows local_us; never too early. */
int64_t sim_global_us(const sim_actor *actor, int64_t local_us);

/* -- events -- */

/* Runs at an event. `what` belongs to the action. `ending`: it frees `what` and does nothing else. */
typedef void (*sim_action)(void *owner, void *what, uint64_t which, bool ending);

sim_time *sim_time_new(void *owner);
void sim_time_free(sim_time **time); /* runs the remaining actions with `ending` */
int64_t sim_now(const sim_time *time);
/* Is called for events that are soon due, before they run, level 0 first, so that their data are on the way from
 * memory then. Changes nothing. */
typedef void (*sim_prepare)(sim_action action, const void *what, int level);
void sim_set_prepare(sim_time *time, sim_prepare prepare);
void sim_schedule(sim_time *time, int64_t at_us, sim_action action, void *what, uint64_t which);
/* Runs the next event; false if there is none up to until_us, which is then the time. */
bool sim_run_next(sim_time *time, int64_t until_us);
uint64_t sim_event_count(const sim_time *time);

/* The events, as one hash, and as lines when tracing is enabled. */
void sim_trace_event(sim_time *time, const char *what, uint64_t a, uint64_t b);
void sim_trace_bytes(sim_time *time, const void *bytes, size_t len);
uint64_t sim_trace_hash(const sim_time *time);
void sim_trace_enable(sim_time *time, bool on);

/* -- actors and tasks */

/* From now on the wrapped clock and random functions are the actor's; NULL: the real ones. Returns the previous
 * actor. */
sim_actor *sim_set_actor(sim_time *time, sim_actor *actor);

/* A coroutine runs on a stack of its own until it waits. */
typedef struct sim_task sim_task;
sim_task *sim_task_new(sim_time *time, sim_actor *actor, void (*body)(void *ctx), void *ctx);
void sim_task_free(sim_task **task); /* the task must have ended */
bool sim_task_ended(const sim_task *task);
sim_task *sim_task_current(void);            /* NULL: no task runs */
void sim_task_wait(int64_t until_global_us); /* by the running task: until this time or sim_task_wake */
void sim_task_wake(sim_task *task);          /* resumes the task now, if it waits */
void sim_task_run(sim_task *task);           /* by an event: as wake, and returns when the task waits or has ended */

#endif
