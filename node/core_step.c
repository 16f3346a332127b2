/* A step's way through a node: checked, hashed into the timeline, given to the engine; and its answer, back to the
 * client or on to the next node. */
#include "node/core_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

static sn_status find_session(sn_core *core, const sn_event *event, sn_session **out, sn_err *err) {
    const sn_msg_step *step = &event->msg->step;
    sn_session *session = sn_sessions_find(core->sessions, step->session);
    if (!session || session->closing)
        return sn_fail(err, SN_REBUILD, "this node does not know the session: open a new one and replay");
    bool owner = !memcmp(session->owner, event->key, SN_KEY_SIZE);
    bool predecessor = !memcmp(session->predecessor, event->key, SN_KEY_SIZE);
    if (!owner && !predecessor)
        return sn_fail(err, SN_REFUSED, "this session belongs to another client: open one of your own");
    if (owner) session->owner_peer = event->peer;
    *out = session;
    return SN_OK;
}

/* The frame's size was checked against dtype and shape on arrival; here the shape is checked against the model. */
static sn_status check_tensor(const sn_core *core, const sn_wire_tensor *t, sn_err *err) {
    if (t->rank != 2 || t->shape[1] != (uint64_t)core->hp->n_embd)
        return sn_fail(err, SN_REFUSED, "hidden states must have shape (tokens, %d) for this model", core->hp->n_embd);
    if (t->shape[0] < 1 || t->shape[0] > SN_SPAN_ROWS_MAX)
        return sn_fail(err, SN_REFUSED, "a step of %llu tokens is too long: send at most %d at once",
                       (unsigned long long)t->shape[0], SN_SPAN_ROWS_MAX);
    return SN_OK;
}

/* As what the hidden states are to go on: to the next node, or back. */
static sn_status check_dtype(const sn_core *core, uint64_t dtype, sn_err *err) {
    if (!sn_is_wire_dtype(dtype))
        return sn_fail(err, SN_REFUSED, "hidden states can go on as F32, F16, BF16 or Q8, not as type %llu",
                       (unsigned long long)dtype);
    if ((size_t)core->hp->n_embd % sn_dtype_block((sn_dtype)dtype))
        return sn_fail(err, SN_REFUSED, "hidden states of %d numbers are no whole blocks of %s: choose another type",
                       core->hp->n_embd, sn_dtype_name((sn_dtype)dtype));
    return SN_OK;
}

static sn_status check_step(const sn_core *core, const sn_session *session, const sn_msg *msg, sn_err *err) {
    const sn_msg_step *step = &msg->step;
    sn_status status = check_tensor(core, &msg->tensor, err);
    if (status) return status;
    if (core->leaving) return sn_fail(err, SN_RETRY, "this node is leaving: replay the session at another one");
    if ((status = check_dtype(core, step->n_route ? step->route[0].dtype : step->reply_dtype, err))) return status;
    if (step->n_route + step->n_trace >= SN_HOPS_MAX)
        return sn_fail(err, SN_REFUSED, "a chain of more than %d nodes is not served", SN_HOPS_MAX);
    if ((status = sn_core_check_receipts(step, err))) return status;
    if (session->job && session->job->kind != SN_JOB_STEP)
        return sn_fail(err, SN_RETRY, "the session's past is still coming in: wait until it is there");
    if (session->job)
        return sn_fail(err, SN_RETRY, "the session is busy with step %llu: wait for its answer",
                       (unsigned long long)session->asked->step.step);
    if (step->step != session->last_step + 1)
        return sn_fail(err, SN_REBUILD, "step %llu does not follow step %llu: open a new session and replay",
                       (unsigned long long)step->step, (unsigned long long)session->last_step);
    if (step->position > (uint64_t)session->length)
        return sn_fail(err, SN_REFUSED, "position %llu lies beyond the session's end at %d: send what is between first",
                       (unsigned long long)step->position, session->length);
    if (msg->tensor.shape[0] > (uint64_t)session->max_tokens - step->position)
        return sn_fail(err, SN_REFUSED, "%llu tokens at position %llu pass the session's limit of %d tokens",
                       (unsigned long long)msg->tensor.shape[0], (unsigned long long)step->position,
                       session->max_tokens);
    static const uint8_t as_it_stands[SN_HASH_SIZE]; /* of a step that was sent before the one before it was answered */
    bool follows = !memcmp(step->timeline, as_it_stands, SN_HASH_SIZE) && step->position == (uint64_t)session->length;
    if (!follows && memcmp(session->timeline[step->position].bytes, step->timeline, SN_HASH_SIZE))
        return sn_fail(err, SN_REBUILD,
                       "MISMATCH: the session's past at position %llu is not the one this step builds on",
                       (unsigned long long)step->position);
    return SN_OK;
}

/* What the pages that the step fills will be known by. */
static void set_page_ends(sn_job *job, const sn_session *session) {
    int page = job->position / SN_KV_PAGE_TOKENS + 1;
    for (int i = 0; (page + i) * SN_KV_PAGE_TOKENS <= job->position + job->n_tokens; i++)
        job->ends[i] = session->timeline[(page + i) * SN_KV_PAGE_TOKENS];
}

/* The rows as float32: as they lie in the message, or decoded. */
static sn_status take_rows(const sn_wire_tensor *t, sn_job *job, sn_err *err) {
    size_t n = (size_t)t->shape[0] * (size_t)t->shape[1];
    job->n_tokens = (int)t->shape[0];
    job->input = (sn_tensor){.name = "hidden states",
                             .data = t->data,
                             .dtype = SN_F32,
                             .rank = 2,
                             .shape = {(int64_t)t->shape[0], (int64_t)t->shape[1]}};
    if (t->dtype == SN_F32) return SN_OK;
    sn_status status = sn_shared_new(n * sizeof(float), &job->rows, err);
    if (status) return status;
    sn_wire_decode(t->dtype, t->data, n, sn_shared_data(job->rows));
    job->input.data = sn_shared_data(job->rows);
    return SN_OK;
}

static sn_status start_step(sn_core *core, sn_session *session, sn_event *event, int64_t now_us, sn_err *err) {
    const sn_wire_tensor *t = &event->msg->tensor;
    sn_job *job = NULL;
    sn_status status = sn_calloc(&job, 1, sizeof *job, err);
    if (!status)
        status = sn_shared_new((size_t)t->shape[0] * (size_t)core->hp->n_embd * sizeof(float), &job->output, err);
    if (!status) status = take_rows(t, job, err);
    /* A rewind forgets at once, because hashing writes over what comes behind; the rows count once they are done. */
    if (!status) session->length = (int)event->msg->step.position;
    if (!status) sn_core_moves_rewind(session, session->length);
    if (!status)
        status = sn_session_hash_rows(session, session->length, job->n_tokens, (size_t)core->hp->n_embd, job->input.data,
                                      core->hasher, err);
    if (status) {
        sn_job_free(&job);
        return status;
    }
    job->kind = SN_JOB_STEP;
    job->session = session;
    job->kv = &session->kv;
    job->first = session->first;
    job->end = session->end;
    job->tuning = session->tuned ? &session->tuned->tuning : NULL;
    job->position = (int)event->msg->step.position;
    job->shares = !session->imported; /* pages behind a past from elsewhere rest on what others say: nobody else gets them */
    if (!core->setup.share_all) memcpy(job->scope.bytes, session->owner, SN_KEY_SIZE);
    set_page_ends(job, session);
    memcpy(&job->client, session->owner, sizeof job->client);
    job->priority = sn_quota_priority(core->quota, session->owner);
    job->arrived_us = event->arrived_us;
    job->deadline_us = now_us + core->setup.room_us_max;
    if (!core->setup.submit(core->setup.ctx, job)) {
        sn_job_free(&job);
        return sn_fail(err, SN_RETRY, "this node's queue is full: try another node or later");
    }
    core->jobs++;
    session->job = job;
    session->used_us = now_us;
    if (session->tuned) session->tuned->used_us = now_us;
    session->asked = event->msg;
    event->msg = NULL;
    return SN_OK;
}

/* -- answers ------------------------------------------------------------------------------------------------------- */

static sn_status set_output(sn_msg *msg, sn_shared *output, int n_tokens, int n_embd, sn_dtype dtype, sn_err *err) {
    uint64_t shape[] = {(uint64_t)n_tokens, (uint64_t)n_embd};
    size_t n = (size_t)n_tokens * (size_t)n_embd;
    if (dtype == SN_F32) {
        msg->tensor = (sn_wire_tensor){SN_F32, 2, {shape[0], shape[1]}, sn_shared_data(output), n * sizeof(float)};
        msg->owner = sn_shared_ref(output);
        msg->release = sn_shared_unref;
        return SN_OK;
    }
    void *data = NULL;
    sn_status status = sn_msg_new_tensor(msg, dtype, 2, shape, &data, err);
    if (status) return status;
    sn_wire_encode(dtype, sn_shared_data(output), n, data);
    return SN_OK;
}

/* The session's last answer, as RESULT to its client or as STEP to the next node of the route in `asked`. */
static sn_status answer(sn_core *core, sn_session *session, const sn_msg *asked, sn_err *err) {
    const sn_msg_step *step = &asked->step;
    bool push = step->n_route > 0;
    sn_msg *msg = NULL;
    sn_trace **trace;
    sn_blob **receipts;
    size_t *n_trace, *n_receipts;
    sn_peer peer = session->owner_peer;
    sn_status status = sn_msg_new(push ? SN_MSG_STEP : SN_MSG_RESULT, asked->request, &msg, err);
    if (status) return status;
    if (push) {
        const sn_hop *next = &step->route[0];
        memcpy(session->next, next->session, SN_SESSION_ID_SIZE);
        memcpy(session->next_key, next->curve_key, SN_KEY_SIZE);
        memcpy(msg->step.session, next->session, SN_SESSION_ID_SIZE);
        memcpy(msg->step.timeline, next->timeline, SN_KEY_SIZE);
        msg->step.step = step->step;
        msg->step.position = step->position;
        msg->step.reply_dtype = step->reply_dtype;
        status = sn_list_new(step->n_route - 1, SN_HOPS_MAX, sizeof *step->route, &msg->step.route, err);
        if (!status && step->n_route > 1) {
            memcpy(msg->step.route, next + 1, (step->n_route - 1) * sizeof *next);
            msg->step.n_route = step->n_route - 1;
        }
        if (!status) status = sn_transport_dial(core->setup.transport, next->address, next->curve_key, &peer, err);
        msg->step.receipt = step->receipt;
        memcpy(msg->step.flow, step->flow, sizeof step->flow);
        trace = &msg->step.trace;
        n_trace = &msg->step.n_trace;
        receipts = &msg->step.receipts;
        n_receipts = &msg->step.n_receipts;
    } else {
        memcpy(msg->result.session, session->id, SN_SESSION_ID_SIZE);
        msg->result.step = step->step;
        trace = &msg->result.trace;
        n_trace = &msg->result.n_trace;
        receipts = &msg->result.receipts;
        n_receipts = &msg->result.n_receipts;
    }
    if (!status) status = sn_list_new(step->n_trace + 1, SN_HOPS_MAX, sizeof **trace, trace, err);
    if (!status) {
        if (step->n_trace) memcpy(*trace, step->trace, step->n_trace * sizeof **trace);
        (*trace)[step->n_trace] = session->last_trace;
        *n_trace = step->n_trace + 1;
        status = set_output(msg, session->last_output, session->last_tokens, core->hp->n_embd,
                            (sn_dtype)(push ? step->route[0].dtype : step->reply_dtype), err);
    }
    if (!status && step->receipt)
        status = sn_core_add_receipt(core, session, step, &msg->tensor, receipts, n_receipts, err);
    if (!status) status = sn_transport_send(core->setup.transport, peer, &msg, err);
    sn_msg_free(&msg);
    return status;
}

/* Failures go to the session's client, whoever sent the step: a node that pushed has nobody to tell. */
static void answer_or_refuse(sn_core *core, sn_session *session, const sn_msg *asked) {
    sn_err err;
    if (answer(core, session, asked, &err)) sn_core_refuse(core, session->owner_peer, asked, &err);
}

void sn_core_on_error(sn_core *core, const sn_event *event) {
    static const uint8_t none[SN_SESSION_ID_SIZE];
    const sn_msg_error *error = &event->msg->error;
    if (!memcmp(error->session, none, sizeof none)) {
        sn_log(SN_LOG_INFO, "a peer refused", "text=%s", error->text);
        return;
    }
    for (size_t i = 0; i < sn_sessions_count(core->sessions); i++) {
        sn_session *session = sn_sessions_at(core->sessions, i);
        if (memcmp(session->next, error->session, SN_SESSION_ID_SIZE) || error->step != session->last_step ||
            memcmp(session->next_key, event->key, SN_KEY_SIZE))
            continue;
        sn_log(SN_LOG_INFO, "push refused", "flow=%s step=%llu text=%s", session->flow, (unsigned long long)error->step,
               error->text);
        sn_msg *msg = sn_core_new_msg(SN_MSG_ERROR, event->msg->request);
        if (!msg) return;
        msg->error = *error;
        sn_core_send(core, session->owner_peer, &msg);
        return;
    }
}

/* The step behind the newest one that is here waits for it, within limits: as much as one step may hold. */
static sn_status keep_for_later(const sn_core *core, sn_session *session, sn_event *event, sn_err *err) {
    sn_status status = check_tensor(core, &event->msg->tensor, err);
    if (status) return status;
    uint64_t rows = event->msg->tensor.shape[0];
    for (size_t i = 0; i < session->n_ahead; i++) rows += session->ahead[i].msg->tensor.shape[0];
    if (session->n_ahead == SN_STEPS_AHEAD_MAX || rows > SN_SPAN_ROWS_MAX)
        return sn_fail(err, SN_RETRY, "the session is busy, and %zu steps wait already: wait for their answers",
                       session->n_ahead);
    session->ahead[session->n_ahead].msg = event->msg;
    session->ahead[session->n_ahead++].arrived_us = event->arrived_us;
    event->msg = NULL;
    return SN_OK;
}

void sn_core_on_step(sn_core *core, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    if (find_session(core, event, &session, &err)) {
        sn_core_refuse(core, event->peer, event->msg, &err);
        return;
    }
    const sn_msg *msg = event->msg;
    bool repeated = msg->step.step == session->last_step && session->last_output &&
                    msg->step.position == (uint64_t)session->last_position && msg->tensor.rank == 2 &&
                    msg->tensor.shape[0] == (uint64_t)session->last_tokens;
    sn_msg *before = session->job && session->job->kind == SN_JOB_STEP ? session->asked : NULL;
    for (size_t i = 0; before && before->step.step < msg->step.step && i < session->n_ahead; i++)
        before = session->ahead[i].msg;
    if (before && before->step.step == msg->step.step) { /* asked twice: the one answer goes to the newer question */
        before->request = msg->request;
        return;
    }
    if (repeated && !session->job) {
        answer_or_refuse(core, session, msg);
        return;
    }
    bool next = before && before->step.step + 1 == msg->step.step;
    sn_status status = sn_core_quota_step(core, session, msg, now_us, &err);
    if (!status) status = next ? keep_for_later(core, session, event, &err) : check_step(core, session, msg, &err);
    if (!status && !next) status = start_step(core, session, event, now_us, &err);
    if (status) sn_core_refuse(core, session->owner_peer, msg, &err);
}

void sn_core_next_step(sn_core *core, sn_session *session, int64_t now_us) {
    while (session->n_ahead && !session->job && !session->closing) {
        sn_err err;
        sn_event event = {.msg = session->ahead[0].msg, .arrived_us = session->ahead[0].arrived_us};
        memmove(session->ahead, session->ahead + 1, --session->n_ahead * sizeof *session->ahead);
        sn_status status = check_step(core, session, event.msg, &err);
        if (!status) status = start_step(core, session, &event, now_us, &err);
        if (status) sn_core_refuse(core, session->owner_peer, event.msg, &err);
        sn_msg_free(&event.msg);
    }
}

void sn_core_step_done(sn_core *core, sn_session *session, sn_job *job, int64_t now_us) {
    if (job->status) {
        if (!session->closing) sn_core_refuse(core, session->owner_peer, session->asked, &job->err);
        return;
    }
    session->length = job->position + job->n_tokens;
    session->last_step = session->asked->step.step;
    session->last_position = job->position;
    session->last_tokens = job->n_tokens;
    sn_shared_unref(session->last_output);
    session->last_output = sn_shared_ref(job->output);
    session->last_trace = (sn_trace){
        .first_block = (uint64_t)session->first,
        .end_block = (uint64_t)session->end,
        .queue_us = (uint64_t)(job->started_us - job->arrived_us),
        .compute_us = (uint64_t)(job->finished_us - job->started_us),
        .node_us = (uint64_t)(now_us - job->arrived_us),
    };
    memcpy(session->last_trace.node, core->setup.identity->id, SN_KEY_SIZE);
    memcpy(session->last_trace.timeline, session->timeline[session->length].bytes, SN_HASH_SIZE);
    sn_core_note_step(core, session, job->position);
    core->steps++;
    sn_histogram_add(&core->step_times, (int64_t)session->last_trace.node_us);
    sn_histogram_add(&core->queue_times, (int64_t)session->last_trace.queue_us);
    core->tokens += (uint64_t)job->n_tokens;
    sn_log(SN_LOG_DEBUG, "step done", "flow=%s step=%llu blocks=%d:%d position=%d tokens=%d queue_us=%llu compute_us=%llu",
           session->flow, (unsigned long long)session->last_step, session->first, session->end, job->position,
           job->n_tokens, (unsigned long long)session->last_trace.queue_us,
           (unsigned long long)session->last_trace.compute_us);
    if (session->closing) return;
    answer_or_refuse(core, session, session->asked);
    sn_core_moves_go_on(core, session, now_us);
}
