#include "net/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_all(int file, const char *text, size_t len) {
    while (len) {
        ssize_t n = write(file, text, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text += n;
        len -= (size_t)n;
    }
    return fsync(file) == 0;
}

/* A new file's name is on disk only when its folder is synced, too. */
static bool sync_folder(const char *path) {
    char copy[4096];
    if (strlen(path) >= sizeof copy) return false;
    memcpy(copy, path, strlen(path) + 1);
    int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = folder >= 0 && fsync(folder) == 0;
    if (folder >= 0) close(folder);
    return good;
}

sn_status sn_secret_save(const char *path, const char *text, size_t len, const char *what, sn_err *err) {
    sn_status status = SN_OK;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST)
        status = sn_fail(err, SN_REFUSED, "%s exists, and %s is never overwritten: choose another file", path, what);
    else if (file < 0)
        status = sn_fail(err, SN_REFUSED, "%s cannot be made: %s", path, strerror(errno));
    else if (!write_all(file, text, len) || !sync_folder(path)) {
        status = sn_fail(err, SN_REFUSED, "%s cannot be written: %s", path, strerror(errno));
        unlink(path);
    }
    if (file >= 0) close(file);
    return status;
}

static sn_status check_mode(int file, const char *path, sn_err *err) {
    struct stat info;
    if (fstat(file, &info)) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return sn_fail(err, SN_REFUSED, "%s is no regular file", path);
    if (info.st_mode & 077)
        return sn_fail(err, SN_REFUSED,
                       "%s can be read or written by others (mode %03o): make a new one, or chmod 600 it if none did",
                       path, (unsigned)info.st_mode & 0777);
    return SN_OK;
}

sn_status sn_secret_load(const char *path, char *text, size_t capacity, size_t *len, sn_err *err) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe must not block it */
    if (file < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = check_mode(file, path, err);
    ssize_t n = status ? 0 : read(file, text, capacity);
    if (!status && n < 0) status = sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    *len = status ? 0 : (size_t)n;
    close(file);
    return status;
}
