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

void sn_decoding_sessions_arrived(sn_decoding_sessions *sessions, const void *session) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].session == session) sessions->list[i].arrived = true;
}

bool sn_decoding_sessions_pending(const sn_decoding_sessions *sessions) {
    for (int i = 0; i < sessions->n; i++)
        for (int k = 0; sessions->list[i].arrived && k < sessions->n; k++)
            if (!sessions->list[k].arrived && sessions->list[k].batch == sessions->list[i].batch) return true;
    return false;
}

void sn_decoding_sessions_record(sn_decoding_sessions *sessions, const void *session, uint64_t client, int rows,
                                 uint64_t batch, int64_t now_us) {
    sn_decoding_sessions_remove(sessions, session);
    if (sessions->n == SN_DECODING_SESSIONS_MAX) session_drop(sessions, 0);
    sessions->list[sessions->n].session = session;
    sessions->list[sessions->n].client = client;
    sessions->list[sessions->n].rows = rows;
    sessions->list[sessions->n].arrived = false;
    sessions->list[sessions->n].batch = batch;
    sessions->list[sessions->n++].last_us = now_us;
}

/* What the session adds to at most so many rows of its client, behind the sessions before it in the list. */
static int rows_added(const sn_decoding_sessions *sessions, int at, int client_rows_max) {
    int left = client_rows_max;
    for (int i = 0; i < at; i++)
        if (sessions->list[i].client == sessions->list[at].client) left -= sessions->list[i].rows;
    return left < 0 ? 0 : left < sessions->list[at].rows ? left : sessions->list[at].rows;
}

int sn_decoding_sessions_rows(sn_decoding_sessions *sessions, int client_rows_max, int64_t now_us) {
    int rows = 0;
    while (sessions->n && now_us - sessions->list[0].last_us > SN_DECODING_WINDOW_US) session_drop(sessions, 0);
    for (int i = 0; i < sessions->n; i++) {
        bool others = sn_decoding_sessions_of_others(sessions, sessions->list[i].client);
        rows += others ? rows_added(sessions, i, client_rows_max) : sessions->list[i].rows;
    }
    return rows;
}

bool sn_decoding_sessions_of_others(const sn_decoding_sessions *sessions, uint64_t client) {
    for (int i = 0; i < sessions->n; i++)
        if (sessions->list[i].client != client) return true;
    return false;
}
