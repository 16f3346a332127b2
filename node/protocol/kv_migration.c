/* KV migration (KV_SEND): copying the KV pages of a session to a session at another node, part by part while steps go
 * on here, and keeping that copy up to date. It serves drains (the client then resumes at the other node) and KV
 * replicas (the client resumes there if this node dies; --kv-replica).
 *
 * The owner chooses the target: it has opened a session there that names this node as its kv_source. A session can have
 * several migrations, in a list. One part of each is in flight at a time: read by the engine (migration->job), sent
 * (migration->sent_end), acknowledged. When the target acknowledges only a part of it, or nothing in time, the
 * copy is repeated from the last acknowledged token. When the session is rewound while a part is in flight, the part is
 * invalid from the new length on (migration->valid_end), and the copy continues from there.
 *
 * Of blocks with recurrent states the rows that entered them travel with the KV pages, and now and then the newest
 * snapshot, in pieces (STATE_PUT): when the copy has every token that the session had when KV_SEND came, and later when
 * a multiple of SN_KV_SNAPSHOT_TOKENS was passed. Pieces and tokens take turns. Where the session goes on, what lies
 * behind the snapshot is computed from the rows.
 *
 * KV_SEND is answered when the copy has every token that the session had when it came, and then little is left: a
 * client that decodes without a pause is always ahead of its copy, so what it added meanwhile is copied in further
 * rounds, as long as each is at most half of the one before, or until it fits into one part. The owner then pauses and
 * asks again for the rest. Afterwards the copy follows the session without replies until the session ends. */
#include "node/protocol/protocol_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "node/engine/kv_transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIGRATIONS_MAX = 8, REPLY_WAIT_US = 2000000, ATTEMPTS_MAX = 5, RETRY_US = 20000, PUT_OFF_US_MAX = 10000000 };

typedef struct sn_kv_migration {
    struct sn_kv_migration *next;
    sn_session *session;
    sn_outgoing_target node;            /* that gets the KV pages */
    uint8_t target[SN_SESSION_ID_SIZE]; /* the session there */
    int first, end;                     /* blocks */
    bool recurrent;                     /* some of them are */
    int begun_at;                       /* tokens that the session had when the copy began */
    int acked;                          /* tokens of the present timeline that the target has */
    int valid_end;      /* the part in flight is invalid from here on, because the session was rewound */
    sn_job *job;        /* reads the part in flight; NULL: none does */
    int sent_end;       /* the part was sent and ends at this position; 0: none is */
    size_t sent_floats; /* 0: it is of KV pages; else of a snapshot, of which the target then has so many floats */
    struct {
        bool due;      /* the target may lack a newer snapshot */
        bool turn;     /* the next part is a piece of it */
        int has;       /* the position of the newest that the target has; 0: none */
        int position;  /* of the one that is being copied, */
        size_t floats; /* of which the target has so many; 0: it is chosen when its first piece is read */
    } state;
    uint64_t correlation_id; /* of the KV_PUT that carried it */
    int64_t reply_due_us;    /* when to send it, or to read the next part, again */
    int attempts;            /* parts in a row that the target did not acknowledge in full */
    bool reply_wanted;       /* the owner waits for a KV_SEND_REPLY */
    int round_end, round;    /* for it: the length that the copy is to reach next, and how many tokens that takes */
    uint64_t reply_correlation_id;
    bool completed; /* a KV_SEND_REPLY was sent: it counts as a migrated session */
} sn_kv_migration;

static void migration_drop(sn_kv_migration *migration) {
    if (migration->job) migration->job->kv_read.migration = NULL;
    sn_kv_migration **at = &migration->session->migration.outgoing;
    while (*at != migration) at = &(*at)->next;
    *at = migration->next;
    free(migration);
}

void sn_kv_migration_free(sn_session *session, bool engine_is_gone) {
    while (session->migration.outgoing) {
        if (engine_is_gone) session->migration.outgoing->job = NULL;
        migration_drop(session->migration.outgoing);
    }
}

static void migration_fail(sn_protocol *protocol, sn_kv_migration *migration, const sn_err *why) {
    sn_log_rated(SN_LOG_WARN, "KV transfer failed", "request_id=%s tokens=%d text=%s", migration->session->request_id,
                 migration->acked, why->text);
    if (migration->reply_wanted) {
        sn_msg *msg = sn_protocol_new_msg(SN_MSG_ERROR, migration->reply_correlation_id);
        if (msg) {
            msg->error.status = SN_RETRY;
            memcpy(msg->error.session, migration->session->id, SN_SESSION_ID_SIZE);
            snprintf(msg->error.text, sizeof msg->error.text, "%s", why->text);
            sn_protocol_send(protocol, migration->session->owner_peer, &msg);
        }
    }
    migration_drop(migration);
}

static void migration_reply(sn_protocol *protocol, sn_kv_migration *migration) {
    const sn_session *session = migration->session;
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_KV_SEND_REPLY, migration->reply_correlation_id);
    if (!msg) return;
    memcpy(msg->kv_send_reply.session, session->id, SN_SESSION_ID_SIZE);
    msg->kv_send_reply.length = (uint64_t)migration->acked;
    memcpy(msg->kv_send_reply.timeline, session->timeline[migration->acked].bytes, SN_KEY_SIZE);
    sn_protocol_send(protocol, session->owner_peer, &msg);
    if (!migration->completed) protocol->counters.sessions_migrated++;
    migration->completed = true;
    migration->reply_wanted = false;
}

static void migration_begin_round(sn_kv_migration *migration) {
    migration->round_end = migration->session->length;
    migration->round = migration->round_end - migration->acked;
}

/* Whether the owner may be told to pause for the rest. Otherwise what is left becomes another round. The rest is no
 * snapshot: computing the rows behind the one before takes less time than copying it. */
static bool migration_has_caught_up(sn_kv_migration *migration, int part_tokens) {
    int left = migration->session->length - migration->acked;
    if (migration->acked < migration->round_end) return false;
    if (migration->state.due && !migration->completed) return false;
    if (left <= part_tokens || left > migration->round / 2) return true;
    migration_begin_round(migration);
    return false;
}

/* The target has the tokens up to this position of the present timeline. */
static void migration_acknowledge(sn_kv_migration *migration, int position) {
    const bool passed = position / SN_KV_SNAPSHOT_TOKENS > migration->acked / SN_KV_SNAPSHOT_TOKENS;
    if (passed && migration->recurrent) migration->state.due = true;
    migration->acked = position;
}

/* Snapshots behind this position are not those of the timeline any more. */
static void migration_forget_states(sn_kv_migration *migration, int position) {
    if (migration->state.position > position) {
        migration->state.position = 0;
        migration->state.floats = 0;
    }
    if (migration->state.has > position) {
        migration->state.has = 0;
        migration->state.due = true;
    }
}

/* Whether the step that made the tokens has paid for this part: it is the first copy of what the newest step added
 * since the copy began. What was there before, and what a target wants again, count as steps of their own. */
static bool part_is_paid(const sn_kv_migration *migration, const sn_job *what) {
    const sn_last_reply *newest = &migration->session->last_reply;
    return !what->kv_read.piece.n && !migration->attempts && newest->computed && what->position >= newest->position &&
           what->position >= migration->begun_at;
}

/* Reads the next part, and tells the owner that the copy has caught up. */
static void migration_continue(sn_protocol *protocol, sn_kv_migration *migration, int64_t now_us) {
    sn_session *session = migration->session;
    const sn_hparams *hp = protocol->hp;
    sn_err err = {0};
    if (migration->job || migration->sent_end || session->closing) return;
    int n = session->length - migration->acked, most = sn_kv_transfer_part_tokens(hp, migration->first, migration->end);
    if (migration->reply_wanted && migration_has_caught_up(migration, most)) migration_reply(protocol, migration);
    bool state = migration->state.due && migration->acked >= migration->round_end && (!n || migration->state.turn);
    if (!n && !state) return;
    sn_job what = {.first = migration->first, .end = migration->end, .kv_read.migration = migration};
    if (state) {
        what.kv_read.piece = (sn_state_piece){migration->state.position, migration->state.floats,
                                              sn_kv_transfer_piece_floats(hp, what.first, what.end), 0};
        what.kv_read.newer_than = migration->state.has;
    } else {
        what.position = migration->acked;
        what.n_tokens = n < most ? n : most;
    }
    migration->state.turn = !state;
    migration->valid_end = session->length;
    bool paid = part_is_paid(migration, &what);
    migration->job = sn_protocol_kv_read(protocol, session, &what, paid, now_us, &err);
    int64_t wait_us = (int64_t)err.retry_after_ms * 1000; /* of the owner's quota; 0: the engine was full */
    migration->reply_due_us = now_us + (migration->job ? REPLY_WAIT_US : wait_us ? wait_us : RETRY_US);
}

static void migration_send_part(sn_protocol *protocol, sn_kv_migration *migration, sn_job *job, int64_t now_us) {
    sn_err err;
    int end = job->position + job->n_tokens;
    bool rewound = migration->valid_end < end; /* also before it was read: then it may have failed */
    migration->job = NULL;
    if (job->status && !rewound) {
        migration_fail(protocol, migration, &job->err);
        return;
    }
    const sn_state_piece *piece = &job->kv_read.piece;
    if (piece->n && (!piece->position || piece->position > migration->acked)) migration->state.due = false;
    /* A rewind has set acked and state to where it was, or before. */
    if (rewound || (piece->n && !migration->state.due)) {
        migration_continue(protocol, migration, now_us);
        return;
    }
    sn_msg *msg = piece->n ? sn_protocol_state_message(++protocol->last_correlation_id, migration->session, job)
                           : sn_protocol_kv_message(protocol, SN_MSG_KV_PUT, ++protocol->last_correlation_id,
                                                    migration->session, job);
    if (!msg) return;
    memcpy(piece->n ? msg->state_put.session : msg->kv_put.session, migration->target, SN_SESSION_ID_SIZE);
    migration->correlation_id = msg->correlation_id;
    migration->sent_end = end;
    migration->sent_floats = piece->n ? piece->offset + piece->n : 0;
    if (piece->n) migration->state.position = piece->position;
    migration->reply_due_us = now_us + REPLY_WAIT_US;
    sn_peer peer;
    sn_status status = sn_protocol_dial(protocol, migration->session->owner, &migration->node, now_us, &peer, &err);
    if (!status) status = sn_transport_send(protocol->setup.transport, peer, &msg, &err);
    if (status)
        sn_log(SN_LOG_DEBUG, "KV chunk not sent", "request_id=%s text=%s", migration->session->request_id,
               err.text); /* the missing reply makes the tick send it again */
    sn_msg_free(&msg);
}

void sn_protocol_kv_read_done(sn_protocol *protocol, sn_session *session, sn_job *job, int64_t now_us) {
    session->migration.reads--;
    session->migration.gets -= job->kv_read.requester != 0;
    protocol->kv_reads--;
    if (job->kv_read.migration)
        migration_send_part(protocol, job->kv_read.migration, job, now_us);
    else if (job->kv_read.requester && !session->closing)
        sn_protocol_kv_get_done(protocol, session, job);
}

/* -- KV_SEND, replies and failures --------------------------------------------------------------------------------- */

static sn_status migration_start(sn_protocol *protocol, const sn_event *event, int64_t now_us, sn_kv_migration **out,
                                 sn_err *err) {
    const sn_msg_kv_send *send = &event->msg->kv_send;
    sn_session *session = NULL;
    sn_status status = sn_protocol_owned_session(protocol, event, send->session, &session, err);
    if (status) return status;
    int n = 0;
    for (*out = session->migration.outgoing; *out; *out = (*out)->next, n++)
        if (!memcmp((*out)->target, send->target, SN_SESSION_ID_SIZE)) return SN_OK;
    if (send->first_block < (uint64_t)session->first || send->first_block >= send->end_block ||
        send->end_block > (uint64_t)session->end)
        return sn_fail(err, SN_REFUSED, "blocks %llu:%llu are not in this session: it has %d:%d",
                       (unsigned long long)send->first_block, (unsigned long long)send->end_block, session->first,
                       session->end);
    bool recurrent = sn_n_recurrent(protocol->hp, (int)send->first_block, (int)send->end_block);
    if (protocol->hp->conv_taps && (!recurrent || send->first_block != (uint64_t)session->first))
        return sn_fail(err, SN_REFUSED,
                       "of this model a session's blocks are copied from its first one on, and with a recurrent state "
                       "among them: replay the others where they go on");
    if (send->position > (uint64_t)session->length)
        return sn_fail(err, SN_REFUSED, "position %llu lies beyond the session's end at %d",
                       (unsigned long long)send->position, session->length);
    if (n >= MIGRATIONS_MAX)
        return sn_fail(err, SN_RETRY, "the session is copied to %d other sessions already: close one of them first", n);
    sn_kv_migration *migration = NULL;
    sn_peer peer;
    if (!send->n_node) return sn_fail(err, SN_REFUSED, "a kv_send needs the announcement of the node that gets the KV");
    status = sn_calloc(&migration, 1, sizeof *migration, err);
    if (!status) status = sn_protocol_read_target(protocol, send->node, &migration->node, err);
    if (!status) status = sn_protocol_dial(protocol, session->owner, &migration->node, now_us, &peer, err);
    if (status) {
        free(migration);
        return status;
    }
    migration->session = session;
    migration->first = (int)send->first_block;
    migration->end = (int)send->end_block;
    migration->recurrent = recurrent;
    migration->state.due = recurrent && session->length > 0;
    migration->begun_at = session->length;
    migration->acked = (int)send->position;
    memcpy(migration->target, send->target, SN_SESSION_ID_SIZE);
    migration->next = session->migration.outgoing;
    session->migration.outgoing = *out = migration;
    return SN_OK;
}

void sn_kv_migration_on_send(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_err err;
    sn_kv_migration *migration = NULL;
    if (migration_start(protocol, event, now_us, &migration, &err)) {
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
        return;
    }
    migration->session->used_us = now_us;
    migration->reply_wanted = true;
    migration->reply_correlation_id = event->msg->correlation_id;
    migration_begin_round(migration);
    migration_continue(protocol, migration, now_us);
}

static sn_kv_migration *migration_find(sn_protocol *protocol, const sn_event *event, const uint8_t *target) {
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++)
        for (sn_kv_migration *migration = sn_sessions_at(protocol->sessions, i)->migration.outgoing; migration;
             migration = migration->next)
            if (!memcmp(migration->target, target, SN_SESSION_ID_SIZE) &&
                !memcmp(migration->node.curve_key, event->key, SN_KEY_SIZE))
                return migration;
    return NULL;
}

static void migration_retry(sn_protocol *protocol, sn_kv_migration *migration, int64_t now_us) {
    sn_err err;
    if (++migration->attempts > ATTEMPTS_MAX) {
        (void)sn_fail(&err, SN_RETRY, "the other node does not accept the KV pages: it has %d tokens",
                      migration->acked);
        migration_fail(protocol, migration, &err);
        return;
    }
    migration->sent_end = 0;
    migration_continue(protocol, migration, now_us);
}

/* The target has these tokens now. False: not all of the part. */
static bool migration_took_tokens(sn_kv_migration *migration, uint64_t tokens) {
    int length = tokens < (uint64_t)migration->sent_end ? (int)tokens : migration->sent_end;
    bool all = length == migration->sent_end;
    if (length > migration->valid_end) length = migration->valid_end;
    if (!all) migration_forget_states(migration, length);
    migration_acknowledge(migration, length);
    return all;
}

/* The target has so many floats of the snapshot now. False: not those of the piece, or not the tokens before it. */
static bool migration_took_piece(sn_kv_migration *migration, uint64_t floats, uint64_t tokens, size_t all) {
    if (tokens < (uint64_t)migration->acked) { /* it lost tokens, and states with them */
        migration->acked = (int)tokens;
        migration_forget_states(migration, migration->acked);
        return false;
    }
    if (migration->valid_end < migration->sent_end) return true; /* rewound meanwhile: another one is copied */
    bool taken = floats == migration->sent_floats;
    if (taken && floats == all) migration->state.has = migration->state.position;
    if (!taken || floats == all) migration->state.position = 0;
    migration->state.floats = migration->state.position ? migration->sent_floats : 0;
    return taken;
}

void sn_kv_migration_on_put_reply(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    const sn_msg_kv_put_reply *put = &event->msg->kv_put_reply;
    const sn_msg_state_put_reply *state = &event->msg->state_put_reply;
    bool piece = event->msg->kind == SN_MSG_STATE_PUT_REPLY;
    sn_kv_migration *migration = migration_find(protocol, event, piece ? state->session : put->session);
    if (!migration || !migration->sent_end || event->msg->correlation_id != migration->correlation_id ||
        piece != (migration->sent_floats > 0))
        return; /* late, or a duplicate */
    bool taken = piece ? migration_took_piece(migration, state->floats, state->length,
                                              sn_span_state_floats(protocol->hp, migration->first, migration->end))
                       : migration_took_tokens(migration, put->length);
    if (!taken) {
        migration_retry(protocol, migration, now_us);
        return;
    }
    migration->attempts = 0;
    migration->sent_end = 0;
    migration_continue(protocol, migration, now_us);
}

/* For how long a part that was refused is not sent again. */
static int64_t put_off_us(uint64_t wait_ms) {
    int64_t us = wait_ms < PUT_OFF_US_MAX / 1000 ? (int64_t)wait_ms * 1000 : PUT_OFF_US_MAX;
    return us > REPLY_WAIT_US / 4 ? us : REPLY_WAIT_US / 4;
}

bool sn_kv_migration_on_error(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_err why;
    sn_kv_migration *migration = migration_find(protocol, event, event->msg->error.session);
    if (!migration) return false;
    if (event->msg->error.status == SN_RETRY && migration->sent_end &&
        event->msg->correlation_id == migration->correlation_id) {
        /* No KV pages free there, the quota of the owner used up, or damaged in transit: the tick tries again. */
        migration->reply_due_us = now_us + put_off_us(event->msg->error.wait_ms);
        return true;
    }
    if (event->msg->error.status == SN_RETRY) return true;
    (void)sn_fail(&why, SN_RETRY, "%s", event->msg->error.text);
    migration_fail(protocol, migration, &why);
    return true;
}

void sn_kv_migration_rewind(sn_session *session, int position) {
    for (sn_kv_migration *migration = session->migration.outgoing; migration; migration = migration->next) {
        migration_forget_states(migration, position);
        if (migration->acked > position) migration->acked = position;
        if (migration->valid_end > position) migration->valid_end = position;
        if (migration->round_end > position) migration->round_end = position;
    }
}

void sn_kv_migration_continue(sn_protocol *protocol, sn_session *session, int64_t now_us) {
    for (sn_kv_migration *migration = session->migration.outgoing, *next; migration; migration = next) {
        next = migration->next;
        migration_continue(protocol, migration, now_us);
    }
}

int64_t sn_kv_migration_tick(sn_protocol *protocol, int64_t now_us) {
    int64_t soonest = INT64_MAX;
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++)
        for (sn_kv_migration *migration = sn_sessions_at(protocol->sessions, i)->migration.outgoing, *next; migration;
             migration = next) {
            next = migration->next;
            bool behind = migration->acked < migration->session->length || migration->state.due;
            if (migration->job || (!migration->sent_end && !behind)) continue;
            if (now_us < migration->reply_due_us) {
                if (migration->reply_due_us < soonest) soonest = migration->reply_due_us;
                continue;
            }
            if (now_us + RETRY_US < soonest) soonest = now_us + RETRY_US;
            if (migration->sent_end)
                migration_retry(protocol, migration, now_us);
            else
                migration_continue(protocol, migration, now_us);
        }
    return soonest;
}
