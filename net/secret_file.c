#include "net/secret_file.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <unistd.h>

/* Returns 0, or the errno of the failure. */
static int write_all(int file, const char *text, size_t len) {
    int error = sn_file_write_at(file, text, len, 0);
    return error ? error : fsync(file) ? errno : 0;
}

/* A new file's name is on disk only when its folder is synced, too. */
static sn_status sync_folder(const char *path, sn_err *err) {
    char copy[SN_PATH_SIZE];
    if (strlen(path) >= sizeof copy) return sn_fail(err, SN_REFUSED, "the path %.80s... is too long", path);
    memcpy(copy, path, strlen(path) + 1);
    return sn_folder_sync(dirname(copy), err);
}

sn_status sn_secret_save(const char *path, const char *text, size_t len, const char *what, sn_err *err) {
    sn_status status = SN_OK;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST)
        status = sn_fail(err, SN_REFUSED, "%s exists, and %s is never overwritten: choose another file", path, what);
    else if (file < 0)
        status = sn_fail_write(err, path, errno);
    if (status) return status;
    int error = write_all(file, text, len);
    status = error ? sn_fail_write(err, path, error) : sync_folder(path, err);
    close(file);
    if (status) unlink(path);
    return status;
}

sn_status sn_secret_load(const char *path, char *text, size_t capacity, size_t *len, sn_err *err) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe must not block it */
    if (file < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = sn_file_check_secret(file, path, err);
    ssize_t n = status ? 0 : read(file, text, capacity);
    if (!status && n < 0) status = sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    *len = status ? 0 : (size_t)n;
    close(file);
    return status;
}
