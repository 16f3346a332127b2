/* Devices, streams, events, graphs, errors of the stand-in: when what was queued is done. */
#include "tests/support/cuda_stand_in/inside.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda_event {
    struct cuda_stream *stream; /* where it was recorded last */
    uint64_t wanted, done;      /* the last record asked for, the last that came by */
    bool captured;              /* that record is part of a capture */
};

/* Something done in order. Copies of one (in graphs and queues) share the operation. */
typedef struct shared_operation {
    cuda_operation op;
    int users;
} shared_operation;

typedef struct item {
    enum { ITEM_OPERATION, ITEM_RECORD, ITEM_WAIT } kind;
    shared_operation *operation;
    cudaEvent_t event;
    uint64_t number; /* of the event's record */
    struct item *next;
} item;

typedef struct list {
    item *first, **end;
} list;

struct cuda_stream {
    int device;
    list queue;
    bool kernels; /* saw one */
    bool running; /* its first item is being done */
    struct cuda_graph *capture;
    struct cuda_stream *next;
};

struct cuda_graph {
    list items;
    bool spoilt;
    pthread_t thread;
};
struct cuda_graph_exec {
    list items;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int this_device;
static _Thread_local cudaError_t last_error;
static struct cuda_stream *streams;
static int n_devices = 2, capability = 90, n_objects, lose_nth, fail_creation, spoil_nth, stall_ms;
static bool copies_first, lost;
static int64_t stalled_until;
static uint64_t captures, launches, graph_launches;

void cuda_lock(void) { pthread_mutex_lock(&lock); }
void cuda_unlock(void) { pthread_mutex_unlock(&lock); }
int cuda_this_device(void) { return this_device; }
bool cuda_count_down(int *counter) { return *counter > 0 && --*counter == 0; }
bool cuda_creation_fails(void) { return cuda_count_down(&fail_creation); }

cudaError_t cuda_result(cudaError_t error) {
    if (error) last_error = error; /* "not ready" too, as the real one does */
    return error;
}

cudaError_t cuda_begin(void) {
    if (!n_devices) return cudaErrorNoDevice;
    return lost ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cuda_unsafe(void) {
    for (struct cuda_stream *s = streams; s; s = s->next)
        if (s->capture && pthread_equal(s->capture->thread, pthread_self())) {
            s->capture->spoilt = true;
            return cudaErrorStreamCaptureUnsupported;
        }
    return cuda_begin();
}

/* -- lists */

static void append(list *l, item value) {
    item *i = malloc(sizeof *i);
    if (!i) abort();
    *i = value;
    i->next = NULL;
    if (!l->first) l->end = &l->first;
    *l->end = i;
    l->end = &i->next;
    if (i->operation) i->operation->users++;
}

static void drop_operation(shared_operation *o) {
    if (!o || --o->users) return;
    o->op.drop(o->op.ctx);
    free(o);
}

static void remove_first(list *l) {
    item *i = l->first;
    l->first = i->next;
    if (!l->first) l->end = &l->first;
    drop_operation(i->operation);
    free(i);
}

static void clear(list *l) {
    while (l->first) remove_first(l);
}

/* -- doing what was queued */

static bool stalled(void) {
    if (stall_ms) {
        stalled_until = sn_now_us() + (int64_t)stall_ms * 1000;
        stall_ms = 0;
    }
    return sn_now_us() < stalled_until;
}

static void lose_everything(void) {
    lost = true;
    for (struct cuda_stream *s = streams; s; s = s->next) clear(&s->queue);
}

/* Does one item; false when it cannot be done now. `force`: other streams are made to go on when this one waits for
 * them; else they are left where they are. */
static void run_stream(struct cuda_stream *s, bool force);

static bool run_item(struct cuda_stream *s, item *i, bool force) {
    if (i->kind == ITEM_WAIT && i->event->done < i->number) {
        if (!force || !i->event->stream || i->event->stream == s) return false;
        cuda_memory_close(s->device);
        run_stream(i->event->stream, true);
        if (lost || i->event->done < i->number) return false;
        cuda_memory_open(s->device);
    }
    if (i->kind == ITEM_RECORD) i->event->done = i->number;
    if (i->kind != ITEM_OPERATION) return true;
    if (stalled()) return false;
    if (cuda_count_down(&lose_nth)) {
        lose_everything();
        return false;
    }
    i->operation->op.run(i->operation->op.ctx);
    return true;
}

/* Does what is queued on the stream, as far as it can. */
static void run_stream(struct cuda_stream *s, bool force) {
    if (!s->queue.first || s->running) return;
    s->running = true;
    cuda_memory_open(s->device);
    while (s->queue.first && run_item(s, s->queue.first, force)) remove_first(&s->queue);
    cuda_memory_close(s->device);
    s->running = false;
}

void cuda_drain(int device) {
    for (struct cuda_stream *s = streams; s; s = s->next)
        while (s->device == device && s->queue.first) {
            run_stream(s, true);
            if (s->queue.first) sn_sleep_us(1000);
        }
}

static cudaError_t put(cudaStream_t stream, item value) {
    if (stream->capture)
        append(&stream->capture->items, value);
    else
        append(&stream->queue, value);
    if (copies_first && !stream->capture && !stream->kernels) run_stream(stream, false);
    return cudaSuccess;
}

cudaError_t cuda_stand_in_queue(cudaStream_t stream, cuda_operation operation, cuda_operation_kind kind) {
    shared_operation *o = malloc(sizeof *o);
    if (!o) abort();
    *o = (shared_operation){operation, 1};
    cudaError_t error = cuda_begin();
    if (!error && !stream) error = cudaErrorInvalidResourceHandle; /* the backend never means the default stream */
    if (!error && kind == CUDA_OPERATION_KERNEL) stream->kernels = true;
    if (!error) error = put(stream, (item){.kind = ITEM_OPERATION, .operation = o});
    drop_operation(o);
    return error;
}

cudaError_t cuda_stand_in_launch(cudaStream_t stream, const unsigned grid[3], unsigned threads, size_t shared,
                                 size_t shared_allowed, cuda_operation operation) {
    bool possible = grid[0] && grid[1] && grid[2] && grid[0] < 1u << 31 && grid[1] < 65536 && grid[2] < 65536 &&
                    threads && threads <= 1024 && shared <= shared_allowed;
    cuda_lock();
    cudaError_t error = possible ? cudaSuccess : cudaErrorInvalidConfiguration;
    if (error)
        operation.drop(operation.ctx);
    else
        error = cuda_stand_in_queue(stream, operation, CUDA_OPERATION_KERNEL);
    if (!error && stream->capture && cuda_count_down(&spoil_nth)) {
        stream->capture->spoilt = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    if (!error && !stream->capture) launches++;
    cuda_result(error);
    cuda_unlock();
    return error;
}

/* -- devices, errors */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = n_devices;
    return cuda_result(n_devices ? cudaSuccess : cudaErrorInsufficientDriver);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    if (device < 0 || device >= n_devices) return cuda_result(cudaErrorInvalidDevice);
    *prop = (struct cudaDeviceProp){.name = "stand-in", .major = capability / 10, .minor = capability % 10};
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= n_devices) return cuda_result(cudaErrorInvalidDevice);
    this_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return lost ? cudaErrorLaunchFailure : error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
    }
    return "unknown error";
}

/* -- streams and events */

/* Known from here, so that what a device that hangs keeps is no leak to a sanitizer. */
enum { OBJECTS_MAX = 16384 };
static void *objects[OBJECTS_MAX];

void *cuda_new_object(size_t size) {
    void *object = calloc(1, size);
    if (!object || n_objects == OBJECTS_MAX) abort();
    objects[n_objects++] = object;
    return object;
}

void cuda_end_object(void *object) {
    for (int i = 0; i < n_objects; i++)
        if (objects[i] == object) {
            objects[i] = objects[--n_objects];
            break;
        }
    free(object);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    cuda_lock();
    cudaError_t error = cuda_unsafe();
    if (!error && cuda_creation_fails()) error = cudaErrorMemoryAllocation;
    if (!error) {
        *stream = cuda_new_object(sizeof **stream);
        (*stream)->device = this_device;
        (*stream)->next = streams;
        streams = *stream;
    }
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cuda_lock();
    run_stream(stream, true); /* the real one lets the work go on; nothing could ask for it here */
    clear(&stream->queue);
    for (struct cuda_stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    cuda_end_object(stream);
    cuda_unlock();
    return cudaSuccess;
}

/* Says "not ready" once when there was something to do, as a device would that is still at it. */
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cuda_lock();
    cudaError_t error = cuda_unsafe();
    if (!error && stream->queue.first) {
        run_stream(stream, true);
        error = lost ? cudaErrorLaunchFailure : cudaErrorNotReady;
    }
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    cuda_lock();
    cudaError_t error = cuda_unsafe();
    if (!error && cuda_creation_fails()) error = cudaErrorMemoryAllocation;
    if (!error) *event = cuda_new_object(sizeof **event);
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cuda_lock();
    if (event->stream) /* what is queued on it refers to it */
        for (struct cuda_stream *s = streams; s; s = s->next) run_stream(s, true);
    cuda_end_object(event);
    cuda_unlock();
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    cuda_lock();
    cudaError_t error = cuda_begin();
    if (!error) {
        event->stream = stream;
        event->captured = stream->capture != NULL;
        item record = {.kind = ITEM_RECORD, .event = event, .number = ++event->wanted};
        if (!event->captured) error = put(stream, record);
    }
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    cuda_lock();
    cudaError_t error = cuda_begin();
    if (!error && stream->capture && !event->captured) {
        stream->capture->spoilt = true;
        error = cudaErrorStreamCaptureIsolation;
    }
    if (!error && !stream->capture && event->wanted)
        error = put(stream, (item){.kind = ITEM_WAIT, .event = event, .number = event->wanted});
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    cuda_lock();
    cudaError_t error = cuda_unsafe();
    if (!error && event->done < event->wanted) {
        run_stream(event->stream, true);
        error = lost ? cudaErrorLaunchFailure : cudaErrorNotReady;
    }
    cuda_result(error);
    cuda_unlock();
    return error;
}

/* -- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)mode; /* the backend's one: thread-local */
    cuda_lock();
    cudaError_t error = cuda_unsafe();
    if (!error) {
        stream->capture = cuda_new_object(sizeof *stream->capture);
        stream->capture->thread = pthread_self();
    }
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    cuda_lock();
    cudaError_t error = stream->capture ? cuda_begin() : cudaErrorInvalidValue;
    *graph = stream->capture;
    stream->capture = NULL;
    if (*graph && (*graph)->spoilt && !error) error = cudaErrorStreamCaptureInvalidated;
    if (*graph && error) {
        clear(&(*graph)->items);
        cuda_end_object(*graph);
        *graph = NULL;
    }
    if (!error) captures++;
    cuda_result(error);
    cuda_unlock();
    return error;
}

static void copy_list(list *to, const list *from) {
    for (const item *i = from->first; i; i = i->next) append(to, *i);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    cuda_lock();
    cudaError_t error = cuda_unsafe();
    if (!error && cuda_creation_fails()) error = cudaErrorMemoryAllocation;
    if (!error) {
        *exec = cuda_new_object(sizeof **exec);
        copy_list(&(*exec)->items, &graph->items);
    }
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cuda_lock();
    cudaError_t error = cuda_begin();
    if (!error) copy_list(&stream->queue, &exec->items);
    if (!error) graph_launches++;
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    cuda_lock();
    clear(&graph->items);
    cuda_end_object(graph);
    cuda_unlock();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    cuda_lock();
    clear(&exec->items);
    cuda_end_object(exec);
    cuda_unlock();
    return cudaSuccess;
}

/* -- settings, faults, counters */

void cuda_stand_in_devices(int n) { n_devices = n; }
void cuda_stand_in_capability(int sm) { capability = sm; }
void cuda_stand_in_copies_first(bool first) { copies_first = first; }
void cuda_stand_in_fail_creation(int nth) { fail_creation = nth; }
void cuda_stand_in_spoil_capture(int nth) { spoil_nth = nth; }
void cuda_stand_in_stall(int ms) { stall_ms = ms; }
void cuda_stand_in_lose(int nth) { lose_nth = nth; }

void cuda_stand_in_heal(void) {
    cuda_stand_in_fail_allocation(0);
    fail_creation = spoil_nth = stall_ms = lose_nth = 0;
    stalled_until = 0;
    lost = false;
}

void cuda_stand_in_reset(void) {
    cuda_stand_in_heal();
    cuda_stand_in_memory((size_t)1 << 30);
    n_devices = 2;
    capability = 90;
    copies_first = false;
    captures = launches = graph_launches = 0;
}

int cuda_stand_in_objects(void) { return n_objects; }
uint64_t cuda_stand_in_captures(void) { return captures; }
uint64_t cuda_stand_in_launches(void) { return launches; }
uint64_t cuda_stand_in_graph_launches(void) { return graph_launches; }
