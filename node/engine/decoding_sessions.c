#include "node/engine/decoding_sessions.h"

#include <string.h>

static void session_drop(sn_decoding_sessions *sessions, int i) {
    memmove(&sessions->list[i], &sessions->list[i + 1], (size_t)(sessions->n - i - 1) * sizeof sessions->list[0]);
    sessions->n--;
}

void sn_decoding_sessions_remove(sn_decoding_sessions *sessions, const void *session) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].session == session) {
            session_drop(sessions, i);
            return;
        }
}

void sn_decoding_sessions_arrived(sn_decoding_sessions *sessions, const void *session, int64_t arrived_us) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].session == session) {
            sessions->list[i].arrived = true;
            if (sessions->list[i].ended_us) sessions->list[i].gap_us = arrived_us - sessions->list[i].ended_us;
        }
}

void sn_decoding_sessions_computed(sn_decoding_sessions *sessions, uint64_t batch, int64_t now_us) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].batch == batch) sessions->list[i].ended_us = now_us;
}

bool sn_decoding_sessions_pending(const sn_decoding_sessions *sessions) {
    for (int i = 0; i < sessions->n; i++)
        for (int k = 0; sessions->list[i].arrived && k < sessions->n; k++)
            if (!sessions->list[k].arrived && sessions->list[k].batch == sessions->list[i].batch) return true;
    return false;
}

void sn_decoding_sessions_record(sn_decoding_sessions *sessions, const void *session, uint64_t client, int rows,
                                 uint64_t batch, int64_t now_us) {
    int64_t gap_us = -1;
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].session == session) gap_us = sessions->list[i].gap_us;
    sn_decoding_sessions_remove(sessions, session);
    if (sessions->n == SN_DECODING_SESSIONS_MAX) session_drop(sessions, 0);
    sessions->list[sessions->n++] = (sn_decoding_session){
        .session = session, .client = client, .rows = rows, .batch = batch, .last_us = now_us, .gap_us = gap_us};
}

int sn_decoding_sessions_rows(sn_decoding_sessions *sessions, int64_t now_us) {
    int rows = 0;
    while (sessions->n && now_us - sessions->list[0].last_us > SN_DECODING_WINDOW_US) session_drop(sessions, 0);
    for (int i = 0; i < sessions->n; i++) rows += sessions->list[i].rows;
    return rows;
}

bool sn_decoding_sessions_of_others(const sn_decoding_sessions *sessions, uint64_t client) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].client != client) return true;
    return false;
}
