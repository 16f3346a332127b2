/* ATTACH: the session goes on behind a prefix whose KV pages are in the prefix cache, found by timeline hashes that the
 * client knows from an earlier session. Pages are those of its own key, or of all where the node shares them. What they
 * were computed from was hashed by this node itself when it computed them, so a session with attached pages is like one
 * whose steps were all done here: its pages may be shared, and its receipts commit to the same timeline. */
#include "node/protocol/protocol_private.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

sn_prefix_cache_scope sn_protocol_prefix_scope(const sn_protocol *protocol, const sn_session *session) {
    sn_prefix_cache_scope scope = {{0}};
    if (!protocol->setup.prefix_cache_shared) memcpy(scope.bytes, session->owner, SN_KEY_SIZE);
    return scope;
}

static sn_status attach_check(sn_protocol *protocol, const sn_event *event, sn_session **out, sn_err *err) {
    const sn_msg_attach *attach = &event->msg->attach;
    sn_status status = sn_protocol_owned_session(protocol, event, attach->session, out, err);
    if (status) return status;
    const sn_session *session = *out;
    if (protocol->leaving) return sn_fail(err, SN_RETRY, "this node is leaving: use another one");
    if (session->pending.job) return sn_fail(err, SN_RETRY, "the session is busy: wait a moment");
    if (session->migration.outgoing || session->migration.reads)
        return sn_fail(err, SN_RETRY, "this session's KV cache is being copied: send its rows");
    if (session->migration.imported)
        return sn_fail(err, SN_REFUSED, "this session holds KV pages from elsewhere: open another one");
    if (!attach->n_points) return sn_fail(err, SN_REFUSED, "give at least one point of the timeline");
    for (size_t i = 0; i < attach->n_points; i++) {
        const uint64_t at = attach->points[i].position;
        if (at % SN_KV_PAGE_TOKENS || (i && at >= attach->points[i - 1].position))
            return sn_fail(err, SN_REFUSED, "points are multiples of %d tokens, from later to earlier positions",
                           SN_KV_PAGE_TOKENS);
    }
    if (attach->points[0].position > (uint64_t)session->max_tokens)
        return sn_fail(err, SN_REFUSED, "position %llu exceeds the session's limit of %d tokens",
                       (unsigned long long)attach->points[0].position, session->max_tokens);
    return SN_OK;
}

static sn_status attach_start(sn_protocol *protocol, sn_session *session, sn_event *event, int64_t now_us,
                              sn_err *err) {
    const sn_msg_attach *attach = &event->msg->attach;
    sn_job *job = NULL;
    sn_status status = sn_calloc(&job, 1, sizeof *job, err);
    if (status) return status;
    job->kind = SN_JOB_ATTACH;
    job->session = session;
    job->kv = &session->kv;
    memcpy(&job->client, session->owner, sizeof job->client);
    job->arrived_us = event->arrived_us;
    job->attach.begin = session->timeline[0];
    job->attach.prefix_scope = sn_protocol_prefix_scope(protocol, session);
    status = sn_calloc(&job->attach.points, attach->n_points, sizeof *job->attach.points, err);
    for (; !status && job->attach.n_points < attach->n_points; job->attach.n_points++) {
        const sn_attach_point *from = &attach->points[job->attach.n_points];
        sn_prefix_cache_point *to = &job->attach.points[job->attach.n_points];
        to->position = (int)from->position;
        memcpy(to->timeline.bytes, from->timeline, SN_HASH_SIZE);
    }
    if (!status && !protocol->setup.submit(protocol->setup.ctx, job))
        status = sn_fail(err, SN_RETRY, "this node's queue is full: try another node or later");
    if (status) {
        sn_job_free(&job);
        return status;
    }
    protocol->jobs++;
    session->had_job = true;
    session->pending.job = job;
    session->pending.requester = event->peer;
    session->pending.request_msg = event->msg;
    session->used_us = now_us;
    event->msg = NULL;
    return SN_OK;
}

void sn_protocol_on_attach(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    sn_err err;
    sn_session *session = NULL;
    sn_status status = attach_check(protocol, event, &session, &err);
    if (!status)
        status = sn_protocol_quota_kv_put(protocol, session, (int)event->msg->attach.points[0].position, now_us, &err);
    if (!status) status = attach_start(protocol, session, event, now_us, &err);
    if (status) sn_protocol_refuse(protocol, event->peer, event->msg, &err);
}

void sn_protocol_attach_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us) {
    session->used_us = now_us;
    if (session->closing) return;
    if (job->status) {
        sn_protocol_refuse(protocol, session->pending.requester, session->pending.request_msg, &job->err);
        return;
    }
    if (job->n_done) sn_session_take_timeline(session, &job->attach.timeline, job->n_done);
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_ATTACH_REPLY, session->pending.request_msg->correlation_id);
    if (!msg) return;
    memcpy(msg->attach_reply.session, session->id, SN_SESSION_ID_SIZE);
    msg->attach_reply.length = (uint64_t)job->n_done;
    sn_protocol_send(protocol, session->pending.requester, &msg);
}
