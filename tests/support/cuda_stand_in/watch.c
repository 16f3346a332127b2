/* What emulated kernels touch. The kernels are compiled with the instrumentation of ThreadSanitizer
 * (-fsanitize=thread), whose calls before each load and store end here instead of in its library. Each access must be
 *
 * - aligned to its size, as the GPU demands of 2, 4 and 8 bytes, and of the vectors of 16 (they say so themselves:
 *   threads.h. Another access of 16 bytes is a copy of a structure, which the GPU splits by the alignment of its
 * fields);
 * - inside one allocation of the device, inside the shared memory that the launch asked for, in a shared array
 *   (__shared__: a static variable here), or on the thread's stack;
 * - in shared memory: ordered, by a barrier of the block or of the warp, behind what another thread has written there,
 *   and if it writes behind what another thread has read there. Shuffles order nothing, as in CUDA;
 * - in the device's memory: ordered behind what another block of the launch has stored there: watch_blocks.c.
 *
 * A cell for each byte of shared memory keeps who wrote and read it last, and when. Time is the number of barriers so
 * far: an access is ordered behind another thread's if that one came before the last barrier that both have passed. */
#include "tests/support/cuda_stand_in/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Who accessed a byte: a thread, counted from 1; several lanes of a warp (LANES + the warp); threads of several warps.
 */
enum { WARP = 32, WARPS_MAX = 32, LANES = 0x8000, SEVERAL = 0xffff };

typedef struct cell {
    uint32_t block;          /* the run of a block that it is about; another one: nothing has happened to this byte */
    uint16_t writer, reader; /* 0: none */
    uint32_t write_time, read_time;
} cell;

/* The variables of the program: __shared__ arrays are among them, and constants lie before them. */
extern char __executable_start[], __data_start[], _end[];

static cell *dynamic_cells, *static_cells;
static size_t n_dynamic;
static uint32_t block, time_now, block_time, warp_time[WARPS_MAX];
static struct range {
    const char *at, *end;
} stacks, arguments;
static bool lies_in(struct range r, const char *at) { return at >= r.at && at < r.end; }
static _Thread_local bool watching;

static cell *new_cells(size_t n) {
    void *at = mmap(NULL, n * sizeof(cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

void cuda_watch_begin(const void *all_stacks, size_t stack_bytes, const void *call, size_t call_bytes) {
    if (!dynamic_cells) {
        dynamic_cells = new_cells(CUDA_SHARED_MAX);
        static_cells = new_cells((size_t)(_end - __data_start));
    }
    stacks = (struct range){all_stacks, (const char *)all_stacks + stack_bytes};
    arguments = (struct range){call, (const char *)call + call_bytes};
    for (size_t i = 0; i + sizeof(void *) <= call_bytes; i += sizeof(void *)) {
        void *at;
        memcpy(&at, arguments.at + i, sizeof at);
        cuda_memory_touch(at, 1); /* the compiler inserts no call before a structure that is passed on by value */
    }
    watching = true;
    cuda_blocks_launch();
}

void cuda_watch_block(size_t shared_bytes) {
    n_dynamic = shared_bytes;
    block++;
    cuda_blocks_begin();
    block_time = ++time_now;
    for (int i = 0; i < WARPS_MAX; i++) warp_time[i] = block_time;
}

void cuda_watch_barrier(unsigned n_threads) {
    block_time = ++time_now;
    cuda_blocks_barrier(n_threads);
}
void cuda_watch_warp(unsigned warp) { warp_time[warp] = ++time_now; }
void cuda_watch_end(void) { watching = false; }

static void fail_access(const char *at, size_t bytes, bool is_write, const char *why) {
    char text[160];
    snprintf(text, sizeof text, "a %s of %zu bytes at %p %s", is_write ? "store" : "load", bytes, (const void *)at,
             why);
    cuda_threads_fail(text);
}

static unsigned warp_of(unsigned who) { return who & LANES ? who - LANES : (who - 1) / WARP; }

/* Whether an access of `other` at this time is ordered before what thread `me` does now. */
static bool is_ordered(unsigned me, unsigned other, uint32_t time) {
    if (!other || other == me || time < block_time) return true;
    return other != SEVERAL && warp_of(other) == warp_of(me) && time < warp_time[warp_of(me)];
}

static unsigned both_of(unsigned me, unsigned other) {
    return other != SEVERAL && warp_of(other) == warp_of(me) ? LANES + warp_of(me) : SEVERAL;
}

static const char *access_cell(cell *c, unsigned me, bool is_write) {
    if (c->block != block) *c = (cell){.block = block};
    if (!is_ordered(me, c->writer, c->write_time))
        return "races with a store of another thread: no barrier orders them";
    if (is_write && !is_ordered(me, c->reader, c->read_time))
        return "races with a load of another thread: no barrier orders them";
    if (is_write) {
        c->writer = (uint16_t)me;
        c->write_time = time_now;
    } else {
        bool alone = is_ordered(me, c->reader, c->read_time);
        c->reader = (uint16_t)(alone ? me : both_of(me, c->reader));
        c->read_time = time_now;
    }
    return NULL;
}

/* The cells of shared memory at this address; NULL: it is none. */
static cell *cells_of(const char *at, size_t bytes, bool is_write) {
    const char *dynamic = (const char *)cuda_position.shared;
    if (at >= dynamic && at < dynamic + CUDA_SHARED_MAX) {
        if (bytes > n_dynamic || (size_t)(at - dynamic) > n_dynamic - bytes)
            fail_access(at, bytes, is_write, "is beyond the shared memory that the launch asked for");
        return &dynamic_cells[at - dynamic];
    }
    return at >= __data_start && at < _end ? &static_cells[at - __data_start] : NULL;
}

static bool may_touch(const char *at, bool is_write) {
    const struct range constants = {__executable_start, __data_start};
    return !is_write && (lies_in(arguments, at) || lies_in(constants, at));
}

static void watch(const void *address, size_t bytes, bool is_write, bool aligned) {
    const struct range own = {(const char *)&cuda_position, (const char *)(&cuda_position + 1)};
    const char *at = address;
    if (!watching || lies_in(own, at)) return;
    if (aligned && (uintptr_t)at % (bytes < 8 ? bytes : 8))
        fail_access(at, bytes, is_write, "is not aligned to its size");
    cell *cells = cells_of(at, bytes, is_write);
    const char *why = NULL;
    for (size_t i = 0; cells && i < bytes && !why; i++)
        why = access_cell(&cells[i], cuda_position.thread.x + 1, is_write);
    if (cells || lies_in(stacks, at))
        ;
    else if (cuda_memory_touch(at, bytes))
        why = cuda_blocks_access(at, bytes, is_write);
    else if (!may_touch(at, is_write))
        why = "is outside of the allocations of its device";
    if (why) fail_access(at, bytes, is_write, why);
}

void cuda_watch_vectors(const void *to, const void *from, size_t bytes) {
    if (!watching) return;
    if ((uintptr_t)to % bytes) fail_access(to, bytes, true, "is not aligned to its size");
    if ((uintptr_t)from % bytes) fail_access(from, bytes, false, "is not aligned to its size");
}

/* -- the calls that the compiler inserts */

#ifndef SN_THREAD_SANITIZER /* that build has the library, and kernels without instrumentation */
void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_read_range(void *at, size_t bytes);
void __tsan_write_range(void *at, size_t bytes);

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_read_range(void *at, size_t bytes) { watch(at, bytes, false, false); }
void __tsan_write_range(void *at, size_t bytes) { watch(at, bytes, true, false); }

#define SIZES(X) X(1) X(2) X(4) X(8) X(16)
#define X(n)                                                                                                           \
    void __tsan_read##n(void *at);                                                                                     \
    void __tsan_write##n(void *at);                                                                                    \
    void __tsan_unaligned_read##n(void *at);                                                                           \
    void __tsan_unaligned_write##n(void *at);                                                                          \
    void __tsan_read##n(void *at) { watch(at, n, false, true); }                                                       \
    void __tsan_write##n(void *at) { watch(at, n, true, true); }                                                       \
    void __tsan_unaligned_read##n(void *at) { watch(at, n, false, false); }                                            \
    void __tsan_unaligned_write##n(void *at) { watch(at, n, true, false); }
SIZES(X)
#undef X
#endif
