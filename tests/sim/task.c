/* Coroutines by ucontext. AddressSanitizer is told of each change of stack. */
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
    ucontext_t here, there; /* its own, and that of whoever let it run */
    void *stack;
    bool ended, waits;
    uint64_t turn; /* which wait it is in: an older alarm does not wake it */
    /* for AddressSanitizer */
    void *fake_here, *fake_there;
    const void *bottom_there;
    size_t size_there;
};

static sim_task *current;

sim_task *sim_task_current(void) { return current; }
bool sim_task_ended(const sim_task *task) { return task->ended; }

static void leave(sim_task *task) {
    SWITCH_BEGIN(task->ended ? NULL : &task->fake_here, task->bottom_there, task->size_there);
    swapcontext(&task->here, &task->there);
    SWITCH_END(task->fake_here, &task->bottom_there, &task->size_there);
}

static void begin(void) {
    sim_task *task = current;
    SWITCH_END(NULL, &task->bottom_there, &task->size_there);
    task->body(task->ctx);
    task->ended = true;
    leave(task);
}

static void enter(sim_task *task) {
    sim_task *was = current;
    if (was) abort(); /* tasks do not run inside each other */
    sim_actor *before = sim_enter(task->time, task->actor);
    current = task;
    task->waits = false;
    SWITCH_BEGIN(&task->fake_there, task->stack, STACK_SIZE);
    swapcontext(&task->there, &task->here);
    SWITCH_END(task->fake_there, NULL, NULL);
    current = was;
    sim_enter(task->time, before);
}

static void alarm_rings(void *world, void *what, uint64_t which, bool ending) {
    (void)world;
    sim_task *task = what;
    if (!ending && task->waits && task->turn == which) enter(task);
}

sim_task *sim_task_new(sim_time *time, sim_actor *actor, void (*body)(void *ctx), void *ctx) {
    sim_task *task = sim_alloc(sizeof *task);
    task->time = time;
    task->actor = actor;
    task->body = body;
    task->ctx = ctx;
    task->stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (task->stack == MAP_FAILED || getcontext(&task->here)) abort();
    task->here.uc_stack.ss_sp = task->stack;
    task->here.uc_stack.ss_size = STACK_SIZE;
    makecontext(&task->here, begin, 0);
    task->waits = true;
    sim_at(time, sim_now(time), alarm_rings, task, 0);
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
    if (!task) abort(); /* a node that waits would stop the world */
    task->waits = true;
    sim_at(task->time, until_global_us, alarm_rings, task, ++task->turn);
    leave(task);
}

void sim_task_wake(sim_task *task) {
    if (task->waits) sim_at(task->time, sim_now(task->time), alarm_rings, task, task->turn);
}
