/* The trainer: does training tasks on the device thread, one sequence per call, so that decode steps can run in
 * between.
 *
 * A node gives task->bytes_max bytes to training. They hold, in order of precedence: the adapters (adapters_bytes); the
 * workspace `train` (blocks/train.h), made for the longest sequence so far when a batch first needs it; and saved
 * activations with what is left. A FORWARD that is to be followed by a BACKWARD saves the activations of each sequence
 * under a hash of client, adapter, blocks and input; the BACKWARD finds them there and skips recomputing the forward
 * pass, or recomputes it when they are gone. Both give the same bits. So saved activations are a cache: when memory is
 * short, the intermediate activations of a sequence are dropped first, then the inputs of its blocks, and entries older
 * than SAVED_US are dropped at the next FORWARD. */
#include "base/clock.h"
#include "base/mem.h"
#include "node/engine/training.h"

#include <stdlib.h>
#include <string.h>

enum { SAVED_MAX = 256 };
static const int64_t SAVED_US = 60000000; /* saved activations wait so long for their BACKWARD */

/* The saved activations of one sequence. */
typedef struct saved_entry {
    sn_hash key; /* of client, adapter, blocks and input */
    sn_saved_activations *saved;
    int64_t since_us;
} saved_entry;

struct sn_trainer {
    sn_span *span;
    sn_train *train; /* of sequences up to tokens_max */
    int tokens_max;
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

/* Bytes that this sequence may save. Intermediate activations of others are dropped until the inputs of its blocks
 * fit. */
static size_t saved_capacity(sn_trainer *t, const sn_training_task *task, int tokens) {
    size_t own = sn_train_bytes(t->span, t->tokens_max), most = trainer_free_bytes(t, task);
    size_t rows = sn_saved_activations_estimate(t->span, task->first, task->end, tokens, false);
    if (own >= most || t->n_saved == SAVED_MAX) return 0;
    size_t all = most - own;
    while (t->saved_bytes + rows > all && saved_drop_intermediates(t)) continue;
    return t->saved_bytes < all ? all - t->saved_bytes : 0;
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
    sn_hasher_free((*trainer)->hasher);
    sn_train_free(&(*trainer)->train);
    free(*trainer);
    *trainer = NULL;
}

/* Drops saved activations until they take at most so many bytes. */
static void saved_limit(sn_trainer *t, size_t bytes) {
    while (t->n_saved && t->saved_bytes > bytes)
        if (!saved_drop_intermediates(t)) saved_drop(t, 0);
}

static void trainer_free_workspace(sn_trainer *t) {
    sn_train_free(&t->train);
    t->tokens_max = 0;
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

/* A workspace for the longest sequence of the task. */
static sn_status trainer_reserve_memory(sn_trainer *t, const sn_training_task *task, sn_err *err) {
    uint64_t longest = 1; /* checked against the context */
    size_t most = trainer_free_bytes(t, task);
    for (size_t i = 0; i < task->n_samples; i++)
        if (task->samples[i].tokens > longest) longest = task->samples[i].tokens;
    int tokens = (int)longest;
    if (tokens <= t->tokens_max) return SN_OK;
    size_t bytes = sn_train_bytes(t->span, tokens);
    if (bytes > most) return trainer_refuse_memory(t, task, tokens, bytes, err);
    saved_limit(t, most - bytes);
    trainer_free_workspace(t);
    sn_status status = sn_train_new(t->span, tokens, &t->train, err);
    if (!status) t->tokens_max = tokens;
    return status;
}

static size_t task_grad_floats(const sn_training_task *task) {
    return task->kind == SN_TRAINING_BACKWARD && task->adapter
               ? sn_adapter_n_params(*task->adapter, task->first, task->end)
               : 0;
}

/* Before the first sequence: the workspace, and the output buffer. */
static sn_status job_begin(sn_trainer *t, sn_job *job, sn_err *err) {
    sn_training_task *task = job->training;
    size_t width = (size_t)sn_span_hparams(t->span)->n_embd, floats, bytes;
    if (task->adapter && !*task->adapter)
        return sn_fail(err, SN_REBUILD, "this adapter could not be loaded here: send it again");
    sn_status status = trainer_reserve_memory(t, task, err);
    if (status) return status;
    if (!sn_mul(task_grad_floats(task), task->n_samples, &floats) || !sn_add(floats, task->rows * width, &floats) ||
        !sn_mul(floats, sizeof(float), &bytes) || bytes > SN_TENSOR_SIZE_MAX)
        return sn_fail(err, SN_REFUSED,
                       "the gradients of %zu sequences are too large for one message: send fewer at once",
                       task->n_samples);
    task->result = floats;
    return sn_shared_buffer_new(bytes, &job->output, err);
}

/* One sequence of a batch. */
typedef struct sequence {
    sn_tensor input;           /* hidden states (tokens, n_embd) */
    sn_tensor output_grad;     /* of a BACKWARD: gradient of the output (tokens, n_embd) */
    sn_hash key;               /* names its saved activations */
    const sn_adapter *adapter; /* NULL: none */
    float *output;             /* (tokens, n_embd): the output, or the gradient of the input */
    float *adapter_grad;       /* of a BACKWARD with an adapter: gradient of its parameters */
} sequence;

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
    s.key = saved_key(t, task, s.input.data, n * width * sizeof(float));
    return s;
}

static sn_status sequence_forward(sn_trainer *t, const sn_training_task *task, const sequence *s, int64_t now_us,
                                  sn_err *err) {
    sn_saved_activations *saved = NULL;
    saved_expire(t, now_us);
    bool keep = task->request_msg->forward.save_activations && saved_find(t, &s->key) == t->n_saved;
    size_t capacity = keep ? saved_capacity(t, task, (int)s->input.shape[0]) : 0;
    const sn_train_sequence train = {task->first, task->end, s->adapter, &s->input};
    sn_status status = sn_train_forward(t->train, &train, s->output, capacity, keep ? &saved : NULL, err);
    if (saved) {
        t->saved[t->n_saved++] = (saved_entry){s->key, saved, now_us};
        t->saved_bytes += sn_saved_activations_bytes(saved);
    }
    return status;
}

static sn_status sequence_backward(sn_trainer *t, const sn_training_task *task, const sequence *s, sn_err *err) {
    size_t i = saved_find(t, &s->key);
    const sn_saved_activations *saved = i < t->n_saved ? t->saved[i].saved : NULL;
    const sn_train_sequence train = {task->first, task->end, s->adapter, &s->input};
    sn_status status = sn_train_backward(t->train, &train, saved, &s->output_grad, s->output, s->adapter_grad, err);
    if (saved) saved_drop(t, i);
    return status;
}

static sn_status job_run_sequence(sn_trainer *t, sn_job *job, sn_err *err) {
    sn_training_task *task = job->training;
    sn_status status = trainer_reserve_memory(t, task, err); /* an adapter loaded since may have taken the memory */
    if (status) return status;
    const sequence s = job_next_sequence(t, job);
    status = task->kind == SN_TRAINING_FORWARD ? sequence_forward(t, task, &s, job->arrived_us, err)
                                               : sequence_backward(t, task, &s, err);
    task->rows_done += (size_t)s.input.shape[0];
    job->n_done++;
    return status;
}

static sn_status adapter_load(sn_trainer *t, sn_training_task *task, sn_err *err) {
    size_t most = trainer_free_bytes(t, task), bytes = task->request_msg->tensor.bytes,
           own = sn_train_bytes(t->span, t->tokens_max);
    most -= sn_min_size(most, bytes);
    saved_limit(t, most - sn_min_size(most, own));
    if (t->train && own > most) trainer_free_workspace(t);
    sn_status status = sn_adapter_load(t->span, task->request_msg->tensor.data, bytes, task->adapter, err);
    if (status) return status;
    task->result = sn_adapter_bytes(*task->adapter);
    t->adapters_bytes += task->result;
    return SN_OK;
}

static void adapter_unload(sn_trainer *t, sn_training_task *task) {
    t->adapters_bytes -= sn_adapter_bytes(*task->adapter);
    sn_adapter_free(task->adapter);
}

bool sn_trainer_work(sn_trainer *t, sn_job *job) {
    sn_training_task *task = job->training;
    bool batch = task->kind == SN_TRAINING_FORWARD || task->kind == SN_TRAINING_BACKWARD;
    if (!job->started_us) {
        job->started_us = sn_now_us();
        if (batch) job->status = job_begin(t, job, &job->err);
    }
    if (!batch && task->kind == SN_TRAINING_ADAPTER_LOAD) job->status = adapter_load(t, task, &job->err);
    if (!batch && task->kind == SN_TRAINING_ADAPTER_UNLOAD) adapter_unload(t, task);
    if (batch && !job->status && (size_t)job->n_done < task->n_samples)
        job->status = job_run_sequence(t, job, &job->err);
    bool over = !batch || job->status || (size_t)job->n_done == task->n_samples;
    if (over) job->finished_us = sn_now_us();
    return over;
}
