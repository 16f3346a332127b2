#include "sharing/hub/piece_hashes.h"

#include "base/cgroup.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH = 128, THREADS_MAX = 16 };

/* -- what is kept -- */

void sn_piece_log_open(const char *path, sn_piece_log *out) {
    struct stat st;
    *out = (sn_piece_log){.fd = -1};
    if (path) out->fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (out->fd < 0 || (!fstat(out->fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022)))
        return;
    sn_piece_log_close(out);
}

void sn_piece_log_close(sn_piece_log *log) {
    if (log->fd >= 0) close(log->fd);
    log->fd = -1;
}

/* Of a batch, where its pieces lie, and all batches before it. */
static sn_hash check_of(const sn_piece_log *log, const sn_piece *pieces, size_t n) {
    sn_hash check = {0};
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return check; /* of no batch */
    sn_hasher_add(hasher, log->last.bytes, sizeof log->last.bytes);
    for (size_t i = 0; i < n; i++) {
        sn_hasher_add(hasher, &pieces[i].from, sizeof pieces[i].from);
        sn_hasher_add(hasher, &pieces[i].to, sizeof pieces[i].to);
        sn_hasher_add(hasher, pieces[i].hash.bytes, SN_HASH_SIZE);
    }
    check = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return check;
}

/* Whether the next batch is in the log; else what follows there is cut off. */
static bool read_batch(sn_piece_log *log, sn_piece *pieces, size_t n) {
    sn_hash kept[BATCH + 1];
    const ssize_t bytes = (ssize_t)((n + 1) * sizeof *kept);
    if (log->fd < 0) return false;
    const off_t at = lseek(log->fd, 0, SEEK_CUR);
    if (at >= 0 && read(log->fd, kept, (size_t)bytes) == bytes) {
        for (size_t i = 0; i < n; i++) pieces[i].hash = kept[i];
        const sn_hash check = check_of(log, pieces, n);
        if (!memcmp(&check, &kept[n], sizeof check)) {
            log->last = check;
            return true;
        }
    }
    if (at < 0 || ftruncate(log->fd, at) || lseek(log->fd, at, SEEK_SET) != at) sn_piece_log_close(log);
    return false;
}

static void write_batch(sn_piece_log *log, const sn_piece *pieces, size_t n) {
    sn_hash kept[BATCH + 1];
    const ssize_t bytes = (ssize_t)((n + 1) * sizeof *kept);
    if (log->fd < 0) return;
    for (size_t i = 0; i < n; i++) kept[i] = pieces[i].hash;
    kept[n] = log->last = check_of(log, pieces, n);
    if (write(log->fd, kept, (size_t)bytes) != bytes) sn_piece_log_close(log); /* its end is cut off the next time */
}

/* -- hashing -- */

typedef struct batch {
    int fd;
    sn_piece *pieces;
    size_t n;
    const sn_cancel *cancel;
    atomic_size_t next;
    atomic_int error; /* errno of the first that failed; 0: none */
} batch;

static void *hash_some(void *arg) {
    batch *b = arg;
    void *buffer = malloc(SN_PIECE_MAX);
    if (!buffer) atomic_store(&b->error, ENOMEM);
    for (size_t i; buffer && !atomic_load(&b->error) && (i = atomic_fetch_add(&b->next, 1)) < b->n;) {
        if (sn_is_cancelled(b->cancel)) break;
        sn_piece *piece = &b->pieces[i];
        const size_t bytes = (size_t)(piece->to - piece->from);
        const int error = sn_file_read_at(b->fd, buffer, bytes, piece->from);
        if (error) atomic_store(&b->error, error);
        if (!error) piece->hash = sn_hash_of(buffer, bytes);
    }
    free(buffer);
    return NULL;
}

static void hash_batch(batch *b, int n_threads) {
    pthread_t threads[THREADS_MAX];
    int started = 0;
    while (started + 1 < n_threads && sn_thread_start(&threads[started], hash_some, b, NULL)) started++;
    hash_some(b);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

sn_status sn_pieces_hash(const char *path, sn_piece *pieces, size_t n, bool bypass, const sn_manifest_making *making,
                         sn_piece_log *log, sn_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), n_threads = making->threads ? making->threads : sn_cores();
    if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
    sn_status status = SN_OK;
    for (size_t at = 0, count; !status && at < n; at += count) {
        batch b = {
            .fd = fd, .pieces = pieces + at, .n = count = n - at < BATCH ? n - at : BATCH, .cancel = making->cancel};
        if (read_batch(log, b.pieces, count)) continue;
        hash_batch(&b, n_threads);
        const int error = atomic_load(&b.error);
        if (sn_is_cancelled(making->cancel))
            status = sn_fail(err, SN_RETRY, "the manifest was not finished");
        else if (error)
            status = sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(error));
        else
            write_batch(log, b.pieces, count);
        if (bypass)
            posix_fadvise(fd, (off_t)b.pieces->from, (off_t)(b.pieces[count - 1].to - b.pieces->from),
                          POSIX_FADV_DONTNEED);
    }
    close(fd);
    return status;
}
