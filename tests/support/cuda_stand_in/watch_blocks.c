/* What the thread blocks of one launch do to each other's memory on the device. Blocks run at the same time on a GPU,
 * so one that loads or stores what another one of its launch has stored must be ordered behind it:
 *
 *     the one that stored     stores, __threadfence (by each thread, or behind a barrier by the one that counts),
 * atomic the other one           atomic at the same address, __threadfence (by the one that counts before a barrier, or
 * by each thread behind it), loads
 *
 * Time is a number that grows with each block, barrier, fence and atomic operation. Each byte keeps when it was stored
 * last, and so by which block.
 *
 * It does not see: a store to what a block loads that ran before (these run one after the other, every other launch in
 * the reverse order, so that its results differ then); threads of one block that race in the device's memory; that a
 * counter lets a block pass too early, but by what that block loads. */
#include "tests/support/cuda_stand_in/threads.h"

#include <stdlib.h>

/* A block of the launch that has begun. Stores before `published` are seen by who counts at `counter` after it. */
typedef struct run {
    uint32_t begin, published;
    const unsigned *counter;
} run;

static run *runs;
static size_t n_runs, capacity;
static uint32_t now = 1, launch_begin, block_begin, barrier;
/* Of each thread: its last store and its last fence, and the barrier before that. Of the block: the last barrier at
 * which every thread had fenced what it had stored. */
static uint32_t stores[CUDA_THREADS_MAX], fences[CUDA_THREADS_MAX], before_fence[CUDA_THREADS_MAX], all_fenced;
static bool any_fence;
/* The block's last atomic operation, by this thread; the first barrier behind it, 0: none so far; `passed`: its thread
 * fenced before a barrier. */
static struct {
    const unsigned *counter;
    uint32_t time, barrier;
    unsigned thread;
    bool passed;
} arrival;
static uint64_t atomics, loaded;

void cuda_blocks_launch(void) {
    n_runs = 0;
    launch_begin = ++now;
}

void cuda_blocks_begin(void) {
    if (n_runs == capacity) {
        capacity = capacity ? 2 * capacity : 1024;
        run *grown = realloc(runs, capacity * sizeof *runs);
        if (!grown) abort();
        runs = grown;
    }
    barrier = block_begin = ++now;
    runs[n_runs++] = (run){.begin = now};
    all_fenced = 0;
    any_fence = false;
    arrival.counter = NULL;
}

void cuda_blocks_barrier(unsigned n_threads) {
    bool all = any_fence;
    for (unsigned i = 0; i < n_threads && all; i++) all = stores[i] < block_begin || fences[i] > stores[i];
    barrier = ++now;
    if (all) all_fenced = barrier;
    if (!arrival.counter) return;
    arrival.passed |= fences[arrival.thread] > arrival.time;
    if (!arrival.barrier) arrival.barrier = now;
}

void cuda_blocks_fence(void) {
    unsigned me = cuda_position.thread.x;
    fences[me] = ++now;
    before_fence[me] = barrier;
    any_fence = true;
}

unsigned cuda_blocks_atomic_inc(unsigned *at, unsigned most) {
    unsigned me = cuda_position.thread.x;
    if ((uintptr_t)at % sizeof *at || !cuda_memory_touch(at, sizeof *at))
        cuda_threads_fail("an atomic operation is outside of the allocations of its device");
    unsigned old = *at;
    run *own = &runs[n_runs - 1];
    own->counter = at;
    own->published = all_fenced;
    if (fences[me] > block_begin && before_fence[me] > own->published) own->published = before_fence[me];
    arrival.counter = at;
    arrival.time = ++now;
    arrival.barrier = 0;
    arrival.thread = me;
    arrival.passed = false;
    atomics++;
    *at = old >= most ? 0 : old + 1;
    return old;
}

/* Whether this thread comes behind the block's atomic operation. */
static bool is_behind_arrival(void) {
    unsigned me = cuda_position.thread.x;
    if (!arrival.counter) return false;
    if (arrival.passed) return true;
    return me == arrival.thread ? fences[me] > arrival.time : arrival.barrier && fences[me] > arrival.barrier;
}

static bool is_ordered(uint32_t time) {
    if (time < launch_begin || time >= block_begin) return true; /* an earlier launch, or this block */
    size_t first = 0, end = n_runs;
    while (end - first > 1) { /* the last one that began before */
        size_t middle = first + (end - first) / 2;
        *(runs[middle].begin <= time ? &first : &end) = middle;
    }
    return is_behind_arrival() && runs[first].counter == arrival.counter && time < runs[first].published;
}

const char *cuda_blocks_access(const void *at, size_t bytes, bool is_write) {
    uint32_t *times = cuda_memory_times(at, is_write);
    if (!is_write) loaded += bytes;
    for (size_t i = 0; times && i < bytes; i++) {
        if (!is_ordered(times[i])) return "races with a store of another block: no fences and counter order them";
        if (is_write) times[i] = now;
    }
    if (is_write) stores[cuda_position.thread.x] = now;
    return NULL;
}

uint64_t cuda_stand_in_atomics(void) { return atomics; }
uint64_t cuda_stand_in_loaded(void) { return loaded; }
