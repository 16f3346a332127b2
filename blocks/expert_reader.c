/* A few threads take parts of reads from one queue. A part is read from a file by one call, past the page cache where
 * its file system allows that: the disk writes to the expert's place itself, and the processor, whose cores the
 * computation needs, only checks it there. What does not fill pages (biases) comes by way of a buffer. */
#include "blocks/expert_reader.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a thread reads with. */
typedef struct reading_tools {
    sn_tagger *tagger;
    char *buffer; /* for what does not fill pages; grows */
    size_t size;
} reading_tools;

struct sn_expert_reader {
    pthread_mutex_t lock; /* of all that follows, and of what reads have for the reader */
    pthread_cond_t work, done;
    sn_expert_read *first; /* waiting: those that are needed, then those ahead */
    bool stop;
    pthread_t threads[SN_EXPERT_READERS];
    reading_tools tools[SN_EXPERT_READERS];
    int n_threads, n_begun, n_ended;
};

static bool buffer_has(reading_tools *t, size_t bytes) {
    if (bytes <= t->size) return true;
    free(t->buffer);
    t->size = sn_round_up(bytes, SN_FILE_PAGE);
    t->buffer = aligned_alloc(SN_FILE_PAGE, t->size);
    if (!t->buffer) t->size = 0;
    return t->buffer;
}

enum { CHANGED = -1 };

static int n_parts(const sn_expert_read *r) { return r->rest->host ? 1 : (int)(r->rest->stride / r->rest->read_bytes); }

/* The piece's bytes within [at, end) of the expert's image, where the piece begins at `begin`. */
static struct iovec overlap(const sn_expert_read *r, int piece, size_t begin, size_t at, size_t end) {
    size_t stop = sn_min_size(begin + r->bytes[piece], end), from = begin > at ? begin : at;
    return from < stop ? (struct iovec){(char *)r->pieces[piece] + (from - begin), stop - from} : (struct iovec){0};
}

/* Where [at, end) of the expert's image goes: to pieces as long as these fill pages, the rest to the buffer. Returns
 * the number of places; *direct: the bytes of the image before those that go by way of the buffer. */
static int find_places(const sn_expert_read *r, size_t at, size_t end, char *buffer, struct iovec *places,
                       size_t *direct) {
    int n = 0;
    *direct = 0;
    for (int i = 0; i < SN_EXPERT_PIECES; *direct += r->bytes[i++]) {
        if (((uintptr_t)r->pieces[i] | r->bytes[i]) % SN_FILE_PAGE) break;
        places[n] = overlap(r, i, *direct, at, end);
        n += places[n].iov_len > 0;
    }
    if (*direct < end) places[n] = (struct iovec){buffer, end - (at > *direct ? at : *direct)}, n++;
    return n;
}

/* Copies what came by way of the buffer. */
static void empty_buffer(const sn_expert_read *r, const char *from, size_t direct, size_t at, size_t end) {
    size_t begin = 0;
    for (int i = 0; i < SN_EXPERT_PIECES; begin += r->bytes[i++]) {
        struct iovec to = overlap(r, i, begin, at > direct ? at : direct, end);
        if (to.iov_len) memcpy(to.iov_base, from, to.iov_len);
        from += to.iov_len;
    }
}

/* Whether what was read to these places is what was stored. */
static bool is_as_stored(const sn_tag *tag, const struct iovec *places, int n, sn_tagger *tagger) {
    sn_tagger_begin(tagger, tag);
    for (int i = 0; i < n; i++) sn_tagger_add(tagger, places[i].iov_base, places[i].iov_len);
    const sn_tag now = sn_tagger_end(tagger);
    return sn_tag_equal(&now, tag);
}

/* Past the page cache, where that can be. Memory that a driver has mapped for a device, or a file system, may refuse it
 * (EFAULT, EINVAL), and then the page cache reads; the slots are the cache: the system need not keep a second copy. */
static int read_places(const sn_expert_rest *rest, const struct iovec *places, int n, uint64_t in_file) {
    struct iovec left[SN_EXPERT_PIECES + 1] = {0};
    int error = EINVAL;
    memcpy(left, places, (size_t)n * sizeof *left);
    if (rest->uncached >= 0) error = sn_file_read_scattered(rest->uncached, left, n, in_file);
    if (error != EFAULT && error != EINVAL) return error;
    memcpy(left, places, (size_t)n * sizeof *left);
    error = sn_file_read_scattered(rest->file, left, n, in_file);
    posix_fadvise(rest->file, (off_t)in_file, (off_t)rest->read_bytes, POSIX_FADV_DONTNEED);
    return error;
}

/* 0: a part of the expert was read from the file as it was stored; CHANGED, or an errno. */
static int read_from_file(const sn_expert_read *r, int part, reading_tools *tools) {
    const sn_expert_rest *rest = r->rest;
    struct iovec places[SN_EXPERT_PIECES + 1];
    size_t at = (size_t)part * rest->read_bytes, end = at + rest->read_bytes, direct;
    uint64_t in_image = (uint64_t)r->expert * rest->stride + at, in_file = rest->at + in_image;
    if (!buffer_has(tools, rest->read_bytes)) return ENOMEM;
    int n = find_places(r, at, end, tools->buffer, places, &direct);
    int error = read_places(rest, places, n, in_file);
    if (error) return error;
    if (!is_as_stored(&rest->tags[in_image / rest->read_bytes], places, n, tools->tagger)) return CHANGED;
    empty_buffer(r, tools->buffer, direct, at, end);
    return 0;
}

static void read_from_host(const sn_expert_read *r) {
    const char *from = r->rest->host + (size_t)r->expert * r->rest->stride;
    for (int i = 0; i < SN_EXPERT_PIECES; from += r->bytes[i++])
        if (r->bytes[i]) memcpy(r->pieces[i], from, r->bytes[i]);
}

/* Reads the next part, with the reader's lock, which it leaves while it reads. */
static void read_part(sn_expert_reader *reader, sn_expert_read *r, reading_tools *tools) {
    int error = 0, part = r->n_begun++;
    r->state = SN_READ_RUNS;
    if (r->n_begun == n_parts(r)) reader->first = r->next;
    pthread_mutex_unlock(&reader->lock);
    if (r->rest->host)
        read_from_host(r);
    else
        error = read_from_file(r, part, tools);
    pthread_mutex_lock(&reader->lock);
    if (error) r->error = error;
    if (++r->n_over < n_parts(r)) return;
    r->state = r->error ? SN_READ_FAILED : SN_READ_DONE;
    pthread_cond_broadcast(&reader->done);
}

static void *reader_run(void *ctx) {
    sn_expert_reader *reader = ctx;
    pthread_mutex_lock(&reader->lock);
    reading_tools *tools = &reader->tools[reader->n_begun++];
    while (!reader->stop) {
        sn_expert_read *r = reader->first;
        if (!r) {
            pthread_cond_wait(&reader->work, &reader->lock);
            continue;
        }
        read_part(reader, r, tools);
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
    while (reader->n_threads < SN_EXPERT_READERS && !status) {
        reading_tools *tools = &reader->tools[reader->n_threads];
        tools->tagger = sn_tagger_new();
        if (!tools->tagger)
            status = sn_fail(err, SN_STOP, "out of memory: experts cannot be read");
        else if (!sn_thread_start(&reader->threads[reader->n_threads], reader_run, reader, NULL))
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
    for (int i = 0; i < SN_EXPERT_READERS; i++) sn_tagger_free(r->tools[i].tagger), free(r->tools[i].buffer);
    free(r);
    return true;
}

/* Both with the lock. */
static void queue_add(sn_expert_reader *reader, sn_expert_read *read) {
    sn_expert_read **at = &reader->first;
    while (*at && (read->ahead || !(*at)->ahead)) at = &(*at)->next;
    read->next = *at;
    *at = read;
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
    read->state = SN_READ_WAITS;
    queue_add(reader, read);
    pthread_cond_broadcast(&reader->work);
    pthread_mutex_unlock(&reader->lock);
}

void sn_expert_reader_need(sn_expert_reader *reader, sn_expert_read *read) {
    pthread_mutex_lock(&reader->lock);
    read->ahead = false;
    if (queue_take(reader, read)) queue_add(reader, read);
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
