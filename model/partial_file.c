#include "model/partial_file.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANGES_FILE_MAX = 64 << 20, SAVE_EACH = 8 << 20 /* bytes that a killed process loses at most */ };

static void ranges_path(const sn_partial_file *f, char out[SN_PATH_SIZE + 16], const char *ending) {
    snprintf(out, SN_PATH_SIZE + 16, "%s.%s", f->path, ending);
}

/* What PATH.ranges says. `found` is false, and nothing is present, when it cannot be read or is damaged. */
typedef struct ranges_file {
    bool found;
    uint64_t size;
    char etag[SN_ETAG_SIZE];
} ranges_file;

/* The next word as a number; false where there is none. */
static bool take_number(const char **at, uint64_t *out) {
    char *end;
    while (**at == ' ' || **at == '\n') ++*at;
    if (!isdigit((unsigned char)**at)) return false;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return !errno;
}

static sn_status read_ranges_file(const char *path, ranges_file *out, sn_range_set *present, sn_err *err) {
    char name[SN_PATH_SIZE + 16];
    sn_buf text = {0};
    uint64_t from, to;
    sn_status status = SN_OK;
    *out = (ranges_file){0};
    snprintf(name, sizeof name, "%s.ranges", path);
    sn_buf_init(&text, RANGES_FILE_MAX);
    const char *at = sn_read_file(name, RANGES_FILE_MAX - 1, &text, NULL) ? "" : (const char *)text.data;
    size_t len = take_number(&at, &out->size) && *at == ' ' ? strcspn(++at, " \n") : 0;
    out->found = len > 0 && len < sizeof out->etag;
    if (out->found) snprintf(out->etag, sizeof out->etag, "%.*s", (int)len, at);
    for (at += len; out->found && !status && take_number(&at, &from) && take_number(&at, &to);)
        if (to <= out->size) status = sn_range_set_add(present, from, to, err);
    sn_buf_fini(&text);
    return status;
}

/* Ranges of another version of the file count for nothing. */
static sn_status read_ranges(sn_partial_file *f, sn_err *err) {
    ranges_file said;
    sn_status status = read_ranges_file(f->path, &said, &f->present, err);
    if (said.size != f->size || strcmp(said.etag, f->etag)) f->present.n = 0;
    return status;
}

static bool is_link(const char *path) {
    struct stat st;
    return !lstat(path, &st) && S_ISLNK(st.st_mode);
}

bool sn_partial_file_exists(const char *path) {
    char name[SN_PATH_SIZE + 16];
    snprintf(name, sizeof name, "%s.ranges", path);
    return !access(name, F_OK);
}

sn_status sn_partial_file_present(const char *path, bool *partial, sn_range_set *present, sn_err *err) {
    ranges_file said;
    *partial = false;
    if (is_link(path)) return SN_OK;
    sn_status status = read_ranges_file(path, &said, present, err);
    *partial = said.found && !sn_range_set_covers(present, 0, said.size);
    return status;
}

static sn_status lock_file(sn_partial_file *f, const sn_cancel *cancel, sn_err *err) {
    char path[SN_PATH_SIZE + 16];
    ranges_path(f, path, "lock");
    f->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f->lock < 0) return sn_fail(err, SN_REFUSED, "%s cannot be written: %s", path, strerror(errno));
    while (flock(f->lock, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return sn_fail(err, SN_REFUSED, "%s cannot be locked: %s", path, strerror(errno));
        if (sn_is_cancelled(cancel))
            return sn_fail(err, SN_RETRY, "another process fetches %s, and waiting for it was cancelled", f->path);
        sn_sleep_us(100000);
    }
    return SN_OK;
}

/* Takes the file as a link to a whole one, if it is one. A link to what is gone, or is another file now, is removed. */
static sn_status open_link(sn_partial_file *f, sn_err *err) {
    struct stat st;
    if (!is_link(f->path)) return SN_OK;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd >= 0 && !fstat(f->fd, &st) && (uint64_t)st.st_size == f->size)
        return sn_range_set_add(&f->present, 0, f->size, err);
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    unlink(f->path);
    return SN_OK;
}

/* Gives the file its size. A file that had another size was of another version: its bytes are not kept. */
static sn_status size_file(sn_partial_file *f, sn_err *err) {
    struct stat st;
    if (fstat(f->fd, &st)) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", f->path, strerror(errno));
    if ((uint64_t)st.st_size != f->size) f->present.n = 0;
    if (f->present.n) return SN_OK;
    sn_status status = sn_partial_file_save(f, err); /* first: without PATH.ranges its holes would count */
    return status || (!ftruncate(f->fd, 0) && !ftruncate(f->fd, (off_t)f->size)) ? status
                                                                                 : sn_fail_write(err, f->path, errno);
}

sn_status sn_partial_file_open(const char *path, uint64_t size, const char *etag, const sn_cancel *cancel,
                               sn_partial_file *out, sn_err *err) {
    *out = (sn_partial_file){.fd = -1, .lock = -1, .size = size};
    if (!size || size > INT64_MAX) return sn_fail(err, SN_REFUSED, "%s would have %" PRIu64 " bytes", path, size);
    if (strlen(path) >= sizeof out->path) return sn_fail(err, SN_REFUSED, "the path %s is too long", path);
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->etag, sizeof out->etag, "%s", *etag ? etag : "-");
    for (char *c = out->etag; *c; c++)
        if (*c <= ' ' || *c > '~') *c = '_'; /* it is one word in PATH.ranges */
    sn_status status = lock_file(out, cancel, err);
    if (!status) status = open_link(out, err);
    bool linked = out->fd >= 0;
    if (!status && !linked) status = read_ranges(out, err);
    if (!status && !linked && (out->fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644)) < 0)
        status = sn_fail(err, SN_REFUSED, "%s cannot be written: %s", path, strerror(errno));
    if (!status && !linked) status = size_file(out, err);
    if (status) sn_partial_file_close(out);
    return status;
}

sn_status sn_partial_file_put(sn_partial_file *f, uint64_t at, const void *data, size_t bytes, sn_err *err) {
    if (at > f->size || bytes > f->size - at)
        return sn_fail(err, SN_REFUSED, "%s ends at byte %" PRIu64 ", and more was sent", f->path, f->size);
    int error = sn_file_write_at(f->fd, data, bytes, at);
    return error ? sn_fail_write(err, f->path, error) : SN_OK;
}

sn_status sn_partial_file_add(sn_partial_file *f, uint64_t at, uint64_t bytes, sn_err *err) {
    sn_status status = sn_range_set_add(&f->present, at, at + bytes, err);
    f->unsaved += bytes;
    /* That the file is whole is for the caller to save, who may compare it first. */
    return !status && f->unsaved >= SAVE_EACH && !sn_partial_file_is_whole(f) ? sn_partial_file_save(f, err) : status;
}

sn_status sn_partial_file_write(sn_partial_file *f, uint64_t at, const void *data, size_t bytes, sn_err *err) {
    sn_status status = sn_partial_file_put(f, at, data, bytes, err);
    return status ? status : sn_partial_file_add(f, at, bytes, err);
}

bool sn_partial_file_is_whole(const sn_partial_file *f) { return sn_range_set_covers(&f->present, 0, f->size); }

sn_status sn_partial_file_link(sn_partial_file *f, const char *target, sn_err *err) {
    char link[SN_PATH_SIZE + 16], ranges[SN_PATH_SIZE + 16];
    ranges_path(f, link, "link");
    ranges_path(f, ranges, "ranges");
    unlink(link); /* of a process that was killed */
    if (symlink(target, link) || rename(link, f->path))
        return sn_fail(err, SN_REFUSED, "%s cannot be linked: %s", f->path, strerror(errno));
    unlink(ranges);
    return sn_range_set_add(&f->present, 0, f->size, err);
}

sn_status sn_partial_file_save(sn_partial_file *f, sn_err *err) {
    char path[SN_PATH_SIZE + 16];
    sn_buf text;
    sn_buf_init(&text, RANGES_FILE_MAX);
    sn_status status = sn_buf_printf(&text, err, "%" PRIu64 " %s\n", f->size, f->etag);
    for (size_t i = 0; !status && i < f->present.n; i++)
        status =
            sn_buf_printf(&text, err, "%" PRIu64 " %" PRIu64 "\n", f->present.ranges[i].from, f->present.ranges[i].to);
    ranges_path(f, path, "ranges");
    if (!status && fdatasync(f->fd)) status = sn_fail_write(err, f->path, errno);
    if (!status) status = sn_file_replace(path, text.data, text.len, err);
    if (!status) f->unsaved = 0;
    sn_buf_fini(&text);
    return status;
}

void sn_partial_file_close(sn_partial_file *f) {
    if (f->fd >= 0) close(f->fd);
    if (f->lock >= 0) close(f->lock);
    f->fd = f->lock = -1;
    sn_range_set_fini(&f->present);
}
