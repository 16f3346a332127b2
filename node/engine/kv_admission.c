/* Each round has two halves. sn_kv_admission_begin looks at all jobs and caches: which are busy, whether there is a
 * hoarder, who is the claimant. Then the scheduler asks for each job (prepare, reserve), and what it asks for is
 * granted or put off by these three. At the end of forming the batch, sn_kv_admission_reclaim frees pages for the first
 * waiting job, in the order of what that costs: of sessions that were idle for a while (swapped out only), of the
 * hoarder's, of jobs that wait themselves. In the next round only that job takes what the hoarder gave (taken_for). */
#include "node/engine/kv_admission.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

enum {
    SWAP_BYTES_MAX = 8 << 20, /* per round: a few milliseconds */
    RECENT_STEP_US = 500000,  /* a session with a step within this time is not idle: its next step is expected */
    SWAP_PAUSE_US = 1000000,  /* after a failed swap-out */
    CLAIM_US = 200000,        /* after that a waiting session may get the turn, where pages can be swapped out */
    TURN_US = 2000000,        /* that it keeps at most: moving a session takes a tenth of it, or so */
    HOARD_IDLE_US = 10000000, /* an idle session of the hoarder then gives its pages in any case */
};

void sn_kv_admission_init(sn_kv_admission *admission, sn_kv_pool *pool) {
    size_t page = sn_kv_pool_bytes(pool) / (sn_kv_pool_tokens(pool) / SN_KV_PAGE_TOKENS);
    *admission = (sn_kv_admission){.pool = pool, .swap_pages_max = SWAP_BYTES_MAX / page ? SWAP_BYTES_MAX / page : 1};
}

static uint64_t job_kv_number(const sn_job *job) {
    return *job->kv ? sn_kv_cache_usage_of(*job->kv)->sequence_number : UINT64_MAX;
}
static int job_rows_left(const sn_job *job) { return job->kind == SN_JOB_KV_READ ? 0 : job->n_tokens - job->n_done; }
static bool job_waits(const sn_job *job) {
    return job->kind != SN_JOB_CLOSE && job->kv_waited && !job->started_us && !job->finished_us && *job->kv;
}

/* A read that only waits for its turn keeps no pages: a client could keep all of them so. */
static void kv_mark_busy(const sn_kv_admission *admission, const sn_job *job) {
    sn_kv_cache_usage *usage = sn_kv_cache_usage_of(*job->kv);
    usage->busy = usage->busy || job->kind != SN_JOB_KV_READ || job->kv_waited;
    usage->last_used_us = admission->now_us;
    if (job->kind != SN_JOB_CLOSE) usage->client = job->client;
}

/* -- the hoarder --------------------------------------------------------------------------------------------------- */

/* Pages are counted in parts (sn_kv_cache_page_parts). */
static size_t parts_of_client(const sn_kv_pool *pool, uint64_t client) {
    size_t parts = 0;
    for (sn_kv_cache *kv = sn_kv_cache_next(pool, NULL); kv; kv = sn_kv_cache_next(pool, kv))
        if (sn_kv_cache_usage_of(kv)->client == client) parts += sn_kv_cache_page_parts(kv);
    return parts;
}

/* The client that has more than half of the pages, if one has. */
static bool client_with_most(const sn_kv_pool *pool, uint64_t *out) {
    size_t lead = 0;
    uint64_t client = 0;
    for (sn_kv_cache *kv = sn_kv_cache_next(pool, NULL); kv; kv = sn_kv_cache_next(pool, kv)) {
        /* Each part of another client takes one of its lead away: who has more than half is left. */
        size_t parts = sn_kv_cache_page_parts(kv);
        bool same = sn_kv_cache_usage_of(kv)->client == client;
        if (!same && parts > lead) client = sn_kv_cache_usage_of(kv)->client;
        lead = same ? lead + parts : parts > lead ? parts - lead : lead - parts;
    }
    *out = client;
    return parts_of_client(pool, client) > sn_kv_pool_tokens(pool) / SN_KV_PAGE_TOKENS * SN_KV_PAGE_PARTS / 2;
}

/* What a KV cache of the hoarder may have at most, if the hoarder is to have no less without it than the job's client
 * with the pages that it lacks. */
static size_t parts_to_spare(const sn_kv_admission *admission, const sn_job *job) {
    size_t lacks = sn_kv_cache_pages_needed(*job->kv, job_rows_left(job)) * SN_KV_PAGE_PARTS;
    size_t held = parts_of_client(admission->pool, admission->hoarder),
           others = parts_of_client(admission->pool, job->client) + lacks;
    return held > others ? held - others : 0;
}

static bool kv_is_left_idle(const sn_kv_admission *admission, sn_kv_cache *kv) {
    return admission->now_us - sn_kv_cache_usage_of(kv)->last_used_us >= HOARD_IDLE_US;
}

/* Whether a KV cache must give its pages, once it is not busy: of the hoarder, and idle for long or not too large. */
static bool kv_must_give(const sn_kv_admission *admission, sn_kv_cache *kv, size_t to_spare) {
    size_t parts = sn_kv_cache_page_parts(kv);
    if (sn_kv_cache_usage_of(kv)->client != admission->hoarder || !parts) return false;
    return kv_is_left_idle(admission, kv) || (parts <= to_spare && sn_swap_movable_pages(kv));
}

/* Whether the job finds all pages that it lacks, if the hoarder gives what it must. One that asks for more than can be
 * had does not put the hoarder off. */
static bool hoarder_can_serve(const sn_kv_admission *admission, const sn_job *job) {
    size_t missing = sn_kv_cache_pages_missing(*job->kv, job_rows_left(job)) * SN_KV_PAGE_PARTS;
    size_t to_spare = parts_to_spare(admission, job);
    for (sn_kv_cache *kv = sn_kv_cache_next(admission->pool, NULL); kv; kv = sn_kv_cache_next(admission->pool, kv)) {
        if (!kv_must_give(admission, kv, to_spare)) continue;
        size_t parts = sn_kv_cache_page_parts(kv), movable = sn_swap_movable_pages(kv) * SN_KV_PAGE_PARTS;
        to_spare -= sn_min_size(to_spare, parts);
        missing -= sn_min_size(missing, kv_is_left_idle(admission, kv) ? parts : movable);
    }
    return !missing;
}

static void hoarder_find(sn_kv_admission *admission, const sn_job *jobs) {
    const sn_job *first = jobs;
    admission->hoards = false;
    while (first && !job_waits(first)) first = first->next;
    if (!first || !client_with_most(admission->pool, &admission->hoarder)) return;
    while (first && !(job_waits(first) && first->client != admission->hoarder)) first = first->next;
    admission->hoards = first && hoarder_can_serve(admission, first);
}

bool sn_kv_admission_hoards(const sn_kv_admission *admission, const sn_job *job) {
    return admission->hoards && job->client == admission->hoarder;
}

static size_t states_of_client(const sn_kv_pool *pool, uint64_t client) {
    size_t n = 0;
    for (sn_kv_cache *kv = sn_kv_cache_next(pool, NULL); kv; kv = sn_kv_cache_next(pool, kv))
        n += sn_kv_cache_has_states(kv) && sn_kv_cache_usage_of(kv)->client == client;
    return n;
}

static bool client_has_most_states(const sn_kv_pool *pool, uint64_t client) {
    return states_of_client(pool, client) > sn_kv_pool_sessions_max(pool) / 2;
}

/* -- who may take pages -------------------------------------------------------------------------------------------- */

static const sn_kv_cache_usage *usage_of_turn(const sn_kv_admission *admission) {
    sn_kv_cache *kv = sn_kv_cache_next(admission->pool, NULL);
    while (kv && sn_kv_cache_usage_of(kv)->sequence_number != admission->turn)
        kv = sn_kv_cache_next(admission->pool, kv);
    return kv ? sn_kv_cache_usage_of(kv) : NULL;
}

/* Whether the session that has the turn still makes use of it; a new timeline of it waits behind others. */
static bool turn_lasts(const sn_kv_admission *admission, const sn_job *jobs, const sn_job *longest) {
    const sn_kv_cache_usage *usage = usage_of_turn(admission);
    if (!usage || admission->now_us >= admission->turn_until_us) return false;
    for (const sn_job *job = jobs; job; job = job->next)
        if (job_waits(job) && job_kv_number(job) == admission->turn && !job->position && job != longest) return false;
    return usage->busy || admission->now_us - usage->last_used_us < RECENT_STEP_US;
}

/* The turn of a session that waits is claimed for it; it is the next one's when it is over. */
static void turn_find(sn_kv_admission *admission, const sn_job *jobs) {
    const sn_job *longest = NULL;
    int64_t n = 0;
    if (!sn_swap_enabled(admission->pool) || admission->now_us < admission->swap_pause_us) return;
    for (const sn_job *job = jobs; job; job = job->next) {
        const bool waits = job_waits(job) && !sn_kv_admission_hoards(admission, job);
        if (!waits || admission->now_us - job->arrived_us < CLAIM_US) continue;
        n++;
        if (!longest || job->arrived_us < longest->arrived_us) longest = job;
    }
    if (!turn_lasts(admission, jobs, longest)) {
        if (!longest) return;
        const int64_t part_us = (longest->deadline_us - longest->arrived_us) / 2 / n;
        admission->turn = job_kv_number(longest);
        admission->turn_until_us = admission->now_us + (part_us < TURN_US ? part_us : TURN_US);
    }
    admission->claimant = 0;
    admission->by_turns = true;
    for (const sn_job *job = jobs; job; job = job->next)
        if (job_waits(job) && job_kv_number(job) == admission->turn) admission->claimant = admission->turn;
}

void sn_kv_admission_begin(sn_kv_admission *admission, const sn_job *jobs, int64_t now_us) {
    admission->now_us = now_us;
    admission->swap_pages_left = admission->swap_pages_max;
    admission->claimant = 0;
    admission->stateless = NULL;
    admission->swap_pending = false;
    for (sn_kv_cache *kv = sn_kv_cache_next(admission->pool, NULL); kv; kv = sn_kv_cache_next(admission->pool, kv))
        sn_kv_cache_usage_of(kv)->busy = false;
    for (const sn_job *job = jobs; job; job = job->next)
        if (*job->kv) kv_mark_busy(admission, job);
    hoarder_find(admission, jobs);
    for (const sn_job *job = jobs; job; job = job->next) {
        if (sn_kv_admission_hoards(admission, job)) continue;
        bool long_enough = now_us >= job->deadline_us - (job->deadline_us - job->arrived_us) / 2;
        if (job_waits(job) && long_enough && (!admission->claimant || job_kv_number(job) < admission->claimant))
            admission->claimant = job_kv_number(job);
    }
    admission->by_turns = false;
    turn_find(admission, jobs);
}

/* The claimant is another session, and by age an older one; the job is the hoarder's, or the hoarder gave its pages for
 * another one. */
static bool job_is_behind(const sn_kv_admission *admission, const sn_job *job) {
    return sn_kv_admission_hoards(admission, job) ||
           (admission->taken_for && admission->taken_for != job_kv_number(job)) ||
           (admission->claimant && (admission->by_turns ? admission->claimant != job_kv_number(job)
                                                        : admission->claimant < job_kv_number(job)));
}

static sn_status job_yield(sn_job *job) {
    return sn_fail_because(&job->err, SN_RETRY, SN_REASON_NO_ROOM,
                           "the KV cache is full, and other sessions wait for pages before this one");
}

sn_status sn_kv_admission_prepare(sn_kv_admission *admission, sn_job *job) {
    int at = job->position + job->n_done;
    if (!*job->kv) {
        sn_status status = sn_kv_cache_new(admission->pool, job->kv, &job->err);
        if (status == SN_RETRY && !admission->stateless && !client_has_most_states(admission->pool, job->client))
            admission->stateless = job;
        if (status) return status;
        kv_mark_busy(admission, job);
    }
    if (job->kind != SN_JOB_KV_READ && sn_kv_cache_length(*job->kv) > at) sn_kv_cache_rewind(*job->kv, at);
    if (sn_swap_swapped_pages(*job->kv) && job_is_behind(admission, job)) return job_yield(job);
    sn_status status = sn_swap_in(*job->kv, &admission->swap_pages_left, &job->err);
    if (!status && sn_kv_cache_length(*job->kv) < at)
        status = sn_fail(&job->err, SN_REBUILD, "the KV pages of this session are lost: open a new one and replay");
    return status;
}

sn_status sn_kv_admission_reserve(sn_kv_admission *admission, sn_job *job, bool queued) {
    const bool first = admission->taken_for == job_kv_number(job) ||
                       (admission->by_turns && admission->claimant == job_kv_number(job));
    if (queued && !job->position && !first) return job_yield(job);
    if (job_is_behind(admission, job) && sn_kv_cache_pages_needed(*job->kv, job_rows_left(job))) return job_yield(job);
    return sn_kv_cache_reserve(*job->kv, job_rows_left(job), &job->err);
}

/* -- freeing pages ------------------------------------------------------------------------------------------------- */

/* Swaps out up to n pages of the KV cache. False: impossible now. */
static bool kv_swap_out(sn_kv_admission *admission, sn_kv_cache *kv, size_t n) {
    sn_err err;
    size_t pages = sn_min_size(n, admission->swap_pages_left), left = pages;
    if (!sn_swap_enabled(admission->pool) || admission->now_us < admission->swap_pause_us) return false;
    sn_status status = sn_swap_out(kv, &left, &err);
    admission->swap_pages_left -= pages - left;
    if (!status) return true;
    admission->swap_pause_us = admission->now_us + SWAP_PAUSE_US;
    sn_log(SN_LOG_WARN, "swap-out failed", "text=%s", err.text);
    return false;
}

/* The hoarder's KV cache that has been idle for longest, of those that must give their pages. */
static sn_kv_cache *kv_find_hoarded(const sn_kv_admission *admission, size_t to_spare) {
    sn_kv_cache *found = NULL;
    for (sn_kv_cache *kv = sn_kv_cache_next(admission->pool, NULL); kv; kv = sn_kv_cache_next(admission->pool, kv)) {
        const sn_kv_cache_usage *usage = sn_kv_cache_usage_of(kv);
        bool gives = !usage->busy && kv_must_give(admission, kv, to_spare);
        if (gives && (!found || usage->last_used_us < sn_kv_cache_usage_of(found)->last_used_us)) found = kv;
    }
    return found;
}

/* The KV cache that has been idle for longest and has pages that can be moved; last used at before_us at the latest. */
static sn_kv_cache *kv_find_longest_idle(const sn_kv_admission *admission, int64_t before_us) {
    sn_kv_cache *found = NULL;
    for (sn_kv_cache *kv = sn_kv_cache_next(admission->pool, NULL); kv; kv = sn_kv_cache_next(admission->pool, kv)) {
        const sn_kv_cache_usage *usage = sn_kv_cache_usage_of(kv);
        if (!usage->busy && usage->last_used_us <= before_us && sn_swap_movable_pages(kv) &&
            (!found || usage->last_used_us < sn_kv_cache_usage_of(found)->last_used_us))
            found = kv;
    }
    return found;
}

/* Whether a step that has begun builds on these pages: a read of them may wait beside it. */
static bool kv_is_in_use(sn_job *jobs, sn_kv_cache *const *kv) {
    while (jobs && !(jobs->kv == kv && jobs->started_us && !jobs->finished_us)) jobs = jobs->next;
    return jobs;
}

/* The youngest waiting job that must give its pages to `to`: one of the hoarder, or, if `to` is the claimant's, a
 * younger one. */
static sn_job *job_find_youngest_waiting(const sn_kv_admission *admission, sn_job *jobs, const sn_job *to) {
    size_t to_spare = admission->hoards ? parts_to_spare(admission, to) : 0;
    sn_job *found = NULL;
    for (sn_job *job = jobs; job; job = job->next) {
        if (!job_waits(job) || !sn_swap_movable_pages(*job->kv) || kv_is_in_use(jobs, job->kv)) continue;
        bool hoarded = sn_kv_admission_hoards(admission, job) && sn_kv_cache_page_parts(*job->kv) <= to_spare;
        bool younger = admission->claimant == job_kv_number(to) &&
                       (admission->by_turns ? job_kv_number(job) != admission->claimant
                                            : job_kv_number(job) > admission->claimant);
        if ((hoarded || younger) && (!found || job_kv_number(job) > job_kv_number(found))) found = job;
    }
    return found;
}

/* The waiting job that is served first: the claimant's, otherwise the first in the list that is not the hoarder's. */
static sn_job *job_find_first_waiting(const sn_kv_admission *admission, sn_job *jobs) {
    sn_job *first = NULL;
    for (sn_job *job = jobs; job; job = job->next) {
        if (!job_waits(job) || sn_kv_admission_hoards(admission, job)) continue;
        if (job_kv_number(job) == admission->claimant) return job;
        if (!first) first = job;
    }
    return first;
}

/* Frees the pages that the first waiting job lacks: from idle sessions, the hoarder's by force, and for the claimant,
 * or of the hoarder, from waiting ones, too. Returns the job whose pages had to be discarded, or NULL. */
static sn_job *kv_free_pages(sn_kv_admission *admission, sn_job *jobs) {
    sn_job *job = job_find_first_waiting(admission, jobs), *victim;
    admission->taken_for = 0;
    if (!job) return NULL;
    bool claims = admission->claimant && job_kv_number(job) == admission->claimant;
    for (size_t missing; (missing = sn_kv_cache_pages_missing(*job->kv, job_rows_left(job)));) {
        sn_kv_cache *kv = kv_find_longest_idle(admission, claims ? INT64_MAX : admission->now_us - RECENT_STEP_US);
        admission->swap_pending = admission->swap_pending || (kv && !admission->swap_pages_left);
        if (!kv || !admission->swap_pages_left || !kv_swap_out(admission, kv, missing)) break;
    }
    for (size_t missing; admission->hoards && admission->swap_pages_left &&
                         (missing = sn_kv_cache_pages_missing(*job->kv, job_rows_left(job)));) {
        sn_kv_cache *kv = kv_find_hoarded(admission, parts_to_spare(admission, job));
        if (!kv) break;
        admission->taken_for = job_kv_number(job);
        if (sn_swap_movable_pages(kv) && kv_swap_out(admission, kv, missing)) continue;
        sn_kv_cache_invalidate(kv);
        sn_log_rated(SN_LOG_INFO, "KV pages taken from an idle session",
                     "text=its client has more than half of them, and another one waits");
    }
    for (size_t missing;
         (missing = sn_kv_cache_pages_missing(*job->kv, job_rows_left(job))) && admission->swap_pages_left;) {
        victim = job_find_youngest_waiting(admission, jobs, job);
        if (!victim) break;
        if (sn_kv_admission_hoards(admission, victim)) admission->taken_for = job_kv_number(job);
        bool attached_only = !victim->position && victim->kind != SN_JOB_KV_READ;
        if (attached_only) { /* from the prefix cache; it can attach them again */
            sn_kv_cache_rewind(*victim->kv, 0);
            victim->n_done = 0;
            continue;
        }
        if (kv_swap_out(admission, *victim->kv, missing)) continue;
        if (admission->by_turns) break;
        sn_kv_cache_invalidate(*victim->kv);
        (void)sn_fail_because(
            &victim->err, SN_REBUILD, SN_REASON_NO_ROOM,
            "the KV cache is full, and an older session needs the pages: replay at another node, or later");
        return victim;
    }
    return NULL;
}

/* Whether a session gives its states to the job: as of pages. */
static bool kv_gives_states(const sn_kv_admission *admission, sn_kv_cache *kv, const sn_job *job) {
    const sn_kv_cache_usage *usage = sn_kv_cache_usage_of(kv);
    if (usage->busy || usage->client == job->client || !sn_kv_cache_has_states(kv)) return false;
    if (!client_has_most_states(admission->pool, usage->client)) return false;
    return kv_is_left_idle(admission, kv) ||
           states_of_client(admission->pool, usage->client) > states_of_client(admission->pool, job->client) + 1;
}

static void states_take(const sn_kv_admission *admission) {
    sn_kv_cache *found = NULL;
    if (!admission->stateless) return;
    for (sn_kv_cache *kv = sn_kv_cache_next(admission->pool, NULL); kv; kv = sn_kv_cache_next(admission->pool, kv))
        if (kv_gives_states(admission, kv, admission->stateless) &&
            (!found || sn_kv_cache_usage_of(kv)->last_used_us < sn_kv_cache_usage_of(found)->last_used_us))
            found = kv;
    if (found) sn_kv_cache_invalidate(found);
}

sn_job *sn_kv_admission_reclaim(sn_kv_admission *admission, sn_job *jobs) {
    sn_job *lost = kv_free_pages(admission, jobs);
    states_take(admission);
    int64_t after_us = sn_swap_after_us(admission->pool);
    while (after_us) {
        sn_kv_cache *kv = kv_find_longest_idle(admission, admission->now_us - after_us);
        admission->swap_pending = admission->swap_pending || (kv && !admission->swap_pages_left);
        if (!kv || !admission->swap_pages_left || !kv_swap_out(admission, kv, SIZE_MAX)) break;
    }
    return lost;
}
