/* STEP: tokens through the session's blocks.
 *
 * A STEP is checked (sender, tensor, step number, position, timeline hash), its rows are hashed into the session's
 * timeline, and a job is submitted that reads its input from the message. When the job is done, the output goes to the
 * client as STEP_REPLY, or as STEP to the next node of the route that the request names (push). Errors always go to the
 * session's client, also when another node pushed the step, because that node has no client to tell.
 *
 * Three cases besides the plain one:
 *   - A repeated STEP, whose reply was lost, is answered from session->last_reply without computing, for a minute
 *     (SN_REPLY_KEPT_US). It goes where the first one went: the node that a session pushes to is fixed when the session
 * is opened (session->next).
 *   - A STEP that follows the one in the engine is queued, up to SN_PREFILL_DEPTH_MAX of them: a client sends the
 *     chunks of a prompt without waiting for each reply. Such a STEP may have a timeline of zeros, because its client
 *     does not know the hash yet.
 *   - A STEP at an earlier position rewinds the session: what follows that position is forgotten when the step
 *     starts. Steps that wait and would be forgotten as a whole are given up: they are neither computed nor answered,
 *     as the client knows; the nodes behind this one get their number never. So the number of a STEP that names its
 *     timeline hash may be any later one. */
#include "node/protocol/protocol_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

static sn_status step_find_session(sn_protocol *protocol, const sn_event *event, sn_session **out, sn_err *err) {
    static const uint8_t none[SN_KEY_SIZE];
    const sn_msg_step *step = &event->msg->step;
    sn_session *session = sn_sessions_find(protocol->sessions, step->session);
    if (!session || session->closing)
        return sn_fail(err, SN_REBUILD, "this node does not know the session: open a new one and replay");
    bool owner = !memcmp(session->owner, event->key, SN_KEY_SIZE);
    bool predecessor =
        !memcmp(session->predecessor, event->key, SN_KEY_SIZE) && memcmp(session->predecessor, none, sizeof none);
    if (!owner && !predecessor)
        return sn_fail(err, SN_REFUSED, "this session belongs to another client: open one of your own");
    if (owner) session->owner_peer = event->peer;
    if (owner) protocol->brought = NULL;
    if (step->n_route && !*session->next.address)
        return sn_fail(err, SN_REFUSED, "this session was opened without a next node: it cannot push");
    *out = session;
    return SN_OK;
}

/* The size of the tensor's data was checked against its dtype and shape on arrival; here its shape is checked against
 * the model. */
static sn_status step_check_tensor(const sn_protocol *protocol, const sn_wire_tensor *t, sn_err *err) {
    if (t->rank != 2 || t->shape[1] != (uint64_t)protocol->hp->n_embd)
        return sn_fail(err, SN_REFUSED, "hidden states must have shape (tokens, %d) for this model",
                       protocol->hp->n_embd);
    if (t->shape[0] < 1 || t->shape[0] > (uint64_t)protocol->setup.span.rows_max)
        return sn_fail(err, SN_REFUSED, "a step of %llu tokens is too long: send at most %d at once",
                       (unsigned long long)t->shape[0], protocol->setup.span.rows_max);
    return SN_OK;
}

/* The dtype of the output, for the next node or the client: one for the wire (net/message.h). */
static sn_status step_check_dtype(const sn_protocol *protocol, sn_dtype dtype, sn_err *err) {
    if ((size_t)protocol->hp->n_embd % sn_dtype_block(dtype))
        return sn_fail(err, SN_REFUSED,
                       "rows of %d values are not a whole number of %s blocks: choose another wire dtype",
                       protocol->hp->n_embd, sn_dtype_name(dtype));
    return SN_OK;
}

/* The type in which the output of the step goes on. */
static sn_dtype step_output_dtype(const sn_msg_step *step) {
    return (sn_dtype)(step->n_route ? step->route[0].dtype : step->reply_dtype);
}

/* What a STEP says by itself, whatever the session: checked before any path looks at it, also where it repeats one that
 * was answered. */
static sn_status step_check_message(const sn_protocol *protocol, const sn_msg *msg, sn_err *err) {
    const sn_msg_step *step = &msg->step;
    sn_status status = step_check_tensor(protocol, &msg->tensor, err);
    if (!status) status = step_check_dtype(protocol, step_output_dtype(step), err);
    if (status) return status;
    if (step->n_route + step->n_trace >= SN_HOPS_MAX)
        return sn_fail(err, SN_REFUSED, "a chain of more than %d nodes is not served", SN_HOPS_MAX);
    const size_t added = step->n_receipts > step->n_timelines ? step->n_receipts : step->n_timelines;
    if (added > step->n_trace)
        return sn_fail(err, SN_REFUSED, "%zu receipts or timelines came with the trace of %zu nodes", added,
                       step->n_trace);
    return SN_OK;
}

static bool step_names_hash(const sn_msg_step *step) {
    static const uint8_t unknown[SN_HASH_SIZE];
    return memcmp(step->timeline, unknown, SN_HASH_SIZE) != 0;
}

/* Whether the step may leave out the numbers before its own: they are those of steps that its client has given up. Only
 * the hash tells that the session is nevertheless where the client knows it to be. */
static bool step_leaves_out(const sn_session *session, const sn_msg_step *step) {
    return step->step > session->last_reply.step && step_names_hash(step) &&
           step->position <= (uint64_t)session->length;
}

/* Whether the session, as it is now, may be stepped so. */
static sn_status step_check_session(const sn_protocol *protocol, const sn_session *session, const sn_msg *msg,
                                    sn_err *err) {
    const sn_msg_step *step = &msg->step;
    if (protocol->leaving) return sn_fail(err, SN_RETRY, "this node is leaving: replay the session at another one");
    if (session->pending.job && session->pending.job->kind != SN_JOB_STEP)
        return sn_fail(err, SN_RETRY, "KV pages are still being written into this session: try again in a moment");
    if (session->pending.job)
        return sn_fail(err, SN_RETRY, "the session is busy with step %llu: wait for its reply",
                       (unsigned long long)session->pending.request_msg->step.step);
    if (step->step != session->last_reply.step + 1 && !step_leaves_out(session, step))
        return sn_fail(err, SN_REBUILD, "step %llu does not follow step %llu: open a new session and replay",
                       (unsigned long long)step->step, (unsigned long long)session->last_reply.step);
    if (step->position > (uint64_t)session->length)
        return sn_fail(err, SN_REFUSED,
                       "position %llu lies beyond the session's end at %d: send the tokens between them first",
                       (unsigned long long)step->position, session->length);
    if (msg->tensor.shape[0] > (uint64_t)session->max_tokens - step->position)
        return sn_fail(err, SN_REFUSED, "%llu tokens at position %llu exceed the session's limit of %d tokens",
                       (unsigned long long)msg->tensor.shape[0], (unsigned long long)step->position,
                       session->max_tokens);
    /* A client that waits for the preceding reply knows no hash. */
    bool follows = !step_names_hash(step) && step->position == (uint64_t)session->length;
    if (!follows && memcmp(session->timeline[step->position].bytes, step->timeline, SN_HASH_SIZE))
        return sn_fail(err, SN_REBUILD,
                       "MISMATCH: the timeline of this session at position %llu is not the one that the step continues",
                       (unsigned long long)step->position);
    return SN_OK;
}

/* The names under which the prefix cache keeps the pages that the step completes. */
static sn_status job_set_pages(sn_job *job, const sn_session *session, sn_err *err) {
    const int first = job->position / SN_KV_PAGE_TOKENS;
    job->step.n_pages = (job->position + job->n_tokens) / SN_KV_PAGE_TOKENS - first;
    if (!job->step.n_pages) return SN_OK;
    sn_status status = sn_calloc(&job->step.pages, (size_t)job->step.n_pages, sizeof *job->step.pages, err);
    for (int i = 0; i < job->step.n_pages && !status; i++)
        memcpy(&job->step.pages[i], &session->timeline[(first + i) * SN_KV_PAGE_TOKENS], sizeof *job->step.pages);
    return status;
}

/* The rows as float32: in place in the message, or decoded into a buffer. */
static sn_status job_set_input(const sn_wire_tensor *t, sn_job *job, sn_err *err) {
    size_t n = (size_t)t->shape[0] * (size_t)t->shape[1];
    job->n_tokens = (int)t->shape[0];
    job->step.input = (sn_tensor){.name = "hidden states",
                                  .data = t->data,
                                  .dtype = SN_F32,
                                  .rank = 2,
                                  .shape = {(int64_t)t->shape[0], (int64_t)t->shape[1]}};
    if (t->dtype == SN_F32) return SN_OK;
    sn_status status = sn_shared_buffer_new(n * sizeof(float), &job->step.input_buffer, err);
    if (status) return status;
    sn_wire_decode(t->dtype, t->data, n, sn_shared_buffer_data(job->step.input_buffer));
    job->step.input.data = sn_shared_buffer_data(job->step.input_buffer);
    return SN_OK;
}

static sn_status step_start(sn_protocol *protocol, sn_session *session, sn_event *event, int64_t now_us, sn_err *err) {
    const sn_wire_tensor *t = &event->msg->tensor;
    sn_job *job = NULL;
    sn_status status = sn_calloc(&job, 1, sizeof *job, err);
    if (!status)
        status =
            sn_shared_buffer_new((size_t)t->shape[0] * (size_t)protocol->hp->n_embd * sizeof(float), &job->output, err);
    if (!status) status = job_set_input(t, job, err);
    /* A rewind takes effect now, because hashing overwrites the timeline after `length`. The new rows count when they
     * are done. */
    if (!status) session->length = (int)event->msg->step.position;
    if (!status) sn_kv_migration_rewind(session, session->length);
    if (!status)
        status = sn_session_hash_rows(session, session->length, job->n_tokens, (size_t)protocol->hp->n_embd,
                                      job->step.input.data, protocol->hasher, err);
    if (!status) job->position = session->length;
    if (!status) status = job_set_pages(job, session, err);
    if (status) {
        sn_job_free(&job);
        return status;
    }
    job->kind = SN_JOB_STEP;
    job->session = session;
    job->kv = &session->kv;
    job->first = session->first;
    job->end = session->end;
    job->step.adapter = session->adapter_entry ? &session->adapter_entry->adapter : NULL;
    job->step.is_long = sn_is_long(protocol->hp, session->max_tokens);
    /* Pages computed on top of imported ones depend on what another node claimed: no other session may attach them. */
    job->step.cacheable = !session->migration.imported;
    job->step.prefix_scope = sn_protocol_prefix_scope(protocol, session);
    memcpy(&job->client, session->owner, sizeof job->client);
    job->priority = sn_quota_priority(protocol->quota, session->owner);
    job->arrived_us = event->arrived_us;
    job->deadline_us = now_us + protocol->setup.kv_timeout_us;
    if (!protocol->setup.submit(protocol->setup.ctx, job)) {
        sn_job_free(&job);
        return sn_fail(err, SN_RETRY, "this node's queue is full: try another node or later");
    }
    protocol->jobs++;
    session->had_job = true;
    session->pending.job = job;
    session->used_us = now_us;
    if (session->adapter_entry) session->adapter_entry->used_us = now_us;
    session->pending.request_msg = event->msg;
    event->msg = NULL;
    return SN_OK;
}

/* -- replies ------------------------------------------------------------------------------------------------------- */

static sn_status reply_set_tensor(sn_msg *msg, sn_shared_buffer *output, int n_tokens, int n_embd, sn_dtype dtype,
                                  sn_err *err) {
    uint64_t shape[] = {(uint64_t)n_tokens, (uint64_t)n_embd};
    size_t n = (size_t)n_tokens * (size_t)n_embd;
    if (dtype == SN_F32) {
        msg->tensor =
            (sn_wire_tensor){SN_F32, 2, {shape[0], shape[1]}, sn_shared_buffer_data(output), n * sizeof(float)};
        msg->owner = sn_shared_buffer_ref(output);
        msg->release = sn_shared_buffer_unref;
        return SN_OK;
    }
    void *data = NULL;
    sn_status status = sn_msg_new_tensor(msg, dtype, 2, shape, &data, err);
    if (status) return status;
    sn_wire_encode(dtype, sn_shared_buffer_data(output), n, data);
    return SN_OK;
}

/* The timelines of the nodes before this one, and its own: of a step that was repeated, the newest hash only, because
 * steps that failed since may have overwritten the others. */
static sn_status step_add_timelines(const sn_session *session, const sn_msg_step *request, sn_blob **out, size_t *n,
                                    sn_err *err) {
    const size_t count = request->n_timelines + 1, tokens = (size_t)session->last_reply.n_tokens;
    const sn_hash *own = &session->timeline[session->last_reply.position + 1];
    const bool all = tokens && tokens <= SN_TIMELINES_MAX &&
                     session->length == session->last_reply.position + (int)tokens &&
                     !memcmp(&own[tokens - 1], session->last_reply.trace.timeline, SN_HASH_SIZE);
    sn_status status = sn_list_new(count, SN_HOPS_MAX, sizeof **out, out, err);
    for (*n = 0; *n < count && !status; ++*n) {
        const bool is_own = *n == request->n_timelines;
        const size_t len = !is_own ? request->timelines[*n].len : all ? tokens * SN_HASH_SIZE : SN_HASH_SIZE;
        const void *from = !is_own ? (const void *)request->timelines[*n].data
                           : all   ? (const void *)own
                                   : (const void *)session->last_reply.trace.timeline;
        if ((status = sn_calloc(&(*out)[*n].data, len, 1, err))) return status;
        (*out)[*n].len = len;
        memcpy((*out)[*n].data, from, len);
    }
    return status;
}

/* Sends session->last_reply: as STEP_REPLY to the client, or as STEP to the next node of the request's route. */
static sn_status step_reply(sn_protocol *protocol, sn_session *session, const sn_msg *request, int64_t now_us,
                            sn_err *err) {
    const sn_msg_step *step = &request->step;
    bool push = step->n_route > 0;
    sn_msg *msg = NULL;
    sn_trace **trace;
    sn_blob **receipts, **timelines;
    size_t *n_trace, *n_receipts, *n_timelines;
    sn_peer peer = session->owner_peer;
    sn_status status = sn_msg_new(push ? SN_MSG_STEP : SN_MSG_STEP_REPLY, request->correlation_id, &msg, err);
    if (status) return status;
    if (push) {
        const sn_route_entry *next = &step->route[0];
        memcpy(session->pushed.session, next->session, SN_SESSION_ID_SIZE);
        memcpy(session->pushed.key, session->next.curve_key, SN_KEY_SIZE);
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
        if (!status) status = sn_protocol_dial(protocol, session->owner, &session->next, now_us, &peer, err);
        msg->step.wants_receipt = step->wants_receipt;
        msg->step.wants_timelines = step->wants_timelines;
        memcpy(msg->step.request_id, step->request_id, sizeof step->request_id);
        trace = &msg->step.trace;
        n_trace = &msg->step.n_trace;
        receipts = &msg->step.receipts;
        n_receipts = &msg->step.n_receipts;
        timelines = &msg->step.timelines;
        n_timelines = &msg->step.n_timelines;
    } else {
        memcpy(msg->step_reply.session, session->id, SN_SESSION_ID_SIZE);
        msg->step_reply.step = step->step;
        trace = &msg->step_reply.trace;
        n_trace = &msg->step_reply.n_trace;
        receipts = &msg->step_reply.receipts;
        n_receipts = &msg->step_reply.n_receipts;
        timelines = &msg->step_reply.timelines;
        n_timelines = &msg->step_reply.n_timelines;
    }
    if (!status) status = sn_list_new(step->n_trace + 1, SN_HOPS_MAX, sizeof **trace, trace, err);
    if (!status) {
        if (step->n_trace) memcpy(*trace, step->trace, step->n_trace * sizeof **trace);
        (*trace)[step->n_trace] = session->last_reply.trace;
        *n_trace = step->n_trace + 1;
        status = reply_set_tensor(msg, session->last_reply.output, session->last_reply.n_tokens, protocol->hp->n_embd,
                                  step_output_dtype(step), err);
    }
    if (!status && step->wants_receipt)
        status = sn_protocol_add_receipt(protocol, session, step, &msg->tensor, receipts, n_receipts, err);
    if (!status && step->wants_timelines) status = step_add_timelines(session, step, timelines, n_timelines, err);
    if (!status) status = sn_transport_send(protocol->setup.transport, peer, &msg, err);
    sn_msg_free(&msg);
    return status;
}

static void step_reply_or_refuse(sn_protocol *protocol, sn_session *session, const sn_msg *request, int64_t now_us) {
    sn_err err;
    if (step_reply(protocol, session, request, now_us, &err))
        sn_protocol_refuse(protocol, session->owner_peer, request, &err);
}

void sn_protocol_on_error(sn_protocol *protocol, const sn_event *event) {
    static const uint8_t none[SN_SESSION_ID_SIZE];
    const sn_msg_error *error = &event->msg->error;
    if (!memcmp(error->session, none, sizeof none)) {
        sn_log_rated(SN_LOG_INFO, "peer refused", "text=%s", error->text);
        return;
    }
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        if (memcmp(session->pushed.session, error->session, SN_SESSION_ID_SIZE) ||
            error->step != session->last_reply.step || memcmp(session->pushed.key, event->key, SN_KEY_SIZE))
            continue;
        sn_log_rated(SN_LOG_INFO, "push refused", "request_id=%s step=%llu text=%s", session->request_id,
                     (unsigned long long)error->step, error->text);
        sn_msg *msg = sn_protocol_new_msg(SN_MSG_ERROR, event->msg->correlation_id);
        if (!msg) return;
        msg->error = *error;
        sn_protocol_send(protocol, session->owner_peer, &msg);
        return;
    }
}

/* The steps that wait and of which this one leaves nothing are given up. */
static void step_give_up_waiting(sn_session *session, const sn_msg *msg) {
    sn_pending_work *pending = &session->pending;
    while (pending->n_queued && pending->queue[pending->n_queued - 1].msg->step.position >= msg->step.position)
        sn_msg_free(&pending->queue[--pending->n_queued].msg);
}

/* Whether nothing of the step in the engine is left by the one behind it. */
static bool step_is_given_up(const sn_session *session) {
    const sn_pending_work *pending = &session->pending;
    return pending->n_queued && pending->queue[0].msg->step.position <= pending->request_msg->step.position;
}

/* Queues a STEP that follows the newest one accepted. All queued steps may have as many rows as one step. */
static sn_status step_enqueue(const sn_protocol *protocol, sn_session *session, sn_event *event, sn_err *err) {
    uint64_t rows = event->msg->tensor.shape[0];
    for (size_t i = 0; i < session->pending.n_queued; i++) rows += session->pending.queue[i].msg->tensor.shape[0];
    if (session->pending.n_queued == SN_PREFILL_DEPTH_MAX || rows > (uint64_t)protocol->setup.span.rows_max)
        return sn_fail(err, SN_RETRY, "the session is busy, and %zu steps are queued: wait for their replies",
                       session->pending.n_queued);
    session->pending.queue[session->pending.n_queued].msg = event->msg;
    session->pending.queue[session->pending.n_queued++].arrived_us = event->arrived_us;
    event->msg = NULL;
    return SN_OK;
}

static bool step_has_rows(const sn_msg *msg, uint64_t position, uint64_t n) {
    return msg->step.position == position && msg->tensor.shape[0] == n;
}

void sn_protocol_on_step(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    if (step_find_session(protocol, event, &session, &err)) {
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
        return;
    }
    const sn_msg *msg = event->msg;
    sn_status status = step_check_message(protocol, msg, &err);
    if (!status) status = sn_protocol_quota_step(protocol, session, msg, now_us, &err); /* repeated steps count, too */
    if (status) {
        sn_protocol_refuse(protocol, session->owner_peer, msg, &err);
        return;
    }
    bool repeated = msg->step.step == session->last_reply.step && session->last_reply.output &&
                    step_has_rows(msg, (uint64_t)session->last_reply.position, (uint64_t)session->last_reply.n_tokens);
    sn_msg *before =
        session->pending.job && session->pending.job->kind == SN_JOB_STEP ? session->pending.request_msg : NULL;
    for (size_t i = 0; before && before->step.step < msg->step.step && i < session->pending.n_queued; i++)
        before = session->pending.queue[i].msg;
    if (before && before->step.step == msg->step.step) { /* repeated while it is in progress: it gets one reply */
        if (step_has_rows(msg, before->step.position, before->tensor.shape[0])) {
            before->correlation_id = msg->correlation_id;
            sn_protocol_charge(protocol);
            return;
        }
        sn_fail(&err, SN_REBUILD, "step %llu is in progress with other rows: open a new session and replay",
                (unsigned long long)msg->step.step);
        sn_protocol_refuse(protocol, session->owner_peer, msg, &err);
        return;
    }
    if (repeated && !session->pending.job) {
        sn_protocol_charge(protocol);
        step_reply_or_refuse(protocol, session, msg, now_us);
        return;
    }
    bool next = before && before->step.step + 1 == msg->step.step;
    if (before && before->step.step < msg->step.step && step_names_hash(&msg->step) &&
        msg->step.position <= before->step.position) {
        step_give_up_waiting(session, msg);
        next = true;
    }
    status = next ? step_enqueue(protocol, session, event, &err) : step_check_session(protocol, session, msg, &err);
    if (!status && !next) status = step_start(protocol, session, event, now_us, &err);
    if (status) sn_protocol_refuse(protocol, session->owner_peer, msg, &err);
}

void sn_protocol_next_step(sn_protocol *protocol, sn_session *session, int64_t now_us) {
    while (session->pending.n_queued && !session->pending.job && !session->closing) {
        sn_err err;
        sn_event event = {.msg = session->pending.queue[0].msg, .arrived_us = session->pending.queue[0].arrived_us};
        memmove(session->pending.queue, session->pending.queue + 1,
                --session->pending.n_queued * sizeof *session->pending.queue);
        sn_status status = step_check_session(protocol, session, event.msg, &err);
        if (!status) status = step_start(protocol, session, &event, now_us, &err);
        if (status) sn_protocol_refuse(protocol, session->owner_peer, event.msg, &err);
        sn_msg_free(&event.msg);
    }
}

void sn_protocol_step_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us) {
    if (job->status) {
        if (!session->closing)
            sn_protocol_refuse(protocol, session->owner_peer, session->pending.request_msg, &job->err);
        return;
    }
    session->length = job->position + job->n_tokens;
    session->last_reply.step = session->pending.request_msg->step.step;
    session->last_reply.position = job->position;
    session->last_reply.n_tokens = job->n_tokens;
    session->last_reply.computed = true;
    session->last_reply.done_us = now_us;
    sn_shared_buffer_unref(session->last_reply.output);
    session->last_reply.output = sn_shared_buffer_ref(job->output);
    session->last_reply.trace = (sn_trace){
        .first_block = (uint64_t)session->first,
        .end_block = (uint64_t)session->end,
        .queue_us = sn_us_between(job->arrived_us, job->started_us),
        .compute_us = sn_us_between(job->started_us, job->finished_us),
        .node_us = sn_us_between(job->arrived_us, now_us),
    };
    memcpy(session->last_reply.trace.node, protocol->setup.identity->id, SN_KEY_SIZE);
    memcpy(session->last_reply.trace.timeline, session->timeline[session->length].bytes, SN_HASH_SIZE);
    sn_protocol_record_input(protocol, session, job->position);
    protocol->counters.steps++;
    sn_histogram_add(&protocol->counters.step_us, (int64_t)session->last_reply.trace.node_us);
    sn_histogram_add(&protocol->counters.queue_us, (int64_t)session->last_reply.trace.queue_us);
    protocol->counters.tokens += (uint64_t)job->n_tokens;
    sn_log(SN_LOG_DEBUG, "step done",
           "request_id=%s step=%llu blocks=%d:%d position=%d tokens=%d queue_us=%llu compute_us=%llu",
           session->request_id, (unsigned long long)session->last_reply.step, session->first, session->end,
           job->position, job->n_tokens, (unsigned long long)session->last_reply.trace.queue_us,
           (unsigned long long)session->last_reply.trace.compute_us);
    if (session->closing) return;
    if (!step_is_given_up(session)) step_reply_or_refuse(protocol, session, session->pending.request_msg, now_us);
    sn_kv_migration_continue(protocol, session, now_us);
}
