/* Command lists, each with a thread that executes it, and events.
 *
 * How it works: append_command adds commands without events to list->open, newest first, so that a barrier, an event
 * or a wait (flush_list) moves them to the execution queue in reverse order. worker_main takes the first command
 * whose events are signalled, makes the memory of its allocations accessible, executes it without the lock, and
 * signals its event. One condition variable, ze_test.changed, announces every change; waits are bounded by the limit
 * that the backend gives. Device loss ends every wait, and drops what is queued. */
#include "tests/support/ze_driver/driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* -- execution */

static bool all_signaled(const command *c) {
    for (uint32_t i = 0; i < c->n_waits; i++)
        if (!c->waits[i]->signaled) return false;
    return true;
}

/* Until then no command ends. */
static bool is_stalled(int ms) {
    const char *file = getenv("ZE_TEST_STALL");
    return ms > 0 || (file && !access(file, F_OK));
}

static void stall_for(int ms) {
    for (int healed = ze_test.healed; is_stalled(ms) && healed == ze_test.healed; ms--) {
        pthread_mutex_unlock(&ze_test.lock);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        pthread_mutex_lock(&ze_test.lock);
    }
}

static void retire_command(command *c) {
    for (int i = 0; i < c->n_uses; i++) c->uses[i]->queued--;
    if (c->kernel) clReleaseKernel(c->kernel);
    free(c);
}

static void retire_commands(command **first) {
    while (*first) {
        command *c = *first;
        *first = c->next;
        retire_command(c);
    }
}

/* Nothing that was queued before the loss is executed after it is healed: it would find what lost commands left out. */
static void lose_device(void) {
    ze_test.lost = true;
    for (struct _ze_command_list_handle_t *l = ze_test.lists; l; l = l->next) {
        retire_commands(&l->open);
        retire_commands(&l->first);
        l->last = &l->first;
    }
}

/* The caller holds the lock; the function releases it during execution. */
static void execute_command(struct _ze_command_list_handle_t *list, command *c) {
    int stall_ms = ze_test.stall_ms;
    ze_test.stall_ms = 0;
    if (ze_test.lose > 0 && --ze_test.lose == 0) lose_device();
    if (ze_test.lost) return;
    ze_test.executing++;
    stall_for(stall_ms);
    allocations_open(c);
    pthread_mutex_unlock(&ze_test.lock);
    if (c->kind == COMMAND_COPY) memmove(c->to, c->from, c->bytes);
    if (c->kind == COMMAND_FILL) memset(c->to, c->fill, c->bytes);
    bool failed = c->kind == COMMAND_LAUNCH &&
                  (clEnqueueNDRangeKernel(list->queue, c->kernel, 3, NULL, c->global, c->local, 0, NULL, NULL) ||
                   clFinish(list->queue));
    pthread_mutex_lock(&ze_test.lock);
    allocations_close(c);
    ze_test.executing--;
    if (failed) lose_device();
}

static void *worker_main(void *ctx) {
    struct _ze_command_list_handle_t *list = ctx;
    pthread_mutex_lock(&ze_test.lock);
    for (;;) {
        command *c = list->first;
        if (!c && list->closing) break;
        if (!c || (!ze_test.lost && !list->closing && !all_signaled(c))) {
            pthread_cond_wait(&ze_test.changed, &ze_test.lock);
            continue;
        }
        list->first = c->next;
        if (!list->first) list->last = &list->first;
        if (c->kind != COMMAND_BARRIER) execute_command(list, c);
        if (c->signal && !ze_test.lost) c->signal->signaled = true;
        retire_command(c);
        pthread_cond_broadcast(&ze_test.changed);
    }
    pthread_mutex_unlock(&ze_test.lock);
    return NULL;
}

/* -- appending; the caller holds the lock */

static void flush_list(struct _ze_command_list_handle_t *list) {
    while (list->open) {
        command *c = list->open;
        list->open = c->next;
        c->next = NULL;
        *list->last = c;
        list->last = &c->next;
    }
    pthread_cond_broadcast(&ze_test.changed);
}

/* releases the commands queued since the last barrier for execution; the caller holds the lock */
static void flush_lists(void) {
    for (struct _ze_command_list_handle_t *l = ze_test.lists; l; l = l->next) flush_list(l);
}

static ze_result_t append_command(ze_command_list_handle_t list, command made, ze_event_handle_t signal,
                                  uint32_t n_waits, ze_event_handle_t *waits) {
    command *c = n_waits <= WAITS_MAX ? malloc(sizeof *c) : NULL;
    if (!c) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    made.signal = signal;
    made.n_waits = n_waits;
    for (uint32_t i = 0; i < n_waits; i++) made.waits[i] = waits[i];
    for (int i = 0; i < made.n_uses; i++) made.uses[i]->queued++;
    made.next = list->open;
    *c = made;
    if (c->kind != COMMAND_BARRIER && !signal && !n_waits) {
        list->open = c;
        return ZE_RESULT_SUCCESS;
    }
    flush_list(list);
    c->next = NULL;
    *list->last = c;
    list->last = &c->next;
    return ZE_RESULT_SUCCESS;
}

static ze_result_t append_locked(ze_command_list_handle_t list, command c, ze_event_handle_t signal, uint32_t n_waits,
                                 ze_event_handle_t *waits) {
    pthread_mutex_lock(&ze_test.lock);
    ze_result_t result = ze_test.lost ? ZE_RESULT_ERROR_DEVICE_LOST : ZE_RESULT_SUCCESS;
    const void *ranges[] = {c.to, c.from};
    for (int i = 0; i < 2 && !result; i++)
        if (ranges[i] && !(c.uses[c.n_uses++] = allocation_of(ranges[i], c.bytes)))
            result = ZE_RESULT_ERROR_INVALID_ARGUMENT;
    if (!result) result = append_command(list, c, signal, n_waits, waits);
    pthread_mutex_unlock(&ze_test.lock);
    return result;
}

ze_result_t list_barrier(ze_command_list_handle_t list, ze_event_handle_t signal, uint32_t n_waits,
                         ze_event_handle_t *waits) {
    return append_locked(list, (command){.kind = COMMAND_BARRIER}, signal, n_waits, waits);
}

ze_result_t list_copy(ze_command_list_handle_t list, void *to, const void *from, size_t bytes, ze_event_handle_t signal,
                      uint32_t n_waits, ze_event_handle_t *waits) {
    return append_locked(list, (command){.kind = COMMAND_COPY, .to = to, .from = from, .bytes = bytes}, signal, n_waits,
                         waits);
}

ze_result_t list_fill(ze_command_list_handle_t list, void *to, const void *pattern, size_t pattern_bytes, size_t bytes,
                      ze_event_handle_t signal, uint32_t n_waits, ze_event_handle_t *waits) {
    if (pattern_bytes != 1) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    command c = {.kind = COMMAND_FILL, .to = to, .bytes = bytes, .fill = *(const uint8_t *)pattern};
    return append_locked(list, c, signal, n_waits, waits);
}

ze_result_t list_launch(ze_command_list_handle_t list, ze_kernel_handle_t kernel, const ze_group_count_t *groups,
                        ze_event_handle_t signal, uint32_t n_waits, ze_event_handle_t *waits) {
    command c;
    pthread_mutex_lock(&ze_test.lock);
    ze_result_t result = ze_test.lost ? ZE_RESULT_ERROR_DEVICE_LOST : kernel_command(kernel, groups, &c);
    if (!result) result = append_command(list, c, signal, n_waits, waits);
    ze_test.launches += !result;
    pthread_mutex_unlock(&ze_test.lock);
    return result;
}

/* -- lists */

ze_result_t list_create(ze_context_handle_t context, ze_device_handle_t device, const ze_command_queue_desc_t *desc,
                        ze_command_list_handle_t *out) {
    (void)context, (void)device, (void)desc;
    cl_int failed;
    struct _ze_command_list_handle_t *list = calloc(1, sizeof *list);
    if (!list) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    list->last = &list->first;
    list->queue = clCreateCommandQueueWithProperties(ze_test.context, ze_test.device, NULL, &failed);
    if (failed || pthread_create(&list->worker, NULL, worker_main, list)) {
        if (!failed) clReleaseCommandQueue(list->queue);
        free(list);
        return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_lock(&ze_test.lock);
    list->next = ze_test.lists;
    ze_test.lists = list;
    pthread_mutex_unlock(&ze_test.lock);
    *out = list;
    return ZE_RESULT_SUCCESS;
}

ze_result_t list_destroy(ze_command_list_handle_t list) {
    pthread_mutex_lock(&ze_test.lock);
    struct _ze_command_list_handle_t **link = &ze_test.lists;
    while (*link != list) link = &(*link)->next;
    *link = list->next;
    flush_list(list);
    list->closing = true;
    pthread_cond_broadcast(&ze_test.changed);
    pthread_mutex_unlock(&ze_test.lock);
    const struct timespec limit = wait_limit();
    if (pthread_clockjoin_np(list->worker, NULL, CLOCK_MONOTONIC, &limit)) wait_failed("of a list that is freed");
    clReleaseCommandQueue(list->queue);
    free(list);
    return ZE_RESULT_SUCCESS;
}

/* -- events */

struct _ze_event_pool_handle_t {
    uint32_t n;
    struct _ze_event_handle_t events[];
};

ze_result_t pool_create(ze_context_handle_t context, const ze_event_pool_desc_t *desc, uint32_t n_devices,
                        ze_device_handle_t *devices, ze_event_pool_handle_t *out) {
    (void)context, (void)n_devices, (void)devices;
    *out = calloc(1, sizeof **out + desc->count * sizeof(struct _ze_event_handle_t));
    if (!*out) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    (*out)->n = desc->count;
    return ZE_RESULT_SUCCESS;
}

ze_result_t pool_destroy(ze_event_pool_handle_t pool) {
    free(pool);
    return ZE_RESULT_SUCCESS;
}

ze_result_t event_create(ze_event_pool_handle_t pool, const ze_event_desc_t *desc, ze_event_handle_t *out) {
    if (desc->index >= pool->n) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    *out = &pool->events[desc->index];
    return ZE_RESULT_SUCCESS;
}

ze_result_t event_destroy(ze_event_handle_t event) {
    (void)event; /* events belong to their pool */
    return ZE_RESULT_SUCCESS;
}

ze_result_t event_wait(ze_event_handle_t event, uint64_t limit_ns) {
    struct timespec until;
    int timed_out = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t seconds = limit_ns / 1000000000, ns = (uint64_t)until.tv_nsec + limit_ns % 1000000000;
    until.tv_sec += (time_t)(seconds > 100000 ? 100000 : seconds + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&ze_test.lock);
    flush_lists();
    while (!event->signaled && !ze_test.lost && !timed_out)
        timed_out = pthread_cond_timedwait(&ze_test.changed, &ze_test.lock, &until);
    ze_result_t result = ze_test.lost      ? ZE_RESULT_ERROR_DEVICE_LOST
                         : event->signaled ? ZE_RESULT_SUCCESS
                                           : ZE_RESULT_NOT_READY;
    pthread_mutex_unlock(&ze_test.lock);
    return result;
}

ze_result_t event_query(ze_event_handle_t event) { return event_wait(event, 0); }

ze_result_t event_reset(ze_event_handle_t event) {
    pthread_mutex_lock(&ze_test.lock);
    event->signaled = false;
    pthread_mutex_unlock(&ze_test.lock);
    return ZE_RESULT_SUCCESS;
}
