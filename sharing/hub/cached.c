/* The folder's lock is the file .use in it: shared by programs that use the model, exclusive for the one that removes
 * it. A lock counts if the file is still the one at its path, since the folder may have been removed before. */
#include "sharing/hub/cached.h"

#include "base/clock.h"
#include "base/parse.h"
#include "sharing/hub/hub_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FOLDERS_MAX = 8, /* one in another */
    LOOK_US = 10000, /* between looks at a lock that another program has: it renames a folder meanwhile */
    LOOKS = 1000,
};

static const char use_name[] = ".use";
#define REMOVED ".removed-" /* the beginning of the name of a folder that is being removed */

/* Adds up what lies below the folder. */
static void count_bytes(const char *folder, int depth, sn_cached_model *model) {
    DIR *listed = depth ? opendir(folder) : NULL;
    for (const struct dirent *entry; listed && (entry = readdir(listed));) {
        char path[SN_PATH_SIZE];
        struct stat st;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            sn_path_join(path, folder, entry->d_name, NULL) || lstat(path, &st))
            continue;
        if (S_ISDIR(st.st_mode))
            count_bytes(path, depth - 1, model);
        else
            model->bytes += (uint64_t)st.st_blocks * 512;
        if (S_ISLNK(st.st_mode) && !stat(path, &st)) model->linked_bytes += (uint64_t)st.st_size;
    }
    if (listed) closedir(listed);
}

static void measure(sn_cached_model *model) {
    char path[SN_PATH_SIZE];
    count_bytes(model->path, FOLDERS_MAX, model);
    if (!sn_path_join(path, model->path, use_name, NULL)) model->used_ns = sn_hub_file_time_ns(path);
}

/* A folder of folders, each of which is a model. kind: the beginning of its name. */
static sn_status list_folder(const char *folder, const char *kind,
                             sn_status (*each)(void *, const sn_cached_model *, sn_err *), void *ctx, sn_err *err) {
    DIR *listed = opendir(folder);
    sn_status status = SN_OK;
    for (const struct dirent *entry; listed && !status && (entry = readdir(listed));) {
        sn_cached_model model = {0};
        struct stat st;
        if (*entry->d_name == '.' || sn_path_join(model.path, folder, entry->d_name, NULL) || stat(model.path, &st) ||
            !S_ISDIR(st.st_mode))
            continue;
        snprintf(model.name, sizeof model.name, "%s%s", kind, entry->d_name);
        measure(&model);
        status = each(ctx, &model, err);
    }
    if (listed) closedir(listed);
    return status;
}

sn_status sn_cached_models(const char *cache, sn_status (*each)(void *, const sn_cached_model *, sn_err *), void *ctx,
                           sn_err *err) {
    char models[SN_PATH_SIZE], folder[SN_PATH_SIZE], kind[SN_HUB_REPO_SIZE + 2];
    sn_status status = sn_path_join(models, cache, "models", err);
    DIR *listed = status ? NULL : opendir(models);
    for (const struct dirent *entry; listed && !status && (entry = readdir(listed));) {
        const char *name = entry->d_name, *dashes = strstr(name, "--");
        if (*name == '.' || sn_path_join(folder, models, name, NULL)) continue;
        if (dashes)
            snprintf(kind, sizeof kind, "%.*s/%.*s@", (int)(dashes - name), name, SN_HUB_REPO_SIZE / 2, dashes + 2);
        else
            snprintf(kind, sizeof kind, "%.*s:", SN_HUB_REPO_SIZE / 2, name);
        status = list_folder(folder, kind, each, ctx, err);
    }
    if (listed) closedir(listed);
    return status;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path) && errno != ENOENT ? -1 : 0;
}

/* 0: the folder is not there any more. */
static int remove_folder(const char *folder) {
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT ? -1 : 0;
}

/* Waits a while for a lock; with LOCK_NB not at all. */
static bool lock_in_time(int fd, int how) {
    for (int i = 0; flock(fd, how | LOCK_NB); i++) {
        if (errno != EWOULDBLOCK || how & LOCK_NB || i == LOOKS) return false;
        sn_sleep_us(LOOK_US);
    }
    return true;
}

/* Opens FOLDER/.use and locks it; *held -1: it does not exist (and was not made), or with LOCK_NB another one has it.
 */
static sn_status lock_use(const char *folder, int open_flags, int how, int *held, sn_err *err) {
    char path[SN_PATH_SIZE];
    struct stat here, there;
    sn_status status = sn_path_join(path, folder, use_name, err);
    *held = -1;
    while (!status) {
        int fd = open(path, O_RDWR | O_CLOEXEC | open_flags, 0644);
        if (fd < 0 && (errno == ENOENT || !open_flags)) return SN_OK;
        if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be written: %s", path, strerror(errno));
        if (!lock_in_time(fd, how)) {
            int error = errno;
            close(fd);
            if (error != EWOULDBLOCK) return sn_fail(err, SN_REFUSED, "%s cannot be locked: %s", path, strerror(error));
            return how & LOCK_NB
                       ? SN_OK
                       : sn_fail(err, SN_RETRY, "another program is removing %s and does not end: stop it", folder);
        }
        if (!fstat(fd, &here) && !stat(path, &there) && here.st_ino == there.st_ino) {
            *held = fd;
            return SN_OK;
        }
        close(fd); /* the folder was removed before the lock was there */
    }
    return status;
}

sn_status sn_cached_hold(const char *folder, int *held, sn_err *err) {
    sn_status status = SN_OK;
    for (*held = -1; !status && *held < 0;) {
        status = sn_hub_make_folders(folder, err);
        if (!status) status = lock_use(folder, O_CREAT, LOCK_SH, held, err);
    }
    if (!status) futimens(*held, NULL);
    return status;
}

sn_status sn_cached_hold_path(const char *path, int *held, sn_err *err) {
    char folder[SN_PATH_SIZE];
    *held = -1;
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder) return SN_OK;
    for (int i = 0; *held < 0 && *folder && i < FOLDERS_MAX; i++) {
        sn_status status = lock_use(folder, 0, LOCK_SH, held, err);
        if (status) return status;
        char *slash = strrchr(folder, '/');
        *(slash ? slash : folder) = 0;
    }
    return SN_OK;
}

void sn_cached_release(int *held) {
    if (*held >= 0) close(*held);
    *held = -1;
}

/* The folder gets another name first: a program that begins to use the model meanwhile makes a new one. What a process
 * that was killed has left under that name goes, too. */
sn_status sn_cached_model_remove(const sn_cached_model *model, sn_err *err) {
    char gone[SN_PATH_SIZE];
    int held;
    sn_status status = lock_use(model->path, O_CREAT, LOCK_EX | LOCK_NB, &held, err);
    if (!status && held < 0)
        status = sn_fail(err, SN_REFUSED, "%s is in use: stop the programs that use it first", model->name);
    const char *name = strrchr(model->path, '/') + 1;
    if (!status && snprintf(gone, sizeof gone, "%.*s" REMOVED "%s", (int)(name - model->path), model->path, name) >=
                       (int)sizeof gone)
        status = sn_fail(err, SN_REFUSED, "the path %s is too long", model->path);
    if (!status && (remove_folder(gone) || rename(model->path, gone)))
        status = sn_fail(err, SN_REFUSED, "%s cannot be removed: %s", model->path, strerror(errno));
    sn_cached_release(&held);
    if (!status && remove_folder(gone))
        status = sn_fail(err, SN_REFUSED, "%s cannot be removed: %s", gone, strerror(errno));
    return status;
}

/* -- room -- */

typedef struct listing {
    sn_cached_model *models;
    size_t n, capacity;
    uint64_t bytes;
} listing;

static sn_status list_model(void *ctx, const sn_cached_model *model, sn_err *err) {
    listing *l = ctx;
    SN_TRY(sn_grow(&l->models, &l->capacity, l->n + 1, sizeof *l->models, err));
    l->models[l->n++] = *model;
    l->bytes += model->bytes;
    return SN_OK;
}

static bool is_used(const sn_cached_model *model) {
    int held;
    bool used = lock_use(model->path, O_CREAT, LOCK_EX | LOCK_NB, &held, NULL) || held < 0;
    sn_cached_release(&held);
    return used;
}

static int compare_use(const void *a, const void *b) {
    const sn_cached_model *x = a, *y = b;
    return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

sn_status sn_cached_make_room(const char *cache, uint64_t max, uint64_t bytes, sn_err *err) {
    listing l = {0};
    uint64_t left = 0; /* bytes of models in use */
    char limit[32], used[32], more[32];
    if (!max) return SN_OK;
    sn_status status = sn_cached_models(cache, list_model, &l, err);
    if (!status && l.n) qsort(l.models, l.n, sizeof *l.models, compare_use);
    for (size_t i = 0; !status && i < l.n; i++)
        if (is_used(&l.models[i])) left += l.models[i].bytes;
    bool fits = bytes <= max && left <= max - bytes; /* where it cannot, nothing is removed */
    for (size_t i = 0; !status && fits && i < l.n && l.bytes > max - bytes; i++)
        if (!sn_cached_model_remove(&l.models[i], NULL)) l.bytes -= l.models[i].bytes;
    if (!status && (!fits || l.bytes > max - bytes))
        status = sn_fail(
            err, SN_REFUSED,
            "%s more do not fit into --cache-max %s, of which %s are in use: give more, or another --cache",
            sn_format_size(bytes, more), sn_format_size(max, limit), sn_format_size(fits ? l.bytes : left, used));
    free(l.models);
    return status;
}
