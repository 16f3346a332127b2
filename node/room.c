#include "node/room.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

enum {
    MOVE_BYTES = 8 << 20, /* between two passes: a few milliseconds */
    QUIET_US = 500000,    /* a session that had a step later than this will soon have another one */
    PAUSE_US = 1000000,
};

void sn_room_init(sn_room *room, sn_kv_pool *pool) {
    size_t page = sn_kv_pool_bytes(pool) / (sn_kv_pool_tokens(pool) / SN_KV_PAGE_TOKENS);
    *room = (sn_room){.pool = pool, .moves_max = MOVE_BYTES / page ? MOVE_BYTES / page : 1};
}

static uint64_t number_of(const sn_job *job) { return *job->kv ? sn_kv_note_of(*job->kv)->number : UINT64_MAX; }
static int rows_left(const sn_job *job) { return job->kind == SN_JOB_READ ? 0 : job->n_tokens - job->n_done; }
static bool waits(const sn_job *job) {
    return job->kind != SN_JOB_CLOSE && job->waited && !job->started_us && !job->finished_us && *job->kv;
}

static void use(const sn_room *room, sn_kv *kv) {
    sn_kv_note_of(kv)->busy = true;
    sn_kv_note_of(kv)->used_us = room->now_us;
}

void sn_room_begin(sn_room *room, const sn_job *jobs, int64_t now_us) {
    room->now_us = now_us;
    room->moves = room->moves_max;
    room->claim = 0;
    room->more = false;
    for (sn_kv *kv = sn_kv_next(room->pool, NULL); kv; kv = sn_kv_next(room->pool, kv)) sn_kv_note_of(kv)->busy = false;
    for (const sn_job *job = jobs; job; job = job->next) {
        if (*job->kv) use(room, *job->kv);
        bool long_enough = now_us >= job->deadline_us - (job->deadline_us - job->arrived_us) / 2;
        if (waits(job) && long_enough && (!room->claim || number_of(job) < room->claim)) room->claim = number_of(job);
    }
}

/* An older session has a claim. */
static bool is_behind(const sn_room *room, const sn_job *job) { return room->claim && room->claim < number_of(job); }

static sn_status let_others_first(sn_job *job) {
    return sn_fail(&job->err, SN_RETRY, "the cache is full, and others wait for room before this session");
}

sn_status sn_room_ready(sn_room *room, sn_job *job) {
    int at = job->position + job->n_done;
    if (!*job->kv) {
        sn_status status = sn_kv_new(room->pool, job->kv, &job->err);
        if (status) return status;
        use(room, *job->kv);
    }
    if (job->kind != SN_JOB_READ && sn_kv_length(*job->kv) > at) sn_kv_rewind(*job->kv, at);
    if (sn_idle_away(*job->kv) && is_behind(room, job)) return let_others_first(job);
    sn_status status = sn_idle_bring_back(*job->kv, &room->moves, &job->err);
    if (!status && sn_kv_length(*job->kv) < at)
        status = sn_fail(&job->err, SN_REBUILD, "the session's past is not here: open a new one and replay");
    return status;
}

sn_status sn_room_take(sn_room *room, sn_job *job, bool queued) {
    if (queued && !job->position) return let_others_first(job);
    if (is_behind(room, job) && sn_kv_wanted(*job->kv, rows_left(job))) return let_others_first(job);
    return sn_kv_reserve(*job->kv, rows_left(job), &job->err);
}

/* -- who gives room -------------------------------------------------------------------------------------------------- */

/* Up to n pages of the past. False: that cannot be now. */
static bool set_aside(sn_room *room, sn_kv *kv, size_t n) {
    sn_err err;
    size_t pages = sn_min_size(n, room->moves), left = pages;
    if (!sn_idle_there(room->pool) || room->now_us < room->pause_us) return false;
    sn_status status = sn_idle_set_aside(kv, &left, &err);
    room->moves -= pages - left;
    if (!status) return true;
    room->pause_us = room->now_us + PAUSE_US;
    sn_log(SN_LOG_WARN, "an idle session stays", "text=%s", err.text);
    return false;
}

/* The session that rests for longest, with pages to give; none that had a step after `before_us`. */
static sn_kv *longest_at_rest(const sn_room *room, int64_t before_us) {
    sn_kv *found = NULL;
    for (sn_kv *kv = sn_kv_next(room->pool, NULL); kv; kv = sn_kv_next(room->pool, kv)) {
        const sn_kv_note *note = sn_kv_note_of(kv);
        if (!note->busy && note->used_us <= before_us && sn_idle_movable(kv) &&
            (!found || note->used_us < sn_kv_note_of(found)->used_us))
            found = kv;
    }
    return found;
}

/* The youngest session that waits with pages in its hands, if it is younger than the one that has the claim. */
static sn_job *youngest_waiting(const sn_room *room, sn_job *jobs) {
    sn_job *found = NULL;
    for (sn_job *job = jobs; job; job = job->next)
        if (waits(job) && number_of(job) > room->claim && sn_idle_movable(*job->kv) &&
            (!found || number_of(job) > number_of(found)))
            found = job;
    return found;
}

/* Who is served first of those that wait: who has the claim, else who came first. */
static sn_job *first_waiting(const sn_room *room, sn_job *jobs) {
    sn_job *first = NULL;
    for (sn_job *job = jobs; job; job = job->next) {
        if (!waits(job)) continue;
        if (number_of(job) == room->claim) return job;
        if (!first) first = job;
    }
    return first;
}

static sn_job *make_room(sn_room *room, sn_job *jobs) {
    sn_job *job = first_waiting(room, jobs), *victim;
    if (!job) return NULL;
    bool claims = room->claim && number_of(job) == room->claim;
    for (size_t missing; (missing = sn_kv_missing(*job->kv, rows_left(job)));) {
        sn_kv *kv = longest_at_rest(room, claims ? INT64_MAX : room->now_us - QUIET_US);
        room->more = room->more || (kv && !room->moves);
        if (!kv || !room->moves || !set_aside(room, kv, missing)) break;
    }
    for (size_t missing; claims && (missing = sn_kv_missing(*job->kv, rows_left(job))) && room->moves;) {
        victim = youngest_waiting(room, jobs);
        if (!victim) break;
        if (!victim->position) { /* it has only what it took over, and takes it again when it is its turn */
            sn_kv_rewind(*victim->kv, 0);
            victim->n_done = 0;
            continue;
        }
        if (set_aside(room, *victim->kv, missing)) continue;
        sn_kv_lose(*victim->kv);
        (void)sn_fail(&victim->err, SN_REBUILD,
                      "the cache is full, and an older session needs the room: replay at another node, or later");
        return victim;
    }
    return NULL;
}

sn_job *sn_room_tidy(sn_room *room, sn_job *jobs) {
    sn_job *lost = make_room(room, jobs);
    int64_t after_us = sn_idle_after_us(room->pool);
    while (after_us) {
        sn_kv *kv = longest_at_rest(room, room->now_us - after_us);
        room->more = room->more || (kv && !room->moves);
        if (!kv || !room->moves || !set_aside(room, kv, SIZE_MAX)) break;
    }
    return lost;
}
