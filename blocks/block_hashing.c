#include "blocks/block_hashing.h"

#include "base/cgroup.h"
#include "base/mem.h"
#include "base/thread.h"
#include "model/source.h"

#include <pthread.h>
#include <stdlib.h>

enum { THREADS_MAX = 4 }; /* each reads a block of its own: more would read far ahead of the loading */

struct sn_block_hashing {
    const sn_model *model;
    sn_hash *hashes;
    int first, n;
    const sn_cancel *cancel;
    sn_cancel given_up;
    pthread_t threads[THREADS_MAX];
    int n_threads;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t ended; /* a block was hashed, or one failed */
    int next;             /* the first block that no thread has taken */
    bool *done;           /* (n) */
    sn_status status;
    sn_err err;
};

static bool must_stop(void *ctx) {
    const sn_block_hashing *h = ctx;
    return sn_is_cancelled(h->cancel) || sn_is_cancelled(&h->given_up);
}

static sn_status hash_block(sn_block_hashing *h, int i, sn_err *err) {
    const sn_halt stop = {must_stop, h};
    sn_status status = sn_model_hash_block(h->model, h->first + i, &stop, &h->hashes[i], err);
    return status && must_stop(h) ? sn_fail(err, SN_STOP, "the computation was cancelled") : status;
}

static void *hash_blocks(void *arg) {
    sn_block_hashing *h = arg;
    sn_err err;
    pthread_mutex_lock(&h->lock);
    while (h->next < h->n && !h->status) {
        int i = h->next++;
        pthread_mutex_unlock(&h->lock);
        sn_status status = hash_block(h, i, &err);
        pthread_mutex_lock(&h->lock);
        h->done[i] = !status;
        if (status && !h->status) h->status = status, h->err = err;
        pthread_cond_broadcast(&h->ended);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

sn_status sn_block_hashing_begin(const sn_model *model, int first, int end, const sn_cancel *cancel, sn_hash *hashes,
                                 sn_block_hashing **out, sn_err *err) {
    sn_block_hashing *h = NULL;
    bool fetches = sn_model_get_source(model)->want;
    int wanted = sn_cores() / 2 < THREADS_MAX ? sn_cores() / 2 : THREADS_MAX; /* the loading has work for others */
    sn_status status = sn_calloc(&h, 1, sizeof *h, err);
    if (status) return status;
    *h = (sn_block_hashing){.model = model, .hashes = hashes, .first = first, .n = end - first, .cancel = cancel};
    status = sn_calloc(&h->done, (size_t)h->n, sizeof *h->done, err);
    if (status) {
        free(h);
        return status;
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->ended, NULL);
    while (!fetches && h->n_threads < (wanted ? wanted : 1) &&
           sn_thread_start(&h->threads[h->n_threads], hash_blocks, h, NULL))
        h->n_threads++;
    if (!h->n_threads) hash_blocks(h);
    *out = h;
    return SN_OK;
}

sn_status sn_block_hashing_wait(sn_block_hashing *h, int block, sn_err *err) {
    pthread_mutex_lock(&h->lock);
    while (!h->status && !h->done[block - h->first]) pthread_cond_wait(&h->ended, &h->lock);
    sn_status status = h->done[block - h->first] ? SN_OK : h->status;
    if (status && err) *err = h->err;
    pthread_mutex_unlock(&h->lock);
    return status;
}

sn_status sn_block_hashing_end(sn_block_hashing **hashing, bool wanted, sn_err *err) {
    sn_block_hashing *h = *hashing;
    if (!h) return SN_OK;
    if (!wanted) atomic_store(&h->given_up.set, 1);
    for (int i = 0; i < h->n_threads; i++) pthread_join(h->threads[i], NULL);
    sn_status status = wanted ? h->status : SN_OK;
    if (status && err) *err = h->err;
    pthread_cond_destroy(&h->ended);
    pthread_mutex_destroy(&h->lock);
    free(h->done);
    free(h);
    *hashing = NULL;
    return status;
}
