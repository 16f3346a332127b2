/* Devices, streams, events, graphs and errors of the stand-in.
 *
 * How it works: a stream is a queue of items (operations, event records, waits for events). Nothing runs when it is
 * queued: run_stream executes the queue when the backend asks whether work is done (a query, a wait, a free), so
 * that an order that the backend leaves to chance goes wrong. With copies_first, streams without kernels run at once
 * instead. A capture collects items in a graph; launching the graph appends copies of the items to a stream, with
 * the arguments that were captured.
 *
 * run_stream with `force` makes other streams run first when an item waits for one of their events. Stalls and
 * losses are checked before each operation. One lock protects everything. */
#include "tests/support/cuda_stand_in/stand_in_private.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cuda_event {
    struct cuda_stream *stream; /* stream of the newest record */
    uint64_t wanted, done;      /* numbers of the newest record requested, and of the newest one executed */
    bool captured;              /* the newest record is part of a capture */
};

/* An operation in queues and graphs; its copies share it. */
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
    bool kernels; /* a kernel was queued on it */
    bool running; /* its first item is executing */
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
    int device;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int this_device;
static _Thread_local cudaError_t last_error;
static struct cuda_stream *streams;
static int n_devices = 2, capability = 90, multiprocessors = 20, n_objects, lose_nth, fail_creation, spoil_nth,
           stall_ms;
static int driver = CUDART_VERSION, broken = -1, capture_error = cudaErrorStreamCaptureUnsupported;
static bool broken_answers;
static bool copies_first, lost;
static int64_t stalled_until;
static uint64_t captures, graph_launches, kernels;

void cuda_lock(void) { pthread_mutex_lock(&lock); }
void cuda_unlock(void) { pthread_mutex_unlock(&lock); }
int cuda_this_device(void) { return this_device; }
bool cuda_count_down(int *counter) { return *counter > 0 && --*counter == 0; }
bool cuda_creation_fails(void) { return cuda_count_down(&fail_creation); }

cudaError_t cuda_result(cudaError_t error) {
    if (error) last_error = error; /* including "not ready", as the real runtime does */
    return error;
}

/* As in the real runtime, the first call that needs a context makes one on this thread's device. */
cudaError_t cuda_begin(void) {
    if (!n_devices) return cudaErrorNoDevice;
    if (this_device == broken) return cudaErrorDevicesUnavailable;
    cuda_memory_context(this_device);
    return lost ? cudaErrorLaunchFailure : cudaSuccess;
}

void cuda_spoil_capture(cudaStream_t stream) {
    if (stream->capture) stream->capture->spoilt = true;
}

cudaError_t cuda_begin_uncapturable(void) {
    for (struct cuda_stream *s = streams; s; s = s->next)
        if (s->capture && pthread_equal(s->capture->thread, pthread_self())) {
            s->capture->spoilt = true;
            return cudaErrorStreamCaptureUnsupported;
        }
    return cuda_begin();
}

/* -- lists */

static void append_item(list *l, item value) {
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

static void clear_list(list *l) {
    while (l->first) remove_first(l);
}

/* -- execution */

static bool is_stalled(void) {
    const char *file = getenv("CUDA_STAND_IN_STALL");
    if (file && !access(file, F_OK)) return true;
    if (stall_ms) {
        stalled_until = sn_now_us() + (int64_t)stall_ms * 1000;
        stall_ms = 0;
    }
    return sn_now_us() < stalled_until;
}

static void lose_everything(void) {
    lost = true;
    for (struct cuda_stream *s = streams; s; s = s->next) clear_list(&s->queue);
}

/* Executes one item; false when it cannot be executed now. `force`: when this stream waits for another one, the
 * other one runs; otherwise other streams are left alone. */
static void run_stream(struct cuda_stream *s, bool force);

static bool run_item(struct cuda_stream *s, item *i, bool force) {
    if (i->kind == ITEM_WAIT && i->event->done < i->number) {
        if (!force || !i->event->stream || i->event->stream == s) return false;
        cuda_memory_close();
        run_stream(i->event->stream, true);
        if (lost || i->event->done < i->number) return false;
        cuda_memory_open(s->device);
    }
    if (i->kind == ITEM_RECORD) i->event->done = i->number;
    if (i->kind != ITEM_OPERATION) return true;
    if (is_stalled()) return false;
    if (cuda_count_down(&lose_nth)) {
        lose_everything();
        return false;
    }
    i->operation->op.run(i->operation->op.ctx);
    return true;
}

/* Executes what is queued on the stream, as far as possible. */
static void run_stream(struct cuda_stream *s, bool force) {
    if (!s->queue.first || s->running) return;
    s->running = true;
    cuda_memory_open(s->device);
    while (s->queue.first && run_item(s, s->queue.first, force)) remove_first(&s->queue);
    cuda_memory_close();
    s->running = false;
}

void cuda_drain(int device) {
    for (struct cuda_stream *s = streams; s; s = s->next)
        while (s->device == device && s->queue.first) {
            run_stream(s, true);
            if (s->queue.first) sn_sleep_us(1000);
        }
}

static cudaError_t put_item(cudaStream_t stream, item value) {
    if (stream->capture)
        append_item(&stream->capture->items, value);
    else
        append_item(&stream->queue, value);
    if (copies_first && !stream->capture && !stream->kernels) run_stream(stream, false);
    return cudaSuccess;
}

cudaError_t cuda_stand_in_queue(cudaStream_t stream, cuda_operation operation, cuda_operation_kind kind) {
    shared_operation *o = malloc(sizeof *o);
    if (!o) abort();
    *o = (shared_operation){operation, 1};
    cudaError_t error = cuda_begin();
    if (!error && !stream) error = cudaErrorInvalidResourceHandle; /* the backend never uses the default stream */
    if (!error && stream->capture && stream->capture->spoilt) error = cudaErrorStreamCaptureInvalidated;
    if (!error && kind == CUDA_OPERATION_KERNEL) stream->kernels = true;
    if (!error) error = put_item(stream, (item){.kind = ITEM_OPERATION, .operation = o});
    if (!error && kind == CUDA_OPERATION_KERNEL) kernels++;
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
        cuda_spoil_capture(stream);
        error = (cudaError_t)capture_error;
    }
    cuda_result(error);
    cuda_unlock();
    return error;
}

/* -- devices, errors */

/* Of no driver it says version 0, and succeeds. */
cudaError_t cudaDriverGetVersion(int *version) {
    *version = n_devices ? driver : 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    bool usable = n_devices && driver >= CUDART_VERSION;
    *count = usable ? n_devices : 0;
    return cuda_result(usable ? cudaSuccess : cudaErrorInsufficientDriver);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    if (device < 0 || device >= n_devices) return cuda_result(cudaErrorInvalidDevice);
    if (device == broken && !broken_answers) return cuda_result(cudaErrorDevicesUnavailable);
    *prop = (struct cudaDeviceProp){.name = "stand-in",
                                    .totalGlobalMem = cuda_memory_total(),
                                    .major = capability / 10,
                                    .minor = capability % 10,
                                    .multiProcessorCount = multiprocessors};
    return cudaSuccess;
}

/* Makes a context, as CUDA 12 and newer do. */
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= n_devices) return cuda_result(cudaErrorInvalidDevice);
    if (device == broken) return cuda_result(cudaErrorDevicesUnavailable);
    this_device = device;
    cuda_memory_context(device);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return lost ? cudaErrorLaunchFailure : error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorDevicesUnavailable:
        return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation:
        return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureImplicit:
        return "operation would make the legacy stream depend on a capturing blocking stream";
    case cudaErrorStreamCaptureWrongThread:
        return "attempt to terminate a thread-local capture sequence from another thread";
    }
    return "unknown error";
}

/* -- streams and events */

/* Live objects are reachable from here, so that the objects of a device that hangs are no leak to a sanitizer. */
enum { OBJECTS_MAX = 16384 };
static void *objects[OBJECTS_MAX];

void *cuda_new_object(size_t size) {
    void *object = calloc(1, size);
    if (!object || n_objects == OBJECTS_MAX) abort();
    objects[n_objects++] = object;
    return object;
}

void cuda_free_object(void *object) {
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
    cudaError_t error = cuda_begin_uncapturable();
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
    run_stream(stream, true); /* the real runtime lets the work continue; nothing could ask for it here */
    clear_list(&stream->queue);
    for (struct cuda_stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    cuda_free_object(stream);
    cuda_unlock();
    return cudaSuccess;
}

/* Returns "not ready" once when there was work, as a busy device would. */
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cuda_lock();
    cudaError_t error = cuda_begin_uncapturable();
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
    cudaError_t error = cuda_begin_uncapturable();
    if (!error && cuda_creation_fails()) error = cudaErrorMemoryAllocation;
    if (!error) *event = cuda_new_object(sizeof **event);
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cuda_lock();
    if (event->stream) /* queued items refer to the event */
        for (struct cuda_stream *s = streams; s; s = s->next) run_stream(s, true);
    cuda_free_object(event);
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
        if (!event->captured) error = put_item(stream, record);
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
        error = put_item(stream, (item){.kind = ITEM_WAIT, .event = event, .number = event->wanted});
    cuda_result(error);
    cuda_unlock();
    return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    cuda_lock();
    cudaError_t error = cuda_begin_uncapturable();
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
    (void)mode; /* the backend uses one mode: thread-local */
    cuda_lock();
    cudaError_t error = cuda_begin_uncapturable();
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
        clear_list(&(*graph)->items);
        cuda_free_object(*graph);
        *graph = NULL;
    }
    if (!error) captures++;
    cuda_result(error);
    cuda_unlock();
    return error;
}

static void copy_list(list *to, const list *from) {
    for (const item *i = from->first; i; i = i->next) append_item(to, *i);
}

static size_t count_items(const list *l) {
    size_t n = 0;
    for (const item *i = l->first; i; i = i->next) n++;
    return n;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *nodes, size_t *n) {
    if (nodes) return cudaErrorInvalidValue; /* the backend only counts them */
    *n = count_items(&graph->items);
    return cudaSuccess;
}

/* An executable graph takes memory of the device for each of its nodes. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    enum { NODE_BYTES = 60000 };
    (void)flags;
    cuda_lock();
    size_t bytes = NODE_BYTES * count_items(&graph->items);
    cudaError_t error = cuda_begin_uncapturable();
    if (!error && (cuda_creation_fails() || !cuda_memory_take(cuda_this_device(), bytes)))
        error = cudaErrorMemoryAllocation;
    if (!error) {
        *exec = cuda_new_object(sizeof **exec);
        (*exec)->device = cuda_this_device();
        (*exec)->bytes = bytes;
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
    clear_list(&graph->items);
    cuda_free_object(graph);
    cuda_unlock();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    cuda_lock();
    cuda_memory_give(exec->device, exec->bytes);
    clear_list(&exec->items);
    cuda_free_object(exec);
    cuda_unlock();
    return cudaSuccess;
}

/* -- settings, faults, counters */

void cuda_stand_in_devices(int n) { n_devices = n; }
void cuda_stand_in_capability(int sm) { capability = sm; }
void cuda_stand_in_multiprocessors(int n) { multiprocessors = n; }
void cuda_stand_in_copies_first(bool first) { copies_first = first; }
void cuda_stand_in_fail_creation(int nth) { fail_creation = nth; }
void cuda_stand_in_spoil_capture(int nth) { spoil_nth = nth; }
void cuda_stand_in_capture_error(int error) { capture_error = error; }
void cuda_stand_in_driver(int version) { driver = version; }

void cuda_stand_in_break(int device, bool answers) {
    broken = device;
    broken_answers = answers;
}
void cuda_stand_in_stall(int ms) { stall_ms = ms; }
void cuda_stand_in_lose(int nth) { lose_nth = nth; }

void cuda_stand_in_heal(void) {
    cuda_stand_in_fail_allocation(0);
    cuda_stand_in_fail_product(0);
    fail_creation = spoil_nth = stall_ms = lose_nth = 0;
    stalled_until = 0;
    lost = false;
}

void cuda_stand_in_reset(void) {
    cuda_stand_in_heal();
    cuda_stand_in_memory((size_t)1 << 30);
    cuda_stand_in_peak_reset();
    n_devices = 2;
    capability = 90;
    multiprocessors = 20;
    driver = CUDART_VERSION;
    capture_error = cudaErrorStreamCaptureUnsupported;
    cuda_stand_in_break(-1, false);
    copies_first = false;
    captures = graph_launches = kernels = 0;
    cuda_lt_reset();
}

int cuda_stand_in_objects(void) { return n_objects; }
uint64_t cuda_stand_in_captures(void) { return captures; }
uint64_t cuda_stand_in_graph_launches(void) { return graph_launches; }
uint64_t cuda_stand_in_kernels(void) { return kernels; }
