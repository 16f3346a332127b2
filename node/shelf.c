/* Finding the manifest, on a thread; and reading from the files, on the network thread.
 *
 * A file with holes (model/partial_file.h) grows while the node fetches other blocks. What is there is read again from
 * its list, at most once a second. */
#include "node/shelf.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/file_facts.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/gguf_parts.h"
#include "sharing/hub/hub.h"
#include "model/partial_file.h"
#include "model/source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LOOK_EVERY_US = 1000000, THREADS_MAX = 4 };

typedef struct shelf_file {
    char path[SN_PATH_SIZE];
    int fd; /* -1: not open */
    sn_range_set present;
    int64_t looked_us; /* when `present` was read; 0: never */
} shelf_file;

struct sn_shelf {
    char path[SN_PATH_SIZE], cache[SN_PATH_SIZE];
    void (*done)(void *);
    void *ctx;
    pthread_t thread;
    sn_cancel cancel;
    sem_t begin; /* posted when all may be read, and at the end */
    atomic_bool finished;
    bool taken;
    /* Of the thread until it has finished. */
    bool found;
    sn_buf text;
    sn_manifest manifest;
    shelf_file *files; /* (manifest.n_files) */
};

/* -- the manifest -------------------------------------------------------------------------------------------------- */

/* The folder of the model's files, and whether the model is that folder. */
static bool model_folder(const sn_shelf *s, char out[SN_PATH_SIZE]) {
    struct stat st;
    bool folder = !stat(s->path, &st) && S_ISDIR(st.st_mode);
    snprintf(out, SN_PATH_SIZE, "%s", s->path);
    char *slash = strrchr(out, '/');
    if (!folder && slash)
        *slash = 0;
    else if (!folder)
        snprintf(out, SN_PATH_SIZE, ".");
    return folder;
}

/* Until all files are settled a change may not show in their facts. */
static bool add_facts(sn_hasher *hasher, const char *path, const char *name) {
    sn_file_facts f;
    char line[SN_PATH_SIZE + 256], *real = realpath(path, NULL);
    bool known = sn_file_facts_read(-1, path, &f) && sn_file_facts_are_settled(&f);
    snprintf(line, sizeof line, "%s %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 "\n", real ? real : "",
             name, f.device, f.inode, f.size, f.modified_ns, f.changed_ns);
    sn_hasher_add(hasher, line, strlen(line));
    free(real);
    return known;
}

/* Where the manifest of these files, as they are now, is kept. *settled: it may be kept. */
static sn_status cached_path(const sn_shelf *s, char out[SN_PATH_SIZE], bool *settled, sn_err *err) {
    char folder[SN_PATH_SIZE], path[SN_PATH_SIZE], hex[2 * SN_HASH_SIZE + 1], name[2 * SN_HASH_SIZE + 16];
    sn_hasher *hasher = sn_hasher_new();
    sn_hash all = {0};
    DIR *listed = model_folder(s, folder) ? opendir(folder) : NULL;
    *settled = true;
    if (!hasher) return sn_fail(err, SN_STOP, "out of memory for a hash");
    for (int i = 1; i <= sn_gguf_parts_of(s->path, NULL); i++)
        if (!sn_gguf_part_path(s->path, i, path, NULL)) *settled &= add_facts(hasher, path, "");
    /* The order of names in a folder is that of the file system, so their hashes are added up without one. */
    for (const struct dirent *entry; listed && (entry = readdir(listed));) {
        if (!sn_hub_is_model_file(entry->d_name) || sn_path_join(path, folder, entry->d_name, NULL)) continue;
        sn_hasher *one = sn_hasher_new();
        if (!one) continue;
        *settled &= add_facts(one, path, entry->d_name);
        const sn_hash hash = sn_hasher_end(one);
        for (size_t i = 0; i < SN_HASH_SIZE; i++) all.bytes[i] ^= hash.bytes[i];
        sn_hasher_free(one);
    }
    if (listed) closedir(listed);
    sn_hasher_add(hasher, all.bytes, sizeof all.bytes);
    const sn_hash key = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    snprintf(name, sizeof name, "%s.manifest", sn_hex(key.bytes, SN_HASH_SIZE, hex));
    sn_status status = sn_path_join(folder, s->cache, "manifests", err);
    if (!status) status = sn_hub_make_folders(folder, err);
    return status ? status : sn_path_join(out, folder, name, err);
}

static sn_status read_manifest(sn_shelf *s, const char *path, sn_err *err) {
    sn_buf_fini(&s->text);
    sn_manifest_fini(&s->manifest);
    sn_status status = sn_read_file(path, SN_MANIFEST_MAX, &s->text, err);
    return status ? status : sn_manifest_parse((const char *)s->text.data, s->text.len, &s->manifest, err);
}

static bool is_cancelled(void *ctx) { return sn_is_cancelled(ctx); }

/* Whether the manifest is of the model as it is now: the files may have been replaced since. Models of one form have
 * one id, so the last block that is here is compared, too. */
static bool is_of_model(sn_shelf *s) {
    const sn_halt stop = {is_cancelled, &s->cancel};
    const sn_manifest *manifest = &s->manifest;
    sn_model *model = NULL;
    sn_hash hash;
    sn_err err;
    if (sn_model_open(s->path, &model, &err)) return false;
    sn_model_keep_hashes(model, s->cache);
    const sn_hash id = sn_model_id(model);
    int block = sn_model_hparams(model)->n_blocks - 1;
    bool same = !memcmp(&id, &manifest->model, sizeof id) && manifest->n_blocks == block + 1;
    while (block >= 0 && !sn_model_holds_block(model, block)) block--;
    if (same && block >= 0)
        same = !sn_model_hash_block(model, block, &stop, &hash, &err) &&
               !memcmp(&hash, &manifest->blocks[block], sizeof hash);
    sn_model_close(&model);
    return same;
}

/* Makes the manifest that `path` is for, beside the work of the node. */
static sn_status make_manifest(sn_shelf *s, const char *path, bool settled, sn_err *err) {
    char resumed[SN_PATH_SIZE], after[SN_PATH_SIZE];
    const int half = sn_cores() / 2, threads = half < 1 ? 1 : half < THREADS_MAX ? half : THREADS_MAX;
    if (snprintf(resumed, sizeof resumed, "%s.pieces", path) >= (int)sizeof resumed)
        return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    while (sem_wait(&s->begin)) {}
    if (sn_is_cancelled(&s->cancel)) return sn_fail(err, SN_RETRY, "the manifest was not finished");
    sn_log(SN_LOG_INFO, "making the manifest", "text=the whole model is read, beside the work, to be shared");
    sn_buf_fini(&s->text);
    sn_buf_init(&s->text, SN_MANIFEST_MAX);
    const sn_manifest_making making = {&s->cancel, threads, s->cache, settled ? resumed : NULL};
    sn_status status = sn_manifest_make(s->path, &making, &s->text, err);
    if (!status) unlink(resumed);
    if (!status) status = sn_manifest_parse((const char *)s->text.data, s->text.len, &s->manifest, err);
    if (!status) status = cached_path(s, after, &(bool){false}, err);
    if (!status && strcmp(after, path))
        return sn_fail(err, SN_REFUSED, "the model's files were changed while they were hashed");
    if (!status && settled && sn_file_replace(path, s->text.data, s->text.len, err)) /* made again at the next start */
        sn_log(SN_LOG_INFO, "manifest not kept", "text=%s", err->text);
    return status;
}

static sn_status find_manifest(sn_shelf *s, sn_err *err) {
    char path[SN_PATH_SIZE];
    bool found, settled;
    sn_status status = sn_manifest_read_beside(s->path, &found, &s->text, &s->manifest, err);
    if (status || (found && is_of_model(s))) return status;
    if (sn_is_cancelled(&s->cancel)) return sn_fail(err, SN_RETRY, "the manifest was not compared");
    if (found)
        sn_log(SN_LOG_WARN, "manifest not used",
               "text=the manifest beside %s is of another model: make it again with 'swarm hash'", s->path);
    status = cached_path(s, path, &settled, err);
    if (status || !read_manifest(s, path, NULL)) return status;
    return make_manifest(s, path, settled, err);
}

static sn_status open_files(sn_shelf *s, sn_err *err) {
    sn_status status = sn_calloc(&s->files, s->manifest.n_files, sizeof *s->files, err);
    for (size_t i = 0; !status && i < s->manifest.n_files; i++) s->files[i].fd = -1;
    for (size_t i = 0; !status && i < s->manifest.n_files; i++)
        status = sn_manifest_file_path(&s->manifest, i, s->path, s->files[i].path, err);
    return status;
}

static void *shelf_run(void *arg) {
    sn_shelf *s = arg;
    sn_err err;
    sn_thread_step_back();
    sn_status status = find_manifest(s, &err);
    if (!status) s->text.len = s->manifest.len; /* receivers compare it with the id, and ask for no signature */
    if (!status) status = open_files(s, &err);
    s->found = !status;
    if (status && !sn_is_cancelled(&s->cancel)) sn_log(SN_LOG_INFO, "weights not shared", "text=%s", err.text);
    atomic_store(&s->finished, true);
    s->done(s->ctx);
    return NULL;
}

sn_status sn_shelf_new(const char *path, const char *cache, void (*done)(void *), void *ctx, sn_shelf **out,
                       sn_err *err) {
    sn_shelf *s = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    snprintf(s->path, sizeof s->path, "%s", path);
    snprintf(s->cache, sizeof s->cache, "%s", cache);
    s->done = done;
    s->ctx = ctx;
    sem_init(&s->begin, 0, 0);
    if (!sn_thread_start(&s->thread, shelf_run, s, NULL)) {
        sem_destroy(&s->begin);
        free(s);
        return sn_fail(err, SN_STOP, "the system has no thread left");
    }
    *out = s;
    return SN_OK;
}

void sn_shelf_begin(sn_shelf *s) { sem_post(&s->begin); }

void sn_shelf_free(sn_shelf **shelf) {
    sn_shelf *s = *shelf;
    if (!s) return;
    atomic_store(&s->cancel.set, 1);
    sem_post(&s->begin);
    pthread_join(s->thread, NULL);
    sem_destroy(&s->begin);
    for (size_t i = 0; s->files && i < s->manifest.n_files; i++) {
        if (s->files[i].fd >= 0) close(s->files[i].fd);
        sn_range_set_fini(&s->files[i].present);
    }
    free(s->files);
    sn_manifest_fini(&s->manifest);
    sn_buf_fini(&s->text);
    free(s);
    *shelf = NULL;
}

bool sn_shelf_take(sn_shelf *s, sn_hash *manifest) {
    if (s->taken || !atomic_load(&s->finished)) return false;
    s->taken = true;
    if (s->found) *manifest = s->manifest.id;
    return s->found;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static sn_status find_file(sn_shelf *s, uint64_t number, shelf_file **out, sn_err *err) {
    if (!s->taken || !s->found || !number || number > s->manifest.n_files)
        return sn_fail(err, SN_REFUSED, "the model has no file of number %" PRIu64, number);
    shelf_file *f = *out = &s->files[number - 1];
    struct stat st;
    bool partial;
    if (f->fd < 0) {
        f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
        if (f->fd >= 0 && (fstat(f->fd, &st) || (uint64_t)st.st_size != s->manifest.files[number - 1].size)) {
            close(f->fd);
            f->fd = -1;
        }
    }
    if (f->fd < 0) return sn_fail(err, SN_REFUSED, "the file is not here");
    if (f->looked_us && sn_now_us() - f->looked_us < LOOK_EVERY_US) return SN_OK;
    f->looked_us = sn_now_us();
    f->present.n = 0;
    sn_status status = sn_partial_file_present(f->path, &partial, &f->present, err);
    if (!status && !partial) status = sn_range_set_add(&f->present, 0, s->manifest.files[number - 1].size, err);
    return status;
}

sn_status sn_shelf_offer(void *ctx, uint64_t file, sn_range_set *out, sn_err *err) {
    shelf_file *f;
    sn_status status = find_file(ctx, file, &f, err);
    for (size_t i = 0; !status && i < f->present.n; i++)
        status = sn_range_set_add(out, f->present.ranges[i].from, f->present.ranges[i].to, err);
    return status;
}

/* Reads what is in memory. Where the file system cannot tell, it reads. */
static sn_status read_now(const shelf_file *f, uint64_t from, size_t bytes, void *out, sn_err *err) {
    size_t done = 0;
    while (done < bytes) {
        struct iovec rest = {(uint8_t *)out + done, bytes - done};
        ssize_t n = preadv2(f->fd, &rest, 1, (off_t)(from + done), RWF_NOWAIT);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            posix_fadvise(f->fd, (off_t)from, (off_t)bytes, POSIX_FADV_WILLNEED);
            return sn_fail(err, SN_RETRY, "the bytes are read from the disk");
        } else if (n < 0 && errno == EOPNOTSUPP) {
            int error = sn_file_read_at(f->fd, (uint8_t *)out + done, bytes - done, from + done);
            return error ? sn_fail(err, SN_REFUSED, "the file cannot be read: %s", strerror(error)) : SN_OK;
        } else if (!n || errno != EINTR) {
            return sn_fail(err, SN_REFUSED, "the file cannot be read");
        }
    }
    return SN_OK;
}

sn_status sn_shelf_read(void *ctx, uint64_t file, uint64_t from, size_t bytes, void *out, uint64_t *size, sn_err *err) {
    sn_shelf *s = ctx;
    shelf_file *f;
    uint64_t to;
    bool overflow = __builtin_add_overflow(from, (uint64_t)bytes, &to);
    if (!file && s->taken && s->found) {
        *size = s->text.len;
        if (overflow || to > s->text.len) return sn_fail(err, SN_REFUSED, "the manifest has %zu bytes", s->text.len);
        memcpy(out, s->text.data + from, bytes);
        return SN_OK;
    }
    sn_status status = find_file(s, file, &f, err);
    if (status) return status;
    *size = s->manifest.files[file - 1].size;
    if (overflow || !sn_range_set_covers(&f->present, from, to))
        return sn_fail(err, SN_REFUSED, "these bytes of the file are not here");
    return read_now(f, from, bytes, out, err);
}
