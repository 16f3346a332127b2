/* Training through this node's blocks: what clients have trained is held for them, batches go forwards and backwards.
 */
#include "node/core_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "node/training.h"

#include <stdlib.h>
#include <string.h>

enum { TRAININGS_PER_CLIENT = 8, TRAINING_ROWS_MAX = 65536 };

static const uint8_t none[SN_KEY_SIZE];
_Static_assert(sizeof(sn_msg_forward) == sizeof(sn_msg_backward),
               "they have the same fields, and are read by the same code");

/* -- the table of tunings */

static sn_tuned *find(sn_core *core, const uint8_t hash[SN_KEY_SIZE]) {
    for (int i = 0; i < SN_TUNED_MAX; i++)
        if (core->tuned[i].state != SN_TUNED_FREE && !memcmp(core->tuned[i].hash.bytes, hash, SN_KEY_SIZE))
            return &core->tuned[i];
    return NULL;
}

/* The least recently used one that nobody uses now. */
static sn_tuned *oldest(sn_core *core) {
    sn_tuned *found = NULL;
    for (int i = 0; i < SN_TUNED_MAX; i++) {
        sn_tuned *t = &core->tuned[i];
        if (t->state == SN_TUNED_HELD && !t->users && (!found || t->used_us < found->used_us)) found = t;
    }
    return found;
}

static size_t held_bytes(const sn_core *core) {
    size_t bytes = 0;
    for (int i = 0; i < SN_TUNED_MAX; i++)
        if (core->tuned[i].state != SN_TUNED_FREE) bytes += core->tuned[i].bytes;
    return bytes;
}

static sn_status submit(sn_core *core, sn_training *work, int64_t arrived_us, sn_err *err) {
    sn_job *job = NULL;
    sn_status status = sn_calloc(&job, 1, sizeof *job, err);
    if (status) return status;
    *job = (sn_job){
        .kind = SN_JOB_TRAIN, .training = work, .arrived_us = arrived_us, .first = work->first, .end = work->end};
    if (!core->setup.submit(core->setup.ctx, job)) {
        job->training = NULL; /* stays the caller's */
        sn_job_free(&job);
        return sn_fail(err, SN_RETRY, "this node's queue is full: try another node or later");
    }
    core->jobs++;
    if (work->tuned) work->tuned->users++;
    return SN_OK;
}

/* The engine forgets it; its place is free when that is done. */
static void let_go(sn_core *core, sn_tuned *t, int64_t now_us) {
    sn_err err;
    sn_training *work = NULL;
    if (sn_calloc(&work, 1, sizeof *work, &err)) return;
    *work = (sn_training){.kind = SN_TRAIN_UNLOAD, .tuned = t, .tuning = &t->tuning};
    if (submit(core, work, now_us, &err))
        sn_training_free(&work);
    else
        t->state = SN_TUNED_GOING;
}

/* A free place for so many bytes more, others being forgotten for it. */
static sn_status make_place(sn_core *core, size_t bytes, int64_t now_us, sn_tuned **out, sn_err *err) {
    if (bytes > core->setup.tune_bytes_max / 2)
        return sn_fail(err, SN_REFUSED,
                       "a tuning of %zu MiB is more than half of this node's --tune-memory: use a smaller one",
                       bytes >> 20);
    for (int i = 0; i < SN_TUNED_MAX; i++)
        if (core->tuned[i].state == SN_TUNED_FREE && held_bytes(core) + bytes <= core->setup.tune_bytes_max / 2) {
            *out = &core->tuned[i];
            return SN_OK;
        }
    sn_tuned *old = oldest(core);
    if (old) let_go(core, old, now_us);
    return sn_fail(err, SN_RETRY, "this node holds as many tunings as it can: try again in a moment, or another node");
}

/* -- requests */

static sn_status check_common(const sn_core *core, uint64_t protocol, const uint8_t model[SN_KEY_SIZE], sn_err *err) {
    if (protocol != SN_PROTOCOL)
        return sn_fail(err, SN_REFUSED, "this node speaks protocol %d: use a matching version", SN_PROTOCOL);
    if (core->draining) return sn_fail(err, SN_RETRY, "this node is leaving: use another one");
    if (!sn_core_serving(core)) return sn_fail(err, SN_RETRY, "this node is still loading its blocks: use another one");
    if (!core->setup.tune_bytes_max)
        return sn_fail(err, SN_REFUSED, "this node does not train: its owner gave --tune-memory 0");
    if (memcmp(model, core->setup.model.bytes, SN_HASH_SIZE))
        return sn_fail(err, SN_REFUSED, "this node serves another model (%s): open the same file", core->hp->name);
    return SN_OK;
}

static sn_status take_tuning(sn_core *core, sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_tune *tune = &event->msg->tune;
    const sn_wire_tensor *t = &event->msg->tensor;
    sn_training *work = NULL;
    sn_tuned *place = NULL;
    sn_status status = check_common(core, tune->protocol, tune->model, err);
    if (status) return status;
    if (t->dtype != SN_F32 || t->rank != 1)
        return sn_fail(err, SN_REFUSED, "a tuning is F32 (n): the bytes of its image");
    sn_hash hash = sn_hash_of(t->data, t->bytes);
    if (memcmp(hash.bytes, tune->hash, SN_HASH_SIZE))
        return sn_fail(err, SN_REFUSED, "the tuning was damaged on its way: send it again");
    if (find(core, tune->hash))
        return sn_fail(err, SN_RETRY, "this tuning is just being loaded or forgotten: try again in a moment");
    status = make_place(core, t->bytes, now_us, &place, err);
    if (!status) status = sn_calloc(&work, 1, sizeof *work, err);
    if (status) return status;
    *work = (sn_training){
        .kind = SN_TRAIN_LOAD, .asker = event->peer, .tuned = place, .tuning = &place->tuning, .asked = event->msg,
        .bytes_max = core->setup.tune_bytes_max};
    /* Before the device's thread gets it: from then on the tuning in it is that thread's. */
    *place = (sn_tuned){.state = SN_TUNED_COMING, .hash = hash, .bytes = t->bytes, .used_us = now_us};
    status = submit(core, work, event->arrived_us, err);
    if (status) {
        *place = (sn_tuned){0};
        work->asked = NULL;
        sn_training_free(&work);
        return status;
    }
    event->msg = NULL;
    return SN_OK;
}

static void say_tuned(sn_core *core, sn_peer peer, uint64_t request, const sn_tuned *t) {
    sn_msg *msg = sn_core_new_msg(SN_MSG_TUNED, request);
    if (!msg) return;
    memcpy(msg->tuned.hash, t->hash.bytes, SN_HASH_SIZE);
    msg->tuned.bytes = t->bytes;
    sn_core_send(core, peer, &msg);
}

void sn_core_on_tune(sn_core *core, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_tuned *held = find(core, event->msg->tune.hash);
    if (held && held->state == SN_TUNED_HELD) {
        held->used_us = now_us;
        say_tuned(core, event->peer, event->msg->request, held);
    } else if (take_tuning(core, event, now_us, &err)) {
        sn_core_refuse(core, event->peer, event->msg, &err);
    }
}

sn_status sn_core_use_tuning(sn_core *core, const uint8_t hash[SN_KEY_SIZE], int64_t now_us, sn_tuned **out,
                             sn_err *err) {
    *out = NULL;
    if (!memcmp(hash, none, sizeof none)) return SN_OK;
    sn_tuned *t = find(core, hash);
    if (!t || t->state != SN_TUNED_HELD)
        return sn_fail(err, SN_REBUILD, "this node does not hold that tuning: send it first");
    t->used_us = now_us;
    *out = t;
    return SN_OK;
}

/* FORWARD and BACKWARD have the same fields. */
static sn_status check_batch(const sn_core *core, const sn_msg *msg, size_t *rows, sn_err *err) {
    const sn_msg_forward *f = &msg->forward;
    const sn_wire_tensor *t = &msg->tensor;
    uint64_t first = (uint64_t)core->setup.span.first, end = (uint64_t)core->setup.span.end, sum = 0;
    bool back = msg->kind == SN_MSG_BACKWARD;
    sn_status status = check_common(core, f->protocol, f->model, err);
    if (status) return status;
    if (f->first_block < first || f->first_block >= f->end_block || f->end_block > end)
        return sn_fail(err, SN_REFUSED, "blocks %llu:%llu are not here: this node serves %llu:%llu",
                       (unsigned long long)f->first_block, (unsigned long long)f->end_block, (unsigned long long)first,
                       (unsigned long long)end);
    for (size_t i = 0; i < f->n_samples; i++) {
        if (!f->samples[i].tokens || f->samples[i].tokens > (uint64_t)core->hp->n_ctx)
            return sn_fail(err, SN_REFUSED, "a sequence has 1 to %d tokens, not %llu", core->hp->n_ctx,
                           (unsigned long long)f->samples[i].tokens);
        sum += f->samples[i].tokens; /* at most SN_SAMPLES_MAX * n_ctx */
    }
    if (!sum || sum > TRAINING_ROWS_MAX)
        return sn_fail(err, SN_REFUSED, "a batch has 1 to %d tokens: send fewer sequences at once",
                       TRAINING_ROWS_MAX);
    int at = back ? 1 : 0;
    if (t->dtype != SN_F32 || t->rank != 2 + at || (back && t->shape[0] != 2) || t->shape[at] != sum ||
        t->shape[at + 1] != (uint64_t)core->hp->n_embd)
        return sn_fail(err, SN_REFUSED, "a batch of %llu tokens is F32 (%s%llu, %d)", (unsigned long long)sum,
                       back ? "2, " : "", (unsigned long long)sum, core->hp->n_embd);
    *rows = (size_t)sum;
    return SN_OK;
}

/* Batches wait in memory: as many bytes as the node gives to training, and a few of each client. */
static sn_status check_room(const sn_core *core, const sn_event *event, sn_err *err) {
    size_t own = 0, bytes = event->msg->tensor.bytes, most = core->setup.tune_bytes_max;
    for (size_t i = 0; i < core->n_trainings; i++) own += !memcmp(core->trainings[i]->owner, event->key, SN_KEY_SIZE);
    if (bytes > most)
        return sn_fail(err, SN_REFUSED, "a batch of %zu MiB is more than this node's --tune-memory: send fewer sequences at once",
                       bytes >> 20);
    if (own >= TRAININGS_PER_CLIENT || core->n_trainings == SN_TRAININGS_MAX || core->training_bytes > most - bytes)
        return sn_fail(err, SN_RETRY, "this node has %zu batches to train, %zu of them yours: try again in a moment",
                       core->n_trainings, own);
    return SN_OK;
}

static sn_status take_batch(sn_core *core, sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_forward *f = &event->msg->forward;
    sn_training *work = NULL;
    sn_tuned *tuned = NULL;
    size_t rows = 0;
    sn_status status = check_batch(core, event->msg, &rows, err);
    if (!status) status = sn_core_use_tuning(core, f->tuning, now_us, &tuned, err);
    if (!status) status = check_room(core, event, err);
    if (!status) status = sn_calloc(&work, 1, sizeof *work, err);
    if (status) return status;
    *work = (sn_training){.kind = event->msg->kind == SN_MSG_FORWARD ? SN_TRAIN_FORWARD : SN_TRAIN_BACKWARD,
                          .asked = event->msg,
                          .asker = event->peer,
                          .tuned = tuned,
                          .tuning = tuned ? &tuned->tuning : NULL,
                          .first = (int)f->first_block,
                          .end = (int)f->end_block,
                          .bytes_max = core->setup.tune_bytes_max,
                          .samples = f->samples,
                          .n_samples = f->n_samples,
                          .rows = rows};
    memcpy(work->owner, event->key, SN_KEY_SIZE);
    status = submit(core, work, event->arrived_us, err);
    if (status) {
        work->asked = NULL;
        sn_training_free(&work);
        return status;
    }
    core->trainings[core->n_trainings++] = work;
    core->training_bytes += event->msg->tensor.bytes;
    event->msg = NULL;
    return SN_OK;
}

void sn_core_on_batch(sn_core *core, sn_event *event, int64_t now_us) {
    sn_err err;
    if (take_batch(core, event, now_us, &err)) sn_core_refuse(core, event->peer, event->msg, &err);
}

/* -- answers */

static void answer_batch(sn_core *core, const sn_training *work, const sn_job *job) {
    bool back = work->kind == SN_TRAIN_BACKWARD;
    sn_msg *msg = sn_core_new_msg(back ? SN_MSG_GRADIENTS : SN_MSG_FORWARDED, work->asked->request);
    if (!msg) return;
    uint64_t queue_us = (uint64_t)(job->started_us - job->arrived_us),
             compute_us = (uint64_t)(job->finished_us - job->started_us);
    msg->tensor =
        (sn_wire_tensor){SN_F32, 1, {work->result}, sn_shared_data(job->output), work->result * sizeof(float)};
    if (back) {
        msg->gradients = (sn_msg_gradients){queue_us, compute_us};
    } else {
        msg->forwarded = (sn_msg_forwarded){queue_us, compute_us};
        msg->tensor.rank = 2;
        msg->tensor.shape[0] = work->rows;
        msg->tensor.shape[1] = (uint64_t)core->hp->n_embd;
    }
    msg->owner = sn_shared_ref(job->output);
    msg->release = sn_shared_unref;
    sn_core_send(core, work->asker, &msg);
}

void sn_core_train_done(sn_core *core, sn_job *job, int64_t now_us) {
    sn_training *work = job->training;
    sn_tuned *t = work->tuned;
    if (t) {
        t->users--;
        t->used_us = now_us;
    }
    if (work->kind == SN_TRAIN_UNLOAD) {
        *t = (sn_tuned){0};
    } else if (work->kind == SN_TRAIN_LOAD) {
        t->state = SN_TUNED_HELD;
        if (job->status)
            *t = (sn_tuned){0};
        else if (work->result > t->bytes)
            t->bytes = work->result;
    } else {
        size_t i = 0;
        while (core->trainings[i] != work) i++;
        core->trainings[i] = core->trainings[--core->n_trainings];
        core->training_bytes -= work->asked->tensor.bytes;
        sn_tuned *old = job->status == SN_RETRY ? oldest(core) : NULL; /* there is no room for it beside what others trained */
        if (old && old != t) let_go(core, old, now_us);
    }
    if (!work->asked) return;
    if (job->status)
        sn_core_refuse(core, work->asker, work->asked, &job->err);
    else if (work->kind == SN_TRAIN_LOAD)
        say_tuned(core, work->asker, work->asked->request, t);
    else
        answer_batch(core, work, job);
}

void sn_core_tunings_free(sn_core *core) {
    for (int i = 0; i < SN_TUNED_MAX; i++) {
        sn_tuning_free(&core->tuned[i].tuning);
        core->tuned[i] = (sn_tuned){0};
    }
}
