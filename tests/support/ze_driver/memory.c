#include "tests/support/ze_driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, ALIGNMENT = 64, WAIT_S = 300 };

/* -- waits for commands that are executed */

static int wait_seconds(void) {
    const char *text = getenv("ZE_TEST_WAIT_S");
    long seconds = text ? strtol(text, NULL, 10) : WAIT_S;
    return seconds > 0 && seconds < WAIT_S ? (int)seconds : WAIT_S;
}

struct timespec wait_limit(void) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_seconds();
    return until;
}

_Noreturn void wait_failed(const char *what) {
    fprintf(stderr, "ze_test_driver: a command %s has not ended within %d s\n", what, wait_seconds());
    abort();
}

void wait_for_change(const struct timespec *limit, const char *what) {
    if (pthread_cond_timedwait(&ze_test.changed, &ze_test.lock, limit)) wait_failed(what);
}

allocation *allocation_of(const void *address, size_t bytes) {
    const uint8_t *at = address;
    for (allocation *a = ze_test.allocations; a; a = a->next)
        if (at >= a->base && at <= a->base + a->bytes && bytes <= (size_t)(a->base + a->bytes - at)) return a;
    return NULL;
}

static void open_one(allocation *a) {
    if (a->open++ == 0 && a->device) mprotect(a->map, a->map_bytes - PAGE, PROT_READ | PROT_WRITE);
}

static void close_one(allocation *a) {
    if (--a->open == 0 && a->device) mprotect(a->map, a->map_bytes - PAGE, PROT_NONE);
}

/* A command that follows addresses may use every allocation that exists when the command begins, but none made
 * later. */
void allocations_open(command *c) {
    c->newest = ze_test.newest;
    for (allocation *a = ze_test.allocations; a && c->indirect; a = a->next) open_one(a);
    for (int i = 0; i < c->n_uses && !c->indirect; i++) open_one(c->uses[i]);
}

void allocations_close(const command *c) {
    for (allocation *a = ze_test.allocations; a && c->indirect; a = a->next)
        if (a->number <= c->newest) close_one(a);
    for (int i = 0; i < c->n_uses && !c->indirect; i++) close_one(c->uses[i]);
}

static ze_result_t allocate_memory(bool device, size_t bytes, size_t alignment, void **out) {
    if (bytes == 0) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    if (alignment > ALIGNMENT) return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
    pthread_mutex_lock(&ze_test.lock);
    bool fails = ze_test.fail_allocation > 0 && --ze_test.fail_allocation == 0;
    size_t used = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, map_bytes = (used + PAGE - 1) / PAGE * PAGE + PAGE;
    allocation *a = calloc(1, sizeof *a);
    void *map = MAP_FAILED;
    if (a && !fails && (!device || ze_test.device_used + bytes <= ze_test.memory))
        map = mmap(NULL, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ze_result_t result = ze_test.lost ? ZE_RESULT_ERROR_DEVICE_LOST : ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    if (map == MAP_FAILED || ze_test.lost) {
        free(a);
    } else {
        *a = (allocation){.next = ze_test.allocations,
                          .bytes = bytes,
                          .map = map,
                          .map_bytes = map_bytes,
                          .device = device,
                          .number = ++ze_test.newest};
        a->base = a->map + map_bytes - PAGE - used; /* the end of the allocation is next to the page that faults */
        if (!device) mprotect(map, map_bytes - PAGE, PROT_READ | PROT_WRITE);
        ze_test.allocations = a;
        ze_test.memory_used += bytes;
        if (device) ze_test.device_used += bytes;
        if (ze_test.device_used > ze_test.device_peak) ze_test.device_peak = ze_test.device_used;
        *out = a->base;
        result = ZE_RESULT_SUCCESS;
    }
    pthread_mutex_unlock(&ze_test.lock);
    return result;
}

ze_result_t memory_device(ze_context_handle_t context, const ze_device_mem_alloc_desc_t *desc, size_t bytes,
                          size_t alignment, ze_device_handle_t device, void **out) {
    (void)context, (void)device;
    const ze_relaxed_allocation_limits_exp_desc_t *relaxed = desc->pNext;
    bool any_size = relaxed && relaxed->stype == ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC &&
                    relaxed->flags & ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE && getenv("ZE_TEST_RELAXED");
    if (bytes > ze_test.allocation_max && !any_size) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    return allocate_memory(true, bytes, alignment, out);
}

ze_result_t memory_host(ze_context_handle_t context, const ze_host_mem_alloc_desc_t *desc, size_t bytes,
                        size_t alignment, void **out) {
    (void)context, (void)desc;
    return allocate_memory(false, bytes, alignment, out);
}

static allocation **find_allocation(const void *memory) {
    allocation **link = &ze_test.allocations;
    while (*link && (*link)->base != memory) link = &(*link)->next;
    return link;
}

ze_result_t memory_free(ze_context_handle_t context, void *memory) {
    (void)context;
    pthread_mutex_lock(&ze_test.lock);
    allocation **link = find_allocation(memory);
    const struct timespec limit = wait_limit();
    for (; ze_test.lost && *link && (*link)->open; link = find_allocation(memory)) /* by what began before the loss */
        wait_for_change(&limit, "on memory that is freed");
    allocation *a = *link;
    if (a) {
        if (!ze_test.lost && (a->open || a->queued)) {
            fprintf(stderr, "ze_test_driver: %zu bytes are freed that commands still use\n", a->bytes);
            abort();
        }
        *link = a->next;
        ze_test.memory_used -= a->bytes;
        if (a->device) ze_test.device_used -= a->bytes;
        munmap(a->map, a->map_bytes);
        free(a);
    }
    pthread_mutex_unlock(&ze_test.lock);
    return a ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_result_t memory_properties(ze_context_handle_t context, const void *memory, ze_memory_allocation_properties_t *out,
                              ze_device_handle_t *device) {
    (void)context;
    pthread_mutex_lock(&ze_test.lock);
    allocation *a = allocation_of(memory, 1);
    out->type = !a ? ZE_MEMORY_TYPE_UNKNOWN : a->device ? ZE_MEMORY_TYPE_DEVICE : ZE_MEMORY_TYPE_HOST;
    out->id = 0;
    out->pageSize = PAGE;
    if (device) *device = NULL;
    pthread_mutex_unlock(&ze_test.lock);
    return ZE_RESULT_SUCCESS;
}

/* -- other objects */

bool object_made(void) {
    pthread_mutex_lock(&ze_test.lock);
    bool fails = ze_test.fail_create > 0 && --ze_test.fail_create == 0;
    if (!fails) ze_test.objects++;
    pthread_mutex_unlock(&ze_test.lock);
    return !fails;
}

void object_gone(void) {
    pthread_mutex_lock(&ze_test.lock);
    ze_test.objects--;
    pthread_mutex_unlock(&ze_test.lock);
}

/* -- what tests may ask for */

static int set_locked(int *value, int to) {
    pthread_mutex_lock(&ze_test.lock);
    *value = to;
    pthread_mutex_unlock(&ze_test.lock);
    return to;
}

size_t ze_test_memory_used(void) {
    pthread_mutex_lock(&ze_test.lock);
    size_t used = ze_test.memory_used;
    pthread_mutex_unlock(&ze_test.lock);
    return used;
}

void ze_test_memory(size_t bytes) {
    pthread_mutex_lock(&ze_test.lock);
    ze_test.memory = bytes;
    pthread_mutex_unlock(&ze_test.lock);
}

size_t ze_test_peak(bool reset) {
    pthread_mutex_lock(&ze_test.lock);
    size_t peak = ze_test.device_peak;
    if (reset) ze_test.device_peak = ze_test.device_used;
    pthread_mutex_unlock(&ze_test.lock);
    return peak;
}

int ze_test_objects(void) {
    pthread_mutex_lock(&ze_test.lock);
    int objects = ze_test.objects;
    pthread_mutex_unlock(&ze_test.lock);
    return objects;
}

uint64_t ze_test_launches(void) {
    pthread_mutex_lock(&ze_test.lock);
    uint64_t launches = ze_test.launches;
    pthread_mutex_unlock(&ze_test.lock);
    return launches;
}

void ze_test_fail_create(int nth) { set_locked(&ze_test.fail_create, nth); }
void ze_test_fail_allocation(int nth) { set_locked(&ze_test.fail_allocation, nth); }
void ze_test_stall(int ms) { set_locked(&ze_test.stall_ms, ms); }
void ze_test_lose(int nth) { set_locked(&ze_test.lose, nth); }

void ze_test_heal(void) {
    pthread_mutex_lock(&ze_test.lock);
    ze_test.fail_allocation = ze_test.fail_create = ze_test.stall_ms = ze_test.lose = 0;
    ze_test.healed++; /* ends a stall */
    const struct timespec limit = wait_limit();
    while (ze_test.lost && ze_test.executing) wait_for_change(&limit, "on a device that was lost and is healed");
    ze_test.lost = false;
    pthread_mutex_unlock(&ze_test.lock);
}
