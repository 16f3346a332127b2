/* Memory of the stand-in's devices, and pinned memory. The host can touch none of a device's allocations. While an
 * operation of the device runs, an allocation becomes accessible when the operation first touches it or a kernel
 * has it as an argument (watch.c sees the accesses of kernels before they happen), because most operations touch few of
 * many. */
#include "tests/support/cuda_stand_in/stand_in_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ALIGNMENT = 256, RUBBISH = 0xa5 };
/* What the driver takes by itself of a device: together what the backend keeps free for it. */
static const size_t CONTEXT_BYTES = (size_t)384 << 20, BLAS_BYTES = (size_t)128 << 20;

typedef struct allocation {
    char *at, *pages;
    size_t bytes, mapped;
    uint32_t *times; /* of each byte: watch_blocks.c. NULL: no kernel has stored there */
    int device;      /* -1: pinned host memory */
    bool open;       /* accessible; only of devices */
} allocation;

static allocation *allocations; /* in the order of their addresses */
static size_t n_allocations, capacity;
static size_t limit = (size_t)1 << 30, used[CUDA_STAND_IN_DEVICES], peak, pinned;
static size_t contexts[CUDA_STAND_IN_DEVICES], handles[CUDA_STAND_IN_DEVICES]; /* bytes that the driver has taken */
static uint64_t mallocs;
static int fail_nth;

/* Where operations found the bytes of a page last: index + 1 of an allocation. */
static unsigned last_found[1024];
enum { NO_DEVICE = -2 };
static int open_device = NO_DEVICE;

static size_t pages_for(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void *map_pages(size_t bytes, int protection) {
    return mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static cudaError_t add_allocation(size_t bytes, int device, void **out) {
    if (n_allocations == capacity) {
        capacity = capacity ? 2 * capacity : 64;
        allocations = realloc(allocations, capacity * sizeof *allocations);
        if (!allocations) abort();
    }
    allocation p = {.bytes = bytes, .mapped = pages_for(bytes) + PAGE, .device = device};
    p.pages = map_pages(p.mapped, PROT_NONE);
    if (p.pages == MAP_FAILED) return cudaErrorMemoryAllocation;
    mprotect(p.pages, p.mapped - PAGE, PROT_READ | PROT_WRITE); /* the last page stays inaccessible */
    p.at = p.pages + (p.mapped - PAGE - bytes) / ALIGNMENT * ALIGNMENT;
    size_t shown = bytes < 4 << 20 ? bytes : 4 << 20;
    memset(p.at, RUBBISH, shown);
    if (device >= 0) mprotect(p.pages, p.mapped, PROT_NONE);
    size_t i = n_allocations++;
    for (; i && allocations[i - 1].at > p.at; i--) allocations[i] = allocations[i - 1];
    allocations[i] = p;
    memset(last_found, 0, sizeof last_found);
    *out = p.at;
    return cudaSuccess;
}

static bool lies_in(const allocation *p, const char *at, size_t bytes) {
    return at >= p->at && bytes <= p->bytes && (size_t)(at - p->at) <= p->bytes - bytes;
}

static allocation *find_allocation(const void *at, size_t bytes, int device) {
    size_t first = 0, end = n_allocations;
    while (end - first > 1) { /* the last one that begins there or before */
        size_t middle = first + (end - first) / 2;
        *(allocations[middle].at <= (const char *)at ? &first : &end) = middle;
    }
    allocation *p = &allocations[first];
    return n_allocations && p->device == device && lies_in(p, at, bytes) ? p : NULL;
}

static void remove_allocation(allocation *p) {
    munmap(p->pages, p->mapped);
    if (p->times) munmap(p->times, p->bytes * sizeof *p->times);
    n_allocations--;
    for (size_t i = (size_t)(p - allocations); i < n_allocations; i++) allocations[i] = allocations[i + 1];
    memset(last_found, 0, sizeof last_found);
}

static void open_or_close(allocation *p, bool open) {
    if (p->open == open) return;
    mprotect(p->pages, p->mapped - PAGE, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    p->open = open;
}

void cuda_memory_open(int device) {
    open_device = device;
#ifdef SN_THREAD_SANITIZER /* watch.c sees no access */
    for (size_t i = 0; i < n_allocations; i++)
        if (allocations[i].device == device) open_or_close(&allocations[i], true);
#endif
}

void cuda_memory_close(void) {
    for (size_t i = 0; i < n_allocations; i++) open_or_close(&allocations[i], false);
    open_device = NO_DEVICE;
}

static allocation *find_open(const void *at, size_t bytes) {
    unsigned *last = &last_found[(uintptr_t)at / PAGE % 1024];
    if (*last && allocations[*last - 1].open && lies_in(&allocations[*last - 1], at, bytes))
        return &allocations[*last - 1];
    allocation *p = find_allocation(at, bytes, open_device);
    if (!p) return NULL;
    open_or_close(p, true);
    *last = (unsigned)(p - allocations) + 1;
    return p;
}

bool cuda_memory_touch(const void *at, size_t bytes) { return find_open(at, bytes); }

uint32_t *cuda_memory_times(const void *at, bool make) {
    allocation *p = find_open(at, 1);
    if (!p->times && make) {
        p->times = map_pages(p->bytes * sizeof *p->times, PROT_READ | PROT_WRITE);
        if (p->times == MAP_FAILED) abort();
    }
    return p->times ? p->times + ((const char *)at - p->at) : NULL;
}

bool cuda_memory_holds(int device, const void *at, size_t bytes) { return find_allocation(at, bytes, device); }
static bool is_pinned_memory(const void *at, size_t bytes) { return find_allocation(at, bytes, -1); }

__attribute__((constructor)) static void read_limit(void) {
    const char *text = getenv("CUDA_STAND_IN_MEMORY");
    if (text) limit = strtoull(text, NULL, 10);
}

void cuda_memory_context(int device) { contexts[device] = CONTEXT_BYTES; }
void cuda_memory_blas(int device) { handles[device] = BLAS_BYTES; }
size_t cuda_memory_total(void) { return limit + CONTEXT_BYTES + BLAS_BYTES; }

size_t cuda_memory_free(int device) {
    size_t taken = contexts[device] + handles[device] + used[device], total = cuda_memory_total();
    return total > taken ? total - taken : 0;
}

int cuda_stand_in_contexts(void) {
    int n = 0;
    for (int i = 0; i < CUDA_STAND_IN_DEVICES; i++) n += contexts[i] > 0;
    return n;
}

bool cuda_memory_take(int device, size_t bytes) {
    if (bytes > cuda_memory_free(device)) return false;
    used[device] += bytes;
    if (used[device] > peak) peak = used[device];
    return true;
}

void cuda_memory_give(int device, size_t bytes) { used[device] -= bytes; }

static cudaError_t allocate_memory(void **out, size_t bytes, int device) {
    cudaError_t error = cuda_begin_uncapturable();
    if (error) return error;
    if (cuda_count_down(&fail_nth)) return cudaErrorMemoryAllocation;
    if (!bytes) return cudaErrorInvalidValue;
    if (device >= 0 && !cuda_memory_take(device, bytes)) return cudaErrorMemoryAllocation;
    error = add_allocation(bytes, device, out);
    if (!error && device < 0) pinned += bytes;
    if (error && device >= 0) cuda_memory_give(device, bytes);
    mallocs += !error && device >= 0;
    return error;
}

cudaError_t cudaMalloc(void **device, size_t bytes) {
    cuda_lock();
    cudaError_t error = cuda_result(allocate_memory(device, bytes, cuda_this_device()));
    cuda_unlock();
    return error;
}

cudaError_t cudaHostAlloc(void **host, size_t bytes, unsigned flags) {
    (void)flags;
    cuda_lock();
    cudaError_t error = cuda_result(allocate_memory(host, bytes, -1));
    cuda_unlock();
    return error;
}

static cudaError_t free_memory(void *at, bool is_pinned) {
    cudaError_t error = cuda_begin_uncapturable();
    if (error || !at) return error;
    for (int device = is_pinned ? -1 : 0; device < (is_pinned ? 0 : CUDA_STAND_IN_DEVICES); device++) {
        allocation *p = find_allocation(at, 0, device);
        if (!p || p->at != at) continue;
        cuda_drain(is_pinned ? cuda_this_device() : device);
        *(is_pinned ? &pinned : &used[device]) -= p->bytes;
        remove_allocation(p);
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaFree(void *device) {
    cuda_lock();
    cudaError_t error = cuda_result(free_memory(device, false));
    cuda_unlock();
    return error;
}

cudaError_t cudaFreeHost(void *host) {
    cuda_lock();
    cudaError_t error = cuda_result(free_memory(host, true));
    cuda_unlock();
    return error;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    cuda_lock();
    cudaError_t error = cuda_begin();
    *total = cuda_memory_total();
    *free_bytes = cuda_memory_free(cuda_this_device());
    cuda_unlock();
    return error;
}

void cuda_stand_in_memory(size_t bytes) { limit = bytes; }
void cuda_stand_in_fail_allocation(int nth) { fail_nth = nth; }
size_t cuda_stand_in_pinned(void) { return pinned; }
uint64_t cuda_stand_in_mallocs(void) { return mallocs; }

size_t cuda_stand_in_peak(void) { return peak; }

void cuda_stand_in_peak_reset(void) {
    peak = 0;
    for (int i = 0; i < CUDA_STAND_IN_DEVICES; i++)
        if (used[i] > peak) peak = used[i];
}

size_t cuda_stand_in_used(void) {
    size_t all = 0;
    for (int i = 0; i < CUDA_STAND_IN_DEVICES; i++) all += used[i];
    return all;
}

/* -- copies */

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value; /* for from == NULL */
    char own[];
} copy;

static void run_copy(void *ctx) {
    copy *c = ctx;
    cuda_memory_touch(c->to, c->bytes);
    cuda_memory_touch(c->from, c->bytes);
    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, c->value, c->bytes);
}

static cudaError_t queue_copy(cudaStream_t stream, void *to, const void *from, size_t bytes, int value, bool own) {
    copy *c = malloc(sizeof *c + (own ? bytes : 0));
    if (!c) abort();
    *c = (copy){to, from, bytes, value};
    if (own) {
        memcpy(c->own, from, bytes);
        c->from = c->own;
    }
    return cuda_stand_in_queue(stream, (cuda_operation){run_copy, c, free}, CUDA_OPERATION_COPY);
}

static cudaError_t copy_between(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                cudaStream_t stream) {
    cudaError_t error = cuda_begin();
    if (error || !bytes) return error;
    bool up = kind == cudaMemcpyHostToDevice;
    const void *device = up ? to : from, *host = up ? from : to;
    if (!up && kind != cudaMemcpyDeviceToHost) return cudaErrorInvalidValue; /* the backend uses no other kinds */
    if (!cuda_memory_holds(cuda_this_device(), device, bytes)) return cudaErrorInvalidValue;
    bool is_pinned = is_pinned_memory(host, bytes);
    if (!is_pinned && (error = cuda_begin_uncapturable())) return error;
    error = queue_copy(stream, to, from, bytes, 0, up && !is_pinned);
    if (!error && !up && !is_pinned) cuda_drain(cuda_this_device());
    return error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cuda_lock();
    cudaError_t error = cuda_result(copy_between(to, from, bytes, kind, stream));
    cuda_unlock();
    return error;
}

cudaError_t cudaMemsetAsync(void *device, int value, size_t bytes, cudaStream_t stream) {
    cuda_lock();
    cudaError_t error = cuda_begin();
    if (!error && !cuda_memory_holds(cuda_this_device(), device, bytes)) error = cudaErrorInvalidValue;
    if (!error) error = queue_copy(stream, device, NULL, bytes, value, false);
    cuda_result(error);
    cuda_unlock();
    return error;
}
