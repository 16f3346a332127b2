/* Training through this node's blocks: ADAPTER_PUT brings an adapter, FORWARD and BACKWARD run batches of sequences
 * through the blocks with it, ADAPTERS lists the published ones.
 *
 * Each request becomes a training task in the engine (node/engine/training.h); the reply is sent when the task is done.
 * The network thread tracks which adapters are held (protocol->adapters) and which batches are in the engine
 * (protocol->training). tune_bytes_max bounds three things: adapters (half of it), batches that wait (as much again),
 * and the memory in which the engine trains (the rest; the device thread checks that). When a new adapter needs space,
 * or the engine returned one or a batch for lack of memory, the adapter that was used longest ago is unloaded and the
 * client is told to try again. */
#include "node/protocol/protocol_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "node/engine/training.h"

#include <stdlib.h>
#include <string.h>

enum { BATCHES_PER_CLIENT_MAX = 8, BATCH_ROWS_MAX = 65536, BACKWARD_STEPS = 3 };

_Static_assert(sizeof(sn_msg_forward) == sizeof(sn_msg_backward),
               "both have the same fields and are read by the same code");

/* -- tasks for the engine ------------------------------------------------------------------------------------------ */

static sn_status task_submit(sn_protocol *protocol, sn_training_task *task, int64_t arrived_us, sn_job **out,
                             sn_err *err) {
    sn_job *job = NULL;
    sn_status status = sn_calloc(&job, 1, sizeof *job, err);
    if (status) return status;
    *job = (sn_job){
        .kind = SN_JOB_TRAIN, .training = task, .arrived_us = arrived_us, .first = task->first, .end = task->end};
    if (!protocol->setup.submit(protocol->setup.ctx, job)) {
        job->training = NULL; /* the caller keeps the task */
        sn_job_free(&job);
        return sn_fail(err, SN_RETRY, "this node's queue is full: try another node or later");
    }
    protocol->jobs++;
    if (task->adapter_entry) task->adapter_entry->users++;
    *out = job;
    return SN_OK;
}

/* Starts to unload the adapter; its entry is free when the task is done. */
static void adapter_unload(sn_protocol *protocol, sn_adapter_entry *entry, int64_t now_us) {
    sn_err err;
    sn_training_task *task = NULL;
    sn_job *job;
    if (sn_calloc(&task, 1, sizeof *task, &err)) return;
    *task = (sn_training_task){.kind = SN_TRAINING_ADAPTER_UNLOAD, .adapter_entry = entry, .adapter = &entry->adapter};
    if (task_submit(protocol, task, now_us, &job, &err))
        sn_training_task_free(&task);
    else
        entry->state = SN_ADAPTER_ENTRY_UNLOADING;
}

/* A free entry for an adapter of this size. SN_RETRY: there is none; the oldest adapter without users is being
 * unloaded. */
static sn_status adapter_reserve_entry(sn_protocol *protocol, const sn_event *event, int64_t now_us,
                                       sn_adapter_entry **out, sn_err *err) {
    size_t bytes = event->msg->tensor.bytes;
    if (bytes > protocol->setup.tune_bytes_max / 2)
        return sn_fail(err, SN_REFUSED,
                       "an adapter of %zu MiB is more than half of this node's --tune-memory: use a smaller one",
                       bytes >> 20);
    if (!sn_adapter_table_may_load(&protocol->adapters, event->network, bytes, protocol->setup.tune_bytes_max / 2))
        return sn_fail(err, SN_RETRY,
                       "this node loads as many adapters of your network as it can: try again in a moment, or another "
                       "node");
    *out = sn_adapter_table_find_free(&protocol->adapters);
    if (*out && sn_adapter_table_bytes(&protocol->adapters) + bytes <= protocol->setup.tune_bytes_max / 2) return SN_OK;
    sn_adapter_entry *old =
        sn_adapter_table_find_oldest(&protocol->adapters, event->network, protocol->setup.tune_bytes_max / 2, now_us);
    if (old) adapter_unload(protocol, old, now_us);
    return sn_fail(err, SN_RETRY, "this node holds as many adapters as it can: try again in a moment, or another node");
}

/* -- ADAPTER_PUT --------------------------------------------------------------------------------------------------- */

static sn_status request_check(const sn_protocol *protocol, uint64_t version, const uint8_t model[SN_KEY_SIZE],
                               sn_err *err) {
    if (version != SN_PROTOCOL_VERSION)
        return sn_fail(err, SN_REFUSED, "this node speaks protocol %d: use a matching version", SN_PROTOCOL_VERSION);
    if (protocol->draining) return sn_fail(err, SN_RETRY, "this node is leaving: use another one");
    if (!sn_placement_serving(&protocol->placement))
        return sn_fail(err, SN_RETRY, "this node is still loading its blocks: use another one");
    if (protocol->placement.working_first == protocol->placement.working_end)
        return sn_fail(err, SN_RETRY, "this node has lost the device of its blocks: use another one");
    if (!protocol->setup.tune_bytes_max)
        return sn_fail(err, SN_REFUSED, "this node does not train: its owner gave --tune-memory 0");
    if (memcmp(model, protocol->setup.model.bytes, SN_HASH_SIZE))
        return sn_fail(err, SN_REFUSED, "this node serves another model (%s): open the same file", protocol->hp->name);
    return SN_OK;
}

static sn_status adapter_put_start(sn_protocol *protocol, sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_adapter_put *put = &event->msg->adapter_put;
    const sn_wire_tensor *t = &event->msg->tensor;
    sn_training_task *task = NULL;
    sn_adapter_entry *entry = NULL;
    sn_job *job;
    sn_status status = request_check(protocol, put->protocol, put->model, err);
    if (status) return status;
    if (t->dtype != SN_F32 || t->rank != 1)
        return sn_fail(err, SN_REFUSED, "an adapter is F32 (n): the bytes of its image");
    sn_hash hash; /* the device thread compares it with the bytes */
    memcpy(hash.bytes, put->hash, SN_HASH_SIZE);
    if (sn_adapter_table_find(&protocol->adapters, put->hash))
        return sn_fail(err, SN_RETRY, "this adapter is being loaded or unloaded: try again in a moment");
    status = adapter_reserve_entry(protocol, event, now_us, &entry, err);
    if (!status) status = sn_calloc(&task, 1, sizeof *task, err);
    if (status) return status;
    *task = (sn_training_task){.kind = SN_TRAINING_ADAPTER_LOAD,
                               .requester = event->peer,
                               .adapter_entry = entry,
                               .adapter = &entry->adapter,
                               .request_msg = event->msg,
                               .bytes_max = protocol->setup.tune_bytes_max};
    memcpy(task->owner, event->key, SN_KEY_SIZE);
    memcpy(task->network, event->network, SN_ADDRESS_PREFIX);
    /* Set before the task is submitted: from then on entry->adapter belongs to the device thread. */
    *entry = (sn_adapter_entry){.state = SN_ADAPTER_ENTRY_LOADING, .hash = hash, .bytes = t->bytes, .used_us = now_us};
    memcpy(entry->network, event->network, SN_ADDRESS_PREFIX);
    status = task_submit(protocol, task, event->arrived_us, &job, err);
    if (status) {
        *entry = (sn_adapter_entry){0};
        task->request_msg = NULL;
        sn_training_task_free(&task);
        return status;
    }
    event->msg = NULL;
    return SN_OK;
}

static void adapter_put_reply(sn_protocol *protocol, sn_peer peer, uint64_t correlation_id,
                              const sn_adapter_entry *entry) {
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_ADAPTER_PUT_REPLY, correlation_id);
    if (!msg) return;
    memcpy(msg->adapter_put_reply.hash, entry->hash.bytes, SN_HASH_SIZE);
    msg->adapter_put_reply.bytes = entry->bytes;
    sn_protocol_send(protocol, peer, &msg);
}

void sn_protocol_on_adapter_put(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_adapter_entry *held = sn_adapter_table_find(&protocol->adapters, event->msg->adapter_put.hash);
    if (held && held->state == SN_ADAPTER_ENTRY_READY) {
        held->used_us = now_us;
        sn_protocol_charge(protocol);
        adapter_put_reply(protocol, event->peer, event->msg->correlation_id, held);
    } else if (adapter_put_start(protocol, event, now_us, &err)) {
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
    }
}

/* -- FORWARD and BACKWARD, which have the same fields -------------------------------------------------------------- */

/* *rows: tokens of all sequences. */
static sn_status training_batch_check(const sn_protocol *protocol, const sn_msg *msg, size_t *rows, sn_err *err) {
    const sn_msg_forward *f = &msg->forward;
    const sn_wire_tensor *t = &msg->tensor;
    uint64_t first = (uint64_t)protocol->placement.working_first, end = (uint64_t)protocol->placement.working_end;
    uint64_t sum = 0;
    bool back = msg->kind == SN_MSG_BACKWARD;
    sn_status status = request_check(protocol, f->protocol, f->model, err);
    if (status) return status;
    if (f->first_block < first || f->first_block >= f->end_block || f->end_block > end)
        return sn_fail(err, SN_REFUSED, "blocks %llu:%llu are not here: this node serves %llu:%llu",
                       (unsigned long long)f->first_block, (unsigned long long)f->end_block, (unsigned long long)first,
                       (unsigned long long)end);
    for (size_t i = 0; i < f->n_samples; i++) {
        if (!f->samples[i].tokens || f->samples[i].tokens > (uint64_t)protocol->hp->n_ctx)
            return sn_fail(err, SN_REFUSED, "a sequence has 1 to %d tokens, not %llu", protocol->hp->n_ctx,
                           (unsigned long long)f->samples[i].tokens);
        sum += f->samples[i].tokens; /* at most SN_SAMPLES_MAX * n_ctx */
    }
    if (!sum || sum > BATCH_ROWS_MAX)
        return sn_fail(err, SN_REFUSED, "a batch has 1 to %d tokens: send fewer sequences at once", BATCH_ROWS_MAX);
    int at = back ? 1 : 0;
    if (t->dtype != SN_F32 || t->rank != 2 + at || (back && t->shape[0] != 2) || t->shape[at] != sum ||
        t->shape[at + 1] != (uint64_t)protocol->hp->n_embd)
        return sn_fail(err, SN_REFUSED, "a batch of %llu tokens is F32 (%s%llu, %d)", (unsigned long long)sum,
                       back ? "2, " : "", (unsigned long long)sum, protocol->hp->n_embd);
    *rows = (size_t)sum;
    return SN_OK;
}

/* Limits of the batches that wait in memory: their bytes, their number, and their number per client. A client that has
 * batches here may take no more memory than is left afterwards, so that others find some. */
static sn_status training_batch_check_limits(const sn_protocol *protocol, const sn_event *event, sn_err *err) {
    size_t own = 0, own_bytes = 0, bytes = event->msg->tensor.bytes, most = protocol->setup.tune_bytes_max;
    for (size_t i = 0; i < protocol->training.n; i++) {
        const sn_training_task *task = protocol->training.jobs[i]->training;
        if (memcmp(task->owner, event->key, SN_KEY_SIZE)) continue;
        own++;
        own_bytes += task->request_msg->tensor.bytes;
    }
    if (bytes > most / 2)
        return sn_fail(
            err, SN_REFUSED,
            "a batch of %zu MiB is more than half of this node's --tune-memory: send fewer sequences at once",
            bytes >> 20);
    size_t left = protocol->training.bytes < most ? most - protocol->training.bytes : 0;
    if (own >= BATCHES_PER_CLIENT_MAX || protocol->training.n == SN_TRAINING_BATCHES_MAX || bytes > left ||
        (own && own_bytes + bytes > left - bytes))
        return sn_fail(err, SN_RETRY, "this node has %zu batches to train, %zu of them yours: try again in a moment",
                       protocol->training.n, own);
    return SN_OK;
}

/* A batch counts as so many steps of its client's quota: by its rows, as steps have them. */
static sn_status training_batch_quota(sn_protocol *protocol, const sn_event *event, size_t rows, int64_t now_us,
                                      sn_err *err) {
    int steps = (int)((rows + SN_SPAN_ROWS - 1) / SN_SPAN_ROWS);
    if (event->msg->kind == SN_MSG_BACKWARD) steps *= BACKWARD_STEPS;
    return sn_quota_steps(protocol->quota, event->key, steps, now_us, err);
}

static sn_status training_batch_start(sn_protocol *protocol, sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_forward *f = &event->msg->forward;
    sn_training_task *task = NULL;
    sn_adapter_entry *entry = NULL;
    sn_job *job;
    size_t rows = 0;
    sn_status status = training_batch_check(protocol, event->msg, &rows, err);
    if (!status) status = sn_adapter_table_use(&protocol->adapters, f->adapter, now_us, &entry, err);
    if (!status) status = training_batch_check_limits(protocol, event, err);
    if (!status) status = training_batch_quota(protocol, event, rows, now_us, err);
    if (!status) status = sn_calloc(&task, 1, sizeof *task, err);
    if (status) return status;
    *task = (sn_training_task){.kind = event->msg->kind == SN_MSG_FORWARD ? SN_TRAINING_FORWARD : SN_TRAINING_BACKWARD,
                               .request_msg = event->msg,
                               .requester = event->peer,
                               .adapter_entry = entry,
                               .adapter = entry ? &entry->adapter : NULL,
                               .first = (int)f->first_block,
                               .end = (int)f->end_block,
                               .bytes_max = protocol->setup.tune_bytes_max,
                               .samples = f->samples,
                               .n_samples = f->n_samples,
                               .rows = rows};
    memcpy(task->owner, event->key, SN_KEY_SIZE);
    memcpy(task->network, event->network, SN_ADDRESS_PREFIX);
    status = task_submit(protocol, task, event->arrived_us, &job, err);
    if (status) {
        task->request_msg = NULL;
        sn_training_task_free(&task);
        return status;
    }
    protocol->training.jobs[protocol->training.n++] = job;
    protocol->training.bytes += event->msg->tensor.bytes;
    event->msg = NULL;
    return SN_OK;
}

void sn_protocol_on_training_batch(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    sn_err err;
    if (training_batch_start(protocol, event, now_us, &err))
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
}

void sn_protocol_cancel_training(sn_protocol *protocol, sn_peer peer) {
    for (size_t i = 0; i < protocol->training.n; i++)
        if (protocol->training.jobs[i]->training->requester == peer)
            atomic_store(&protocol->training.jobs[i]->cancelled, true);
}

void sn_protocol_cancel_all_training(sn_protocol *protocol) {
    for (size_t i = 0; i < protocol->training.n; i++) atomic_store(&protocol->training.jobs[i]->cancelled, true);
}

/* -- finished tasks ------------------------------------------------------------------------------------------------ */

static void training_batch_reply(sn_protocol *protocol, const sn_training_task *task, const sn_job *job) {
    bool back = task->kind == SN_TRAINING_BACKWARD;
    sn_msg *msg =
        sn_protocol_new_msg(back ? SN_MSG_BACKWARD_REPLY : SN_MSG_FORWARD_REPLY, task->request_msg->correlation_id);
    if (!msg) return;
    uint64_t queue_us = sn_us_between(job->arrived_us, job->started_us), compute_us = (uint64_t)task->compute_us;
    msg->tensor =
        (sn_wire_tensor){SN_F32, 1, {task->result}, sn_shared_buffer_data(job->output), task->result * sizeof(float)};
    if (back) {
        msg->backward_reply = (sn_msg_backward_reply){queue_us, compute_us};
    } else {
        msg->forward_reply = (sn_msg_forward_reply){queue_us, compute_us};
        msg->tensor.rank = 2;
        msg->tensor.shape[0] = task->rows;
        msg->tensor.shape[1] = (uint64_t)protocol->hp->n_embd;
    }
    msg->owner = sn_shared_buffer_ref(job->output);
    msg->release = sn_shared_buffer_unref;
    sn_protocol_send(protocol, task->requester, &msg);
}

void sn_protocol_training_done(sn_protocol *protocol, sn_job *job, int64_t now_us) {
    sn_training_task *task = job->training;
    sn_adapter_entry *entry = task->adapter_entry;
    if (entry) {
        entry->users--;
        entry->used_us = now_us;
    }
    if (task->kind == SN_TRAINING_ADAPTER_UNLOAD) {
        *entry = (sn_adapter_entry){0};
    } else if (task->kind == SN_TRAINING_ADAPTER_LOAD) {
        entry->state = SN_ADAPTER_ENTRY_READY;
        if (job->status)
            *entry = (sn_adapter_entry){0};
        else if (task->result > entry->bytes)
            entry->bytes = task->result;
    } else {
        size_t i = 0;
        while (protocol->training.jobs[i] != job) i++;
        protocol->training.jobs[i] = protocol->training.jobs[--protocol->training.n];
        protocol->training.bytes -= task->request_msg->tensor.bytes;
    }
    /* SN_RETRY of what is not cancelled: the adapters leave too little memory for it. */
    sn_adapter_entry *old = job->status == SN_RETRY && !atomic_load(&job->cancelled)
                                ? sn_adapter_table_find_oldest(&protocol->adapters, task->network,
                                                               protocol->setup.tune_bytes_max / 2, now_us)
                                : NULL;
    if (old && old != entry) adapter_unload(protocol, old, now_us);
    if (!task->request_msg) return;
    if (job->status)
        sn_protocol_refuse(protocol, task->requester, task->request_msg, &job->err);
    else if (task->kind == SN_TRAINING_ADAPTER_LOAD)
        adapter_put_reply(protocol, task->requester, task->request_msg->correlation_id, entry);
    else
        training_batch_reply(protocol, task, job);
}

/* -- ADAPTERS ------------------------------------------------------------------------------------------------------ */

void sn_protocol_on_adapters(sn_protocol *protocol, const sn_event *event) {
    sn_err err;
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_ADAPTERS_REPLY, event->msg->correlation_id);
    if (!msg) return;
    memcpy(msg->adapters_reply.model, protocol->setup.model.bytes, SN_HASH_SIZE);
    if (sn_adapter_table_list(&protocol->adapters, &msg->adapters_reply, &err))
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
    else
        sn_protocol_send(protocol, event->peer, &msg);
    sn_msg_free(&msg);
}
