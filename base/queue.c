#include "base/queue.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct sn_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void **items;
    size_t first, n, limit;
    bool woken;
};

sn_status sn_queue_new(size_t limit, sn_queue **out, sn_err *err) {
    sn_queue *queue = NULL;
    sn_status status = sn_calloc(&queue, 1, sizeof *queue, err);
    if (!status) status = sn_calloc(&queue->items, limit, sizeof *queue->items, err);
    if (status) {
        free(queue);
        return status;
    }
    queue->limit = limit;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = queue;
    return SN_OK;
}

void sn_queue_free(sn_queue **queue) {
    sn_queue *q = *queue;
    if (!q) return;
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q->items);
    free(q);
    *queue = NULL;
}

bool sn_queue_push(sn_queue *queue, void *item) {
    pthread_mutex_lock(&queue->lock);
    bool has_space = queue->n < queue->limit;
    if (has_space) {
        queue->items[(queue->first + queue->n++) % queue->limit] = item;
        pthread_cond_signal(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return has_space;
}

void *sn_queue_pop(sn_queue *queue, int64_t deadline_us) {
    struct timespec until = {.tv_sec = deadline_us / 1000000, .tv_nsec = deadline_us % 1000000 * 1000};
    void *item = NULL;
    pthread_mutex_lock(&queue->lock);
    while (!queue->n && !queue->woken && deadline_us)
        if (pthread_cond_timedwait(&queue->changed, &queue->lock, &until)) break;
    if (queue->n) {
        item = queue->items[queue->first];
        queue->first = (queue->first + 1) % queue->limit;
        queue->n--;
    } else if (deadline_us) {
        queue->woken = false;
    }
    pthread_mutex_unlock(&queue->lock);
    return item;
}

void sn_queue_wake(sn_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->woken = true;
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
