/* Moves: the past of a session is copied to a session at another node, part by part beside the steps that go on, and kept up
 * to date there. For a node that leaves (the client then goes on there) and for one that may die (--kv-replica).
 *
 * One part is under way at a time: read by the engine, sent, answered. A rewind meanwhile makes it void. The owner says where
 * to; it has opened the session there and named us as the source, so that nobody gets a past that the owner did not choose. */
#include "node/core_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "node/past.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOVES_MAX = 8, ANSWER_US = 2000000, TRIES_MAX = 5, AGAIN_US = 20000 };

typedef struct sn_move {
    struct sn_move *next;
    sn_session *session;
    sn_peer to;
    uint8_t key[SN_KEY_SIZE], target[SN_SESSION_ID_SIZE]; /* that node's CURVE key, and the session there */
    int first, end;     /* blocks */
    int taken;          /* tokens of the present timeline that are there */
    int valid;          /* a rewind since the part under way was read: from here on it is void */
    sn_job *job;        /* reads the part under way */
    int part_end;       /* the part is sent and ends there; 0: none is */
    uint64_t request;   /* by which it was sent */
    int64_t answer_us;  /* when an answer is overdue */
    int tries;
    bool asked;         /* the owner waits for a KV_SENT by this request */
    uint64_t asked_request;
    bool done; /* it was answered once */
} sn_move;

static void drop(sn_move *move) {
    if (move->job) move->job->purpose = NULL;
    sn_move **at = &move->session->moves;
    while (*at != move) at = &(*at)->next;
    *at = move->next;
    free(move);
}

void sn_core_moves_free(sn_session *session, bool engine_is_gone) {
    while (session->moves) {
        if (engine_is_gone) session->moves->job = NULL;
        drop(session->moves);
    }
}

static void fail(sn_core *core, sn_move *move, const sn_err *why) {
    sn_log(SN_LOG_WARN, "a past does not reach another node", "flow=%s tokens=%d text=%s", move->session->flow, move->taken,
           why->text);
    if (move->asked) {
        sn_msg *msg = sn_core_new_msg(SN_MSG_ERROR, move->asked_request);
        if (msg) {
            msg->error.status = SN_RETRY;
            memcpy(msg->error.session, move->session->id, SN_SESSION_ID_SIZE);
            snprintf(msg->error.text, sizeof msg->error.text, "%s", why->text);
            sn_core_send(core, move->session->owner_peer, &msg);
        }
    }
    drop(move);
}

static void say_sent(sn_core *core, sn_move *move) {
    const sn_session *session = move->session;
    sn_msg *msg = sn_core_new_msg(SN_MSG_KV_SENT, move->asked_request);
    if (!msg) return;
    memcpy(msg->kv_sent.session, session->id, SN_SESSION_ID_SIZE);
    msg->kv_sent.length = (uint64_t)session->length;
    memcpy(msg->kv_sent.timeline, session->timeline[session->length].bytes, SN_KEY_SIZE);
    sn_core_send(core, session->owner_peer, &msg);
    if (!move->done) core->moved++;
    move->done = true;
    move->asked = false;
}

/* Begins the next part, or says that all is there. */
static void go_on(sn_core *core, sn_move *move, int64_t now_us) {
    sn_session *session = move->session;
    if (move->job || move->part_end || session->closing) return;
    if (move->taken >= session->length) {
        if (move->asked) say_sent(core, move);
        return;
    }
    int n = session->length - move->taken, most = sn_past_part_tokens(core->hp, move->end - move->first);
    move->valid = session->length;
    move->job = sn_core_read_past(core, session, move->first, move->end, move->taken, n < most ? n : most, move);
    move->answer_us = now_us + (move->job ? ANSWER_US : AGAIN_US); /* a full engine: the tick tries again */
}

static void part_read(sn_core *core, sn_move *move, sn_job *job, int64_t now_us) {
    sn_err err;
    int end = job->position + job->n_tokens;
    move->job = NULL;
    if (job->status) {
        fail(core, move, &job->err);
        return;
    }
    if (move->valid < end) { /* void: taken is where the rewind was, or before */
        go_on(core, move, now_us);
        return;
    }
    sn_msg *msg = sn_core_past_message(core, SN_MSG_KV_PUT, ++core->last_request, move->session, job);
    if (!msg) return;
    memcpy(msg->kv_put.session, move->target, SN_SESSION_ID_SIZE);
    move->request = msg->request;
    move->part_end = end;
    move->answer_us = now_us + ANSWER_US;
    if (sn_transport_send(core->setup.transport, move->to, &msg, &err))
        sn_log(SN_LOG_DEBUG, "a part of a past is not sent", "flow=%s text=%s", move->session->flow,
               err.text); /* silence makes it be tried again */
    sn_msg_free(&msg);
}

void sn_core_read_done(sn_core *core, sn_session *session, sn_job *job, int64_t now_us) {
    session->reads--;
    core->reads--;
    if (job->purpose) part_read(core, job->purpose, job, now_us);
    else if (job->asker && !session->closing) sn_core_get_done(core, session, job);
}

/* -- what happens to it -------------------------------------------------------------------------------------------- */

static sn_status start(sn_core *core, const sn_event *event, sn_move **out, sn_err *err) {
    const sn_msg_kv_send *send = &event->msg->kv_send;
    sn_session *session = NULL;
    sn_status status = sn_core_owned(core, event, send->session, &session, err);
    if (status) return status;
    int n = 0;
    for (*out = session->moves; *out; *out = (*out)->next, n++)
        if (!memcmp((*out)->target, send->target, SN_SESSION_ID_SIZE)) return SN_OK;
    if (send->first_block < (uint64_t)session->first || send->first_block >= send->end_block ||
        send->end_block > (uint64_t)session->end)
        return sn_fail(err, SN_REFUSED, "blocks %llu:%llu are not in this session: it has %d:%d",
                       (unsigned long long)send->first_block, (unsigned long long)send->end_block, session->first,
                       session->end);
    if (send->position > (uint64_t)session->length)
        return sn_fail(err, SN_REFUSED, "position %llu lies beyond the session's end at %d",
                       (unsigned long long)send->position, session->length);
    if (n >= MOVES_MAX)
        return sn_fail(err, SN_RETRY, "the session is copied to %d others already: close one of them first", n);
    sn_move *move = NULL;
    status = sn_calloc(&move, 1, sizeof *move, err);
    if (!status) status = sn_transport_dial(core->setup.transport, send->address, send->curve_key, &move->to, err);
    if (status) {
        free(move);
        return status;
    }
    move->session = session;
    move->first = (int)send->first_block;
    move->end = (int)send->end_block;
    move->taken = (int)send->position;
    memcpy(move->key, send->curve_key, SN_KEY_SIZE);
    memcpy(move->target, send->target, SN_SESSION_ID_SIZE);
    move->next = session->moves;
    session->moves = *out = move;
    return SN_OK;
}

void sn_core_on_send(sn_core *core, const sn_event *event, int64_t now_us) {
    sn_err err;
    sn_move *move = NULL;
    if (start(core, event, &move, &err)) {
        sn_core_refuse(core, event->peer, event->msg, &err);
        return;
    }
    move->session->used_us = now_us;
    move->asked = true;
    move->asked_request = event->msg->request;
    go_on(core, move, now_us);
}

static sn_move *find_move(sn_core *core, const sn_event *event, const uint8_t *target) {
    for (size_t i = 0; i < sn_sessions_count(core->sessions); i++)
        for (sn_move *move = sn_sessions_at(core->sessions, i)->moves; move; move = move->next)
            if (!memcmp(move->target, target, SN_SESSION_ID_SIZE) && !memcmp(move->key, event->key, SN_KEY_SIZE))
                return move;
    return NULL;
}

static void again(sn_core *core, sn_move *move, int64_t now_us) {
    sn_err err;
    if (++move->tries > TRIES_MAX) {
        (void)sn_fail(&err, SN_RETRY, "the other node does not take the past: it ends at %d there", move->taken);
        fail(core, move, &err);
        return;
    }
    move->part_end = 0;
    go_on(core, move, now_us);
}

void sn_core_on_taken(sn_core *core, const sn_event *event, int64_t now_us) {
    const sn_msg_kv_taken *taken = &event->msg->kv_taken;
    sn_move *move = find_move(core, event, taken->session);
    if (!move || !move->part_end || event->msg->request != move->request) return; /* late, or doubled */
    int length = taken->length < (uint64_t)move->part_end ? (int)taken->length : move->part_end;
    bool all = length == move->part_end;
    if (length > move->valid) length = move->valid;
    move->taken = length;
    if (!all) {
        again(core, move, now_us);
        return;
    }
    move->tries = 0;
    move->part_end = 0;
    go_on(core, move, now_us);
}

bool sn_core_move_refused(sn_core *core, const sn_event *event, int64_t now_us) {
    sn_err why;
    sn_move *move = find_move(core, event, event->msg->error.session);
    if (!move) return false;
    if (event->msg->error.status == SN_RETRY && move->part_end && event->msg->request == move->request) {
        move->answer_us = now_us + ANSWER_US / 4; /* no room now, or damaged on the way: the tick tries again */
        return true;
    }
    if (event->msg->error.status == SN_RETRY) return true;
    (void)sn_fail(&why, SN_RETRY, "%s", event->msg->error.text);
    fail(core, move, &why);
    return true;
}

void sn_core_moves_rewind(sn_session *session, int position) {
    for (sn_move *move = session->moves; move; move = move->next) {
        if (move->taken > position) move->taken = position;
        if (move->valid > position) move->valid = position;
    }
}

void sn_core_moves_go_on(sn_core *core, sn_session *session, int64_t now_us) {
    for (sn_move *move = session->moves, *next; move; move = next) {
        next = move->next;
        go_on(core, move, now_us);
    }
}

int64_t sn_core_moves_tick(sn_core *core, int64_t now_us) {
    int64_t soonest = INT64_MAX;
    for (size_t i = 0; i < sn_sessions_count(core->sessions); i++)
        for (sn_move *move = sn_sessions_at(core->sessions, i)->moves, *next; move; move = next) {
            next = move->next;
            bool behind = move->taken < move->session->length;
            if (move->job || (!move->part_end && !behind)) continue;
            if (now_us < move->answer_us) {
                if (move->answer_us < soonest) soonest = move->answer_us;
                continue;
            }
            if (now_us + AGAIN_US < soonest) soonest = now_us + AGAIN_US;
            if (move->part_end) again(core, move, now_us);
            else go_on(core, move, now_us);
        }
    return soonest;
}
