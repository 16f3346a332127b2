/* Virtual time: events in the order of their time, actors with clocks of their own, clients as coroutines.
 *
 * The programs of the swarm read time and chance through base/clock.h and base/hash.h. In the simulator's programs the
 * linker puts our functions in the place of these (-Wl,--wrap, see tests/CMakeLists.txt), so that node/ and client/ run
 * as they are. What happens is a function of the seed: one thread, ties broken by order of arrival, no pointer and no
 * real clock looked at. */
#ifndef SN_TESTS_SIM_TIME_H
#define SN_TESTS_SIM_TIME_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SECOND_US = 1000000 };

void *sim_alloc(size_t bytes); /* zeroed; ends the process when there is none */

/* -- chance -- */

typedef struct sim_random {
    uint64_t state;
} sim_random;
uint64_t sim_next(sim_random *random);
uint64_t sim_below(sim_random *random, uint64_t n);                    /* [0, n); n 0: 0 */
int64_t sim_between(sim_random *random, int64_t low, int64_t high);    /* both included */
double sim_unit(sim_random *random);                                   /* [0, 1) */
bool sim_chance(sim_random *random, double probability);
double sim_exponential(sim_random *random, double mean);
sim_random sim_fork(sim_random *random); /* a stream of its own: more draws here change nothing there */

/* -- actors -- */

/* A machine: its clocks run as they like. */
typedef struct sim_actor {
    char name[16];
    int64_t offset_us;      /* of its monotonic clock */
    int64_t drift_ppm;
    int64_t unix_offset_ms; /* of its wall clock */
    sim_random random;      /* what sn_random gives it */
} sim_actor;

typedef struct sim_time sim_time;

int64_t sim_local_us(const sim_time *time, const sim_actor *actor);
int64_t sim_unix_ms(const sim_time *time, const sim_actor *actor);
/* When the actor's clock will show local_us; never too early. */
int64_t sim_global_us(const sim_actor *actor, int64_t local_us);

/* -- events -- */

/* `what` belongs to the action, also when `ending`: then it frees it and does nothing else. */
typedef void (*sim_action)(void *world, void *what, uint64_t which, bool ending);

sim_time *sim_time_new(void *world);
void sim_time_free(sim_time **time); /* runs what is left as ending */
int64_t sim_now(const sim_time *time);
void sim_at(sim_time *time, int64_t at_us, sim_action action, void *what, uint64_t which);
bool sim_step(sim_time *time, int64_t until_us); /* the next event; false: none before until_us, and the time is that */
uint64_t sim_events(const sim_time *time);

/* What happened, as one number, and as lines when traced. */
void sim_note(sim_time *time, const char *what, uint64_t a, uint64_t b);
void sim_note_bytes(sim_time *time, const void *bytes, size_t len);
uint64_t sim_trace_hash(const sim_time *time);
void sim_trace(sim_time *time, bool on);

/* -- whose turn it is -- */

/* The programs' clock and chance are the actor's from here on; NULL: the machine's own again. Returns the one before. */
sim_actor *sim_enter(sim_time *time, sim_actor *actor);

/* A coroutine runs on a stack of its own until it waits. */
typedef struct sim_task sim_task;
sim_task *sim_task_new(sim_time *time, sim_actor *actor, void (*body)(void *ctx), void *ctx);
void sim_task_free(sim_task **task); /* it must have ended */
bool sim_task_ended(const sim_task *task);
sim_task *sim_task_current(void); /* NULL: none runs */
void sim_task_wait(int64_t until_global_us); /* by the task that runs: until then, or sim_task_wake */
void sim_task_wake(sim_task *task);          /* lets it run now, if it waits */

#endif
