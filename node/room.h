/* Room in the cache: who waits for it, who gets it, who gives it. A part of the scheduler, which calls it around every
 * pass; belongs to the device's thread.
 *
 * Whose session began first is served first. A session without a past waits behind every other one that waits, one with a
 * past may pass them, because what it holds comes back only when it gets to its end. Who waits takes room from sessions that
 * rest, where they can be set aside (kvcache/idle.h). Who has waited for half of his time has a claim: of those who have
 * one the oldest session comes first, no younger one takes a page before it, and it gets the pages of those that are
 * between two steps or wait themselves, the youngest first - set aside, or, where that cannot be, lost: their clients send
 * them again. So two sessions that hold half each and want more do not wait for each other. */
#ifndef SN_NODE_ROOM_H
#define SN_NODE_ROOM_H

#include "kvcache/idle.h"
#include "node/job.h"

typedef struct sn_room {
    sn_kv_pool *pool;
    size_t moves_max;      /* pages that are moved between two passes */

    int64_t now_us;        /* of this pass */
    size_t moves;          /* of these still allowed now */
    uint64_t claim;        /* number of the past that has one, or 0 */
    bool more;             /* there is something to move, next time */
    int64_t pause_us;      /* until then nothing is set aside: it failed */
} sn_room;

void sn_room_init(sn_room *room, sn_kv_pool *pool);

/* Before a pass: looks at all jobs (a list by `next`). */
void sn_room_begin(sn_room *room, const sn_job *jobs, int64_t now_us);
/* Makes the past what the step builds on: there, all of it in the cache, not longer. SN_RETRY: it is on its way. */
sn_status sn_room_ready(sn_room *room, sn_job *job) SN_MUST_USE;
/* Room for the step's rows that are left. `queued`: an older session waits. SN_RETRY: it has to wait. */
sn_status sn_room_take(sn_room *room, sn_job *job, bool queued) SN_MUST_USE;
/* After the jobs of a pass were chosen: makes room for who waits, sets aside who rests. Returns a waiting job whose past was
 * lost for that, with job->err set, or NULL. */
sn_job *sn_room_tidy(sn_room *room, sn_job *jobs);

#endif
