/* Coroutines by ucontext. AddressSanitizer is told about each change of stack. */
#include "tests/sim/time.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SWITCH_BEGIN(keep, bottom, size) __sanitizer_start_switch_fiber(keep, bottom, size)
#define SWITCH_END(keep, bottom, size)   __sanitizer_finish_switch_fiber(keep, bottom, size)
#else
#define SWITCH_BEGIN(keep, bottom, size) ((void)0)
#define SWITCH_END(keep, bottom, size)   ((void)0)
#endif

enum { STACK_SIZE = 1 << 20 };

struct sim_task {
    sim_time *time;
    sim_actor *actor;
    void (*body)(void *ctx);
    void *ctx;
    ucontext_t own, caller; /* context of the coroutine, and of the code that resumed it */
    void *stack;
    bool ended, waits;
    uint64_t wait_number; /* number of the present wait: alarms of earlier waits are ignored */
    /* for AddressSanitizer */
    void *fake_own, *fake_caller;
    const void *bottom_caller;
    size_t size_caller;
};

static sim_task *current;

sim_task *sim_task_current(void) { return current; }
bool sim_task_ended(const sim_task *task) { return task->ended; }

static void switch_out(sim_task *task) {
    SWITCH_BEGIN(task->ended ? NULL : &task->fake_own, task->bottom_caller, task->size_caller);
    swapcontext(&task->own, &task->caller);
    SWITCH_END(task->fake_own, &task->bottom_caller, &task->size_caller);
}

static void task_entry(void) {
    sim_task *task = current;
    SWITCH_END(NULL, &task->bottom_caller, &task->size_caller);
    task->body(task->ctx);
    task->ended = true;
    switch_out(task);
}

static void switch_to(sim_task *task) {
    sim_task *outer = current;
    if (outer) abort(); /* a task does not resume another task */
    sim_actor *previous = sim_set_actor(task->time, task->actor);
    current = task;
    task->waits = false;
    SWITCH_BEGIN(&task->fake_caller, task->stack, STACK_SIZE);
    swapcontext(&task->caller, &task->own);
    SWITCH_END(task->fake_caller, NULL, NULL);
    current = outer;
    sim_set_actor(task->time, previous);
}

static void on_timeout(void *owner, void *what, uint64_t which, bool ending) {
    (void)owner;
    sim_task *task = what;
    if (!ending && task->waits && task->wait_number == which) switch_to(task);
}

sim_task *sim_task_new(sim_time *time, sim_actor *actor, void (*body)(void *ctx), void *ctx) {
    sim_task *task = sim_alloc(sizeof *task);
    task->time = time;
    task->actor = actor;
    task->body = body;
    task->ctx = ctx;
    task->stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (task->stack == MAP_FAILED || getcontext(&task->own)) abort();
    task->own.uc_stack.ss_sp = task->stack;
    task->own.uc_stack.ss_size = STACK_SIZE;
    makecontext(&task->own, task_entry, 0);
    task->waits = true;
    sim_schedule(time, sim_now(time), on_timeout, task, 0);
    return task;
}

void sim_task_free(sim_task **task) {
    if (!*task) return;
    munmap((*task)->stack, STACK_SIZE);
    free(*task);
    *task = NULL;
}

void sim_task_wait(int64_t until_global_us) {
    sim_task *task = current;
    if (!task) abort(); /* only a task may wait: a node that waits would stop the simulation */
    task->waits = true;
    sim_schedule(task->time, until_global_us, on_timeout, task, ++task->wait_number);
    switch_out(task);
}

void sim_task_wake(sim_task *task) {
    if (task->waits) sim_schedule(task->time, sim_now(task->time), on_timeout, task, task->wait_number);
}

void sim_task_run(sim_task *task) {
    if (task->waits) switch_to(task);
}
