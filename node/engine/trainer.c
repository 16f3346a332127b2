/* The trainer: does training tasks on the device thread, a piece per call, so that steps can run in between.
 *
 * A node gives task->bytes_max bytes to training. They hold, in order of precedence: the adapters (adapters_bytes);
 * workspaces (blocks/train.h), one for each sequence in progress, made for the longest one of its batch; and saved
 * activations with what is left. A workspace is kept for other sequences until its memory is needed. Sequences of
 * several jobs may be in progress at once, so that one long sequence does not stop other clients' training; a job that
 * finds no memory beside them waits, and until it got its workspace no other job gets one. Before that a job gets the
 * memory for its whole output, for which there are as many bytes again; a job waits for it in the same way. Small
 * outputs have half as many for themselves, so that no small job waits for the whole of a large one. A FORWARD
 * that is to be followed by a BACKWARD saves the activations of each sequence under a hash of client, adapter, blocks
 * and input; the BACKWARD finds them there and skips recomputing the forward pass, or recomputes it when they are gone.
 * Both give the same bits. So saved activations are a cache: when memory is short, the intermediate activations of a
 * sequence are dropped first, then the inputs of its blocks, and entries older than SAVED_US are dropped at the next
 * FORWARD. Where they are full, a FORWARD drops some of the client that has most of them, if that is another one. */
#include "base/clock.h"
#include "base/mem.h"
#include "node/engine/training.h"

#include <stdlib.h>
#include <string.h>

enum { SAVED_MAX = 256, WORKSPACES_MAX = 4 };
enum { SMALL_OUTPUT = 8 };                /* a small output has so little of bytes_max: an eighth */
static const int64_t SAVED_US = 60000000; /* saved activations wait so long for their BACKWARD */

/* The saved activations of one sequence. */
typedef struct saved_entry {
    sn_hash key; /* of client, adapter, blocks and input */
    sn_saved_activations *saved;
    int64_t since_us;
    uint64_t client; /* identifies it */
} saved_entry;

/* One sequence of a batch. */
typedef struct sequence {
    sn_tensor input;             /* hidden states (tokens, n_embd) */
    sn_tensor output_grad;       /* of a BACKWARD: gradient of the output (tokens, n_embd) */
    sn_hash key;                 /* names its saved activations */
    const sn_adapter *adapter;   /* NULL: none */
    float *output;               /* (tokens, n_embd): the output, or the gradient of the input */
    float *adapter_grad;         /* of a BACKWARD with an adapter: gradient of its parameters */
    sn_saved_activations *saved; /* of a BACKWARD: taken from the trainer's; of a FORWARD: made at its end */
} sequence;

typedef struct workspace {
    sn_train *train; /* of sequences up to tokens_max; NULL: this entry is free */
    int tokens_max;
    size_t bytes, saved_bytes; /* of the workspace; of the activations that its sequence saves or uses */
    const sn_job *job;         /* whose sequence is in progress; NULL: none */
    sequence sequence;
} workspace;

/* The adapter that is being loaded. */
typedef struct loading {
    const sn_job *job; /* NULL: none */
    sn_hasher *hasher; /* of the bytes of the image; NULL: they have the right hash */
    size_t hashed;     /* bytes */
    sn_adapter_loader *loader;
} loading;

/* Of small outputs, or of the others. */
typedef struct outputs {
    const sn_job *waiting; /* the job that gets the next one; NULL: any */
    size_t bytes;          /* of the jobs that have begun */
} outputs;

struct sn_trainer {
    sn_span *span;
    loading loading;
    workspace workspaces[WORKSPACES_MAX];
    const sn_job *waiting; /* the job that gets the next workspace; NULL: any */
    outputs small, large;
    sn_hasher *hasher;
    saved_entry saved[SAVED_MAX];
    size_t n_saved, saved_bytes, adapters_bytes;
};

void sn_training_task_free(sn_training_task **task) {
    if (!*task) return;
    sn_msg_free(&(*task)->request_msg);
    free(*task);
    *task = NULL;
}

sn_status sn_trainer_new(sn_span *span, sn_trainer **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->span = span;
    (*out)->hasher = sn_hasher_new();
    if ((*out)->hasher) return SN_OK;
    sn_trainer_free(out);
    return sn_fail(err, SN_STOP, "out of memory");
}

static void workspace_free(workspace *w) {
    sn_train_free(&w->train);
    sn_saved_activations_free(&w->sequence.saved);
    *w = (workspace){0};
}

/* Bytes for the workspace and saved activations. */
static size_t trainer_free_bytes(const sn_trainer *t, const sn_training_task *task) {
    return task->bytes_max > t->adapters_bytes ? task->bytes_max - t->adapters_bytes : 0;
}

/* -- saved activations --------------------------------------------------------------------------------------------- */

static void saved_drop(sn_trainer *t, size_t i) {
    t->saved_bytes -= sn_saved_activations_bytes(t->saved[i].saved);
    sn_saved_activations_free(&t->saved[i].saved);
    t->saved[i] = t->saved[--t->n_saved];
}

/* Drops the intermediate activations of one sequence. They save a third of the work of its BACKWARD, and the inputs of
 * the blocks save another third in less memory; so intermediate activations go first. False: there are none. */
static bool saved_drop_intermediates(sn_trainer *t) {
    size_t i = 0;
    while (i < t->n_saved && !sn_saved_activations_has_inner(t->saved[i].saved)) i++;
    if (i == t->n_saved) return false;
    t->saved_bytes -= sn_saved_activations_bytes(t->saved[i].saved);
    sn_saved_activations_drop_inner(t->saved[i].saved);
    t->saved_bytes += sn_saved_activations_bytes(t->saved[i].saved);
    return true;
}

static uint64_t task_client(const sn_training_task *task) {
    uint64_t client;
    memcpy(&client, task->owner, sizeof client);
    return client;
}

uint64_t sn_training_turn(const sn_training_task *task) {
    bool batch = task->kind == SN_TRAINING_FORWARD || task->kind == SN_TRAINING_BACKWARD;
    return batch ? task_client(task) : ~task_client(task);
}

/* The number of the client's entries, or their bytes. */
static size_t saved_of(const sn_trainer *t, uint64_t client, bool bytes) {
    size_t all = 0;
    for (size_t i = 0; i < t->n_saved; i++)
        if (t->saved[i].client == client) all += bytes ? sn_saved_activations_bytes(t->saved[i].saved) : 1;
    return all;
}

/* Drops the oldest entry of the client that has most of them, or of the bytes, if that is more than this client has
 * with so many more. False: it is not. */
static bool saved_drop_of_most(sn_trainer *t, uint64_t client, size_t more, bool bytes) {
    size_t most = 0, oldest = t->n_saved;
    uint64_t from = client;
    for (size_t i = 0; i < t->n_saved; i++) {
        size_t has = saved_of(t, t->saved[i].client, bytes);
        if (has <= most) continue;
        most = has;
        from = t->saved[i].client;
    }
    if (from == client || most <= saved_of(t, client, bytes) + more) return false;
    for (size_t i = 0; i < t->n_saved; i++)
        if (t->saved[i].client == from && (oldest == t->n_saved || t->saved[i].since_us < t->saved[oldest].since_us))
            oldest = i;
    saved_drop(t, oldest);
    return true;
}

/* Whether one more entry of so many bytes fits, after dropping what must make room for it. */
static bool saved_make_room(sn_trainer *t, uint64_t client, size_t bytes, size_t most) {
    if (bytes > most) return false;
    while (t->saved_bytes + bytes > most && (saved_drop_intermediates(t) || saved_drop_of_most(t, client, bytes, true)))
        continue;
    return (t->n_saved < SAVED_MAX || saved_drop_of_most(t, client, 1, false)) && t->saved_bytes + bytes <= most;
}

/* As saved_drop, but the caller gets the activations. */
static sn_saved_activations *saved_take(sn_trainer *t, size_t i) {
    sn_saved_activations *saved = t->saved[i].saved;
    t->saved_bytes -= sn_saved_activations_bytes(saved);
    t->saved[i] = t->saved[--t->n_saved];
    return saved;
}

static void saved_expire(sn_trainer *t, int64_t now_us) {
    for (size_t i = t->n_saved; i-- > 0;)
        if (now_us - t->saved[i].since_us > SAVED_US) saved_drop(t, i);
}

static sn_hash saved_key(sn_trainer *t, const sn_training_task *task, const float *x, size_t bytes) {
    const sn_msg_forward *f = &task->request_msg->forward; /* a BACKWARD has the same fields */
    const int32_t blocks[] = {task->first, task->end};
    sn_hasher_add(t->hasher, task->owner, sizeof task->owner);
    sn_hasher_add(t->hasher, f->adapter, sizeof f->adapter);
    sn_hasher_add(t->hasher, blocks, sizeof blocks);
    sn_hasher_add(t->hasher, x, bytes);
    return sn_hasher_end(t->hasher);
}

static size_t workspaces_bytes(const sn_trainer *t, bool used_only) {
    size_t bytes = 0;
    for (int i = 0; i < WORKSPACES_MAX; i++)
        if (t->workspaces[i].job || !used_only) bytes += t->workspaces[i].bytes + t->workspaces[i].saved_bytes;
    return bytes;
}

/* Bytes that this sequence may save. Others make room for the inputs of its blocks. */
static size_t saved_capacity(sn_trainer *t, const sn_training_task *task, int tokens) {
    size_t own = workspaces_bytes(t, false), most = trainer_free_bytes(t, task);
    size_t rows = sn_saved_activations_estimate(t->span, task->first, task->end, tokens, false);
    size_t all = most - sn_min_size(most, own);
    (void)saved_make_room(t, task_client(task), rows, all);
    return t->n_saved < SAVED_MAX && t->saved_bytes < all ? all - t->saved_bytes : 0;
}

/* The entry of this key, or n_saved. */
static size_t saved_find(const sn_trainer *t, const sn_hash *key) {
    size_t i = 0;
    while (i < t->n_saved && memcmp(t->saved[i].key.bytes, key->bytes, SN_HASH_SIZE)) i++;
    return i;
}

size_t sn_trainer_saved_bytes(const sn_trainer *t) { return t->saved_bytes; }

void sn_trainer_free(sn_trainer **trainer) {
    if (!*trainer) return;
    while ((*trainer)->n_saved) saved_drop(*trainer, 0);
    sn_adapter_loader_free(&(*trainer)->loading.loader);
    sn_hasher_free((*trainer)->loading.hasher);
    sn_hasher_free((*trainer)->hasher);
    for (int i = 0; i < WORKSPACES_MAX; i++) workspace_free(&(*trainer)->workspaces[i]);
    free(*trainer);
    *trainer = NULL;
}

/* Drops saved activations until they take at most so many bytes. */
static void saved_limit(sn_trainer *t, size_t bytes) {
    while (t->n_saved && t->saved_bytes > bytes)
        if (!saved_drop_intermediates(t)) saved_drop(t, 0);
}

/* SN_REFUSED: the sequence does not fit beside its own adapter alone. SN_RETRY: other adapters leave too little. */
static sn_status trainer_refuse_memory(const sn_trainer *t, const sn_training_task *task, int tokens, size_t bytes,
                                       sn_err *err) {
    size_t own = task->adapter ? sn_min_size(sn_adapter_bytes(*task->adapter), t->adapters_bytes) : 0;
    if (bytes + own > task->bytes_max)
        return sn_fail(err, SN_REFUSED,
                       "training on a sequence of %d tokens takes %zu MiB, more than this node's --tune-memory: use "
                       "shorter sequences",
                       tokens, bytes >> 20);
    return sn_fail(
        err, SN_RETRY,
        "training on a sequence of %d tokens takes %zu MiB, and others' adapters take %zu MiB of this node's "
        "--tune-memory: try again in a moment, or use another node",
        tokens, bytes >> 20, (t->adapters_bytes - own) >> 20);
}

static int task_longest(const sn_training_task *task) {
    uint64_t longest = 1; /* checked against the context */
    for (size_t i = 0; i < task->n_samples; i++)
        if (task->samples[i].tokens > longest) longest = task->samples[i].tokens;
    return (int)longest;
}

static workspace *workspace_of(sn_trainer *t, const sn_job *job) {
    for (int i = 0; i < WORKSPACES_MAX; i++)
        if (t->workspaces[i].job == job) return &t->workspaces[i];
    return NULL;
}

/* The smallest unused workspace for so many tokens; or, after freeing all unused ones, a free entry; NULL: all are in
 * use. */
static workspace *workspace_find(sn_trainer *t, int tokens) {
    workspace *best = NULL;
    for (int i = 0; i < WORKSPACES_MAX; i++) {
        workspace *w = &t->workspaces[i];
        if (w->train && !w->job && w->tokens_max >= tokens && (!best || w->tokens_max < best->tokens_max)) best = w;
    }
    for (int i = 0; i < WORKSPACES_MAX && !best; i++)
        if (!t->workspaces[i].job) workspace_free(best = &t->workspaces[i]);
    return best;
}

static void workspaces_free_unused(sn_trainer *t) {
    for (int i = 0; i < WORKSPACES_MAX; i++)
        if (!t->workspaces[i].job) workspace_free(&t->workspaces[i]);
}

/* Makes room for a workspace on devices whose memory is limited: what is only saved is dropped. SN_RETRY: there is none
 * while workspaces are in use, or others' adapters are there; SN_REFUSED: there never is. */
static sn_status devices_make_room(sn_trainer *t, const sn_training_task *task, int tokens, sn_err *err) {
    const sn_adapter *adapter = task->adapter ? *task->adapter : NULL;
    sn_status status = sn_train_check_memory(t->span, tokens, adapter, err);
    while (status && t->n_saved) {
        saved_limit(t, t->saved_bytes - 1);
        status = sn_train_check_memory(t->span, tokens, adapter, err);
    }
    bool others = workspaces_bytes(t, true) || t->adapters_bytes > (adapter ? sn_adapter_bytes(adapter) : 0);
    if (status && !others) status = err->status = SN_REFUSED;
    return status;
}

/* A workspace for the longest sequence of the job. *out NULL: it waits for that of another job. */
static sn_status workspace_take(sn_trainer *t, const sn_job *job, workspace **out, sn_err *err) {
    const sn_training_task *task = job->training;
    size_t most = trainer_free_bytes(t, task);
    int tokens = task_longest(task);
    *out = NULL;
    if (t->waiting && t->waiting != job) return SN_OK;
    t->waiting = job;
    size_t bytes = sn_train_bytes(t->span, tokens);
    if (bytes > most) {
        t->waiting = NULL;
        return trainer_refuse_memory(t, task, tokens, bytes, err);
    }
    workspace *w = workspace_find(t, tokens);
    /* Its adapter may have larger gradients than those before. */
    if (w && w->train && sn_train_check_memory(t->span, 0, task->adapter ? *task->adapter : NULL, NULL))
        workspace_free(w);
    if (!w || (!w->train && bytes > most - sn_min_size(most, workspaces_bytes(t, true)))) return SN_OK;
    if (!w->train) {
        workspaces_free_unused(t);
        saved_limit(t, most - workspaces_bytes(t, true) - bytes);
        sn_status status = devices_make_room(t, task, tokens, err);
        if (status == SN_RETRY && workspaces_bytes(t, true)) return SN_OK;
        if (!status) status = sn_train_new(t->span, tokens, &w->train, err);
        if (status) {
            t->waiting = NULL;
            return status;
        }
        w->tokens_max = tokens;
        w->bytes = bytes;
    }
    t->waiting = NULL;
    w->job = job;
    *out = w;
    return SN_OK;
}

static size_t task_grad_floats(const sn_training_task *task) {
    return task->kind == SN_TRAINING_BACKWARD && task->adapter
               ? sn_adapter_n_params(*task->adapter, task->first, task->end)
               : 0;
}

static bool output_is_small(const sn_training_task *task, size_t bytes) {
    return bytes <= task->bytes_max / SMALL_OUTPUT;
}

/* Before the first sequence: the output buffer. *waits: those of others leave too little of task->bytes_max for it; the
 * job that waits gets the next one. A job alone gets what it needs. */
static sn_status job_begin(sn_trainer *t, sn_job *job, bool *waits, sn_err *err) {
    sn_training_task *task = job->training;
    if (task->adapter && !*task->adapter)
        return sn_fail(err, SN_REBUILD, "this adapter could not be loaded here: send it again");
    size_t width = (size_t)sn_span_hparams(t->span)->n_embd, floats, bytes;
    if (!sn_mul(task_grad_floats(task), task->n_samples, &floats) || !sn_add(floats, task->rows * width, &floats) ||
        !sn_mul(floats, sizeof(float), &bytes) || bytes > SN_TENSOR_SIZE_MAX)
        return sn_fail(err, SN_REFUSED,
                       "the gradients of %zu sequences are too large for one message: send fewer at once",
                       task->n_samples);
    bool small = output_is_small(task, bytes);
    outputs *like = small ? &t->small : &t->large;
    size_t most = small ? task->bytes_max / 2 : task->bytes_max;
    bool other = like->waiting && like->waiting != job;
    *waits = other || (like->bytes && bytes > most - sn_min_size(most, like->bytes));
    if (*waits && !other) like->waiting = job;
    if (*waits) return SN_OK;
    like->waiting = NULL;
    task->result = floats;
    sn_status status = sn_shared_buffer_new(bytes, &job->output, err);
    if (!status) like->bytes += bytes;
    return status;
}

/* The job has ended, or is dropped: what it waits for and what is counted for it is free for others. */
static void job_release(sn_trainer *t, const sn_job *job) {
    if (t->waiting == job) t->waiting = NULL;
    size_t bytes = job->output ? job->training->result * sizeof(float) : 0;
    outputs *like = output_is_small(job->training, bytes) ? &t->small : &t->large;
    like->bytes -= bytes;
    if (t->small.waiting == job) t->small.waiting = NULL;
    if (t->large.waiting == job) t->large.waiting = NULL;
}

static sn_tensor task_rows(const sn_training_task *task, const char *name, const float *from, size_t n, size_t width) {
    return (sn_tensor){.name = name,
                       .data = from + task->rows_done * width,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {(int64_t)n, (int64_t)width}};
}

/* The next sequence of the job. The request's tensor holds the input rows of all sequences, then, of a BACKWARD, their
 * output gradients; the job's output has the rows of all sequences, then the adapter gradients of each. */
static sequence job_next_sequence(sn_trainer *t, const sn_job *job) {
    const sn_training_task *task = job->training;
    size_t width = (size_t)sn_span_hparams(t->span)->n_embd, n = (size_t)task->samples[job->n_done].tokens;
    const float *in = task->request_msg->tensor.data;
    float *out = sn_shared_buffer_data(job->output);
    sequence s = {
        .input = task_rows(task, "hidden states", in, n, width),
        .output_grad = task_rows(task, "gradients", in + task->rows * width, n, width),
        .adapter = task->adapter ? *task->adapter : NULL,
        .output = out + task->rows_done * width,
        .adapter_grad = out + task->rows * width + (size_t)job->n_done * task_grad_floats(task),
    };
    /* Hashing takes time, too: only where activations are saved, or may have been. */
    if (task->kind == SN_TRAINING_BACKWARD ? t->n_saved > 0 : task->request_msg->forward.save_activations)
        s.key = saved_key(t, task, s.input.data, n * width * sizeof(float));
    return s;
}

/* Starts the pass of the workspace's sequence. */
static sn_status sequence_start(sn_trainer *t, const sn_job *job, workspace *w, sn_err *err) {
    const sn_training_task *task = job->training;
    sequence *s = &w->sequence;
    *s = job_next_sequence(t, job);
    const sn_train_sequence train = {task->first, task->end, s->adapter, &s->input};
    size_t i = saved_find(t, &s->key);
    if (task->kind == SN_TRAINING_BACKWARD) {
        if (i < t->n_saved) s->saved = saved_take(t, i);
        w->saved_bytes = s->saved ? sn_saved_activations_bytes(s->saved) : 0;
        return sn_train_start_backward(w->train, &train, s->saved, &s->output_grad, s->output, s->adapter_grad, err);
    }
    saved_expire(t, job->arrived_us);
    bool keep = task->request_msg->forward.save_activations && saved_find(t, &s->key) == t->n_saved;
    size_t capacity = keep ? saved_capacity(t, task, (int)s->input.shape[0]) : 0;
    sn_status status = sn_train_start_forward(w->train, &train, s->output, capacity, keep ? &s->saved : NULL, err);
    w->saved_bytes = sn_train_saving(w->train);
    return status;
}

/* After the last piece: keeps what a FORWARD saved, as far as other sequences did not take the memory meanwhile. */
static void sequence_end(sn_trainer *t, sn_job *job, workspace *w) {
    sn_training_task *task = job->training;
    sequence *s = &w->sequence;
    w->saved_bytes = 0;
    size_t most = trainer_free_bytes(t, task), own = workspaces_bytes(t, false);
    if (s->saved && task->kind == SN_TRAINING_FORWARD) {
        size_t all = most - sn_min_size(most, own), bytes = sn_saved_activations_bytes(s->saved);
        bool fits = saved_make_room(t, task_client(task), bytes, all);
        if (fits && saved_find(t, &s->key) == t->n_saved) {
            t->saved[t->n_saved++] = (saved_entry){s->key, s->saved, job->arrived_us, task_client(task)};
            t->saved_bytes += bytes;
            s->saved = NULL;
        }
    }
    sn_saved_activations_free(&s->saved);
    task->rows_done += (size_t)s->input.shape[0];
    job->n_done++;
    w->job = NULL;
}

/* A piece of the job's present sequence, or of its next one. *waits: it has no workspace yet. */
static sn_status job_run_piece(sn_trainer *t, sn_job *job, sn_training_budget *budget, bool *waits, sn_err *err) {
    workspace *w = workspace_of(t, job);
    bool done = false;
    sn_status status = SN_OK;
    if (!w) {
        if (!job->output) status = job_begin(t, job, waits, err);
        if (status || *waits) return status;
        status = workspace_take(t, job, &w, err);
        *waits = !status && !w;
        if (status || *waits) return status;
        status = sequence_start(t, job, w, err);
    }
    if (!status) status = sn_train_run(w->train, budget->cost, &budget->spent, &done, err);
    if (done || status) sequence_end(t, job, w);
    return status;
}

/* Makes room for the adapter, whose bytes count from now on. */
static sn_status adapter_load_begin(sn_trainer *t, const sn_job *job, sn_err *err) {
    const sn_training_task *task = job->training;
    size_t most = trainer_free_bytes(t, task), bytes = task->request_msg->tensor.bytes;
    t->loading.hasher = sn_hasher_new();
    if (!t->loading.hasher) return sn_fail(err, SN_STOP, "out of memory");
    most -= sn_min_size(most, bytes);
    saved_limit(t, most - sn_min_size(most, workspaces_bytes(t, false)));
    if (workspaces_bytes(t, false) > most) workspaces_free_unused(t);
    if (sn_span_memory_left(t->span) / 2 < bytes) { /* as float32 it may take twice its bytes */
        saved_limit(t, 0);
        workspaces_free_unused(t);
    }
    t->adapters_bytes += bytes;
    t->loading.job = job;
    return SN_OK;
}

/* A piece of the image is hashed; at its end the hash must be that of the request. */
static sn_status adapter_hash_piece(loading *l, const sn_training_task *task, sn_err *err) {
    const sn_wire_tensor *image = &task->request_msg->tensor;
    size_t n = sn_min_size(image->bytes - l->hashed, SN_ADAPTER_PIECE_BYTES);
    sn_hasher_add(l->hasher, (const char *)image->data + l->hashed, n);
    l->hashed += n;
    if (l->hashed < image->bytes) return SN_OK;
    sn_hash hash = sn_hasher_end(l->hasher);
    sn_hasher_free(l->hasher);
    l->hasher = NULL;
    return memcmp(hash.bytes, task->request_msg->adapter_put.hash, SN_HASH_SIZE)
               ? sn_fail(err, SN_REFUSED, "the adapter was damaged in transit: send it again")
               : SN_OK;
}

/* Whether what the adapter takes on the devices so far leaves all adapters within --tune-memory: a LoRA matrix of few
 * rows takes many times its bytes in the image. SN_REFUSED: it never will; SN_RETRY: others' adapters leave too little.
 */
static sn_status adapter_check_memory(const sn_trainer *t, const sn_training_task *task, size_t bytes, sn_err *err) {
    size_t most = task->bytes_max, others = t->adapters_bytes - task->request_msg->tensor.bytes;
    if (bytes <= most - sn_min_size(most, others)) return SN_OK;
    if (bytes > most)
        return sn_fail(err, SN_REFUSED,
                       "this adapter takes more than %zu KiB on this node's devices, all of its --tune-memory: use a "
                       "smaller one, or another node",
                       most >> 10);
    return sn_fail(err, SN_RETRY,
                   "others' adapters take %zu KiB of this node's --tune-memory: try again in a moment, or another node",
                   others >> 10);
}

/* The next part of the image, whose bytes have the right hash. */
static sn_status adapter_load_part(sn_trainer *t, const sn_training_task *task, bool *done, sn_err *err) {
    loading *l = &t->loading;
    const sn_wire_tensor *image = &task->request_msg->tensor;
    sn_status status = l->loader ? SN_OK : sn_adapter_load_start(t->span, image->data, image->bytes, &l->loader, err);
    if (!status) status = sn_adapter_load_run(l->loader, SN_ADAPTER_PIECE_BYTES, done, task->adapter, err);
    if (status) return status;
    return adapter_check_memory(t, task, *done ? sn_adapter_bytes(*task->adapter) : sn_adapter_loader_bytes(l->loader),
                                err);
}

static sn_status adapter_load_end(sn_trainer *t, sn_training_task *task, sn_status status, sn_err *err) {
    if (status) sn_adapter_free(task->adapter);
    sn_adapter_loader_free(&t->loading.loader);
    sn_hasher_free(t->loading.hasher);
    t->loading = (loading){0};
    t->adapters_bytes -= task->request_msg->tensor.bytes;
    if (status == SN_STOP && !sn_span_lost_devices(t->span)) status = err->status = SN_RETRY; /* memory is short */
    if (status) return status;
    task->result = sn_adapter_bytes(*task->adapter);
    t->adapters_bytes += task->result;
    return SN_OK;
}

/* A piece of the work: first all bytes are hashed, then they are loaded. *waits: another adapter is being loaded. */
static sn_status adapter_load_piece(sn_trainer *t, const sn_job *job, bool *waits, bool *done, sn_err *err) {
    sn_training_task *task = job->training;
    loading *l = &t->loading;
    *waits = l->job && l->job != job;
    *done = false;
    if (*waits) return SN_OK;
    sn_status status = l->job ? SN_OK : adapter_load_begin(t, job, err);
    if (!l->job) {
        *done = true;
        return status;
    }
    status = l->hasher ? adapter_hash_piece(l, task, err) : adapter_load_part(t, task, done, err);
    *done |= status != SN_OK;
    return *done ? adapter_load_end(t, task, status, err) : SN_OK;
}

static void adapter_unload(sn_trainer *t, sn_training_task *task) {
    t->adapters_bytes -= sn_adapter_bytes(*task->adapter);
    sn_adapter_free(task->adapter);
}

void sn_trainer_drop(sn_trainer *t, const sn_job *job) {
    workspace *w = workspace_of(t, job);
    job_release(t, job);
    if (!w) return;
    sn_train_cancel(w->train);
    sn_saved_activations_free(&w->sequence.saved);
    w->saved_bytes = 0;
    w->job = NULL;
}

sn_training_result sn_trainer_work(sn_trainer *t, sn_job *job, sn_training_budget *budget) {
    sn_training_task *task = job->training;
    bool load = task->kind == SN_TRAINING_ADAPTER_LOAD, unload = task->kind == SN_TRAINING_ADAPTER_UNLOAD;
    bool waits = false, done = false;
    int64_t begun_us = sn_now_us();
    budget->spent = 0;
    if (load)
        job->status = adapter_load_piece(t, job, &waits, &done, &job->err);
    else if (!unload)
        job->status = job_run_piece(t, job, budget, &waits, &job->err);
    if (waits) return SN_TRAINING_WAITS;
    if (!job->started_us) job->started_us = begun_us;
    if (unload) adapter_unload(t, task);
    int64_t now_us = sn_now_us();
    task->compute_us += now_us - begun_us;
    if (load ? !done : !unload && !job->status && (size_t)job->n_done < task->n_samples) return SN_TRAINING_CONTINUES;
    if (!load && !unload) job_release(t, job);
    job->finished_us = now_us;
    return SN_TRAINING_FINISHED;
}
