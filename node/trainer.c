#include "base/clock.h"
#include "base/mem.h"
#include "node/training.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT_MAX = 256 };
static const int64_t KEPT_US = 60000000; /* for so long what was kept waits for its way back */

/* Hidden states, and the insides of blocks, between a FORWARD and its BACKWARD. */
typedef struct kept_entry {
    sn_hash key; /* of the sequence, tuning, blocks and client */
    sn_kept *kept;
    int64_t since_us;
} kept_entry;

struct sn_trainer {
    sn_span *span;
    sn_train *train; /* of sequences up to tokens_max */
    int tokens_max;
    sn_hasher *hasher;
    kept_entry kept[KEPT_MAX];
    size_t n_kept, kept_bytes, tunings_bytes;
};

void sn_training_free(sn_training **training) {
    if (!*training) return;
    sn_msg_free(&(*training)->asked);
    free(*training);
    *training = NULL;
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

/* What is free of the node's bytes for training, to work in and to keep. */
static size_t free_bytes(const sn_trainer *t, const sn_training *work) {
    return work->bytes_max > t->tunings_bytes ? work->bytes_max - t->tunings_bytes : 0;
}

/* -- what is kept, beside the memory to work in */

static void forget(sn_trainer *t, size_t i) {
    t->kept_bytes -= sn_kept_taken(t->kept[i].kept);
    sn_kept_free(&t->kept[i].kept);
    t->kept[i] = t->kept[--t->n_kept];
}

/* A sequence's insides save a third of its work, what enters its blocks saves another: so they go first. False: there are
 * none. */
static bool forget_insides(sn_trainer *t) {
    size_t i = 0;
    while (i < t->n_kept && !sn_kept_insides(t->kept[i].kept)) i++;
    if (i == t->n_kept) return false;
    t->kept_bytes -= sn_kept_taken(t->kept[i].kept);
    sn_kept_forget_insides(t->kept[i].kept);
    t->kept_bytes += sn_kept_taken(t->kept[i].kept);
    return true;
}

static void forget_old(sn_trainer *t, int64_t now_us) {
    for (size_t i = t->n_kept; i-- > 0;)
        if (now_us - t->kept[i].since_us > KEPT_US) forget(t, i);
}

static sn_hash key_of(sn_trainer *t, const sn_training *work, const float *x, size_t bytes) {
    const sn_msg_forward *f = &work->asked->forward; /* a BACKWARD has the same fields */
    const int32_t blocks[] = {work->first, work->end};
    sn_hasher_add(t->hasher, work->owner, sizeof work->owner);
    sn_hasher_add(t->hasher, f->tuning, sizeof f->tuning);
    sn_hasher_add(t->hasher, blocks, sizeof blocks);
    sn_hasher_add(t->hasher, x, bytes);
    return sn_hasher_end(t->hasher);
}

/* Bytes that this sequence may keep. When there is not room for what enters its blocks, insides of others go. */
static size_t room_to_keep(sn_trainer *t, const sn_training *work, int tokens) {
    size_t own = sn_train_bytes(t->span, t->tokens_max), most = free_bytes(t, work);
    size_t rows = sn_kept_bytes(t->span, work->first, work->end, tokens, false);
    if (own >= most || t->n_kept == KEPT_MAX) return 0;
    size_t all = most - own;
    while (t->kept_bytes + rows > all && forget_insides(t)) continue;
    return t->kept_bytes < all ? all - t->kept_bytes : 0;
}

/* The entry of this key, or n_kept. */
static size_t find_kept(const sn_trainer *t, const sn_hash *key) {
    size_t i = 0;
    while (i < t->n_kept && memcmp(t->kept[i].key.bytes, key->bytes, SN_HASH_SIZE)) i++;
    return i;
}

size_t sn_trainer_kept_bytes(const sn_trainer *t) { return t->kept_bytes; }

void sn_trainer_free(sn_trainer **trainer) {
    if (!*trainer) return;
    while ((*trainer)->n_kept) forget(*trainer, 0);
    sn_hasher_free((*trainer)->hasher);
    sn_train_free(&(*trainer)->train);
    free(*trainer);
    *trainer = NULL;
}

/* Until no more than so many bytes are kept. */
static void keep_at_most(sn_trainer *t, size_t bytes) {
    while (t->n_kept && t->kept_bytes > bytes)
        if (!forget_insides(t)) forget(t, 0);
}

static void let_work_go(sn_trainer *t) {
    sn_train_free(&t->train);
    t->tokens_max = 0;
}

/* Others' tunings leave too little; or there is too little in all. */
static sn_status no_room(const sn_trainer *t, const sn_training *work, int tokens, size_t bytes, sn_err *err) {
    size_t own = work->tuning ? sn_min_size(sn_tuning_bytes(*work->tuning), t->tunings_bytes) : 0;
    if (bytes + own > work->bytes_max)
        return sn_fail(err, SN_REFUSED,
                       "a sequence of %d tokens takes %zu MiB to train, more than this node's --tune-memory: use shorter ones",
                       tokens, bytes >> 20);
    return sn_fail(err, SN_RETRY,
                   "a sequence of %d tokens takes %zu MiB to train, and others' tunings %zu MiB of this node's --tune-memory: try again in "
                   "a moment, or another node", tokens, bytes >> 20, (t->tunings_bytes - own) >> 20);
}

/* Memory for the work's sequences. */
static sn_status make_room(sn_trainer *t, const sn_training *work, sn_err *err) {
    uint64_t longest = 1; /* checked against the context */
    size_t most = free_bytes(t, work);
    for (size_t i = 0; i < work->n_samples; i++)
        if (work->samples[i].tokens > longest) longest = work->samples[i].tokens;
    int tokens = (int)longest;
    if (tokens <= t->tokens_max) return SN_OK;
    size_t bytes = sn_train_bytes(t->span, tokens);
    if (bytes > most) return no_room(t, work, tokens, bytes, err);
    keep_at_most(t, most - bytes);
    let_work_go(t);
    sn_status status = sn_train_new(t->span, tokens, &t->train, err);
    if (!status) t->tokens_max = tokens;
    return status;
}

static size_t grads_of(const sn_training *work) {
    return work->kind == SN_TRAIN_BACKWARD && work->tuning ? sn_tuning_floats(*work->tuning, work->first, work->end)
                                                           : 0;
}

/* Before its first sequence: memory to work in, and for the answer. */
static sn_status begin(sn_trainer *t, sn_job *job, sn_err *err) {
    sn_training *work = job->training;
    size_t width = (size_t)sn_span_hparams(t->span)->n_embd, floats, bytes;
    if (work->tuning && !*work->tuning)
        return sn_fail(err, SN_REBUILD, "this tuning could not be loaded here: send it again");
    sn_status status = make_room(t, work, err);
    if (status) return status;
    if (!sn_mul(grads_of(work), work->n_samples, &floats) || !sn_add(floats, work->rows * width, &floats) ||
        !sn_mul(floats, sizeof(float), &bytes) || bytes > SN_TENSOR_SIZE_MAX)
        return sn_fail(err, SN_REFUSED,
                       "the gradients of %zu sequences are too large for one message: send fewer at once",
                       work->n_samples);
    work->result = floats;
    return sn_shared_new(bytes, &job->output, err);
}

static sn_tensor rows_of(const sn_training *work, const char *name, const float *from, size_t n, size_t width) {
    return (sn_tensor){.name = name,
                       .data = from + work->rows_done * width,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {(int64_t)n, (int64_t)width}};
}

static sn_status go_forward(sn_trainer *t, const sn_training *work, const sn_tuning *tuning, const sn_tensor *x,
                            const sn_hash *key, int64_t now_us, float *out, sn_err *err) {
    sn_kept *kept = NULL;
    forget_old(t, now_us);
    bool keep = work->asked->forward.keep && find_kept(t, key) == t->n_kept;
    size_t room = keep ? room_to_keep(t, work, (int)x->shape[0]) : 0;
    sn_status status = sn_train_forward(t->train, work->first, work->end, tuning, x, out, room, keep ? &kept : NULL, err);
    if (kept) {
        t->kept[t->n_kept++] = (kept_entry){*key, kept, now_us};
        t->kept_bytes += sn_kept_taken(kept);
    }
    return status;
}

static sn_status go_back(sn_trainer *t, const sn_training *work, const sn_tuning *tuning, const sn_tensor *x,
                         const sn_hash *key, const sn_tensor *dout, float *dx, float *grads, sn_err *err) {
    size_t i = find_kept(t, key);
    const sn_kept *kept = i < t->n_kept ? t->kept[i].kept : NULL;
    sn_status status = sn_train_backward(t->train, work->first, work->end, tuning, x, kept, dout, dx, grads, err);
    if (kept) forget(t, i);
    return status;
}

static sn_status one_sequence(sn_trainer *t, sn_job *job, sn_err *err) {
    sn_training *work = job->training;
    sn_status status = make_room(t, work, err); /* a tuning that came meanwhile may have taken it */
    if (status) return status;
    size_t width = (size_t)sn_span_hparams(t->span)->n_embd, n = (size_t)work->samples[job->n_done].tokens;
    const float *in = work->asked->tensor.data;
    float *out = sn_shared_data(job->output);
    const sn_tuning *tuning = work->tuning ? *work->tuning : NULL;
    sn_tensor x = rows_of(work, "hidden states", in, n, width),
              dout = rows_of(work, "gradients", in + work->rows * width, n, width);
    float *own = out + work->rows_done * width,
          *grads = out + work->rows * width + (size_t)job->n_done * grads_of(work);
    sn_hash key = key_of(t, work, x.data, n * width * sizeof(float));
    status = work->kind == SN_TRAIN_FORWARD ? go_forward(t, work, tuning, &x, &key, job->arrived_us, own, err)
                                            : go_back(t, work, tuning, &x, &key, &dout, own, grads, err);
    work->rows_done += n;
    job->n_done++;
    return status;
}

static sn_status load(sn_trainer *t, sn_training *work, sn_err *err) {
    size_t most = free_bytes(t, work), bytes = work->asked->tensor.bytes, own = sn_train_bytes(t->span, t->tokens_max);
    most -= sn_min_size(most, bytes);
    keep_at_most(t, most - sn_min_size(most, own));
    if (t->train && own > most) let_work_go(t);
    sn_status status = sn_tuning_load(t->span, work->asked->tensor.data, bytes, work->tuning, err);
    if (status) return status;
    work->result = sn_tuning_bytes(*work->tuning);
    t->tunings_bytes += work->result;
    return SN_OK;
}

static void unload(sn_trainer *t, sn_training *work) {
    t->tunings_bytes -= sn_tuning_bytes(*work->tuning);
    sn_tuning_free(work->tuning);
}

bool sn_trainer_work(sn_trainer *t, sn_job *job) {
    sn_training *work = job->training;
    bool batch = work->kind == SN_TRAIN_FORWARD || work->kind == SN_TRAIN_BACKWARD;
    if (!job->started_us) {
        job->started_us = sn_now_us();
        if (batch) job->status = begin(t, job, &job->err);
    }
    if (!batch && work->kind == SN_TRAIN_LOAD) job->status = load(t, work, &job->err);
    if (!batch && work->kind == SN_TRAIN_UNLOAD) unload(t, work);
    if (batch && !job->status && (size_t)job->n_done < work->n_samples) job->status = one_sequence(t, job, &job->err);
    bool over = !batch || job->status || (size_t)job->n_done == work->n_samples;
    if (over) job->finished_us = sn_now_us();
    return over;
}
