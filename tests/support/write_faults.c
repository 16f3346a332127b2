/* The wrappers see every call of the project's own code (-Wl,--wrap), not those inside of the C library: a listing of a
 * folder is not wrapped. For a power loss they keep a list of what is not on the disk yet: files with bytes since their
 * last fsync, and renames within a folder since the folder's last fsync. */
#include "tests/support/write_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { PENDING_MAX = 64 };

typedef struct pending {
    bool name;                           /* a rename; else bytes */
    char path[PATH_MAX], from[PATH_MAX]; /* of bytes: only path */
} pending;

static struct {
    bool armed, failing, holes;
    uint64_t units_left, fail_at, units, calls;
    int error;
    power_loss power;
    pending pending[PENDING_MAX];
    size_t n_pending;
} faults;

void write_faults_none(void) { memset(&faults, 0, sizeof faults); }

void write_faults_end_after(uint64_t units, power_loss power) {
    write_faults_none();
    faults.armed = true;
    faults.units_left = units;
    faults.power = power;
}

void write_faults_fail(uint64_t nth, int error) {
    write_faults_none();
    faults.failing = true;
    faults.fail_at = nth;
    faults.error = error;
}

void write_faults_holes(void) {
    write_faults_none();
    faults.holes = true;
}

uint64_t write_faults_calls(void) { return faults.calls; }

/* ---- what is not on the disk */

static void path_of(int fd, char out[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n < 0 ? 0 : n] = 0;
}

static void pending_drop(size_t i) {
    memmove(&faults.pending[i], &faults.pending[i + 1], (--faults.n_pending - i) * sizeof *faults.pending);
}

static pending *pending_add(bool name) {
    if (faults.n_pending == PENDING_MAX) abort();
    pending *p = &faults.pending[faults.n_pending++];
    *p = (pending){.name = name};
    return p;
}

static void note_bytes(int fd) {
    char path[PATH_MAX];
    path_of(fd, path);
    for (size_t i = 0; i < faults.n_pending; i++)
        if (!faults.pending[i].name && !strcmp(faults.pending[i].path, path)) return;
    snprintf(pending_add(false)->path, PATH_MAX, "%s", path);
}

static bool lies_in(const char *path, const char *folder) {
    const char *slash = strrchr(path, '/');
    return slash && (size_t)(slash - path) == strlen(folder) && !strncmp(path, folder, strlen(folder));
}

static void note_fsync(int fd) {
    char path[PATH_MAX];
    path_of(fd, path);
    for (size_t i = faults.n_pending; i-- > 0;) {
        const pending *p = &faults.pending[i];
        if (p->name ? lies_in(p->path, path) : !strcmp(p->path, path)) pending_drop(i);
    }
}

/* `path`, which is `from` or lies below it, moves along to `to`. */
static void move_path(char path[PATH_MAX], const char *from, const char *to) {
    size_t n = strlen(from);
    char moved[PATH_MAX];
    if (strncmp(path, from, n) || (path[n] && path[n] != '/')) return;
    if (snprintf(moved, sizeof moved, "%s%s", to, path + n) >= PATH_MAX) abort();
    memcpy(path, moved, PATH_MAX);
}

static void note_rename(const char *from, const char *to) {
    for (size_t i = 0; i < faults.n_pending; i++) {
        move_path(faults.pending[i].path, from, to);
        move_path(faults.pending[i].from, from, to);
    }
    pending *p = pending_add(true);
    snprintf(p->path, PATH_MAX, "%s", to);
    snprintf(p->from, PATH_MAX, "%s", from);
}

int __real_rename(const char *from, const char *to);

static _Noreturn void end_here(void) {
    for (size_t i = 0; i < faults.n_pending && faults.power != POWER_STAYS; i++)
        if (!faults.pending[i].name && truncate(faults.pending[i].path, 0) && errno != ENOENT) abort();
    for (size_t i = faults.n_pending; i-- > 0 && faults.power == POWER_LOSES_NAMES;)
        if (faults.pending[i].name) __real_rename(faults.pending[i].path, faults.pending[i].from);
    _exit(0);
}

/* ---- counting */

/* Of `wanted` units, how many are done before the process ends. */
static size_t units_before_end(size_t wanted) {
    return faults.armed && faults.units_left < wanted ? (size_t)faults.units_left : wanted;
}

static void count_units(size_t n) {
    faults.units += n;
    if (faults.armed) faults.units_left -= n;
}

/* Before a call of one unit; false: it fails. */
static bool may_change(void) {
    if (!units_before_end(1)) end_here();
    count_units(1);
    bool fails = faults.failing && faults.calls == faults.fail_at;
    faults.calls++;
    if (fails) errno = faults.error;
    return !fails;
}

/* ---- the wrappers */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (flags & O_CREAT && !may_change()) return -1;
    return __real_open(path, flags, mode);
}

static bool is_zero(const uint8_t *data, size_t n) { return !n || (!data[0] && !memcmp(data, data + 1, n - 1)); }

ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at) {
    if (faults.holes && is_zero(data, n)) return ftruncate(fd, at + (off_t)n) ? -1 : (ssize_t)n;
    bool fails = faults.failing && faults.calls == faults.fail_at;
    faults.calls++;
    size_t cost = faults.power ? 1 : n, units = units_before_end(cost), done = fails ? n / 2 : n * units / cost;
    if (done && __real_pwrite(fd, data, done, at) != (ssize_t)done) abort();
    count_units(units);
    if (faults.armed) note_bytes(fd);
    if (units < cost) end_here();
    if (fails) errno = faults.error;
    return fails ? -1 : (ssize_t)n;
}

/* The test's own disk needs no fsync: the data of a process that ended are in the page cache. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    if (!may_change()) return -1;
    if (faults.armed) note_fsync(fd);
    return 0;
}

int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    if (!may_change() || __real_rename(from, to)) return -1;
    if (faults.armed) note_rename(from, to);
    return 0;
}

int __real_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    return may_change() ? __real_renameat2(from_folder, from, to_folder, to, flags) : -1;
}

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode) { return may_change() ? __real_mkdir(path, mode) : -1; }

int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path) { return may_change() ? __real_unlink(path) : -1; }

int __real_unlinkat(int folder, const char *path, int flags);
int __wrap_unlinkat(int folder, const char *path, int flags);
int __wrap_unlinkat(int folder, const char *path, int flags) {
    return may_change() ? __real_unlinkat(folder, path, flags) : -1;
}

int __real_rmdir(const char *path);
int __wrap_rmdir(const char *path);
int __wrap_rmdir(const char *path) { return may_change() ? __real_rmdir(path) : -1; }
