/* A few threads take reads from one queue. A file is read in pieces of 1 MiB past the page cache, as its file system
 * allows: each piece is hashed or tagged while the processor's cache holds it, and copied to where it belongs, which
 * need not lie at a page. So a read costs the processor little beside the computation, which needs the same cores. */
#include "blocks/expert_reader.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 4 }; /* reads in progress: a disk is fastest with several */

/* What a thread reads with. */
typedef struct reading_tools {
    void *buffer;
    sn_hasher *hasher;
    sn_tagger *tagger;
} reading_tools;

static bool tools_open(reading_tools *t) {
    *t = (reading_tools){aligned_alloc(SN_FILE_PAGE, SN_FILE_PIECE), sn_hasher_new(), sn_tagger_new()};
    return t->buffer && t->hasher && t->tagger;
}

static void tools_close(reading_tools *t) {
    free(t->buffer);
    sn_hasher_free(t->hasher);
    sn_tagger_free(t->tagger);
}

struct sn_expert_reader {
    pthread_mutex_t lock; /* of all that follows, and of what reads have for the reader */
    pthread_cond_t work, done;
    sn_expert_read *first; /* waiting: those that are needed, then those ahead */
    bool stop;
    pthread_t threads[THREADS];
    reading_tools tools[THREADS];
    int n_threads, n_begun, n_ended;
};

/* Where the next bytes of an expert go. */
typedef struct scatter {
    const sn_expert_read *read;
    const reading_tools *tools;
    bool hashes;
    int piece;
    size_t done; /* of the piece */
} scatter;

static void scatter_take(void *ctx, const void *data, size_t bytes) {
    scatter *s = ctx;
    const char *from = data;
    if (s->hashes) sn_hasher_add(s->tools->hasher, data, bytes);
    sn_tagger_add(s->tools->tagger, data, bytes);
    for (size_t n; bytes; from += n, bytes -= n, s->done += n) {
        while (s->done == s->read->bytes[s->piece]) s->piece++, s->done = 0;
        n = sn_min_size(bytes, s->read->bytes[s->piece] - s->done);
        memcpy((char *)s->read->pieces[s->piece] + s->done, from, n);
    }
}

enum { CHANGED = -1 };

/* 0: the expert was read from the file as it was stored, and *tag is its tag; CHANGED, or an errno. */
static int read_from_file(const sn_expert_read *r, const reading_tools *tools, sn_tag *tag) {
    const sn_expert_rest *rest = r->rest;
    size_t bytes = 0;
    scatter to = {.read = r, .tools = tools, .hashes = !tag->number};
    for (int i = 0; i < SN_EXPERT_PIECES; i++) bytes += r->bytes[i];
    uint64_t at = rest->at + (size_t)r->expert * rest->stride;
    sn_tagger_begin(tools->tagger, tag);
    int error = sn_file_read_pages(rest->uncached < 0 ? rest->file : rest->uncached, tools->buffer, bytes, at,
                                   scatter_take, &to);
    sn_tag now = sn_tagger_end(tools->tagger);
    sn_hash hash = sn_hasher_end(tools->hasher);
    /* The slots are the cache: the system need not keep a second copy beyond the limit of memory. */
    if (rest->uncached < 0) posix_fadvise(rest->file, (off_t)at, (off_t)bytes, POSIX_FADV_DONTNEED);
    bool same = to.hashes ? !memcmp(&hash, &rest->hashes[r->expert], sizeof hash) : sn_tag_equal(&now, tag);
    *tag = now;
    return error ? error : same ? 0 : CHANGED;
}

static void read_from_host(const sn_expert_read *r) {
    const char *from = r->rest->host + (size_t)r->expert * r->rest->stride;
    for (int i = 0; i < SN_EXPERT_PIECES; from += r->bytes[i++])
        if (r->bytes[i]) memcpy(r->pieces[i], from, r->bytes[i]);
}

/* With the reader's lock, which it leaves while it reads. */
static void read_expert(sn_expert_reader *reader, sn_expert_read *r, const reading_tools *tools) {
    sn_tag *known = r->rest->tags ? &r->rest->tags[r->expert] : NULL;
    sn_tag tag = known ? *known : (sn_tag){0};
    int error = 0;
    pthread_mutex_unlock(&reader->lock);
    if (r->rest->host)
        read_from_host(r);
    else
        error = read_from_file(r, tools, &tag);
    pthread_mutex_lock(&reader->lock);
    if (known && !error) *known = tag;
    r->error = error;
    r->state = error ? SN_READ_FAILED : SN_READ_DONE;
}

static void *reader_run(void *ctx) {
    sn_expert_reader *reader = ctx;
    pthread_mutex_lock(&reader->lock);
    const reading_tools *tools = &reader->tools[reader->n_begun++];
    while (!reader->stop) {
        sn_expert_read *r = reader->first;
        if (!r) {
            pthread_cond_wait(&reader->work, &reader->lock);
            continue;
        }
        reader->first = r->next;
        r->state = SN_READ_RUNS;
        read_expert(reader, r, tools);
        pthread_cond_broadcast(&reader->done);
    }
    reader->n_ended++;
    pthread_cond_broadcast(&reader->done);
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

sn_status sn_expert_reader_new(sn_expert_reader **out, sn_err *err) {
    pthread_condattr_t monotonic;
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    sn_expert_reader *reader = *out;
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&reader->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    while (reader->n_threads < THREADS && !status) {
        if (!tools_open(&reader->tools[reader->n_threads]))
            status = sn_fail(err, SN_STOP, "out of memory: experts cannot be read");
        else if (pthread_create(&reader->threads[reader->n_threads], NULL, reader_run, reader))
            status = sn_fail(err, SN_STOP, "no thread can be started that reads experts");
        else
            reader->n_threads++;
    }
    if (status) (void)sn_expert_reader_free(out, 1000); /* no read was begun */
    return status;
}

static struct timespec time_after(int ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000L;
    if (t.tv_nsec >= 1000000000L) t.tv_sec++, t.tv_nsec -= 1000000000L;
    return t;
}

bool sn_expert_reader_free(sn_expert_reader **reader, int timeout_ms) {
    sn_expert_reader *r = *reader;
    struct timespec until = time_after(timeout_ms);
    int code = 0;
    *reader = NULL;
    if (!r) return true;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->work);
    while (r->n_ended < r->n_threads && !code) code = pthread_cond_timedwait(&r->done, &r->lock, &until);
    bool ended = r->n_ended == r->n_threads;
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->n_threads; i++) ended ? pthread_join(r->threads[i], NULL) : pthread_detach(r->threads[i]);
    if (!ended) {
        sn_log(SN_LOG_WARN, "experts' memory kept", "text=a read of an expert did not end within %d ms", timeout_ms);
        return false;
    }
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    for (int i = 0; i < THREADS; i++) tools_close(&r->tools[i]);
    free(r);
    return true;
}

/* Both with the lock. */
static void queue_add(sn_expert_reader *reader, sn_expert_read *read) {
    sn_expert_read **at = &reader->first;
    while (*at && (read->ahead || !(*at)->ahead)) at = &(*at)->next;
    read->next = *at;
    *at = read;
    read->state = SN_READ_WAITS;
}

static bool queue_take(sn_expert_reader *reader, sn_expert_read *read) {
    sn_expert_read **at = &reader->first;
    while (*at && *at != read) at = &(*at)->next;
    if (!*at) return false;
    *at = read->next;
    return true;
}

void sn_expert_reader_begin(sn_expert_reader *reader, sn_expert_read *read, bool ahead) {
    pthread_mutex_lock(&reader->lock);
    read->ahead = ahead;
    queue_add(reader, read);
    pthread_cond_signal(&reader->work);
    pthread_mutex_unlock(&reader->lock);
}

void sn_expert_reader_need(sn_expert_reader *reader, sn_expert_read *read) {
    pthread_mutex_lock(&reader->lock);
    read->ahead = false;
    if (read->state == SN_READ_WAITS && queue_take(reader, read)) queue_add(reader, read);
    pthread_mutex_unlock(&reader->lock);
}

bool sn_expert_reader_is_done(sn_expert_reader *reader, const sn_expert_read *read) {
    pthread_mutex_lock(&reader->lock);
    bool done = read->state >= SN_READ_DONE;
    pthread_mutex_unlock(&reader->lock);
    return done;
}

bool sn_expert_reader_drop(sn_expert_reader *reader, sn_expert_read *read) {
    pthread_mutex_lock(&reader->lock);
    bool dropped = read->state == SN_READ_WAITS && queue_take(reader, read);
    if (dropped) read->state = SN_READ_IDLE;
    pthread_mutex_unlock(&reader->lock);
    return dropped;
}

sn_status sn_expert_reader_wait(sn_expert_reader *reader, sn_expert_read *read, int timeout_ms, sn_err *err) {
    struct timespec until = time_after(timeout_ms);
    int code = 0;
    pthread_mutex_lock(&reader->lock);
    while (read->state < SN_READ_DONE && !code) code = pthread_cond_timedwait(&reader->done, &reader->lock, &until);
    bool over = read->state >= SN_READ_DONE, good = read->state == SN_READ_DONE;
    pthread_mutex_unlock(&reader->lock);
    if (!over)
        return sn_fail(err, SN_STOP, "expert %d was not read from %s within %d ms", read->expert,
                       read->rest->host ? "host memory" : "the offload folder", timeout_ms);
    if (!good && read->error != CHANGED && read->error != ENODATA)
        return sn_fail(err, SN_STOP, "expert %d cannot be read from the offload folder: %s", read->expert,
                       strerror(read->error));
    if (!good)
        return sn_fail(err, SN_STOP,
                       "expert %d in the offload folder was changed or cut short after it was checked: start again",
                       read->expert);
    return SN_OK;
}
