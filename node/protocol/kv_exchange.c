/* KV_PUT, STATE_PUT, KV_GET and RESUME: KV pages and snapshots into a session, out of it, and continuing from there.
 *
 * A client that saves a session reads its KV pages part by part (KV_GET); to restore it, it writes them into a new
 * session (KV_PUT). In a KV migration another node writes them, the one that the owner named as kv_source when it
 * opened the session. Either way the owner then takes the session over with RESUME, which returns how many tokens are
 * there and their timeline hash; from then on nothing may be written into it.
 *
 * A part is a tensor (kv_transfer.h has its layout) with its SHA-256 and the timeline hash after each of its tokens.
 * Parts are appended in order; each names the hash that it continues, so that a part which was overtaken by a rewind of
 * the sender is not appended to the newer timeline. KV pages of the source are trusted like its computations would be,
 * because the owner chose that node to compute them. */
#include "node/protocol/protocol_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "net/timeline.h"
#include "node/engine/kv_transfer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sn_status sn_protocol_owned_session(sn_protocol *protocol, const sn_event *event, const uint8_t *id, sn_session **out,
                                    sn_err *err) {
    sn_session *session = sn_sessions_find(protocol->sessions, id);
    if (!session || session->closing)
        return sn_fail(err, SN_REBUILD, "this node does not know the session: open a new one and replay");
    if (memcmp(session->owner, event->key, SN_KEY_SIZE))
        return sn_fail(err, SN_REFUSED, "this session belongs to another client: only its owner may do this");
    session->owner_peer = event->peer;
    *out = session;
    return SN_OK;
}

/* -- KV_PUT -------------------------------------------------------------------------------------------------------- */

/* The session, if the sender is its owner or the source that the owner named, and it was not resumed. */
static sn_status put_check_sender(sn_protocol *protocol, const sn_event *event, const uint8_t *id, sn_session **out,
                                  sn_err *err) {
    static const uint8_t none[SN_KEY_SIZE];
    sn_session *session = sn_sessions_find(protocol->sessions, id);
    if (!session || session->closing) return sn_fail(err, SN_REBUILD, "this node does not know the session");
    bool owner = !memcmp(session->owner, event->key, SN_KEY_SIZE);
    bool source = !memcmp(session->migration.source, event->key, SN_KEY_SIZE) &&
                  memcmp(session->migration.source, none, sizeof none);
    if (!owner && !source)
        return sn_fail(err, SN_REFUSED,
                       "only the session's owner, and the kv_source that it named, may put KV pages into it");
    if (session->migration.resumed || session->last_reply.step)
        return sn_fail(err, SN_REFUSED, "the session has been resumed: its KV pages cannot be replaced any more");
    if (owner) session->owner_peer = event->peer;
    if (owner) protocol->brought = NULL;
    *out = session;
    return SN_OK;
}

static sn_status kv_put_check_shape(const sn_protocol *protocol, const sn_session *session, const sn_msg *msg,
                                    sn_err *err) {
    const sn_wire_tensor *t = &msg->tensor;
    uint64_t shape[SN_TENSOR_RANK_MAX], n = t->rank == 4 ? t->shape[2] : t->shape[0];
    int rank = sn_kv_tensor_shape(protocol->hp, session->first, session->end, n, shape);
    if (t->dtype == SN_F32 && t->rank == rank && !memcmp(t->shape, shape, (size_t)rank * sizeof *shape)) {
        if (n == msg->kv_put.n_token_timelines) return SN_OK;
        return sn_fail(err, SN_REFUSED, "KV pages of %llu tokens need as many timeline hashes, not %zu",
                       (unsigned long long)n, msg->kv_put.n_token_timelines);
    }
    if (rank == 2)
        return sn_fail(err, SN_REFUSED, "KV pages of this session are float32 (tokens, %llu)",
                       (unsigned long long)shape[1]);
    return sn_fail(err, SN_REFUSED, "KV pages of this session are float32 (%llu, 2, tokens, %llu)",
                   (unsigned long long)shape[0], (unsigned long long)shape[3]);
}

static sn_status kv_put_check(const sn_protocol *protocol, const sn_session *session, const sn_msg *msg, sn_err *err) {
    sn_status status = kv_put_check_shape(protocol, session, msg, err);
    if (status) return status;
    uint64_t n = msg->kv_put.n_token_timelines;
    int most = sn_kv_transfer_part_tokens(protocol->hp, session->first, session->end);
    if (n > (uint64_t)most)
        return sn_fail(err, SN_REFUSED,
                       "KV pages of %llu tokens are too many for one message: send those of at most %d tokens at once",
                       (unsigned long long)n, most);
    if (n > (uint64_t)session->max_tokens || msg->kv_put.position > (uint64_t)session->max_tokens - n)
        return sn_fail(err, SN_REFUSED, "%llu tokens at position %llu exceed the session's limit of %d tokens",
                       (unsigned long long)n, (unsigned long long)msg->kv_put.position, session->max_tokens);
    return SN_OK;
}

/* Whether the part continues the timeline that is here. A part may arrive late, or twice, after the sender was rewound:
 * KV pages of the timeline before the rewind must not get the hashes of the timeline after it. When this is false, what
 * is here is kept, and the sender starts again from 0. */
static bool put_follows_session(const sn_session *session, uint64_t position, const uint8_t *origin,
                                const uint8_t *timeline) {
    sn_hash before;
    bool same = !memcmp(origin, session->timeline[0].bytes, SN_HASH_SIZE);
    if (!position) return true;
    memcpy(before.bytes, timeline, SN_HASH_SIZE);
    if (!same) before = sn_timeline_graft(&session->timeline[0], timeline);
    return !memcmp(before.bytes, session->timeline[position].bytes, SN_HASH_SIZE);
}

/* Submits the job, with the tensor of the event's message, which the session takes. */
static sn_status put_submit(sn_protocol *protocol, sn_session *session, sn_event *event, const sn_job *what,
                            int64_t now_us, sn_err *err) {
    sn_job *job = NULL;
    sn_status status = sn_calloc(&job, 1, sizeof *job, err);
    if (status) return status;
    *job = *what;
    job->kind = SN_JOB_KV_WRITE;
    job->session = session;
    job->kv = &session->kv;
    memcpy(&job->client, session->owner, sizeof job->client);
    job->first = session->first;
    job->end = session->end;
    job->arrived_us = event->arrived_us;
    job->deadline_us = now_us + protocol->setup.kv_timeout_us;
    job->kv_write.input = (sn_tensor){.name = "KV pages", .data = event->msg->tensor.data, .dtype = SN_F32};
    if (!protocol->setup.submit(protocol->setup.ctx, job)) {
        sn_job_free(&job);
        return sn_fail(err, SN_RETRY, "this node's queue is full: try another node or later");
    }
    protocol->jobs++;
    session->had_job = true;
    session->pending.job = job;
    session->used_us = now_us;
    session->pending.request_msg = event->msg;
    session->pending.requester = event->peer;
    event->msg = NULL;
    return SN_OK;
}

static sn_status kv_put_start(sn_protocol *protocol, sn_session *session, sn_event *event, int64_t now_us,
                              sn_err *err) {
    const sn_msg_kv_put *put = &event->msg->kv_put;
    sn_job what = {.position = (int)put->position, .n_tokens = (int)put->n_token_timelines};
    memcpy(what.kv_write.hash.bytes, put->tensor_hash, SN_HASH_SIZE);
    sn_status status = sn_protocol_quota_kv_put(protocol, session, what.position + what.n_tokens, now_us, err);
    if (status) return status;
    session->length = what.position;
    sn_kv_migration_rewind(session, session->length);
    session->migration.imported = true;
    status = sn_session_import_timeline(session, what.position, put->token_timelines, put->n_token_timelines,
                                        put->origin, err);
    return status ? status : put_submit(protocol, session, event, &what, now_us, err);
}

static void kv_put_reply(sn_protocol *protocol, sn_peer peer, uint64_t correlation_id, const uint8_t *id, int length) {
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_KV_PUT_REPLY, correlation_id);
    if (!msg) return;
    memcpy(msg->kv_put_reply.session, id, SN_SESSION_ID_SIZE);
    msg->kv_put_reply.length = (uint64_t)length;
    sn_protocol_send(protocol, peer, &msg);
}

void sn_protocol_on_kv_put(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    sn_status status = put_check_sender(protocol, event, event->msg->kv_put.session, &session, &err);
    if (!status && session->pending.job) { /* a repeated part: the first one will be answered */
        sn_protocol_charge(protocol);
        return;
    }
    if (!status) status = kv_put_check(protocol, session, event->msg, &err);
    if (!status && event->msg->kv_put.position > (uint64_t)session->length) { /* the part before it was lost */
        sn_protocol_charge(protocol);
        kv_put_reply(protocol, event->peer, event->msg->correlation_id, session->id, session->length);
        return;
    }
    const sn_msg_kv_put *put = &event->msg->kv_put;
    if (!status && !put_follows_session(session, put->position, put->origin, put->timeline)) {
        sn_protocol_charge(protocol);
        kv_put_reply(protocol, event->peer, event->msg->correlation_id, session->id, 0);
        return;
    }
    if (!status) status = kv_put_start(protocol, session, event, now_us, &err);
    if (status) sn_protocol_refuse(protocol, event->peer, event->msg, &err);
}

/* -- STATE_PUT ----------------------------------------------------------------------------------------------------- */

static sn_status state_put_check(const sn_protocol *protocol, const sn_session *session, const sn_msg *msg,
                                 sn_err *err) {
    const sn_wire_tensor *t = &msg->tensor;
    const sn_msg_state_put *put = &msg->state_put;
    uint64_t all = sn_span_state_floats(protocol->hp, session->first, session->end),
             most = sn_kv_transfer_piece_floats(protocol->hp, session->first, session->end);
    if (!all)
        return sn_fail(err, SN_REFUSED, "blocks %d:%d of this session have no recurrent states", session->first,
                       session->end);
    if (t->dtype != SN_F32 || t->rank != 2 || t->shape[0] != 1 || !t->shape[1] || t->shape[1] > most)
        return sn_fail(err, SN_REFUSED, "a piece of the states of this session is float32 (1, n), n at most %llu",
                       (unsigned long long)most);
    if (put->offset > all || t->shape[1] > all - put->offset)
        return sn_fail(err, SN_REFUSED, "%llu floats behind %llu exceed the states of this session, which have %llu",
                       (unsigned long long)t->shape[1], (unsigned long long)put->offset, (unsigned long long)all);
    if (!put->position || put->position % SN_KV_SNAPSHOT_TOKENS)
        return sn_fail(err, SN_REFUSED, "states are taken at multiples of %d tokens, not at %llu",
                       SN_KV_SNAPSHOT_TOKENS, (unsigned long long)put->position);
    return SN_OK;
}

static void state_put_reply(sn_protocol *protocol, const sn_session *session, sn_peer peer, uint64_t correlation_id,
                            size_t floats) {
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_STATE_PUT_REPLY, correlation_id);
    if (!msg) return;
    memcpy(msg->state_put_reply.session, session->id, SN_SESSION_ID_SIZE);
    msg->state_put_reply.length = (uint64_t)session->length;
    msg->state_put_reply.floats = floats;
    sn_protocol_send(protocol, peer, &msg);
}

void sn_protocol_on_state_put(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    const sn_msg_state_put *put = &event->msg->state_put;
    sn_status status = put_check_sender(protocol, event, put->session, &session, &err);
    if (!status && session->pending.job) { /* as of KV_PUT */
        sn_protocol_charge(protocol);
        return;
    }
    if (!status) status = state_put_check(protocol, session, event->msg, &err);
    if (!status && (put->position > (uint64_t)session->length ||
                    !put_follows_session(session, put->position, put->origin, put->timeline))) {
        sn_protocol_charge(protocol);
        state_put_reply(protocol, session, event->peer, event->msg->correlation_id, 0);
        return;
    }
    if (!status) status = sn_quota_step(protocol->quota, session->owner, now_us, &err);
    if (!status) {
        sn_job what = {.position = session->length};
        what.kv_write.piece =
            (sn_state_piece){(int)put->position, (size_t)put->offset, (size_t)event->msg->tensor.shape[1], 0};
        memcpy(what.kv_write.hash.bytes, put->tensor_hash, SN_HASH_SIZE);
        status = put_submit(protocol, session, event, &what, now_us, &err);
    }
    if (status) sn_protocol_refuse(protocol, event->peer, event->msg, &err);
}

void sn_protocol_kv_put_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us) {
    session->used_us = now_us;
    if (session->closing) return;
    if (job->status) {
        sn_protocol_refuse(protocol, session->pending.requester, session->pending.request_msg, &job->err);
        return;
    }
    if (job->kv_write.piece.n) {
        state_put_reply(protocol, session, session->pending.requester, session->pending.request_msg->correlation_id,
                        job->kv_write.piece.held);
        return;
    }
    session->length = job->position + job->n_tokens;
    kv_put_reply(protocol, session->pending.requester, session->pending.request_msg->correlation_id, session->id,
                 session->length);
}

/* -- RESUME -------------------------------------------------------------------------------------------------------- */

static sn_status resume_check(sn_protocol *protocol, const sn_event *event, sn_session **out, sn_outgoing_target *next,
                              sn_err *err) {
    const sn_msg_resume *resume = &event->msg->resume;
    sn_status status = sn_protocol_owned_session(protocol, event, resume->session, out, err);
    if (status) return status;
    if ((*out)->pending.job) return sn_fail(err, SN_RETRY, "the session is busy: wait a moment");
    const sn_last_reply *newest = &(*out)->last_reply; /* not computed: of a RESUME, which may come twice */
    if (resume->step < newest->step || (resume->step == newest->step && newest->computed))
        return sn_fail(err, SN_REBUILD, "this resume comes too late: step %llu was done after it",
                       (unsigned long long)newest->step);
    if (resume->position > (uint64_t)(*out)->max_tokens)
        return sn_fail(err, SN_REFUSED, "position %llu exceeds the session's limit of %d tokens",
                       (unsigned long long)resume->position, (*out)->max_tokens);
    *next = (*out)->next;
    return resume->n_next ? sn_protocol_read_target(protocol, resume->next, next, err) : SN_OK;
}

void sn_protocol_on_resume(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    sn_outgoing_target next;
    const sn_msg_resume *request = &event->msg->resume;
    if (resume_check(protocol, event, &session, &next, &err)) {
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
        return;
    }
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_RESUME_REPLY, event->msg->correlation_id);
    if (!msg) return;
    session->migration.resumed = true;
    session->next = next;
    session->last_reply.step = request->step;
    sn_shared_buffer_unref(session->last_reply.output); /* another step may have its number from now on */
    session->last_reply.output = NULL;
    session->last_reply.computed = false;
    memcpy(session->predecessor, request->predecessor, SN_KEY_SIZE);
    session->used_us = now_us;
    int length = request->position < (uint64_t)session->length ? (int)request->position : session->length;
    memcpy(msg->resume_reply.session, session->id, SN_SESSION_ID_SIZE);
    msg->resume_reply.length = (uint64_t)length;
    memcpy(msg->resume_reply.timeline, session->timeline[length].bytes, SN_HASH_SIZE);
    sn_protocol_send(protocol, event->peer, &msg);
}

/* -- KV_GET, and the reads of KV migrations ------------------------------------------------------------------------ */

enum { GETS_MAX = 2 }; /* KV_GETs of a session in the engine: an honest client waits for each, and repeats one */

static sn_job *kv_read_submit(sn_protocol *protocol, sn_session *session, const sn_job *what) {
    sn_err err;
    sn_job *job = NULL;
    size_t row = sn_kv_transfer_row_floats(protocol->hp, what->first, what->end),
           floats = what->kv_read.piece.n ? what->kv_read.piece.n : (size_t)what->n_tokens * row;
    sn_status status = sn_calloc(&job, 1, sizeof *job, &err);
    if (!status) *job = *what;
    if (!status) status = sn_shared_buffer_new(floats * sizeof(float), &job->output, &err);
    if (status) {
        sn_job_free(&job);
        return NULL;
    }
    job->kind = SN_JOB_KV_READ;
    job->session = session;
    job->kv = &session->kv;
    memcpy(&job->client, session->owner, sizeof job->client);
    if (!protocol->setup.submit(protocol->setup.ctx, job)) {
        sn_job_free(&job);
        return NULL;
    }
    protocol->jobs++;
    protocol->kv_reads++;
    session->had_job = true;
    session->migration.reads++;
    return job;
}

/* The engine's queue has space for one step and one read per session. A client has no more reads there than places are
 * left, so that others find one. */
static bool there_is_place_to_read(const sn_protocol *protocol, const sn_session *session) {
    size_t own = 0;
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        const sn_session *other = sn_sessions_at(protocol->sessions, i);
        if (!memcmp(other->owner, session->owner, SN_KEY_SIZE)) own += other->migration.reads;
    }
    return own + protocol->kv_reads < protocol->setup.sessions_max;
}

sn_job *sn_protocol_kv_read(sn_protocol *protocol, sn_session *session, const sn_job *what, bool paid, int64_t now_us,
                            sn_err *err) {
    sn_job *job = NULL;
    bool room = there_is_place_to_read(protocol, session);
    if (room && !paid && sn_quota_step(protocol->quota, session->owner, now_us, err)) return NULL;
    if (room) job = kv_read_submit(protocol, session, what);
    if (!job) (void)sn_fail(err, SN_RETRY, "this node is too busy to read KV pages: try again later");
    return job;
}

sn_msg *sn_protocol_kv_message(sn_protocol *protocol, sn_msg_kind kind, uint64_t correlation_id,
                               const sn_session *session, sn_job *job) {
    sn_err err;
    sn_msg *msg = sn_protocol_new_msg(kind, correlation_id);
    if (!msg) return NULL;
    sn_msg_kv_put *put = &msg->kv_put; /* a KV_GET_REPLY has the same fields */
    static_assert(sizeof(sn_msg_kv_put) == sizeof(sn_msg_kv_get_reply), "both carry KV pages");
    size_t n = (size_t)job->n_tokens;
    if (sn_list_new(n, SN_KV_TRANSFER_TOKENS_MAX, sizeof *put->token_timelines, &put->token_timelines, &err)) {
        sn_msg_free(&msg);
        return NULL;
    }
    put->n_token_timelines = n;
    put->position = (uint64_t)job->position;
    memcpy(put->session, session->id, SN_SESSION_ID_SIZE);
    memcpy(put->origin, session->timeline[0].bytes, SN_KEY_SIZE);
    memcpy(put->timeline, session->timeline[job->position].bytes, SN_KEY_SIZE);
    memcpy(put->tensor_hash, job->kv_read.hash.bytes, SN_HASH_SIZE);
    for (size_t i = 0; i < n; i++)
        memcpy(put->token_timelines[i].timeline, session->timeline[(size_t)job->position + i + 1].bytes, SN_KEY_SIZE);
    size_t row = sn_kv_transfer_row_floats(protocol->hp, job->first, job->end);
    msg->tensor =
        (sn_wire_tensor){.dtype = SN_F32, .data = sn_shared_buffer_data(job->output), .bytes = n * row * sizeof(float)};
    msg->tensor.rank = sn_kv_tensor_shape(protocol->hp, job->first, job->end, n, msg->tensor.shape);
    msg->owner = sn_shared_buffer_ref(job->output);
    msg->release = sn_shared_buffer_unref;
    return msg;
}

sn_msg *sn_protocol_state_message(uint64_t correlation_id, const sn_session *session, sn_job *job) {
    const sn_state_piece *piece = &job->kv_read.piece;
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_STATE_PUT, correlation_id);
    if (!msg) return NULL;
    sn_msg_state_put *put = &msg->state_put;
    put->position = (uint64_t)piece->position;
    put->offset = piece->offset;
    memcpy(put->origin, session->timeline[0].bytes, SN_KEY_SIZE);
    memcpy(put->timeline, session->timeline[piece->position].bytes, SN_KEY_SIZE);
    memcpy(put->tensor_hash, job->kv_read.hash.bytes, SN_HASH_SIZE);
    msg->tensor = (sn_wire_tensor){.dtype = SN_F32,
                                   .rank = 2,
                                   .shape = {1, piece->n},
                                   .data = sn_shared_buffer_data(job->output),
                                   .bytes = piece->n * sizeof(float)};
    msg->owner = sn_shared_buffer_ref(job->output);
    msg->release = sn_shared_buffer_unref;
    return msg;
}

static sn_status kv_get_start(sn_protocol *protocol, const sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_kv_get *get = &event->msg->kv_get;
    sn_session *session = NULL;
    sn_status status = sn_protocol_owned_session(protocol, event, get->session, &session, err);
    if (status) return status;
    if (sn_n_recurrent(protocol->hp, session->first, session->end))
        return sn_fail(err, SN_REFUSED,
                       "blocks %d:%d hold recurrent states, which a client does not read: compute the tokens again",
                       session->first, session->end);
    if (!get->tokens || get->position >= (uint64_t)session->length)
        return sn_fail(err, SN_REFUSED, "%llu tokens at position %llu are not in a session of %d tokens",
                       (unsigned long long)get->tokens, (unsigned long long)get->position, session->length);
    if (session->migration.gets == GETS_MAX)
        return sn_fail(err, SN_RETRY, "%d reads of this session are in progress: wait for their replies", GETS_MAX);
    uint64_t n = (uint64_t)session->length - get->position;
    uint64_t most = (uint64_t)sn_kv_transfer_part_tokens(protocol->hp, session->first, session->end);
    if (n > get->tokens) n = get->tokens;
    if (n > most) n = most;
    const sn_job what = {
        .first = session->first,
        .end = session->end,
        .position = (int)get->position,
        .n_tokens = (int)n,
        .kv_read = {.requester = event->peer, .correlation_id = event->msg->correlation_id},
    };
    if (!sn_protocol_kv_read(protocol, session, &what, false, now_us, err)) return SN_RETRY;
    session->migration.gets++;
    return SN_OK;
}

void sn_protocol_on_kv_get(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_err err;
    if (kv_get_start(protocol, event, now_us, &err)) sn_protocol_refuse(protocol, event->peer, event->msg, &err);
}

void sn_protocol_kv_get_done(sn_protocol *protocol, sn_session *session, sn_job *job) {
    sn_msg *msg = NULL;
    if (!job->status && job->position + job->n_tokens > session->length)
        job->status = sn_fail(&job->err, SN_RETRY, "the session was rewound during the read");
    if (!job->status) {
        msg = sn_protocol_kv_message(protocol, SN_MSG_KV_GET_REPLY, job->kv_read.correlation_id, session, job);
    } else if ((msg = sn_protocol_new_msg(SN_MSG_ERROR, job->kv_read.correlation_id))) {
        msg->error.status = (uint64_t)job->status;
        msg->error.reason = (uint64_t)job->err.reason;
        memcpy(msg->error.session, session->id, SN_SESSION_ID_SIZE);
        snprintf(msg->error.text, sizeof msg->error.text, "%s", job->err.text);
    }
    if (msg) sn_protocol_send(protocol, job->kv_read.requester, &msg);
    sn_msg_free(&msg);
}
