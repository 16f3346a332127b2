/* The threads of a block as stacks that are switched between: see threads.h. */
#include "tests/support/cuda_stand_in/threads.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { THREADS_MAX = 1024, STACK = 64 << 10, WARP = 32 };

typedef enum state { READY, AT_BARRIER, AT_EXCHANGE, DONE } state;

typedef struct fiber {
    jmp_buf at;
    ucontext_t start;
    bool begun;
    state state;
    unsigned exchanges;
    uint32_t brought[2]; /* for this exchange and the one before */
} fiber;

struct cuda_position cuda_position;

static fiber *fibers;
static jmp_buf scheduler; /* the jumps save no signal masks: a switch costs nanoseconds */
static unsigned char shared[CUDA_SHARED_MAX] __attribute__((aligned(16)));
static unsigned now, n_threads, n_blocks_run;
static size_t n_shared;
static void (*block_body)(void *);
static void *block_ctx;

void cuda_threads_fail(const char *sentence) {
    fprintf(stderr, "a kernel, thread %u of block (%u, %u, %u): %s\n", now, cuda_position.block.x, cuda_position.block.y,
            cuda_position.block.z, sentence);
    abort();
}

/* Leaves the running thread where it is; returns when it is resumed. */
static void leave(state why) {
    fibers[now].state = why;
    if (!_setjmp(fibers[now].at)) _longjmp(scheduler, 1);
}

static void fiber_main(void) {
    for (;;) {
        block_body(block_ctx);
        leave(DONE);
    }
}

static void enter(fiber *f) {
    static ucontext_t unused;
    if (f->begun) _longjmp(f->at, 1);
    f->begun = true;
    swapcontext(&unused, &f->start);
}

static void resume(unsigned i) {
    now = i;
    cuda_position.thread = (cuda_index){i, 0, 0};
    fibers[i].state = READY;
    if (!_setjmp(scheduler)) enter(&fibers[i]);
}

static void make_fibers(void) {
    fibers = calloc(THREADS_MAX, sizeof *fibers);
    char *stacks = mmap(NULL, (size_t)THREADS_MAX * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!fibers || stacks == MAP_FAILED) abort();
    for (size_t i = 0; i < THREADS_MAX; i++) {
        getcontext(&fibers[i].start);
        fibers[i].start.uc_stack.ss_sp = stacks + i * STACK;
        fibers[i].start.uc_stack.ss_size = STACK;
        makecontext(&fibers[i].start, fiber_main, 0);
    }
}

void cuda_threads_barrier(void) { leave(AT_BARRIER); }

/* Two places for what is brought: nobody comes to the exchange after the next before all have taken from this one. */
uint32_t cuda_threads_exchange(uint32_t bits, int distance) {
    unsigned me = now, place = fibers[me].exchanges++ % 2, other = me ^ (unsigned)distance;
    fibers[me].brought[place] = bits;
    leave(AT_EXCHANGE);
    if (other / WARP != me / WARP || other >= n_threads) cuda_threads_fail("a shuffle reaches out of its warp");
    return fibers[other].brought[place];
}

/* Lets the lanes of a warp go on that have all come to an exchange. True when it did. */
static bool release_warp(unsigned first) {
    unsigned end = first + WARP < n_threads ? first + WARP : n_threads, waiting = 0, gone = 0;
    for (unsigned i = first; i < end; i++) {
        waiting += fibers[i].state == AT_EXCHANGE;
        gone += fibers[i].state == DONE;
    }
    if (waiting && gone) cuda_threads_fail("a shuffle waits for lanes that have left");
    if (waiting < end - first) return false;
    for (unsigned i = first; i < end; i++) fibers[i].state = READY;
    return true;
}

static bool release_block(void) {
    unsigned waiting = 0, gone = 0;
    for (unsigned i = 0; i < n_threads; i++) {
        waiting += fibers[i].state == AT_BARRIER;
        gone += fibers[i].state == DONE;
    }
    if (!waiting || waiting + gone < n_threads) return false;
    for (unsigned i = 0; i < n_threads; i++)
        if (fibers[i].state == AT_BARRIER) fibers[i].state = READY;
    return true;
}

/* Lets the threads [first, first + n) go on, each to where it must wait. True when one did. */
static bool run_threads(unsigned first, unsigned n, unsigned turn) {
    bool any = false;
    for (unsigned k = 0; k < n; k++) {
        unsigned i = (k + turn) % n;
        if (turn % 2) i = n - 1 - i;
        if (fibers[first + i].state != READY) continue;
        resume(first + i);
        any = true;
    }
    return any;
}

/* Warps either keep step, or one runs ahead to the next barrier while the others stand: what lacks a barrier shows in one of
 * the two. Who begins, and which way round, differs from block to block. */
static void run_block(void) {
    unsigned turn = n_blocks_run++ * 7, n_warps = (n_threads + WARP - 1) / WARP;
    bool ahead = turn / 7 % 4 < 2;
    for (unsigned i = 0; i < n_threads; i++) fibers[i].state = READY;
    memset(shared, 0xa5, n_shared);
    for (bool going = true; going;) {
        going = false;
        for (unsigned k = 0; k < n_warps; k++) {
            unsigned first = (k + turn) % n_warps * WARP, n = n_threads - first < WARP ? n_threads - first : WARP;
            bool again;
            do {
                again = run_threads(first, n, turn);
                again |= release_warp(first);
                going |= again;
            } while (again && ahead);
        }
        going |= release_block();
    }
    for (unsigned i = 0; i < n_threads; i++)
        if (fibers[i].state != DONE) cuda_threads_fail("a barrier that some threads never come to");
}

void cuda_threads_run(const unsigned grid[3], unsigned threads, size_t bytes, void (*body)(void *ctx), void *ctx) {
    if (!fibers) make_fibers();
    n_threads = threads;
    n_shared = bytes;
    block_body = body;
    block_ctx = ctx;
    cuda_position.shared = shared;
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                cuda_position.block = (cuda_index){x, y, z};
                run_block();
            }
}
