/* How it works. A checkpoint consists of the adapter folder's files, swarm.json, state.safetensors (parameters, moments
 * and losses as float32 and raw 64-bit arrays), checkpoint.json (version, model, counters, options) and SHA256SUMS,
 * which names the SHA-256 of every other file in the format of sha256sum.
 *
 * Saving writes all files into step-N.part and synchronises each to the disk (base/file.h), then the folder, renames it
 * to step-N and synchronises the parent. The rename is the commit point: a folder named step-N is always complete. Then
 * all checkpoints but the newest two and all unfinished folders are deleted; the second newest remains in case the
 * newest is damaged later.
 *
 * Opening takes the highest N and compares SHA256SUMS with the text that its files give now, before anything in them is
 * believed. It does not fall back to an older checkpoint by itself, because the user must know that work was lost.
 * Restoring reads the state back and rebuilds the order of the examples from seed and epoch. */
#include "client/tune/checkpoint.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/parse.h"
#include "client/tune/adapter_folder.h"
#include "model/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 2, SUMS_MAX = 4096, INDEX_MAX = 1 << 20 };
_Static_assert(sizeof((sn_checkpoint *)0)->path == SN_PATH_SIZE, "a checkpoint's path is a path");
static const char sums_name[] = "SHA256SUMS";
static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", "swarm.json",
                                    "state.safetensors", "checkpoint.json"};
enum { N_FILES = sizeof files / sizeof *files };

/* The line of SHA256SUMS for a file as it is now. */
static sn_status sums_line(const char *folder, const char *name, char line[SN_PATH_SIZE], sn_err *err) {
    char path[SN_PATH_SIZE], hex[2 * SN_HASH_SIZE + 1];
    sn_hash hash;
    sn_status status = sn_path_join(path, folder, name, err);
    if (!status) status = sn_file_hash(path, &hash, err);
    if (!status) snprintf(line, SN_PATH_SIZE, "%s  %s\n", sn_hex(hash.bytes, SN_HASH_SIZE, hex), name);
    return status;
}

/* -- saving */

static sn_status save_state(const char *folder, const sn_tuner *t, sn_err *err) {
    char path[SN_PATH_SIZE];
    size_t n = t->params->n_floats;
    const sn_safetensors_entry entries[] = {
        {"values", SN_F32, 1, {n}, t->params->values},
        {"exp_avg", SN_F32, 1, {n}, t->exp_avg},
        {"exp_avg_sq", SN_F32, 1, {n}, t->exp_avg_sq},
        {"losses", SN_I64, 1, {(size_t)t->step}, t->losses}}; /* doubles, stored by their bits */
    sn_status status = sn_path_join(path, folder, "state.safetensors", err);
    return status ? status : sn_safetensors_write(path, entries, t->step ? 4 : 3, err);
}

static sn_status save_index(const char *folder, const sn_tuner *t, const sn_hash *model, const json_t *options,
                            sn_err *err) {
    char path[SN_PATH_SIZE], hex[2 * SN_HASH_SIZE + 1];
    json_t *index =
        json_pack("{si ss sI sI sI sI sO}", "version", VERSION, "model", sn_hex(model->bytes, SN_HASH_SIZE, hex),
                  "step", (json_int_t)t->step, "epoch", (json_int_t)t->epoch, "position", (json_int_t)t->position,
                  "tokens", (json_int_t)t->tokens, "options", options);
    char *text = index ? json_dumps(index, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    sn_status status = sn_path_join(path, folder, "checkpoint.json", err);
    if (!status)
        status = text ? sn_file_replace(path, text, strlen(text), err) : sn_fail(err, SN_STOP, "out of memory");
    free(text);
    json_decref(index);
    return status;
}

static sn_status save_sums(const char *folder, sn_err *err) {
    char path[SN_PATH_SIZE], line[SN_PATH_SIZE];
    sn_buf sums;
    sn_buf_init(&sums, SUMS_MAX);
    sn_status status = sn_path_join(path, folder, sums_name, err);
    for (int i = 0; i < N_FILES && !status; i++) {
        status = sums_line(folder, files[i], line, err);
        if (!status) status = sn_buf_append(&sums, line, strlen(line), err);
    }
    if (!status) status = sn_file_replace(path, sums.data, sums.len, err);
    sn_buf_fini(&sums);
    return status;
}

/* A folder of trainings may come from a stranger, with links to other folders among its names: of a link only the
 * link itself is removed. */
static void remove_folder(const char *folder) {
    struct stat st;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlinkat(fd, e->d_name, 0);
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    if (!lstat(folder, &st) && S_ISLNK(st.st_mode))
        unlink(folder);
    else
        rmdir(folder);
}

/* N of the folder name "step-N"; -1 for any other name. */
static long long step_number(const char *name) {
    int64_t n;
    return !strncmp(name, "step-", 5) && !sn_parse_int(name + 5, 0, 999999999999, &n, NULL) ? n : -1;
}

/* Deletes all checkpoints but the newest two, and all unfinished ones. The first loop finds the second newest. */
static void remove_old(const char *folder, long long newest) {
    char path[SN_PATH_SIZE];
    long long second = -1;
    for (int loop = 0; loop < 2; loop++) {
        DIR *dir = opendir(folder);
        for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
            long long n = step_number(e->d_name);
            size_t len = strlen(e->d_name);
            bool unfinished = !strncmp(e->d_name, "step-", 5) && len > 5 && !strcmp(e->d_name + len - 5, ".part");
            if (loop == 0 && n > second && n < newest) second = n;
            bool old = n >= 0 && n != second && n != newest;
            if (loop == 1 && (old || unfinished) && !sn_path_join(path, folder, e->d_name, NULL)) remove_folder(path);
        }
        if (dir) closedir(dir);
    }
}

/* Gives the complete folder its name. A folder that has the name already is of an earlier run, perhaps with other
 * options: both change places, and the earlier one goes with the unfinished ones. */
static sn_status commit_folder(const char *folder, const char *unfinished, const char *path, sn_err *err) {
    sn_status status = sn_folder_sync(unfinished, err);
    if (status) return status;
    bool failed = rename(unfinished, path);
    if (failed && (errno == ENOTEMPTY || errno == EEXIST)) {
        failed = renameat2(AT_FDCWD, unfinished, AT_FDCWD, path, RENAME_EXCHANGE);
        if (failed && (errno == EINVAL || errno == ENOSYS)) { /* the file system cannot exchange names */
            remove_folder(path);
            failed = rename(unfinished, path);
        }
    }
    if (failed) return sn_fail(err, SN_REFUSED, "%s cannot be created: %s", path, strerror(errno));
    return sn_folder_sync(folder, err);
}

sn_status sn_checkpoint_save(const char *folder, const sn_tuner *t, const sn_hash *model, const sn_base_weights *base,
                             char *const *labels, const json_t *options, sn_err *err) {
    char name[64], path[SN_PATH_SIZE], unfinished[SN_PATH_SIZE + 8];
    snprintf(name, sizeof name, "step-%lld", (long long)t->step);
    sn_status status = sn_path_join(path, folder, name, err);
    if (status) return status;
    snprintf(unfinished, sizeof unfinished, "%s.part", path);
    remove_folder(unfinished);
    if ((mkdir(folder, 0777) && errno != EEXIST) || mkdir(unfinished, 0777))
        return sn_fail(err, SN_REFUSED, "%s cannot be created: %s", unfinished, strerror(errno));
    status = sn_adapter_folder_save(unfinished, t->params, t->hp, base, labels, err);
    if (!status) status = save_state(unfinished, t, err);
    if (!status) status = save_index(unfinished, t, model, options, err);
    if (!status) status = save_sums(unfinished, err);
    if (!status) status = commit_folder(folder, unfinished, path, err);
    if (status)
        remove_folder(unfinished);
    else
        remove_old(folder, (long long)t->step);
    return status;
}

/* -- opening */

/* Compares SHA256SUMS, line by line, with the files as they are. */
static sn_status check_sums(const char *folder, sn_err *err) {
    char path[SN_PATH_SIZE], line[SN_PATH_SIZE];
    sn_buf sums = {0};
    size_t at = 0;
    sn_status status = sn_path_join(path, folder, sums_name, err);
    if (!status && access(path, F_OK))
        return sn_fail(err, SN_REFUSED,
                       "%s has no %s: it is not complete, or an earlier version of this program wrote it: use another "
                       "checkpoint",
                       folder, sums_name);
    if (!status) status = sn_read_file(path, SUMS_MAX, &sums, err);
    for (int i = 0; i < N_FILES && !status; i++) {
        status = sums_line(folder, files[i], line, err);
        size_t len = status ? 0 : strlen(line);
        if (!status && (sums.len - at < len || memcmp(sums.data + at, line, len)))
            status = sn_fail(err, SN_REFUSED,
                             "%s/%s is damaged: its SHA-256 differs from the one in %s: delete this checkpoint, and "
                             "training resumes from the one before it",
                             folder, files[i], sums_name);
        at += len;
    }
    if (!status && at != sums.len)
        status = sn_fail(err, SN_REFUSED, "%s is damaged: it has more lines than the checkpoint has files", path);
    sn_buf_fini(&sums);
    return status;
}

/* The options that decide the result, and the place of the data, whose hash is compared. A checkpoint may come from
 * a stranger: which nodes are asked, and other files, are up to the one who resumes it. */
static const char *const option_names[] = {
    "method", "virtual-tokens", "rank", "alpha",        "targets", "batch",        "accumulate", "seq",      "lr",
    "steps",  "schedule",       "clip", "warmup-steps", "seed",    "weight-decay", "data",       "data-file"};

static sn_status check_options(json_t *options, const char *path, sn_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(options, key, value) {
        size_t i = 0, n = sizeof option_names / sizeof *option_names;
        while (i < n && strcmp(option_names[i], key)) i++;
        if (i == n)
            return sn_fail(err, SN_REFUSED, "%s names the option %.60s, which no checkpoint decides: use another one",
                           path, key);
    }
    return SN_OK;
}

static sn_status read_index(sn_checkpoint *c, sn_err *err) {
    char path[SN_PATH_SIZE];
    json_error_t error;
    sn_status status = sn_path_join(path, c->path, "checkpoint.json", err);
    if (status) return status;
    sn_buf text = {0};
    status = sn_read_file(path, INDEX_MAX, &text, err);
    if (status) return status;
    json_t *index = json_loadb((const char *)text.data, text.len, 0, &error);
    sn_buf_fini(&text);
    if (!index) return sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", path, error.text);
    const char *model = json_string_value(json_object_get(index, "model"));
    json_int_t step = json_integer_value(json_object_get(index, "step")),
               epoch = json_integer_value(json_object_get(index, "epoch")),
               position = json_integer_value(json_object_get(index, "position")),
               tokens = json_integer_value(json_object_get(index, "tokens"));
    if (json_integer_value(json_object_get(index, "version")) != VERSION)
        status = sn_fail(err, SN_REFUSED, "%s was written by another version of this program", path);
    else if (step < 0 || epoch < 0 || tokens < 0 || position < 0 || !model ||
             sn_unhex(model, c->model.bytes, SN_HASH_SIZE, NULL))
        status = sn_fail(err, SN_REFUSED, "%s holds an invalid model, step, epoch or position: use another checkpoint",
                         path);
    if (!status) status = check_options(json_object_get(index, "options"), path, err);
    c->step = step;
    c->epoch = (uint64_t)epoch;
    c->position = (uint64_t)position;
    c->tokens = (uint64_t)tokens;
    c->options = json_incref(json_object_get(index, "options"));
    json_decref(index);
    return status;
}

sn_status sn_checkpoint_open(const char *folder, sn_checkpoint *out, sn_err *err) {
    char name[64];
    long long newest = -1;
    *out = (sn_checkpoint){.step = 0};
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (step_number(e->d_name) > newest) newest = step_number(e->d_name);
    if (dir) closedir(dir);
    if (newest < 0)
        return sn_fail(err, SN_REFUSED, "%s holds no checkpoint (a folder step-N): start without --resume", folder);
    snprintf(name, sizeof name, "step-%lld", newest);
    sn_status status = sn_path_join(out->path, folder, name, err);
    if (!status) status = check_sums(out->path, err);
    if (!status) status = sn_base_weights_load(out->path, &out->base, err);
    return status ? status : read_index(out, err);
}

void sn_checkpoint_close(sn_checkpoint *c) {
    sn_base_weights_fini(&c->base);
    json_decref(c->options);
    *c = (sn_checkpoint){.step = 0};
}

sn_status sn_checkpoint_check_weights(const sn_checkpoint *c, const sn_model *model, const sn_hash *blocks,
                                      sn_err *err) {
    sn_hash id = sn_model_id(model);
    if (memcmp(&id, &c->model, sizeof id))
        return sn_fail(err, SN_REFUSED, "%s is of another model: resume with the model of its first step", c->path);
    sn_status status = sn_base_weights_check_client(&c->base, model, err);
    for (int b = 0; b < c->base.n_blocks && blocks && !status; b++)
        if (memcmp(&c->base.blocks[b], &blocks[b], sizeof *blocks))
            status = sn_base_weights_block_differs(&c->base, b, err);
    return status;
}

/* -- restoring */

static sn_status state_read_floats(const sn_safetensors *file, const char *name, float *out, size_t n, sn_err *err) {
    const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
    if (!t || t->dtype != SN_F32 || t->elements != n)
        return sn_fail(err, SN_REFUSED, "its %s do not have the shape that these options require", name);
    memcpy(out, t->data, n * sizeof *out);
    return SN_OK;
}

static sn_status state_read_losses(const sn_safetensors *file, sn_tuner *t, size_t n, sn_err *err) {
    const sn_safetensors_tensor *losses = sn_safetensors_find(file, "losses");
    if (n && (!losses || losses->dtype != SN_I64 || losses->elements != n))
        return sn_fail(err, SN_REFUSED, "its losses are missing or incomplete");
    free(t->losses);
    t->losses = NULL;
    t->losses_capacity = n;
    sn_status status = sn_calloc(&t->losses, n, sizeof *t->losses, err);
    if (!status && n) memcpy(t->losses, losses->data, n * sizeof *t->losses);
    return status;
}

static sn_status restore_position(const sn_checkpoint *c, sn_tuner *t, sn_err *err) {
    if (c->position > t->data->n)
        return sn_fail(err, SN_REFUSED, "its position is %llu of %zu examples", (unsigned long long)c->position,
                       t->data->n);
    t->step = c->step;
    t->epoch = c->epoch;
    t->position = (size_t)c->position;
    t->tokens = c->tokens;
    sn_dataset_order(t->data, t->options.seed, t->epoch, t->order);
    return SN_OK;
}

sn_status sn_checkpoint_restore(const sn_checkpoint *c, sn_tuner *t, sn_err *err) {
    char path[SN_PATH_SIZE];
    sn_safetensors *file = NULL;
    size_t n = t->params->n_floats;
    sn_status status = sn_path_join(path, c->path, "state.safetensors", err);
    if (!status) status = sn_safetensors_open(path, &file, err);
    if (!status) status = state_read_floats(file, "values", t->params->values, n, err);
    if (!status) status = state_read_floats(file, "exp_avg", t->exp_avg, n, err);
    if (!status) status = state_read_floats(file, "exp_avg_sq", t->exp_avg_sq, n, err);
    if (!status) status = restore_position(c, t, err);
    if (!status) status = state_read_losses(file, t, (size_t)t->step, err);
    sn_safetensors_close(&file);
    return status ? sn_err_context(err, "%s", c->path) : SN_OK;
}
