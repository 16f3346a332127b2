/* Files as a whole. A new file is written beside its name and takes it when its bytes are on the disk; whoever reads
 * one says how much of it may come, and what kind of file it must be. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, TRIES = 8 };

int sn_file_read_at(int fd, void *out, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (uint8_t *)out + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : ENODATA;
        done += (size_t)n;
    }
    return 0;
}

int sn_file_write_at(int fd, const void *data, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const uint8_t *)data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : ENOSPC;
        done += (size_t)n;
    }
    return 0;
}

int sn_file_open_uncached(int fd) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int file = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
    void *page = file < 0 ? NULL : aligned_alloc(SN_FILE_PAGE, SN_FILE_PAGE);
    bool reads = page && pread(file, page, SN_FILE_PAGE, 0) >= 0; /* some file systems refuse only the read */
    free(page);
    if (file >= 0 && !reads) close(file);
    return reads ? file : -1;
}

int sn_file_read_scattered(int fd, struct iovec *places, int n, uint64_t at) {
    size_t left = 0;
    for (int i = 0; i < n; i++) left += places[i].iov_len;
    while (left) {
        ssize_t got = preadv(fd, places, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        size_t taken = (size_t)got;
        if (taken < left) taken -= taken % SN_FILE_PAGE; /* what follows begins at a page again */
        if (!taken) return ENODATA;
        at += taken;
        left -= taken;
        for (; n && taken >= places->iov_len; n--) taken -= places++->iov_len;
        if (!n) break;
        places->iov_base = (char *)places->iov_base + taken;
        places->iov_len -= taken;
    }
    return 0;
}

sn_status sn_file_check_secret(int fd, const char *path, sn_err *err) {
    struct stat info;
    if (fstat(fd, &info)) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return sn_fail(err, SN_REFUSED, "%s is no regular file", path);
    if (info.st_mode & 077)
        return sn_fail(err, SN_REFUSED,
                       "%s can be read or written by others (mode %03o): make a new one, or chmod 600 it if none did",
                       path, (unsigned)info.st_mode & 0777);
    return SN_OK;
}

static sn_status hash_open_file(int fd, uint8_t *chunk, sn_hasher *hasher, const char *path, sn_err *err) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return sn_fail(err, SN_REFUSED, "%s is no regular file", path);
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
        if (!n) return SN_OK;
        sn_hasher_add(hasher, chunk, (size_t)n);
    }
}

sn_status sn_read_stream(int fd, const char *name, size_t limit, const sn_cancel *stop, sn_buf *out, sn_err *err) {
    char chunk[65536];
    ssize_t got;
    sn_status status = SN_OK;
    sn_buf_init(out, limit + 1);
    while (!status && (got = read(fd, chunk, sizeof chunk)) != 0) {
        if (got > 0)
            status = sn_buf_append(out, chunk, (size_t)got, err);
        else if (errno != EINTR || sn_is_cancelled(stop))
            status = sn_fail(err, SN_REFUSED, "%s cannot be read: %s", name, strerror(errno));
    }
    if (!status) status = sn_buf_append(out, "", 1, err);
    if (status)
        sn_buf_fini(out);
    else
        out->len--;
    return status;
}

static sn_status read_open_file(int fd, const char *path, bool pipes, size_t limit, sn_buf *out, sn_err *err) {
    struct stat st;
    bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
    if (!regular && !pipes) return sn_fail(err, SN_REFUSED, "%s is no regular file", path);
    if (regular && (size_t)st.st_size > limit)
        return sn_fail(err, SN_REFUSED, "%s has %zu bytes; at most %zu are taken", path, (size_t)st.st_size, limit);
    return sn_read_stream(fd, path, limit, NULL, out, err);
}

typedef enum file_kind { REGULAR, SECRET, OR_PIPE } file_kind;

static sn_status read_file(const char *path, file_kind kind, size_t limit, sn_buf *out, sn_err *err) {
    const bool pipes = kind == OR_PIPE;
    *out = (sn_buf){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | (pipes ? 0 : O_NONBLOCK)); /* a pipe must not wait for its writer */
    if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = kind == SECRET ? sn_file_check_secret(fd, path, err) : SN_OK;
    if (!status) status = read_open_file(fd, path, pipes, limit, out, err);
    close(fd);
    return status;
}

sn_status sn_read_file(const char *path, size_t limit, sn_buf *out, sn_err *err) {
    return read_file(path, REGULAR, limit, out, err);
}

sn_status sn_read_secret_file(const char *path, size_t limit, sn_buf *out, sn_err *err) {
    return read_file(path, SECRET, limit, out, err);
}

sn_status sn_read_file_or_pipe(const char *path, size_t limit, sn_buf *out, sn_err *err) {
    return read_file(path, OR_PIPE, limit, out, err);
}

sn_status sn_file_hash(const char *path, sn_hash *out, sn_err *err) {
    uint8_t *chunk = malloc(CHUNK);
    sn_hasher *hasher = sn_hasher_new();
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe does not wait for its writer */
    sn_status status = SN_OK;
    if (!chunk || !hasher)
        status = sn_fail(err, SN_STOP, "out of memory");
    else if (fd < 0)
        status = sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    if (!status) status = hash_open_file(fd, chunk, hasher, path, err);
    if (!status) *out = sn_hasher_end(hasher);
    if (fd >= 0) close(fd);
    sn_hasher_free(hasher);
    free(chunk);
    return status;
}

sn_status sn_path_join(char out[SN_PATH_SIZE], const char *folder, const char *name, sn_err *err) {
    return snprintf(out, SN_PATH_SIZE, "%s/%s", folder, name) < SN_PATH_SIZE
               ? SN_OK
               : sn_fail(err, SN_REFUSED, "the path of %.200s is too long", name);
}

/* ---- new files ---- */

sn_status sn_fail_write(sn_err *err, const char *path, int error) {
    bool disk = error == ENOSPC || error == EDQUOT || error == EIO;
    return sn_fail(err, disk ? SN_STOP : SN_REFUSED, "%s cannot be written: %s", path, strerror(error));
}

static sn_status write_failed(const sn_new_file *file, int error, sn_err *err) {
    return sn_fail_write(err, file->path, error);
}

/* What has the name already, of an attempt that was killed or a link that a stranger made, is removed and never
 * written to. Another process may make its own between both calls. */
static int open_anew(const char *path) {
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < TRIES && (!tries || errno == EEXIST); tries++) {
        unlink(path);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    return fd;
}

sn_status sn_new_file_create(const char *path, sn_new_file *out, sn_err *err) {
    out->fd = -1;
    out->bytes = 0;
    if (snprintf(out->path, sizeof out->path, "%s", path) >= (int)sizeof out->path ||
        snprintf(out->unfinished, sizeof out->unfinished, "%s.part", path) >= (int)sizeof out->unfinished)
        return sn_fail(err, SN_REFUSED, "the path %.200s... is too long", path);
    out->fd = open_anew(out->unfinished);
    return out->fd < 0 ? write_failed(out, errno, err) : SN_OK;
}

sn_status sn_new_file_write(sn_new_file *file, const void *data, size_t bytes, sn_err *err) {
    int error = sn_file_write_at(file->fd, data, bytes, file->bytes);
    if (error) return write_failed(file, error, err);
    file->bytes += bytes;
    return SN_OK;
}

sn_status sn_new_file_commit(sn_new_file *file, sn_err *err) {
    if (fsync(file->fd) || rename(file->unfinished, file->path)) return write_failed(file, errno, err);
    close(file->fd);
    file->fd = -1;
    return SN_OK;
}

void sn_new_file_discard(sn_new_file *file) {
    if (file->fd < 0) return;
    close(file->fd);
    unlink(file->unfinished);
    file->fd = -1;
}

sn_status sn_file_replace(const char *path, const void *data, size_t bytes, sn_err *err) {
    sn_new_file file;
    sn_status status = sn_new_file_create(path, &file, err);
    if (!status) status = sn_new_file_write(&file, data, bytes, err);
    if (!status) status = sn_new_file_commit(&file, err);
    sn_new_file_discard(&file);
    return status;
}

sn_status sn_folder_sync(const char *folder, sn_err *err) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    return error ? sn_fail(err, SN_REFUSED, "%s cannot be written to the disk: %s", folder, strerror(error)) : SN_OK;
}
