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

typedef struct sn_decoding_sessions {
    struct {
        const void *session; /* only compared */
        uint64_t client;
        int rows;
        bool arrived;   /* its next step is here */
        uint64_t batch; /* number of the batch that its newest step was in */
        int64_t last_us;
    } list[SN_DECODING_SESSIONS_MAX]; /* the one that decoded longest ago first */
    int n;
} sn_decoding_sessions;

/* The session's decode step is in this batch. A full list drops its oldest entry. */
void sn_decoding_sessions_record(sn_decoding_sessions *sessions, const void *session, uint64_t client, int rows,
                                 uint64_t batch, int64_t now_us);
void sn_decoding_sessions_arrived(sn_decoding_sessions *sessions, const void *session); /* its next step is here */
void sn_decoding_sessions_remove(sn_decoding_sessions *sessions,
                                 const void *session); /* it ended, or does other work now */
/* Decode rows of all of them; where several clients have some, at most so many of each. */
int sn_decoding_sessions_rows(sn_decoding_sessions *sessions, int client_rows_max, int64_t now_us);
bool sn_decoding_sessions_of_others(const sn_decoding_sessions *sessions, uint64_t client); /* of another client */
/* Whether a session is missing whose newest step was in the same batch as that of a session that is here. */
bool sn_decoding_sessions_pending(const sn_decoding_sessions *sessions);

#endif
