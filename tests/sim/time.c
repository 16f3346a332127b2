/* Virtual time (time.h).
 *
 * How it works: events are kept in a heap of four children, ordered by time and then by the order in which they were
 * scheduled, so that a run depends on the seed only. sim_run_next advances the time to the next event and runs its
 * action. sim_set_actor selects the machine whose clock and random numbers the wrapped functions (sn_now_us,
 * sn_unix_ms, sn_sleep_us, sn_random) return; without an actor they are the real ones. Every traced event changes a
 * hash, so that two runs can be compared by one number. */
#include "tests/sim/time.h"

#include "base/clock.h"
#include "base/hash.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEGIN_US = 1000 * SECOND_US };
static const int64_t UNIX_BEGIN_MS = 1800000000000;

typedef struct event {
    int64_t at_us;
    uint64_t order;
    sim_action action;
    void *what;
    uint64_t which;
    int prepared; /* levels */
} event;

struct sim_time {
    void *owner;
    int64_t now_us;
    event *heap;
    size_t n, capacity;
    uint64_t order, done, hash;
    bool traced;
    sim_prepare prepare;
};

static sim_time *current_time;
static sim_actor *current_actor;

void *sim_alloc(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) abort();
    return memory;
}

/* -- random numbers: SplitMix64 (Steele, Lea and Flood 2014) */

uint64_t sim_rng_next(sim_rng *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint64_t sim_rng_below(sim_rng *random, uint64_t n) { return n ? sim_rng_next(random) % n : 0; }
int64_t sim_rng_between(sim_rng *random, int64_t low, int64_t high) {
    return low + (int64_t)sim_rng_below(random, (uint64_t)(high - low) + 1);
}
double sim_rng_uniform(sim_rng *random) { return (double)(sim_rng_next(random) >> 11) * 0x1p-53; }
bool sim_rng_bernoulli(sim_rng *random, double probability) { return sim_rng_uniform(random) < probability; }
double sim_rng_exponential(sim_rng *random, double mean) { return -mean * log1p(-sim_rng_uniform(random)); }
sim_rng sim_rng_fork(sim_rng *random) { return (sim_rng){sim_rng_next(random)}; }

/* -- clocks */

static int64_t local_of(const sim_actor *actor, int64_t us) {
    return us + actor->offset_us + us / 1000 * actor->drift_ppm / 1000;
}

int64_t sim_local_us(const sim_time *time, const sim_actor *actor) { return local_of(actor, time->now_us); }
static int64_t unix_ms_of(const sim_time *time, const sim_actor *actor) {
    return UNIX_BEGIN_MS + time->now_us / 1000 + actor->unix_offset_ms;
}

int64_t sim_global_us(const sim_actor *actor, int64_t local_us) {
    int64_t us = local_us - actor->offset_us;
    us -= us / 1000 * actor->drift_ppm / 1000;
    while (local_of(actor, us) < local_us) us += (local_us - local_of(actor, us) + 1) / 2 + 1;
    return us;
}

/* -- events: a heap, in which each event has four children */

static bool event_is_before(const event *x, const event *y) {
    return x->at_us != y->at_us ? x->at_us < y->at_us : x->order < y->order;
}

sim_time *sim_time_new(void *owner) {
    sim_time *time = sim_alloc(sizeof *time);
    time->owner = owner;
    time->now_us = BEGIN_US;
    time->hash = 0xcbf29ce484222325;
    return time;
}

static event take_first(sim_time *time) {
    event first = time->heap[0], last = time->heap[--time->n];
    size_t i = 0;
    for (size_t child, end; (child = 4 * i + 1) < time->n; i = child) {
        end = child + 4 < time->n ? child + 4 : time->n;
        for (size_t k = child + 1; k < end; k++)
            if (event_is_before(&time->heap[k], &time->heap[child])) child = k;
        if (!event_is_before(&time->heap[child], &last)) break;
        time->heap[i] = time->heap[child];
    }
    if (time->n) time->heap[i] = last;
    return first;
}

void sim_time_free(sim_time **time) {
    sim_time *t = *time;
    if (!t) return;
    while (t->n) {
        event e = take_first(t);
        e.action(t->owner, e.what, e.which, true);
    }
    free(t->heap);
    free(t);
    *time = NULL;
}

int64_t sim_now(const sim_time *time) { return time->now_us; }
uint64_t sim_event_count(const sim_time *time) { return time->done; }

void sim_schedule(sim_time *time, int64_t at_us, sim_action action, void *what, uint64_t which) {
    if (time->n == time->capacity) {
        time->capacity = 2 * time->capacity + 256;
        event *grown = realloc(time->heap, time->capacity * sizeof *grown);
        if (!grown) abort();
        time->heap = grown;
    }
    event e = {at_us > time->now_us ? at_us : time->now_us, time->order++, action, what, which, 0};
    size_t i = time->n++;
    for (; i && event_is_before(&e, &time->heap[(i - 1) / 4]); i = (i - 1) / 4) time->heap[i] = time->heap[(i - 1) / 4];
    time->heap[i] = e;
}

void sim_set_prepare(sim_time *time, sim_prepare prepare) { time->prepare = prepare; }

/* The nearer an event is to the top of the heap, the more of what it needs is known. */
static void prepare_events(sim_time *time) {
    size_t n = time->n < 21 ? time->n : 21;
    for (size_t i = 0; i < n; i++) {
        event *e = &time->heap[i];
        int levels = i > 4 ? 2 : i > 0 ? 3 : 4;
        if (e->prepared >= levels) continue;
        time->prepare(e->action, e->what, e->prepared++);
    }
}

bool sim_run_next(sim_time *time, int64_t until_us) {
    if (!time->n || time->heap[0].at_us > until_us) {
        if (time->now_us < until_us) time->now_us = until_us;
        return false;
    }
    event e = take_first(time);
    time->now_us = e.at_us;
    time->done++;
    if (time->prepare) prepare_events(time);
    e.action(time->owner, e.what, e.which, false);
    return true;
}

/* -- the trace -- */

static void mix_hash(sim_time *time, uint64_t x) {
    time->hash = (time->hash ^ x) * 0x9e3779b97f4a7c15;
    time->hash ^= time->hash >> 29;
}

void sim_trace_event(sim_time *time, const char *what, uint64_t a, uint64_t b) {
    mix_hash(time, (uint64_t)time->now_us);
    sim_trace_bytes(time, what, strlen(what));
    mix_hash(time, a);
    mix_hash(time, b);
    if (time->traced)
        fprintf(stderr, "%11.6f %s %llu %llu\n", (double)(time->now_us - BEGIN_US) / 1e6, what, (unsigned long long)a,
                (unsigned long long)b);
}

void sim_trace_bytes(sim_time *time, const void *bytes, size_t len) {
    const uint8_t *at = bytes;
    for (; len >= 8; at += 8, len -= 8) {
        uint64_t x;
        memcpy(&x, at, 8);
        mix_hash(time, x);
    }
    uint64_t rest = len;
    for (size_t i = 0; i < len; i++) rest = rest << 8 | at[i];
    mix_hash(time, rest);
}

uint64_t sim_trace_hash(const sim_time *time) { return time->hash; }
void sim_trace_enable(sim_time *time, bool on) { time->traced = on; }

/* -- replacements of base/clock.h and sn_random */

int64_t __real_sn_now_us(void);
int64_t __real_sn_unix_ms(void);
void __real_sn_sleep_us(int64_t us);
void __real_sn_random(void *out, size_t len);
int64_t __wrap_sn_now_us(void);
int64_t __wrap_sn_unix_ms(void);
void __wrap_sn_sleep_us(int64_t us);
void __wrap_sn_random(void *out, size_t len);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);

sim_actor *sim_set_actor(sim_time *time, sim_actor *actor) {
    sim_actor *previous = current_actor;
    current_time = time;
    current_actor = actor;
    return previous;
}

int64_t __wrap_sn_now_us(void) {
    return current_actor ? sim_local_us(current_time, current_actor) : __real_sn_now_us();
}
int64_t __wrap_sn_unix_ms(void) {
    return current_actor ? unix_ms_of(current_time, current_actor) : __real_sn_unix_ms();
}

void __wrap_sn_sleep_us(int64_t us) {
    if (!current_actor) {
        __real_sn_sleep_us(us);
        return;
    }
    int64_t until = sim_global_us(current_actor, sim_local_us(current_time, current_actor) + us);
    while (sim_now(current_time) < until) sim_task_wait(until); /* a message may wake the task early */
}

/* A wait for another thread, until a time of the actor's clock: as long by the real one. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until) {
    if (!current_actor) return __real_pthread_cond_timedwait(cond, lock, until);
    int64_t us = (int64_t)until->tv_sec * 1000000 + until->tv_nsec / 1000 - sn_now_us() + __real_sn_now_us();
    struct timespec at = {us / 1000000, us % 1000000 * 1000};
    return __real_pthread_cond_timedwait(cond, lock, &at);
}

void __wrap_sn_random(void *out, size_t len) {
    if (!current_actor) {
        __real_sn_random(out, len);
        return;
    }
    for (uint8_t *at = out; len; at++, len--) *at = (uint8_t)(sim_rng_next(&current_actor->random) >> 32);
}
