/* How it works. A checkpoint consists of the adapter folder's files, swarm.json, state.safetensors (parameters, moments
 * and losses as float32 and raw 64-bit arrays) and checkpoint.json, the index: version, model, counters, options and
 * the SHA-256 of every other file.
 *
 * Saving writes all files into step-N.part, synchronises each to the disk, renames the folder to step-N and
 * synchronises the parent. The rename is the commit point: a folder named step-N is always complete. Then all
 * checkpoints but the newest two and all unfinished folders are deleted; the second newest remains in case the newest
 * is damaged later.
 *
 * Finding takes the highest N and compares the hashes of its files with the index. It does not fall back to an older
 * checkpoint by itself, because the user must know that work was lost. Loading reads the state back and rebuilds the
 * order of the examples from seed and epoch. */
#include "client/tune/checkpoint.h"

#include "base/mem.h"
#include "base/text.h"
#include "client/tune/adapter_folder.h"
#include "model/peft/peft.h"
#include "model/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, FILE_MAX = 1 << 30, VERSION = 1 };
static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", "swarm.json",
                                    "state.safetensors"};
enum { N_FILES = sizeof files / sizeof *files };

static sn_status path_join(char out[PATH_SIZE], const char *folder, const char *name, sn_err *err) {
    return snprintf(out, PATH_SIZE, "%s/%s", folder, name) < PATH_SIZE
               ? SN_OK
               : sn_fail(err, SN_REFUSED, "the path is too long");
}

static sn_status hash_file(const char *folder, const char *name, char hex[65], sn_err *err) {
    char path[PATH_SIZE];
    sn_buf bytes = {0};
    sn_status status = path_join(path, folder, name, err);
    if (!status) status = sn_read_file(path, FILE_MAX, &bytes, err);
    if (!status) {
        sn_hash hash = sn_hash_of(bytes.data, bytes.len);
        sn_hex(hash.bytes, SN_HASH_SIZE, hex);
    }
    sn_buf_fini(&bytes);
    return status;
}

static sn_status sync_path(const char *path, sn_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd);
    if (fd >= 0) close(fd);
    return failed ? sn_fail(err, SN_REFUSED, "%s cannot be written to the disk: %s", path, strerror(errno)) : SN_OK;
}

/* -- saving */

static sn_status save_state(const char *folder, const sn_tuner *t, sn_err *err) {
    char path[PATH_SIZE];
    size_t n = t->params->n_floats;
    const sn_safetensors_entry entries[] = {
        {"values", SN_F32, 1, {n}, t->params->values},
        {"exp_avg", SN_F32, 1, {n}, t->exp_avg},
        {"exp_avg_sq", SN_F32, 1, {n}, t->exp_avg_sq},
        {"losses", SN_I64, 1, {(size_t)t->step}, t->losses}}; /* doubles, stored by their bits */
    sn_status status = path_join(path, folder, "state.safetensors", err);
    return status ? status : sn_safetensors_write(path, entries, t->step ? 4 : 3, err);
}

static sn_status save_index(const char *folder, const sn_tuner *t, const sn_hash *model, const json_t *options,
                            sn_err *err) {
    char path[PATH_SIZE], hex[65];
    json_t *hashes = json_object();
    sn_status status = SN_OK;
    for (int i = 0; i < N_FILES && !status; i++) {
        status = hash_file(folder, files[i], hex, err);
        if (!status) json_object_set_new(hashes, files[i], json_string(hex));
        if (!status) status = path_join(path, folder, files[i], err);
        if (!status) status = sync_path(path, err);
    }
    json_t *index =
        json_pack("{si ss sI sI sI sI so sO}", "version", VERSION, "model", sn_hex(model->bytes, SN_HASH_SIZE, hex),
                  "step", (json_int_t)t->step, "epoch", (json_int_t)t->epoch, "position", (json_int_t)t->position,
                  "tokens", (json_int_t)t->tokens, "files", hashes, "options", options);
    if (!status) status = path_join(path, folder, "checkpoint.json", err);
    if (!status && (!index || json_dump_file(index, path, JSON_INDENT(2) | JSON_PRESERVE_ORDER)))
        status = sn_fail(err, SN_REFUSED, "%s cannot be written: check the free space", path);
    if (!status) status = sync_path(path, err);
    json_decref(index);
    return status;
}

static void remove_folder(const char *folder) {
    char path[PATH_SIZE];
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (e->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < (int)sizeof path)
            unlink(path);
    if (dir) closedir(dir);
    rmdir(folder);
}

/* N of the folder name "step-N"; -1 for any other name. */
static long long step_number(const char *name) {
    int64_t n;
    return !strncmp(name, "step-", 5) && !sn_parse_int(name + 5, 0, 999999999999, &n, NULL) ? n : -1;
}

/* Deletes all checkpoints but the newest two, and all unfinished ones. The first loop finds the second newest. */
static void remove_old(const char *folder, long long newest) {
    char path[PATH_SIZE];
    long long second = -1;
    for (int loop = 0; loop < 2; loop++) {
        DIR *dir = opendir(folder);
        for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
            long long n = step_number(e->d_name);
            size_t len = strlen(e->d_name);
            bool unfinished = !strncmp(e->d_name, "step-", 5) && len > 5 && !strcmp(e->d_name + len - 5, ".part");
            if (loop == 0 && n > second && n < newest) second = n;
            bool old = n >= 0 && n != second && n != newest;
            if (loop == 1 && (old || unfinished) && !path_join(path, folder, e->d_name, &(sn_err){0}))
                remove_folder(path);
        }
        if (dir) closedir(dir);
    }
}

sn_status sn_checkpoint_save(const char *folder, const sn_tuner *t, const sn_hash *model, const sn_hash *weights,
                             char *const *labels, const json_t *options, sn_err *err) {
    char name[64], path[PATH_SIZE], unfinished[PATH_SIZE + 8];
    snprintf(name, sizeof name, "step-%lld", (long long)t->step);
    sn_status status = path_join(path, folder, name, err);
    if (status) return status;
    struct stat existing;
    if (!stat(path, &existing)) return SN_OK; /* it has the same content: the same steps give the same bits */
    snprintf(unfinished, sizeof unfinished, "%s.part", path);
    remove_folder(unfinished);
    if ((mkdir(folder, 0777) && errno != EEXIST) || mkdir(unfinished, 0777))
        return sn_fail(err, SN_REFUSED, "%s cannot be created: %s", unfinished, strerror(errno));
    status = sn_adapter_folder_save(unfinished, t->params, t->hp, labels, err);
    if (!status) status = sn_peft_write_base(unfinished, weights, t->hp->name, err);
    if (!status) status = save_state(unfinished, t, err);
    if (!status) status = save_index(unfinished, t, model, options, err);
    if (!status) status = sync_path(unfinished, err);
    if (!status && rename(unfinished, path))
        status = sn_fail(err, SN_REFUSED, "%s cannot be created: %s", path, strerror(errno));
    if (!status) status = sync_path(folder, err);
    if (status)
        remove_folder(unfinished);
    else
        remove_old(folder, (long long)t->step);
    return status;
}

/* -- finding */

static sn_status check_files(const char *path, const json_t *index, sn_err *err) {
    char hex[65];
    for (int i = 0; i < N_FILES; i++) {
        const char *expected = json_string_value(json_object_get(json_object_get(index, "files"), files[i]));
        sn_status status = hash_file(path, files[i], hex, err);
        if (status) return status;
        if (!expected || strcmp(expected, hex))
            return sn_fail(err, SN_REFUSED, "%s/%s is damaged: its SHA-256 differs from the one in checkpoint.json",
                           path, files[i]);
    }
    return SN_OK;
}

sn_status sn_checkpoint_find(const char *folder, const sn_hash *model, char path[4096], json_t **options, sn_err *err) {
    char name[64], at[PATH_SIZE], hex[65];
    json_error_t error;
    long long newest = -1;
    DIR *dir = opendir(folder);
    *options = NULL;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (step_number(e->d_name) > newest) newest = step_number(e->d_name);
    if (dir) closedir(dir);
    if (newest < 0)
        return sn_fail(err, SN_REFUSED, "%s holds no checkpoint (a folder step-N): start without --resume", folder);
    snprintf(name, sizeof name, "step-%lld", newest);
    sn_status status = path_join(path, folder, name, err);
    if (!status) status = path_join(at, path, "checkpoint.json", err);
    if (status) return status;
    json_t *index = json_load_file(at, 0, &error);
    const char *index_model = json_string_value(json_object_get(index, "model"));
    if (!index) return sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", at, error.text);
    if (json_integer_value(json_object_get(index, "version")) != VERSION || !index_model)
        status = sn_fail(err, SN_REFUSED, "%s was written by another version of this program", at);
    else if (model && strcmp(index_model, sn_hex(model->bytes, SN_HASH_SIZE, hex)))
        status = sn_fail(err, SN_REFUSED, "%s is of another model: resume with the model of its first step", path);
    if (!status) status = check_files(path, index, err);
    if (!status) *options = json_incref(json_object_get(index, "options"));
    json_decref(index);
    return status;
}

/* -- loading */

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

static sn_status state_read_position(const char *path, sn_tuner *t, sn_err *err) {
    char at[PATH_SIZE];
    sn_status status = path_join(at, path, "checkpoint.json", err);
    json_t *index = status ? NULL : json_load_file(at, 0, NULL);
    json_int_t step = json_integer_value(json_object_get(index, "step")),
               position = json_integer_value(json_object_get(index, "position"));
    json_int_t epoch = json_integer_value(json_object_get(index, "epoch")),
               tokens = json_integer_value(json_object_get(index, "tokens"));
    json_decref(index);
    if (status) return status;
    if (step < 0 || epoch < 0 || tokens < 0 || position < 0 || (size_t)position > t->data->n)
        return sn_fail(err, SN_REFUSED, "%s holds an invalid step, epoch or position: use another checkpoint", at);
    t->step = step;
    t->epoch = (uint64_t)epoch;
    t->position = (size_t)position;
    t->tokens = (uint64_t)tokens;
    sn_dataset_order(t->data, t->options.seed, t->epoch, t->order);
    return SN_OK;
}

sn_status sn_checkpoint_load(const char *path, sn_tuner *t, sn_err *err) {
    char at[PATH_SIZE];
    sn_safetensors *file = NULL;
    size_t n = t->params->n_floats;
    sn_status status = path_join(at, path, "state.safetensors", err);
    if (!status) status = sn_safetensors_open(at, &file, err);
    if (!status) status = state_read_floats(file, "values", t->params->values, n, err);
    if (!status) status = state_read_floats(file, "exp_avg", t->exp_avg, n, err);
    if (!status) status = state_read_floats(file, "exp_avg_sq", t->exp_avg_sq, n, err);
    if (!status) status = state_read_position(path, t, err);
    if (!status) status = state_read_losses(file, t, (size_t)t->step, err);
    sn_safetensors_close(&file);
    return status ? sn_err_context(err, "%s", path) : SN_OK;
}
