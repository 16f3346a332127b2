#include "node/writers.h"

#include <string.h>

static void drop(sn_writers *w, int i) {
    memmove(&w->list[i], &w->list[i + 1], (size_t)(w->n - i - 1) * sizeof w->list[0]);
    w->n--;
}

void sn_writers_forget(sn_writers *w, const void *session) {
    for (int i = 0; i < w->n; i++)
        if (w->list[i].session == session) {
            drop(w, i);
            return;
        }
}

void sn_writers_here(sn_writers *w, const void *session) {
    for (int i = 0; i < w->n; i++)
        if (w->list[i].session == session) w->list[i].here = true;
}

bool sn_writers_company(const sn_writers *w) {
    for (int i = 0; i < w->n; i++)
        for (int k = 0; w->list[i].here && k < w->n; k++)
            if (!w->list[k].here && w->list[k].pass == w->list[i].pass) return true;
    return false;
}

void sn_writers_note(sn_writers *w, const void *session, int rows, uint64_t pass, int64_t now_us) {
    sn_writers_forget(w, session);
    if (w->n == SN_WRITERS_MAX) drop(w, 0);
    w->list[w->n].session = session;
    w->list[w->n].rows = rows;
    w->list[w->n].here = false;
    w->list[w->n].pass = pass;
    w->list[w->n++].at_us = now_us;
}

int sn_writers_rows(sn_writers *w, int64_t now_us) {
    int rows = 0;
    while (w->n && now_us - w->list[0].at_us > SN_WRITER_BACK_US) drop(w, 0); /* the oldest come first */
    for (int i = 0; i < w->n; i++) rows += w->list[i].rows;
    return rows;
}
