/* Sessions that end without their owner's request, and training whose reply can reach no client: a batch is dropped
 * when the connection that brought it has ended, because its reply could go nowhere else.
 *
 * A session is closed after session_timeout_us without a message of its owner, and SN_OWNER_GONE_US after the
 * connection of its owner has ended, unless a message of the same CURVE key arrives on another connection before. A
 * node that drains does not wait for owners that are gone. When the table of sessions is full, a session that was
 * opened and never used makes room for a newcomer: the oldest such one, but not before SN_UNUSED_SESSION_US, or at once
 * one of another client that has HOARD_MIN of them, and more than the newcomer: an honest client uses what it opens. A
 * session that names a source of KV pages has its SN_UNUSED_SESSION_US always: a node that drains hands over all
 * sessions of a client together, and their first pages are on the way. (Not longer: every client may name a source.) */
#include "node/protocol/protocol_private.h"

#include "base/log.h"

#include <string.h>

enum { HOARD_MIN = 3, HOARD_LOOKS = 16 };

/* -- owners that are gone ------------------------------------------------------------------------------------------ */

void sn_protocol_peer_gone(sn_protocol *protocol, sn_peer peer, int64_t now_us) {
    sn_protocol_sharing_gone(protocol, peer);
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        if (session->owner_peer != peer || session->owner_gone_us) continue;
        session->owner_gone_us = now_us > 0 ? now_us : 1;
        protocol->orphans++;
    }
    sn_protocol_cancel_training(protocol, peer);
    sn_protocol_cancel_experts(protocol, peer);
}

void sn_protocol_owner_is_here(sn_protocol *protocol, const sn_event *event) {
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        if (!session->owner_gone_us || memcmp(session->owner, event->key, SN_KEY_SIZE)) continue;
        session->owner_gone_us = 0;
        session->owner_peer = event->peer;
        protocol->orphans--;
    }
}

int64_t sn_protocol_close_orphans(sn_protocol *protocol, int64_t now_us) {
    int64_t wait_us = protocol->draining ? 0 : SN_OWNER_GONE_US, soonest = INT64_MAX;
    for (size_t i = 0; protocol->orphans && i < sn_sessions_count(protocol->sessions); i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        if (!session->owner_gone_us || session->closing) continue;
        int64_t due_us = session->owner_gone_us + wait_us;
        if (now_us < due_us) {
            if (due_us < soonest) soonest = due_us;
            continue;
        }
        sn_protocol_log_session("session without its client", session);
        sn_protocol_close_session(protocol, session);
    }
    return soonest;
}

/* -- idle sessions, and sessions that were never used -------------------------------------------------------------- */

/* They are large, and who has not asked for one again within that time has it. */
void sn_protocol_forget_replies(sn_protocol *protocol, int64_t now_us) {
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        sn_last_reply *newest = &sn_sessions_at(protocol->sessions, i)->last_reply;
        if (now_us - newest->done_us < SN_REPLY_KEPT_US) continue;
        sn_shared_buffer_unref(newest->output);
        newest->output = NULL;
    }
}

void sn_protocol_close_idle_sessions(sn_protocol *protocol, int64_t now_us) {
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        bool idle = now_us - session->used_us > protocol->setup.session_timeout_us && !session->pending.job;
        if (idle) sn_protocol_log_session("session expired", session);
        if ((idle || session->closing) && !session->pending.job) sn_protocol_close_session(protocol, session);
    }
}

/* The engine has never heard of it. */
static bool is_unused(const sn_session *session) {
    return !session->had_job && !session->migration.resumed && !session->closing;
}

/* KV pages are on their way into it. */
static bool is_target(const sn_session *session) {
    static const uint8_t none[SN_KEY_SIZE];
    return memcmp(session->migration.source, none, sizeof none) != 0;
}

/* How many unused sessions the client has. */
static size_t unused_of(const sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE]) {
    size_t n = 0;
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        const sn_session *session = sn_sessions_at(protocol->sessions, i);
        n += is_unused(session) && !memcmp(session->owner, client, SN_KEY_SIZE);
    }
    return n;
}

/* An unused session of another client that hoards them, and would still have as many as the newcomer then has; NULL:
 * none was found. Two that hoard do not throw each other out. Clients are counted by the first unused sessions of the
 * table only, so that a large one takes no long time. */
static sn_session *hoarded_session(sn_protocol *protocol, const uint8_t newcomer[SN_KEY_SIZE]) {
    size_t own = unused_of(protocol, newcomer);
    for (size_t i = 0, looks = 0; i < sn_sessions_count(protocol->sessions) && looks < HOARD_LOOKS; i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        if (!is_unused(session) || is_target(session) || !memcmp(session->owner, newcomer, SN_KEY_SIZE)) continue;
        looks++;
        size_t n = unused_of(protocol, session->owner);
        if (n >= HOARD_MIN && n > own + 1) return session;
    }
    return NULL;
}

void sn_protocol_make_room(sn_protocol *protocol, const uint8_t newcomer[SN_KEY_SIZE], int64_t now_us) {
    sn_session *oldest = NULL;
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        if (!is_unused(session) || now_us - session->opened_us < SN_UNUSED_SESSION_US) continue;
        if (!oldest || session->opened_us < oldest->opened_us) oldest = session;
    }
    if (!oldest) oldest = hoarded_session(protocol, newcomer);
    if (!oldest) return;
    sn_protocol_log_session("unused session makes room", oldest);
    sn_kv_migration_free(oldest, false);
    sn_protocol_session_closed(protocol, oldest); /* at once: is_unused */
}
