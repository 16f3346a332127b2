#include "node/protocol/session.h"

#include "base/mem.h"
#include "net/timeline.h"

#include <stdlib.h>
#include <string.h>

struct sn_sessions {
    sn_session **table; /* the first n are in use */
    size_t n, max;
};

sn_status sn_sessions_new(size_t max, sn_sessions **out, sn_err *err) {
    sn_sessions *s = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (!status) status = sn_calloc(&s->table, max, sizeof *s->table, err);
    if (status) {
        free(s);
        return status;
    }
    s->max = max;
    *out = s;
    return SN_OK;
}

static void session_free(sn_session *session) {
    free(session->timeline);
    sn_shared_buffer_unref(session->last_reply.output);
    sn_msg_free(&session->pending.request_msg);
    while (session->pending.n_queued) sn_msg_free(&session->pending.queue[--session->pending.n_queued].msg);
    free(session);
}

void sn_sessions_free(sn_sessions **sessions) {
    if (!*sessions) return;
    for (size_t i = 0; i < (*sessions)->n; i++) {
        sn_kv_cache_free(&(*sessions)->table[i]->kv);
        session_free((*sessions)->table[i]);
    }
    free((*sessions)->table);
    free(*sessions);
    *sessions = NULL;
}

static sn_status timeline_reserve(sn_session *session, int length, sn_err *err) {
    if (length < session->timeline_capacity) return SN_OK;
    int capacity = length + length / 2 + 64;
    sn_hash *grown = realloc(session->timeline, (size_t)capacity * sizeof *grown);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory for the timeline of %d tokens", length);
    session->timeline = grown;
    session->timeline_capacity = capacity;
    return SN_OK;
}

sn_status sn_sessions_add(sn_sessions *s, const uint8_t id[SN_SESSION_ID_SIZE], const sn_hash *begin, sn_session **out,
                          sn_err *err) {
    if (s->n == s->max)
        return sn_fail_because(err, SN_RETRY, SN_REASON_NO_ROOM,
                               "this node serves %zu sessions already, its limit: try another node or later", s->max);
    sn_session *session = NULL;
    sn_status status = sn_calloc(&session, 1, sizeof *session, err);
    if (!status) status = timeline_reserve(session, 0, err);
    if (status) {
        free(session);
        return status;
    }
    memcpy(session->id, id, SN_SESSION_ID_SIZE);
    session->timeline[0] = *begin;
    s->table[s->n++] = session;
    *out = session;
    return SN_OK;
}

void sn_sessions_remove(sn_sessions *s, sn_session *session) {
    for (size_t i = 0; i < s->n; i++)
        if (s->table[i] == session) {
            s->table[i] = s->table[--s->n];
            session_free(session);
            return;
        }
}

sn_session *sn_sessions_find(sn_sessions *s, const uint8_t id[SN_SESSION_ID_SIZE]) {
    for (size_t i = 0; i < s->n; i++)
        if (!memcmp(s->table[i]->id, id, SN_SESSION_ID_SIZE)) return s->table[i];
    return NULL;
}

size_t sn_sessions_count(const sn_sessions *sessions) { return sessions->n; }
sn_session *sn_sessions_at(sn_sessions *sessions, size_t i) { return i < sessions->n ? sessions->table[i] : NULL; }

sn_status sn_session_hash_rows(sn_session *session, int position, int n, size_t n_embd, const float *rows,
                               sn_hasher *hasher, sn_err *err) {
    sn_status status = timeline_reserve(session, position + n, err);
    for (int i = 0; i < n && !status; i++) {
        sn_hash *at = &session->timeline[position + i];
        at[1] = sn_timeline_next(hasher, at, rows + (size_t)i * n_embd, n_embd);
    }
    return status;
}

void sn_session_take_timeline(sn_session *session, sn_hash **timeline, int length) {
    free(session->timeline);
    session->timeline = *timeline;
    session->timeline_capacity = length + 1;
    session->length = length;
    *timeline = NULL;
}

sn_status sn_session_import_timeline(sn_session *session, int position, const sn_token_timeline *token_timelines,
                                     size_t n, const uint8_t origin[SN_KEY_SIZE], sn_err *err) {
    sn_status status = timeline_reserve(session, position + (int)n, err);
    if (status) return status;
    const sn_hash *begin = &session->timeline[0];
    bool same = !memcmp(origin, begin->bytes, SN_HASH_SIZE);
    for (size_t i = 0; i < n; i++) {
        sn_hash *at = &session->timeline[(size_t)position + i + 1];
        if (same)
            memcpy(at->bytes, token_timelines[i].timeline, SN_HASH_SIZE);
        else
            *at = sn_timeline_graft(begin, token_timelines[i].timeline);
    }
    return SN_OK;
}
