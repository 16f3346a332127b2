/* One lock protects the queue and what is known about workers. A worker holds it except while it opens, uses, polls or
 * closes its session. Dispatching happens where the state changes: when jobs come, and when a worker becomes free.
 *
 * A worker is free when it has no job. A free worker polls its session every second, so that its KV cache moves when a
 * node drains; a job that is given to it meanwhile waits for the end of that call, which takes no time. */
#include "gateway/queue/queue.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    POLL_MS = 1000,
    WORKER_STACK = 2 << 20,
    KEPT_SHARE = 8,      /* who runs a job leaves this part of the sessions (of four or more) to others, at least one */
    COMPUTING_SHARE = 4, /* beside jobs of others, jobs of this part of the sessions compute at once */
    ANSWER_PREFIX_MAX = 32, /* tokens behind the last message of a prompt: the mark of an answer, and of its thoughts */
    CLOSING_MS = 20,        /* how often a job looks whether idle sessions are closed that make room for it, */
    CLOSING_LOOKS = 100,    /* and how many times at most */
    OVERTAKEN_MAX = 8,      /* a job waits behind no more shorter ones that came after it */
};

typedef struct sn_server_worker {
    sn_server_queue *queue;
    pthread_t thread;
    pthread_cond_t wake;
    swarm_cancel *cancel;
    swarm_session *session; /* of its thread; others look only whether there is one */
    sn_server_job *job;     /* NULL: free */
    int32_t *ids;           /* (n_ids): the session's tokens at the end of the last job */
    size_t n_ids, ids_capacity;
    size_t n_prompt;        /* of them the last job's prompt */
    uint64_t owner;         /* of the last job, and so of the session's tokens */
    int64_t used_us;        /* end of the last job */
    bool started, gives_up; /* gives_up: its idle session makes room */
} sn_server_worker;

struct sn_server_queue {
    sn_server_queue_options options;
    pthread_mutex_t lock;
    pthread_cond_t ended;           /* a job has ended */
    sn_server_worker *workers;      /* (options.sessions_max) */
    sn_server_job *first;           /* the queue, by turns */
    uint64_t turn;                  /* the latest one that was served */
    uint64_t computes;              /* counts turns to compute */
    size_t queued, running, owners; /* jobs; owners of those that run */
    bool draining, stopping;
};

/* -- the choice of a worker -- */

/* Tokens of other owners count for nothing: how fast an answer comes, and what its reply says of cached tokens, would
 * tell one owner what another has sent. */
static size_t common_beginning(const sn_server_worker *w, const sn_server_job *job) {
    if (w->owner != job->owner) return 0;
    size_t n = sn_min_size(w->n_ids, job->n_prompt), same = 0;
    while (same < n && w->ids[same] == job->prompt[same]) same++;
    return same;
}

/* Whether a prompt that begins with so many of the session's tokens is the next turn of its conversation, or the last
 * turn again: it has the last prompt in it, but for what a template writes before an answer. Whether it has the answer,
 * too, does not count: clients leave thoughts out. */
static bool is_next_turn(const sn_server_worker *w, size_t same) {
    return same && same + ANSWER_PREFIX_MAX >= w->n_prompt && 2 * same > w->n_prompt;
}

/* The free worker that a job goes to; NULL: all work. The session whose conversation the prompt continues is taken;
 * else a worker without a session, so that conversations with one beginning do not cut each other; else the session
 * that has most of the prompt, if that is half of the session; else the one that was used longest ago. */
static sn_server_worker *choose_worker(sn_server_queue *q, const sn_server_job *job) {
    sn_server_worker *next = NULL, *alike = NULL, *other = NULL;
    size_t most_next = 0, most_alike = 0;
    for (size_t i = 0; i < q->options.sessions_max; i++) {
        sn_server_worker *w = &q->workers[i];
        if (w->job) continue;
        size_t same = job->fresh ? 0 : common_beginning(w, job);
        if (same > most_next && is_next_turn(w, same)) next = w, most_next = same;
        if (same > most_alike && same > w->n_ids / 2) alike = w, most_alike = same;
        bool better = !other || (other->session && (!w->session || w->used_us < other->used_us));
        if (better) other = w;
    }
    return next ? next : other && !other->session ? other : alike ? alike : other;
}

/* The session that was used longest ago of those that are idle and do not give up yet; NULL: there is none. */
static sn_server_worker *oldest_idle(sn_server_queue *q) {
    sn_server_worker *oldest = NULL;
    for (size_t i = 0; i < q->options.sessions_max; i++) {
        sn_server_worker *w = &q->workers[i];
        if (w->job || !w->session || w->gives_up) continue;
        if (!oldest || w->used_us < oldest->used_us) oldest = w;
    }
    return oldest;
}

/* Tokens of sessions, as far as they are known: of jobs their prompts. */
static size_t tokens_held(const sn_server_queue *q) {
    size_t n = 0;
    for (size_t i = 0; i < q->options.sessions_max; i++) {
        const sn_server_worker *w = &q->workers[i];
        if (w->job)
            n += w->job->n_prompt > w->n_ids ? w->job->n_prompt : w->n_ids;
        else if (!w->gives_up)
            n += w->n_ids;
    }
    return n;
}

static void give_up(sn_server_worker *w) {
    w->gives_up = true;
    pthread_cond_signal(&w->wake);
}

/* Nodes keep the memory of a session until it ends: idle ones end for the jobs. */
static void make_room(sn_server_queue *q) {
    sn_server_worker *w;
    while (q->options.tokens_max && tokens_held(q) > q->options.tokens_max && (w = oldest_idle(q))) give_up(w);
}

/* A node has no room for a job: idle sessions end that hold as many tokens as it has, those that were used longest ago
 * first. False: there is none. */
static bool give_room_to(sn_server_queue *q, const sn_server_job *job) {
    sn_server_worker *w;
    size_t given = 0;
    bool any = false;
    while ((!any || given < job->n_prompt) && (w = oldest_idle(q))) {
        given += w->n_ids;
        any = true;
        give_up(w);
    }
    return any;
}

static bool any_gives_up(const sn_server_queue *q) {
    for (size_t i = 0; i < q->options.sessions_max; i++)
        if (q->workers[i].gives_up) return true;
    return false;
}

static void wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ms) {
    const int64_t until_us = sn_now_us() + ms * 1000;
    const struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
    (void)pthread_cond_timedwait(cond, lock, &until);
}

/* -- shares of owners -- */

/* Jobs of the owner that run. */
static size_t count_running(const sn_server_queue *q, uint64_t owner) {
    size_t n = 0;
    for (size_t i = 0; i < q->options.sessions_max; i++) {
        const sn_server_job *job = q->workers[i].job;
        n += job && job->owner == owner;
    }
    return n;
}

static size_t count_owners(const sn_server_queue *q) {
    size_t n = 0;
    for (size_t i = 0; i < q->options.sessions_max; i++) {
        size_t k = 0;
        while (k < i &&
               !(q->workers[i].job && q->workers[k].job && q->workers[k].job->owner == q->workers[i].job->owner))
            k++;
        n += q->workers[i].job && k == i;
    }
    return n;
}

/* Jobs of one owner that may compute at once. */
static size_t computing_max(const sn_server_queue *q) {
    const size_t most = q->owners > 1 ? q->options.sessions_max / COMPUTING_SHARE / q->owners : q->options.sessions_max;
    return most ? most : 1;
}

/* Whether so many of the owner's running jobs have an earlier turn to compute that this one waits. */
static bool waits_for_turn(const sn_server_queue *q, const sn_server_job *job) {
    size_t before = 0;
    for (size_t i = 0; i < q->options.sessions_max; i++) {
        const sn_server_job *other = q->workers[i].job;
        before += other && other != job && other->owner == job->owner && other->computes < job->computes;
    }
    return before >= computing_max(q);
}

/* After the number of running jobs has changed, or the turn of one. */
static void wake_paused(sn_server_queue *q) {
    for (size_t i = 0; i < q->options.sessions_max; i++)
        if (q->workers[i].job && q->workers[i].job->paused) pthread_cond_signal(&q->workers[i].wake);
}

void sn_server_queue_take_turn(sn_server_queue *q, sn_server_job *job) {
    pthread_mutex_lock(&q->lock);
    job->computes = ++q->computes; /* behind the others of its owner */
    if (q->owners > 1) wake_paused(q);
    job->paused = true;
    while (!job->cancelled && waits_for_turn(q, job)) wait_ms(&job->worker->wake, &q->lock, POLL_MS);
    job->paused = false;
    pthread_mutex_unlock(&q->lock);
}

/* -- the queue and the workers -- */

/* Sessions that the owner leaves free for others: none if it runs nothing. */
static size_t left_to_others(const sn_server_queue *q, uint64_t owner) {
    size_t all = q->options.sessions_max;
    if (all < 4 || !count_running(q, owner)) return 0;
    return all < KEPT_SHARE ? 1 : all / KEPT_SHARE;
}

/* The first job of the queue whose owner may run one more; NULL: none. */
static sn_server_job **next_job(sn_server_queue *q) {
    const size_t free_sessions = q->options.sessions_max - q->running;
    sn_server_job **at = &q->first;
    while (*at && free_sessions <= left_to_others(q, (*at)->owner)) at = &(*at)->next;
    return *at ? at : NULL;
}

static void dispatch(sn_server_queue *q) {
    for (sn_server_job **at; (at = next_job(q));) {
        sn_server_job *job = *at;
        sn_server_worker *w = choose_worker(q, job);
        if (!w) break;
        *at = job->next;
        if (job->turn > q->turn) q->turn = job->turn;
        q->queued--;
        q->running++;
        job->waits = false;
        job->computes = ++q->computes;
        job->worker = w;
        w->job = job;
        pthread_cond_signal(&w->wake);
    }
    q->owners = count_owners(q);
    wake_paused(q);
    make_room(q);
}

/* -- a worker -- */

static void close_session(sn_server_worker *w) {
    swarm_session *session = w->session;
    w->session = NULL;
    w->n_ids = 0;
    w->gives_up = false;
    pthread_mutex_unlock(&w->queue->lock);
    swarm_session_close(session);
    pthread_mutex_lock(&w->queue->lock);
}

static void care_for_idle_session(sn_server_worker *w) {
    sn_server_queue *q = w->queue;
    if (!w->session) return;
    if (w->gives_up || sn_now_us() - w->used_us > q->options.idle_ms * 1000) {
        close_session(w);
        return;
    }
    swarm_error *error = NULL;
    pthread_mutex_unlock(&q->lock);
    if (swarm_session_poll(w->session, &error)) swarm_error_free(error); /* the next job meets the failure, too */
    pthread_mutex_lock(&q->lock);
}

/* Remembers the session's tokens; without memory for them it is as if it had none. */
static void note_tokens(sn_server_worker *w, size_t n_prompt) {
    size_t n = 0;
    const int32_t *ids = w->session ? swarm_session_tokens(w->session, &n) : NULL;
    w->n_ids = 0;
    if (sn_grow(&w->ids, &w->ids_capacity, n, sizeof *w->ids, NULL)) return;
    if (n) memcpy(w->ids, ids, n * sizeof *ids);
    w->n_ids = n;
    w->n_prompt = sn_min_size(n_prompt, n);
}

static swarm_code open_session(sn_server_worker *w, swarm_session **session, swarm_error **error) {
    const sn_server_queue_options *o = &w->queue->options;
    return swarm_session_open(o->model, o->connection, o->session, NULL, w->cancel, session, error);
}

static swarm_code run_in_session(sn_server_worker *w, sn_server_job *job, swarm_error **error) {
    swarm_session *session = NULL;
    if (job->fresh && w->session) { /* nodes count a client's sessions */
        pthread_mutex_lock(&w->queue->lock);
        close_session(w);
        pthread_mutex_unlock(&w->queue->lock);
    }
    swarm_code code = job->fresh || !w->session ? open_session(w, &session, error) : SWARM_OK;
    if (code) return code;
    if (job->fresh) {
        code = job->run(job->ctx, session, error);
        swarm_session_close(session);
        return code;
    }
    if (session) {
        pthread_mutex_lock(&w->queue->lock);
        w->session = session;
        pthread_mutex_unlock(&w->queue->lock);
    }
    if (!session && w->owner != job->owner) code = swarm_session_rewind(w->session, 0, error);
    return code ? code : job->run(job->ctx, w->session, error);
}

/* The worker takes its next job when it returns from this one. */
static void set_free(sn_server_worker *w) {
    w->job = NULL;
    w->queue->running--;
    dispatch(w->queue);
}

/* Runs the job, and once more where idle sessions of this server had the room that it needs at a node. */
static swarm_code run_with_room(sn_server_worker *w, sn_server_job *job, swarm_error **error) {
    sn_server_queue *q = w->queue;
    for (;;) {
        swarm_code code = run_in_session(w, job, error);
        if (code != SWARM_RETRY || strcmp(swarm_error_reason(*error), "no_room") != 0) return code;
        pthread_mutex_lock(&q->lock);
        bool again = give_room_to(q, job) && !job->repeated && !job->cancelled;
        if (again) again = job->may_repeat && job->may_repeat(job->ctx);
        if (again && w->session) close_session(w); /* it avoids the node that was full */
        for (int i = 0; again && any_gives_up(q) && i < CLOSING_LOOKS; i++) wait_ms(&w->wake, &q->lock, CLOSING_MS);
        job->repeated = true;
        pthread_mutex_unlock(&q->lock);
        if (!again) return code;
        sn_log_rated(SN_LOG_INFO, "idle sessions closed", "text=%s", swarm_error_text(*error));
        swarm_error_free(*error);
        *error = NULL;
    }
}

/* The worker is free before the end is told: a client that has its answer may at once send the request that continues
 * it. After a failure its session is closed first, which may take a while, so that the next job finds another route. */
static void run_job(sn_server_worker *w) {
    sn_server_queue *q = w->queue;
    sn_server_job *job = w->job;
    swarm_error *error = NULL;
    swarm_code code = SWARM_CANCELLED;
    bool run = !job->cancelled;
    if (run) swarm_cancel_clear(w->cancel);
    pthread_mutex_unlock(&q->lock);
    if (run) code = run_with_room(w, job, &error);
    if (code && code != SWARM_CANCELLED) sn_log_rated(SN_LOG_WARN, "job failed", "text=%s", swarm_error_text(error));
    pthread_mutex_lock(&q->lock);
    const bool broken = code && code != SWARM_CANCELLED && w->session;
    w->used_us = sn_now_us();
    w->gives_up = false; /* it has the memory */
    if (run) w->owner = job->owner;
    if (!broken) {
        note_tokens(w, job->n_prompt);
        set_free(w);
    }
    pthread_mutex_unlock(&q->lock);
    job->end(job->ctx, code, error);
    swarm_error_free(error);
    pthread_mutex_lock(&q->lock);
    if (broken) {
        close_session(w);
        set_free(w);
    }
    job->ended = true;
    pthread_cond_broadcast(&q->ended);
}

static void *work(void *worker) {
    sn_server_worker *w = worker;
    sn_server_queue *q = w->queue;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        if (w->job)
            run_job(w);
        else if (q->stopping)
            break;
        else {
            care_for_idle_session(w);
            if (!w->job && !q->stopping) wait_ms(&w->wake, &q->lock, POLL_MS);
        }
    }
    if (w->session) close_session(w);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* -- jobs -- */

/* The turn of the owner's next job. */
static uint64_t next_turn(const sn_server_queue *q, uint64_t owner) {
    uint64_t turn = q->turn;
    for (size_t i = 0; i < q->options.sessions_max; i++) {
        const sn_server_job *job = q->workers[i].job;
        if (job && job->owner == owner && job->turn > turn) turn = job->turn;
    }
    for (const sn_server_job *job = q->first; job; job = job->next)
        if (job->owner == owner && job->turn > turn) turn = job->turn;
    return turn + 1;
}

/* A longer job of the owner gives its turn to the new one, and takes that of the next longer one, and so on; the last
 * has the new turn. */
static void insert(sn_server_queue *q, sn_server_job *job, uint64_t turn) {
    sn_server_job **at = &q->first;
    job->worker = NULL;
    job->waits = true;
    job->paused = job->cancelled = job->repeated = job->ended = false;
    job->overtaken = 0;
    for (; *at && (*at)->turn <= turn; at = &(*at)->next) {
        sn_server_job *other = *at;
        if (other->owner != job->owner || other->n_prompt <= job->n_prompt || other->overtaken == OVERTAKEN_MAX)
            continue;
        other->overtaken++;
        job->next = other->next;
        job->turn = other->turn;
        *at = job;
        job = other;
    }
    job->next = *at;
    job->turn = turn;
    *at = job;
    q->queued++;
}

/* Takes the last n jobs out of the queue, if all of them have later turns than `turn`: their owners have more jobs than
 * that of the new job. NULL: they stay. */
static sn_server_job *displace(sn_server_queue *q, size_t n, uint64_t turn) {
    sn_server_job **at = &q->first;
    if (n > q->queued) return NULL;
    for (size_t i = n; i < q->queued; i++) at = &(*at)->next;
    sn_server_job *out = *at;
    if (!out || out->turn <= turn) return NULL;
    *at = NULL;
    q->queued -= n;
    for (sn_server_job *job = out; job; job = job->next) job->cancelled = true, job->waits = false;
    return out;
}

/* With the lock held, which is free while a job of the queue is told its end: that takes other locks. */
static void end_unrun(sn_server_queue *q, sn_server_job *job, swarm_code code) {
    pthread_mutex_unlock(&q->lock);
    job->end(job->ctx, code, NULL);
    pthread_mutex_lock(&q->lock);
    job->ended = true;
    pthread_cond_broadcast(&q->ended);
}

sn_status sn_server_queue_submit(sn_server_queue *q, sn_server_job *const *jobs, size_t n, sn_err *err) {
    sn_status status = SN_OK;
    sn_server_job *displaced = NULL;
    pthread_mutex_lock(&q->lock);
    size_t free_workers = q->options.sessions_max - q->running; /* of those that wait, none is free */
    const size_t room = free_workers + q->options.queue_max - q->queued;
    const uint64_t turn = n ? next_turn(q, jobs[0]->owner) : 0;
    if (n > room && !q->draining) displaced = displace(q, n - room, turn + n - 1);
    if (q->draining)
        status = sn_fail(err, SN_RETRY, "the server is shutting down");
    else if (n > room && !displaced)
        status = sn_fail(err, SN_RETRY, "%zu requests wait already: try again later", q->queued);
    if (status) err->retry_after_ms = q->draining ? 0 : SN_SERVER_RETRY_AFTER_MS;
    for (size_t i = 0; i < n && !status; i++) insert(q, jobs[i], turn + i);
    dispatch(q);
    for (sn_server_job *job = displaced, *next; job; job = next) {
        next = job->next;
        end_unrun(q, job, SWARM_RETRY);
    }
    pthread_mutex_unlock(&q->lock);
    return status;
}

static void remove_from_queue(sn_server_queue *q, const sn_server_job *job) {
    sn_server_job **at = &q->first;
    while (*at && *at != job) at = &(*at)->next;
    if (!*at) return;
    *at = job->next;
    q->queued--;
}

/* With the lock held. */
static void cancel_job(sn_server_queue *q, sn_server_job *job) {
    if (job->ended || job->cancelled) return;
    job->cancelled = true;
    if (!job->waits) {
        if (job->worker->job == job) swarm_cancel_set(job->worker->cancel); /* else its end is being told */
        if (job->paused) pthread_cond_signal(&job->worker->wake);
        return;
    }
    remove_from_queue(q, job);
    end_unrun(q, job, SWARM_CANCELLED);
}

void sn_server_queue_cancel(sn_server_queue *q, sn_server_job *job) {
    pthread_mutex_lock(&q->lock);
    cancel_job(q, job);
    pthread_mutex_unlock(&q->lock);
}

void sn_server_queue_cancel_all(sn_server_queue *q) {
    pthread_mutex_lock(&q->lock);
    while (q->first) cancel_job(q, q->first);
    for (size_t i = 0; i < q->options.sessions_max; i++)
        if (q->workers[i].job) cancel_job(q, q->workers[i].job);
    pthread_mutex_unlock(&q->lock);
}

void sn_server_queue_finish(sn_server_queue *q, sn_server_job *job) {
    pthread_mutex_lock(&q->lock);
    while (!job->ended) pthread_cond_wait(&q->ended, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void sn_server_queue_drain(sn_server_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->draining = true;
    pthread_mutex_unlock(&q->lock);
}

sn_server_queue_load sn_server_queue_get_load(sn_server_queue *q) {
    pthread_mutex_lock(&q->lock);
    sn_server_queue_load load = {.running = q->running, .queued = q->queued, .draining = q->draining};
    for (size_t i = 0; i < q->options.sessions_max; i++) load.sessions += q->workers[i].session != NULL;
    pthread_mutex_unlock(&q->lock);
    return load;
}

/* -- start and end -- */

static sn_status start_worker(sn_server_worker *w, sn_server_queue *q, const pthread_condattr_t *monotonic,
                              sn_err *err) {
    pthread_attr_t attributes;
    w->queue = q;
    pthread_cond_init(&w->wake, monotonic);
    w->cancel = swarm_cancel_new();
    if (!w->cancel) return sn_fail(err, SN_STOP, "out of memory for a session");
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, WORKER_STACK);
    int code = pthread_create(&w->thread, &attributes, work, w);
    pthread_attr_destroy(&attributes);
    if (code) return sn_fail(err, SN_STOP, "cannot start a thread for a session: %s", strerror(code));
    w->started = true;
    return SN_OK;
}

sn_status sn_server_queue_new(const sn_server_queue_options *options, sn_server_queue **out, sn_err *err) {
    sn_server_queue *q = NULL;
    pthread_condattr_t monotonic;
    *out = NULL;
    sn_status status = sn_calloc(&q, 1, sizeof *q, err);
    if (status) return status;
    q->options = *options;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->ended, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    status = sn_calloc(&q->workers, options->sessions_max, sizeof *q->workers, err);
    for (size_t i = 0; i < options->sessions_max && !status; i++)
        status = start_worker(&q->workers[i], q, &monotonic, err);
    pthread_condattr_destroy(&monotonic);
    if (status) sn_server_queue_free(&q);
    *out = q;
    return status;
}

void sn_server_queue_free(sn_server_queue **queue) {
    sn_server_queue *q = *queue;
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    for (size_t i = 0; q->workers && i < q->options.sessions_max; i++)
        if (q->workers[i].started) pthread_cond_signal(&q->workers[i].wake);
    pthread_mutex_unlock(&q->lock);
    for (size_t i = 0; q->workers && i < q->options.sessions_max; i++) {
        sn_server_worker *w = &q->workers[i];
        if (w->started) pthread_join(w->thread, NULL);
        if (w->queue) pthread_cond_destroy(&w->wake);
        swarm_cancel_free(w->cancel);
        free(w->ids);
    }
    free(q->workers);
    pthread_cond_destroy(&q->ended);
    pthread_mutex_destroy(&q->lock);
    free(q);
    *queue = NULL;
}
