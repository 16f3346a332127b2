/* The past of a session as its owner, or the node that the owner named, hands it in and out; and going on from there. */
#include "node/core_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "net/timeline.h"
#include "node/past.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sn_status sn_core_owned(sn_core *core, const sn_event *event, const uint8_t *id, sn_session **out, sn_err *err) {
    sn_session *session = sn_sessions_find(core->sessions, id);
    if (!session || session->closing)
        return sn_fail(err, SN_REBUILD, "this node does not know the session: open a new one and replay");
    if (memcmp(session->owner, event->key, SN_KEY_SIZE))
        return sn_fail(err, SN_REFUSED, "this session belongs to another client: only its owner may do this");
    session->owner_peer = event->peer;
    *out = session;
    return SN_OK;
}

/* -- in ------------------------------------------------------------------------------------------------------------ */

/* The owner may write its own past; the node that it named may, until the owner goes on. What a source says of keys and values
 * is believed as its computing would have been: it is the node that the owner chose to compute them. */
static sn_status check_writer(sn_core *core, const sn_event *event, sn_session **out, sn_err *err) {
    static const uint8_t none[SN_KEY_SIZE];
    sn_session *session = sn_sessions_find(core->sessions, event->msg->kv_put.session);
    if (!session || session->closing) return sn_fail(err, SN_REBUILD, "this node does not know the session");
    bool owner = !memcmp(session->owner, event->key, SN_KEY_SIZE);
    bool source = !memcmp(session->source, event->key, SN_KEY_SIZE) && memcmp(session->source, none, sizeof none);
    if (!owner && !source)
        return sn_fail(err, SN_REFUSED, "only the session's owner, and the node that it named, may put a past into it");
    if (session->resumed || session->last_step)
        return sn_fail(err, SN_REFUSED, "the session has gone on: its past is not to be changed any more");
    if (owner) session->owner_peer = event->peer;
    *out = session;
    return SN_OK;
}

static sn_status check_put(const sn_core *core, const sn_session *session, const sn_msg *msg, sn_err *err) {
    const sn_wire_tensor *t = &msg->tensor;
    uint64_t blocks = (uint64_t)(session->end - session->first), width = sn_past_row(core->hp, 1) / 2;
    if (t->dtype != SN_F32 || t->rank != 4 || t->shape[0] != blocks || t->shape[1] != 2 || t->shape[3] != width)
        return sn_fail(err, SN_REFUSED, "a past of this session is float32 (%llu, 2, tokens, %llu)",
                       (unsigned long long)blocks, (unsigned long long)width);
    if (t->shape[2] != msg->kv_put.n_marks)
        return sn_fail(err, SN_REFUSED, "a past of %llu tokens comes with as many marks, not with %zu",
                       (unsigned long long)t->shape[2], msg->kv_put.n_marks);
    if (t->shape[2] > (uint64_t)session->max_tokens || msg->kv_put.position > (uint64_t)session->max_tokens - t->shape[2])
        return sn_fail(err, SN_REFUSED, "%llu tokens at position %llu pass the session's limit of %d tokens",
                       (unsigned long long)t->shape[2], (unsigned long long)msg->kv_put.position, session->max_tokens);
    return SN_OK;
}

/* Parts may come late or twice over a rewind at the sender: one of the timeline before it must not end up under the hashes of
 * the one after. What is here stays; where it is the newest part that does not fit, the sender begins anew. */
static bool builds_on_what_is_here(const sn_session *session, const sn_msg_kv_put *put) {
    sn_hash before;
    bool same = !memcmp(put->origin, session->timeline[0].bytes, SN_HASH_SIZE);
    if (!put->position) return true;
    memcpy(before.bytes, put->before, SN_HASH_SIZE);
    if (!same) before = sn_timeline_graft(&session->timeline[0], put->before);
    return !memcmp(before.bytes, session->timeline[put->position].bytes, SN_HASH_SIZE);
}

static sn_status start_put(sn_core *core, sn_session *session, sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_kv_put *put = &event->msg->kv_put;
    sn_job *job = NULL;
    sn_status status = sn_calloc(&job, 1, sizeof *job, err);
    if (status) return status;
    session->length = (int)put->position;
    session->imported = true;
    *job = (sn_job){.kind = SN_JOB_WRITE,
                    .session = session,
                    .kv = &session->kv,
                    .first = session->first,
                    .end = session->end,
                    .position = (int)put->position,
                    .n_tokens = (int)put->n_marks,
                    .input = {.name = "a past", .data = event->msg->tensor.data, .dtype = SN_F32},
                    .arrived_us = event->arrived_us,
                    .deadline_us = now_us + core->setup.room_us_max};
    memcpy(job->hash.bytes, put->hash, SN_HASH_SIZE);
    status = sn_session_take_marks(session, job->position, put->marks, put->n_marks, put->origin, err);
    if (!status && !core->setup.submit(core->setup.ctx, job))
        status = sn_fail(err, SN_RETRY, "this node's queue is full: try another node or later");
    if (status) {
        sn_job_free(&job);
        return status;
    }
    core->jobs++;
    session->job = job;
    session->used_us = now_us;
    session->asked = event->msg;
    session->asker = event->peer;
    event->msg = NULL;
    return SN_OK;
}

static void say_taken(sn_core *core, sn_peer peer, uint64_t request, const uint8_t *id, int length) {
    sn_msg *msg = sn_core_new_msg(SN_MSG_KV_TAKEN, request);
    if (!msg) return;
    memcpy(msg->kv_taken.session, id, SN_SESSION_ID_SIZE);
    msg->kv_taken.length = (uint64_t)length;
    sn_core_send(core, peer, &msg);
}

void sn_core_on_put(sn_core *core, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    sn_status status = check_writer(core, event, &session, &err);
    if (!status && session->job) return; /* the same part twice: the answer is on its way */
    if (!status) status = check_put(core, session, event->msg, &err);
    if (!status && event->msg->kv_put.position > (uint64_t)session->length) { /* what lies between got lost */
        say_taken(core, event->peer, event->msg->request, session->id, session->length);
        return;
    }
    if (!status && !builds_on_what_is_here(session, &event->msg->kv_put)) {
        say_taken(core, event->peer, event->msg->request, session->id, 0);
        return;
    }
    if (!status) status = start_put(core, session, event, now_us, &err);
    if (status) sn_core_refuse(core, event->peer, event->msg, &err);
}

void sn_core_put_done(sn_core *core, sn_session *session, sn_job *job, int64_t now_us) {
    session->used_us = now_us;
    if (session->closing) return;
    if (job->status) {
        sn_core_refuse(core, session->asker, session->asked, &job->err);
        return;
    }
    session->length = job->position + job->n_tokens;
    say_taken(core, session->asker, session->asked->request, session->id, session->length);
}

/* -- going on ------------------------------------------------------------------------------------------------------ */

static sn_status resume(sn_core *core, const sn_event *event, sn_session **out, sn_err *err) {
    const sn_msg_resume *resume = &event->msg->resume;
    sn_status status = sn_core_owned(core, event, resume->session, out, err);
    if (status) return status;
    if ((*out)->job) return sn_fail(err, SN_RETRY, "the session is busy: wait a moment");
    if (resume->position > (uint64_t)(*out)->max_tokens)
        return sn_fail(err, SN_REFUSED, "position %llu passes the session's limit of %d tokens",
                       (unsigned long long)resume->position, (*out)->max_tokens);
    return SN_OK;
}

void sn_core_on_resume(sn_core *core, const sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    const sn_msg_resume *asked = &event->msg->resume;
    if (resume(core, event, &session, &err)) {
        sn_core_refuse(core, event->peer, event->msg, &err);
        return;
    }
    sn_msg *msg = sn_core_new_msg(SN_MSG_RESUMED, event->msg->request);
    if (!msg) return;
    session->resumed = true;
    session->last_step = asked->step;
    sn_shared_unref(session->last_output); /* another step may bear its number now */
    session->last_output = NULL;
    memcpy(session->predecessor, asked->predecessor, SN_KEY_SIZE);
    session->used_us = now_us;
    int length = asked->position < (uint64_t)session->length ? (int)asked->position : session->length;
    memcpy(msg->resumed.session, session->id, SN_SESSION_ID_SIZE);
    msg->resumed.length = (uint64_t)length;
    memcpy(msg->resumed.timeline, session->timeline[length].bytes, SN_HASH_SIZE);
    sn_core_send(core, event->peer, &msg);
}

/* -- out ----------------------------------------------------------------------------------------------------------- */

sn_job *sn_core_read_past(sn_core *core, sn_session *session, int first, int end, int position, int n, void *purpose) {
    sn_err err;
    sn_job *job = NULL;
    if (core->reads >= core->setup.sessions_max) return NULL; /* the engine has room for as many, beside everybody's step */
    sn_status status = sn_calloc(&job, 1, sizeof *job, &err);
    if (!status)
        status = sn_shared_new((size_t)n * sn_past_row(core->hp, end - first) * sizeof(float), &job->output, &err);
    if (status) {
        sn_job_free(&job);
        return NULL;
    }
    job->kind = SN_JOB_READ;
    job->session = session;
    job->kv = &session->kv;
    job->first = first;
    job->end = end;
    job->position = position;
    job->n_tokens = n;
    job->purpose = purpose;
    if (!core->setup.submit(core->setup.ctx, job)) {
        sn_job_free(&job);
        return NULL;
    }
    core->jobs++;
    core->reads++;
    session->reads++;
    return job;
}

sn_msg *sn_core_past_message(sn_core *core, sn_msg_kind kind, uint64_t request, const sn_session *session, sn_job *job) {
    sn_err err;
    sn_msg *msg = sn_core_new_msg(kind, request);
    if (!msg) return NULL;
    sn_msg_kv_put *put = &msg->kv_put; /* a KV_PART has the same fields */
    static_assert(sizeof(sn_msg_kv_put) == sizeof(sn_msg_kv_part), "both are parts of a past");
    size_t n = (size_t)job->n_tokens;
    if (sn_list_new(n, SN_PAST_TOKENS_MAX, sizeof *put->marks, &put->marks, &err)) {
        sn_msg_free(&msg);
        return NULL;
    }
    put->n_marks = n;
    put->position = (uint64_t)job->position;
    memcpy(put->session, session->id, SN_SESSION_ID_SIZE);
    memcpy(put->origin, session->timeline[0].bytes, SN_KEY_SIZE);
    memcpy(put->before, session->timeline[job->position].bytes, SN_KEY_SIZE);
    memcpy(put->hash, job->hash.bytes, SN_HASH_SIZE);
    for (size_t i = 0; i < n; i++)
        memcpy(put->marks[i].timeline, session->timeline[(size_t)job->position + i + 1].bytes, SN_KEY_SIZE);
    msg->tensor = (sn_wire_tensor){.dtype = SN_F32,
                                   .rank = 4,
                                   .shape = {(uint64_t)(job->end - job->first), 2, n, sn_past_row(core->hp, 1) / 2},
                                   .data = sn_shared_data(job->output),
                                   .bytes = n * sn_past_row(core->hp, job->end - job->first) * sizeof(float)};
    msg->owner = sn_shared_ref(job->output);
    msg->release = sn_shared_unref;
    return msg;
}

static sn_status start_get(sn_core *core, const sn_event *event, sn_err *err) {
    const sn_msg_kv_get *get = &event->msg->kv_get;
    sn_session *session = NULL;
    sn_status status = sn_core_owned(core, event, get->session, &session, err);
    if (status) return status;
    if (!get->tokens || get->position >= (uint64_t)session->length)
        return sn_fail(err, SN_REFUSED, "%llu tokens at position %llu are not in a past of %d tokens",
                       (unsigned long long)get->tokens, (unsigned long long)get->position, session->length);
    uint64_t n = (uint64_t)session->length - get->position;
    uint64_t most = (uint64_t)sn_past_part_tokens(core->hp, session->end - session->first);
    if (n > get->tokens) n = get->tokens;
    if (n > most) n = most;
    sn_job *job = sn_core_read_past(core, session, session->first, session->end, (int)get->position, (int)n, NULL);
    if (!job) return sn_fail(err, SN_RETRY, "this node is too busy to read a past: try again later");
    job->asker = event->peer;
    job->request = event->msg->request;
    return SN_OK;
}

void sn_core_on_get(sn_core *core, const sn_event *event) {
    sn_err err;
    if (start_get(core, event, &err)) sn_core_refuse(core, event->peer, event->msg, &err);
}

void sn_core_get_done(sn_core *core, sn_session *session, sn_job *job) {
    sn_msg *msg = NULL;
    if (!job->status && job->position + job->n_tokens > session->length)
        job->status = sn_fail(&job->err, SN_RETRY, "the session was rewound meanwhile");
    if (!job->status) {
        msg = sn_core_past_message(core, SN_MSG_KV_PART, job->request, session, job);
    } else if ((msg = sn_core_new_msg(SN_MSG_ERROR, job->request))) {
        msg->error.status = (uint64_t)job->status;
        memcpy(msg->error.session, session->id, SN_SESSION_ID_SIZE);
        snprintf(msg->error.text, sizeof msg->error.text, "%s", job->err.text);
    }
    if (msg) sn_core_send(core, job->asker, &msg);
    sn_msg_free(&msg);
}
