/* The threads of a block are stacks between which the program switches: see threads.h. */
#include "tests/support/cuda_stand_in/threads.h"

#include "base/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Stacks lie no power of two apart: else the ends of all of them would share one set of the cache. */
enum { THREADS_MAX = CUDA_THREADS_MAX, STACK = (64 << 10) + 9 * 64, WARP = 32, NONE = -1 };

typedef enum state { READY, AT_BARRIER, AT_EXCHANGE, DONE } state;

typedef enum meeting { BARRIER, SHUFFLE, GATHERING } meeting;

struct cuda_position cuda_position;

/* Of each thread: */
static void *suspended[THREADS_MAX]; /* its stack pointer while it is suspended */
static uint8_t states[THREADS_MAX];
static uint8_t meetings[THREADS_MAX]; /* what it waits at with its warp */
static unsigned exchanges[THREADS_MAX];
/* Words given to this exchange of a warp and to the one before. */
static uint32_t given[THREADS_MAX / WARP][2][WARP][CUDA_WORDS];
static char *stacks;
static void *scheduler; /* stack pointer of run_threads while a fiber runs */
static unsigned char shared[CUDA_SHARED_MAX] __attribute__((aligned(16)));
static unsigned now, n_threads, n_blocks_run, n_launches;
static size_t n_shared;
static void (*block_body)(void *);
static void *block_ctx;

uint16_t cuda_threads_half(float x) { return sn_f32_to_f16(x); }

void cuda_threads_fail(const char *sentence) {
    fprintf(stderr, "a kernel, thread %u of block (%u, %u, %u): %s\n", now, cuda_position.block.x,
            cuda_position.block.y, cuda_position.block.z, sentence);
    abort();
}

/* Suspends the running stack, stores its stack pointer in *from, and resumes `to`. Registers that a called function
 * must preserve are pushed on the stack. setjmp and longjmp are not made for other stacks, and sanitizers watch
 * them; swapcontext makes two system calls per switch. */
void cuda_threads_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n.type cuda_threads_switch, @function\ncuda_threads_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
enum { SAVED = 8, RETURN_AT = 6 }; /* words of a stack that has not begun; the last ones keep it aligned */
#elif defined(__aarch64__)
__asm__(".text\n.type cuda_threads_switch, %function\ncuda_threads_switch:\n"
        "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\n"
        "stp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x2, sp\nstr x2, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");
enum { SAVED = 20, RETURN_AT = 11 };
#else
#error "the emulation of CUDA's threads switches stacks: write cuda_threads_switch for this processor"
#endif

/* The threads [first, first + n) of which each that is ready runs once, from `at` on, forwards or backwards. */
static struct {
    unsigned first, n, at, left;
    bool backwards;
} walk;

/* The next thread to run, or NONE. */
static int next_ready(void) {
    while (walk.left) {
        unsigned i = walk.first + (walk.backwards ? walk.n - 1 - walk.at : walk.at);
        walk.at = walk.at + 1 < walk.n ? walk.at + 1 : 0;
        walk.left--;
        if (states[i] == READY) return (int)i;
    }
    return NONE;
}

static void *begin_thread(unsigned i) {
    now = i;
    cuda_position.thread = (cuda_index){i, 0, 0};
    return suspended[i];
}

/* Suspends the running thread and resumes the next one, or run_threads behind the last; returns when it is resumed. */
static void switch_out(state why) {
    unsigned me = now;
    states[me] = why;
    int next = next_ready();
    cuda_threads_switch(&suspended[me], next == NONE ? scheduler : begin_thread((unsigned)next));
}

static void fiber_main(void) {
    for (;;) {
        block_body(block_ctx);
        switch_out(DONE);
    }
}

static void make_stacks(void) {
    stacks = mmap(NULL, (size_t)THREADS_MAX * STACK, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    for (size_t i = 0; i < THREADS_MAX; i++) {
        uintptr_t *top = (uintptr_t *)(void *)(stacks + (i + 1) * STACK) - SAVED;
        top[RETURN_AT] = (uintptr_t)fiber_main;
        suspended[i] = top;
    }
}

void cuda_threads_barrier(void) { switch_out(AT_BARRIER); }

static void meet_warp(meeting what) {
    meetings[now] = what;
    switch_out(AT_EXCHANGE);
}

void cuda_threads_warp_barrier(void) { meet_warp(BARRIER); }

/* Two places for words: no thread reaches the exchange after the next before all threads have read this one. */
static cuda_words give_words(const uint32_t *words, int n, meeting what) {
    unsigned me = now, place = exchanges[me]++ % 2;
    for (int i = 0; i < n; i++) given[me / WARP][place][me % WARP][i] = words[i];
    meet_warp(what);
    return (cuda_words)given[me / WARP][place];
}

cuda_words cuda_threads_gather(const uint32_t *words, int n) {
    if (n_threads % WARP) cuda_threads_fail("a product of matrices needs whole warps");
    return give_words(words, n, GATHERING);
}

uint32_t cuda_threads_exchange(uint32_t bits, int distance) {
    unsigned me = now, other = me ^ (unsigned)distance;
    cuda_words all = give_words(&bits, 1, SHUFFLE);
    if (other / WARP != me / WARP || other >= n_threads) cuda_threads_fail("a shuffle reaches out of its warp");
    return all[other % WARP][0];
}

uint64_t cuda_threads_block(void) { return n_blocks_run; }

/* Releases the lanes of a warp if all of them have reached an exchange. True if it did. */
static bool release_warp(unsigned first) {
    unsigned end = first + WARP < n_threads ? first + WARP : n_threads, waiting = 0, gone = 0, alike = 0;
    for (unsigned i = first; i < end; i++) {
        alike += states[i] == AT_EXCHANGE && meetings[i] == meetings[first];
        waiting += states[i] == AT_EXCHANGE;
        gone += states[i] == DONE;
    }
    if (waiting && gone) cuda_threads_fail("a shuffle waits for lanes that have ended");
    if (waiting < end - first) return false;
    if (alike < waiting) cuda_threads_fail("a warp's lanes wait at different barriers, shuffles or products");
    if (meetings[first] == BARRIER) cuda_watch_warp(first / WARP);
    memset(states + first, READY, end - first);
    return true;
}

static bool release_block(void) {
    unsigned waiting = 0, gone = 0;
    for (unsigned i = 0; i < n_threads; i++) {
        waiting += states[i] == AT_BARRIER;
        gone += states[i] == DONE;
    }
    if (!waiting || waiting + gone < n_threads) return false;
    for (unsigned i = 0; i < n_threads; i++)
        if (states[i] == AT_BARRIER) states[i] = READY;
    cuda_watch_barrier(n_threads);
    return true;
}

/* Runs the threads [first, first + n), each until it must wait. True if one ran. */
static bool run_threads(unsigned first, unsigned n, unsigned turn) {
    walk.first = first;
    walk.n = walk.left = n;
    walk.at = turn % n;
    walk.backwards = turn % 2;
    int next = next_ready();
    if (next == NONE) return false;
    cuda_threads_switch(&scheduler, begin_thread((unsigned)next));
    return true;
}

/* The warps either run in step, or one runs to the next barrier while the others wait: a missing barrier shows in
 * one of the two. The first warp and the direction differ from block to block. */
static void run_block(void) {
    unsigned turn = n_blocks_run++ * 7, n_warps = (n_threads + WARP - 1) / WARP;
    bool ahead = turn / 7 % 4 < 2;
    memset(states, READY, n_threads);
    memset(shared, 0xa5, n_shared);
    cuda_watch_block(n_shared);
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
        if (states[i] != DONE) cuda_threads_fail("a barrier that some threads never reach");
}

void cuda_threads_run(const unsigned grid[3], unsigned threads, size_t bytes, void (*body)(void *ctx), void *ctx,
                      size_t ctx_bytes) {
    if (!stacks) make_stacks();
    cuda_watch_begin(stacks, (size_t)THREADS_MAX * STACK, ctx, ctx_bytes);
    n_threads = threads;
    n_shared = bytes;
    block_body = body;
    block_ctx = ctx;
    cuda_position.shared = shared;
    size_t n = (size_t)grid[0] * grid[1] * grid[2];
    bool backwards = n_launches++ % 2; /* the order of blocks is undefined */
    for (size_t k = 0; k < n; k++) {
        size_t i = backwards ? n - 1 - k : k;
        cuda_position.block =
            (cuda_index){(unsigned)(i % grid[0]), (unsigned)(i / grid[0] % grid[1]), (unsigned)(i / grid[0] / grid[1])};
        run_block();
    }
    cuda_watch_end();
}
