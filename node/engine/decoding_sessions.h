/* The decoding sessions: those whose decode steps ran within the last second, and whose next step is therefore
 * expected. Plain data of the scheduler, which uses it to bound prefill rows and for the batch wait; belongs to the
 * device thread. */
#ifndef SN_NODE_ENGINE_DECODING_SESSIONS_H
#define SN_NODE_ENGINE_DECODING_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SN_DECODING_SESSIONS_MAX = 64,
    SN_DECODING_WINDOW_US = 1000000
}; /* a session that decoded within this time is expected to continue */

typedef struct sn_decoding_session {
    const void *session; /* only compared */
    uint64_t client;
    int rows;
    bool arrived;     /* its next step is here */
    uint64_t batch;   /* number of the batch that its newest step was in */
    int64_t last_us;  /* when that batch was formed, */
    int64_t ended_us; /* and when it was computed; 0: it is being computed */
    int64_t gap_us;   /* from the end of a step to the arrival of the next one, the last time; negative: not known */
} sn_decoding_session;

typedef struct sn_decoding_sessions {
    sn_decoding_session list[SN_DECODING_SESSIONS_MAX]; /* the one that decoded longest ago first */
    int n;
} sn_decoding_sessions;

/* The session's decode step is in this batch. A full list drops its oldest entry. */
void sn_decoding_sessions_record(sn_decoding_sessions *sessions, const void *session, uint64_t client, int rows,
                                 uint64_t batch, int64_t now_us);
/* Its next step is here, since arrived_us. */
void sn_decoding_sessions_arrived(sn_decoding_sessions *sessions, const void *session, int64_t arrived_us);
/* The batch was computed. */
void sn_decoding_sessions_computed(sn_decoding_sessions *sessions, uint64_t batch, int64_t now_us);
void sn_decoding_sessions_remove(sn_decoding_sessions *sessions,
                                 const void *session); /* it ended, or does other work now */
/* Decode rows of all of them. */
int sn_decoding_sessions_rows(sn_decoding_sessions *sessions, int64_t now_us);
bool sn_decoding_sessions_of_others(const sn_decoding_sessions *sessions, uint64_t client); /* of another client */
/* Whether a session is missing whose newest step was in the same batch as that of a session that is here. */
bool sn_decoding_sessions_pending(const sn_decoding_sessions *sessions);

#endif
