/* KV admission: which sessions get KV pages when the pool is full. A part of the scheduler, which calls it around every
 * forward pass; belongs to the device thread.
 *
 * Sessions are admitted in the order in which their KV caches were created (sequence_number). A session without KV
 * pages waits for every session that waits before it; a session that already holds pages may be admitted earlier,
 * because its pages are freed only after it ends.
 *
 * Pages for waiting sessions come from idle sessions, by swapping them out where that is enabled (kvcache/swap.h).
 * A session that has waited for half of its limit becomes the claimant; if there are several, the oldest. No
 * younger session gets a page before the claimant, and the claimant also gets pages of sessions that are between
 * two steps or wait themselves, the youngest first: their pages are swapped out, or, where that is impossible,
 * discarded, and their clients replay them. So two sessions that each hold half of the pool and need more do not
 * block each other for ever.
 *
 * Where pages can be swapped out, that costs little, and sessions take turns instead: who has waited for CLAIM_US, the
 * longest of all, becomes the claimant at once, for a part of its limit, also in its further steps, and gets pages of
 * every session that is between two steps or waits. Nothing is discarded for a turn. So agents whose conversations fit
 * in part only all go on.
 *
 * A client that has more than half of the pages, while another one's job waits that gets all it lacks by the rule
 * below, is the hoarder. Its jobs take no more pages and hold no others up, and a session of it that is between two
 * steps or waits gives its pages, swapped out or discarded, if the hoarder still has as many as the other client then,
 * so that two do not take from each other in turn; or if it was idle for long. Otherwise one client could keep all
 * others out by sessions that it leaves idle. The same holds for recurrent states: more than half of those are of
 * sessions of one client, and another one finds none.
 */
#ifndef SN_NODE_ENGINE_KV_ADMISSION_H
#define SN_NODE_ENGINE_KV_ADMISSION_H

#include "kvcache/swap.h"
#include "node/engine/job.h"

typedef struct sn_kv_admission {
    sn_kv_pool *pool;
    size_t swap_pages_max; /* pages swapped per round: bounds the delay of the next forward pass */

    int64_t now_us;          /* of this round */
    size_t swap_pages_left;  /* of swap_pages_max, in this round */
    uint64_t claimant;       /* sequence_number of the claimant's KV cache; 0: none */
    bool by_turns;           /* it has its turn: others wait, older ones, too, and none is discarded for it */
    uint64_t turn;           /* sequence_number of the KV cache that has the turn, */
    int64_t turn_until_us;   /* until then */
    bool hoards;             /* there is a hoarder, */
    uint64_t hoarder;        /* this client */
    uint64_t taken_for;      /* sequence_number of the KV cache that gets what the hoarder gave; 0: none */
    const sn_job *stateless; /* the first of this round that finds no recurrent states, and may get some; NULL: none */
    bool swap_pending;       /* pages are left to swap in the next round */
    int64_t swap_pause_us;   /* no swap-out before this time, because one failed */
} sn_kv_admission;

void sn_kv_admission_init(sn_kv_admission *admission, sn_kv_pool *pool);

/* Begins a round: notes which KV caches the jobs (a list by `next`) use, and determines the claimant. */
void sn_kv_admission_begin(sn_kv_admission *admission, const sn_job *jobs, int64_t now_us);
/* Makes the job's KV cache what the job builds on: created, rewound, swapped in. SN_RETRY: not in this round;
 * SN_REBUILD: its pages are lost. job->err says why. */
sn_status sn_kv_admission_prepare(sn_kv_admission *admission, sn_job *job) SN_MUST_USE;
/* Reserves KV pages for the rows that are left of the job. `queued`: a job before it waits. SN_RETRY: it has to
 * wait. */
sn_status sn_kv_admission_reserve(sn_kv_admission *admission, sn_job *job, bool queued) SN_MUST_USE;
/* Whether the job is one of the hoarder. */
bool sn_kv_admission_hoards(const sn_kv_admission *admission, const sn_job *job);
/* After the jobs of the batch were chosen: frees pages for the first waiting job, and swaps out idle sessions. Returns
 * a waiting job whose pages were discarded for that, with job->err set, or NULL. */
sn_job *sn_kv_admission_reclaim(sn_kv_admission *admission, sn_job *jobs);

#endif
