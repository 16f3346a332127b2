#include "node/scheduler.h"

#include "base/clock.h"
#include "base/mem.h"
#include "node/past.h"
#include "node/room.h"
#include "node/training.h"
#include "node/writers.h"

#include <stdlib.h>
#include <string.h>

enum { READ_WAIT_US = 10000000, OVERTAKEN_US_MAX = 5000000 };
enum { KINDS = 8 }; /* of passes, whose turns are remembered */
enum { TRAIN_EVERY_US = 1000000 }; /* beside others' steps one sequence is trained each second, so that nobody starves */

/* What the rows of a pass have in common: they go through the same blocks, with the same tuning. */
typedef struct kind {
    int first, end;
    sn_tuning **tuning;
} kind;

struct sn_scheduler {
    sn_span *span;
    sn_kv_pool *pool;
    sn_room room;
    sn_job *jobs;      /* in order of priority, then of arrival */
    sn_job *trainings; /* whose turn it is, first */
    sn_trainer *trainer;
    int64_t trained_us; /* when a sequence was trained last */
    uint64_t passes;
    int whole_rows; /* of the newest run, over the whole span */
    sn_guard_watch watch;
    bool waiting, copied; /* copied: a part of a past was, in this round; one a round bounds the delay that they add */
    kind kinds[KINDS];                /* of the newest passes, the newest first */
    sn_job *lead;                     /* of the pass being formed: it names its kind */
    sn_job *chosen[SN_SPAN_ROWS_MAX];
    sn_span_part parts[SN_SPAN_ROWS_MAX];
    uint64_t row_ns;      /* what a row adds to a pass; 0: not known */
    int64_t gather_us;    /* how long a pass may wait for more rows */
    sn_writers writers;
    uint64_t round, turn; /* number of the pass being formed; the client that had room for a prompt last */
    int n_chosen, n_rows;
};

void sn_job_free(sn_job **job) {
    sn_job *j = *job;
    if (!j) return;
    sn_shared_unref(j->rows);
    sn_shared_unref(j->output);
    sn_training_free(&j->training);
    free(j);
    *job = NULL;
}

sn_status sn_scheduler_new(sn_span *span, sn_kv_pool *pool, sn_scheduler **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->span = span;
    (*out)->pool = pool;
    sn_room_init(&(*out)->room, pool);
    status = sn_trainer_new(span, &(*out)->trainer, err);
    if (status) sn_scheduler_free(out);
    return status;
}

void sn_scheduler_free(sn_scheduler **scheduler) {
    if (!*scheduler) return;
    sn_job *lists[] = {(*scheduler)->jobs, (*scheduler)->trainings};
    for (int i = 0; i < 2; i++)
        for (sn_job *job = lists[i], *next; job; job = next) {
            next = job->next;
            sn_job_free(&job);
        }
    sn_trainer_free(&(*scheduler)->trainer);
    free(*scheduler);
    *scheduler = NULL;
}

/* A job that has begun keeps its place, and one that has waited for a while, so that nobody waits for ever. */
static bool goes_before(const sn_job *job, const sn_job *other) {
    return job->priority > other->priority && !other->started_us && job->arrived_us - other->arrived_us < OVERTAKEN_US_MAX;
}

static bool writes(const sn_job *job) { return job->kind == SN_JOB_STEP && job->n_tokens <= SN_DECODE_ROWS_MAX; }

void sn_scheduler_add(sn_scheduler *scheduler, sn_job *job) {
    sn_job **at = job->kind == SN_JOB_TRAIN ? &scheduler->trainings : &scheduler->jobs;
    if (writes(job)) sn_writers_here(&scheduler->writers, job->session);
    else sn_writers_forget(&scheduler->writers, job->session);
    while (*at && !goes_before(job, *at)) at = &(*at)->next;
    job->next = *at;
    *at = job;
}

void sn_scheduler_pace(sn_scheduler *scheduler, uint64_t decode_us, uint64_t row_ns) {
    scheduler->gather_us = decode_us / 2 < SN_GATHER_US_MAX ? (int64_t)decode_us / 2 : SN_GATHER_US_MAX;
    scheduler->row_ns = row_ns;
}

int64_t sn_scheduler_gathers(const sn_scheduler *s, int64_t now_us) {
    int rows = 0;
    int64_t came_us = INT64_MAX;
    for (const sn_job *job = s->jobs; job; job = job->next) {
        if (!writes(job) || job->started_us) return 0;
        rows += job->n_tokens;
        if (job->arrived_us < came_us) came_us = job->arrived_us;
    }
    if (!rows || rows >= SN_GATHER_ROWS || s->trainings || !sn_writers_company(&s->writers)) return 0;
    int64_t until_us = came_us + s->gather_us;
    return now_us < until_us ? until_us : 0;
}

bool sn_scheduler_idle(const sn_scheduler *scheduler) { return !scheduler->jobs && !scheduler->trainings; }
bool sn_scheduler_waiting(const sn_scheduler *scheduler) {
    return scheduler->jobs && scheduler->waiting && !scheduler->trainings && !sn_scheduler_moving(scheduler);
}
/* Those that were moved may be waited for, as well as those that are to be. */
bool sn_scheduler_moving(const sn_scheduler *scheduler) {
    const sn_room *room = &scheduler->room;
    return room->more || (scheduler->jobs && room->moves < room->moves_max);
}
uint64_t sn_scheduler_passes(const sn_scheduler *scheduler) { return scheduler->passes; }
int sn_scheduler_rows(const sn_scheduler *scheduler) { return scheduler->whole_rows; }
const sn_guard_watch *sn_scheduler_watch(const sn_scheduler *scheduler) { return &scheduler->watch; }

/* Moves the jobs that have ended from the list to the front of *done. */
static void collect(sn_job **from, sn_job **done) {
    sn_job **at = from;
    while (*at) {
        sn_job *job = *at;
        if (!job->finished_us) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        job->next = *done;
        *done = job;
    }
}

/* A session that lost a step has no rows of it, nor room for them: the past ends where the step began. */
static void undo(sn_job *job) {
    if (*job->kv && sn_kv_length(*job->kv) >= job->position) sn_kv_rewind(*job->kv, job->position);
}

static void end_job(sn_job *job, sn_status status, int64_t now_us) {
    job->status = status;
    job->finished_us = now_us;
    if (status && job->kv && job->kind != SN_JOB_READ) undo(job);
}

/* -- rows that need not be computed -------------------------------------------------------------------------------- */

static int at(const sn_job *job) { return job->position + job->n_done; } /* of its next row */
static float *output_of(const sn_scheduler *s, const sn_job *job, int row) {
    return (float *)sn_shared_data(job->output) + (size_t)row * (size_t)sn_span_hparams(s->span)->n_embd;
}

/* Number of the page that holds `position`, counted from the page of the job's first row: an index of job->ends. */
static int page_of(const sn_job *job, int position) {
    return position / SN_KV_PAGE_TOKENS - job->position / SN_KV_PAGE_TOKENS;
}
/* How many of job->ends there are. */
static int full_pages(const sn_job *job) { return job->shares ? page_of(job, job->position + job->n_tokens) : 0; }

/* Takes over the pages behind the job's last row that are known. */
static void adopt(sn_scheduler *s, sn_job *job) {
    int next = page_of(job, at(job));
    if (at(job) % SN_KV_PAGE_TOKENS || next >= full_pages(job)) return;
    int pages = sn_prefix_adopt(*job->kv, &job->scope, job->ends + next, full_pages(job) - next,
                                output_of(s, job, job->n_done));
    job->n_done += pages * SN_KV_PAGE_TOKENS;
}

/* Whether a job that is in the pass already will bring the page that this one needs next. */
static bool comes_soon(const sn_scheduler *s, const sn_job *job) {
    int next = page_of(job, at(job));
    if (at(job) % SN_KV_PAGE_TOKENS || next >= full_pages(job) || !sn_prefix_sharing(s->pool)) return false;
    for (int i = 0; i < s->n_chosen; i++) {
        const sn_job *other = s->chosen[i];
        int same = page_of(other, at(job));
        if (at(other) <= at(job) && same < full_pages(other) && !memcmp(&other->scope, &job->scope, sizeof job->scope) &&
            !memcmp(&other->ends[same], &job->ends[next], sizeof job->ends[next]))
            return true;
    }
    return false;
}

/* Rows up to a page that is known, `rows` at most: from there on it is taken over. */
static int rows_to_known(const sn_scheduler *s, const sn_job *job, int rows) {
    for (int page = page_of(job, at(job)) + 1; page < full_pages(job); page++) {
        int begin = (job->position / SN_KV_PAGE_TOKENS + page) * SN_KV_PAGE_TOKENS;
        if (begin >= at(job) + rows) break;
        if (sn_prefix_knows(s->pool, &job->scope, &job->ends[page])) return begin - at(job);
    }
    return rows;
}

/* -- forming a pass ------------------------------------------------------------------------------------------------ */

static sn_status reserve(sn_scheduler *s, sn_job *job, bool queued) {
    sn_status status = sn_room_ready(&s->room, job);
    if (status || job->kind == SN_JOB_READ) return status;
    if (job->kind == SN_JOB_STEP) adopt(s, job);
    return sn_room_take(&s->room, job, queued);
}

/* Before its first pass a step rewinds, and takes room for all of its tokens or waits; what is read has to be there. True if
 * it may run. */
static bool admit(sn_scheduler *s, sn_job *job, int64_t now_us, bool *queued) {
    if (job->started_us) return true;
    if (!job->deadline_us) { /* a read has none of its own */
        job->arrived_us = now_us;
        job->deadline_us = now_us + READ_WAIT_US;
    }
    sn_status status = reserve(s, job, *queued);
    if (status == SN_RETRY && now_us < job->deadline_us) {
        *queued = job->waited = true;
        return false;
    }
    if (!status) job->started_us = now_us;
    if (status || job->n_done == job->n_tokens) {
        end_job(job, status, now_us);
        return false;
    }
    return true;
}

static bool is_of(const sn_job *job, const kind *k) {
    return job->first == k->first && job->end == k->end && job->tuning == k->tuning;
}
static kind kind_of(const sn_job *job) { return (kind){job->first, job->end, job->tuning}; }

static bool may_run(const sn_job *job) { return job->kind == SN_JOB_STEP && job->started_us && !job->finished_us; }

/* How many passes ago one of the job's kind was run; KINDS: longer ago, or never. */
static int last_turn(const sn_scheduler *s, const sn_job *job) {
    int i = 0;
    while (i < KINDS && !is_of(job, &s->kinds[i])) i++;
    return i;
}

/* The oldest job of the kind that has waited longest, so that no kind of work can keep another one out for ever. */
static sn_job *choose_lead(const sn_scheduler *s) {
    sn_job *best = NULL;
    int longest = -1;
    for (sn_job *job = s->jobs; job; job = job->next) {
        int turn = may_run(job) ? last_turn(s, job) : -1;
        if (turn <= longest) continue;
        longest = turn;
        best = job;
    }
    return best;
}

/* Puts up to `rows` of the job's remaining rows into the pass, if it is of its kind. */
static void choose(sn_scheduler *s, sn_job *job, int rows) {
    int left = job->n_tokens - job->n_done, room = SN_SPAN_ROWS_MAX - s->n_rows;
    if (rows > left) rows = left;
    if (rows > room) rows = room;
    const kind wanted = kind_of(s->lead);
    if (rows <= 0 || !is_of(job, &wanted) || comes_soon(s, job)) return;
    rows = rows_to_known(s, job, rows);
    s->chosen[s->n_chosen] = job;
    s->parts[s->n_chosen++] = (sn_span_part){*job->kv, &job->input, job->n_done, rows, output_of(s, job, job->n_done)};
    s->n_rows += rows;
}

/* One part of a past, in or out. */
static void copy(sn_scheduler *s, sn_job *job, int64_t now_us) {
    s->copied = true;
    job->started_us = now_us;
    sn_status status = job->kind == SN_JOB_READ ? sn_past_read(s->span, job) : sn_past_write(s->span, job);
    end_job(job, status, sn_now_us());
}

static bool is_decoding(const sn_job *job) { return job->n_tokens - job->n_done <= SN_DECODE_ROWS_MAX; } /* or a prompt's end */

/* Closes what is to be closed, ends what was cancelled, copies a part of a past, makes room for steps. */
static void attend(sn_scheduler *s, int64_t now_us) {
    bool queued = false;
    for (sn_job *job = s->jobs; job; job = job->next) {
        if (job->kind == SN_JOB_CLOSE) {
            sn_kv_free(job->kv);
            end_job(job, SN_OK, now_us);
        } else if (atomic_load(&job->cancelled)) {
            end_job(job, sn_fail(&job->err, SN_REFUSED, "the session was closed"), now_us);
        } else if (job->kind == SN_JOB_READ || job->kind == SN_JOB_WRITE) {
            if (!s->copied && admit(s, job, now_us, &queued)) copy(s, job, now_us);
        } else {
            (void)admit(s, job, now_us, &queued);
        }
    }
}

/* Decode steps of the lead's kind go into the pass. True if any wait, for this pass or for one of another kind. */
static bool choose_decoding(sn_scheduler *s, int64_t now_us) {
    bool any = false;
    for (sn_job *job = s->jobs; job && s->lead; job = job->next) {
        if (!may_run(job) || !is_decoding(job)) continue;
        any = true;
        if (writes(job)) sn_writers_note(&s->writers, job->session, job->n_tokens, s->round, now_us);
        choose(s, job, SN_DECODE_ROWS_MAX);
    }
    return any;
}

/* Rows of prompts for a pass. Those who wrote just now come back while it runs: they are not to find a long one. Whole eights, for
 * the kernels take that many at once. */
static int prompt_rows(sn_scheduler *s, bool decoding, int64_t now_us) {
    enum { WHOLE = 8 };
    int writing = sn_writers_rows(&s->writers, now_us);
    if (!decoding && !writing) return SN_SPAN_ROWS_MAX;
    if (!s->row_ns) return SN_PROMPT_ROWS_BESIDE;
    uint64_t rows = SN_PROMPT_DELAY_US * 1000ull / s->row_ns;
    if (rows < (uint64_t)writing) rows = (uint64_t)writing;
    if (rows > SN_SPAN_ROWS_MAX) rows = SN_SPAN_ROWS_MAX;
    return rows < WHOLE ? WHOLE : (int)rows / WHOLE * WHOLE;
}

/* The oldest prompt, not yet looked at in this pass, of the client whose turn it is: clients come one after the other by their
 * numbers, so that one with many prompts does not keep another waiting for all of them. */
static sn_job *next_prompt(const sn_scheduler *s) {
    sn_job *best = NULL;
    for (sn_job *job = s->jobs; job; job = job->next) {
        if (!may_run(job) || is_decoding(job) || job->round == s->round) continue;
        if (!best || job->client - s->turn - 1 < best->client - s->turn - 1) best = job; /* modulo 2^64 */
    }
    return best;
}

static void form_pass(sn_scheduler *s, int64_t now_us) {
    s->n_chosen = s->n_rows = 0;
    s->copied = false;
    s->whole_rows = 0;
    attend(s, now_us);
    s->lead = choose_lead(s);
    s->waiting = !s->lead && !s->copied;
    int budget = prompt_rows(s, choose_decoding(s, now_us), now_us);
    s->round++;
    for (sn_job *job; budget > 0 && (job = next_prompt(s));) {
        int before = s->n_rows;
        job->round = s->round;
        adopt(s, job);
        if (job->n_done == job->n_tokens) end_job(job, SN_OK, now_us);
        choose(s, job, budget);
        if (s->n_rows > before) s->turn = job->client;
        budget -= s->n_rows - before;
    }
}

static void run_pass(sn_scheduler *s) {
    sn_err err;
    int first = s->chosen[0]->first, end = s->chosen[0]->end;
    uint64_t moved = 0, planned = sn_span_planned_bytes(s->span, first, end, s->n_chosen, s->parts);
    sn_tuning **tuning = s->chosen[0]->tuning;
    sn_status status = sn_span_forward_tuned(s->span, first, end, tuning ? *tuning : NULL, s->n_chosen, s->parts, &moved, &err);
    int64_t now = sn_now_us();
    sn_guard_watch_step(&s->watch, moved, planned, now);
    s->passes++;
    memmove(s->kinds + 1, s->kinds, (KINDS - 1) * sizeof *s->kinds);
    s->kinds[0] = kind_of(s->chosen[0]);
    if (!status && first == sn_span_first(s->span) && end == sn_span_end(s->span)) s->whole_rows = s->n_rows;
    for (int i = 0; i < s->n_chosen; i++) {
        sn_job *job = s->chosen[i];
        if (!status && job->shares)
            sn_prefix_record(*job->kv, &job->scope, job->ends + page_of(job, at(job)), s->parts[i].n_rows,
                             s->parts[i].output);
        job->n_done += s->parts[i].n_rows;
        if (status) job->err = err;
        if (status || job->n_done == job->n_tokens) end_job(job, status, now);
    }
}

/* One sequence of the training job whose turn it is; then it is the next one's. */
static void train(sn_scheduler *s, int64_t now_us) {
    sn_job *job = s->trainings;
    if (!job) return;
    s->trained_us = now_us;
    if (!sn_trainer_work(s->trainer, job)) {
        s->trainings = job->next;
        sn_scheduler_add(s, job);
    }
}

sn_job *sn_scheduler_run(sn_scheduler *s, int64_t now_us) {
    sn_room_begin(&s->room, s->jobs, now_us);
    form_pass(s, now_us);
    sn_job *lost = sn_room_tidy(&s->room, s->jobs);
    if (lost) end_job(lost, lost->err.status, now_us);
    if (s->n_chosen) run_pass(s);
    if (!s->n_chosen || now_us - s->trained_us > TRAIN_EVERY_US) train(s, now_us);
    sn_job *done = NULL;
    collect(&s->jobs, &done);
    collect(&s->trainings, &done);
    return done;
}
