#include "client/bench.h"

#include "base/clock.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GATHER_ROWS = 4, LANES = 16 };

typedef struct request {
    struct request *next;
    const float *row;
    int32_t id;
    sn_status status;
    bool done;
} request;

struct sn_bench_head {
    sn_device *device;
    sn_head *head;
    size_t n_embd, n_vocab;
    int room;
    float *rows, *logits; /* (room, n_embd), (room, n_vocab) */
    pthread_mutex_t lock; /* of what follows; the head itself belongs to whoever set `busy` */
    pthread_cond_t changed, more;
    bool busy, gathering;
    request *waiting;
    int n_waiting, away; /* away: sessions that will ask, whose rows are under way in the chain */
    int64_t alone_us;    /* what one row took last; of who set `busy` */
    sn_err err;
};

sn_status sn_bench_head_new(const sn_model *model, int threads, int sessions, sn_bench_head **out, sn_err *err) {
    sn_bench_head *h = NULL;
    const sn_hparams *hp = sn_model_hparams(model);
    sn_device_options options = {.threads = threads, .isa = sn_given.isa};
    sn_status status = sn_calloc(&h, 1, sizeof *h, err);
    if (status) return status;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, NULL);
    pthread_cond_init(&h->more, &monotonic);
    pthread_condattr_destroy(&monotonic);
    h->n_embd = (size_t)hp->n_embd;
    h->n_vocab = (size_t)hp->n_vocab;
    h->room = sessions;
    status = sn_device_open((sn_device_id){0}, &options, &h->device, err);
    if (!status) status = sn_head_load(model, h->device, &h->head, err);
    if (!status) status = sn_calloc(&h->rows, (size_t)sessions * h->n_embd, sizeof *h->rows, err);
    if (!status) status = sn_calloc(&h->logits, (size_t)sessions * h->n_vocab, sizeof *h->logits, err);
    if (status) sn_bench_head_free(&h);
    *out = h;
    return status;
}

void sn_bench_head_free(sn_bench_head **head) {
    sn_bench_head *h = *head;
    if (!h) return;
    assert(!h->away); /* whoever was expected asked, or gave up */
    sn_head_free(&h->head);
    sn_device_close(&h->device);
    pthread_cond_destroy(&h->changed);
    pthread_cond_destroy(&h->more);
    pthread_mutex_destroy(&h->lock);
    free(h->rows);
    free(h->logits);
    free(h);
    *head = NULL;
}

sn_device *sn_bench_head_device(sn_bench_head *head) { return head->device; }
sn_head *sn_bench_head_own(sn_bench_head *head) { return head->head; }

static void acquire(sn_bench_head *h) {
    while (h->busy) pthread_cond_wait(&h->changed, &h->lock);
    h->busy = true;
}

static void release(sn_bench_head *h) {
    h->busy = false;
    pthread_cond_broadcast(&h->changed);
}

sn_status sn_bench_head_embed(sn_bench_head *h, const int32_t *ids, int n, float *rows, sn_err *err) {
    pthread_mutex_lock(&h->lock);
    acquire(h);
    pthread_mutex_unlock(&h->lock);
    sn_status status = sn_head_embed(h->head, ids, n, rows, err);
    pthread_mutex_lock(&h->lock);
    release(h);
    pthread_mutex_unlock(&h->lock);
    return status;
}

void sn_bench_head_expect(sn_bench_head *h) {
    pthread_mutex_lock(&h->lock);
    h->away++;
    pthread_mutex_unlock(&h->lock);
}

void sn_bench_head_give_up(sn_bench_head *h) {
    pthread_mutex_lock(&h->lock);
    h->away--;
    if (h->gathering) pthread_cond_signal(&h->more);
    pthread_mutex_unlock(&h->lock);
}

static int32_t best_of(const float *logits, size_t n) {
    float most[LANES];
    size_t i = 0;
    for (int k = 0; k < LANES; k++) most[k] = logits[0];
    for (; i + LANES <= n; i += LANES) /* without a branch: many at once */
        for (int k = 0; k < LANES; k++) most[k] = logits[i + k] > most[k] ? logits[i + k] : most[k];
    for (; i < n; i++) most[0] = logits[i] > most[0] ? logits[i] : most[0];
    for (int k = 1; k < LANES; k++) most[0] = most[k] > most[0] ? most[k] : most[0];
    for (i = 0; i + 1 < n && logits[i] != most[0];) i++;
    return (int32_t)i;
}

/* All rows that wait, in one go. */
static void answer(sn_bench_head *h, request *list) {
    request *which[SN_BENCH_SESSIONS_MAX];
    int n = 0;
    for (request *r = list; r && n < h->room; r = r->next) {
        memcpy(h->rows + (size_t)n * h->n_embd, r->row, h->n_embd * sizeof *h->rows);
        which[n++] = r;
    }
    int64_t before_us = sn_now_us();
    sn_status status = sn_head_logits(h->head, h->rows, n, h->logits, &h->err);
    if (n == 1) h->alone_us = sn_now_us() - before_us;
    for (int i = 0; i < n; i++) {
        which[i]->id = best_of(h->logits + (size_t)i * h->n_vocab, h->n_vocab);
        which[i]->status = status;
    }
}

/* Rows that have been through the chain together arrive together, but one by one: a few of them cost hardly more than one. So the
 * first waits for others that are under way, for a third of what it would take alone. With the lock held. */
static void gather(sn_bench_head *h) {
    h->gathering = true;
    for (int n = -1; n != h->n_waiting && h->away && h->n_waiting < GATHER_ROWS;) {
        n = h->n_waiting;
        int64_t until_us = sn_now_us() + h->alone_us / 3;
        struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
        while (h->n_waiting == n && h->away && !pthread_cond_timedwait(&h->more, &h->lock, &until)) {}
    }
    h->gathering = false;
}

sn_status sn_bench_head_best(sn_bench_head *h, const float *row, int32_t *out, sn_err *err) {
    request mine = {.row = row};
    pthread_mutex_lock(&h->lock);
    mine.next = h->waiting;
    h->waiting = &mine;
    h->n_waiting++;
    h->away--;
    if (h->gathering) pthread_cond_signal(&h->more);
    while (!mine.done) {
        if (h->busy || h->gathering) { /* somebody computes, for us too or not: look again when that is over */
            pthread_cond_wait(&h->changed, &h->lock);
            continue;
        }
        gather(h);
        acquire(h);
        request *list = h->waiting;
        h->waiting = NULL;
        h->n_waiting = 0;
        pthread_mutex_unlock(&h->lock);
        answer(h, list);
        pthread_mutex_lock(&h->lock);
        for (request *r = list, *next; r; r = next) {
            next = r->next;
            r->done = true;
        }
        release(h);
    }
    if (mine.status && err) *err = h->err;
    pthread_mutex_unlock(&h->lock);
    *out = mine.id;
    return mine.status;
}
