/* One LM head for sessions on many threads; rows that arrive together are computed as one batch.
 *
 * A session puts its row into the list `waiting` and looks whether the head is free. The thread that finds it free
 * becomes the one that computes: it waits a moment for rows that are expected (sn_bench_lm_head_expect), takes the
 * whole list, and computes it without the lock. Then it marks the requests as done and wakes all threads. */
#include "cli/bench/bench.h"

#include "base/clock.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH_WAIT_ROWS = 4, LANES = 16 };

typedef struct request {
    struct request *next;
    const float *row;
    int32_t id;
    sn_status status;
    bool done;
} request;

struct sn_bench_lm_head {
    sn_device *device;
    sn_lm_head *lm_head;
    size_t n_embd, n_vocab;
    int capacity;
    float *rows, *logits; /* (capacity, n_embd), (capacity, n_vocab) */
    pthread_mutex_t lock; /* of the fields below; the LM head belongs to the thread that set `busy` */
    pthread_cond_t changed, more;
    bool busy, batch_waiting;
    request *waiting;
    int n_waiting, n_expected; /* n_expected: sessions whose step is in flight and that will call argmax */
    int64_t single_row_us;     /* time of the last batch of one row; belongs to the thread that set `busy` */
    sn_err err;
};

sn_status sn_bench_lm_head_new(const sn_model *model, int threads, int sessions, sn_bench_lm_head **out, sn_err *err) {
    sn_bench_lm_head *h = NULL;
    const sn_hparams *hp = sn_model_hparams(model);
    sn_device_options options = {.threads = threads, .isa = sn_program_settings.common.isa};
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
    h->capacity = sessions;
    status = sn_device_open((sn_device_id){0}, &options, &h->device, err);
    if (!status) status = sn_lm_head_load(model, h->device, &h->lm_head, err);
    if (!status) status = sn_calloc(&h->rows, (size_t)sessions * h->n_embd, sizeof *h->rows, err);
    if (!status) status = sn_calloc(&h->logits, (size_t)sessions * h->n_vocab, sizeof *h->logits, err);
    if (status) sn_bench_lm_head_free(&h);
    *out = h;
    return status;
}

void sn_bench_lm_head_free(sn_bench_lm_head **head) {
    sn_bench_lm_head *h = *head;
    if (!h) return;
    assert(!h->n_expected); /* every expect was followed by argmax or unexpect */
    sn_lm_head_free(&h->lm_head);
    sn_device_close(&h->device);
    pthread_cond_destroy(&h->changed);
    pthread_cond_destroy(&h->more);
    pthread_mutex_destroy(&h->lock);
    free(h->rows);
    free(h->logits);
    free(h);
    *head = NULL;
}

sn_device *sn_bench_lm_head_device(sn_bench_lm_head *head) { return head->device; }
sn_lm_head *sn_bench_lm_head_get(sn_bench_lm_head *head) { return head->lm_head; }

static void acquire_head(sn_bench_lm_head *h) {
    while (h->busy) pthread_cond_wait(&h->changed, &h->lock);
    h->busy = true;
}

static void release_head(sn_bench_lm_head *h) {
    h->busy = false;
    pthread_cond_broadcast(&h->changed);
}

sn_status sn_bench_lm_head_embed(sn_bench_lm_head *h, const int32_t *ids, int n, float *rows, sn_err *err) {
    pthread_mutex_lock(&h->lock);
    acquire_head(h);
    pthread_mutex_unlock(&h->lock);
    sn_status status = sn_lm_head_embed(h->lm_head, ids, n, rows, err);
    pthread_mutex_lock(&h->lock);
    release_head(h);
    pthread_mutex_unlock(&h->lock);
    return status;
}

void sn_bench_lm_head_expect(sn_bench_lm_head *h) {
    pthread_mutex_lock(&h->lock);
    h->n_expected++;
    pthread_mutex_unlock(&h->lock);
}

void sn_bench_lm_head_unexpect(sn_bench_lm_head *h) {
    pthread_mutex_lock(&h->lock);
    h->n_expected--;
    if (h->batch_waiting) pthread_cond_signal(&h->more);
    pthread_mutex_unlock(&h->lock);
}

static int32_t argmax(const float *logits, size_t n) {
    float best[LANES];
    size_t i = 0;
    for (int k = 0; k < LANES; k++) best[k] = logits[0];
    for (; i + LANES <= n; i += LANES) /* LANES maxima without a branch: the compiler vectorizes it */
        for (int k = 0; k < LANES; k++) best[k] = logits[i + k] > best[k] ? logits[i + k] : best[k];
    for (; i < n; i++) best[0] = logits[i] > best[0] ? logits[i] : best[0];
    for (int k = 1; k < LANES; k++) best[0] = best[k] > best[0] ? best[k] : best[0];
    for (i = 0; i + 1 < n && logits[i] != best[0];) i++;
    return (int32_t)i;
}

/* Computes all requests of the list as one batch. */
static void run_batch(sn_bench_lm_head *h, request *list) {
    request *which[SN_BENCH_SESSIONS_MAX];
    int n = 0;
    for (request *r = list; r && n < h->capacity; r = r->next) {
        memcpy(h->rows + (size_t)n * h->n_embd, r->row, h->n_embd * sizeof *h->rows);
        which[n++] = r;
    }
    int64_t before_us = sn_now_us();
    sn_status status = sn_lm_head_logits(h->lm_head, h->rows, n, h->logits, &h->err);
    if (n == 1) h->single_row_us = sn_now_us() - before_us;
    for (int i = 0; i < n; i++) {
        which[i]->id = argmax(h->logits + (size_t)i * h->n_vocab, h->n_vocab);
        which[i]->status = status;
    }
}

/* Waits for expected rows, with the lock held. Rows of one batch at a node arrive shortly after each other, and a batch
 * of a few rows takes hardly longer than one row. The wait ends when no row came for a third of the time of one row. */
static void wait_for_batch(sn_bench_lm_head *h) {
    h->batch_waiting = true;
    for (int n = -1; n != h->n_waiting && h->n_expected && h->n_waiting < BATCH_WAIT_ROWS;) {
        n = h->n_waiting;
        int64_t until_us = sn_now_us() + h->single_row_us / 3;
        struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
        while (h->n_waiting == n && h->n_expected && !pthread_cond_timedwait(&h->more, &h->lock, &until)) {}
    }
    h->batch_waiting = false;
}

sn_status sn_bench_lm_head_argmax(sn_bench_lm_head *h, const float *row, int32_t *out, sn_err *err) {
    request mine = {.row = row};
    pthread_mutex_lock(&h->lock);
    mine.next = h->waiting;
    h->waiting = &mine;
    h->n_waiting++;
    h->n_expected--;
    if (h->batch_waiting) pthread_cond_signal(&h->more);
    while (!mine.done) {
        if (h->busy || h->batch_waiting) { /* another thread computes, maybe this row too */
            pthread_cond_wait(&h->changed, &h->lock);
            continue;
        }
        wait_for_batch(h);
        acquire_head(h);
        request *list = h->waiting;
        h->waiting = NULL;
        h->n_waiting = 0;
        pthread_mutex_unlock(&h->lock);
        run_batch(h, list);
        pthread_mutex_lock(&h->lock);
        for (request *r = list, *next; r; r = next) {
            next = r->next;
            r->done = true;
        }
        release_head(h);
    }
    if (mine.status && err) *err = h->err;
    pthread_mutex_unlock(&h->lock);
    *out = mine.id;
    return mine.status;
}
